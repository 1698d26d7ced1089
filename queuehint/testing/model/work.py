"""
Work: settlements and reports of a worker, and the jobs it may be granted.

The rules leave open which of the ready jobs a worker gets. They demand that it gets one, that limits allow the job,
that its release has not refused it, and that of the jobs of one user in one pool those come first that other releases
have refused, and the most urgent of those that the same ones have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint import operations as op
from queuehint.testing.model.jobs import CANCELED, FINISHED, LEASE, QUEUED, STARTED, Actor
from queuehint.testing.model.limits import Limits
from queuehint.testing.model.places import at_or_below, conflict
from queuehint.testing.model.submissions import Submissions
from queuehint.values.outcome import STEPS_BYTES_MAX, STEPS_MAX, Grant, Outcome, OutcomeKind
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Callable


CRITICAL = 9
HEAD_START_MS = 60_000
UNKNOWN_TASK_PAUSE_MS, UNKNOWN_TASK_PAUSE_MAX_MS = 5_000, 300_000
RELEASES_KEPT = 8


def is_selected(job: Actor, wanted: RecordFilter) -> bool:
    """The filter of a pause is about a job."""
    named = ((getattr(wanted, name), getattr(job.spec, name)) for name in ("service", "user", "task", "pool"))
    return (
        (wanted.path is None or at_or_below(job.claims, wanted.path))
        and (wanted.tag is None or wanted.tag in job.spec.tags)
        and all(name in {None, value} for name, value in named)
    )


class Work(Submissions, Limits):
    """Operations of workers."""

    level_of: Callable[[str], int] | None = None
    """
    Returns the level by which a store ranks a job, if that is known. How far a level is inherited is bounded by a
    search, which no rule defines.
    """

    # --- the end of an attempt ---------------------------------------------------------------------------------------

    def settle(self, outcome: Outcome, release: str) -> op.Verdict:
        """Settle a job. A worker without the newest grant changes nothing."""
        job = self.held(outcome.job_id, outcome.token)
        if job is None:
            return op.Verdict.LOST
        kind = outcome.kind
        if kind is OutcomeKind.FINISHED:
            job.result = job.result if outcome.result is None else outcome.result
            self.end(job, FINISHED)
        elif job.cancel is not None:
            self.end(job, CANCELED, job.cancel)
        elif kind is OutcomeKind.DISCARDED:
            self.end(job, CANCELED, outcome.reason or "discarded")
        elif kind is OutcomeKind.FAILED:
            if outcome.final or job.is_for_a_caller or job.attempts >= job.spec.policy.max_attempts:
                self.die(job, "failed")
            else:
                self.back_off(job, outcome.delay_ms)
        elif job.is_for_a_caller:
            self.end(job, CANCELED, "waiter_lost")
        elif kind is OutcomeKind.LOST:
            self.lose(job)
        elif kind is OutcomeKind.CHILDREN:
            self.await_children(job, outcome)
        else:
            self.give_back(job, outcome, release)
        return op.Verdict.DONE

    def give_back(self, job: Actor, outcome: Outcome, release: str) -> None:
        """End an attempt that does not count."""
        job.attempts -= 1
        if outcome.kind is OutcomeKind.SNOOZED:
            self.back_off(job, outcome.delay_ms)
        elif outcome.kind is OutcomeKind.RELEASED:
            self.put_back(job, None)
        elif release and release not in job.refused_by:
            # The release of this worker does not know the task: another may.
            job.refused_by = [*job.refused_by, release][-RELEASES_KEPT:]
            self.put_back(job, None)
        else:
            unknown_task_count = job.unknown_task_count
            self.put_back(
                job, self.now_ms + min(UNKNOWN_TASK_PAUSE_MS << unknown_task_count, UNKNOWN_TASK_PAUSE_MAX_MS)
            )
            job.unknown_task_count = unknown_task_count + 1

    # --- the begin of one --------------------------------------------------------------------------------------------

    def exchange(self, operation: op.Exchange, reply: op.Exchanged | None, *, cut: bool) -> op.Exchanged:
        verdicts = tuple([self.settle(outcome, operation.release) for outcome in operation.settle])
        self.catch_up()
        if reply is None:
            grants = self.choose(operation)
        else:
            grants = [self.check_grant(grant, operation, cut=cut) for grant in reply.grants]
            assert len(grants) <= operation.limit, f"{operation.limit} were asked for, {len(grants)} granted"
            self.check_users(operation, reply, cut=cut)
        due = reply is not None and reply.due
        return op.Exchanged(
            verdicts,
            tuple(grants),
            tuple(self.undelivered_cancellations.pop(operation.worker, [])),
            more=False,
            due=due,
        )

    def is_paused(self, job: Actor) -> bool:
        return any(is_selected(job, wanted) for wanted in self.paused)

    def offered(self, operation: op.Exchange) -> list[Actor]:
        """Return the jobs that may be granted, in order of place."""
        among = operation.among
        return [
            job
            for job in self.ready()
            if job.spec.pool in operation.pools
            and (among is None or job.spec.user in among)
            and not self.is_paused(job)
            and operation.release not in job.refused_by
        ]

    def start(self, job: Actor, operation: op.Exchange, token: int | None) -> Grant:
        job.state, job.token, job.worker, job.ever_started = STARTED, self.new_token(token), operation.worker, True
        job.attempts += 1
        job.last_worker = job.worker
        job.to_begin = operation.announces and job.losses >= job.spec.policy.max_losses - 1
        job.alarms = {LEASE: self.now_ms + operation.lease_ms}
        return Grant(
            spec=job.spec,
            token=job.token,
            attempt=job.attempts,
            losses=job.losses,
            lease_until_ms=job.alarms[LEASE],
            steps=len(job.steps),
        )

    def choose(self, operation: op.Exchange) -> list[Grant]:
        """Grant the most urgent jobs, one of the choices that the rules allow."""
        grants: list[Grant] = []
        while len(grants) < operation.limit:
            for job in sorted(self.offered(operation), key=lambda job: (not job.refused_by, self.urgency(job))):
                job.state = STARTED
                limit = self.broken_by(job)
                job.state = QUEUED
                if limit is None:
                    grants.append(self.start(job, operation, None))
                    self.spend(job)
                    break
            else:
                break
        return grants

    def check_grant(self, reply: Grant, operation: op.Exchange, *, cut: bool) -> Grant:
        """Start a granted job, and assert that the rules allow it."""
        job = self.jobs.get(reply.spec.id)
        assert job is not None, f"{reply.spec.id} was started and is not there"
        assert job.state is not STARTED, f"{job.id} was started while it runs by token {job.token}"
        ready = self.ready()
        assert job in ready, f"{job.id} was started {self.refusal_to_start(job)}"
        assert not self.is_paused(job), f"{job.id} was started while {list(self.paused)} are paused"
        assert operation.release not in job.refused_by, f"{job.id} was started by {operation.release}, which refused it"
        offered = self.offered(operation)
        assert job in offered, f"{job.id} was started by somebody who did not ask for its pool or user"
        if self.exact and not cut:
            peers = [peer for peer in ready if (peer.spec.pool, peer.spec.user) == (job.spec.pool, job.spec.user)]
            # Which of the jobs parked by a limit is released, and when, is not specified.
            free = [peer for peer in peers if not self.is_paused(peer) and not self.is_limited(peer)]
            late = [peer.id for peer in free if peer.refused_by and peer in offered and not job.refused_by]
            assert not late, f"{job.id}, which nobody has refused, was started before {late}"
            like = [peer for peer in free if sorted(peer.refused_by) == sorted(job.refused_by)]
            first = min([job, *like], key=self.urgency)
            assert first is job or self.may_precede(job, first), f"{job.id} was started before {first.id}"
        grant = self.start(job, operation, reply.token)
        limit = self.broken_by(job)
        assert limit is None, f"{job.id} was started over {limit}"
        self.spend(job)
        return grant

    def refusal_to_start(self, job: Actor) -> str:
        if not job.is_waiting:
            return f"while it is {job.state.value}" + (f" until {job.due}" if job.due is not None else "")
        before = [other for other in self.placed[: self.placed.index(job)] if conflict(other.claims, job.claims)]
        return f"out of order: {before} " + ("comes" if len(before) == 1 else "come") + f" before {job}"

    def check_users(self, operation: op.Exchange, reply: op.Exchanged, *, cut: bool) -> None:
        """Check that own users go first, and that no ready job waits while the worker has a free slot."""
        left = [job for job in self.offered(operation) if not self.is_limited(job)]
        if operation.users is not None:
            stolen = [grant.spec.user not in operation.users for grant in reply.grants]
            assert stolen == sorted(stolen), "others were helped first"
            own = [job.id for job in left if job.spec.user in operation.users]
            assert cut or not self.exact or not (own and any(stolen)), f"{own} were left for others"
        if self.exact and not cut and len(reply.grants) < operation.limit:
            assert not left, f"{left} could have been granted"

    def urgency(self, job: Actor) -> tuple[bool, int, int]:
        """The order of urgency: critical jobs first in first out, then by time of enqueue with a head start a level."""
        return self.urgency_at(job, job.spec.priority if self.level_of is None else self.level_of(job.id))

    def urgency_at(self, job: Actor, level: int) -> tuple[bool, int, int]:
        critical = level == CRITICAL
        return (not critical, 0 if critical else job.enqueued - HEAD_START_MS * (level - 1), job.number)

    def may_precede(self, job: Actor, other: Actor) -> bool:
        """Whether a level inherited from later jobs lets a job come before another."""
        if self.level_of is not None:
            return False
        self.inherit_priorities()
        return self.urgency_at(job, job.inherited) < self.urgency(other)

    def place(self, job: Actor) -> None:
        super().place(job)
        if self.level_of is None:
            self.inherit_priorities()

    def inherit_priorities(self) -> None:
        """
        Raise all jobs with a place to the levels of later jobs. An inherited level outlasts its origin.

        Behind a job are those that conflict with it, and those that wait behind it for one and the same job: a queue
        may keep both in one line, where the first has to move before the second can.
        """
        for index, each in reversed([*enumerate(self.placed)]):
            each.inherited = max(each.inherited, each.spec.priority)
            for later in self.placed[index + 1 :]:
                if later.inherited > each.inherited and (
                    conflict(each.claims, later.claims)
                    or any(
                        conflict(other.claims, each.claims) and conflict(other.claims, later.claims)
                        for other in self.placed[:index]
                    )
                ):
                    each.inherited = later.inherited

    # --- in between --------------------------------------------------------------------------------------------------

    def renew(self, operation: op.Renew, reply: op.Renewed | None) -> op.Renewed:
        verdicts = []
        for job_id, token in operation.leases:
            job = self.jobs.get(job_id)
            if job is None or job.token != token:
                verdicts.append(op.Verdict.LOST)
            elif job.state is STARTED or (job.state is QUEUED and job.is_for_a_caller):
                job.alarms[LEASE] = self.now_ms + operation.lease_ms
                job.to_begin = job.to_begin and not operation.begun
                verdicts.append(op.Verdict.DONE if job.cancel is None else op.Verdict.CANCELED)
                if job.cancel is not None:
                    self.told(job)
            else:
                verdicts.append(op.Verdict.LOST)
        self.catch_up()
        return op.Renewed(tuple(verdicts), more=False)

    def post(self, operation: op.Post, reply: op.Posted | None) -> op.Posted:
        """Apply each note as if it came alone."""
        steps: list[tuple[int, bytes | None]] = []
        verdicts = tuple([self.take_note(note, steps) for note in operation.notes])
        return op.Posted(verdicts, tuple(steps))

    def take_note(self, note: op.Note, steps: list[tuple[int, bytes | None]]) -> op.Verdict:
        """Apply a note of the holder of a job, or a log line of any client."""
        if note.token is None:
            return op.Verdict.DONE if self.find(note.job_id) is not None else op.Verdict.UNKNOWN
        job = self.held(note.job_id, note.token)
        if job is None:
            return op.Verdict.LOST
        if note.step is not None:
            kept = job.steps.get(note.step.name)
            others = [*job.steps.items()] if kept is None else []
            size = sum(len(name.encode()) + len(result) for name, (_, result) in others)
            size += len(note.step.name.encode()) + len(note.step.result)
            if kept is None and (len(others) == STEPS_MAX or size > STEPS_BYTES_MAX):
                return op.Verdict.REFUSED
            steps.append(kept or (self.now_ms, None))
            job.steps.setdefault(note.step.name, (self.now_ms, note.step.result))
        if note.result is not None:
            job.result = note.result
        return op.Verdict.DONE

    def fetch(self, operation: op.Fetch, reply: op.Fetched | None) -> op.Fetched:
        job = self.held(operation.job_id, operation.token)
        if job is None:
            return op.Fetched(op.Verdict.LOST, ())
        found = [self.find(job_id) if job_id in job.needs else None for job_id in operation.ids]
        results = tuple([(other.state, other.result) if other else (None, None) for other in found])
        steps = tuple([(name, at_ms, result) for name, (at_ms, result) in job.steps.items()])
        return op.Fetched(
            op.Verdict.DONE, results, () if operation.steps_from is None else steps[operation.steps_from :]
        )
