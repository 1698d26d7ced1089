"""Workers of a simulated world: leases are renewed on the event loop, and a worker is named after its process."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from queuehint.errors import BackendError
from queuehint.operations import Renew
from queuehint.testing.simulation.loop import PROCESS
from queuehint.worker.leases.presence import Presence
from queuehint.worker.leases.renewal import Renewal
from queuehint.worker.worker import Worker

if TYPE_CHECKING:
    from queuehint.backends.base import Backend

logger = logging.getLogger("queuehint.worker")


class LoopRenewal(Renewal):
    """`Renewal` with two tasks in place of its threads, by the clock of the loop."""

    def __init__(self, backend: Backend, lease_ms: int, **options: object) -> None:
        super().__init__(backend, lease_ms, **options)  # type: ignore[arg-type]
        self.now_s = asyncio.get_running_loop().time
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to renew and to watch."""
        self._tasks = [asyncio.ensure_future(self._watch_here()), asyncio.ensure_future(self._renew_here())]
        for task in self._tasks:
            task.add_done_callback(_tell)

    def end(self) -> None:
        """Stop; nothing is renewed any more."""
        super().end()
        for task in self._tasks:
            task.cancel()

    async def _watch_here(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._fence(self.now_s())

    async def _renew_here(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            leases = self._due()
            if leases:
                sent_s = self.now_s()
                try:
                    reply = await self._backend.call(Renew(leases, self._lease_ms))
                except BackendError as error:
                    logger.warning("leases were not renewed", extra={"event": "renewal.failed", "error": str(error)})
                else:
                    self._take_in(leases, reply, sent_s)


class NoPresence(Presence):
    """Announces nothing: that decides nothing about jobs, and each request is one more that a fault may befall."""

    def announce(self, now_s: float) -> None:
        """Have nothing to tell, ever."""
        self.due_s = math.inf

    async def leave(self) -> None:
        """Have nothing to tell."""


class LoopWorker(Worker):
    """`Worker` whose leases are kept by tasks, with the name of the process that it runs in."""

    renewal_class = LoopRenewal
    presence_class = NoPresence
    uses_processes = False

    @staticmethod
    def make_name() -> str:
        """Return the name of the process."""
        process = PROCESS.get()
        assert process is not None
        return process.name


def _tell(task: asyncio.Task[None]) -> None:
    """Raise what a task has died of, for the loop to tell: nobody waits for it."""
    if not task.cancelled():
        task.result()
