"""
Find the adapter of a connection, by its library.

No library is imported for this: a connection of a library that is not imported cannot be there.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from queuehint.errors import InvalidJobTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.client.transactions.adapter import AsyncAdapter, SyncAdapter

    Adapt: TypeAlias = Callable[[object, str], SyncAdapter | AsyncAdapter | None]

LIBRARIES: Final = ("sqlalchemy", "psycopg", "asyncpg", "django", "sqlite3")
"""Each is a module beside this one with a function `adapt`."""
_ADAPT: Final[WeakKeyDictionary[type[Any], Adapt]] = WeakKeyDictionary()
"""The function that took a connection of a type before: it is asked first."""
TAKEN: Final = (
    "one of SQLAlchemy (Connection, Session, AsyncConnection, AsyncSession), psycopg 3 (Connection, AsyncConnection), "
    "asyncpg (Connection), Django (connection), sqlite3 (Connection) or aiosqlite (Connection)"
)


def adapter_of(connection: object, kind: str) -> SyncAdapter | AsyncAdapter:
    """
    Return the adapter of a connection.

    Args:
        kind: of the database in which the jobs are, ``"postgresql"`` or ``"sqlite"``.

    Raises:
        InvalidJobError: it leads to one of another kind, as far as that is known yet.
        InvalidJobTypeError: it is none of those that are known.
    """
    known = _ADAPT.get(type(connection))
    # One type may stand for connections of several libraries, as a proxy does.
    if known is not None and (adapter := known(connection, kind)) is not None:
        return adapter
    for library in LIBRARIES:
        if library in sys.modules:
            adapt: Adapt = import_module(f"{__package__}.{library}").adapt
            adapter = adapt(connection, kind)
            if adapter is not None:
                _ADAPT[type(connection)] = adapt
                return adapter
    found = type(connection)
    raise InvalidJobTypeError(f"connection must be {TAKEN}, got {found.__module__}.{found.__qualname__}")


def refuse(connection: object, way_out: str) -> None:
    """
    Refuse an object of a known library that has no transaction of its own.

    Raises:
        InvalidJobTypeError: always.
    """
    kind = type(connection)
    raise InvalidJobTypeError(f"connection must be a connection, got {kind.__module__}.{kind.__qualname__}: {way_out}")
