"""Revisions of a job: its spec, replaced by a further job of the key or amended, and its due time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.ready_queue import Ranked
from queuehint.core.structures.timers import TimerKind
from queuehint.values.event import EventKind
from queuehint.values.record import OVER, JobState

if TYPE_CHECKING:
    from queuehint.core.jobs.table import JobTable
    from queuehint.core.structures.job import Job
    from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, *_ = JobState
DUE, _LEASE, EXPIRY, PRUNE, _RESUME = TimerKind


def respec(table: JobTable, job: Job, spec: JobSpec, now_ms: int) -> None:
    """Replace the spec of a job that was never started. Its place is kept with equal claims and no new time."""
    table.withdraw(job)
    table.drop_timer(job)
    extras = job.need_extras()
    if extras.asked is None:
        extras.asked = job.spec
    is_moved = spec.claims != job.spec.claims
    if is_moved:
        table.vacate(job)
        table.paths.remove(job)
    if job.spec.flow is not None:
        table.flows.remove(job)
    inherited = job.level if job.level > job.spec.priority else 0
    table.limits.count(job, -1)
    table.catalog.respec(job, spec)
    table.limits.count(job, 1)
    table.inheritance.set_level(job, max(spec.priority, inherited))
    if is_moved:
        table.paths.add(job)
    if spec.flow is not None:
        table.flows.add(job)
    table.set_time(job, now_ms)
    job.version += 1
    if job.due_ms is not None:
        due_ms = job.due_ms
        table.vacate(job)
        old = job.state
        table.become(job, SCHEDULED)
        table.journal.note(job, EventKind.SCHEDULED, old)
        job.timer = table.timers.add(DUE, due_ms, job)
    elif job.blocked:
        old = job.state
        table.become(job, DEFERRED)
        table.journal.note(job, EventKind.DEFERRED, old)
    elif not job.is_placed:
        table.queue(job, now_ms)
    elif not job.missing:
        table.ready.add(job)
    else:
        table.inheritance.inherit(job)


def amend(table: JobTable, job: Job, spec: JobSpec) -> None:
    """Amend the service or user of a job in any state. A ready job goes to the end of its new user's turn."""
    extras = job.need_extras()
    if extras.asked is None:
        extras.asked = job.spec
    is_offered = job.ready is not None and job.parked is None and spec.user != job.spec.user
    # Another pause may hold it now, or none: the next claim tells.
    is_other = (spec.user, spec.service) != (job.spec.user, job.spec.service)
    if is_other and job.parked is not None and job.ready is not None and not isinstance(job.parked, Ranked):
        job.parked.discard(job.ready)
        job.parked, is_offered = None, True
    elif is_offered:
        table.ready.remove(job)
    is_kept_anew = job.state in OVER and spec.service != job.spec.service
    table.catalog.respec(job, spec)
    if is_offered:
        table.ready.add(job)
    if is_kept_anew:
        assert job.ended_ms is not None
        table.drop_timer(job)
        job.timer = table.timers.add(PRUNE, job.ended_ms + table.kept_ms(spec, job.state), job)
    job.version += 1


def make_due(table: JobTable, job: Job, now_ms: int) -> None:
    """Make a job due now before its first attempt or the next. Its timer fires as any other."""
    assert job.due_ms is not None
    if job.due_ms <= now_ms:
        return
    table.drop_timer(job)
    job.due_ms = now_ms
    job.timer = table.timers.add(DUE, now_ms, job)
    within_ms = job.spec.policy.start_within_ms
    if job.expiry is not None and within_ms is not None:
        table.timers.drop(job.expiry)
        job.expiry = table.timers.add(EXPIRY, now_ms + within_ms, job)
