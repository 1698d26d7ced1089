"""
The vocabulary of every backend: each change and each question is one value with a typed reply.

A history is a list of operations: what is recorded, replayed, simulated and compared is the same thing. An
operation that cannot be done raises and has changed nothing. A reply's ``more`` says that work which follows from
this or an earlier operation is left over; the caller's side sends `Tick` at once.

Every mutating operation does, in this order: settle what it carries, leftovers first in first out, due timers,
its own placements and claims.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Generic, Literal, TypeVar

import attrs

from queuehint.values.checks import sized
from queuehint.values.event import Event
from queuehint.values.hint import Mode, Path
from queuehint.values.limit import Limit, LimitState
from queuehint.values.record_filter import ALL_RECORDS, RecordFilter
from queuehint.values.records import Grant, JobRecord, JobSpec, JobState, Outcome, Progress
from queuehint.values.report import EdgeStats, FlowStats, Reason, Stats, TreeNode
from queuehint.values.schedule import Recurrence, Schedule

JOBS_PER_SUBMISSION_MAX = 1000
GATES_PER_SUBMISSION_MAX = 16_000
EDGES_PER_SUBMISSION_MAX = 4000
BYTES_PER_SUBMISSION_MAX = 4 << 20
"""Arguments of together more than this are sent in parts: each has to be sent, whole, before a connection times out."""
FLOW_JOBS_MAX = 100_000
JOBS_PER_CALL_MAX = 1_000_000
FETCH_MAX = 100
FETCH_BYTES_MAX = 4 << 20
"""Results of together more than this come in several replies."""
STAGED_KEPT_MS = 600_000
"""How long the parts of a submission wait for its `Commit`, counted from the last part."""
SETTLEMENTS_MAX = 1000
GRANTS_MAX = 1000
LEASES_MAX = 16_000
LIST_MAX = 200
RECORDS_PER_BLOCK = 1024
"""Records of so many consecutive numbers are indexed together."""
BLOCKS_LOOKED_AT_MAX = 2048
RECORDS_LOOKED_AT_MAX = 4000
RECORDS_COUNTED_MAX = 1024
BLOCK_COUNTS_AS = 8
"""A block whose records are counted together costs as much as so many that are looked at one by one."""
SCHEDULE_LIST_MAX = 100
IDS_MAX = 1000
EVENTS_MAX = 1000
POOLS_MAX = 64
USERS_NAMED_MAX = 64
SERVED_MAX = 1000
"""Pools times users that one worker may ask for: it is woken for each of these pairs."""
WEIGHT_MAX = 100
WEIGHTS_MAX = 1000
ANYONE: Final = "*"
"""In place of users to help: all of them."""
BUDGET = 1000
"""Units of following work of one operation: as many as no Redis is held up by for 20 ms, the same for all backends."""

Reply = TypeVar("Reply", covariant=True)  # noqa: PLC0105 - one name for the one variable


class Operation(Generic[Reply]):
    """What a backend is asked; `Reply` is the type of the answer."""

    __slots__ = ()


# --- producers -------------------------------------------------------------------------------------------------


@attrs.frozen
class EnqueuedJob:
    """One job of a submission: *created* is False when it was there already (same id, or a fresh job of its key)."""

    id: str
    number: int
    state: JobState
    created: bool
    presence_token: int | None = None


@attrs.frozen
class Enqueued:
    """The jobs of a submission, in its order."""

    jobs: tuple[EnqueuedJob, ...]
    more: bool


@attrs.frozen
class Firing:
    """
    Which schedule fires the jobs of a submission.

    Args:
        name: the schedule's.
        version: that of the schedule they were worked out from; whoever comes second finds another one.
        last_ms: the due time of the last of the jobs.
        next_ms: when the schedule is due next, None if never again.
    """

    name: str
    version: int
    last_ms: int
    next_ms: int | None


@attrs.frozen
class Enqueue(Operation[Enqueued]):
    """
    Submit up to 1 000 jobs, all or nothing, in order.

    Together they have at most 16 000 gates (depth + 1 a claim), 4 000 edges and 4 MiB of arguments.

    Args:
        jobs: each depends on jobs that exist, or on others of the submission, in any order.
        staged: the parts of one large submission have this in common: their jobs are known to nobody until its
            `Commit`, and are gone if there is none within ten minutes. A part may depend on jobs of earlier parts.
        parent: the id and token of the running job whose handler makes these.
        firing: the schedule that fires these, at most 100 of them, or none where a due time is passed over.
        flow: they are all jobs of this flow, or a part of them.

    Raises:
        DuplicateJobError: an id is taken by a job of other content, or appears twice; a key with
            ``on_conflict="reject"`` has an unfinished job.
        DuplicateFlowError: the flow has other jobs already.
        PathClosedError: a claim is at or below a closed path.
        UnknownDependencyError: a dependency is not there, or its record has expired.
        CycleError: the edges close a circle, by themselves or with the parent's.
        LeaseLostError: the parent's token is not that of its newest grant.
        QueueFullError: more jobs would be unfinished than a limit allows; jobs that are there already are not new.
        ScheduleChangedError: the schedule has another version: somebody else has fired.
    """

    jobs: tuple[JobSpec, ...]
    staged: str | None = None
    parent: tuple[str, int] | None = None
    firing: Firing | None = None
    flow: str | None = None


@attrs.frozen
class Committed:
    """How many jobs a submission in parts had that were not there already."""

    jobs: int
    more: bool


@attrs.frozen
class Commit(Operation[Committed]):
    """
    Have all parts of a submission take effect at once; their times count from now.

    Args:
        flow: the parts are all jobs of this flow.

    Raises:
        FlowNotFoundError: it has no parts, was committed, or its parts have expired.
        DuplicateFlowError: the flow has other jobs already.
    """

    staged: str
    flow: str | None = None


@attrs.frozen
class Drawn:
    """The first of the numbers drawn."""

    first: int


@attrs.frozen
class Draw(Operation[Drawn]):
    """Draw *count* numbers for ``ids="sequence"``; a number is never drawn twice."""

    count: int


@attrs.frozen
class Peek(Operation[Drawn]):
    """Ask which number would be drawn next, and draw none."""


class Verdict(StrEnum):
    """What became of one item of a batch."""

    DONE = "done"
    REQUESTED = "requested"
    """The job runs: its worker is told; a settlement "finished" still wins."""
    REFUSED = "refused"
    """The job is in a state this cannot be done from."""
    UNKNOWN = "unknown"
    """No such job."""
    LOST = "lost"
    """The token is not that of the job's newest grant; nothing was changed."""
    CANCELED = "canceled"
    """Renewed, and asked to stop."""
    STALE = "stale"
    """The record has another version than was said; nothing was changed."""


