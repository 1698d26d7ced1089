"""
Work that follows from one operation and is done in bounded steps: the leftovers that are not lines of the trie.

Each is a small object with a cursor. A step works until its budget is used and says whether anything is left; one
job canceled, queued or offered costs one unit, and each gate visited or left one more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.records import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.core.job import Job
    from queuehint.core.ledger import Ledger
    from queuehint.hint import Path


class CancelSweep:
    """
    Cancel jobs at or below paths, in order of queue key and number.

    It looks at what is indexed when it comes by: one unit for each job, and one for leaving a key behind on which only
    newer jobs are left.

    Args:
        paths: one after the other.
        before: jobs enqueued or redriven from this number on are not covered.
        cancel: ends one job or asks it to stop; returns the gates left.
        behind: if given, only jobs that are QUEUED behind this dead job now are canceled, and its place is freed at
            the end.
    """

    def __init__(
        self,
        ledger: Ledger,
        paths: tuple[Path, ...],
        before: int,
        cancel: Callable[[Job], int],
        *,
        behind: Job | None = None,
    ) -> None:
        self._ledger = ledger
        self._paths = paths
        self._before = before
        self._cancel = cancel
        self._behind = behind
        self._behind_seq = behind.seq if behind is not None else 0
        self._last_seq = ledger.last_seq
        self._key: str | None = None
        self._looked_at = 0
        """The last number looked at on the present key."""
        self._numbers: list[int] = []
        """Those still to be looked at there, last first, as of the index's last change out of order."""
        self._old_added = -1

    def step(self, budget: int) -> tuple[int, bool]:
        """Cancel until the budget is used."""
        used = 0
        while used < budget:
            if not self._numbers_left() and not self._next_key():
                return used + self._end(), False
            used += 1
            job = self._look()
            if job is not None and self._covers(job):
                used += self._cancel(job)
        return used, True

    def _numbers_left(self) -> bool:
        """Say whether anything is left to look at on the present key."""
        index = self._ledger.paths
        if self._key is None:
            return False
        jobs = index.at(self._key)
        if self._old_added != index.old_added:
            self._old_added = index.old_added
            self._numbers = sorted((n for n in jobs if n > self._looked_at), reverse=True)
        while self._numbers and self._numbers[-1] not in jobs:
            self._numbers.pop()
        if not self._numbers and jobs and (newest := next(reversed(jobs))) > self._looked_at:
            self._numbers.append(newest)
        return bool(self._numbers)

    def _look(self) -> Job | None:
        """Return the next job on the present key; None if only newer ones are left, which are passed over at once."""
        self._looked_at = self._numbers.pop()
        if self._looked_at >= self._before:
            self._looked_at = 1 << 62
            self._numbers.clear()
            return None
        return self._ledger.paths.at(self._key or "")[self._looked_at]

    def _next_key(self) -> bool:
        while self._paths:
            self._key = self._ledger.paths.next_key(self._paths[0], self._key)
            if self._key is not None:
                self._looked_at, self._old_added = 0, -1
                return self._numbers_left()
            self._paths = self._paths[1:]
        return False

    def _covers(self, job: Job) -> bool:
        if job.since >= self._before:
            return False
        if self._behind is None:
            return True
        return job.state is JobState.QUEUED and self._behind_seq < job.seq <= self._last_seq

    def _end(self) -> int:
        behind = self._behind
        if behind is None or behind.state is not JobState.FAILED or behind.seq != self._behind_seq:
            return 0
        return self._ledger.free(behind)


class UnparkSweep:
    """Offer again what was ready below a path that was paused, in order of number."""

    def __init__(self, ledger: Ledger, path: Path) -> None:
        self._ledger = ledger
        self._jobs = ledger.parked.pop(path)

    def step(self, budget: int) -> tuple[int, bool]:
        """Offer until the budget is used."""
        used = 0
        while self._jobs and used < budget:
            self._ledger.unpark(self._jobs.pop())
            used += 1
        return used, len(self._jobs) > 0


class ResolveSweep:
    """Remove the edges to a job that is over, in order of number; what waits for nothing else takes its place."""

    def __init__(self, ledger: Ledger, dependency: Job, now: Callable[[], int]) -> None:
        self._ledger = ledger
        self._dependency = dependency
        self._now = now

    def step(self, budget: int) -> tuple[int, bool]:
        """Resolve until the budget is used."""
        used = 0
        while used < budget:
            job = self._ledger.edges.resolve_one(self._dependency)
            if job is None:
                return used, False
            used += 1
            if not job.blocked and job.state is JobState.DEFERRED:
                used += self._ledger.queue(job, self._now())
        return used, self._ledger.edges.has_dependents(self._dependency)
