"""Adapters of connections: which library takes a connection."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from queuehint.client.transactions.adapters import adapter_of
from queuehint.errors import InvalidJobTypeError


class Proxy:
    """Stands for another object, as those that frameworks bind to a request or a thread."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind


def test_proxies_of_one_type_stand_for_connections_of_several_libraries() -> None:
    for _ in range(2):
        for kind, database, name in (
            (psycopg.Connection, "postgresql", "the psycopg Connection"),
            (sqlite3.Connection, "sqlite", "the sqlite3 Connection"),
        ):
            assert adapter_of(Proxy(kind), database).name == name
        with pytest.raises(InvalidJobTypeError, match="connection must be one of SQLAlchemy"):
            adapter_of(Proxy(int), "postgresql")
