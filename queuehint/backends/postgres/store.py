"""
A store of a journal in PostgreSQL, opened by nobody yet.

Guests on the machine of the leader reach it over a Unix socket in a directory of the user's own.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from queuehint.backends.journal.guests.doors import GoneError, UnixDoor
from queuehint.backends.journal.guests.host import HostedGuest
from queuehint.backends.journal.guests.server import HAS_SOCKETS, Server, private
from queuehint.backends.journal.lead.leadership import LedElsewhereError
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.journal.reader import PostgresReader
from queuehint.backends.postgres.lead import PostgresLead, find_leader, take_lead
from queuehint.backends.postgres.making import prepare
from queuehint.backends.postgres.sessions.failures import LostError, RefusedError
from queuehint.backends.postgres.sessions.session import Session
from queuehint.errors import BackendUnavailableError

if TYPE_CHECKING:
    from queuehint.backends.journal.guests.doors import Door
    from queuehint.backends.journal.guests.host import Leading
    from queuehint.backends.journal.lead.leadership import Lead, Leader
    from queuehint.backends.postgres.address import Address


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

    def take_lead(self, *, is_ready: bool = True) -> PostgresLead:
        """
        Take the lead; the tables are made if they are not there.

        Raises:
            LedElsewhereError: another process has it.
            BackendDeniedError: this user may not make or use the tables, they are of a later release, or the server is
                too old.
            BackendUnavailableError: the server cannot be reached.
        """
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
        session = Session(self._address)
        try:
            prepare(session, self._address)
            return find_leader(session, self._address, self._namespace)
        except (LostError, RefusedError) as error:
            raise session.judgement(error) from error
        finally:
            session.close()

    def serve(self, lead: Lead, leading: Leading) -> Server:
        """Begin to serve guests on this machine."""
        if not HAS_SOCKETS:
            lead.announce("")
            raise OSError("there are no Unix sockets here")
        assert isinstance(lead, PostgresLead)
        server = Server(
            (partial(private, f"{self.name} {self._namespace} {lead.term}"),), partial(HostedGuest, leading)
        )
        try:
            lead.announce(f"{machine()} {server.address}")
        except BaseException:
            server.close()
            raise
        return server

    def door(self, leader: Leader) -> Door:
        """Return the way to the process that leads: its socket, on the same machine."""
        where, _, path = (leader.address or "").partition(" ")
        if where != machine():
            raise GoneError(is_mute=True)
        return UnixDoor(path, {os.geteuid(), 0}, self.name)

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


def machine() -> str:
    """Return what tells this machine, as long as it runs, from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return socket.gethostname()
