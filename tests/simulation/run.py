"""Simulation of the engine, one seed at a time: run it, and shrink a failure to the fewest steps."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from queuehint.core.engine import EngineOptions
from queuehint.testing.simulation.faults import FaultPlan, check_seed
from queuehint.testing.simulation.report import SimulationError, reason_of
from queuehint.testing.simulation.shrink import shrunk
from queuehint.testing.simulation.store import Store
from tests.simulation.narration import told
from tests.simulation.scenario import PRODUCERS, WORKERS, Driver
from tests.simulation.world import Step, World

STEPS = 200
BUDGETS = (1000, 1000, 5, 2, 1)
TRIES_MAX = 600


def simulate_engine(
    seed: int = 0,
    *,
    steps: int = STEPS,
    faults: FaultPlan | str = "chaos",
    make: Callable[[EngineOptions], Store] | None = None,
) -> list[Step]:
    """
    Play one seed in the world of operations: clients, a wire, sessions and the engine of this library.

    Args:
        steps: how many requests, arrivals and faults there are before all goes well and the world comes to its end.
        faults: what goes wrong, or the name of a plan.
        make: makes the store; for tests of the simulation itself.

    Returns:
        The steps.

    Raises:
        SimulationError: a promise was broken; shrunk to the fewest steps.
        InvalidJobTypeError, InvalidJobError: a parameter is not valid.
    """
    check_seed(seed, steps=steps)
    plan = FaultPlan.read(faults)
    budget = BUDGETS[Random(seed).randrange(len(BUDGETS))]

    def world() -> World:
        return World(WORKERS + PRODUCERS, budget=budget, make=make)

    taken: list[Step] = []
    here = world()
    try:
        Driver(seed, plan, here, taken).run(steps)
        here.wind_down()
    except Exception as error:

        def fails(some: list[Step]) -> Exception | None:
            again = world()
            try:
                for step in some:
                    again.do(step)
                again.wind_down()
            except Exception as broken:
                return broken
            return None

        least, reason = shrunk(taken, fails, error, tries_max=TRIES_MAX)
        named = faults if isinstance(faults, str) else _flags(plan)
        raise SimulationError(
            seed=seed,
            step=here.steps,
            reason=reason_of(reason),
            story=[told(step) for step in least],
            command=f"python -m tests.simulation engine --seed {seed} --steps {steps} --faults {named}",
        ) from error
    return taken


def _flags(plan: FaultPlan) -> str:
    """Return a plan as the command line takes it: what is not as in a calm one."""
    calm = FaultPlan()
    changed = [
        f"{field.name}={getattr(plan, field.name)}"
        for field in attrs.fields(FaultPlan)
        if getattr(plan, field.name) != getattr(calm, field.name)
    ]
    return ",".join(changed) or "none"
