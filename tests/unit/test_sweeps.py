"""Leftovers cut at every budget, and changed between two steps."""

from __future__ import annotations

import pytest

from queuehint.core.sweeps import CancelSweep, ResolveSweep, UnparkSweep
from queuehint.records import JobState, OutcomeKind
from tests.support import Queue, claim, job

QUEUED, CANCELED, FAILED = JobState.QUEUED, JobState.CANCELED, JobState.FAILED


def cancel_sweep(queue: Queue, *paths: tuple[str, ...], seen: list[str], before: int = 10**6) -> CancelSweep:
    def cancel(found: object) -> int:
        seen.append(found.id)  # type: ignore[attr-defined]
        return 0

    return CancelSweep(queue.engine.ledger, paths, before, cancel)


@pytest.mark.parametrize("budget", [1, 2, 3, 100])
def test_a_cancel_sweep_goes_by_key_then_by_number_at_any_budget(budget: int) -> None:
    hints = [["a", "c"], ["a"], ["b"], ["a", "b"], ["a"], ["x"], ["b", "x"]]
    queue = Queue(*[job(f"j{number}", hint) for number, hint in enumerate(hints)])
    seen: list[str] = []
    sweep = cancel_sweep(queue, ("a",), ("b",), seen=seen)
    used, again = 0, True
    while again:
        step, again = sweep.step(budget)
        assert step <= budget
        used += step
    assert seen == ["j1", "j4", "j3", "j0", "j2", "j6"]
    assert used == 6


def test_a_cancel_sweep_passes_over_what_ended_and_what_came_later() -> None:
    queue = Queue(*[job(f"j{number}", ["a"]) for number in range(4)])
    seen: list[str] = []
    sweep = cancel_sweep(queue, ("a",), seen=seen, before=5)
    assert sweep.step(1) == (1, True)
    queue.cancel("j1")
    queue.enqueue(job("late", ["a"]), job("later", ["a", "b"]))
    while sweep.step(1)[1]:
        pass
    assert seen == ["j0", "j2", "j3"]


def test_a_sweep_of_nothing_costs_nothing() -> None:
    queue = Queue(job("a", ["a"]))
    assert cancel_sweep(queue, ("b",), seen=[]).step(10) == (0, False)


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_a_dead_job_s_place_is_freed_when_all_behind_it_are_canceled(budget: int) -> None:
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


def test_a_job_placed_while_the_sweep_goes_on_is_not_behind_the_dead_job() -> None:
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


def test_jobs_put_aside_are_offered_in_order_of_number_at_any_budget() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(5)])
    queue.pause("a")
    queue.start()
    sweep = UnparkSweep(queue.engine.ledger, ("a",))
    assert sweep.step(2) == (2, True)
    assert sorted(ready.id for ready in queue.engine.ledger.ready.jobs()) == ["j0", "j1"]
    assert sweep.step(3) == (3, False)


def test_a_job_canceled_while_its_path_is_being_resumed_is_not_offered() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(5)], budget=2)
    queue.pause("a")
    for _ in range(5):
        queue.start()
    queue.resume("a")
    queue.cancel("j4")
    queue.wait(0)
    assert queue.start() == ["j0", "j1", "j2", "j3"]


def test_edges_are_resolved_in_order_of_number_at_any_budget() -> None:
    queue = Queue(job("first", ["a"], key="k"), checked=False)
    queue.start()
    ledger = queue.engine.ledger
    first = ledger.jobs["first"]
    for number in range(4):
        ledger.admit(job(f"j{number}", ["b"]), 0, after=first)
    sweep = ResolveSweep(ledger, first, lambda: 7)
    assert sweep.step(1) == (3, True)
    assert queue.state("j0") is QUEUED
    assert queue.record("j0").queued_ms == 7
    ledger.edges.drop(ledger.jobs["j1"])
    assert sweep.step(100) == (6, False)
    assert sweep.step(100) == (0, False)
    assert queue.states("j1", "j2", "j3") == "DEFERRED QUEUED QUEUED"


def test_an_edge_of_a_job_that_waits_for_more_does_not_queue_it() -> None:
    queue = Queue(job("a"), job("b"), checked=False)
    ledger = queue.engine.ledger
    waits = ledger.admit(job("waits", claims=(claim("x"),)), 0, after=ledger.jobs["a"])
    ledger.edges.add(waits, ledger.jobs["b"])
    assert ResolveSweep(ledger, ledger.jobs["a"], lambda: 0).step(9) == (1, False)
    assert queue.state("waits") is JobState.DEFERRED
    assert ResolveSweep(ledger, ledger.jobs["b"], lambda: 0).step(9) == (3, False)
    assert queue.state("waits") is QUEUED
