"""
Reading a file of a journal: as its leader does, and as a process that follows it.

Rows are read a few at a time: a long read would keep the write-ahead log from being taken over into the file.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NoReturn

from queuehint.backends.journal.lead.leadership import LedElsewhereError
from queuehint.backends.journal.store import BehindError, Header, Others, Position
from queuehint.backends.sqlite.layout import is_made, prefix_of
from queuehint.backends.sqlite.lock import FileLock, is_locked, lock_path, standby_path
from queuehint.backends.sqlite.statements import Statements
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.backends.sqlite.address import Address

BUSY_S: Final = 5.0
"""How long to wait for another program that has locked the file."""
SLICE_ROWS: Final = 200
ERROR, BUSY, LOCKED, READONLY, CORRUPT, FULL, TOOBIG, NOTADB = 1, 5, 6, 8, 11, 13, 18, 26
IOERR_WRITE: Final = 778
"""Codes of SQLite; those it has besides are of one kind in their lower eight bits."""


class FileRows:
    """
    An open database, to be read.

    Attributes:
        path, name: of the file.
        header: of the newest snapshot, None if there is none.
    """

    _db: sqlite3.Connection

    def __init__(self, address: Address) -> None:
        self.path = address.path
        self.name = str(address.path)
        self.header: Header | None = None
        self._is_shared = address.shared
        self._statements = Statements(prefix_of(shared=address.shared))

    @property
    def covered(self) -> Position:
        """Up to where the snapshot goes."""
        return Position(0 if self.header is None else self.header.number)

    def description(self) -> tuple[bytes, int]:
        """
        Return the last part of the snapshot, and how many bytes all have.

        Raises:
            CorruptStateError: some parts are missing, or the file is damaged.
        """
        header = self.header
        assert header is not None
        with self._judged():
            inside = (header.first, header.first + header.parts)
            count, size = self._db.execute(self._statements.sizes, inside).fetchone()
            last = self._db.execute(self._statements.part, (inside[1] - 1,)).fetchone()
        if count != header.parts or last is None:
            raise CorruptStateError(f"{self.path}: parts of the snapshot are missing")
        return last[0], int(size)

    def parts(self) -> Iterator[bytes]:
        """
        Yield all parts of the snapshot but the last one.

        Raises:
            CorruptStateError: the file is damaged.
        """
        header = self.header
        assert header is not None
        with self._judged():
            inside = (header.first, header.first + header.parts - 1)
            for (data,) in self._db.execute(self._statements.parts, inside):
                yield data

    def rows_after(self, position: Position) -> Iterator[tuple[Position, int, bytes]]:
        """
        Yield the rows after a position: their own positions, times, groups.

        Raises:
            BehindError: the first of them is not there, and a later one, or a snapshot up to a later one, is.
            CorruptStateError: the file is damaged.
        """
        number = position.number
        while True:
            with self._judged():
                found = self._db.execute(self._statements.rows, (number, SLICE_ROWS)).fetchall()
            for its_number, at_ms, operations in found:
                if its_number != number + 1:
                    raise BehindError
                if type(operations) is not bytes:
                    raise CorruptStateError(f"{self.path} is damaged: a row of the journal has {type(operations)}")
                number = its_number
                yield Position(number), at_ms, operations
            if len(found) < SLICE_ROWS:
                break
        with self._judged():
            header = self._read_header()
        if header is not None and header.number > number:
            raise BehindError

    def _read_header(self) -> Header | None:
        said = self._db.execute(self._statements.header).fetchone()
        return None if said is None else Header(**json.loads(said[0]))

    # --- what goes wrong -----------------------------------------------------------------------------------------

    @contextmanager
    def _judged(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._judge(error)
        except OSError as error:
            raise BackendUnavailableError(f"{self.path}: {error}") from error
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptStateError(f"{self.path} is damaged: {error!r}") from error

    def _judge(self, error: sqlite3.Error) -> NoReturn:
        """Translate an error of SQLite."""
        raise judgement(error, f"{self.path}") from error


class FileReader(FileRows):
    """
    A file that another process leads, or nobody, see `queuehint.backends.journal.store.Reader`.

    Args:
        address: where it is; it is there.

    Attributes:
        is_made: whether our tables are in it.

    Raises:
        BackendDeniedError: it must not be read, or is none of ours.
        BackendUnavailableError: it cannot be opened.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._standing: FileLock | None = None
        with self._judged():
            self._db = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self.is_made = is_made(self._db, self.path, shared=address.shared)
            except BaseException:
                self._db.close()
                raise

    def refresh(self) -> Position:
        """Read which snapshot is the newest, and return up to where it goes."""
        with self._judged():
            self.header = self._read_header()
        return self.covered

    def others(self) -> Others:
        """Return whether both locks are held."""
        return Others(is_locked(lock_path(self.path)), is_locked(standby_path(self.path)))

    def stand_by(self) -> bool:
        """Keep the lock that says so, and return whether nobody has the lock of the file."""
        if self._standing is None:
            with suppress(OSError, LedElsewhereError):
                self._standing = FileLock(standby_path(self.path))
        return not is_locked(lock_path(self.path))

    def close(self) -> None:
        """End reading, and leave the lock."""
        standing, self._standing = self._standing, None
        if standing is not None:
            standing.release()
        with self._judged():
            self._db.close()


def code_of(error: sqlite3.Error) -> int:
    """Return the code of an error; 0 if it has none."""
    return getattr(error, "sqlite_errorcode", None) or 0


def judgement(error: sqlite3.Error, path: str) -> BackendError:
    """Translate an error of SQLite."""
    kind = code_of(error) & 0xFF
    if kind == FULL:
        return BackendFullError(f"{path}: there is no room left on the disk; nothing was changed")
    if kind == TOOBIG:
        return BackendFullError(f"{path}: this is more than the file may hold at once; nothing was changed")
    if kind == READONLY:
        return BackendDeniedError(f"{path} must not be written: {error}")
    if kind in {ERROR, CORRUPT, NOTADB}:
        return CorruptStateError(f"{path} is damaged, or no database: {error}")
    if kind in {BUSY, LOCKED}:
        return BackendUnavailableError(f"{path} is held by another program: {error}")
    return BackendUnavailableError(f"{path}: {error}")
