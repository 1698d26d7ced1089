"""What several rooms of tests share: job specs, hostile values, and an engine with its clock in hand."""

from __future__ import annotations

from typing import Any, TypeVar

import attrs

from queuehint.core.engine import Engine, EngineOptions
from queuehint.hint import Claim, Mode
from queuehint.operations import (
    BUDGET,
    Cancel,
    CancelFlow,
    CancelPath,
    Commit,
    CountEdges,
    CountFlow,
    CountJobs,
    CountPending,
    Discard,
    Enqueue,
    Enqueued,
    Exchange,
    Exchanged,
    Get,
    Operation,
    Pause,
    Pending,
    Redrive,
    Renew,
    Resume,
    Tick,
    Ticked,
    Verdict,
    Why,
)
from queuehint.policy import Policy, Retention
from queuehint.records import Dependency, Grant, JobRecord, JobSpec, JobState, Outcome, OutcomeKind
from queuehint.reports import EdgeStats, FlowStats, Reason, Stats

Reply = TypeVar("Reply")

SHARED: Mode = "shared"
_POLICY_FIELDS = {field.name for field in attrs.fields(Policy)}


class HostileStr(str):
    """A str that lies and raises in all that it overrides."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        raise RuntimeError("hostile hash")

    def __str__(self) -> str:
        return "liar"

    def __repr__(self) -> str:
        raise RuntimeError("hostile repr")

    def __len__(self) -> int:
        return 10**9

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("hostile encode")


def claim(*path: str, mode: Mode = "exclusive") -> Claim:
    """Return a claim on a path."""
    return Claim(path, mode)


def job(id: str, hint: list[str] | None = None, **fields: Any) -> JobSpec:
    """
    Return the spec of a job with one exclusive claim, or with none; *fields* as of `JobSpec` or of `Policy`.

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


