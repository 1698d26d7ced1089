"""
Watchdog of the event loop: a heartbeat every second, and measures for the other jobs while code blocks the loop.

Only another thread notices a blocked loop: the renewal thread checks every second, reports the lines of code that
block, and gives back the jobs whose code has not begun. For an in-process store no thread checks; the store asks, and
the loop reports when it runs again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
from typing import TYPE_CHECKING

from queuehint.errors import BackendError
from queuehint.operations import JOBS_AT_ONCE, Exchange
from queuehint.values.outcome import OutcomeKind
from queuehint.worker.leases.blocking import BlockWatch, blamed_frame, places
from queuehint.worker.leases.pulse import BEAT_S, BLOCKED_S
from queuehint.worker.outcomes import outcome_of

if TYPE_CHECKING:
    from queuehint.worker.slots import Slot
    from queuehint.worker.state import WorkerState

logger = logging.getLogger("queuehint.worker")

STOOD_STILL_S = 3.0
"""A thread that looks every second and has not for so long did not run: its whole process did not."""


class LoopWatch:
    """
    Watches the loop of one worker.

    The thread that renews leases looks, if the store is elsewhere; jobs whose code has not begun are given back while
    the loop is blocked.
    """

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._worker = state.name
        self._pulse = state.pulse
        self._now_s = state.now_s
        self._blocking = BlockWatch(state.slots)
        self._timer: asyncio.TimerHandle | None = None
        self._looked_s = 0.0
        self._beaten_s = math.inf
        self._thread = 0
        self._unbegun: list[Slot] = []
        state.look = self.look

    def start(self) -> None:
        """Watch the running loop."""
        self._thread = threading.get_ident()
        self._beat()
        self._blocking.start()

    def stop(self) -> None:
        """Stop watching: the worker has ended."""
        self._pulse.turned_s = None
        if self._timer is not None:
            self._timer.cancel()
        self._blocking.stop()

    def _beat(self) -> None:
        """Send a heartbeat every second: this loop is responsive."""
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        self._pulse.turned_s = now = self._now_s()
        blocked_s, self._beaten_s = now - self._beaten_s - BEAT_S, now
        if blocked_s >= BLOCKED_S and not self._pulse.is_blocked:
            # No other thread checked, or no thread ran at all.
            self._report_late(blocked_s)
        self._state.leases.beat()

    def _report_late(self, blocked_s: float) -> None:
        """Report, once the loop runs again, that code has blocked the loop."""
        if not self._blocking.is_to_blame(blocked_s):
            return
        logger.warning(
            "code has blocked the event loop of a worker; its other jobs did not run",
            extra={"event": "worker.blocked", "worker": self._worker, "blocked_s": round(blocked_s, 1)},
        )

    def look(self) -> None:
        """Report code that blocks the loop, and give back the jobs whose begin the loop blocks."""
        now, looked_s = self._now_s(), self._looked_s
        self._looked_s = now
        if looked_s and now - looked_s > STOOD_STILL_S and self._pulse.turned_s is not None:
            self._pulse.turned_s = now
        blocked_s = self._pulse.blocked_s
        if blocked_s < BLOCKED_S:
            if self._pulse.is_blocked:
                logger.info("the event loop runs again", extra={"event": "worker.unblocked", "worker": self._worker})
            self._pulse.is_blocked = False
            self._unbegun.clear()
            return
        if not self._pulse.is_blocked:
            self._pulse.is_blocked = True
            self._report(blocked_s)
        self._give_back_unbegun()

    def _report(self, blocked_s: float) -> None:
        """Report that the loop does not turn, and where its thread is."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - there is no other way to see another thread
        event, message = "worker.blocked", "code blocks the event loop of a worker; its other jobs do not run"
        if frame is None or blamed_frame(frame) is None:
            event = "worker.starved"
            message = "the event loop of a worker does not get to run; its jobs wait for a processor"
        extra = {"event": event, "worker": self._worker, "blocked_s": round(blocked_s, 1), "where": places(frame)}
        logger.warning(message, extra=extra)

    def _give_back_unbegun(self) -> None:
        """Give back the jobs whose code has not begun; failures are retried at the next check."""
        self._unbegun += [slot for slot in self._state.slots if slot.begin()]
        while self._unbegun:
            slots = self._unbegun[:JOBS_AT_ONCE]
            outcomes = tuple([outcome_of(slot.grant, OutcomeKind.RELEASED) for slot in slots])
            try:
                # By another name: what this worker is to be told stays for it.
                self._state.backend.call_sync(Exchange(f"{self._worker}-unbegun", outcomes, pools=()))
            except BackendError as error:
                logger.warning("backend unavailable: %s", error, extra={"event": "worker.backend", "error": str(error)})
                return
            for slot in slots:
                slot.is_given_back = True
            self._state.leases.exchange(outcomes, (), self._now_s())
            del self._unbegun[: len(slots)]
            logger.warning(
                "%d jobs whose code could not begin are given back",
                len(slots),
                extra={"event": "worker.gives_back", "worker": self._worker, "jobs": len(slots)},
            )
