"""
A bell beside the database of an application: whoever has committed rings, and the leader looks into the inbox at once.

It is a datagram socket with a name, and nobody waits for it: where a bell cannot be made or rung, the leader looks by
itself a little later. Where a library does not tell of commits, a writer rings before: as soon as its row is written,
with the number of the row, and the leader looks often until it finds that row.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.guests.sockets import HAS_SOCKETS, remove
from queuehint.backends.sqlite.inbox import Coming

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_RING_BYTES: Final = 32
"""A ring is no longer than this."""
_DIGITS: Final = 19
"""The number of a row has at most so many."""


class Bell:
    """
    A bell that is heard, from its making until `close`.

    Args:
        path: of the database; this process has its lock.
        coming: what rings say of rows to come is noted there.
        rung: called by a thread after some rings.

    Raises:
        OSError: there can be none.
    """

    def __init__(self, path: Path, coming: Coming, rung: Callable[[], None]) -> None:
        if not HAS_SOCKETS:
            raise OSError("there are no Unix sockets here")
        self._path = bell_path(path)
        self._coming = coming
        self._rung = rung
        self._is_closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            remove(self._path)  # that of a process that has died
            self._socket.bind(os.fspath(self._path))
            self._path.chmod(0o600)
            threading.Thread(target=self._listen, daemon=True, name="queuehint-bell").start()
        except (OSError, RuntimeError) as error:
            self._socket.close()
            raise OSError(f"there can be no bell: {error}") from error

    def _listen(self) -> None:
        with self._socket as heard:
            while True:
                try:
                    self._note(heard.recv(_RING_BYTES))
                    with suppress(BlockingIOError):
                        while True:  # what was rung meanwhile is answered by the same look
                            self._note(heard.recv(_RING_BYTES, socket.MSG_DONTWAIT))
                except OSError:
                    return
                if self._is_closed:
                    return
                self._rung()

    def _note(self, ring: bytes) -> None:
        """Note the number of a row that is to be committed; anything else says that one was."""
        number = ring.removeprefix(b"?")
        if number != ring and number.isdigit() and len(number) <= _DIGITS:
            self._coming.note(int(number))

    def close(self) -> None:
        """Hear nothing any more."""
        self._is_closed = True
        _ring(self._path)
        remove(self._path)


def bell_path(path: Path) -> Path:
    """Return where the bell of a file is, wherever links to it lead."""
    real = path.resolve()
    return real.with_name(real.name + ".bell")


def ring(path: Path, coming: int | None = None) -> None:
    """
    Ring the bell of a file, if it has one; this takes some µs, and raises nothing.

    Args:
        coming: the number of a row that is not committed yet; None after a commit.
    """
    if HAS_SOCKETS:
        _ring(bell_path(path), b"!" if coming is None else b"?%d" % coming)


def _ring(where: Path, said: bytes = b"!") -> None:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.setblocking(False)
        bell.sendto(said, os.fspath(where))
