"""Submissions: single jobs, several at once, deduplication keys, and staged parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from queuehint import operations as op
from queuehint.core.jobs.closings import cause_of_closing
from queuehint.core.structures.job import DEADLINE_MARK, START_MARK
from queuehint.testing.model.jobs import CANCELED, DEFERRED, EXPIRY, LEASE, PRUNE, Actor
from queuehint.testing.model.times import Times
from queuehint.values.spec import SIGNAL_MARK, SIGNAL_TASK, WAIT_MARK, JobSpec

if TYPE_CHECKING:
    from collections.abc import Collection


class Submissions(Times):
    """Operations of producers."""

    exact = True
    """Ready is foretold exactly: no claim so far was shared."""

    def existing(self, job_id: str, staged: str | None) -> Actor | None:
        """Return the job of an id, if it is visible to an enqueue."""
        hidden = self.hidden.get(job_id)
        if hidden is not None and staged is not None and hidden.part == START_MARK + staged:
            return hidden
        job = self.jobs.get(job_id)
        if job is not None and job_id.startswith(SIGNAL_MARK):
            # One whose time to be kept is over may be given anew.
            return job if job.alarms[PRUNE] > self.now_ms or self.is_needed(job) else None
        return job

    def enqueue(self, operation: op.Enqueue, reply: op.Enqueued | None) -> op.Enqueued:
        staged = operation.staged
        self.exact = self.exact and all(claim.mode == "exclusive" for spec in operation.jobs for claim in spec.claims)
        if staged is not None:
            self.keep_part(operation)
        if operation.closing is not None and self.existing(operation.jobs[0].id, None) is None:
            self.close_with(operation.closing, operation.jobs[0].id)
        ids = {spec.id for spec in operation.jobs}
        for job_id in ids:
            if self.existing(job_id, staged) is None and job_id in self.hidden:
                # The hidden job is unknown to all, so this one is new, and the other submission is never whole.
                self.drop_parts(self.starts[self.hidden[job_id].part or ""])
        self.catch_up()
        tokens = [job.presence_token for job in reply.jobs] if reply is not None else []
        tokens += [None] * len(operation.jobs)
        parent = operation.parent
        jobs = [
            self.take_in(spec, staged, ids, token, parent) for spec, token in zip(operation.jobs, tokens, strict=False)
        ]
        if staged is None and parent is None:
            # Those of jobs that there were before are waited for by none.
            self.end_waits([job.id for job in jobs if job.created and job.id.startswith(WAIT_MARK)])
        if staged is None and operation.flow is not None and any(job.created for job in jobs):
            self.set_timeout(operation.flow, operation.flow_timeout_ms)
        if staged is not None:
            self.see_order([self.hidden[job.id] for job in jobs if job.created])
        return op.Enqueued(tuple(jobs), more=False)

    def close_with(self, closing: op.Closing, last: str) -> None:
        """Close a path with a job that comes next as its last."""
        self.closed[closing.path] = last
        if closing.waiting == "cancel":
            self.numbers += 1
            self.agenda.append(partial(self.sweep, [closing.path], self.numbers, cause_of_closing(last)))
            self.agenda.append(partial(self.sweep_dead_jobs, closing.path, self.numbers))

    def take_in(
        self,
        spec: JobSpec,
        staged: str | None,
        coming: Collection[str],
        token: int | None,
        parent: tuple[str, int] | None,
    ) -> op.EnqueuedJob:
        """Find the submitted job, or make it."""
        job = self.existing(spec.id, staged)
        newest = self.newest(spec.key)
        created = False
        if job is None and newest is not None and newest.stands_for_key:
            job = newest
            if spec.on_conflict == "replace" and not job.ever_started:
                self.replace(job, attrs.evolve(spec, id=job.id))
        elif job is None:
            created = True
            if staged is not None:
                job = self.hide(spec, START_MARK + staged)
            else:
                job = self.admit(spec, newest if spec.on_conflict == "after" else None, coming, token)
                if parent is not None and job.id.startswith(WAIT_MARK):
                    self.hold(self.jobs[parent[0]], job.id)
        presence_token = job.token if job.is_for_a_caller else None
        return op.EnqueuedJob(job.id, job.number, job.state, created, presence_token)

    def admit(self, spec: JobSpec, after: Actor | None, coming: Collection[str], token: int | None) -> Actor:
        """Admit a new job. *after* is the job of its key that it waits for, *token* its caller's token."""
        self.numbers += 1
        job = self.jobs[spec.id] = Actor(spec, self.numbers)
        job.enqueued = self.now_ms
        job.state = DEFERRED
        self.woven = self.woven or bool(spec.depends_on)
        if self.bind(job, coming):
            if after is not None:
                job.waits.setdefault(after.id, "key")
                self.awaited.add(after.id)
            self.begin_or_give(job)
        if spec.presence_ms is not None:
            job.token = self.new_token(token)
            job.alarms[LEASE] = self.now_ms + spec.presence_ms
        return job

    def begin_or_give(self, job: Actor) -> None:
        """Move a new job on. A signal ends at once, as does a wait for a given one."""
        if job.spec.task == SIGNAL_TASK and not job.waits:
            self.give(job)
        else:
            self.begin(job)

    def new_token(self, token: int | None) -> int:
        """Return a *token* of the queue if it is greater than all before, as required, else a greater one."""
        self.tokens = token if token is not None and token > self.tokens else self.tokens + 1
        return self.tokens

    def replace(self, job: Actor, spec: JobSpec) -> None:
        """Replace a job that was never started. The new job keeps the place if its claims are the same."""
        if spec.claims != job.spec.claims:
            self.vacate(job)
        job.set_spec(spec)
        self.begin(job)

    # --- parts -------------------------------------------------------------------------------------------------------

    def keep_part(self, operation: op.Enqueue) -> None:
        """Wait for the commit of a submission in parts from now on."""
        self.woven = True
        start_id = f"{START_MARK}{operation.staged}"
        start = self.starts.get(start_id)
        if start is None:
            self.numbers += 1
            flow = operation.jobs[0].flow if operation.jobs else None
            start = self.starts[start_id] = Actor(JobSpec(id=start_id, task="start", flow=flow), self.numbers)
        start.alarms[EXPIRY] = self.now_ms + op.STAGED_KEPT_MS

    def see_order(self, part: list[Actor]) -> None:
        """Record whether a job of a part depends on a later one, so that a portion names none of them."""
        places = {job.spec.id: job.number for job in part}
        in_order = all(places.get(edge.id, 0) < job.number for job in part for edge in job.spec.depends_on)
        for job in part:
            job.sent = job.number if in_order else self.numbers

    def depend(self, operation: op.Depend, reply: op.Marked | None) -> op.Marked:
        start_id = START_MARK + operation.staged
        self.starts[start_id].alarms[EXPIRY] = self.now_ms + op.STAGED_KEPT_MS
        job = self.portion_for(operation)
        if job is not None:
            job.portions += 1
            self.starts[start_id].portions += 1
            job.needs.update({edge.id: (edge, operation.on_failure) for edge in operation.edges})
        self.catch_up()
        return op.Marked(job is not None, more=False)

    def portion_for(self, operation: op.Depend) -> Actor | None:
        """Return the job of a portion of dependencies, None if the portion is refused."""
        job = self.hidden.get(operation.job_id)
        if job is None or job.part != START_MARK + operation.staged or operation.portion != job.portions + 1:
            return None
        return job

    def hide(self, spec: JobSpec, part: str) -> Actor:
        self.numbers += 1
        job = self.hidden[spec.id] = Actor(spec, self.numbers)
        job.state, job.part = DEFERRED, part
        return job

    def commit(self, operation: op.Commit, reply: op.Committed | None) -> op.Committed:
        start_id = START_MARK + operation.staged
        del self.starts[start_id]
        self.numbers += 1
        jobs = [job for job in self.hidden.values() if job.part == start_id]
        for job in jobs:
            del self.hidden[job.id]
            self.jobs[job.id] = job
            job.part, job.enqueued = None, self.now_ms
        self.agenda.append(partial(self.take_up, jobs))
        if operation.flow is not None and jobs:
            self.set_timeout(operation.flow, operation.flow_timeout_ms)
        self.catch_up()
        return op.Committed(len(jobs), more=False)

    def withdraw(self, operation: op.Withdraw, reply: op.Marked | None) -> op.Marked:
        start = self.starts.get(START_MARK + operation.staged)
        if start is not None:
            self.drop_parts(start)
        self.catch_up()
        return op.Marked(start is not None, more=False)

    def set_timeout(self, flow: str, timeout_ms: int | None) -> None:
        """Set the timeout of a new flow, and drop that of an earlier flow of its id."""
        deadline_id = DEADLINE_MARK + flow
        if timeout_ms is None:
            self.starts.pop(deadline_id, None)
            return
        if deadline_id not in self.starts:
            self.numbers += 1
            self.starts[deadline_id] = Actor(JobSpec(id=deadline_id, task="start", flow=flow), self.numbers)
        self.starts[deadline_id].alarms[EXPIRY] = self.now_ms + timeout_ms

    def take_up(self, jobs: list[Actor]) -> None:
        for job in jobs:
            if not job.is_over and self.bind(job):
                last = self.last_above(job)
                if last is None:
                    self.begin_or_give(job)
                else:
                    self.end(job, CANCELED, cause_of_closing(last))
