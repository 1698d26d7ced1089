"""
Table of legal state transitions. All others raise `InvalidTransitionError`.

The diagram in the documentation is drawn from it. The effects of a transition are in `table`.
"""

from __future__ import annotations

from queuehint.errors import InvalidTransitionError
from queuehint.values.record import JobState

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState

MOVES: dict[JobState | None, dict[JobState, str]] = {
    None: {
        SCHEDULED: "enqueue, waits for its time",
        DEFERRED: "enqueue, waits for jobs",
        QUEUED: "enqueue",
        CANCELED: "enqueue, a dependency has failed",
    },
    SCHEDULED: {
        SCHEDULED: "replaced by its key",
        DEFERRED: "due, waits for jobs",
        QUEUED: "due",
        FAILED: "a dependency that must finish has not",
        CANCELED: "cancel, expiry, a dependency has failed",
    },
    DEFERRED: {
        SCHEDULED: "commit, waits for its time",
        DEFERRED: "replaced by its key",
        QUEUED: "last edge",
        FINISHED: "last child, a signal is given",
        FAILED: "last child, a dependency that must finish has not",
        CANCELED: "cancel, expiry, a dependency has failed",
    },
    QUEUED: {
        SCHEDULED: "back-off longer than the hold, replaced by its key",
        QUEUED: "replaced by its key",
        STARTED: "claim",
        CANCELED: "cancel, expiry, waiter lost",
    },
    STARTED: {
        SCHEDULED: "retry or snooze that yields",
        DEFERRED: "waits for its children",
        QUEUED: "retry, snooze, reap, release",
        FINISHED: "settle",
        FAILED: "settle, last attempt, last loss",
        CANCELED: "discard, cancel",
    },
    FINISHED: {
        DEFERRED: "rerun, waits for jobs",
        QUEUED: "rerun",
    },
    FAILED: {
        DEFERRED: "rerun, waits for jobs",
        QUEUED: "redrive, rerun",
        CANCELED: "discard",
    },
    CANCELED: {
        DEFERRED: "rerun, redrive of what it was canceled for",
        QUEUED: "rerun, redrive of what it was canceled for",
    },
}


def check_move(job_id: str, state: JobState | None, target: JobState) -> None:
    """
    Refuse a move outside the table.

    Raises:
        InvalidTransitionError: naming both states.
    """
    if target not in MOVES[state]:
        raise InvalidTransitionError(job_id, state or "new", target)


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for state, targets in MOVES.items():
        lines += [f"    {state or '[*]'} --> {target}: {how}" for target, how in targets.items()]
    return "\n".join(lines)
