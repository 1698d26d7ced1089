"""Scheduler API: drains, and the calls that a handler must not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from queuehint import (
    Backoff,
    Claim,
    DrainStalledError,
    DrainTimeoutError,
    JobContext,
    JobSpec,
    JobState,
    Scheduler,
    Snooze,
    WouldDeadlockError,
)
from queuehint.operations import CountPending
from queuehint.values.report import ReasonKind
from tests.folders import quick_folder
from tests.schedulers import Gate, in_thread, make_job, scheduler, turns, until

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- drain -----------------------------------------------------------------------------------------------------------


async def test_drain_runs_the_jobs_itself_if_there_is_no_worker() -> None:
    sched, _ = scheduler()
    handles = await make_job(sched).enqueue_many([("doc", n) for n in range(50)])
    await sched.drain()
    assert [await handle.state() for handle in handles] == [FINISHED] * 50
    await sched.drain()


async def test_drain_uses_the_worker_that_is_there() -> None:
    sched, _ = scheduler()
    handle = await make_job(sched).enqueue("a")
    async with sched.worker() as worker:
        await sched.drain()
        assert list(sched._workers) == [worker]
        assert (await handle.record()).state is FINISHED
    assert not sched._workers


@pytest.fixture(params=["memory", "sqlite"])
def local_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a scheduler finds each store of its own process."""
    with quick_folder() as folder:
        yield "memory://" if request.param == "memory" else f"sqlite:///{folder}/jobs.db?durability=process"


@pytest.mark.parametrize("path", [None, [], ["b"]])
@pytest.mark.parametrize("include_scheduled", [False, True])
async def test_drain_on_a_local_store_ends_with_the_last_job(
    local_url: str, path: list[str] | None, include_scheduled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is asked a second time before the test has failed.
    monkeypatch.setattr("queuehint.scheduler.draining.POLL_MIN_S", 600)
    monkeypatch.setattr("queuehint.scheduler.draining.POLL_MAX_S", 600)
    sched = Scheduler(local_url)
    snoozed: list[str] = []

    @sched.job(queue_hint=["{doc}"], on_retry="yield")
    async def work(doc: str, n: int) -> Snooze | None:
        if n != 5 or doc in snoozed:
            return None
        snoozed.append(doc)
        return Snooze(0.001 if include_scheduled else 600)

    await work.enqueue_many([(doc, n) for n in range(40) for doc in "ab"])
    async with asyncio.timeout(60):
        await sched.drain(path, include_scheduled=include_scheduled)
    question = CountPending(None if path is None else tuple(path), include_scheduled)
    assert not (await sched.backend.call(question)).unfinished
    await sched.close()


async def test_drain_of_a_path_leaves_the_rest() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str) -> None:
        if doc == "other":
            await gate.wait()

    other = await work.enqueue("other")
    handle = await work.enqueue("a")
    async with sched.worker():
        await sched.drain(["a"], timeout=60)
        assert await handle.state() is FINISHED
        await gate.reached()
        assert await other.state() is STARTED
        with pytest.raises(DrainTimeoutError) as caught:
            await sched.drain(timeout=0)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.unfinished == 1
        gate.open()


async def test_drain_leaves_scheduled_jobs_unless_asked() -> None:
    sched, clock = scheduler()
    handle = await make_job(sched).using(delay=60).enqueue("a")
    await sched.drain()
    assert await handle.state() is SCHEDULED
    with pytest.raises(DrainTimeoutError):
        await sched.drain(include_scheduled=True, timeout=0)
    draining = asyncio.create_task(sched.drain(include_scheduled=True))
    await turns()
    clock.advance(seconds=60)
    await draining
    assert await handle.state() is FINISHED


async def test_drains_at_once_each_end_with_their_own_jobs(local_url: str) -> None:
    sched = Scheduler(local_url)

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str) -> None:
        await asyncio.sleep(0.001)

    for doc in "abbbb":
        await work.enqueue(doc)
    async with asyncio.timeout(60):
        # That of the first path runs the jobs, and leaves before those of the other have ended.
        await asyncio.gather(sched.drain(["a"]), sched.drain(["b"]), sched.drain())
    assert not sched._workers
    await sched.close()


