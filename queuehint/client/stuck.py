"""
Detection of stuck waits: for a job without a worker, behind a dead job, or behind the caller's own hold.

A wait for a result asks at growing intervals why the job waits, and follows up to `JOBS_MAX` of the jobs that it waits
for; all waits together ask a question every few seconds at most. A cause that only an operator or a new worker can
remove is logged as a warning, once. Behind a dead dependency the wait ends: that job's failure is raised, although it
may yet be redriven.

Code that holds a place by `exclusive`, or a permit, has a mark of it in its context variables, which tasks that it
starts and calls in threads inherit. Whatever waits below such a mark checks at once, and again when the wait lasts,
whether its target needs what is held: a job that conflicts with the hold, or one that waits for the hold through up to
`JOBS_MAX` others, or whose handler waits for a permit that only the holder could give back.
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

from queuehint.client.circles import EXCLUSIVE_TASK, PERMIT_TASK, read_held, read_waits
from queuehint.client.holds import caller, held_of, holds_any
from queuehint.errors import BackendError, JobFailedError, JobNotFoundError, QueueHintWarning, WouldDeadlockError
from queuehint.operations import CHAIN_MAX, IDS_MAX, Get, Why
from queuehint.values.hint import conflict, is_counted, is_prefix, queue_key
from queuehint.values.record import JobState
from queuehint.values.report import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from queuehint.backends.base import Backend
    from queuehint.backends.steps import Steps
    from queuehint.client.holds import HeldPlace
    from queuehint.values.hint import Claim
    from queuehint.values.record import JobRecord

LOOK_AFTER_S = 3.0
LOOK_EVERY_MAX_S = 60.0
"""A wait is looked at again when it has lasted twice as long, and once a minute at least."""
ASK_EVERY_S = 3.0
ASKS_MAX = 5
"""All waiters for jobs of a store together ask it one question per so many seconds; and how many at once."""
JOBS_MAX = 10
CAUSES_MAX = 1000
WAITS_FOR_JOBS = frozenset({ReasonKind.PLACE, ReasonKind.DEPENDENCY})
_OURS = str(Path(__file__).parents[1]) + os.sep
_ASYNCIO = str(Path(contextlib.__file__).parent / "asyncio") + os.sep

_told: WeakKeyDictionary[Backend, set[Hashable]] = WeakKeyDictionary()
"""The causes that were warned of, by store."""


class HoldWatch:
    """
    Watches the wait of a caller that may itself hold places of the same store.

    Args:
        call: the call that waits, for the error.
        is_bounded: the wait ends by itself, so that it is refused only to the very task or thread that holds the place:
            the holder of another one may leave it in time.
    """

    def __init__(self, backend: Backend, call: str, *, is_bounded: bool = False) -> None:
        self._backend = backend
        self._call = call
        self._is_bounded = is_bounded
        self._pause_s = LOOK_AFTER_S
        self._next_s = 0.0

    @property
    def is_due(self) -> bool:
        """True if the caller holds a place and a look is due: at once, and again at growing intervals."""
        return holds_any() and time.monotonic() >= self._next_s and bool(self._marks())

    def _marks(self) -> list[HeldPlace]:
        held = held_of(self._backend)
        return [each for each in held if each.holder() is caller()] if self._is_bounded else held

    def _held(self) -> Steps[list[HeldPlace]]:
        """Return the places that the caller holds in the store."""
        marks = self._marks()[:IDS_MAX] if holds_any() else []
        if not marks:
            return []
        records = (yield Get(tuple([mark.job_id for mark in marks]))).records
        return [
            mark
            for mark, record in zip(marks, records, strict=True)
            if record is not None and record.state is JobState.STARTED and record.token == mark.token
        ]

    def refuse_claims(self, claims: tuple[Claim, ...]) -> Steps[None]:
        """
        Refuse to wait for a place.

        Raises:
            WouldDeadlockError: it conflicts with one that the caller holds.
        """
        for held in (yield from self._held()):
            if conflict(claims, held.claims):
                raise self._error(held)

    def refuse_path(self, path: tuple[str, ...] | None) -> Steps[None]:
        """
        Refuse to wait for the end of all jobs at or below a path, or anywhere, while the caller holds a place there.

        Raises:
            WouldDeadlockError: the job that stands for a held place is there itself, or all there conflict with it.
        """
        for held in (yield from self._held()):
            for claim in held.claims:
                is_there = path is None or is_prefix(path, claim.path)
                if is_there or (claim.mode == "exclusive" and is_prefix(claim.path, path or ())):
                    raise self._error(held)

    def look(self, job_ids: Sequence[str]) -> Steps[None]:
        """
        Refuse to wait for jobs if one of the jobs waits for the caller.

        Raises:
            WouldDeadlockError: naming that job.
        """
        self._next_s, self._pause_s = time.monotonic() + self._pause_s, min(self._pause_s * 2, LOOK_EVERY_MAX_S)
        with contextlib.suppress(BackendError):
            held = {each.job_id: each for each in (yield from self._held())}
            records = (yield Get(tuple(job_ids[:JOBS_MAX]))).records if held else ()
            todo: dict[str, str] = {}
            for record in records:
                if record is None or record.state.is_over:
                    continue
                for each in held.values():
                    if record.id == each.job_id or conflict(record.spec.claims, each.claims):
                        raise self._error(each, record.id)
                todo[record.id] = record.id
            if running := {each.id for each in records if each is not None and each.state is JobState.STARTED}:
                yield from self._look_inside(running, held)
            for _ in range(JOBS_MAX):
                if todo:
                    job_id = next(iter(todo))
                    yield from self._look_at(job_id, todo.pop(job_id), held, todo)

    def _look_inside(self, running: set[str], held: dict[str, HeldPlace]) -> Steps[None]:
        """Refuse the wait if running handlers wait for permits that nobody but the caller can give back."""
        waits = yield from read_waits(held=held)
        stuck = waits.stuck(waits.blocked(held=held)) - waits.stuck(waits.blocked(free=held))
        for job_id in sorted(stuck & running):
            raise self._error(next(reversed(held.values())), job_id)

    def _look_at(self, job_id: str, waiting_id: str, held: dict[str, HeldPlace], todo: dict[str, str]) -> Steps[None]:
        """Check the reason of a wait on the way to the awaited job. Add the jobs in its way to *todo*."""
        with contextlib.suppress(JobNotFoundError):
            reason: Reason = (yield Why(job_id)).reasons[0]
            if reason.kind is ReasonKind.LIMIT:
                (record,) = (yield Get((job_id,))).records
                if record is not None and (yield from read_held(held)).is_full(record.spec, held):
                    raise self._error(next(reversed(held.values())), waiting_id)
            for other in reason.jobs if reason.kind in WAITS_FOR_JOBS else ():
                if other in held:
                    raise self._error(held[other], waiting_id)
                todo.setdefault(other, waiting_id)

    def _error(self, held: HeldPlace, job_id: str | None = None) -> WouldDeadlockError:
        by = PERMIT_TASK if is_counted(held.claims) else EXCLUSIVE_TASK
        return WouldDeadlockError(self._call, job_id, held=queue_key(held.claims[0].path), by=by)


class _Allowance:
    """The number of queries that the waiters for jobs of one store may make now."""

    def __init__(self) -> None:
        self._left = float(ASKS_MAX)
        self._at_s = time.monotonic()

    def take(self) -> bool:
        """Take a query from the allowance. Return whether there was one left."""
        now_s = time.monotonic()
        self._left = min(ASKS_MAX, self._left + (now_s - self._at_s) / ASK_EVERY_S)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def spend(self, count: int) -> None:
        """Record a number of further queries."""
        self._left -= count


_allowances: WeakKeyDictionary[Backend, _Allowance] = WeakKeyDictionary()


class StuckWatch:
    """
    Watches the wait for a job.

    Args:
        call: what waits, for the warning.
        raises: whether a dead dependency ends the wait.
        is_bounded: as of `HoldWatch`.
    """

    def __init__(
        self, backend: Backend, job_id: str, call: str, *, raises: bool = True, is_bounded: bool = False
    ) -> None:
        self._backend = backend
        self.job_id = job_id
        self._call = call
        self._raises = raises
        self.holds = HoldWatch(backend, call, is_bounded=is_bounded)
        self._asked = 0
        self._pause_s = LOOK_AFTER_S
        self._next_s = time.monotonic() + LOOK_AFTER_S

    @property
    def rest_s(self) -> float:
        """The time until the next look is due, 0 when due."""
        return max(0.0, self._next_s - time.monotonic())

    def look(self) -> Steps[None]:
        """
        Warn of a wait without an end of its own, if a look is due.

        Raises:
            JobFailedError: a job that it depends on is FAILED.
            WouldDeadlockError: the job waits for a place that the caller holds.
        """
        if self.holds.is_due:
            yield from self.holds.look((self.job_id,))
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
        Return why the job waits, and why its stuck blocker waits. Empty if the reasons are unknown.

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
        first: Reason = (yield Why(self.job_id)).reasons[0]
        todo, seen = [first], {self.job_id}
        while todo:
            reason = todo.pop()
            if reason.stuck:
                return (first,) if reason is first else (first, reason)
            for other in reason.jobs if reason.kind in WAITS_FOR_JOBS else ():
                if other not in seen and len(seen) <= JOBS_MAX:
                    seen.add(other)
                    self._asked += 1
                    with contextlib.suppress(JobNotFoundError):
                        todo.append((yield Why(other)).reasons[0])
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
        warnings.warn(text, QueueHintWarning, stacklevel=_level_ofcaller())

    def _advice(self, reason: Reason) -> str:
        if reason.kind is ReasonKind.NO_WORKER:
            if not self._backend.is_durable:
                return "jobs of memory:// run in this process, by a worker of this very scheduler: sched.worker()"
            return "start one by `queuehint worker`, or in this process by sched.worker()"
        if reason.kind in {ReasonKind.DEAD_HOLD, ReasonKind.DEAD_DEPENDENCY}:
            return "redrive or discard that one, see sched.dead"
        return ""


def ask_why(job_id: str, most: int = CHAIN_MAX) -> Steps[tuple[Reason, ...]]:
    """Return the reasons of a job's wait and of the jobs before it, up to a limit. Empty for a missing job."""
    try:
        reasons: tuple[Reason, ...] = (yield Why(job_id, most)).reasons
    except JobNotFoundError:
        return ()
    return reasons


def read_records(job_ids: Sequence[str]) -> Steps[list[JobRecord]]:
    """Return the records of up to 1 000 jobs in this order, without missing records."""
    return [each for each in (yield Get(tuple(job_ids))).records if each is not None]


def failure_of(record: JobRecord, waiting_id: str | None = None) -> JobFailedError:
    """
    Return the error of a FAILED job.

    Args:
        waiting_id: the job that was waited for, if it is another one, which depends on it.
    """
    last = record.errors[-1] if record.errors else None
    kind, message = (last.type, last.message) if last else (record.cause or "failed", "")
    return JobFailedError(record.id, kind, message, last.traceback if last else None, waiting_id=waiting_id)


def _level_ofcaller() -> int:
    """Return the distance in frames from the caller to the application's code, as `warnings.warn` counts."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - as `warnings` does
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, _ASYNCIO)):
        level, frame = level + 1, frame.f_back
    return level
