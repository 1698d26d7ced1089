"""When a flow is stuck: each job that is left of it waits for a dead one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import (
    Children,
    Claim,
    Dependency,
    DrainStalledError,
    FlowState,
    JobContext,
    JobSpec,
    JobState,
    Policy,
    Reason,
    ReasonKind,
)
from queuehint.client.flows import stuck
from tests.flow_shop import Shop, _is
from tests.schedulers import Gate, memory, run, until

DEFERRED, QUEUED, FAILED, FINISHED = JobState.DEFERRED, JobState.QUEUED, JobState.FAILED, JobState.FINISHED


@pytest.fixture(params=["memory", "file", pytest.param("redis", marks=pytest.mark.redis)])
def shop(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Shop]:
    if request.param == "redis":
        made = Shop(url=request.getfixturevalue("redis_url"), namespace=request.getfixturevalue("namespace"))
    else:
        made = Shop(url=None if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db")
    yield made
    made.sched.close_sync()


async def test_dependents_of_a_dead_job_are_stuck_at_any_distance() -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["cancel", "run"])
async def test_job_independent_of_a_redrive_is_not_held(policy: Any) -> None:
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


async def test_job_behind_running_outsiders_or_children_is_not_stuck() -> None:
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


async def test_flow_may_be_stuck_behind_jobs_of_other_flows() -> None:
    shop = Shop()
    strangers = [await shop.fail.enqueue() for _ in range(12)]
    async with shop.sched.flow() as flow:
        for stranger in strangers:
            flow.add(shop.step.using(after=[stranger]))
    async with shop.sched.worker():
        for stranger in strangers:
            await until(partial(_is, stranger, FAILED))
    assert (await flow.stats()).held_by == tuple(stranger.id for stranger in strangers[:10])


async def test_job_behind_a_held_place_and_its_dependents_are_stuck() -> None:
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
    monkeypatch.setattr(stuck, "LOOKED_AT_MAX", 200)
    shop = Shop()
    async with shop.sched.flow() as flow:
        bad = flow.add(shop.fail)
        for _ in range(1_250):
            flow.add(shop.step.using(after=[flow.add(shop.step.using(after=[bad]))]))
    async with shop.sched.worker():
        await until(lambda: _is(bad, FAILED))
    shop.asked.clear()
    assert (await flow.stats()).held_by == (bad.id,)
    assert len(shop.asked) == 4


async def test_jobs_behind_the_same_one_of_elsewhere_cost_one_search() -> None:
    shop = Shop()
    bad = await shop.fail.enqueue()
    outside = await shop.step.using(after=[await shop.step.using(after=[bad]).enqueue()]).enqueue()
    async with shop.sched.flow() as flow:
        for _ in range(150):
            flow.add(shop.step.using(after=[outside]))
    async with shop.sched.worker():
        await until(lambda: _is(bad, FAILED))
    shop.asked.clear()
    assert (await flow.stats()).held_by == (bad.id,)
    assert len(shop.asked) == 6


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


async def test_flow_is_stuck_through_jobs_of_elsewhere(shop: Shop) -> None:
    dead = await shop.fail.enqueue()
    outside = [await shop.step.using(after=[dead]).enqueue()]
    for _ in range(40):
        outside.append(await shop.step.using(after=[outside[-1]], when="done").enqueue())
    async with shop.sched.flow() as flow:
        near, far = flow.add(shop.step.using(after=[outside[0]])), flow.add(shop.step.using(after=[outside[-1]]))
        flow.add(shop.step.using(after=[near, far]))
    assert await flow.state() is FlowState.RUNNING
    async with shop.sched.worker():
        await until(partial(_is, dead, FAILED))
        assert (await flow.stats()).held_by == (dead.id,)
        assert await flow.state() is FlowState.STUCK
        assert await shop.sched.dead.discard([dead.id]) == 1
        await flow.result(timeout=60)
    assert await flow.state() is FlowState.FINISHED


async def test_parent_of_a_child_behind_a_dead_job_is_stuck(shop: Shop) -> None:
    dead = await shop.fail.enqueue()

    @shop.sched.job
    async def parent(ctx: JobContext) -> Children:
        await ctx.enqueue(shop.step.using(after=[dead]))
        await ctx.enqueue(shop.fail)
        return Children()

    async with shop.sched.flow() as flow:
        waits = flow.add(parent)
        flow.add(shop.step.using(after=[waits]))
    async with shop.sched.worker():
        await until(partial(_is, waits, DEFERRED))
        await until(partial(_is, shop.sched.handle(f"{waits.id}.2"), FAILED))
        assert (await flow.stats()).held_by == (dead.id,)
        assert await flow.state() is FlowState.STUCK


async def test_dead_parent_is_named_once_its_child_is_not(shop: Shop) -> None:
    repaired = Event()

    @shop.sched.job(max_attempts=1)
    async def child() -> None:
        if not repaired.is_set():
            raise ValueError

    @shop.sched.job(max_attempts=1)
    async def middle(ctx: JobContext) -> Children:
        await ctx.enqueue(child)
        await ctx.enqueue(shop.step)
        return Children()

    @shop.sched.job(max_attempts=1)
    async def parent(ctx: JobContext) -> Children:
        await ctx.enqueue(middle)
        return Children()

    async with shop.sched.flow() as flow:
        above = flow.add(parent)
        flow.add(shop.step.using(after=[above]))
    between, below = shop.sched.handle(f"{above.id}.1"), shop.sched.handle(f"{above.id}.1.1")
    async with shop.sched.worker():
        await until(partial(_is, above, FAILED))
        assert (await flow.stats()).held_by == (below.id,)
        repaired.set()
        for dead, behind in ((below, between), (between, above)):
            assert await shop.sched.dead.redrive([dead.id]) == 1
            await until(partial(_is, dead, FINISHED))
            assert (await flow.stats()).held_by == (behind.id,)
        assert await shop.sched.dead.redrive([above.id]) == 1
        await flow.result(timeout=60)
    assert await flow.state() is FlowState.FINISHED


async def test_job_behind_one_stuck_at_another_place_is_stuck(shop: Shop) -> None:
    dead = await shop.fail.using(queue_hint=["b"], on_dead="hold").enqueue()
    await shop.step.using(claims=[["a"], ["b"]]).enqueue()
    async with shop.sched.flow() as flow:
        flow.add(shop.step.using(queue_hint=["a"]))
    async with shop.sched.worker():
        await until(partial(_is, dead, FAILED))
        assert (await flow.stats()).held_by == (dead.id,)


async def test_dead_job_is_found_beside_a_wait_for_workers(shop: Shop) -> None:
    dead = await shop.fail.using(id="z").enqueue()
    unserved = await shop.step.using(id="a", pool="nobody").enqueue()
    behind = await shop.step.using(id="b", after=[dead]).enqueue()
    last = await shop.step.using(after=[unserved, behind]).enqueue()
    async with shop.sched.flow() as flow:
        flow.add(shop.step.using(after=[last]))
    async with shop.sched.worker(pools=["default"]):
        await until(partial(_is, dead, FAILED))
        assert (await flow.stats()).held_by == (dead.id,)


@pytest.mark.slow
@pytest.mark.parametrize("asked_max", [0, 1, 60])
def test_a_search_is_bounded_and_a_flow_beyond_it_runs(monkeypatch: pytest.MonkeyPatch, asked_max: int) -> None:
    monkeypatch.setattr(stuck, "ASKED_MAX", asked_max)
    shop = Shop()
    outside = shop.step.using(id="0000").enqueue_sync()
    for number in range(1, 1_000):
        outside = shop.step.using(id=f"{number:04}", after=[outside]).enqueue_sync()
    with shop.sched.flow_sync() as flow:
        flow.add(shop.step.using(after=[outside]))
    shop.asked.clear()
    assert flow.state_sync() is FlowState.RUNNING
    assert len(shop.asked) <= asked_max + 3


World = list[tuple[str, bool, list[int], str, str, str | None, str]]
_JOBS = st.tuples(
    st.sampled_from(["step", "step", "fail"]),
    st.booleans(),
    st.lists(st.integers(1, 6), max_size=3),
    st.sampled_from(["success", "success", "done", "failure"]),
    st.sampled_from(["wait", "wait", "cancel", "run"]),
    st.sampled_from([None, None, "a", "a:b", "c"]),
    st.sampled_from(["default", "default", "default", "nobody"]),
)


@pytest.mark.slow
@given(st.lists(_JOBS, min_size=3, max_size=9))
def test_flow_at_rest_is_stuck_if_all_lead_to_dead(world: World) -> None:
    run(_check_at_rest(world))


async def _check_at_rest(world: World) -> None:
    shop = Shop()
    for number, (task, of_flow, back, when, on_failure, place, pool) in enumerate(world):
        after = sorted({number - each for each in back if each <= number})
        spec = JobSpec(
            id=f"j{number}",
            task=task,
            flow="f" if of_flow or not number else None,
            depends_on=tuple([Dependency(f"j{each}", when=when) for each in after]),  # type: ignore[arg-type]
            policy=Policy(max_attempts=1, on_dependency_failure=on_failure, on_dead="hold"),  # type: ignore[arg-type]
            claims=() if place is None else (Claim(tuple(place.split(":"))),),
            pool=pool,
        )
        await shop.sched.submit([spec])
    async with shop.sched.worker(pools=["default"]):
        with contextlib.suppress(DrainStalledError):
            await shop.sched.drain(timeout=60)
    left = [record.id for record in shop.sched.records.iterate_sync() if not record.state.is_over]
    reasons = {job_id: (await shop.sched.handle(job_id).why()) for job_id in left}
    flow = shop.sched.get_flow("f")
    own = [record.id for record in flow.jobs_sync() if not record.state.is_over]
    stats = await flow.stats()
    assert stats.stuck is (bool(own) and _held(reasons).issuperset(own))
    assert {(await shop.sched.get(each)).state for each in stats.held_by} <= {FAILED}
    assert (await flow.state() in {FlowState.STUCK, FlowState.RUNNING}) is bool(own)


def _held(reasons: Mapping[str, Reason]) -> set[str]:
    """Return the jobs from which a way of reasons leads to a dead one."""
    held: set[str] = set()
    while True:
        more = {
            job_id
            for job_id, reason in reasons.items()
            if reason.kind in {ReasonKind.DEAD_HOLD, ReasonKind.DEAD_DEPENDENCY} or not held.isdisjoint(reason.jobs)
        }
        if more == held:
            return held
        held = more
