"""Connections of asyncpg."""

from __future__ import annotations

from typing import Any

from queuehint.client.transactions.adapter import AsyncAdapter
from queuehint.client.transactions.adapters import refuse


def adapt(connection: object, kind: str) -> AsyncAdapter | None:
    """Return the adapter of a connection, None if the connection is not of asyncpg."""
    import asyncpg

    # One that a pool has lent counts as a Connection, too.
    if isinstance(connection, asyncpg.Connection):
        return AsyncpgConnection(connection, "the asyncpg Connection", kind).checked("postgresql")
    if isinstance(connection, asyncpg.Pool):
        refuse(connection, "give one of `async with pool.acquire() as connection`")
    return None


class AsyncpgConnection(AsyncAdapter):
    """An `asyncpg.Connection`, direct or lent by a pool."""

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        if not self.connection.is_in_transaction():
            self.refuse_autocommit("write it inside of `async with connection.transaction():`")
        rows: list[Any] = await self.connection.fetch(statement, *values)
        return rows
