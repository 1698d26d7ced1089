"""When a flow is stuck: each job that is left of it waits for a dead one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from queuehint import Children, Claim, Dependency, FlowState, JobContext, JobSpec, JobState, Policy
from queuehint.client import stuck
from tests.flow_shop import Shop, _is
from tests.schedulers import Gate, memory, until

DEFERRED, QUEUED, FAILED, FINISHED = JobState.DEFERRED, JobState.QUEUED, JobState.FAILED, JobState.FINISHED


async def test_all_that_waits_for_a_dead_job_is_stuck_however_far_behind_it() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        bad = flow.add(shop.fail)
        behind = [flow.add(shop.step.using(after=[bad]))]
        for _ in range(3):
            behind.append(flow.add(shop.step.using(after=[behind[-1]], when="done")))
    assert await flow.state() is FlowState.RUNNING
    async with shop.sched.worker():
        await until(lambda: _is(bad, FAILED))
        assert await flow.state() is FlowState.STUCK
        stats = await flow.stats()
        assert (stats.stuck, stats.held_by, stats.unfinished) == (True, (bad.id,), 4)
        assert flow.stats_sync() == stats
        assert flow.state_sync() is FlowState.STUCK
        assert await shop.sched.dead.discard([bad.id]) == 1
        await until(lambda: _is(behind[-1], FINISHED))
    assert (await flow.stats()).held_by == ()


@pytest.mark.parametrize("policy", ["cancel", "run"])
async def test_a_job_that_does_not_wait_for_a_redrive_is_not_held(policy: Any) -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        bad = flow.add(shop.fail.using(id="a"))
        for _ in range(1_500):
            flow.add(shop.step.using(after=[bad], on_dependency_failure=policy))
    backend, seen = memory(shop.sched), set()
    call_sync = backend.call_sync

    def looking(operation: Any) -> Any:
        reply = call_sync(operation)
        backend.call_sync = call_sync  # type: ignore[method-assign]
        seen.add((flow.state_sync(), flow.stats_sync().states[DEFERRED] > 0))
        backend.call_sync = looking  # type: ignore[method-assign]
        return reply

    backend.call_sync = looking  # type: ignore[method-assign]
    async with shop.sched.worker():
        await until(partial(_is, bad, FAILED))
    assert (FlowState.RUNNING, True) in seen
    assert FlowState.STUCK not in dict(seen)


async def test_one_that_waits_for_a_job_of_elsewhere_or_for_its_children_can_go_on() -> None:
    shop = Shop()
    gate = Gate()

    @shop.sched.job
    async def slow() -> None:
        await gate.wait()

    @shop.sched.job
    async def parent(ctx: JobContext) -> Children:
        await ctx.enqueue(slow)
        return Children()

    stranger = await shop.step.using(delay=3600).enqueue()
    for waits in (shop.step.using(after=[stranger]), parent):
        async with shop.sched.flow() as flow:
            bad = flow.add(shop.fail)
            held = flow.add(shop.step.using(after=[bad]))
            free = flow.add(waits)
        async with shop.sched.worker():
            await until(partial(_is, bad, FAILED))
            await until(partial(_is, free, DEFERRED))
            assert await held.state() is DEFERRED
            assert (await flow.stats()).held_by == ()
            assert await flow.state() is FlowState.RUNNING
            await flow.cancel()
            gate.open()
            gate = Gate()


async def test_what_holds_a_flow_may_be_a_job_of_elsewhere() -> None:
    shop = Shop()
    strangers = [await shop.fail.enqueue() for _ in range(12)]
    async with shop.sched.flow() as flow:
        for stranger in strangers:
            flow.add(shop.step.using(after=[stranger]))
    async with shop.sched.worker():
        for stranger in strangers:
            await until(partial(_is, stranger, FAILED))
    assert (await flow.stats()).held_by == tuple(stranger.id for stranger in strangers[:10])


async def test_a_job_behind_the_place_of_a_dead_one_is_stuck_and_so_is_what_waits_for_it() -> None:
    shop = Shop()
    dead = await shop.fail.using(queue_hint=["a"], on_dead="hold").enqueue()
    async with shop.sched.flow() as flow:
        first = flow.add(shop.step.using(queue_hint=["a"]))
        flow.add(shop.step.using(queue_hint=["a", "b"]))
        flow.add(shop.step.using(after=[first]))
    async with shop.sched.worker():
        await until(lambda: _is(dead, FAILED))
        assert (await flow.stats()).held_by == (dead.id,)
        assert await flow.state() is FlowState.STUCK
        free = await shop.step.using(queue_hint=["z"]).enqueue()
        await free.result()
    await shop.sched.pause(["z"])
    await shop.sched.submit([JobSpec(id="z", task="step", flow=flow.id, claims=(Claim(("z",)),))])
    assert await flow.state() is FlowState.RUNNING, "whoever has paused a path resumes it"


async def test_a_look_at_a_large_flow_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, "FLOW_LOOKED_AT_MAX", 200)
    shop = Shop()
    async with shop.sched.flow() as flow:
        bad = flow.add(shop.fail)
        for _ in range(2_500):
            flow.add(shop.step.using(after=[bad]))
    async with shop.sched.worker():
        await until(lambda: _is(bad, FAILED))
    shop.asked.clear()
    assert (await flow.stats()).held_by == (bad.id,)
    assert len(shop.asked) == 3


def test_a_flow_that_moves_is_told_by_its_counts_alone() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        flow.add(shop.step.using(after=[flow.add(shop.step.using(delay=60))]))
    shop.asked.clear()
    assert flow.state_sync() is FlowState.RUNNING
    assert len(shop.asked) == 1


def test_a_job_whose_record_goes_meanwhile_holds_nothing() -> None:
    shop = Shop()
    spec = JobSpec(id="b", task="step", flow="f", depends_on=(Dependency("a"),), policy=Policy())
    shop.sched.submit_sync([JobSpec(id="a", task="step"), spec])
    backend: Any = shop.sched.backend
    call_sync = backend.call_sync

    def gone(operation: Any) -> Any:
        if hasattr(operation, "job_id"):
            backend.call_sync = call_sync
            shop.sched.cancel_sync(["a", "b"])
            shop.sched.records.delete_sync(["b"])
        return call_sync(operation)

    backend.call_sync = gone
    assert shop.sched.get_flow("f").state_sync() is FlowState.RUNNING
