"""
Submissions in parts by several callers at once, in any interleaving of their requests.

Each caller is the steps of `submit`, done on one engine. After each request the flow has all its jobs or none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import product
from random import Random
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.backends.steps import Ahead, Wait
from queuehint.client import arrangement, submission
from queuehint.core import refusals
from queuehint.core.engine import Engine
from queuehint.core.structures import edges
from queuehint.errors import (
    BackendUnavailableError,
    DuplicateFlowError,
    DuplicateJobError,
    FlowNotFoundError,
    OutcomeUnknownError,
    QueueHintError,
)
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import Dependency, JobSpec
from tests.support import thorough

DIFFERS = (DuplicateFlowError, DuplicateJobError)


class Caller:
    """One who submits a flow, step by step."""

    def __init__(self, specs: Sequence[JobSpec], steps: Any) -> None:
        self.specs = specs
        self.steps = steps
        self.step: Any = None
        self.jobs: list[op.EnqueuedJob] | None = None
        self.error: QueueHintError | None = None
        self.go_on(None)

    @property
    def is_done(self) -> bool:
        return self.jobs is not None or self.error is not None

    def go_on(self, reply: Any) -> None:
        try:
            self.step = self.steps.throw(reply) if isinstance(reply, QueueHintError) else self.steps.send(reply)
        except StopIteration as end:
            self.jobs = end.value
        except QueueHintError as error:
            self.error = error


class Callers:
    """Callers of one engine."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.engine = Engine()
        self.now_ms = 0
        self.patch = patch
        self.all: list[Caller] = []
        self.was: list[Engine] = []

    def add(self, specs: Sequence[JobSpec], part_jobs: int = 1, *, whole: bool = True) -> Caller:
        self.patch.setattr(arrangement, "PART_JOBS", part_jobs)
        caller = Caller(specs, submission.submit(list(specs), whole=whole, small_parts=True))
        self.all.append(caller)
        return caller

    def apply(self, operation: op.Operation[Any]) -> Any:
        try:
            return self.engine.apply(operation, self.now_ms)
        except QueueHintError as error:
            return error

    def go_on(self, caller: Caller, *, is_answered: bool = True) -> None:
        """Do the next step of a caller, and look at what is there then."""
        step = caller.step.operation if isinstance(caller.step, Ahead) else caller.step
        if isinstance(step, Wait):
            self.now_ms += round(1000 * step.timeout_s)
            caller.go_on(None)
            return
        reply = self.apply(step)
        caller.go_on(reply if is_answered else OutcomeUnknownError("cut"))
        total = self.apply(op.CountRecords(RecordFilter(flow="f"))).total
        assert total in {0, *[len(each.specs) for each in self.all]}, f"{total} jobs are there after {step}"

    def finish(self, choices: Iterable[int] = ()) -> None:
        """Have the callers take turns, first by *choices*; a choice beyond them lets time pass."""
        for choice in choices:
            if choice >= len(self.all):
                self.now_ms += op.STAGED_FRESH_MS
            elif not self.all[choice].is_done:
                self.go_on(self.all[choice])
        for _ in range(10_000):
            waiting = [caller for caller in self.all if not caller.is_done]
            if not waiting:
                break
            for caller in waiting:
                self.go_on(caller)
        assert all(caller.is_done for caller in self.all)

    def check_whole(self, *callers: Caller) -> None:
        """Assert that the flow is that of these callers, and nothing is hidden."""
        while self.apply(op.Tick()).more:
            pass
        specs = {spec.id: spec for spec in callers[0].specs} if callers else {}
        table = self.engine.table
        assert {job.id: job.spec for job in table.jobs.values() if job.spec.flow == "f" and not job.is_start} == specs
        assert (table.hidden, [job.id for job in table.jobs.values() if job.is_start]) == (0, [])
        for caller in callers:
            assert caller.jobs is not None, caller.error
            assert {job.id for job in caller.jobs} == specs.keys()
        made = [job.id for caller in callers for job in caller.jobs or () if job.created]
        assert len(made) == len(set(made)), "a job is told as new to two callers"
        self.engine.check()


