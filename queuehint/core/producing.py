"""Operations of producers: enqueue jobs, commit submissions, draw ids, share values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from queuehint import operations as op
from queuehint.core.jobs import closings, revisions, staging
from queuehint.core.refusals import Submission, check_portion, is_part
from queuehint.core.state import handles
from queuehint.core.structures.edges import AFTER, OF_AWAITED, evaluate, needs_of, portion_of
from queuehint.core.structures.job import START_MARK
from queuehint.core.structures.leftovers import CommitSweep
from queuehint.core.work import follow, more
from queuehint.errors import DuplicateFlowError, FlowNotFoundError
from queuehint.operations.producing import new_enqueued_job
from queuehint.values.spec import SIGNAL_TASK, WAIT_MARK

if TYPE_CHECKING:
    from queuehint.core.state import State
    from queuehint.core.structures.job import Job
    from queuehint.values.spec import JobSpec


@handles(op.Enqueue)
def enqueue(state: State, operation: op.Enqueue) -> op.Enqueued:
    """Answer `Enqueue`."""
    specs = operation.jobs
    if _is_plain(state, operation):
        follow(state)
        now_ms, admit = state.now_ms, state.table.admit
        state.enqueued += len(specs)
        new = [admit(spec, now_ms) for spec in specs]
        return op.Enqueued(
            tuple([new_enqueued_job(job.id, job.number, job.state, created=True) for job in new]), more(state)
        )
    if operation.firing is not None:
        state.timetable.check_firing(operation.firing)
    submission = Submission(state, operation)
    submission.check()
    start = _start_of(state, operation) if operation.staged is not None else None
    if operation.closing is not None and submission.existing(specs[0]) is None:
        closings.close(state.table, operation.closing, specs[0].id)
    jobs, now_ms = state.table.jobs, state.now_ms
    for job in submission.elsewhere:
        staging.take(state.table, job, now_ms)
    follow(state)
    for job in submission.elsewhere:
        # It is not visible yet, so this enqueue replaces it.
        if jobs.get(job.id) is job:
            state.lifecycle.drop(job)
    enqueued = []
    for spec in specs:
        is_plain = spec.key is None and spec.presence_ms is None and not spec.depends_on and start is None
        if is_plain and spec.id not in jobs and spec.task != SIGNAL_TASK:
            job = state.table.admit(spec, now_ms)
            state.enqueued += 1
            enqueued.append(new_enqueued_job(job.id, job.number, job.state, created=True))
        else:
            enqueued.append(_enqueue_special(state, spec, submission, start))
    if start is not None:
        made = [jobs[each.id] for each in enqueued if each.created]
        # The record of a dependency may have expired just now.
        named = ((job, jobs.get(need[0])) for job in made for need in job.need_extras().needs)
        in_order = all(other is None or other.number < job.number for job, other in named)
        for job in made:
            job.need_extras().came = job.number if in_order else state.table.last_number
    elif operation.parent is None:
        # Those of jobs that there were before.
        for each in enqueued:
            if each.created and each.id.startswith(WAIT_MARK):
                state.lifecycle.end_unawaited(jobs[each.id])
    if operation.flow is not None and start is None and any(each.created for each in enqueued):
        staging.set_timeout(state.table, operation.flow, operation.flow_timeout_ms, now_ms)
    if operation.firing is not None:
        state.timetable.fire(operation.firing, enqueued[-1].id if enqueued else None)
    return op.Enqueued(tuple(enqueued), more(state))


def _is_plain(state: State, operation: op.Enqueue) -> bool:
    """Return whether a submission is of new jobs with nothing to be checked, and nothing else."""
    if operation.staged is not None or operation.parent is not None or operation.firing is not None:
        return False
    if operation.flow is not None or operation.closing is not None:
        return False
    if state.table.closed or state.table.limits.max_pending:
        return False
    jobs, limiters = state.table.jobs, state.table.limits.limiters
    for spec in operation.jobs:
        if limiters and spec.policy.cost > 1:
            return False
        if spec.key is not None or spec.presence_ms is not None or spec.depends_on or spec.id in jobs:
            return False
        if spec.task == SIGNAL_TASK:
            return False
    return True


def _start_of(state: State, operation: op.Enqueue) -> Job:
    """Return the start of a submission in parts, with a new expiry until its commit."""
    start_id = f"{START_MARK}{operation.staged}"
    start = state.table.jobs.get(start_id)
    if start is None:
        flow = operation.jobs[0].flow if operation.jobs else None
        start = staging.open_start(state.table, start_id, flow, state.now_ms)
    staging.keep_start(state.table, start, state.now_ms + op.STAGED_KEPT_MS)
    return start


def _enqueue_special(state: State, spec: JobSpec, submission: Submission, start: Job | None) -> op.EnqueuedJob:
    """Enqueue a job that may exist already (by id or key), has dependencies, or waits for its own caller."""
    table = state.table
    existing = submission.existing(spec)
    after = None
    if existing is None and spec.key is not None:
        newest = table.keys.newest(spec.key, state.now_ms)
        if newest is not None:
            if newest.stands_for_key:
                existing = newest
                if spec.on_conflict == "replace" and newest.is_fresh:
                    revisions.respec(table, newest, attrs.evolve(spec, id=newest.id), state.now_ms)
            elif spec.on_conflict == "after":
                after = newest
    if existing is not None:
        token = existing.token if existing.spec.presence_ms is not None else None
        return op.EnqueuedJob(existing.id, existing.number, existing.state, False, token)
    if (expired := table.jobs.get(spec.id)) is not None and spec.task == SIGNAL_TASK:
        state.lifecycle.delete(expired)
    job = _admit(state, spec, submission, start, after)
    if spec.id.startswith(WAIT_MARK) and (parent := submission.parent) is not None:
        table.edges.hold(parent, ((job.id, OF_AWAITED),))
    if spec.presence_ms is not None:
        job.token = state.next_token()
        table.set_lease(job, state.now_ms + spec.presence_ms)
    return op.EnqueuedJob(job.id, job.number, job.state, True, job.token)


def _admit(state: State, spec: JobSpec, submission: Submission, start: Job | None, after: Job | None) -> Job:
    """Add a new job with its edges."""
    table, now_ms = state.table, state.now_ms
    needs = needs_of(spec)
    if start is not None:
        return staging.stage(table, spec, now_ms, needs, start)
    state.enqueued += 1
    blocked, canceled_by = evaluate(table.jobs, needs, submission.ids)
    if canceled_by is not None:
        job = table.set_aside(spec, now_ms, needs)
        state.lifecycle.apply_cancellation(job, canceled_by)
        return job
    if spec.task == SIGNAL_TASK and not blocked:
        job = table.set_aside(spec, now_ms, needs)
        state.lifecycle.give(job)
        return job
    if after is not None and after.id not in dict(needs):
        blocked = (*blocked, (after.id, AFTER))
    return table.admit(spec, now_ms, needs=needs, blocked=blocked)


@handles(op.Commit)
def commit(state: State, operation: op.Commit) -> op.Committed:
    """Answer `Commit`."""
    start = state.table.jobs.get(START_MARK + operation.staged)
    if start is None or start.is_over:
        raise FlowNotFoundError(operation.staged)
    table = state.table
    if not staging.is_whole(table, start, operation.jobs, operation.portions):
        raise FlowNotFoundError(operation.staged)
    if operation.flow is not None and operation.jobs and table.flows.visible(operation.flow):
        raise DuplicateFlowError(operation.flow)
    staged = staging.commit(table, start, state.now_ms)
    state.enqueued += staged
    table.leftovers.append(CommitSweep(start, table.last_number))
    if operation.flow is not None and staged:
        staging.set_timeout(table, operation.flow, operation.flow_timeout_ms, state.now_ms)
    follow(state)
    return op.Committed(staged, more(state))


@handles(op.Depend)
def depend(state: State, operation: op.Depend) -> op.Marked:
    """Answer `Depend`."""
    table = state.table
    start = table.jobs.get(START_MARK + operation.staged)
    if start is None or start.is_over:
        raise FlowNotFoundError(operation.staged)
    job = table.jobs.get(operation.job_id)
    is_new = False
    if is_part(job, start) and operation.portion == len(job.need_extras().more_needs) + 1:
        check_portion(table, job, start, operation.edges)
        staging.depend(table, job, portion_of(operation.edges, operation.on_failure))
        is_new = True
    staging.keep_start(table, start, state.now_ms + op.STAGED_KEPT_MS)
    follow(state)
    return op.Marked(is_new, more(state))


@handles(op.Withdraw)
def withdraw(state: State, operation: op.Withdraw) -> op.Marked:
    """Answer `Withdraw`."""
    start = state.table.jobs.get(START_MARK + operation.staged)
    is_open = start is not None and not start.is_over
    if start is not None and is_open:
        staging.withdraw(state.table, start, state.now_ms)
    follow(state)
    return op.Marked(is_open, more(state))


@handles(op.Draw)
def draw(state: State, operation: op.Draw) -> op.Drawn:
    """Answer `Draw`."""
    state.drawn += operation.count
    return op.Drawn(state.drawn - operation.count + 1)


@handles(op.Peek)
def peek(state: State, _operation: op.Peek) -> op.Drawn:
    """Answer `Peek`."""
    return op.Drawn(state.drawn + 1)


@handles(op.Push)
def push(state: State, operation: op.Push) -> op.Pushed:
    """Answer `Push`."""
    follow(state)
    place = (operation.namespace, operation.key)
    until_ms = state.now_ms + operation.ttl_ms
    return op.Pushed(state.shared.push(place, operation.value, until_ms, state.now_ms), more(state))


@handles(op.Pull)
def pull(state: State, operation: op.Pull) -> op.Pulled:
    """Answer `Pull`."""
    return op.Pulled(state.shared.pull((operation.namespace, operation.key), state.now_ms))


@handles(op.ListShared)
def list_shared(state: State, question: op.ListShared) -> op.SharedKeys:
    """Answer `ListShared`."""
    keys, after = state.shared.keys(question.namespace, question.prefix, question.after, question.limit, state.now_ms)
    return op.SharedKeys(keys, after)
