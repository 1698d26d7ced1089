"""Changes of the spec of a job: replaced by a further job of its key, or amended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.timers import TimerKind
from queuehint.values.event import EventKind
from queuehint.values.record import OVER, JobState

if TYPE_CHECKING:
    from queuehint.core.jobs.table import Ledger
    from queuehint.core.structures.job import Job
    from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, *_ = JobState
DUE, _LEASE, _EXPIRY, PRUNE = TimerKind


def respec(ledger: Ledger, job: Job, spec: JobSpec, now_ms: int) -> None:
    """Replace the spec of a job that was never started; with equal claims and no new time it keeps its place."""
    ledger.withdraw(job)
    ledger.drop_timer(job)
    notes = job.note()
    if notes.asked is None:
        notes.asked = job.spec
    is_moved = spec.claims != job.spec.claims
    if is_moved:
        ledger.vacate(job)
        ledger.paths.remove(job)
    if job.spec.flow is not None:
        ledger.flows.remove(job)
    inherited = job.level if job.level > job.spec.priority else 0
    ledger.catalog.respec(job, spec)
    ledger.inheritance.set_level(job, max(spec.priority, inherited))
    if is_moved:
        ledger.paths.add(job)
    if spec.flow is not None:
        ledger.flows.add(job)
    ledger.set_time(job, now_ms)
    job.version += 1
    if job.due_ms is not None:
        due_ms = job.due_ms
        ledger.vacate(job)
        old = job.state
        ledger.become(job, SCHEDULED)
        ledger.journal.note(job, EventKind.SCHEDULED, old)
        job.timer = ledger.timers.add(DUE, due_ms, job)
    elif job.blocked:
        old = job.state
        ledger.become(job, DEFERRED)
        ledger.journal.note(job, EventKind.DEFERRED, old)
    elif not job.is_placed:
        ledger.queue(job, now_ms)
    elif not job.missing:
        ledger.ready.add(job)
    else:
        ledger.inheritance.inherit(job)


def amend(ledger: Ledger, job: Job, spec: JobSpec) -> None:
    """Change the service or user of a job in any state; a ready one goes to the end of its new user's turn."""
    notes = job.note()
    if notes.asked is None:
        notes.asked = job.spec
    is_offered = job.ready is not None and job.parked is None and spec.user != job.spec.user
    is_kept_anew = job.state in OVER and spec.service != job.spec.service
    if is_offered:
        ledger.ready.remove(job)
    ledger.catalog.respec(job, spec)
    if is_offered:
        ledger.ready.add(job)
    if is_kept_anew:
        assert job.ended_ms is not None
        ledger.drop_timer(job)
        job.timer = ledger.timers.add(PRUNE, job.ended_ms + ledger.kept_ms(spec, job.state), job)
    job.version += 1
