"""
Traces as JSON lines: one object a line, a job or an event; also lines of the log of a worker and exported records.

A line with ``kind`` is an event, one with ``job`` and without ``kind`` describes that job, for what comes after it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import attrs

from queuehint.errors import QueueHintError, shown
from queuehint.testing.trace import logs, records
from queuehint.testing.trace.values import (
    WITHOUT_JOB,
    InvalidTraceError,
    TraceEvent,
    TraceJob,
    read_events,
    read_jobs,
)
from queuehint.values.event import Event
from queuehint.values.hint import COUNTED, Claim
from queuehint.values.record import JobRecord
from queuehint.values.spec import JobSpec

VERSION = 1
LINE_BYTES_MAX = 16 << 20
ID_MAX = 1024
"""Characters of ids of jobs and of names of workers, pools and users."""
TOKEN_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_CHOICES = {
    "on_dependency_failure": ("wait", "cancel", "run"),
    "on_retry": ("hold", "yield"),
    "on_dead": ("continue", "hold", "cancel_behind"),
}


@attrs.frozen(kw_only=True)
class Trace:
    """
    A trace as read.

    Args:
        skipped: how many lines of a log said nothing of jobs, and other things to know, one sentence each.
        resolution_ms: how exact its times are; check it with a tolerance that is not less.
    """

    events: tuple[TraceEvent, ...]
    jobs: tuple[TraceJob, ...]
    skipped: tuple[str, ...] = ()
    resolution_ms: float = 0


class LineError(Exception):
    """Problem of one line."""


def read_trace(lines: Iterable[str | bytes]) -> Trace:
    """
    Read a trace.

    Args:
        lines: such as an open file; empty ones are skipped.

    Raises:
        InvalidTraceError: a line is no event, no job, no line of a log and no record; it says which line.

    >>> trace = read_trace(['{"job": "a", "hint": ["doc1"]}', '{"kind": "started", "job": "a", "at_ms": 5}'])
    >>> trace.jobs[0].claims, trace.events[0].kind
    ((Claim(path=('doc1',), mode='exclusive'),), 'started')
    """
    reader = TraceReader()
    reader.read_lines(lines)
    return reader.trace()


class TraceReader:
    """Reads one trace from several files, one after the other."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self.jobs: dict[str, TraceJob] = {}
        self.moved: dict[str, tuple[Claim, ...]] = {}
        """Where jobs are that were described anew since their last event."""
        self.ever_moved: set[str] = set()
        self.seen: set[str] = set()
        self.log = logs.LogReader()
        self.records: list[records.Past] = []
        self.skipped: Counter[str] = Counter()
        self.at_ms: float = 0
        self.resolution_ms: float = 0

    def read_file(self, file: IO[bytes]) -> None:
        """Like `read_lines`. An overlong line is read no further than its error requires."""
        self.read_lines(iter(lambda: file.readline(LINE_BYTES_MAX + 1), b""))

    def read_lines(self, lines: Iterable[str | bytes]) -> None:
        """
        Take in lines.

        Raises:
            InvalidTraceError: one is not of a trace; it says which.
        """
        for number, line in enumerate(lines, 1):
            try:
                self.read(line)
            except (LineError, QueueHintError) as error:
                raise InvalidTraceError(f"line {number}: {error}") from None

    def read(self, line: str | bytes) -> None:
        """
        Take in a line.

        Raises:
            LineError, QueueHintError: it is none of a trace.
        """
        if len(line) > LINE_BYTES_MAX:
            raise LineError(f"longer than {LINE_BYTES_MAX >> 20} MiB")
        if not line.strip():
            return
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            told = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise LineError(f"no JSON: {told}") from None
        if not isinstance(found, dict):
            raise LineError(f"a JSON object is expected, not {type(found).__name__}")
        if "trace" in found:
            if found["trace"] != VERSION:
                raise LineError(f"a trace of version {shown(found['trace'])}; this is for version {VERSION}")
            self.resolution_ms = max(self.resolution_ms, _integer(found, "resolution_ms", least=0, most=1000) or 0)
        elif "kind" in found:
            self.take(self.event(found))
        elif "stamp" in found or ("job" in found and ("called" in found or isinstance(found.get("runs"), list))):
            raise LineError("this is a log of intervals: `queuehint check-intervals` or read_intervals reads it")
        elif "job" in found:
            self.describe(self.job(found))
        elif "logger" in found and "message" in found:
            self.logged(found)
        elif isinstance(found.get("spec"), dict) and "state" in found:
            past = _past(found)
            self.describe(past.job)
            self.records.append(past)
        else:
            raise LineError("no event (kind), no job (job), no line of a worker's log and no record")

    def trace(self) -> Trace:
        """Return the trace read."""
        events, notes = records.events_of(self.records)
        skipped = [f"{text}: {count}" for text, count in self.skipped.items()]
        skipped += self.log.missing() + notes
        return Trace(
            events=(*self.events, *events),
            jobs=tuple(self.jobs.values()),
            skipped=tuple(skipped),
            resolution_ms=max(self.resolution_ms, records.RESOLUTION_MS if events else 0),
        )

    def take(self, event: TraceEvent) -> None:
        """Add an event. A new description of its job takes effect now."""
        self.at_ms = event.at_ms
        claims = self.moved.pop(event.job, None)
        if claims is not None and event.claims is None:
            event = attrs.evolve(event, claims=claims)
        self.seen.add(event.job)
        self.events.append(event)

    def describe(self, job: TraceJob) -> None:
        """Add a job. A new description of a job with events takes effect at its next event."""
        known = self.jobs.get(job.id)
        if known is not None and job.id in self.seen:
            if known.claims != job.claims or job.id in self.ever_moved:
                self.ever_moved.add(job.id)
                self.moved[job.id] = job.claims
            job = attrs.evolve(job, claims=known.claims)
        self.jobs[job.id] = job

    def logged(self, found: dict[str, Any]) -> None:
        """Take in a line of a worker's log."""
        if not str(found.get("event", "")).startswith("job."):
            self.skipped["lines of a log that say nothing of jobs"] += 1
            return
        job_id = text_of(found, "job_id")
        if found.get("claims") is not None and job_id not in self.jobs:
            self.describe(self.job({"job": job_id, "claims": found["claims"], "task": found.get("task", "")}))
        for told in self.log.events_of(found):
            self.take(self.event({"job": job_id, "at": found.get("time"), **told}))

    # --- events and jobs -----------------------------------------------------------------------------------------

    def event(self, found: dict[str, Any]) -> TraceEvent:
        """Return the event of a line."""
        kind = found["kind"]
        claims = found.get("claims")
        return TraceEvent(
            kind=kind,
            job="" if isinstance(kind, str) and kind in WITHOUT_JOB else text_of(found, "job"),
            at_ms=self.time(found),
            worker=optional_text_of(found, "worker"),
            token=_integer(found, "token", least=-TOKEN_MAX, most=TOKEN_MAX),
            free_slots=_integer(found, "free_slots", least=0, most=1 << 31),
            pool=optional_text_of(found, "pool"),
            state=optional_text_of(found, "state"),
            old=optional_text_of(found, "old"),
            claims=None if claims is None else TraceJob(id="", claims=_claims(claims)).claims,
            cause=optional_text_of(found, "cause"),
        )

    def time(self, found: dict[str, Any]) -> float:
        """Return the time of an event, by default that of the previous one."""
        if found.get("at_ms") is not None:
            return _number_of(found, "at_ms")
        if found.get("at") is None:
            return self.at_ms
        return _time(found, "at")

    def job(self, found: dict[str, Any]) -> TraceJob:
        """Return the job that a line describes."""
        fields: dict[str, Any] = {}
        for name, choices in _CHOICES.items():
            if found.get(name) is not None:
                if found[name] not in choices:
                    raise LineError(f"{name} must be one of {', '.join(choices)}, got {shown(found[name])}")
                fields[name] = found[name]
        if found.get("pool") is not None:
            fields["pool"] = text_of(found, "pool")
        if "hint" in found:
            if found.get("claims"):
                raise LineError("give hint or claims, not both")
            hint, mode = found["hint"], found.get("mode", "exclusive")
            claims = [] if hint is None else [{"path": hint, "mode": mode}]
        else:
            claims = found.get("claims") or []
        if not isinstance(found.get("needs_slot", True), bool):
            raise LineError(f"needs_slot must be true or false, got {shown(found['needs_slot'])}")
        return TraceJob(
            id=text_of(found, "job"),
            claims=_claims(claims),
            depends_on=_edges(found.get("depends_on") or []),
            task=optional_text_of(found, "task") or "",
            user=optional_text_of(found, "user"),
            needs_slot=found.get("needs_slot", True),
            priority=_integer(found, "priority", least=0, most=1000) or 3,
            **fields,
        )