@attrs.frozen
class Judged:
    """A verdict and the job's state afterwards (None if unknown) for each id of a batch, in its order."""

    verdicts: tuple[tuple[Verdict, JobState | None], ...]
    more: bool


@attrs.frozen
class Cancel(Operation[Judged]):
    """Cancel up to 1 000 jobs by id: those that run are told, all others are CANCELED at once."""

    ids: tuple[str, ...]
    reason: str | None = None


@attrs.frozen
class Swept:
    """A sweep was begun; it covers what was enqueued before it, and goes on while ``more``."""

    more: bool


@attrs.frozen
class SweptPath:
    """
    A sweep of a path was begun.

    Attributes:
        more: something is left over, of the sweep or of other work.
        reached: how many jobs the sweep has canceled or asked to stop so far; those asked before do not count again.
        number: of a sweep that goes on: when it is over, its tally, a decimal number, is what is pulled from
            `TALLIES` under this number as text, for `TALLY_MS`. None where *reached* is the tally.
    """

    more: bool
    reached: int
    number: int | None = None


TALLIES: Final = ""
"""The namespace of the small shared store with the tallies of sweeps; no user can name it."""
TALLY_MS: Final = 600_000


@attrs.frozen
class CancelPath(Operation[SweptPath]):
    """Cancel every unfinished job with a claim at or below *path* that was enqueued before, in bounded steps."""

    path: Path
    reason: str | None = None


