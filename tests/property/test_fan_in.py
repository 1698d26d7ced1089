"""Dependencies sent in portions have the same effect as dependencies sent at once."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.client import arrangement
from queuehint.core import refusals
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.structures import edges
from queuehint.errors import QueueHintError
from queuehint.testing.commits import commit_of
from queuehint.testing.driver import job
from queuehint.testing.invariants import check_empty
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency, JobSpec
from tests.property.agreement import RedisLockstep
from tests.property.test_graphs import Crowd
from tests.support import slow_after, thorough

PORTIONED = [(edges, "PORTION_MAX"), (refusals, "PORTION_MAX"), (arrangement, "PORTION_MAX")]


class Portioned(Crowd):
    """A graph sent in parts to two engines: one is told the dependencies of a job at once, the other in portions."""

    def __init__(self, random: Random, patch: pytest.MonkeyPatch, size: int) -> None:
        super().__init__(random, op.BUDGET, 14)
        self.other = Engine(EngineOptions())
        self.patch, self.size = patch, size
        self.do(op.Follow(None))

    def graph(self, count: int) -> list[JobSpec]:
        """Return jobs without places, of which each fourth depends on many."""
        specs = [attrs.evolve(spec, flow="f", claims=spec.claims[:1]) for spec in super().graph(count)]
        for number in range(3, count, 4):
            others = self.random.sample(range(number), self.random.randint(2, number))
            waits = tuple([Dependency(str(other), data=self.random.random() < 0.1) for other in sorted(others)])
            specs[number] = attrs.evolve(specs[number], depends_on=waits)
        return specs

    def submissions(self) -> Any:
        for at in range(0, len(self.specs), 5):
            yield op.Enqueue(tuple(self.specs[at : at + 5]), staged="T")
        yield commit_of(self.engine, "T")

    def do(self, operation: op.Operation[Any]) -> Any:
        try:
            reply = super().do(operation)
        except QueueHintError as error:
            # A part is refused whole where the first engine refuses what is told to the other later.
            if not (isinstance(operation, op.Enqueue) and operation.staged is not None):
                with pytest.raises(type(error)):
                    self.tell(operation)
            raise
        assert self.tell(operation) == reply
        self.compare()
        return reply

    def tell(self, operation: op.Operation[Any]) -> Any:
        """Do an operation in the other engine, and tell it the dependencies that have not been told."""
        if isinstance(operation, op.Commit):
            operation = commit_of(self.other, operation.staged)
        if not isinstance(operation, op.Enqueue) or operation.staged is None:
            return self.other.apply(operation, self.now_ms)
        with self.patch.context() as patch:
            for module, name in PORTIONED:
                patch.setattr(module, name, self.size)
            reply = self.other.apply(operation, self.now_ms)
            for portion in arrangement.portions(operation.jobs, operation.staged):
                self.other.apply(portion, self.now_ms)
        return reply

    def compare(self) -> None:
        """Compare all that can be seen."""
        self.other.check()
        jobs, others = self.engine.table.jobs, self.other.table.jobs
        assert jobs.keys() == others.keys()
        questions: list[op.Operation[Any]] = [op.CountJobs(), op.CountEdges()]
        for each in jobs.values():
            twin = others[each.id]
            assert twin.record() == each.record()
            assert (twin.gone, twin.seq, dict(twin.blocked)) == (each.gone, each.seq, dict(each.blocked))
            if not (each.gone or each.is_hidden):
                questions.append(op.Why(each.id))
            if each.state is JobState.STARTED:
                questions.append(op.Fetch(each.id, each.token or 0, tuple([edge.id for edge in each.spec.depends_on])))
        for question in questions:
            assert self.other.apply(question, self.now_ms) == self.engine.apply(question, self.now_ms)


@pytest.mark.parametrize("size", slow_after(1, [1, 2, 3]))
def test_portions_of_dependencies_agree_with_a_whole_list(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(thorough(150, quick=4)):
        graph = Portioned(Random(seed), monkeypatch, size)
        try:
            graph.play()
            graph.check_nobody_waits_for_nothing()
            graph.revive_all()
            graph.expire_all()
            check_empty(graph.other)
        except Exception as error:
            error.add_note(f"Portioned(Random({seed}), monkeypatch, {size})")
            raise


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.redis
def test_stores_agree_on_a_job_with_thousands_of_dependencies() -> None:
    lockstep = RedisLockstep()
    try:
        ids = [f"a{number}" for number in range(5_500)]
        for at in range(0, len(ids), 500):
            lockstep.do(
                op.Enqueue(tuple([job(each, max_attempts=1, retention_ms=60_000) for each in ids[at : at + 500]]))
            )
        needs = tuple([Dependency(each) for each in ids])
        spec = job("last", after=needs, on_dependency_failure="cancel", retention_ms=60_000)
        lockstep.do(op.Enqueue((spec,), staged="T"))
        for portion in arrangement.portions([spec], "T"):
            lockstep.do(portion)
        lockstep.do(op.Commit("T", 1, 5))
        for count in (1_500, 3_500, 1):
            while lockstep.do(op.Tick()).more:
                pass
            for question in (op.Why("last"), op.CountEdges(), op.Get(("last", "a0"))):
                lockstep.do(question)
            for _ in range(-(-count // 500)):
                grants = lockstep.do(op.Exchange("w", limit=min(count, 500))).grants
                kind = OutcomeKind.FAILED if count == 1 else OutcomeKind.FINISHED
                settle = [Outcome(job_id=each.spec.id, token=each.token, kind=kind) for each in grants]
                lockstep.do(op.Exchange("w", tuple(settle)))
        while lockstep.do(op.Tick()).more:
            pass
        (record,) = lockstep.do(op.Get(("last",))).records
        assert record is not None
        assert record.state is JobState.CANCELED
        lockstep.do(op.Redrive(tuple([each.id for each in lockstep.engine.table.dead.values()]), downstream=True))
        while lockstep.do(op.Tick()).more:
            pass
        assert lockstep.engine.table.jobs["last"].state is JobState.DEFERRED
        lockstep.wind_down()
        lockstep.check_residue()
    finally:
        lockstep.close()
