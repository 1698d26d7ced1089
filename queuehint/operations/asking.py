"""Operations that read: records, events, counts and reasons. Only `Follow` changes anything."""

from __future__ import annotations

from typing import Annotated, ClassVar

import attrs

from queuehint.operations.base import (
    EVENT_FILTERS_MAX,
    EVENTS_MAX,
    FETCH_MAX,
    IDS_MAX,
    LIST_MAX,
    SCHEDULE_LIST_MAX,
    Operation,
    Verdict,
)
from queuehint.operations.places import PathReasons
from queuehint.schema.checks import counted
from queuehint.schema.kinds import AnyCount, Asked, AtMost, JobId, MomentMs, NameText, Token
from queuehint.values.event import Event, EventFilter
from queuehint.values.hint import KeyText, Path
from queuehint.values.limit import LimitState
from queuehint.values.record import JobRecord, JobState
from queuehint.values.record_filter import ALL_RECORDS, RecordFilter
from queuehint.values.report import EdgeStats, PauseState, Reason, Stats, WorkerInfo
from queuehint.values.schedule import Schedule

__all__ = [
    "CHAIN_MAX",
    "Chain",
    "CountEdges",
    "CountJobs",
    "CountPending",
    "CountRecords",
    "Counts",
    "DueSchedules",
    "Fetch",
    "Fetched",
    "Follow",
    "Followed",
    "Get",
    "Got",
    "Limits",
    "List",
    "ListLimits",
    "ListPauses",
    "ListSchedules",
    "ListUsers",
    "ListWeights",
    "ListWorkers",
    "Page",
    "Pauses",
    "Pending",
    "Position",
    "Schedules",
    "Users",
    "Weights",
    "Why",
    "Workers",
]


def _sizes(results: tuple[tuple[JobState | None, bytes | None], ...]) -> str:
    return f"<{len(results)} results, {sum(len(result or b'') for _, result in results)} bytes>"


@attrs.frozen
class Fetched:
    """
    Results of a running job's dependencies, and of its steps.

    Args:
        verdict: LOST if the token is not that of the newest grant; then there are no results.
        results: for the first of the ids asked for (at least one, as many as fit into 4 MiB): the state, None for a
            job that is not a dependency or is gone, and the result, None if there is none.
        steps: the first of the steps asked for (at least one, as many as fit into 4 MiB), in the order in which they
            were stored: the name, when, and the result.
    """

    verdict: Verdict
    results: tuple[tuple[JobState | None, bytes | None], ...] = attrs.field(repr=_sizes)
    steps: tuple[tuple[str, int, bytes], ...] = attrs.field(default=(), repr=counted)


@attrs.frozen
class Fetch(Operation[Fetched]):
    """
    Read results of up to 100 dependencies of a running job, and of its own steps.

    Args:
        steps_from: read the steps behind the first so many; None for no steps.
    """

    is_question: ClassVar[bool] = True
    job_id: JobId
    token: Token
    ids: Annotated[tuple[JobId, ...], AtMost(FETCH_MAX)]
    steps_from: AnyCount | None = None


@attrs.frozen
class Followed:
    """
    The next events of a namespace, in the order in which they happened.

    Args:
        after: the position to pass for the next page.
        missed: how many events before these, that pass the filters or not, are not there any more.
        is_more: others are there already; with filters, others that may pass.
    """

    events: tuple[Event, ...]
    after: int
    missed: int
    is_more: bool


@attrs.frozen
class Follow(Operation[Followed]):
    """
    Read up to 1 000 next events that pass any of some filters, and renew the subscription.

    For 60 s from now the last 10 000 events, or 16 MiB of them, are kept; without a further call for that long they are
    dropped.

    Args:
        after: the number of the last event seen; None begins now. One that is yet to come is of another history of the
            namespace, and counts as 0.
        filters: up to 1 000, with which the next 2 000 events are compared; ``()`` for all events.
    """

    is_repeatable: ClassVar[bool] = True
    after: AnyCount | None = None
    limit: Annotated[int, Asked(1, EVENTS_MAX)] = EVENTS_MAX
    filters: Annotated[tuple[EventFilter, ...], AtMost(EVENT_FILTERS_MAX)] = ()


