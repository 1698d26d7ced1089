"""
Client of the process that owns the file: sends operations to it over the socket.

The writer thread does this in place of writing. Each batch of tickets has a connection of its own. If the owner does
not answer in time, a question fails, and a change raises an error that says that it may have been done.
"""

from __future__ import annotations

import os
import socket
import time
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from queuehint.backends.journal.doctor import Examine
from queuehint.backends.journal.guests.messages import (
    ANSWER_BYTES_MAX,
    EXAMINE,
    GONE,
    HAND_OVER,
    LENGTH_BYTES,
    REQUEST_BYTES_MAX,
    UNWRITTEN,
    read_answer,
    request,
    runs_jobs,
)
from queuehint.backends.journal.guests.server import is_trusted
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendInUseError,
    BackendUnavailableError,
    OutcomeUnknownError,
)
from queuehint.operations.bounds import check_limits

if TYPE_CHECKING:
    from pathlib import Path

    from queuehint.backends.journal.writer import Ticket
    from queuehint.backends.sqlite.lock import FileInUseError

PATIENCE_S: Final = 5.0
"""How long the owner of the file may stay silent."""
RETRY_S: Final = 0.02
"""How long to wait for a process that is about to open the file, or to leave it."""
PIECE_BYTES: Final = 1 << 20


class _GoneError(Exception):
    """The request was not begun: the process leaves the file, or does not answer yet."""


class _LostError(Exception):
    """The request was sent, and the connection has ended; or it is silent."""

    def __init__(self, *, is_silent: bool) -> None:
        self.is_silent = is_silent
        super().__init__("silent" if is_silent else "ended")


class Guest:
    """
    Client of the process that owns a file; for one thread.

    Args:
        path: the file.
        namespace: whose jobs are meant to be in it.
    """

    def __init__(self, path: Path, namespace: str) -> None:
        self._path = path
        self._namespace = namespace

    def ask(self, tickets: list[Ticket], in_use: FileInUseError, *, runs_workers: bool) -> list[Ticket]:
        """
        Have tickets answered; return those to retry a moment later, if the process leaves the file or has died.

        Args:
            in_use: names the process that has the file.
            runs_workers: this process is to run jobs: it asks for the file itself.

        Raises:
            BackendInUseError: the process does not answer, or has workers of its own as this one has.
        """
        if in_use.address == "":
            raise BackendInUseError(str(self._path), in_use.pid, "which answers no other process")
        if in_use.address is None:
            return tickets
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE_S)
            try:
                self._connect(connection, in_use.address)
            except _GoneError:
                return tickets
            for position, ticket in enumerate(tickets):
                try:
                    self._ask_one(connection, ticket, runs_workers=runs_workers)
                except _GoneError:
                    return tickets[position:]
                except _LostError as lost:
                    return self._lost(tickets[position:], in_use, lost, runs_workers=runs_workers)
                except Exception as error:  # noqa: BLE001 - who asked is told; the others have done nothing wrong
                    ticket.error = error
        return []

    def _lost(
        self, tickets: list[Ticket], in_use: FileInUseError, lost: _LostError, *, runs_workers: bool
    ) -> list[Ticket]:
        """Tell the first of the tickets that its request was lost; return those that can be tried again."""
        first, *others = tickets
        is_unwritten = runs_workers or type(first.operation) in UNWRITTEN
        if not lost.is_silent:
            if is_unwritten:
                return tickets
            first.error = OutcomeUnknownError(
                f"{self._path}: process {in_use.pid}, which had it, died meanwhile; the operation may have been done"
            )
            return others
        silent = self.silent(in_use, runs_workers=runs_workers)
        for other in others:
            other.error = silent
        first.error = silent
        if not is_unwritten:
            problem = "the operation may have been done, or be done when that process goes on"
            first.error = OutcomeUnknownError(f"{str(silent).removesuffix('; nothing was changed')}; {problem}")
        return []

    def silent(self, in_use: FileInUseError, *, runs_workers: bool) -> BackendError:
        """Return the error that the process does not answer."""
        path, problem = str(self._path), f"which has not answered for {PATIENCE_S:g} s"
        if runs_workers:
            return BackendInUseError(path, in_use.pid, problem)
        who = "another process" if in_use.pid is None else f"process {in_use.pid}"
        return BackendUnavailableError(f"{path} is in use by {who}, {problem}; nothing was changed")

    def _connect(self, connection: socket.socket, address: str) -> None:
        try:
            connection.connect(address)
            users = {os.geteuid(), self._path.stat().st_uid, 0}
        except PermissionError as error:
            raise BackendDeniedError(f"{self._path}: the process that owns it may not be reached: {error}") from error
        except OSError:  # it is gone, or not there yet; a line of others that is full is one of a process that stands
            raise _GoneError from None
        if not is_trusted(connection, users):
            raise BackendDeniedError(
                f"{self._path}: the socket belongs to another user, not to the process that owns the file"
            )

    def _ask_one(self, connection: socket.socket, ticket: Ticket, *, runs_workers: bool) -> None:
        operation: Any = ticket.operation
        if runs_workers or runs_jobs(operation):
            self._read(self._exchange(connection, request(self._namespace, HAND_OVER)), NoneType)
            return
        if type(operation) is Examine:
            message = request(self._namespace, EXAMINE)
        else:
            check_limits(operation)
            message = request(self._namespace, operation)
        if len(message) > REQUEST_BYTES_MAX:
            raise BackendFullError(f"{self._path}: the request is larger than the process that owns it accepts")
        ticket.reply = self._read(self._exchange(connection, message), operation.reply_class)

    @staticmethod
    def _read(answer: bytes, kind: Any) -> Any:
        if answer == GONE:
            raise _GoneError
        return read_answer(answer, kind)

    def _exchange(self, connection: socket.socket, message: bytes) -> bytes:
        """Send a request and return its answer."""
        try:
            connection.sendall(message)
        except TimeoutError:
            raise _LostError(is_silent=True) from None
        except OSError:  # not all of it was sent, so it was not begun
            raise _GoneError from None
        try:
            while not (length := int.from_bytes(_receive(connection, LENGTH_BYTES), "big")):
                pass
            if length > ANSWER_BYTES_MAX:
                raise BackendError(f"{self._path}: the answer takes {length} bytes: ask for less at a time")
            return _receive(connection, length)
        except TimeoutError:
            raise _LostError(is_silent=True) from None
        except OSError:
            raise _LostError(is_silent=False) from None


def _receive(connection: socket.socket, length: int) -> bytes:
    """
    Return so many bytes.

    Raises:
        OSError: the connection has ended before, or is silent.
    """
    pieces, left = [], length
    while left:
        piece = connection.recv(min(left, PIECE_BYTES))
        if not piece:
            raise ConnectionResetError
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def deadline_s() -> float:
    """Return until when to look again for a process that leaves or opens the file, by the monotonic clock."""
    return time.monotonic() + PATIENCE_S
