"""
Steps in the simulated world: workers die before, inside and after each step, stand still, and the wire loses requests.

Each step is made at least once, and by no attempt that was granted after its result was stored; what is stored is what
every attempt gets.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from queuehint import JobContext, Scheduler
from queuehint.testing import FaultPlan, simulate
from tests.property.step_effects import Effects
from tests.support import thorough

STEPS, JOBS = 3, 3


effects = Effects()
sched = Scheduler("memory://")


@sched.job(["{number}"], max_attempts=1000, max_losses=1000, retry=[1])
async def work(ctx: JobContext, number: int) -> None:
    async def step(name: str) -> None:
        effects.see(ctx, name, await ctx.step(name, effects.make_slowly, ctx, name))

    async def outer() -> int:
        await step("inner")
        return effects.make(ctx, "outer")

    for at in range(STEPS):
        await step(str(at))
    await asyncio.gather(*[step(name) for name in "abc"])
    effects.see(ctx, "outer", await ctx.step("outer", outer))
    effects.ended.add(ctx.id)


@sched.job(["{number}"], max_attempts=1000, max_losses=1000, retry=[1])
def plain(ctx: JobContext, number: int) -> None:
    for name in "xyz":
        effects.see(ctx, name, ctx.step_sync(name, effects.make, ctx, name))
    effects.ended.add(ctx.id)


async def enqueue(number: int) -> object:
    return await (plain if number == 0 else work).using(id=f"job-{number}").enqueue(number)


PLANS = {
    "crashes": FaultPlan(crash=0.1, down_ms=5_000),
    "zombies": FaultPlan(pause=0.05, pause_ms=120_000, crash=0.02, down_ms=5_000),
    "wire": FaultPlan(lose_request=0.1, lose_reply=0.1, double_request=0.1, delay=0.1),
    "chaos": FaultPlan.chaos(),
}


@pytest.mark.heavy
@pytest.mark.parametrize("plan", PLANS)
def test_each_step_runs_at_least_once_and_never_when_stored(plan: str) -> None:
    faults = PLANS[plan]
    effects.forgets = bool(faults.restart)

    def check() -> None:
        assert not effects.wrong, effects.wrong[0]

    def check_end() -> None:
        check()
        names = [f"{n}" for n in range(STEPS)] + [*"abc", "inner", "outer"]
        expected = {(f"job-{number}", name) for number in range(1, JOBS) for name in names}
        expected |= {("job-0", name) for name in "xyz"}
        assert set(effects.made) == expected
        assert effects.ended == {f"job-{number}" for number in range(JOBS)}

    world = simulate(
        sched,
        [partial(enqueue, number) for number in range(JOBS)],
        faults=faults,
        seeds=thorough(60, quick=3),
        setup=effects.clear,
        invariant=check,
        at_end=check_end,
    )
    assert {str(job.state) for job in world.jobs.values()} == {"FINISHED"}
