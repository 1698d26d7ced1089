"""Servers that die, lose data, fill up, or are misconfigured."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from queuehint import FakeClock, JobContext, JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.backends.redis import examination, keys
from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.errors import (
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
    QueueHintError,
)
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import Dependency, JobSpec
from tests import audit
from tests.conftest import StartProxy, StartServer
from tests.faults import checks
from tests.faults.checks import History, figures, until
from tests.faults.worker_and_producer import WorkerAndProducer
from tests.schedulers import run
from tests.servers import Server
from tests.support import Lateness, thorough

pytestmark = pytest.mark.redis

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
ALWAYS: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"}
EVERYSEC: dict[str, Any] = {"appendonly": "yes", "appendfsync": "everysec"}
"""An orderly end writes everything; one that is killed may lose what it put off, see `test_rollbacks.py`."""


# --- restarts --------------------------------------------------------------------------------------------------------


def check_restarts(server: Server, namespace: str, lines: Path, downtimes: list[float], *, gracefully: bool) -> None:
    """Restart a server that keeps its data under load: nothing acknowledged is lost, and all go on by themselves."""
    both = WorkerAndProducer(server, server.url, namespace, lines)

    async def produce(stop: asyncio.Event) -> None:
        while not stop.is_set():
            await both.enqueue(1, paths=1, ms=20)
            await asyncio.sleep(0.02)

    async def main() -> float:
        worst_s = 0.0
        stop = asyncio.Event()
        async with both.working(), asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(produce(stop))
            for downtime_s in downtimes:
                before = len(checks.read_lines(lines))
                await until(lambda before=before: len(checks.read_lines(lines)) > before + 4, "jobs run")  # type: ignore[misc]
                await asyncio.to_thread(server.terminate if gracefully else server.kill)
                await asyncio.sleep(downtime_s)  # for how long it is down
                await asyncio.to_thread(server.restart)
                back_s = time.monotonic()
                await until(lambda back_s=back_s: checks.read_lines(lines)[-1].t > back_s, "work goes on")  # type: ignore[misc]
                worst_s = max(worst_s, time.monotonic() - back_s)
            stop.set()
            await asyncio.sleep(0)
        return worst_s

    async def with_rest() -> float:
        worst_s = await main()
        async with both.working():
            await both.drained()
        return worst_s

    worst_s = run(with_rest(), checks.LIMIT_S + 10 * len(downtimes))
    facts = both.close()
    assert worst_s <= 5 + 50
    row = "F-03" if gracefully else "F-01"
    figures(row, restarts=len(downtimes), asked_again=len(both.history.unknown), resumed_s=round(worst_s, 2), **facts)


@pytest.mark.slow
def test_killed_server_with_data_loses_nothing_acknowledged(
    start_server: StartServer, namespace: str, lines: Path
) -> None:
    check_restarts(start_server(**ALWAYS), namespace, lines, [0, 0.3, 1.5], gracefully=False)


@pytest.mark.slow
def test_server_restart_after_shutdown_loses_nothing(start_server: StartServer, namespace: str, lines: Path) -> None:
    check_restarts(start_server(**EVERYSEC), namespace, lines, [0, 0.5], gracefully=True)


@pytest.mark.nightly
@pytest.mark.parametrize("gracefully", [False, True])
def test_twenty_restarts_lose_nothing_acknowledged(
    start_server: StartServer, namespace: str, lines: Path, *, gracefully: bool
) -> None:
    chance = random.Random(20)
    downtimes = [chance.uniform(0, 3) for _ in range(20)]
    options = EVERYSEC if gracefully else ALWAYS
    check_restarts(start_server(**options), namespace, lines, downtimes, gracefully=gracefully)


def check_restart_empty(both: WorkerAndProducer, caplog: pytest.LogCaptureFixture) -> None:
    """Restart a server that keeps nothing: its workers lose their leases and go on with what is new."""
    lines = both.lines

    async def main() -> None:
        async with both.working():
            await both.enqueue(4, ms=700)
            await until(lambda: len(checks.read_lines(lines)) == 4, "they run")
            both.server.kill()
            both.server.restart()
            audit.begin_audit(both.namespace)
            lost = both.history
            both.history = History()
            await both.enqueue(4)
            await both.drained()
            await until(lambda: "job.lease_lost" in [vars(each).get("event") for each in caplog.records], "one is lost")
            stats = await both.near.sched.stats()
            assert stats.enqueued == stats.states[FINISHED] == 4
            assert not lost.accepted & both.history.accepted

    with caplog.at_level(logging.INFO):
        run(main())
    assert any("durability class D0" in record.getMessage() for record in caplog.records)
    tokens = [line.token for line in checks.read_lines(lines) if line.event == "start"]
    assert tokens == sorted(set(tokens))
    figures("F-02", **both.close(one_history=False))


def test_workers_resume_on_an_emptied_server_with_growing_tokens(
    start_server: StartServer, namespace: str, lines: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    check_restart_empty(WorkerAndProducer(server, server.url, namespace, lines), caplog)


@pytest.mark.slow
def test_empty_primary_wipes_its_replica_and_workers_go_on(
    start_server: StartServer, namespace: str, lines: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # F-28. The replica is as empty as its primary afterwards: with this setting a replica is no copy.
    server = start_server()
    replica = start_server(replica_of=server.port)
    check_restart_empty(WorkerAndProducer(server, server.url, namespace, lines), caplog)
    replica.wait_until_ready()
    checks.until_sync(lambda: replica.call("DBSIZE") == server.call("DBSIZE"), "the replica follows")


def test_tokens_do_not_repeat_within_the_second_of_a_loss(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    tokens = []
    for _ in range(20):
        store = checks.open_store(server.url, namespace)
        store.call_sync(op.Enqueue((checks.job("j"),)))
        tokens.append(store.call_sync(op.Exchange("w", limit=1)).grants[0].token)
        store.close_sync()
        server.kill()
        server.restart()
    assert tokens == sorted(set(tokens))


# --- failover --------------------------------------------------------------------------------------------------------


def check_failover(start_server: StartServer, start_proxy: StartProxy, namespace: str, count: int) -> None:
    primary = start_server()
    wire = start_proxy(primary)
    replica = start_server(replica_of=wire.port)
    front = start_proxy(primary)
    store = checks.open_store(front.url, namespace)
    history, kept, lost = History(), {}, {}
    tokens: list[int] = []

    def claim(limit: int) -> tuple[Grant, ...]:
        granted = store.call_sync(op.Exchange("w", limit=limit)).grants
        tokens.extend(grant.token for grant in granted)
        return granted

    for number in range(20):
        kept[f"k{number}"] = checks.job(f"k{number}", ["p", str(number % 15)])
        history.enqueue(store, kept[f"k{number}"])
    before = claim(5)
    offset = primary.info("replication")["master_repl_offset"]
    checks.until_sync(lambda: replica.info("replication")["slave_repl_offset"] >= offset, "the replica has all of it")
    wire.hold()
    for number in range(count):
        lost[f"l{number}"] = checks.job(f"l{number}", ["q", str(number)])
        history.enqueue(store, lost[f"l{number}"])
    after = claim(10)
    assert len(after) == 10
    primary.kill()
    replica.call("REPLICAOF", "NO", "ONE")
    front.redirect(replica.port)
    front.rst()
    # Those of the new history keep their grants, those of the old one are fenced.
    settle = tuple(checks.finished(grant) for grant in (*before, *after))
    verdicts = store.call_sync(op.Exchange("w", settle)).verdicts
    assert verdicts[: len(before)] == (op.Verdict.DONE,) * len(before)
    assert verdicts[len(before) :] == (op.Verdict.LOST,) * len(after)
    found = checks.records(store, replica.client())
    rolled_back = history.accepted - found.keys()
    assert rolled_back == lost.keys()
    assert not found.keys() - history.accepted
    # A second enqueue with the same ids adds nothing.
    for spec in lost.values():
        history.enqueue(store, spec)
    while granted := claim(50):
        store.call_sync(op.Exchange("w", tuple(checks.finished(grant) for grant in granted)))
    assert tokens == sorted(set(tokens)), "tokens grow over the failover"
    store.close_sync()
    assert len(checks.close_books(replica.client(), replica.url, namespace, history)) == 20 + count
    figures("F-07", operations=count, rolled_back=len(rolled_back), fenced=len(after), tokens=len(tokens))


def test_a_failover_that_loses_writes_fences_the_old_history(
    start_server: StartServer, start_proxy: StartProxy, namespace: str
) -> None:
    check_failover(start_server, start_proxy, namespace, 200)


# --- truncated files -------------------------------------------------------------------------------------------------


def check_truncations(server: Server, namespace: str, cuts: int) -> None:
    """Cut the append-only file anywhere: what is loaded is the state after some operation, whole."""
    clock = FakeClock()
    audit.begin_audit(namespace)
    store = checks.open_store(server.url, namespace, clock=clock)
    chance = random.Random(8)
    ids = itertools.count(1)
    grants: list[Grant] = []
    states: dict[int, dict[str, Any]] = {}

    def put_down() -> None:
        state = checks.dump(server.client(), namespace)
        states[len(list(audit.entries(server.client(), namespace)))] = state

    put_down()
    for _ in range(120):
        clock.advance(ms=chance.randrange(2_000))
        step = chance.randrange(6)
        operation: op.Operation[Any]
        if step < 2:
            paths = [chance.choice(["", "a", "a:b", "c"]).split(":") for _ in range(3)]
            operation = op.Enqueue(tuple(checks.job(f"j{next(ids)}", [s for s in path if s]) for path in paths))
        elif step == 2:
            operation = op.Cancel((f"j{chance.randrange(1, 60)}",))
        elif step == 3 and grants:
            grant = chance.choice(grants)
            operation = op.Post((op.Note(grant.spec.id, grant.token, ("a line", "b line")),))
        else:
            settle = [grants.pop(chance.randrange(len(grants))) for _ in range(min(len(grants), 2))]
            operation = op.Exchange("w", tuple(checks.finished(grant) for grant in settle), limit=3)
        reply: Any = store.call_sync(operation)
        if isinstance(operation, op.Exchange):
            grants.extend(reply.grants)
        put_down()
    store.close_sync()
    whole = states[max(states)]
    server.kill()
    [path] = Path(server.directory, "appendonlydir").glob("*.incr.aof")
    copy = path.with_suffix(".copy")
    shutil.move(path, copy)
    size = copy.stat().st_size
    found = set()
    for _ in range(cuts):
        shutil.copy(copy, path)
        with path.open("r+b") as file:
            file.truncate(chance.randrange(max(0, size - 65_536), size))
        server.restart(aof_load_truncated="yes")
        client = server.client()
        at = len(list(audit.entries(client, namespace)))
        state = checks.dump(client, namespace)
        if state:
            assert state == states[at], at
        found.add(at)
        # It is not only read: what is left of it works on.
        again = checks.open_store(server.url, namespace, clock=clock)
        reply = again.call_sync(op.Exchange("again", limit=1))
        assert all(grant.token > max((g.token for g in grants), default=0) for grant in reply.grants)
        checks.check_counts(again, client)
        again.close_sync()
        server.kill()
    assert whole
    figures("F-08", cuts=cuts, operations=max(states), prefixes_seen=len(found), inconsistent=0)


@pytest.mark.slow
def test_truncated_append_only_file_is_a_prefix_of_the_history(start_server: StartServer, namespace: str) -> None:
    check_truncations(start_server(appendonly="yes", appendfsync="no"), namespace, thorough(20, quick=6))


@pytest.mark.nightly
def test_a_thousand_truncated_files_are_whole_prefixes(start_server: StartServer, namespace: str) -> None:
    check_truncations(start_server(appendonly="yes", appendfsync="no"), namespace, 1_000)


# --- refused requests ------------------------------------------------------------------------------------------------


def check_refused(
    url: str,
    namespace: str,
    *words: str,
    error: type[BackendError] = BackendUnavailableError,
    operations: tuple[op.Operation[Any], ...] = (op.Draw(1), op.CountJobs()),
) -> None:
    store = checks.open_store(url, namespace)
    for operation in operations:
        with pytest.raises(error) as raised:
            store.call_sync(operation)
        assert all(word in str(raised.value) for word in words), raised.value
    store.close_sync()


def test_evicting_server_is_refused_by_the_name_of_its_setting(start_server: StartServer, namespace: str) -> None:
    server = start_server(maxmemory_policy="allkeys-lru")
    submissions = tuple(op.Enqueue((checks.job(job_id),)) for job_id in "ab")
    check_refused(server.url, namespace, "maxmemory-policy", "allkeys-lru", "noeviction", operations=submissions)
    assert server.call("DBSIZE") == 0


@pytest.mark.slow
def test_replica_is_refused_by_role_without_a_primary(
    start_server: StartServer, redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.2)
    replica = start_server(replica_of=redis_server.port)
    check_refused(replica.url, namespace, "role", "replica")


def test_too_old_server_is_refused_by_its_version(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "VERSION_LEAST", (99, 0, 0))
    check_refused(redis_server.url, namespace, "redis_version", "99.0.0")


@pytest.mark.parametrize("key", [key.name for key in keys.KEYS if not key.is_prefix])
def test_key_of_a_wrong_type_is_refused_by_name(redis_server: Server, namespace: str, key: str) -> None:
    redis_key = keys.redis_key(namespace, key)
    redis_server.client().set(redis_key, "foreign")
    check_refused(redis_server.url, namespace, redis_key, error=CorruptStateError)
    assert redis_server.client().get(redis_key) == b"foreign"


def test_evicting_server_finishes_running_jobs_and_begins_none(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    store = checks.open_store(server.url, namespace)
    store.call_sync(op.Enqueue((checks.job("a"), checks.job("b"))))
    [grant] = store.call_sync(op.Exchange("w", limit=1)).grants
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    # One that has worked, and one that is new, like a helper process that is started anew.
    store.session._checked_s -= redis_session.CHECK_EVERY_S  # type: ignore[operator]
    new = checks.open_store(server.url, namespace)
    for each in (store, new):
        assert each.call_sync(op.Renew((("a", grant.token),))).verdicts == (op.Verdict.DONE,)
        each.call_sync(op.Tick())
    reply = new.call_sync(op.Exchange("w", (checks.finished(grant),), limit=1))
    assert (reply.verdicts, reply.grants) == ((op.Verdict.DONE,), ())
    assert store.call_sync(op.Cancel(("b",))).verdicts[0][0] is op.Verdict.DONE
    with pytest.raises(BackendUnavailableError, match="maxmemory-policy"):
        store.call_sync(op.Enqueue((checks.job("c"),)))
    server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    store.call_sync(op.Enqueue((checks.job("c"),)))
    assert [grant.spec.id for grant in new.call_sync(op.Exchange("w", limit=1)).grants] == ["c"]
    store.close_sync()
    new.close_sync()


@pytest.mark.slow
async def test_eviction_policy_set_at_runtime_stops_claims_until_reverted(
    start_server: StartServer,
    namespace: str,
    lines: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(redis_session, "CHECK_EVERY_S", 0.0)
    server = start_server()
    both = WorkerAndProducer(server, server.url, namespace, lines)

    def is_alarmed() -> bool:
        return any("maxmemory-policy" in str(getattr(record, "error", "")) for record in caplog.records)

    async with both.working():
        await both.enqueue(4)
        await both.drained()
        server.call("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        # Another client that has not looked again yet; the worker is woken, and looks.
        server.client().zadd(keys.redis_key(namespace, "wake:pool:", "default"), {"1": 0})
        await until(is_alarmed, "the worker says why")
        with pytest.raises(BackendUnavailableError):
            await both.near.work.enqueue()
        server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await both.enqueue(4)
        await both.drained()
    figures("F-22", flipped=1, **both.close())


@pytest.mark.slow
def test_key_deleted_by_hand_raises_a_store_error_at_worst(redis_server: Server, namespace: str) -> None:
    # The doctor has tests of its own; here a damaged store may only cause typed errors.
    answers: dict[str, set[str]] = {}
    for number, key in enumerate(key for key in keys.KEYS if key.name != "wake:timer"):
        name = f"{namespace}-{number}"
        clock = FakeClock()
        store = checks.open_store(redis_server.url, name, clock=clock)
        fill(store, clock)
        gone = [part for part in checks.names_of(redis_server.client(), name) if checks.kind_of(part) is key]
        for part in gone:
            redis_server.client().delete(keys.redis_key(name, part))
        for _ in range(3):
            operations: list[op.Operation[Any]] = [
                op.Tick(),
                op.Exchange("w", limit=3),
                op.Enqueue((checks.job(f"new{clock.now_ms()}", ["a"]),)),
                op.Renew((("j1", 1),)),
                op.Get(("j1", "j2")),
                op.CountJobs(),
                op.Cancel(("j3",)),
            ]
            for operation in operations:
                try:
                    store.call_sync(operation)
                except QueueHintError as error:
                    answers.setdefault(key.name, set()).add(f"{type(error).__name__}: {str(error)[:150]}")
            clock.advance(seconds=40)
        store.close_sync()
    figures("F-22", deleted=len(answers), typed_errors=sorted(answers))
    bad = {key: said for key, said in answers.items() if any(not text.startswith("CorruptState") for text in said)}
    assert not bad, bad


def fill(store: RedisBackend, clock: FakeClock) -> None:
    """Bring about something in every structure."""
    hold = Policy(max_attempts=1, on_dead="hold")
    specs = [checks.job(f"j{number}", ["a", "b"] if number % 2 else ["a"], user=str(number % 3)) for number in range(9)]
    specs += [
        checks.job("dead", ["d"], policy=hold),
        checks.job("late", ["l"], delay_ms=1_000),
        checks.job("free"),
    ]
    specs += [checks.job("k", ["k"], key="k"), checks.job("k2", ["k"], key="k2", on_conflict="after")]
    store.call_sync(op.Enqueue(tuple(specs)))
    granted = {grant.spec.id: grant for grant in store.call_sync(op.Exchange("w", limit=10)).grants}
    fail = Outcome(job_id="dead", token=granted["dead"].token, kind=OutcomeKind.FAILED, final=True)
    done = Outcome(job_id="free", token=granted["free"].token, kind=OutcomeKind.FINISHED, result=b"[1]")
    first = granted["j0"]
    store.call_sync(op.Post((op.Note("j0", first.token, ("line",)),)))
    store.call_sync(op.Exchange("w", (fail, done)))
    clock.advance(ms=10)


# --- full servers ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_server_refuses_new_jobs_changes_nothing_and_drains(start_server: StartServer, namespace: str) -> None:
    server = start_server(maxmemory="12mb")
    store = checks.open_store(server.url, namespace)
    history = History()
    numbers = itertools.count()
    running: list[Grant] = []

    def batch() -> op.Enqueue:
        return op.Enqueue(
            tuple(
                checks.job(f"j{number}", ["p", str(number % 50)], arguments=b'{"a": "' + b"x" * 400 + b'"}')
                for number in itertools.islice(numbers, 100)
            )
        )

    with pytest.raises(BackendFullError):
        while True:
            submission = batch()
            store.call_sync(submission)
            history.accepted |= {spec.id for spec in submission.jobs}
            if not running:
                running = list(store.call_sync(op.Exchange("w", limit=20)).grants)
    server.call("CONFIG", "SET", "maxmemory", "11mb")  # buffers of connections that shrink make no room
    before, stats = server.call("DEBUG", "DIGEST"), store.call_sync(op.CountJobs())
    for size in (1, 100):
        with pytest.raises(BackendFullError):
            store.call_sync(op.Enqueue(batch().jobs[:size]))
    assert (server.call("DEBUG", "DIGEST"), store.call_sync(op.CountJobs())) == (before, stats)
    # Running jobs are renewed, log, are canceled, and end.
    leases = tuple((grant.spec.id, grant.token) for grant in running)
    assert set(store.call_sync(op.Renew(leases)).verdicts) == {op.Verdict.DONE}
    assert store.call_sync(op.Cancel(("j19",))).verdicts[0][0] is op.Verdict.REQUESTED
    settle = tuple(checks.finished(grant) for grant in running)
    assert set(store.call_sync(op.Exchange("w", settle)).verdicts) == {op.Verdict.DONE}
    finished = len(running)
    while granted := store.call_sync(op.Exchange("w", limit=50)).grants:
        verdicts = store.call_sync(op.Exchange("w", tuple(checks.finished(grant) for grant in granted))).verdicts
        assert set(verdicts) == {op.Verdict.DONE}
        finished += len(granted)
    assert finished == len(history.accepted)
    # Memory is looked at once a second: a worker that is there drops records of what is over at its next exchange.
    deadline_s = time.monotonic() + checks.LIMIT_S
    while True:
        try:
            store.call_sync(batch())
            break
        except BackendFullError:
            assert time.monotonic() < deadline_s
            store.call_sync(op.Exchange("w"))
            time.sleep(0.05)
    stats = store.call_sync(op.CountJobs())
    assert stats.enqueued == sum(stats.states.values()) + stats.pruned
    store.call_sync(op.Cancel(tuple(f"j{number}" for number in range(next(numbers) - 100, next(numbers)))))
    store.close_sync()
    figures("F-23", accepted=len(history.accepted), finished=finished, pruned=stats.pruned, changed_by_refusals=0)


def crowd(server: Server, share: float) -> None:
    """Have a share of the server's memory be used, for the most part by another application."""
    client = server.client()
    client.setrange("others", 40_000_000, "x")
    client.config_set("maxmemory", int(int(client.info("memory")["used_memory"]) / share))


