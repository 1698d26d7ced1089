"""
Play seeds of a simulated world: ``python -m queuehint.testing.simulation engine --seed 17``.

In place of the worlds of the rules, ``module:function`` names a function that calls `simulate`. The message of a failed
simulation names the command that plays it again.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.errors import InvalidJobError
from queuehint.testing.arguments import check_function
from queuehint.testing.simulation.engine.gates import simulate_gates
from queuehint.testing.simulation.engine.run import STEPS, simulate_engine
from queuehint.testing.simulation.faults import PLANS, FaultPlan
from queuehint.testing.simulation.report import SimulationError
from queuehint.testing.simulation.run import SEED_VARIABLE, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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


def find_world(name: str, *, steps: int = STEPS, faults: str = "chaos") -> Callable[[int], object]:
    """
    Return what plays a seed of a world.

    Args:
        name: ``engine``, ``gates``, or ``module:function`` for a function without parameters that calls `simulate`.
        steps, faults: for the worlds of the rules; `parse_plan` reads the faults.

    Raises:
        ValueError: there is no such world or plan; the text says why.
    """
    if name == "gates":
        return partial(simulate_gates, steps=steps)
    if name == "engine":
        return partial(simulate_engine, steps=steps, faults=parse_plan(faults))
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{name!r} must be engine, gates or module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{name!r} cannot be found: {error}") from error
    check_function(function, parameter=name)

    def play(seed: int) -> object:
        before = os.environ.get(SEED_VARIABLE)
        os.environ[SEED_VARIABLE] = str(seed)
        try:
            return function()
        finally:
            if before is None:
                del os.environ[SEED_VARIABLE]
            else:
                os.environ[SEED_VARIABLE] = before

    return play


def play_seeds(play: Callable[[int], object], seed: int, seeds: int) -> SimulationError | str:
    """Play seeds one after the other; return what is to be said, or the error of the first that fails."""
    attempts = hit = 0
    for each in range(seed, seed + seeds):
        try:
            played = play(each)
        except SimulationError as error:
            return error
        if isinstance(played, Simulation):
            attempts, hit = attempts + played.attempts, hit + played.attempts_hit
    what = f"seed {seed}" if seeds == 1 else f"seeds {seed} to {seed + seeds - 1}"
    counts = f" ({attempts} attempts, {hit} of them hit by a worker's end or pause)" if attempts else ""
    return f"{what}: every promise was kept{counts}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what the command line says; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m queuehint.testing.simulation", description="Play seeds of a world."
    )
    parser.add_argument("world", help="engine, gates, or module:function for one that calls simulate()")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="of each seed of engine or gates")
    parser.add_argument("--faults", default="chaos", metavar="PLAN", help=f"{', '.join(PLANS)}, or crash=0.1,pause=0.2")
    options = parser.parse_args(arguments)
    for name in ("seeds", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be 1 or more, got {getattr(options, name)}")
    try:
        play = find_world(options.world, steps=options.steps, faults=options.faults)
    except ValueError as error:
        parser.error(str(error))
    said = play_seeds(play, options.seed, options.seeds)
    print(said)  # noqa: T201 - what it was asked for
    return int(isinstance(said, SimulationError))


if __name__ == "__main__":
    sys.exit(main())
