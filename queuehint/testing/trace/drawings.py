"""Traces as drawings: a timeline for ui.perfetto.dev, a Gantt chart for Mermaid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Literal

import attrs

from queuehint.testing.trace.values import PUT_BACK, TraceEvent, TraceJob, read_events, read_jobs
from queuehint.values.event import Event
from queuehint.values.hint import queue_key
from queuehint.values.record import JobRecord
from queuehint.values.spec import JobSpec

Tracks = Literal["path", "worker"]
_RUNNING, _WAITING = 1, 2
"""Processes, as Perfetto calls its groups of tracks."""
_FAULTY = frozenset({"failed", "retried", "lost"})
_STYLES = {"finished": "done, ", "ended": "done, ", "started": "active, ", **dict.fromkeys(_FAULTY, "crit, ")}
ID_LENGTH = 12
"""How many characters of an id the bar of a Gantt chart ends with."""
_PLAIN = frozenset(" -_.()/[]+*")


@attrs.define(kw_only=True)
class Run:
    """
    One attempt of one job.

    Args:
        queued_ms: when it took its place or was put back before, if known.
        ended_ms: None while it runs.
        how: the kind of its end; ``"started"`` while it runs.
        cause: why it ended so, such as its error, if known.
        number: which attempt in the trace, from 1.
    """

    job: str
    started_ms: float
    ended_ms: float | None = None
    queued_ms: float | None = None
    how: str = "started"
    cause: str | None = None
    worker: str | None = None
    token: int | None = None
    number: int = 1


def runs_of(events: Iterable[TraceEvent]) -> list[Run]:
    """Return all runs in order of their starts, without jobs that ended before a start."""
    runs: list[Run] = []
    running: dict[str, Run] = {}
    queued: dict[str, float] = {}
    counts: dict[str, int] = {}
    for event in events:
        if event.kind == "gap":
            running.clear()
            queued.clear()
        elif event.kind == "started":
            counts[event.job] = counts.get(event.job, 0) + 1
            run = Run(
                job=event.job,
                started_ms=event.at_ms,
                queued_ms=queued.pop(event.job, None),
                worker=event.worker,
                token=event.token,
                number=counts[event.job],
            )
            runs.append(run)
            running[event.job] = run
        elif event.kind in {"queued", "enqueued", "redriven"}:
            if event.state in {None, "QUEUED"}:
                queued.setdefault(event.job, event.at_ms)
        elif event.kind != "progressed":
            ended = running.pop(event.job, None)
            if ended is not None:
                ended.ended_ms, ended.how, ended.cause = event.at_ms, event.kind, event.cause
            if event.state == "QUEUED" or (event.state is None and event.kind in PUT_BACK):
                queued[event.job] = event.at_ms
            else:
                queued.pop(event.job, None)
    return runs


def perfetto(
    events: Iterable[TraceEvent | Event],
    jobs: Iterable[TraceJob | JobSpec | JobRecord] = (),
    *,
    tracks: Tracks = "path",
) -> str:
    """
    Return a trace as JSON that ui.perfetto.dev and chrome://tracing open.

    Each attempt is a slice on a track of its path or of its worker, each wait one on a track of the path; arrows lead
    from the ends of jobs to the starts of those that depend on them.

    Source: "Trace Event Format", J. Duane and others, Google, 2016.
    """
    found = list(read_events(events))
    known = {job.id: job for job in read_jobs(jobs)}
    end_ms = max((event.at_ms for event in found), default=0)
    begin_ms = min((event.at_ms for event in found), default=0)
    runs = runs_of(found)
    names = {id(run): run.worker or "?" if tracks == "worker" else _key(known, run.job) for run in runs}
    slices = [(names[id(run)], run.started_ms, end_ms if run.ended_ms is None else run.ended_ms) for run in runs]
    waits = [run for run in runs if run.queued_ms is not None and run.queued_ms < run.started_ms]
    lines: list[dict[str, Any]] = []
    lanes = _lanes(slices)
    lines += _names(_RUNNING, "running", lanes)
    last: dict[str, tuple[int, float]] = {}
    for number, (run, (_, start_ms, stop_ms), lane) in enumerate(zip(runs, slices, lanes.numbers, strict=True)):
        facts: dict[str, Any] = {"job": run.job, "attempt": run.number, "ended": run.how, "cause": run.cause}
        facts |= {"worker": run.worker, "token": run.token}
        job = known.get(run.job)
        if job is not None:
            facts |= {"path": _key(known, run.job), "task": job.task, "user": job.user, "pool": job.pool}
        lines.append(_slice(_RUNNING, lane, run.job, start_ms - begin_ms, stop_ms - start_ms, facts))
        for edge in job.depends_on if job is not None and run.number == 1 else ():
            if edge.id in last:
                source, at_ms = last[edge.id]
                arrow = {"cat": "dependency", "name": "depends on", "id": f"{number}/{edge.id}", "pid": _RUNNING}
                lines.append({**arrow, "ph": "s", "tid": source, "ts": _us(at_ms - begin_ms)})
                lines.append({**arrow, "ph": "f", "bp": "e", "tid": lane, "ts": _us(start_ms - begin_ms)})
        last[run.job] = lane, max(start_ms, stop_ms - 0.001)
    waiting = _lanes([(_key(known, run.job), run.queued_ms or 0, run.started_ms) for run in waits])
    lines += _names(_WAITING, "waiting", waiting)
    for run, lane in zip(waits, waiting.numbers, strict=True):
        queued_ms = run.queued_ms or 0
        wait = {"job": run.job}
        lines.append(_slice(_WAITING, lane, run.job, queued_ms - begin_ms, run.started_ms - queued_ms, wait))
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": lines}, separators=(",", ":")) + "\n"


def mermaid(
    events: Iterable[TraceEvent | Event],
    jobs: Iterable[TraceJob | JobSpec | JobRecord] = (),
    *,
    tracks: Tracks = "path",
) -> str:
    """
    Return a trace as a Gantt chart for Mermaid, with a section for each path or each worker.

    A bar is an attempt: its task, the end of the job's id, which attempt it was, and the type of its error.

    >>> happened = [("started", 0), ("finished", 1500)]
    >>> events = [TraceEvent(kind=kind, job="a", at_ms=at_ms) for kind, at_ms in happened]
    >>> print(mermaid(events, [TraceJob.of("a", ["doc1"])]), end="")
    gantt
        dateFormat x
        axisFormat %H:%M:%S
        section doc1
        a :done, 0, 1500
    """
    found = list(read_events(events))
    known = {job.id: job for job in read_jobs(jobs)}
    end_ms = max((event.at_ms for event in found), default=0)
    sections: dict[str, list[Run]] = {}
    for run in runs_of(found):
        name = run.worker or "?" if tracks == "worker" else _key(known, run.job)
        sections.setdefault(name, []).append(run)
    lines = ["gantt", "    dateFormat x", "    axisFormat %H:%M:%S"]
    for name in sorted(sections):
        lines.append(f"    section {_mermaid_text(name)}")
        for run in sections[name]:
            text = _mermaid_text(_bar(run, known.get(run.job)))
            stop_ms = end_ms if run.ended_ms is None else run.ended_ms
            lines.append(f"    {text} :{_STYLES.get(run.how, '')}{run.started_ms:.0f}, {stop_ms:.0f}")
    return "\n".join(lines) + "\n"


# --- parts -----------------------------------------------------------------------------------------------------------


class _Lanes:
    """Numbers of tracks, and their names."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.names: dict[int, str] = {}


