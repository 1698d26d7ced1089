"""Entry points: check a log of intervals against the rules of order, and report unjudged intervals."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from queuehint.errors import shown
from queuehint.testing.intervals.stories import told
from queuehint.testing.intervals.sweep import Finding, Sweep, count_met
from queuehint.testing.intervals.values import JOBS_MAX, RUNS_MAX, JobIntervals
from queuehint.testing.trace.check import FAULTS_MAX, check_amount, check_sight
from queuehint.testing.trace.faults import Rule, TraceError, TraceReport, counted
from queuehint.testing.trace.values import InvalidTraceError, listed

_NOT_DESCRIBED = "ran and have no known place, so that no conflict of theirs is seen"
_NOT_CALLED = "ran and have no enqueue, so that their turn is not known"
_NOT_RUN = "were enqueued and not seen to run: waiting, lost, or run by code that records nothing"
_NOT_ENDED = "began and were not seen to end, so that each is held to have run for a moment"


def check_intervals(log: Iterable[JobIntervals], *, tolerance_ms: float = 0, complete: bool = False) -> None:
    """
    Check that the times seen by clients of a queue are possible under order and exclusion.

    Two jobs conflict when the path of one is a prefix of the other's, unless both are shared. If the enqueue of A
    returned before that of B was called, B may not begin before A has ended; runs of conflicting jobs do not overlap;
    no job runs twice at once, nor after it was canceled. Only what is certain within the tolerance is a fault.

    Args:
        log: each job once, in any order; `read_intervals` reads them from lines. At most 1 000 000.
        tolerance_ms: how far apart the wall clocks of any two machines may be.
        complete: the log has everything: each job that was enqueued and not canceled must have begun and ended.

    Raises:
        TraceError: a rule is broken; the message has one or two jobs for each fault, with their times drawn.
        InvalidTraceError: it is no log, or its clocks are further apart than the tolerance; or no fault was found and
            no job ran, or the place of no job that ran is known.

    It warns (UserWarning) if no fault was found and the places of some jobs that ran are not known; or if the
    tolerance is not less than the longest run, so that no two runs overlap for certain.

    >>> a = JobIntervals.of("a", ["doc1"], called_ms=0, returned_ms=1, runs=[(20, 30)])
    >>> b = JobIntervals.of("b", ["doc1"], called_ms=5, returned_ms=6, runs=[(10, 15)])
    >>> check_intervals([a, b])
    Traceback (most recent call last):
    ...
    queuehint.testing.trace.faults.TraceError: order: b at doc1 overtook a at doc1, which was enqueued before it...

    .. versionadded:: 1.0.0
    """
    jobs = _jobs(log)
    report = examine_intervals(jobs, tolerance_ms=tolerance_ms, complete=complete)
    if report.faults:
        raise TraceError(report.faults)
    if not report.ran:
        raise InvalidTraceError(
            f"log must have a run, got {counted(report.jobs, 'job')} without one: there was nothing to check"
        )
    check_sight(report, "log", stacklevel=2)
    runs, short = _lengths(jobs, tolerance_ms)
    if tolerance_ms and short == runs > 1:
        warnings.warn(
            f"no run took longer than tolerance_ms={tolerance_ms:.10g}, so that no overlap of two runs is certain; "
            "examine_intervals lists in unjudged what the tolerance leaves open",
            stacklevel=2,
        )


def examine_intervals(
    log: Iterable[JobIntervals], *, tolerance_ms: float = 0, complete: bool = False, limit: int = FAULTS_MAX
) -> TraceReport:
    """
    Like `check_intervals`. Return the faults, and the unjudged intervals.

    Args:
        limit: how many faults to look for at most. A run is at fault once, with the job that shows it first.

    Returns:
        The report: ``events`` counts times, ``attempts`` runs; `Fault.index` is the position of the job in the log.
        ``unjudged`` has how many runs break a rule by no more than the tolerance, and how many took no longer.

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
    within: Iterable[str] = ()
    if tolerance_ms:
        within = _within(jobs, tolerance_ms, {_run_of(finding) for finding in chain(found, findings)})
    if complete:
        found += islice(_unfinished(jobs), limit - len(found))
    return TraceReport(
        faults=tuple([told(finding, jobs, tolerance_ms) for finding in found]),
        unjudged=(*_unjudged(jobs, complete=complete), *within),
        events=sum(map(_count, jobs)),
        jobs=len(jobs),
        attempts=sum(len(job.runs) for job in jobs),
        ran=sum(bool(job.runs) for job in jobs),
        undescribed=sum(map(_is_undescribed, jobs)),
        met=count_met(jobs),
    )


def _jobs(log: object) -> Sequence[JobIntervals]:
    jobs: list[JobIntervals] = []
    ids: set[str] = set()
    runs = 0
    for number, job in enumerate(listed(log, "log")):
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
    Refuse a log whose clocks differ by more than the tolerance.

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


def _is_undescribed(job: JobIntervals) -> bool:
    return job.claims is None and bool(job.runs)


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
        _NOT_DESCRIBED: sum(map(_is_undescribed, jobs)),
        _NOT_CALLED: sum(job.called_ms is None and bool(job.runs) for job in jobs),
    }
    if not complete:
        counts[_NOT_RUN] = sum(not job.runs and job.canceled_ms is None for job in jobs)
        counts[_NOT_ENDED] = sum(any(run.ended_ms is None for run in job.runs) for job in jobs)
    for text, count in counts.items():
        if count:
            yield f"{text}: {counted(count, 'job')}"


def _run_of(finding: Finding) -> tuple[int, int | None]:
    return finding.job, finding.run


def _within(
    jobs: Sequence[JobIntervals], tolerance_ms: float, at_fault: Collection[tuple[int, int | None]]
) -> Iterator[str]:
    """
    Yield the intervals left unjudged because of a tolerance.

    Args:
        at_fault: the runs that break a rule by more.
    """
    margins = [finding.margin_ms for finding in Sweep(jobs, 0).findings() if _run_of(finding) not in at_fault]
    if margins:
        yield (
            f"break a rule by no more than the tolerance of {tolerance_ms:.10g} ms, one of them by "
            f"{round(max(margins), 3):.10g} ms: {counted(len(margins), 'run')}"
        )
    runs, short = _lengths(jobs, tolerance_ms)
    if short:
        yield (
            f"took no longer than the tolerance of {tolerance_ms:.10g} ms, so that no overlap of two of them is "
            f"certain: {short} of {counted(runs, 'run')}"
        )


def _lengths(jobs: Sequence[JobIntervals], tolerance_ms: float) -> tuple[int, int]:
    """Return how many runs were seen to end, and how many of these took no longer than a tolerance."""
    lengths = [run.ended_ms - run.began_ms for job in jobs for run in job.runs if run.ended_ms is not None]
    return len(lengths), sum(length <= tolerance_ms for length in lengths)


def _count(job: JobIntervals) -> int:
    """Return how many times are known of a job."""
    single = (job.called_ms, job.returned_ms, job.canceled_ms)
    return sum(time is not None for time in single) + sum(1 + (run.ended_ms is not None) for run in job.runs)
