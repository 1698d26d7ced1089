"""
One end of a stream: a socket whose other end a link or a server has, and what is on its way.

Bytes are counted from the beginning of the stream, so that a piece says by one number where it belongs. Each end sends
no more than `WINDOW_BYTES` that the other one has not written to its socket yet: nothing grows where nobody reads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from queuehint.backends.postgres.mail.letters import DATA, END, TAKEN, Piece

if TYPE_CHECKING:
    import socket

WINDOW_BYTES: Final = 1 << 20
"""How much of a stream is on its way at most."""
READ_BYTES: Final = 256 << 10
"""How much of a stream goes into a letter at most."""
_TELL_BYTES: Final = WINDOW_BYTES // 4


class Stream:
    """
    A stream, as the carrier of one end sees it.

    Args:
        stream_id: chosen by who opens it.
        connection: does not block.
        box: where the other end is.
        term: of the leader that the other end is; None for a guest.

    Attributes:
        settled: that it was accepted, or has ended before.
        problem: by what it has ended before it was accepted.
        active_s: when a piece of it came last, or went, if this end opened it.
    """

    def __init__(
        self, stream_id: bytes, connection: socket.socket, box: str, now_s: float, term: str | None = None
    ) -> None:
        self.id = stream_id
        self.socket = connection
        self.box = box
        self.term = term
        self.active_s = now_s
        self.looked_s = self.said_s = 0.0
        """When it was last looked whether its leader leads, and when `OPEN` or `PING` was sent."""
        self.settled = threading.Event()
        self.problem: Exception | None = None
        self.is_accepted = term is None
        self.is_ended = False
        """The other end sends no more."""
        self.ahead_s: float | None = None
        """Since when a piece is missing before those that have come."""
        self._sent = self._acknowledged = 0
        self._got = self._taken = self._told = 0
        self._ahead: dict[int, Piece] = {}
        self._to_write = bytearray()

    @property
    def room(self) -> int:
        """How many bytes may be read from the socket now."""
        if not self.is_accepted or self.is_ended:
            return 0
        return min(READ_BYTES, WINDOW_BYTES - (self._sent - self._acknowledged))

    @property
    def has_to_write(self) -> bool:
        """True while the socket does not take what has come."""
        return bool(self._to_write)

    @property
    def is_done(self) -> bool:
        """True once all that has come is written, and no more will come."""
        return self.is_ended and not self._to_write

    def read(self, most: int) -> Piece | None:
        """
        Return what the socket has as a piece, the end if that is what it has, None if it has nothing.

        Raises:
            OSError: it is broken.
        """
        try:
            data = self.socket.recv(min(most, self.room))
        except (BlockingIOError, InterruptedError):
            return None
        if not data:
            return Piece(self.id, END, self._sent)
        piece = Piece(self.id, DATA, self._sent, data)
        self._sent += len(data)
        return piece

    def acknowledge(self, taken: int) -> None:
        """Take note of how many bytes the other end has taken."""
        if taken > self._sent:
            raise ValueError("the other end has taken more than was sent")
        self._acknowledged = max(self._acknowledged, taken)

    def take(self, piece: Piece, now_s: float) -> None:
        """
        Take data, or the end.

        Raises:
            ValueError: more came than may be on its way, or nothing.
            OSError: the socket is broken.
        """
        if piece.kind == DATA and not piece.data:
            raise ValueError("a piece without data")
        if piece.number + len(piece.data) > self._taken + WINDOW_BYTES:
            raise ValueError("more came than may be on its way")
        if piece.number > self._got:  # it was a notification, and a row before it is not read yet; or the other way
            self._ahead[piece.number] = piece
            self.ahead_s = self.ahead_s or now_s
            return
        following: Piece | None = piece
        while following is not None and following.number == self._got:
            if following.kind == END:
                self.is_ended = True
                self._ahead.clear()
                break
            self._got += len(following.data)
            self._to_write += following.data
            following = self._ahead.pop(self._got, None)
        self.ahead_s = now_s if self._ahead else None
        self.write()

    def write(self) -> None:
        """
        Write what the socket takes.

        Raises:
            OSError: it is broken.
        """
        while self._to_write:
            try:
                count = self.socket.send(memoryview(self._to_write)[:READ_BYTES])
            except (BlockingIOError, InterruptedError):
                return
            del self._to_write[:count]
            self._taken += count

    def to_tell(self) -> Piece | None:
        """Return the piece that says how many bytes were taken, if that is due."""
        if self._taken - self._told < _TELL_BYTES or self.is_ended:
            return None
        self._told = self._taken
        return Piece(self.id, TAKEN, self._taken)
