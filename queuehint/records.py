"""
Values that leave a room: what is asked of a job, what is known of it, what a worker gets and reports.

All are frozen. Times are ints of ms since the epoch and end in ``_ms``; the door turns them into datetimes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Literal, get_args

import attrs

from queuehint.checks import (
    ATTEMPTS_MAX,
    RETENTION_MAX_MS,
    TEN_YEARS_MS,
    check_choice,
    check_duration,
    check_id,
    check_int,
    check_name,
    check_number,
    check_optional_duration,
)
from queuehint.errors import InvalidJobError, InvalidJobTypeError, PayloadError, shown
from queuehint.hint import Claim, Path, parse_claims, queue_key

PAYLOAD_BYTES_MAX = 1 << 20
RESULT_BYTES_MAX = 1 << 20
LOG_LINES_MAX = 1000
LOG_LINE_BYTES_MAX = 4096
ERRORS_MAX = 20
ERROR_TEXT_MAX = 4096

# The ends of the calendar: what lies outside cannot be shown as a datetime. A time before is as good as the first.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RUN_AT_MIN_MS = -(2**53)
RUN_AT_MAX_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)

OnRetry = Literal["hold", "yield"]
OnDead = Literal["continue", "hold", "cancel_behind"]
OnDependencyFailure = Literal["wait", "cancel", "run"]
OnConflict = Literal["return", "replace", "after", "reject"]
ON_RETRY: tuple[OnRetry, ...] = get_args(OnRetry)
ON_DEAD: tuple[OnDead, ...] = get_args(OnDead)
ON_DEPENDENCY_FAILURE: tuple[OnDependencyFailure, ...] = get_args(OnDependencyFailure)
ON_CONFLICT: tuple[OnConflict, ...] = get_args(OnConflict)


class JobState(StrEnum):
    """Where a job is in its life; the names of the field's older systems."""

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


class Priority(IntEnum):
    """
    Urgency among jobs that are ready; it never lets a job overtake one it conflicts with.

    Levels 5 to 1 get a head start of a minute each; CRITICAL goes before all levels, first in first out.
    """

    LOWEST = 1
    LOW = 2
    NORMAL = 3
    HIGH = 4
    URGENT = 5
    CRITICAL = 9


_CRITICAL = int(Priority.CRITICAL)


def check_priority(value: object, *, parameter: str = "priority") -> int:
    """Check a priority: 1 to 5 or `Priority.CRITICAL`."""
    if isinstance(value, Priority):
        return int(value)
    if type(value) is not int:
        raise InvalidJobTypeError(f"{parameter} must be int, got {type(value).__name__}: {shown(value)}")
    if not 1 <= value <= 5:
        raise InvalidJobError(f"{parameter} must be 1 to 5 or Priority.CRITICAL, got {shown(value)}")
    return value


@attrs.frozen
class Backoff:
    """
    How long a failed job waits before it is tried again: ``min(base * factor**(n - 1), cap)`` seconds.

    Args:
        base: seconds before the second attempt, > 0, at most 10 years; a timedelta is accepted, as for *cap*.
        factor: growth from one attempt to the next, 1–100.
        cap: the longest wait, in seconds, at least *base*.
        jitter: the share of the wait that is random, 0–1: the wait is between ``1 - jitter`` of it and all of it.

    Raises:
        InvalidJobError, InvalidJobTypeError: a value out of its range.

    Source: capped exponential back-off with jitter inside the cap ("Exponential Backoff And Jitter", M. Brooker, 2015).
    """

    base: float = attrs.field(default=1.0)
    factor: float = attrs.field(default=2.0)
    cap: float = attrs.field(default=30.0)
    jitter: float = attrs.field(default=0.1)
    base_ms: int = attrs.field(init=False, eq=False, repr=False)
    cap_ms: int = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        base_ms = check_duration(self.base, parameter="base", least_ms=1)
        cap_ms = check_duration(self.cap, parameter="cap", least_ms=1)
        if cap_ms < base_ms:
            raise InvalidJobError(f"cap must be at least base, got cap={shown(self.cap)} and base={shown(self.base)}")
        check_number(self.factor, parameter="factor", least=1, most=100)
        check_number(self.jitter, parameter="jitter", least=0, most=1)
        # Equal waits are equal values, however they were written.
        object.__setattr__(self, "base", base_ms / 1000)
        object.__setattr__(self, "cap", cap_ms / 1000)
        object.__setattr__(self, "factor", float(self.factor))
        object.__setattr__(self, "jitter", float(self.jitter))
        object.__setattr__(self, "base_ms", base_ms)
        object.__setattr__(self, "cap_ms", cap_ms)