def _lanes(slices: Sequence[tuple[str, float, float]]) -> _Lanes:
    """Assign slices to tracks without overlaps, with several tracks of a name as necessary."""
    lanes = _Lanes()
    free: dict[str, list[tuple[float, int]]] = {}
    numbers: dict[int, int] = {}
    counts: dict[str, int] = {}
    made = 0
    for index in sorted(range(len(slices)), key=lambda index: slices[index][1]):
        name, start_ms, stop_ms = slices[index]
        heap = free.setdefault(name, [])
        if heap and heap[0][0] <= start_ms:
            lane = heappop(heap)[1]
        else:
            made += 1
            lane = made
            counts[name] = counts.get(name, 0) + 1
            lanes.names[lane] = name if counts[name] == 1 else f"{name} ({counts[name]})"
        heappush(heap, (stop_ms, lane))
        numbers[index] = lane
    lanes.numbers = [numbers[index] for index in range(len(slices))]
    return lanes


def _names(process: int, name: str, lanes: _Lanes) -> list[dict[str, Any]]:
    """Return the names of the tracks, in their order."""
    head = {"ph": "M", "pid": process, "tid": 0}
    lines: list[dict[str, Any]] = [{**head, "name": "process_name", "args": {"name": name}}]
    for rank, (lane, text) in enumerate(sorted(lanes.names.items(), key=lambda item: item[1])):
        lines.append({**head, "tid": lane, "name": "thread_name", "args": {"name": text}})
        lines.append({**head, "tid": lane, "name": "thread_sort_index", "args": {"sort_index": rank}})
    return lines


def _slice(
    process: int, lane: int, name: str, start_ms: float, took_ms: float, facts: Mapping[str, Any]
) -> dict[str, Any]:
    said = {key: value for key, value in facts.items() if value not in {None, ""}}
    head = {"ph": "X", "pid": process, "tid": lane, "name": name, "cat": "job"}
    return {**head, "ts": _us(start_ms), "dur": _us(took_ms), "args": said}


def _us(time_ms: float) -> float:
    return round(time_ms * 1000, 3)


def _key(known: Mapping[str, TraceJob], job_id: str) -> str:
    job = known.get(job_id)
    if job is None:
        return "?"
    return ", ".join(queue_key(claim.path) for claim in job.claims) or "no place"


def _bar(run: Run, job: TraceJob | None) -> str:
    """Return the label of a run's bar."""
    text = f"{job.task} {run.job[-ID_LENGTH:]}" if job is not None and job.task else run.job
    if run.number > 1:
        text += f" ({run.number})"
    if run.how in _FAULTY and run.cause:
        text += f" {run.cause.partition(':')[0]}"
    return text


def _mermaid_text(text: str) -> str:
    """Return text without the colon, semicolon or number sign that would end it in a Gantt chart."""
    return "".join(sign if sign.isalnum() or sign in _PLAIN else "/" if sign == ":" else "_" for sign in text) or "_"
