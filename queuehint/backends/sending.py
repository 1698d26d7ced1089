"""
Steps by which submissions are sent: one after the other, or the parts of one and their commit.

Two callers may submit the same jobs at once, and one caller may submit again while its first commit is still under way.
A hidden job belongs to one submission.

- A part waits while one of its jobs is hidden in an older submission that is under way. From any other submission it
  takes the job, and that submission is withdrawn. So none waits in a circle, and the oldest is never disturbed.
- A submission that was withdrawn is sent again from its first part. It waits for the other one, and finds its jobs.
- A commit names the number of its jobs: no store makes visible a submission of which a part was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from queuehint.backends.base import Interest
from queuehint.backends.steps import Abandoned, Ahead, Steps, Wait, each_ahead, tick_until_done, with_room, withdraw
from queuehint.errors import (
    BackendUnavailableError,
    ConcurrentSubmissionError,
    DuplicateFlowError,
    FlowNotFoundError,
    OutcomeUnknownError,
    QueueHintError,
    UnknownDependencyError,
)
from queuehint.operations import (
    BUDGET,
    EDGE_UNITS,
    EDGES_AT_ONCE,
    Commit,
    CountRecords,
    Depend,
    Enqueue,
    Enqueued,
    EnqueuedJob,
    Operation,
    Withdraw,
)
from queuehint.operations.bounds import PARTS_LOST
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queuehint.values.spec import JobSpec

T = TypeVar("T")

TRIES = 10
"""How often a submission in parts is sent whose parts are lost on the way."""
TURN_S = 600.0
"""How long a part waits for an older submission that is under way."""
TURN_PAUSE_S, TURN_PAUSE_MAX_S = 0.02, 1.0
"""How long it waits before it asks again: twice as long each time."""


def send(
    operations: Sequence[Enqueue | Depend],
    *,
    staged: str | None = None,
    flow: str | None = None,
    flow_timeout_ms: int | None = None,
    ahead: bool = False,
    all_ids: Callable[[], Sequence[str]],
) -> Steps[list[EnqueuedJob]]:
    """
    Send submissions one after the other, or the parts of one and their commit.

    Args:
        operations: in this order.
        staged: they are the parts of this submission, and take effect all at once.
        flow: they are all jobs of this flow.
        flow_timeout_ms: goes with the commit.
        ahead: each is prepared while the store does the one before.
        all_ids: returns what an unknown outcome names.

    Raises:
        OutcomeUnknownError: naming all ids.
        FlowNotFoundError: parts were lost on the way: they have expired, another enqueue took a job of them, or the
            store has lost them. What is left is withdrawn.
        QueueHintError: what the store refuses them with; its `enqueued_ids` are those of the submissions before.
    """
    jobs: list[EnqueuedJob] = []
    specs = [spec for each in operations if isinstance(each, Enqueue) for spec in each.jobs]
    more = has_begun = False
    portions = 0
    # Leftovers may come from any client: a submission does one step of them, all steps only for jobs it staged.
    steps = 1
    try:
        for step in each_ahead(operations) if ahead else operations:
            reply = yield from in_turn(step, staged=staged if has_begun else None)
            if isinstance(reply, Enqueued):
                jobs += reply.jobs
            else:
                portions += reply.changed
            more, has_begun = reply.more, True
        if staged is not None:
            created = sum([job.created for job in jobs])
            if flow is not None and not created:
                yield from _refuse_fewer(flow, len(specs))
            more = (yield Commit(staged, created, portions, flow, flow_timeout_ms)).more
            steps += sum(map(_units, specs)) // BUDGET
    except OutcomeUnknownError as error:
        # Some parts may be there and others not: all ids are to be asked for again.
        unknown = OutcomeUnknownError(error.problem, job_ids=all_ids())
        unknown.enqueued_ids = _taken(jobs, staged)
        raise unknown from error
    except QueueHintError as error:
        if staged is not None and has_begun and not isinstance(error, BackendUnavailableError):
            yield from withdraw(staged)
            if isinstance(error, FlowNotFoundError):
                error.flow, error.args = flow or error.flow, (PARTS_LOST,)
        error.enqueued_ids = _taken(jobs, staged)
        if error.enqueued_ids:
            error.args = (f"the first {len(jobs)} of {len(specs)} jobs were enqueued; of the others: {error}",)
        raise
    except Abandoned:
        # Whatever became of the last request: what is committed is not withdrawn by it.
        if staged is not None:
            yield Withdraw(staged)
        raise
    yield from tick_until_done(more=more, at_most=steps)
    return jobs


def whole_commit(
    parts: Sequence[Enqueue | Depend], staged: str, flow: str | None, flow_timeout_ms: int | None
) -> Commit:
    """Return the commit of a submission in parts of which all jobs are new."""
    jobs = sum([len(part.jobs) for part in parts if isinstance(part, Enqueue)])
    portions = sum([isinstance(part, Depend) for part in parts])
    return Commit(staged, jobs, portions, flow, flow_timeout_ms)


def until_whole(attempt: Callable[[], Steps[T]], own_ids: Callable[[], Sequence[str]]) -> Steps[T]:
    """
    Send a submission in parts again from its first part while parts of it are lost on the way, `TRIES` times in all.

    Args:
        attempt: sends all of it, under a name of its own.
        own_ids: returns the ids of its jobs: one that another of them cannot depend on was lost.
    """
    for left in reversed(range(TRIES)):
        try:
            answer: T = yield from attempt()
        except FlowNotFoundError:
            if not left:
                raise
        except UnknownDependencyError as error:
            if not left or error.dependency not in own_ids():
                raise
        else:
            return answer
    raise AssertionError("the last attempt answers or raises")


def in_turn(step: Operation[Any] | Ahead, *, staged: str | None = None) -> Steps[Any]:
    """
    Send a part, again after a wait while one of its jobs belongs to an older submission.

    Raises:
        QueueHintError: as `with_room`; `ConcurrentSubmissionError` if the other one is under way for `TURN_S`.
    """
    waited_s, pause_s = 0.0, TURN_PAUSE_S
    while True:
        try:
            return (yield from with_room(step, staged=staged))
        except ConcurrentSubmissionError as error:
            if waited_s >= TURN_S:
                raise
            until_s = pause_s if error.retry_after_s is None else max(error.retry_after_s, TURN_PAUSE_S)
            wait_s = min(pause_s, until_s)
            step = step.operation if isinstance(step, Ahead) else step
        yield Wait(Interest(), wait_s)
        waited_s += wait_s
        pause_s = min(2 * pause_s, TURN_PAUSE_MAX_S)


def _refuse_fewer(flow: str, count: int) -> Steps[None]:
    """Refuse a flow whose jobs all exist if it has others too, as one submission does."""
    if (yield CountRecords(RecordFilter(flow=flow))).total > count:
        raise DuplicateFlowError(flow)


def _taken(jobs: Sequence[EnqueuedJob], staged: str | None) -> tuple[str, ...]:
    """Return the ids of the jobs enqueued by the parts before a failure. A staged submission is atomic."""
    return () if staged is not None else tuple([job.id for job in jobs])


def _units(spec: JobSpec) -> int:
    """Return the amount of follow-up work to commit a staged job."""
    edges = len(spec.depends_on)
    return 1 + sum([len(claim.path) + 1 for claim in spec.claims]) + EDGE_UNITS * edges + edges // EDGES_AT_ONCE