_POLICY_CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("on_retry", ON_RETRY),
    ("on_dead", ON_DEAD),
    ("on_dependency_failure", ON_DEPENDENCY_FAILURE),
)


@attrs.frozen(kw_only=True)
class Policy:
    """
    What becomes of a job that does not simply finish; one value is shared by all jobs of a task.

    Raises:
        InvalidJobError, InvalidJobTypeError: a value of the wrong type or out of its range.

    Args:
        max_attempts: counted attempts before the job is FAILED, 1–1 000.
        max_losses: workers it may lose before it is FAILED ``worker_lost``, 1–1 000.
        backoff: the wait between attempts.
        timeout_ms: how long a handler may run; None is for ever.
        on_retry: ``"hold"`` keeps the place during a back-off, ``"yield"`` gives it up.
        on_dead: ``"continue"`` frees the path, ``"hold"`` keeps it until redrive, discard or expiry,
            ``"cancel_behind"`` cancels the QUEUED jobs behind it at or below its path.
        on_dependency_failure: what a failed dependency does, for the explicit edges.
        max_hold_ms: longest back-off that keeps the place.
        start_within_ms: CANCELED (``expired``) if not started for the first time this long after it was enqueued, or
            due if it has a time; None is never.
        retention_ms: how long the record is kept once the job is over; None is the scheduler's setting.
    """

    max_attempts: int = 5
    max_losses: int = 3
    backoff: Backoff = attrs.field(factory=Backoff)
    timeout_ms: int | None = None
    on_retry: OnRetry = "hold"
    on_dead: OnDead = "continue"
    on_dependency_failure: OnDependencyFailure = "wait"
    max_hold_ms: int = 300_000
    start_within_ms: int | None = None
    retention_ms: int | None = None

    def __attrs_post_init__(self) -> None:
        check_int(self.max_attempts, parameter="max_attempts", least=1, most=ATTEMPTS_MAX)
        check_int(self.max_losses, parameter="max_losses", least=1, most=ATTEMPTS_MAX)
        if not isinstance(self.backoff, Backoff):
            raise InvalidJobTypeError(
                f"backoff must be a Backoff, got {type(self.backoff).__name__}: {shown(self.backoff)}"
            )
        for parameter, choices in _POLICY_CHOICES:
            word = check_choice(getattr(self, parameter), choices, parameter=parameter)
            object.__setattr__(self, parameter, word)
        check_int(self.max_hold_ms, parameter="max_hold_ms", least=0, most=TEN_YEARS_MS)
        for parameter, least_ms in (("timeout_ms", 1), ("start_within_ms", 1), ("retention_ms", 0)):
            if (value := getattr(self, parameter)) is not None:
                check_int(value, parameter=parameter, least=least_ms, most=TEN_YEARS_MS)

    @classmethod
    def checked(
        cls,
        *,
        max_attempts: object = 5,
        max_losses: object = 3,
        retry: object = None,
        timeout: object = None,
        on_retry: object = "hold",
        on_dead: object = "continue",
        on_dependency_failure: object = "wait",
        max_hold: object = 300,
        start_within: object = None,
        retention: object = None,
    ) -> Policy:
        """
        Make a policy from what a user passed: durations as timedelta or seconds, words as str.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
        """
        if retry is not None and not isinstance(retry, Backoff):
            raise InvalidJobTypeError(f"retry must be a Backoff, got {type(retry).__name__}: {shown(retry)}")
        return cls(
            max_attempts=check_int(max_attempts, parameter="max_attempts", least=1, most=ATTEMPTS_MAX),
            max_losses=check_int(max_losses, parameter="max_losses", least=1, most=ATTEMPTS_MAX),
            backoff=retry or DEFAULT_BACKOFF,
            timeout_ms=check_optional_duration(timeout, parameter="timeout", least_ms=1),
            on_retry=check_choice(on_retry, ON_RETRY, parameter="on_retry"),
            on_dead=check_choice(on_dead, ON_DEAD, parameter="on_dead"),
            on_dependency_failure=check_choice(
                on_dependency_failure, ON_DEPENDENCY_FAILURE, parameter="on_dependency_failure"
            ),
            max_hold_ms=check_duration(max_hold, parameter="max_hold"),
            start_within_ms=check_optional_duration(start_within, parameter="start_within", least_ms=1),
            retention_ms=check_optional_duration(retention, parameter="retention", most_ms=RETENTION_MAX_MS),
        )


