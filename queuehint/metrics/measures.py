"""
The metrics: one table for the names of both ecosystems, and the query of the store.

Counts come from the store, so any one process can report those of all. A store that does not answer must not block a
scrape: it is queried in a thread of its own, one question at a time, and not again for a while after a failure.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import attrs

from queuehint.scheduler.holds.request import POOL_PREFIX
from queuehint.schema.checks import check_duration
from queuehint.values.event import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.values.event import Event
    from queuehint.values.report import EdgeStats, Stats, WorkerInfo

TIMEOUT_S = 2.0
FRESH_S = 1.0
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
TIMED = (EventKind.STARTED, EventKind.FINISHED, EventKind.FAILED, EventKind.RETRIED, EventKind.CANCELED)
"""The events that tell how long a job waited at its place, or ran."""


@attrs.frozen
class Answer:
    """Last answers of the store."""

    stats: Stats
    edges: EdgeStats
    workers: Sequence[WorkerInfo]


@attrs.frozen(kw_only=True)
class Measure:
    """
    One number, or one for each value of a label.

    Args:
        name: words with dots, as OpenTelemetry writes them, without ``queuehint.``.
        help: one sentence.
        read: the numbers, by the value of *label*; by ``""`` if there is none.
        is_counter: it only grows.
        unit: ``"s"``, or ``""`` for a count.
    """

    name: str
    help: str
    read: Callable[[Answer], Mapping[str, float]]
    is_counter: bool = False
    label: str | None = None
    unit: str = ""


def _one(name: str, help: str, read: Callable[[Answer], float], *, is_counter: bool = False, unit: str = "") -> Measure:
    return Measure(name=name, help=help, read=lambda answer: {"": read(answer)}, is_counter=is_counter, unit=unit)


def _total(field: str, help: str) -> Measure:
    return _one(f"jobs.{field}", help, lambda answer: getattr(answer.stats, field), is_counter=True)


def _edges(field: str, help: str) -> Measure:
    return _one(f"edges.{field}", help, lambda answer: getattr(answer.edges, field))


def pool_label(pool: str) -> str:
    """
    Return the label of a pool: one for all permits and exclusive sections, each of which has a pool of its own.

    >>> pool_label("default"), pool_label("@1k8hn1c791dtsftvqu7rm")
    ('default', '@')
    """
    return POOL_PREFIX if pool.startswith(POOL_PREFIX) else pool


def _by_pool(numbers: Mapping[str, int], join: Callable[[Iterable[int]], int]) -> dict[str, int]:
    found: dict[str, list[int]] = {}
    for pool, number in numbers.items():
        found.setdefault(pool_label(pool), []).append(number)
    return {label: join(each) for label, each in found.items()}


def _workers_by_pool(answer: Answer) -> dict[str, float]:
    """Return how many workers serve each pool, with 0 for a pool of ready jobs without workers, save permits."""
    found = dict.fromkeys([pool for pool in answer.stats.ready if pool_label(pool) != POOL_PREFIX], 0.0)
    for worker in answer.workers:
        for pool in worker.pools:
            found[pool] = found.get(pool, 0.0) + 1
    return found


MEASURES = (
    Measure(
        name="jobs",
        help="Jobs whose records are kept, by state.",
        label="state",
        read=lambda answer: {str(state): count for state, count in answer.stats.states.items()},
    ),
    Measure(
        name="jobs.ready",
        help="Jobs that a worker may start now, by pool.",
        label="pool",
        read=lambda answer: _by_pool(answer.stats.ready, sum),
    ),
    Measure(
        name="jobs.oldest.ready.timestamp",
        help="When the job that has waited longest for a worker took its place, by pool, in seconds since 1970.",
        label="pool",
        read=lambda answer: {pool: ms / 1000 for pool, ms in _by_pool(answer.stats.oldest_ready_ms, min).items()},
        unit="s",
    ),
    Measure(
        name="jobs.stuck",
        help="Jobs that wait for a person or a new worker, by reason.",
        label="reason",
        read=lambda answer: answer.stats.stuck,
    ),
    _one(
        "jobs.waiting.for.signals",
        "Jobs that wait for a signal, among the first thousand that wait for others.",
        lambda answer: answer.stats.waiting_for_signals,
    ),
    Measure(
        name="workers",
        help="Workers heard of lately, by pool; 0 for a pool with ready jobs that none serves.",
        label="pool",
        read=_workers_by_pool,
    ),
    _one(
        "workers.slots",
        "Jobs that all workers run at once at most.",
        lambda answer: sum(w.slots for w in answer.workers),
    ),
    _one(
        "workers.running",
        "Jobs that they ran when they were heard of last.",
        lambda answer: sum(w.running for w in answer.workers),
    ),
    _total("enqueued", "Jobs enqueued."),
    _total("started", "Grants of jobs to workers."),
    _total("settled", "Outcomes that workers reported and that counted."),
    _total("finished", "Jobs that have finished."),
    _total("failed", "Jobs that have failed for good."),
    _total("canceled", "Jobs that were canceled, and dead ones that were discarded."),
    _total("retried", "Attempts that failed with another to follow."),
    _total("snoozed", "Attempts that were put off by their handlers."),
    _total("released", "Attempts that were given back by a worker that stops or does not know the task."),
    _total("lost", "Attempts whose worker died."),
    _total("pruned", "Jobs that were forgotten for good."),
    _total("dropped", "Jobs that were forgotten before their time, for the store was short of memory."),
    _one(
        "leftovers", "Pieces of work begun and not ended by the last operation.", lambda answer: answer.stats.leftovers
    ),
    _one("nodes", "Places where something runs or waits.", lambda answer: answer.stats.nodes),
    _one(
        "edges.resolved",
        "Jobs that took their places when the last job they waited for had ended.",
        lambda answer: answer.stats.resolved.count,
        is_counter=True,
    ),
    _one(
        "edges.resolve.delay",
        "How long after that end they did, in all.",
        lambda answer: answer.stats.resolved.sum_ms / 1000,
        is_counter=True,
        unit="s",
    ),
    _one(
        "edges.resolve.delay.max",
        "How long after that end one of them did at most.",
        lambda answer: answer.stats.resolved.max_ms / 1000,
        unit="s",
    ),
    _edges("open_edges", "Edges to jobs whose end is waited for."),
    _edges(
        "behind_dead",
        "Jobs that wait for a dead job, among the first thousand that wait for others.",
    ),
    _edges("most_blocked", "The largest number of jobs that one job waits for, among these."),
    _edges("most_awaited", "The largest number of jobs that wait for one job, among these."),
    _one("edges.orphans", "Jobs with an edge that leads nowhere; must be 0.", lambda answer: len(answer.edges.orphans)),
    Measure(
        name="edges.oldest.timestamp",
        help="When the first of the jobs that wait for others was enqueued, in seconds since 1970.",
        read=lambda answer: {} if answer.edges.oldest_ms is None else {"": answer.edges.oldest_ms / 1000},
        unit="s",
    ),
)


class Source:
    """
    The figures that an exporter reads.

    Args:
        timeout: how long an answer is waited for, a timedelta or seconds.
        fresh: how long an answer, also that there is none, is given again.
    """

    def __init__(self, scheduler: Scheduler, *, timeout: float | timedelta, fresh: float | timedelta) -> None:
        self._scheduler = scheduler
        self._timeout_s = check_duration(timeout, parameter="timeout") / 1000
        self._fresh_s = check_duration(fresh, parameter="fresh", least_ms=0) / 1000
        self._lock = threading.Lock()
        self._asked: Future[Answer] | None = None
        self._asked_s = 0.0

    def answer(self) -> Answer | None:
        """Return the store's answers, None after the timeout."""
        with self._lock:
            asked = self._asked
            if asked is None or (asked.done() and time.monotonic() - self._asked_s >= self._fresh_s):
                asked = self._asked = Future()
                self._asked_s = time.monotonic()
                threading.Thread(target=self._ask, args=(asked,), name="queuehint-metrics", daemon=True).start()
        try:
            return asked.result(self._timeout_s)
        except Exception:  # noqa: BLE001 - whatever is wrong with the store: there is no answer
            return None

    def _ask(self, asked: Future[Answer]) -> None:
        try:
            answer = Answer(self._scheduler.stats_sync(), self._scheduler.edges_sync(), self._scheduler.workers_sync())
        except BaseException as error:  # noqa: BLE001 - handed to those who wait
            self._asked_s = time.monotonic()
            asked.set_exception(error)
        else:
            self._asked_s = time.monotonic()
            asked.set_result(answer)


def timings(event: Event) -> Iterator[tuple[str, float]]:
    """Return the duration in an event: ``wait`` or ``run``, and seconds."""
    if event.took_ms is not None:
        yield "wait" if event.kind is EventKind.STARTED else "run", event.took_ms / 1000
