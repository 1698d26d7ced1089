"""
Job records: the states of a job, and its public record.

Times are ints of ms since the epoch and end in ``_ms``; the public API turns them into datetimes.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, get_args

import attrs

from queuehint.schema.checks import EPOCH, counted, sized
from queuehint.values.hint import Path, queue_key
from queuehint.values.outcome import JobError, Progress
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG_LINES_MAX = 1000
LOG_LINE_BYTES_MAX = 4096
ERRORS_MAX = 20
ATTEMPTS_KEPT = 20
StepsChoice = Literal["keep", "drop"]
"""What a redrive does with the stored results of the steps of a job."""
STEPS_CHOICES: tuple[StepsChoice, ...] = get_args(StepsChoice)


class JobState(StrEnum):
    """The state of a job, under the names of the field's older systems."""

    SCHEDULED = "SCHEDULED"
    """Waits for a time; holds no place."""
    DEFERRED = "DEFERRED"
    """Waits for other jobs; holds no place."""
    QUEUED = "QUEUED"
    """Has its place in the order: waits for it, for a back-off, for a pause or for a worker."""
    STARTED = "STARTED"
    """A worker runs it under a lease."""
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    # Enum's own __hash__ is a Python function; states are dictionary keys on every move of every job.
    __hash__ = str.__hash__

    @property
    def is_over(self) -> bool:
        """True once the job is FINISHED, FAILED or CANCELED."""
        return self in OVER


OVER = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELED})


AttemptOutcome = Literal[
    "started", "finished", "failed", "retried", "snoozed", "released", "lost", "canceled", "deferred"
]
_OF_ERRORS = frozenset({"failed", "retried", "lost"})


@attrs.frozen(kw_only=True)
class Attempt:
    """
    One run of a job by a worker.

    Args:
        started_ms, ended_ms: from when to when; *ended_ms* is None while it runs.
        worker: which worker.
        outcome: as the kind of the event of its end: ``"finished"``, ``"failed"``, ``"retried"``, ``"snoozed"``,
            ``"released"``, ``"lost"``, ``"canceled"``, ``"deferred"`` if it waits for its children since; ``"started"``
            while it runs.
        error: its error, as `JobRecord.errors` has it, if it failed or was lost because of one.

    .. versionadded:: 1.0.0
    """

    started_ms: int
    ended_ms: int | None
    worker: str
    outcome: AttemptOutcome
    error: JobError | None = None


def history_of(
    past: Sequence[Attempt],
    errors: Sequence[JobError],
    state: JobState,
    started_ms: int | None,
    ended_ms: int | None,
    worker: str | None,
) -> tuple[Attempt, ...]:
    """
    Return the last attempts of a job with their errors: the recorded ones, and the one of its other fields.

    Of a job that finishes at its first attempt none is noted: its *worker* stays with it.
    """
    found, left = [], list(errors)
    for attempt in reversed(past):
        if attempt.outcome in _OF_ERRORS and left and left[-1].at_ms == attempt.ended_ms:
            attempt = attrs.evolve(attempt, error=left.pop())
        found.append(attempt)
        while left and left[-1].at_ms > attempt.started_ms:
            left.pop()
    found.reverse()
    if started_ms is not None and worker is not None:
        if state is JobState.STARTED:
            found.append(Attempt(started_ms=started_ms, ended_ms=None, worker=worker, outcome="started"))
        elif state is JobState.FINISHED and not past:
            found.append(Attempt(started_ms=started_ms, ended_ms=ended_ms, worker=worker, outcome="finished"))
    return tuple(found[-ATTEMPTS_KEPT:])


@attrs.frozen
class StepInfo:
    """
    A step of a job whose result is stored.

    Args:
        name: of the step.
        at_ms: when its result was stored.

    .. versionadded:: 1.0.0
    """

    name: str
    at_ms: int

    @property
    def at(self) -> datetime:
        """The time at which the result was stored."""
        return moment(self.at_ms)


