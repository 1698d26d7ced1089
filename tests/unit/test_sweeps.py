"""Leftovers cut at every budget, and changed between two steps."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from queuehint.core.engine import EngineOptions
from queuehint.core.jobs import staging
from queuehint.core.jobs.lifecycle import REVIVE_UNITS
from queuehint.core.jobs.sweeps import step
from queuehint.core.structures.edges import DependencySets
from queuehint.core.structures.job import START_MARK, Job
from queuehint.core.structures.leftovers import (
    CancelFlowSweep,
    CancelSweep,
    CommitSweep,
    DropSweep,
    ReleaseSweep,
    ResolveSweep,
    ReviveSweep,
    UnparkSweep,
)
from queuehint.operations import CancelFlow, Enqueue
from queuehint.testing.driver import Queue, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def cancel_sweep(queue: Queue, *paths: tuple[str, ...], seen: list[str], before: int = 10**6) -> CancelSweep:
    lifecycle = queue.engine.lifecycle

    def cancel(found: Job, cause: str) -> int:
        assert cause == "swept"
        seen.append(found.id)
        return 0

    lifecycle.cancel = cancel  # type: ignore[method-assign, assignment]
    return CancelSweep(paths, before, "swept", lifecycle.table.last_seq)


@pytest.mark.parametrize("budget", [1, 2, 3, 100])
def test_cancel_sweep_goes_by_key_then_number_at_any_budget(budget: int) -> None:
    hints = [["a", "c"], ["a"], ["b"], ["a", "b"], ["a"], ["x"], ["b", "x"]]
    queue = Queue(*[job(f"j{number}", hint) for number, hint in enumerate(hints)])
    seen: list[str] = []
    sweep = cancel_sweep(queue, ("a",), ("b",), seen=seen)
    used, again = 0, True
    while again:
        spent, again = step(queue.engine.lifecycle, sweep, budget)
        assert spent <= budget + 1
        used += spent
    assert seen == ["j1", "j4", "j3", "j0", "j2", "j6"]
    # Two for each.
    assert used == 6 * 2


def test_cancel_sweep_skips_ended_and_later_jobs() -> None:
    queue = Queue(*[job(f"j{number}", ["a"]) for number in range(4)])
    seen: list[str] = []
    sweep = cancel_sweep(queue, ("a",), seen=seen, before=5)
    assert step(queue.engine.lifecycle, sweep, 1) == (2, True)
    queue.engine.table.end(queue.engine.table.jobs["j1"], CANCELED, "ended", 0)
    queue.enqueue(job("late", ["a"]), job("later", ["a", "b"]))
    while step(queue.engine.lifecycle, sweep, 1)[1]:
        pass
    assert seen == ["j0", "j2", "j3"]


def test_a_sweep_of_nothing_costs_nothing() -> None:
    queue = Queue(job("a", ["a"]))
    assert step(queue.engine.lifecycle, cancel_sweep(queue, ("b",), seen=[]), 10) == (0, False)


def test_sweeps_take_turns_the_first_that_was_left_over_first() -> None:
    queue = Queue(*[job(f"{path}{number}", [path]) for path in "ab" for number in range(3)], budget=1)
    seen: list[str] = []
    for path in "ab":
        queue.engine.table.leftovers.append(cancel_sweep(queue, (path,), seen=seen))
    while queue.tick().more:
        pass
    assert seen == ["a0", "b0", "a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_place_of_a_dead_job_is_freed_after_its_followers(budget: int) -> None:
    queue = Queue(job("dies", ["a"], on_dead="cancel_behind", max_attempts=1), budget=budget, now_ms=0)
    queue.enqueue(*[job(f"j{number}", ["a"]) for number in range(10)], job("above", []))
    queue.start()
    queue.fail("dies")
    assert queue.state("above") is QUEUED
    queue.enqueue(job("late", ["a"]))
    queue.wait(0)
    assert queue.run() == ["above", "late"]
    assert queue.stats().states[CANCELED] == 10
    assert queue.is_clean


def test_a_dead_job_redriven_during_its_sweep_keeps_its_place() -> None:
    queue = Queue(job("dies", ["a"], on_dead="cancel_behind", max_attempts=1), budget=2, now_ms=0)
    queue.enqueue(*[job(f"j{number}", ["a"]) for number in range(10)])
    queue.start()
    queue.fail("dies")
    seq = queue.record("dies").seq
    queue.redrive("dies")
    assert (queue.state("dies"), queue.record("dies").seq) == (QUEUED, seq)
    queue.wait(0)
    assert queue.run() == ["dies"]


def test_job_placed_during_the_sweep_is_spared() -> None:
    queue = Queue(job("dies", ["a"], on_dead="cancel_behind", max_attempts=1), job("first", ["b"], key="k"), budget=2)
    queue.start()
    queue.enqueue(
        job("waits", ["a", "z"], key="k", on_conflict="after"), *[job(f"j{number}", ["a"]) for number in "01"]
    )
    queue.exchange(queue.outcome("dies", OutcomeKind.FAILED), queue.outcome("first"))
    queue.wait(0)
    assert queue.states("waits", "j0", "j1") == "QUEUED CANCELED CANCELED"
    assert queue.run() == ["waits"]


def test_a_dead_job_discarded_during_its_sweep_is_freed_once() -> None:
    queue = Queue(job("dies", ["a"], on_dead="cancel_behind", max_attempts=1), budget=2, now_ms=0)
    queue.enqueue(*[job(f"j{number}", ["a"]) for number in range(10)])
    queue.start()
    queue.fail("dies")
    queue.discard("dies")
    queue.wait(0)
    assert queue.stats().stuck["dead_hold"] == 0
    assert queue.is_clean


def test_parked_jobs_are_offered_by_number_at_any_budget() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(5)])
    queue.pause("a")
    queue.start()
    table = queue.engine.table
    sweep = UnparkSweep(deque([table.pauses.by_path.pop(("a",)).parked]))
    assert step(queue.engine.lifecycle, sweep, 4) == (4, True)
    assert sorted(ready.id for ready in table.ready.jobs()) == ["j0", "j1"]
    assert step(queue.engine.lifecycle, sweep, 6) == (6, False)


def test_job_canceled_during_a_resume_is_not_offered() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(5)], budget=2)
    queue.pause("a")
    for _ in range(5):
        queue.start()
    queue.resume("a")
    queue.cancel("j4")
    queue.wait(0)
    assert queue.start() == ["j0", "j1", "j2", "j3"]


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("user", ["served", "helped"])
@pytest.mark.parametrize("budget", [4, 6, 100])
def test_claim_cut_while_parking_is_completed_by_the_next(budget: int, user: str, is_refused: bool) -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)], user=user) for number in range(5)], budget=budget)
    queue.enqueue(job("free", ["b"], user=user))
    claims: dict[str, Any] = {"users": ("served",), "steal": "*"}
    if is_refused:
        while ids := queue.start(release="old", **claims):
            queue.exchange(*[queue.outcome(each, OutcomeKind.UNKNOWN_TASK) for each in ids], release="old")
    queue.pause("a")
    started, rounds = queue.start(release="new", **claims), 1
    while queue.engine.state.cut:
        assert started == []
        started, rounds = queue.start(release="new", **claims), rounds + 1
    assert started == ["free"]
    assert rounds == {4: 3, 6: 2, 100: 1}[budget]


# --- edges -----------------------------------------------------------------------------------------------------------


def ended(queue: Queue, job_id: str, state: JobState = FINISHED) -> Job:
    """End a started job and forget what would follow, which the test begins itself."""
    table = queue.engine.table
    queue.engine.lifecycle.end(table.jobs[job_id], state, None)
    table.leftovers.clear()
    return table.jobs[job_id]


def resolving(queue: Queue, job: Job) -> ResolveSweep:
    last_number, now_ms = queue.engine.table.last_number, queue.engine.now_ms
    return ResolveSweep(job, last_number, since_ms=now_ms, state=job.state, since=job.since)


def test_edges_are_resolved_in_order_of_number_at_any_budget() -> None:
    queue = Queue(job("first"), checked=False, now_ms=7)
    queue.enqueue(*[job(f"j{number}", ["b"], depends_on=(Dependency("first"),)) for number in range(4)])
    queue.start()
    queue.now_ms = 8
    queue.renew("first")
    sweep = resolving(queue, ended(queue, "first"))
    assert step(queue.engine.lifecycle, sweep, 1) == (3, True)
    assert (queue.states("j0", "j1"), queue.record("j0").queued_ms) == ("QUEUED DEFERRED", 8)
    queue.engine.table.end(queue.engine.table.jobs["j1"], CANCELED, None, 8)
    assert step(queue.engine.lifecycle, sweep, 100) == (6, False)
    assert step(queue.engine.lifecycle, sweep, 100) == (0, False)
    assert queue.states("j1", "j2", "j3") == "CANCELED QUEUED QUEUED"


def test_commit_lists_its_jobs_once_despite_many_bound_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(job("first"), budget=2)
    queue.start()
    listed: list[str] = []
    dependents = DependencySets.dependents

    def count(edges: DependencySets, job_id: str) -> list[tuple[int, Job]]:
        listed.append(job_id)
        return dependents(edges, job_id)

    monkeypatch.setattr(DependencySets, "dependents", count)
    queue.stage("part", *[job(f"j{number}", depends_on=(Dependency("first"),)) for number in range(9)])
    queue.commit("part")
    for _ in range(9):
        queue.wait(0)
    assert queue.state("j8") is DEFERRED
    assert len(listed) == 1


def test_edge_of_a_job_with_open_dependencies_queues_nothing() -> None:
    queue = Queue(job("a"), job("b"), checked=False)
    queue.enqueue(job("waits", ["x"], depends_on=(Dependency("a"), Dependency("b"))))
    queue.start()
    assert step(queue.engine.lifecycle, resolving(queue, ended(queue, "a")), 9) == (1, False)
    assert queue.state("waits") is DEFERRED
    assert step(queue.engine.lifecycle, resolving(queue, ended(queue, "b")), 9) == (3, False)
    assert queue.state("waits") is QUEUED


def test_edges_to_a_redriven_job_are_open_again() -> None:
    queue = Queue(job("dies", max_attempts=1), budget=1)
    queue.enqueue(*[job(f"j{number}", depends_on=(Dependency("dies", when="done"),)) for number in range(3)])
    queue.start()
    queue.fail("dies")
    assert queue.states("j0", "j1", "j2") == "QUEUED DEFERRED DEFERRED"
    queue.engine.state.options = EngineOptions(budget=0)
    queue.redrive("dies")
    queue.engine.state.options = EngineOptions(budget=1)
    queue.wait(0)
    assert queue.states("dies", "j0", "j1", "j2") == "QUEUED QUEUED DEFERRED DEFERRED"
    assert queue.run() == ["dies", "j0", "j1", "j2"]
    queue.wait(0)
    assert queue.is_clean


def test_edges_of_a_job_leave_together_at_unit_cost() -> None:
    queue = Queue(*[job(f"j{number}") for number in range(5)], checked=False)
    queue.enqueue(job("waits", depends_on=tuple(Dependency(f"j{number}") for number in range(5))))
    sweep = ReleaseSweep(ended(queue, "waits", CANCELED))
    assert step(queue.engine.lifecycle, sweep, 1) == (5, False)
    assert step(queue.engine.lifecycle, sweep, 1) == (0, False)
    queue.engine.check()


def fallen(queue: Queue, count: int) -> None:
    """Have jobs canceled because `dies` has failed."""
    queue.enqueue(job("dies", max_attempts=1))
    queue.enqueue(
        *[job(f"j{n}", ["x"], depends_on=(Dependency("dies"),), on_dependency_failure="cancel") for n in range(count)]
    )
    queue.start()
    queue.fail("dies", final=True)
    queue.wait(0)


@pytest.mark.parametrize("budget", [1, 2, 5, 100])
def test_revive_sweep_follows_number_order_at_any_budget(budget: int) -> None:
    queue = Queue()
    fallen(queue, 4)
    queue.redrive("dies")
    sweep = ReviveSweep(queue.engine.table.jobs["dies"])
    used, again, since = 0, True, []
    while again:
        spent, again = step(queue.engine.lifecycle, sweep, budget)
        assert spent < budget + 1 + 1 + REVIVE_UNITS
        used += spent
    since = [queue.engine.table.jobs[f"j{n}"].since for n in range(4)]
    assert (used, since) == (4 * (1 + 1 + REVIVE_UNITS), sorted(since))
    assert queue.states("j0", "j1", "j2", "j3") == "DEFERRED DEFERRED DEFERRED DEFERRED"
    queue.engine.check()


def test_revival_stops_once_the_job_failed_again() -> None:
    queue = Queue(checked=False)
    fallen(queue, 3)
    queue.redrive("dies")
    sweep = ReviveSweep(queue.engine.table.jobs["dies"])
    assert step(queue.engine.lifecycle, sweep, 1) == (1 + 1 + REVIVE_UNITS, True)
    queue.start()
    queue.fail("dies", final=True)
    assert step(queue.engine.lifecycle, sweep, 9) == (0, False)
    assert queue.states("j0", "j1", "j2") == "CANCELED CANCELED CANCELED"


@pytest.mark.parametrize("budget", [1, 2, 3, 100])
def test_flow_jobs_are_canceled_last_first_at_any_budget(budget: int) -> None:
    queue = Queue(*[job(f"j{number}", flow="f" if number % 2 else "g") for number in range(8)])
    seen: list[str] = []

    def cancel(job: Job, cause: str) -> int:
        seen.append(job.id)
        return 0

    queue.engine.lifecycle.cancel = cancel  # type: ignore[method-assign]
    sweep = CancelFlowSweep("f", 100, "no", 100)
    used, again = 0, True
    while again:
        spent, again = step(queue.engine.lifecycle, sweep, budget)
        assert spent <= budget + 1
        used += spent
    assert (seen, used) == (["j7", "j5", "j3", "j1"], 4 * 2)


def test_flow_sweep_skips_ended_later_and_redriven_jobs() -> None:
    queue = Queue(*[job(f"j{number}", flow="f", max_attempts=1) for number in range(5)], budget=2)
    queue.start(2)
    queue.fail("j0")
    queue.finish("j1")
    queue.apply(CancelFlow("f", "enough"))
    queue.redrive("j0")
    queue.enqueue(job("late", flow="f"))
    queue.wait(0)
    assert queue.states("j0", "j1", "j2", "j3", "j4", "late") == "QUEUED FINISHED CANCELED CANCELED CANCELED QUEUED"
    assert queue.record("j2").cause == "enough"


def test_a_sweep_of_no_flow_costs_nothing() -> None:
    queue = Queue(job("a"))
    assert step(queue.engine.lifecycle, CancelFlowSweep("f", 9, "no", 9), 3) == (0, False)


def staged(queue: Queue, count: int) -> Job:
    queue.apply(Enqueue(tuple(job(f"j{number}", ["x"]) for number in range(count)), staged="T"))
    return queue.engine.table.jobs[START_MARK + "T"]


@pytest.mark.parametrize("budget", [1, 2, 5, 100])
def test_commit_sweep_follows_number_order_at_any_budget(budget: int) -> None:
    queue = Queue(checked=False)
    start = staged(queue, 4)
    table = queue.engine.table
    assert staging.commit(table, start, 5) == 4
    sweep = CommitSweep(start, queue.engine.table.last_number)
    used, again = 0, True
    while again:
        spent, again = step(queue.engine.lifecycle, sweep, budget)
        used += spent
        done = [queue.state(f"j{number}") is QUEUED for number in range(4)]
        assert done == sorted(done, reverse=True)
    # One for each, and for the two gates each visits, but for those that wait at the first.
    assert used == 4 + 2 + 3 * 2
    assert start.id not in table.jobs
    assert queue.run() == [f"j{number}" for number in range(4)]


@pytest.mark.parametrize("budget", [1, 3, 100])
def test_drop_sweep_removes_uncommitted_jobs_at_any_budget(budget: int) -> None:
    queue = Queue(checked=False)
    start = staged(queue, 4)
    staging.expire(queue.engine.table, start, 5)
    sweep = queue.engine.table.leftovers.pop()
    assert isinstance(sweep, DropSweep)
    used, again = 0, True
    while again:
        spent, again = step(queue.engine.lifecycle, sweep, budget)
        assert spent < budget + 3
        used += spent
    # Three for each.
    assert used == 4 * 3
    assert not queue.engine.table.jobs
    assert queue.is_clean
