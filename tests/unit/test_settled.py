"""Settled gates: places of jobs compared with those of all jobs placed anew, and replacement of gates."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from queuehint.core.jobs.settled import (
    Comparison,
    Standing,
    compare,
    miscounted,
    misoffered,
    place_anew,
    stalled,
    standings_of,
)
from queuehint.core.jobs.table import JobTable
from queuehint.core.structures.trie import ONE, Node, Walk, X
from queuehint.testing.driver import SHARED, Queue, claim, job
from queuehint.values.hint import COUNTED, Claim
from queuehint.values.record import JobState
from tests.each import for_each

DAY_MS = 24 * 3600 * 1000


def at(job_id: str, path: str, *passed: int, keeps: bool = False, mode: str = "exclusive") -> Standing:
    """Return a job that claims paths of letters, `.` for the root, and how many gates each claim has passed."""
    claims = tuple([claim(*each.strip("."), mode=SHARED if mode == "shared" else "exclusive") for each in path.split()])
    return Standing(job_id, int(job_id), claims, passed, keeps)


def said(found: Comparison) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]], list[str]]:
    misplaced, moved = ({each.job_id: to for each, to in some.items()} for some in (found.misplaced, found.moved))
    return misplaced, moved, [each.job_id for each in found.early]


# --- where jobs stand ------------------------------------------------------------------------------------------------


def test_jobs_that_stand_as_replaced_are_sound() -> None:
    jobs = [at("2", "ab", 1), at("1", "a x", 2, 2, keeps=True), at("3", ".", 0), at("4", "b", 0)]
    assert said(compare(jobs)) == ({}, {}, [])
    assert said(compare([])) == ({}, {}, [])


def test_jobs_whose_line_waits_to_be_advanced_are_not_misplaced() -> None:
    readers = [at("1", "a", 1, mode="shared"), at("2", "a", 1, mode="shared")]
    assert said(compare([*readers, at("3", "ab", 1)])) == ({}, {"1": (2,), "2": (2,)}, [])


def test_misplaced_job_moves_waiters_of_its_lines() -> None:
    jobs = [at("1", "a", 1), at("2", "a", 1), at("3", "b", 2), at("4", "b", 2)]
    assert said(compare(jobs)) == ({"4": (1,)}, {"1": (2,), "4": (1,)}, [])


@pytest.mark.parametrize("passed", [(), (2, 2), (3,), (-1,)])
def test_a_job_that_counts_gates_it_cannot_pass_is_misplaced(passed: tuple[int, ...]) -> None:
    assert said(compare([at("1", "a", *passed)])) == ({"1": (2,)}, {"1": (2,)}, [])


@pytest.mark.parametrize("passed", [1, 2])
def test_job_past_a_gate_of_an_earlier_waiter_is_misplaced(passed: int) -> None:
    # Once the root's line has advanced, both would wait at `a`, the later one before the earlier one.
    jobs = [at("1", "a", 2), at("2", "a", 0), at("3", "a", passed)]
    misplaced, _, _ = said(compare(jobs))
    assert misplaced.keys() >= {"2"}


def test_a_job_that_started_before_its_turn_keeps_its_gates() -> None:
    jobs = [at("1", "a", 1), at("2", "a", 2, keeps=True), at("3", "a", 1)]
    assert said(compare(jobs)) == ({}, {}, ["2"])
    assert said(compare([at("1", "a", 2), *jobs[1:]])) == ({"1": (1,)}, {"1": (1,)}, ["2"])


def test_where_two_conflict_that_have_started_nothing_is_worked_out() -> None:
    found = compare([at("1", "a", 2, keeps=True), at("2", "a", 2, keeps=True), at("3", "b", 0)])
    assert said(found) == ({}, {}, ["2"])
    assert found.order is None


def test_comparison_agrees_with_replaced_jobs() -> None:
    for seed in range(50):
        random = Random(seed)
        jobs = []
        for number in range(1, 12):
            path = "".join(random.choices("ab", k=random.randrange(4))) or "."
            path += random.choice(("", "", " c", " cd"))
            mode = random.choice(("exclusive", "exclusive", "shared"))
            jobs.append(at(str(number), path, *(0,) * len(path.split()), mode=mode))
        moved = compare(jobs).moved
        settled = [Standing(each.job_id, each.seq, each.claims, moved.get(each, each.passed)) for each in jobs]
        assert said(compare(settled)) == ({}, {}, [])
        random.shuffle(settled)
        assert said(compare(settled)) == ({}, {}, [])


# --- the gates of a table --------------------------------------------------------------------------------------------


def crowd() -> Queue:
    """One runs, one is ready, one backs off, one is dead and holds its place, and others wait for each."""
    queue = Queue(checked=False)
    queue.enqueue(
        job("runs", ["a"]), job("backing", ["c"], max_attempts=2), job("dead", ["d"], max_attempts=1, on_dead="hold")
    )
    queue.start()
    queue.fail("backing", delay_ms=60_000)
    queue.fail("dead")
    queue.enqueue(job("ready", ["b"]), job("free"), *[job(f"{each}2", [each]) for each in "abcd"], job("a3", ["a"]))
    return queue


def _count_once_more(table: JobTable) -> None:
    table.trie.root.held += ONE[X]


def _count_holder_twice(table: JobTable) -> None:
    node(table, "a").active += ONE[X]


def _lose_a_walk_from_a_line(table: JobTable) -> None:
    walk = walk_of(table, "a2")
    table.trie._unjoin(walk, node(table, "a"))


def _turn_a_line_around(table: JobTable) -> None:
    first = walk_of(table, "a2")
    table.trie._unjoin(first, node(table, "a"))
    table.trie._join(first, node(table, "a"), 1, X)


def _close_a_line_in_itself(table: JobTable) -> None:
    walk_of(table, "a3").after = walk_of(table, "a2")


def _lose_the_end_of_a_line(table: JobTable) -> None:
    node(table, "a").line_end = walk_of(table, "a2")


def _count_a_longer_line(table: JobTable) -> None:
    node(table, "a").waiting += 1


def _mark_a_line(table: JobTable) -> None:
    node(table, "a").to_advance = True


def _let_one_pass(table: JobTable) -> None:
    walk = walk_of(table, "a2")
    table.trie._unjoin(walk, node(table, "a"))
    table.trie._grant(walk, node(table, "a"), 1, X)


def _have_one_wait(table: JobTable) -> None:
    walk = walk_of(table, "ready")
    table.trie._disown(walk, node(table, "b"))
    node(table, "b").held = 0
    table.trie._join(walk, node(table, "b"), 1, X)


def _lose_the_walks_of_one(table: JobTable) -> None:
    table.jobs["a2"].walk = None


def _lose_all_gates(table: JobTable) -> None:
    table.trie.root = Node(None, "")


def _count_a_gate_too_many(table: JobTable) -> None:
    table.jobs["ready"].missing = 1


def _offer_one_that_waits(table: JobTable) -> None:
    table.ready.add(table.jobs["a2"])


def _offer_one_that_backs_off(table: JobTable) -> None:
    table.ready.add(table.jobs["backing"])


def _withdraw_one_that_is_ready(table: JobTable) -> None:
    table.withdraw(table.jobs["ready"])


def node(table: JobTable, segment: str) -> Node:
    found = table.trie.find((segment,))
    assert found is not None
    return found


def walk_of(table: JobTable, job_id: str) -> Walk:
    (walk,) = table.jobs[job_id].walks
    return walk


def wrong(table: JobTable) -> list[object]:
    found = compare(standings_of(table))
    return [*found.misplaced, *found.early, *miscounted(table), *stalled(table), *misoffered(table)]


@for_each(
    "harm",
    [
        _count_once_more,
        _count_holder_twice,
        _lose_a_walk_from_a_line,
        _turn_a_line_around,
        _close_a_line_in_itself,
        _lose_the_end_of_a_line,
        _count_a_longer_line,
        _mark_a_line,
        _let_one_pass,
        _have_one_wait,
        _lose_the_walks_of_one,
        _lose_all_gates,
        _count_a_gate_too_many,
        _offer_one_that_waits,
        _offer_one_that_backs_off,
        _withdraw_one_that_is_ready,
    ],
    ids=lambda harm: harm.__name__.strip("_"),
)
def test_gates_that_are_wrong_are_found_and_replaced(harm: Callable[[JobTable], None]) -> None:
    queue = crowd()
    table = queue.engine.table
    before = [(each.job_id, each.passed) for each in standings_of(table)]
    assert not wrong(table)
    queue.engine.check()
    harm(table)
    assert wrong(table)
    assert place_anew(table)
    assert not wrong(table)
    assert [(each.job_id, each.passed) for each in standings_of(table)] == before
    queue.engine.check()
    queue.finish("runs")
    queue.discard("dead")
    assert queue.run() == ["ready", "free", "a2", "b2", "d2", "a3"]
    queue.wait(60_000)
    assert queue.run() == ["backing", "c2"]
    queue.wait(10 * DAY_MS)
    assert queue.is_clean


def test_a_permit_has_no_gates_to_be_placed_in() -> None:
    queue = Queue(job("p", claims=(Claim(("x",), COUNTED),), presence_ms=DAY_MS), job("a", ["x"]))
    table = queue.engine.table
    assert [standing.job_id for standing in standings_of(table)] == ["a"]
    assert not wrong(table)
    assert place_anew(table)
    assert not wrong(table)
    assert queue.start() == ["p", "a"]
    queue.engine.check()


def test_line_that_waits_to_advance_is_sound_and_settled_later() -> None:
    queue = Queue(job("a", ["x"]), budget=1)
    queue.enqueue(*[job(f"b{n}", claims=(claim("x", str(n), mode=SHARED),)) for n in range(2)])
    queue.enqueue(job("c", claims=(claim("x", "c"), claim("y"))))
    queue.cancel("a")
    table = queue.engine.table
    assert [walk_of(table, each).granted for each in ("b0", "b1")] == [True, False]
    assert not wrong(table)
    assert place_anew(table)
    assert [walk_of(table, each).granted for each in ("b0", "b1")] == [True, True]
    queue.engine.check()
    assert queue.start() == ["b0", "b1", "c"]


def test_work_that_is_left_over_stays_when_gates_are_replaced() -> None:
    queue = Queue(*[job(str(n), ["x"]) for n in range(9)], budget=1, checked=False)
    queue.cancel_path("x")
    table = queue.engine.table
    left = [item for item in table.leftovers if not isinstance(item, Node)]
    assert left
    assert place_anew(table)
    assert list(table.leftovers) == left
    queue.wait(0)
    assert {queue.state(str(n)) for n in range(9)} == {JobState.CANCELED}


def test_where_two_conflict_that_run_the_gates_stay() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["y"]), job("c", ["x"]), checked=False)
    queue.start()
    table = queue.engine.table
    b = table.jobs["b"]
    b.spec = job("b", ["x"])
    root = table.trie.root
    assert not place_anew(table)
    assert table.trie.root is root
