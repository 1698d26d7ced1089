"""
SQLite backend: cost compared with memory, measured in turns in one run, and the time to open a file.

Jobs carry hints of depth 3 over many documents. Operations are built outside the timed parts, outcomes are made from
grants. Each figure is of calls that wait for their answer: one after the other, or many at once on one loop.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import attrs

from benchmarks.calls import AT_ONCE, enqueue_at_once, enqueue_in_turn, specs_of
from benchmarks.report import REPEATS, TIMER, Report
from benchmarks.workers import INSIDE, ONE, WAYS, drain, working
from queuehint import Outcome, OutcomeKind
from queuehint.backends.journal.snapshots import compaction
from queuehint.backends.memory import MemoryBackend
from queuehint.backends.sqlite.address import DURABILITIES, Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.operations import CountJobs, Enqueue, Exchange, Pause
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint import Backend

BATCH: Final = 16
MEMORY: Final = "memory"


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it; the full run takes a few minutes."""
    jobs = 500 if quick else 5_000
    _calls(report, jobs)
    _guests(report, jobs)
    _workers(report, 2_000 if quick else 20_000)
    _beside_code(report, 100 if quick else 500)
    _opening(report, 2_000 if quick else 50_000)


@contextmanager
def _opened(name: str) -> Iterator[Backend]:
    """Open a store by the name of what it promises."""
    with tempfile.TemporaryDirectory(prefix="queuehint-") as folder:
        backend: Backend = MemoryBackend()
        for durability in DURABILITIES:
            if name.endswith(durability):
                backend = SqliteBackend(Address(path=Path(folder) / "jobs.db", durability=durability))
        try:
            backend.call_sync(CountJobs())
            yield backend
        finally:
            backend.close_sync()


# --- calls -------------------------------------------------------------------------------------------------------


def _calls(report: Report, jobs: int) -> None:
    names = (MEMORY, *[f"file, durability={durability}" for durability in DURABILITIES])
    measures = {
        "enqueue, one after the other": enqueue_in_turn,
        f"enqueue, {AT_ONCE} at once": enqueue_at_once,
        f"claim and finish, {BATCH} a call": _work,
    }
    for what, measure in measures.items():
        report.title(f"{what}: {jobs:,} jobs (taken in turns)")
        rates: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(REPEATS):
            for name in names:
                with _opened(name) as backend:
                    rates[name].append(jobs / measure(backend, jobs))
        found = {name: report.add(name, "jobs/s", *rates[name]).median for name in names}
        for name in names[1:]:
            report.add(f"memory / {name}", "times", found[MEMORY] / found[name])


def _work(backend: Backend, jobs: int) -> float:
    specs = specs_of(jobs)
    for begin in range(0, jobs, 1000):
        backend.call_sync(Enqueue(tuple(specs[begin : begin + 1000])))
    done = 0
    outcomes: Any = ()
    begin_s = TIMER.read_s()
    while done < jobs:
        reply: Any = backend.call_sync(Exchange("w", outcomes, limit=BATCH))
        done += len(outcomes)
        outcomes = tuple(
            [
                Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b"null")
                for grant in reply.grants
            ]
        )
    return TIMER.read_s() - begin_s


def _close(store: SqliteBackend, *, with_snapshot: bool) -> None:
    assert store._compaction is not None  # noqa: SLF001
    store._compaction.is_changed = with_snapshot  # noqa: SLF001
    store.close_sync()


# --- other processes ----------------------------------------------------------------------------------------------

COMPUTE: Final = 60_000_000
"""A handler that counts so far keeps the interpreter for about two seconds."""


def _guests(report: Report, jobs: int) -> None:
    """Compare calls of the leader with those of a guest, whose leader is in this process too."""
    report.title(f"Calls of a guest, durability=process: {jobs:,} jobs (taken in turns)")
    for what, measure in {"one after the other": enqueue_in_turn, f"{AT_ONCE} at once": enqueue_at_once}.items():
        rates: dict[str, list[float]] = {"leader": [], "guest": []}
        for _ in range(REPEATS):
            with _opened("durability=process") as leader:
                assert isinstance(leader, SqliteBackend)
                guest = SqliteBackend(leader.address)
                for name, backend in (("leader", leader), ("guest", guest)):
                    rates[name].append(jobs / measure(backend, jobs))
                guest.close_sync()
        found = {name: report.add(f"{name}, {what}", "jobs/s", *each).median for name, each in rates.items()}
        report.add(f"guest / leader, {what}", "times", found["guest"] / found["leader"])


