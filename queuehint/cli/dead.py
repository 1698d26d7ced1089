"""``queuehint dead ls, retry, purge``: the dead-letter queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from queuehint.cli.filters import All, Choose, Flow, check_choice, choosing, of_flow
from queuehint.cli.inspect import brief, places
from queuehint.cli.opening import AsJson, Namespace, Target, UsageError, Yes, confirm, namespace_of, opened, say_none
from queuehint.cli.operate import Downstream, apply_each
from queuehint.cli.render import Grid, Printer, ago, cell
from queuehint.operations import Discard, Redrive
from queuehint.scheduler.scheduler import Scheduler
from queuehint.schema.checks import check_int
from queuehint.values.record import JobRecord, JobState

app = typer.Typer(no_args_is_help=True, help="The dead-letter queue: jobs that have FAILED for good.")

SomeIds = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Of dead jobs.")]
DropSteps = Annotated[bool, typer.Option("--drop-steps", help="Make steps again whose results are stored.")]


@app.command("ls")
@choosing
def ls(
    choose: Choose,
    target: Target = None,
    namespace: Namespace = None,
    flow: Flow = None,
    limit: Annotated[int, typer.Option(help="How many at most, 1 to 10000.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead jobs in order of enqueue, with what they failed of."""
    with opened(target, namespace, as_json=as_json) as sched:
        check_int(limit, parameter="limit", least=1, most=10_000)
        printer = Printer(as_json=as_json)
        rows = []
        for count, record in enumerate(_dead(sched, choose, flow)):
            if count == limit:
                typer.echo("queuehint: more with a higher --limit", err=True)
                break
            last = record.errors[-1] if record.errors else None
            message = f"{last.type}: {last.message}" if last else record.cause
            if as_json:
                printer.json(brief(record) | {"error": message})
                continue
            rows.append(
                (
                    cell(record.id),
                    cell(record.spec.task),
                    cell(places(record)),
                    cell(ago(record.ended_ms)),
                    cell(record.attempts),
                    cell(message),
                )
            )
        if not rows and not as_json:
            say_none(sched, "such dead jobs" if flow or choose() else "dead jobs")
        elif not as_json:
            shown = ("task", "place", "error", "ago", "attempts", "id")
            printer.put(Grid(("id", "task", "place", "ago", "attempts", "error"), rows, shown=shown, key="id"))


@app.command()
@choosing
def retry(
    choose: Choose,
    ids: SomeIds = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    flow: Flow = None,
    downstream: Downstream = False,
    drop_steps: DropSteps = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Queue dead jobs again; attempts and losses count anew. Say which: ids, --all, --flow, or options that choose."""
    with opened(target, namespace, as_json=as_json) as sched:
        some = _ids(sched, ids, choose, flow, every=every)
        if some:
            confirm(f"Redrive {_counted(some)} in {namespace_of(sched)}?", yes=yes or bool(ids))
            apply_each(sched, some, lambda part: Redrive(part, downstream, drop_steps=drop_steps), as_json=as_json)
        elif not as_json:
            say_none(sched, "dead jobs" if every else "such dead jobs")


@app.command()
@choosing
def purge(
    choose: Choose,
    ids: SomeIds = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    flow: Flow = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove jobs from the dead-letter queue: they are CANCELED, places they held are free. Select as for `retry`."""
    with opened(target, namespace, as_json=as_json) as sched:
        some = _ids(sched, ids, choose, flow, every=every)
        if some:
            confirm(f"Give up {_counted(some)} in {namespace_of(sched)}?", yes=yes)
            apply_each(sched, some, Discard, as_json=as_json)
        elif not as_json:
            say_none(sched, "dead jobs" if every else "such dead jobs")


def _ids(sched: Scheduler, ids: list[str] | None, choose: Choose, flow: str | None, *, every: bool) -> list[str]:
    """
    Return the ids of the selected dead jobs.

    Raises:
        UsageError: none or two of the ways to say which are used.
    """
    check_choice(ids, choose(), flow, every=every)
    return ids or [record.id for record in _dead(sched, choose, flow)]


def _dead(sched: Scheduler, choose: Choose, flow: str | None) -> Iterator[JobRecord]:
    if flow is None:
        return sched.records.iterate_sync(**choose(state=JobState.FAILED))
    if choose():
        raise UsageError("--flow selects all jobs of a flow: give no other option that selects jobs")
    return of_flow(sched, flow, (JobState.FAILED,))


def _counted(ids: list[str]) -> str:
    return "1 dead job" if len(ids) == 1 else f"{len(ids)} dead jobs"
