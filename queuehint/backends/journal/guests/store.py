"""
Base class of a store in a file that one process owns and others use through it.

The owner holds the lock of the file and answers the others over a socket: all questions, commands and submissions. It
alone runs jobs. A process that finds the lock taken is a guest and sends its operations to the owner. It tries the lock
first each time, so that it takes over the file when the owner has died. A guest that is to run jobs asks for the file
itself; an owner that runs none then makes a snapshot, leaves the file, and is a guest from then on.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from queuehint.backends.base import Interest
from queuehint.backends.in_process import LocalBackend
from queuehint.backends.journal.guests.guest import RETRY_S, Guest, deadline_s
from queuehint.backends.journal.guests.host import serve
from queuehint.backends.journal.writer import Ticket
from queuehint.backends.sqlite.lock import FileInUseError, FileLock, lock_path
from queuehint.errors import QueueHintError
from queuehint.operations import IDS_MAX, Peek

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.base import BackendOptions
    from queuehint.backends.journal.guests.server import Server
    from queuehint.backends.sqlite.address import Address
    from queuehint.backends.waiters import Waiter

GUEST_POLL_S: Final = 0.2
"""How often a guest that waits looks again."""
TAKEN_WITHIN_S: Final = 1.0
"""How long a process that has left the file waits for the other one to take it."""


class SharedStore(LocalBackend):
    """
    The engine of one process, which others ask, or the way to the process that has it.

    Args:
        address: where the file is.
        options: the namespace is that of the file.
    """

    address: Address
    namespace: str

    def __init__(self, address: Address, options: BackendOptions) -> None:
        super().__init__(options)
        self.address = address
        self.namespace = options.namespace
        self._file_lock: FileLock | None = None
        self._is_open = False
        """The engine is what the file says; changed by the writer, under the lock."""
        self._guest = Guest(address.path, options.namespace)
        self._is_guest = False
        """The last operations were sent to another process."""
        self._server: Server | None = None
        self._is_serving = False
        """A socket was made, or tried, for the lock that is held."""
        self._is_wanted = False
        """Another process is to run the jobs of the file."""

    @abstractmethod
    def _open(self) -> None:
        """Load the engine from the file, unless it is loaded."""

    @abstractmethod
    def _submit(self, ticket: Ticket) -> None:
        """Pass a ticket to the writer."""

    @property
    def is_closed(self) -> bool:
        """True once the store was closed."""
        return self._closed

    # --- of the writer -------------------------------------------------------------------------------------------

    def _open_or_ask(self, batch: list[Ticket]) -> list[Ticket]:
        """Open the file and return the tickets to do; if another process has it, have them done by that one."""
        until_s = None
        while (in_use := self._open_or_find()) is not None:
            left = self._ask_owner(batch, in_use)
            if not left:
                return []
            if until_s is None or len(left) < len(batch):
                until_s = deadline_s()
            elif time.monotonic() >= until_s:
                return _fail(left, self._guest.silent(in_use, runs_workers=bool(self._adopted)))
            batch = left
            time.sleep(RETRY_S)
        return batch

    def _open_or_find(self) -> FileInUseError | None:
        """Open the file, unless it is open; return the process that has it if another one does."""
        try:
            self._open()
        except FileInUseError as in_use:
            self._is_guest = True
            return in_use
        self._is_guest = False
        if not self._is_serving and self._file_lock is not None:
            self._is_serving = True
            self._server = serve(self, self._file_lock)
        return None

    def _ask_owner(self, batch: list[Ticket], in_use: FileInUseError) -> list[Ticket]:
        try:
            return self._guest.ask(batch, in_use, runs_workers=bool(self._adopted))
        except QueueHintError as error:
            return _fail(batch, error)

    def _end_serving(self) -> None:
        """Answer other processes no more."""
        server, self._server, self._is_serving = self._server, None, False
        if server is not None:
            server.close()

    def _await_next(self) -> None:
        """Wait a moment for the process that is to take the file, which this one has left."""
        lock, until_s = lock_path(self.address.path), time.monotonic() + TAKEN_WITHIN_S
        with suppress(OSError):
            while time.monotonic() < until_s and not lock.stat().st_size:
                time.sleep(RETRY_S)

    # --- what others ask for -------------------------------------------------------------------------------------

    async def keep(self, job_ids: tuple[str, ...]) -> None:
        """Keep the records of these jobs until they can be read, for a guest that waits for their ends."""
        if going := await self._apart(lambda: self._going_soon(Interest(jobs=job_ids))):
            await self._await_ends(going)

    def hand_over(self) -> bool:
        """Leave the file to a process that is to run its jobs; return False if this one does."""
        if self._adopted:
            return False
        self._is_wanted = True
        self._submit(Ticket(Peek()))  # the writer leaves after it
        return True

    # --- waiting -------------------------------------------------------------------------------------------------

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """Return once a topic may have news, or after *timeout_s*; a guest returns soon, to look again."""
        if not self._is_open:
            if self._is_guest and (awaited := _awaited(interest)):
                await self._await_ends(awaited)
            else:
                await self.call(Peek())
            if self._is_guest:
                await asyncio.sleep(_pause_s(timeout_s))
                return
        await super().wait(interest, timeout_s)

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Like `wait`, blocking this thread."""
        if not self._is_open:
            if self._is_guest and (awaited := _awaited(interest)):
                self._await_ends_sync(awaited)
            else:
                self.call_sync(Peek())
            if self._is_guest:
                time.sleep(_pause_s(timeout_s))
                return
        super().wait_sync(interest, timeout_s)

    def _enter(self, interest: Interest, timeout_s: float, wake: Callable[[], None]) -> Waiter | None:
        with self._lock:
            # The file may have been left meanwhile: no waiter would be woken.
            return super()._enter(interest, timeout_s, wake) if self._is_open else None


def _fail(tickets: list[Ticket], error: QueueHintError) -> list[Ticket]:
    """Tell tickets an error; return those left to do: none."""
    for ticket in tickets:
        ticket.error = error
    return []


def _awaited(interest: Interest) -> tuple[str, ...]:
    return (*interest.jobs, *interest.kept)[:IDS_MAX]


def _pause_s(timeout_s: float) -> float:
    """Return how long a guest waits: less than it may, because after the whole time there is no check."""
    return max(0.0, min(GUEST_POLL_S, timeout_s / 2))