def test_drains_of_several_threads_each_end_with_their_own_jobs(local_url: str) -> None:
    sched = Scheduler(local_url)
    work = make_job(sched)
    work.enqueue_many_sync([("a", 0), *[("b", n) for n in range(50)]])
    ends = [in_thread(partial(sched.drain_sync, path)) for path in (["a"], ["b"], None)]
    for end in ends:
        end()
    sched.close_sync()


async def test_drain_goes_on_without_a_worker_that_leaves() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["a"])
    async def work() -> None:
        await gate.wait()

    await work.enqueue_many([()] * 3)
    async with sched.worker(), asyncio.timeout(60):
        draining = asyncio.create_task(sched.drain())
        await gate.reached()
        asyncio.get_running_loop().call_later(0.01, gate.open)
    await draining
    assert len(gate.entered) == 3


async def test_drain_does_not_wait_for_jobs_of_a_stopping_worker() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str) -> None:
        if doc == "a":
            await gate.wait()

    await work.enqueue("a")
    async with sched.worker() as worker:
        await gate.reached()
        worker.stop()
        await work.enqueue("b")
        try:
            await sched.drain(["b"], timeout=30)
        finally:
            gate.open()


async def test_drain_waits_for_a_worker_that_is_about_to_begin() -> None:
    sched, _ = scheduler()
    begins, drained = asyncio.Event(), asyncio.Event()

    @sched.worker_lifespan
    async def slow() -> AsyncIterator[None]:
        await begins.wait()
        yield

    async def work() -> None:
        async with sched.worker():
            await drained.wait()

    await make_job(sched).enqueue("a")
    working = asyncio.create_task(work())
    await turns()
    draining = asyncio.create_task(sched.drain(run=False, timeout=60))
    await turns()
    begins.set()
    await draining
    drained.set()
    await working


async def stalled(sched: Scheduler, path: list[str] | None = None) -> DrainStalledError:
    with pytest.raises(DrainStalledError) as caught:
        await sched.drain(path)
    return caught.value


@pytest.mark.parametrize("path", [None, ["a"]])
async def test_drain_names_a_paused_path(path: Any) -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    await sched.pause(["a"])
    first, second = await work.enqueue("a"), await work.enqueue("a")
    error = await stalled(sched, path)
    assert [(reason.job_id, reason.kind) for reason in error.reasons] == [
        (first.id, ReasonKind.PAUSED),
        (second.id, ReasonKind.PLACE),
    ]
    assert "its path is paused" in str(error)


@pytest.mark.parametrize("path", [None, ["a"]])
async def test_drain_names_a_dead_hold(path: Any) -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=["a"], max_attempts=1, on_dead="hold")
    async def work(fail: bool) -> None:
        if fail:
            raise ValueError

    dead = await work.enqueue(True)
    await work.enqueue(False)
    (reason,) = (await stalled(sched, path)).reasons
    assert (reason.kind, reason.jobs) == (ReasonKind.DEAD_HOLD, (dead.id,))


@pytest.mark.parametrize("path", [None, ["a"]])
async def test_drain_names_a_pool_nobody_serves(path: Any) -> None:
    sched, _ = scheduler()
    await make_job(sched).using(pool="gpu").enqueue("a")
    (reason,) = (await stalled(sched, path)).reasons
    assert reason.kind is ReasonKind.NO_WORKER
    assert str(reason.detail).startswith("pool gpu; ")


@pytest.mark.parametrize("path", [None, ["a"]])
async def test_drain_names_a_task_nobody_knows(path: Any) -> None:
    sched, _ = scheduler()
    await sched.submit([JobSpec(id="x", task="unknown", claims=(Claim(("a",)),))])
    (reason,) = (await stalled(sched, path)).reasons
    assert (reason.job_id, reason.kind) == ("x", ReasonKind.UNKNOWN_TASK)


