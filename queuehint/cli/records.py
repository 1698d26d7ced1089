"""``queuehint ls, export, delete``: the records of jobs."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from queuehint.cli.filters import Choose, Flow, check_flow, choosing, states_of
from queuehint.cli.inspect import brief, records_grid
from queuehint.cli.opening import AsJson, Namespace, Target, UsageError, Yes, confirm, namespace_of, opened, say_none
from queuehint.cli.operate import Ids, apply_each
from queuehint.cli.render import Printer
from queuehint.operations import Delete
from queuehint.schema.checks import check_id

States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Only in this state, or one of several: failed,queued."),
]


class Format(StrEnum):
    """How records are written."""

    JSON = "json"
    CSV = "csv"


class Order(StrEnum):
    """How the jobs of a path are sorted."""

    TIME = "time"
    PLACE = "place"


Newest = Annotated[bool, typer.Option("--newest/--oldest", help="Which come first.")]


@choosing
def ls(
    choose: Choose,
    target: Target = None,
    namespace: Namespace = None,
    state: States = None,
    flow: Flow = None,
    newest: Newest = True,
    order: Annotated[
        Order, typer.Option("--order", help="With --path: by time, or by place and then time.")
    ] = Order.TIME,
    limit: Annotated[int, typer.Option(help="How many at most, 1 to 200.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="The cursor printed with the page before.")] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, those enqueued last first; of a path too, or in order of their places."""
    with opened(target, namespace, as_json=as_json) as sched:
        chosen = choose(state=states_of(state))
        if flow is not None:
            chosen["flow"] = flow
        page = sched.records.list_sync(newest_first=newest, limit=limit, cursor=cursor, order=order.value, **chosen)
        if flow is not None and not page:
            check_flow(sched, flow)
        # A cursor belongs to its question, and "two hours ago" is another one every time.
        given = {"since": chosen.get("since"), "until": chosen.get("until")}
        times = {name: time.isoformat() for name, time in given.items() if time is not None}
        printer = Printer(as_json=as_json)
        if as_json:
            printer.json({"records": [brief(record) for record in page], "cursor": page.cursor, **times})
            return
        if page or page.cursor or cursor:
            printer.put(records_grid(page))
        else:
            say_none(sched, "such jobs" if chosen else "jobs")
        if page.cursor is not None:
            options = [f"--cursor {page.cursor}", *(f"--{name} {time}" for name, time in times.items())]
            typer.echo(f"queuehint: there may be more: {' '.join(options)}", err=True)


@choosing
def export(
    choose: Choose,
    target: Target = None,
    namespace: Namespace = None,
    state: States = None,
    flow: Flow = None,
    newest: Newest = False,
    format: Annotated[
        Format,
        typer.Option("--format", "-f", help="JSON, one object a line, or a table with a header for spreadsheets."),
    ] = Format.JSON,
    file: Annotated[
        Path | None, typer.Option("--file", "-o", help="A file to write, replacing an existing one; else printed.")
    ] = None,
) -> None:
    """Write records as JSON, one object a line: every field, also arguments, results and logs; or as CSV."""
    with opened(target, namespace, as_json=False) as sched:
        chosen = choose(state=states_of(state))
        children = flow is not None and not chosen
        if flow is not None:
            chosen["flow"] = flow
            check_flow(sched, flow)
        try:
            count = sched.records.export_sync(
                file, newest_first=newest, format=format.value, children=children, **chosen
            )
        except OSError as error:
            if file is None:
                raise  # the reader has gone
            raise UsageError(f"{file} cannot be written: {error.strerror}") from None
        sys.stdout.flush()
        if file is not None:
            typer.echo("1 record" if count == 1 else f"{count} records")


def delete(
    ids: Ids, target: Target = None, namespace: Namespace = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete the records of jobs that are over, as if their time had come."""
    with opened(target, namespace, as_json=as_json) as sched:
        checked = [check_id(job_id) for job_id in ids]
        what = "1 record" if len(checked) == 1 else f"{len(checked)} records"
        confirm(f"Delete {what} in {namespace_of(sched)}?", yes=yes)
        apply_each(sched, checked, Delete, as_json=as_json)
