"""
The rules as the plainest program that is obviously right: no trie, no index, no heap, nothing kept that can be asked.

`ReferenceModel` holds the jobs and one list, the placed jobs in order of place. A job is ready when no job before it
in this list conflicts with it. The model follows an engine operation by operation, foretells what the engine must
answer and what must be true afterwards, and judges the one thing it cannot foretell, which jobs are granted.
It does at once what follows from an operation, so it speaks for an engine whose budget is not used up.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.core.engine import ID_KEPT_MS
from queuehint.core.timers import TimerKind
from queuehint.errors import DuplicateJobError, PathClosedError
from queuehint.hint import queue_key
from queuehint.operations import (
    Cancel,
    CancelPath,
    Close,
    Discard,
    Enqueue,
    Enqueued,
    Exchange,
    Exchanged,
    Judged,
    Log,
    Marked,
    Noted,
    Pause,
    Redrive,
    Renew,
    Renewed,
    Reopen,
    Report,
    Resume,
    Tick,
    Verdict,
)
from queuehint.records import OVER, Grant, JobSpec, JobState, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queuehint.hint import Claim, Path
    from queuehint.policy import Retention

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DUE, LEASE, EXPIRY, PRUNE = TimerKind

_clashes: dict[tuple[tuple[Claim, ...], tuple[Claim, ...]], bool] = {}
_shapes: dict[tuple[Claim, ...], tuple[Claim, ...]] = {}
_known: dict[tuple[int, int], bool] = {}


def clash(claims: tuple[Claim, ...], others: tuple[Claim, ...]) -> bool:
    """Two jobs conflict: one path is a prefix of the other, and not both claims are shared."""
    return any(
        one.path[: len(other.path)] == other.path[: len(one.path)] and "exclusive" in {one.mode, other.mode}
        for one in claims
        for other in others
    )


def shape(claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Return the one object that stands for equal claims, so that `conflict` is asked by identity."""
    return _shapes.setdefault(claims, claims)


def conflict(claims: tuple[Claim, ...], others: tuple[Claim, ...]) -> bool:
    """`clash` of two shapes, remembered."""
    key = (id(claims), id(others))
    known = _known.get(key)
    if known is None:
        known = _known[key] = clash(claims, others)
    return known


def at_or_below(claims: tuple[Claim, ...], path: Path) -> bool:
    """One of the claims is at *path* or below it."""
    return any(claim.path[: len(path)] == path for claim in claims)


class Actor:
    """One job as the model knows it; ``seq`` is 0 while it has no place."""

    def __init__(self, spec: JobSpec, number: int) -> None:
        self.id = spec.id
        self.number = self.since = number
        self.state = QUEUED
        self.seq = self.attempts = self.losses = self.strangers = 0
        self.ever_started = self.gone = False
        self.blocked: set[str] = set()
        self.alarms: dict[TimerKind, int] = {}
        self.token: int | None = None
        self.worker: str | None = None
        self.cancel: str | None = None
        self.due: int | None = None
        self.ended = 0
        self.enqueued = 0
        self.asked = spec
        self.set_spec(spec)

    def set_spec(self, spec: JobSpec) -> None:
        self.spec = spec
        self.claims = shape(spec.claims)


