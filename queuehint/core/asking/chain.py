"""
The chain of reasons from a waiting job to the root cause of its wait.

A depth-first search over the jobs that each reason names, each looked at once: as many reasons deep as are asked for,
and `CHAIN_LOOKED_AT_MAX` in all. The chain is the first path to a wait that does not end by itself; where there is
none, the first path that ends.
"""

from __future__ import annotations

import attrs

from queuehint import operations as op
from queuehint.core.asking.at_path import reasons_at
from queuehint.core.asking.blockers import Blockers
from queuehint.core.asking.why import cycle_reason, reason_of
from queuehint.core.state import State, handles
from queuehint.core.structures.job import Job
from queuehint.errors import JobNotFoundError
from queuehint.values.report import Reason, ReasonKind

CHAIN_LOOKED_AT_MAX = 100
FOLLOWED = frozenset({ReasonKind.PLACE, ReasonKind.DEPENDENCY})
"""Waits for jobs that go on by themselves; a dead job named by another kind is a root cause itself."""


@handles(op.Why)
def why(state: State, question: op.Why) -> op.Chain:
    """Answer `Why`."""
    if question.job_id is None:
        assert question.path is not None
        return op.Chain((), reasons_at(state, question.path, question.limit))
    job = state.find(question.job_id)
    if job is None:
        raise JobNotFoundError(question.job_id)
    chain = _Search(state, question.limit).chain_of(job)
    last = state.table.jobs[chain[-1].job_id]
    return op.Chain((*chain[:-1], cycle_reason(state, last, chain[-1])))


@attrs.define
class _Search:
    state: State
    most: int
    blockers: Blockers = attrs.field(init=False)
    seen: set[str] = attrs.field(init=False, factory=set)
    way: list[Reason] = attrs.field(init=False, factory=list)
    first: list[Reason] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.blockers = Blockers(self.state.table)

    def chain_of(self, job: Job) -> list[Reason]:
        """Return the reasons from a job on."""
        if self._finds_stuck(job):
            return self.way
        assert self.first is not None
        return self.first

    def _finds_stuck(self, job: Job) -> bool:
        """Follow a job and its blockers. Return whether the chain ends at a stuck wait."""
        self.seen.add(job.id)
        reason = reason_of(self.state, job, self.blockers)
        self.way.append(reason)
        if reason.stuck:
            return True
        is_end = True
        if reason.kind in FOLLOWED and len(self.way) < self.most:
            for job_id in reason.jobs:
                other = self.state.find(job_id)
                if other is None or job_id in self.seen or len(self.seen) >= CHAIN_LOOKED_AT_MAX:
                    continue
                is_end = False
                if self._finds_stuck(other):
                    return True
        if is_end and self.first is None:
            self.first = list(self.way)
        self.way.pop()
        return False
