"""Values of a trace: the jobs of a queue, and its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, cast

import attrs

from queuehint.errors import QueueHintError, shown
from queuehint.values.event import Event, EventKind
from queuehint.values.hint import COUNTED, Claim, Mode, Path, parse_claims, parse_hint
from queuehint.values.policy import OnDead, OnDependencyFailure, OnRetry
from queuehint.values.record import JobRecord, JobState
from queuehint.values.spec import Dependency, JobSpec, check_dependencies

Kind = Literal[
    "enqueued",
    "scheduled",
    "deferred",
    "queued",
    "started",
    "progressed",
    "finished",
    "failed",
    "retried",
    "snoozed",
    "released",
    "lost",
    "canceled",
    "redriven",
    "pruned",
    "ended",
    "idle",
    "gap",
]
"""
The words of `EventKind`; ``"ended"``, for an end without an outcome; ``"idle"``, a worker that asked and got nothing;
``"gap"``, what happened before this is not known any more.
"""
KINDS: frozenset[str] = frozenset([*map(str, EventKind), "ended", "idle", "gap"])
PUT_BACK = frozenset({"retried", "snoozed", "released", "lost"})
"""Events that take a job from its worker, to be started again."""


WITHOUT_JOB = frozenset({"idle", "gap"})
"""Events of no job."""


class InvalidTraceError(QueueHintError, ValueError):
    """The input is not a trace."""


def without_permits(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return claims without that of a permit, which takes no place."""
    return tuple([claim for claim in claims if claim.mode != COUNTED])


def _claims(value: object) -> tuple[Claim, ...]:
    return without_permits(parse_claims(value))


def _placed(claims: tuple[Claim, ...] | None) -> tuple[Claim, ...] | None:
    return None if claims is None else without_permits(claims)


def _edges(value: object) -> tuple[Dependency, ...]:
    return check_dependencies(value)


@attrs.frozen(kw_only=True)
class TraceJob:
    """
    The facts about one job that the checker needs.

    Args:
        id: what the events call it.
        claims: where it belongs: `Claim` values, hints, or pairs of a hint and a mode; none is no place.
        depends_on: the jobs it waits for: `Dependency` values or ids.
        on_dependency_failure, on_retry, on_dead: as in `JobSpec.policy`.
        pool: which workers serve it.
        needs_slot: False for one that runs in no slot of a worker, such as the caller of `exclusive`.
        task, user, priority: only shown.

    Raises:
        InvalidHintError, InvalidJobError: the claims or the edges are none.

    >>> TraceJob(id="b", claims=[["doc1"]], depends_on=["a"]).depends_on[0].id
    'a'
    """

    id: str
    claims: tuple[Claim, ...] = attrs.field(default=(), converter=_claims)
    depends_on: tuple[Dependency, ...] = attrs.field(default=(), converter=_edges)
    on_dependency_failure: OnDependencyFailure = "wait"
    on_retry: OnRetry = "hold"
    on_dead: OnDead = "continue"
    pool: str = "default"
    needs_slot: bool = True
    task: str = ""
    user: str | None = None
    priority: int = 3

    @property
    def path(self) -> Path | None:
        """The path of the job's only claim, None if it has none or several."""
        return self.claims[0].path if len(self.claims) == 1 else None

    @classmethod
    def of(
        cls,
        job: str | JobSpec | JobRecord,
        hint: Iterable[str] | None = None,
        *,
        mode: Mode = "exclusive",
        after: Iterable[str | Dependency] = (),
        **fields: Any,
    ) -> TraceJob:
        """
        Return a job with one claim, or the job of a `JobSpec` or a `JobRecord`.

        Args:
            job: its id; with a spec or a record nothing else is given.
            hint: its place; None for no place, ``[]`` for the root.
            after: the jobs it waits for.
            fields: further fields of `TraceJob`.

        >>> TraceJob.of("b", ["doc1", "s1"], after=["a"]).claims
        (Claim(path=('doc1', 's1'), mode='exclusive'),)
        """
        if isinstance(job, (JobSpec, JobRecord)):
            return cls._of_spec(job if isinstance(job, JobSpec) else job.spec)
        listed = tuple(hint) if isinstance(hint, Iterable) and not isinstance(hint, str) else hint
        path = parse_hint(listed, parameter="hint")
        claims = () if path is None else ((path, mode),)
        return cls(id=job, claims=cast("Any", claims), depends_on=cast("Any", list(after)), **fields)

    @classmethod
    def _of_spec(cls, spec: JobSpec) -> TraceJob:
        policy = spec.policy
        return cls(
            id=spec.id,
            claims=spec.claims,
            depends_on=spec.depends_on,
            on_dependency_failure=policy.on_dependency_failure,
            on_retry=policy.on_retry,
            on_dead=policy.on_dead,
            pool=spec.pool,
            needs_slot=spec.presence_ms is None,
            task=spec.task,
            user=spec.user,
            priority=spec.priority,
        )