class ReferenceModel:
    """The scheduler by the plain definition of its rules; `follow` takes every operation with the engine's reply."""

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.jobs: dict[str, Actor] = {}
        self.placed: list[Actor] = []
        self.paused: set[Path] = set()
        self.closed: set[Path] = set()
        self.untold: dict[str, list[str]] = {}
        self.agenda: deque[Callable[[], None]] = deque()
        self.now = self.numbers = self.seqs = self.tokens = 0
        self.exact = True
        """Ready is foretold exactly: no claim so far was shared."""

    # --- the definition ----------------------------------------------------------------------------------------

    def ready(self) -> list[Actor]:
        """R2: QUEUED, in no back-off, and no conflicting job is placed before it, in order of place."""
        placed = self.placed
        return [
            job
            for index, job in enumerate(placed)
            if job.state is QUEUED
            and job.due is None
            and not any(conflict(other.claims, job.claims) for other in placed[:index])
        ]

    def is_paused(self, job: Actor) -> bool:
        return any(at_or_below(job.claims, path) for path in self.paused)

    def can_dequeue(self, claim: Claim) -> bool:
        return not any(clash(job.claims, (claim,)) for job in self.placed if job.state is STARTED)

    def next_alarm(self) -> tuple[int, TimerKind, int, Actor] | None:
        return min(
            ((at, kind, job.number, job) for job in self.jobs.values() for kind, at in job.alarms.items()), default=None
        )

    # --- moves -------------------------------------------------------------------------------------------------

    def place(self, job: Actor) -> None:
        job.state, job.due = QUEUED, None
        self.seqs += 1
        job.seq = self.seqs
        self.placed.append(job)

    def vacate(self, job: Actor) -> None:
        if job.seq:
            self.placed.remove(job)
            job.seq = 0

    def end(self, job: Actor, state: JobState, *, keep_place: bool = False) -> None:
        self.stop(job)
        job.state, job.due, job.ended = state, None, self.now
        job.blocked.clear()
        job.alarms = {PRUNE: self.now + self.kept_ms(job)}
        if not (keep_place and job.claims):
            self.vacate(job)
        if any(job.id in other.blocked for other in self.jobs.values()):
            self.agenda.append(partial(self.resolve, job))

    def stop(self, job: Actor) -> None:
        """Take a job from its worker, which need not be told anything about it any more."""
        job.strangers = 0
        job.alarms.pop(LEASE, None)
        if job.worker is not None and job.id in self.untold.get(job.worker, ()):
            self.untold[job.worker].remove(job.id)
        job.worker = None

    def kept_ms(self, job: Actor) -> int:
        kept = job.spec.policy.retention_ms
        if kept is not None:
            return kept
        if job.spec.service is not None:
            return self.retention.service_ms
        retention = self.retention
        return {FINISHED: retention.finished_ms, FAILED: retention.failed_ms, CANCELED: retention.canceled_ms}[
            job.state
        ]

    def resolve(self, dependency: Actor) -> None:
        for job in sorted(self.jobs.values(), key=lambda job: job.number):
            if dependency.id in job.blocked:
                job.blocked.remove(dependency.id)
                if not job.blocked and job.state is DEFERRED:
                    self.place(job)

    def cancel(self, job: Actor, cause: str) -> None:
        if job.state is not STARTED:
            self.end(job, CANCELED)
        elif job.cancel is None:
            assert job.worker is not None
            job.cancel = cause
            self.untold.setdefault(job.worker, []).append(job.id)

    def sweep(
        self,
        paths: Iterable[Path],
        before: int,
        cause: str,
        behind: Actor | None = None,
        seqs: tuple[int, int] = (0, 0),
    ) -> None:
        for path in paths:
            there = [
                (queue_key(claim.path), job.number, job)
                for job in self.jobs.values()
                for claim in job.claims
                if claim.path[: len(path)] == path
            ]
            for _, _, job in sorted(there, key=lambda item: item[:2]):
                if job.state in OVER or job.since >= before:
                    continue
                if behind is None or (job.state is QUEUED and seqs[0] < job.seq <= seqs[1]):
                    self.cancel(job, cause)
        if behind is not None and behind.state is FAILED and behind.seq == seqs[0]:
            self.vacate(behind)

    def die(self, job: Actor) -> None:
        on_dead = job.spec.policy.on_dead
        self.end(job, FAILED, keep_place=on_dead != "continue")
        if on_dead == "cancel_behind" and job.claims:
            self.numbers += 1
            paths = [claim.path for claim in job.claims]
            self.agenda.append(partial(self.sweep, paths, self.numbers, "behind", job, (job.seq, self.seqs)))

    def lose(self, job: Actor) -> None:
        job.attempts -= 1
        job.losses += 1
        if job.losses >= job.spec.policy.max_losses:
            self.die(job)
        else:
            self.put_back(job, None)

    def put_back(self, job: Actor, again: int | None) -> None:
        self.stop(job)
        job.state, job.due = QUEUED, again
        if again is not None:
            job.alarms[DUE] = again

    def yield_place(self, job: Actor, again: int) -> None:
        self.stop(job)
        self.vacate(job)
        job.state, job.due = SCHEDULED, again
        job.alarms[DUE] = again

    def back_off(self, job: Actor, delay: int) -> None:
        policy = job.spec.policy
        again = self.now + delay
        if policy.on_retry == "yield":
            self.yield_place(job, again)
        elif delay <= 0:
            self.put_back(job, None)
        else:
            self.put_back(job, again)
            job.alarms[DUE] = self.now + min(delay, policy.max_hold_ms)

    def settle(self, outcome: Outcome) -> Verdict:
        job = self.jobs.get(outcome.job_id)
        if job is None or job.state is not STARTED or job.token != outcome.token:
            return Verdict.LOST
        kind = outcome.kind
        for_caller = job.spec.presence_ms is not None
        if kind is OutcomeKind.FINISHED:
            self.end(job, FINISHED)
        elif job.cancel is not None or kind is OutcomeKind.DISCARDED:
            self.end(job, CANCELED)
        elif kind is OutcomeKind.FAILED:
            if outcome.final or for_caller or job.attempts >= job.spec.policy.max_attempts:
                self.die(job)
            else:
                self.back_off(job, outcome.delay_ms)
        elif for_caller:
            self.end(job, CANCELED)
        elif kind is OutcomeKind.LOST:
            self.lose(job)
        else:
            job.attempts -= 1
            if kind is OutcomeKind.SNOOZED:
                self.back_off(job, outcome.delay_ms)
            elif kind is OutcomeKind.RELEASED:
                self.put_back(job, None)
            else:
                strangers = job.strangers
                self.put_back(job, self.now + min(5_000 << strangers, 300_000))
                job.strangers = strangers + 1
        return Verdict.DONE

    def come_up(self, kind: TimerKind, job: Actor) -> None:
        del job.alarms[kind]
        if kind is EXPIRY:
            self.end(job, CANCELED)
        elif kind is LEASE:
            if job.spec.presence_ms is not None or job.cancel is not None:
                self.end(job, CANCELED)
            else:
                self.lose(job)
        elif kind is PRUNE:
            self.vacate(job)
            job.gone = True
            if job.ended + ID_KEPT_MS > self.now:
                job.alarms[PRUNE] = job.ended + ID_KEPT_MS
            else:
                del self.jobs[job.id]
        elif job.state is QUEUED and job.due is not None and job.due > self.now:
            self.yield_place(job, job.due)
        elif job.state is QUEUED:
            job.due = None
        elif job.blocked:
            job.state, job.due = DEFERRED, None
        else:
            self.place(job)

    def catch_up(self) -> None:
        """Do what follows: what is on the agenda first in first out, then what is due, each with its own agenda."""
        while True:
            while self.agenda:
                self.agenda.popleft()()
            alarm = self.next_alarm()
            if alarm is None or alarm[0] > self.now:
                return
            self.come_up(alarm[1], alarm[3])

    # --- operations --------------------------------------------------------------------------------------------

    def refuses(self, operation: Enqueue) -> type[Exception] | None:
        """Return the error a submission must be refused with."""
        new_keys: set[str] = set()
        for spec in operation.jobs:
            existing = self.jobs.get(spec.id)
            if existing is not None:
                if spec not in (existing.spec, existing.asked):
                    return DuplicateJobError
                continue
            if any(at_or_below((claim,), path) for claim in spec.claims for path in self.closed):
                return PathClosedError
            if spec.key is not None:
                if spec.on_conflict == "reject" and (self.newest(spec.key) is not None or spec.key in new_keys):
                    return DuplicateJobError
                new_keys.add(spec.key)
        return None

    def follow(self, operation: Any, reply: Any, now: int, *, cut: bool = False) -> None:
        """Do what *operation* asks and assert that *reply* says so; *cut*: the engine may not have caught up."""
        self.now = max(self.now, now)
        if isinstance(operation, Exchange):
            self.exchange(operation, reply, cut=cut)
        elif isinstance(operation, Enqueue):
            self.catch_up()
            self.enqueue(operation, reply)
        elif isinstance(operation, Tick):
            self.catch_up()
            if not cut:
                alarm = self.next_alarm()
                assert (reply.more, reply.next_ms) == (False, None if alarm is None else alarm[0])
        elif isinstance(operation, Cancel):
            self.cancel_ids(operation, reply)
        elif isinstance(operation, CancelPath):
            self.numbers += 1
            self.agenda.append(partial(self.sweep, [operation.path], self.numbers, "canceled"))
            self.catch_up()
        elif isinstance(operation, (Redrive, Discard)):
            self.revive(operation, reply)
        elif isinstance(operation, Renew):
            self.renew(operation, reply)
        elif isinstance(operation, (Report, Log)):
            job = self.jobs.get(operation.job_id)
            held = job is not None and job.state is STARTED and job.token == operation.token
            assert reply == Noted(Verdict.DONE if held else Verdict.LOST)
        else:
            self.mark(operation, reply)

    def enqueue(self, operation: Enqueue, reply: Enqueued) -> None:
        for spec, told in zip(operation.jobs, reply.jobs, strict=True):
            job = self.jobs.get(spec.id)
            newest = self.newest(spec.key)
            created = False
            if job is None and newest is not None and not newest.ever_started:
                job = newest
                if spec.on_conflict == "replace":
                    self.replace(job, attrs.evolve(spec, id=job.id))
            elif job is None:
                created = True
                after = newest if spec.on_conflict == "after" else None
                job = self.admit(spec, after)
            assert (told.id, told.number, told.state, told.created) == (job.id, job.number, job.state, created)
            assert told.presence_token == (job.token if job.spec.presence_ms is not None else None)

    def newest(self, key: str | None) -> Actor | None:
        """Return the newest unfinished job of a key."""
        peers = [job for job in self.jobs.values() if job.spec.key == key is not None and job.state not in OVER]
        return max(peers, key=lambda job: job.number, default=None)

    def admit(self, spec: JobSpec, after: Actor | None) -> Actor:
        self.numbers += 1
        job = self.jobs[spec.id] = Actor(spec, self.numbers)
        job.enqueued = self.now
        if after is not None:
            job.blocked.add(after.id)
        self.begin(job)
        if spec.presence_ms is not None:
            self.tokens += 1
            job.token = self.tokens
            job.alarms[LEASE] = self.now + spec.presence_ms
        return job

    def begin(self, job: Actor) -> None:
        """Let a job wait for its time, else for its edges, else take its place unless it has it."""
        spec = job.spec
        job.alarms = {}
        due = self.now + spec.delay_ms if spec.delay_ms else spec.run_at_ms
        job.due = due if due is not None and due > self.now else None
        if spec.policy.start_within_ms is not None:
            job.alarms[EXPIRY] = (job.due or self.now) + spec.policy.start_within_ms
        if job.due is not None:
            self.vacate(job)
            job.state = SCHEDULED
            job.alarms[DUE] = job.due
        elif job.blocked:
            job.state = DEFERRED
        elif not job.seq:
            self.place(job)

    def replace(self, job: Actor, spec: JobSpec) -> None:
        if spec.claims != job.spec.claims:
            self.vacate(job)
        job.set_spec(spec)
        self.begin(job)

    def exchange(self, operation: Exchange, reply: Exchanged, *, cut: bool) -> None:
        assert reply.verdicts == tuple([self.settle(outcome) for outcome in operation.settle])
        self.catch_up()
        for grant in reply.grants:
            self.grant(grant, operation, cut=cut)
        assert len(reply.grants) <= operation.limit
        if self.exact and not cut and len(reply.grants) < operation.limit:
            left = [job.id for job in self.ready() if job.spec.pool in operation.pools and not self.is_paused(job)]
            assert not left, f"{left} could have been granted"
        assert list(reply.canceled) == self.untold.pop(operation.worker, [])

    def grant(self, grant: Grant, operation: Exchange, *, cut: bool) -> None:
        job = self.jobs[grant.spec.id]
        ready = self.ready()
        assert job in ready, f"{job.id} was started out of order"
        assert not self.is_paused(job)
        assert job.spec.pool in operation.pools
        if self.exact and not cut:
            peers = [peer for peer in ready if (peer.spec.pool, peer.spec.user) == (job.spec.pool, job.spec.user)]
            assert job is min((peer for peer in peers if not self.is_paused(peer)), key=self.urgency)
        self.tokens += 1
        job.state, job.token, job.worker, job.ever_started = STARTED, grant.token, operation.worker, True
        job.attempts += 1
        job.alarms = {LEASE: self.now + operation.lease_ms}
        assert grant.spec == job.spec
        assert (grant.token, grant.attempt, grant.losses) == (self.tokens, job.attempts, job.losses)
        assert grant.lease_until_ms == job.alarms[LEASE]

    @staticmethod
    def urgency(job: Actor) -> tuple[bool, int, int]:
        critical = job.spec.priority == 9
        return (not critical, 0 if critical else job.enqueued - 60_000 * (job.spec.priority - 1), job.number)

    def find(self, job_id: str) -> Actor | None:
        job = self.jobs.get(job_id)
        return None if job is None or job.gone else job

    def cancel_ids(self, operation: Cancel, reply: Judged) -> None:
        verdicts: list[tuple[Verdict, JobState | None]] = []
        for job_id in operation.ids:
            job = self.find(job_id)
            if job is None:
                verdicts.append((Verdict.UNKNOWN, None))
            elif job.state in OVER:
                verdicts.append((Verdict.REFUSED, job.state))
            else:
                self.cancel(job, operation.reason or "canceled")
                verdicts.append((Verdict.REQUESTED if job.state is STARTED else Verdict.DONE, job.state))
        assert reply.verdicts == tuple(verdicts)
        self.catch_up()

    def revive(self, operation: Redrive | Discard, reply: Judged) -> None:
        again = isinstance(operation, Redrive)
        dead: dict[str, Actor] = {}
        verdicts: list[tuple[Verdict, JobState | None]] = []
        for job_id in operation.ids:
            job = self.find(job_id)
            if job is None:
                verdicts.append((Verdict.UNKNOWN, None))
            elif job.state is not FAILED or (again and job.spec.presence_ms is not None):
                verdicts.append((Verdict.REFUSED, job.state))
            else:
                dead[job_id] = job
                job.alarms = {}
                verdicts.append((Verdict.DONE, QUEUED if again else CANCELED))
        assert reply.verdicts == tuple(verdicts)
        if not again:
            for job in dead.values():
                self.vacate(job)
                job.state = CANCELED
                job.alarms = {PRUNE: self.now + self.kept_ms(job)}
        self.catch_up()
        if again:
            for job in sorted(dead.values(), key=lambda job: job.number):
                self.numbers += 1
                job.since = self.numbers
                job.attempts = job.losses = 0
                job.cancel = None
                job.state = QUEUED
                if not job.seq:
                    self.place(job)

    def renew(self, operation: Renew, reply: Renewed) -> None:
        verdicts = []
        for job_id, token in operation.leases:
            job = self.jobs.get(job_id)
            if job is None or job.token != token:
                verdicts.append(Verdict.LOST)
            elif job.state is STARTED or (job.state is QUEUED and job.spec.presence_ms is not None):
                job.alarms[LEASE] = self.now + operation.lease_ms
                verdicts.append(Verdict.DONE if job.cancel is None else Verdict.CANCELED)
                if job.cancel is not None and job.worker is not None and job_id in self.untold.get(job.worker, ()):
                    self.untold[job.worker].remove(job_id)
            else:
                verdicts.append(Verdict.LOST)
        assert reply.verdicts == tuple(verdicts)
        self.catch_up()

    def mark(self, operation: Pause | Resume | Close | Reopen, reply: Marked) -> None:
        marks = self.paused if isinstance(operation, (Pause, Resume)) else self.closed
        setting = isinstance(operation, (Pause, Close))
        assert reply.changed == ((operation.path in marks) != setting)
        if setting:
            marks.add(operation.path)
        else:
            marks.discard(operation.path)
        self.catch_up()
