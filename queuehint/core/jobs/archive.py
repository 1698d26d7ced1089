"""
Jobs that are over and whose records are kept: discard, redrive and revive them, drop their records.

A record is dropped in two steps: `forget` leaves the id taken, so that a late repetition of its enqueue is recognized;
`prune` removes the id too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.job import DIGEST_FROM
from queuehint.core.structures.timers import TimerKind
from queuehint.values.event import EventKind
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.core.jobs.table import Ledger
    from queuehint.core.structures.job import Job, Needs

_SCHEDULED, DEFERRED, QUEUED, _STARTED, _FINISHED, FAILED, CANCELED = JobState
_DUE, _LEASE, EXPIRY, PRUNE = TimerKind


def discard(ledger: Ledger, job: Job, now_ms: int) -> int:
    """Discard a dead job, and the place it may hold: FAILED -> CANCELED; return the gates left."""
    left = ledger.free(job) if job.walk is not None else 0
    ledger.become(job, CANCELED)
    ledger.journal.note(job, EventKind.CANCELED, FAILED, "discarded")
    ledger.edges.end_telling(job)
    del ledger.dead[job.number]
    job.cause = "discarded"
    ledger.drop_timer(job)
    job.timer = ledger.timers.add(PRUNE, now_ms + ledger.kept_ms(job.spec, CANCELED), job)
    return left


def redrive(ledger: Ledger, job: Job, now_ms: int) -> None:
    """Requeue a dead job at the place it held or at a new one: FAILED -> QUEUED."""
    ledger.become(job, QUEUED)
    del ledger.dead[job.number]
    ledger.drop_timer(job)
    ledger.last_number = job.since = ledger.last_number + 1
    _restart(ledger, job)
    ledger.journal.note(job, EventKind.REDRIVEN, FAILED)
    if job.walk is not None:
        ledger.holding -= 1
        job.queued_ms = now_ms
        ledger.holds.remove(job)
        ledger.ready.add(job)
    else:
        ledger.place(job, now_ms)


def revive(ledger: Ledger, job: Job, blocked: Needs, now_ms: int) -> int:
    """Requeue a job that a dependency canceled: CANCELED -> DEFERRED or QUEUED; return the gates visited."""
    assert not job.blocked
    ledger.edges.rise(job)
    ledger.become(job, DEFERRED if blocked else QUEUED)
    ledger.drop_timer(job)
    ledger.last_number = job.since = ledger.last_number + 1
    _restart(ledger, job)
    ledger.journal.note(job, EventKind.REDRIVEN, CANCELED)
    ledger.bind(job, job.note().needs, blocked)
    within_ms = job.spec.policy.start_within_ms
    if within_ms is not None and job.first_ms is None:
        job.expiry = ledger.timers.add(EXPIRY, now_ms + within_ms, job)
    return 0 if blocked else ledger.place(job, now_ms)


def _restart(ledger: Ledger, job: Job) -> None:
    """Index a job as unfinished, and reset its attempts and its end."""
    ledger.edges.end_telling(job)
    job.attempts = job.losses = 0
    job.cause = job.cancel = job.ended_ms = job.result = None
    if job.notes is not None:
        job.notes.is_parent = job.notes.to_begin = False
        job.notes.child_failed = None
    if job.spec.claims:
        ledger.past.remove(job)
        ledger.paths.add(job)
    if job.spec.key is not None:
        ledger.keys.add(job.spec.key, job)


def keep(ledger: Ledger, job: Job, until_ms: int) -> None:
    """Keep the record of a job until *until_ms*."""
    job.timer = ledger.timers.add(PRUNE, until_ms, job)


def forget(ledger: Ledger, job: Job, until_ms: int, *, digest_from: int = DIGEST_FROM) -> None:
    """
    Drop the record of a job but its id, which stays taken until *until_ms*.

    Args:
        digest_from: of arguments larger than so many bytes a digest is kept.
    """
    _unindex(ledger, job)
    job.gone = True
    job.result = None
    if job.notes is not None:
        old, job.notes = job.notes, None
        if old.asked is not None or old.holds or old.blocked:
            notes = job.note()
            notes.asked, notes.holds, notes.needs, notes.blocked = old.asked, old.holds, old.needs, old.blocked
    job.shorten(above=digest_from)
    job.timer = ledger.timers.add(PRUNE, until_ms, job)


def prune(ledger: Ledger, job: Job) -> None:
    """Remove a job and its id; its place is free and its timer has fired."""
    _unindex(ledger, job)
    ledger.edges.bury(job.id)
    del ledger.jobs[job.id]


def _unindex(ledger: Ledger, job: Job) -> None:
    """Take a record out of all indexes, unless it is dropped already."""
    if not job.gone:
        ledger.journal.note(job, EventKind.PRUNED, job.state)
        ledger.edges.rise(job)
        ledger.edges.end_telling(job)
        ledger.catalog.remove(job)
        if job.spec.claims:
            ledger.past.remove(job)
        if job.spec.flow is not None:
            ledger.flows.remove(job)
        ledger.counts[job.state] -= 1
        if job.state is FAILED:
            del ledger.dead[job.number]
