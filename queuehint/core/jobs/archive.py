"""Ended jobs: discard, redrive and revive them, drop their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.jobs.closings import last_above
from queuehint.core.structures.edges import REACH_MAX, evaluate
from queuehint.core.structures.job import DIGEST_FROM
from queuehint.core.structures.timers import TimerKind
from queuehint.values.event import EventKind
from queuehint.values.record import JobState
from queuehint.values.spec import SIGNAL_TASK

if TYPE_CHECKING:
    from collections.abc import Collection

    from queuehint.core.jobs.table import JobTable
    from queuehint.core.structures.job import Job, Needs

_SCHEDULED, DEFERRED, QUEUED, _STARTED, FINISHED, FAILED, CANCELED = JobState
_DUE, _LEASE, EXPIRY, PRUNE, _RESUME = TimerKind


def discard(table: JobTable, job: Job, now_ms: int) -> int:
    """Discard a dead job and free its held place: FAILED -> CANCELED. Return the gates left."""
    left = table.free(job) if job.walk is not None else 0
    table.become(job, CANCELED)
    table.journal.note(job, EventKind.CANCELED, FAILED, "discarded")
    table.edges.end_resolving(job)
    del table.dead[job.number]
    job.cause = "discarded"
    table.drop_timer(job)
    job.timer = table.timers.add(PRUNE, now_ms + table.kept_ms(job.spec, CANCELED), job)
    return left


def redrive(table: JobTable, job: Job, now_ms: int, blocked: Needs | None = None) -> None:
    """Requeue a dead job at its held place or at a new one: FAILED -> QUEUED. With *blocked*, requeue from any end."""
    if blocked is not None:
        revive(table, job, blocked, now_ms)
        return
    table.become(job, QUEUED)
    del table.dead[job.number]
    table.drop_timer(job)
    table.last_number = job.since = table.last_number + 1
    _restart(table, job)
    table.journal.note(job, EventKind.REDRIVEN, FAILED)
    if job.walk is not None:
        table.holding -= 1
        job.queued_ms = now_ms
        table.holds.remove(job)
        table.ready.add(job)
    else:
        table.place(job, now_ms)


def revive(table: JobTable, job: Job, blocked: Needs, now_ms: int) -> int:
    """
    Requeue an ended job, whatever its end: -> DEFERRED or QUEUED. Return the gates visited or left.

    One that is dead keeps the place it holds, unless it waits.
    """
    assert not job.blocked
    old = job.state
    if old is FINISHED and job.worker is not None:
        # Of a job that has finished at its first attempt none is noted yet.
        assert job.ended_ms is not None
        job.note_attempt(EventKind.FINISHED.value, job.ended_ms)
        job.worker = None
    table.edges.clear_canceled_by(job)
    table.become(job, DEFERRED if blocked else QUEUED)
    if old is FAILED:
        del table.dead[job.number]
    table.drop_timer(job)
    table.last_number = job.since = table.last_number + 1
    _restart(table, job)
    table.journal.note(job, EventKind.REDRIVEN, old)
    table.bind(job, job.need_extras().all_needs(), blocked)
    within_ms = job.spec.policy.start_within_ms
    if within_ms is not None and job.first_ms is None:
        job.expiry = table.timers.add(EXPIRY, now_ms + within_ms, job)
    if job.walk is None:
        return 0 if blocked else table.place(job, now_ms)
    if blocked:
        return table.free(job)
    table.holding -= 1
    job.queued_ms = now_ms
    table.holds.remove(job)
    table.ready.add(job)
    return 0


def blocked_again(table: JobTable, job: Job, ids: Collection[str]) -> Needs | None:
    """
    Return the dependencies of a job that runs again together with others, or None if the job cannot run again.

    Args:
        ids: those that are run again together.
    """
    extras = job.extras
    if not job.is_over or job.spec.presence_ms is not None or job.spec.task == SIGNAL_TASK:
        return None
    if table.closed and last_above(table.closed, job.spec) is not None:
        return None
    is_released = extras is None or not (extras.blocked or (extras.holds and job.state is not FAILED))
    # What is left over of ends and of commits comes first.
    if not is_released or table.committing or table.edges.is_resolving(job):
        return None
    # Any other job that may run, and cannot wait for it again, counts on its result.
    waiting = table.edges.dependents(job.id) if table.edges.count(job.id) <= REACH_MAX else None
    if waiting is None or any(not (each.is_over or _may_wait(each, job.id)) for _, each in waiting):
        return None
    needs = () if extras is None else extras.all_needs()
    others = tuple([need for need in needs if need[0] not in ids])
    blocked, canceled_by = evaluate(table.jobs, others, is_late=lambda other: other.enqueued_ms > job.enqueued_ms)
    return None if canceled_by is not None else (*[need for need in needs if need[0] in ids], *blocked)


def _may_wait(job: Job, dependency_id: str) -> bool:
    """Return whether an unfinished job waits, or can wait again, for an ended dependency."""
    if dependency_id in job.blocked:
        return True
    extras = job.need_extras()
    return job.state is DEFERRED and not extras.is_parent and extras.start is None


def await_again(table: JobTable, ids: Collection[str]) -> None:
    """Reopen the edges of unfinished dependents to jobs that run again."""
    waiting = {each.id: each for job_id in ids for _, each in table.edges.dependents(job_id) if not each.is_over}
    for job in waiting.values():
        for dependency_id, edge in job.need_extras().all_needs():
            if dependency_id in ids and dependency_id not in job.blocked:
                table.edges.add(job, dependency_id, edge)


def awaiting(table: JobTable, ids: Collection[str]) -> set[str]:
    """Return the ids of the unfinished dependents of ended jobs."""
    return {each.id for job_id in ids for _, each in table.edges.dependents(job_id) if not each.is_over}


def waits_outside(table: JobTable, blocked: Needs, ids: Collection[str]) -> bool:
    """Return whether a dependency outside *ids* is unfinished."""
    jobs = table.jobs
    return any(each in jobs and each not in ids and not jobs[each].is_over for each, _ in blocked)


def _restart(table: JobTable, job: Job) -> None:
    """Index a job as unfinished, and reset its attempts and its end."""
    table.edges.end_resolving(job)
    job.attempts = job.losses = 0
    job.cause = job.cancel = job.ended_ms = job.result = None
    extras = job.need_extras()
    extras.is_parent = extras.to_begin = False
    extras.child_failed = extras.start = None
    if job.spec.claims:
        table.past.remove(job)
        table.paths.add(job)
    if table.limits.pending:
        table.limits.count(job, 1)
    if job.spec.key is not None:
        if job.expiry is not None:
            table.timers.drop(job.expiry)
            job.expiry = None
        table.keys.add(job.spec.key, job)


def keep(table: JobTable, job: Job, until_ms: int) -> None:
    """Keep the record of a job until *until_ms*."""
    job.timer = table.timers.add(PRUNE, until_ms, job)


def forget(table: JobTable, job: Job, until_ms: int, *, digest_from: int = DIGEST_FROM) -> None:
    """
    Drop the record of a job. Its id stays taken until *until_ms*.

    Args:
        digest_from: of arguments larger than so many bytes a digest is kept.
    """
    _unindex(table, job)
    job.gone = True
    job.result = job.worker = None
    if job.extras is not None:
        old, job.extras = job.extras, None
        if old.asked is not None or old.holds or old.blocked:
            extras = job.need_extras()
            extras.asked, extras.holds, extras.blocked = old.asked, old.holds, old.blocked
            extras.needs, extras.more_needs = old.needs, old.more_needs
    job.shorten(above=digest_from)
    job.timer = table.timers.add(PRUNE, until_ms, job)


def prune(table: JobTable, job: Job) -> None:
    """Remove a job and its id. Its place is free and its timer has fired."""
    _unindex(table, job)
    table.edges.forget(job.id)
    del table.jobs[job.id]


def _unindex(table: JobTable, job: Job) -> None:
    """Remove a record from all indexes, unless already dropped."""
    if not job.gone:
        table.journal.note(job, EventKind.PRUNED, job.state)
        table.edges.clear_canceled_by(job)
        table.edges.end_resolving(job)
        table.catalog.remove(job)
        if job.spec.claims:
            table.past.remove(job)
        if job.spec.flow is not None:
            table.flows.remove(job)
        table.counts[job.state] -= 1
        if job.state is FAILED:
            del table.dead[job.number]
