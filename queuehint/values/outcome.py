"""Values that workers receive and report: grants, progress, outcomes."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Final, Literal, get_args

import attrs

from queuehint.schema.checks import draft_of, sized
from queuehint.values.spec import JobSpec

RESULT_BYTES_MAX = 1 << 20
CHILDREN_MAX = 1000
MORE_CHILDREN = "for more, enqueue one job after all of them, with after=, and return that one as the child"
ERROR_TEXT_MAX = 4096

_dump: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

OnChildFailure = Literal["fail", "ignore"]
ON_CHILD_FAILURE: tuple[OnChildFailure, ...] = get_args(OnChildFailure)


@attrs.frozen(kw_only=True)
class JobError:
    """
    One failed attempt, as text: exceptions are never rebuilt from the store.

    Args:
        type: the exception's qualified name, or ``timeout``, ``worker_lost``, ``retry``, ``fail``.
        message: at most 4 096 characters.
        traceback: at most 4 096 characters, the innermost frames, without local values.
        attempt: which attempt it ended, counted from 1.
        at_ms: when the backend recorded it.
    """

    type: str
    message: str
    traceback: str | None = None
    attempt: int = 0
    at_ms: int = 0


class OutcomeKind(StrEnum):
    """How a worker says an attempt ended."""

    FINISHED = "finished"
    FAILED = "failed"
    """Counts as an attempt; tried again after *delay_ms* while attempts are left, unless *final*."""
    SNOOZED = "snoozed"
    """Wishes to be tried again after *delay_ms*; counts for nothing."""
    RELEASED = "released"
    """Given back by a stopping worker; ready at once at its old place, counts for nothing."""
    UNKNOWN_TASK = "unknown_task"
    """The release of this worker cannot run it; ready at once for other releases, counts for nothing."""
    LOST = "lost"
    """The handler raised SystemExit or KeyboardInterrupt: counts as a loss, as if the worker had died."""
    DISCARDED = "discarded"
    """The handler says the job has no point any more: CANCELED."""
    CHILDREN = "children"
    """The handler has ended and the job is over when its children are: DEFERRED until then."""


@attrs.frozen(kw_only=True, weakref_slot=False)
class Outcome:
    """
    A worker's report of one attempt.

    Args:
        job_id, token: which grant; another token than the newest grant's changes nothing.
        kind: how it ended.
        result: for FINISHED: JSON, at most 1 MiB, opaque to every backend.
        error: for FAILED and LOST: what happened; *attempt* and *at_ms* are filled in by the backend.
        delay_ms: for FAILED and SNOOZED: how long to wait before the next attempt.
        final: for FAILED: no further attempt.
        reason: for DISCARDED: why.
        children: for CHILDREN: up to 1 000 ids of jobs to wait for; *result* is then the job's own.
        on_child_failure: for CHILDREN: whether a child that is FAILED or CANCELED makes the job FAILED.
    """

    job_id: str
    token: int
    kind: OutcomeKind
    result: bytes | None = attrs.field(default=None, repr=sized)
    error: JobError | None = None
    delay_ms: int = 0
    final: bool = False
    reason: str | None = None
    children: tuple[str, ...] = ()
    on_child_failure: OnChildFailure = "fail"


_OUTCOME: Final = draft_of(Outcome)
_FINISHED: Final = OutcomeKind.FINISHED
_new: Final = object.__new__


def finished(job_id: str, token: int, result: bytes | None) -> Outcome:
    """Return the outcome of an attempt that went well, as its class does, in a third of the time."""
    draft = _new(_OUTCOME)
    draft.job_id = job_id
    draft.token = token
    draft.kind = _FINISHED
    draft.result = result
    draft.error = None
    draft.delay_ms = 0
    draft.final = False
    draft.reason = None
    draft.children = ()
    draft.on_child_failure = "fail"
    draft.__class__ = Outcome
    outcome: Outcome = draft
    return outcome


@attrs.frozen(weakref_slot=False)
class Grant:
    """
    The right to run one job until the lease ends.

    Args:
        spec: what to run.
        token: proves the grant; strictly greater than every earlier one. Pass it on to resources that can fence.
        attempt: counted attempts including this one, from 1.
        losses: workers lost so far.
        lease_until_ms: when the lease ends unless renewed, by the backend's clock.
    """

    spec: JobSpec
    token: int
    attempt: int
    losses: int
    lease_until_ms: int


_GRANT: Final = draft_of(Grant)


def new_grant(spec: JobSpec, token: int, attempt: int, losses: int, lease_until_ms: int) -> Grant:
    """Return a grant, as its class does, in half the time."""
    draft = _new(_GRANT)
    draft.spec = spec
    draft.token = token
    draft.attempt = attempt
    draft.losses = losses
    draft.lease_until_ms = lease_until_ms
    draft.__class__ = Grant
    grant: Grant = draft
    return grant


@attrs.frozen
class Progress:
    """How far a running job is: *done* of *total* (either may be None), and a note of at most 1 024 characters."""

    done: float | None = None
    total: float | None = None
    note: str | None = None

    def as_text(self) -> str:
        """Return it as a store keeps it: a JSON array."""
        return _dump([self.done, self.total, self.note])
