"""A flow with a timeout: the store cancels its unfinished jobs, and its handle reports that."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from queuehint import InvalidJobError, InvalidJobTypeError, JobCanceledError, JobContext, Scheduler
from queuehint import operations as op
from tests.manual_jobs import on
from tests.schedulers import memory, run, scheduler


@pytest.mark.slow
def test_flow_times_out_after_its_scheduler_closed(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        async def load(ctx: JobContext) -> None:
            await asyncio.Event().wait()

        # On memory jobs end with their scheduler.
        producer = sched if url == "memory://" else Scheduler(url)
        task, _ = [each.job(name="load")(load) for each in (producer, sched)]
        async with producer.flow("f", timeout=0.3) as flow:
            flow.add(task.using(name="last", after=[flow.add(task)]))
        if producer is not sched:
            await producer.close()
        async with sched.worker():
            handle = sched.get_flow("f")
            with pytest.raises(JobCanceledError, match="was canceled: flow_timeout"):
                await handle.result(timeout=60)
            assert str(await handle.state()) == "CANCELED"
            assert [record.cause async for record in handle.jobs()] == ["flow_timeout"] * 2

    on(url, main)


def test_flow_timeout_counts_from_submission_without_a_worker() -> None:
    sched, clock = scheduler()

    @sched.job
    async def load(n: int) -> int:
        return n

    async def main() -> None:
        async with sched.flow(timeout=timedelta(minutes=1)) as flow:
            flow.add(load, 1)
            clock.advance(seconds=30)
        clock.advance(seconds=59)
        await sched.backend.call(op.Tick())
        assert str(await flow.state()) == "RUNNING"
        clock.advance(seconds=1)
        with pytest.raises(JobCanceledError, match="flow_timeout"):
            await flow.result(timeout=60)

    run(main())


@pytest.mark.parametrize("count", [3, 1_001])
def test_flow_timeout_is_sent_with_the_committing_request(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sched, _ = scheduler()
    asked: list[op.Operation[Any]] = []
    call_sync = memory(sched).call_sync

    def calling(operation: op.Operation[Any]) -> Any:
        asked.append(operation)
        return call_sync(operation)

    monkeypatch.setattr(memory(sched), "call_sync", calling)

    @sched.job
    def load(n: int) -> int:
        return n

    with sched.flow_sync(timeout=1.5) as flow:
        for n in range(count):
            flow.add(load.using(name=str(n)), n)
    timeouts = [each.flow_timeout_ms for each in asked if isinstance(each, (op.Enqueue, op.Commit))]
    assert timeouts == ([1_500] if count == 3 else [None] * (len(timeouts) - 1) + [1_500])


@pytest.mark.parametrize(
    "timeout, error, text",
    [
        (0, InvalidJobError, "timeout must be from 0.001 s to 10 years, got 0"),
        (-1, InvalidJobError, "timeout must be from 0.001 s"),
        (float("nan"), InvalidJobError, "timeout must be finite"),
        (timedelta(days=4_000), InvalidJobError, "timeout must be from 0.001 s to 10 years"),
        ("5", InvalidJobTypeError, "timeout must be a timedelta or a number of seconds, got str: '5'"),
        (True, InvalidJobTypeError, "timeout must be a timedelta or a number of seconds, got bool"),
    ],
)
def test_malformed_flow_timeout_is_refused_at_creation(timeout: Any, error: type[ValueError], text: str) -> None:
    sched, _ = scheduler()
    for make in (sched.flow, sched.flow_sync):
        with pytest.raises(error, match=text):
            make(timeout=timeout)
