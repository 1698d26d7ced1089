"""
Work that follows from one operation and is done in bounded steps: the leftovers that are not lines of the trie.

Each is a small object with a cursor. A step works until its budget is used and says whether anything is left; one
job canceled, queued or offered costs one unit, and each gate visited or left one more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from queuehint.operations import TALLIES, TALLY_MS
from queuehint.values.records import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.core.jobs.lifecycle import Course
    from queuehint.core.jobs.table import Ledger
    from queuehint.core.structures.heap import LazyHeap
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.ready_queue import ReadyQueue
    from queuehint.core.xcom import SharedStore
    from queuehint.values.hint import Path


class CancelSweep:
    """
    Cancel jobs at or below paths, in order of queue key and number.

    It looks at what is indexed when it comes by: one unit for each job, and one for leaving a key behind on which only
    newer jobs are left.

    Args:
        paths: one after the other.
        before: jobs enqueued or redriven from this number on are not covered.
        behind: if given, only jobs that are QUEUED behind this dead job now are canceled, and its place is freed at
            the end.
    """

    def __init__(
        self,
        course: Course,
        paths: tuple[Path, ...],
        before: int,
        cause: str,
        *,
        behind: Job | None = None,
    ) -> None:
        self._course = course
        self._ledger = ledger = course.ledger
        self._paths = paths
        self._before = before
        self._cause = cause
        self._behind = behind
        self._behind_seq = behind.seq if behind is not None else 0
        self._last_seq = ledger.last_seq
        self._key: str | None = None
        self._looked_at = 0
        """The last number looked at on the present key."""
        self._numbers: list[int] = []
        """Those still to be looked at there, last first, as of the index's last change out of order."""
        self._old_added = -1
        self._tallies: SharedStore | None = None
        self.reached = 0
        """How many jobs were canceled or asked to stop; those asked before do not count again."""
        self.is_over = False

    def leave_tally(self, tallies: SharedStore) -> int:
        """Store how many jobs were reached when the sweep is over; return the number under which that will be."""
        self._tallies = tallies
        return self._before

    def step(self, budget: int) -> tuple[int, bool]:
        """Cancel until the budget is used."""
        used = 0
        while used < budget:
            if not self._numbers_left() and not self._next_key():
                self._store_tally()
                return used + self._end(), False
            used += 1
            job = self._look()
            if job is not None and self._covers(job):
                # One with two claims below the path is met twice while it runs.
                self.reached += job.state is not JobState.STARTED or job.cancel is None
                used += self._course.cancel(job, self._cause)
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
        if job.since >= self._before or job.is_hidden:
            return False
        if self._behind is None:
            return True
        return job.state is JobState.QUEUED and self._behind_seq < job.seq <= self._last_seq

    def _store_tally(self) -> None:
        self.is_over = True
        if self._tallies is not None:
            now_ms = self._course.now_ms
            self._tallies.push((TALLIES, str(self._before)), b"%d" % self.reached, now_ms + TALLY_MS, now_ms)

    def _end(self) -> int:
        behind = self._behind
        if behind is None or behind.state is not JobState.FAILED or behind.seq != self._behind_seq:
            return 0
        return self._ledger.free(behind)


class UnparkSweep:
    """Offer again what was put aside by a pause or a limit that is no more, heap by heap."""

    def __init__(self, ready: ReadyQueue, parked: Iterable[LazyHeap[Job]]) -> None:
        self._ready = ready
        self._parked = deque(parked)

    def step(self, budget: int) -> tuple[int, bool]:
        """Offer until the budget is used."""
        used = 0
        while self._parked:
            heap = self._parked[0]
            while heap:
                if used >= budget:
                    return used, True
                job = heap.pop()
                job.parked = None
                self._ready.add(job)
                used += 1
            self._parked.popleft()
        return used, False


class DependentsSweep:
    """
    Go through the jobs that depended on one when the sweep began, in order of number; those over are passed over.

    One that was sent in parts depends on others from when it is let go, and by its number: it is looked at too.

    Args:
        course: what is done with each.
        dependency: the job, or the start of a submission in parts.
    """

    def __init__(self, course: Course, dependency: Job) -> None:
        self._course = course
        self._edges = course.ledger.edges
        self.dependency = dependency
        self._before = course.ledger.last_number
        self._at = 0
        """The last number looked at or passed over."""
        self._late_added = -1
        self._left: list[tuple[int, Job]] = []
        self._read()

    def _read(self) -> None:
        """Find out who is still to be looked at."""
        if self._late_added != self._edges.late_added:
            self._late_added = self._edges.late_added
            dependents = self._edges.dependents(self.dependency.id)
            self._left = [entry for entry in dependents if self._at < entry[0] <= self._before][::-1]

    def step(self, budget: int) -> tuple[int, bool]:
        """Look at dependents until the budget is used."""
        used = 0
        while (job := self._next()) is not None:
            if used >= budget:
                self._at = self._left[-1][0] - 1
                return used, True
            self._at = self._left.pop()[0]
            used += 1 + self.act(job)
        return used + self.end(), False

    def _next(self) -> Job | None:
        self._read()
        while self.goes_on() and self._left:
            number, job = self._left[-1]
            # One that was canceled and revived meanwhile has other edges.
            if not job.is_over and self._edges.is_since(job, self.dependency.id, number):
                return job
            self._left.pop()
        return None

    def goes_on(self) -> bool:
        """Say whether there is still a reason to."""
        return True

    def act(self, job: Job) -> int:
        """Do with one job what is to be done; return the units used besides."""
        raise NotImplementedError

    def end(self) -> int:
        """Do what is to be done at the end; return the units used."""
        raise NotImplementedError  # pragma: no cover - each kind has its own


