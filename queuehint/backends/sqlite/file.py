"""
The database: a snapshot, and the journal of the operations after it.

Three tables, see `queuehint.backends.sqlite.layout`. ``journal`` has a row for each group of operations, numbered
without a gap; ``snapshot`` the parts of the newest snapshot; ``meta`` facts about the whole. A small snapshot replaces
the older one and the rows it covers in one transaction. A large one is put beside the older one in many, none of which
takes long; from `switch` on it counts, and `clear` removes what it has replaced a little at a time. If the process ends
in between, the older snapshot and its journal are as they were.

The database is in WAL mode: a commit appends to one file and, if asked for, waits for the disk once.

The database of an application has other writers, of which SQLite lets in one at a time: a transaction waits for them,
in bounded time, and is short itself. Rows may have been replaced meanwhile by those of a backup, so each transaction
looks whether the newest row is the one that this process has written; else the process is deposed, and everybody begins
with what is there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.backends.journal.lead.leadership import DeposedError
from queuehint.backends.sqlite.inbox import Coming, Inbox
from queuehint.backends.sqlite.layout import APPLICATION_ID, TABLES, is_made, statements
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

logger = logging.getLogger("queuehint.sqlite")

_LOOKS_S: Final = 0.001
"""How often it is looked whether another connection still writes."""


class JournalFile(FileRows):
    """
    An open database, see `queuehint.backends.journal.store.Journal`.

    ``header`` is that of the newest snapshot, None if there is none; ``number`` that of the newest row, and ``owner``
    the process that wrote it.

    Args:
        address: where it is; it is made if it is not there.
        namespace: whose jobs are to be in it.
        coming: what is known of rows that an application is about to commit.

    Raises:
        BackendDeniedError: it must not be written; it is no file of ours, one of another namespace or a newer release.
        BackendUnavailableError: it cannot be opened.
        CorruptStateError: it is damaged.
    """

    looks_always: bool = True
    seen: int = 0

    def __init__(self, address: Address, namespace: str, coming: Coming | None = None) -> None:
        super().__init__(address)
        self._coming = coming or Coming()
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
        is_new = not is_made(db, self.path, shared=address.shared)
        if str(self._pragma("journal_mode = WAL")).lower() != "wal":
            raise BackendUnavailableError(
                f"{self.path}: a write-ahead log is not possible there, as on a network file system"
            )
        full = address.durability == "full"
        self._synchronous = "FULL" if full else "NORMAL"
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        db.execute(f"PRAGMA fullfsync = {int(full)}")  # macOS: else the disk may keep it in a cache of its own
        if is_new:
            self._make()
        meta: dict[str, str] = dict(db.execute(self._statements.facts))
        if "namespace" not in meta:
            db.execute(self._statements.set_fact, ("namespace", namespace))
            meta["namespace"] = namespace
        if meta["namespace"] != namespace:
            raise BackendDeniedError(
                f"{self.path} holds the jobs of namespace {meta['namespace']!r}, not {namespace!r}: "
                "each namespace has a file of its own"
            )
        self.owner = meta.get("owner")
        self.header = self._read_header()
        covered = self.covered.number
        first, last, count = db.execute(self._statements.extent, (covered,)).fetchone()
        if count and (first != covered + 1 or last != covered + count):
            raise CorruptStateError(f"{self.path}: rows of the journal are missing between {covered} and {last}")
        self.number = covered + count
        self._inbox = Inbox(db, self.path, self._statements, self._coming) if address.shared else None
        self.looks_every_s: float | None = None if self._inbox is None else self._inbox.looks_every_s

    def _make(self) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        if not is_made(db, self.path, shared=self._is_shared):  # a migration may have made them meanwhile
            for statement in statements(shared=self._is_shared):
                db.execute(statement)
            if not self._is_shared:
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
            taken: rows of the newest answer of `inbox`, that are taken out of it in the same step.

        Raises:
            DeposedError: another journal is there by now; nothing was written.
            BackendFullError: there is no room; nothing was written.
            BackendUnavailableError, BackendDeniedError: nothing was written.
            OutcomeUnknownError: the disk failed in between: only the file can say, once it is opened again.
        """
        with self._transaction():
            self._db.execute(self._statements.append, (self.number + 1, at_ms, data))
            if owner is not None:
                self._db.execute(self._statements.set_fact, ("owner", owner))
            if taken:
                assert self._inbox is not None
                self._inbox.take(taken)
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
            db.execute(self._statements.drop_parts)
            for part in parts:
                db.execute(self._statements.put_part, (count, part))
                count += 1
            header = attrs.evolve(header, first=0, parts=count)
            self._write_header(header)
            db.execute(self._statements.drop_rows, (header.number,))
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
                self._db.executemany(self._statements.put_part, list(enumerate(parts, first)))
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
            gone = self._db.execute(self._statements.clear_rows, (header.number, rows)).rowcount
            gone += self._db.execute(self._statements.clear_parts, (first, end, parts)).rowcount
        return gone > 0

    def _write_header(self, header: Header) -> None:
        said = json.dumps(attrs.asdict(header))
        self._db.execute(self._statements.set_fact, ("snapshot", said))

    def inbox(self, limit: int, behind: int = 0) -> Sequence[InboxRow]:
        """
        Return what was written in transactions of the application's, in the order of their commits.

        Args:
            limit: how many at most.
            behind: of no effect: all rows are found by each look.

        Raises:
            DeposedError: another journal is there by now.
            BackendError: as of `rows`.
        """
        if self._inbox is None:
            return ()
        with self._judged():
            version = self._inbox.version
            rows = self._inbox.read(limit)
            if self._inbox.version != version:
                self._check_newest()
        self.looks_every_s = self._inbox.looks_every_s
        return rows

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
            if not self._is_shared:
                db.execute("BEGIN IMMEDIATE")
            else:
                self._begin_beside_others()
            try:
                if self._is_shared:
                    self._check_newest()
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

    def _begin_beside_others(self) -> None:
        """
        Begin to write, as soon as no other connection does.

        SQLite would look for that ten times a second; beside writers that begin anew at once it would never find it.
        """
        until_s = time.monotonic() + BUSY_S
        self._db.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    self._db.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if (code_of(error) & 0xFF) != BUSY or time.monotonic() > until_s:
                        raise
                    time.sleep(_LOOKS_S)
                else:
                    return
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000:.0f}")

    def _check_newest(self) -> None:
        """
        Check that the newest row is that which this process has written or read.

        Raises:
            DeposedError: the journal was replaced, as by a backup that was put back.
        """
        (number,) = self._db.execute(self._statements.newest).fetchone()
        if number == self.number:
            return
        header = self._read_header()
        number = max(number or 0, 0 if header is None else header.number)
        if number != self.number:
            logger.error(
                "the journal is not the one that this process has written",
                extra={"event": "sqlite.journal_replaced", "path": self.name, "number": self.number, "found": number},
            )
            raise DeposedError

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            pass


def _make_private(path: Path) -> None:
    """
    Make a file that only its owner may read and write, if it is not there; those beside it get the same mode.

    One that is there is not opened: to close it again would end the locks that SQLite has for other connections of this
    process, as POSIX says.
    """
    with contextlib.suppress(OSError):  # what is wrong, SQLite says
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _identity(path: Path) -> tuple[int, int]:
    """Return the identity of the file that a name leads to."""
    found = path.stat()
    return found.st_dev, found.st_ino
