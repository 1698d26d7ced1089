"""
A job inside the core: one mutable slotted object. Replies are frozen copies.

Fields that most jobs never need (errors, log lines, progress, open edges) lie in `JobExtras`, made on first use.
"""

from __future__ import annotations

import hashlib
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.core.structures.trie import Walk
from queuehint.values.outcome import STEPS_BYTES_MAX, STEPS_MAX, JobError, Progress, Step
from queuehint.values.record import (
    ATTEMPTS_KEPT,
    ERRORS_MAX,
    LOG_LINES_MAX,
    OVER,
    Attempt,
    JobRecord,
    JobState,
    StepInfo,
    history_of,
)
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.core.structures.heap import Entry, LazyHeap


DIGEST_FROM = 256
"""Longer arguments are kept as a digest after their record is dropped; those of a deleted record always are."""
_DIGEST_MARK = b"\x01"

Needs = tuple[tuple[str, str], ...]
"""The dependencies of a job: ids, each with the policy of its edge."""

START_MARK = " "
"""The first character of the id of the start of a submission in parts; of no job's id."""
DEADLINE_MARK = START_MARK * 2
"""Prefix of the id of a flow's deadline; no start of a submission in parts has it."""


def digested(spec: JobSpec) -> JobSpec:
    """Return a spec with a digest in place of its arguments, enough to recognize a repetition."""
    return attrs.evolve(spec, arguments=_DIGEST_MARK + hashlib.sha256(spec.arguments).digest(), headers=())


class JobExtras:
    """The fields that most jobs never need."""

    __slots__ = (
        "asked",
        "blocked",
        "came",
        "canceled_by",
        "child_failed",
        "errors",
        "holds",
        "is_parent",
        "logs",
        "logs_truncated",
        "loop_blocked_ms",
        "more_needs",
        "needs",
        "past",
        "portions_added",
        "progress",
        "refused_by",
        "start",
        "step_bytes",
        "steps",
        "to_begin",
    )

    def __init__(self) -> None:
        self.errors: deque[JobError] = deque(maxlen=ERRORS_MAX)
        self.past: deque[Attempt] = deque(maxlen=ATTEMPTS_KEPT)
        """Its attempts that have ended, without their errors; none of a job that has finished at its first."""
        self.logs: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self.logs_truncated = False
        self.progress: Progress | None = None
        self.refused_by: tuple[str, ...] = ()
        """The releases that gave it back as unknown to them, the newest last; at most `RELEASES_KEPT`."""
        self.blocked: dict[str, str] = {}
        """The ids of the jobs it waits for, with the policies of these edges."""
        self.needs: Needs = ()
        """The dependencies of its spec, at most 1 000."""
        self.more_needs: tuple[Needs, ...] = ()
        """Its other dependencies, in portions of at most 1 000, each bound and released in a step of its own."""
        self.holds = False
        """Its dependencies are kept for it, since it may still run; of portions those that are bound."""
        self.canceled_by: str | None = None
        """The dependency that caused its cancellation."""
        self.is_parent = False
        """It has run, and is over when its children are."""
        self.to_begin = False
        """It is a suspected poison job that was granted, and its worker has not reported yet that its code starts."""
        self.loop_blocked_ms: int | None = None
        """When its worker's event loop became blocked; None if it is not."""
        self.child_failed: tuple[str, JobState] | None = None
        """The first failed child that makes the job FAILED, with the state of the child."""
        self.start: Job | None = None
        """The start of its submission in parts, until it is released."""
        self.portions_added = 0
        """Of the start of a submission in parts: how many portions of dependencies were added to its jobs."""
        self.came = 0
        """
        While staged: its number, or the newest of its part if one there depends on a later one; after its release: the
        number of the commit.
        """
        self.asked: JobSpec | None = None
        """The spec of its enqueue, if it was replaced since."""
        self.steps: dict[str, tuple[int, bytes]] | None = None
        """When the result of each of its steps was stored, and the result, by name, in this order; None for none."""
        self.step_bytes = 0
        """The bytes of the names and results of its steps."""

    @property
    def portions(self) -> tuple[Needs, ...]:
        """All dependencies of the job, in portions of at most 1 000."""
        return (self.needs, *self.more_needs)

    def all_needs(self) -> Needs:
        """Return all dependencies of the job."""
        return tuple(chain.from_iterable(self.portions)) if self.more_needs else self.needs


