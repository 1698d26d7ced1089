"""
The inbox of a file that is the database of an application: rows that its own transactions have written.

SQLite has one writer at a time, so the numbers of rows are in the order of commits.

No connection is told of the commits of others. The leader looks whether there were any: rarely where nobody writes
rows, and often while a writer has said that one is coming, see `queuehint.backends.sqlite.bell`. How often follows from
how long it has been coming, so that a transaction that takes long costs few looks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.errors import BackendUnavailableError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from pathlib import Path

    from queuehint.backends.sqlite.statements import Statements

LOOKS_EVERY_S: Final = 0.02
"""How often the inbox is looked into while nothing else is asked for, for `USED_S` after a row was found."""
RESTS_EVERY_S: Final = 0.1
"""How often else."""
USED_S: Final = 60.0
HASTE_S: Final = 0.001
"""How often, at most, while a row is coming."""
HASTE: Final = 16
"""A row that has been coming for some time is noticed after a part of that time: one in so many."""


@attrs.frozen
class InboxRow:
    """A row of the inbox: what an application has written in a transaction of its own."""

    id: int
    data: bytes = attrs.field(repr=False)


class Coming:
    """What the leader was told of rows to come; by any thread."""

    def __init__(self) -> None:
        self.newest = (0, -USED_S)
        """The highest number of a row, and the time of the last ring."""

    def note(self, number: int) -> None:
        """Note that a row was written and is not committed yet."""
        self.newest = (max(number, self.newest[0]), time.monotonic())


class Inbox:
    """
    The rows that wait, as the leader of a file sees them.

    Args:
        path: of the file, for errors.
        coming: what is known of rows to come.
    """

    def __init__(self, db: sqlite3.Connection, path: Path, statements: Statements, coming: Coming) -> None:
        self._db = db
        self._path = path
        self._statements = statements
        self._coming = coming
        self._seen = 0
        """The highest number of a row that was read."""
        self.version = 0
        """Of the database, when it was read last: it is another one after each commit of others."""
        self._empty_at: int | None = None
        """The version at which there was no row."""
        self._used_s = -USED_S

    @property
    def looks_every_s(self) -> float:
        """How often it is looked into while nothing else is asked for."""
        number, told_s = self._coming.newest
        now_s = time.monotonic()
        if now_s >= max(self._used_s, told_s) + USED_S:
            return RESTS_EVERY_S
        return LOOKS_EVERY_S if number <= self._seen else min(max((now_s - told_s) / HASTE, HASTE_S), LOOKS_EVERY_S)

    def read(self, limit: int) -> Sequence[InboxRow]:
        """
        Return rows in the order of their transactions' commits.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        (self.version,) = self._db.execute("PRAGMA data_version").fetchone()
        if self.version == self._empty_at:
            return ()
        rows = self._db.execute(self._statements.inbox, (limit,)).fetchall()
        self._empty_at = None if rows else self.version
        if rows:
            self._used_s = time.monotonic()
            self._seen = max(self._seen, rows[-1][0])
        # A stranger may have written something else: it is refused as it is read.
        return [InboxRow(number, data if type(data) is bytes else b"") for number, data in rows]

    def take(self, numbers: Sequence[int]) -> None:
        """
        Remove rows within a transaction: the first ones of the newest answer of `read`.

        Raises:
            BackendUnavailableError: one is not there any more, so that its jobs must not be either.
            sqlite3.Error: the file cannot be written.
        """
        if self._db.execute(self._statements.take, (numbers[0], numbers[-1])).rowcount != len(numbers):
            raise BackendUnavailableError(
                f"{self._path}: another program has changed rows of the inbox while they were taken; "
                "nothing was changed"
            )
