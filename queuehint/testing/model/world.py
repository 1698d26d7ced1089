"""
The jobs of the model and what becomes of them, by the plainest program that is obviously right.

No trie, no index, no heap, nothing kept that can be asked: who depends on whom is found by looking at all jobs. `World`
holds them and makes their moves; what is asked and must be answered is said in `reference`. It does at once what
follows, so it speaks for an engine whose budget is not used up.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Literal

from queuehint.core.course import ID_KEPT_MS, PINNED_LOOK_MAX_MS, PINNED_LOOK_MIN_MS
from queuehint.core.timers import TimerKind
from queuehint.hint import queue_key
from queuehint.limits import Limit
from queuehint.records import OVER, Dependency, JobSpec, JobState, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from queuehint.hint import Claim, Path
    from queuehint.policy import OnDependencyFailure, Retention

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


# --- edges -----------------------------------------------------------------------------------------------------------


def what_an_end_does(
    edge: Dependency, on_failure: OnDependencyFailure, state: JobState
) -> Literal["drop", "wait", "cancel"]:
    """Read the table of the documentation: what the end of a dependency does to the job that depends on it."""
    if edge.when == "failure":
        return "drop" if state is FAILED else "cancel"
    if state is FINISHED:
        return "drop"
    if edge.when == "success" and on_failure == "wait" and state is FAILED:
        return "wait"
    if edge.when == "success" and on_failure == "cancel":
        return "cancel"
    return "cancel" if edge.data else "drop"


class Actor:
    """
    One job as the model knows it; ``seq`` is 0 while it has no place.

    ``needs`` is what it was told to depend on, ``waits`` whom it waits for at present and as what: for a job it needs,
    for one of its key, for a child of its own. ``fell`` is the job because of which it is CANCELED, ``part`` the
    submission in parts it belongs to while nobody knows of it.
    """

    def __init__(self, spec: JobSpec, number: int) -> None:
        self.id = spec.id
        self.number = self.since = number
        self.state = QUEUED
        self.seq = self.attempts = self.losses = self.strangers = 0
        self.ever_started = self.gone = False
        self.needs = {edge.id: (edge, spec.policy.on_dependency_failure) for edge in spec.depends_on}
        self.waits: dict[str, Literal["need", "key", "child", "ignored child"]] = {}
        self.is_parent = self.child_failed = False
        self.fell: str | None = None
        self.part: str | None = None
        self.alarms: dict[TimerKind, int] = {}
        self.token: int | None = None
        self.worker: str | None = None
        self.cancel: str | None = None
        self.cause: str | None = None
        self.result: bytes | None = None
        self.due: int | None = None
        self.ended = 0
        self.enqueued = 0
        self.asked = spec
        self.set_spec(spec)

    def set_spec(self, spec: JobSpec) -> None:
        self.spec = spec
        self.claims = shape(spec.claims)

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_waiting_parent(self) -> bool:
        return self.is_parent and not self.is_over

    @property
    def can_run(self) -> bool:
        """It may run some day: a dead job may be redriven while its record is kept."""
        return self.state not in {FINISHED, CANCELED} and not self.gone

    def depends_on(self, other: Actor) -> bool:
        return other.id in self.waits or (other.id in self.needs and self.can_run)


class World:
    """All jobs, who has a place, what is to be done next."""

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.jobs: dict[str, Actor] = {}
        self.placed: list[Actor] = []
        self.starts: dict[str, Actor] = {}
        """What has an alarm for each submission in parts that waits for its commit."""
        self.hidden: dict[str, Actor] = {}
        self.paused: set[Path] = set()
        self.closed: set[Path] = set()
        self.limits: dict[tuple[Path | None, bool], Limit] = {}
        self.tokens_left: dict[Path, tuple[Fraction, int]] = {}
        """What is left of the bucket of each rate, and when that was so."""
        self.untold: dict[str, list[str]] = {}
        self.agenda: deque[Callable[[], None]] = deque()
        self.now = self.numbers = self.seqs = self.tokens = self.pruned = 0
        self.awaited: set[str] = set()
        """Jobs on which others depend or did: a new job of the id of one that is forgotten is none of these."""
        self.woven = False
        """There were edges of other kinds than those of a key."""

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

    # --- limits --------------------------------------------------------------------------------------------------

    def places(self, job: Actor, limit: Limit) -> set[Path]:
        """Return at which places a job counts towards a limit on starts."""
        assert limit.path is not None
        length = len(limit.path) + limit.each
        return {
            claim.path[:length]
            for claim in job.claims
            if claim.path[: len(limit.path)] == limit.path and len(claim.path) >= length
        }

    def is_limited(self, job: Actor) -> bool:
        """Some limit may keep a job from being started."""
        return any(limit.holds_back and self.places(job, limit) for limit in self.limits.values())

    def count_started(self, limit: Limit) -> list[Path]:
        """Return the places of all STARTED jobs that count towards a limit."""
        return [place for job in self.placed if job.state is STARTED for place in self.places(job, limit)]

    def count_unfinished(self, path: Path | None) -> int:
        """Return how many jobs are unfinished below a path, once a claim; all of them if there is none."""
        jobs = [job for jobs in (self.jobs, self.hidden) for job in jobs.values() if not job.is_over]
        if path is None:
            return len(jobs)
        return sum(claim.path[: len(path)] == path for job in jobs for claim in job.claims)

    def tokens_of(self, path: Path, rate: tuple[int, int]) -> Fraction:
        left, as_of = self.tokens_left.get(path, (Fraction(rate[0]), self.now))
        return min(Fraction(rate[0]), left + Fraction((self.now - as_of) * rate[0], rate[1]))

    def set_limit(self, limit: Limit) -> bool:
        """Put a limit in place of another; what was spent of a rate stays spent, in whole tokens."""
        key = limit.path, limit.each
        old = self.limits.pop(key, Limit(path=limit.path, each=limit.each))
        if limit.holds_back or limit.max_pending is not None:
            self.limits[key] = limit
        if limit.path is not None and not limit.each and (limit.most, limit.rate) != (old.most, old.rate):
            spent = 0 if old.rate is None else ceil(old.rate[0] - self.tokens_of(limit.path, old.rate))
            self.tokens_left.pop(limit.path, None)
            if limit.rate is not None:
                self.tokens_left[limit.path] = Fraction(max(0, limit.rate[0] - spent)), self.now
        return limit != old

    def spend(self, job: Actor) -> None:
        """Assert that no limit keeps a job from being started that was just started, and take its tokens."""
        for limit in self.limits.values():
            if limit.path is None or not self.places(job, limit):
                continue
            if limit.most is not None:
                started = self.count_started(limit)
                assert all(started.count(place) <= limit.most for place in self.places(job, limit)), f"over {limit}"
            if limit.rate is not None:
                left = self.tokens_of(limit.path, limit.rate)
                assert left >= 1, f"{job.id} is too early for {limit}"
                self.tokens_left[limit.path] = left - 1, self.now

    # --- look-ups --------------------------------------------------------------------------------------------------

    def find(self, job_id: str) -> Actor | None:
        """Return a job whose record is kept and that somebody may know of."""
        job = self.jobs.get(job_id)
        return None if job is None or job.gone else job

    def is_needed(self, job: Actor) -> bool:
        """Some job that may run yet depends on it."""
        return job.id in self.awaited and any(other.depends_on(job) for other in self.jobs.values())

    def waits_for(self, job_ids: Iterable[str], target: str) -> bool:
        """One of these is the target, or waits for it, through however many others."""
        for job_id in job_ids:
            job = self.find(job_id)
            if job_id == target or (job is not None and not job.is_over and self.waits_for(job.waits, target)):
                return True
        return False

    def judge(self, job: Actor, coming: Collection[str] = ()) -> tuple[list[str], str | None]:
        """Return what a job has to wait for, and the first of those it needs because of which it is canceled."""
        waits = []
        for edge, on_failure in job.needs.values():
            other = self.find(edge.id)
            if other is None:
                if edge.id in self.jobs or edge.id not in coming:
                    return [], edge.id
                what = "wait"
            else:
                what = what_an_end_does(edge, on_failure, other.state) if other.is_over else "wait"
            if what == "cancel":
                return [], edge.id
            if what == "wait":
                waits.append(edge.id)
        return waits, None

    def next_alarm(self) -> tuple[int, TimerKind, int, Actor] | None:
        return min(
            (
                (at, kind, job.number, job)
                for jobs in (self.jobs, self.starts)
                for job in jobs.values()
                for kind, at in job.alarms.items()
            ),
            default=None,
        )

    # --- moves -------------------------------------------------------------------------------------------------

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
        elif job.waits:
            job.state = DEFERRED
        elif not job.seq:
            self.place(job)

    def place(self, job: Actor) -> None:
        job.state, job.due = QUEUED, None
        self.seqs += 1
        job.seq = self.seqs
        self.placed.append(job)

    def vacate(self, job: Actor) -> None:
        if job.seq:
            self.placed.remove(job)
            job.seq = 0

    def end(self, job: Actor, state: JobState, cause: str | None = None, *, keep_place: bool = False) -> None:
        self.stop(job)
        job.state, job.due, job.ended, job.cause = state, None, self.now, cause
        job.waits.clear()
        if state is not FINISHED:
            job.result = None
        job.alarms = {PRUNE: self.now + self.kept_ms(job)}
        if not (keep_place and job.claims):
            self.vacate(job)
        self.tell(job)

    def tell(self, job: Actor) -> None:
        """Have those that wait for a job learn that it is over, or that nothing is known of it any more."""
        waiting = [other for other in self.jobs.values() if job.id in other.waits]
        if waiting:
            self.agenda.append(partial(self.resolve, job, sorted(waiting, key=lambda other: other.since)))

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

    def cancel(self, job: Actor, cause: str) -> None:
        if job.state is not STARTED:
            self.end(job, CANCELED, cause)
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
                if job.is_over or job.since >= before:
                    continue
                if behind is None or (job.state is QUEUED and seqs[0] < job.seq <= seqs[1]):
                    self.cancel(job, cause)
        if behind is not None and behind.state is FAILED and behind.seq == seqs[0]:
            self.vacate(behind)

    def sweep_flow(self, flow: str, before: int, cause: str) -> None:
        for job in sorted(self.jobs.values(), key=lambda job: -job.number):
            if job.spec.flow == flow and not job.is_over and job.since < before:
                self.cancel(job, cause)

    def die(self, job: Actor, cause: str) -> None:
        on_dead, seq = job.spec.policy.on_dead, job.seq
        self.end(job, FAILED, cause, keep_place=on_dead != "continue")
        if on_dead == "cancel_behind" and job.claims and seq:
            self.numbers += 1
            paths = [claim.path for claim in job.claims]
            cause = f"behind the dead job {job.id}"
            self.agenda.append(partial(self.sweep, paths, self.numbers, cause, job, (seq, self.seqs)))

    def lose(self, job: Actor) -> None:
        job.attempts -= 1
        job.losses += 1
        if job.losses >= job.spec.policy.max_losses:
            self.die(job, "worker_lost")
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

    def begin_anew(self, job: Actor) -> None:
        """Have a job that is over be a new one that takes a new number."""
        self.numbers += 1
        job.since = self.numbers
        job.attempts = job.losses = 0
        job.cancel = job.cause = job.result = job.fell = None
        job.is_parent = job.child_failed = False
        job.alarms = {}

    # --- edges -------------------------------------------------------------------------------------------------

    def resolve(self, dependency: Actor, waiting: list[Actor]) -> None:
        """Do with those that wait for a job that is over what their edges say."""
        for job in waiting:
            if not dependency.is_over:
                return
            if not job.is_over and dependency.id in job.waits:
                self.follow_edge(job, dependency)

    def follow_edge(self, job: Actor, dependency: Actor) -> None:
        kind = job.waits[dependency.id]
        if dependency.gone:
            return self.end(job, CANCELED, cause_of(dependency.id, None))
        if kind == "need":
            edge, on_failure = job.needs[dependency.id]
            what = what_an_end_does(edge, on_failure, dependency.state)
            if what == "wait":
                return None
            if what == "cancel":
                return self.fell(job, dependency)
        if kind == "child" and dependency.state is not FINISHED:
            job.child_failed = True
        del job.waits[dependency.id]
        if job.waits:
            return None
        if job.is_parent:
            return self.end_parent(job)
        return self.place(job) if job.state is DEFERRED else None

    def fell(self, job: Actor, dependency: Actor) -> None:
        self.end(job, CANCELED, cause_of(dependency.id, dependency.state))
        job.fell = dependency.id

    def bind(self, job: Actor, coming: Collection[str] = ()) -> bool:
        """Let a job wait for what it needs; False if it is canceled instead."""
        waits, fell = self.judge(job, coming)
        if fell is None:
            job.waits.update(dict.fromkeys(waits, "need"))
            self.awaited.update(job.needs)
            return True
        dependency = self.find(fell)
        if dependency is None:
            self.end(job, CANCELED, cause_of(fell, None))
        else:
            self.fell(job, dependency)
        return False

    def revive_those_fallen(self, by: Actor) -> None:
        """Bring back those that were canceled because of a job, in order of number, unless it is over once more."""
        for job in sorted(self.jobs.values(), key=lambda job: job.number):
            if by.is_over and by.state is not FINISHED:
                return
            if job.fell == by.id:
                self.revive(job)

    def revive(self, job: Actor) -> None:
        waits, fell = self.judge(job)
        if fell is not None:
            job.fell = fell if self.find(fell) is not None else None
            return
        self.begin_anew(job)
        job.waits.update(dict.fromkeys(waits, "need"))
        self.awaited.update(job.needs)
        within = job.spec.policy.start_within_ms
        if within is not None and not job.ever_started:
            job.alarms[EXPIRY] = self.now + within
        if job.waits:
            job.state = DEFERRED
        else:
            self.place(job)
        self.agenda.append(partial(self.revive_those_fallen, job))

    def await_children(self, job: Actor, outcome: Outcome) -> None:
        # Of one whose record has expired it is still known how it ended, as long as its id is kept.
        children = [(child_id, self.jobs.get(child_id)) for child_id in dict.fromkeys(outcome.children)]
        unfinished = [child_id for child_id, child in children if child is not None and not child.is_over]
        if any(child is None for _, child in children) or self.waits_for(unfinished, job.id):
            return self.die(job, "failed")
        strict = outcome.on_child_failure == "fail"
        job.result = job.result if outcome.result is None else outcome.result
        job.is_parent = True
        job.child_failed = strict and any(child.state in {FAILED, CANCELED} for _, child in children if child)
        if not unfinished:
            return self.end_parent(job)
        self.woven = True
        self.stop(job)
        self.vacate(job)
        job.state = DEFERRED
        self.awaited.update(unfinished)
        return job.waits.update(dict.fromkeys(unfinished, "child" if strict else "ignored child"))

    def end_parent(self, job: Actor) -> None:
        if job.child_failed:
            self.die(job, "child_failed")
        else:
            self.end(job, FINISHED)

    # --- time --------------------------------------------------------------------------------------------------

    def come_up(self, kind: TimerKind, job: Actor) -> None:
        del job.alarms[kind]
        if job.id in self.starts:
            del self.starts[job.id]
            self.hidden = {each.id: each for each in self.hidden.values() if each.part != job.id}
        elif kind is EXPIRY:
            self.end(job, CANCELED, "expired")
        elif kind is LEASE:
            if job.spec.presence_ms is not None:
                self.end(job, CANCELED, "waiter_lost")
            elif job.cancel is not None:
                self.end(job, CANCELED, job.cancel)
            else:
                self.lose(job)
        elif kind is PRUNE:
            self.prune(job)
        elif job.state is QUEUED and job.due is not None and job.due > self.now:
            self.yield_place(job, job.due)
        elif job.state is QUEUED:
            job.due = None
        elif job.waits:
            job.state, job.due = DEFERRED, None
        else:
            self.place(job)

    def prune(self, job: Actor) -> None:
        if job.state is FINISHED and not job.gone and self.is_needed(job):
            kept = min(max(self.kept_ms(job), PINNED_LOOK_MIN_MS), PINNED_LOOK_MAX_MS)
            job.alarms[PRUNE] = self.now + kept
            return
        self.vacate(job)
        job.gone = True
        job.fell = job.result = None
        if job.ended + ID_KEPT_MS > self.now:
            job.alarms[PRUNE] = job.ended + ID_KEPT_MS
        else:
            del self.jobs[job.id]
            self.awaited.discard(job.id)
            self.pruned += 1
        self.tell(job)

    def catch_up(self) -> None:
        """Do what follows: what is on the agenda first in first out, then what is due, each with its own agenda."""
        while True:
            while self.agenda:
                self.agenda.popleft()()
            alarm = self.next_alarm()
            if alarm is None or alarm[0] > self.now:
                return
            self.come_up(alarm[1], alarm[3])


def cause_of(job_id: str, state: JobState | None) -> str:
    """Return why a job is canceled that depends on one that ended so."""
    how = {FINISHED: "has finished", FAILED: "has failed", CANCELED: "was canceled", None: "has expired"}
    return f"dependency {job_id} {how[state]}"
