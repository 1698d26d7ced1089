"""
Registration of a worker with the store, so that operators see running workers and their pools.

It is sent beside the first exchange and every 15 seconds after that, as long as exchanges are answered, and when the
worker has lost a lease. The store drops a worker a minute after its last announcement, when one of its leases expires,
and at once when it signs off. The reply shows whether the store has lost data since: a worker without jobs learns that
from nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from typing import TYPE_CHECKING

import attrs

from queuehint.backends.base import begins_history
from queuehint.errors import BackendError

if TYPE_CHECKING:
    from queuehint.operations import Announce
    from queuehint.worker.state import WorkerState

logger = logging.getLogger("queuehint.worker")

ANNOUNCE_EVERY_S = 15.0
HOST_MAX = 64
"""The most characters of a host's name that are sent."""


def host_name() -> str:
    """Return the name of this host, for its workers' names and announcements."""
    return socket.gethostname()[:HOST_MAX] or "localhost"


def new_worker_name() -> str:
    """Return a random name for a worker. A restarted worker must not pass for the dead one."""
    return f"{host_name()}-{os.getpid()}-{secrets.token_hex(6)}"


class Presence:
    """
    Announces one worker.

    Args:
        announcement: what to say of it, but for what changes.
    """

    def __init__(self, state: WorkerState, announcement: Announce) -> None:
        self._state = state
        self._backend = state.backend
        self._announcement = announcement
        self._token: int | None = None
        """The newest token that the store has given, as of the last announcement."""
        self._task: asyncio.Task[None] | None = None

    def announce(self, now_s: float) -> None:
        """Announce the worker to the store, in a task of its own. A running announcement is not repeated."""
        self._state.announce_due_s = now_s + ANNOUNCE_EVERY_S
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tell())

    def _now(self) -> Announce:
        """Return the present announcement. Log the counts of given-back jobs at the same intervals."""
        state = self._state
        state.outcomes.failures.given_back.flush()
        return attrs.evolve(self._announcement, running=len(state.slots), release=state.empty.release)

    async def _tell(self) -> None:
        try:
            reply = await self._backend.call(self._now())
        except BackendError as error:
            # Exchanges say so too, and go on; this is said again in time.
            logger.debug("not announced: %s", error, extra={"event": "worker.not_announced", "error": str(error)})
            return
        before, self._token = self._token, reply.token
        if before is not None and (reply.is_new or begins_history(before, reply.token)):
            self._state.has_lost_data = True
            self._state.wakeup.set_for_notes()

    async def leave(self) -> None:
        """
        Deregister the worker from the store.

        Raises:
            BackendError: it cannot be told, and forgets the worker in a minute.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._backend.call(attrs.evolve(self._announcement, gone=True))

    def cancel(self) -> None:
        """Stop announcing: the worker has ended."""
        if self._task is not None:
            self._task.cancel()
