"""Where the journal of a file is: the database, the lock beside it, and the socket of the process that has the lock."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.guests.doors import UnixDoor
from queuehint.backends.journal.guests.host import HostedGuest
from queuehint.backends.journal.guests.server import Server
from queuehint.backends.journal.guests.sockets import HAS_SOCKETS, beside, private
from queuehint.backends.journal.lead.leadership import Leader, LedElsewhereError
from queuehint.backends.journal.writer import Ticket
from queuehint.backends.journal.writing import NUDGE
from queuehint.backends.sqlite.bell import Bell
from queuehint.backends.sqlite.file import JournalFile
from queuehint.backends.sqlite.inbox import Coming
from queuehint.backends.sqlite.lock import find_holder, is_locked, lock_path, standby_path, take_lock
from queuehint.backends.sqlite.rows import FileReader
from queuehint.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.backends.journal.guests.host import Leading
    from queuehint.backends.journal.lead.leadership import Lead
    from queuehint.backends.sqlite.address import Address
    from queuehint.backends.sqlite.lock import FileLock


YIELDS_S: Final = 2.0
"""For how long the lead is left to a process that stands by."""


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
        self._coming = Coming()
        self._yields_until_s: float | None = None
        """Until when the lead is left to a process that stands by, since it was first."""

    @property
    def may_lead(self) -> bool:
        """Always true."""
        return True

    def find_leader(self) -> Leader | None:
        """Return what stands in the lock file, if a process has the lock."""
        return find_holder(lock_path(self._address.path))

    def take_lead(self, *, is_ready: bool) -> FileLock:
        """Take the lock of the file; leave it for a moment to a process that stands by, if this one does not."""
        path = self._address.path
        lock = take_lock(path)
        if is_ready or not is_locked(standby_path(path)):
            self._yields_until_s = None
            return lock
        now_s = time.monotonic()
        if self._yields_until_s is None or now_s > self._yields_until_s + YIELDS_S:  # another time than the last
            self._yields_until_s = now_s + YIELDS_S
        if now_s > self._yields_until_s:  # it stands still
            return lock
        lock.release()
        raise LedElsewhereError(Leader())

    def read(self) -> FileReader:
        """Open the file to follow it; make it, or the tables in it, if they are not there."""
        path = self._address.path
        if not path.exists():
            self._make()
        reader = FileReader(self._address)
        if not reader.is_made:
            reader.close()
            self._make()
            reader = FileReader(self._address)
            if not reader.is_made:
                reader.close()
                raise BackendUnavailableError(f"{path}: another process makes the tables just now")
        return reader

    def _make(self) -> None:
        """Make the tables; nothing is to be done if another process leads."""
        with suppress(LedElsewhereError), closing_lock(take_lock(self._address.path)):
            JournalFile(self._address, self._namespace).close()

    def has_leader(self) -> bool:
        """Return whether a process has written its id into the lock file."""
        return lock_path(self._address.path).stat().st_size > 0

    def door(self, leader: Leader) -> UnixDoor:
        """Return the socket of the process that leads: of this user, the owner of the file, or the administrator."""
        users = {os.geteuid(), 0}
        with suppress(OSError):
            users.add(self._address.path.stat().st_uid)
        return UnixDoor(leader.address or "", users, self.name)

    def serve(self, lead: Lead, leading: Leading) -> Served:
        """Begin to serve guests over a socket beside the file, and to hear the bell of an application's."""
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
        bell: Bell | None = None
        if self._address.shared:
            with suppress(OSError):  # the leader looks by itself
                bell = Bell(self._address.path, self._coming, partial(_look, leading))
        return Served(server, bell)

    def open(self, _lead: Lead) -> JournalFile:
        """Open the database."""
        return JournalFile(self._address, self._namespace, self._coming)


class Served:
    """What serves the guests of a leader, until `close`."""

    def __init__(self, server: Server, bell: Bell | None) -> None:
        self._server = server
        self._bell = bell

    def close(self) -> None:
        """Serve nobody any more; calls under way may end."""
        self._server.close()
        if self._bell is not None:
            self._bell.close()


def _look(leading: Leading) -> None:
    """Have the writer look into the inbox; nobody waits for it."""
    with suppress(BackendUnavailableError):
        leading.submit(Ticket(NUDGE))


@contextmanager
def closing_lock(lock: FileLock) -> Iterator[None]:
    """Release a lock at the end of a block."""
    try:
        yield
    finally:
        lock.release()
