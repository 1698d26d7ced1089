"""
Submissions in parts: jobs are staged, hidden from all queries, until one commit makes them visible. Timeouts of flows.

Each submission has a *start*, a hidden job that its staged jobs depend on. A commit ends it FINISHED, and a sweep then
releases the jobs in order of number; a withdrawal, an expiry, or an enqueue that takes one of its jobs ends it
CANCELED, and a sweep removes them.

A flow with a timeout has a *deadline*, a hidden job that no other depends on. Its expiry removes it and cancels what is
unfinished of the flow; a new flow of the same id replaces it, or removes it if it has no timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.edges import START
from queuehint.core.structures.job import DEADLINE_MARK
from queuehint.core.structures.leftovers import CancelFlowSweep, DropSweep
from queuehint.core.structures.timers import TimerKind
from queuehint.values.event import EventKind
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from queuehint.core.jobs.table import JobTable
    from queuehint.core.structures.job import Job, Needs

SCHEDULED, DEFERRED, _QUEUED, _STARTED, FINISHED, _FAILED, CANCELED = JobState
DUE, _LEASE, EXPIRY, _PRUNE, _RESUME = TimerKind
FLOW_TIMEOUT = "flow_timeout"
"""The cause of the cancellation of a job whose flow has timed out."""


def open_start(table: JobTable, job_id: str, flow: str | None, now_ms: int) -> Job:
    """Create the start of a submission in parts: a hidden dependency of its jobs."""
    job = table.create(JobSpec(id=job_id, task="start", flow=flow), now_ms)
    job.state = DEFERRED
    return job


def keep_start(table: JobTable, start: Job, until_ms: int) -> None:
    """Set the expiry of a staged submission, or of a deadline. A further part or the commit replaces it."""
    _drop_expiry(table, start)
    start.expiry = table.timers.add(EXPIRY, until_ms, start)


def _drop_expiry(table: JobTable, start: Job) -> None:
    if start.expiry is not None:
        table.timers.drop(start.expiry)
        start.expiry = None


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
    extras = job.need_extras()
    extras.more_needs += (needs,)
    assert extras.start is not None
    extras.start.need_extras().portions_added += 1


def is_whole(table: JobTable, start: Job, jobs: int, portions: int) -> bool:
    """Return whether a submission has just as many jobs and portions of dependencies."""
    added = start.extras.portions_added if start.extras is not None else 0
    return table.edges.count(start.id) == jobs and added == portions


def take(table: JobTable, job: Job, now_ms: int) -> None:
    """Begin to drop a submission whose hidden job another enqueue has taken: it can no longer take effect whole."""
    start = job.need_extras().start
    assert start is not None
    if not start.is_over:
        withdraw(table, start, now_ms)


def commit(table: JobTable, start: Job, now_ms: int) -> int:
    """Make all jobs of a submission visible at once. Return their number."""
    staged = table.edges.count(start.id)
    # The commit takes a number itself: its jobs depend on no job that was enqueued or committed after it.
    table.last_number = start.since = table.last_number + 1
    _close_start(table, start, FINISHED, now_ms)
    table.hidden -= staged
    table.committing += 1
    table.counts[DEFERRED] += staged
    return staged


def expire(table: JobTable, start: Job, now_ms: int) -> None:
    """Begin to drop a submission that was not committed in time, or to cancel a flow that has timed out."""
    start.expiry = None
    if start.id.startswith(DEADLINE_MARK):
        remove(table, start)
        cancel_flow(table, start.id[len(DEADLINE_MARK) :], FLOW_TIMEOUT)
        return
    withdraw(table, start, now_ms)


def withdraw(table: JobTable, start: Job, now_ms: int) -> None:
    """Begin to drop an uncommitted submission."""
    _close_start(table, start, CANCELED, now_ms)
    table.leftovers.append(DropSweep(start, table.last_number))


def _close_start(table: JobTable, start: Job, state: JobState, now_ms: int) -> None:
    """End the start, so that its edges are resolved."""
    _drop_expiry(table, start)
    start.state = state
    start.ended_ms = now_ms


def unstage(table: JobTable, job: Job) -> int:
    """Release one job of a committed submission. Return the commit time, which is its enqueue time."""
    extras = job.need_extras()
    start, extras.start = extras.start, None
    assert start is not None
    extras.came = start.since
    assert start.ended_ms is not None
    table.edges.close(job, start.id)
    table.deferred[job.number] = job
    job.enqueued_ms = start.ended_ms
    if table.limits.pending:
        table.limits.count(job, -1)
        table.catalog.add(job)
        table.limits.count(job, 1)
    else:
        table.catalog.add(job)
    table.journal.note(job, EventKind.ENQUEUED, None)
    return start.ended_ms


def begin(table: JobTable, job: Job, needs: Needs, blocked: Needs, commit_ms: int, now_ms: int) -> int:
    """Bind a released job to its edges: -> SCHEDULED, DEFERRED or QUEUED. Return the gates visited."""
    table.bind(job, needs, blocked)
    table.edges.insert_late(job, [dependency_id for dependency_id, _ in needs])
    table.set_time(job, commit_ms)
    if job.due_ms is not None:
        table.become(job, SCHEDULED)
        job.timer = table.timers.add(DUE, job.due_ms, job)
        table.journal.note(job, EventKind.SCHEDULED, DEFERRED)
        return 0
    return 0 if job.blocked else table.queue(job, now_ms)


def set_timeout(table: JobTable, flow: str, timeout_ms: int | None, now_ms: int) -> None:
    """Set the timeout of a new flow, None for never. The timeout of an earlier flow of its id is dropped."""
    deadline = table.jobs.get(DEADLINE_MARK + flow)
    if timeout_ms is not None:
        keep_start(table, deadline or open_start(table, DEADLINE_MARK + flow, flow, now_ms), now_ms + timeout_ms)
    elif deadline is not None:
        _drop_expiry(table, deadline)
        remove(table, deadline)


def cancel_flow(table: JobTable, flow: str, cause: str) -> None:
    """Begin to cancel the unfinished jobs of a flow. Later enqueued or redriven jobs are not covered."""
    # The cancellation takes a number itself.
    table.last_number += 1
    table.leftovers.append(CancelFlowSweep(flow, table.last_number, cause, table.last_number))


def remove(table: JobTable, job: Job) -> None:
    """Remove an uncommitted job, the start of a submission, or a deadline, without a trace."""
    if job.extras is not None:
        table.edges.release(job)
    if job.spec.claims:
        table.paths.remove(job)
    if not job.is_start:
        table.hidden -= 1
        if table.limits.pending:
            table.limits.count(job, -1)
        if job.spec.flow is not None:
            table.flows.remove(job)
    table.edges.forget(job.id)
    table.awaited.discard(job.id)
    del table.jobs[job.id]
