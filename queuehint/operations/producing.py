"""Operations of producers: submissions, numbers for ids, and shared values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import attrs

from queuehint.operations.base import JOBS_PER_SUBMISSION_MAX, SHARED_LIST_MAX, Operation
from queuehint.operations.operating import Marked
from queuehint.schema.checks import NAME_BYTES_MAX, sized
from queuehint.schema.compiled import maker
from queuehint.schema.kinds import (
    AnyCount,
    Asked,
    AtMost,
    DurationMs,
    JobId,
    MomentMs,
    NameText,
    Payload,
    SomeMs,
    Text,
    Token,
)
from queuehint.values.hint import KeyText, Path
from queuehint.values.outcome import RESULT_BYTES_MAX
from queuehint.values.policy import OnDependencyFailure
from queuehint.values.record import JobState
from queuehint.values.spec import DEPENDENCIES_MAX, PORTION_MAX, Dependency, JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BEFORE_LAST",
    "BeforeLast",
    "Closing",
    "Commit",
    "Committed",
    "Depend",
    "Draw",
    "Drawn",
    "Enqueue",
    "Enqueued",
    "EnqueuedJob",
    "Firing",
    "ListShared",
    "Peek",
    "Pull",
    "Pulled",
    "Push",
    "Pushed",
    "SharedKeys",
    "Withdraw",
    "new_enqueued_job",
]


@attrs.frozen(weakref_slot=False)
class EnqueuedJob:
    """One job of a submission. *created* is False for an existing job (same id, or a fresh job of its key)."""

    id: str
    number: int
    state: JobState
    created: bool
    presence_token: int | None = None


new_enqueued_job: Final = maker(EnqueuedJob)


@attrs.frozen
class Enqueued:
    """The jobs of a submission, in order."""

    jobs: tuple[EnqueuedJob, ...]
    more: bool


@attrs.frozen
class Firing:
    """
    Which schedule fires the jobs of a submission.

    Args:
        name: the schedule's.
        version: that of the schedule they were computed from; a second firing finds another one.
        last_ms: the due time of the last of the jobs.
        next_ms: when the schedule is due next, None if never again.
    """

    name: JobId
    version: AnyCount
    last_ms: MomentMs
    next_ms: MomentMs | None


BeforeLast = Literal["cancel", "run"]
BEFORE_LAST: Final[tuple[BeforeLast, ...]] = ("cancel", "run")


@attrs.frozen
class Closing:
    """
    The path that a submission closes behind its job, the last one there.

    From that step on no other job at or below the path is enqueued, takes a place or is redriven, until the path is
    reopened.

    Args:
        waiting: what is done with the unfinished jobs at or below the path. ``"cancel"``: they are canceled, as
            `CancelPath` does, and dead ones that hold a place there are discarded. ``"run"``: those that have a place
            go before the last job, the others are canceled when they would take theirs.
    """

    path: Path
    waiting: BeforeLast = "cancel"


@attrs.frozen
class Enqueue(Operation[Enqueued]):
    """
    Submit up to 1 000 jobs, all or nothing, in order.

    Together they have at most 16 000 gates (depth + 1 a claim), 4 000 edges and 4 MiB of arguments.

    Args:
        jobs: each depends on jobs that exist, or on others of the submission, in any order.
        staged: the parts of one large submission have this in common: their jobs are hidden until its
            `Commit`, and are gone after a `Withdraw`, or ten minutes after the last part, which may have no jobs. A
            part may depend on jobs of earlier parts. Of a job with more than 1 000 dependencies the first 1 000 are
            bound; `Depend` tells the others. A job that another submission in parts has hidden is taken from it, and
            that one is withdrawn; but a part waits for one that is older and under way (`STAGED_FRESH_MS`).
        is_further: earlier parts of *staged* were sent: where they have expired, this one begins no submission anew, of
            which only a part would take effect.
        parent: the id and token of the running job whose handler makes these.
        firing: the schedule that fires these, at most 100 of them, or none where a due time is passed over.
        flow: they are all jobs of this flow, or a part of them.
        flow_timeout_ms: what is unfinished of a new flow this long after now is canceled then (``flow_timeout``): also
            what was enqueued into it meanwhile, not what is redriven or enqueued later. None for never. If all its jobs
            are there already, its timeout stays. For a flow in parts its `Commit` has it.
        closing: the path that is closed with this job, the only one, as its last. It has an exclusive claim at the path
            and no key. It passes what is closed at or below the path, and no limit of unfinished jobs refuses it. Asked
            for again, it changes nothing.

    Raises:
        DuplicateJobError: an id is taken by a job of other content, or appears twice; a key with
            ``on_conflict="reject"`` has an unfinished job; the last job of a path exists and is not its last.
        DuplicateFlowError: the flow has other jobs already.
        PathClosedError: a claim is at or below a closed path.
        UnknownDependencyError: a dependency is not there, or its record has expired.
        CycleError: the edges close a cycle, by themselves or with the parent's.
        LeaseLostError: the parent's token is not that of its newest grant.
        ConcurrentSubmissionError: a job of a part is hidden in an older submission that is under way; it says when that
            one has been silent for too long.
        FlowNotFoundError: the submission in parts was committed or withdrawn, or lost a job to another enqueue; or it
            is a further part, and the earlier ones have expired.
        QueueFullError: more jobs would be unfinished than a limit allows; jobs that are there already are not new. If
            it says that there is `more` to do, `Tick` may make room.
        ScheduleChangedError: the schedule has another version: another worker has fired.
    """

    is_for_inbox: ClassVar[bool] = True
    jobs: Annotated[tuple[JobSpec, ...], AtMost(JOBS_PER_SUBMISSION_MAX)]
    staged: JobId | None = None
    parent: tuple[JobId, Token] | None = None
    firing: Firing | None = None
    flow: JobId | None = None
    flow_timeout_ms: SomeMs | None = None
    closing: Closing | None = None
    is_further: bool = False

    @property
    def named(self) -> Iterable[str]:
        """The ids of jobs of other submissions that these depend on; of parts before this one, too."""
        edges = [edge for spec in self.jobs for edge in spec.depends_on]
        own = {spec.id for spec in self.jobs} if edges else set()
        return [edge.id for edge in edges if edge.id not in own]


@attrs.frozen
class Depend(Operation[Marked]):
    """
    Add a portion of dependencies to a job of a submission in parts. The dependencies of its spec are portion 0.

    Nothing changes, and the reply says so, if the job is not one of the submission, or has this portion already.

    Args:
        portion: one more than that of the last portion.
        edges: up to 1 000 jobs that exist, or came before the job in its submission; of its own part only if none there
            depends on a later one.
        on_failure: the job's `on_dependency_failure`.

    Raises:
        FlowNotFoundError: the submission has no parts, was committed, lost a job to another enqueue, or its parts have
            expired.
        UnknownDependencyError: a dependency is not there, or its record has expired.
        CycleError: a dependency is the job itself, or came after it in its submission, or with it in a part that is
            not in order.
    """

    is_for_inbox: ClassVar[bool] = True
    staged: JobId
    job_id: JobId
    portion: Annotated[int, Asked(1, DEPENDENCIES_MAX // PORTION_MAX - 1)]
    edges: Annotated[tuple[Dependency, ...], AtMost(PORTION_MAX)]
    on_failure: OnDependencyFailure = "wait"


@attrs.frozen
class Committed:
    """The number of new jobs of a submission in parts."""

    jobs: int
    more: bool


@attrs.frozen
class Commit(Operation[Committed]):
    """
    Commit a staged submission: its jobs become visible at once. Their times count from now.

    A store that has lost a part refuses the commit, and hides what is left of the submission until it is withdrawn or
    expires.

    Args:
        jobs: how many jobs its parts have created.
        portions: how many portions of dependencies were added to these by `Depend`.
        flow: the parts are all jobs of this flow.
        flow_timeout_ms: as that of `Enqueue`.

    Raises:
        FlowNotFoundError: it has no parts, or others than said, was committed, lost a job to another enqueue, or its
            parts have expired.
        DuplicateFlowError: the flow has other jobs already.
    """

    is_for_inbox: ClassVar[bool] = True
    staged: JobId
    jobs: AnyCount
    portions: AnyCount = 0
    flow: JobId | None = None
    flow_timeout_ms: SomeMs | None = None


@attrs.frozen
class Withdraw(Operation[Marked]):
    """
    Withdraw a staged submission and drop its sent parts without a trace.

    The reply says whether there was one to withdraw: not one that was committed, or whose parts have expired.
    """

    staged: JobId


@attrs.frozen
class Drawn:
    """The first of the numbers drawn."""

    first: int


@attrs.frozen
class Draw(Operation[Drawn]):
    """Draw *count* numbers for ``ids="sequence"``. No number is drawn twice."""

    count: Annotated[int, Asked(0, JOBS_PER_SUBMISSION_MAX)]


@attrs.frozen
class Peek(Operation[Drawn]):
    """Query the next number of the sequence without drawing it."""

    is_question: ClassVar[bool] = True


@attrs.frozen
class Pushed:
    """*replaced* is False when nothing was stored under the key."""

    replaced: bool
    more: bool


@attrs.frozen
class Push(Operation[Pushed]):
    """Store a value, opaque to every backend, under a key of a namespace, for *ttl_ms*. 0 deletes the stored value."""

    namespace: NameText
    key: NameText
    value: Annotated[bytes, Payload(RESULT_BYTES_MAX)] = attrs.field(repr=sized)
    ttl_ms: DurationMs


@attrs.frozen
class Pulled:
    """A value stored by `Push`; None for a missing or expired one."""

    value: bytes | None = attrs.field(repr=sized)


@attrs.frozen
class Pull(Operation[Pulled]):
    """Read the value of a key of a namespace."""

    is_question: ClassVar[bool] = True
    namespace: NameText | Literal[""]
    key: NameText


@attrs.frozen
class SharedKeys:
    """Keys of shared values in order. *after* is the start of the next page, None at the end."""

    keys: tuple[str, ...]
    after: str | None


@attrs.frozen
class ListShared(Operation[SharedKeys]):
    """
    Read the keys of a namespace with *prefix*, behind *after*, in order of their UTF-8 bytes.

    A page ends after *limit* keys, or when 1 000 were looked at: values whose time is over are looked at too, and not
    listed. So it may be empty and not the last.
    """

    is_question: ClassVar[bool] = True
    namespace: NameText
    prefix: Annotated[str, Text(NAME_BYTES_MAX)] = ""
    after: KeyText | None = None
    limit: Annotated[int, Asked(1, SHARED_LIST_MAX)] = 100
