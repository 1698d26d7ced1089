"""Connections and sessions of SQLAlchemy 2, whatever driver is below."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from queuehint.client.transactions.adapter import STATEMENTS_MAX, AsyncAdapter, SyncAdapter, with_names
from queuehint.client.transactions.adapters import refuse
from queuehint.client.transactions.file_rows import WHICH_FILES
from queuehint.client.transactions.sqlite3 import is_outside

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, TextClause

_WAITS = "queuehint.waits"
"""In the `info` of a session: what is called after its next commit."""
_CALLS: WeakKeyDictionary[Connection, Callable[[], None]] = WeakKeyDictionary()
"""What is called by the next commit of a connection."""
WAY_OUT = 'take a connection without isolation_level="AUTOCOMMIT"'


def adapt(connection: object, kind: str) -> SyncAdapter | AsyncAdapter | None:
    """Return the adapter of a connection or a session, None if the object is not of SQLAlchemy."""
    from sqlalchemy.engine import Connection, Engine

    if isinstance(connection, Connection):
        return SqlalchemyConnection(connection, "the SQLAlchemy Connection", kind)
    if isinstance(connection, Engine):
        refuse(connection, "give one of `with engine.begin() as connection`")
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(connection, (orm.Session, orm.scoped_session)):
        return SqlalchemySession(connection, "the SQLAlchemy Session", kind)
    asynchronous = sys.modules.get("sqlalchemy.ext.asyncio")
    if asynchronous is None:
        return None
    if isinstance(connection, asynchronous.AsyncConnection):
        return SqlalchemyAsyncConnection(connection, "the SQLAlchemy AsyncConnection", kind)
    if isinstance(connection, (asynchronous.AsyncSession, asynchronous.async_scoped_session)):
        return SqlalchemyAsyncSession(connection, "the SQLAlchemy AsyncSession", kind)
    if isinstance(connection, asynchronous.AsyncEngine):
        refuse(connection, "give one of `async with engine.begin() as connection`")
    return None


def _check(connection: Connection, adapter: SyncAdapter | AsyncAdapter, statement: str) -> None:
    """Refuse a connection to another kind of database, or with automatic commits."""
    adapter.checked(connection.dialect.name)
    if connection.dialect.name == "sqlite":
        # Events may begin the transaction with the first statement.
        commits = statement != WHICH_FILES and is_outside(connection.connection.driver_connection)
    else:
        commits = getattr(connection.connection.dbapi_connection, "autocommit", False)
    if commits:
        adapter.refuse_autocommit(WAY_OUT)


@lru_cache(STATEMENTS_MAX)
def _clause(statement: str, *kinds: type) -> TextClause:
    from sqlalchemy import LargeBinary, String, bindparam, text

    return text(with_names(statement)).bindparams(
        *[
            bindparam(f"v{index}", type_=LargeBinary if issubclass(kind, bytes) else String)
            for index, kind in enumerate(kinds, 1)
        ]
    )


def _fetch(connection: Connection, statement: str, values: tuple[Any, ...]) -> list[Any]:
    named = {f"v{index}": value for index, value in enumerate(values, 1)}
    return [*connection.execute(_clause(statement, *map(type, values)), named)]


def _tell_of_commit(session: Any, call: Callable[[], None]) -> None:
    """Call a function after the next commit of a session, scoped or asynchronous too."""
    from sqlalchemy import event

    # A scoped session is only called: it has listeners of its own, which outlive it and are found by its address.
    whole = session() if callable(session) else session
    known = getattr(whole, "sync_session", whole)

    if not event.contains(known, "after_commit", _committed):
        event.listen(known, "after_commit", _committed)
    known.info[_WAITS] = call


def _committed(session: Any) -> None:
    """Call the functions registered for the commit of a session."""
    if not session.in_nested_transaction() and (call := session.info.pop(_WAITS, None)) is not None:
        call()


def _tell_before_commit(connection: Connection, call: Callable[[], None]) -> None:
    """Call a function before the next commit of a connection. There is no call after the commit."""
    from sqlalchemy import event

    if not event.contains(connection, "commit", _committing):
        event.listen(connection, "commit", _committing)
    _CALLS[connection] = call


def _committing(connection: Connection) -> None:
    """Call the functions registered for the commit of a connection."""
    call = _CALLS.pop(connection, None)
    if call is not None:
        call()


class SqlalchemyConnection(SyncAdapter):
    """A `Connection` of SQLAlchemy's Core."""

    def before_commit(self, call: Callable[[], None]) -> None:
        """Have something called by an event of the connection."""
        _tell_before_commit(self.connection, call)

    def driver(self) -> object:
        """Return the driver's connection."""
        return self.connection.connection.driver_connection

    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        _check(self.connection, self, statement)
        return _fetch(self.connection, statement, values)


class SqlalchemySession(SyncAdapter):
    """A `Session` of its ORM: the connection that its own statements go by."""

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Have something called by an event of the session."""
        _tell_of_commit(self.connection, call)
        return True

    def driver(self) -> object:
        """Return the driver's connection."""
        return self.connection.connection().connection.driver_connection

    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        connection = self.connection.connection()
        _check(connection, self, statement)
        return _fetch(connection, statement, values)


class SqlalchemyAsyncConnection(AsyncAdapter):
    """An `AsyncConnection`."""

    def before_commit(self, call: Callable[[], None]) -> None:
        """Have something called by an event of the connection."""
        _tell_before_commit(self.connection.sync_connection, call)

    async def driver(self) -> object:
        """Return the driver's connection."""
        return self.connection.sync_connection.connection.driver_connection

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        return await _fetch_async(self.connection, self, statement, values)


class SqlalchemyAsyncSession(AsyncAdapter):
    """An `AsyncSession`: the connection that its own statements go by."""

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Have something called by an event of the session."""
        _tell_of_commit(self.connection, call)
        return True

    async def driver(self) -> object:
        """Return the driver's connection."""
        return (await self.connection.connection()).sync_connection.connection.driver_connection

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        return await _fetch_async(await self.connection.connection(), self, statement, values)


async def _fetch_async(connection: Any, adapter: AsyncAdapter, statement: str, values: tuple[Any, ...]) -> list[Any]:
    def fetch(inner: Connection) -> list[Any]:
        _check(inner, adapter, statement)
        return _fetch(inner, statement, values)

    rows: list[Any] = await connection.run_sync(fetch)
    return rows