class Short:
    """A store whose server is short of memory, and jobs that are over; all looks at memory are a second apart."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.clock = FakeClock()
        self.store = checks.open_store(server.url, namespace, clock=self.clock)

    def run(self, *specs: JobSpec, kind: OutcomeKind = OutcomeKind.FINISHED, result: bytes | None = None) -> None:
        self.store.call_sync(op.Enqueue(specs))
        self.claim(*[spec.id for spec in specs], kind=kind, result=result)

    def claim(self, *ids: str, kind: OutcomeKind = OutcomeKind.FINISHED, result: bytes | None = None) -> None:
        grants = self.store.call_sync(op.Exchange("w", limit=len(ids))).grants
        assert {grant.spec.id for grant in grants} == {*ids}
        outcomes = [
            Outcome(job_id=grant.spec.id, token=grant.token, kind=kind, result=result, final=kind is OutcomeKind.FAILED)
            for grant in grants
        ]
        self.store.call_sync(op.Exchange("w", tuple(outcomes)))

    def look(self, times: int = 10) -> None:
        """Do what workers and producers do all the time."""
        for _ in range(times):
            self.clock.advance(ms=1_000)
            self.store.call_sync(op.Exchange("w", limit=1))
            self.store.call_sync(op.Tick())

    def there(self, *ids: str) -> set[str]:
        return {record.spec.id for record in self.store.call_sync(op.Get(ids)).records if record is not None}


def test_server_short_of_memory_drops_only_unneeded_records(
    start_server: StartServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    short = Short(server, namespace)
    store = short.store
    short.look(1)  # The scripts are loaded, and take none of the room that is left.
    crowd(server, 0.95)
    short.run(checks.job("needed"))
    store.call_sync(op.Enqueue((checks.job("needs", pool="none", depends_on=(Dependency("needed", data=True),)),)))
    short.run(checks.job("done"), result=b"1")
    short.run(checks.job("dead"), kind=OutcomeKind.FAILED)
    short.run(checks.job("holds", ["doc"], policy=Policy(on_dead="hold")), kind=OutcomeKind.FAILED)
    store.call_sync(op.Enqueue((checks.job("behind", ["doc"]),)))
    ids = ("needed", "done", "dead", "holds")
    short.look()
    short.clock.advance(ms=570_000)
    short.look()
    assert (short.there(*ids), store.call_sync(op.CountJobs()).dropped) == ({*ids}, 0)
    short.clock.advance(ms=20_000)
    short.look()
    assert short.there(*ids, "behind") == {"needed", "holds", "behind"}
    stats = store.call_sync(op.CountJobs())
    assert (stats.dropped, stats.pruned, stats.states[JobState.QUEUED]) == (2, 2, 2)
    told = [record for record in caplog.records if getattr(record, "event", "") == "redis.records_dropped"]
    assert sum(record.count for record in told) == 2  # type: ignore[attr-defined]
    # The id has gone with its record.
    assert store.call_sync(op.Enqueue((checks.job("done", ["other"]),))).jobs[0].created
    assert diagnose(store).facts["records_dropped"] == 2
    store.close_sync()


def test_full_server_drops_needed_records_last(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    short = Short(server, namespace)
    store = short.store
    store.call_sync(op.Pause(RecordFilter(path=("doc",))))
    store.call_sync(op.Enqueue((checks.job("awaited", ["doc"]),)))
    store.wait_sync(Interest(jobs=("awaited",)), 0.001)
    store.call_sync(op.Resume(RecordFilter(path=("doc",))))
    short.claim("awaited")
    short.run(checks.job("holds", ["held"], policy=Policy(on_dead="hold")), kind=OutcomeKind.FAILED)
    short.run(*[checks.job(f"done{number}", policy=Policy(retention_ms=3_600_000)) for number in range(3)])
    crowd(server, 1.05)
    ids = ("awaited", "holds", "done0", "done1", "done2")
    assert short.there(*ids) == {*ids}
    short.clock.advance(ms=1_000)
    store.call_sync(op.Tick())
    assert short.there(*ids) == {"awaited", "holds"}
    # It knows when the next record expires.
    assert diagnose(store).is_clean
    short.look(3)
    assert short.there(*ids) == {"awaited"}
    short.look()
    assert short.there(*ids) == set()
    assert store.call_sync(op.CountJobs()).dropped == len(ids)
    store.close_sync()


async def test_partial_results_that_a_full_server_refuses_hold_up_nothing(
    start_server: StartServer, namespace: str
) -> None:
    server = start_server()
    sched = Scheduler(f"{server.url}?namespace={namespace}")
    finished: list[bytes] = []

    @sched.job
    async def speaks(ctx: JobContext) -> None:
        await full.wait()
        ctx.update({"rows": 1})
        ctx.log("a line")
        ctx.progress(1, 2)

    @sched.job
    async def plain() -> int:
        await full.wait()
        return 1

    @sched.after_job
    def note(_: JobContext, outcome: Outcome) -> None:
        finished.append(outcome.result or b"")

    full = asyncio.Event()
    async with sched.worker(concurrency=2) as worker:
        for job in (speaks, plain, plain, speaks):
            await job.enqueue()
        await until(lambda: worker.running == 2, "two run")
        # Memory that cannot be freed: another application's.
        server.client().set("others", b"x" * 8_000_000)
        server.call("CONFIG", "SET", "maxmemory", "6000000")
        full.set()
        await until(lambda: len(finished) == 4 and not worker.running, "all have run while the server is full")
        await until(lambda: sched.backend.call_sync(op.CountJobs()).settled == 4, "all are settled while it is full")
        server.call("CONFIG", "SET", "maxmemory", "0")
    sched.close_sync()
    assert sorted(finished) == ([b'{"result":1}'] * 2 + [b'{"result":{"rows":1}}'] * 2)


# --- replicas that are missing ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_primary_without_replicas_refuses_writes_and_workers_stop_in_time(
    start_server: StartServer, namespace: str, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.3)
    server = start_server(min_replicas_to_write=1)
    replica = start_server(replica_of=server.port)

    def has_replica() -> bool:
        return bool(server.info("replication")["min_slaves_good_slaves"])

    # It counts from its first acknowledgement on; killed, it counts no more at once.
    checks.until_sync(has_replica, "the server counts its replica")
    both = WorkerAndProducer(server, server.url, namespace, lines, lease=2)

    async def main() -> float:
        async with both.working():
            await both.enqueue(2, paths=2, ms=60_000)
            await until(lambda: len(checks.read_lines(lines)) == 2, "they run")
            replica.kill()
            await until(lambda: not has_replica(), "the server misses its replica")
            before = server.call("DEBUG", "DIGEST")
            gone_s = time.monotonic()
            store = both.near.sched.backend
            operations: list[op.Operation[Any]] = [
                op.Enqueue((checks.job("no"),)),
                op.Exchange("x", limit=5),
                op.Draw(1),
                op.Tick(),
                op.Cancel(("j1",)),
                op.Renew((("j1", 5),)),
            ]
            for operation in operations:
                with pytest.raises(BackendUnavailableError, match=r"NOREPLICAS|[Rr]eplicas"):
                    await store.call(operation)
            assert server.call("DEBUG", "DIGEST") == before
            # A question writes nothing, and is answered.
            assert (await store.call(op.CountJobs())).states[STARTED] == 2
            await until(
                lambda: sum(line.event == "stopped" for line in checks.read_lines(lines)) == 2, "both are stopped"
            )
            stopped_s = max(line.t for line in checks.read_lines(lines)) - gone_s
            assert (await store.call(op.Get(("no",)))).records == (None,)
            replica.restart()
            await until(has_replica, "the server has its replica again")
            await both.enqueue(1, paths=1)
            await both.near.sched.cancel(["j1", "j2"])
            await both.drained()
            return stopped_s

    with Lateness() as late:
        stopped_s = run(main())
    assert stopped_s <= 2 + late.total_s, "before the lease was over"
    checks.close_books(server.client(), server.url, namespace, both.history, states=(FINISHED, CANCELED))
    checks.check_no_overlap(checks.read_lines(lines))
    figures("F-29", stopped_after_s=round(stopped_s, 2), partial_writes=0)
