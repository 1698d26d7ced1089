"""Waiting for a flow returns its result, however short the retention of its jobs is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuehint import FlowNotFoundError, JobFailedError, Retention, Scheduler
from queuehint.backends.base import Interest
from queuehint.client.flows import handle as flow_handle
from queuehint.operations import Get
from tests.manual_jobs import on
from tests.schedulers import Gate, memory, scheduler, until

AT_ONCE = Retention(finished=0, failed=0, canceled=0)


def tasks(sched: Scheduler, gate: Gate) -> Any:
    """Register a task that ends when it is let through."""

    @sched.job(max_attempts=1)
    async def step(n: int) -> int:
        await gate.wait(n)
        if n < 0:
            raise ValueError(n)
        return n

    return step


def waits_of(sched: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the ids that the store was asked to keep, in the order of the requests."""
    backend = sched.backend
    wait, wait_sync = backend.wait, backend.wait_sync
    told: list[Any] = []

    async def waiting(interest: Interest, timeout_s: float) -> None:
        await wait(interest, timeout_s)
        told.extend(interest.kept)

    def waiting_sync(interest: Interest, timeout_s: float) -> None:
        wait_sync(interest, timeout_s)
        told.extend(interest.kept)

    monkeypatch.setattr(backend, "wait", waiting)
    monkeypatch.setattr(backend, "wait_sync", waiting_sync)
    return told


@pytest.mark.parametrize("built_here", [True, False])
def test_a_waiter_for_a_flow_gets_its_results_without_retention(
    url: str, monkeypatch: pytest.MonkeyPatch, *, built_here: bool
) -> None:
    async def main(sched: Scheduler) -> None:
        gate = Gate()
        step = tasks(sched, gate)
        async with sched.flow("f") as flow:
            for n in range(3):
                flow.add(step.using(name=f"end-{n}", after=[flow.add(step, 10)]), n)
        told = waits_of(sched, monkeypatch)
        waiting = asyncio.create_task((flow if built_here else sched.get_flow("f")).result(timeout=30))
        await until(lambda: len(told) == 6)
        async with sched.worker(concurrency=8):
            await gate.reached(3)
            gate.open()
            assert await waiting == {"end-0": 0, "end-1": 1, "end-2": 2}

    on(url, main, retention=AT_ONCE)


def test_flow_waiter_gets_the_failed_job_without_retention(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sched: Scheduler) -> None:
        gate = Gate()
        step = tasks(sched, gate)
        async with sched.flow() as flow:
            bad = flow.add(step.using(after=[flow.add(step, 1)]), -1)
            flow.add(step.using(after=[bad]), 2)
            flow.add(step, 3)
        told = waits_of(sched, monkeypatch)
        waiting = asyncio.create_task(flow.result(timeout=30))
        await until(lambda: len(told) == 4)
        async with sched.worker(concurrency=8):
            await gate.reached(2)
            gate.open()
            with pytest.raises(JobFailedError, match="ValueError: -1") as raised:
                await waiting
        assert raised.value.job_id == bad.id

    on(url, main, retention=AT_ONCE)


def test_plain_function_gets_flow_results_without_retention(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sched: Scheduler) -> None:
        gate = Gate()
        step = tasks(sched, gate)
        async with sched.flow() as flow:
            for n in range(3):
                flow.add(step.using(name=f"end-{n}"), n)
        told = waits_of(sched, monkeypatch)
        waiting = asyncio.create_task(asyncio.to_thread(flow.result_sync, 30))
        await until(lambda: len(told) == 3)
        async with sched.worker(concurrency=8):
            await gate.reached(3)
            gate.open()
            assert await waiting == {"end-0": 0, "end-1": 1, "end-2": 2}

    on(url, main, retention=AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 1200])
async def test_ends_of_a_long_flow_are_read_before_expiry(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(flow_handle, "READ_EVERY_S", 0)
    monkeypatch.setattr(flow_handle, "POLL_MAX_S", 0.02)

    sched, clock = scheduler(retention=AT_ONCE)
    long = Gate()
    step = tasks(sched, long)

    @sched.job
    async def brief() -> str:
        return "brief"

    async with sched.flow() as flow:
        flow.add(step.using(name="long"), 2)
        ends = {flow.add(brief.using(name=f"brief-{number}")).id for number in range(count)}
    waiting = asyncio.create_task(flow.result(timeout=30))
    gets: set[str] = set()
    call = memory(sched).call

    async def calling(operation: Any) -> Any:
        reply = await call(operation)
        if isinstance(operation, Get):
            gets.update(record.id for record in reply.records if record and record.state.is_over)
        return reply

    monkeypatch.setattr(memory(sched), "call", calling)
    async with sched.worker(concurrency=8):
        await until(lambda: gets >= ends)
        clock.advance(seconds=61)
        await until(lambda: not any(sched.backend.call_sync(Get(tuple(ends)[:1000])).records))
        long.open()
        assert await waiting == {"long": 2} | {f"brief-{number}": "brief" for number in range(count)}


def test_a_flow_without_a_waiter_keeps_no_records(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        gate = Gate()
        step = tasks(sched, gate)
        gate.open()
        async with sched.flow() as flow:
            flow.add(step, 1)
        await sched.drain(run=True)
        with pytest.raises(FlowNotFoundError):
            await flow.result(timeout=30)

    on(url, main, retention=AT_ONCE)
