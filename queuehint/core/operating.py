"""Operations of operators: cancel, redrive, pause, close, limit, schedule, weigh."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import attrs

from queuehint import operations as op
from queuehint.core.jobs import archive, revisions, staging
from queuehint.core.state import handles
from queuehint.core.structures.edges import REACH_MAX
from queuehint.core.structures.leftovers import CancelSweep
from queuehint.core.work import follow, more
from queuehint.errors import InvalidJobError
from queuehint.operations import Verdict
from queuehint.operations.bounds import OTHER_SPEC, WEIGHTS_FULL
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.core.state import State
    from queuehint.core.structures.job import Job, Needs

_SCHEDULED, _DEFERRED, QUEUED, STARTED, _FINISHED, FAILED, CANCELED = JobState
DONE, REQUESTED, REFUSED, UNKNOWN, _LOST, _CANCELED_VERDICT, STALE = Verdict


@handles(op.Cancel)
def cancel(state: State, operation: op.Cancel) -> op.Judged:
    """Answer `Cancel`."""
    cause = operation.reason or "canceled"
    verdicts: list[tuple[Verdict, JobState | None]] = []
    for job_id in operation.ids:
        job = state.find(job_id)
        if job is None:
            verdicts.append((UNKNOWN, None))
        elif job.is_over:
            verdicts.append((REFUSED, job.state))
        else:
            state.lifecycle.cancel(job, cause)
            verdicts.append((REQUESTED if job.state is STARTED else DONE, job.state))
    follow(state)
    return op.Judged(tuple(verdicts), more(state))


@handles(op.CancelPath)
def cancel_path(state: State, operation: op.CancelPath) -> op.SweptPath:
    """Answer `CancelPath`."""
    table = state.table
    # The cancellation takes a number itself: jobs enqueued or redriven later are not covered.
    table.last_number += 1
    cause = operation.reason or "canceled"
    sweep = CancelSweep((operation.path,), table.last_number, cause, table.last_seq)
    table.leftovers.append(sweep)
    follow(state)
    number = None if sweep.is_over else sweep.leave_tally(state.shared)
    return op.SweptPath(more(state), sweep.reached, number)


@handles(op.CancelFlow)
def cancel_flow(state: State, operation: op.CancelFlow) -> op.Swept:
    """Answer `CancelFlow`."""
    staging.cancel_flow(state.table, operation.flow, operation.reason or "canceled")
    follow(state)
    return op.Swept(more(state))


@handles(op.Redrive)
def redrive(state: State, operation: op.Redrive) -> op.Judged:
    """Answer `Redrive`."""
    if operation.waiting:
        return _make_due(state, operation.ids)
    if operation.again:
        return _run_again(state, operation)
    jobs, verdicts = _dead(state, operation.ids, QUEUED)
    follow(state)
    for job in sorted(jobs, key=lambda job: job.number):
        state.lifecycle.redrive(job, downstream=operation.downstream)
        if operation.drop_steps:
            job.drop_steps()
    return op.Judged(verdicts, more(state))


def _run_again(state: State, operation: op.Redrive) -> op.Judged:
    """Run ended jobs again, all or none."""
    follow(state)
    ids = frozenset(operation.ids)
    found: dict[str, tuple[Job, Needs]] = {}
    verdicts: list[tuple[Verdict, JobState | None]] = []
    for job_id, version in zip(operation.ids, operation.again, strict=True):
        job = state.find(job_id)
        if job is None:
            verdicts.append((UNKNOWN, None))
        elif job.is_over and version != job.version:
            verdicts.append((STALE, job.state))
        elif (blocked := archive.blocked_again(state.table, job, ids)) is None:
            verdicts.append((REFUSED, job.state))
        else:
            found[job_id] = job, blocked
            verdicts.append((REQUESTED, job.state))
    table = state.table
    waiting = archive.awaiting(table, found)
    outside = [each for _, blocked in found.values() for each, _ in blocked if each not in ids]
    if len(waiting) > REACH_MAX or (waiting and table.edges.reaches(table.jobs, outside, waiting, set()) is not False):
        # What is not over outside waits for these in turn, through those that wait for them, or may.
        for at, job_id in enumerate(operation.ids):
            if verdicts[at][0] is REQUESTED and archive.waits_outside(table, found[job_id][1], ids):
                verdicts[at] = (REFUSED, verdicts[at][1])
    if found.keys() == ids and all(verdict is REQUESTED for verdict, _ in verdicts):
        for job, blocked in sorted(found.values(), key=lambda each: each[0].number):
            state.lifecycle.redrive(job, downstream=operation.downstream, blocked=blocked)
            if operation.drop_steps:
                job.drop_steps()
        archive.await_again(table, ids)
        verdicts = [(DONE, found[job_id][0].state) for job_id in operation.ids]
    return op.Judged(tuple(verdicts), more(state))


def _make_due(state: State, ids: tuple[str, ...]) -> op.Judged:
    """Make waiting jobs due. Return DONE with each job's resulting state."""
    made: list[Job | tuple[Verdict, JobState | None]] = []
    for job_id in ids:
        job = state.find(job_id)
        if job is None:
            made.append((UNKNOWN, None))
        elif job.due_ms is None:
            made.append((REFUSED, job.state))
        else:
            revisions.make_due(state.table, job, state.now_ms)
            made.append(job)
    follow(state)
    verdicts = [each if isinstance(each, tuple) else (DONE, each.state) for each in made]
    return op.Judged(tuple(verdicts), more(state))


