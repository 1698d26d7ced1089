"""Applications whose database is a file of SQLite, one for each way to connect: as `tests.inbox_doors`."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import aiosqlite

from queuehint import JobSpec
from queuehint.operations import Operation
from queuehint.operations.inbox import operations_of
from tests.inbox_doors import (
    App,
    AsyncApp,
    Core,
    CoreAsync,
    Django,
    Orm,
    OrmAsync,
    ScopedOrm,
    django_settings,
    jobs_of,
)

BUSY_S = 20


def make_application(path: Path) -> None:
    """Make the database of an application, with a table of its own."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE document (id TEXT PRIMARY KEY, version INT NOT NULL DEFAULT 0);"
            "INSERT INTO document (id) SELECT 'd' || value FROM json_each('[1,2,3,4,5,6,7,8,9]');"
        )


def asked(path: Path, statement: str, *values: Any) -> list[Any]:
    """Execute a statement by a connection of its own; return its rows."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as db:
        found = db.execute(statement, values).fetchall()
        db.commit()
    return found


def rows(path: Path) -> list[tuple[Operation[Any], ...]]:
    """Return the operations of each row of the inbox, in order."""
    return [operations_of(data) for (data,) in asked(path, "SELECT data FROM queuehint_inbox ORDER BY number")]


def jobs(path: Path) -> list[JobSpec]:
    """Return the jobs of the inbox, in order."""
    return [spec for operations in rows(path) for spec in jobs_of(operations)]


class Sqlite(App):
    name = "sqlite3"

    def open(self) -> None:
        # An application has its own kinds of rows and texts.
        self.connection = sqlite3.connect(self.url, timeout=BUSY_S, isolation_level="IMMEDIATE")
        self.connection.row_factory = sqlite3.Row
        self.connection.text_factory = bytes

    def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


class SqliteByHand(Sqlite):
    name = "sqlite3, BEGIN by hand"

    def open(self) -> None:
        self.connection = sqlite3.connect(self.url, timeout=BUSY_S, isolation_level=None)
        self.connection.row_factory = lambda _, row: dict(enumerate(row))

    def begin(self) -> None:
        self.connection.execute("BEGIN")


class Aiosqlite(AsyncApp):
    name = "aiosqlite"

    async def aopen(self) -> None:
        self.connection = await aiosqlite.connect(self.url, timeout=BUSY_S, isolation_level="IMMEDIATE")
        self.connection.row_factory = sqlite3.Row

    async def aexecute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def aend(self, how: str) -> None:
        await getattr(self.connection, how)()

    async def aclose(self) -> None:
        await self.connection.close()


class FileCore(Core):
    name = "SQLAlchemy, Core"
    options: ClassVar[dict[str, Any]] = {"connect_args": {"timeout": BUSY_S}}

    def open(self) -> None:
        import sqlalchemy

        self.engine = sqlalchemy.create_engine(f"sqlite:///{self.url}", **self.options)


class FileCoreEvents(FileCore):
    """As SQLAlchemy's page about SQLite says: the driver begins no transaction, an event does."""

    name = "SQLAlchemy, Core, BEGIN by an event"

    def open(self) -> None:
        super().open()

        from sqlalchemy import event

        @event.listens_for(self.engine, "connect")
        def connected(connection: Any, _record: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(self.engine, "begin")
        def begun(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


class FileOrm(Orm, FileCore):
    """A session on a file."""


class FileScopedOrm(ScopedOrm, FileCore):
    """A scoped session on a file."""


class FileCoreAsync(CoreAsync):
    name = "SQLAlchemy, Core, asynchronous"

    async def aopen(self) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        self.engine = create_async_engine(f"sqlite+aiosqlite:///{self.url}", connect_args={"timeout": BUSY_S})


class FileOrmAsync(OrmAsync, FileCoreAsync):
    name = "SQLAlchemy, ORM, asynchronous"


class FileDjango(Django):
    name = "Django"

    def open(self) -> None:
        self.alias = os.fspath(self.url)
        django_settings(self.alias, ENGINE="django.db.backends.sqlite3", NAME=self.url, OPTIONS={"timeout": BUSY_S})

        from django.db import connections

        self.connection = connections[self.alias]


FILE_APPS: tuple[type[App], ...] = (
    Sqlite,
    SqliteByHand,
    Aiosqlite,
    FileCore,
    FileCoreEvents,
    FileOrm,
    FileScopedOrm,
    FileCoreAsync,
    FileOrmAsync,
    FileDjango,
)
