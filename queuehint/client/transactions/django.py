"""Connections of Django: `django.db.connection`, and each of `django.db.connections`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from queuehint.client.transactions.adapter import SyncAdapter, with_percents

if TYPE_CHECKING:
    from collections.abc import Callable


def adapt(connection: object, kind: str) -> SyncAdapter | None:
    """
    Return the adapter of a connection, None if the connection is not of Django.

    Raises:
        InvalidJobError: jobs are kept in a database of another kind.
    """
    wrappers, proxies = map(sys.modules.get, ("django.db.backends.base.base", "django.utils.connection"))
    kinds = [
        *([] if wrappers is None else [wrappers.BaseDatabaseWrapper]),
        *([] if proxies is None else [proxies.ConnectionProxy]),
    ]
    if not isinstance(connection, tuple(kinds)):
        return None
    wrapper: Any = connection
    return DjangoConnection(connection, f"Django's connection {wrapper.alias!r}", kind).checked(wrapper.vendor)


class DjangoConnection(SyncAdapter):
    """A connection of Django. The underlying connection may change with the thread."""

    def driver(self) -> object:
        """Return the driver's connection. None before the first statement."""
        return self.connection.connection

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Call a function by Django's hook, which is available only in Django's own blocks."""
        if not self.connection.in_atomic_block:
            return False
        self.connection.on_commit(call)
        return True

    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement and return its rows."""
        if not self.connection.in_atomic_block and self.connection.get_autocommit():
            self.refuse_autocommit("write it inside of `with transaction.atomic():`")
        with self.connection.cursor() as cursor:
            cursor.execute(with_percents(statement), values)
            rows: list[Any] = cursor.fetchall()
            return rows
