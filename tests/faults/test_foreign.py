"""Keys of others, users with few rights, refused commands: foreign keys stay, and no refusal leaves half a change."""

from __future__ import annotations

import contextlib
import functools
import io
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuehint import Backend, FakeClock, JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys
from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.codec import requests
from queuehint.backends.redis.scripts import names, script
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
)
from queuehint.testing import contract
from queuehint.values.schedule import Recurrence
from queuehint.worker.schedules import firing as timekeeping
from tests.calls import forget_scripts
from tests.conftest import StartServer
from tests.faults import checks
from tests.faults.checks import figures
from tests.faults.test_cuts import NOT_COMPARED, STEPS, Story, apply, tell
from tests.faults.worker_and_producer import WorkerAndProducer
from tests.heads import put_spec, spec_of
from tests.schedulers import run
from tests.servers import Server, connect, new_namespace
from tests.support import thorough

pytestmark = pytest.mark.redis

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState

IN_SCRIPTS = (
    *("exists", "unlink", "type", "info", "time"),
    *("hget", "hset", "hmget", "hdel", "hexists", "hlen", "hgetall", "hkeys", "hvals"),
    *("zadd", "zrem", "zrange", "zrangebyscore", "zremrangebyscore", "zscore", "zcard"),
    *("zrangebylex", "zrevrangebylex", "zlexcount"),
    *("rpush", "lrange", "llen", "ltrim"),
)
FROM_CLIENTS = ("fcall", "fcall_ro", "function|load", "evalsha", "eval", "info", "type", "bzpopmin", "zpopmin")
"""Scripts, in both ways; checks on connecting; blocking waits of workers and of waiters for results."""
COMMANDS = tuple(dict.fromkeys((*FROM_CLIENTS, *IN_SCRIPTS)))
"""
All that the user of a worker or a producer has to be allowed, on the keys `{qh:<namespace>}` and `{qh:<namespace>}:*`;
goes to the docs. A cluster needs `asking` besides.
"""
FOR_DOCTOR = (
    "ping",
    "scan",
    "function|list",
    "function|delete",
    "hscan",
    "sscan",
    "zscan",
    "pttl",
    "persist",
    "lrem",
)
"""Further commands that `queuehint doctor` needs; the last two to repair, and ``function|delete``."""
FROM_ITS_CLIENT = {"scan", "ping", "function|list", "function|delete"}
DOCTORS = {"doctor/counters", "doctor/entries", "doctor/heads", "doctor/kinds", "doctor/repair", "doctor/small_keys"}
"""Its scripts."""
PASSWORD = "secret"
AUDITS = "~audit:*"
"""Where scripts that are audited write, which are those of the tests."""


def acl(namespaces: str, commands: tuple[str, ...] = COMMANDS) -> list[str]:
    """Return the ACL of a user with exactly the documented rights."""
    allowed = " ".join(f"+{command}" for command in commands)
    return [
        "user default on nopass ~* &* +@all",
        f"user least on >{PASSWORD} resetchannels ~{{qh:{namespaces}}} ~{{qh:{namespaces}}}:* {AUDITS} -@all {allowed}",
    ]


def url_as(server: Server, user: str = "least") -> str:
    return server.url.replace("redis://", f"redis://{user}:{PASSWORD}@")


# --- foreign keys ----------------------------------------------------------------------------------------------------


