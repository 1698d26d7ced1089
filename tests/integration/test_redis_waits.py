"""Waits for results on Redis: what they leave in the store, and which node they use in a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from functools import partial
from typing import Any

import pytest

from queuehint import FakeClock, Scheduler
from queuehint import operations as op
from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.connections.async_link import AsyncLink
from queuehint.backends.redis.connections.sync_link import run as run_steps
from queuehint.backends.redis.transport import NotSent, Send
from queuehint.values.hint import Claim
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.spec import JobSpec
from tests.property.agreement import RedisLockstep
from tests.schedulers import Gate, in_thread, run, until
from tests.servers import Server
from tests.support import until_sync


def test_a_thread_that_waits_again_and_again_is_remembered_once(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    backend.call_sync(op.Enqueue((JobSpec(id="a", task="t"),)))
    client = redis_server.client()
    sizes = set()
    for _ in range(4):
        backend.wait_sync(Interest(jobs=("a",)), 0.01)
        sizes.add((client.zcard(keys.redis_key(namespace, "sessions")), len(client.hget(*head(namespace)) or b"")))
    assert len(sizes) == 1, sizes
    backend.close_sync()


def head(namespace: str) -> tuple[str, str]:
    return keys.redis_key(namespace, "jobs"), "a"


def test_wait_refused_by_the_server_does_not_return_at_once(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    backend.call_sync(op.Enqueue((JobSpec(id="a", task="t"),)))
    redis_server.client().set(keys.redis_key(namespace, "wake:pool:", "p"), "not ours")
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    backend.wait_sync(Interest(pools=("p",)), 0.25)
    assert pauses == [0.25]
    backend.close_sync()


@pytest.mark.slow
def test_ticks_of_others_do_not_keep_a_worker_asleep() -> None:
    lockstep = RedisLockstep(budget=1)
    try:
        lockstep.do(op.Exchange("w", limit=1))  # told that nothing is due: the worker sleeps
        later = JobSpec(id="later", task="t", delay_ms=10)
        lockstep.do(op.Enqueue((JobSpec(id="now", task="t"), later), staged="s"))
        more = lockstep.do(op.Commit("s", 2)).more
        lockstep.server.client().delete(keys.redis_key(lockstep.namespace, "wake:timer"))
        while more:
            more = lockstep.do(op.Tick()).more
        assert "wake:timer" in lockstep.dump(), "something is due before the time the worker was told"
    finally:
        lockstep.close()


def test_settlement_with_a_due_retry_wakes_a_sleeping_worker() -> None:
    lockstep = RedisLockstep()
    try:
        lockstep.do(op.Enqueue((JobSpec(id="a", task="t"),)))
        (grant,) = lockstep.do(
            op.Exchange("w", limit=1, pools=("default",))
        ).grants  # and listens on, with slots to spare
        wake = keys.redis_key(lockstep.namespace, "wake:timer")
        lockstep.server.client().delete(wake)
        failed = Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FAILED, delay_ms=100)
        lockstep.do(op.Exchange("w", settle=(failed,)))
        assert lockstep.server.client().exists(wake), "the retry is due before the lease it was told of"
    finally:
        lockstep.close()


def test_ending_loop_closes_connections_of_an_unclosed_backend(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    client = redis_server.client()

    async def main() -> None:
        await backend.call(op.Enqueue((JobSpec(id="a", task="t"),)))
        await backend.wait(Interest(jobs=("a",)), 0.01)
        assert connections() > before

    def connections() -> int:
        return int(client.info("clients")["connected_clients"])

    gc.disable()
    try:
        for _ in range(2):
            before = connections()
            asyncio.run(main())
            until_sync(lambda: connections() <= before, "all are closed")  # noqa: B023 - it is called in this turn
    finally:
        gc.enable()
    backend.close_sync()


async def test_a_waiter_is_woken_although_the_connection_for_calls_fails(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuehint.backends.redis.backend.WAIT_CEILING_S", 60.0)
    monkeypatch.setattr("queuehint.backends.redis.subscriptions.TRUSTED_S", 60.0)
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    asked = AsyncLink.ask

    async def ask(link: AsyncLink, send: Send) -> Any:
        if send.command[0] == "ZPOPMIN":
            raise NotSent
        return await asked(link, send)

    monkeypatch.setattr(AsyncLink, "ask", ask)

    await backend.call(op.Enqueue((JobSpec(id="a", task="t"),)))
    waiting = asyncio.create_task(backend.wait(Interest(jobs=("a",)), 60))
    sessions, waiter = keys.redis_key(namespace, "sessions"), backend._loop()._waiter
    await until(lambda: redis_server.client().zscore(sessions, waiter) is not None)
    await backend.call(op.Cancel(("a",)))
    async with asyncio.timeout(60):
        await waiting
    await backend.close()


# --- no wake-up is lost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pools", [("default",), ("default", "mail")], ids=["plain", "general"])
def test_worker_without_room_restores_its_marker(pools: tuple[str, ...]) -> None:
    """Both ways of an exchange do: the one of its own for one pool, and the general one."""
    lockstep = RedisLockstep()
    try:
        lockstep.do(op.Enqueue((JobSpec(id="a", task="t"),)))
        wake = keys.redis_key(lockstep.namespace, "wake:pool:", "default")
        assert lockstep.server.client().zpopmin(wake)
        lockstep.do(op.Exchange("full", pools=pools, limit=0))
        assert lockstep.server.client().exists(wake), "an idle worker hears of the job"
    finally:
        lockstep.close()


def test_worker_passes_on_markers_of_users_it_skipped() -> None:
    lockstep = RedisLockstep(start_ms=1_000)
    try:
        lockstep.do(op.Exchange("w", users=("u", "v"), steal=("x",), pools=("p", "q")))
        specs = [JobSpec(id=f"{pool}{user}", task="t", pool=pool, user=user) for pool in "pq" for user in "uvx"]
        lockstep.do(op.Enqueue((*specs, JobSpec(id="another", task="t", pool="p", user="u"))))
        client = lockstep.server.client()
        for spec in specs:
            assert client.zpopmin(keys.redis_key(lockstep.namespace, "wake:user:", f"{spec.pool}\0{spec.user}"))
        (grant,) = lockstep.do(op.Exchange("w", users=("u", "v"), steal=("x",), pools=("p", "q"), limit=1)).grants
        left = [spec for spec in specs if spec.id != grant.spec.id or spec.id == "pu"]
        for spec in left:
            assert client.exists(keys.redis_key(lockstep.namespace, "wake:user:", f"{spec.pool}\0{spec.user}")), spec.id
    finally:
        lockstep.close()


def test_leaving_worker_wakes_others_for_its_known_due_time() -> None:
    lockstep = RedisLockstep()
    try:
        lockstep.do(op.Enqueue((JobSpec(id="later", task="t", delay_ms=60_000),)))
        wake = keys.redis_key(lockstep.namespace, "wake:timer")
        client = lockstep.server.client()
        lockstep.do(op.Exchange("w", limit=1))  # told of it
        client.delete(wake)
        lockstep.do(op.Exchange("w"))
        assert not client.exists(wake), "it is still there, and knows"
        lockstep.do(op.Exchange("w", is_last=True))
        assert client.exists(wake)
    finally:
        lockstep.close()


def test_caller_with_a_hold_is_not_considered_a_notified_worker() -> None:
    lockstep = RedisLockstep()
    try:
        lockstep.do(op.Enqueue((JobSpec(id="later", task="t", delay_ms=1),)))
        lockstep.go_to(2)
        lockstep.do(op.Enqueue((JobSpec(id="a", task="t", pool="caller"),)))
        wake = keys.redis_key(lockstep.namespace, "wake:timer")
        lockstep.server.client().delete(wake)
        lockstep.do(op.Exchange("caller", pools=("caller",), limit=1))
        assert lockstep.server.client().exists(wake), "a worker that sleeps has to hear of the lease"
    finally:
        lockstep.close()


def test_timer_of_a_killed_waiter_wakes_another_one() -> None:
    lockstep = RedisLockstep()
    try:
        lockstep.do(op.Enqueue((JobSpec(id="a", task="t", delay_ms=1_000),)))
        lockstep.do(op.Exchange("killed", limit=1))
        lockstep.go_to(1_001)
        wake = keys.redis_key(lockstep.namespace, "wake:timer")
        lockstep.server.client().delete(wake)
        lockstep.do(op.Enqueue((JobSpec(id="b", task="t", delay_ms=60_000),)))
        assert lockstep.server.client().exists(wake)
    finally:
        lockstep.close()


def test_retry_is_noticed_despite_an_outdated_due_time() -> None:
    lockstep = RedisLockstep()
    try:
        lockstep.do(op.Enqueue((JobSpec(id="a", task="t"), JobSpec(id="later", task="t", delay_ms=1_000))))
        (grant,) = lockstep.do(op.Exchange("w", limit=1)).grants  # and listens on, with slots to spare
        lockstep.do(op.Exchange("killed", limit=1))
        lockstep.go_to(1_050)
        wake = keys.redis_key(lockstep.namespace, "wake:timer")
        lockstep.server.client().delete(wake)
        lockstep.do(op.Exchange("w", limit=1))
        assert not lockstep.server.client().exists(wake), "the waiter that was woken reads it in this very moment"
        lockstep.do(op.Enqueue((JobSpec(id="latest", task="t", delay_ms=1_000),)))
        lockstep.do(op.Exchange("killed", limit=1))
        lockstep.go_to(2_200)
        lockstep.server.client().delete(wake)
        failed = Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FAILED, delay_ms=100)
        lockstep.do(op.Exchange("w", settle=(failed,), limit=1))
        assert lockstep.server.client().exists(wake), "nobody came at the time that was told, and the retry is due soon"
    finally:
        lockstep.close()


async def test_canceled_wait_restores_its_marker(redis_server: Server, namespace: str) -> None:
    client = redis_server.client()
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    await backend.call(op.Enqueue((JobSpec(id="a", task="t"),)))
    wake = keys.redis_key(namespace, "wake:pool:", "default")
    own = keys.redis_key(namespace, "wake:session:", "w")
    # Its reply is on the way, or was read in this very turn of the loop.
    for turns in range(40):
        client.delete(wake)
        waiting = asyncio.create_task(backend.wait(Interest(pools=("default",), worker="w"), 5))
        await until(lambda: bool(client.info("clients")["blocked_clients"]))
        client.zadd(wake, {"1": 0})
        for _ in range(turns % 8):
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
            continue  # it was over already, and its waiters know
        assert client.exists(wake), turns
        assert not client.exists(own), turns
    await backend.close()


async def test_a_wait_that_is_canceled_keeps_its_connection(redis_server: Server, namespace: str) -> None:
    client = redis_server.client()
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    made = []
    for _ in range(5):
        waiting = asyncio.create_task(backend.wait(Interest(worker="w"), 5))
        await until(lambda: bool(client.info("clients")["blocked_clients"]))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        made.append(client.info("stats")["total_connections_received"])
    assert made[1:] == made[:1] * 4
    await backend.close()


async def test_last_exchange_of_a_worker_is_marked_as_such(redis_server: Server, namespace: str) -> None:
    sched = Scheduler(redis_server.url, namespace=namespace)
    backend, sent = sched.backend, []
    call = backend.call

    async def listen(operation: Any) -> Any:
        sent.append(operation)
        return await call(operation)

    client = redis_server.client()
    backend.call = listen  # type: ignore[method-assign]
    async with sched.worker():
        await until(lambda: bool(client.info("clients")["blocked_clients"]))
    assert not client.info("clients")["blocked_clients"]
    assert [each.is_last for each in sent if isinstance(each, op.Exchange)][-2:] == [False, True]
    await sched.close()


def test_submission_with_leftovers_wakes_a_sleeping_worker(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace), budget=5)
    client, marker = redis_server.client(), keys.redis_key(namespace, "wake:timer")
    backend.call_sync(
        op.Enqueue(tuple(JobSpec(id=f"j{n}", task="t", claims=(Claim(("d", str(n))),)) for n in range(20)))
    )
    assert backend.call_sync(op.CancelPath(("d",))).more
    client.delete(marker)
    assert backend.call_sync(op.Enqueue((JobSpec(id="a", task="t"),))).more
    assert client.zcard(marker) == 1
    while backend.call_sync(op.Tick()).more:
        pass
    client.delete(marker)
    backend.call_sync(op.Enqueue((JobSpec(id="b", task="t"),)))
    assert client.zcard(marker) == 0
    backend.close_sync()


# --- waiters are forgotten -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_threads_that_have_waited_leave_one_entry_for_their_process(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    backend.call_sync(op.Enqueue((JobSpec(id="a", task="t"),)))
    client = redis_server.client()
    sizes = set()
    for _ in range(10):
        in_thread(lambda: backend.wait_sync(Interest(jobs=("a",)), 0.001))()
        sizes.add(len(client.hget(*head(namespace)) or b""))
    assert len(sizes) == 1, sizes
    backend.close_sync()


def is_so(woken: list[str], count: int) -> bool:
    return len(woken) == count


def test_each_waiting_thread_wakes_when_its_job_ends(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    ids = [f"j{number}" for number in range(6)]
    backend.call_sync(op.Enqueue(tuple(JobSpec(id=each, task="t") for each in ids)))
    grants = backend.call_sync(op.Exchange("w", limit=10)).grants
    woken: list[str] = []

    def wait(job_id: str) -> None:
        backend.wait_sync(Interest(jobs=(job_id,)), 60)
        woken.append(job_id)

    ends = [in_thread(partial(wait, each)) for each in ids for _ in range(2)]
    for number, grant in enumerate(grants, 1):
        done = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
        backend.call_sync(op.Exchange("w", settle=(done,)))
        run(until(partial(is_so, woken, 2 * number)))
    for end in ends:
        end()
    assert sorted(woken) == sorted(2 * ids)
    backend.close_sync()


def test_ended_loop_is_forgotten_by_its_awaited_jobs(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    backend.call_sync(op.Enqueue((JobSpec(id="a", task="t"),)))
    client = redis_server.client()
    before = client.hget(*head(namespace))

    async def wait() -> None:
        await backend.wait(Interest(jobs=("a",)), 0.001)
        assert client.hget(*head(namespace)) != before

    for _ in range(3):
        asyncio.run(wait())
        assert client.hget(*head(namespace)) == before
    backend.close_sync()


def test_killed_waiting_processes_are_forgotten_over_time(redis_server: Server, namespace: str) -> None:
    clock = FakeClock()
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace, clock=clock))
    backend.call_sync(op.Enqueue((JobSpec(id="a", task="t"),)))
    sizes = []
    for number in range(60):
        run_steps(backend._sync_link(), backend.session.execute_script("watch", (f"killed-{number:02}", "", "a", "")))
        clock.advance(ms=10_000)
        sizes.append(len(redis_server.client().hget(*head(namespace)) or b""))
    assert max(sizes) == max(sizes[:9])
    backend.close_sync()


# --- waiters for changes ---------------------------------------------------------------------------------------------


async def test_version_change_wakes_version_waiters_and_not_end_waiters(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))

    await backend.call(op.Enqueue((JobSpec(id="a", task="t"),)))
    end = asyncio.create_task(backend.wait(Interest(jobs=("a",)), 60))
    change = asyncio.create_task(backend.wait(Interest(jobs=("a",), version=1), 60))
    await until(lambda: b"~" in (redis_server.client().hget(*head(namespace)) or b""))
    (grant,) = (await backend.call(op.Exchange("w", limit=1))).grants
    await change
    await backend.wait(Interest(jobs=("a",), version=1), 60)  # it has another one already
    assert not end.done()
    record = (await backend.call(op.Get(("a",)))).records[0]
    assert record is not None
    change = asyncio.create_task(backend.wait(Interest(jobs=("a",), version=record.version), 60))
    await until(lambda: bool(redis_server.client().info("clients")["blocked_clients"]))
    assert not change.done()
    done = Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
    await backend.call(op.Exchange("w", settle=(done,)))
    await asyncio.gather(end, change)
    await backend.close()


async def test_followers_of_a_job_query_the_store_after_changes_only(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def followed(handle: Any, backend: Any) -> Any:
        async for record in handle.events():
            yield record
            if record.state == "QUEUED":
                (grant,) = (await backend.call(op.Exchange("w", limit=1))).grants
            elif record.state == "STARTED":
                done = Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
                await backend.call(op.Exchange("w", settle=(done,)))

    sched = Scheduler(redis_server.url, namespace=namespace)
    backend, waits = sched.backend, []
    wait = backend.wait

    async def listen(interest: Interest, timeout_s: float) -> None:
        waits.append(timeout_s)
        await wait(interest, timeout_s)

    backend.wait = listen  # type: ignore[method-assign]
    await backend.call(op.Enqueue((JobSpec(id="a", task="t"),)))
    states = [record.state async for record in followed(sched.handle("a"), backend)]
    assert [str(state) for state in states] == ["QUEUED", "STARTED", "FINISHED"]
    assert min(waits) >= 1
    assert len(waits) <= 4
    await sched.close()


async def test_drain_waits_for_the_last_job_without_counting(redis_server: Server, namespace: str) -> None:
    sched = Scheduler(redis_server.url, namespace=namespace)
    backend, gate = sched.backend, Gate()
    asked: list[Any] = []
    waited_for: list[Interest] = []
    call, wait = backend.call, backend.wait

    async def listen(operation: Any) -> Any:
        asked.append(operation)
        return await call(operation)

    async def listen_to_waits(interest: Interest, timeout_s: float) -> None:
        waited_for.append(interest)
        await wait(interest, timeout_s)

    @sched.job(queue_hint=["doc"])
    async def edit() -> None:
        await gate.wait()

    backend.call, backend.wait = listen, listen_to_waits  # type: ignore[method-assign]
    last = await edit.enqueue()
    draining = asyncio.create_task(sched.drain(["doc"], run=True))
    await until(lambda: any(interest.jobs == (last.id,) for interest in waited_for))
    count = sum(isinstance(each, op.CountPending) for each in asked)
    await asyncio.sleep(0.3)
    assert sum(isinstance(each, op.CountPending) for each in asked) == count
    gate.open()
    await draining
    await sched.close()
