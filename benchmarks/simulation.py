"""Seeds of 200 steps that a simulated world plays per second: the gates, the whole engine, real handlers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.report import Stopwatch, repeat
from queuehint.testing.simulation import simulate
from tests.simulation.gates import simulate_gates
from tests.simulation.run import simulate_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Report

STEPS = 200
GATES, ENGINE = 1000.0, 50.0
JOBS = [("edit", ["doc", section], [section]) for section in ("a", "a", "b", "b", "c")]


def run(report: Report, *, quick: bool) -> None:
    """Measure all; it takes a minute."""
    report.title(f"Simulated worlds: seeds of {STEPS} steps, every promise checked after each step")
    gates = _measure(lambda seed: simulate_gates(seed, steps=STEPS), 200 if quick else 2_000)
    figure = report.add("bare gates, up to 12 jobs", "seeds/s", *gates)
    report.aim("seeds of bare gates a second", figure.median, GATES)
    for plan in ("none", "chaos"):
        count = 40 if quick else 400
        engine = _measure(lambda seed, plan=plan: simulate_engine(seed, steps=STEPS, faults=plan), count)  # type: ignore[misc]
        figure = report.add(f"whole engine with 5 clients, faults {plan}", "seeds/s", *engine)
        if plan == "chaos":
            report.aim("seeds of the whole engine a second", figure.median, ENGINE)
    handlers = _measure(lambda seed: simulate({"edit": _edit}, JOBS, faults="chaos", seed=seed), 20 if quick else 100)
    report.add(f"{len(JOBS)} jobs of real handlers on 3 workers, faults chaos", "worlds/s", *handlers)


async def _edit(_section: str) -> None:
    await asyncio.sleep(1)


def _measure(play: Callable[[int], object], count: int) -> tuple[float, ...]:
    def once() -> float:
        watch = Stopwatch()
        with watch.running():
            for seed in range(count):
                play(seed)
        return count / watch.seconds

    return repeat(once)
