"""Queries of places: the tree of counts, the longest lines, conflicts of a claim, and the reply to `Why` of a path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import attrs

from queuehint.operations.base import Operation
from queuehint.schema.kinds import AnyCount, Asked, Count
from queuehint.values.hint import DEPTH_MAX, ClaimMode, KeyText, Mode, Path
from queuehint.values.record import JobState
from queuehint.values.report import Reason, TreeNode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TREE_NODES_MAX", "CanDequeue", "Lines", "ListLines", "PathReasons", "PlacedJob", "Tree"]

TREE_NODES_MAX = 1000
"""Maximum number of nodes of a tree besides the first, and of places on a page of lines."""


@attrs.frozen
class Tree(Operation[TreeNode]):
    """
    Query live counts at *path* and *depth* levels below it, at most 1 000 nodes besides the first.

    Args:
        after: only the children of *path* that come behind this name, in order of `TreeNode.children`; None: all.
        limit: at most so many children of *path*; a store may answer fewer, with a cursor.
    """

    is_question: ClassVar[bool] = True
    path: Path = ()
    depth: Annotated[int, Count(0, DEPTH_MAX)] = 1
    after: KeyText | None = None
    limit: Annotated[int, Asked(1, TREE_NODES_MAX)] = TREE_NODES_MAX


@attrs.frozen
class Lines:
    """
    One page of places with waiting claims.

    Args:
        places: the longest lines first, those of one length in order of path key; without children.
        after: the cursor of the next page, a path key; None: no more. Pages are by path key: the longest line of all
            may come in any of them.
    """

    places: tuple[TreeNode, ...]
    after: str | None = None


@attrs.frozen
class ListLines(Operation[Lines]):
    """
    Query the longest lines at the places 1 to *depth* levels below *path*, a page at a time.

    A page looks at so many places that it is bounded. A place where one job waits all the while is in some page; it may
    be in several.

    Args:
        after: the cursor of the page before.
        limit: at most so many places, the longest lines of the page.
        longer_than: only lines of more claims than this.
        longest: answer in one page, without *after*, at a bounded cost. With more than 1 000 lines of four or more in
            the namespace a store may leave out lines that are less than twice as long as the shortest of these; and
            shorter ones where it has more than 1 000 places.
    """

    is_question: ClassVar[bool] = True
    path: Path = ()
    depth: Annotated[int, Asked(1, DEPTH_MAX)] = 1
    after: KeyText | None = None
    limit: Annotated[int, Asked(1, TREE_NODES_MAX)] = TREE_NODES_MAX
    longer_than: AnyCount = 0
    longest: bool = False


@attrs.frozen
class CanDequeue(Operation[bool]):
    """Query whether an executing job conflicts with a claim on *path*."""

    is_question: ClassVar[bool] = True
    path: Path
    mode: Mode = "exclusive"


@attrs.frozen(kw_only=True)
class PlacedJob:
    """
    A job in the answer of `Scheduler.why` for a path.

    Args:
        id, task, user: of the job.
        path_key: the place of its first claim that is at the path, below it or above it; of its first claim where none
            is, None for a job without a place.
        mode: of this claim; None without one.
        claims: how many claims it has.
        enqueued_ms: when it was enqueued, ms since the epoch.
        reason: its state, and why it is where it is.

    .. versionadded:: 1.0.0
    """

    id: str
    task: str
    user: str | None
    path_key: str | None
    mode: ClaimMode | None
    claims: int
    enqueued_ms: int
    reason: Reason

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self.reason.state

    def __str__(self) -> str:
        of = "" if self.user is None else f" of {self.user}"
        at = "" if self.path_key is None else f" at {self.path_key}"
        more = f" and {self.claims - 1} more" if self.claims > 1 else ""
        return f"{self.id} ({self.task}{of}{at}{more}) is {self.state}: {self.reason.text}"


@attrs.frozen(kw_only=True)
class PathReasons:
    """
    The jobs that wait at a path or below it, and their blockers.

    Looked at are the first 250 claims of unfinished jobs there and the last 250, in order of path key, then of number:
    at one place alone these are its oldest and its newest jobs, however many there are between.

    Args:
        path_key: the path.
        oldest: the jobs that wait there and were enqueued first, the oldest first.
        newest: those that were enqueued last, the newest first; none that is among the oldest.
        ahead: what stands in the way, up to 10: jobs that those above wait for, then those that run there, then those
            that hold the place against a job that would come now. Jobs that wait there themselves are not among them.
            Permits, which count there and take no place, are if one of those above waits for a limit.
        waiting: how many jobs wait there, of those looked at: not STARTED and not over.
        more_ahead: how many others stand in the way, of those looked at.
        holders: how many claims hold the place against a job that would come now, those of jobs in `ahead` too.
        complete: whether all claims there were looked at; if not, more jobs wait there than `waiting` says.

    .. versionadded:: 1.0.0
    """

    path_key: str
    oldest: tuple[PlacedJob, ...]
    newest: tuple[PlacedJob, ...]
    ahead: tuple[PlacedJob, ...]
    waiting: int
    more_ahead: int
    holders: int
    complete: bool

    @property
    def more(self) -> int:
        """How many jobs wait there besides the oldest and the newest, among the jobs looked at."""
        return self.waiting - len(self.oldest) - len(self.newest)

    def each_reason(self, change: Callable[[Reason], Reason]) -> PathReasons:
        """Return the same with the reason of each job changed."""

        def changed(jobs: tuple[PlacedJob, ...]) -> tuple[PlacedJob, ...]:
            return tuple([attrs.evolve(job, reason=change(job.reason)) for job in jobs])

        return attrs.evolve(self, oldest=changed(self.oldest), newest=changed(self.newest), ahead=changed(self.ahead))

    def __str__(self) -> str:
        least = "" if self.complete else "at least "
        lines = [f"{self.path_key}: {least}{self.waiting} job{'' if self.waiting == 1 else 's'} waiting"]
        for title, jobs, more in (
            ("oldest", self.oldest, self.more if not self.newest else 0),
            ("newest", self.newest, self.more),
            ("in the way", self.ahead, self.more_ahead),
        ):
            if jobs:
                lines += [f"{title}:", *[f"  {job}" for job in jobs]]
                lines += [f"  and {more} more"] if more else []
        return "\n".join(lines)
