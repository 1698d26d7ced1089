"""
Bounded work after an operation: its kind and a cursor, as data.

The transitions append leftovers, and `queuehint.core.jobs.sweeps` does them in bounded steps. A line of the trie that
is to be advanced is a leftover too: its node.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Protocol

import attrs

from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.core.structures.heap import LazyHeap
    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Path


class Tallies(Protocol):
    """The store of tallies: the small shared store."""

    def push(self, place: tuple[str, str], value: bytes, until_ms: int, now_ms: int) -> bool:
        """Store a tally until *until_ms*."""


@attrs.define(eq=False)
class CancelSweep:
    """
    Cancel jobs at or below paths, in order of queue key and number.

    Args:
        paths: one after the other.
        before: jobs enqueued or redriven from this number on are not covered.
        last_seq: the last place that was taken when this began.
        behind: if given, only jobs that are QUEUED behind this dead job now are canceled, and its place is freed at
            the end.
    """

    paths: tuple[Path, ...]
    before: int
    cause: str
    last_seq: int
    behind: Job | None = None
    behind_seq: int = 0
    key: str | None = None
    looked_at: int = 0
    """The last number visited on the present key."""
    numbers: list[int] = attrs.Factory(list)
    """The numbers left on the present key, last first, as of the index's last change out of order."""
    old_added: int = -1
    tallies: Tallies | None = None
    """Where the number of jobs reached is stored at the end; None if it is not asked for."""
    reached: int = 0
    """How many jobs were canceled or asked to stop; a job that was asked before does not count again."""
    is_over: bool = False

    def leave_tally(self, tallies: Tallies) -> int:
        """Request a stored count of the jobs reached. Return the number of the tally."""
        self.tallies = tallies
        return self.before


@attrs.define(eq=False)
class CancelFlowSweep:
    """
    Cancel the jobs of a flow, the last first, so that dependents are canceled before their dependencies.

    Args:
        before: jobs enqueued or redriven from this number on are not covered.
        at: the last number looked at; *before* at first.
    """

    flow: str
    before: int
    cause: str
    at: int


@attrs.define(eq=False)
class DiscardSweep:
    """
    Discard the dead jobs that hold places at or below a path, in order of queue key and number.

    Args:
        before: jobs redriven from this number on are not covered.
        at: the queue key and number visited last.
    """

    path: Path
    before: int
    at: tuple[str, int] | None = None


@attrs.define(eq=False)
class UnparkSweep:
    """Offer the parked jobs of an ended pause or a replaced limit again, heap by heap."""

    parked: deque[LazyHeap[Job]]


def _descending(entry: tuple[int, Job]) -> int:
    return -entry[0]


@attrs.define(eq=False)
class DependentsSweep:
    """
    Visit the unfinished dependents of a job in order of number.

    Args:
        dependency: the job, or the start of a submission in parts.
        before: the last number there was when this began.
    """

    dependency: Job
    before: int
    at: int = 0
    """The last number visited."""
    left: list[tuple[int, Job]] | None = None
    """The dependents left, last first; None before the first step and after the last."""
    bound: tuple[int, int] = (0, 0)
    """The number of the job that is being released, and how many portions and slices of its dependencies are bound."""

    def insert(self, entry: tuple[int, Job]) -> None:
        """Include a job that became a dependent after the first step, unless the sweep has passed its number."""
        assert self.left is not None
        if self.at < entry[0] <= self.before:
            insort(self.left, entry, key=_descending)

    def goes_on(self) -> bool:
        """Return whether the sweep still applies."""
        return True


@attrs.define(eq=False)
class ResolveSweep(DependentsSweep):
    """Resolve the edges to an ended job, by their policies. Queue the dependents without other open edges."""

    since_ms: int = 0
    state: JobState = JobState.FINISHED
    since: int = 0
    """Identifies with *state* one end of the job. (Its version would not: it changes with each write to the record.)"""

    def goes_on(self) -> bool:
        """Return False if the job was redriven or discarded meanwhile."""
        job = self.dependency
        return job.gone or (job.state is self.state and job.since == self.since)


@attrs.define(eq=False)
class CommitSweep(DependentsSweep):
    """Release the jobs of a committed submission."""


@attrs.define(eq=False)
class DropSweep(DependentsSweep):
    """Remove the jobs of a submission that was not committed in time."""


@attrs.define(eq=False)
class ReleaseSweep:
    """
    Remove all edges of a job that cannot run any more: up to 1 000 in one step.

    Args:
        released: how many portions of more dependencies were released.
    """

    job: Job
    released: int = 0


@attrs.define(eq=False)
class ReviveSweep:
    """
    Revive, in order of number, the jobs canceled by the end of a redriven or revived job.

    Args:
        at: the last number visited: a job that is canceled again is not visited twice.
    """

    job: Job
    at: int = 0


Leftover = (
    CancelSweep
    | CancelFlowSweep
    | DiscardSweep
    | UnparkSweep
    | ResolveSweep
    | CommitSweep
    | DropSweep
    | ReleaseSweep
    | ReviveSweep
)
