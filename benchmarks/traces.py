"""Events of a trace read and checked per second, and whether the time grows linearly with their number."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from benchmarks.report import Stopwatch, repeat
from queuehint.testing import TraceEvent, TraceJob, examine_trace, read_trace, trace_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Report

SLOTS = 64


def run(report: Report, *, quick: bool) -> None:
    """Measure all; it takes a minute."""
    report.title(f"Traces: jobs on 10 000 paths of 1 000 documents, {SLOTS} at a time")
    for jobs in (2_000, 20_000) if quick else (10_000, 100_000):
        events, described = _trace(jobs)
        count = len(events)
        lines = list(trace_lines(events, described))
        told = f"{count:,} events"
        report.add(f"check {told}", "events/s", *_measure(lambda: examine_trace(events, described), count))  # noqa: B023
        report.add(
            f"check {told} and {SLOTS} slots",
            "events/s",
            *_measure(lambda: examine_trace(events, described, slots=SLOTS, idle_ms=5), count),  # noqa: B023
        )
        report.add(f"read {told}", "events/s", *_measure(lambda: read_trace(lines), count))  # noqa: B023


def _trace(count: int) -> tuple[list[TraceEvent], list[TraceJob]]:
    """Jobs that arrive one a ms, run in order of their places and end in order of their starts."""
    random = Random(1)
    jobs: list[TraceJob] = []
    events: list[TraceEvent] = []
    lines: dict[tuple[str, ...], deque[TraceJob]] = {}
    ready: deque[TraceJob] = deque()
    running: deque[TraceJob] = deque()

    def happen(kind: str, job: TraceJob, at_ms: int) -> None:
        events.append(TraceEvent(kind=kind, job=job.id, at_ms=at_ms))

    for at_ms in range(count):
        path = f"doc{random.randrange(1000)}", f"section{random.randrange(10)}"
        job = TraceJob.of(str(at_ms), path)
        jobs.append(job)
        happen("queued", job, at_ms)
        line = lines.setdefault(path, deque())
        line.append(job)
        if len(line) == 1:
            ready.append(job)
        if len(running) == SLOTS:
            ended = running.popleft()
            happen("finished", ended, at_ms)
            line = lines[ended.claims[0].path]
            line.popleft()
            if line:
                ready.append(line[0])
        while ready and len(running) < SLOTS:
            running.append(ready.popleft())
            happen("started", running[-1], at_ms)
    return events, jobs


def _measure(work: Callable[[], object], count: int) -> tuple[float, ...]:
    def once() -> float:
        watch = Stopwatch()
        with watch.running():
            work()
        return count / watch.seconds

    return repeat(once)
