"""
What the rules say is asked of a `World` and must be answered: the oracle.

`ReferenceModel` follows an engine operation by operation, foretells what the engine must answer and what must be true
afterwards, and judges the one thing it cannot foretell, which jobs are granted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.core.job import START_MARK
from queuehint.errors import (
    CycleError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    JobNotFoundError,
    LeaseLostError,
    PathClosedError,
    QueueFullError,
    UnknownDependencyError,
)
from queuehint.hint import queue_key
from queuehint.limits import Limit
from queuehint.operations import (
    STAGED_KEPT_MS,
    Amend,
    Cancel,
    CancelFlow,
    CancelPath,
    Close,
    Commit,
    Committed,
    CountEdges,
    CountFlow,
    Delete,
    Discard,
    DropLimit,
    Enqueue,
    Enqueued,
    Exchange,
    Exchanged,
    Fetch,
    Fetched,
    Judged,
    Listed,
    ListFlow,
    Log,
    Marked,
    Noted,
    Pause,
    Pull,
    Pulled,
    Push,
    Pushed,
    Redrive,
    Renew,
    Renewed,
    Reopen,
    Report,
    Resume,
    SetLimit,
    Tick,
    Update,
    Verdict,
    Weigh,
    Why,
)
from queuehint.records import OVER, Grant, JobSpec, JobState, Outcome, OutcomeKind
from queuehint.reports import EdgeStats, FlowStats, Reason, ReasonKind
from queuehint.testing.model.world import (
    CANCELED,
    DEFERRED,
    EXPIRY,
    FAILED,
    FINISHED,
    LEASE,
    PRUNE,
    QUEUED,
    STARTED,
    Actor,
    World,
    at_or_below,
    clash,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.hint import Claim
    from queuehint.policy import Retention
    from queuehint.record_filter import RecordFilter

__all__ = ["ReferenceModel", "clash"]


class ReferenceModel(World):
    """The scheduler by the plain definition of its rules; `follow` takes every operation with the engine's reply."""

    def __init__(self, retention: Retention) -> None:
        super().__init__(retention)
        self.shared: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.weights: dict[str | None, int] = {}
        self.exact = True
        """Ready is foretold exactly: no claim so far was shared."""
        self.level_of: Callable[[str], int] = lambda job_id: self.jobs[job_id].spec.priority
        """What a job is ranked by: levels are handed on as far as somebody looks, which no definition says."""
        self.look_ms: Callable[[], int | None] = lambda: None
        """When somebody put aside by a limit is looked at again, which no definition says."""

    def can_dequeue(self, claim: Claim) -> bool:
        return not any(clash(job.claims, (claim,)) for job in self.placed if job.state is STARTED)

    # --- what is refused ---------------------------------------------------------------------------------------

    def refuses(self, operation: Any) -> type[Exception] | None:
        """Return the error an operation must be refused with."""
        if isinstance(operation, Enqueue):
            return self._refuses_by_itself(operation) or self._refuses_here(operation)
        if isinstance(operation, Commit):
            return None if START_MARK + operation.staged in self.starts else FlowNotFoundError
        if isinstance(operation, Why):
            return None if self.find(operation.job_id) is not None else JobNotFoundError
        if isinstance(operation, Amend):
            job = self.find(operation.spec.id)
            spec = operation.spec if job is None else attrs.evolve(job.spec, user=None, service=None)
            return (
                None
                if attrs.evolve(operation.spec, user=None, service=None) == spec or job is None
                else InvalidJobError
            )
        return None

    @staticmethod
    def _refuses_by_itself(operation: Enqueue) -> type[Exception] | None:
        """What a look at the submission alone shows."""
        specs = {spec.id: spec for spec in operation.jobs}
        if operation.staged is not None:
            if len({spec.flow for spec in specs.values()}) > 1:
                return InvalidJobError
            if any(spec.key is not None or spec.presence_ms is not None for spec in specs.values()):
                return InvalidJobError
        edges = {spec.id: {edge.id for edge in spec.depends_on} & specs.keys() for spec in specs.values()}
        named = [specs[job_id] for ids in edges.values() for job_id in ids]
        if any(spec.key is not None and spec.on_conflict != "reject" for spec in named):
            return InvalidJobError
        # What waits for nothing that is left can go first; if nothing can, there is a circle.
        while edges:
            free = [job_id for job_id, ids in edges.items() if not ids & edges.keys()]
            if not free:
                return CycleError
            for job_id in free:
                del edges[job_id]
        return None

    def _refuses_here(self, operation: Enqueue) -> type[Exception] | None:
        if operation.parent is not None:
            parent = self.jobs.get(operation.parent[0])
            if parent is None or parent.state is not STARTED or parent.token != operation.parent[1]:
                return LeaseLostError
        start = self.starts.get(f"{START_MARK}{operation.staged}")
        if start is not None and operation.jobs and operation.jobs[0].flow != start.spec.flow:
            return InvalidJobError
        ids = {spec.id for spec in operation.jobs}
        new_keys: set[str] = set()
        for spec in operation.jobs:
            existing = self.existing(spec.id, operation.staged)
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
            for edge in spec.depends_on:
                other = self.existing(edge.id, operation.staged)
                if other.gone if other is not None else edge.id not in ids:
                    return UnknownDependencyError
            if operation.parent is not None:
                needs = [edge.id for edge in spec.depends_on]
                if self.waits_for(needs, operation.parent[0]):
                    return CycleError
        return QueueFullError if self._leaves_too_many(operation) else None

    def _leaves_too_many(self, operation: Enqueue) -> bool:
        """Some limit on unfinished jobs would be broken."""
        new: dict[object, JobSpec] = {}
        for spec in operation.jobs:
            newest = self.newest(spec.key)
            is_there = self.existing(spec.id, operation.staged) is not None
            if not is_there and (newest is None or newest.ever_started):
                new.setdefault(spec.key if spec.key is not None else (spec.id,), spec)
        return any(
            added and self.count_unfinished(limit.path) + added > limit.max_pending
            for limit in self.limits.values()
            if limit.max_pending is not None
            for added in (
                len(new)
                if limit.path is None
                else sum(claim.path[: len(limit.path)] == limit.path for spec in new.values() for claim in spec.claims),
            )
        )

    def existing(self, job_id: str, staged: str | None) -> Actor | None:
        """Return the job that has an id, as far as one who enqueues may know of it."""
        hidden = self.hidden.get(job_id)
        if hidden is not None and staged is not None and hidden.part == START_MARK + staged:
            return hidden
        return self.jobs.get(job_id)

    # --- operations --------------------------------------------------------------------------------------------

    def follow(self, operation: Any, reply: Any, *, cut: bool = False) -> None:
        """Do what *operation* asks and assert that *reply* says so; *cut*: the engine may not have caught up."""
        if isinstance(operation, Exchange):
            self.exchange(operation, reply, cut=cut)
        elif isinstance(operation, Enqueue):
            if operation.staged is not None:
                self.keep_part(operation)
            self.catch_up()
            self.enqueue(operation, reply)
        elif isinstance(operation, Commit):
            self.commit(operation, reply)
        elif isinstance(operation, Tick):
            self.catch_up()
            if not cut:
                assert (reply.more, reply.next_ms) == (False, self.next_ms())
        elif isinstance(operation, Cancel):
            self.cancel_ids(operation, reply)
        elif isinstance(operation, CancelPath):
            self.numbers += 1
            cause = operation.reason or "canceled"
            self.agenda.append(partial(self.sweep, [operation.path], self.numbers, cause))
            self.catch_up()
        elif isinstance(operation, CancelFlow):
            self.numbers += 1
            cause = operation.reason or "canceled"
            self.agenda.append(partial(self.sweep_flow, operation.flow, self.numbers, cause))
            self.catch_up()
        elif isinstance(operation, (Redrive, Discard)):
            self.take_off_the_shelf(operation, reply)
        elif isinstance(operation, Renew):
            self.renew(operation, reply)
        elif isinstance(operation, Log) and operation.token is None:
            assert reply == Noted(Verdict.DONE if self.find(operation.job_id) is not None else Verdict.UNKNOWN)
        elif isinstance(operation, (Report, Log, Update)):
            job = self.jobs.get(operation.job_id)
            held = job is not None and job.state is STARTED and job.token == operation.token
            assert reply == Noted(Verdict.DONE if held else Verdict.LOST)
            if isinstance(operation, Update) and job is not None and held:
                job.result = operation.result
        elif isinstance(operation, Amend):
            self.amend(operation, reply)
        elif isinstance(operation, Delete):
            self.delete(operation, reply)
        elif isinstance(operation, Push):
            self.catch_up()
            replaced = self.pull(operation.namespace, operation.key) is not None
            assert reply == Pushed(replaced, reply.more)
            self.shared[operation.namespace, operation.key] = operation.value, self.now + operation.ttl_ms
        elif isinstance(operation, (Pause, Resume, Close, Reopen)):
            self.mark(operation, reply)
        elif isinstance(operation, SetLimit):
            assert reply.changed == self.set_limit(operation.limit)
            self.catch_up()
        elif isinstance(operation, DropLimit):
            none = [Limit(path=operation.path, each=each) for each in (False, True)]
            changed = [self.set_limit(limit) for limit in none]
            assert reply.changed == any(changed)
            self.catch_up()
        elif isinstance(operation, Weigh):
            assert reply.changed == (self.weights.get(operation.user, 1) != operation.weight)
            self.weights[operation.user] = operation.weight
            self.catch_up()
        else:
            self.check_answer(operation, reply)

    def next_ms(self) -> int | None:
        """Return when something is due."""
        alarm, look_ms = self.next_alarm(), self.look_ms()
        due = [at for at in (None if alarm is None else alarm[0], look_ms) if at is not None]
        return min(due, default=None)

    def enqueue(self, operation: Enqueue, reply: Enqueued) -> None:
        staged = operation.staged
        ids = {spec.id for spec in operation.jobs}
        for job_id in ids:
            if self.existing(job_id, staged) is None:
                # Nobody knows of it, and it is asked for anew.
                self.hidden.pop(job_id, None)
        for spec, told in zip(operation.jobs, reply.jobs, strict=True):
            job = self.existing(spec.id, staged)
            newest = self.newest(spec.key)
            created = False
            if job is None and newest is not None and not newest.ever_started:
                job = newest
                if spec.on_conflict == "replace":
                    self.replace(job, attrs.evolve(spec, id=job.id))
            elif job is None:
                created = True
                if staged is not None:
                    job = self.hide(spec, START_MARK + staged)
                else:
                    job = self.admit(spec, newest if spec.on_conflict == "after" else None, ids)
            assert (told.id, told.number, told.state, told.created) == (job.id, job.number, job.state, created)
            assert told.presence_token == (job.token if job.spec.presence_ms is not None else None)

    def newest(self, key: str | None) -> Actor | None:
        """Return the newest unfinished job of a key."""
        peers = [job for job in self.jobs.values() if job.spec.key == key is not None and job.state not in OVER]
        return max(peers, key=lambda job: job.number, default=None)

    def admit(self, spec: JobSpec, after: Actor | None, coming: set[str]) -> Actor:
        self.numbers += 1
        job = self.jobs[spec.id] = Actor(spec, self.numbers)
        job.enqueued = self.now
        job.state = DEFERRED
        self.woven = self.woven or bool(spec.depends_on)
        if self.bind(job, coming):
            if after is not None:
                job.waits.setdefault(after.id, "key")
                self.awaited.add(after.id)
            self.begin(job)
        if spec.presence_ms is not None:
            self.tokens += 1
            job.token = self.tokens
            job.alarms[LEASE] = self.now + spec.presence_ms
        return job

    def replace(self, job: Actor, spec: JobSpec) -> None:
        if spec.claims != job.spec.claims:
            self.vacate(job)
        job.set_spec(spec)
        self.begin(job)

    def keep_part(self, operation: Enqueue) -> None:
        """Wait for the commit of a submission in parts from now on."""
        self.woven = True
        start_id = f"{START_MARK}{operation.staged}"
        start = self.starts.get(start_id)
        if start is None:
            self.numbers += 1
            flow = operation.jobs[0].flow if operation.jobs else None
            start = self.starts[start_id] = Actor(JobSpec(id=start_id, task="start", flow=flow), self.numbers)
        start.alarms[EXPIRY] = self.now + STAGED_KEPT_MS

    def hide(self, spec: JobSpec, part: str) -> Actor:
        self.numbers += 1
        job = self.hidden[spec.id] = Actor(spec, self.numbers)
        job.state, job.part = DEFERRED, part
        return job

    def commit(self, operation: Commit, reply: Committed) -> None:
        start_id = START_MARK + operation.staged
        del self.starts[start_id]
        jobs = [job for job in self.hidden.values() if job.part == start_id]
        assert reply == Committed(len(jobs), reply.more)
        for job in jobs:
            del self.hidden[job.id]
            self.jobs[job.id] = job
            job.part, job.enqueued = None, self.now
        self.agenda.append(partial(self.take_up, jobs))
        self.catch_up()

    def take_up(self, jobs: list[Actor]) -> None:
        for job in jobs:
            if not job.is_over and self.bind(job):
                self.begin(job)

    def exchange(self, operation: Exchange, reply: Exchanged, *, cut: bool) -> None:
        assert reply.verdicts == tuple([self.settle(outcome) for outcome in operation.settle])
        self.catch_up()
        users, among = operation.users, operation.among
        for grant in reply.grants:
            self.grant(grant, operation, cut=cut)
            assert among is None or grant.spec.user in among
        assert len(reply.grants) <= operation.limit
        free = [job for job in self.ready() if not (self.is_paused(job) or self.is_limited(job))]
        ready = [job for job in free if job.spec.pool in operation.pools]
        if users is not None:
            stolen = [grant.spec.user not in users for grant in reply.grants]
            assert stolen == sorted(stolen), "others were helped first"
            own = [job.id for job in ready if job.spec.user in users]
            assert cut or not self.exact or not (own and any(stolen)), f"{own} were left for others"
        if self.exact and not cut and len(reply.grants) < operation.limit:
            left = [job.id for job in ready if among is None or job.spec.user in among]
            assert not left, f"{left} could have been granted"
        assert list(reply.canceled) == self.untold.pop(operation.worker, [])

    def settle(self, outcome: Outcome) -> Verdict:
        job = self.jobs.get(outcome.job_id)
        if job is None or job.state is not STARTED or job.token != outcome.token:
            return Verdict.LOST
        kind = outcome.kind
        for_caller = job.spec.presence_ms is not None
        if kind is OutcomeKind.FINISHED:
            job.result = job.result if outcome.result is None else outcome.result
            self.end(job, FINISHED)
        elif job.cancel is not None:
            self.end(job, CANCELED, job.cancel)
        elif kind is OutcomeKind.DISCARDED:
            self.end(job, CANCELED, outcome.reason or "discarded")
        elif kind is OutcomeKind.FAILED:
            if outcome.final or for_caller or job.attempts >= job.spec.policy.max_attempts:
                self.die(job, "failed")
            else:
                self.back_off(job, outcome.delay_ms)
        elif for_caller:
            self.end(job, CANCELED, "waiter_lost")
        elif kind is OutcomeKind.LOST:
            self.lose(job)
        elif kind is OutcomeKind.CHILDREN:
            self.await_children(job, outcome)
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

    def is_paused(self, job: Actor) -> bool:
        return any(at_or_below(job.claims, path) for path in self.paused)

    def grant(self, grant: Grant, operation: Exchange, *, cut: bool) -> None:
        job = self.jobs[grant.spec.id]
        ready = self.ready()
        assert job in ready, f"{job.id} was started out of order"
        assert not self.is_paused(job)
        assert job.spec.pool in operation.pools
        if self.exact and not cut:
            peers = [peer for peer in ready if (peer.spec.pool, peer.spec.user) == (job.spec.pool, job.spec.user)]
            # Who of those that a limit keeps waiting is looked at, and when, is not foretold.
            free = [peer for peer in peers if not self.is_paused(peer) and not self.is_limited(peer)]
            assert job is min([job, *free], key=self.urgency)
        self.tokens += 1
        job.state, job.token, job.worker, job.ever_started = STARTED, grant.token, operation.worker, True
        job.attempts += 1
        self.spend(job)
        job.alarms = {LEASE: self.now + operation.lease_ms}
        assert grant.spec == job.spec
        assert (grant.token, grant.attempt, grant.losses) == (self.tokens, job.attempts, job.losses)
        assert grant.lease_until_ms == job.alarms[LEASE]

    def urgency(self, job: Actor) -> tuple[bool, int, int]:
        level = self.level_of(job.id)
        critical = level == 9
        return (not critical, 0 if critical else job.enqueued - 60_000 * (level - 1), job.number)

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

    def take_off_the_shelf(self, operation: Redrive | Discard, reply: Judged) -> None:
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
                job.state, job.cause = CANCELED, "discarded"
                job.alarms = {PRUNE: self.now + self.kept_ms(job)}
                self.tell(job)
        self.catch_up()
        if isinstance(operation, Redrive):
            for job in sorted(dead.values(), key=lambda job: job.number):
                self.begin_anew(job)
                job.state = QUEUED
                if not job.seq:
                    self.place(job)
                if operation.downstream:
                    self.agenda.append(partial(self.revive_those_fallen, job))

    def amend(self, operation: Amend, reply: Noted) -> None:
        """Change a record; no version is 0."""
        job = self.find(operation.spec.id)
        if job is None or not operation.version:
            assert reply == Noted(Verdict.UNKNOWN if job is None else Verdict.STALE)
            return
        assert reply == Noted(Verdict.DONE)
        if job.is_over and job.spec.service != operation.spec.service:
            job.set_spec(operation.spec)
            job.alarms = {PRUNE: job.ended + self.kept_ms(job)}
        job.set_spec(operation.spec)

    def delete(self, operation: Delete, reply: Judged) -> None:
        verdicts: list[tuple[Verdict, JobState | None]] = []
        # What is deleted by the same operation lets go of others after it.
        found = [self.find(job_id) for job_id in operation.ids]
        needed = {job.id for job in found if job is not None and job.state is FINISHED and self.is_needed(job)}
        for job_id in operation.ids:
            job = self.find(job_id)
            if job is None:
                verdicts.append((Verdict.UNKNOWN, None))
            elif not job.is_over or job_id in needed:
                verdicts.append((Verdict.REFUSED, job.state))
            else:
                job.alarms = {}
                self.prune(job)
                verdicts.append((Verdict.DONE, None))
        assert reply.verdicts == tuple(verdicts)
        self.catch_up()

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

    # --- questions ---------------------------------------------------------------------------------------------

    def check_answer(self, question: Any, reply: Any) -> None:
        """Assert that a question about edges, flows or values was answered by the rules."""
        if isinstance(question, Pull):
            assert reply == Pulled(self.pull(question.namespace, question.key))
        elif isinstance(question, Fetch):
            assert reply == self.fetched(question)
        elif isinstance(question, CountFlow):
            states = [job.state for job in self.of_flow(question.flow)]
            assert reply == FlowStats(states={state: states.count(state) for state in JobState})
        elif isinstance(question, ListFlow):
            self.check_page(question, reply)
        elif isinstance(question, CountEdges):
            assert reply == self.edge_stats()
        elif isinstance(question, Why):
            self.check_reason(self.jobs[question.job_id], reply)
        else:
            raise AssertionError(f"what does {question} mean?")

    def listed(self, wanted: RecordFilter, *, newest_first: bool = False) -> list[str]:
        """Return the ids of what passes a filter, in order, by looking at every record."""
        places = []
        for job in self.jobs.values():
            keys = [
                queue_key(claim.path)
                for claim in job.claims
                if wanted.path is not None and at_or_below((claim,), wanted.path)
            ]
            if job.gone or (wanted.states and job.state not in wanted.states) or (wanted.path is not None and not keys):
                continue
            named = (("user", wanted.user), ("service", wanted.service), ("task", wanted.task), ("pool", wanted.pool))
            if any(value is not None and getattr(job.spec, name) != value for name, value in named):
                continue
            if (wanted.since_ms or 0) <= job.enqueued and (wanted.until_ms is None or job.enqueued < wanted.until_ms):
                places.append((min(keys, default=""), job.number, job.id))
        return [job_id for _, _, job_id in sorted(places, reverse=newest_first)]

    def pull(self, namespace: str, key: str) -> bytes | None:
        value, until = self.shared.get((namespace, key), (b"", 0))
        return value if until > self.now else None

    def fetched(self, question: Fetch) -> Fetched:
        job = self.jobs.get(question.job_id)
        if job is None or job.state is not STARTED or job.token != question.token:
            return Fetched(Verdict.LOST, ())
        found = [self.find(job_id) if job_id in job.needs else None for job_id in question.ids]
        return Fetched(Verdict.DONE, tuple([(other.state, other.result) if other else (None, None) for other in found]))

    def of_flow(self, flow: str) -> list[Actor]:
        return [job for job in self.jobs.values() if job.spec.flow == flow and not job.gone]

    def check_page(self, question: ListFlow, reply: Listed) -> None:
        """A page shows the jobs of a flow between two numbers, all of them and in order."""
        last = self.numbers if reply.cursor is None else reply.cursor
        numbers = sorted(job.number for job in self.of_flow(question.flow) if question.cursor < job.number <= last)
        assert [record.number for record in reply.records] == numbers
        assert len(numbers) <= question.limit

    def edge_stats(self) -> EdgeStats:
        jobs = [job for job in self.jobs.values() if not job.gone]
        deferred = sorted((job for job in jobs if job.state is DEFERRED), key=lambda job: job.number)
        awaited = [self.jobs[job_id] for job in deferred for job_id in job.waits]
        return EdgeStats(
            deferred=len(deferred),
            open_edges=sum(len(job.waits) for job in jobs),
            oldest_id=deferred[0].id if deferred else None,
            oldest_ms=deferred[0].enqueued if deferred else None,
            looked_at=len(deferred),
            most_blocked=max((len(job.waits) for job in deferred), default=0),
            most_awaited=max((sum(job.depends_on(other) for job in jobs) for other in awaited), default=0),
            behind_dead=sum(any(self.jobs[job_id].state is FAILED for job_id in job.waits) for job in deferred),
            orphans=(),
        )

    def check_reason(self, job: Actor, reason: Reason) -> None:
        """A job that waits for others names ten of them, the dead ones if there are any."""
        assert (reason.job_id, reason.state) == (job.id, job.state)
        if job.state is DEFERRED:
            waits = sorted(job.waits)
            dead = [job_id for job_id in waits if self.jobs[job_id].state is FAILED]
            kind = ReasonKind.DEAD_DEPENDENCY if dead else ReasonKind.DEPENDENCY
            told = (reason.kind, reason.jobs, reason.stuck)
            assert told == (kind, tuple((dead or waits)[:10]), bool(dead))
        elif job.is_over:
            assert (reason.kind, reason.detail) == (ReasonKind.OVER, job.cause)
        else:
            assert reason.kind not in {ReasonKind.DEPENDENCY, ReasonKind.DEAD_DEPENDENCY, ReasonKind.OVER}
