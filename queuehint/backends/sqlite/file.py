"""
The database: a snapshot, and the journal of the operations after it.

Three tables. ``journal`` has a row for each group of operations, numbered without a gap; ``snapshot`` the parts of the
newest snapshot; ``meta`` facts about the whole. A small snapshot replaces the older one and the rows it covers in one
transaction. A large one is put beside the older one in many, none of which takes long; from `switch` on it counts, and
`clear` removes what it has replaced a little at a time. If the process ends in between, the older snapshot and its
journal are as they were.

The database is in WAL mode: a commit appends to one file and, if asked for, waits for the disk once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.backends.sqlite.rows import BUSY, BUSY_S, FULL, IOERR_WRITE, FileRows, code_of
from queuehint.errors import (
    BackendDeniedError,
    BackendUnavailableError,
    CorruptStateError,
    OutcomeUnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from queuehint.backends.journal.store import Header, InboxRow
    from queuehint.backends.sqlite.address import Address

APPLICATION_ID: Final = 0x71756875
"""The application id of our files: "quhu", at a fixed place of the first page."""
TABLES: Final = 2
"""The number of these tables' layout, ``user_version`` of the database."""

_MAKE = """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE journal (number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, operations BLOB NOT NULL);
    CREATE TABLE snapshot (part INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""


class JournalFile(FileRows):
    """
    An open database, see `queuehint.backends.journal.store.Journal`.

    ``header`` is that of the newest snapshot, None if there is none; ``number`` that of the newest row, and ``owner``
    the process that wrote it.

    Args:
        address: where it is; it is made if it is not there.
        namespace: whose jobs are to be in it.

    Raises:
        BackendDeniedError: it must not be written; it is no file of ours, one of another namespace or a newer release.
        BackendUnavailableError: it cannot be opened.
        CorruptStateError: it is damaged.
    """

    looks_every_s: float | None = None

    def __init__(self, address: Address, namespace: str) -> None:
        super().__init__(address.path)
        self.number = 0
        self.owner: str | None = None
        with self._judged():
            _make_private(self.path)
            self._db = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=32
            )
            try:
                self._prepare(address, namespace)
                self._identity = _identity(self.path)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, address: Address, namespace: str) -> None:
        db = self._db
        application, version = self._pragma("application_id"), self._pragma("user_version")
        is_new = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not is_new and application != APPLICATION_ID:
            raise BackendDeniedError(f"{self.path} is a database of another application")
        if not is_new and version != TABLES:
            raise BackendDeniedError(
                f"{self.path} has tables of layout {version}, and this release of queuehint knows {TABLES}: "
                f"use the release that wrote it{', or a newer one' if version > TABLES else ' to finish its jobs'}"
            )
        if str(self._pragma("journal_mode = WAL")).lower() != "wal":
            raise BackendUnavailableError(
                f"{self.path}: a write-ahead log is not possible there, as on a network file system"
            )
        full = address.durability == "full"
        self._synchronous = "FULL" if full else "NORMAL"
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        db.execute(f"PRAGMA fullfsync = {int(full)}")  # macOS: else the disk may keep it in a cache of its own
        if is_new:
            self._make(namespace)
        meta: dict[str, str] = dict(db.execute("SELECT name, value FROM meta"))
        if meta["namespace"] != namespace:
            raise BackendDeniedError(
                f"{self.path} holds the jobs of namespace {meta['namespace']!r}, not {namespace!r}: "
                "each namespace has a file of its own"
            )
        self.owner = meta.get("owner")
        self.header = self._read_header()
        covered = self.covered.number
        rows = "SELECT min(number), max(number), count(*) FROM journal WHERE number > ?"
        first, last, count = db.execute(rows, (covered,)).fetchone()
        if count and (first != covered + 1 or last != covered + count):
            raise CorruptStateError(f"{self.path}: rows of the journal are missing between {covered} and {last}")
        self.number = covered + count

    def _make(self, namespace: str) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        for statement in _MAKE.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('namespace', ?)", (namespace,))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {TABLES}")
        db.execute("COMMIT")

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """
        Yield the times and groups after the snapshot.

        Raises:
            CorruptStateError: the file is damaged.
        """
        for _, at_ms, operations in self.rows_after(self.covered):
            yield at_ms, operations

    def _pragma(self, what: str) -> Any:
        return self._db.execute(f"PRAGMA {what}").fetchone()[0]

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, at_ms: int, data: bytes, *, owner: str | None = None, taken: Sequence[int] = ()) -> None:
        """
        Write a group; once this returns it is as durable as was asked for.

        Args:
            owner: the new writer from here on, if it changes.
            taken: nothing: a file has no inbox.

        Raises:
            BackendFullError: there is no room; nothing was written.
            BackendUnavailableError, BackendDeniedError: nothing was written.
            OutcomeUnknownError: the disk failed in between: only the file can say, once it is opened again.
        """
        assert not taken
        with self._transaction():
            self._db.execute("INSERT INTO journal VALUES (?, ?, ?)", (self.number + 1, at_ms, data))
            if owner is not None:
                self._db.execute("INSERT OR REPLACE INTO meta VALUES ('owner', ?)", (owner,))
        self.number += 1

    def replace(self, parts: Iterable[bytes], header: Header) -> None:
        """
        Put a snapshot in place of the older one and of the rows it covers.

        Args:
            header: without the number of parts, which are counted, and begin at 0.

        Raises:
            BackendError: as of `append`; all is as it was.
        """
        db, count = self._db, 0
        with self._transaction():
            db.execute("DELETE FROM snapshot")
            for part in parts:
                db.execute("INSERT INTO snapshot VALUES (?, ?)", (count, part))
                count += 1
            header = attrs.evolve(header, first=0, parts=count)
            self._write_header(header)
            db.execute("DELETE FROM journal WHERE number <= ?", (header.number,))
        self.header = header

    def after_snapshot(self) -> int:
        """Return the number that the first part of another snapshot has."""
        return 0 if self.header is None else self.header.first + self.header.parts

    def put(self, first: int, parts: Sequence[bytes]) -> None:
        """
        Write some parts of a snapshot to come; the disk is not waited for.

        Raises:
            BackendError: as of `append`.
        """
        self._db.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction():
                self._db.executemany("INSERT OR REPLACE INTO snapshot VALUES (?, ?)", list(enumerate(parts, first)))
        finally:
            self._db.execute(f"PRAGMA synchronous = {self._synchronous}")

    def switch(self, header: Header) -> None:
        """
        Have a snapshot count whose parts were put; all of them are on the disk then if that was asked for.

        Raises:
            BackendError: as of `append`; the older one counts.
        """
        with self._transaction():
            self._write_header(header)
        self.header = header

    def clear(self, parts: int, rows: int) -> bool:
        """
        Remove some of what the snapshot has replaced, and of one that was never finished.

        Return whether more may be left.

        Args:
            parts, rows: how many at most, of snapshots and of the journal.
        """
        header = self.header
        if header is None:
            return False
        first, end = header.first, header.first + header.parts
        with self._transaction():
            gone = self._db.execute(
                "DELETE FROM journal WHERE number IN (SELECT number FROM journal WHERE number <= ? LIMIT ?)",
                (header.number, rows),
            ).rowcount
            gone += self._db.execute(
                "DELETE FROM snapshot WHERE part IN (SELECT part FROM snapshot WHERE part < ? OR part >= ? LIMIT ?)",
                (first, end, parts),
            ).rowcount
        return gone > 0

    def _write_header(self, header: Header) -> None:
        said = json.dumps(attrs.asdict(header))
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('snapshot', ?)", (said,))

    def inbox(self, _limit: int) -> Sequence[InboxRow]:
        """Return nothing: a file has no inbox."""
        return ()

    def lost(self) -> Sequence[bytes]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Close the file; move the write-ahead log to the database if possible."""
        with self._judged():
            self._db.close()

    def hurry(self) -> None:
        """Nothing: a file is not waited for."""

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def check_there(self) -> None:
        """
        Check that the name still leads to this file: writes to a removed one are lost with this process.

        Raises:
            BackendUnavailableError: the file was removed, moved away or replaced.
        """
        try:
            is_there = _identity(self.path) == self._identity
        except OSError:
            is_there = False
        if not is_there:
            raise BackendUnavailableError(
                f"{self.path} is not the file any more that was opened: it was removed, moved or replaced; "
                "nothing was changed"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.check_there()
        db = self._db
        with self._judged():
            db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._roll_back()
                raise
        is_sure = False
        try:
            db.execute("COMMIT")
            is_sure = True
        except sqlite3.Error as error:
            if (code_of(error) & 0xFF) == FULL or code_of(error) in {BUSY, IOERR_WRITE}:
                # The commit record of the log is written last: it was not written.
                self._roll_back()
                self._judge(error)
            raise OutcomeUnknownError(
                f"{self.path}: the disk failed ({error}); the operation may have been done"
            ) from error
        finally:
            if not is_sure and db.in_transaction:
                self._roll_back()

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            pass


def _make_private(path: Path) -> None:
    """Make a file that only its owner may read and write, if it is not there; those beside it get the same mode."""
    with contextlib.suppress(OSError):  # what is wrong, SQLite says
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _identity(path: Path) -> tuple[int, int]:
    """Return the identity of the file that a name leads to."""
    found = path.stat()
    return found.st_dev, found.st_ino