def _kind(value: object) -> Kind:
    if not isinstance(value, str) or value not in KINDS:
        raise InvalidTraceError(f"{shown(value)} is not a kind of event; there are {', '.join(sorted(KINDS))}")
    return cast("Kind", str.__str__(value))


@attrs.frozen(kw_only=True)
class TraceEvent:
    """
    An event of a job of any queue. An `Event` of a store serves as well.

    Args:
        kind: a word of `EventKind`, or ``"ended"`` if the outcome is unknown, or ``"idle"``: a worker with a free slot
            asked for a job and got none, or ``"gap"``: events are missing here, and all states have to be found anew.
        job: its id; empty for ``"idle"`` and ``"gap"``.
        at_ms: when, of any clock; events of the same time happened in the order of their list.
        worker: the one that ran it.
        token: of the grant it was started or settled with.
        free_slots: how many slots of *worker* (of all, if none is given) were free right after this, if known.
        pool: which jobs may run in these; None for all.
        state: the job's state since then, one of `JobState`, where the kind leaves it open: a job that is put back as
            QUEUED keeps its place, as SCHEDULED it has none.
        old: its state before.
        claims: where it belongs since then, if that has changed; on the first event of a job it may stand for its
            description.
        cause: why.

    Raises:
        InvalidTraceError: there is no such kind of event.
    """

    kind: Kind = attrs.field(converter=_kind)
    job: str = ""
    at_ms: float = 0
    worker: str | None = None
    token: int | None = None
    free_slots: int | None = None
    pool: str | None = None
    state: str | None = None
    old: str | None = None
    claims: tuple[Claim, ...] | None = attrs.field(default=None, converter=_placed)
    cause: str | None = None

    @classmethod
    def of(cls, event: Event) -> TraceEvent:
        """Return an event of a store as one of a trace."""
        return cls(
            kind=cast("Kind", event.kind),
            job=event.id,
            at_ms=event.at_ms,
            state=_word(event.new),
            old=_word(event.old),
            claims=event.claims,
            cause=event.cause,
        )


def _word(state: JobState | None) -> str | None:
    return None if state is None else state.value


# --- what users pass -------------------------------------------------------------------------------------------------


def listed(value: object, parameter: str) -> Iterable[object]:
    """
    Return a user's argument as a list.

    Raises:
        InvalidTraceError: it is a text, a mapping, or nothing to go through.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        part = "events" if parameter == "events" else "jobs"
        instead = f"; pass its .{part}" if not isinstance(value, Mapping) and hasattr(value, part) else ""
        raise InvalidTraceError(f"{parameter} must be a list, got {type(value).__name__}: {shown(value)}{instead}")
    return value


def read_jobs(jobs: object) -> Iterator[TraceJob]:
    """
    Yield jobs as a trace has them.

    Raises:
        InvalidTraceError: one is neither a `TraceJob` nor a `JobSpec` nor a `JobRecord`.
    """
    for number, job in enumerate(listed(jobs, "jobs")):
        if isinstance(job, (JobSpec, JobRecord)):
            yield TraceJob.of(job)
        elif isinstance(job, TraceJob):
            yield job
        else:
            raise InvalidTraceError(
                f"jobs[{number}] must be a TraceJob, as TraceJob.of makes one, a JobSpec or a JobRecord, got "
                f"{type(job).__name__}: {shown(job)}"
            )


def read_events(events: object) -> Iterator[TraceEvent]:
    """
    Yield events as a trace has them.

    Raises:
        InvalidTraceError: one is neither a `TraceEvent` nor an `Event`.
    """
    for number, event in enumerate(listed(events, "events")):
        if isinstance(event, Event):
            yield TraceEvent.of(event)
        elif isinstance(event, TraceEvent):
            yield event
        else:
            raise InvalidTraceError(
                f"events[{number}] must be a TraceEvent or an Event, got {type(event).__name__}: {shown(event)}"
            )