DEFAULT_BACKOFF = Backoff()
DEFAULT_POLICY = Policy()


@attrs.frozen(kw_only=True, weakref_slot=False)
class JobSpec:
    """
    What is asked of a job: the layer below the decorator, for tools and other languages.

    Args:
        id: 1–128 UTF-8 bytes, no white space or control characters; made by the producer, so that a repeated
            submission is the same job.
        task: the name of the handler.
        claims: normalised claims, at most 64; ``()`` has no place and conflicts with nothing.
        arguments: JSON object of the handler's arguments by name, at most 1 MiB, opaque to every backend.
        priority: 1–5 or `Priority.CRITICAL`.
        pool: which workers serve it; never affects order.
        user, service: whose it is, for fairness and look-ups.
        key, on_conflict: makes bursts one job, see `Job.using`.
        delay_ms: due this long after it is enqueued; or
        run_at_ms: due at this time. At most one of the two.
        presence_ms: only for `exclusive`: the caller's presence lease while it waits.
        policy: what becomes of it when it does not simply finish.
    """

    id: str
    task: str
    claims: tuple[Claim, ...] = ()
    arguments: bytes = b"{}"
    priority: int = 3
    pool: str = "default"
    user: str | None = None
    service: str | None = None
    key: str | None = None
    on_conflict: OnConflict = "return"
    delay_ms: int | None = None
    run_at_ms: int | None = None
    presence_ms: int | None = None
    policy: Policy = DEFAULT_POLICY

    def check(self) -> JobSpec:
        """
        Return the spec with its claims normalised and its words plain, every field checked against its limits.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError: naming the field.
        """
        # What comes out of a check is another object only if what went in was a subclass or not normal.
        plain: dict[str, Any] = {"id": check_id(self.id), "task": check_name(self.task, parameter="task")}
        claims = parse_claims(self.claims)
        check_payload_size(self.arguments, parameter="arguments", bytes_max=PAYLOAD_BYTES_MAX)
        if type(self.priority) is not int or self.priority != _CRITICAL:
            plain["priority"] = check_priority(self.priority)
        plain["pool"] = check_name(self.pool, parameter="pool")
        for parameter in ("user", "service", "key"):
            if (value := getattr(self, parameter)) is not None:
                plain[parameter] = check_name(value, parameter=parameter)
        plain["on_conflict"] = check_choice(self.on_conflict, ON_CONFLICT, parameter="on_conflict")
        for parameter in ("delay_ms", "presence_ms"):
            if (value := getattr(self, parameter)) is not None:
                check_int(value, parameter=parameter, least=0, most=TEN_YEARS_MS)
        if self.run_at_ms is not None:
            if self.delay_ms is not None:
                raise InvalidJobTypeError("give delay_ms or run_at_ms, not both")
            check_int(self.run_at_ms, parameter="run_at_ms", least=RUN_AT_MIN_MS, most=RUN_AT_MAX_MS)
        if self.presence_ms is not None:
            for parameter in ("delay_ms", "run_at_ms", "key"):
                if getattr(self, parameter) is not None:
                    raise InvalidJobError(f"presence_ms: its caller waits for the place now, {parameter} must be None")
        if not isinstance(self.policy, Policy):
            raise InvalidJobTypeError(
                f"policy must be a Policy, got {type(self.policy).__name__}: {shown(self.policy)}"
            )
        changed = {name: value for name, value in plain.items() if type(getattr(self, name)) is not type(value)}
        if claims != self.claims or not _are_plain(self.claims):
            changed["claims"] = claims
        return attrs.evolve(self, **changed) if changed else self

    def differing_fields(self, other: JobSpec) -> list[str]:
        """Return the names of the fields in which two specs differ, never their values."""
        return [
            field.name for field in attrs.fields(JobSpec) if getattr(self, field.name) != getattr(other, field.name)
        ]


