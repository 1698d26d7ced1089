"""
Detection of blocking code in async handlers, after about a second, with the line that blocks.

The loop of each worker sends a pulse twice a second; one thread for all workers of a process checks twice a second
whether one is overdue. Nothing is done per job. Loops whose time is not that of this machine are not watched.

This only reports. `queuehint.worker.leases.loop_watch` acts, independently, on a loop that is blocked for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from queuehint.errors import printable

if TYPE_CHECKING:
    from types import FrameType

    from queuehint.worker.slots import Slot, Slots

logger = logging.getLogger("queuehint.worker")

PULSE_S = 0.5
BLOCKS_S = 1.0
"""How long code may block the loop, from the missing pulse on, before it is reported."""
LATE_S = 0.5
"""A look that is so late says nothing: the whole process stood still."""
AGAIN_S = 60.0
"""How long the same line of the same task is not reported again."""
FRAMES_MAX = 5
IDLE_MAX = 10
"""After so many looks at no worker the thread ends; the next worker starts another one."""
PLACES_MAX = 1000
_OURS = str(Path(__file__).parents[2]) + os.sep


class BlockWatch:
    """Notices code that blocks the loop of one worker, whose running jobs are in *slots*."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pulse_s: float | None = None
        self._is_told = False

    def start(self) -> None:
        """Watch the loop that runs, if its time is that of this machine."""
        loop = self._loop = asyncio.get_running_loop()
        if abs(loop.time() - time.monotonic()) < LATE_S:
            self._thread = threading.get_ident()
            self._pulse()
            _looker.add(self)

    def stop(self) -> None:
        """Watch no more."""
        self._pulse_s = None
        _looker.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def _pulse(self) -> None:
        assert self._loop is not None
        self._pulse_s = time.monotonic()
        self._timer = self._loop.call_later(PULSE_S, self._pulse)

    def look(self, now_s: float, *, is_late: bool) -> None:
        """Report the code that blocks the loop, if any does; called from another thread."""
        pulse_s = self._pulse_s
        if pulse_s is None:
            return
        if is_late:
            self._pulse_s = now_s
        if is_late or now_s - pulse_s - PULSE_S < BLOCKS_S:
            self._is_told = False
            return
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - there is no other way to see another thread
        # A loop that waits for events is not blocked: the process did not get to run.
        if not self._is_told and frame is not None and frame.f_code.co_filename != selectors.__file__:
            self._is_told = True
            self._report(frame, now_s, now_s - pulse_s)

    def _report(self, frame: FrameType, now_s: float, blocked_s: float) -> None:
        slot = self._running()
        task = None if slot is None else slot.grant.spec.task
        at = _place(_of_the_application(frame))
        if not _looker.is_news((task, at), now_s):
            return
        extra = {"event": "job.blocks_loop", "blocked_s": round(blocked_s, 1), "where": _places(frame)}
        what = "code"
        if slot is not None:
            what = printable(f"job {slot.grant.spec.id} ({task})")
            extra |= {"job_id": slot.grant.spec.id, "task": task}
        logger.warning(
            "%s blocks the event loop of its worker for more than %s s, at %s; no other job runs meanwhile: "
            "make the handler a plain `def`, or await asyncio.to_thread(...)",
            what,
            f"{BLOCKS_S:g}",
            at,
            extra=extra,
        )

    def _running(self) -> Slot | None:
        """Return the job whose task the loop is running."""
        with contextlib.suppress(Exception):  # the loop goes on meanwhile
            task = asyncio.current_task(self._loop)
            return next((slot for slot in self._slots if slot.task is task), None)
        return None


class _Looker:
    """The thread that looks at all workers of this process, while there are any."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin anew; in a fork, whose threads are gone."""
        self._lock = threading.Lock()
        self._watches: set[BlockWatch] = set()
        self._thread: threading.Thread | None = None
        self._told_s: dict[tuple[str | None, str], float] = {}

    def add(self, watch: BlockWatch) -> None:
        """Look at one more."""
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="queuehint-blocking", daemon=True)
                self._thread.start()

    def remove(self, watch: BlockWatch) -> None:
        """Look at one no more; the thread ends a while after the last."""
        with self._lock:
            self._watches.discard(watch)

    def is_news(self, key: tuple[str | None, str], now_s: float) -> bool:
        """Return whether a place was not reported lately, and record that it is."""
        told_s = self._told_s.get(key)
        if told_s is not None and now_s - told_s < AGAIN_S:
            return False
        if len(self._told_s) >= PLACES_MAX:
            self._told_s.clear()
        self._told_s[key] = now_s
        return True

    def _run(self) -> None:
        looked_s, idle = time.monotonic(), 0
        while True:
            time.sleep(PULSE_S)
            with self._lock:
                watches = list(self._watches)
                idle = 0 if watches else idle + 1
                if idle > IDLE_MAX:
                    self._thread = None
                    return
            now_s = time.monotonic()
            is_late, looked_s = now_s - looked_s > PULSE_S + LATE_S, now_s
            for watch in watches:
                with contextlib.suppress(Exception):  # a frame of code that runs on may be of anything
                    watch.look(now_s, is_late=is_late)


_looker = _Looker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_looker.begin)


def _of_the_application(frame: FrameType) -> FrameType:
    """Return the innermost frame of the application's own code; the innermost of all if none is."""
    libraries = tuple({_OURS, *[path + os.sep for path in map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))]})
    at: FrameType | None = frame
    while at is not None and at.f_code.co_filename.startswith((*libraries, "<frozen")):
        at = at.f_back
    return frame if at is None else at


def _place(frame: FrameType) -> str:
    return printable(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")


def _places(frame: FrameType) -> str:
    """Return where a thread is, the innermost frames first, without a look at the sources."""
    places: list[str] = []
    at: FrameType | None = frame
    while at is not None and len(places) < FRAMES_MAX:
        places.append(f"{at.f_code.co_filename}:{at.f_lineno} {at.f_code.co_name}")
        at = at.f_back
    return ", ".join(places)
