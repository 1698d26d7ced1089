"""``queuehint weights ls, set``: how many starts a turn a user gets."""

from __future__ import annotations

from typing import Annotated

import typer

from queuehint.cli.opening import AsJson, Namespace, Target, opened, say_none
from queuehint.cli.render import Grid, Printer, cell

app = typer.Typer(no_args_is_help=True, help="How many starts a turn a user gets.")

UserName = Annotated[str | None, typer.Argument(metavar="[USER]", help="Jobs without a user if none is given.")]


@app.command("ls")
def list_weights(target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """List the users with a weight other than 1."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        found = sched.weights_sync()
        if as_json:
            for user, weight in found.items():
                printer.json({"user": user, "weight": weight})
            return
        rows = [(cell("(no user)" if user is None else user), cell(weight)) for user, weight in found.items()]
        printer.put(Grid(("user", "weight"), rows))
        if not rows:
            say_none(sched, "weights")


@app.command("set")
def set_weight(
    weight: Annotated[int, typer.Argument(metavar="WEIGHT", help="1 to 100; 1 is as everyone else's.")],
    user: UserName = None,
    target: Target = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Give a user up to so many starts a turn: queuehint weights set 5 ann."""
    with opened(target, namespace, as_json=as_json) as sched:
        changed = sched.set_weight_sync(user, weight)
        Printer(as_json=as_json).done("user", user, f"weight {weight}", changed=changed)
