"""
The door to a leader by its port, and the way through the database while that cannot be used.

A guest connects, compares the fingerprint of the certificate with that in the leader's row before it sends anything of
its own, says the secret, and waits to be told that it is known. All of it has a time. A port that was refused, is not
heard any more or is not that of the leader is *cut*: calls go through the database, and now and then, while there are
calls, a thread tries the port. Once it can be used, calls go by it again.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.journal.guests.doors import GoneError, Reached
from queuehint.backends.postgres.port.entrance import WELCOME, keep_alive
from queuehint.backends.postgres.port.tunnel import Tunnel, guest_context

if TYPE_CHECKING:
    from queuehint.backends.journal.guests.doors import Door
    from queuehint.backends.postgres.mail.door import Unreached
    from queuehint.backends.postgres.port.offer import Offer

CONNECT_S: Final = 2.0
"""How long it may take to find the host, to connect and to be known."""
GREETING_BYTES: Final = 64 << 10
"""How much the other end may send until then."""
AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 30.0
"""How soon a port that is cut is tried again: at first, and after many times."""
ADDRESSES_MAX: Final = 4
"""How many addresses of a host are tried."""
_READ_BYTES: Final = 16 << 10

logger = logging.getLogger("queuehint.journal")


class CutError(Exception):
    """
    A port cannot be used.

    Args:
        is_final: it is not that the leader has just died.
        is_foreign: somebody else answers there.
    """

    def __init__(self, why: str, *, is_final: bool = True, is_foreign: bool = False) -> None:
        self.is_final = is_final
        self.is_foreign = is_foreign
        super().__init__(why)


class PortDoor:
    """
    The port of a leader.

    Args:
        offer: what its row says.
    """

    def __init__(self, offer: Offer) -> None:
        self.where = offer.where
        self._offer = offer

    def connect(self, timeout_s: float) -> tuple[socket.socket, Tunnel]:
        """
        Return a connection at whose other end the leader is, and which has let this guest in.

        Raises:
            CutError: there is none.
        """
        until_s = time.monotonic() + timeout_s
        found = _connected(self._offer, until_s)
        try:
            keep_alive(found)
            return found, self._enter(found, until_s)
        except BaseException as error:
            found.close()
            if isinstance(error, TimeoutError):
                raise CutError("the other end does not go on") from None
            if isinstance(error, OSError):
                raise CutError(str(error), is_final=False) from error
            raise

    def _enter(self, found: socket.socket, until_s: float) -> Tunnel:
        tunnel = Tunnel(guest_context(), is_leader=False)
        left = GREETING_BYTES

        def receive() -> bytes:
            nonlocal left
            found.settimeout(max(_left_s(until_s), 0.001))
            data = found.recv(_READ_BYTES)
            left -= len(data)
            if left < 0:
                raise CutError("the other end is no leader", is_foreign=True)
            return data

        try:
            data = b""
            while not tunnel.shake(data):
                found.sendall(tunnel.to_send())
                if not (data := receive()):
                    raise CutError("the connection was closed", is_final=False)
        except ValueError as error:
            raise CutError(f"the other end is no leader: {error}", is_foreign=True) from error
        if not hmac.compare_digest(tunnel.fingerprint(), self._offer.fingerprint):
            raise CutError("the certificate is not that of the leader", is_foreign=True)
        found.sendall(tunnel.sealed(bytes.fromhex(self._offer.secret)))
        said = b""
        while not said:
            try:
                data = receive()
                said = tunnel.opened(data)
            except ValueError as error:
                raise CutError(str(error)) from error
            if not data:
                raise CutError("the leader does not accept the secret, or has no room")
        if said != WELCOME:
            raise CutError("the other end is no leader", is_foreign=True)
        return tunnel


def _left_s(until_s: float) -> float:
    return until_s - time.monotonic()


def _connected(offer: Offer, until_s: float) -> socket.socket:
    """Return a connection to one of the addresses of a host; raises `CutError` if there is none."""
    problem = CutError(f"there is no address of {offer.host}")
    hosts = _hosts(offer.host, until_s)
    for n, host in enumerate(hosts):
        try:
            return socket.create_connection((host, offer.port), max(_left_s(until_s) / (len(hosts) - n), 0.001))
        except TimeoutError:
            problem = CutError("nobody answers")
        except OSError as error:
            problem = CutError(str(error), is_final=not isinstance(error, ConnectionError))
    raise problem


def _hosts(host: str, until_s: float) -> list[str]:
    """Return the addresses of a host; a resolver may take longer than there is time. Raises `CutError`: no thread."""
    found: list[str] = []

    def find() -> None:
        with suppress(OSError, UnicodeError):
            found.extend({str(each[4][0]): None for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})

    finding = threading.Thread(target=find, daemon=True, name="queuehint-resolve")
    try:
        finding.start()
    except RuntimeError as error:  # too many threads, or the interpreter ends
        raise CutError(str(error)) from error
    finding.join(max(_left_s(until_s), 0.0))
    return found[:ADDRESSES_MAX]


class Cuts:
    """Which port is cut: kept from door to door, of one leader at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._term = ""
        self._is_cut = self._is_foreign = self._is_trying = False
        self._tried_s = 0.0
        self._again_s = AGAIN_S

    def _turn_to(self, term: str) -> None:
        if self._term != term:
            self._term, self._is_cut, self._is_foreign, self._again_s = term, False, False, AGAIN_S

    def is_cut(self, term: str) -> bool:
        """Return whether the port of the leader of a term is cut."""
        with self._lock:
            return self._term == term and self._is_cut

    def cut(self, term: str, where: str, error: CutError) -> None:
        """Take note that a port cannot be used, and say so."""
        with self._lock:
            self._turn_to(term)
            is_said = self._is_foreign if error.is_foreign else self._is_cut
            self._is_cut, self._is_foreign = True, self._is_foreign or error.is_foreign
            self._tried_s = time.monotonic()
        if is_said:
            return
        level, event = (
            (logging.ERROR, "journal.port_foreign") if error.is_foreign else (logging.WARNING, "journal.port_cut")
        )
        extra = {"event": event, "port": where, "error": str(error)}
        logger.log(level, "the leader is not reached by its port, but by mail: %s", error, extra=extra)

    def look(self, term: str, door: PortDoor) -> bool:
        """Return whether a port is not cut any more; it is tried by a thread, now and then."""
        with self._lock:
            if self._term != term or not self._is_cut:
                return True
            if self._is_trying or time.monotonic() < self._tried_s + self._again_s:
                return False
            self._is_trying = True
        try:
            threading.Thread(target=self._try, args=(term, door), daemon=True, name="queuehint-port").start()
        except RuntimeError:  # too many threads, or the interpreter ends
            with self._lock:
                self._is_trying = False
        return False

    def _try(self, term: str, door: PortDoor) -> None:
        problem: CutError | None = None
        try:
            found, _ = door.connect(CONNECT_S)
            found.close()
        except CutError as error:
            problem = error
        finally:
            with self._lock:
                self._is_trying = False
                is_of_now = self._term == term
                if is_of_now:
                    self._tried_s = time.monotonic()
                    self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
        if problem is not None:
            self.cut(term, door.where, problem)
        elif is_of_now:
            with self._lock:
                self._is_cut = self._is_foreign = False
                self._again_s = AGAIN_S
            extra = {"event": "journal.port_back", "port": door.where}
            logger.info("the leader is reached by its port again", extra=extra)


class PortOrMail:
    """
    The port of a leader, or the way through the database while that is cut.

    Args:
        unreached, cuts: kept from door to door.
    """

    def __init__(self, port: PortDoor, mail: Door, unreached: Unreached, cuts: Cuts, term: str) -> None:
        self._port = port
        self._mail = mail
        self._unreached = unreached
        self._cuts = cuts
        self._term = term

    def is_straight(self) -> bool:
        """Return whether the port is not cut, as far as is known."""
        return self._cuts.look(self._term, self._port)

    def connect(self, timeout_s: float) -> Reached:
        """Return a stream to the process that leads."""
        if not self._cuts.is_cut(self._term):
            try:
                found, tunnel = self._port.connect(min(timeout_s, CONNECT_S))
            except CutError as error:
                if not error.is_final and not self._unreached.is_for_long(self._term):
                    raise GoneError from None  # it may have just died
                self._cuts.cut(self._term, self._port.where, error)
            else:
                silent = CutError("nothing has been heard")
                cut = partial(self._cuts.cut, self._term, self._port.where, silent)
                return Reached(found, tunnel, cut=cut, way="port")
        return attrs.evolve(self._mail.connect(timeout_s), is_detour=True)