def flow(*ids: str, task: str = "t", chained: bool = False) -> list[JobSpec]:
    """Return the jobs of a flow, each after the one before if they are a chain."""
    before = [(Dependency(other),) if chained and at else () for at, other in enumerate(("", *ids[:-1]))]
    return [
        JobSpec(id=each, task=task, flow="f", depends_on=edges).check() for each, edges in zip(ids, before, strict=True)
    ]


def interleavings(length: int, callers: int = 2, *, pauses: int = 1) -> Iterable[tuple[int, ...]]:
    """Return all beginnings of so many choices, with few pauses."""
    every = product(range(callers + (pauses > 0)), repeat=length)
    return (choices for choices in every if choices.count(callers) <= pauses)


LENGTH = thorough(9, quick=6)
ABC = flow("a", "b", "c")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("chained", [False, True])
def test_same_flow_of_two_callers_is_whole_in_each_interleaving(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], *, chained: bool
) -> None:
    for choices in interleavings(LENGTH):
        both = Callers(monkeypatch)
        for size in sizes:
            both.add(flow("a", "b", "c", chained=chained), size)
        both.finish(choices)
        both.check_whole(*both.all)


def test_same_flow_built_in_another_order_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for choices in interleavings(LENGTH):
        both = Callers(monkeypatch)
        both.add(ABC)
        both.add(ABC[::-1])
        both.finish(choices)
        both.check_whole(*both.all)


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        flow("a", "b", "c", "d"),
        flow("d", "c", "b", "a"),
        flow("b", "a"),
        flow("d", "e"),
        flow("a", "b", "c", task="other"),
        [*flow("c", task="other"), *flow("b"), *flow("a", task="other")],
    ],
    ids=["larger", "larger and reversed", "smaller", "disjoint", "of another task", "partly of another task"],
)
def test_two_flows_with_one_id_leave_only_one_whole(monkeypatch: pytest.MonkeyPatch, other: list[JobSpec]) -> None:
    for choices in interleavings(LENGTH):
        both = Callers(monkeypatch)
        callers = both.add(ABC), both.add(other)
        both.finish(choices)
        (winner,) = [caller for caller in callers if caller.jobs is not None]
        (refused,) = [caller for caller in callers if caller.error is not None]
        assert isinstance(refused.error, DIFFERS), refused.error
        both.check_whole(winner)


@pytest.mark.parametrize("taken", ["a", "b", "c"])
def test_job_that_takes_a_flow_id_leaves_no_part(monkeypatch: pytest.MonkeyPatch, taken: str) -> None:
    for choices in interleavings(LENGTH, pauses=0):
        both = Callers(monkeypatch)
        submitter, single = both.add(ABC), both.add([JobSpec(id=taken, task="t").check()], whole=False)
        both.finish(choices)
        if single.error is not None:
            assert isinstance(single.error, DuplicateJobError)
            both.check_whole(submitter)
        else:
            assert isinstance(submitter.error, DuplicateJobError), submitter.error
            both.check_whole()
            assert both.engine.table.jobs[taken].spec.flow is None


def test_whole_flow_beside_its_parts_is_that_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    for choices in interleavings(LENGTH):
        both = Callers(monkeypatch)
        both.add(ABC)
        both.add(ABC, part_jobs=3)
        both.finish(choices)
        both.check_whole(*both.all)


