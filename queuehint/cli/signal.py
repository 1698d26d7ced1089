"""``queuehint signal``: give a signal that jobs wait for."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from queuehint.cli.opening import AsJson, Namespace, Target, UsageError, namespace_of, opened
from queuehint.cli.render import Printer
from queuehint.errors import shown
from queuehint.values.signal import SIGNAL_KEPT


def signal(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the signal.")],
    data: Annotated[
        str, typer.Argument(metavar="[JSON]", help='What the jobs get that wait for it, such as \'{"by": "ann"}\'.')
    ] = "null",
    target: Target = None,
    namespace: Namespace = None,
    keep: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long it is kept for jobs that come to wait for it.")
    ] = SIGNAL_KEPT.total_seconds(),
    as_json: AsJson = False,
) -> None:
    """Give a signal, once: the jobs that wait for it go on. Exit 1 if it was given before, with other data."""
    with opened(target, namespace, as_json=as_json) as sched:
        counts = sched.signal_sync(name, _read(data), keep=keep)
        printer = Printer(as_json=as_json)
        if as_json:
            printer.json({"name": name, "counts": counts})
        elif counts:
            printer.say(f"signal {shown(name)} is given in {namespace_of(sched)}")
        else:
            printer.say(f"signal {shown(name)} was given before, with other data, which counts")
        if not counts:
            raise typer.Exit(1)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"data must be JSON: {error}") from None
