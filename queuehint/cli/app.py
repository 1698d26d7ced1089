"""The commands, one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from queuehint import __version__
from queuehint.cli import cron, dead, flow, limits, postgres, sqlite, weights, xcom
from queuehint.cli.doctor import doctor
from queuehint.cli.enqueue import enqueue
from queuehint.cli.graph import graph, tree
from queuehint.cli.inspect import show, stats, why
from queuehint.cli.intervals import check_intervals
from queuehint.cli.lead import lead
from queuehint.cli.live import top, watch
from queuehint.cli.operate import cancel, close, drain, reopen, retry, run_now
from queuehint.cli.pauses import pause, pauses, resume
from queuehint.cli.records import delete, export, ls
from queuehint.cli.said import Commands
from queuehint.cli.signal import signal
from queuehint.cli.simulate import simulate
from queuehint.cli.trace import check_trace, trace
from queuehint.cli.web import web
from queuehint.cli.worker import worker
from queuehint.cli.workers import workers

# Errors of the application are shown as Python shows them: boxes of local variables would print arguments of jobs.
app = typer.Typer(
    cls=Commands,
    help="Run workers, and look after the jobs and their store.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"queuehint {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run workers, and look after the jobs and their store."""


PANELS: dict[str | None, tuple[Callable[..., None], ...]] = {
    None: (worker, lead, web, doctor, simulate),
    "Look": (
        ls,
        show,
        why,
        tree,
        graph,
        top,
        watch,
        stats,
        pauses,
        workers,
        export,
        trace,
        check_trace,
        check_intervals,
    ),
    "Order": (enqueue, signal, cancel, retry, run_now, pause, resume, close, reopen, drain, delete),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
GROUPS = {"dead": dead, "flow": flow, "cron": cron, "limits": limits, "weights": weights, "xcom": xcom}
for name, group in GROUPS.items():
    app.add_typer(group.app, name=name, rich_help_panel="Order")
app.add_typer(postgres.app, name="postgres")
app.add_typer(sqlite.app, name="sqlite")