@handles(op.Discard)
def discard(state: State, operation: op.Discard) -> op.Judged:
    """Answer `Discard`."""
    jobs, verdicts = _dead(state, operation.ids, CANCELED)
    for job in jobs:
        state.lifecycle.discard(job)
    follow(state)
    return op.Judged(verdicts, more(state))


@handles(op.Delete)
def delete(state: State, operation: op.Delete) -> op.Judged:
    """Answer `Delete`."""
    versions = operation.versions or repeat(None)
    verdicts = tuple([_drop(state, *item) for item in zip(operation.ids, versions, strict=False)])
    follow(state)
    return op.Judged(verdicts, more(state))


def _drop(state: State, job_id: str, version: int | None) -> tuple[Verdict, JobState | None]:
    job = state.find(job_id)
    if job is None:
        return UNKNOWN, None
    if version is not None and version != job.version:
        return STALE, job.state
    if not state.lifecycle.delete(job):
        return REFUSED, job.state
    return DONE, None


def _dead(
    state: State, ids: tuple[str, ...], target: JobState
) -> tuple[list[Job], tuple[tuple[Verdict, JobState | None], ...]]:
    """Select the named jobs in the dead-letter queue, and protect them from pruning for this operation."""
    jobs: dict[str, Job] = {}
    verdicts: list[tuple[Verdict, JobState | None]] = []
    for job_id in ids:
        job = state.find(job_id)
        if job is None:
            verdicts.append((UNKNOWN, None))
        elif job.state is not FAILED or (
            target is QUEUED and (job.spec.presence_ms is not None or state.lifecycle.is_shut(job))
        ):
            verdicts.append((REFUSED, job.state))
        else:
            jobs[job_id] = job
            state.table.drop_timer(job)
            verdicts.append((DONE, target))
    return list(jobs.values()), tuple(verdicts)


@handles(op.Amend)
def amend(state: State, operation: op.Amend) -> op.Noted:
    """Answer `Amend`."""
    spec, job = operation.spec, state.find(operation.spec.id)
    if job is None:
        return op.Noted(UNKNOWN)
    if attrs.evolve(spec, service=job.spec.service, user=job.spec.user) != job.spec:
        raise InvalidJobError(OTHER_SPEC)
    if operation.version != job.version:
        return op.Noted(STALE)
    if spec != job.spec:
        revisions.amend(state.table, job, spec)
    return op.Noted(DONE)


@handles(op.Pause)
def pause(state: State, operation: op.Pause) -> op.Marked:
    """Answer `Pause`."""
    until_ms = None if operation.for_ms is None else state.now_ms + operation.for_ms
    changed = state.table.pauses.begin(operation.filter, until_ms)
    follow(state)
    return op.Marked(changed, more(state))


@handles(op.Resume)
def resume(state: State, operation: op.Resume) -> op.Marked:
    """Answer `Resume`."""
    changed = state.table.pauses.resume(operation.filter)
    follow(state)
    return op.Marked(changed, more(state))


@handles(op.Close)
def close(state: State, operation: op.Close) -> op.Marked:
    """Answer `Close`."""
    closed, path = state.table.closed, operation.path
    changed = (path in closed) == operation.reopen
    if operation.reopen:
        closed.pop(path, None)
    else:
        closed.setdefault(path, None)
    follow(state)
    return op.Marked(changed, more(state))


@handles(op.SetLimit)
def set_limit(state: State, operation: op.SetLimit) -> op.Marked:
    """Answer `SetLimit`."""
    table = state.table
    changed = table.limits.set(operation.limit, table.registry.running.values(), table.catalog, table.last_number)
    follow(state)
    return op.Marked(changed, more(state))


@handles(op.Weigh)
def weigh(state: State, operation: op.Weigh) -> op.Marked:
    """Answer `Weigh`."""
    weights, user, weight = state.table.ready.weights, operation.user, operation.weight
    changed = weights.get(user, 1) != weight
    if changed and user not in weights and len(weights) >= op.WEIGHTS_MAX:
        raise InvalidJobError(WEIGHTS_FULL)
    if weight == 1:
        weights.pop(user, None)
    else:
        weights[user] = weight
    follow(state)
    return op.Marked(changed, more(state))


@handles(op.PutSchedule)
def put_schedule(state: State, operation: op.PutSchedule) -> op.Marked:
    """Answer `PutSchedule`."""
    changed = state.timetable.put(operation)
    follow(state)
    return op.Marked(changed, more(state))


@handles(op.ChangeSchedule)
def change_schedule(state: State, operation: op.ChangeSchedule) -> op.Marked:
    """Answer `ChangeSchedule`."""
    timetable, name = state.timetable, operation.name
    if operation.change == "drop":
        changed = timetable.drop(name)
    elif operation.change == "pause":
        changed = timetable.pause(name)
    else:
        assert operation.version is not None
        changed = timetable.resume(name, operation.version, operation.next_ms)
    follow(state)
    return op.Marked(changed, more(state))
