"""``queuehint postgres ddl, migrate, drop``: the tables of a store in PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.layout import LAYOUT, downgrade, lock_key, upgrade
from queuehint.backends.postgres.layout import ddl as ddl_of
from queuehint.backends.postgres.layout import roles as roles_of
from queuehint.cli.migrations import AfterOption, Format, FormatOption, Migration, printed, statements_of
from queuehint.cli.opening import EXIT_REFUSED, EXIT_STORE, EXIT_USAGE, UsageError, Yes, confirm
from queuehint.cli.said import said
from queuehint.errors import BackendError, InvalidJobError, MissingExtraError

if TYPE_CHECKING:
    from queuehint.backends.postgres.address import Address
    from queuehint.backends.postgres.making import Held
    from queuehint.backends.postgres.sessions.session import Session

app = typer.Typer(no_args_is_help=True, help="The tables of a store in PostgreSQL.")

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        envvar="QUEUEHINT_URL",
        help="Of the store: postgresql://user@host:5432/database?schema=queuehint.",
    ),
]
REVISION_MAX = 32
SHOWN = 20
"""So many namespaces are named before their tables are removed."""


@app.command()
def ddl(
    url: Url,
    roles: Annotated[
        bool, typer.Option("--roles", help="Print roles for workers, producers and lookers too, with what they need.")
    ] = False,
    format: FormatOption = Format.SQL,
    since: Annotated[
        int, typer.Option("--from", min=0, max=LAYOUT - 1, help="The layout of the tables that are there; 0 for none.")
    ] = 0,
    after: AfterOption = None,
) -> None:
    """Print the statements that make the tables, or a migration that does, for a user who may; connects to nothing."""
    with _ending():
        schema = parse_url(url).schema
        if format is not Format.SQL:
            if roles:
                raise UsageError("--roles requires --format sql")
            typer.echo(printed(format, _migration(schema, format, since, after)), nl=False)
            return
        if after is not None:
            raise UsageError("--after requires --format alembic or django")
        typer.echo(ddl_of(schema, since) + (f"\n{roles_of(schema)}" if roles else ""), nl=False)


def _name(schema: str) -> str:
    """Return the name of a revision. The table of Alembic has room for 32 characters."""
    name = f"queuehint_{schema}_{LAYOUT}" if schema != "queuehint" else f"queuehint_{LAYOUT}"
    return name if len(name) <= REVISION_MAX else f"queuehint_{lock_key(schema) % (1 << 64):016x}_{LAYOUT}"


def _migration(schema: str, form: Format, since: int, after: str | None) -> Migration:
    what = f" --from {since}" if since else ""
    return Migration(
        name=_name(schema),
        title=f"Tables of queuehint in schema {schema}, layout {LAYOUT}.",
        command=f"queuehint postgres ddl URL --format {form}{what}",
        upgrade=statements_of(upgrade(schema, since)),
        downgrade=statements_of(downgrade(schema, since)),
        after=after,
    )


@app.command()
def migrate(url: Url) -> None:
    """Make the tables, or those of this release of older ones; changes nothing if they are there."""
    with _ending(), _session(url) as (session, address):
        from queuehint.backends.postgres.making import prepare

        before, after = prepare(session, address)
        if before == after:
            typer.echo(f"schema {address.schema} has layout {after} already")
        elif before:
            typer.echo(f"schema {address.schema} had layout {before} and has layout {after}")
        else:
            typer.echo(f"made layout {after} in schema {address.schema}")


@app.command()
def drop(url: Url, yes: Yes = False) -> None:
    """Remove the tables with all jobs; what else is in the schema stays."""
    with _ending(), _session(url) as (session, address):
        from queuehint.backends.postgres.making import drop as drop_tables
        from queuehint.backends.postgres.making import held, layout_of

        if not layout_of(session, address):
            typer.echo(f"queuehint: schema {address.schema} has no tables of queuehint", err=True)
            raise typer.Exit(EXIT_REFUSED)
        found = held(session, address)
        for each in found[:SHOWN]:
            typer.echo(_line(each))
        if len(found) > SHOWN:
            typer.echo(f"and {len(found) - SHOWN} more namespaces")
        what = f"the tables in schema {address.schema}, with all jobs of {len(found)} namespaces"
        confirm(f"Remove {what}?", yes=yes)
        is_whole = drop_tables(session, address)
        rest = "" if is_whole else "; the schema stays, for what else is in it"
        typer.echo(f"removed {what}{rest}")


def _line(held: Held) -> str:
    leads = "" if held.pid is None else f"; process {held.pid} leads it: stop it first"
    return (
        f"namespace {held.namespace}: {held.rows} rows of the journal, {held.parts} parts of snapshots, "
        f"{held.waiting} rows of the inbox{leads}"
    )


@contextlib.contextmanager
def _session(url: str) -> Iterator[tuple[Session, Address]]:
    """Connect to the server of a URL, past a pooler if the URL has its address. A refusal is a `BackendError`."""
    address = parse_url(url).for_leading
    from queuehint.backends.postgres.sessions.session import Session  # the driver is imported by those who need it

    with contextlib.closing(Session(address)) as session, session.judged():
        yield session, address


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """End the command with 2 for invalid input, and with 3 for an unreachable store."""
    try:
        yield
    except (InvalidJobError, UsageError, MissingExtraError) as error:
        _end(error, EXIT_USAGE)
    except BackendError as error:
        _end(error, EXIT_STORE)


def _end(error: Exception, code: int) -> NoReturn:
    typer.echo(f"queuehint: {said(str(error))}", err=True)
    raise typer.Exit(code) from None
