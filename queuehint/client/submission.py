"""Submission of checked job specs: draw ids, send parts in order, make room, and resend lost parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.backends.sending import send, until_whole, whole_commit
from queuehint.backends.steps import Steps, find_room, tick_until_done
from queuehint.client.arrangement import Arranged, arrange, portions
from queuehint.client.options import bound
from queuehint.errors import OutcomeUnknownError, QueueFullError, QueueHintError
from queuehint.operations import JOBS_PER_SUBMISSION_MAX, Depend, Draw, Enqueue, EnqueuedJob, Operation
from queuehint.values.ids import new_id

if TYPE_CHECKING:
    from queuehint.handlers.codec import Codec
    from queuehint.operations import Enqueued
    from queuehint.values.spec import JobSpec


def submit(
    specs: list[JobSpec],
    *,
    codec: Codec | None = None,
    parent: tuple[str, int] | None = None,
    whole: bool = False,
    flow_timeout_ms: int | None = None,
    small_parts: bool = False,
) -> Steps[list[EnqueuedJob]]:
    """
    Submit checked specs.

    Args:
        specs: an empty id is drawn from the backend.
        codec: reads the templates among arguments; JSON without one.
        parent: the id and token of the running job whose handler makes them.
        whole: they are a flow, and take effect all at once.
        flow_timeout_ms: what is unfinished of the flow after this long is canceled.
        small_parts: more than one submission goes in small ones, each prepared while the store does the one before.

    Returns:
        One job for each spec, in the order of the specs.

    Raises:
        InvalidJobError, DuplicateJobError, CycleError, TemplateError, PayloadError: see `arrange`; before anything
            is asked.
        OutcomeUnknownError: naming the ids of all jobs, in the order of the specs.
        FlowNotFoundError: parts were lost on the way, each time that they were sent; nothing was enqueued.
        ConcurrentSubmissionError: one with the same jobs is under way for ten minutes; nothing was enqueued.
        QueueHintError: what the store refuses them with; its `enqueued_ids` are those of the submissions before.
    """
    if not whole and (single := single_of(specs, parent)) is not None:
        return (yield from submit_single(single))
    arranged = arrange(specs, codec=codec, whole=whole, small_parts=small_parts)
    parts = arranged.parts
    if missing := sum([not spec.id for spec in specs]):
        firsts: list[int] = []
        for begin in range(0, missing, JOBS_PER_SUBMISSION_MAX):
            drawn = yield Draw(min(missing - begin, JOBS_PER_SUBMISSION_MAX))
            firsts.append(drawn.first)
        parts = arranged.numbered(firsts)
    flow = specs[0].flow if whole and specs else None

    def ids() -> list[str]:
        return arranged.as_given([spec.id for part in parts for spec in part])

    def attempt(staged: str | None = None) -> Steps[list[EnqueuedJob]]:
        operations = _in_order(arranged, parts, staged, parent, flow, flow_timeout_ms)
        return send(
            operations, staged=staged, flow=flow, flow_timeout_ms=flow_timeout_ms, ahead=small_parts, all_ids=ids
        )

    if _is_staged(arranged):
        return arranged.as_given((yield from until_whole(lambda: attempt(new_id()), ids)))
    return arranged.as_given((yield from attempt()))


def operations_at_once(
    specs: list[JobSpec], *, codec: Codec | None = None, whole: bool = False, flow_timeout_ms: int | None = None
) -> list[Operation[Any]]:
    """
    Return the operations by which checked specs with ids of their own are submitted all at once, however many they are.

    One `Enqueue`, or the parts of a submission and its `Commit`, which counts them all as new: what `submit` sends.

    Args:
        specs: one or more; otherwise as of `submit`.

    Raises:
        InvalidJobError, DuplicateJobError, CycleError, TemplateError, PayloadError: see `arrange`.
    """
    arranged = arrange(specs, codec=codec, whole=whole, at_once=True)
    flow = specs[0].flow if whole else None
    staged = new_id() if _is_staged(arranged) else None
    parts = _in_order(arranged, arranged.parts, staged, None, flow, flow_timeout_ms)
    if staged is None:
        return [*parts]
    return [*parts, whole_commit(parts, staged, flow, flow_timeout_ms)]


def _is_staged(arranged: Arranged) -> bool:
    """Return whether specs are sent in parts and hidden until their commit."""
    return arranged.is_wide or (arranged.is_one and len(arranged.parts) > 1)


def _in_order(
    arranged: Arranged,
    parts: list[tuple[JobSpec, ...]],
    staged: str | None,
    parent: tuple[str, int] | None,
    flow: str | None,
    flow_timeout_ms: int | None,
) -> list[Enqueue | Depend]:
    """Return the operations that submit these parts, without the commit."""
    operations: list[Enqueue | Depend] = []
    for part in parts:
        timeout_ms, is_further = (flow_timeout_ms, False) if staged is None else (None, bool(operations))
        operations.append(Enqueue(bound(part), staged, parent, None, flow, timeout_ms, is_further=is_further))
        if staged is not None and arranged.is_wide:
            operations += portions(part, staged)
    return operations


def single_of(specs: list[JobSpec], parent: tuple[str, int] | None) -> Enqueue | None:
    """Return the single operation that submits one checked spec as is. Return None if more operations are necessary."""
    if len(specs) != 1:
        return None
    spec = specs[0]
    if spec.depends_on or spec.templates or spec.name or spec.identity or not spec.id:
        return None
    return Enqueue((spec,), None, parent)


def submit_single(single: Enqueue, outcome: Enqueued | QueueHintError | None = None) -> Steps[list[EnqueuedJob]]:
    """
    Submit one job as is.

    Args:
        outcome: the reply to the operation, or its refusal, if a caller has carried it out without steps.

    Raises:
        OutcomeUnknownError: naming the id of the job.
        QueueHintError: what the store refuses it with.
    """
    try:
        try:
            if isinstance(outcome, QueueHintError):
                raise outcome
            enqueued = (yield single) if outcome is None else outcome
        except QueueFullError as error:
            enqueued = yield from find_room(single, error)
    except OutcomeUnknownError as error:
        raise OutcomeUnknownError(error.problem, job_ids=[single.jobs[0].id]) from error
    if enqueued.more:
        yield from tick_until_done(more=True, at_most=1)
    return [*enqueued.jobs]
