"""Refusals of scripts as errors. No I/O."""

from __future__ import annotations

from typing import Any, Final

from queuehint.errors import (
    BackendError,
    BackendFullError,
    ConcurrentSubmissionError,
    CorruptStateError,
    CycleError,
    DuplicateFlowError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    LeaseLostError,
    PathClosedError,
    QueueFullError,
    ScheduleChangedError,
    ScheduleNotFoundError,
    UnknownDependencyError,
)
from queuehint.operations import ChangeSchedule, Commit, Depend, Enqueue, Operation
from queuehint.operations.bounds import OTHER_FLOW, OTHER_SPEC, WEIGHTS_FULL, cost_refusal
from queuehint.values.hint import key_of
from queuehint.values.limit import TOO_MANY_LIMITS
from queuehint.values.report import TOO_MANY_PAUSES
from queuehint.values.schedule import TOO_MANY_SCHEDULES

SCHEMA: Final = 14
"""SCHEMA_VERSION of ``lua/lib/request/state.lua``."""
_RECEIPT_UNREAD: Final = ("BAD_ARGUMENT", "BAD_SCHEMA", "CORRUPT", "STALE_REQUEST")
"""Refusals of scripts that may come before the receipt of the request was read, or without one that could tell."""
_OF_TASK: Final = -2
_OF_POOL: Final = -3
"""Named by QUEUE_FULL and COST in place of a claim where the limit is of the job's task or pool."""


def is_settled(operation: Operation[Any], message: str) -> bool:
    """Return whether a script refused after reading the receipt, so that no attempt of this request was carried out."""
    return refusal(operation, message) is not None and not message.startswith(_RECEIPT_UNREAD)


def refusal(operation: Operation[Any], message: str) -> Exception | None:
    """
    Return the error of a script's refusal, None for a foreign error.

    Args:
        message: its first word picks the class; what follows names items of the operation by their positions.
    """
    words = message.split()
    code = words[0] if words else ""
    if code == "DUPLICATE_JOB" and isinstance(operation, Enqueue):
        return DuplicateJobError(operation.jobs[int(words[1])].id, fields=("content",))
    if code == "NOT_LAST" and isinstance(operation, Enqueue) and operation.closing is not None:
        return DuplicateJobError(operation.jobs[int(words[1])].id, not_last_at=key_of(operation.closing.path))
    if code == "KEY_TAKEN" and isinstance(operation, Enqueue):
        return DuplicateJobError(words[2], key=operation.jobs[int(words[1])].key)
    if code == "UNKNOWN_DEPENDENCY" and isinstance(operation, Enqueue):
        return UnknownDependencyError(operation.jobs[int(words[1])].id, words[2])
    if code == "UNKNOWN_DEPENDENCY" and isinstance(operation, Depend):
        return UnknownDependencyError(operation.job_id, words[2])
    if code == "CYCLE" and isinstance(operation, Depend):
        return CycleError([operation.job_id, words[2]])
    if code == "CYCLE" and isinstance(operation, Enqueue) and operation.parent is not None:
        return CycleError([operation.parent[0], operation.jobs[int(words[1])].id])
    if code == "LEASE_LOST" and isinstance(operation, Enqueue) and operation.parent is not None:
        return LeaseLostError(*operation.parent)
    if code == "FLOW_GONE" and isinstance(operation, (Commit, Depend, Enqueue)) and operation.staged is not None:
        return FlowNotFoundError(operation.staged)
    if code == "UNDER_WAY" and isinstance(operation, Enqueue):
        return ConcurrentSubmissionError(operation.jobs[int(words[1])].id, int(words[2]) / 1000)
    if code == "FLOW_EXISTS" and isinstance(operation, (Commit, Enqueue)) and operation.flow is not None:
        return DuplicateFlowError(operation.flow)
    if code == "OTHER_SPEC":
        return InvalidJobError(OTHER_SPEC)
    if code == "OTHER_FLOW":
        return InvalidJobError(OTHER_FLOW)
    if code == "PATH_CLOSED" and isinstance(operation, Enqueue):
        claim = operation.jobs[int(words[1])].claims[int(words[2])]
        return PathClosedError(key_of(claim.path[: int(words[3])]))
    if code == "COST" and isinstance(operation, Enqueue):
        index, claim_at, depth, most = map(int, words[1:])
        spec = operation.jobs[index]
        if claim_at >= 0:
            return InvalidJobError(cost_refusal(spec, most, "path", spec.claims[claim_at].path[:depth]))
        return InvalidJobError(cost_refusal(spec, most, "task" if claim_at == _OF_TASK else "pool"))
    if code == "QUEUE_FULL" and isinstance(operation, Enqueue):
        index, claim_at, depth, pending, most, retry_ms, more = map(int, words[1:])
        spec = operation.jobs[index]
        return QueueFullError(
            key_of(spec.claims[claim_at].path[:depth]) if claim_at >= 0 else None,
            pending,
            most,
            None if retry_ms < 0 else retry_ms / 1000,
            task=spec.task if claim_at == _OF_TASK else None,
            pool=spec.pool if claim_at == _OF_POOL else None,
            more=bool(more),
        )
    if code == "PAUSES_FULL":
        return InvalidJobError(TOO_MANY_PAUSES)
    if code == "LIMITS_FULL":
        return InvalidJobError(TOO_MANY_LIMITS)
    if code == "SCHEDULE_CHANGED" and isinstance(operation, Enqueue) and operation.firing is not None:
        return ScheduleChangedError(operation.firing.name)
    if code == "NO_SCHEDULE" and isinstance(operation, ChangeSchedule):
        return ScheduleNotFoundError(operation.name)
    if code == "SCHEDULES_FULL":
        return InvalidJobError(TOO_MANY_SCHEDULES)
    if code == "WEIGHTS_FULL":
        return InvalidJobError(WEIGHTS_FULL)
    if code == "STORE_FULL":
        return BackendFullError("the store is at its maxmemory; nothing was changed")
    if code == "CORRUPT":
        return CorruptStateError(f"{message.removeprefix('CORRUPT ').split(' script: ')[0]}; run `queuehint doctor`")
    if code == "BAD_SCHEMA":
        return CorruptStateError(
            f"the namespace has schema {words[1]}, this version of queuehint knows schema {SCHEMA}"
        )
    if code == "BAD_ARGUMENT":
        return BackendError(
            "a request has arguments that its script does not take, and was refused: another client, or a bug"
        )
    if code == "STALE_REQUEST":
        return BackendError("a request came after a newer one of its session and was refused")
    return None