@attrs.frozen
class Got:
    """One record for each id, None for a missing one."""

    records: tuple[JobRecord | None, ...]


@attrs.frozen
class Get(Operation[Got]):
    """Read up to 1 000 records by id."""

    is_question: ClassVar[bool] = True
    ids: Annotated[tuple[JobId, ...], AtMost(IDS_MAX)]


Position = tuple[KeyText, AnyCount]
"""A place in a listing: a queue key, ``""`` where no path is asked for, and a number."""


@attrs.frozen
class Page:
    """
    Records that pass a filter.

    Args:
        after: what to pass for the next page, None at the end. A page may be short, or empty, and not be the last.
    """

    records: tuple[JobRecord, ...]
    after: Position | None


@attrs.frozen
class List(Operation[Page]):
    """
    Read a page of the records of a filter, in order of number; with a path in order of queue key, then number.

    A job with several claims at or below the path is there once, at the first of their keys. One question looks at
    2 048 blocks of 1 024 numbers and at 4 000 records at most.

    Args:
        newest_first: in the reverse order, that of the queue keys too.
        by_time: with a path in order of number all the same. Where the path has at most 4 000 claims, they are looked
            at for each page; else the records of the namespace are gone through in order of number.
        after: the *after* of the page before.
        limit: 1–200.
    """

    is_question: ClassVar[bool] = True
    filter: RecordFilter = ALL_RECORDS
    newest_first: bool = False
    after: Position | None = None
    limit: Annotated[int, Asked(1, LIST_MAX)] = 100
    by_time: bool = False


@attrs.frozen
class Counts:
    """
    How many records pass a filter.

    Args:
        states: by state.
        after: what to go on behind if there was more to look at than one question may, None at the end.
    """

    states: dict[JobState, int]
    after: Position | None

    @property
    def complete(self) -> bool:
        """True if no record is left to count."""
        return self.after is None

    @property
    def total(self) -> int:
        """In all states."""
        return sum(self.states.values())


@attrs.frozen
class CountRecords(Operation[Counts]):
    """
    Count the records of a filter.

    One question looks at 1 024 records at most, by a path or a time. Where those of a block of 1 024 numbers are
    counted together, the block counts as eight. Those of a flow are counted at once where that is the only
    condition.

    Args:
        after: the *after* of the question before; the counts are those of what comes behind.
    """

    is_question: ClassVar[bool] = True
    filter: RecordFilter = ALL_RECORDS
    after: Position | None = None


@attrs.frozen
class Users:
    """
    The users of a service with the number of their records, in order of name.

    Args:
        after: the position to pass for the next page, None at the end.
    """

    users: tuple[tuple[str, int], ...]
    after: str | None


@attrs.frozen
class ListUsers(Operation[Users]):
    """List up to 200 users with records of a service."""

    is_question: ClassVar[bool] = True
    service: NameText
    after: KeyText | None = None
    limit: Annotated[int, Asked(1, LIST_MAX)] = 100


@attrs.frozen
class CountEdges(Operation[EdgeStats]):
    """Query the edges: their number, the longest wait, cycles."""

    is_question: ClassVar[bool] = True


@attrs.frozen
class Schedules:
    """
    Some schedules.

    Args:
        now_ms: the time by the backend's clock.
        following: the name from which the next page begins, None at the end.
        unreadable: names of others of the page, which this release cannot read: a later one has written them, or they
            are damaged.
        behind: of those due, the place behind which the next page begins, None at the end.
    """

    schedules: tuple[Schedule, ...]
    now_ms: int
    following: str | None = None
    unreadable: tuple[str, ...] = ()
    behind: tuple[int, str] | None = None


@attrs.frozen
class ListSchedules(Operation[Schedules]):
    """Read a page of schedules in order of name, from the name *first* on, at most 100."""

    is_question: ClassVar[bool] = True
    first: KeyText = ""
    limit: Annotated[int, Asked(1, SCHEDULE_LIST_MAX)] = 100


