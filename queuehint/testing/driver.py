"""Short notation of job specs, and a client of a store that keeps the newest grant of each job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, TypeVar

import attrs

from queuehint import operations as op
from queuehint.core.engine import Engine, EngineOptions
from queuehint.schema.compiled import kinds_of
from queuehint.schema.kinds import Choice, Kind
from queuehint.values.hint import Claim, Mode
from queuehint.values.limit import Limit
from queuehint.values.outcome import Grant, Outcome, OutcomeKind, Progress, Step
from queuehint.values.policy import DEFAULT_POLICY, Backoff, Policy, Retention
from queuehint.values.record import JobRecord, JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import EdgeStats, FlowStats, Reason, Stats
from queuehint.values.spec import Dependency, JobSpec

Reply = TypeVar("Reply")

SHARED: Mode = "shared"
TICKS_MAX = 20_000
"""Upper bound of ticks until a store has no leftover work."""
_POLICY_FIELDS = {field.name for field in attrs.fields(Policy)}


def claim(*path: str, mode: Mode = "exclusive") -> Claim:
    """Return a claim on a path."""
    return Claim(path, mode)


def job(id: str, hint: list[str] | None = None, **fields: Any) -> JobSpec:
    """
    Return the spec of a job with one exclusive claim, or without one. *fields* are of `JobSpec` or of `Policy`.

    The field ``after`` names the jobs it depends on, by id or as `Dependency`.
    """
    policy = {name: fields.pop(name) for name in list(fields) if name in _POLICY_FIELDS}
    if policy:
        fields["policy"] = Policy(**policy)
    if hint is not None:
        fields["claims"] = (Claim(tuple(hint)),)
    if after := fields.pop("after", ()):
        fields["depends_on"] = tuple([edge if isinstance(edge, Dependency) else Dependency(edge) for edge in after])
    return JobSpec(id=id, task="task", **fields)


def unusual_policy(backoff: Backoff) -> Policy:
    """Return a policy and a back-off without any field at its default."""
    kinds = {name: kind for name, kind in kinds_of(Policy).items() if name != "backoff"}
    fields: dict[str, Any] = {name: _another(kind, getattr(DEFAULT_POLICY, name)) for name, kind in kinds.items()}
    return Policy(backoff=backoff, **fields)


def _another(kind: Kind, value: Any) -> Any:
    if isinstance(kind, Choice):
        return next(word for word in kind.words if word != value)
    return 7 if value is None else value + 1


class Driver(ABC):
    """
    Client of a store: methods for producers, workers and operators, and the newest grant of each job.

    A subclass says how an operation is done and how time passes.
    """

    def __init__(self) -> None:
        self.grants: dict[str, Grant] = {}
        self._staged: dict[str, Counter[str]] = {}
        """How many jobs and portions of dependencies were sent of each submission in parts."""

    @abstractmethod
    def apply(self, operation: op.Operation[Reply]) -> Reply:
        """Do one operation now."""

    @abstractmethod
    def advance(self, ms: int) -> None:
        """Advance the time, without an effect on due jobs."""

    # --- producers ---

    def enqueue(self, *jobs: JobSpec) -> op.Enqueued:
        """Enqueue jobs in one submission."""
        return self.apply(op.Enqueue(jobs))

    def cancel(self, *ids: str) -> list[op.Verdict]:
        """Cancel jobs. Return a verdict for each."""
        return [verdict for verdict, _ in self.apply(op.Cancel(ids)).verdicts]

    def cancel_path(self, *path: str) -> bool:
        """Cancel jobs at or below a path. Return True while some are left."""
        return self.apply(op.CancelPath(path)).more

    def count_path(self, *path: str) -> int:
        """Cancel all jobs at or below a path. Return the number of jobs reached."""
        reply = self.apply(op.CancelPath(path))
        if reply.number is None:
            return reply.reached
        self.wait(0)
        return int(self.apply(op.Pull(op.TALLIES, str(reply.number))).value or -1)

    def cancel_flow(self, flow: str) -> bool:
        """Cancel jobs of a flow. Return True while some are left."""
        return self.apply(op.CancelFlow(flow)).more

    def stage(self, part: str, *jobs: JobSpec) -> op.Enqueued:
        """Send a part of a large submission."""
        reply = self.apply(op.Enqueue(jobs, staged=part))
        self._staged.setdefault(part, Counter())["jobs"] += sum(made.created for made in reply.jobs)
        return reply

    def depend(self, part: str, id: str, portion: int, *after: str | Dependency, **fields: Any) -> bool:
        """Add a portion of dependencies to a job of a large submission. Return False on a refusal."""
        edges = tuple([edge if isinstance(edge, Dependency) else Dependency(edge) for edge in after])
        changed = self.apply(op.Depend(part, id, portion, edges, **fields)).changed
        self._staged.setdefault(part, Counter())["portions"] += changed
        return changed

    def commit(self, part: str, **fields: Any) -> int:
        """Commit all parts, by default those sent by this driver. Return their number of jobs."""
        sent = self._staged.pop(part, Counter(jobs=0))
        return self.apply(op.Commit(part, **{**sent, **fields})).jobs

    def withdraw(self, part: str) -> bool:
        """Withdraw all parts. Return False if there are none."""
        self._staged.pop(part, None)
        return self.apply(op.Withdraw(part)).changed

    def redrive(self, *ids: str, downstream: bool = False, drop_steps: bool = False) -> list[op.Verdict]:
        """Redrive dead jobs. Return a verdict for each."""
        return [verdict for verdict, _ in self.apply(op.Redrive(ids, downstream, drop_steps=drop_steps)).verdicts]

    def rerun(
        self, *ids: str, versions: tuple[int, ...] | None = None, downstream: bool = False, drop_steps: bool = False
    ) -> list[tuple[op.Verdict, JobState | None]]:
        """Rerun ended jobs, by default in their present state. Return a verdict for each, and the state."""
        again = versions or tuple([record.version if (record := self.find(each)) else 1 for each in ids])
        return [*self.apply(op.Redrive(ids, downstream, drop_steps=drop_steps, again=again)).verdicts]

    def make_due(self, *ids: str) -> list[op.Verdict]:
        """End the waits of jobs for a time. Return a verdict for each."""
        return [verdict for verdict, _ in self.apply(op.Redrive(ids, waiting=True)).verdicts]

    def discard(self, *ids: str) -> list[op.Verdict]:
        """Remove jobs from the dead-letter queue. Return a verdict for each."""
        return [verdict for verdict, _ in self.apply(op.Discard(ids)).verdicts]

    # --- workers ---

    def exchange(self, *settle: Outcome, worker: str = "w", **fields: Any) -> op.Exchanged:
        """Settle outcomes and claim jobs in one step. The fields are of `Exchange`."""
        reply = self.apply(op.Exchange(worker, settle, **fields))
        self.grants.update({grant.spec.id: grant for grant in reply.grants})
        return reply

    def start(self, limit: int = 1000, **fields: Any) -> list[str]:
        """Claim jobs and return their ids, in the order in which they were granted."""
        return [grant.spec.id for grant in self.exchange(limit=limit, **fields).grants]

    def outcome(self, id: str, kind: OutcomeKind = OutcomeKind.FINISHED, **fields: Any) -> Outcome:
        """Return an outcome that the newest grant of a job proves."""
        return Outcome(job_id=id, token=self.grants[id].token, kind=kind, **fields)

    def settle(self, id: str, kind: OutcomeKind = OutcomeKind.FINISHED, **fields: Any) -> op.Verdict:
        """Settle one job."""
        return self.exchange(self.outcome(id, kind, **fields)).verdicts[0]

    def finish(self, *ids: str) -> None:
        """Settle jobs as finished."""
        assert all(self.settle(job_id) is op.Verdict.DONE for job_id in ids)

    def fail(self, id: str, **fields: Any) -> None:
        """Settle a job as failed."""
        assert self.settle(id, OutcomeKind.FAILED, **fields) is op.Verdict.DONE

    def enqueue_from(self, parent: str, *jobs: JobSpec) -> op.Enqueued:
        """Enqueue as the handler of a running job does."""
        return self.apply(op.Enqueue(jobs, parent=(parent, self.grants[parent].token)))

    def await_children(self, id: str, *children: str, **fields: Any) -> None:
        """Settle a running job with children, whose ends it waits for."""
        assert self.settle(id, OutcomeKind.CHILDREN, children=children, **fields) is op.Verdict.DONE

    def renew(self, *ids: str, lease_ms: int = 30_000, begun: bool = False, blocked_ms: int = 0) -> list[op.Verdict]:
        """Renew leases. *begun* lists the jobs whose code begins. Return a verdict for each."""
        leases = tuple((job_id, self.grants[job_id].token) for job_id in ids)
        return list(self.apply(op.Renew(leases, lease_ms, begun=begun, blocked_ms=blocked_ms)).verdicts)

    def run(self, limit: int = 1) -> list[str]:
        """Start and finish ready jobs until none is left, with up to *limit* running. Return their ids in order."""
        order = []
        while ids := self.start(limit):
            self.finish(*ids)
            order += ids
        return order

    # --- time ---

    def tick(self) -> op.Ticked:
        """Apply due work and leftovers."""
        return self.apply(op.Tick())

    def wait(self, ms: int) -> None:
        """Advance the time, then apply due work and all leftovers."""
        self.advance(ms)
        for _ in range(TICKS_MAX):
            if not self.tick().more:
                return
        raise AssertionError(f"after {TICKS_MAX} ticks the store still has leftover work")

    def say(
        self,
        id: str,
        token: int | None,
        lines: tuple[str, ...] = (),
        progress: Progress | None = None,
        result: bytes | None = None,
    ) -> op.Verdict:
        """Post a note of a job."""
        return self.post(op.Note(id, token, lines, progress, result)).verdicts[0]

    @staticmethod
    def steps_of(**results: bytes) -> list[Step]:
        """Return results of steps, by their names."""
        return [Step(name, result) for name, result in results.items()]

    def post(self, *notes: op.Note) -> op.Posted:
        """Post notes."""
        return self.apply(op.Post(notes))

    def store_steps(self, id: str, token: int, **results: bytes) -> op.Posted:
        """Store results of steps of a job, by their names, each by a note of its own."""
        return self.post(*[op.Note(id, token, step=step) for step in self.steps_of(**results)])

    def fetch(self, id: str, *ids: str, token: int | None = None, steps_from: int | None = None) -> op.Fetched:
        """Read the results of a running job's dependencies, and of its later steps."""
        return self.apply(op.Fetch(id, self.grants[id].token if token is None else token, ids, steps_from))

    def fetch_steps(self, id: str, token: int, first: int = 0) -> op.Fetched:
        """Read the stored results of the steps of a job behind the first so many."""
        return self.fetch(id, token=token, steps_from=first)

    # --- operators ---

    def pause(self, *path: str, for_ms: int | None = None) -> bool:
        """Pause a path. Return False if the path was paused."""
        return self.pause_jobs(for_ms, path=path)

    def resume(self, *path: str) -> bool:
        """Resume a path. Return False if the path was not paused."""
        return self.resume_jobs(path=path)

    def pause_jobs(self, for_ms: int | None = None, **words: Any) -> bool:
        """Pause the jobs that a filter selects. Return False if they were paused."""
        return self.apply(op.Pause(RecordFilter(**words), for_ms)).changed

    def resume_jobs(self, **words: Any) -> bool:
        """Resume the jobs that a filter selects. Return False if they were not paused."""
        return self.apply(op.Resume(RecordFilter(**words))).changed

    def unlimit(self, path: tuple[str, ...] | None = None, *, task: str | None = None, pool: str | None = None) -> bool:
        """Remove the limits of a path, of each child of a path, of a task, of a pool or of the namespace."""
        changed = self.apply(op.SetLimit(Limit(path=path, task=task, pool=pool))).changed
        if path is not None:
            changed |= self.apply(op.SetLimit(Limit(path=path, each=True))).changed
        return changed

    # --- questions ---

    def find(self, id: str) -> JobRecord | None:
        """Return the record of a job, or None."""
        return self.apply(op.Get((id,))).records[0]

    def record(self, id: str) -> JobRecord:
        """Return the record of a job that is there."""
        record = self.find(id)
        assert record is not None
        return record

    def state(self, id: str) -> JobState:
        """Return the state of a job."""
        return self.record(id).state

    def states(self, *ids: str) -> str:
        """Return the states of jobs as one string of words."""
        return " ".join(self.state(job_id) for job_id in ids)

    def why(self, id: str) -> Reason:
        """Return why a job waits."""
        return self.apply(op.Why(id)).reasons[0]

    def why_path(self, *path: str, limit: int = 3) -> op.PathReasons:
        """Return the waiting jobs at or below a path, and their blockers."""
        found = self.apply(op.Why(None, limit, path)).at_path
        assert found is not None
        return found

    def chain(self, id: str) -> tuple[Reason, ...]:
        """Return the reasons from a job to the root cause of its wait."""
        return self.apply(op.Why(id, op.CHAIN_MAX)).reasons

    def stats(self) -> Stats:
        """Return all counts."""
        return self.apply(op.CountJobs())

    def pending(self, path: tuple[str, ...] | None = None, *, include_scheduled: bool = False) -> op.Pending:
        """Count the jobs that wait at or below a path."""
        return self.apply(op.CountPending(path, include_scheduled))

    def edges(self) -> EdgeStats:
        """Count edges."""
        return self.apply(op.CountEdges())

    def flow(self, flow: str) -> FlowStats:
        """Count the jobs of a flow."""
        return FlowStats(states=self.apply(op.CountRecords(RecordFilter(flow=flow))).states)


