"""Where the journal of a file is: the database, the lock beside it, and the socket of the process that has the lock."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from queuehint.backends.journal.guests.doors import UnixDoor
from queuehint.backends.journal.guests.host import HostedGuest
from queuehint.backends.journal.guests.server import HAS_SOCKETS, Server, beside, private
from queuehint.backends.sqlite.file import JournalFile
from queuehint.backends.sqlite.lock import lock_path, take_lock

if TYPE_CHECKING:
    from queuehint.backends.journal.guests.host import Leading
    from queuehint.backends.journal.leadership import Lead, Leader
    from queuehint.backends.sqlite.address import Address
    from queuehint.backends.sqlite.lock import FileLock


class FileStore:
    """
    A file, as `queuehint.backends.journal.store.Store` says.

    Args:
        namespace: whose jobs are to be in it.
    """

    def __init__(self, address: Address, namespace: str) -> None:
        self.name = str(address.path)
        self._address = address
        self._namespace = namespace

    def take_lead(self) -> FileLock:
        """Take the lock of the file."""
        return take_lock(self._address.path)

    def has_leader(self) -> bool:
        """Return whether a process has written its id into the lock file."""
        return lock_path(self._address.path).stat().st_size > 0

    def door(self, leader: Leader) -> UnixDoor:
        """Return the socket of the process that leads: of this user, the owner of the file, or the administrator."""
        users = {os.geteuid(), 0}
        with suppress(OSError):
            users.add(self._address.path.stat().st_uid)
        return UnixDoor(leader.address or "", users, self.name)

    def serve(self, lead: Lead, leading: Leading) -> Server:
        """Begin to serve guests over a socket beside the file."""
        try:
            if not HAS_SOCKETS:
                raise OSError("there are no Unix sockets here")
            path = self._address.path.resolve()
            server = Server((partial(beside, path), partial(private, str(path))), partial(HostedGuest, leading))
            try:
                lead.announce(server.address)
            except OSError:
                server.close()
                raise
        except OSError:
            with suppress(OSError):
                lead.announce("")
            raise
        return server

    def open(self, _lead: Lead) -> JournalFile:
        """Open the database."""
        return JournalFile(self._address, self._namespace)
