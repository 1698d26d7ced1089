"""
Checks of fault tests: the state of a namespace, read and compared with the answers that clients got.

A client keeps a `History` of its answers; handlers write lines (see `tests.faults.app`); the store is read by plain
commands, past the code under test. `close_books` checks all of it together and ends with a prune of everything, after
which a namespace has nothing left but its fixed keys.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
from redis import Redis

from queuehint import FakeClock, JobState, SystemClock
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from queuehint.values.hint import Claim
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.record import JobRecord
from queuehint.values.spec import JobSpec
from tests import audit, support

T = TypeVar("T")

LIMIT_S = support.LIMIT_S
SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
NEVER_S = float("inf")
TEN_YEARS_S = 10 * 366 * 24 * 3600
FIXED = {"meta", "sessions", "receipts", "seen", "workers"}
"""Keys that an idle and pruned namespace may have: counters, sessions and workers seen lately, pools asked for."""
RECORDED = {"past", "index", "blocks", "facts", "tallies", "tallied"}
FINAL = (
    FIXED | RECORDED | {"jobs", "specs", "results", "prunes", "dead", "errors:", "log:", "progress", "asked", "timers"}
)
"""Keys that a namespace may have whose jobs are over: the fixed ones, and those of records."""


async def until(reached: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait in a loop until something outside of it is so."""
    end_s = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < end_s, f"waited {limit_s:g} s in vain until {what}"
        await asyncio.sleep(0.01)


until_sync = support.until_sync


def open_store(url: str, namespace: str, *, clock: FakeClock | None = None, **settings: int) -> RedisBackend:
    """Open a store as a scheduler does; with a clock, on virtual time."""
    options = BackendOptions(namespace=namespace, clock=clock or SystemClock())
    return RedisBackend(parse_url(url), options, **settings)


def job(job_id: str, path: Sequence[str] | None = None, **fields: Any) -> JobSpec:
    """Return a spec with one exclusive claim, or with none."""
    claims = () if path is None else (Claim(tuple(path)),)
    return JobSpec(id=job_id, task="work", claims=claims, **fields)


def finished(grant: Grant) -> Outcome:
    """Return what a worker says of a job that went well."""
    return Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED)


def exchange(store: Any, worker: str, *outcomes: Outcome, limit: int = 0) -> Any:
    """Settle jobs, and claim others; return the reply."""
    return store.call_sync(op.Exchange(worker, outcomes, limit=limit))


