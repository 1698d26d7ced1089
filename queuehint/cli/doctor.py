"""``queuehint doctor``: examine and repair a store."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import attrs
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuehint.backends.base import BackendOptions, open_backend
from queuehint.backends.masks import masked
from queuehint.backends.report import PASSES, Finding, Report
from queuehint.cli.loading import TargetError, load_scheduler
from queuehint.cli.opening import trying_is_said
from queuehint.cli.payloads import unreadable
from queuehint.cli.render import cell
from queuehint.cli.said import hidden, said
from queuehint.cli.stores import as_journal, as_redis
from queuehint.errors import InvalidJobError, QueueHintError
from queuehint.shown import plain

if TYPE_CHECKING:
    from queuehint.backends.journal.backend import JournalBackend
    from queuehint.backends.redis.backend import RedisBackend

EXIT_FOUND = 1
EXIT_USAGE = 2
_STYLES = {"error": "bold red", "warning": "yellow", "repaired": "green"}
_BYTES = ("used_memory", "maxmemory")


def doctor(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            envvar="QUEUEHINT_URL",
            help="Such as postgresql://host/database, redis://host:6379/0 or sqlite:///jobs.db.",
        ),
    ],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Of the jobs; by default that of the URL, else of --app, or `default`."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair findings; workers and producers have to be stopped.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    passes: Annotated[
        int, typer.Option(min=1, max=100, help="How often to read again sums that changed while they were read.")
    ] = PASSES,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:SCHEDULER", help="Name arguments and results that the codec of this scheduler cannot read."
        ),
    ] = None,
) -> None:
    """
    Look for what is wrong with a store and the jobs in it.

    Exits with 0 if nothing is wrong (there may be warnings), 1 if something is, 2 if the store cannot be asked.
    """
    try:
        scheduler = None if app is None else load_scheduler(app)
        chosen = scheduler.namespace if namespace is None and scheduler is not None else namespace
        report = _examine(url, chosen, given=namespace, fix=fix, passes=passes)
        if scheduler is not None:
            found = unreadable(url, chosen, scheduler.codec)
            report = attrs.evolve(report, findings=(*report.findings, *found))
    except (QueueHintError, TargetError) as error:
        text = json.dumps({"error": hidden(str(error))}) if as_json else f"queuehint doctor: {said(str(error))}"
        typer.echo(text, err=not as_json)
        raise typer.Exit(EXIT_USAGE) from None
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    elif sys.stdout.isatty():
        _print_richly(report, fix=fix)
    else:
        _print_plainly(report, fix=fix)
    if not report.is_clean:
        raise typer.Exit(EXIT_FOUND)


def _examine(url: str, namespace: str | None, *, given: str | None, fix: bool, passes: int) -> Report:
    options = BackendOptions() if namespace is None else BackendOptions(namespace=namespace)
    backend = open_backend(url, options)
    try:
        if (redis := as_redis(backend)) is not None:
            return _examine_redis(redis, url, given, fix=fix, passes=passes)
        if (journal := as_journal(backend)) is not None:
            return _examine_journal(journal, url, given, fix=fix)
        raise InvalidJobError(f"{masked(url)} lives in one process, and no other process can open it")
    finally:
        backend.close_sync()


def _examine_redis(backend: RedisBackend, url: str, given: str | None, *, fix: bool, passes: int) -> Report:
    from queuehint.backends.redis.doctor.doctor import diagnose

    _check_namespace(given, backend.session.namespace)
    with trying_is_said(backend, url):
        return diagnose(backend, fix=fix, passes=passes)


def _examine_journal(backend: JournalBackend, url: str, given: str | None, *, fix: bool) -> Report:
    from queuehint.backends.journal import doctor as of_journals
    from queuehint.backends.sqlite import doctor as of_files
    from queuehint.backends.sqlite.backend import SqliteBackend

    _check_namespace(given, backend.namespace)
    if not isinstance(backend, SqliteBackend):
        return of_journals.report(backend, "its snapshot and journal", fix=fix)
    if not backend.address.path.exists():
        raise InvalidJobError(f"{masked(url)}: there is no such file")
    return of_files.diagnose(backend, fix=fix)


def _check_namespace(given: str | None, there: str) -> None:
    if given not in {None, there}:
        raise InvalidJobError(f"--namespace {given} and the URL name different namespaces")


# --- what is printed -------------------------------------------------------------------------------------------------


def _facts(report: Report) -> list[tuple[str, str]]:
    """Return the server's facts for people."""
    facts = [("store", report.store), ("namespace", report.namespace)]
    for name, value in report.facts.items():
        shown = _size(int(value)) if name in _BYTES else f"{value} ms" if name == "latency_ms" else str(value)
        facts.append((name.removesuffix("_ms").replace("_", " "), shown))
    return facts


def _size(count: int) -> str:
    return f"{count / 1_048_576:.1f} MiB" if count else "no limit"


def _all_findings(report: Report) -> list[tuple[str, Finding]]:
    """Return findings with their kinds, the worst first."""
    return [
        *(("error", finding) for finding in report.errors),
        *(("warning", finding) for finding in report.warnings),
        *(("repaired", finding) for finding in report.repaired),
    ]


def _notes(report: Report, *, fix: bool = False) -> list[str]:
    """Return further notes, one line each. *fix*: repairable findings have been repaired."""
    notes = [f"not done: {text}" for text in report.unchecked]
    repairable = sum(finding.is_repairable for finding in report.errors)
    if repairable and not report.unchecked:
        notes.append(f"--fix puts {repairable} of {len(report.errors)} errors right")
    if fix and not report.repaired and not report.unchecked:
        notes.append("nothing that --fix puts right" if report.errors else "nothing to put right")
    parts = [f"{len(report.errors)} errors", f"{len(report.warnings)} warnings"]
    if report.repaired:
        parts.append(f"{len(report.repaired)} repaired")
    notes.append("clean" if not (report.errors or report.warnings or report.repaired) else ", ".join(parts))
    return notes


def _print_plainly(report: Report, *, fix: bool = False) -> None:
    for name, value in _facts(report):
        typer.echo(plain(f"{name}: {value}"))
    for kind, finding in _all_findings(report):
        typer.echo(plain(f"{kind}: {finding.where}: {finding.what}"))
    for note in _notes(report, fix=fix):
        typer.echo(plain(note))


def _print_richly(report: Report, *, fix: bool = False) -> None:
    # Text, not markup: it may come from any client that may write to the store.
    console = Console(highlight=False)
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(report):
        facts.add_row(Text(name, "dim"), cell(value))
    console.print(facts)
    found = _all_findings(report)
    if found:
        table = Table("", "where", "what", show_edge=False, pad_edge=False)
        for kind, finding in found:
            table.add_row(Text(kind, _STYLES[kind]), cell(finding.where), cell(finding.what))
        console.print()
        console.print(table)
    console.print()
    for note in _notes(report, fix=fix):
        console.print(cell(note, "bold" if report.is_clean else "bold red"))
