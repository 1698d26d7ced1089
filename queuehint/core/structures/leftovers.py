"""
Work that follows from one operation and is left over: what is to be done, and how far it has come.

These are data and know nothing of the rules: whoever finds that something follows puts one among the leftovers, and
`queuehint.core.jobs.sweeps` does it in bounded steps. Lines of the trie are leftovers too; they are its nodes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

import attrs

from queuehint.values.records import JobState

if TYPE_CHECKING:
    from queuehint.core.structures.heap import LazyHeap
    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Path


class Tallies(Protocol):
    """Where tallies are stored: the small shared store."""

    def push(self, place: tuple[str, str], value: bytes, until_ms: int, now_ms: int) -> bool:
        """Store one for a time."""


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
    """The last number looked at on the present key."""
    numbers: list[int] = attrs.Factory(list)
    """Those still to be looked at there, last first, as of the index's last change out of order."""
    old_added: int = -1
    tallies: Tallies | None = None
    """Where the number of jobs that were reached is stored at the end, if somebody will ask for it."""
    reached: int = 0
    """How many jobs were canceled or asked to stop; those asked before do not count again."""
    is_over: bool = False

    def leave_tally(self, tallies: Tallies) -> int:
        """Have the number of jobs reached be stored at the end; return the number under which it will be."""
        self.tallies = tallies
        return self.before


@attrs.define(eq=False)
class CancelFlowSweep:
    """
    Cancel the jobs of a flow, the last first, so that what waits for others is canceled before these.

    Args:
        before: jobs enqueued or redriven from this number on are not covered.
        at: the last number looked at; *before* at first.
    """

    flow: str
    before: int
    cause: str
    at: int


@attrs.define(eq=False)
class UnparkSweep:
    """Offer again what was put aside by a pause or a limit that is no more, heap by heap."""

    parked: deque[LazyHeap[Job]]


@attrs.define(eq=False)
class DependentsSweep:
    """
    Jobs that depend on one, to be gone through in order of number; those that are over are passed over.

    Args:
        dependency: the job, or the start of a submission in parts.
        before: the last number there was when this began.
    """

    dependency: Job
    before: int
    at: int = 0
    """The last number looked at or passed over."""
    late_added: int = -1
    """The index's last change out of order, of which *left* knows."""
    left: list[tuple[int, Job]] = attrs.Factory(list)

    def goes_on(self) -> bool:
        """Say whether there is still a reason to."""
        return True


@attrs.define(eq=False)
class ResolveSweep(DependentsSweep):
    """Do with the edges to a job that is over what their policies say; what waits for nothing else takes its place."""

    since_ms: int = 0
    state: JobState = JobState.FINISHED
    since: int = 0
    """With the state, which of its ends it is about. Its version changes too when somebody writes to its record."""

    def goes_on(self) -> bool:
        """Not if the job was redriven meanwhile, or discarded."""
        job = self.dependency
        return job.gone or (job.state is self.state and job.since == self.since)


@attrs.define(eq=False)
class CommitSweep(DependentsSweep):
    """Take up the jobs of a submission in parts that was committed."""


@attrs.define(eq=False)
class DropSweep(DependentsSweep):
    """Drop the jobs of a submission in parts that was never committed."""


@attrs.define(eq=False)
class ReleaseSweep:
    """Remove all edges of a job that cannot run any more: up to 1 000, in one go."""

    job: Job


@attrs.define(eq=False)
class ReviveSweep:
    """
    Bring back, in order of number, the jobs that were canceled because of one that was brought back itself.

    Args:
        at: the last number looked at: one that is canceled anew is not looked at again.
    """

    job: Job
    at: int = 0


Leftover = (
    CancelSweep | CancelFlowSweep | UnparkSweep | ResolveSweep | CommitSweep | DropSweep | ReleaseSweep | ReviveSweep
)
