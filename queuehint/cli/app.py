"""The commands, one line each."""

from __future__ import annotations

from typing import Annotated

import typer

from queuehint import __version__
from queuehint.cli.doctor import doctor
from queuehint.cli.worker import worker

# Errors of the application are shown as Python shows them: boxes of local variables would print arguments of jobs.
app = typer.Typer(
    help="Run workers, and look after their store.",
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
    """Run workers, and look after their store."""


app.command()(worker)
app.command()(doctor)
