"""Stuck waits: a wait for a result, or for the end of all work, warns or raises where nothing will end it."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest

from queuehint import (
    DrainStalledError,
    JobFailedError,
    QueueHintWarning,
    ReasonKind,
    ResultTimeoutError,
    Scheduler,
)
from queuehint.client import stuck
from queuehint.client.handle import JobHandle
from tests.schedulers import scheduler


@pytest.fixture(autouse=True)
def _looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, "LOOK_AFTER_S", 0.02)
    monkeypatch.setattr(stuck, "ASK_EVERY_S", 0.001)


async def timed_out(handle: JobHandle[Any], timeout_s: float = 0.1) -> ResultTimeoutError:
    with pytest.raises(ResultTimeoutError) as caught:
        await handle.result(timeout_s)
    return caught.value


def job(sched: Scheduler, **options: Any) -> Any:
    @sched.job(name="work", queue_hint=["{doc}"], **options)
    async def work(doc: str) -> str:
        if doc.startswith("bad"):
            raise ValueError("bad file")
        return doc

    return work


async def test_wait_without_a_worker_is_logged_once_with_reason() -> None:
    sched, _ = scheduler()
    work = job(sched)
    handles = [await work.enqueue("a") for _ in range(2)]
    with pytest.warns(QueueHintWarning, match=r"no worker serves its pool.*sched\.worker\(\)") as told:
        errors = [await timed_out(handle) for handle in handles]
    assert len(told) == 1, "the cause of both is the same"
    assert told[0].filename == __file__, "it names the line that waits"
    first, second = errors
    assert first.reason.kind is ReasonKind.NO_WORKER
    assert "no worker serves its pool" in str(first)
    assert [reason.kind for reason in second.reasons] == [ReasonKind.PLACE, ReasonKind.NO_WORKER]


def test_a_thread_that_waits_is_warned_too() -> None:
    sched, _ = scheduler()
    handle = job(sched).enqueue_sync("a")
    with pytest.warns(QueueHintWarning, match=r"result_sync\(\) waits"), pytest.raises(ResultTimeoutError) as caught:
        handle.result_sync(0.1)
    assert caught.value.reason.kind is ReasonKind.NO_WORKER


async def test_a_wait_for_work_that_goes_on_says_nothing() -> None:
    sched, _ = scheduler()
    gate = asyncio.Event()

    @sched.job
    async def work() -> str:
        await gate.wait()
        return "well"

    async with sched.worker():
        handle = await work.enqueue()
        with warnings.catch_warnings(record=True) as told:
            error = await timed_out(handle)
            gate.set()
            assert await handle.result(5) == "well"
    assert told == []
    assert error.reason.kind is ReasonKind.RUNNING


@pytest.mark.slow
async def test_wait_behind_a_dead_hold_is_logged() -> None:
    sched, _ = scheduler()
    work = job(sched, max_attempts=1, on_dead="hold")
    async with sched.worker():
        await work.enqueue("bad")
        behind = await work.enqueue("bad")
        with pytest.warns(QueueHintWarning, match="redrive or discard"):
            error = await timed_out(behind, 1)
    assert error.reason.kind is ReasonKind.DEAD_HOLD


async def test_a_result_behind_a_dead_dependency_is_its_failure() -> None:
    sched, _ = scheduler()
    work = job(sched, max_attempts=1)
    async with sched.worker():
        load = await work.enqueue("bad")
        middle = await work.using(after=[load]).enqueue("a")
        last = await work.using(after=[middle]).enqueue("b")
        for handle in (middle, last):
            with pytest.raises(JobFailedError, match="bad file") as caught:
                await handle.result(5)
            assert (caught.value.job_id, caught.value.waiting_id) == (load.id, handle.id)
            assert "depends on it" in str(caught.value)
        with pytest.raises(JobFailedError, match="bad file"):
            await asyncio.to_thread(last.result_sync, 5)


async def test_unserved_flow_is_logged_with_its_reason() -> None:
    sched, _ = scheduler()
    work = job(sched)
    async with sched.flow() as flow:
        flow.add(work, "a")
    with pytest.warns(QueueHintWarning, match=r"flow\.result\(\) waits"), pytest.raises(ResultTimeoutError) as caught:
        await sched.get_flow(flow.id).result(0.2)
    assert caught.value.reason.kind is ReasonKind.NO_WORKER


async def test_drain_on_a_shared_store_runs_nothing_unless_requested(redis_url: str, namespace: str) -> None:
    async with Scheduler(redis_url, namespace=namespace) as sched:
        work = job(sched)
        handle = await work.enqueue("a")
        with pytest.raises(DrainStalledError, match=r"start a worker, or have drain\(run=True\)"):
            await sched.drain()
        assert (await handle.state()) == "QUEUED"
        await sched.drain(run=True, timeout=60)
        assert await handle.result(1) == "a"
        await work.enqueue("b")
        await asyncio.to_thread(lambda: sched.drain_sync(run=True, timeout=60))


async def test_drain_in_memory_runs_jobs_by_default() -> None:
    sched, _ = scheduler()
    handle = await job(sched).enqueue("a")
    with pytest.raises(DrainStalledError, match="start a worker"):
        await sched.drain(run=False)
    await sched.drain()
    assert await handle.result(1) == "a"
