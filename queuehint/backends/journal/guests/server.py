"""
The socket of the process that owns a file, served by a thread with an event loop of its own.

It is served independently of the application's own threads and loops. It lies beside the file, or in a directory of the
user's own where that path is too long for a socket or the file system has none. Only the same user, and the system's
administrator, may connect: the mode of the socket restricts it, and the user of each connection is checked where the
system reports it. Requests are bounded in bytes and in time, connections in number; bytes that are not a request are
answered with a refusal. No input ends the thread.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import os
import socket
import stat
import struct
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from queuehint.backends.journal.guests.messages import LENGTH_BYTES, REQUEST_BYTES_MAX, STILL_AT_IT, framed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CONNECTIONS_MAX: Final = 32
"""How many connections are served at a time; others wait."""
BACKLOG: Final = 64
READ_S: Final = 10.0
"""A connection that says nothing for so long, or whose request has not come by then, is closed."""
WRITE_S: Final = 10.0
BEAT_S: Final = 1.0
"""How often to report that a reply is still being computed."""
CLOSE_S: Final = 1.0
"""How long closing the socket waits for replies that are still being computed."""
SMALL_BYTES: Final = 1 << 20
"""Requests above this are read one at a time."""
PIECE_BYTES: Final = 256 << 10
_PAUSE_S: Final = 0.1
HAS_SOCKETS: Final = hasattr(socket, "AF_UNIX")
"""Windows has none, or Python does not know them there."""

logger = logging.getLogger("queuehint.sqlite")


class Server:
    """
    A socket that answers requests, from its making until `close`.

    Args:
        path: the file, wherever links to it lead; the socket is beside it if possible.
        answer: returns the answer to a request, and raises nothing.

    Raises:
        OSError: there can be no socket.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._answer = answer
        self._listener, self.address = _listen(path)
        self._sockets: set[socket.socket] = {self._listener}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._large: asyncio.Lock
        self._stopped: asyncio.Event
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="queuehint-socket")
        _open.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:  # too many threads, or the interpreter ends
            self.leave_to_parent()
            raise OSError(str(error)) from error
        self._is_up.wait()

    def close(self) -> None:
        """Accept nothing more, let what is being answered end, and remove the socket; not on its own thread."""
        _remove(Path(self.address))
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop has ended
                self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(CLOSE_S * 2)
        _open.discard(self)

    def leave_to_parent(self) -> None:
        """Close what this process has of it: in a fork it would keep others waiting after its parent has died."""
        for each in list(self._sockets):
            each.close()

    # --- on its own thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        except Exception:
            logger.exception("the socket of a file has ended", extra={"event": "sqlite.socket_ended"})
        finally:
            self._is_up.set()
            self._listener.close()

    async def _serve(self) -> None:
        self._large, self._stopped = asyncio.Lock(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._look_out()
        self._is_up.set()
        await self._stopped.wait()
        self._loop.remove_reader(self._listener)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        # Remaining tasks are canceled as the loop ends.

    def _look_out(self) -> None:
        if self._loop is not None and not self._stopped.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept a connection: in one step, so that none is lost where the socket is closed meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no file is left for it
            loop.remove_reader(self._listener)
            loop.call_later(_PAUSE_S, self._look_out)
            return
        connection.setblocking(False)
        if not is_trusted(connection, {os.geteuid(), 0}):
            connection.close()
            return
        self._sockets.add(connection)
        task = loop.create_task(self._attend(connection))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._leave, connection))
        if len(self._tasks) >= CONNECTIONS_MAX:
            loop.remove_reader(self._listener)

    def _leave(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._sockets.discard(connection)
        connection.close()
        self._look_out()

    async def _attend(self, connection: socket.socket) -> None:
        """Answer the requests of one connection, one after the other."""
        try:
            while not self._stopped.is_set() and await self._attend_once(connection):
                pass
        except (OSError, TimeoutError):
            pass
        except Exception:
            logger.exception("a request could not be answered", extra={"event": "sqlite.request_failed"})

    async def _attend_once(self, connection: socket.socket) -> bool:
        async with asyncio.timeout(READ_S):
            head = await _receive(connection, LENGTH_BYTES)
            length = int.from_bytes(head, "big")
            if len(head) < LENGTH_BYTES or not 0 < length <= REQUEST_BYTES_MAX:
                return False
            if length <= SMALL_BYTES:
                body = await _receive(connection, length)
            else:
                async with self._large:
                    body = await _receive(connection, length)
        if len(body) < length:
            return False
        answering = asyncio.ensure_future(self._answer(body))
        try:
            while not (await asyncio.wait({answering}, timeout=BEAT_S))[0]:
                await _send(connection, STILL_AT_IT)
            await _send(connection, framed(answering.result()))
        finally:
            answering.cancel()
        return True


async def _receive(connection: socket.socket, length: int) -> bytes:
    """Return so many bytes, fewer if the connection ends before; memory is taken as they come."""
    loop, pieces, left = asyncio.get_running_loop(), [], length
    while left and (piece := await loop.sock_recv(connection, min(left, PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


async def _send(connection: socket.socket, message: bytes) -> None:
    async with asyncio.timeout(WRITE_S + len(message) / (1 << 20)):
        await asyncio.get_running_loop().sock_sendall(connection, message)


_open: WeakSet[Server] = WeakSet()


def _leave_in_fork() -> None:
    for server in list(_open):
        server.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_in_fork)


# --- address and permissions -----------------------------------------------------------------------------------------


def _listen(path: Path) -> tuple[socket.socket, str]:
    """Return a socket that listens, for this user alone, and its address."""
    problem: OSError | None = None
    for place in (_place_beside, _private_place):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            address = place(path)
            # It is left over by a process that died: this one has the lock.
            _remove(address)
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


def _place_beside(path: Path) -> Path:
    return path.with_name(path.name + ".sock")


def _private_place(path: Path) -> Path:
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
    return folder / (hashlib.sha256(os.fsencode(path)).hexdigest()[:32] + ".sock")


def _remove(address: Path) -> None:
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
