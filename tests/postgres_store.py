"""A journal in a database of a test's own, and what the test does beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.store import Header
from queuehint.backends.postgres import store as store_module
from queuehint.backends.postgres.address import Address, parse_url
from queuehint.backends.postgres.backend import PostgresBackend
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.lead import PostgresLead
from queuehint.backends.postgres.store import PostgresStore
from queuehint.operations import Operation
from queuehint.testing.driver import Driver
from tests.postgres_servers import PostgresServer

PUT = "INSERT INTO queuehint.inbox (namespace, data) VALUES (%s, %s)"


class Caller(Driver):
    """A client of a store, closed when the test is over."""

    def __init__(self, store: PostgresBackend) -> None:
        super().__init__()
        self.store = store

    def apply(self, operation: Operation[Any]) -> Any:
        return self.store.call_sync(operation)

    def advance(self, ms: int) -> None:
        raise NotImplementedError


class Place:
    """A database, and stores in it."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server = server
        self.database = database
        self._opened = ExitStack()

    def url(self, *options: str, user: str = "postgres") -> str:
        return self.server.url_of(self.database, user) + ("?" + "&".join(options) if options else "")

    def address(self, *options: str, user: str = "postgres") -> Address:
        return parse_url(self.url(*options, user=user))

    def store(self, *options: str, namespace: str = "n", user: str = "postgres") -> PostgresStore:
        return PostgresStore(self.address(*options, user=user), namespace)

    def lead(self, *options: str, **more: Any) -> PostgresLead:
        """Take the lead; it is left when the test is over."""
        lead = self.store(*options, **more).take_lead()
        self._opened.callback(lead.release)
        return lead

    def open(self, *options: str, **more: Any) -> tuple[PostgresLead, PostgresJournal]:
        """Take the lead, and open the journal; both are closed when the test is over."""
        store = self.store(*options, **more)
        lead = store.take_lead()
        self._opened.callback(lead.release)
        journal = store.open(lead)
        self._opened.callback(journal.close)
        return lead, journal

    def journal(self, *options: str, **more: Any) -> PostgresJournal:
        return self.open(*options, **more)[1]

    def run(self, *statements: str, user: str = "postgres") -> list[Any]:
        return self.server.run(*statements, database=self.database, user=user)

    def connect(self, user: str = "postgres") -> psycopg.Connection:
        """Connect as an application; closed when the test is over."""
        connection = psycopg.connect(self.server.url_of(self.database, user))
        self._opened.callback(connection.close)
        return connection

    def put(self, *texts: str, namespace: str = "n") -> None:
        """Write rows of the inbox, each in a transaction of its own."""
        with psycopg.connect(self.server.url_of(self.database), autocommit=True) as connection:
            for text in texts:
                connection.execute(PUT, (namespace, text.encode()))

    def stored(self, namespace: str = "n") -> list[str]:
        """Return the data of the journal's rows."""
        found = self.run(f"SELECT data FROM queuehint.journal WHERE namespace = '{namespace}' ORDER BY number")
        return [data.decode() for (data,) in found]

    def waiting(self, namespace: str = "n") -> list[str]:
        """Return the data of the inbox's rows."""
        found = self.run(f"SELECT data FROM queuehint.inbox WHERE namespace = '{namespace}' ORDER BY position")
        return [data.decode() for (data,) in found]

    def end_sessions(self) -> None:
        """End the sessions of all stores, as an administrator does, and wait until they have ended."""
        self.run("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'queuehint'")

    def caller(self, *options: str, machine: str | None = None, user: str = "postgres", namespace: str = "n") -> Caller:
        """Open a store, as a process of a machine does; closed when the test is over."""
        with pytest.MonkeyPatch.context() as patch:
            if machine is not None:
                patch.setattr(store_module, "machine", lambda: machine)
            store = PostgresBackend(self.address(*options, user=user), BackendOptions(namespace=namespace))
        self._opened.callback(store.close_sync)
        return Caller(store)

    def close(self) -> None:
        self._opened.close()


@contextmanager
def open_place(server: PostgresServer) -> Iterator[Place]:
    """Make a database on a server, and close all that was opened there."""
    with server.database() as database:
        place = Place(server, database)
        try:
            yield place
        finally:
            place.close()


def header(number: int, first: int = 0, parts: int = 0) -> Header:
    return Header(number=number, layout=7, first=first, parts=parts, release="1.0", options='{"a":1}')
