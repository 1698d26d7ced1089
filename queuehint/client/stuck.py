"""
Detection of stuck waits: for a job that no worker serves, or one behind a dead job.

A wait for a result asks at growing intervals why the job waits, and follows up to `JOBS_MAX` of the jobs that it waits
for; all waits together ask a question every few seconds at most. A cause that only an operator or a new worker can
remove is logged as a warning, once. Behind a dead dependency the wait ends: that job's failure is raised, although it
may yet be redriven.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from queuehint.errors import BackendError, JobFailedError, JobNotFoundError, QueueHintWarning
from queuehint.operations import Get, Why
from queuehint.values.record import JobState
from queuehint.values.report import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from queuehint.backends.base import Backend
    from queuehint.backends.steps import Steps
    from queuehint.values.record import JobRecord

LOOK_AFTER_S = 3.0
LOOK_EVERY_MAX_S = 60.0
"""A wait is looked at again when it has lasted twice as long, and once a minute at least."""
ASK_EVERY_S = 3.0
ASKS_MAX = 5
"""All waiters for jobs of a store together ask it one question per so many seconds; and how many at once."""
JOBS_MAX = 10
CAUSES_MAX = 1000
_WAITS_FOR_JOBS = frozenset({ReasonKind.PLACE, ReasonKind.DEPENDENCY})
_OURS = str(Path(__file__).parents[1]) + os.sep
_ASYNCIO = str(Path(contextlib.__file__).parent / "asyncio") + os.sep

_told: WeakKeyDictionary[Backend, set[Hashable]] = WeakKeyDictionary()
"""The causes that were warned of, by store."""


class _Allowance:
    """How many questions the waiters for jobs of one store may ask now."""

    def __init__(self) -> None:
        self._left = float(ASKS_MAX)
        self._at_s = time.monotonic()

    def take(self) -> bool:
        """Record that a question is asked, if one may be, and return whether it may."""
        now_s = time.monotonic()
        self._left = min(ASKS_MAX, self._left + (now_s - self._at_s) / ASK_EVERY_S)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def spend(self, count: int) -> None:
        """Record that so many more were asked."""
        self._left -= count


_allowances: WeakKeyDictionary[Backend, _Allowance] = WeakKeyDictionary()


class StuckWatch:
    """
    Watches one wait for a job.

    Args:
        call: what waits, for the warning.
        raises: whether a dead dependency ends the wait.
    """

    def __init__(self, backend: Backend, job_id: str, call: str, *, raises: bool = True) -> None:
        self._backend = backend
        self.job_id = job_id
        self._call = call
        self._raises = raises
        self._asked = 0
        self._pause_s = LOOK_AFTER_S
        self._next_s = time.monotonic() + LOOK_AFTER_S

    @property
    def rest_s(self) -> float:
        """How long it is until the next look is due; 0 when it is."""
        return max(0.0, self._next_s - time.monotonic())

    def look(self) -> Steps[None]:
        """
        Warn of a wait that nothing will end by itself, if a look is due.

        Raises:
            JobFailedError: a job that it depends on is FAILED.
        """
        if self.rest_s:
            return
        allowance = _allowances.setdefault(self._backend, _Allowance())
        if not allowance.take():
            self._next_s = time.monotonic() + self._pause_s
            return
        self._pause_s = min(self._pause_s * 2, LOOK_EVERY_MAX_S)
        self._next_s = time.monotonic() + self._pause_s
        self._asked = 0
        reasons = yield from self.reasons()
        allowance.spend(self._asked - 1)
        if reasons and reasons[-1].stuck and (self._raises or reasons[-1].kind is not ReasonKind.DEAD_DEPENDENCY):
            self._warn(reasons[-1])

    def reasons(self) -> Steps[tuple[Reason, ...]]:
        """
        Return why the job waits and, if it waits for one that is stuck, why that one is; nothing if that is not known.

        Raises:
            JobFailedError: as `look`.
        """
        reasons: tuple[Reason, ...] = ()
        with contextlib.suppress(JobNotFoundError, BackendError):
            reasons = yield from self._ask()
            if self._raises and reasons[-1].kind is ReasonKind.DEAD_DEPENDENCY:
                (dead,) = (yield Get(reasons[-1].jobs[:1])).records
                if dead is not None and dead.state is JobState.FAILED:
                    raise failure_of(dead, self.job_id)
        return reasons

    def _ask(self) -> Steps[tuple[Reason, ...]]:
        self._asked += 1
        first: Reason = yield Why(self.job_id)
        todo, seen = [first], {self.job_id}
        while todo:
            reason = todo.pop()
            if reason.stuck:
                return (first,) if reason is first else (first, reason)
            for other in reason.jobs if reason.kind in _WAITS_FOR_JOBS else ():
                if other not in seen and len(seen) <= JOBS_MAX:
                    seen.add(other)
                    self._asked += 1
                    with contextlib.suppress(JobNotFoundError):
                        todo.append((yield Why(other)))
        return (first,)

    def _warn(self, reason: Reason) -> None:
        """Warn of a cause, once for each store."""
        about = reason.detail if reason.kind is ReasonKind.NO_WORKER else reason.jobs[:1] or reason.job_id
        cause = (reason.kind, reason.path_key, about)
        told = _told.setdefault(self._backend, set())
        if cause in told or len(told) >= CAUSES_MAX:
            return
        told.add(cause)
        text = f"{self._call} waits for job {self.job_id}, and nothing will end that by itself: {reason}"
        if advice := self._advice(reason):
            text += f"; {advice}"
        warnings.warn(text, QueueHintWarning, stacklevel=_level_of_caller())

    def _advice(self, reason: Reason) -> str:
        if reason.kind is ReasonKind.NO_WORKER:
            if not self._backend.is_durable:
                return "jobs of memory:// run in this process, by a worker of this very scheduler: sched.worker()"
            return "start one by `queuehint worker`, or in this process by sched.worker()"
        if reason.kind in {ReasonKind.DEAD_HOLD, ReasonKind.DEAD_DEPENDENCY}:
            return "redrive or discard that one, see sched.dead"
        return ""


def failure_of(record: JobRecord, waiting_id: str | None = None) -> JobFailedError:
    """
    Return the error of a job that is FAILED.

    Args:
        waiting_id: the job that was waited for, if it is another one, which depends on it.
    """
    last = record.errors[-1] if record.errors else None
    kind, message = (last.type, last.message) if last else (record.cause or "failed", "")
    return JobFailedError(record.id, kind, message, last.traceback if last else None, waiting_id=waiting_id)


def _level_of_caller() -> int:
    """Return how many frames above the caller of this function the application's code is, as `warnings.warn` counts."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - as `warnings` does
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, _ASYNCIO)):
        level, frame = level + 1, frame.f_back
    return level
