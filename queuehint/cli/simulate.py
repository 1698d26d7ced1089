"""``queuehint simulate``: play seeds of a simulated world."""

from __future__ import annotations

from typing import Annotated

import typer


def simulate(
    world: Annotated[
        str,
        typer.Argument(metavar="WORLD", help="module:function of one that calls simulate()."),
    ],
    seed: Annotated[int, typer.Option(metavar="N", help="The first one.")] = 0,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="How many, one after the other.")] = 1,
) -> None:
    """Play seeds of a simulated world; stop at the first that breaks a promise."""
    from queuehint.testing.simulation.__main__ import find_world, play_seeds
    from queuehint.testing.simulation.report import SimulationError

    try:
        play = find_world(world)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    said = play_seeds(play, seed, seeds)
    typer.echo(str(said))
    if isinstance(said, SimulationError):
        raise typer.Exit(1)
