"""
Job lifecycle rules: retries, losses, timers (promote, reap, prune), and the effect of an end on dependents.

The engine receives an operation, these rules decide what it means for a job, and the job table makes the transition.
Consequences for other jobs are appended to the leftovers and done in bounded steps.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.core.jobs import archive, staging
from queuehint.core.jobs.closings import cause_of_closing, last_above
from queuehint.core.structures.edges import (
    ENDS_DEPENDENT,
    FAIL,
    KEPT,
    NOTE,
    OF_AWAITED,
    OF_CHILD,
    REACH_MAX,
    WAIT,
    cause_of,
    edge_action,
    evaluate,
    is_late,
)
from queuehint.core.structures.job import DIGEST_FROM
from queuehint.core.structures.leftovers import (
    CancelSweep,
    CommitSweep,
    ReleaseSweep,
    ResolveSweep,
    ReviveSweep,
)
from queuehint.core.structures.timers import TimerKind
from queuehint.operations import EDGE_UNITS, EDGES_AT_ONCE
from queuehint.values.event import EventKind
from queuehint.values.outcome import JobError
from queuehint.values.record import JobState
from queuehint.values.spec import SIGNAL_MARK, SIGNAL_TASK, WAIT_MARK

if TYPE_CHECKING:
    from queuehint.core.jobs.table import JobTable
    from queuehint.core.structures.job import Job, Needs
    from queuehint.values.outcome import Outcome

_SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
_DUE, LEASE, EXPIRY, PRUNE, RESUME = TimerKind

UNSEARCHABLE = f"whether a child waits for this job cannot be decided within {REACH_MAX} jobs"
CANCEL_UNITS = REVIVE_UNITS = 4
"""Units for a job that is canceled because of another one, or revived, besides one unit and its gates."""
REAP_UNITS, PRUNE_UNITS = 2, 5
"""Units for a lease that has ended and for a record that is dropped, besides that of the timer and its gates."""
DROP_UNITS = 2
"""Units for a job of a submission that is not committed, besides one unit."""
NEXT_SLICE = 1_000_000
"""What stands in `CommitSweep.bound` for a slice of a portion: `EDGES_AT_ONCE` dependencies, bound at once."""
ID_KEPT_MS = 600_000
PINNED_LOOK_MIN_MS = 60_000
PINNED_LOOK_MAX_MS = 3_600_000
"""A result that a dependent may still read is kept; it is re-checked after its retention, within these bounds."""


class Lifecycle:
    """
    Decide the next transition of each job.

    ``lost`` and ``pruned`` count over the life of the engine, ``resolved`` counts the jobs that took their places when
    their last edge was resolved, with how long after the other job's end. Until ``reap_from_ms`` nothing is reaped.
    """

    def __init__(self, table: JobTable) -> None:
        self.table = table
        self.now_ms = 0
        self.reap_from_ms = 0
        self.lost = self.pruned = 0
        self.resolved = self.resolved_sum_ms = self.resolved_max_ms = 0

    # --- ends ----------------------------------------------------------------------------------------------------

    def end(self, job: Job, state: JobState, cause: str | None, *, keep_place: bool = False) -> int:
        """End a job and start to resolve the edges of its dependents. Return the gates left."""
        left = self.table.end(job, state, cause, self.now_ms, keep_place=keep_place)
        if self.table.edges.has_dependents(job.id):
            self._resolve_dependents(job)
        extras = job.extras
        # A dead job may be redriven: results of its dependencies are kept for it.
        if extras is not None and (extras.blocked or (extras.holds and state is not FAILED)):
            self.table.leftovers.append(ReleaseSweep(job))
        return left

    def _resolve_dependents(self, job: Job) -> bool:
        """Start to resolve the edges to an ended job. Return whether there are any."""
        table = self.table
        if not table.edges.has_dependents(job.id):
            return False
        sweep = ResolveSweep(job, table.last_number, since_ms=self.now_ms, state=job.state, since=job.since)
        table.leftovers.append(sweep)
        if not job.gone:
            table.edges.begin_resolving(job)
        return True

    def cancel(self, job: Job, cause: str) -> int:
        """Cancel an unfinished job, or request the worker of a running one to stop. Return the gates left."""
        if job.state is not STARTED:
            return self.end(job, CANCELED, cause)
        if job.cancel is None:
            self.table.ask_to_stop(job, cause)
        return 0

    def end_unawaited(self, wait: Job) -> int:
        """Cancel an unawaited wait for a signal. Return the units used."""
        is_kept = wait.is_over or self.table.edges.has_dependents(wait.id)
        return 0 if is_kept else CANCEL_UNITS + self.end(wait, CANCELED, "nobody waits for it")

    def die(self, job: Job, cause: str) -> int:
        """End a job FAILED and apply its `on_dead` policy. Return the gates left."""
        on_dead = job.spec.policy.on_dead
        left = self.end(job, FAILED, cause, keep_place=on_dead != "continue")
        if on_dead == "cancel_behind" and job.walk is not None:
            table = self.table
            table.last_number += 1
            paths = tuple(walk.path for walk in job.walks)
            cause = f"behind the dead job {job.id}"
            table.leftovers.append(
                CancelSweep(paths, table.last_number, cause, table.last_seq, behind=job, behind_seq=job.seq)
            )
        return left

    def discard(self, job: Job) -> int:
        """Discard a dead job, and resolve the edges of dependents that waited for a redrive. Return the gates left."""
        left = archive.discard(self.table, job, self.now_ms)
        self._resolve_dependents(job)
        if job.extras is not None and job.extras.holds:
            self.table.leftovers.append(ReleaseSweep(job))
        return left

    # --- places --------------------------------------------------------------------------------------------------

    def is_shut(self, job: Job) -> bool:
        """Return whether a path of a job was closed with another job as its last."""
        return bool(self.table.closed) and last_above(self.table.closed, job.spec) is not None

    def _shut_out(self, job: Job) -> int:
        """Cancel a job that would take a place behind the last job of a path. Return the gates left."""
        last = last_above(self.table.closed, job.spec)
        assert last is not None
        return self.end(job, CANCELED, cause_of_closing(last))

    # --- attempts ------------------------------------------------------------------------------------------------

    def fail(self, job: Job, error: JobError | None, delay_ms: int, *, final: bool) -> None:
        """Count a failed attempt and retry the job after a back-off, or let the job die."""
        self.record_error(job, error)
        if final or job.attempts >= job.spec.policy.max_attempts or job.spec.presence_ms is not None:
            self.die(job, "failed")
        else:
            self.back_off(job, delay_ms, EventKind.RETRIED, error.type if error is not None else None)

    def lose(self, job: Job, error: JobError | None) -> int:
        """Count a lost worker and requeue the job at its place, or end the job. Return the gates left."""
        self.record_error(job, error)
        job.attempts -= 1
        job.losses += 1
        self.lost += 1
        if job.losses >= job.spec.policy.max_losses:
            return self.die(job, "worker_lost")
        self.table.put_back(job, None, EventKind.LOST, error.type if error is not None else None)
        return 0

    def record_error(self, job: Job, error: JobError | None) -> None:
        """Append the error of the present attempt to the record, and to the event of its end."""
        journal = self.table.journal
        if journal.until_ms:
            journal.error = error
        if error is not None:
            job.need_extras().errors.append(attrs.evolve(error, attempt=job.attempts, at_ms=self.now_ms))

    def back_off(self, job: Job, delay_ms: int, kind: EventKind, cause: str | None = None) -> None:
        """Requeue a job after a back-off, at its place or, with `on_retry="yield"`, at a new one."""
        policy = job.spec.policy
        again_ms = self.now_ms + delay_ms
        if policy.on_retry == "yield":
            self.table.postpone(job, again_ms, kind, cause)
        elif delay_ms <= 0:
            self.table.put_back(job, None, kind, cause)
        else:
            self.table.put_back(job, again_ms, kind, cause)
            if delay_ms > policy.max_hold_ms:
                self.table.hold_until(job, self.now_ms + policy.max_hold_ms)

    # --- children ------------------------------------------------------------------------------------------------

    def await_children(self, job: Job, outcome: Outcome) -> None:
        """Make a job whose handler has returned wait for its children. Fail it on a cycle or an unfinished check."""
        jobs, edge = self.table.jobs, OF_AWAITED if outcome.again else OF_CHILD[outcome.on_child_failure]
        failed: tuple[str, JobState] | None = None
        children: list[tuple[str, str]] = []
        for child_id in dict.fromkeys(outcome.children):
            # The state of a child is known even after its record has expired.
            child = jobs.get(child_id)
            if child is None or child.is_hidden:
                error = JobError(
                    type="queuehint.errors.UnknownDependencyError", message=f"child {child_id} does not exist"
                )
                return self.fail(job, error, 0, final=True)
            if not child.is_over:
                children.append((child_id, edge))
            elif failed is None and edge_action(edge, child.state) == NOTE:
                failed = (child_id, child.state)
        is_cycle = self.table.edges.is_cycle(jobs, job, [child_id for child_id, _ in children], self.table.committing)
        if is_cycle is None:
            error = JobError(type="queuehint.errors.DependencyError", message=UNSEARCHABLE)
            return self.fail(job, error, 0, final=True)
        if is_cycle:
            error = JobError(type="queuehint.errors.CycleError", message="a child waits for this job")
            return self.fail(job, error, 0, final=True)
        if outcome.result is not None:
            job.result = outcome.result
        if failed is not None:
            job.need_extras().child_failed = failed
        if outcome.again:
            job.attempts -= 1
        if children:
            self.table.await_children(job, tuple(children), again=outcome.again)
        elif outcome.again:
            self.table.put_back(job, None, EventKind.RELEASED)
        else:
            self._end_parent(job)
        return None

    def _end_parent(self, job: Job) -> int:
        """End a job after its children: FINISHED, or FAILED because of a child. Return the gates left."""
        failed = job.extras.child_failed if job.extras is not None else None
        if failed is None:
            return self.end(job, FINISHED, None)
        self.record_error(job, JobError(type="child_failed", message=f"child {failed[0]} is {failed[1]}"))
        return self.die(job, "child_failed")

    # --- edges ---------------------------------------------------------------------------------------------------

    def resolve(self, job: Job, dependency: Job, since_ms: int) -> int:
        """
        Apply the policy of the edge to an ended dependency. Return the gates visited or left.

        Args:
            since_ms: when the dependency ended, was discarded, or its record expired.
        """
        edge = job.blocked.get(dependency.id)
        # One that was redriven before its edges were released waits for nothing.
        if edge is None or job.state in {QUEUED, STARTED}:
            return 0
        what = edge_action(edge, dependency.state)
        # A dropped dependency has no end; an ended one counts as expired only for edges that keep waiting.
        if dependency.gone and (what == WAIT or (dependency.ended_ms is None and edge[-1] == KEPT)):
            return CANCEL_UNITS + self.end(job, CANCELED, cause_of(dependency.id, None))
        if what == WAIT:
            return 0
        if what in ENDS_DEPENDENT:
            return self._end_because_of(job, dependency, what)
        if what == NOTE and job.need_extras().child_failed is None:
            job.need_extras().child_failed = (dependency.id, dependency.state)
        self.table.edges.close(job, dependency.id)
        if job.blocked:
            return 0
        if job.need_extras().is_parent:
            return self._end_parent(job)
        if job.state is not DEFERRED:
            return 0
        if job.spec.task == SIGNAL_TASK:
            return self.give(job)
        if self.is_shut(job):
            return self._shut_out(job)
        self._count_delay(self.now_ms - since_ms)
        return self.table.queue(job, self.now_ms)

    def _count_delay(self, delay_ms: int) -> None:
        """Record the time between the end of a job's last dependency and its placement."""
        self.resolved += 1
        self.resolved_sum_ms += delay_ms
        self.resolved_max_ms = max(self.resolved_max_ms, delay_ms)

    def give(self, job: Job) -> int:
        """End a signal with its data, or a wait with its signal's data. Return the gates left."""
        needs = job.need_extras().needs
        job.result = self.table.jobs[needs[0][0]].result if needs else job.spec.arguments
        return self.end(job, FINISHED, None)

    def _end_because_of(self, job: Job, dependency: Job, what: str) -> int:
        """Cancel a job because of the end of another, or let it fail. Return the units used."""
        cause = cause_of(dependency.id, dependency.state)
        if what == FAIL:
            self.record_error(job, JobError(type="dependency_failed", message=cause))
            left = self.die(job, "dependency_failed")
            # It has never run: a redrive runs it at once, with what it finds.
            if job.need_extras().holds and not job.blocked:
                self.table.leftovers.append(ReleaseSweep(job))
            return CANCEL_UNITS + left
        left = self.end(job, CANCELED, cause)
        if not dependency.gone:
            self.table.edges.set_canceled_by(job, dependency.id)
        return CANCEL_UNITS + left

    def apply_cancellation(self, job: Job, canceled_by: tuple[str, Job | None]) -> int:
        """Cancel a job for the end or the expired record of a dependency. Return the gates left."""
        dependency_id, dependency = canceled_by
        extras = job.need_extras()
        if not extras.holds and any(need[0].startswith(WAIT_MARK) for need in extras.all_needs()):
            # It was never bound to its waits for signals.
            self.table.leftovers.append(ReleaseSweep(job))
        if dependency is None:
            return CANCEL_UNITS + self.end(job, CANCELED, cause_of(dependency_id, None))
        edge = next(need[1] for need in extras.all_needs() if need[0] == dependency_id)
        return self._end_because_of(job, dependency, edge_action(edge, dependency.state))

    def begin(self, job: Job, sweep: CommitSweep) -> int:
        """
        Release a job of a committed submission and evaluate its dependencies. Return the units used.

        Up to `EDGES_AT_ONCE` dependencies at a time: the job is released with the last of them, or when one cancels it.
        """
        portions = job.need_extras().portions
        part, at = divmod(sweep.bound[1], NEXT_SLICE) if sweep.bound[0] == job.number else (0, 0)
        sweep.bound = (0, 0)
        needs = portions[at][part * EDGES_AT_ONCE : (part + 1) * EDGES_AT_ONCE]
        blocked, canceled_by = evaluate(self.table.jobs, needs, is_late=partial(is_late, job))
        is_cut = len(portions[at]) > (part + 1) * EDGES_AT_ONCE
        if canceled_by is None and (is_cut or at + 1 < len(portions)):
            self.table.bind(job, needs, blocked)
            self.table.edges.insert_late(job, [dependency_id for dependency_id, _ in needs])
            sweep.bound = (job.number, (part + 1) * NEXT_SLICE + at if is_cut else at + 1)
            return EDGE_UNITS * len(needs)
        commit_ms = staging.unstage(self.table, job)
        if canceled_by is not None:
            return EDGE_UNITS * len(needs) + self.apply_cancellation(job, canceled_by)
        if job.spec.task == SIGNAL_TASK and not blocked:
            return EDGE_UNITS * len(needs) + self.give(job)
        if self.is_shut(job):
            return EDGE_UNITS * len(needs) + self._shut_out(job)
        return EDGE_UNITS * len(needs) + staging.begin(self.table, job, needs, blocked, commit_ms, self.now_ms)

    def drop(self, job: Job) -> int:
        """Remove a job of an uncommitted submission. For its dependents the record has expired."""
        job.gone, job.state = True, CANCELED
        self._resolve_dependents(job)
        staging.remove(self.table, job)
        return DROP_UNITS

    def redrive(self, job: Job, *, downstream: bool, blocked: Needs | None = None) -> None:
        """Requeue a dead job, or an ended one behind *blocked*; with *downstream*, its canceled dependents too."""
        archive.redrive(self.table, job, self.now_ms, blocked)
        if downstream:
            self._revive_dependents(job)

    def revive(self, job: Job) -> int:
        """Requeue a job canceled by a dependency, if its dependencies now allow it. Return the units used."""
        edges, needs = self.table.edges, job.need_extras().all_needs()
        blocked, canceled_by = evaluate(
            self.table.jobs, needs, is_late=lambda other: other.enqueued_ms > job.enqueued_ms
        )
        if canceled_by is not None:
            dependency_id, dependency = canceled_by
            if dependency is None:
                edges.clear_canceled_by(job)
            else:
                edges.set_canceled_by(job, dependency_id)
            return len(needs)
        if self.is_shut(job):
            return len(needs)
        visited = archive.revive(self.table, job, blocked, self.now_ms)
        self._revive_dependents(job)
        return REVIVE_UNITS + len(needs) + visited

    def _revive_dependents(self, job: Job) -> None:
        if self.table.edges.first_canceled_by(job.id) is not None:
            self.table.leftovers.append(ReviveSweep(job))

    # --- timers --------------------------------------------------------------------------------------------------

    def fire_timer(self, kind: TimerKind, job: Any) -> int:
        """Handle the fired timer of a job or a pause. Return the units used beside the one of the timer."""
        if kind is RESUME:
            job.timer = None
            self.table.pauses.end(job)
            return 0
        if kind is EXPIRY:
            if job.is_start:
                staging.expire(self.table, job, self.now_ms)
                return 0
            job.expiry = None
            if job.is_over and job.spec.key is not None:
                self.table.keys.remove(job.spec.key, job)
                return 0
            return self.end(job, CANCELED, "expired")
        job.timer = None
        # Both change more than other steps do: a thousand would hold up a server several times as long.
        if kind is LEASE:
            return REAP_UNITS + self._reap(job)
        if kind is PRUNE:
            return PRUNE_UNITS + self._prune(job)
        return self._promote(job)

    def _promote(self, job: Job) -> int:
        """Promote a due job. Vacate the place of a job whose back-off outlasts `max_hold`."""
        table = self.table
        if job.state is QUEUED:
            if job.due_ms is not None and job.due_ms > self.now_ms:
                return table.postpone(job, job.due_ms, EventKind.SCHEDULED)
            table.offer(job)
            return 0
        if job.blocked:
            table.defer(job)
            return 0
        return self._shut_out(job) if self.is_shut(job) else table.queue(job, self.now_ms)

    def _reap(self, job: Job) -> int:
        """Handle an expired lease: requeue or end the job. Return the gates left."""
        if self.reap_from_ms > self.now_ms:
            self.table.set_lease(job, self.reap_from_ms)
            return 0
        if job.spec.presence_ms is not None:
            return self.end(job, CANCELED, "waiter_lost")
        if job.cancel is not None:
            self.lost += 1
            return self.end(job, CANCELED, job.cancel)
        if job.extras is not None and job.extras.to_begin:
            # Its code has not begun, so it is not to blame for the end of its worker.
            job.attempts -= 1
            self.table.put_back(job, None, EventKind.RELEASED, "worker_lost")
            return 0
        return self.lose(job, JobError(type="worker_lost", message=f"worker {job.worker} did not renew its lease"))

    def _is_pinned(self, job: Job) -> bool:
        return job.state is FINISHED and not job.gone and self.table.edges.has_dependents(job.id)

    def delete(self, job: Job) -> bool:
        """Drop a record before its retention ends. Return False for an unfinished job or a result still needed."""
        if not job.is_over or self._is_pinned(job):
            return False
        self.table.drop_timer(job)
        if job.id.startswith(SIGNAL_MARK):
            self._drop(job)
            return True
        # Consequences of its end may be left over and come first: its id is removed when its timer fires.
        self._forget(job, digest_from=0)
        return True

    def _prune(self, job: Job) -> int:
        """
        Drop a record after its retention, and free its held place.

        Its id is kept for ten minutes at least, and as long as it keeps its key. A result is kept while a
        dependent may still run. Jobs that wait for a dead job are canceled.
        """
        table = self.table
        if self._is_pinned(job):
            kept_ms = table.kept_ms(job.spec, FINISHED)
            archive.keep(table, job, self.now_ms + min(max(kept_ms, PINNED_LOOK_MIN_MS), PINNED_LOOK_MAX_MS))
            return 0
        assert job.ended_ms is not None
        if job.id.startswith(SIGNAL_MARK):
            # It may be given anew.
            return self._drop(job)
        if job.ended_ms + ID_KEPT_MS > self.now_ms or job.expiry is not None or self._has_edges(job):
            return self._forget(job)
        return self._drop(job)

    def _drop(self, job: Job) -> int:
        """Drop a record and its id. Return the gates left."""
        left = self.table.free(job) if job.is_placed else 0
        archive.prune(self.table, job)
        self.pruned += 1
        return left

    def _has_edges(self, job: Job) -> bool:
        """Return whether a kept record has edges."""
        holds = job.extras is not None and job.extras.holds
        return not job.gone and (holds or self.table.edges.has_dependents(job.id))

    def _forget(self, job: Job, *, digest_from: int = DIGEST_FROM) -> int:
        """Drop a record and keep its id. Cancel the jobs that wait for a dead one. Return the gates left."""
        table = self.table
        left = table.free(job) if job.is_placed else 0
        is_told = job.state is FAILED and self._has_edges(job)
        holds = job.extras is not None and job.extras.holds
        assert job.ended_ms is not None
        # Its dependents are resolved, now or as leftovers, before its timer fires again.
        key_until_ms = 0 if job.expiry is None else job.expiry[0]
        until_ms = max(job.ended_ms + ID_KEPT_MS, key_until_ms, self.now_ms)
        archive.forget(table, job, until_ms, digest_from=digest_from)
        if is_told:
            self._resolve_dependents(job)
            if holds:
                table.leftovers.append(ReleaseSweep(job))
        return left