@attrs.frozen
class CancelFlow(Operation[Swept]):
    """Cancel every unfinished job of a flow that was enqueued before, the last first, in bounded steps."""

    flow: str
    reason: str | None = None


@attrs.frozen
class Redrive(Operation[Judged]):
    """
    Queue up to 1 000 dead jobs again, attempts and losses counted anew; a held place is kept.

    Args:
        downstream: also revive, in bounded steps, the jobs that were canceled because of these.
    """

    ids: tuple[str, ...]
    downstream: bool = False


@attrs.frozen
class Discard(Operation[Judged]):
    """Take up to 1 000 dead jobs off the shelf: CANCELED, a held place is freed."""

    ids: tuple[str, ...]


@attrs.frozen
class Delete(Operation[Judged]):
    """
    Drop up to 1 000 records as the end of their retention does: a place is freed, dependents are told, the id is kept.

    REFUSED are jobs that are not over, and results that a job that depends on them may still read; one that is deleted
    by the same operation counts among these.

    Args:
        versions: if given, one for each id: STALE if the record has another.
    """

    ids: tuple[str, ...]
    versions: tuple[int, ...] | None = None


@attrs.frozen
class Pushed:
    """*replaced* is False when nothing was stored under the key."""

    replaced: bool
    more: bool


@attrs.frozen
class Push(Operation[Pushed]):
    """Store a value, opaque to every backend, under a key of a namespace, for *ttl_ms*."""

    namespace: str
    key: str
    value: bytes = attrs.field(repr=sized)
    ttl_ms: int


# --- workers ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Unreadable:
    """
    A job that was granted although its spec cannot be read here; its worker settles it at once.

    Args:
        problem: what is wrong with it.
        is_newer: a later release seems to have written it, which says more than this one knows; else it is damaged.
    """

    job_id: str
    token: int
    problem: str
    is_newer: bool


@attrs.frozen
class Exchanged:
    """
    What a worker gets back.

    Args:
        verdicts: one for each settlement, DONE or LOST.
        grants: jobs to run now.
        canceled: ids of this worker's jobs that were asked to stop since it was last told.
        due: schedules are due: ask `DueSchedules`.
        unreadable: granted besides, but nobody can run them by this release.
    """

    verdicts: tuple[Verdict, ...]
    grants: tuple[Grant, ...]
    canceled: tuple[str, ...]
    more: bool
    due: bool = False
    unreadable: tuple[Unreadable, ...] = ()


@attrs.frozen
class Exchange(Operation[Exchanged]):
    """
    Settle a batch of started jobs and claim the next, in one round trip.

    Args:
        worker: unique to this incarnation of the worker.
        settle: up to 1 000 outcomes.
        pools: up to 64 pools to claim from, taken in rotation.
        limit: how many jobs to claim at most, 0–1 000.
        lease_ms: how long the grants last unless renewed.
        users: claim only jobs of these, up to 64, None among them for jobs without a user; by default of everyone.
        steal: up to 64 others whose jobs are claimed while none of *users* has any ready in these pools; `ANYONE` for
            all others. Pools times users named may be 1 000.
        is_last: the worker leaves; what only it was told of, ready jobs and due times, others are woken for.
        announces: this worker says by `Renew` with *begun* when the code of a job on its last life begins (a job that
            has lost workers, and is FAILED by one more loss); until then a lease that ends is not counted as a loss.

    Raises:
        InvalidJobError: too much of something, *steal* without *users*, or a *limit* in the last exchange.
    """

    worker: str
    settle: tuple[Outcome, ...] = ()
    pools: tuple[str, ...] = ("default",)
    limit: int = 0
    lease_ms: int = 30_000
    users: tuple[str | None, ...] | None = None
    steal: tuple[str | None, ...] | Literal["*"] = ()
    is_last: bool = False
    announces: bool = False

    @property
    def among(self) -> tuple[str | None, ...] | None:
        """Whose jobs may be claimed at all; None for everyone's."""
        if self.users is None or self.steal == ANYONE:
            return None
        return (*self.users, *self.steal)


@attrs.frozen
class Renewed:
    """One verdict for each lease: DONE, CANCELED (renewed, and asked to stop) or LOST."""

    verdicts: tuple[Verdict, ...]
    more: bool