async def test_drain_does_not_give_up_while_something_can_move() -> None:
    sched, clock = scheduler()
    tries: list[int] = []

    @sched.job(queue_hint=["a"], retry=Backoff(base=1, jitter=0))
    async def flaky(ctx: JobContext) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError

    await flaky.enqueue()
    await sched.pause(["b"])
    await make_job(sched).enqueue("b")
    draining = asyncio.create_task(sched.drain(["a"]))
    for attempt in (1, 2):
        await until(lambda attempt=attempt: len(tries) == attempt)  # type: ignore[misc]
        await turns()
        clock.advance(seconds=2)
    await draining
    assert tries == [1, 2, 3]


async def test_a_full_worker_still_serves_its_pool() -> None:
    sched, clock = scheduler()
    gate = Gate()

    @sched.job(pool="slow", queue_hint=["{doc}"])
    async def slow(doc: str) -> None:
        await gate.wait()

    async with sched.worker(1, pools=["slow"]), sched.worker(1, pools=["default"]):
        await slow.enqueue("a")
        await gate.reached()
        waiting = await slow.enqueue("b")
        clock.advance(seconds=300)
        await turns()
        assert (await waiting.why()).kind is ReasonKind.WORKER
        with pytest.raises(DrainTimeoutError):
            await sched.drain(["b"], timeout=0)
        gate.open()


# --- a handler never waits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(
    "call", ["result", "result_sync", "drain", "drain_sync", "exclusive", "exclusive_sync", "events", "third"]
)
async def test_handler_that_waits_for_a_job_is_refused_at_once(kind: str, call: str) -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    # Behind the handler's own path, on another, and behind a third job: every wait may close a cycle.
    pending = await work.using(queue_hint=["elsewhere"], pool="nobody").enqueue("x")
    third = await work.using(queue_hint=["elsewhere"], pool="nobody").enqueue("x")

    async def events() -> None:
        async for _ in pending.events():
            pass

    async def wait() -> None:
        if call == "drain":
            await sched.drain(timeout=1)
        elif call == "exclusive":
            async with sched.exclusive(["free"]):
                pass
        elif call == "events":
            await events()
        elif call == "third":
            await third.result(1)
        elif call == "result":
            await pending.result(1)
        else:
            wait_sync()

    def wait_sync() -> None:
        if call == "result_sync":
            pending.result_sync(1)
        elif call == "drain_sync":
            sched.drain_sync(["elsewhere"], timeout=1)
        elif call == "exclusive_sync":
            with sched.exclusive_sync(["free"], timeout=1):
                pass
        else:
            asyncio.run(wait())

    @sched.job(queue_hint=["elsewhere"], max_attempts=1)
    async def handler() -> str:
        with pytest.raises(WouldDeadlockError) as caught:
            await wait()
        return str(caught.value)

    @sched.job(queue_hint=["elsewhere"], max_attempts=1)
    def handler_in_thread() -> str:
        with pytest.raises(WouldDeadlockError) as caught:
            wait_sync()
        return str(caught.value)

    job = handler if kind == "async" else handler_in_thread
    async with sched.worker():
        message = await (await job.using(queue_hint=None).enqueue()).result()
        assert "inside a handler could wait for ever" in message
        assert "Enqueue a job" in message
        assert await pending.state() is QUEUED
    assert (await sched.stats()).enqueued == 3


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_handler_may_wait_for_ended_jobs(kind: str) -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    over = await work.enqueue("a")
    await sched.drain()

    @sched.job(max_attempts=1)
    async def handler() -> str:
        await sched.drain(["a"])
        assert [record.state async for record in over.events()] == [FINISHED]
        return str(await over.result() + over.result_sync())

    @sched.job(max_attempts=1)
    def handler_in_thread() -> str:
        sched.drain_sync(["a"])
        return str(over.result_sync() + asyncio.run(over.result()))

    job = handler if kind == "async" else handler_in_thread
    async with sched.worker():
        assert await (await job.enqueue()).result() == "a0a0"