def text_of(found: dict[str, Any], name: str) -> str:
    """
    Return an id in a line.

    Raises:
        LineError: it is neither a text nor an integer, or too long.
    """
    value = found.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= TOKEN_MAX:
        return str(value)
    if not isinstance(value, str) or not 0 < len(value) <= ID_MAX:
        raise LineError(f"{name} must be a text of 1 to {ID_MAX} characters, got {shown(value)}")
    return value


def optional_text_of(found: dict[str, Any], name: str) -> str | None:
    """Return an id in a line, None if there is none."""
    value = found.get(name)
    return None if value is None or value == "" else text_of(found, name)


def _integer(found: dict[str, Any], name: str, *, least: int, most: int) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise LineError(f"{name} must be an integer of {least} to {most}, got {shown(value)}")
    return value


def _time(found: dict[str, Any], name: str) -> float:
    value = found[name]
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise LineError(f"{name} is not a time, as in 2026-01-31T12:00:00.250Z: {shown(value)}") from None
    if at.tzinfo is None:
        raise LineError(f"{name} requires a time zone, as in 2026-01-31T12:00:00.250Z: {shown(value)}")
    return (at - _EPOCH) / _MS


def time_of(found: dict[str, Any], name: str) -> float:
    """
    Return a time in a line: a number of ms, or a text of ISO 8601.

    Raises:
        LineError: it is neither.
    """
    return _time(found, name) if isinstance(found.get(name), str) else _number_of(found, name)