@attrs.frozen
class Renew(Operation[Renewed]):
    """
    Extend leases, each a job id and its token, to *lease_ms* from now; also the presence leases of waiters.

    Args:
        begun: the code of these jobs begins now: from here on losing them counts; see *announces* of `Exchange`.
        blocked_ms: how long code has blocked the event loop of the worker that runs them, for `Why`; 0 if none does.
    """

    leases: tuple[tuple[str, int], ...]
    lease_ms: int = 30_000
    begun: bool = False
    blocked_ms: int = 0


@attrs.frozen
class Noted:
    """DONE or LOST; of a record that need not be there UNKNOWN, of one with another version STALE."""

    verdict: Verdict


@attrs.frozen
class Report(Operation[Noted]):
    """Store a running job's progress."""

    job_id: str
    token: int
    progress: Progress


@attrs.frozen
class Log(Operation[Noted]):
    """
    Append lines to a job's log: the last 1 000 are kept, each cut at 4 096 bytes by the caller.

    Args:
        token: of the running job's newest grant; None appends to any record that is kept, whatever its state.
    """

    job_id: str
    token: int | None
    lines: tuple[str, ...]


@attrs.frozen
class Update(Operation[Noted]):
    """
    Store what a running job has so far as its result; a later attempt finds it there.

    It is replaced by the next, and by the result of a job that finishes with one; a job that fails or is canceled has
    no result.

    Args:
        result: at most 1 MiB, opaque to every backend.
    """

    job_id: str
    token: int
    result: bytes = attrs.field(repr=sized)


@attrs.frozen
class Amend(Operation[Noted]):
    """
    Change the service and the user of a record, unfinished or over.

    Asked for again as it was first, it is the same job still. A ready job takes its turn under its new user.

    Args:
        spec: what is stored, with another service or user.
        version: STALE if the record has another.

    Raises:
        InvalidJobError: it differs from what is stored in more.
    """

    spec: JobSpec
    version: int


def _sizes(results: tuple[tuple[JobState | None, bytes | None], ...]) -> str:
    return f"<{len(results)} results, {sum(len(result or b'') for _, result in results)} bytes>"


@attrs.frozen
class Fetched:
    """
    What a running job's dependencies have brought.

    Args:
        verdict: LOST if the token is not that of the newest grant; then there are no results.
        results: for the first of the ids asked for (at least one, as many as fit into 4 MiB): the state, None for a
            job that is not a dependency or is gone, and the result, None if there is none.
    """

    verdict: Verdict
    results: tuple[tuple[JobState | None, bytes | None], ...] = attrs.field(repr=_sizes)


@attrs.frozen
class Fetch(Operation[Fetched]):
    """Read results of up to 100 jobs that a running job depends on."""

    job_id: str
    token: int
    ids: tuple[str, ...]


# --- housekeeping ----------------------------------------------------------------------------------------------


@attrs.frozen
class Ticked:
    """*next_ms* is the next time something comes to be due, None if nothing does."""

    more: bool
    next_ms: int | None


@attrs.frozen
class Tick(Operation[Ticked]):
    """Do what is left over and what is due: promote, reap, prune. Any worker may; there is no leader."""


# --- operators -------------------------------------------------------------------------------------------------


@attrs.frozen
class Marked:
    """*changed* is False when it was so before."""

    changed: bool
    more: bool


@attrs.frozen
class Pause(Operation[Marked]):
    """Stop starts of jobs with a claim at or below *path*; they keep their places."""

    path: Path


@attrs.frozen
class Resume(Operation[Marked]):
    """Undo `Pause` of this very path."""

    path: Path


@attrs.frozen
class Close(Operation[Marked]):
    """Refuse new jobs with a claim at or below *path*."""

    path: Path


@attrs.frozen
class Reopen(Operation[Marked]):
    """Undo `Close` of this very path."""

    path: Path


