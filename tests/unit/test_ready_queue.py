"""The ready queue: which job is next."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from queuehint.core.structures.job import Job
from queuehint.core.structures.ready_queue import HEAD_START_MS, ReadyQueue, rank
from queuehint.testing.driver import Queue, job
from queuehint.values.record import JobState
from queuehint.values.spec import Priority

numbers = itertools.count(1)


def ready(queue: ReadyQueue, id: str, enqueued_ms: int = 0, **fields: Any) -> Job:
    made = Job(job(id, **fields), next(numbers), JobState.QUEUED, enqueued_ms)
    queue.add(made)
    return made


def taken(queue: ReadyQueue, pool: str = "default") -> str:
    """Take everything of a pool; ids are single letters."""
    order = ""
    while (made := queue.take(pool)) is not None:
        order += made.id
    return order


# --- inside one user -------------------------------------------------------------------------------------------------


def test_single_user_and_level_is_first_in_first_out() -> None:
    queue = ReadyQueue()
    for letter in "abcd":
        ready(queue, letter, enqueued_ms=5)
    assert taken(queue) == "abcd"


def test_critical_goes_before_all_levels_first_in_first_out() -> None:
    queue = ReadyQueue()
    ready(queue, "a", priority=5, enqueued_ms=0)
    ready(queue, "b", priority=Priority.CRITICAL, enqueued_ms=10**12 + 5)
    ready(queue, "c", priority=Priority.CRITICAL, enqueued_ms=10**12)
    assert taken(queue) == "bca"


def test_a_level_is_worth_a_minute() -> None:
    assert [rank(level, 300_000) for level in range(1, 6)] == [300_000, 240_000, 180_000, 120_000, 60_000]
    queue = ReadyQueue()
    ready(queue, "a", priority=1)
    ready(queue, "b", priority=5)
    ready(queue, "c", priority=3)
    assert taken(queue) == "bca"


def test_low_levels_age_into_their_turn() -> None:
    queue = ReadyQueue()
    ready(queue, "a", priority=1, enqueued_ms=0)
    ready(queue, "b", priority=5, enqueued_ms=4 * HEAD_START_MS - 1)
    ready(queue, "c", priority=5, enqueued_ms=4 * HEAD_START_MS)
    ready(queue, "d", priority=5, enqueued_ms=4 * HEAD_START_MS + 1)
    assert taken(queue) == "bacd"


# --- between users ---------------------------------------------------------------------------------------------------


def test_users_take_turns() -> None:
    queue = ReadyQueue()
    for letter, user in [("a", "ann"), ("b", "ann"), ("c", "ann"), ("x", "bob"), ("y", "bob"), ("n", None)]:
        ready(queue, letter, user=user)
    assert taken(queue) == "axnbyc"


def test_user_with_one_job_precedes_a_thousand_of_another() -> None:
    queue = Queue(checked=False)
    queue.enqueue(*[job(f"ann{number}", user="ann") for number in range(1000)])
    queue.enqueue(job("bob", user="bob"))
    assert queue.start(2) == ["ann0", "bob"]


def test_critical_job_does_not_take_a_turn_of_another_user() -> None:
    queue = ReadyQueue()
    ready(queue, "a", user="ann")
    ready(queue, "b", user="bob", priority=Priority.CRITICAL)
    assert taken(queue) == "ab"


def test_users_that_become_ready_join_the_end_of_the_turns() -> None:
    queue = ReadyQueue()
    ready(queue, "a", user="ann")
    ready(queue, "b", user="ann")
    ready(queue, "x", user="bob")
    assert [made.id for made in [queue.take("default")] if made] == ["a"]
    ready(queue, "n", user="new")
    assert taken(queue) == "xbn"


def test_a_turn_is_as_long_as_a_user_weighs() -> None:
    queue = ReadyQueue()
    queue.weights = {"ann": 2, None: 3}
    for letter, user in [("a", "ann"), ("n", None), ("x", "bob")] * 4:
        ready(queue, letter, user=user)
    assert taken(queue) == "aannnxaanxxx"


def test_a_single_user_begins_no_turn() -> None:
    queue = ReadyQueue()
    queue.weights = {"ann": 2}
    for letter in "abcd":
        ready(queue, letter, user="ann")
    assert [made.id for made in (queue.take("default"), queue.take("default")) if made] == ["a", "b"]
    ready(queue, "x", user="bob")
    assert taken(queue) == "cdx"


def test_selected_users_are_served_in_turn_order() -> None:
    queue = ReadyQueue()
    for letter, user in [("a", "ann"), ("x", "bob"), ("n", None)] * 2:
        ready(queue, letter, user=user)
    assert [made.id for made in [queue.take("default", ("bob", None))] if made] == ["x"]
    assert [made.id for made in [queue.take("default", ("bob", None))] if made] == ["n"]
    assert queue.take("default", ("nobody",)) is None
    assert queue.take("other", ("bob",)) is None
    assert queue.size("default", ("bob", "ann", "nobody")) == 3
    assert taken(queue) == "axna"


def test_worker_steals_nothing_beyond_its_budget() -> None:
    queue = Queue(job("a", ["doc"], user="ann"), job("b", user="bob"), budget=1)
    queue.pause("doc")
    assert queue.start(users=("ann",), steal=("bob",)) == []
    assert queue.start(users=("ann",), steal=("bob",)) == ["b"]


# --- pools -----------------------------------------------------------------------------------------------------------


def test_a_claim_begins_with_another_pool_each_time() -> None:
    queue = ReadyQueue()
    for pool in "xyz":
        ready(queue, pool, pool=pool)
    names = ("x", "y", "z", "none")
    assert [queue.rotate(names) for _ in range(5)] == [
        ["x", "y", "z"],
        ["y", "z", "x"],
        ["z", "x", "y"],
        ["x", "y", "z"],
        ["x", "y", "z"],
    ]
    assert queue.rotate(("y",)) == ["y"]
    assert queue.rotate(("none",)) == []


def test_pools_are_taken_from_in_turn() -> None:
    queue = Queue(*[job(f"{pool}{number}", pool=pool) for pool in "xy" for number in range(3)])
    assert queue.start(4, pools=("x", "y")) == ["x0", "y0", "x1", "y1"]
    assert queue.start(4, pools=("x", "y")) == ["y2", "x2"]


def test_empty_pool_leaves_the_rest_to_others() -> None:
    queue = Queue(job("x", pool="x"), *[job(f"y{number}", pool="y") for number in range(3)])
    assert queue.start(9, pools=("x", "y", "z")) == ["x", "y0", "y1", "y2"]


def test_worker_gets_nothing_from_an_unnamed_pool() -> None:
    queue = Queue(job("x", pool="x"))
    assert queue.start() == []
    assert queue.start(pools=("x",)) == ["x"]


def test_sizes_are_told_by_pool() -> None:
    queue = ReadyQueue()
    made = ready(queue, "a", pool="x")
    ready(queue, "b", pool="x")
    ready(queue, "c", pool="y")
    assert (queue.size("x"), queue.size("y"), queue.size("z")) == (2, 1, 0)
    queue.remove(made)
    assert queue.sizes() == {"x": 1, "y": 1}
    assert sorted(each.id for each in queue.jobs()) == ["b", "c"]


def test_user_that_becomes_ready_is_recorded_for_waiters() -> None:
    queue = ReadyQueue()
    ready(queue, "a", pool="x")
    assert queue.filled == {("x", None)}
    queue.filled.clear()
    ready(queue, "b", pool="x")
    assert queue.filled == set()
    ready(queue, "c", pool="x", user="ann")
    assert queue.filled == {("x", "ann")}
    assert taken(queue, "x") == "acb"
    queue.filled.clear()
    ready(queue, "d", pool="x")
    assert queue.filled == {("x", None)}


# --- taking back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back, rest", [("a", "bx"), ("x", "ab"), ("b", "ax")])
def test_an_offer_taken_back_is_not_made(back: str, rest: str) -> None:
    queue = ReadyQueue()
    users = [("a", "ann"), ("x", "bob"), ("b", "ann")]
    jobs = {letter: ready(queue, letter, user=user) for letter, user in users}
    queue.remove(jobs[back])
    assert jobs[back].ready is None
    assert taken(queue) == rest


def test_a_pool_without_offers_is_forgotten() -> None:
    queue = ReadyQueue()
    queue.remove(ready(queue, "a"))
    assert queue.take("default") is None
    assert queue.sizes() == {}
