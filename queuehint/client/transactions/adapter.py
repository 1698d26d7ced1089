"""The interface to a connection of the application, whatever its library."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Self, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from queuehint.errors import InvalidJobError

T = TypeVar("T")

Steps: TypeAlias = Generator[tuple[str, tuple[str | bytes, ...]], list[Any], T]
"""Statements with their values, each answered by its rows, and what they end with."""
_KINDS: Final = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}
"""How messages write the kinds of databases."""
_DATABASES: Final[WeakKeyDictionary[Any, str]] = WeakKeyDictionary()
"""Which database a connection of a driver was found to lead to."""
STATEMENTS_MAX: Final = 64
"""How many statements are kept in each style of placeholders: there are seven for each inbox."""
_NUMBERED: Final = re.compile(r"\$([0-9])")


class _Adapter:
    """
    A connection in its transaction.

    Statements return rows, and have each of their values once, in order: ``$1``, ``$2``, …

    Attributes:
        name: what errors call the connection.
        kind: of the database in which the jobs are.
    """

    def __init__(self, connection: Any, name: str, kind: str) -> None:
        self.connection = connection
        self.name = name
        self.kind = kind

    def checked(self, kind: str) -> Self:
        """
        Return the adapter of a connection that leads to this kind of database.

        Raises:
            InvalidJobError: the jobs are in one of another kind.
        """
        if kind != self.kind:
            raise InvalidJobError(
                f"{self.name} leads to {kind}: jobs are written in transactions of {_KINDS[self.kind]}"
            )
        return self

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Call a function once the transaction is committed. Return whether the library reports commits."""
        return False

    def before_commit(self, call: Callable[[], None]) -> None:
        """Call a function before the commit of the transaction, if the library reports commits."""

    def refuse_autocommit(self, way_out: str) -> None:
        """
        Refuse to write outside of a transaction.

        Raises:
            InvalidJobError: always.
        """
        raise InvalidJobError(f"{self.name} is in no transaction, and would commit the job by itself: {way_out}")


class SyncAdapter(_Adapter, ABC):
    """A synchronous connection."""

    def driver(self) -> object:
        """Return the driver's own connection: one session of the server for its whole life."""
        return self.connection

    @abstractmethod
    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """
        Execute a statement in the transaction of the connection. Return its rows.

        Raises:
            InvalidJobError: the connection is in no transaction, and begins none by itself.
            Exception: whatever the library raises, as it is: the transaction is the application's.
        """

    def run(self, steps: Steps[T]) -> T:
        """Execute statements one after the other. Return their result."""
        answer: list[Any] | None = None
        while True:
            try:
                statement, values = next(steps) if answer is None else steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = self.fetch(statement, *values)


class AsyncAdapter(_Adapter, ABC):
    """An asynchronous connection."""

    async def driver(self) -> object:
        """Return the driver's own connection. Everything else is as in `SyncAdapter`."""
        return self.connection

    @abstractmethod
    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement. Everything else is as in `SyncAdapter`."""

    async def run(self, steps: Steps[T]) -> T:
        """Execute statements. Everything else is as in `SyncAdapter`."""
        answer: list[Any] | None = None
        while True:
            try:
                statement, values = next(steps) if answer is None else steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = await self.fetch(statement, *values)


def leads_to(driver: object, database: str) -> bool:
    """Return whether a connection is known to lead to a database."""
    try:
        return _DATABASES.get(driver) == database
    except TypeError:  # one that may not be referred to weakly, such as of a pool of asyncpg
        return False


def note_database(driver: object, database: str) -> None:
    """Record the database of a connection, for the life of the connection."""
    with suppress(TypeError):
        _DATABASES[driver] = database


@lru_cache(STATEMENTS_MAX)
def with_percents(statement: str) -> str:
    """
    Return a statement with ``%s`` for each value.

    >>> with_percents("SELECT $1, '%'")
    "SELECT %s, '%%'"
    """
    return _NUMBERED.sub("%s", statement.replace("%", "%%"))


@lru_cache(STATEMENTS_MAX)
def with_question_marks(statement: str) -> str:
    """
    Return a statement with ``?1`` for the first value, and so on.

    >>> with_question_marks("SELECT $1, $2")
    'SELECT ?1, ?2'
    """
    return _NUMBERED.sub(r"?\1", statement)


def with_names(statement: str) -> str:
    r"""
    Return a statement with ``:v1`` for the first value, and so on.

    >>> with_names("SELECT $1, ':a'")
    "SELECT :v1, '\\:a'"
    """
    return _NUMBERED.sub(r":v\1", statement.replace("\\", "\\\\").replace(":", "\\:"))
