"""
Play seeds of a simulated world: ``python -m queuehint.testing.simulation engine --seed 17``.

The message of a failed simulation names the command that plays it again.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.errors import InvalidJobError
from queuehint.testing.simulation.engine import STEPS, simulate_engine
from queuehint.testing.simulation.faults import PLANS, FaultPlan
from queuehint.testing.simulation.gates import simulate_gates
from queuehint.testing.simulation.report import SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORLDS = ("engine", "gates")


def parse_plan(text: str) -> FaultPlan | str:
    """
    Read a plan: its name, or what is not as in a calm one.

    Raises:
        InvalidJobError, InvalidJobTypeError: there is no such plan, or no such field.

    >>> parse_plan("crash=0.5,down_ms=100").down_ms
    100
    """
    if "=" not in text:
        FaultPlan.named(text)
        return text
    kinds = {
        field.name: int if field.name == "rollback" or field.name.endswith("_ms") else float
        for field in attrs.fields(FaultPlan)
    }
    fields: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in kinds:
            raise InvalidJobError(f"a plan has no {name!r}; it has {', '.join(kinds)}")
        fields[name] = kinds[name](value)
    return FaultPlan(**fields)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what the command line says; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m queuehint.testing.simulation", description="Play seeds of a world."
    )
    parser.add_argument("world", choices=WORLDS, help="all the rules with their clients, or the bare gates")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="of each seed")
    parser.add_argument("--faults", default="chaos", metavar="PLAN", help=f"{', '.join(PLANS)}, or crash=0.1,pause=0.2")
    options = parser.parse_args(arguments)
    try:
        plan = parse_plan(options.faults)
    except ValueError as error:
        parser.error(str(error))
    play: Callable[[int], object] = partial(simulate_gates, steps=options.steps)
    if options.world == "engine":
        play = partial(simulate_engine, steps=options.steps, faults=plan)
    for seed in range(options.seed, options.seed + options.seeds):
        try:
            play(seed)
        except SimulationError as error:
            print(error)  # noqa: T201 - what it was asked for
            return 1
    what = (
        f"seed {options.seed}" if options.seeds == 1 else f"seeds {options.seed} to {options.seed + options.seeds - 1}"
    )
    print(f"{what}: every promise was kept")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
