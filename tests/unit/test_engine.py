"""The engine as a whole: order of work, budget, clock, limits, pauses."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint.core.engine import Engine, EngineOptions
from queuehint.errors import InvalidJobError
from queuehint.operations import (
    Cancel,
    CancelPath,
    Close,
    CountJobs,
    Discard,
    Draw,
    Enqueue,
    Exchange,
    Fetch,
    Get,
    ListDead,
    ListFlow,
    Operation,
    Pause,
    Redrive,
    Renew,
    Reopen,
    Resume,
    Tick,
    Verdict,
)
from queuehint.testing.driver import Queue, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- limits of each operation ----------------------------------------------------------------------------------------


def ids(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


@pytest.mark.parametrize(
    "operation, text",
    [
        (lambda queue: Cancel(ids(1001)), "ids: 1001 in one operation, limit 1000"),
        (lambda queue: Redrive(ids(1001)), "ids: 1001 in one operation, limit 1000"),
        (lambda queue: Discard(ids(1001)), "ids: 1001 in one operation, limit 1000"),
        (lambda queue: Get(ids(1001)), "ids: 1001 in one operation, limit 1000"),
        (lambda queue: Draw(1001), "count: 1001 in one operation, limit 1000"),
        (lambda queue: Draw(-1), "count: -1 in one operation, limit 1000"),
        (lambda queue: Exchange("w", settle=(queue.outcome("a"),) * 1001), "settle: 1001 in one operation, limit 1000"),
        (lambda queue: Exchange("w", (queue.outcome("a"),), limit=1001), "limit: 1001 in one operation, limit 1000"),
        (lambda queue: Exchange("w", (queue.outcome("a"),), limit=-1), "limit: -1 in one operation, limit 1000"),
        (lambda queue: Exchange("w", (queue.outcome("a"),), ids(65), 1), "pools: 65 in one operation, limit 64"),
        (lambda queue: Renew((("a", 1),) * 16_001), "leases: 16001 in one operation, limit 16000"),
        (lambda queue: Fetch("a", 1, ids(101)), "ids: 101 in one operation, limit 100"),
        (
            lambda queue: Exchange("w", settle=(queue.outcome("a", OutcomeKind.CHILDREN, children=ids(1001)),)),
            "children: 1001 in one operation, limit 1000",
        ),
        (lambda queue: ListFlow("f", limit=201), "limit must be from 1 to 200, got 201"),
        (lambda queue: ListDead(limit=0), "limit must be from 1 to 200, got 0"),
        (lambda queue: ListDead(limit=201), "limit must be from 1 to 200, got 201"),
        (lambda queue: ListDead(limit=-1), "limit must be from 1 to 200, got -1"),
    ],
)
def test_an_operation_over_its_limit_is_refused_and_changes_nothing(operation: Any, text: str) -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]), job("c", delay_ms=1), checked=False)
    queue.start()
    before = queue.everything()
    with pytest.raises(InvalidJobError) as caught:
        queue.apply(operation(queue))
    assert str(caught.value) == text
    assert queue.everything() == before


@pytest.mark.parametrize(
    "operation",
    [
        Cancel(ids(1000)),
        Redrive(ids(1000)),
        Discard(ids(1000)),
        Get(ids(1000)),
        Draw(1000),
        Exchange("w", limit=1000, pools=ids(64)),
        Renew((("a", 1),) * 16_000),
        Fetch("a", 1, ids(100)),
        ListFlow("f", limit=200),
        ListDead(limit=200),
        ListDead(cursor=10**9),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_an_operation_at_its_limit_is_done(operation: Operation[object]) -> None:
    Queue().apply(operation)


def test_an_exchange_with_no_pools_claims_nothing() -> None:
    queue = Queue(job("a"))
    assert queue.start(pools=()) == []
    assert queue.start() == ["a"]
    assert queue.exchange(queue.outcome("a"), pools=(), limit=5).verdicts == (Verdict.DONE,)


# --- order of work ---------------------------------------------------------------------------------------------------


def test_an_exchange_settles_before_it_claims() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]))
    queue.start()
    reply = queue.exchange(queue.outcome("a"), limit=1)
    assert [grant.spec.id for grant in reply.grants] == ["b"]


def test_a_settlement_goes_before_a_lease_that_ends_at_the_same_time() -> None:
    queue = Queue(job("a", ["x"]), now_ms=0)
    queue.start(lease_ms=1000)
    queue.now_ms = 1000
    assert queue.settle("a") is Verdict.DONE


def test_a_job_that_is_due_takes_its_place_before_one_that_comes_in_the_same_step() -> None:
    queue = Queue(job("due", ["x"], delay_ms=1000), now_ms=0)
    queue.now_ms = 1000
    queue.enqueue(job("new", ["x"]))
    assert queue.run() == ["due", "new"]


def test_a_claim_gets_what_has_become_due_or_was_reaped_in_the_same_step() -> None:
    queue = Queue(job("due", delay_ms=1000), job("lost"), now_ms=0)
    queue.start(lease_ms=1000)
    queue.now_ms = 1000
    assert queue.start() == ["due", "lost"]


def test_what_a_cancellation_frees_is_free_in_the_same_step() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]))
    queue.cancel("a")
    assert queue.stats().ready == {"default": 1}


# --- bounded work ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 3, 10, 4000])
def test_what_is_cut_is_taken_up_again_and_ends_the_same(budget: int) -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number), "b"]) for number in range(12)], budget=budget, now_ms=0)
    queue.enqueue(job("parent", ["a"]), *[job(f"k{number}", ["a", str(number)]) for number in range(12)])
    queue.enqueue(job("timed", ["a"], delay_ms=5), job("last", ["a", "0"]))
    order = []
    while queue.stats().unfinished:
        started = queue.start(5)
        order += started
        queue.finish(*started)
        queue.wait(1)
    expected = [f"j{number}" for number in range(12)] + ["parent"] + [f"k{number}" for number in range(12)]
    assert order[:13] == expected[:13]
    assert sorted(order) == sorted([*expected, "timed", "last"])
    assert order.index("k0") < order.index("last")
    assert queue.is_clean


def test_a_reply_says_more_while_something_is_left_over() -> None:
    queue = Queue(job("parent", ["a"]), *[job(f"j{number}", ["a", str(number)]) for number in range(10)], budget=4)
    queue.start(1)
    reply = queue.exchange(queue.outcome("parent"))
    assert reply.more
    assert (queue.stats().leftovers, queue.engine.next_ms) == (1, queue.now_ms)
    # Each of the ten visits two gates; the exchange and four ticks do four each.
    assert [queue.tick().more for _ in range(4)] == [True, True, True, False]
    assert queue.stats().ready == {"default": 10}


def test_a_reply_says_more_while_timers_are_due() -> None:
    queue = Queue(*[job(f"j{number}", delay_ms=5) for number in range(5)], budget=2, now_ms=0)
    queue.now_ms = 5
    assert queue.tick().more
    assert queue.stats().states[SCHEDULED] == 3
    assert queue.tick().more
    reply = queue.tick()
    assert (reply.more, queue.stats().states[SCHEDULED]) == (False, 0)


def test_newcomers_stay_behind_a_line_that_was_cut() -> None:
    queue = Queue(job("first", ["a"]), *[job(f"j{number}", ["a", "b"]) for number in range(3)], budget=1)
    queue.start()
    queue.finish("first")
    queue.enqueue(job("new", ["a", "b"]))
    assert queue.run() == ["j0", "j1", "j2", "new"]


def test_a_long_sweep_does_not_hold_up_a_short_line() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(50)], budget=8)
    queue.enqueue(job("first", ["z"]), job("second", ["z"]))
    assert queue.start(51)[-1] == "first"
    for number in range(50):
        queue.settle(f"j{number}", OutcomeKind.RELEASED)
    queue.cancel_path("a")
    queue.finish("first")
    assert queue.stats().leftovers
    assert queue.start(1000)[-1] == "second" or "second" in queue.start(1000)
    assert queue.stats().states[CANCELED] < 50


@pytest.mark.parametrize(
    "operation",
    [
        Tick(),
        Enqueue(()),
        Exchange("w"),
        Renew(()),
        Cancel(()),
        Redrive(()),
        Discard(()),
        CancelPath(("q",)),
        Pause(("q",)),
        Resume(("q",)),
        Close(("q",)),
        Reopen(("q",)),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_every_mutating_operation_does_what_is_due_and_says_what_is_left(operation: Operation[Any]) -> None:
    queue = Queue(*[job(f"j{number}", delay_ms=5) for number in range(5)], budget=3, now_ms=0)
    queue.now_ms = 5
    assert queue.apply(operation).more is True
    assert queue.stats().states[SCHEDULED] < 5
    while queue.apply(operation).more:
        pass
    assert queue.stats().states[SCHEDULED] == 0


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_clock_that_goes_backwards_counts_as_standing_still() -> None:
    queue = Queue(job("a", ["x"]), now_ms=10_000)
    queue.start(lease_ms=1000)
    queue.now_ms = 0
    queue.enqueue(job("b", delay_ms=500))
    assert (queue.record("b").enqueued_ms, queue.record("b").due_ms) == (10_000, 10_500)
    assert queue.renew("a", lease_ms=1000) == [Verdict.DONE]
    queue.now_ms = 10_999
    queue.tick()
    assert queue.states("a", "b") == "STARTED QUEUED"
    queue.now_ms = 11_000
    queue.tick()
    assert queue.state("a") is QUEUED


def test_next_ms_is_the_next_time_something_is_due() -> None:
    queue = Queue(now_ms=0)
    assert queue.tick().next_ms is None
    queue.enqueue(job("a", ["x"], delay_ms=500), job("b", ["y"], start_within_ms=300))
    assert queue.tick().next_ms == 300
    queue.start(lease_ms=400)
    assert queue.tick().next_ms == 400
    queue.finish("b")
    assert queue.tick().next_ms == 500


def test_the_same_operations_at_the_same_times_give_the_same_replies() -> None:
    def history() -> list[object]:
        queue = Queue(now_ms=0, budget=5)
        replies: list[object] = [queue.enqueue(*[job(f"j{number}", ["a", str(number % 3)]) for number in range(9)])]
        for _ in range(6):
            replies.append(queue.exchange(limit=2))
            queue.now_ms += 20_000
            replies += [queue.tick(), queue.stats()]
        return replies

    assert history() == history()


def test_tokens_carry_the_epoch_in_their_upper_half() -> None:
    engine = Engine(EngineOptions(epoch_s=7))
    engine.apply(Enqueue((job("a"),)), 0)
    (grant,) = engine.apply(Exchange("w", limit=1), 0).grants
    assert grant.token == (7 << 32) + 1


# --- pauses ----------------------------------------------------------------------------------------------------------


def test_a_pause_stops_starts_at_and_below_its_path_and_keeps_places() -> None:
    queue = Queue(
        job("at", ["a", "b"]),
        job("below", ["a", "b", "c"]),
        job("part", claims=job("p", ["a", "b", "d"]).claims + job("p", ["z"]).claims),
        job("beside", ["a", "x"]),
        job("like", ["a", "bc"]),
        job("none"),
    )
    assert queue.pause("a", "b") is True
    assert queue.pause("a", "b") is False
    assert queue.start() == ["beside", "like", "none"]
    queue.finish("beside", "like", "none")
    queue.enqueue(job("above", ["a"]))
    assert queue.start() == []
    assert queue.resume("a", "b") is True
    assert queue.resume("a", "b") is False
    assert queue.run() == ["at", "below", "part", "above"]
    assert queue.is_clean


def test_jobs_on_ancestors_and_without_hint_go_on_during_a_pause() -> None:
    queue = Queue(job("none"), job("root", []), job("above", ["a"]), job("at", ["a", "b"]))
    queue.pause("a", "b")
    assert queue.run() == ["none", "root", "above"]


def test_a_pause_lets_what_runs_end_and_come_back_to_its_place() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]))
    queue.start()
    queue.pause("x")
    queue.fail("a")
    assert queue.start() == []
    queue.resume("x")
    assert queue.run() == ["a", "b"]


def test_a_pause_of_the_root_stops_every_job_that_has_a_place() -> None:
    queue = Queue(job("a", ["x"]), job("none"))
    queue.pause()
    assert queue.run() == ["none"]
    queue.resume()
    assert queue.run() == ["a"]


def test_of_two_pauses_both_have_to_be_undone() -> None:
    for first, second in [(("a",), ("a", "b")), (("a", "b"), ("a",))]:
        queue = Queue(job("j", ["a", "b"]))
        queue.pause("a")
        queue.pause("a", "b")
        assert queue.start() == []
        queue.resume(*first)
        assert queue.start() == []
        queue.resume(*second)
        assert queue.start() == ["j"]


def test_a_paused_job_may_be_canceled_or_expire_and_is_offered_no_more() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["y"], start_within_ms=10), now_ms=0)
    queue.pause()
    assert queue.start() == []
    queue.cancel("a")
    queue.wait(10)
    queue.resume()
    assert queue.start() == []
    assert queue.states("a", "b") == "CANCELED CANCELED"


def test_a_mark_that_is_set_or_undone_already_is_told() -> None:
    queue = Queue()
    marks: list[Any] = [Pause, Pause, Resume, Resume, Close, Close, Reopen, Reopen]
    assert [queue.apply(mark(("a",))).changed for mark in marks] == [True, False] * 4


def test_resuming_is_bounded_and_goes_in_order_of_number() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(10)], budget=4)
    queue.pause("a")
    while queue.exchange(limit=1).more:
        pass
    assert queue.stats().stuck["paused"] == 10
    reply = queue.apply(Resume(("a",)))
    assert (reply.changed, reply.more) == (True, True)
    assert queue.start(4) == ["j0", "j1", "j2", "j3"]
    while queue.tick().more:
        pass
    assert queue.start() == [f"j{number}" for number in range(4, 10)]


def test_setting_paused_jobs_aside_is_bounded() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(10)], job("z", ["z"]), budget=4)
    queue.pause("a")
    reply = queue.exchange(limit=1)
    assert (reply.grants, reply.more) == ((), True)
    found: list[str] = []
    for _ in range(5):
        found += queue.start(1)
    assert found == ["z"]


# --- counts ----------------------------------------------------------------------------------------------------------


def test_the_counts_add_up() -> None:
    queue = Queue(now_ms=0)
    queue.enqueue(*[job(f"j{number}", ["a", str(number)], max_attempts=1) for number in range(6)])
    queue.enqueue(job("timed", delay_ms=10**6), job("j0", ["a", "0"], max_attempts=1), job("kept", retention_ms=0))
    queue.start(5)
    queue.finish("j0", "j1")
    queue.fail("j2")
    queue.settle("j3", OutcomeKind.LOST)
    queue.cancel("j5")
    stats = queue.stats()
    assert stats.states == {SCHEDULED: 1, DEFERRED: 0, QUEUED: 2, STARTED: 1, FINISHED: 2, FAILED: 1, CANCELED: 1}
    assert (stats.enqueued, stats.started, stats.settled, stats.lost, stats.pruned) == (8, 5, 4, 1, 0)
    assert stats.ready == {"default": 2}
    assert stats.nodes == 3
    queue.start()
    queue.finish("j3", "kept")
    stats = queue.stats()
    assert sum(stats.states.values()) == 7
    queue.wait(10**9)
    stats = queue.stats()
    assert sum(stats.states.values()) + stats.pruned == stats.enqueued == 8


def test_a_question_changes_nothing() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]))
    before = queue.everything()
    queue.why("b")
    queue.pending()
    queue.pending(("x",))
    queue.apply(CountJobs())
    assert queue.everything() == before
