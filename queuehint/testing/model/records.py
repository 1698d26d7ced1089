"""Records: operators' changes of jobs, and queries of jobs, flows and edges."""

from __future__ import annotations

from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from queuehint import operations as op
from queuehint.testing.model.jobs import (
    CANCELED,
    DEFERRED,
    DUE,
    EXPIRY,
    FAILED,
    FINISHED,
    PRUNE,
    QUEUED,
    STARTED,
    Actor,
)
from queuehint.testing.model.places import at_or_below, clash, is_at_or_below
from queuehint.testing.model.work import Work
from queuehint.values.hint import Claim, is_counted, queue_key
from queuehint.values.record import JobState
from queuehint.values.report import EdgeStats, Reason, ReasonKind
from queuehint.values.spec import OF_SIGNALS, SIGNAL_TASK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.values.hint import Path
    from queuehint.values.policy import Retention
    from queuehint.values.record_filter import RecordFilter

LOOKED_AT_PATH_MAX = 500
"""How many claims of a path a store looks at."""
Verdicts = list[tuple[op.Verdict, JobState | None]]


class Records(Work):
    """Operations on jobs by id, and questions about them."""

    def __init__(self, retention: Retention) -> None:
        super().__init__(retention)
        self.shared: dict[tuple[str, str], tuple[bytes, int]] = {}
        """The store for values: what is under a key of a namespace, and until when."""

    # --- by id -------------------------------------------------------------------------------------------------------

    def cancel_ids(self, operation: op.Cancel, reply: op.Judged | None) -> op.Judged:
        verdicts: Verdicts = []
        for job_id in operation.ids:
            job = self.find(job_id)
            if job is None:
                verdicts.append((op.Verdict.UNKNOWN, None))
            elif job.is_over:
                verdicts.append((op.Verdict.REFUSED, job.state))
            else:
                self.cancel(job, operation.reason or "canceled")
                verdicts.append((op.Verdict.REQUESTED if job.state is STARTED else op.Verdict.DONE, job.state))
        self.catch_up()
        return op.Judged(tuple(verdicts), more=False)

    def take_dead_jobs_away(self, operation: op.Redrive | op.Discard, reply: op.Judged | None) -> op.Judged:
        if isinstance(operation, op.Redrive) and operation.waiting:
            return self.make_due(operation.ids)
        if isinstance(operation, op.Redrive) and operation.again:
            return self.run_again(operation)
        again = isinstance(operation, op.Redrive)
        dead: dict[str, Actor] = {}
        verdicts: Verdicts = []
        for job_id in operation.ids:
            job = self.find(job_id)
            if job is None:
                verdicts.append((op.Verdict.UNKNOWN, None))
            elif job.state is not FAILED or (again and (job.is_for_a_caller or self.last_above(job) is not None)):
                verdicts.append((op.Verdict.REFUSED, job.state))
            else:
                if job_id not in dead:
                    del job.alarms[PRUNE]
                dead[job_id] = job
                verdicts.append((op.Verdict.DONE, QUEUED if again else CANCELED))
        if not again:
            for job in dead.values():
                self.discard(job)
        self.catch_up()
        if isinstance(operation, op.Redrive):
            for job in sorted(dead.values(), key=lambda job: job.number):
                self.begin_anew(job)
                job.state = QUEUED
                if operation.drop_steps:
                    job.steps = {}
                if not job.seq:
                    self.place(job)
                if operation.downstream:
                    self.agenda.append(partial(self.revive_canceled_by, job))
        return op.Judged(tuple(verdicts), more=False)

    def is_unfinished(self, job_id: str) -> bool:
        return job_id in self.jobs and not self.jobs[job_id].is_over

    def with_awaited(self, ids: Iterable[str]) -> set[str]:
        """Return some jobs, and their direct and indirect dependencies."""
        found: set[str] = set()
        todo = list(ids)
        for job_id in todo:
            if job_id not in found and self.is_unfinished(job_id):
                found.add(job_id)
                todo += self.jobs[job_id].waits
        return found

    def run_again(self, operation: op.Redrive) -> op.Judged:
        """Run jobs again that are over, all of them or none."""
        were_over = {job_id for job_id, job in self.jobs.items() if job.is_over}
        self.catch_up()
        verdicts: Verdicts = []
        meant: dict[str, tuple[Actor, list[str]]] = {}
        for job_id, version in zip(operation.ids, operation.again, strict=True):
            job = self.find(job_id)
            if job is None:
                verdicts.append((op.Verdict.UNKNOWN, None))
            elif job.is_over and (not version or job_id not in were_over):
                # As of `amend`; the version of one that is over only now was not known when this was asked.
                verdicts.append((op.Verdict.STALE, job.state))
            elif (waits := self.waits_again(job, operation.ids)) is None:
                verdicts.append((op.Verdict.REFUSED, job.state))
            else:
                meant[job_id] = job, waits
                verdicts.append((op.Verdict.REQUESTED, job.state))
        outside = {
            job_id: [each for each in waits if each not in operation.ids and self.is_unfinished(each)]
            for job_id, (_, waits) in meant.items()
        }
        behind = {
            other.id for other in self.jobs.values() for each in meant if other.depends_on(each) and not other.is_over
        }
        if not behind.isdisjoint(self.with_awaited(chain.from_iterable(outside.values()))):
            # What is not over outside waits for these in turn, through those that wait for them.
            for at, job_id in enumerate(operation.ids):
                if verdicts[at][0] is op.Verdict.REQUESTED and outside[job_id]:
                    verdicts[at] = (op.Verdict.REFUSED, verdicts[at][1])
        if any(verdict is not op.Verdict.REQUESTED for verdict, _ in verdicts):
            return op.Judged(tuple(verdicts), more=False)
        for job, waits in sorted(meant.values(), key=lambda each: each[0].number):
            self.begin_anew(job)
            job.released = False
            job.waits.update(dict.fromkeys(waits, "need"))
            self.awaited.update(job.needs)
            within = job.spec.policy.start_within_ms
            if within is not None and not job.ever_started:
                job.alarms[EXPIRY] = self.now_ms + within
            if operation.drop_steps:
                job.steps = {}
            if waits:
                self.vacate(job)
                job.state = DEFERRED
            elif job.seq:
                job.state = QUEUED
            else:
                self.place(job)
            if operation.downstream:
                self.agenda.append(partial(self.revive_canceled_by, job))
        for other in map(self.jobs.__getitem__, behind):
            other.waits.update({each: "need" for each in meant if each in other.needs and each not in other.waits})
        return op.Judged(tuple([(op.Verdict.DONE, self.jobs[job_id].state) for job_id in operation.ids]), more=False)

    def waits_again(self, job: Actor, ids: tuple[str, ...]) -> list[str] | None:
        """Return the open dependencies of a job that is rerun together with others, None if it cannot be rerun."""
        if not job.is_over or job.is_for_a_caller or job.spec.task == SIGNAL_TASK or self.last_above(job) is not None:
            return None
        counting = [other for other in self.jobs.values() if other.depends_on(job.id) and not other.is_over]
        if any(job.id not in other.waits and (other.state is not DEFERRED or other.is_parent) for other in counting):
            return None
        needs, job.needs = job.needs, {each: edge for each, edge in job.needs.items() if each not in ids}
        waits, canceled_by = self.evaluate(job)
        job.needs = needs
        return None if canceled_by is not None else [*[each for each in needs if each in ids], *waits]

    def make_due(self, ids: tuple[str, ...]) -> op.Judged:
        """End the waits for a time now."""
        refused: Verdicts = []
        made: dict[int, Actor] = {}
        for at, job_id in enumerate(ids):
            job = self.find(job_id)
            refused.append((op.Verdict.UNKNOWN, None) if job is None else (op.Verdict.REFUSED, job.state))
            if job is None or job.due is None:
                continue
            made[at] = job
            if job.due > self.now_ms:
                job.due = job.alarms[DUE] = self.now_ms
                if EXPIRY in job.alarms:
                    job.alarms[EXPIRY] = self.now_ms + (job.spec.policy.start_within_ms or 0)
        self.catch_up()
        verdicts = [(op.Verdict.DONE, made[at].state) if at in made else no for at, no in enumerate(refused)]
        return op.Judged(tuple(verdicts), more=False)

    def delete(self, operation: op.Delete, reply: op.Judged | None) -> op.Judged:
        verdicts: Verdicts = []
        # A deletion frees other jobs for deletion later in the same operation.
        found = [self.find(job_id) for job_id in operation.ids]
        needed = {job.id for job in found if job is not None and job.state is FINISHED and self.is_needed(job)}
        for job_id in operation.ids:
            job = self.find(job_id)
            if job is None:
                verdicts.append((op.Verdict.UNKNOWN, None))
            elif not job.is_over or job_id in needed:
                verdicts.append((op.Verdict.REFUSED, job.state))
            else:
                del job.alarms[PRUNE]
                self.prune(job)
                verdicts.append((op.Verdict.DONE, None))
        self.catch_up()
        return op.Judged(tuple(verdicts), more=False)

    def amend(self, operation: op.Amend, reply: op.Noted | None) -> op.Noted:
        """Change a record. The model counts no versions, and takes 0 for a stale one."""
        job = self.find(operation.spec.id)
        if job is None or not operation.version:
            return op.Noted(op.Verdict.UNKNOWN if job is None else op.Verdict.STALE)
        moves = job.is_over and job.spec.service != operation.spec.service
        job.set_spec(operation.spec)
        if moves:
            job.alarms[PRUNE] = job.ended + self.kept_ms(job)
        return op.Noted(op.Verdict.DONE)

    # --- values ------------------------------------------------------------------------------------------------------

    def push(self, operation: op.Push, reply: op.Pushed | None) -> op.Pushed:
        self.catch_up()
        replaced = self.value(operation.namespace, operation.key) is not None
        self.shared[operation.namespace, operation.key] = operation.value, self.now_ms + operation.ttl_ms
        return op.Pushed(replaced, more=False)

    def pull(self, operation: op.Pull, reply: op.Pulled | None) -> op.Pulled:
        return op.Pulled(self.value(operation.namespace, operation.key))

    def list_shared(self, question: op.ListShared, told: op.SharedKeys | None) -> op.SharedKeys:
        """A page has the first keys that have values, all of them up to where the next one begins."""
        after = question.after
        keys = [
            key
            for namespace, key in sorted(self.shared)
            if namespace == question.namespace and key.startswith(question.prefix) and (after is None or key > after)
        ]
        last = told.after if told is not None else None
        there = [
            key for key in keys if self.value(question.namespace, key) is not None and (last is None or key <= last)
        ]
        return op.SharedKeys(tuple(there[: question.limit]), last)

    def value(self, namespace: str, key: str) -> bytes | None:
        value, until = self.shared.get((namespace, key), (b"", 0))
        return value if until > self.now_ms else None

    # --- questions ---------------------------------------------------------------------------------------------------

    def listed(self, wanted: RecordFilter, *, newest_first: bool = False, by_time: bool = False) -> list[str]:
        """Return the ids of the records that pass a filter, in order, by a full scan."""
        return [job.id for _, job in self.found(wanted, newest_first=newest_first, by_time=by_time)]

    def found(
        self, wanted: RecordFilter, *, newest_first: bool = False, by_time: bool = False
    ) -> list[tuple[op.Position, Actor]]:
        """Return the records that pass a filter, each with its place, in order, by a full scan."""
        places = []
        for job in self.jobs.values():
            keys = [
                queue_key(claim.path)
                for claim in job.claims
                if wanted.path is not None and at_or_below((claim,), wanted.path)
            ]
            if job.gone or (wanted.states and job.state not in wanted.states) or (wanted.path is not None and not keys):
                continue
            named = ((name, getattr(wanted, name)) for name in ("user", "service", "task", "pool", "flow", "parent"))
            if any(value is not None and getattr(job.spec, name) != value for name, value in named):
                continue
            if wanted.tag is not None and wanted.tag not in job.spec.tags:
                continue
            if wanted.waits_for is not None and (job.is_over or wanted.waits_for not in job.waits):
                continue
            if (wanted.since_ms or 0) <= job.enqueued and (wanted.until_ms is None or job.enqueued < wanted.until_ms):
                has_key = wanted.flow is None and wanted.waits_for is None and not by_time
                order = job.number if wanted.waits_for is None else job.since
                places.append(((min(keys, default="") if has_key else "", order), job))
        return sorted(places, key=itemgetter(0), reverse=newest_first)

    def of_flow(self, flow: str) -> list[Actor]:
        return [job for job in self.jobs.values() if job.spec.flow == flow and not job.gone]

    def check_page(self, question: op.List, reply: op.Page) -> op.Page:
        """A page lists all records that pass a filter between two places, in order."""
        first, last, newest_first = question.after, reply.after, question.newest_first
        expected = [
            job.id
            for place, job in self.found(question.filter, newest_first=newest_first, by_time=question.by_time)
            if (first is None or (place < first if newest_first else place > first))
            and (last is None or (place >= last if newest_first else place <= last))
        ]
        assert [record.id for record in reply.records] == expected, f"{expected} are the jobs of the page"
        assert len(expected) <= question.limit
        return reply

    def count_records(self, question: op.CountRecords, reply: op.Counts | None) -> op.Counts:
        first, last = question.after, None if reply is None else reply.after
        states = [
            job.state
            for place, job in self.found(question.filter)
            if (first is None or place > first) and (last is None or place <= last)
        ]
        return op.Counts({state: states.count(state) for state in JobState}, last)

    def edge_stats(self) -> EdgeStats:
        jobs = [job for job in self.jobs.values() if not job.gone]
        deferred = sorted((job for job in jobs if job.state is DEFERRED), key=lambda job: job.number)
        awaited = {job_id for job in deferred for job_id in job.waits}
        dead = {job.id for job in jobs if job.state is FAILED}
        return EdgeStats(
            deferred=len(deferred),
            open_edges=sum(len(job.waits) for job in jobs),
            oldest_id=deferred[0].id if deferred else None,
            oldest_ms=deferred[0].enqueued if deferred else None,
            looked_at=len(deferred),
            most_blocked=max((len(job.waits) for job in deferred), default=0),
            most_awaited=max((sum(job.depends_on(job_id) for job in jobs) for job_id in awaited), default=0),
            behind_dead=sum(not dead.isdisjoint(job.waits) for job in deferred),
            orphans=(),
        )

    def waiting_for_signals(self) -> list[Actor]:
        waiting = [job for job in self.jobs.values() if job.state is DEFERRED and job.spec.task != SIGNAL_TASK]
        return [job for job in waiting if any(each.startswith(OF_SIGNALS) for each in job.waits)]

    def count_edges(self, question: op.CountEdges, reply: EdgeStats | None) -> EdgeStats:
        return self.edge_stats()

    def check_chain(self, question: op.Why, reply: op.Chain) -> op.Chain:
        """Each reason of a chain names the job of the next one, without repeats. Only the last may be stalled."""
        if question.path is not None:
            assert reply.reasons == ()
            assert reply.at_path is not None
            self.check_path(question.path, question.limit, reply.at_path)
            return reply
        assert reply.at_path is None
        assert 0 < len(reply.reasons) <= question.limit
        assert reply.reasons[0].job_id == question.job_id
        ids = [reason.job_id for reason in reply.reasons]
        assert len(set(ids)) == len(ids), f"the chain comes back: {ids}"
        for at, reason in enumerate(reply.reasons):
            self.check_reason(self.jobs[reason.job_id], reason)
            if at + 1 < len(reply.reasons):
                assert reply.reasons[at + 1].job_id in reason.jobs, f"{reply.reasons[at + 1]} follows {reason}"
                assert not reason.stuck, f"{reason} is the root cause, not {reply.reasons[at + 1]}"
        return reply

    def check_path(self, path: Path, limit: int, reply: op.PathReasons) -> None:
        """
        The reply names the first and the last waiting jobs of a path by number, and their blockers.

        Judged where a store looks at all claims there.
        """
        there = [job for job in self.jobs.values() if not job.is_over and at_or_below(job.spec.claims, path)]
        claims = [claim for job in there for claim in job.spec.claims if is_at_or_below(claim.path, path)]
        assert reply.path_key == queue_key(path)
        assert reply.complete == (len(claims) < LOOKED_AT_PATH_MAX), f"{len(claims)} claims are at the path"
        if not reply.complete:
            return
        waiting = sorted((job for job in there if job.state is not STARTED), key=lambda job: job.number)
        newest = waiting[limit:][-limit:][::-1]
        assert [job.id for job in reply.oldest] == [job.id for job in waiting[:limit]], "the oldest that wait there"
        assert [job.id for job in reply.newest] == [job.id for job in newest], "the newest that wait there"
        assert reply.waiting == len(waiting)
        for placed in (*reply.oldest, *reply.newest, *reply.ahead):
            job = self.jobs[placed.id]
            spec = job.spec
            keys = [queue_key(claim.path) for claim in spec.claims if clash((Claim(claim.path),), (Claim(path),))]
            keys = keys or [queue_key(claim.path) for claim in spec.claims]
            assert (placed.task, placed.user, placed.claims) == (spec.task, spec.user, len(spec.claims))
            assert (placed.path_key, placed.enqueued_ms) == (keys[0] if keys else None, job.enqueued)
            self.check_reason(job, placed.reason)
        ids = [placed.id for placed in reply.ahead]
        assert len(set(ids)) == len(ids) <= 10
        assert not {job.id for job in waiting} & set(ids), "what waits at the path is not in its own way"
        named = {job_id for placed in (*reply.oldest, *reply.newest) for job_id in placed.reason.jobs}
        for job in (self.jobs[job_id] for job_id in ids if job_id not in named):
            assert job in self.placed, f"{job} has no place"
            assert clash(job.claims, (Claim(path),)), f"{job} is not in the way"
        started = {job.id for job in there if job.state is STARTED and not is_counted(job.claims)}
        assert started <= set(ids) or len(ids) == 10, f"{started} run there"
        assert reply.more_ahead == 0 or len(ids) == 10

    def check_reason(self, job: Actor, reply: Reason) -> None:
        """A waiting job's reason names ten of its blockers, the dead ones if there are any."""
        assert (reply.job_id, reply.state) == (job.id, job.state), f"{job} is told to be {reply}"
        if job.state is DEFERRED:
            waits = sorted(job.waits)
            dead = [job_id for job_id in waits if job_id in self.jobs and self.jobs[job_id].state is FAILED]
            kind = ReasonKind.DEAD_DEPENDENCY if dead else ReasonKind.DEPENDENCY
            kind = ReasonKind.SIGNAL if waits and all(each.startswith(OF_SIGNALS) for each in waits) else kind
            needs = 0 if job.ever_started else len(job.needs)
            expected = (kind, tuple((dead or waits)[:10]), bool(dead), len(waits), needs)
            said = (reply.kind, reply.jobs, reply.stuck, reply.open_dependencies, reply.dependencies)
            assert said == expected, f"{job} waits for {expected}, not {reply}"
        elif job.is_over:
            assert (reply.kind, reply.detail) == (ReasonKind.OVER, job.cause), f"{job} ended by {job.cause}: {reply}"
        else:
            others = {ReasonKind.DEPENDENCY, ReasonKind.DEAD_DEPENDENCY, ReasonKind.SIGNAL, ReasonKind.OVER}
            assert reply.kind not in others, f"{job} waits for no job, but {reply}"
