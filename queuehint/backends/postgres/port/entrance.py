"""
The port of a leader: strangers come, and guests are passed on to the server.

A stranger has to speak TLS 1.3 and to say the secret of this lead, which only those know who may read the row of the
leader in the database. Until then it is bounded: strangers in number, each of them in seconds and in bytes. Those who
come meanwhile wait where the system has them wait. Nothing that a stranger sends reaches the engine, and none of it
keeps the guests of the server waiting for longer than the handshakes of one turn.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.guests.sockets import BACKLOG
from queuehint.backends.postgres.port.tunnel import Tunnel

if TYPE_CHECKING:
    from queuehint.backends.journal.guests.server import Server
    from queuehint.backends.postgres.port.certificate import Certificate

STRANGERS_MAX: Final = 32
"""How many connections there are whose guests are not known yet; others wait."""
STRANGER_S: Final = 5.0
"""How long a handshake and the secret may take together."""
STRANGER_BYTES: Final = 16 << 10
"""How much one may send until it is known."""
SECRET_BYTES: Final = 32
WELCOME: Final = b"\x06"
"""What a guest is told when its secret is right: it is the first byte in the tunnel."""
SAY_EVERY_S: Final = 60.0
"""How often it is logged that strangers were refused."""
_PAUSE_S: Final = 0.02
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""After so many seconds the system asks whether the other machine is there, how often, and how many times."""

logger = logging.getLogger("queuehint.journal")


def keep_alive(connection: socket.socket) -> None:
    """Have the system notice that the other machine has gone, and send small frames at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def listen_at(host: str, port: int) -> socket.socket:
    """
    Return a socket that listens.

    Raises:
        OSError: the host is not one of this machine, or the port is taken or forbidden.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.setblocking(False)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class Stranger(asyncio.Protocol):
    """
    A connection until its guest is known.

    Args:
        accepted: its socket.
    """

    def __init__(self, entrance: Entrance, accepted: socket.socket) -> None:
        self.socket = accepted
        self._entrance = entrance
        self._tunnel = Tunnel(entrance.certificate.context, is_leader=True)
        self._transport: asyncio.Transport | None = None
        self._left_bytes = STRANGER_BYTES
        self._is_up = False
        self._said = b""
        self._timer = asyncio.get_running_loop().call_later(STRANGER_S, self._refuse, "is slow")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Go on with the handshake, then with the secret."""
        assert self._transport is not None
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._refuse("sends too much")
            return
        try:
            if not self._is_up:
                self._is_up = self._tunnel.shake(data)
                self._transport.write(self._tunnel.to_send())
                data = b""
            if self._is_up:
                self._said += self._tunnel.opened(data)
        except ValueError as error:
            self._refuse(str(error))
            return
        if len(self._said) >= SECRET_BYTES:
            self._look()

    def _look(self) -> None:
        """Pass a guest on that has said the secret, and nothing more: it has to be told first that it is known."""
        assert self._transport is not None
        if not hmac.compare_digest(self._said, self._entrance.secret):
            self._refuse("does not know the secret")
        elif not self._entrance.has_room:
            self._refuse("is a guest too many")
        else:
            self._end()
            self._transport.write(self._tunnel.sealed(WELCOME))
            self._entrance.welcome(self, self._transport, self._tunnel)

    def connection_lost(self, _error: Exception | None) -> None:
        """Let another stranger come."""
        self._end()
        self._entrance.drop(self)

    def _end(self) -> None:
        self._timer.cancel()
        self._entrance.forget(self)

    def _refuse(self, why: str) -> None:
        self._entrance.say_refused(why)
        self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self.socket.close()


class Entrance:
    """
    A port that listens, on the thread of a server.

    Args:
        secret: what guests say, of `SECRET_BYTES`.
    """

    def __init__(self, listener: socket.socket, certificate: Certificate, secret: bytes) -> None:
        self.certificate = certificate
        self.secret = secret
        self._listener = listener
        self._server: Server | None = None
        self._strangers: set[Stranger] = set()
        self._attending: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._refused = 0
        self._said_s = -SAY_EVERY_S

    @property
    def port(self) -> int:
        """The number of the port."""
        number: int = self._listener.getsockname()[1]
        return number

    def begin(self, server: Server) -> None:
        """Begin to accept."""
        self._server = server
        server.hold(self._listener)
        self._look_out()

    def end(self) -> None:
        """Accept nothing more, and close the connections of strangers."""
        self._is_over = True
        if self._server is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._server.drop(self._listener)
        self._listener.close()
        for stranger in list(self._strangers):
            stranger.abort()

    # --- strangers -----------------------------------------------------------------------------------------------

    def _look_out(self) -> None:
        if not self._is_over and len(self._strangers) < STRANGERS_MAX:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._server is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no file is left for it
            loop.remove_reader(self._listener)
            loop.call_later(_PAUSE_S, self._look_out)
            return
        try:
            connection.setblocking(False)
            keep_alive(connection)
        except OSError:  # it has gone
            connection.close()
            return
        self._server.hold(connection)
        stranger = Stranger(self, connection)
        self._strangers.add(stranger)
        if len(self._strangers) >= STRANGERS_MAX:
            loop.remove_reader(self._listener)
        attending = loop.create_task(self._attend(stranger))
        self._attending.add(attending)
        attending.add_done_callback(self._attending.discard)

    async def _attend(self, stranger: Stranger) -> None:
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(lambda: stranger, stranger.socket)
            return
        stranger.connection_lost(None)

    def forget(self, stranger: Stranger) -> None:
        """Let another one come: this one is known, or has gone."""
        self._strangers.discard(stranger)
        self._look_out()

    def drop(self, stranger: Stranger) -> None:
        """Forget the socket of a stranger that has gone."""
        assert self._server is not None
        self._server.drop(stranger.socket)

    @property
    def has_room(self) -> bool:
        """Whether the server serves another guest."""
        return self._server is not None and self._server.has_room

    def welcome(self, stranger: Stranger, transport: asyncio.Transport, tunnel: Tunnel) -> None:
        """Have the server serve a guest."""
        assert self._server is not None
        self._server.welcome(stranger.socket, transport, tunnel)

    def say_refused(self, why: str) -> None:
        """Count a stranger that is refused, and log that there were some, now and then."""
        self._refused += 1
        now_s = asyncio.get_running_loop().time()
        if now_s < self._said_s + SAY_EVERY_S:
            return
        extra = {"event": "journal.strangers_refused", "count": self._refused, "last": why}
        logger.warning("connections to the port of the leader were refused: %s", why, extra=extra)
        self._refused, self._said_s = 0, now_s
