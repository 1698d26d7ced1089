"""Unix sockets of processes that lead: where they lie, and who may connect."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BACKLOG: Final = 128
HAS_SOCKETS: Final = hasattr(socket, "AF_UNIX")
"""Windows has none, or Python does not know them there."""


def listen(places: Sequence[Callable[[], Path]]) -> tuple[socket.socket, str]:
    """Return a socket that listens, for this user alone, and its address."""
    problem: OSError | None = None
    for place in places:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            address = place()
            # It is left over by a process that died: this one has the lock.
            remove(address)
            listener.bind(str(address))
            # No connection is accepted before it listens.
            address.chmod(0o600)
            listener.setblocking(False)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            problem = problem or error
        else:
            return listener, str(address)
    assert problem is not None
    raise problem


def beside(path: Path) -> Path:
    """Return an address beside a file, wherever links to that lead."""
    return path.with_name(path.name + ".sock")


def private(name: str) -> Path:
    """
    Return an address in a directory that only this user can look into.

    Raises:
        OSError: there is something else of its name.
    """
    folder = Path(tempfile.gettempdir()) / f"queuehint-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a directory of this user alone")
    return folder / (hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + ".sock")


def remove(address: Path) -> None:
    """Remove a socket; nothing else of its name."""
    with suppress(OSError):
        if stat.S_ISSOCK(address.lstat().st_mode):
            address.unlink()


def is_trusted(connection: socket.socket, users: set[int]) -> bool:
    """Return whether the process at the other end is of one of these users; true where the system does not tell."""
    if sys.platform != "linux":
        return True  # the mode of the socket, or of its directory, is what keeps others out
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user in users