class Job:
    """
    One job, and its entries in the structures.

    ``seq`` is its place in the order, 0 while it has none. ``since`` is the number up to which a cancellation by path
    covers it: its own, or that of its last redrive. ``walk`` leads to its claims at the gates while it has its place,
    ``missing`` counts those not granted yet. ``ready``, ``timer`` and ``expiry`` are its entries in the ready queue
    and among the timers, None while it has none; ``parked`` is the heap of the paused path or limit it is parked in.
    ``cancel`` is why a cancellation was requested while it ran. ``first_ms`` is when it was first started, ``gone``
    says that its record has expired and only its id is kept. ``worker`` runs it while it is STARTED; of a job that
    has finished at its first attempt, of which no attempt is noted, it is the one that ran it. ``block`` is the block
    of the record index that lists it, None while it is hidden: only the index looks into it, and a change of the
    job's state sets its ``states`` to None. ``level`` is its rank: its priority, or a higher one inherited from a job
    behind it.
    """

    __slots__ = (
        "attempts",
        "block",
        "cancel",
        "cause",
        "due_ms",
        "ended_ms",
        "enqueued_ms",
        "expiry",
        "extras",
        "first_ms",
        "gone",
        "id",
        "level",
        "losses",
        "missing",
        "number",
        "parked",
        "queued_ms",
        "ready",
        "result",
        "seq",
        "since",
        "spec",
        "started_ms",
        "state",
        "timer",
        "token",
        "version",
        "walk",
        "worker",
    )

    def __init__(self, spec: JobSpec, number: int, state: JobState, now_ms: int) -> None:
        self.id = spec.id
        self.spec = spec
        self.number = self.since = number
        self.state = state
        self.level = spec.priority
        self.enqueued_ms = now_ms
        self.version = 1
        self.walk: Walk | None = None
        self.block: Any = None
        self.seq = self.missing = self.attempts = self.losses = 0
        self.gone = False
        self.ready: Entry | None = None
        self.timer: Entry | None = None
        self.expiry: Entry | None = None
        self.parked: LazyHeap[Job] | None = None
        self.extras: JobExtras | None = None
        self.token: int | None = None
        self.worker: str | None = None
        self.cancel: str | None = None
        self.cause: str | None = None
        self.result: bytes | None = None
        self.due_ms: int | None = None
        self.queued_ms: int | None = None
        self.first_ms: int | None = None
        self.started_ms: int | None = None
        self.ended_ms: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job is FINISHED, FAILED or CANCELED."""
        return self.state in OVER

    @property
    def is_fresh(self) -> bool:
        """Whether the job is unfinished and never started, so that a further job of its key may replace it."""
        return self.first_ms is None and self.state not in OVER

    @property
    def stands_for_key(self) -> bool:
        """Whether the job, as holder of its key, answers for a further job of the key."""
        return self.first_ms is None or self.spec.policy.key_for_ms is not None

    @property
    def is_placed(self) -> bool:
        """Whether the job holds or waits for its gates."""
        return self.seq != 0

    @property
    def walks(self) -> list[Walk]:
        """The claims at the gates of a placed job."""
        walks = []
        walk = self.walk
        while walk is not None:
            walks.append(walk)
            walk = walk.next
        return walks

    @property
    def blocked(self) -> dict[str, str]:
        """The ids of the open dependencies, with the policies of these edges."""
        return self.extras.blocked if self.extras is not None else {}

    @property
    def open_dependencies(self) -> int:
        """The number of open dependencies, the commit of the job's submission excluded."""
        if self.is_over or self.extras is None or self.extras.start is not None:
            return 0
        return len(self.extras.blocked)

    @property
    def steps(self) -> dict[str, tuple[int, bytes]]:
        """The stored steps by name, each with its time and result, in the order in which they were stored."""
        return self.extras.steps or {} if self.extras is not None else {}

    @property
    def is_start(self) -> bool:
        """Whether this is no user's job but the start of a submission in parts, or the deadline of a flow."""
        return self.id[0] == START_MARK

    @property
    def is_hidden(self) -> bool:
        """Whether the job belongs to an uncommitted submission in parts, or is the start of one."""
        extras = self.extras
        if extras is not None and extras.start is not None:
            return extras.start.state is not JobState.FINISHED
        return self.id[0] == START_MARK

    @property
    def came(self) -> int:
        """The number since which the job is visible: its own, or that of the commit of its submission in parts."""
        extras = self.extras
        if extras is None:
            return self.number
        return extras.start.since if extras.start is not None else extras.came or self.number

    def need_extras(self) -> JobExtras:
        """Return the extras of the job, made on first use."""
        if self.extras is None:
            self.extras = JobExtras()
        return self.extras

    def shorten(self, *, above: int) -> None:
        """Replace arguments of more than *above* bytes by a digest."""
        if len(self.spec.arguments) > above:
            self.spec = digested(self.spec)
        if self.extras is not None and self.extras.asked is not None and len(self.extras.asked.arguments) > above:
            self.extras.asked = digested(self.extras.asked)

    def fields_differing(self, spec: JobSpec) -> list[str] | None:
        """Return the fields in which *spec* differs from the spec at enqueue, or None."""
        asked = self.extras.asked if self.extras is not None else None
        if spec in (self.spec, asked) or (asked is not None and not asked.differing_fields(spec)):
            return None
        if self.gone:
            brief = digested(spec)
            if brief in (self.spec, asked):
                return None
            if brief.arguments == self.spec.arguments:
                spec = brief
        return self.spec.differing_fields(spec) or None

    def note_attempt(self, outcome: str, now_ms: int) -> None:
        """Record the end of the attempt of a STARTED job."""
        assert self.started_ms is not None and self.worker is not None
        attempt = Attempt(started_ms=self.started_ms, ended_ms=now_ms, worker=self.worker, outcome=outcome)  # type: ignore[arg-type]
        self.need_extras().past.append(attempt)

    def log(self, lines: Iterable[str]) -> None:
        """Append log lines. Drop the oldest ones above the bound."""
        extras = self.need_extras()
        for line in lines:
            extras.logs_truncated = extras.logs_truncated or len(extras.logs) == LOG_LINES_MAX
            extras.logs.append(line)

    def keep_step(self, step: Step, now_ms: int) -> tuple[int, bytes | None] | None:
        """
        Keep the result of a step, unless its name has one.

        Returns:
            When it was stored, and the result that is kept if another was before; None if there is no room for it.
        """
        extras = self.need_extras()
        steps = extras.steps or {}
        if step.name in steps:
            return steps[step.name]
        size = extras.step_bytes + len(step.name.encode()) + len(step.result)
        if len(steps) >= STEPS_MAX or size > STEPS_BYTES_MAX:
            return None
        steps[step.name] = now_ms, step.result
        extras.steps, extras.step_bytes = steps, size
        return now_ms, None

    def drop_steps(self) -> None:
        """Drop the results of all steps."""
        extras = self.need_extras()
        extras.steps, extras.step_bytes = None, 0

    def record(self) -> JobRecord:
        """Return a frozen copy."""
        extras = self.extras or _NO_EXTRAS
        return JobRecord(
            id=self.id,
            number=self.number,
            seq=self.seq or None,
            version=self.version,
            state=self.state,
            spec=self.spec,
            attempts=self.attempts,
            losses=self.losses,
            token=self.token,
            worker=self.worker if self.state is JobState.STARTED else None,
            enqueued_ms=self.enqueued_ms,
            due_ms=self.due_ms,
            queued_ms=self.queued_ms,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
            result=self.result,
            errors=tuple(extras.errors),
            cause=self.cause if self.cause is not None else self.cancel,
            cancel_requested=self.cancel is not None and self.state not in OVER,
            progress=extras.progress,
            logs=tuple(extras.logs),
            logs_truncated=extras.logs_truncated,
            level=self.level,
            open_dependencies=self.open_dependencies,
            history=history_of(extras.past, extras.errors, self.state, self.started_ms, self.ended_ms, self.worker),
            steps=tuple([StepInfo(name, at_ms) for name, (at_ms, _) in (extras.steps or {}).items()]),
        )


_NO_EXTRAS = JobExtras()