@attrs.frozen
class PutSchedule(Operation[Marked]):
    """
    Store a schedule. One that is there and asks for the same is left as it is; another of its name is replaced, and
    keeps its pause and what it fired last.

    Args:
        name: 1–128 bytes, as an id.
        spec: what each of its jobs is asked to be; its arguments take at most 64 KiB.
        next_ms: when it is due first, if it is new or another; None if never.

    Raises:
        InvalidJobError: there are 10 000 others.
    """

    name: str
    spec: JobSpec
    recurrence: Recurrence
    next_ms: int | None


@attrs.frozen
class DropSchedule(Operation[Marked]):
    """Forget a schedule; the jobs it has fired are left alone."""

    name: str


@attrs.frozen
class PauseSchedule(Operation[Marked]):
    """
    Have a schedule fire nothing.

    Raises:
        ScheduleNotFoundError: there is none of this name.
    """

    name: str


@attrs.frozen
class ResumeSchedule(Operation[Marked]):
    """
    Undo `PauseSchedule`, unless the schedule has another version than *version*; from now on it is due at *next_ms*.

    Raises:
        ScheduleNotFoundError: there is none of this name.
    """

    name: str
    version: int
    next_ms: int | None


@attrs.frozen
class SetLimit(Operation[Marked]):
    """
    Put a limit in place of the one its path has, if it has one; one that limits nothing takes that away.

    It counts what runs now. What runs is never stopped: where more runs than may, nothing starts until enough has
    ended. What was spent of a rate stays spent.

    Raises:
        InvalidJobError: the limit breaks a rule; there are 1 000 limits already.
    """

    limit: Limit


@attrs.frozen
class DropLimit(Operation[Marked]):
    """Take away the limits of a path (None: of the whole namespace), that for each child of it too."""

    path: Path | None


@attrs.frozen
class Followed:
    """
    The next events of a namespace, in the order in which they happened.

    Args:
        after: what to pass for the next.
        missed: how many events before these are not there any more.
        is_more: others are there already.
    """

    events: tuple[Event, ...]
    after: int
    missed: int
    is_more: bool


@attrs.frozen
class Follow(Operation[Followed]):
    """
    Read the next events, up to 1 000, and say that somebody listens.

    For 60 s from now the last 10 000 events are kept; when nobody asks for that long they are dropped.

    Args:
        after: the number of the last event seen; None begins now. One that is yet to come is of another history of the
            namespace, and counts as 0.
    """

    after: int | None = None
    limit: int = EVENTS_MAX


@attrs.frozen
class Weigh(Operation[Marked]):
    """
    Give a user, or jobs without one, up to *weight* starts a turn, 1–100; 1, as for everyone, forgets it.

    Raises:
        InvalidJobError: 1 000 users have a weight other than 1 already.
    """

    user: str | None
    weight: int


# --- questions: they change nothing ----------------------------------------------------------------------------


@attrs.frozen
class Got:
    """One record for each id, None where there is none."""

    records: tuple[JobRecord | None, ...]


@attrs.frozen
class Get(Operation[Got]):
    """Read up to 1 000 records by id."""

    ids: tuple[str, ...]


@attrs.frozen
class Listed:
    """A page of records in order of number; *cursor* is what to pass for the next, None at the end."""

    records: tuple[JobRecord, ...]
    cursor: int | None


@attrs.frozen
class ListDead(Operation[Listed]):
    """Read a page of the dead shelf: FAILED jobs in order of enqueue, after number *cursor*, at most 200."""

    cursor: int = 0
    limit: int = 100


@attrs.frozen
class ListFlow(Operation[Listed]):
    """Read a page of a flow's jobs in order of number, after number *cursor*, at most 200."""

    flow: str
    cursor: int = 0
    limit: int = 100


