"""Workers of a simulated world: leases are renewed on the event loop, and a worker is named after its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import attrs

from queuehint.errors import BackendError
from queuehint.operations import Renew
from queuehint.testing.simulation.loop import PROCESS
from queuehint.worker.leases.loop_watch import LoopWatch
from queuehint.worker.leases.presence import ANNOUNCE_EVERY_S, Presence
from queuehint.worker.leases.renewal import Renewal
from queuehint.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.worker.state import WorkerState

logger = logging.getLogger("queuehint.worker")


class LoopRenewal(Renewal):
    """`Renewal` with two tasks in place of its threads, by the clock of the loop."""

    def __init__(self, state: WorkerState) -> None:
        super().__init__(state)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to renew and to watch."""
        self._tasks = [asyncio.ensure_future(self._watch_here()), asyncio.ensure_future(self._renew_here())]
        for task in self._tasks:
            task.add_done_callback(_tell)

    def end(self) -> None:
        """Stop, and renew no more leases."""
        super().end()
        for task in self._tasks:
            task.cancel()

    async def _watch_here(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._fence(self._state.now_s())

    async def _renew_here(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            leases = self._due()
            if leases:
                sent_s = self._state.now_s()
                try:
                    reply = await self._backend.call(Renew(leases, self._leases.lease_ms))
                except BackendError as error:
                    logger.warning("leases were not renewed", extra={"event": "renewal.failed", "error": str(error)})
                else:
                    self._take_in(leases, reply, sent_s)


class LoopPresence(Presence):
    """
    `Presence` past the network, at once: it has no effect on jobs, and so needs no faults.

    Host and process id are the same in each run. One that dies is known for a minute more, as a real one is.
    """

    def announce(self, now_s: float) -> None:
        """Register with the store in a callback, from which the loop reports a broken promise."""
        self._state.announce_due_s = now_s + ANNOUNCE_EVERY_S
        asyncio.get_running_loop().call_soon(self._say, False)

    async def leave(self) -> None:
        """Deregister the worker."""
        self._say(True)

    def _say(self, gone: bool) -> None:
        told = attrs.evolve(self._now(), host="simulated", pid=1, gone=gone)
        with contextlib.suppress(BackendError):
            self._backend.call_sync(told)


class VirtualLoopWatch(LoopWatch):
    """
    `LoopWatch` that reports no late heartbeat.

    Code takes no virtual time, so it cannot block a virtual loop: a heartbeat is late because its process stood still,
    a fault that the simulation has drawn and tells in its story.
    """

    def _report_late(self, blocked_s: float) -> None:
        """Report nothing."""


class LoopWorker(Worker):
    """`Worker` whose leases are kept by tasks, with the name of its process."""

    renewal_class = LoopRenewal
    presence_class = LoopPresence
    watch_class = VirtualLoopWatch
    uses_processes = False

    @staticmethod
    def make_name() -> str:
        """Return the name of the process."""
        process = PROCESS.get()
        assert process is not None
        return process.name

    @staticmethod
    def make_clock() -> Callable[[], float]:
        """Return the time of the loop."""
        return asyncio.get_running_loop().time


def _tell(task: asyncio.Task[None]) -> None:
    """Raise the exception of a task in a callback, so that the loop reports the exception of an unawaited task."""
    if not task.cancelled():
        task.result()
