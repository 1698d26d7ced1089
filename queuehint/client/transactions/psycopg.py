"""Connections of psycopg 3."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from queuehint.client.transactions.adapter import AsyncAdapter, SyncAdapter, with_percents
from queuehint.client.transactions.adapters import refuse

WAY_OUT = "write it inside of `with connection.transaction():`"


def adapt(connection: object, kind: str) -> SyncAdapter | AsyncAdapter | None:
    """Return the adapter of a connection, None if the connection is not of psycopg."""
    if isinstance(connection, psycopg.Connection):
        return PsycopgConnection(connection, "the psycopg Connection", kind).checked("postgresql")
    if isinstance(connection, psycopg.AsyncConnection):
        return PsycopgAsyncConnection(connection, "the psycopg AsyncConnection", kind).checked("postgresql")
    if isinstance(connection, (psycopg.Cursor, psycopg.AsyncCursor)):
        refuse(connection, "give cursor.connection")
    return None


def _is_outside(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether each statement is a transaction of its own."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


class PsycopgConnection(SyncAdapter):
    """A `psycopg.Connection`. Its own row and cursor factories are not used."""

    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        if _is_outside(self.connection):
            self.refuse_autocommit(WAY_OUT)
        with psycopg.Cursor(self.connection, row_factory=tuple_row) as cursor:
            cursor.execute(with_percents(statement).encode(), values)
            return cursor.fetchall()


class PsycopgAsyncConnection(AsyncAdapter):
    """A `psycopg.AsyncConnection`, as `PsycopgConnection`."""

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        if _is_outside(self.connection):
            self.refuse_autocommit(f"write it inside of `async {WAY_OUT.partition('`')[2]}")
        async with psycopg.AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            await cursor.execute(with_percents(statement).encode(), values)
            return await cursor.fetchall()
