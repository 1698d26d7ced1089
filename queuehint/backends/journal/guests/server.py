"""
The socket of the process that leads, served by a thread with an event loop of its own.

It is served independently of the application's own threads and loops. It lies in a place that the store names, or in a
directory of the user's own, as where a path is too long for a socket or the file system has none. Only the same user,
and the system's administrator, may connect: the mode of the socket restricts it, and the user of each connection is
checked where the system reports it. Frames are bounded in bytes and in time, calls and connections in number; bytes
that are no frame end their connection. No input ends the thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from queuehint.backends.journal.guests.messages import (
    ANSWER,
    BEAT,
    HELLO,
    LEAVE,
    REQUEST_BYTES_MAX,
    Frames,
    frame,
)
from queuehint.backends.journal.guests.sockets import is_trusted, listen, remove

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    CallSoon = Callable[[Callable[[], None]], None]

CONNECTIONS_MAX: Final = 1_000
"""How many connections are served at a time; others wait."""
READ_S: Final = 10.0
"""A connection that has not said who it is by then, or whose frame has not come whole, is closed."""
WRITE_S: Final = 10.0
"""A connection that has not read its answers by then is closed."""
BEAT_S: Final = 1.0
"""How often to report that calls are under way."""
CLOSE_S: Final = 1.0
"""How long closing the socket waits for calls that are under way."""
SMALL_BYTES: Final = 1 << 20
"""Frames above this are read one at a time."""
_PAUSE_S: Final = 0.02

logger = logging.getLogger("queuehint.journal")


class Guest(Protocol):
    """The calls of one connection."""

    def take(self, kind: int, call: int, body: bytes) -> None:
        """Begin to do what a frame asks for; raises nothing."""

    def leave(self) -> None:
        """Forget what is under way: the connection has ended."""

    @property
    def calls(self) -> int:
        """How many calls are under way."""

    @property
    def is_full(self) -> bool:
        """True while no further call is to begin."""


class Cipher(Protocol):
    """What stands between the bytes of a socket and those of frames."""

    def opened(self, data: bytes) -> bytes:
        """Return the bytes of frames in what has come; raises `ValueError` if the other end did not write that."""

    def sealed(self, data: bytes) -> bytes:
        """Return what is sent for the bytes of frames."""


class Entrance(Protocol):
    """Another way by which guests come, on the thread of the server."""

    def begin(self, server: Server) -> None:
        """Begin to accept; who is known is passed to `Server.welcome`."""

    def end(self) -> None:
        """Accept nothing more, and forget those that are not known."""


class Connection(asyncio.Protocol):
    """
    The connection of one guest, on the thread of the server.

    Args:
        accepted: its socket.
        cipher: what stands between it and the frames; None for nothing.
    """

    def __init__(self, server: Server, accepted: socket.socket, cipher: Cipher | None = None) -> None:
        self.socket = accepted
        self._server = server
        self._cipher = cipher
        self._frames = Frames(REQUEST_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._to_take: deque[tuple[int, int, bytes]] = deque()
        """Frames that have come and are not begun: while many calls are under way, or nobody reads the answers."""
        self._out: list[bytes] = []
        self._begun_s = server.now_s()
        """Since when something is missing: who it is, or the rest of a frame."""
        self._stuck_s: float | None = None
        """Since when the other end does not read."""
        self._is_known = self._is_paused = False
        self._writing = threading.RLock()
        """Taken by each thread that writes."""
        self._rest = b""
        """Of answers that another thread has begun to send: nothing may come between."""
        self._guest: Guest = server.make_guest(self, server.call_soon)

    @property
    def is_busy(self) -> bool:
        """True while calls are under way."""
        return self._guest.calls > 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Begin to do what has come."""
        try:
            for kind, call, body in self._frames.feed(data if self._cipher is None else self._cipher.opened(data)):
                if (kind == HELLO) is self._is_known:
                    raise ValueError("not in this order")
                self._is_known = True
                if kind == LEAVE:
                    self._leave(call)
                else:
                    self._to_take.append((kind, call, body))
        except ValueError:
            self.abort()
            return
        self._begun_s = self._server.now_s()
        self.adjust()

    def _leave(self, call: int) -> None:
        """End a call, or do not begin it."""
        self._to_take = deque([each for each in self._to_take if each[1] != call])
        self._guest.take(LEAVE, call, b"")

    def pause_writing(self) -> None:
        """Read nothing more from one that does not read."""
        self._stuck_s = self._server.now_s()
        self.adjust()

    def resume_writing(self) -> None:
        """Read on."""
        self._stuck_s = None
        self.adjust()

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget what is under way."""
        self._guest.leave()
        self._server.forget(self)

    def adjust(self) -> None:
        """Begin what has come, and read on, or put that off: others send a large frame, or one of these is so."""
        while self._to_take and not self._guest.is_full and self._stuck_s is None:
            self._guest.take(*self._to_take.popleft())
        is_large = self._frames.wanted > SMALL_BYTES
        if not is_large:
            self._server.end_turn_of(self)
        is_paused = bool(self._to_take) or self._stuck_s is not None or (is_large and not self._server.is_turn_of(self))
        if self._transport is not None and is_paused is not self._is_paused and not self._transport.is_closing():
            self._is_paused = is_paused
            if is_paused:
                self._transport.pause_reading()
            else:
                self._begun_s = self._server.now_s()
                self._transport.resume_reading()

    def answer(self, call: int, body: bytes) -> None:
        """Send an answer with all others of this turn of the loop."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._send)
        self._out.append(frame(ANSWER, call, body))

    def _send(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._write(b"".join(out))
            self.adjust()

    def _write(self, data: bytes = b"") -> None:
        with self._writing:
            rest, self._rest = self._rest, b""
            out = rest + (data if self._cipher is None else self._cipher.sealed(data))
            if out and self._transport is not None:
                self._transport.write(out)

    def answer_now(self, answers: Sequence[tuple[int, bytes]]) -> bool:
        """
        Send answers from any thread; return False, and send nothing, if the thread of the server has to.

        That is so while the guest has not read the answers before, and where there is a cipher, which that thread uses.
        """
        if self._cipher is not None:
            return False
        data = b"".join([frame(ANSWER, call, body) for call, body in answers])
        with self._writing:
            transport = self._transport
            if transport is None or self._rest or transport.get_write_buffer_size():
                return False
            try:
                sent = self.socket.send(data)
            except OSError:  # it is full, or has been closed: so the thread of the server finds
                return False
            self._rest = data[sent:]
        if self._rest:
            self._server.call_soon(self._write)
        return True

    def answered(self) -> None:
        """Begin what had to wait for answers, from any thread."""
        if self._to_take or self._is_paused:
            self._server.call_soon(self.adjust)

    def end(self) -> None:
        """Send what there is to send, and close the connection."""
        self._send()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def look(self, now_s: float) -> None:
        """Say that calls are under way; close the connection if it keeps others waiting."""
        is_late = not (self._is_known and self._frames.is_between) and now_s > self._begun_s + READ_S
        if (is_late and not self._is_paused) or (self._stuck_s is not None and now_s > self._stuck_s + WRITE_S):
            self.abort()
        elif self._transport is not None and self._stuck_s is None and self.is_busy:
            self._write(frame(BEAT, 0))


class Server:
    """
    A socket that serves guests, from its making until `close`.

    Args:
        places: return where the socket may be, the best place first, see `beside` and `private`.
        make_guest: called for each connection, and with what has something done on this thread, from any other.

    Raises:
        OSError: there can be no socket.
    """

    def __init__(
        self, places: Sequence[Callable[[], Path]], make_guest: Callable[[Connection, CallSoon], Guest]
    ) -> None:
        self.make_guest = make_guest
        self._listener, self.address = listen(places)
        self._sockets: set[socket.socket] = {self._listener}
        self._connections: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event
        self._attending: set[asyncio.Task[None]] = set()
        self._entrances: set[Entrance] = set()
        self._large: deque[Connection] = deque()
        """The connections that have a large frame to send; the first one sends it."""
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
        """Accept nothing more, let calls that are under way end, and remove the socket; not on its own thread."""
        remove(Path(self.address))
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop has ended
                self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(CLOSE_S * 2)
        _open.discard(self)

    def leave_to_parent(self) -> None:
        """Close what this process has of it; in a fork too: it would keep others waiting after its parent has died."""
        for each in list(self._sockets):
            each.close()

    def call_soon(self, act: Callable[[], None]) -> None:
        """Have something done on the thread of the server, from any thread; not once it has ended."""
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(act)

    def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that came by another way, from any thread; one too many is closed."""
        connection.setblocking(False)
        self._sockets.add(connection)

        def begin() -> None:
            if self.has_room:
                self._begin(connection)
            else:
                self._sockets.discard(connection)
                connection.close()

        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:  # it has ended
            self._sockets.discard(connection)
            connection.close()

    def open(self, entrance: Entrance) -> None:
        """Have guests come by another way too, from any thread."""

        def begin() -> None:
            if self._stopped.is_set():
                entrance.end()
            else:
                self._entrances.add(entrance)
                entrance.begin(self)

        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:  # it has ended
            entrance.end()

    # --- on its own thread ---------------------------------------------------------------------------------------

    def hold(self, opened: socket.socket) -> None:
        """Take note of a socket of an entrance, which a fork of this process closes."""
        self._sockets.add(opened)

    def drop(self, opened: socket.socket) -> None:
        """Forget a socket of an entrance."""
        self._sockets.discard(opened)

    @property
    def has_room(self) -> bool:
        """Whether another connection is served."""
        return not self._stopped.is_set() and len(self._connections) < CONNECTIONS_MAX

    def welcome(self, connection: socket.socket, transport: asyncio.Transport, cipher: Cipher) -> None:
        """Serve a connection of an entrance whose guest is known."""
        made = Connection(self, connection, cipher)
        self._connections.add(made)
        self._sockets.add(connection)
        transport.set_protocol(made)
        made.connection_made(transport)
        if not self.has_room:
            asyncio.get_running_loop().remove_reader(self._listener)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        except Exception:
            logger.exception("the socket of a journal has ended", extra={"event": "journal.socket_ended"})
        finally:
            self._is_up.set()
            self.leave_to_parent()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._look_out()
        self._look_after()
        self._is_up.set()
        await self._stopped.wait()
        self._loop.remove_reader(self._listener)
        for entrance in self._entrances:
            entrance.end()
        await self._pass(lambda: not any(each.is_busy for each in self._connections))
        for each in list(self._connections):
            each.end()
        await self._pass(lambda: not self._connections)
        for each in list(self._connections):
            each.abort()
        await asyncio.sleep(0)

    @staticmethod
    async def _pass(is_done: Callable[[], bool]) -> None:
        """Let the connections go on until something is done, for half the time that closing may take."""
        for n in range(int(CLOSE_S / 2 / _PAUSE_S)):
            if is_done():
                return
            await asyncio.sleep(_PAUSE_S if n else 0)

    def now_s(self) -> float:
        """Return the time of the loop."""
        assert self._loop is not None
        return self._loop.time()

    def _look_out(self) -> None:
        if self._loop is not None and not self._stopped.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _look_after(self) -> None:
        assert self._loop is not None
        self._loop.call_later(BEAT_S, self._look_after)
        now_s = self.now_s()
        for each in list(self._connections):
            each.look(now_s)

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
        self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._sockets.add(connection)
        made = Connection(self, connection)
        self._connections.add(made)
        attending = loop.create_task(self._attend(made))
        self._attending.add(attending)
        attending.add_done_callback(self._attending.discard)
        if not self.has_room:
            loop.remove_reader(self._listener)

    async def _attend(self, made: Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: made, made.socket)
        except OSError:
            self.forget(made)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)
        self._sockets.discard(connection.socket)
        self.end_turn_of(connection)
        self._look_out()

    # --- large frames, one at a time -----------------------------------------------------------------------------

    def is_turn_of(self, connection: Connection) -> bool:
        """Return whether a connection may send a large frame now; `Connection.adjust` is called when it may."""
        if connection not in self._large:
            self._large.append(connection)
        return self._large[0] is connection

    def end_turn_of(self, connection: Connection) -> None:
        """Let the next connection send its large frame."""
        if connection in self._large:
            self._large.remove(connection)
            if self._large:
                self._large[0].adjust()


_open: WeakSet[Server] = WeakSet()


def _leave_in_fork() -> None:
    for server in list(_open):
        server.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_in_fork)
