"""The engine as a whole: order of work, budget, clock, limits, pauses."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint import operations as op
from queuehint.core.engine import Engine, EngineOptions
from queuehint.testing.driver import Queue, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from tests.each import for_each

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- bounded work ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 3, 10, 4000])
def test_interrupted_work_resumes_and_ends_the_same(budget: int) -> None:
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


@for_each(
    "operation",
    [
        op.Tick(),
        op.Enqueue(()),
        op.Exchange("w"),
        op.Renew(()),
        op.Cancel(()),
        op.Redrive(()),
        op.Discard(()),
        op.CancelPath(("q",)),
        op.Pause(RecordFilter(path=("q",))),
        op.Resume(RecordFilter(path=("q",))),
        op.Close(("q",)),
        op.Close(("q",), reopen=True),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_mutating_operations_do_due_work_and_report_leftovers(operation: op.Operation[Any]) -> None:
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
    assert queue.renew("a", lease_ms=1000) == [op.Verdict.DONE]
    queue.now_ms = 10_999
    queue.tick()
    assert queue.states("a", "b") == "STARTED QUEUED"
    queue.now_ms = 11_000
    queue.tick()
    assert queue.state("a") is QUEUED


def test_equal_operations_at_equal_times_give_equal_replies() -> None:
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
    engine.apply(op.Enqueue((job("a"),)), 0)
    (grant,) = engine.apply(op.Exchange("w", limit=1), 0).grants
    assert grant.token == (7 << 32) + 1


# --- pauses ----------------------------------------------------------------------------------------------------------


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


def test_resuming_is_bounded_and_goes_in_order_of_number() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(10)], budget=4)
    queue.pause("a")
    while queue.exchange(limit=1).more:
        pass
    assert queue.stats().stuck["paused"] == 10
    reply = queue.apply(op.Resume(RecordFilter(path=("a",))))
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