def figures(row: str, **numbers: object) -> None:
    """Put down what a test has measured: for people, and for the file that QUEUEHINT_FIGURES names."""
    line = json.dumps({"row": row, **numbers}, default=str)
    print(line)
    if path := os.environ.get("QUEUEHINT_FIGURES"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


# --- what clients saw ------------------------------------------------------------------------------------------------


@attrs.define
class History:
    """The answers that a client got for each job: it is enqueued, or no answer, so that its state is unknown."""

    accepted: set[str] = attrs.field(factory=set)
    unknown: set[str] = attrs.field(factory=set)
    refused: set[str] = attrs.field(factory=set)

    def enqueue(self, store: RedisBackend, *specs: JobSpec) -> None:
        """Enqueue, and keep what came of it; an unknown outcome is asked again until it is known, with the same ids."""
        ids = {spec.id for spec in specs}
        try:
            reply = store.call_sync(op.Enqueue(specs))
        except OutcomeUnknownError:
            self.unknown |= ids
        except BackendUnavailableError:
            self.refused |= ids
        else:
            assert {made.id for made in reply.jobs} == ids
            self.accepted |= ids
            self.unknown -= ids
            self.refused -= ids

    def settle(self, store: RedisBackend, specs: Mapping[str, JobSpec]) -> None:
        """Ask again for all that is not accepted: enqueue is idempotent by id."""
        for job_id in sorted(self.unknown | self.refused):
            self.enqueue(store, specs[job_id])


# --- what handlers said ----------------------------------------------------------------------------------------------


def _path(said: list[str] | None) -> tuple[str, ...] | None:
    return None if said is None else tuple(said)


@attrs.frozen
class Line:
    event: str
    pid: int
    t: float
    job: str = ""
    token: int = 0
    attempt: int = 0
    path: tuple[str, ...] | None = attrs.field(default=None, converter=_path)


def read_lines(path: Path) -> list[Line]:
    """Return what the handlers of all processes have said, in order of time."""
    if not path.exists():
        return []
    text = path.read_text()
    complete = text[: text.rfind("\n") + 1]
    return sorted((Line(**json.loads(line)) for line in complete.splitlines()), key=lambda line: line.t)


def conflict(left: tuple[str, ...] | None, right: tuple[str, ...] | None) -> bool:
    """Return whether exclusive jobs at two paths exclude one another."""
    if left is None or right is None:
        return False
    size = min(len(left), len(right))
    return left[:size] == right[:size]


def grants_of(lines: Iterable[Line]) -> set[tuple[str, int]]:
    """Return the ids and tokens of all grants that were executed."""
    return {(line.job, line.token) for line in lines if line.event == "start"}


def check_no_overlap(lines: Iterable[Line], gone: Mapping[int, float] | None = None) -> int:
    """
    Check that no two conflicting jobs were executed at once; return how many grants were looked at.

    An execution lasts from its first line to its last, or until its process was gone: killed, or stopped for so long
    that its leases ended.

    Args:
        gone: the processes that were, and when.
    """
    gone = gone or {}
    spans: dict[tuple[str, int], list[Any]] = {}
    for line in lines:
        if line.event == "start":
            gone_s = gone.get(line.pid, NEVER_S)
            spans[line.job, line.token] = [line.t, gone_s if gone_s > line.t else NEVER_S, line]
        elif line.event in {"end", "stopped"}:
            span = spans[line.job, line.token]
            span[1] = min(span[1], line.t)
    ordered = sorted(spans.values(), key=lambda span: span[2].token)
    for at, (_, end_s, line) in enumerate(ordered):
        for start_s, _, later in ordered[at + 1 :]:
            if conflict(line.path, later.path):
                assert end_s <= start_s, f"{line} still ran when {later} began"
                # Jobs that also conflict with the later one had to wait for it: that pair is compared in its turn.
                if line.path == later.path:
                    break
    return len(ordered)


def check_tokens_grow(lines: Iterable[Line]) -> int:
    """Check that each grant of a job has a greater token than the one before it; return how many grants there were."""
    newest: dict[str, int] = {}
    grants = 0
    for line in lines:
        if line.event == "start":
            assert line.token > newest.get(line.job, 0), line
            newest[line.job] = line.token
            grants += 1
    return grants


# --- what the store says ---------------------------------------------------------------------------------------------


def names_of(client: Redis, namespace: str) -> dict[str, str]:
    """Return all keys of a namespace without its root, and the types of what they hold."""
    prefix = keys.root(namespace) + ":"
    names = [name.decode() for name in client.scan_iter(match=prefix + "*", count=5_000)]
    kinds: list[Any] = [client.type(name) for name in names]
    return {name.removeprefix(prefix): kind.decode() for name, kind in zip(names, kinds, strict=True)}


def key(namespace: str, name: str) -> str:
    """Return one key, as a string for a client."""
    return keys.redis_key(namespace, name)


def kind_of(name: str) -> keys.Key:
    """Return which key of the table this is; a prefix is the longest that fits."""
    for key in sorted(keys.KEYS, key=lambda key: -len(key.name)):
        if name == key.name or (key.is_prefix and name.startswith(key.name)):
            return key
    raise AssertionError(f"{name} is no key of ours")


def dump(client: Redis, namespace: str, *, without: Iterable[str] = ()) -> dict[str, Any]:
    """Return all that a namespace holds, as values that can be compared."""
    without = set(without)
    found: dict[str, Any] = {}
    for name, kind in names_of(client, namespace).items():
        if kind_of(name).name in without:
            continue
        key = keys.redis_key(namespace, name)
        if kind == "hash":
            found[name] = client.hgetall(key)
        elif kind == "zset":
            found[name] = client.zrange(key, 0, -1, withscores=True)
        elif kind == "set":
            found[name] = client.smembers(key)
        else:
            found[name] = client.lrange(key, 0, -1)
    return found


def records(store: RedisBackend, client: Redis) -> dict[str, JobRecord]:
    """Return every record of a namespace, found by plain commands."""
    stored: list[Any] = client.hkeys(keys.redis_key(store.session.namespace, "jobs"))
    ids = [job_id.decode() for job_id in stored]
    found: dict[str, JobRecord] = {}
    for begin in range(0, len(ids), 500):
        for record in store.call_sync(op.Get(tuple(ids[begin : begin + 500]))).records:
            if record is not None:
                found[record.id] = record
    return found


def check_keys(client: Redis, namespace: str) -> set[str]:
    """Check that all keys are of the table, of its types and without a time to live; return which kinds there are."""
    kinds = set()
    for name, kind in names_of(client, namespace).items():
        key = kind_of(name)
        assert kind == key.type, f"{name} is a {kind}"
        left_ms = client.pttl(keys.redis_key(namespace, name))
        assert left_ms in {-1, -2}, f"{name} lives for {left_ms} ms"
        kinds.add(key.name)
    return kinds


def check_counts(store: RedisBackend, client: Redis) -> dict[str, JobRecord]:
    """Check that totals, states and records tell the same; return the records."""
    stats = store.call_sync(op.CountJobs())
    found = records(store, client)
    assert stats.enqueued == sum(stats.states.values()) + stats.pruned, stats
    told = {state: count for state, count in stats.states.items() if count}
    assert told == Counter(record.state for record in found.values()), stats
    for record in found.values():
        assert record.state is not STARTED or (record.token and record.worker), record
        assert (record.ended_ms is not None) == record.state.is_over, record
    return found


def check_audit(client: Redis, namespace: str) -> int:
    """
    Check the audit of a namespace; return how many operations it has.

    Time never goes back, tokens are granted in strictly increasing order, and the engine, given the same operations,
    gives the same answers.
    """
    last_ms = last_token = 0
    for entry in audit.entries(client, namespace):
        assert entry.now_ms >= last_ms, entry
        last_ms = entry.now_ms
        if isinstance(entry.operation, op.Exchange):
            for grant in entry.answer().grants:
                assert grant.token > last_token, grant
                last_token = grant.token
    return audit.check_audit(client, namespace)


def close_books(
    client: Redis,
    url: str,
    namespace: str,
    history: History | None = None,
    *,
    states: Iterable[JobState] = (FINISHED,),
) -> dict[str, JobRecord]:
    """
    Make all common checks of a namespace whose jobs are over, prune it, and check that nothing is left of it.

    Args:
        client: of the server that has it now.
        url: where it is reached.
        history: jobs in it that are missing are lost, others that are there came from nowhere.
        states: in which the jobs may be.

    Returns:
        The records as they were before.
    """
    store = open_store(url, namespace)
    try:
        found = check_counts(store, client)
        assert check_keys(client, namespace) <= FINAL | {"wake:pool:", "wake:session:", "wake:timer"}
        assert {record.state for record in found.values()} <= set(states)
        check_audit(client, namespace)
        if history is not None:
            assert not history.accepted - found.keys(), "lost"
            assert not found.keys() - history.accepted - history.unknown, "from nowhere"
    finally:
        store.close_sync()
    check_no_residue(client, url, namespace)
    return found


def check_no_residue(client: Redis, url: str, namespace: str, clock: FakeClock | None = None) -> None:
    """
    Let ten years pass; check that a namespace without unfinished jobs then has nothing but its fixed keys.

    Args:
        clock: of a namespace on virtual time; the store's own never goes back.
    """
    clock = clock or FakeClock(time.time_ns() // 1_000_000)
    store = open_store(url, namespace, clock=clock)
    try:
        for seconds in (TEN_YEARS_S, 3_600, 3_600, 3_600):
            clock.advance(seconds=seconds)
            prune(store)
        store.call_sync(op.Exchange("checks", pools=()))
        stats = store.call_sync(op.CountJobs())
        assert (stats.enqueued, stats.leftovers, stats.nodes) == (stats.pruned, 0, 0), stats
        left = names_of(client, namespace)
        assert set(left) <= FIXED | {"wake:timer"}, left
        assert client.hlen(keys.redis_key(namespace, "receipts")) <= 10
        assert client.zcard(keys.redis_key(namespace, "sessions")) <= 10
    finally:
        store.close_sync()


def prune(store: RedisBackend) -> None:
    """Do all that is due."""
    while store.call_sync(op.Tick()).more:
        pass
