"""The engine against its model as a state machine, with budgets that cut its work anywhere."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from queuehint import operations as op
from queuehint.testing.commits import commit_of
from queuehint.testing.state_machine.lockstep import Lockstep
from queuehint.testing.state_machine.parts import first_jobs
from queuehint.testing.state_machine.rules import OperationMachine
from queuehint.testing.state_machine.styles import MINUTE
from queuehint.values.hint import Claim, normalise
from queuehint.values.spec import JobSpec

SCHEDULES = op.PutSchedule, op.ChangeSchedule


class EngineMachine(OperationMachine):
    """
    Every rule is an operation, done by the engine and its model; `Lockstep.do` compares them.

    Where work is cut, what an operation does is never due in that same ms, nor is anything due when it comes: then work
    that was cut and work that was not end alike. With shared claims the model judges an engine that is caught up.
    """

    pair: Lockstep

    @initialize(target=OperationMachine.ids, budget=st.sampled_from([op.BUDGET, op.BUDGET, 1, 2, 5]), jobs=first_jobs)
    def begin(self, budget: int, jobs: Any) -> Any:
        self.pair = Lockstep(budget, now_ms=MINUTE)
        return self.begin_with(jobs)

    def do(self, operation: op.Operation[Any]) -> Any:
        if self.pair.cut:
            if isinstance(operation, (op.CancelPath, op.CancelFlow)) and self.has_waiting_parents():
                return None
            if isinstance(operation, SCHEDULES):
                return None
            operation = later(operation, self.now_ms)
            self.pair.do(op.Tick())
        return self.pair.do(operation)

    def has_waiting_parents(self) -> bool:
        """Where work is cut a parent may end by itself, all its children being canceled, before a sweep comes to it."""
        return any(actor.is_waiting_parent for actor in self.pair.model.jobs.values())

    @property
    def now_ms(self) -> int:
        return self.pair.now_ms

    def commit_of(self, staged: str) -> op.Commit:
        return commit_of(self.pair.engine, staged)

    def go_to(self, now_ms: int) -> None:
        self.pair.go_to(now_ms)

    def next_ms(self) -> int | None:
        return self.pair.engine.next_ms

    def ask_everything(self, claim: Claim) -> None:
        self.pair.ask(claim)

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            for schedule in self.pair.engine.state.timetable.page("", 10)[0]:
                self.pair.do(op.ChangeSchedule(schedule.name, "drop"))
            self.pair.wind_down()


def later(operation: op.Operation[Any], now_ms: int) -> op.Operation[Any]:
    """Return an operation of which nothing is due in the same ms, with exclusive claims."""
    if isinstance(operation, op.Enqueue):
        return attrs.evolve(operation, jobs=tuple([job_later(spec, now_ms) for spec in operation.jobs]))
    if isinstance(operation, op.Exchange):
        settle = tuple([attrs.evolve(outcome, delay_ms=outcome.delay_ms or 1) for outcome in operation.settle])
        return attrs.evolve(operation, settle=settle)
    return operation


def job_later(spec: JobSpec, now_ms: int) -> JobSpec:
    return attrs.evolve(
        spec,
        claims=normalise([Claim(claim.path) for claim in spec.claims]),
        delay_ms=1 if spec.delay_ms == 0 else spec.delay_ms,
        run_at_ms=None if spec.run_at_ms is not None and spec.run_at_ms <= now_ms else spec.run_at_ms,
        policy=attrs.evolve(spec.policy, max_hold_ms=spec.policy.max_hold_ms or MINUTE),
    )


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(TestEngine.settings, max_examples=settings().max_examples // 2)