@pytest.mark.parametrize("answered", range(5))
def test_flow_repeated_after_an_unknown_outcome_is_the_same_flow(
    monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """The last request of the first submission arrives, with its answer lost, at any time of the second."""
    for late in range(8):
        again = Callers(monkeypatch)
        first = again.add(ABC)
        for _ in range(answered):
            if not first.is_done:
                again.go_on(first)
        second = again.add(ABC)
        for _ in range(late):
            if not second.is_done:
                again.go_on(second)
        if not first.is_done:
            again.go_on(first, is_answered=False)
        again.all = [second]
        again.finish()
        again.now_ms += op.STAGED_KEPT_MS
        again.check_whole(second)


@pytest.mark.parametrize("seed", range(thorough(300, quick=16)))
def test_large_flows_of_many_callers_are_whole_whatever_happens(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Callers stall, die and lose answers, and the store loses its last requests as a failover does."""
    random = Random(seed)
    ids = [f"{number:02}" for number in range(random.choice((7, 20, 45)))]
    chained = random.random() < 0.5
    callers = Callers(monkeypatch)
    for _ in range(random.choice((2, 2, 3, 4))):
        order = ids if chained or random.random() < 0.7 else random.sample(ids, len(ids))
        callers.add(flow(*order, chained=chained), random.choice((1, 3, 10)))
    living, loses = list(callers.all), random.random() < 0.3
    was: list[Engine] = []
    while any(not caller.is_done for caller in living):
        caller = random.choice([each for each in living if not each.is_done])
        callers.go_on(caller)
        roll = random.random()
        if roll < 0.03:
            callers.now_ms += random.choice((100, op.STAGED_FRESH_MS, op.STAGED_KEPT_MS))
        elif roll < 0.04 and len(living) > 1:
            living.remove(caller)
        elif loses and roll < 0.1:
            was.append(copy.deepcopy(callers.engine))
        elif roll < 0.12 and was:
            callers.engine = was.pop()
    for caller in living:
        # What breaks a submission again and again does not blame its graph.
        assert caller.jobs is not None or isinstance(caller.error, FlowNotFoundError), caller.error
        assert not isinstance(caller.error, BackendUnavailableError)
    last = callers.add(flow(*ids, chained=chained), 3)
    callers.all = [*living, last]
    while not last.is_done:
        callers.go_on(last)
    callers.now_ms += op.STAGED_KEPT_MS
    callers.check_whole(last)


def test_concurrent_submissions_without_flow_store_jobs_of_both_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs with edges that take effect at once go in parts too, without a flow."""
    specs = [JobSpec(id="0", task="t").check()]
    specs += [JobSpec(id=str(at), task="t", depends_on=(Dependency(str(at - 1)),)).check() for at in range(1, 4)]
    for choices in interleavings(LENGTH):
        both = Callers(monkeypatch)
        callers = [both.add(specs, whole=False) for _ in range(2)]
        both.finish(choices)
        for caller in callers:
            assert caller.jobs is not None, caller.error
            assert [job.id for job in caller.jobs] == [spec.id for spec in specs]
        assert sum(job.created for caller in callers for job in caller.jobs or ()) == len(specs)


def test_first_part_of_both_callers_is_an_enqueue(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Callers(monkeypatch).add(ABC)
    assert isinstance(caller.step, Ahead)
    assert isinstance(caller.step.operation, op.Enqueue)
    assert caller.step.operation.staged is not None


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("lost", range(1, 4))
def test_flow_with_a_part_lost_by_failover_is_resent(
    monkeypatch: pytest.MonkeyPatch, lost: int, *, chained: bool
) -> None:
    """A part is answered, and then lost; the next part may depend on a job of it."""
    callers = Callers(monkeypatch)
    caller = callers.add(flow("a", "b", "c", "d", chained=chained))
    for _ in range(lost):
        before = copy.deepcopy(callers.engine)
        callers.go_on(caller)
    callers.engine = before
    callers.finish()
    callers.check_whole(caller)


@pytest.mark.parametrize("lost", [False, True])
def test_job_with_many_dependencies_is_not_committed_without_some(
    monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """A failover loses the last portion of its dependencies, between two requests that are both answered."""
    for module in (edges, refusals, arrangement):
        monkeypatch.setattr(module, "PORTION_MAX", 2)
    callers = Callers(monkeypatch)
    needs = tuple([Dependency(str(at)) for at in range(5)])
    specs = [*flow(*map(str, range(5))), JobSpec(id="last", task="t", flow="f", depends_on=needs).check()]
    caller = callers.add(specs, 10)
    while not isinstance(caller.step, op.Commit):
        before = copy.deepcopy(callers.engine)
        callers.go_on(caller)
    if lost:
        callers.engine = before
    callers.finish()
    callers.check_whole(caller)
    assert set(callers.engine.table.jobs["last"].blocked) == {edge.id for edge in needs}
