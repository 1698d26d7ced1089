"""
Traces from records: when a job took its place, ran last and ended.

For a check uncertain facts are left out: the place of a canceled job, of one that waited for its children after its
handler had ended, and of a dead job that was redriven, and attempts before the last. Unfinished jobs are left out,
because records are not all read at the same moment. A drawing has all attempts that a record keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

import attrs

from queuehint.testing.trace.values import Kind, TraceEvent, TraceJob
from queuehint.values.record import Attempt, JobRecord, JobState
from queuehint.values.spec import Dependency, When

RESOLUTION_MS = 1.0
"""Times of records are ms: what happened in the same one has no order."""
_OVER = {"FINISHED": "finished", "FAILED": "failed"}
_ENDED, _QUEUED = -2, -1


@attrs.frozen(kw_only=True)
class Past:
    """Events of one job, derived from its record."""

    job: TraceJob
    state: str
    parent: str | None = None
    queued_ms: float | None = None
    started_ms: float | None = None
    ended_ms: float | None = None
    failed_ms: tuple[float, ...] = ()
    """When attempts have failed."""
    worker: str | None = None
    token: int | None = None
    attempts: tuple[Attempt, ...] = ()
    """The last attempts, for drawings."""

    @classmethod
    def of(cls, record: JobRecord) -> Past:
        """Return the past of a job from its record."""
        return cls(
            job=TraceJob.of(record),
            state=record.state.value,
            parent=record.spec.parent,
            queued_ms=record.queued_ms,
            started_ms=record.started_ms,
            ended_ms=record.ended_ms,
            failed_ms=tuple(error.at_ms for error in record.errors),
            worker=record.history[-1].worker if record.history else None,
            token=record.token,
            attempts=record.history,
        )


def edge_of(value: dict[str, Any]) -> Dependency:
    """Return an edge that was written as an object."""
    when = cast("When", value.get("when", "success"))
    return Dependency(cast("str", value.get("id")), when, data=bool(value.get("data", False)))


def events_of(pasts: Iterable[Past], *, unfinished: bool = False) -> tuple[list[TraceEvent], list[str]]:
    """
    Return the events of jobs in order of time, and the unknown ones, one sentence each.

    Args:
        unfinished: tell also of jobs that are not over, of canceled ones and of all attempts; what was read one after
            the other does not fit together then, so it is for drawings.
    """
    found = list(pasts)
    parents = {past.parent for past in found if past.parent is not None}
    events: list[tuple[tuple[float, float], TraceEvent]] = []
    left_out: Counter[str] = Counter()
    for past in found:
        if unfinished and past.attempts:
            events += _attempts(past)
        elif past.state == JobState.CANCELED:
            left_out["canceled, of which the record does not tell where they were"] += 1
        elif past.job.id in parents and not unfinished:
            left_out["with children, of which the record does not tell when their handlers ended"] += 1
        elif past.state in _OVER:
            events += _events(past)
        elif not unfinished:
            left_out["not over yet"] += 1
        elif past.queued_ms is not None:
            events += _events(past)
    events.sort(key=lambda pair: pair[0])
    return [event for _, event in events], [f"jobs left out, {text}: {count}" for text, count in left_out.items()]


def _events(past: Past) -> list[tuple[tuple[float, float], TraceEvent]]:
    """Return the events of one job, each with its rank among all: in one ms ends are first, and starts as granted."""
    job_id, token = past.job.id, past.token
    started_ms, ended_ms = past.started_ms, past.ended_ms
    events = _queued(past)
    # One that waits again has run in between, until an unknown time.
    if started_ms is None or past.state in {"SCHEDULED", "DEFERRED", "QUEUED"}:
        return events
    started = TraceEvent(kind="started", job=job_id, at_ms=started_ms, worker=past.worker, token=token)
    events.append(((started_ms, token or 0), started))
    if past.state in _OVER and ended_ms is not None:
        rank = _ENDED if ended_ms > started_ms else token or 0
        events.append(((ended_ms, rank), TraceEvent(kind=cast("Kind", _OVER[past.state]), job=job_id, at_ms=ended_ms)))
    return events


def _queued(past: Past) -> list[tuple[tuple[float, float], TraceEvent]]:
    """Return the time at which a job took its place, if known from the record."""
    queued_ms = past.queued_ms
    # One that was dead and brought back may have held an earlier place.
    failed_ms = min(past.failed_ms, default=None)
    is_redriven = past.job.on_dead != "continue" and None not in {queued_ms, failed_ms} and failed_ms < queued_ms  # type: ignore[operator]
    if queued_ms is None or is_redriven:
        return []
    return [((queued_ms, _QUEUED), TraceEvent(kind="queued", job=past.job.id, at_ms=queued_ms))]


def _attempts(past: Past) -> list[tuple[tuple[float, float], TraceEvent]]:
    """Return the events of all attempts that a record keeps, with their workers and errors, ranked as `_events`."""
    events = _queued(past)
    for number, attempt in enumerate(past.attempts, 1):
        is_last = number == len(past.attempts)
        token = past.token if is_last else None
        began_ms, ended_ms, error = attempt.started_ms, attempt.ended_ms, attempt.error
        started = TraceEvent(kind="started", job=past.job.id, at_ms=began_ms, worker=attempt.worker, token=token)
        events.append(((began_ms, token or 0), started))
        if ended_ms is not None:
            ended = TraceEvent(
                kind=cast("Kind", attempt.outcome),
                job=past.job.id,
                at_ms=ended_ms,
                cause=None if error is None else f"{error.type}: {error.message}",
            )
            events.append(((ended_ms, _ENDED if ended_ms > began_ms else token or 0), ended))
    return events
