"""Connections of the standard library's `sqlite3`, and of aiosqlite, which runs a connection on a thread."""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

from queuehint.client.transactions.adapter import AsyncAdapter, SyncAdapter, with_question_marks
from queuehint.client.transactions.adapters import refuse

WAY_OUT = 'execute "BEGIN IMMEDIATE" before it'


def adapt(connection: object, kind: str) -> SyncAdapter | AsyncAdapter | None:
    """
    Return the adapter of a connection, None if the connection is not of sqlite3 or aiosqlite.

    Raises:
        InvalidJobError: jobs are kept in a database of another kind.
    """
    if isinstance(connection, sqlite3.Connection):
        return SqliteConnection(connection, "the sqlite3 Connection", kind).checked("sqlite")
    if isinstance(connection, sqlite3.Cursor):
        refuse(connection, "give cursor.connection")
    aiosqlite = sys.modules.get("aiosqlite")
    if aiosqlite is not None and isinstance(connection, aiosqlite.Connection):
        return AiosqliteConnection(connection, "the aiosqlite Connection", kind).checked("sqlite")
    return None


def is_outside(connection: Any) -> bool:
    """Return whether each statement of a connection, of whatever library, is a transaction of its own."""
    if connection.in_transaction:
        return False
    # From Python 3.12 on it may say so itself, else -1.
    autocommit = getattr(getattr(connection, "_conn", connection), "autocommit", -1)
    return autocommit is True or (autocommit == -1 and connection.isolation_level is None)


class SqliteConnection(SyncAdapter):
    """A `sqlite3.Connection`. Its own row and cursor factories are not used."""

    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        if is_outside(self.connection):
            self.refuse_autocommit(WAY_OUT)
        return sqlite3.Cursor(self.connection).execute(with_question_marks(statement), values).fetchall()


class AiosqliteConnection(AsyncAdapter):
    """An `aiosqlite.Connection`, as `SqliteConnection`."""

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        if is_outside(self.connection):
            self.refuse_autocommit(WAY_OUT)
        async with self.connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(with_question_marks(statement), values)
            return [*await cursor.fetchall()]