class Queue:
    """
    An engine, a clock that moves by hand, and the newest grant of each job.

    Args:
        checked: assert all invariants of the engine after each operation; O(jobs).
    """

    def __init__(
        self,
        *jobs: JobSpec,
        budget: int = BUDGET,
        retention: Retention | None = None,
        now_ms: int = 1_000_000,
        checked: bool = True,
    ) -> None:
        self.engine = Engine(EngineOptions(budget=budget, retention=retention or Retention()))
        self.now_ms = now_ms
        self.checked = checked
        self.grants: dict[str, Grant] = {}
        if jobs:
            self.enqueue(*jobs)

    def apply(self, operation: Operation[Reply]) -> Reply:
        """Answer one operation now."""
        try:
            return self.engine.apply(operation, self.now_ms)
        finally:
            if self.checked:
                self.engine.ledger.check()

    # --- producers ---

    def enqueue(self, *jobs: JobSpec) -> Enqueued:
        return self.apply(Enqueue(jobs))

    def cancel(self, *ids: str) -> list[Verdict]:
        return [verdict for verdict, _ in self.apply(Cancel(ids)).verdicts]

    def cancel_path(self, *path: str) -> bool:
        return self.apply(CancelPath(path)).more

    def cancel_flow(self, flow: str) -> bool:
        return self.apply(CancelFlow(flow)).more

    def stage(self, part: str, *jobs: JobSpec) -> Enqueued:
        return self.apply(Enqueue(jobs, staged=part))

    def commit(self, part: str) -> int:
        return self.apply(Commit(part)).jobs

    def redrive(self, *ids: str, downstream: bool = False) -> list[Verdict]:
        return [verdict for verdict, _ in self.apply(Redrive(ids, downstream)).verdicts]

    def discard(self, *ids: str) -> list[Verdict]:
        return [verdict for verdict, _ in self.apply(Discard(ids)).verdicts]

    # --- workers ---

    def exchange(self, *settle: Outcome, worker: str = "w", **fields: Any) -> Exchanged:
        reply = self.apply(Exchange(worker, settle, **fields))
        self.grants.update({grant.spec.id: grant for grant in reply.grants})
        return reply

    def start(self, limit: int = 1000, **fields: Any) -> list[str]:
        """Claim jobs and return their ids, in the order in which they were granted."""
        return [grant.spec.id for grant in self.exchange(limit=limit, **fields).grants]

    def outcome(self, id: str, kind: OutcomeKind = OutcomeKind.FINISHED, **fields: Any) -> Outcome:
        return Outcome(job_id=id, token=self.grants[id].token, kind=kind, **fields)

    def settle(self, id: str, kind: OutcomeKind = OutcomeKind.FINISHED, **fields: Any) -> Verdict:
        return self.exchange(self.outcome(id, kind, **fields)).verdicts[0]

    def finish(self, *ids: str) -> None:
        assert all(self.settle(job_id) is Verdict.DONE for job_id in ids)

    def fail(self, id: str, **fields: Any) -> None:
        assert self.settle(id, OutcomeKind.FAILED, **fields) is Verdict.DONE

    def enqueue_from(self, parent: str, *jobs: JobSpec) -> Enqueued:
        """Enqueue as the handler of a running job does."""
        return self.apply(Enqueue(jobs, parent=(parent, self.grants[parent].token)))

    def await_children(self, id: str, *children: str, **fields: Any) -> None:
        """Have a running job be over when these are."""
        assert self.settle(id, OutcomeKind.CHILDREN, children=children, **fields) is Verdict.DONE

    def renew(self, *ids: str, lease_ms: int = 30_000) -> list[Verdict]:
        leases = tuple((job_id, self.grants[job_id].token) for job_id in ids)
        return list(self.apply(Renew(leases, lease_ms)).verdicts)

    def run(self, limit: int = 1) -> list[str]:
        """Start and finish ready jobs, up to *limit* at once, until none is left; return their ids in order."""
        order = []
        while ids := self.start(limit):
            self.finish(*ids)
            order += ids
        return order

    # --- time ---

    def tick(self) -> Ticked:
        return self.apply(Tick())

    def wait(self, ms: int) -> None:
        """Let time pass, then do what is due and all that follows."""
        self.now_ms += ms
        while self.tick().more:
            pass

    # --- operators ---

    def pause(self, *path: str) -> bool:
        return self.apply(Pause(path)).changed

    def resume(self, *path: str) -> bool:
        return self.apply(Resume(path)).changed

    # --- questions ---

    def everything(self) -> object:
        """Return all that can be seen of the engine and all that decides what it does next, to be compared."""
        ledger = self.engine.ledger
        return (
            self.apply(Get(tuple(ledger.jobs))) if len(ledger.jobs) <= 1000 else len(ledger.jobs),
            self.stats(),
            [(owner.spec.key, owner.id) for owner in ledger.keys],
            sorted(ready.id for ready in ledger.ready.jobs()),
            sorted(entry.id for entry in ledger.timers.entries()),
            (ledger.last_number, ledger.last_seq, self.engine.next_ms, self.engine._token, self.engine._drawn),
            (list(ledger.parked), sorted(self.engine.closed), list(ledger.untold)),
            (len(ledger.edges), ledger.edges.open, len(ledger.flows), len(self.engine.shared), list(ledger.deferred)),
        )

    def find(self, id: str) -> JobRecord | None:
        return self.apply(Get((id,))).records[0]

    def record(self, id: str) -> JobRecord:
        record = self.find(id)
        assert record is not None
        return record

    def state(self, id: str) -> JobState:
        return self.record(id).state

    def states(self, *ids: str) -> str:
        """Return the states of jobs as one string of words."""
        return " ".join(self.state(job_id) for job_id in ids)

    def why(self, id: str) -> Reason:
        return self.apply(Why(id))

    def stats(self) -> Stats:
        return self.apply(CountJobs())

    def pending(self, path: tuple[str, ...] | None = None, *, include_scheduled: bool = False) -> Pending:
        return self.apply(CountPending(path, include_scheduled))

    def edges(self) -> EdgeStats:
        return self.apply(CountEdges())

    def flow(self, flow: str) -> FlowStats:
        return self.apply(CountFlow(flow))

    @property
    def is_clean(self) -> bool:
        """Nothing in the engine remembers a place or an edge: no node, line, key, index entry, offer or leftover."""
        ledger = self.engine.ledger
        return not (
            ledger.trie.nodes
            or ledger.trie.root.held
            or ledger.trie.root.active
            or len(ledger.paths)
            or ledger.edges.awaited()
            or ledger.edges.open
            or ledger.deferred
            or ledger.keys
            or ledger.ready.sizes()
            or ledger.leftovers
            or ledger.untold
            or ledger.strangers
            or ledger.backing_off
            or ledger.registry.running
        )