@attrs.frozen(kw_only=True)
class JobRecord:
    """
    Record of a job: a snapshot, unaffected by later changes.

    Args:
        number: order of enqueue, for ever.
        seq: place in the order, taken when the job became QUEUED; None while it has none.
        version: grows with every change of the record.
        spec: what was asked.
        attempts, losses: counted so far, since the last redrive.
        errors: the last 20 failed attempts, oldest first, redrives included.
        cause: why it is FAILED or CANCELED, or what its cancellation was asked with.
        cancel_requested: a cancellation was asked for while it ran.
        logs: the last 1 000 lines; *logs_truncated* says whether some are missing.
        progress: as the handler has reported it last; of the last attempt, until the next begins.
        level: what it is ranked by among ready jobs: its priority, or a better one of a job that waits behind it.
        open_dependencies: how many of the jobs it depends on it still waits for, dead ones included; `Scheduler.why`
            names the first ten.
        problem: why this release cannot read its spec, which a later one has written or which is damaged; *spec* then
            has what can be read of it, the rest as by default. None for all others.
        history: its last 20 attempts, oldest first, redrives included, those too that count for nothing.
        steps: the steps whose results are stored, in the order in which they were.
    """

    id: str
    number: int
    seq: int | None
    version: int
    state: JobState
    spec: JobSpec
    attempts: int
    losses: int
    token: int | None
    worker: str | None
    enqueued_ms: int
    due_ms: int | None
    queued_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    result: bytes | None = attrs.field(repr=sized)
    errors: tuple[JobError, ...]
    cause: str | None
    cancel_requested: bool
    progress: Progress | None
    logs: tuple[str, ...] = attrs.field(repr=counted)
    logs_truncated: bool
    level: int
    open_dependencies: int = 0
    problem: str | None = None
    history: tuple[Attempt, ...] = ()
    steps: tuple[StepInfo, ...] = ()

    @property
    def path(self) -> Path | None:
        """The path of the job's only claim; None for no claim or several."""
        return self.spec.claims[0].path if len(self.spec.claims) == 1 else None

    @property
    def queue_keys(self) -> tuple[str, ...]:
        """The queue key of each claim."""
        return tuple(queue_key(claim.path) for claim in self.spec.claims)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the job, for queries."""
        return self.spec.tags

    @property
    def headers(self) -> dict[str, str]:
        """A copy of the headers of the job."""
        return dict(self.spec.headers)

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that fired the job, or None."""
        return self.spec.schedule

    @property
    def scheduled_at(self) -> datetime | None:
        """The due time of the firing, or None without a schedule."""
        return None if self.spec.scheduled_ms is None else moment(self.spec.scheduled_ms)

    @property
    def updated_ms(self) -> int:
        """See `updated_at`."""
        times = [self.enqueued_ms, self.queued_ms, self.started_ms, self.ended_ms]
        times += [attempt.ended_ms for attempt in self.history[-1:]]
        times += [error.at_ms for error in self.errors[-1:]]
        return max([time_ms for time_ms in times if time_ms is not None])

    @property
    def updated_at(self) -> datetime:
        """
        The time of the last transition: enqueue, place, start or end of the last attempt, end.

        A change without a time of its own is not counted: of owner, progress or log, or that a dead job was discarded.
        `version` grows with those of the record too.
        """
        return moment(self.updated_ms)

    @property
    def enqueued_at(self) -> datetime:
        """The time of the enqueue."""
        return moment(self.enqueued_ms)

    @property
    def due_at(self) -> datetime | None:
        """The due time of a job that waits for a time."""
        return None if self.due_ms is None else moment(self.due_ms)

    @property
    def started_at(self) -> datetime | None:
        """The start of the last attempt."""
        return None if self.started_ms is None else moment(self.started_ms)

    @property
    def ended_at(self) -> datetime | None:
        """The time of the job's end."""
        return None if self.ended_ms is None else moment(self.ended_ms)


def log_lines(text: str) -> list[str]:
    """Return the lines of a text as a log takes them, each cut at 4 096 bytes. An empty text is an empty line."""
    return [
        line[:LOG_LINE_BYTES_MAX].encode("utf-8", "backslashreplace")[:LOG_LINE_BYTES_MAX].decode("utf-8", "ignore")
        for line in text.splitlines() or [""]
    ]


def moment(time_ms: int) -> datetime:
    """Return ms since the epoch as a datetime in UTC."""
    return EPOCH + timedelta(milliseconds=time_ms)