@attrs.frozen
class DueSchedules(Operation[Schedules]):
    """
    List up to 100 due schedules, by due time, then name.

    Args:
        after: the due time and the name of a schedule: of those due, only what comes behind it.
    """

    is_question: ClassVar[bool] = True
    limit: Annotated[int, Asked(1, SCHEDULE_LIST_MAX)] = 100
    after: tuple[MomentMs, KeyText] | None = None


CHAIN_MAX = 16
"""How many reasons a chain has at most."""


@attrs.frozen
class Chain:
    """
    Reasons from a waiting job to the root cause of its wait, 1–16. Each but the last names the job of the next one.

    Args:
        reasons: that of the job asked about first. The last is a wait that does not end by itself, if the search finds
            one; else the end of the first way. Of a path there are none.
        at_path: what waits at the path asked about, and what stands in its way; None of a job.
    """

    reasons: tuple[Reason, ...]
    at_path: PathReasons | None = None


@attrs.frozen
class Why(Operation[Chain]):
    """
    Query why a job waits. With a *limit* above 1, follow the chain of reasons.

    At most 100 jobs are looked at.

    Args:
        job_id: the job; None for a question about a path.
        limit: how many reasons the chain has at most, 1–16; of a path how many of its oldest jobs are named, and how
            many of its newest.
        path: the place asked about: what waits at it or below it, and what stands in its way. At most 500 claims of
            jobs there are looked at.

    Raises:
        JobNotFoundError: no such job.
    """

    is_question: ClassVar[bool] = True
    job_id: JobId | None
    limit: Annotated[int, Asked(1, CHAIN_MAX)] = 1
    path: Path | None = None


@attrs.frozen
class CountJobs(Operation[Stats]):
    """Query counts over the namespace."""

    is_question: ClassVar[bool] = True


@attrs.frozen
class Weights:
    """The users with a weight other than 1, in order of their names; None, for jobs without a user, first."""

    users: tuple[tuple[str | None, int], ...]


@attrs.frozen
class ListWeights(Operation[Weights]):
    """Query the weights of users."""

    is_question: ClassVar[bool] = True


@attrs.frozen
class Workers:
    """
    The workers seen within `WORKER_SEEN_MS` and not deregistered, by name.

    Args:
        now_ms: the time by the store.
    """

    workers: tuple[WorkerInfo, ...]
    now_ms: int


@attrs.frozen
class ListWorkers(Operation[Workers]):
    """List the workers."""

    is_question: ClassVar[bool] = True


@attrs.frozen
class Pauses:
    """All pauses, in the order in which they began."""

    pauses: tuple[PauseState, ...]


@attrs.frozen
class ListPauses(Operation[Pauses]):
    """List the pauses."""

    is_question: ClassVar[bool] = True


@attrs.frozen
class Limits:
    """All limits, that of the namespace first, then in order of path."""

    limits: tuple[LimitState, ...]


@attrs.frozen
class ListLimits(Operation[Limits]):
    """List the limits and their present counts."""

    is_question: ClassVar[bool] = True


@attrs.frozen
class Pending:
    """
    Pending work at or below a path.

    Args:
        unfinished: how many jobs are unfinished there; below a path at most 1 000 are counted, once a claim.
        moving: some of them can move without a person: they run, or wait for a worker, a time or each other. A wait for
            a signal until a time is one for a time if SCHEDULED jobs are asked for, among the first 1 000 of them.
        reasons: up to 100 reasons of those that cannot.
    """

    unfinished: int
    moving: bool
    reasons: tuple[Reason, ...]


@attrs.frozen
class CountPending(Operation[Pending]):
    """Count the unfinished jobs at or below *path* (None: everywhere), SCHEDULED ones only on request."""

    is_question: ClassVar[bool] = True
    is_of_newest: ClassVar[bool] = True
    path: Path | None = None
    include_scheduled: bool = False