class Queue(Driver):
    """
    An engine, a clock that moves by hand, and the newest grant of each job.

    Args:
        jobs: what is enqueued at once.
        checked: assert all invariants of the engine after each operation; O(jobs).
    """

    def __init__(
        self,
        *jobs: JobSpec,
        budget: int = op.BUDGET,
        retention: Retention | None = None,
        now_ms: int = 1_000_000,
        checked: bool = True,
    ) -> None:
        super().__init__()
        self.engine = Engine(EngineOptions(budget=budget, retention=retention or Retention()))
        self.now_ms = now_ms
        self.checked = checked
        if jobs:
            self.enqueue(*jobs)

    def apply(self, operation: op.Operation[Reply]) -> Reply:
        """Do one operation now."""
        try:
            return self.engine.apply(operation, self.now_ms)
        finally:
            if self.checked:
                self.engine.check()

    def advance(self, ms: int) -> None:
        """Advance the time, without an effect on due jobs."""
        self.now_ms += ms

    def everything(self) -> object:
        """Return the visible state of the engine and the state that decides its next steps, to be compared."""
        table = self.engine.table
        return (
            self.apply(op.Get(tuple([job.id for job in table.jobs.values() if not job.is_start])))
            if len(table.jobs) <= 1000
            else None,
            len(table.jobs),
            self.stats(),
            [(owner.spec.key, owner.id) for owner in table.keys],
            sorted(ready.id for ready in table.ready.jobs()),
            sorted(entry.id for entry in table.timers.entries()),
            (table.last_number, table.last_seq, self.engine.next_ms),
            (self.engine.state.token, self.engine.state.drawn),  # The next token and the next drawn number count too.
            (
                [pause.filter for pause in table.pauses.all()],
                sorted(table.closed.items()),
                list(table.undelivered_cancellations),
            ),
            (
                len(table.edges),
                table.edges.open,
                len(table.flows),
                len(self.engine.state.shared),
                list(table.deferred),
            ),
        )

    @property
    def is_clean(self) -> bool:
        """Return whether the engine has no node, line, key, index entry, offer or leftover of a place or an edge."""
        table = self.engine.table
        return not (
            table.trie.nodes
            or table.trie.root.held
            or table.trie.root.active
            or len(table.paths)
            or table.edges.awaited()
            or table.edges.open
            or table.deferred
            or table.keys
            or table.ready.sizes()
            or table.leftovers
            or table.undelivered_cancellations
            or table.unknown_task_counts
            or table.backing_off
            or table.registry.running
        )
