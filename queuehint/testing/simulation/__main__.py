"""
Play seeds of a simulated world: ``python -m queuehint.testing.simulation module:function --seed 17``.

The function calls `simulate`. The message of a failed simulation names the command that plays it again.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from queuehint.testing.arguments import check_function
from queuehint.testing.simulation.report import SimulationError
from queuehint.testing.simulation.run import SEED_VARIABLE, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def find_world(name: str) -> Callable[[int], object]:
    """
    Return the function that plays a seed of a world.

    Args:
        name: ``module:function``, a function without parameters that calls `simulate`.

    Raises:
        ValueError: there is no such world; the text says why.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{name!r} must be module:function")
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
    """Play seeds one after the other. Return the report, or the error of the first failing seed."""
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
    """Play the seeds of a command line. Return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m queuehint.testing.simulation", description="Play seeds of a world."
    )
    parser.add_argument("world", help="module:function, one that calls simulate()")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be 1 or more, got {options.seeds}")
    try:
        play = find_world(options.world)
    except ValueError as error:
        parser.error(str(error))
    said = play_seeds(play, options.seed, options.seeds)
    print(said)  # noqa: T201 - what it was asked for
    return int(isinstance(said, SimulationError))


if __name__ == "__main__":
    sys.exit(main())
