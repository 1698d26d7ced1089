"""
Detection of blocking code in async handlers, after about a second, with the blocking line.

The loop of each worker sends a pulse twice a second; one thread for all workers of a process checks twice a second
whether one is overdue. Nothing is done per job. Loops whose time is not that of this machine are not watched.

Blamed is only code that the loop is running, of the application or a library of its own. A loop that is idle, or runs
code of this package, such as the start of a worker, and a thread that the system does not let run, are nobody's fault.

This only reports. `queuehint.worker.leases.loop_watch` acts, independently, on a loop that is blocked for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
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
_ASYNCIO = str(Path(asyncio.__file__).parent) + os.sep
_LOOPS = frozenset({"_run_once", "run_forever", "run_until_complete", "run"})
"""Functions of asyncio that run a loop: what they are called by is not run by it."""


class BlockWatch:
    """Detects code that blocks the loop of one worker. *slots* are its running jobs."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pulse_s: float | None = None
        self._is_told = False
        self._native_id = 0
        self._queued_s = 0.0
        """How long the thread had waited for a processor at the last look in time."""
        self._cpu_s = self._gap_cpu_s = 0.0
        """The processor time of the thread at the last pulse, and from the one before to that."""
        self._seen_s = -AGAIN_S
        """When code was last seen that blocked the loop."""

    def start(self) -> None:
        """Watch the running loop, if its clock is the clock of this machine."""
        loop = self._loop = asyncio.get_running_loop()
        if abs(loop.time() - time.monotonic()) < LATE_S:
            self._thread, self._native_id = threading.get_ident(), threading.get_native_id()
            self._queued_s = _queued_s(self._native_id)
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
        self._pulse_s, cpu_s = time.monotonic(), time.thread_time()
        self._gap_cpu_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        self._timer = self._loop.call_later(PULSE_S, self._pulse)

    def look(self, now_s: float, *, is_late: bool) -> None:
        """Report the code that blocks the loop, if any. Called from another thread."""
        pulse_s = self._pulse_s
        if pulse_s is None:
            return
        queued_s = _queued_s(self._native_id)
        if is_late:
            self._pulse_s = now_s
        if is_late or now_s - pulse_s - PULSE_S < BLOCKS_S:
            self._is_told, self._queued_s = False, queued_s
            return
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - there is no other way to see another thread
        blamed = None if frame is None else blamed_frame(frame)
        if frame is None or blamed is None or now_s - pulse_s - PULSE_S - (queued_s - self._queued_s) < BLOCKS_S:
            return
        self._seen_s = now_s
        if not self._is_told:
            self._is_told = True
            self._report(frame, blamed, now_s, now_s - pulse_s)

    def is_to_blame(self, blocked_s: float) -> bool:
        """Return, on the thread of the loop, whether code has blocked the loop for so long, and not the system."""
        if not self._thread:
            return True
        cpu_s = max(self._gap_cpu_s, time.thread_time() - self._cpu_s)
        return cpu_s >= blocked_s / 2 or time.monotonic() - self._seen_s < blocked_s

    def _report(self, frame: FrameType, blamed: FrameType, now_s: float, blocked_s: float) -> None:
        slot = self._running()
        task = None if slot is None else slot.grant.spec.task
        at = _place(blamed)
        if not _looker.is_news((task, at), now_s):
            return
        extra = {"event": "job.blocks_loop", "blocked_s": round(blocked_s, 1), "where": places(frame)}
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
    """The thread that checks all workers of this process, while there are any."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start from scratch in a fork, where the threads are gone."""
        self._lock = threading.Lock()
        self._watches: set[BlockWatch] = set()
        self._thread: threading.Thread | None = None
        self._told_s: dict[tuple[str | None, str], float] = {}

    def add(self, watch: BlockWatch) -> None:
        """Add a worker to the checks."""
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="queuehint-blocking", daemon=True)
                self._thread.start()

    def remove(self, watch: BlockWatch) -> None:
        """Remove a worker from the checks. The thread ends some time after the last worker."""
        with self._lock:
            self._watches.discard(watch)

    def is_news(self, key: tuple[str | None, str], now_s: float) -> bool:
        """Record the report of a place. Return whether there was no recent report."""
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


def blamed_frame(frame: FrameType) -> FrameType | None:
    """
    Return the innermost frame of the application's code on a loop, else the innermost of an installed library.

    None if the loop runs neither: it is idle, or at work for itself or for this package.
    """
    standard = sysconfig.get_path("stdlib") + os.sep
    installed = tuple([path + os.sep for path in map(sysconfig.get_path, ("purelib", "platlib"))])
    library: FrameType | None = None
    at: FrameType | None = frame
    while at is not None:
        name = at.f_code.co_filename
        if name.startswith(_ASYNCIO) and at.f_code.co_name in _LOOPS:
            break
        if name.startswith(installed):
            library = library or (None if name.startswith(_OURS) else at)
        elif not name.startswith((_OURS, standard, "<frozen")):
            return at
        at = at.f_back
    return library


def _queued_s(native_id: int) -> float:
    """Return the total time for which a thread of this process has waited for a processor, 0 if unknown."""
    try:
        return int(Path(f"/proc/self/task/{native_id}/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _place(frame: FrameType) -> str:
    return printable(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")


def places(frame: FrameType | None) -> str:
    """Return where a thread is, the innermost frames first, without a look at the sources."""
    found: list[str] = []
    while frame is not None and len(found) < FRAMES_MAX:
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return ", ".join(found)
