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
    from queuehint.core.jobs.table import Ledger
    from queuehint.core.structures.job import Job, Needs

SCHEDULED, DEFERRED, _QUEUED, _STARTED, FINISHED, _FAILED, CANCELED = JobState
DUE, _LEASE, EXPIRY, _PRUNE = TimerKind


def open_start(ledger: Ledger, job_id: str, flow: str | None, now_ms: int) -> Job:
    """Create the start of a submission in parts, a hidden job that its jobs depend on."""
    job = ledger.create(JobSpec(id=job_id, task="start", flow=flow), now_ms)
    job.state = DEFERRED
    return job


def keep_start(ledger: Ledger, start: Job, until_ms: int) -> None:
    """Let a submission expire at *until_ms* unless another part or the commit comes before."""
    if start.expiry is not None:
        ledger.timers.drop(start.expiry)
    start.expiry = ledger.timers.add(EXPIRY, until_ms, start)


def stage(ledger: Ledger, spec: JobSpec, now_ms: int, needs: Needs, start: Job) -> Job:
    """Create a hidden job of a submission in parts, which depends on the start."""
    job = ledger.create(spec, now_ms)
    job.state = DEFERRED
    notes = job.note()
    notes.start, notes.needs = start, needs
    ledger.hidden += 1
    ledger.edges.add(job, start.id, START)
    return job


def commit(ledger: Ledger, start: Job, now_ms: int) -> int:
    """Make all jobs of a submission visible at once; return their number."""
    staged = ledger.edges.count(start.id)
    # The commit takes a number itself: its jobs depend on no job that was enqueued or committed after it.
    ledger.last_number = start.since = ledger.last_number + 1
    _close_start(ledger, start, FINISHED, now_ms)
    ledger.hidden -= staged
    ledger.committing += 1
    ledger.counts[DEFERRED] += staged
    return staged


def expire(ledger: Ledger, start: Job, now_ms: int) -> None:
    """Cancel a submission that was not committed in time."""
    start.expiry = None
    _close_start(ledger, start, CANCELED, now_ms)


def _close_start(ledger: Ledger, start: Job, state: JobState, now_ms: int) -> None:
    """End the start, so that its edges are resolved."""
    if start.expiry is not None:
        ledger.timers.drop(start.expiry)
        start.expiry = None
    start.state = state
    start.ended_ms = now_ms


def unstage(ledger: Ledger, job: Job) -> int:
    """Release one job of a committed submission; return the commit time, which is its enqueue time."""
    notes = job.note()
    start, notes.start = notes.start, None
    assert start is not None
    notes.came = start.since
    assert start.ended_ms is not None
    ledger.edges.close(job, start.id)
    ledger.deferred[job.number] = job
    job.enqueued_ms = start.ended_ms
    ledger.catalog.add(job)
    ledger.journal.note(job, EventKind.ENQUEUED, None)
    return start.ended_ms


def begin(ledger: Ledger, job: Job, needs: Needs, blocked: Needs, commit_ms: int, now_ms: int) -> int:
    """Bind a released job to its edges: -> SCHEDULED, DEFERRED or QUEUED; return the gates visited."""
    ledger.bind(job, needs, blocked)
    ledger.edges.late_added += bool(needs)
    ledger.set_time(job, commit_ms)
    if job.due_ms is not None:
        ledger.become(job, SCHEDULED)
        job.timer = ledger.timers.add(DUE, job.due_ms, job)
        ledger.journal.note(job, EventKind.SCHEDULED, DEFERRED)
        return 0
    return 0 if blocked else ledger.queue(job, now_ms)


def remove(ledger: Ledger, job: Job) -> None:
    """Remove a job that was never committed, or the start of a submission, without a trace."""
    if job.notes is not None:
        ledger.edges.release(job)
    if job.spec.claims:
        ledger.paths.remove(job)
    if not job.is_start:
        ledger.hidden -= 1
        if job.spec.flow is not None:
            ledger.flows.remove(job)
    ledger.edges.bury(job.id)
    ledger.awaited.discard(job.id)
    del ledger.jobs[job.id]
