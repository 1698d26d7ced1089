"""Workers: slots, cancellation of jobs, and how a worker stops."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from queuehint import (
    JobCanceledError,
    JobContext,
    JobState,
)
from queuehint.operations import Exchange, Tick
from tests.handlers import KINDS, answering
from tests.schedulers import Gate, memory, scheduler, turns, until
from tests.support import until_sync

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- slots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_eight_enqueues_at_once_never_run_more_than_the_slots(kind: str) -> None:
    sched, _ = scheduler()
    running, most = [0], [0]
    lock = threading.Lock()

    def enter() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])

    def leave() -> None:
        with lock:
            running[0] -= 1

    @sched.job(name="work")
    async def work(n: int) -> int:
        enter()
        await turns(n)
        leave()
        return n

    @sched.job(name="work_in_thread")
    def work_in_thread(n: int) -> int:
        enter()
        leave()
        return n

    job = work if kind == "async" else work_in_thread
    async with sched.worker(3):
        for _ in range(10):
            handles = await asyncio.gather(*[job.enqueue(n) for n in range(8)])
            assert await asyncio.gather(*[handle.result() for handle in handles]) == list(range(8))
    assert 1 <= most[0] <= 3
    if kind == "async":
        assert most[0] == 3


async def test_two_workers_run_every_job_once() -> None:
    sched, _ = scheduler()
    seen: list[int] = []

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str, n: int) -> None:
        await asyncio.sleep(0)
        seen.append(n)

    await work.enqueue_many([(f"d{n % 7}", n) for n in range(700)])
    async with sched.worker(2), sched.worker(3):
        await sched.drain()
    assert sorted(seen) == list(range(700))
    for doc in range(7):
        assert [n for n in seen if n % 7 == doc] == list(range(doc, 700, 7))


async def test_plain_functions_run_in_threads_beside_one_another() -> None:
    sched, _ = scheduler()
    barrier = threading.Barrier(3, timeout=60)
    threads: set[int] = set()

    @sched.job
    def work() -> None:
        threads.add(threading.get_ident())
        barrier.wait()

    async with sched.worker(3):
        for handle in await work.enqueue_many([()] * 3):
            await handle.result()
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_a_worker_gets_jobs_of_its_pools_only() -> None:
    sched, _ = scheduler()

    @sched.job(pool="gpu")
    async def gpu() -> str:
        return "gpu"

    @sched.job
    async def cpu() -> str:
        return "cpu"

    async with sched.worker(pools=["gpu"]):
        other, handle = await cpu.enqueue(), await gpu.enqueue()
        assert await handle.result() == "gpu"
        assert await other.state() is QUEUED
    async with sched.worker():
        assert await other.result() == "cpu"
        assert await (await gpu.enqueue()).result() == "gpu"


# --- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_running_async_handler_that_is_canceled_stops(concurrency: int) -> None:
    sched, _ = scheduler()
    gate = Gate()
    cleaned: list[bool] = []

    @sched.job
    async def work(ctx: JobContext) -> None:
        try:
            await gate.wait()
        finally:
            cleaned.append(ctx.canceled)

    async with sched.worker(concurrency):
        handle = await work.enqueue()
        await gate.reached()
        assert await handle.cancel("enough") is False
        with pytest.raises(JobCanceledError, match="enough"):
            await handle.result()
        assert cleaned == [True]
        assert (await handle.record()).attempts == 1


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_running_thread_sees_that_it_is_canceled(concurrency: int) -> None:
    sched, _ = scheduler()
    gate = Gate()
    gate.open()

    @sched.job
    def work(ctx: JobContext) -> None:
        gate.wait_sync()
        until_sync(lambda: ctx.canceled, "it is canceled")
        raise InterruptedError

    async with sched.worker(concurrency):
        handle = await work.enqueue()
        await gate.reached()
        await handle.cancel()
        with pytest.raises(JobCanceledError):
            await handle.result()


@KINDS
async def test_a_canceled_handler_that_finishes_all_the_same_is_finished(kind: str) -> None:
    sched, _ = scheduler()
    gate, seen = Gate(), Gate()

    @sched.job(name="tough")
    async def on_loop() -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            seen.entered.append(True)
        return "done"

    @sched.job(name="tough_in_thread")
    def in_thread(ctx: JobContext) -> str:
        gate.entered.append(True)
        until_sync(lambda: ctx.canceled, "it is canceled")
        return "done"

    async with sched.worker():
        handle = await (on_loop if kind == "async" else in_thread).enqueue()
        await gate.reached()
        await handle.cancel()
        assert await handle.result() == "done"
        assert await handle.state() is FINISHED


async def test_a_job_canceled_before_its_task_began_does_not_run() -> None:
    sched, _ = scheduler()
    called: list[str] = []

    @sched.job
    async def work() -> None:
        called.append("x")

    backend = memory(sched)
    call = backend.call

    async def calling(operation: Any) -> Any:
        reply = await call(operation)
        if isinstance(operation, Exchange) and reply.grants:
            # Between the grant and the first step of its task, the worker hears that the job is canceled.
            await sched.cancel([grant.spec.id for grant in reply.grants])
            more = await call(Exchange(operation.worker))
            object.__setattr__(reply, "canceled", more.canceled)
        return reply

    backend.call = calling  # type: ignore[method-assign]
    async with sched.worker():
        handle = await work.enqueue()
        with pytest.raises(JobCanceledError):
            await handle.result()
    assert called == []


@KINDS
async def test_job_canceled_during_a_before_hook_does_not_run(kind: str) -> None:
    sched, _ = scheduler()
    gate = Gate()
    called: list[str] = []

    @sched.before_job
    async def before(ctx: JobContext) -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if kind == "async":
                raise

    handle = await answering(sched, lambda _: called.append("x"), kind).enqueue()
    async with sched.worker():
        await gate.reached()
        await handle.cancel()

        (worker,) = sched._workers
        (slot,) = worker._state.slots
        await until(lambda: slot.context.canceled)
        gate.open()
        with pytest.raises(JobCanceledError):
            await handle.result()
    assert called == []


@KINDS
async def test_a_cancellation_while_an_after_hook_runs_changes_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sched, _ = scheduler()
    gate = Gate()
    ended: list[bool] = []

    @sched.after_job
    async def after(ctx: JobContext, outcome: Any) -> None:
        await gate.wait()
        ended.append(True)

    handle = await answering(sched, lambda _: "done", kind).enqueue()
    async with sched.worker():
        await gate.reached()
        assert await handle.cancel() is False
        (worker,) = sched._workers
        (slot,) = worker._state.slots
        await until(lambda: slot.context.canceled)
        gate.open()
        assert await handle.result() == "done"
        assert slot.timer is not None
        assert slot.timer.cancelled()
    assert ended == [True]


async def test_cancellation_is_noticed_despite_a_concurrent_renewal() -> None:
    sched, clock = scheduler()
    gate = Gate()

    @sched.job
    async def work() -> None:
        await gate.wait()

    async with sched.worker():
        handle = await work.enqueue()
        await gate.reached()
        await handle.cancel()
        clock.advance(seconds=3_600)
        await sched.backend.call(Tick())
        with pytest.raises(JobCanceledError):
            await handle.result()


# --- stopping --------------------------------------------------------------------------------------------------------


async def test_stopping_worker_finishes_its_jobs_and_claims_nothing() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str) -> str:
        await gate.wait(doc)
        return doc

    async with sched.worker() as worker:
        running = await work.enqueue("a")
        await gate.reached()
        worker.stop()
        late = await work.enqueue("b")
        await turns()
        assert await late.state() is QUEUED
        gate.open()
    assert await running.result() == "a"
    assert gate.entered == ["a"]


async def test_job_longer_than_the_grace_time_is_released_in_place() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["a"], max_attempts=1)
    async def work(n: int) -> int:
        await gate.wait(n)
        return n

    first, second = await work.enqueue_many([(1,), (2,)])
    async with sched.worker(grace=0):
        await gate.reached()
    record = await first.record()
    assert (record.state, record.attempts, record.losses, record.errors) == (QUEUED, 0, 0, ())
    gate.open()
    async with sched.worker(1):
        assert [await first.result(), await second.result()] == [1, 2]
    assert gate.entered == [1, 1, 2]


async def test_jobs_are_asked_to_stop_without_a_store_answer() -> None:
    sched, _ = scheduler()
    call, gate, asked = sched.backend.call, Gate(), asyncio.Event()

    ended, answers = asyncio.Event(), asyncio.Event()

    async def calling(operation: Any) -> Any:
        if isinstance(operation, Exchange) and gate.entered:
            asked.set()
            await answers.wait()
        return await call(operation)

    sched.backend.call = calling  # type: ignore[method-assign]

    @sched.job
    async def work() -> None:
        try:
            await gate.wait()
        finally:
            ended.set()

    worker = sched.make_worker()
    running = asyncio.create_task(worker.run())
    handle = await work.enqueue()
    await gate.reached()
    await work.enqueue()
    await asked.wait()
    worker.stop(at_once=True)
    await turns()
    is_asked = ended.is_set()
    gate.open()
    answers.set()
    await running
    assert is_asked
    assert await handle.state() is QUEUED


async def test_a_thread_is_waited_for_and_told_to_stop() -> None:
    sched, _ = scheduler()
    gate = Gate()
    gate.open()

    @sched.job
    def work(ctx: JobContext) -> bool:
        gate.wait_sync()
        until_sync(lambda: ctx.canceled, "it is canceled")
        return ctx.canceled

    async with sched.worker(grace=0):
        handle = await work.enqueue()
        await gate.reached()
    assert await handle.result() is True


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_cancellation_is_heard_within_the_grace_time(concurrency: int) -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work() -> None:
        await gate.wait()

    async with sched.worker(concurrency) as worker:
        handle = await work.enqueue()
        await gate.reached()
        worker.stop()
        await turns()
        await handle.cancel()
        with pytest.raises(JobCanceledError):
            await handle.result()


async def test_error_in_the_block_stops_the_worker_and_propagates() -> None:
    sched, _ = scheduler()
    with pytest.raises(KeyError):
        async with sched.worker():
            raise KeyError
    assert not sched._workers
    assert not memory(sched)._adopted