def _are_plain(claims: tuple[Claim, ...]) -> bool:
    """Say whether claims consist of nothing but plain tuples and strings, no subclasses."""
    return type(claims) is tuple and all(
        (type(claim.path), type(claim.mode)) == (tuple, str) and all(type(segment) is str for segment in claim.path)
        for claim in claims
    )


def check_payload_size(payload: object, *, parameter: str, bytes_max: int) -> None:
    """Check that a payload is bytes within a limit."""
    if type(payload) is not bytes:
        raise InvalidJobTypeError(f"{parameter} must be bytes, got {type(payload).__name__}: {shown(payload)}")
    if len(payload) > bytes_max:
        raise PayloadError(f"{parameter} take {len(payload)} bytes, limit {bytes_max}")


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
    """This worker has no such handler; given back with a growing pause, counts for nothing."""
    LOST = "lost"
    """The handler raised SystemExit or KeyboardInterrupt: counts as a loss, as if the worker had died."""
    DISCARDED = "discarded"
    """The handler says the job has no point any more: CANCELED."""


@attrs.frozen(kw_only=True)
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
    """

    job_id: str
    token: int
    kind: OutcomeKind
    result: bytes | None = None
    error: JobError | None = None
    delay_ms: int = 0
    final: bool = False
    reason: str | None = None


@attrs.frozen
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


@attrs.frozen
class Progress:
    """How far a running job is: *done* of *total* (either may be None), and a note of at most 1 024 characters."""

    done: float | None = None
    total: float | None = None
    note: str | None = None


@attrs.frozen(kw_only=True)
class JobRecord:
    """
    All that is known of a job; a copy, unaffected by what happens later.

    Args:
        number: order of enqueue, for ever.
        seq: place in the order, taken when the job became QUEUED; None while it has none.
        version: grows with every change of the record.
        spec: what was asked.
        attempts, losses: counted so far, since the last redrive.
        errors: the last 20 failed attempts, oldest first, redrives included.
        cause: why it is FAILED or CANCELED, or what its cancelation was asked with.
        cancel_requested: a cancelation was asked for while it ran.
        logs: the last 1 000 lines; *logs_truncated* says whether some are missing.
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
    result: bytes | None
    errors: tuple[JobError, ...]
    cause: str | None
    cancel_requested: bool
    progress: Progress | None
    logs: tuple[str, ...]
    logs_truncated: bool

    @property
    def path(self) -> Path | None:
        """The path of the job's only claim; None if it has none or several."""
        return self.spec.claims[0].path if len(self.spec.claims) == 1 else None

    @property
    def queue_keys(self) -> tuple[str, ...]:
        """The queue key of each claim."""
        return tuple(queue_key(claim.path) for claim in self.spec.claims)

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued."""
        return _when(self.enqueued_ms)

    @property
    def due_at(self) -> datetime | None:
        """When it is due, if it waits for a time."""
        return None if self.due_ms is None else _when(self.due_ms)

    @property
    def started_at(self) -> datetime | None:
        """When its last attempt began."""
        return None if self.started_ms is None else _when(self.started_ms)

    @property
    def ended_at(self) -> datetime | None:
        """When it was over."""
        return None if self.ended_ms is None else _when(self.ended_ms)


def _when(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)


class ReasonKind(StrEnum):
    """What a job waits for."""

    OVER = "over"
    RUNNING = "running"
    OVERDUE = "overdue"
    """Runs past its timeout, or on after a cancelation: its place is free when its code has really ended."""
    TIME = "time"
    DEPENDENCY = "dependency"
    PLACE = "place"
    """Jobs placed before it conflict with it."""
    DEAD_HOLD = "dead_hold"
    """A FAILED job before it holds its place until someone redrives or discards it, or its record expires."""
    BACKOFF = "backoff"
    PAUSED = "paused"
    UNKNOWN_TASK = "unknown_task"
    """The workers that took it do not know its task."""
    NO_WORKER = "no_worker"
    """No worker has asked for jobs of its pool lately."""
    WORKER = "worker"
    """Ready: waits for a free slot of a worker."""
    CALLER = "caller"
    """Ready: the caller of `exclusive` is about to take it."""


@attrs.frozen(kw_only=True)
class Reason:
    """
    Why a job is where it is: one reason, the first that must end before anything else can.

    Args:
        jobs: the ids of up to 10 jobs that stand in the way, in order of their places.
        path_key: the place where it waits, or the path that is paused.
        until_ms: when the wait ends by time alone.
        stuck: only a person or a new worker can end the wait.
    """

    job_id: str
    state: JobState
    kind: ReasonKind
    jobs: tuple[str, ...] = ()
    path_key: str | None = None
    until_ms: int | None = None
    stuck: bool = False
    detail: str | None = None

    def __str__(self) -> str:
        behind = f" of {', '.join(self.jobs)}" if self.jobs else ""
        at = f" at {self.path_key}" if self.path_key is not None else ""
        until = f" until {_when(self.until_ms).isoformat(timespec='milliseconds')}" if self.until_ms is not None else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.job_id} is {self.state}: {_SENTENCES[self.kind]}{behind}{at}{until}{detail}"


_SENTENCES = {
    ReasonKind.OVER: "over",
    ReasonKind.RUNNING: "running",
    ReasonKind.OVERDUE: "told to stop, its code still runs",
    ReasonKind.TIME: "waits for its time",
    ReasonKind.DEPENDENCY: "waits for the end",
    ReasonKind.PLACE: "waits for the place",
    ReasonKind.DEAD_HOLD: "waits behind the dead hold",
    ReasonKind.BACKOFF: "waits for its next attempt",
    ReasonKind.PAUSED: "its path is paused",
    ReasonKind.UNKNOWN_TASK: "no worker that took it knows its task",
    ReasonKind.NO_WORKER: "ready, but no worker serves its pool",
    ReasonKind.WORKER: "ready, waits for a free slot",
    ReasonKind.CALLER: "ready, waits for its caller",
}


@attrs.frozen(kw_only=True)
class TreeNode:
    """
    Live counts at one path.

    Args:
        path_key: the place.
        started: STARTED jobs with a claim here; *started_below* with one at or below.
        waiting: claims in line here.
        granted: claims granted here (running, ready, in back-off or on dead hold).
        passing: claims further down that have passed here.
        paused, closed: an operator said so for this very path.
        children: those with anything live, sorted by key, as deep as asked.
    """

    path_key: str
    started: int
    started_below: int
    waiting: int
    granted: int
    passing: int
    paused: bool
    closed: bool
    children: tuple[TreeNode, ...] = ()


@attrs.frozen(kw_only=True)
class Stats:
    """
    Counts over the whole namespace.

    Args:
        states: jobs by state; they always add up to the jobs whose records are kept.
        ready: jobs a worker may start now, by pool.
        stuck: waits that only a person or a new worker can end, by `ReasonKind` value.
        enqueued, started, settled, lost, pruned: totals since the backend began.
        leftovers: pieces of work begun and not ended by the last operation.
        nodes: nodes of the trie, the root not counted.
    """

    states: dict[JobState, int]
    ready: dict[str, int]
    stuck: dict[str, int]
    enqueued: int
    started: int
    settled: int
    lost: int
    pruned: int
    leftovers: int
    nodes: int

    @property
    def unfinished(self) -> int:
        """Jobs that are not over."""
        return sum(count for state, count in self.states.items() if state not in OVER)