def _number_of(found: dict[str, Any], name: str) -> float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 2**53:
        raise LineError(f"{name} must be a number of ms, got {shown(value)}")
    return value


def _claims(value: Any) -> Any:
    """
    Return claims as `TraceJob` takes them: lists of segments, or objects with a path and a mode.

    Without that of a permit, which takes no place.
    """
    if not isinstance(value, list):
        raise LineError(f"claims must be a list, got {shown(value)}")
    return [
        (one.get("path"), one.get("mode", "exclusive")) if isinstance(one, dict) else one
        for one in map(_claim, value)
        if not (isinstance(one, dict) and one.get("mode") == COUNTED)
    ]


def _claim(value: Any) -> Any:
    if isinstance(value, dict) and not isinstance(value.get("path"), list):
        raise LineError(f"the path of a claim must be a list of segments, got {shown(value.get('path'))}")
    return value


def _edges(value: Any) -> Any:
    if not isinstance(value, list):
        raise LineError(f"depends_on must be a list, got {shown(value)}")
    return [records.edge_of(one) if isinstance(one, dict) else one for one in value]


def _past(found: dict[str, Any]) -> records.Past:
    """Return the past of a job from an exported record."""
    spec = found["spec"]
    policy = spec.get("policy") if isinstance(spec.get("policy"), dict) else {}
    described = {**policy, **spec, "job": found.get("id"), "needs_slot": spec.get("presence_ms") is None}
    times: dict[str, Any] = {
        f"{name}_ms": None if found.get(f"{name}_at") is None else _time(found, f"{name}_at")
        for name in ("queued", "started", "ended")
    }
    errors = found.get("errors") or []
    if not isinstance(errors, list) or not all(isinstance(error, dict) and "at" in error for error in errors):
        raise LineError("errors must be a list of objects with their times")
    return records.Past(
        job=TraceReader().job(described),
        state=text_of(found, "state"),
        parent=optional_text_of(spec, "parent"),
        failed_ms=tuple(_time(error, "at") for error in errors),
        worker=optional_text_of(found, "worker"),
        token=_integer(found, "token", least=-TOKEN_MAX, most=TOKEN_MAX),
        **times,
    )


# --- written ---------------------------------------------------------------------------------------------------------


def trace_lines(
    events: Iterable[TraceEvent | Event], jobs: Iterable[TraceJob | JobSpec | JobRecord] = (), *, resolution_ms: int = 0
) -> Iterator[str]:
    r"""
    Yield a trace as lines of ASCII, each with its ``\n``, the jobs first.

    Args:
        events, jobs: as of `check_trace`.
        resolution_ms: as of `Trace`.

    Raises:
        InvalidTraceError: *events* or *jobs* holds something else, or a time that is not finite.

    >>> print(
    ...     *trace_lines([TraceEvent(kind="started", job="a", at_ms=5)], [TraceJob.of("a", ["doc1"])]), sep="", end=""
    ... )
    {"job":"a","claims":[{"path":["doc1"],"mode":"exclusive"}]}
    {"kind":"started","job":"a","at_ms":5}
    """
    if resolution_ms:
        yield _line({"trace": VERSION, "resolution_ms": resolution_ms})
    for job in read_jobs(jobs):
        yield _line({"job": job.id, **_said(job, "id")})
    for event in read_events(events):
        said = _said(event, "kind", "job")
        if event.kind in WITHOUT_JOB:
            yield _line({"kind": event.kind, "at_ms": event.at_ms, **said})
        else:
            yield _line({"kind": event.kind, "job": event.job, "at_ms": event.at_ms, **said})


def _said(value: TraceJob | TraceEvent, *without: str) -> dict[str, Any]:
    """Return the fields that are not as they are by default."""
    said: dict[str, Any] = {}
    for field in attrs.fields(type(value)):
        found = getattr(value, field.name)
        if field.name in without or found == field.default:
            continue
        if field.name == "claims":
            found = [{"path": list(claim.path), "mode": claim.mode} for claim in found]
        elif field.name == "depends_on":
            found = [edge.id if edge.when == "success" and not edge.data else _edge(edge) for edge in found]
        elif isinstance(found, float) and not math.isfinite(found):
            raise InvalidTraceError("at_ms must be a finite number")
        said[field.name] = found
    return said


def _edge(edge: Any) -> dict[str, Any]:
    return {"id": edge.id, "when": edge.when, **({"data": True} if edge.data else {})}


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
