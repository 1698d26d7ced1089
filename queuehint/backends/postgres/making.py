"""Making, migrating and removing the tables."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.postgres.layout import LAYOUT, lock_key, migration, quoted, reversal
from queuehint.backends.postgres.sessions.failures import LostError, RefusedError
from queuehint.backends.postgres.sessions.session import integer, statement, text
from queuehint.errors import BackendDeniedError, BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.backends.postgres.address import Address
    from queuehint.backends.postgres.sessions.session import Session

LOCK_S: Final = 2.0
"""How long a change of older tables waits for those who use them; it is tried again by the next call."""
_NO_RIGHT: Final = "42501"
# The catalog is read as any table: `to_regclass` may answer from before the wait for a lock.
_FIND: Final = statement(
    "find",
    """
    SELECT n.oid IS NOT NULL, bool_or(c.relname = 'layout'), bool_or(c.relname IN ('journal', 'leader', 'inbox'))
    FROM (VALUES ($1)) wanted (name) LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.name
    LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v') GROUP BY 1
    """,
)


@attrs.frozen(kw_only=True)
class Held:
    """What the tables hold of a namespace."""

    namespace: str
    rows: int
    """Of the journal."""
    parts: int
    """Of snapshots."""
    waiting: int
    """In the inbox."""
    pid: int | None
    """Of the process that leads; None if nobody does."""


def prepare(session: Session, address: Address) -> tuple[int, int]:
    """
    Make the tables if they are not there, or those of this release of older ones.

    Two processes at once make them once. Return the number of the layout before and after.

    Raises:
        BackendDeniedError: this user may not make them; or they are of a later release.
        BackendUnavailableError: the server does not answer, or another process makes them for too long.
    """
    with session.judged():
        try:
            found = layout_of(session, address)
            return (found, found) if found == LAYOUT else _make(session, address)
        except RefusedError as error:
            if error.code != _NO_RIGHT:
                raise
            raise BackendDeniedError(
                f"{address.shown}: this user may not use or make the tables in schema {address.schema} ({error}); "
                "let its owner run `queuehint postgres ddl URL` and GRANT what `--roles` prints"
            ) from error


def layout_of(session: Session, address: Address) -> int:
    """
    Return the number of the layout of the tables, 0 if they are not there.

    Raises:
        BackendDeniedError: they are of a later release, or of another application.
        LostError, RefusedError: as of the session.
    """
    schema = quoted(address.schema)
    ((_, has_layout, has_others),) = session.run(_FIND, address.schema)
    if not integer(has_layout):
        if integer(has_others):
            raise BackendDeniedError(
                f"{address.shown}: schema {address.schema} has tables of another application: choose another by schema="
            )
        return 0
    rows = session.run(statement("layout", f"SELECT number FROM {schema}.layout"))
    if len(rows) != 1:
        raise BackendUnavailableError(
            f"{address.shown}: the tables in schema {address.schema} are being made or removed"
        )
    number = integer(rows[0][0])
    if number > LAYOUT:
        raise BackendDeniedError(
            f"{address.shown} has tables of layout {number}, and this release of queuehint knows {LAYOUT}: "
            "use the release that made them, or a newer one"
        )
    return number


def _make(session: Session, address: Address) -> tuple[int, int]:
    with _transaction(session, address):
        before = layout_of(session, address)
        ((has_schema, *_),) = session.run(_FIND, address.schema)
        if not integer(has_schema):  # whoever may not make schemas may not say IF NOT EXISTS either
            session.script(f"CREATE SCHEMA {quoted(address.schema)}")
        # A leader of older tables could not renew its lead while this waits behind a dump.
        session.script(f"SET LOCAL lock_timeout = '{LOCK_S:g}s'")
        for number in range(before + 1, LAYOUT + 1):
            session.script(migration(address.schema, number))
    return before, LAYOUT


@contextlib.contextmanager
def _transaction(session: Session, address: Address) -> Iterator[None]:
    """Begin a transaction that holds the lock of those who make or remove tables."""
    session.script("BEGIN")
    try:
        session.script(f"SELECT pg_advisory_xact_lock({lock_key(address.schema)})")
        yield
    except BaseException:
        with contextlib.suppress(LostError, RefusedError):
            session.script("ROLLBACK")
        raise
    session.script("COMMIT")


def held(session: Session, address: Address) -> list[Held]:
    """
    Return what there is, by namespace.

    Raises:
        LostError, RefusedError: as of the session.
    """
    schema = quoted(address.schema)
    rows = session.run(
        statement(
            "held",
            f"""
            SELECT n.namespace,
                (SELECT count(*) FROM {schema}.journal j WHERE j.namespace = n.namespace),
                (SELECT count(*) FROM {schema}.snapshot s WHERE s.namespace = n.namespace),
                (SELECT count(*) FROM {schema}.inbox i WHERE i.namespace = n.namespace),
                (SELECT pid FROM {schema}.leader l WHERE l.namespace = n.namespace AND l.expires_at > clock_timestamp())
            FROM (SELECT namespace FROM {schema}.leader UNION SELECT namespace FROM {schema}.inbox) n ORDER BY 1
            """,
        )
    )
    return [
        Held(
            namespace=text(namespace) or "",
            rows=integer(rows),
            parts=integer(parts),
            waiting=integer(waiting),
            pid=None if pid is None else integer(pid),
        )
        for namespace, rows, parts, waiting, pid in rows
    ]


def drop(session: Session, address: Address) -> bool:
    """
    Remove all that `prepare` has made, in one transaction; return False if the schema stays, for what else is in it.

    Raises:
        LostError, RefusedError: as of the session; all is as it was.
    """
    with _transaction(session, address):
        session.script(reversal(address.schema, 1))
    ((has_schema, *_),) = session.run(_FIND, address.schema)
    return not integer(has_schema)
