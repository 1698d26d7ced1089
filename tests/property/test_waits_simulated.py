"""
Waits for signals in the simulated world: workers die before, at and after each wait, and the wire loses requests.

Each step is made at least once, and by no attempt that was granted after its result was stored; what a wait has come to
is the same for every attempt; and nothing waits for ever, nor keeps others at its place from running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from queuehint import JobContext, JobHandle, Scheduler, SignalTimeoutError
from queuehint.testing import FaultPlan, simulate
from queuehint.values.signal import signal_id
from tests.property.step_effects import Effects
from tests.support import slow_after, thorough

JOBS = 3
OFTEN: dict[str, Any] = {"max_attempts": 1000, "max_losses": 1000, "retry": [1]}

effects = Effects()
begun: dict[tuple[str, str], float] = {}
"""When a job has come to a wait first, by its loop."""
sched = Scheduler("memory://")


@sched.job(["{number}"], **OFTEN)
async def review(ctx: JobContext, number: int) -> None:
    async def step(name: str) -> None:
        effects.see(ctx, name, await ctx.step(name, effects.make_slowly, ctx, name))

    async def wait(name: str, about: str, timeout_s: float | None = None) -> None:
        now_s = asyncio.get_running_loop().time()
        begun_s = begun.setdefault((ctx.id, name), now_s)
        try:
            found = await ctx.wait(about, timeout=timeout_s)
        except SignalTimeoutError:
            found = "never given"
            if timeout_s is None or (now_s < begun_s + timeout_s and not effects.forgets):
                effects.wrong.append(f"{ctx.id} has waited for {about} for {now_s - begun_s} s alone")
        effects.see(ctx, name, found)

    await step("ask")
    await wait("approved", f"approved:{number}")
    await step("apply")
    await wait("never", f"never:{number}", 60)
    await step("close")
    await wait("early", "early")
    await step("publish")
    effects.ended.add(ctx.id)


@sched.job(["{number}"], **OFTEN)
def plain(ctx: JobContext, number: int) -> None:
    effects.see(ctx, "ask", ctx.step_sync("ask", effects.make, ctx, "ask"))
    effects.see(ctx, "approved", ctx.wait_sync(f"approved:{number}"))
    effects.see(ctx, "apply", ctx.step_sync("apply", effects.make, ctx, "apply"))
    effects.ended.add(ctx.id)


@sched.job(["{number}"], **OFTEN)
async def behind(number: int) -> None:
    """Run at a place where another job waits for a signal."""
    await asyncio.sleep(1)


async def enqueue(number: int) -> object:
    first = await (plain if number == 0 else review).using(id=f"job-{number}").enqueue(number)
    return [first, await behind.using(id=f"behind-{number}").enqueue(number)]


async def give(name: str, after_s: float = 0) -> object:
    """Give a signal once a job is likely to have come to its wait, or before; again if the store has lost it."""
    await asyncio.sleep(after_s)
    assert await sched.signal(name, f"{name}: yes")
    return JobHandle(sched, signal_id(name))


STORY: list[Callable[[], Awaitable[Any]]] = [
    partial(give, "early"),
    *[partial(enqueue, number) for number in range(JOBS)],
    partial(give, "approved:1", 30),
    partial(give, "approved:0"),
    partial(give, "approved:2", 300),
]
PLANS = {
    "crashes": FaultPlan(crash=0.1, down_ms=5_000),
    "zombies": FaultPlan(pause=0.05, pause_ms=120_000, crash=0.02, down_ms=5_000),
    "wire": FaultPlan(lose_request=0.1, lose_reply=0.1, double_request=0.1, delay=0.1),
    "chaos": FaultPlan.chaos(),
}


@pytest.mark.heavy
@pytest.mark.parametrize("plan", slow_after(1, PLANS))
def test_waiting_job_resumes_behind_its_steps_and_always_ends(plan: str) -> None:
    faults = PLANS[plan]
    effects.forgets = bool(faults.restart)

    def clear() -> None:
        effects.clear()
        begun.clear()

    def check() -> None:
        assert not effects.wrong, effects.wrong[0]

    def check_end() -> None:
        check()
        steps = {0: ("ask", "apply"), 1: ("ask", "apply", "close", "publish"), 2: ("ask", "apply", "close", "publish")}
        assert set(effects.made) == {(f"job-{number}", name) for number, names in steps.items() for name in names}
        assert effects.ended == {f"job-{number}" for number in range(JOBS)}
        told = {
            (job_id, name): result for (job_id, name), (_, result) in effects.told.items() if isinstance(result, str)
        }
        expected = {(f"job-{number}", "approved"): f"approved:{number}: yes" for number in range(JOBS)}
        for number in range(1, JOBS):
            expected[f"job-{number}", "never"], expected[f"job-{number}", "early"] = "never given", "early: yes"
        assert told == expected

    world = simulate(
        sched,
        STORY,
        faults=faults,
        seeds=thorough(60, quick=3),
        setup=clear,
        invariant=check,
        at_end=check_end,
    )
    ended = {job.id: str(job.state) for job in world.jobs.values()}
    never = {job_id: ended.pop(job_id) for job_id in [*ended] if job_id.startswith("signal-wait:never:")}
    assert (set(ended.values()), set(never.values()), len(never)) == ({"FINISHED"}, {"CANCELED"}, JOBS - 1)