def _workers(report: Report, jobs: int) -> None:
    """Drain a file by `queuehint worker`, 16 jobs at a time in each process."""
    for what, task in {"that do nothing": "edit", "of 0.2 ms of CPU": "work"}.items():
        report.title(f"Workers in processes of their own, durability=process: {jobs:,} jobs {what} (taken in turns)")
        specs = [attrs.evolve(spec, task=task) for spec in specs_of(jobs)]
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(REPEATS):
            for way, found in rates.items():
                with _file() as (store, url):
                    found.append(jobs / drain(store, url, specs, way))
        inside, one, two = [report.add(way, "jobs/s", *found).median for way, found in rates.items()]
        report.add("one process, and one that leads / one process", "times", one / inside)
        report.add("two processes / one, and one that leads", "times", two / one)


@contextmanager
def _file() -> Iterator[tuple[SqliteBackend, str]]:
    with tempfile.TemporaryDirectory(prefix="queuehint-") as folder:
        path = Path(folder) / "jobs.db"
        yield SqliteBackend(Address(path=path, durability="process")), f"sqlite:///{path}?durability=process"


def _beside_code(report: Report, calls: int) -> None:
    """Measure calls of another process while a handler of the worker counts, in pure Python."""
    report.title("A call of another process while a handler computes, durability=process (taken in turns)")
    waits: dict[str, list[float]] = {way: [] for way in (INSIDE, ONE)}
    for _ in range(REPEATS):
        for way, found in waits.items():
            with _file() as (store, url):
                store.call_sync(CountJobs())
                specs = specs_of(calls + 1)
                code = attrs.evolve(specs[-1], task="compute", arguments=b'{"doc":"a","count":%d}' % COMPUTE)
                with working(store, url, way):
                    store.call_sync(Pause(RecordFilter(path=("doc-000",))))
                    store.call_sync(Enqueue((code,)))
                    while not store.call_sync(CountJobs()).started:
                        time.sleep(0.01)
                    for spec in specs[:-1]:
                        begin_s = time.perf_counter()
                        store.call_sync(Enqueue((spec,)))
                        found.append((time.perf_counter() - begin_s) * 1000)
                        time.sleep(0.002)
    for way, found in waits.items():
        found.sort()
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            report.add(f"{way}, {name}", "ms", found[int(len(found) * share)])


# --- opening -----------------------------------------------------------------------------------------------------


def _opening(report: Report, jobs: int) -> None:
    """Enqueue and finish all jobs one by one, which is twice as many operations, and open the file."""
    report.title(f"Opening a file: {jobs:,} jobs enqueued and finished one by one, {2 * jobs:,} operations")
    no_snapshot = mock.patch.multiple(
        compaction, SNAPSHOT_OPERATIONS=1 << 60, SNAPSHOT_BYTES=1 << 60, CLOSING_JOBS=jobs
    )
    with tempfile.TemporaryDirectory(prefix="queuehint-") as folder, no_snapshot:
        address = Address(path=Path(folder) / "jobs.db", durability="process")
        store = SqliteBackend(address)
        outcomes: Any = ()
        for spec in specs_of(jobs):
            store.call_sync(Enqueue((spec,)))
            grants = store.call_sync(Exchange("w", outcomes, limit=1)).grants
            outcomes = tuple(
                [
                    Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b"null")
                    for grant in grants
                ]
            )
        _close(store, with_snapshot=False)
        report.add("size with the journal", "MB", address.path.stat().st_size / 1e6)
        store, seconds = _open(address)
        report.add("open by the journal", "s", seconds)
        report.add("open by the journal, an operation", "µs", seconds / (2 * jobs) * 1e6)
        begin_s = TIMER.read_s()
        _close(store, with_snapshot=True)
        report.add("snapshot and close", "s", TIMER.read_s() - begin_s)
        store, seconds = _open(address)
        report.add("open by the snapshot", "s", seconds)
        report.add("open by the snapshot, a record", "µs", seconds / jobs * 1e6)
        store.close_sync()


def _open(address: Address) -> tuple[SqliteBackend, float]:
    store = SqliteBackend(address)
    begin_s = TIMER.read_s()
    store.call_sync(CountJobs())
    return store, TIMER.read_s() - begin_s