class ResolveSweep(DependentsSweep):
    """Do with the edges to a job that is over what their fates say; what waits for nothing else takes its place."""

    def __init__(self, course: Course, dependency: Job) -> None:
        super().__init__(course, dependency)
        self._since_ms = course.now_ms
        # Its version would not do: whoever writes to a record that is over changes that, too.
        self._end_of = dependency.state, dependency.since

    def goes_on(self) -> bool:
        """Not if it was redriven meanwhile, or discarded."""
        return self.dependency.gone or (self.dependency.state, self.dependency.since) == self._end_of

    def act(self, job: Job) -> int:
        """Follow the edge."""
        return self._course.resolve(job, self.dependency, self._since_ms)

    def end(self) -> int:
        """Note that nobody waits for this end any more."""
        if self.goes_on():
            self._edges.end_telling(self.dependency)
        return 0


class CommitSweep(DependentsSweep):
    """Take up the jobs of a submission in parts that was committed."""

    def act(self, job: Job) -> int:
        """Judge its edges, and let it wait or take its place."""
        return self._course.begin(job)

    def end(self) -> int:
        """Forget the start."""
        self._course.ledger.committing -= 1
        self._course.ledger.remove(self.dependency)
        return 0


class DropSweep(DependentsSweep):
    """Drop the jobs of a submission in parts that was never committed."""

    def act(self, job: Job) -> int:
        """Drop one."""
        return self._course.drop(job)

    def end(self) -> int:
        """Forget the start."""
        self._course.ledger.remove(self.dependency)
        return 0


class ReleaseSweep:
    """Remove all edges of a job that cannot run any more: up to 1 000, in one go."""

    def __init__(self, ledger: Ledger, job: Job) -> None:
        self._ledger = ledger
        self.job = job

    def step(self, _budget: int) -> tuple[int, bool]:
        """Remove them."""
        return self._ledger.edges.release(self.job), False


class ReviveSweep:
    """
    Bring back, in order of number, the jobs that were canceled because of one that was brought back itself.

    Each only once its own end is told to all that wait for it. One that is revived is bound to what it needs without a
    search, and this closes no circle because no unfinished job waits for it.
    """

    def __init__(self, course: Course, job: Job) -> None:
        self._course = course
        self._job = job
        self._at = 0
        """The last number looked at: one that is canceled anew is not looked at again."""

    def step(self, budget: int) -> tuple[int, bool]:
        """Revive until the budget is used."""
        used = 0
        while (job := self._next()) is not None:
            if used >= budget:
                return used, True
            if self._course.ledger.edges.is_telling(job):
                # The sweep of its end has its turn first.
                return used + 1, True
            self._at = job.number
            used += 1 + self._course.revive(job)
        return used, False

    def _next(self) -> Job | None:
        # One that has failed again meanwhile would cancel them again.
        if self._job.is_over and self._job.state is not JobState.FINISHED:
            return None
        return self._course.ledger.edges.first_fallen(self._job.id, self._at)


class CancelFlowSweep:
    """
    Cancel the jobs of a flow, the last first, so that what waits for others is canceled before these.

    Args:
        before: jobs enqueued or redriven from this number on are not covered.
    """

    def __init__(self, course: Course, flow: str, before: int, cause: str) -> None:
        self._course = course
        self._flow = flow
        self._before = self._at = before
        self._cause = cause

    def step(self, budget: int) -> tuple[int, bool]:
        """Cancel until the budget is used."""
        used = 0
        jobs = self._course.ledger.flows.of(self._flow)
        while True:
            number = next(jobs.irange(maximum=self._at, inclusive=(True, False), reverse=True), None)
            if number is None:
                return used, False
            if used >= budget:
                return used, True
            self._at = number
            used += 1
            job = jobs[number]
            if not job.is_over and not job.is_hidden and job.since < self._before:
                used += self._course.cancel(job, self._cause)
