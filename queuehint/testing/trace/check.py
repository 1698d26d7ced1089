"""Entry points: check a trace against the rules of order, and list the faults and the unjudged events."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import cast

import attrs

from queuehint.errors import shown
from queuehint.testing.trace.checker import Checker, in_order
from queuehint.testing.trace.faults import Fault, TraceError, TraceReport, counted
from queuehint.testing.trace.picture import draw
from queuehint.testing.trace.slots import Slots
from queuehint.testing.trace.values import WITHOUT_JOB, InvalidTraceError, TraceEvent, TraceJob, read_events, read_jobs
from queuehint.values.event import Event
from queuehint.values.record import JobRecord
from queuehint.values.spec import JobSpec

FAULTS_MAX = 100


def check_trace(
    events: Iterable[TraceEvent | Event],
    jobs: Iterable[TraceJob | JobSpec | JobRecord] = (),
    *,
    tolerance_ms: float = 0,
    idle_ms: float | None = None,
    slots: int | Mapping[str, int] | None = None,
    complete: bool = False,
) -> None:
    """
    Check that nothing in a trace breaks the rules of order.

    Args:
        as `find_faults`.

    Raises:
        TraceError: something does; an AssertionError that names the rule and the two jobs and draws the moment.
        InvalidTraceError: as `find_faults`; or there are no events, so that there was nothing to check.

    >>> jobs = [TraceJob.of("a", ["doc1"]), TraceJob.of("b", ["doc1", "s1"])]
    >>> happened = [("queued", "a"), ("queued", "b"), ("started", "b")]
    >>> check_trace([TraceEvent(kind=kind, job=job) for kind, job in happened], jobs)
    Traceback (most recent call last):
    ...
    queuehint.testing.trace.faults.TraceError: order: b at doc1:s1 overtook a at doc1, which was queued before it...
    """
    report = examine_trace(events, jobs, tolerance_ms=tolerance_ms, idle_ms=idle_ms, slots=slots, complete=complete)
    if report.faults:
        raise TraceError(report.faults)
    if not report.events:
        raise InvalidTraceError("events must not be empty: there was nothing to check")
    check_sight(report, "jobs", stacklevel=2)


def find_faults(
    events: Iterable[TraceEvent | Event],
    jobs: Iterable[TraceJob | JobSpec | JobRecord] = (),
    *,
    tolerance_ms: float = 0,
    idle_ms: float | None = None,
    slots: int | Mapping[str, int] | None = None,
    complete: bool = False,
    limit: int = FAULTS_MAX,
) -> list[Fault]:
    """
    Return which rules a trace breaks, in order of time.

    Args:
        events: what happened, in any order; of what happened at the same time, in the order in which it did.
        jobs: where each job belongs, once each; a `JobSpec` or a `JobRecord` serves as well. A job that is missing
            here, and has no event with claims, conflicts with nothing; one without a place has no claims.
        tolerance_ms: how far apart the clocks of the events may be: what is in order when some are moved by less is no
            fault.
        idle_ms: how long a slot may be idle while a job is ready; by default *tolerance_ms*.
        slots: how many slots there are for all jobs, or by pool; if not given, only what events say of free slots is
            held against a queue.
        complete: the trace has all that happened: every job must be over at its end.
        limit: how many faults to look for at most; those of idle slots and of jobs not over come last.

    Raises:
        InvalidTraceError: it is no trace; or no fault was found and no job that started is described, so that neither
            order nor overlap was judged.

    It warns (UserWarning) if no fault was found and some jobs that started are not described.
    """
    report = examine_trace(
        events, jobs, tolerance_ms=tolerance_ms, idle_ms=idle_ms, slots=slots, complete=complete, limit=limit
    )
    check_sight(report, "jobs", stacklevel=2)
    return list(report.faults)


def examine_trace(
    events: Iterable[TraceEvent | Event],
    jobs: Iterable[TraceJob | JobSpec | JobRecord] = (),
    *,
    tolerance_ms: float = 0,
    idle_ms: float | None = None,
    slots: int | Mapping[str, int] | None = None,
    complete: bool = False,
    limit: int = FAULTS_MAX,
) -> TraceReport:
    """
    Like `find_faults`, without refusals or warnings about undescribed jobs. Return the unjudged events too.

    Raises:
        InvalidTraceError: it is no trace.
    """
    check_amount(tolerance_ms, "tolerance_ms")
    if idle_ms is not None:
        check_amount(idle_ms, "idle_ms")
    for name, amount in slots.items() if isinstance(slots, Mapping) else [("", slots)]:
        if amount is not None:
            check_amount(amount, f"slots[{name!r}]" if name else "slots", kinds=(int,))
    known: dict[str, TraceJob] = {}
    for job in read_jobs(jobs):
        if known.setdefault(job.id, job) != job:
            raise InvalidTraceError(f"job {shown(job.id)} is given twice, with different values")
    given = list(read_events(events))
    ran = {event.job for event in given if event.kind == "started"}
    order = in_order(given, tolerance_ms)
    checker = Checker(given, known, tolerance_ms=tolerance_ms, complete=complete, limit=limit)
    if slots is not None or any(event.free_slots is not None or event.kind == "idle" for event in given):
        checker.slots = Slots(slots, tolerance_ms if idle_ms is None else idle_ms)
    checker.run(order)
    seen = {event.job: TraceJob(id=event.job, claims=event.claims) for event in given if event.claims is not None}
    pictures = draw(given, order, {**seen, **known}, checker.faults)
    faults = [attrs.evolve(fault, picture=picture) for fault, picture in zip(checker.faults, pictures, strict=True)]
    return TraceReport(
        faults=tuple(faults),
        unjudged=checker.unjudged(),
        events=len(given),
        jobs=len({event.job for event in given if event.kind not in WITHOUT_JOB}),
        attempts=sum(event.kind == "started" for event in given),
        ran=len(ran),
        undescribed=len(ran.difference(known, (event.job for event in given if event.claims is not None))),
        met=len(checker.met),
    )


def check_sight(report: TraceReport, parameter: str, *, stacklevel: int) -> None:
    """
    Refuse a report that knows the place of no job that ran and found no fault. Warn if some places are missing.

    Raises:
        InvalidTraceError: it knows none.
    """
    if report.faults or not report.undescribed:
        return
    if report.is_blind:
        raise InvalidTraceError(
            f"{parameter} must describe the jobs: {counted(report.ran, 'job')} ran and the place of none is known, so "
            "that no order and no overlap can be judged; a job without a place has no claims"
        )
    warnings.warn(
        f"of {counted(report.ran, 'job')} that ran {report.undescribed} are not described: no conflict of theirs is "
        f"seen; describe them in {parameter}",
        stacklevel=stacklevel + 1,
    )


def check_amount(value: object, parameter: str, *, kinds: tuple[type, ...] = (int, float)) -> None:
    """
    Refuse an invalid amount.

    Raises:
        InvalidTraceError: it is no number of these kinds, or less than 0.
    """
    if isinstance(value, bool) or not isinstance(value, kinds) or not cast("float", value) >= 0:
        what = "an integer" if kinds == (int,) else "a number"
        raise InvalidTraceError(f"{parameter} must be {what} of 0 or more, got {shown(value)}")