Position = tuple[str, int]
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
    Read a page of the records that pass a filter, in order of number; with a path in order of queue key, then number.

    A job with several claims at or below the path is there once, at the first of their keys. One question looks at
    2 048 blocks of 1 024 numbers and at 4 000 records at most.

    Args:
        newest_first: in the reverse order, that of the queue keys too.
        after: the *after* of the page before.
        limit: 1–200.
    """

    filter: RecordFilter = ALL_RECORDS
    newest_first: bool = False
    after: Position | None = None
    limit: int = 100


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
        """True if nothing is left to look at."""
        return self.after is None

    @property
    def total(self) -> int:
        """In all states."""
        return sum(self.states.values())


@attrs.frozen
class CountRecords(Operation[Counts]):
    """
    Ask how many records pass a filter.

    One question looks at 1 024 records at most, by a path or a time. Where those of a block of 1 024 numbers are
    counted together, the block counts as eight.

    Args:
        after: the *after* of the question before; the counts are those of what comes behind.
    """

    filter: RecordFilter = ALL_RECORDS
    after: Position | None = None


@attrs.frozen
class Users:
    """
    The users of a service with the number of their records, in order of name.

    Args:
        after: what to pass for the next page, None at the end.
    """

    users: tuple[tuple[str, int], ...]
    after: str | None


@attrs.frozen
class ListUsers(Operation[Users]):
    """Read a page of the users that have records of a service, at most 200."""

    service: str
    after: str | None = None
    limit: int = 100


@attrs.frozen
class CountFlow(Operation[FlowStats]):
    """Ask how many jobs a flow has, by state."""

    flow: str


@attrs.frozen
class CountEdges(Operation[EdgeStats]):
    """Ask about edges: how many, who waits longest, whether one leads nowhere."""


@attrs.frozen
class Schedules:
    """
    Some schedules.

    Args:
        now_ms: the time by the backend's clock.
        following: the name from which the next page begins, None at the end.
        unreadable: names of others of the page, which this release cannot read: a later one has written them, or they
            are damaged.
    """

    schedules: tuple[Schedule, ...]
    now_ms: int
    following: str | None = None
    unreadable: tuple[str, ...] = ()


@attrs.frozen
class ListSchedules(Operation[Schedules]):
    """Read a page of schedules in order of name, from the name *first* on, at most 100."""

    first: str = ""
    limit: int = 100


@attrs.frozen
class DueSchedules(Operation[Schedules]):
    """
    Read schedules that are due, those due first first and of those due at once by name, at most 100.

    Args:
        after: the due time and the name of a schedule: of those due, only what comes behind it.
    """

    limit: int = 100
    after: tuple[int, str] | None = None


@attrs.frozen
class Pulled:
    """A value stored by `Push`; None if there is none or its time is over."""

    value: bytes | None = attrs.field(repr=sized)


@attrs.frozen
class Pull(Operation[Pulled]):
    """Read what is stored under a key of a namespace."""

    namespace: str
    key: str


@attrs.frozen
class Why(Operation[Reason]):
    """
    Ask what a job waits for.

    Raises:
        JobNotFoundError: no such job.
    """

    job_id: str


@attrs.frozen
class Tree(Operation[TreeNode]):
    """Ask for live counts at *path* and *depth* levels below it, at most 1 000 nodes."""

    path: Path = ()
    depth: int = 1


@attrs.frozen
class CountJobs(Operation[Stats]):
    """Ask for counts over the namespace."""


@attrs.frozen
class Weights:
    """The users with a weight other than 1, in order of their names; None, for jobs without a user, first."""

    users: tuple[tuple[str | None, int], ...]


@attrs.frozen
class ListWeights(Operation[Weights]):
    """Ask for the weights of users."""


@attrs.frozen
class CanDequeue(Operation[bool]):
    """Ask whether nothing executing conflicts with a claim on *path*."""

    path: Path
    mode: Mode = "exclusive"


@attrs.frozen
class Limits:
    """All limits, that of the namespace first, then in order of path."""

    limits: tuple[LimitState, ...]


@attrs.frozen
class ListLimits(Operation[Limits]):
    """Ask which limits there are, and what counts towards them now."""


@attrs.frozen
class Pending:
    """
    What is left at or below a path.

    Args:
        unfinished: how many jobs are unfinished there; below a path at most 1 000 are counted, once a claim.
        moving: some of them can move without a person: they run, or wait for a worker, a time or each other.
        reasons: up to 100 reasons of those that cannot.
    """

    unfinished: int
    moving: bool
    reasons: tuple[Reason, ...]


@attrs.frozen
class CountPending(Operation[Pending]):
    """Ask what is unfinished at or below *path* (None: everywhere), SCHEDULED jobs only if asked for."""

    path: Path | None = None
    include_scheduled: bool = False
