"""Entry points: check a log of intervals against the rules of order, and report what could not be judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from queuehint.errors import shown
from queuehint.testing.intervals.stories import told
from queuehint.testing.intervals.sweep import Finding, Sweep
from queuehint.testing.intervals.values import JOBS_MAX, RUNS_MAX, JobIntervals
from queuehint.testing.trace.check import FAULTS_MAX, check_amount
from queuehint.testing.trace.faults import Rule, TraceError, TraceReport
from queuehint.testing.trace.values import InvalidTraceError

_NOT_DESCRIBED = "ran and have no known place, so that no conflict of theirs is seen"
_NOT_CALLED = "ran and have no enqueue, so that their turn is not known"
_NOT_RUN = "were enqueued and not seen to run: waiting, lost, or run by code that records nothing"
_NOT_ENDED = "began and were not seen to end, so that each is held to have run for a moment"


def check_intervals(log: Iterable[JobIntervals], *, tolerance_ms: float = 0, complete: bool = False) -> None:
    """
    Check that the times which clients of a queue saw can be those of a queue that keeps order and exclusion.

    Two jobs conflict when the path of one is a prefix of the other's, unless both are shared. If the enqueue of A
    returned before that of B was called, B may not begin before A has ended; runs of conflicting jobs do not overlap;
    no job runs twice at once, nor after it was canceled. Only what is certain within the tolerance is a fault.

    Args:
        log: each job once, in any order; `read_intervals` reads them from lines. At most 1 000 000.
        tolerance_ms: how far apart the wall clocks of any two machines may be.
        complete: the log has everything: each job that was enqueued and not canceled must have begun and ended.

    Raises:
        TraceError: a rule is broken; the message has one or two jobs for each fault, with their times drawn.
        InvalidTraceError: it is no log, or its clocks are further apart than the tolerance.

    >>> a = JobIntervals.of("a", ["doc1"], called_ms=0, returned_ms=1, runs=[(20, 30)])
    >>> b = JobIntervals.of("b", ["doc1"], called_ms=5, returned_ms=6, runs=[(10, 15)])
    >>> check_intervals([a, b])
    Traceback (most recent call last):
    ...
    queuehint.testing.trace.faults.TraceError: order: b at doc1 overtook a at doc1, which was enqueued before it...

    .. versionadded:: 1.0.0
    """
    report = examine_intervals(log, tolerance_ms=tolerance_ms, complete=complete)
    if report.faults:
        raise TraceError(report.faults)


def examine_intervals(
    log: Iterable[JobIntervals], *, tolerance_ms: float = 0, complete: bool = False, limit: int = FAULTS_MAX
) -> TraceReport:
    """
    Like `check_intervals`; return the faults, and what could not be judged.

    Args:
        limit: how many faults to look for at most. A run is at fault once, with the job that shows it first.

    Returns:
        The report: ``events`` counts times, ``attempts`` runs; `Fault.index` is the position of the job in the log.

    Raises:
        InvalidTraceError: as `check_intervals`.

    .. versionadded:: 1.0.0
    """
    check_amount(tolerance_ms, "tolerance_ms")
    check_amount(limit, "limit", kinds=(int,))
    if not isinstance(complete, bool):
        raise InvalidTraceError(f"complete must be a bool, got {shown(complete)}")
    jobs = _jobs(log)
    _check_clocks(jobs, tolerance_ms)
    findings = Sweep(jobs, tolerance_ms).findings()
    found = list(islice(findings, limit))
    if complete:
        found += islice(_unfinished(jobs), limit - len(found))
    return TraceReport(
        faults=tuple([told(finding, jobs, tolerance_ms) for finding in found]),
        unjudged=tuple(_unjudged(jobs, complete=complete)),
        events=sum(map(_count, jobs)),
        jobs=len(jobs),
        attempts=sum(len(job.runs) for job in jobs),
    )


def _jobs(log: Iterable[Any]) -> Sequence[JobIntervals]:
    jobs: list[JobIntervals] = []
    ids: set[str] = set()
    runs = 0
    for number, job in enumerate(log):
        if not isinstance(job, JobIntervals):
            raise InvalidTraceError(f"log[{number}] must be JobIntervals, got {type(job).__name__}: {shown(job)}")
        if job.job in ids:
            raise InvalidTraceError(f"job {shown(job.job)} is in the log twice")
        runs += len(job.runs)
        if number >= JOBS_MAX or runs > RUNS_MAX:
            raise InvalidTraceError(f"log has more than {JOBS_MAX} jobs or {RUNS_MAX} runs")
        ids.add(job.job)
        jobs.append(job)
    return jobs


def _check_clocks(jobs: Sequence[JobIntervals], tolerance_ms: float) -> None:
    """
    Refuse a log that shows its clocks to be further apart than the tolerance.

    Raises:
        InvalidTraceError: a job began before its enqueue was called; with the tolerance that it takes.
    """
    apart = [(job.called_ms - job.runs[0].began_ms, job.job) for job in jobs if job.called_ms is not None and job.runs]
    apart_ms, job_id = max(apart, default=(0.0, ""))
    if apart_ms > tolerance_ms:
        raise InvalidTraceError(
            f"tolerance_ms must be at least {apart_ms:.10g}, got {tolerance_ms:.10g}: job {shown(job_id)} began before "
            "its enqueue was called"
        )


def _unfinished(jobs: Sequence[JobIntervals]) -> Iterator[Finding]:
    """Yield jobs that were enqueued or begun and never ended, of a log that has everything."""
    for position, job in enumerate(jobs):
        if job.canceled_ms is not None:
            continue
        if job.runs:
            if job.runs[-1].ended_ms is None:
                yield Finding(Rule.NOT_OVER, job.runs[-1].began_ms, position, len(job.runs) - 1)
        elif job.returned_ms is not None:
            yield Finding(Rule.NOT_OVER, job.returned_ms, position)


def _unjudged(jobs: Sequence[JobIntervals], *, complete: bool) -> Iterator[str]:
    counts = {
        _NOT_DESCRIBED: sum(job.claims is None and bool(job.runs) for job in jobs),
        _NOT_CALLED: sum(job.called_ms is None and bool(job.runs) for job in jobs),
    }
    if not complete:
        counts[_NOT_RUN] = sum(not job.runs and job.canceled_ms is None for job in jobs)
        counts[_NOT_ENDED] = sum(any(run.ended_ms is None for run in job.runs) for job in jobs)
    for text, count in counts.items():
        if count:
            yield f"{text}: {count} {'job' if count == 1 else 'jobs'}"


def _count(job: JobIntervals) -> int:
    """Return how many times are known of a job."""
    single = (job.called_ms, job.returned_ms, job.canceled_ms)
    return sum(time is not None for time in single) + sum(1 + (run.ended_ms is not None) for run in job.runs)
