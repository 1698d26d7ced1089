"""
Submissions in parts: jobs are staged, hidden from all queries, until one commit makes them visible.

Each submission has a *start*, a hidden job that its staged jobs depend on. A commit ends it FINISHED, and a sweep then
releases the jobs in order of number; an expiry ends it CANCELED, and a sweep removes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.edges import START
from queuehint.core.structures.timers import TimerKind
from queuehint.values.event import EventKind
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from queuehint.core.jobs.table import JobTable
    from queuehint.core.structures.job import Job, Needs

SCHEDULED, DEFERRED, _QUEUED, _STARTED, FINISHED, _FAILED, CANCELED = JobState
DUE, _LEASE, EXPIRY, _PRUNE, _RESUME = TimerKind


def open_start(table: JobTable, job_id: str, flow: str | None, now_ms: int) -> Job:
    """Create the start of a submission in parts, a hidden job that its jobs depend on."""
    job = table.create(JobSpec(id=job_id, task="start", flow=flow), now_ms)
    job.state = DEFERRED
    return job


def keep_start(table: JobTable, start: Job, until_ms: int) -> None:
    """Set the expiry of a staged submission; a further part or the commit replaces it."""
    if start.expiry is not None:
        table.timers.drop(start.expiry)
    start.expiry = table.timers.add(EXPIRY, until_ms, start)


def stage(table: JobTable, spec: JobSpec, now_ms: int, needs: Needs, start: Job) -> Job:
    """Create a hidden job of a submission in parts, which depends on the start."""
    job = table.create(spec, now_ms)
    job.state = DEFERRED
    extras = job.need_extras()
    extras.start, extras.needs = start, needs
    table.hidden += 1
    table.edges.add(job, start.id, START)
    return job


def depend(table: JobTable, job: Job, needs: Needs) -> None:
    """Add a portion of dependencies to a hidden job of a submission in parts."""
    job.need_extras().more_needs += (needs,)


def commit(table: JobTable, start: Job, now_ms: int) -> int:
    """Make all jobs of a submission visible at once; return their number."""
    staged = table.edges.count(start.id)
    # The commit takes a number itself: its jobs depend on no job that was enqueued or committed after it.
    table.last_number = start.since = table.last_number + 1
    _close_start(table, start, FINISHED, now_ms)
    table.hidden -= staged
    table.committing += 1
    table.counts[DEFERRED] += staged
    return staged


def expire(table: JobTable, start: Job, now_ms: int) -> None:
    """Cancel a submission that was not committed in time."""
    start.expiry = None
    _close_start(table, start, CANCELED, now_ms)


def _close_start(table: JobTable, start: Job, state: JobState, now_ms: int) -> None:
    """End the start, so that its edges are resolved."""
    if start.expiry is not None:
        table.timers.drop(start.expiry)
        start.expiry = None
    start.state = state
    start.ended_ms = now_ms


def unstage(table: JobTable, job: Job) -> int:
    """Release one job of a committed submission; return the commit time, which is its enqueue time."""
    extras = job.need_extras()
    start, extras.start = extras.start, None
    assert start is not None
    extras.came = start.since
    assert start.ended_ms is not None
    table.edges.close(job, start.id)
    table.deferred[job.number] = job
    job.enqueued_ms = start.ended_ms
    table.catalog.add(job)
    table.journal.note(job, EventKind.ENQUEUED, None)
    return start.ended_ms


def begin(table: JobTable, job: Job, needs: Needs, blocked: Needs, commit_ms: int, now_ms: int) -> int:
    """Bind a released job to its edges: -> SCHEDULED, DEFERRED or QUEUED; return the gates visited."""
    table.bind(job, needs, blocked)
    table.edges.insert_late(job, [dependency_id for dependency_id, _ in needs])
    table.set_time(job, commit_ms)
    if job.due_ms is not None:
        table.become(job, SCHEDULED)
        job.timer = table.timers.add(DUE, job.due_ms, job)
        table.journal.note(job, EventKind.SCHEDULED, DEFERRED)
        return 0
    return 0 if job.blocked else table.queue(job, now_ms)


def remove(table: JobTable, job: Job) -> None:
    """Remove a job that was never committed, or the start of a submission, without a trace."""
    if job.extras is not None:
        table.edges.release(job)
    if job.spec.claims:
        table.paths.remove(job)
    if not job.is_start:
        table.hidden -= 1
        if job.spec.flow is not None:
            table.flows.remove(job)
    table.edges.forget(job.id)
    table.awaited.discard(job.id)
    del table.jobs[job.id]
