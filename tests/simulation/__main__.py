"""
Play seeds of the simulated engine or of its gates: ``python -m tests.simulation engine --seed 17``.

The message of a failed simulation names the command that plays it again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from queuehint.errors import InvalidJobError
from queuehint.testing.simulation.__main__ import play_seeds
from queuehint.testing.simulation.faults import PLANS, FaultPlan
from queuehint.testing.simulation.report import SimulationError
from tests.simulation.gates import simulate_gates
from tests.simulation.run import STEPS, simulate_engine


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
        try:
            fields[name] = kinds[name](value)
        except ValueError:
            what = "an integer" if kinds[name] is int else "a number"
            raise InvalidJobError(f"{name} must be {what}, got {value!r}") from None
    return FaultPlan(**fields)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what the command line says; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Play seeds of a world.")
    parser.add_argument("world", choices=["engine", "gates"])
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="of each seed")
    parser.add_argument(
        "--faults", default="chaos", metavar="PLAN", help=f"of engine: {', '.join(PLANS)}, or crash=0.1,pause=0.2"
    )
    options = parser.parse_args(arguments)
    for name in ("seeds", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be 1 or more, got {getattr(options, name)}")
    try:
        faults = parse_plan(options.faults)
    except ValueError as error:
        parser.error(str(error))
    plays: dict[str, Callable[[int], object]] = {
        "engine": partial(simulate_engine, steps=options.steps, faults=faults),
        "gates": partial(simulate_gates, steps=options.steps),
    }
    said = play_seeds(plays[options.world], options.seed, options.seeds)
    print(said)
    return int(isinstance(said, SimulationError))


if __name__ == "__main__":
    sys.exit(main())
