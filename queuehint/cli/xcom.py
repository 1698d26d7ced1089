"""``queuehint xcom ls``: which keys of the small shared store have values."""

from __future__ import annotations

from typing import Annotated

import typer

from queuehint.cli.opening import AsJson, Namespace, Target, opened, say_none
from queuehint.cli.render import Grid, Printer, cell

app = typer.Typer(no_args_is_help=True, help="The values that jobs and their producers share.")


@app.command("ls")
def list_keys(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="What the keys begin with.")] = "",
    target: Target = None,
    namespace: Namespace = None,
    within: Annotated[str, typer.Option("--in", metavar="NAME", help="The xcom namespace of the keys.")] = "default",
    after: Annotated[str | None, typer.Option(metavar="KEY", help="The last key of the page before.")] = None,
    limit: Annotated[int, typer.Option(help="How many at most, 1 to 1000.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the keys that have values, in order; no values."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        found = sched.xcom.list_sync(prefix, namespace=within, after=after, limit=limit)
        if as_json:
            for key in found:
                printer.json({"key": key})
            return
        printer.put(Grid(("key",), [(cell(key),) for key in found]))
        if not found:
            say_none(sched, "such keys" if prefix or after else "keys")
        elif len(found) == limit:
            typer.echo("queuehint: there may be more: give --after the last of these", err=True)
