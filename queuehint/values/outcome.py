"""Values that workers receive and report: grants, progress, results of steps, outcomes."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Final, Literal, get_args

import attrs

from queuehint.schema.checks import sized
from queuehint.schema.compiled import maker
from queuehint.schema.kinds import (
    AnyCount,
    AnyNumber,
    AtMost,
    DurationMs,
    JobId,
    MomentMs,
    NameText,
    Payload,
    ShortText,
    Token,
)
from queuehint.values.spec import JobSpec

RESULT_BYTES_MAX = 1 << 20
CHILDREN_MAX = 1000
"""How many jobs one outcome waits for; a worker has others wait for more."""
CHILDREN_OF_JOB_MAX = 100_000
STEPS_MAX = 1000
"""How many steps of a job are stored."""
STEP_BYTES_MAX = 64 << 10
STEPS_BYTES_MAX = 16 << 20
"""How many bytes the names and results of a job's steps take together."""
MORE_CHILDREN = "for more, have each of several children make a part of them"

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

    type: ShortText
    message: ShortText
    traceback: ShortText | None = None
    attempt: AnyCount = 0
    at_ms: MomentMs = 0


class OutcomeKind(StrEnum):
    """The kind of an attempt's end, as reported by its worker."""

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
        again: for CHILDREN: run the job again when they are over, however they ended; the attempt counts for nothing.
    """

    job_id: JobId
    token: Token
    kind: OutcomeKind
    result: Annotated[bytes, Payload(RESULT_BYTES_MAX)] | None = attrs.field(default=None, repr=sized)
    error: JobError | None = None
    delay_ms: DurationMs = 0
    final: bool = False
    reason: ShortText | None = None
    children: Annotated[tuple[JobId, ...], AtMost(CHILDREN_MAX)] = ()
    on_child_failure: OnChildFailure = "fail"
    again: bool = False


new_outcome: Final = maker(Outcome)


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
        steps: how many results of its steps are stored.
    """

    spec: JobSpec
    token: int
    attempt: int
    losses: int
    lease_until_ms: int
    steps: int = 0


new_grant: Final = maker(Grant)


@attrs.frozen
class Progress:
    """The progress of a running job: *done* of *total* (either may be None), and a note of at most 1 024 characters."""

    done: AnyNumber | None = None
    total: AnyNumber | None = None
    note: ShortText | None = None

    def as_text(self) -> str:
        """Return the stored form: a JSON array."""
        return _dump([self.done, self.total, self.note])


@attrs.frozen
class Step:
    """
    The result of one step of a running job.

    Args:
        name: of the step, once a job.
        result: at most 64 KiB, opaque to every backend.
    """

    name: NameText
    result: Annotated[bytes, Payload(STEP_BYTES_MAX)] = attrs.field(repr=sized)
