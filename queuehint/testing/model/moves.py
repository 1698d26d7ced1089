"""
State transitions of a job: take a place, start over, end.

The effect of an end on dependents is in `edges`.
"""

from __future__ import annotations

import abc
from functools import partial
from typing import TYPE_CHECKING

from queuehint.core.jobs.closings import cause_of_closing
from queuehint.testing.model.jobs import (
    CANCELED,
    DEFERRED,
    DUE,
    EXPIRY,
    FAILED,
    FINISHED,
    LEASE,
    PRUNE,
    QUEUED,
    SCHEDULED,
    STARTED,
    Actor,
    Jobs,
)
from queuehint.testing.model.places import is_at_or_below, takes_place
from queuehint.values.hint import queue_key
from queuehint.values.record import JobState
from queuehint.values.spec import WAIT_MARK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.values.hint import Path


class Moves(Jobs, abc.ABC):
    """Transitions of one job."""

    # --- to its place ------------------------------------------------------------------------------------------------

    def begin(self, job: Actor) -> None:
        """Move a job on: SCHEDULED before its time, DEFERRED while an edge is open, else QUEUED with a place."""
        spec = job.spec
        job.alarms = {}
        due = self.now_ms + spec.delay_ms if spec.delay_ms else spec.run_at_ms
        if due is not None and spec.max_delay_ms is not None:
            due = min(due, job.enqueued + spec.max_delay_ms)
        job.due = due if due is not None and due > self.now_ms else None
        if spec.policy.start_within_ms is not None:
            job.alarms[EXPIRY] = (job.due or self.now_ms) + spec.policy.start_within_ms
        if job.due is not None:
            self.vacate(job)
            job.state = SCHEDULED
            job.alarms[DUE] = job.due
        elif job.waits:
            job.state = DEFERRED
        elif not job.seq:
            self.place(job)

    def place(self, job: Actor) -> None:
        job.state, job.due = QUEUED, None
        self.seqs += 1
        job.seq = self.seqs
        self.placed.append(job)

    def last_above(self, job: Actor) -> str | None:
        """Return the last job of a path at or above a claim of a job, None if there is none or the job is the last."""
        lasts = [
            self.closed[path]
            for claim in job.claims
            for path in sorted(self.closed, key=len)
            if self.closed[path] is not None and is_at_or_below(claim.path, path)
        ]
        return None if job.id in lasts or not lasts else lasts[0]

    def take_place(self, job: Actor) -> None:
        """Place a job after another wait, or cancel the job on a path closed by a last job."""
        last = self.last_above(job)
        if last is None:
            self.place(job)
        else:
            self.end(job, CANCELED, cause_of_closing(last))

    def vacate(self, job: Actor) -> None:
        if job.seq:
            self.placed.remove(job)
            job.seq = job.inherited = 0

    # --- back to it --------------------------------------------------------------------------------------------------

    def stop(self, job: Actor) -> None:
        """Take a job from its worker without a further notice to it."""
        job.unknown_task_count = 0
        job.alarms.pop(LEASE, None)
        self.told(job)
        job.worker = None

    def told(self, job: Actor) -> None:
        """Record that its worker knows of the stop, or need not know any more."""
        if job.worker is not None and job.id in self.undelivered_cancellations.get(job.worker, ()):
            self.undelivered_cancellations[job.worker].remove(job.id)

    def put_back(self, job: Actor, again: int | None) -> None:
        """Queue a job at its kept place. *again* is its next start time."""
        self.stop(job)
        job.state, job.due = QUEUED, again
        if again is not None:
            job.alarms[DUE] = again

    def yield_place(self, job: Actor, again: int) -> None:
        """Release the place of a job, which takes a new one at its due time."""
        self.stop(job)
        self.vacate(job)
        job.state, job.due = SCHEDULED, again
        job.alarms[DUE] = again

    def back_off(self, job: Actor, delay: int) -> None:
        """Retry or snooze: the place is kept, kept for a bounded time, or released, by the job's policy."""
        policy = job.spec.policy
        again = self.now_ms + delay
        if policy.on_retry == "yield":
            self.yield_place(job, again)
        elif delay <= 0:
            self.put_back(job, None)
        else:
            self.put_back(job, again)
            job.alarms[DUE] = self.now_ms + min(delay, policy.max_hold_ms)

    def lose(self, job: Actor) -> None:
        """Count the loss of a dead worker, which is no attempt, up to the maximum of losses."""
        job.attempts -= 1
        job.losses += 1
        if job.losses >= job.spec.policy.max_losses:
            self.die(job, "worker_lost")
        else:
            self.put_back(job, None)

    def begin_anew(self, job: Actor) -> None:
        """Revive an ended job as a new one, with a new number."""
        self.numbers += 1
        job.since = self.numbers
        job.attempts = job.losses = 0
        job.cancel = job.cause = job.result = job.canceled_by = None
        job.is_parent = job.child_failed = False
        job.alarms = {}

    # --- to its end --------------------------------------------------------------------------------------------------

    def end(self, job: Actor, state: JobState, cause: str | None = None, *, keep_place: bool = False) -> None:
        self.stop(job)
        job.refused_by = []
        job.state, job.due, job.ended, job.cause = state, None, self.now_ms, cause
        job.waits.clear()
        if state is not FINISHED:
            job.result = None
        job.alarms = {PRUNE: self.now_ms + self.kept_ms(job)}
        key_for = job.spec.policy.key_for_ms
        if key_for is not None and job.spec.key is not None and job.ever_started:
            job.alarms[EXPIRY] = self.now_ms + key_for
        if not (keep_place and takes_place(job.claims)):
            self.vacate(job)
        self.tell(job)
        self.let_go(job)

    def tell(self, job: Actor) -> None:
        """Queue the resolution of dependents of an ended or deleted job."""
        waiting = [other for other in self.jobs.values() if job.id in other.waits]
        if waiting:
            self.agenda.append(partial(self.resolve, job, sorted(waiting, key=lambda other: other.since)))

    def let_go(self, job: Actor) -> None:
        """Queue the end of the waits for signals left by an ended or deleted job."""
        waits = [job_id for job_id in job.needs if job_id.startswith(WAIT_MARK)]
        if waits:
            self.agenda.append(partial(self.end_waits, waits))

    def end_waits(self, waits: list[str]) -> None:
        """Cancel the waits for signals without a waiting job."""
        for wait in [self.jobs[job_id] for job_id in waits if job_id in self.jobs]:
            if not wait.is_over and not self.is_needed(wait):
                self.end(wait, CANCELED, "nobody waits for it")

    @abc.abstractmethod
    def resolve(self, dependency: Actor, waiting: list[Actor]) -> None:
        """Apply the edge policies of dependents to the end of a job."""

    def kept_ms(self, job: Actor) -> int:
        """Return how long the record of a job that is over is kept."""
        kept, retention, service = job.spec.policy.retention_ms, self.retention, job.spec.service
        if kept is not None:
            return kept
        by_state = {FINISHED: retention.finished_ms, FAILED: retention.failed_ms, CANCELED: retention.canceled_ms}
        of_service = None if service is None else retention.of_service_ms(service)
        return by_state[job.state] if of_service is None else of_service

    def die(self, job: Actor, cause: str) -> None:
        """Fail a job: its path is freed, held by the dead job, or its later jobs are canceled, by its policy."""
        on_dead, seq = job.spec.policy.on_dead, job.seq
        self.end(job, FAILED, cause, keep_place=on_dead != "continue")
        if on_dead == "cancel_behind" and takes_place(job.claims) and seq:
            self.numbers += 1
            paths = [claim.path for claim in job.claims]
            cause = f"behind the dead job {job.id}"
            self.agenda.append(partial(self.sweep, paths, self.numbers, cause, job, (seq, self.seqs)))

    def cancel(self, job: Actor, cause: str) -> None:
        """Cancel a job at once, or request a running job to stop and notify its worker."""
        if job.state is not STARTED:
            self.end(job, CANCELED, cause)
        elif job.cancel is None:
            assert job.worker is not None
            job.cancel = cause
            self.undelivered_cancellations.setdefault(job.worker, []).append(job.id)

    def sweep(
        self,
        paths: Iterable[Path],
        before: int,
        cause: str,
        behind: Actor | None = None,
        seqs: tuple[int, int] = (0, 0),
        reached: set[str] | None = None,
    ) -> None:
        """
        Cancel the jobs enqueued before a number at or below paths, by queue key and number.

        Args:
            behind: only what stands behind this dead job, with a place in *seqs*; then its place is freed.
            reached: the ids of those canceled, or asked to stop by this sweep, are added.
        """
        for path in paths:
            there = [
                (queue_key(claim.path), job.number, job)
                for job in self.jobs.values()
                for claim in job.claims
                if is_at_or_below(claim.path, path)
            ]
            for _, _, job in sorted(there, key=lambda item: item[:2]):
                if job.is_over or job.since >= before:
                    continue
                if behind is None or (job.state is QUEUED and seqs[0] < job.seq <= seqs[1]):
                    if reached is not None and (job.state is not STARTED or job.cancel is None):
                        reached.add(job.id)
                    self.cancel(job, cause)
        if behind is not None and behind.state is FAILED and behind.seq == seqs[0]:
            self.vacate(behind)

    def sweep_dead_jobs(self, path: Path, before: int) -> None:
        """Discard the dead that hold places at or below a path, by queue key and number."""
        there = [
            (queue_key(claim.path), job.number, job)
            for job in self.placed
            for claim in job.claims
            if job.state is FAILED and job.since < before and PRUNE in job.alarms and is_at_or_below(claim.path, path)
        ]
        for _, _, job in sorted(there, key=lambda item: item[:2]):
            if job.state is FAILED:
                self.discard(job)

    def discard(self, job: Actor) -> None:
        """Remove a job from the dead-letter queue, and free its place."""
        self.vacate(job)
        job.state, job.cause = CANCELED, "discarded"
        job.alarms[PRUNE] = self.now_ms + self.kept_ms(job)
        self.tell(job)
        self.let_go(job)

    def sweep_flow(self, flow: str, before: int, cause: str) -> None:
        """Cancel the jobs of a flow enqueued before a number, the last first."""
        for job in sorted(self.jobs.values(), key=lambda job: -job.number):
            if job.spec.flow == flow and not job.is_over and job.since < before:
                self.cancel(job, cause)
