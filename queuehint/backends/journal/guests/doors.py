"""Ways to the process that leads: connected sockets."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

import attrs

from queuehint.backends.journal.guests.sockets import is_trusted
from queuehint.errors import BackendDeniedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from queuehint.backends.journal.guests.server import Cipher


class GoneError(Exception):
    """
    The process does not lead any more, or cannot be reached.

    Args:
        is_silent: it is there, and says nothing.
        is_mute: it is there, and answers no other process.
        is_asked: the request may have been done.
    """

    def __init__(self, *, is_silent: bool = False, is_mute: bool = False, is_asked: bool = False) -> None:
        self.is_silent = is_silent
        self.is_mute = is_mute
        self.is_asked = is_asked
        super().__init__("silent" if is_silent else "gone")


@attrs.frozen(eq=False)
class Reached:
    """
    A stream to the process that leads.

    Args:
        socket: connected.
        cipher: what stands between its bytes and the frames; None for nothing.
        is_detour: there is a better way, which could not be used.
        cut: takes note that nothing comes by this way, where there is another one.
        way: what it is called: ``socket``, ``port`` or ``mail``.
    """

    socket: socket.socket
    cipher: Cipher | None = None
    is_detour: bool = False
    cut: Callable[[], None] | None = None
    way: str = "socket"

    def sealed(self, data: bytes) -> bytes:
        """Return what is sent for the bytes of frames."""
        return data if self.cipher is None else self.cipher.sealed(data)

    def opened(self, data: bytes) -> bytes:
        """
        Return the bytes of frames in what has come.

        Raises:
            ValueError: that was not written by the other end.
        """
        return data if self.cipher is None else self.cipher.opened(data)

    def is_silent(self) -> bool:
        """Take note that nothing is heard; return whether the process is silent, and not maybe this way alone."""
        if self.cut is None:
            return True
        self.cut()
        return False


class Door(Protocol):
    """A way to the process that leads."""

    def connect(self, timeout_s: float) -> Reached:
        """
        Return a stream to it.

        Raises:
            GoneError: nobody is there.
            BackendError: this process may not use it.
        """

    def is_straight(self) -> bool:
        """Return whether a better way than that of a detour can be used by now."""


class UnixDoor:
    """
    A socket on this machine.

    Args:
        address: its path.
        users: ids of the users whose process may lead.
        name: of the store, for errors.
    """

    def __init__(self, address: str, users: Collection[int], name: str) -> None:
        self._address = address
        self._users = {*users}
        self._name = name

    def is_straight(self) -> bool:
        """Return true: there are no detours."""
        return True

    def connect(self, timeout_s: float) -> Reached:
        """Return a stream to the process that leads, once its user is checked."""
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.settimeout(timeout_s)
            try:
                found.connect(self._address)
            except PermissionError as error:
                raise BackendDeniedError(f"{self._name}: the process that leads may not be reached: {error}") from error
            except OSError as error:
                raise GoneError(is_silent=isinstance(error, TimeoutError)) from None
            if not is_trusted(found, self._users):
                raise BackendDeniedError(
                    f"{self._name}: the socket belongs to another user, not to the process that leads"
                )
        except BaseException:
            found.close()
            raise
        return Reached(found)
