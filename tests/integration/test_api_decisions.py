"""Behaviour of the public API where a user could expect either of two results."""

from __future__ import annotations

import asyncio
import contextvars
from datetime import timedelta

import pytest

from queuehint import (
    DrainTimeoutError,
    InvalidJobError,
    JobCanceledError,
    JobContext,
    JobSpec,
    JobState,
    Retention,
    WouldDeadlockError,
)
from tests.schedulers import Gate, memory, scheduler, until
from tests.support import until_sync


async def test_drain_after_its_timeout_releases_its_own_running_jobs() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work() -> None:
        await gate.wait()

    job = await work.enqueue()
    with pytest.raises(DrainTimeoutError):
        await sched.drain(timeout=0.01)
    record = await job.record()
    assert (record.state, record.attempts) == (JobState.QUEUED, 0)


async def test_handler_that_raises_after_a_stop_request_has_not_failed() -> None:
    sched, _ = scheduler()
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()

    @sched.job
    def work(ctx: JobContext) -> None:
        loop.call_soon_threadsafe(entered.set)
        until_sync(lambda: ctx.canceled, "it is canceled")
        raise RuntimeError("stopped half-way")

    job = await work.enqueue()
    async with sched.worker(grace=0):
        await entered.wait()
    record = await job.record()
    assert (record.state, record.attempts, record.errors) == (JobState.QUEUED, 0, ())


async def test_a_caller_of_exclusive_hears_why_it_was_canceled() -> None:
    sched, _ = scheduler()
    async with sched.exclusive(["doc"]):
        waiting = asyncio.create_task(sched.exclusive(["doc"]).__aenter__(), context=contextvars.Context())
        jobs = memory(sched).engine.table.jobs
        await until(lambda: len(jobs) == 2)
        await sched.cancel([list(jobs)[-1]], reason="maintenance")
        with pytest.raises(JobCanceledError, match="maintenance"):
            await waiting


async def test_child_keeps_its_given_id_however_long() -> None:
    sched, _ = scheduler()

    @sched.job
    async def child() -> None: ...

    @sched.job
    async def parent(ctx: JobContext) -> list[str]:
        given = await ctx.enqueue(child.using(id="mine"))
        derived = await ctx.enqueue(child)
        return [given.id, derived.id]

    job = await parent.using(id="p" * 128).enqueue()
    await sched.drain()
    given, derived = await job.result()
    assert given == "mine"
    assert len(derived) == 64


async def test_unreadable_arguments_fail_at_once_and_handler_errors_do_not() -> None:
    sched, _ = scheduler()

    @sched.job(max_attempts=2)
    async def work(text: str) -> None:
        raise InvalidJobError(text)

    unreadable = (await sched.submit([JobSpec(id="x", task="work", arguments=b"[]")]))[0]
    failing = await work.enqueue("mine")
    async with sched.worker():
        await until(lambda: memory(sched).engine.table.jobs["x"].is_over)
        await until(lambda: bool(memory(sched).engine.table.backing_off))
    assert (await unreadable.record()).attempts == 1
    assert (await failing.record()).state is JobState.QUEUED


async def test_waiting_on_the_thread_of_the_workers_says_so() -> None:
    sched, _ = scheduler()

    @sched.job
    async def work() -> None: ...

    job = await work.using(delay=5).enqueue()
    async with sched.worker():
        with pytest.raises(WouldDeadlockError, match="on the thread of the workers' loop"):
            job.result_sync(timeout=30)


def test_retention_is_given_in_durations() -> None:
    assert Retention(finished=timedelta(hours=1), failed=5).finished_ms == 3_600_000
    with pytest.raises(InvalidJobError, match="failed must be from 0 s to 10 years, got -1"):
        Retention(failed=-1)


async def test_looping_producer_does_not_starve_workers_on_its_loop() -> None:
    sched, _ = scheduler()
    seen: list[int] = []

    @sched.job(queue_hint=["doc"])
    async def work(number: int) -> None:
        seen.append(number)

    async with sched.worker():
        for number in range(100):
            await work.enqueue(number)
        assert seen
