"""
What becomes of a job that does not simply finish, of one whose timer has come up, and of those that depend on one.

The engine says what was asked, the course what it means for a job, the ledger makes the move. Whatever a move brings
about for other jobs is put among the leftovers and done in bounded steps.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from queuehint.core.jobs import archive, staging
from queuehint.core.structures.edges import (
    CANCEL,
    KEPT,
    NOTE,
    OF_CHILD,
    REACH_MAX,
    WAIT,
    cause_of,
    fate,
    is_late,
)
from queuehint.core.structures.job import DIGEST_FROM
from queuehint.core.structures.leftovers import CancelSweep, DropSweep, ReleaseSweep, ResolveSweep, ReviveSweep
from queuehint.core.structures.timers import TimerKind
from queuehint.values.event import EventKind
from queuehint.values.records import JobError, JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from queuehint.core.jobs.table import Ledger
    from queuehint.core.structures.job import Job, Needs
    from queuehint.values.records import Outcome

_SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
_DUE, LEASE, EXPIRY, PRUNE = TimerKind

UNSEARCHABLE = f"whether a child waits for this job cannot be told by looking at {REACH_MAX} jobs"
ID_KEPT_MS = 600_000
PINNED_LOOK_MIN_MS = 60_000
PINNED_LOOK_MAX_MS = 3_600_000
"""A result that others need still is looked at again after its retention, but at least and at most after so long."""


class Course:
    """
    The rules that carry a job on.

    ``lost`` and ``pruned`` count over the life of the engine, ``resolved`` counts the jobs that took their places when
    their last edge was resolved, with how long after the other job's end. Until ``reap_from_ms`` nothing is reaped.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.now_ms = 0
        self.reap_from_ms = 0
        self.lost = self.pruned = 0
        self.resolved = self.resolved_sum_ms = self.resolved_max_ms = 0

    # --- ends ----------------------------------------------------------------------------------------------------

    def end(self, job: Job, state: JobState, cause: str | None, *, keep_place: bool = False) -> int:
        """End a job and begin what follows for those that depend on it; return the gates left."""
        left = self.ledger.end(job, state, cause, self.now_ms, keep_place=keep_place)
        self._tell_dependents(job)
        notes = job.notes
        # A dead job may be redriven: what it needs is kept for it.
        if notes is not None and (notes.blocked or (notes.holds and state is not FAILED)):
            self.ledger.leftovers.append(ReleaseSweep(job))
        return left

    def _tell_dependents(self, job: Job) -> bool:
        """Begin to resolve the edges to a job that is over; say whether there are any."""
        ledger = self.ledger
        if not ledger.edges.has_dependents(job.id):
            return False
        sweep = ResolveSweep(job, ledger.last_number, since_ms=self.now_ms, state=job.state, since=job.since)
        ledger.leftovers.append(sweep)
        if not job.gone:
            ledger.edges.begin_telling(job)
        return True

    def cancel(self, job: Job, cause: str) -> int:
        """Cancel an unfinished job at once, or ask the one that runs to stop; return the gates left."""
        if job.state is not STARTED:
            return self.end(job, CANCELED, cause)
        if job.cancel is None:
            self.ledger.ask_to_stop(job, cause)
        return 0

    def die(self, job: Job, cause: str) -> int:
        """End a job FAILED and do with its place what it asked for; return the gates left."""
        on_dead = job.spec.policy.on_dead
        left = self.end(job, FAILED, cause, keep_place=on_dead != "continue")
        if on_dead == "cancel_behind" and job.walk is not None:
            ledger = self.ledger
            ledger.last_number += 1
            paths = tuple(walk.path for walk in job.walks)
            cause = f"behind the dead job {job.id}"
            ledger.leftovers.append(
                CancelSweep(paths, ledger.last_number, cause, ledger.last_seq, behind=job, behind_seq=job.seq)
            )
        return left

    def discard(self, job: Job) -> None:
        """Take a dead job off the shelf: it cannot be redriven any more."""
        archive.discard(self.ledger, job, self.now_ms)
        self._tell_dependents(job)
        if job.notes is not None and job.notes.holds:
            self.ledger.leftovers.append(ReleaseSweep(job))

    # --- attempts ------------------------------------------------------------------------------------------------

    def fail(self, job: Job, error: JobError | None, delay_ms: int, *, final: bool) -> None:
        """Count an attempt that failed; the job is tried again after a back-off, or dead."""
        self.record_error(job, error)
        if final or job.attempts >= job.spec.policy.max_attempts or job.spec.presence_ms is not None:
            self.die(job, "failed")
        else:
            self.back_off(job, delay_ms, EventKind.RETRIED, error.type if error is not None else None)

    def lose(self, job: Job, error: JobError | None) -> int:
        """Count a loss; the job is ready again at its old place, or dead."""
        self.record_error(job, error)
        job.attempts -= 1
        job.losses += 1
        self.lost += 1
        if job.losses >= job.spec.policy.max_losses:
            return self.die(job, "worker_lost")
        self.ledger.put_back(job, None, EventKind.LOST, error.type if error is not None else None)
        return 0

    def record_error(self, job: Job, error: JobError | None) -> None:
        """Remember what happened to an attempt."""
        if error is not None:
            job.note().errors.append(attrs.evolve(error, attempt=job.attempts, at_ms=self.now_ms))

    def back_off(self, job: Job, delay_ms: int, kind: EventKind, cause: str | None = None) -> None:
        """Let a job wait for its next attempt, on its place or off it."""
        policy = job.spec.policy
        again_ms = self.now_ms + delay_ms
        if policy.on_retry == "yield":
            self.ledger.postpone(job, again_ms, kind, cause)
        elif delay_ms <= 0:
            self.ledger.put_back(job, None, kind, cause)
        else:
            self.ledger.put_back(job, again_ms, kind, cause)
            if delay_ms > policy.max_hold_ms:
                self.ledger.hold_until(job, self.now_ms + policy.max_hold_ms)

    # --- children ------------------------------------------------------------------------------------------------

    def await_children(self, job: Job, outcome: Outcome) -> None:
        """Let a job that has run be over when its children are; FAILED if it would, or may, wait for ever."""
        jobs, edge = self.ledger.jobs, OF_CHILD[outcome.on_child_failure]
        failed: tuple[str, JobState] | None = None
        children: list[tuple[str, str]] = []
        for child_id in dict.fromkeys(outcome.children):
            # Of one whose record has expired it is still known how it ended.
            child = jobs.get(child_id)
            if child is None or child.is_hidden:
                error = JobError(
                    type="queuehint.errors.UnknownDependencyError", message=f"child {child_id} does not exist"
                )
                return self.fail(job, error, 0, final=True)
            if not child.is_over:
                children.append((child_id, edge))
            elif failed is None and fate(edge, child.state) == NOTE:
                failed = (child_id, child.state)
        is_circle = self._is_circle(job, [child_id for child_id, _ in children])
        if is_circle is None:
            error = JobError(type="queuehint.errors.DependencyError", message=UNSEARCHABLE)
            return self.fail(job, error, 0, final=True)
        if is_circle:
            error = JobError(type="queuehint.errors.CycleError", message="a child waits for this job")
            return self.fail(job, error, 0, final=True)
        if outcome.result is not None:
            job.result = outcome.result
        if failed is not None:
            job.note().child_failed = failed
        if children:
            self.ledger.await_children(job, tuple(children))
        else:
            self._end_parent(job)
        return None

    def _is_circle(self, job: Job, children: list[str]) -> bool | None:
        """
        Say whether a child waits for a job; None if that takes too long.

        It is looked for along what the children wait for, and if that is too much, along what waits for the job: one of
        both is little, as a rule.
        """
        edges = self.ledger.edges
        found = edges.reaches(self.ledger.jobs, children, job.id, set())
        if found is None and not self.ledger.committing:
            found = edges.is_awaited_by(job.id, frozenset(children))
        return found

    def _end_parent(self, job: Job) -> int:
        """End a job whose children are over."""
        failed = job.notes.child_failed if job.notes is not None else None
        if failed is None:
            return self.end(job, FINISHED, None)
        self.record_error(job, JobError(type="child_failed", message=f"child {failed[0]} is {failed[1]}"))
        return self.die(job, "child_failed")

    # --- edges ---------------------------------------------------------------------------------------------------

    def resolve(self, job: Job, dependency: Job, since_ms: int) -> int:
        """
        Do with a job that waits for one that is over what their edge says; return the gates visited or left.

        Args:
            since_ms: when that one ended, was discarded, or its record expired.
        """
        edge = job.blocked.get(dependency.id)
        if edge is None:
            return 0
        what = fate(edge, dependency.state)
        # What was dropped has no end; of what has one and is gone, only those that were to wait on find it expired.
        if dependency.gone and edge[-1] == KEPT and (dependency.ended_ms is None or what == WAIT):
            return self.end(job, CANCELED, cause_of(dependency.id, None))
        if what == WAIT:
            return 0
        if what == CANCEL:
            return self._fell(job, dependency)
        if what == NOTE and job.note().child_failed is None:
            job.note().child_failed = (dependency.id, dependency.state)
        self.ledger.edges.close(job, dependency.id)
        if job.blocked:
            return 0
        if job.note().is_parent:
            return self._end_parent(job)
        if job.state is not DEFERRED:
            return 0
        self._count_delay(self.now_ms - since_ms)
        return self.ledger.queue(job, self.now_ms)

    def _count_delay(self, delay_ms: int) -> None:
        """Count how long a job has waited for its last edge to be resolved."""
        self.resolved += 1
        self.resolved_sum_ms += delay_ms
        self.resolved_max_ms = max(self.resolved_max_ms, delay_ms)

    def _fell(self, job: Job, dependency: Job) -> int:
        left = self.end(job, CANCELED, cause_of(dependency.id, dependency.state))
        if not dependency.gone:
            self.ledger.edges.fall(job, dependency.id)
        return left

    def judge(
        self, needs: Needs, coming: Collection[str] = (), is_late: Callable[[Job], bool] | None = None
    ) -> tuple[Needs, tuple[str, Job | None] | None]:
        """
        Judge what a job is told to depend on by what has become of it.

        Args:
            coming: ids of jobs that are about to be taken in.
            is_late: says of a job that it came too late to be meant, and only has the id: what was meant has expired.

        Returns:
            What it has to wait for, and the first job because of which it has to be canceled: its id, and the job; None
            if that has expired.
        """
        blocked = []
        for need in needs:
            job = self.ledger.jobs.get(need[0])
            if job is None or job.gone or job.is_hidden or (is_late is not None and is_late(job)):
                if job is not None or need[0] not in coming:
                    return (), (need[0], None)
            elif job.is_over:
                what = fate(need[1], job.state)
                if what == CANCEL:
                    return (), (need[0], job)
                if what != WAIT:
                    continue
            blocked.append(need)
        return tuple(blocked), None

    def fell_by(self, job: Job, felled_by: tuple[str, Job | None]) -> int:
        """Cancel a job for a dependency that is over, or whose record has expired; return the gates left."""
        dependency_id, dependency = felled_by
        if dependency is None:
            return self.end(job, CANCELED, cause_of(dependency_id, None))
        return self._fell(job, dependency)

    def begin(self, job: Job) -> int:
        """Take up a job of a submission that was committed; return the units used."""
        needs = job.note().needs
        blocked, felled_by = self.judge(needs, is_late=partial(is_late, job))
        commit_ms = staging.unstage(self.ledger, job)
        if felled_by is not None:
            return len(needs) + self.fell_by(job, felled_by)
        return len(needs) + staging.begin(self.ledger, job, needs, blocked, commit_ms, self.now_ms)

    def drop(self, job: Job) -> int:
        """Drop a job of a submission that was never committed; others that wait for it find its record expired."""
        job.gone, job.state = True, CANCELED
        self._tell_dependents(job)
        staging.remove(self.ledger, job)
        return 0

    def redrive(self, job: Job, *, downstream: bool) -> None:
        """Bring a dead job back, and those that were canceled because of it."""
        archive.redrive(self.ledger, job, self.now_ms)
        if downstream:
            self._revive_dependents(job)

    def revive(self, job: Job) -> int:
        """Bring back a job canceled because of another, if what it depends on allows it; return the units used."""
        edges, needs = self.ledger.edges, job.note().needs
        blocked, felled_by = self.judge(needs, is_late=lambda other: other.enqueued_ms > job.enqueued_ms)
        if felled_by is not None:
            dependency_id, dependency = felled_by
            if dependency is None:
                edges.rise(job)
            else:
                edges.fall(job, dependency_id)
            return len(needs)
        visited = archive.revive(self.ledger, job, blocked, self.now_ms)
        self._revive_dependents(job)
        return len(needs) + visited

    def _revive_dependents(self, job: Job) -> None:
        if self.ledger.edges.first_fallen(job.id) is not None:
            self.ledger.leftovers.append(ReviveSweep(job))

    # --- timers --------------------------------------------------------------------------------------------------

    def come_up(self, kind: TimerKind, job: Job) -> int:
        """Do what is due; return the gates visited or left."""
        if kind is EXPIRY:
            if job.is_start:
                staging.expire(self.ledger, job, self.now_ms)
                self.ledger.leftovers.append(DropSweep(job, self.ledger.last_number))
                return 0
            job.expiry = None
            return self.end(job, CANCELED, "expired")
        job.timer = None
        if kind is LEASE:
            return self._reap(job)
        if kind is PRUNE:
            return self._prune(job)
        return self._promote(job)

    def _promote(self, job: Job) -> int:
        """Take up a job whose time has come, or whose back-off has held its place long enough."""
        ledger = self.ledger
        if job.state is QUEUED:
            if job.due_ms is not None and job.due_ms > self.now_ms:
                return ledger.postpone(job, job.due_ms, EventKind.SCHEDULED)
            ledger.offer(job)
            return 0
        if job.blocked:
            ledger.defer(job)
            return 0
        return ledger.queue(job, self.now_ms)

    def _reap(self, job: Job) -> int:
        """Take a job from a worker that did not renew its lease."""
        if self.reap_from_ms > self.now_ms:
            self.ledger.set_lease(job, self.reap_from_ms)
            return 0
        if job.spec.presence_ms is not None:
            return self.end(job, CANCELED, "waiter_lost")
        if job.cancel is not None:
            self.lost += 1
            return self.end(job, CANCELED, job.cancel)
        if job.notes is not None and job.notes.to_begin:
            # Its code has not begun, so it is not to blame for the end of its worker.
            job.attempts -= 1
            self.ledger.put_back(job, None, EventKind.RELEASED, "worker_lost")
            return 0
        return self.lose(job, JobError(type="worker_lost", message=f"worker {job.worker} did not renew its lease"))

    def _is_pinned(self, job: Job) -> bool:
        return job.state is FINISHED and not job.gone and self.ledger.edges.has_dependents(job.id)

    def delete(self, job: Job) -> bool:
        """Drop a record before its time; False if the job is not over, or another may still read its result."""
        if not job.is_over or self._is_pinned(job):
            return False
        self.ledger.drop_timer(job)
        # Of what follows from its end something may be left over, which comes first: its id goes when its turn comes.
        self._forget(job, digest_from=0)
        return True

    def _prune(self, job: Job) -> int:
        """
        Drop a record that was kept long enough, free a place it held; its id is kept for ten minutes at least.

        A result is kept as long as a job that depends on it may still run. Those that wait for a dead job are canceled.
        """
        ledger = self.ledger
        if self._is_pinned(job):
            kept_ms = ledger.kept_ms(job.spec, FINISHED)
            archive.keep(ledger, job, self.now_ms + min(max(kept_ms, PINNED_LOOK_MIN_MS), PINNED_LOOK_MAX_MS))
            return 0
        assert job.ended_ms is not None
        if job.ended_ms + ID_KEPT_MS > self.now_ms or self._is_woven(job):
            return self._forget(job)
        left = ledger.free(job) if job.is_placed else 0
        archive.prune(ledger, job)
        self.pruned += 1
        return left

    def _is_woven(self, job: Job) -> bool:
        """Say whether a record that is still kept depends on others, or they on it."""
        holds = job.notes is not None and job.notes.holds
        return not job.gone and (holds or self.ledger.edges.has_dependents(job.id))

    def _forget(self, job: Job, *, digest_from: int = DIGEST_FROM) -> int:
        """Drop a record but its id, and tell of a dead job those that wait for it; return the gates left."""
        ledger = self.ledger
        left = ledger.free(job) if job.is_placed else 0
        is_told = job.state is FAILED and self._is_woven(job)
        holds = job.notes is not None and job.notes.holds
        assert job.ended_ms is not None
        # What others are told now, or have still to be told, is over before a timer comes up again.
        archive.forget(ledger, job, max(job.ended_ms + ID_KEPT_MS, self.now_ms), digest_from=digest_from)
        if is_told:
            self._tell_dependents(job)
            if holds:
                ledger.leftovers.append(ReleaseSweep(job))
        return left
