"""``queuehint sqlite ddl``: the tables of a store in a file that is the database of an application."""

from __future__ import annotations

import typer

from queuehint.backends.sqlite.layout import TABLES, reversal, statements
from queuehint.cli.migrations import AfterOption, Format, FormatOption, Migration, printed
from queuehint.cli.opening import EXIT_USAGE, UsageError

app = typer.Typer(no_args_is_help=True, help="The tables of a store in the SQLite database of an application.")


@app.callback()
def options() -> None:
    """Print the tables of a store in the SQLite database of an application."""


@app.command()
def ddl(format: FormatOption = Format.SQL, after: AfterOption = None) -> None:
    """Print the statements that make the tables, or a migration that does; opens nothing."""
    try:
        typer.echo(_text(format, after), nl=False)
    except UsageError as error:
        typer.echo(f"queuehint: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


def _text(form: Format, after: str | None) -> str:
    made = statements(shared=True)
    if form is Format.SQL:
        if after is not None:
            raise UsageError("--after requires --format alembic or django")
        return "\n".join(["BEGIN;", *made, "COMMIT;", ""])
    migration = Migration(
        name=f"queuehint_{TABLES}",
        title=f"Tables of queuehint, layout {TABLES}.",
        command=f"queuehint sqlite ddl --format {form}",
        upgrade=made,
        downgrade=reversal(),
        after=after,
    )
    return printed(form, migration)
