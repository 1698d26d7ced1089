"""Stories of faults: a sentence, and a picture of the one or two jobs involved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from queuehint.testing.intervals.sweep import Finding
from queuehint.testing.intervals.values import JobIntervals
from queuehint.testing.trace.faults import Fault, Rule, name_at, named
from queuehint.testing.trace.picture import draw
from queuehint.testing.trace.values import TraceEvent, TraceJob


def told(finding: Finding, log: Sequence[JobIntervals], tolerance_ms: float) -> Fault:
    """Return the fault of a finding, with its sentence and its picture."""
    job = log[finding.job]
    other = None if finding.other is None else log[finding.other]
    fault = Fault(
        rule=finding.rule,
        job=job.job,
        other=None if other is None else other.job,
        at_ms=finding.at_ms,
        index=0,
        message=_SENTENCES[finding.rule](finding, log, tolerance_ms),
    )
    events, index = _events(finding, job, other)
    known = {each.job: _described(each) for each in (job, other) if each is not None}
    (picture,) = draw(events, range(len(events)), known, [attrs.evolve(fault, index=index)])
    return attrs.evolve(fault, index=finding.job, picture=picture)


def _events(finding: Finding, job: JobIntervals, other: JobIntervals | None) -> tuple[list[TraceEvent], int]:
    """Return the times of the jobs of a fault in order, and the position of the deciding one."""
    moments: list[tuple[float, int, TraceEvent]] = []
    shows: TraceEvent | None = None
    for each, wanted in ((other, finding.other_run), (job, finding.run)):
        if each is None:
            continue
        for kind, at_ms in (("enqueued", each.called_ms), ("queued", each.returned_ms), ("canceled", each.canceled_ms)):
            if at_ms is not None:
                moments.append((at_ms, 0, _event(kind, each.job, at_ms)))
        for number in _chosen(each, {wanted, finding.other_run if other is None else None}):
            run = each.runs[number]
            began = _event("started", each.job, run.began_ms)
            moments.append((run.began_ms, 2, began))
            if each is job and number == finding.run:
                shows = began
            if run.ended_ms is not None:
                is_last = number == len(each.runs) - 1
                kind = ("failed" if run.failed else "ended") if is_last else "retried"
                moments.append(
                    (run.ended_ms, 1 if run.ended_ms > run.began_ms else 3, _event(kind, each.job, run.ended_ms))
                )
    moments.sort(key=lambda moment: moment[:2])
    index = next((index for index, moment in enumerate(moments) if moment[2] is shows), len(moments) - 1)
    # From the first one on, to the microsecond: a float of ms since 1970 is hardly more exact.
    base_ms = moments[0][0]
    return [attrs.evolve(event, at_ms=round(at_ms - base_ms, 3)) for at_ms, _, event in moments], index


def _chosen(job: JobIntervals, wanted: set[int | None]) -> list[int]:
    """Return the runs of a job to show: the first, the last, and those that show the fault."""
    last = len(job.runs) - 1
    numbers = {number for number in (*wanted, 0, last) if number is not None and 0 <= number <= last}
    return sorted(numbers)


def _event(kind: Any, job_id: str, at_ms: float) -> TraceEvent:
    return TraceEvent(kind=kind, job=job_id, at_ms=at_ms)


def _described(job: JobIntervals) -> TraceJob:
    return TraceJob(id=job.job, claims=job.claims or (), on_retry=job.on_retry)


# --- sentences -------------------------------------------------------------------------------------------------------


def _overlap(finding: Finding, log: Sequence[JobIntervals], tolerance_ms: float) -> str:
    job, other = _pair(finding, log)
    assert finding.run is not None
    assert finding.other_run is not None
    one, two = job.runs[finding.run], other.runs[finding.other_run]
    shared_ms = min(one.least_ms, two.least_ms) - max(one.began_ms, two.began_ms)
    at_least = _long(shared_ms - tolerance_ms)
    return f"{_at(job, other)} began while {_at(other, job)} was running{at_least}"


def _order(finding: Finding, log: Sequence[JobIntervals], tolerance_ms: float) -> str:
    job, other = _pair(finding, log)
    assert finding.run is not None
    began_ms = job.runs[finding.run].began_ms
    ran_again = other.on_retry == "hold" and other.runs[0].began_ms <= began_ms < other.runs[-1].began_ms
    before = "which was enqueued before it" if not finding.run else "which was enqueued before its earlier run"
    how = "ran again later" if ran_again else "had not ended"
    early = _long(finding.ended_ms - began_ms - tolerance_ms, "too early by")
    return f"{_at(job, other)} overtook {_at(other, job)}, {before} and {how}{early}"


def _twice(finding: Finding, log: Sequence[JobIntervals], tolerance_ms: float) -> str:
    job = log[finding.job]
    assert finding.run is not None
    assert finding.other_run is not None
    one, two = job.runs[finding.run], job.runs[finding.other_run]
    shared_ms = min(one.least_ms, two.least_ms) - max(one.began_ms, two.began_ms)
    return f"{named(job.job)} was started again while it ran{_long(shared_ms - tolerance_ms)}"


def _after_end(finding: Finding, log: Sequence[JobIntervals], tolerance_ms: float) -> str:
    job = log[finding.job]
    assert job.canceled_ms is not None
    late_ms = finding.at_ms - job.canceled_ms - tolerance_ms
    return f"{named(job.job)} began after it had been canceled{_long(late_ms, 'too late by')}"


def _not_over(finding: Finding, log: Sequence[JobIntervals], _tolerance_ms: float) -> str:
    job = log[finding.job]
    return f"{named(job.job)} {'was enqueued and never began' if finding.run is None else 'began and never ended'}"


_SENTENCES = {
    Rule.OVERLAP: _overlap,
    Rule.ORDER: _order,
    Rule.STARTED_TWICE: _twice,
    Rule.STARTED_AFTER_END: _after_end,
    Rule.NOT_OVER: _not_over,
}


def _pair(finding: Finding, log: Sequence[JobIntervals]) -> tuple[JobIntervals, JobIntervals]:
    assert finding.other is not None
    return log[finding.job], log[finding.other]


def _at(job: JobIntervals, other: JobIntervals) -> str:
    return name_at(job.job, job.claims or (), other.claims or ())


def _long(time_ms: float, word: str = "for") -> str:
    """Return the least certain duration of a fault, empty if only its existence is certain."""
    return f", {word} at least {round(time_ms, 3):.10g} ms" if time_ms > 0 else ""
