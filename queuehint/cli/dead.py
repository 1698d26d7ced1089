"""``queuehint dead ls, retry, purge``: the dead shelf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import attrs
import typer

from queuehint.checks import check_int
from queuehint.cli.look import brief, places
from queuehint.cli.operate import judge
from queuehint.cli.show import Grid, Printer, ago, cell
from queuehint.cli.target import AsJson, Namespace, Target, UsageError, Yes, confirm, namespace_of, opened, place
from queuehint.hint import Path, is_prefix
from queuehint.operations import LIST_MAX, Discard, ListDead, Redrive
from queuehint.records import JobRecord
from queuehint.scheduler import Scheduler

app = typer.Typer(no_args_is_help=True, help="The dead shelf: jobs that have FAILED for good.")

SomeIds = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Of dead jobs.")]
All = Annotated[bool, typer.Option("--all", help="All of them, or all that the options below choose.")]
Service = Annotated[str | None, typer.Option(help="Only of this service.")]
User = Annotated[str | None, typer.Option(help="Only of this user.")]
Task = Annotated[str | None, typer.Option(help="Only of this task.")]
At = Annotated[str | None, typer.Option("--path", metavar="PATH", help="Only at or below this queue key.")]


@attrs.frozen(kw_only=True)
class _Choice:
    """Which dead jobs are meant; None is any."""

    service: str | None
    user: str | None
    task: str | None
    path: Path | None

    def has(self, record: JobRecord) -> bool:
        spec = record.spec
        return (
            self.service in {None, spec.service}
            and self.user in {None, spec.user}
            and self.task in {None, spec.task}
            and (self.path is None or any(is_prefix(self.path, claim.path) for claim in spec.claims))
        )


def _chosen(sched: Scheduler, choice: _Choice) -> Iterator[JobRecord]:
    """Yield the dead jobs that are meant, in order of enqueue, a page at a time."""
    cursor: int | None = 0
    while cursor is not None:
        page = sched.backend.call_sync(ListDead(cursor, LIST_MAX))
        yield from filter(choice.has, page.records)
        cursor = page.cursor


@app.command("ls")
def ls(
    target: Target = None,
    namespace: Namespace = None,
    service: Service = None,
    user: User = None,
    task: Task = None,
    path: At = None,
    limit: Annotated[int, typer.Option(help="How many at most, 1 to 10000.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead jobs in order of enqueue, with what they failed of."""
    with opened(target, namespace, as_json=as_json) as sched:
        check_int(limit, parameter="limit", least=1, most=10_000)
        choice = _Choice(service=service, user=user, task=task, path=None if path is None else place(path))
        printer = Printer(as_json=as_json)
        rows = []
        for count, record in enumerate(_chosen(sched, choice)):
            if count == limit:
                typer.echo("queuehint: there are more: --limit", err=True)
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
        if not as_json:
            printer.put(Grid(("id", "task", "place", "ago", "attempts", "error"), rows))


@app.command()
def retry(
    ids: SomeIds = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    service: Service = None,
    user: User = None,
    task: Task = None,
    path: At = None,
    downstream: Annotated[
        bool, typer.Option("--downstream", help="Also revive the jobs that were canceled because of these.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Queue dead jobs again; attempts and losses count anew."""
    _order(
        ids,
        target,
        namespace,
        (every, service, user, task, path),
        lambda some: Redrive(some, downstream),
        question="Redrive",
        yes=yes or bool(ids),
        as_json=as_json,
    )


@app.command()
def purge(
    ids: SomeIds = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    service: Service = None,
    user: User = None,
    task: Task = None,
    path: At = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take dead jobs off the shelf: they are CANCELED, and places they held are free."""
    _order(
        ids,
        target,
        namespace,
        (every, service, user, task, path),
        Discard,
        question="Give up",
        yes=yes,
        as_json=as_json,
    )


def _order(
    ids: list[str] | None,
    target: str | None,
    namespace: str | None,
    which: tuple[bool, str | None, str | None, str | None, str | None],
    make: Callable[[tuple[str, ...]], Any],
    *,
    question: str,
    yes: bool,
    as_json: bool,
) -> None:
    every, service, user, task, path = which
    with opened(target, namespace, as_json=as_json) as sched:
        if bool(ids) == (every or any(word is not None for word in which[1:])):
            raise UsageError("say which: ids, or --all, or --service, --user, --task, --path")
        if not ids:
            choice = _Choice(service=service, user=user, task=task, path=None if path is None else place(path))
            ids = [record.id for record in _chosen(sched, choice)]
            if not ids:
                return
        count = "1 dead job" if len(ids) == 1 else f"{len(ids)} dead jobs"
        confirm(f"{question} {count} in {namespace_of(sched)}?", yes=yes)
        judge(sched, ids, make, as_json=as_json)
