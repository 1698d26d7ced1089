"""P6 in virtual time: the time from a worker's death until its jobs run again, and the delays in it."""

from __future__ import annotations

import asyncio
import re

import attrs
import pytest

from queuehint import JobContext, Scheduler
from queuehint.testing import FaultPlan, simulate

LEASE_S = 5.0
LOOKED_EVERY_S = 5.0


@attrs.frozen
class Recovery:
    """The times of the noticed loss and of the next start of the job's code, in seconds after the worker's death."""

    noticed_s: float
    again_s: float


def recoveries(max_losses: int, seeds: range) -> list[Recovery]:
    """Kill workers that have no helpers at random, and return what became of their jobs."""
    sched = Scheduler("memory://", lease=LEASE_S)
    began_s: dict[int, float] = {}

    @sched.job(queue_hint=["{doc}"], max_losses=max_losses)
    async def work(ctx: JobContext, doc: str) -> None:
        began_s[ctx.token] = asyncio.get_running_loop().time()
        await asyncio.sleep(3)

    jobs = [("work", [doc], [doc]) for doc in map(str, range(24))]
    # A worker is always alive: there are four, and dead ones are restarted within a second.
    plan = FaultPlan(crash=0.02, down_ms=1_000)
    found = []
    for seed in seeds:
        began_s.clear()
        world = simulate(sched, jobs, workers=4, concurrency=16, seed=seed, faults=plan)
        # The loop, the story and the trace count from different times; nothing lies between a first grant and its code.
        first = next(event for event in world.trace if event.kind == "started" and event.token in began_s)
        offset_s = first.at_ms / 1000 - began_s[first.token or 0]
        origin_s = world.trace[0].at_ms / 1000 - float(world.story[0].split()[0])
        deaths_s = {
            f"worker {dead[2]}": float(dead[1]) + origin_s
            for dead in (re.fullmatch(r" *([\d.]+) s  worker ([\d.]+) dies.*", line) for line in world.story)
            if dead is not None
        }
        holders: dict[str, str] = {}
        lost: dict[str, tuple[float, float]] = {}
        for event in world.trace:
            if event.kind == "lost":
                lost[event.job] = deaths_s[holders[event.job]], event.at_ms / 1000
            elif event.kind == "started":
                if event.job in lost and event.token in began_s:
                    death_s, noticed_s = lost.pop(event.job)
                    found.append(Recovery(noticed_s - death_s, began_s[event.token] + offset_s - death_s))
                holders[event.job] = event.worker or ""
    return found


@pytest.mark.heavy
def test_jobs_of_a_dead_worker_rerun_within_lease_and_interval() -> None:
    found = recoveries(max_losses=100, seeds=range(12))
    assert len(found) > 40
    assert max(one.noticed_s for one in found) <= LEASE_S + LOOKED_EVERY_S
    # With a free slot somewhere their code begins at once.
    assert max(one.again_s - one.noticed_s for one in found) < 0.1


@pytest.mark.slow
@pytest.mark.heavy
def test_jobs_on_their_last_life_requeue_and_begin_singly() -> None:
    """Of the jobs that ran together one was to blame: that their code begins apart comes on top of the recovery."""
    found = recoveries(max_losses=2, seeds=range(12))
    assert max(one.noticed_s for one in found) <= LEASE_S + LOOKED_EVERY_S
    assert 3 < max(one.again_s - one.noticed_s for one in found) <= 60
