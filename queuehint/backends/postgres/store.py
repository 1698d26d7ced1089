"""
A store of a journal in PostgreSQL, opened by nobody yet.

Guests on the machine of the leader reach it over a Unix socket in a directory of the user's own; others, and those that
cannot use it, by its port if the operator has it open one, else through the database.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.guests.doors import UnixDoor
from queuehint.backends.journal.guests.host import HostedGuest
from queuehint.backends.journal.guests.server import Server
from queuehint.backends.journal.guests.sockets import HAS_SOCKETS, private
from queuehint.backends.journal.lead.leadership import DeposedError, LedElsewhereError
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.journal.reader import PostgresReader
from queuehint.backends.postgres.lead import PostgresLead, find_leader, read_ways, stand_by, take_lead
from queuehint.backends.postgres.mail.carrier import Carrier
from queuehint.backends.postgres.mail.door import EitherDoor, MailDoor, Unreached
from queuehint.backends.postgres.making import prepare
from queuehint.backends.postgres.port.door import Cuts, PortDoor, PortOrMail
from queuehint.backends.postgres.port.opening import Opening
from queuehint.backends.postgres.sessions.session import Session
from queuehint.errors import BackendError, BackendUnavailableError

if TYPE_CHECKING:
    from queuehint.backends.journal.guests.doors import Door
    from queuehint.backends.journal.guests.host import Leading
    from queuehint.backends.journal.lead.leadership import Lead, Leader
    from queuehint.backends.postgres.address import Address
    from queuehint.backends.postgres.port.offer import Offer

PATIENCE_S: Final = 4.0
"""How long a guest tries to reach the server, when it looks for the next leader."""
_PAUSE_S: Final = 0.05


class PostgresStore:
    """
    The journal of a namespace.

    Args:
        address: where the tables are; a leader goes past a pooler if the address says how.

    Attributes:
        name: what errors call it.
    """

    def __init__(self, address: Address, namespace: str) -> None:
        self.name = address.shown
        self._address = address.for_leading
        self._namespace = namespace
        self._machine = machine()
        self._carrier = Carrier(self._address, namespace)
        self._unreached = Unreached()
        self._unreached_port = Unreached()
        self._cuts = Cuts()
        self._was_guest = False

    @property
    def may_lead(self) -> bool:
        """Return what the URL says."""
        return self._address.may_lead

    def find_leader(self) -> Leader | None:
        """Return who has a lease that has not ended, by the clock of the server."""
        with closing(Session(self._address)) as session, session.judged():
            prepare(session, self._address)
            if stand_by(session, self._address, self._namespace, says_so=False):
                return None
            return find_leader(session, self._address, self._namespace)

    def take_lead(self, *, is_ready: bool = True) -> PostgresLead:
        """
        Take the lead; the tables are made if they are not there.

        Raises:
            LedElsewhereError: another process has it.
            BackendDeniedError: this user may not make or use the tables, they are of a later release, or the server is
                too old.
            BackendUnavailableError: the server cannot be reached.
        """
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._take_lead(is_ready=is_ready)
            except BackendUnavailableError:
                # What has cut this process off from its leader may have been the end of the server, that starts again.
                if not self._was_guest or time.monotonic() > until_s:
                    self._was_guest = False
                    raise
            except LedElsewhereError:
                self._was_guest = True
                raise
            time.sleep(_PAUSE_S)

    def _take_lead(self, *, is_ready: bool) -> PostgresLead:
        if self._address.may_lead:
            return take_lead(self._address, self._namespace, is_ready=is_ready)
        leader = self._find()
        if leader is None or leader.pid is None:
            raise BackendUnavailableError(f"{self.name}: no process leads, and this one may not (lead=no)")
        raise LedElsewhereError(leader)

    def read(self) -> PostgresReader:
        """Begin to read the journal; the tables are made if they are not there."""
        return PostgresReader(self._address, self._namespace)

    def has_leader(self) -> bool:
        """Return whether a process leads, as far as the leader's row says."""
        leader = self._find()
        return leader is not None and leader.pid is not None

    def _find(self) -> Leader | None:
        with closing(Session(self._address)) as session, session.judged():
            prepare(session, self._address)
            return find_leader(session, self._address, self._namespace)

    def serve(self, lead: Lead, leading: Leading) -> Served:
        """Begin to serve guests: on this machine by a socket, others by a port if there is to be one, and by mail."""
        if not HAS_SOCKETS:
            lead.announce("")
            raise OSError("there are no Unix sockets here")
        assert isinstance(lead, PostgresLead)
        server = Server(
            (partial(private, f"{self.name} {self._namespace} {lead.term}"),), partial(HostedGuest, leading)
        )
        carrier = Carrier(self._address, self._namespace, server.adopt, leading.look)
        opening = Opening(self._address.port, server, self.name)
        served = Served(server, carrier, opening)
        where = f"{self._machine} {server.address}"
        try:
            carrier.start()
            offer = opening.opened()
            lead.announce(where, carrier.box, offer)
        except BaseException:
            served.close()
            with suppress(BackendError, DeposedError):
                lead.announce("")
            raise

        def announce_late(offer: Offer) -> None:
            lead.announce(where, carrier.box, offer)
            carrier.turn_away()

        opening.go_on(announce_late)
        return served

    def door(self, leader: Leader) -> Door:
        """Return the way to the process that leads: its socket on the same machine, else its port, else mail."""
        ways = read_ways(leader.address or "")
        where, path = ways.address.split(" ", 1)
        far: Door = MailDoor(self._carrier, ways.box, leader.term)
        if ways.offer is not None:
            far = PortOrMail(PortDoor(ways.offer), far, self._unreached_port, self._cuts, leader.term)
        if where != self._machine or not HAS_SOCKETS:
            return far
        return EitherDoor(UnixDoor(path, {os.geteuid(), 0}, self.name), far, self._unreached, leader.term)

    def open(self, lead: Lead) -> PostgresJournal:
        """
        Open the journal.

        Raises:
            DeposedError: another process leads by now.
            BackendDeniedError, BackendUnavailableError: the server cannot be used.
            CorruptStateError: the newest rows are missing.
        """
        assert isinstance(lead, PostgresLead)
        return PostgresJournal(lead)


class Served:
    """What serves the guests of a leader, until `close`."""

    def __init__(self, server: Server, carrier: Carrier, opening: Opening) -> None:
        self._server = server
        self._carrier = carrier
        self._opening = opening

    @property
    def port(self) -> str | None:
        """The host and the port at which guests reach it; None if none is open."""
        return self._opening.where

    def close(self) -> None:
        """Serve nobody any more; calls under way may end."""
        self._opening.end()
        self._server.close()
        self._carrier.close()


def machine() -> str:
    """Return what tells this machine, as long as it runs, from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return socket.gethostname()
