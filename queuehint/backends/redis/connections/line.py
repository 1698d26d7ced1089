"""
A connection of synchronous callers: a request is one write, and its reply one read.

What always holds:

1. *No reply reaches another caller.* A line `is_ready` only while it is connected, greeted, and no byte of a reply is
   due. The first step of a request takes that back, and only the step after its whole reply gives it again. So a
   request that ends in between, by a failure or by a signal in a read, leaves a line that is not ready: it is closed,
   and never lent again. What comes without having been asked for ends it too.
2. *One caller has it at a time.* Other threads may only `end` it, which shuts the connection down and leaves its
   descriptor alone: closed, the system might give that to another connection while the caller reads from it.
3. *One process has it.* A fork holds a copy of the descriptor: it neither sends nor shuts down, and closes its copy.
4. *A deadline holds whatever signals come.* It is Python's (``settimeout``): that of the system (``SO_RCVTIMEO``)
   begins anew with each signal that is handled, so a program with a timer would never notice a half-open connection.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as driver

from queuehint.backends.redis.connections.failures import BROKEN, CLOSED_BY_SERVER, no_answer, refused
from queuehint.backends.redis.connections.resp import open_reader, pack
from queuehint.backends.redis.connections.uplink import BULK, LOOK_EVERY_S, unsent
from queuehint.backends.redis.transport import NotSent, Unanswered

if TYPE_CHECKING:
    from queuehint.backends.redis.connections.endpoint import Endpoint

_AT_ONCE: Final = 1 << 16
"""How many bytes are read at once."""
_HAIL: Final = (("HELLO",),)
"""What is said where there is no greeting: every user may, and any answer will do."""
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""When the system asks whether the other machine of a connection that idles is there; where it can be told."""