def test_foreign_keys_namespaces_and_databases_stay_unchanged(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    chance = random.Random(37)
    clients = [connect(server.url.removesuffix("/0") + f"/{database}") for database in (0, 3)]
    # The same prefix, the same tag, globs, binary names: all that looks like a key of ours and is not.
    near = [f"{{qh:{namespace}}}", f"{{qh:{namespace}}}x:jobs", f"qh:{namespace}:jobs", f"{{qh:{namespace}:jobs"]
    near += [f"{{qh:{namespace[:-1]}}}:jobs", f"{{qh:{namespace}.}}:meta", "{qh:*}:meta", "jobs", "meta"]
    for client in clients:
        for number in range(300):
            client.set(chance.randbytes(12) + str(number).encode(), chance.randbytes(30))
        for name in near:
            client.hset(name, mapping={"state": "foreign", "a": "1"})
    other = f"{namespace}-other"
    theirs = checks.open_store(server.url, other, clock=FakeClock())
    theirs.call_sync(op.Enqueue((checks.job("mine", ["p"]), checks.job("more", ["p"]))))
    theirs.call_sync(op.Exchange("w", limit=1))
    before = [dumped(client) for client in clients]
    for database in (0, 3):
        url = server.url.removesuffix("/0") + f"/{database}"
        tell(checks.open_store(url, namespace, clock=FakeClock()), lambda *_: None)
    ours = f"{{qh:{namespace}}}:".encode()
    for client, old in zip(clients, before, strict=True):
        new = dumped(client)
        assert {name: value for name, value in new.items() if not name.startswith(ours)} == old
        assert any(name.startswith(ours) for name in new)
        client.close()
    assert theirs.call_sync(op.CountJobs()).states[JobState.STARTED] == 1
    theirs.close_sync()
    figures("F-37", foreign_keys=sum(map(len, before)), changed=0)


def dumped(client: Any) -> dict[bytes, bytes]:
    return {name: client.dump(name) for name in client.scan_iter(count=5_000)}


# --- users with few rights -------------------------------------------------------------------------------------------

_servers: list[Server] = []


def strict_server() -> Server:
    """Return a server with a user of little rights, shared by all tests of this process; it ends with the process."""
    if not _servers:
        _servers.append(Server(acl=acl("*")))
    return _servers[0]


class TestAsLeast(
    contract.Binding,
    contract.Ancestors,
    contract.ArrivalOrder,
    contract.Leases,
    contract.Retries,
    contract.Cancellation,
    contract.Dead,
    contract.Keys,
    contract.Identity,
    contract.Pauses,
    contract.Presence,
    contract.Records,
    contract.Waiting,
):
    def open(self, clock: FakeClock) -> Backend:
        options = BackendOptions(namespace=new_namespace(), clock=clock)
        return RedisBackend(parse_url(url_as(strict_server())), options)


def test_a_worker_with_few_rights_works_listens_and_answers(namespace: str, lines: Path) -> None:
    server = strict_server()
    both = WorkerAndProducer(server, url_as(server), namespace, lines, near=url_as(server))

    async def main() -> None:
        async with both.working():
            await both.enqueue(10)
            handle = await both.near.work.using(id="awaited").enqueue()
            both.history.accepted.add("awaited")
            assert await handle.result(timeout=60)
            async with both.near.sched.exclusive(["p"]) as hold:
                both.history.accepted.add(hold.id)
            await both.drained()

    run(main())
    both.near.sched.url = server.url
    figures("F-38", commands=len(COMMANDS), **both.close())


def test_command_outside_the_acl_is_refused(namespace: str) -> None:
    client = connect(url_as(strict_server()))
    refused = [
        ("CONFIG", "GET", "*"),
        ("FLUSHALL",),
        ("SCRIPT", "FLUSH"),
        ("FUNCTION", "FLUSH"),
        ("FUNCTION", "DELETE", "x"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("REPLICAOF", "NO", "ONE"),
        ("ACL", "LIST"),
        ("GET", f"{{qh:{namespace}}}:meta"),
        ("HGET", "foreign", "x"),
        ("EVAL", "return redis.call('HGET', 'foreign', 'x')", "0"),
        ("PUBLISH", "c", "m"),
        ("DEBUG", "DIGEST"),
    ]
    for command in refused:
        with pytest.raises(Exception, match=r"permission|can't (run|access)"):
            client.execute_command(*command)  # type: ignore[no-untyped-call]
    client.close()


def test_acl_lists_exactly_the_commands_of_scripts() -> None:
    called: dict[bool, set[str]] = {False: set(), True: set()}
    for name in set(names()) - {"probe"}:
        found = re.findall(r"redis\.p?call\((.)(\w+)", script(name).text)
        # Each is named where it is called: none can be missed here.
        assert all(quote == "'" for quote, _ in found), name
        called[name in DOCTORS].update(command.lower() for _, command in found)
    assert called[False] == set(IN_SCRIPTS)
    assert called[True] - set(COMMANDS) == set(FOR_DOCTOR) - FROM_ITS_CLIENT


def test_a_user_without_rights_is_refused_by_name(namespace: str, start_server: StartServer) -> None:
    server = start_server(acl=acl("elsewhere"))
    store = checks.open_store(url_as(server), namespace)
    with pytest.raises(BackendDeniedError):
        store.call_sync(op.Enqueue((checks.job("j"),)))
    store.close_sync()
    wrong = checks.open_store(url_as(server, "nobody"), namespace)
    with pytest.raises(BackendDeniedError):
        wrong.call_sync(op.CountJobs())
    wrong.close_sync()
    assert server.call("DBSIZE") == 0


# --- M-sweep ---------------------------------------------------------------------------------------------------------


def oom(server: Server) -> Callable[[], object]:
    server.call("CONFIG", "SET", "maxmemory", "1")
    return lambda: server.call("CONFIG", "SET", "maxmemory", "0")


def no_replicas(server: Server) -> Callable[[], object]:
    server.call("CONFIG", "SET", "min-replicas-to-write", "1")
    return lambda: server.call("CONFIG", "SET", "min-replicas-to-write", "0")


def read_only(server: Server) -> Callable[[], object]:
    # Of a primary that is not there: it keeps its data, and takes no writes.
    server.call("REPLICAOF", "127.0.0.1", "1")
    return lambda: server.call("REPLICAOF", "NO", "ONE")


def no_script(server: Server) -> Callable[[], object]:
    forget_scripts(server)
    return lambda: None


def denied(server: Server) -> Callable[[], object]:
    server.call("ACL", "SETUSER", "default", "-fcall", "-fcall_ro", "-evalsha", "-eval")
    return lambda: server.call("ACL", "SETUSER", "default", "+@all")


REFUSALS: dict[str, tuple[Callable[[Server], Callable[[], object]], type[BackendError] | None]] = {
    "OOM": (oom, BackendFullError),
    "NOREPLICAS": (no_replicas, BackendUnavailableError),
    "READONLY": (read_only, BackendUnavailableError),
    "NOSCRIPT": (no_script, None),
    "ACL": (denied, BackendDeniedError),
}


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusing_server_changes_nothing_and_a_retry_succeeds(
    start_server: StartServer, namespace: str, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.0)
    server = start_server()
    refuse, expected = REFUSALS[refusal]
    twin = f"{namespace}-twin"
    uncut = tell(checks.open_store(server.url, twin, clock=FakeClock()), lambda *_: None)
    store = checks.open_store(server.url, namespace, clock=FakeClock())
    story = Story(clock=store.session._clock)  # type: ignore[arg-type]
    # The checks on connecting are done.
    store.call_sync(op.CountJobs())
    replies, errors = [], list[BackendError]()
    for make in STEPS.values():
        operation = make(story)
        before = checks.dump(server.client(), namespace)
        undo = refuse(server)
        reply: Any = None
        try:
            reply = store.call_sync(operation)
        except BackendError as error:
            errors.append(error)
        finally:
            undo()
        if reply is None:
            assert checks.dump(server.client(), namespace) == before, "a refusal has changed something"
            reply = store.call_sync(operation)
        replies.append(reply)
        apply(operation, reply, story)
    store.close_sync()
    refused = len(errors)
    assert {type(error) for error in errors} <= {expected}, errors
    if refusal == "OOM":
        # A full store still ends, frees and renews jobs, and drops old records for that; enqueues are refused.
        assert refused == sum(isinstance(make(story), op.Enqueue) for make in STEPS.values())
    else:
        assert refused == (0 if expected is None else len(STEPS))
        assert replies == uncut
        ours, theirs = (checks.dump(server.client(), name, without=NOT_COMPARED) for name in (namespace, twin))
        assert ours == theirs
    figures("M-sweep", refusal=refusal, refused=refused, partial_writes=0)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [key.name for key in keys.KEYS if key.is_prefix])
def test_key_of_a_wrong_type_leaves_no_partial_change(redis_server: Server, namespace: str, prefix: str) -> None:
    client = redis_server.client()
    store = checks.open_store(redis_server.url, namespace, clock=FakeClock())
    story = Story(clock=store.session._clock)  # type: ignore[arg-type]
    rests = ["a", "b", "c", "e", "e2", "f", "x", "x:y", "w", "default", *(f"g{number}" for number in range(20))]
    store.call_sync(op.CountJobs())
    for rest in rests:
        client.set(keys.redis_key(namespace, prefix, rest), "foreign")

    def state() -> dict[str, Any]:
        found = {name: client.dump(keys.redis_key(namespace, name)) for name in checks.names_of(client, namespace)}
        return {name: value for name, value in found.items() if name not in NOT_COMPARED}

    halves = []
    refused = 0
    for name, make in STEPS.items():
        try:
            operation: op.Operation[Any] = make(story)
        except KeyError:
            continue  # it is about a grant that was refused
        before = state()
        try:
            reply = store.call_sync(operation)
        except CorruptStateError:
            refused += 1
            if state() != before:
                halves.append(name)
        except BackendError as error:
            halves.append(f"{name}: {error}")
        else:
            apply(operation, reply, story)
    store.close_sync()
    figures("M-sweep", wrong_type=prefix, refused=refused, partial_writes=len(halves))
    assert not halves


def test_a_refused_job_is_still_there_for_everyone(
    start_server: StartServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After any refusal a job can be claimed, reaped and ended as before.
    monkeypatch.setattr(redis_session, "RETRY_S", 0.0)
    server = start_server()
    clock = FakeClock()
    store = checks.open_store(server.url, namespace, clock=clock)
    store.call_sync(op.Enqueue((checks.job("j", ["p"]),)))
    for refuse, expected in (entry for name, entry in REFUSALS.items() if name not in {"OOM", "NOSCRIPT"}):
        undo = refuse(server)
        with pytest.raises(expected or BackendError):
            store.call_sync(op.Exchange("w", limit=1))
        undo()
        granted = store.call_sync(op.Exchange("again", limit=1, lease_ms=1_000)).grants
        assert [grant.spec.id for grant in granted] == ["j"]
        clock.advance(seconds=2)
        store.call_sync(op.Exchange("reaper", pools=()))
        record = store.call_sync(op.Get(("j",))).records[0]
        assert record is not None
        if record.state is JobState.FAILED:
            break
    store.close_sync()


def sweep_rights(server: Server, commands: tuple[str, ...]) -> tuple[int, dict[str, list[str]], dict[str, set[str]]]:
    """Take away one right after the other; return refusals, steps half done, and other errors than denials."""
    client = server.client()
    refused = 0
    halves: dict[str, list[str]] = {}
    others: dict[str, set[str]] = {}
    for command in commands:
        namespace = new_namespace(command)
        store = checks.open_store(url_as(server), namespace, clock=FakeClock())
        story = Story(clock=store.session._clock)  # type: ignore[arg-type]
        store.call_sync(op.CountJobs())
        for name, make in STEPS.items():
            operation = make(story)
            before = checks.dump(client, namespace)
            server.call("ACL", "SETUSER", "least", f"-{command}")
            try:
                reply = store.call_sync(operation)
            except BackendError as error:
                refused += 1
                if not isinstance(error, BackendDeniedError):
                    others.setdefault(type(error).__name__, set()).add(command)
                is_half = checks.dump(client, namespace) != before
                server.call("ACL", "SETUSER", "least", f"+{command}")
                if is_half:
                    # After half a change later results mean nothing.
                    halves.setdefault(command, []).append(name)
                    break
                reply = store.call_sync(operation)
            finally:
                server.call("ACL", "SETUSER", "least", f"+{command}")
            apply(operation, reply, story)
        store.close_sync()
    return refused, halves, others


@functools.cache
def swept_rights() -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    with Server(acl=acl("*")) as server:
        taken = IN_SCRIPTS[:: thorough(1, quick=4)]
        refused, halves, others = sweep_rights(server, taken)
    assert refused > len(taken)
    figures("M-sweep", rights_taken=len(taken), refused=refused, half_done=halves, not_denied=len(others))
    return halves, others


@pytest.mark.parametrize("command", IN_SCRIPTS)
def test_user_without_one_right_changes_nothing(command: str, namespace: str) -> None:
    # Lacking from the start: `probe` sees it on connecting, or the first operation that needs it.
    server = strict_server()
    server.call("ACL", "SETUSER", "least", f"-{command}")
    store = checks.open_store(url_as(server), namespace)
    try:
        for operation in (op.Enqueue((checks.job("j", ["p"]),)), op.Exchange("w", limit=1)):
            with contextlib.suppress(BackendDeniedError):
                store.call_sync(operation)
                # Only what nothing here needs may be lacking.
                assert command in LATER, command
        if command not in LATER:
            assert checks.names_of(server.client(), namespace) == {}
    finally:
        store.close_sync()
        server.call("ACL", "SETUSER", "least", f"+{command}")


LATER = {"exists", "hkeys", "hlen", "hvals", "hgetall", "zlexcount"}
"""Not needed by every namespace's first steps; all are reads, and of a change they come before its first write."""


@pytest.mark.nightly
@pytest.mark.xfail(strict=True, reason="Redis tells nobody which rights they have")
def test_revoked_right_leaves_no_partial_change() -> None:
    halves, _ = swept_rights()
    assert not halves


@pytest.mark.slow
def test_a_right_that_is_taken_away_is_called_so() -> None:
    _, others = swept_rights()
    assert not others


# --- specs that cannot be read ---------------------------------------------------------------------------------------


UNREADABLE = pytest.mark.parametrize(
    "spec, is_newer",
    [
        (b'{"since_2_0":true}\n{"n":99}', True),
        (b'{"on_conflict":"merge"}\n{"n":99}', True),
        (b'{"n":99}', False),
        (b'{"flow":"a\n{"n":99}', False),
        (b"[1]\n{}", False),
        (b"\x80\xff\n{}", False),
        (b"", False),
    ],
)


@UNREADABLE
async def test_unreadable_spec_concerns_only_its_own_job(
    redis_server: Server, namespace: str, spec: bytes, is_newer: bool
) -> None:
    sched = Scheduler(f"{redis_server.url}?namespace={namespace}")
    ran: list[int] = []

    @sched.job
    async def good(n: int) -> None:
        ran.append(n)

    jobs = await good.enqueue_many([(n,) for n in range(4)])
    bad = await good.using(id="bad").enqueue(99)
    put_spec(redis_server, namespace, "bad", spec)
    async with sched.worker(concurrency=8):
        for job in jobs:
            await job.result(timeout=60)
        # In the same exchange, or the next: it is not left until its lease ends.
        await checks.until(lambda: sched.backend.call_sync(op.CountJobs()).states[STARTED] == 0, "it is settled")
    reason = await bad.why()
    assert reason.kind == ("unknown_task" if is_newer else "over")
    put_spec(redis_server, namespace, "bad", b'\n{"n":99}')
    record = await bad.record()
    assert (record.state, record.losses) == (QUEUED if is_newer else FAILED, 0)
    assert [error.type for error in record.errors] == ([] if is_newer else ["unreadable"])
    sched.close_sync()
    assert sorted(ran) == [0, 1, 2, 3]


@UNREADABLE
def test_record_with_an_unreadable_spec_is_listed_with_others(
    redis_server: Server, namespace: str, spec: bytes, is_newer: bool
) -> None:
    sched = Scheduler(f"{redis_server.url}?namespace={namespace}")

    @sched.job(service="shop", on_dead="continue", max_attempts=1)
    def work(n: int) -> None:
        raise ValueError(n)

    work.using(id="good").enqueue_sync(1)
    work.using(id="bad", user="ann", priority=4).enqueue_sync(99)
    sched.drain_sync(run=True)
    put_spec(redis_server, namespace, "bad", spec)

    for records in (
        sched.records.list_sync(service="shop"),
        sched.records.list_by_ids_sync(["good", "bad"]),
        sched.dead.list_sync(),
        list(sched.records.iterate_sync()),
    ):
        assert {record.id: record.problem is None for record in records} == {"good": True, "bad": False}
    record = sched.get_sync("bad")
    assert (record.state, record.errors[0].message) == (FAILED, "99")
    assert "its spec cannot be read by this release" in str(record.problem)
    assert (record.spec.task, record.spec.user, record.spec.service) == (work.name, "ann", "shop")
    assert (record.spec.priority, record.spec.arguments) == (4, b'{"n":99}' if is_newer else b"{}")
    assert sched.records.export_sync(io.StringIO()) == 2
    # It is written whole, and what cannot be read of it would be lost.
    with pytest.raises(CorruptStateError, match="'bad' cannot be amended"):
        sched.records.amend_sync("bad", user="ben")
    assert spec_of(redis_server, namespace, "bad") == spec
    sched.close_sync()


def test_waiter_is_notified_although_its_spec_is_unreadable(redis_server: Server, namespace: str) -> None:
    sched = Scheduler(f"{redis_server.url}?namespace={namespace}")

    @sched.job
    def double(n: int) -> int:
        return 2 * n

    job = double.enqueue_sync(21)
    with sched.flow_sync("sums") as flow:
        flow.add(double.using(id="in-flow"), 1)
    sched.drain_sync(run=True)
    for job_id in (job.id, "in-flow"):
        put_spec(redis_server, namespace, job_id, b'{"since_2_0":true}\n{"n":21}')
    assert job.result_sync(timeout=30) == 42
    # Which jobs a flow ends with says the spec.
    with pytest.raises(CorruptStateError, match="job 'in-flow': its spec cannot be read"):
        sched.get_flow("sums").result_sync(timeout=30)
    assert [record.id for record in sched.get_flow("sums").jobs_sync()] == ["in-flow"]
    sched.close_sync()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2 * timekeeping.DUE_AT_ONCE])
async def test_schedules_that_cannot_be_read_hold_up_no_other(
    redis_server: Server,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    count: int,
) -> None:
    url = f"{redis_server.url}?namespace={namespace}"
    later = Scheduler(url)

    @later.job(name="work")
    async def other(n: int) -> None: ...

    monkeypatch.setattr(timekeeping, "REST_S", 0.1)
    # Data that a later release may write.
    with monkeypatch.context() as patch:
        patch.setattr(requests, "spec_rest", lambda _spec: b'{"since_2_0":true}\n{"n":1}')
        for number in range(count):
            later.backend.call_sync(op.PutSchedule(f"a{number}", other.spec(1), Recurrence(every_ms=1000), 0))
    sched = Scheduler(url)
    ran: list[int] = []

    @sched.every(1, name="b", args=[2])
    @sched.job(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    async with sched.worker():
        await checks.until(lambda: 2 in ran, "the other one fires")
    assert [schedule.name for schedule in await sched.schedules.list()] == ["b"]
    with pytest.raises(CorruptStateError, match="schedule 'a0' cannot be read"):
        await sched.schedules.get("a0")
    assert await sched.schedules.remove("a0")
    await sched.close()
    later.close_sync()
    assert " cannot be read here" in caplog.text
