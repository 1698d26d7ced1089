"""Edge cases: cancellation at any moment, repeated use, failures around a handler, long sweeps."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from queuehint import (
    DrainStalledError,
    InvalidJobError,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobSpec,
    JobState,
    Scheduler,
    WouldDeadlockError,
)
from queuehint.backends.memory import MemoryBackend
from queuehint.clock import now_s
from queuehint.operations import Enqueue, Tick
from queuehint.scheduler.holds import request
from tests.schedulers import Gate, memory, run, scheduler, turns, until


async def test_canceled_ending_worker_keeps_places_until_code_ended() -> None:
    sched, clock = scheduler()
    go, leave = asyncio.Event(), asyncio.Event()
    running: list[int] = []
    most = 0

    @sched.job(queue_hint=["a"])
    async def slow() -> None:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue  # takes its time to end
        running.pop()

    async def application() -> None:
        async with sched.worker():
            await leave.wait()

    handle = await slow.enqueue()
    task = asyncio.create_task(application())
    await until(lambda: bool(running))
    leave.set()
    await turns()
    task.cancel()
    await turns()
    assert not task.done()
    clock.advance(seconds=31)
    async with sched.worker():
        await turns()
        assert len(running) == 1
        go.set()
        await handle.result()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert most == 1
    assert (await handle.record()).losses == 0


def test_canceled_worker_releases_its_running_jobs_at_once() -> None:
    async def main() -> None:
        sched, _ = scheduler()
        gate = Gate()

        @sched.job(queue_hint=["a"])
        async def work() -> None:
            await gate.wait()

        handle = await work.enqueue()
        async with sched.worker() as worker:
            await gate.reached()
            (running,) = [task for task in asyncio.all_tasks() if task.get_name() == "queuehint-worker"]
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not worker._state.slots
            assert (await handle.record()).attempts == 0
            assert await handle.state() is JobState.QUEUED

    with pytest.raises(asyncio.CancelledError):
        run(main())


async def test_ended_job_is_not_reaped_before_its_settlement() -> None:
    sched, clock = scheduler()
    runs: list[str] = []

    @sched.job
    async def quick() -> None:
        runs.append("quick")

    @sched.job
    async def stalls() -> None:
        clock.advance(seconds=31)
        sched.backend.call_sync(Tick())

    first, second = await quick.enqueue(), await stalls.enqueue()
    async with sched.worker():
        await first.result()
        await second.result()
    assert runs == ["quick"]
    assert (await first.record()).losses == 0


async def test_second_immediate_stop_ends_the_grace_time() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work() -> None:
        await gate.wait()

    handle = await work.enqueue()
    async with sched.worker(grace=600) as worker:
        await gate.reached()
        worker.stop()
        await turns()
        worker.stop(at_once=True)
    assert await handle.state() is JobState.QUEUED


async def test_failure_around_a_handler_fails_the_attempt_and_frees_slots() -> None:
    def closes_badly() -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("closing")

    sched, _ = scheduler()

    @sched.job(max_attempts=1)
    async def returns_a_generator() -> Any:
        generator = closes_badly()
        next(generator)
        return generator

    async with sched.worker() as worker:
        handle = await returns_a_generator.enqueue()
        with pytest.raises(JobFailedError, match="closing"):
            await handle.result(5)
        assert not worker._state.slots


def test_a_log_filter_that_raises_costs_no_slot() -> None:
    def broken(_record: logging.LogRecord) -> bool:
        raise KeyError("filter")

    async def main() -> None:
        sched, _ = scheduler()

        @sched.job(max_attempts=1)
        async def fails() -> None:
            raise ValueError("x")

        async with sched.worker() as worker:
            handle = await fails.enqueue()
            with pytest.raises(JobFailedError):
                await handle.result(5)
            assert not worker._state.slots

    logger = logging.getLogger("queuehint.worker")
    logger.addFilter(broken)
    try:
        run(main())
    finally:
        logger.removeFilter(broken)


async def test_one_exclusive_cannot_be_entered_twice_at_a_time() -> None:
    sched, _ = scheduler()
    place = sched.exclusive(["a"])
    async with place as held:
        with pytest.raises(InvalidJobError, match="held or waited for already"):
            await place.__aenter__()
        assert not await sched.can_dequeue(["a"])
    assert not held.lost
    assert await sched.can_dequeue(["a"])
    assert not memory(sched)._adopted


def test_exclusive_hold_cannot_be_entered_by_two_threads() -> None:
    sched, _ = scheduler()
    place = sched.exclusive_sync(["a"])
    refused: list[BaseException] = []

    def enter() -> None:
        try:
            with place:
                pass
        except InvalidJobError as error:
            refused.append(error)

    with place:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert len(refused) == 1
    with place:
        assert not sched.can_dequeue_sync(["a"])
    assert sched.can_dequeue_sync(["a"])


async def test_a_handler_cannot_enter_an_exclusive_that_was_made_outside() -> None:
    sched, _ = scheduler()
    place, place_sync = sched.exclusive(["a"]), sched.exclusive_sync(["a"])

    @sched.job(queue_hint=["a"], max_attempts=1)
    async def on_loop() -> None:
        async with place:
            pass

    @sched.job(queue_hint=["a"], max_attempts=1)
    def in_thread() -> None:
        with place_sync:
            pass

    async with sched.worker():
        for job in (on_loop, in_thread):
            with pytest.raises(JobFailedError) as caught:
                await (await job.enqueue()).result(5)
            assert caught.value.error_type.endswith(WouldDeadlockError.__name__)


async def test_caller_canceled_as_the_store_closes_is_canceled() -> None:
    sched, _ = scheduler()
    backend = sched.backend
    holder = sched.exclusive(["a"])
    await holder.__aenter__()

    async def waits() -> None:
        async with sched.exclusive(["a"]):
            pass

    task = asyncio.create_task(waits(), context=contextvars.Context())
    await turns()
    backend.close_sync()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancel_by_path_sweeps_everything_before_it_returns() -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=["a", "{index}"])
    async def work(index: int) -> None: ...

    await work.enqueue_many([(index,) for index in range(5_000)])
    assert await sched.cancel(path=["a"]) == 5_000
    assert (await sched.stats()).unfinished == 0
    work.enqueue_many_sync([(index,) for index in range(5_000)])
    assert sched.cancel_sync(path=["a"]) == 5_000
    assert sched.stats_sync().unfinished == 0


async def test_reading_results_of_unknown_tasks_leaves_nothing_behind() -> None:
    sched, _ = scheduler()

    @sched.job
    async def work() -> int:
        return 1

    handle = await work.enqueue()
    await sched.drain()
    del sched._handlers["work"]
    before = len(vars(sched.codec)["_odd"])
    for _ in range(10):
        assert await handle.result() == 1
    assert len(vars(sched.codec)["_odd"]) == before


async def test_flood_of_log_lines_leaves_turns_and_is_sent() -> None:
    sched, _ = scheduler()
    flooded = asyncio.Event()

    @sched.job
    async def talks(ctx: JobContext) -> None:
        for index in range(5_000):
            ctx.log(str(index))
        flooded.set()

    async with sched.worker():
        handle = await talks.enqueue()
        await flooded.wait()
        versions = set()
        while not (await handle.state()).is_over:
            versions.add((await handle.record()).version)
            await asyncio.sleep(0)
        assert len(versions) > 10
        assert (await handle.record()).logs[-1] == "4999"


def test_remote_exclusive_renews_again_on_its_second_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request.Request, "renewal_s", 0.001)
    monkeypatch.setattr(MemoryBackend, "is_local", False)
    renewed, judge = threading.Event(), request.Request.judge_renewal

    def judge_and_tell(request: Any, *answered: Any) -> None:
        judge(request, *answered)
        renewed.set()

    monkeypatch.setattr(request.Request, "judge_renewal", judge_and_tell)
    sched, clock = scheduler(lease=5)
    place = sched.exclusive_sync(["a"])
    for _ in range(2):
        with place as held:
            memory(sched)._adopted.clear()
            clock.advance(seconds=4)
            due_ms = clock.now_ms() + 5_000
            while memory(sched).engine.next_ms != due_ms:
                renewed.clear()
                assert renewed.wait(60)
        assert not held.lost


async def test_waiting_caller_does_due_work_without_workers() -> None:
    sched = Scheduler("memory://")

    @sched.job(start_within=0.01)
    async def work() -> None: ...

    job = await work.enqueue()
    with pytest.raises(JobCanceledError, match="expired"):
        await job.result(timeout=60)
    late = work.enqueue_sync()
    with pytest.raises(JobCanceledError, match="expired"):
        await asyncio.to_thread(late.result_sync, 10)


async def test_drain_is_stalled_despite_an_excluded_scheduled_job() -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str) -> None: ...

    await sched.pause(["a"])
    await work.enqueue("a")
    await work.using(delay=3600).enqueue("b")
    with pytest.raises(DrainStalledError):
        await sched.drain()


async def test_background_task_of_an_ended_handler_may_wait_for_jobs() -> None:
    sched, _ = scheduler()
    left: list[asyncio.Task[int]] = []
    ended = asyncio.Event()

    @sched.job
    async def other() -> int:
        return 7

    async def later() -> int:
        await ended.wait()
        return await (await other.enqueue()).result(timeout=60)

    @sched.job
    async def work() -> None:
        left.append(asyncio.create_task(later()))

    async with sched.worker():
        await (await work.enqueue()).result(timeout=60)
        ended.set()
        assert await left[0] == 7


@pytest.mark.slow
def test_excess_leases_are_all_renewed_by_their_process() -> None:
    sched, clock = scheduler()
    store = memory(sched)
    specs = [JobSpec(id=str(n), task="t", pool=f"@{n}", presence_ms=30_000) for n in range(16_500)]
    leases = []
    for begin in range(0, len(specs), 1000):
        reply = store.call_sync(Enqueue(tuple(specs[begin : begin + 1000])))
        leases += [(job.id, job.presence_token or 0) for job in reply.jobs]
    store.adopt(lambda: leases)
    clock.advance(seconds=100)
    assert sched.stats_sync().states[JobState.QUEUED] == len(specs)
    store.call_sync(Tick())
    assert sched.stats_sync().states[JobState.QUEUED] == len(specs)


async def test_renewal_during_the_end_of_an_exclusive_loses_nothing() -> None:
    sched, _ = scheduler()
    place = sched.exclusive(["a"])
    held = await place.__aenter__()
    request = place._request
    assert request is not None
    late = request.renew()
    await place.__aexit__(None, None, None)
    request.judge_renewal(late, (await sched.backend.call(late)).verdicts, now_s())
    assert not held.lost