class Line:
    """
    A connection to a server, or a free slot for one, with one request at a time.

    Args:
        timeout_s: for how long nothing may come while a reply is due, and nothing of a request be taken by the server's
            machine; a half-open connection is noticed then.

    Attributes:
        is_ready: whether a request may be sent, as far as this side knows.
        term: what its link has marked the connection with.
    """

    __slots__ = (
        "__weakref__",
        "_lock",
        "_news",
        "_pid",
        "_reader",
        "_recv",
        "_sendall",
        "_socket",
        "_timeout_s",
        "is_ready",
        "term",
    )

    def __init__(self, timeout_s: float) -> None:
        self.is_ready = False
        self.term = -1
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def __del__(self) -> None:
        """Close an abandoned connection, whose link was dropped or whose caller was interrupted."""
        self.close()

    def connect(self, endpoint: Endpoint, connect_timeout_s: float, term: int) -> None:
        """
        Connect, in place of the connection before.

        Raises:
            NotSent: no connection could be made, or it failed before anything was asked.
            redis.exceptions.ResponseError: the server refuses the greeting: a wrong password, no such database.
        """
        self.close()
        try:
            made = _connected(endpoint, connect_timeout_s, self._timeout_s)
        except OSError as error:
            where = endpoint.path or f"{endpoint.host}:{endpoint.port}"
            raise NotSent from driver.ConnectionError(f"no connection to {where}: {error}")
        self._reader, self._recv, self._sendall, self._news = open_reader(), made.recv, made.sendall, _news_of(made)
        with self._lock:
            self._socket, self._pid = made, os.getpid()
        try:
            self._greet(endpoint.greeting)
        except Unanswered as error:
            self.close()
            raise NotSent from error.__cause__
        except BaseException:
            self.close()
            raise
        self.term = term
        self.is_ready = True

    def is_usable(self) -> bool:
        """Return whether a request may be sent, on a connection that the server has neither closed nor written to."""
        return self.is_ready and self._pid == os.getpid() and (not self._news(0) or self._is_quiet())

    def ask(self, *commands: tuple[Any, ...]) -> Any:
        """
        Send requests in one write and return the reply to the last one. The others must succeed.

        Raises:
            NotSent: the server does nothing yet.
            Unanswered: the connection failed after the request was sent, wholly or in part.
            redis.exceptions.ResponseError: the server refused.
        """
        data = pack(commands[0]) if len(commands) == 1 else b"".join(map(pack, commands))
        self.is_ready = False
        reply = self._exchange(data, len(commands))
        self.is_ready = True
        if isinstance(reply, Exception):
            raise refused(reply)
        return reply

    def end(self) -> None:
        """Fail the request in flight, from any thread."""
        with self._lock:
            if self._socket is not None and self._pid == os.getpid():
                _shut_down(self._socket)

    def close(self) -> None:
        """Close the connection, if there is one. A fork leaves the connection of its parent open."""
        self.is_ready = False
        if self._pid != os.getpid():
            # A thread that does not exist here may have held the old one.
            self._lock = threading.RLock()
        with self._lock:
            made, self._socket = self._socket, None
        if made is not None:
            if self._pid == os.getpid():
                _shut_down(made)
            made.close()

    def _greet(self, greeting: tuple[tuple[str, ...], ...]) -> None:
        """Require one reply from the server before the first request."""
        hail = greeting or _HAIL
        said = self._exchange(b"".join(map(pack, hail)), len(hail))
        if isinstance(said, Exception):
            error = refused(said)
            if greeting or isinstance(error, NotSent):
                raise error

    def _exchange(self, data: bytes, due: int) -> Any:
        """Send requests and read their replies. Return the first refusal, else the last reply."""
        reader, recv, said, came = self._reader, self._recv, None, None
        try:
            if len(data) <= BULK:
                self._sendall(data)
            else:
                came = self._send_bulk(data)
            while due:
                if came is None:
                    came = recv(_AT_ONCE)
                if not came:
                    raise driver.ConnectionError(CLOSED_BY_SERVER)
                reader.feed(came)
                came = None
                while (reply := reader.gets()) is not False:
                    if not due:
                        raise driver.InvalidResponse("nothing was asked")
                    due -= 1
                    if not isinstance(said, Exception):
                        said = reply
        except TimeoutError:
            raise Unanswered from no_answer(self._timeout_s)
        except BROKEN as error:
            raise Unanswered from error
        return said

    def _send_bulk(self, data: bytes) -> bytes | None:
        """
        Send a large request, until the server's machine has all of it or a reply comes, of which the first bytes are
        returned.

        Raises:
            redis.exceptions.TimeoutError: nothing of it was taken for as long as a reply may take.
        """
        made = self._socket
        assert made is not None
        # The time limit of a socket is one for all that it is given at once.
        for at in range(0, len(data), BULK):
            self._sendall(data[at : at + BULK])
        left, moved_s = len(data), time.monotonic()
        made.settimeout(min(LOOK_EVERY_S, self._timeout_s))
        try:
            while left:
                with suppress(TimeoutError):
                    return self._recv(_AT_ONCE)
                before, left = left, unsent(made)
                if left < before:
                    moved_s = time.monotonic()
                elif time.monotonic() - moved_s >= self._timeout_s:
                    raise driver.TimeoutError(f"nothing was taken within {self._timeout_s:g} s")
        finally:
            made.settimeout(self._timeout_s)
        return None

    def _is_quiet(self) -> bool:
        """Return whether the received bytes are empty for the reader, because TLS has messages of its own."""
        made = self._socket
        assert made is not None
        made.settimeout(0)
        try:
            self._recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        finally:
            made.settimeout(self._timeout_s)
        return False


def _connected(endpoint: Endpoint, connect_timeout_s: float, timeout_s: float) -> socket.socket:
    if endpoint.path is not None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        made = socket.create_connection((endpoint.host, endpoint.port), connect_timeout_s)
    try:
        if endpoint.path is not None:
            made.settimeout(connect_timeout_s)
            made.connect(endpoint.path)
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        made.settimeout(timeout_s)
        if endpoint.tls is not None:
            made = endpoint.tls.wrap_socket(made, server_hostname=endpoint.host, do_handshake_on_connect=False)
            made.do_handshake()
    except BaseException:
        made.close()
        raise
    return made


def _news_of(made: socket.socket) -> Any:
    """
    Return a function that asks the system, for so many ms, whether anything came or the connection ended.

    Where there is none, or another one in its place (gevent), something may always have come, and is looked for.
    """
    poll = getattr(select, "poll", None)
    if not isinstance(poll, BuiltinFunctionType):
        return _may_have_come
    watch = poll()
    watch.register(made.fileno(), select.POLLIN)
    return watch.poll


def _may_have_come(_ms: int) -> bool:
    """Return that something may have come."""
    return True


def _shut_down(made: socket.socket) -> None:
    # That of a socket by TLS would have a caller who is writing go on in plain text.
    with suppress(OSError):
        socket.socket.shutdown(made, socket.SHUT_RDWR)
