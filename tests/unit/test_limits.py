"""Limits in the core: what may start at a place, when there is room again, and who is called then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from queuehint.core.structures.limits import CALLED_MAX, LOOK_MS
from queuehint.errors import InvalidHintTypeError, InvalidJobError, InvalidJobTypeError, QueueFullError
from queuehint.operations import DropLimit, ListLimits, SetLimit
from queuehint.testing.driver import Queue, job
from queuehint.values.hint import Claim
from queuehint.values.limit import LIMITS_MAX, Limit, LimitState, check_limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.report import ReasonKind
from queuehint.values.spec import JobSpec

A_SECOND = timedelta(seconds=1)


class Limited(Queue):
    """A queue with a door to its limits."""

    def limit(self, *path: str, **kinds: Any) -> bool:
        return self.apply(SetLimit(Limit(path=path, **kinds))).changed

    def unlimit(self, *path: str) -> bool:
        return self.apply(DropLimit(path)).changed

    def limits(self) -> tuple[LimitState, ...]:
        return self.apply(ListLimits()).limits

    def started(self, *path: str, each: bool = False) -> int | None:
        return next(state.started for state in self.limits() if (state.limit.path, state.limit.each) == (path, each))


def at(path: str, count: int, **fields: Any) -> list[JobSpec]:
    """Return jobs below a path that do not conflict: a0, a1, ..."""
    place = path.split(":") if path else []
    return [job(f"{path}{number}", [*place, str(number)], **fields) for number in range(count)]


# --- so many at once -------------------------------------------------------------------------------------------------


def test_no_more_jobs_run_at_or_below_a_path_than_its_limit() -> None:
    queue = Limited(*at("a", 5), *at("b", 2))
    assert queue.limit("a", most=2)
    assert queue.start() == ["a0", "a1", "b0", "b1"]
    assert queue.started("a") == 2
    queue.finish("a1")
    assert queue.start() == ["a2"]
    queue.finish("a0", "a2", "b0")
    assert queue.start() == ["a3", "a4"]


def test_the_limit_of_the_root_counts_every_job_with_a_place() -> None:
    queue = Limited(*at("a", 2), *at("b", 2), job("free"))
    queue.limit(most=1)
    assert queue.start() == ["a0", "free"]


def test_each_child_of_a_path_may_have_a_limit_of_its_own() -> None:
    queue = Limited(*at("t:a", 3), *at("t:b", 2), job("whole", ["t"]), job("a", ["t", "a"]))
    queue.limit("t", most=1, each=True)
    assert queue.start() == ["t:a0", "t:b0"]
    assert queue.started("t", each=True) == 2
    queue.finish("t:b0")
    assert queue.start() == ["t:b1"]
    assert queue.why("t:a1").path_key == "t:a"
    queue.finish("t:a0", "t:b1")
    assert queue.run() == ["t:a1", "t:a2", "whole", "a"]


def test_a_job_of_the_path_itself_counts_under_no_child() -> None:
    queue = Limited(job("whole", ["t"]), job("all", []))
    queue.limit("t", most=1, each=True)
    queue.limit(most=1, each=True)
    assert queue.run(2) == ["whole", "all"]
    queue.enqueue(job("again", []))
    assert queue.start() == ["again"]
    assert queue.started("t", each=True) == queue.started(each=True) == 0


def test_a_job_with_several_claims_below_a_path_counts_once() -> None:
    queue = Limited(JobSpec(id="two", task="t", claims=(Claim(("a", "x")), Claim(("a", "y")))), *at("a", 1))
    queue.limit("a", most=2)
    assert queue.start() == ["two", "a0"]


def test_a_place_may_have_a_limit_and_one_for_each_child() -> None:
    queue = Limited(*at("t:a", 2), *at("t:b", 2), *at("t:c", 2))
    queue.limit("t", most=2)
    queue.limit("t", most=1, each=True)
    assert queue.start() == ["t:a0", "t:b0"]
    queue.finish("t:a0")
    assert len(queue.start()) == 1
    assert queue.started("t") == 2


def test_jobs_that_conflict_keep_their_order_whatever_the_limit() -> None:
    queue = Limited(job("1", ["a", "x"]), job("2", ["a"]), job("3", ["a", "x"]), job("other", ["b"]))
    queue.limit(most=1)
    assert queue.run(10) == ["1", "2", "3", "other"]


def test_those_put_aside_come_by_rank_then_in_order_of_enqueue() -> None:
    queue = Limited(*at("a", 2), job("urgent", ["a", "u"], priority=9))
    queue.limit("a", most=1)
    assert queue.start() == ["urgent"]
    assert queue.run() == []
    queue.enqueue(job("later", ["a", "l"], priority=5))
    assert queue.start() == []
    queue.finish("urgent")
    assert queue.run() == ["later", "a0", "a1"]


def test_a_job_of_no_place_is_never_limited() -> None:
    queue = Limited(job("1"), job("2"))
    queue.limit(most=1)
    assert queue.start() == ["1", "2"]


def test_a_slot_calls_one_job_and_no_others_are_touched() -> None:
    queue = Limited(*at("a", 50))
    queue.limit("a", most=3)
    assert queue.start() == ["a0", "a1", "a2"]
    counter = next(iter(queue.engine.table.limits.limiters.values())).counters["a",]
    assert len(counter.parked) == 47
    queue.finish("a1")
    assert len(counter.parked) == 46
    assert queue.start(limit=0) == []
    assert len(counter.parked) == 46
    assert queue.start() == ["a3"]
    assert queue.start() == []
    assert len(counter.parked) == 46


@pytest.mark.parametrize("kind", ["released", "snoozed", "failed", "lost", "discarded", "children"])
def test_a_slot_is_free_once_however_a_job_stops_running(kind: str) -> None:
    queue = Limited(*at("a", 2, max_attempts=1))
    queue.limit("a", most=1)
    assert queue.start() == ["a0"]
    if kind == "children":
        queue.enqueue_from("a0", job("child"))
        queue.await_children("a0", "child")
    else:
        queue.settle("a0", OutcomeKind(kind), delay_ms=60_000 if kind == "snoozed" else 0)
    assert queue.started("a") == 0
    assert len(queue.start(pools=("default",))) == (2 if kind == "children" else 1)
    assert queue.started("a") == 1


def test_a_slot_of_a_job_whose_worker_has_died_is_free_when_it_is_reaped() -> None:
    queue = Limited(*at("a", 2, max_losses=1))
    queue.limit("a", most=1)
    queue.start(lease_ms=1000)
    queue.wait(1000)
    assert queue.start() == ["a1"]


def test_a_canceled_job_that_runs_keeps_its_slot_until_it_has_ended() -> None:
    queue = Limited(*at("a", 2))
    queue.limit("a", most=1)
    queue.start()
    queue.cancel("a0")
    assert queue.start() == []
    queue.settle("a0", OutcomeKind.RELEASED)
    assert queue.start() == ["a1"]


def test_a_job_that_is_put_aside_may_be_canceled() -> None:
    queue = Limited(*at("a", 4))
    queue.limit("a", most=1)
    queue.start()
    queue.cancel("a1", "a2")
    queue.finish("a0")
    assert queue.run() == ["a3"]
    assert queue.unlimit("a")
    assert queue.is_clean


def test_a_job_that_was_called_and_is_canceled_leaves_the_slot_to_the_next() -> None:
    queue = Limited(*at("a", 3))
    queue.limit("a", most=1)
    queue.start()
    queue.finish("a0")
    queue.cancel("a1")
    assert queue.start() == ["a2"]


def test_a_job_that_was_called_and_is_put_aside_elsewhere_leaves_the_slot_to_the_next() -> None:
    both = JobSpec(id="both", task="t", claims=(Claim(("a", "0")), Claim(("b", "0"))))
    queue = Limited(job("a", ["a", "1"]), job("b", ["b", "1"]), both, job("next", ["a", "2"]))
    queue.limit("a", most=1)
    queue.limit("b", most=1)
    assert queue.start() == ["a", "b"]
    queue.finish("a")
    assert queue.start() == ["next"]
    assert queue.why("both").path_key == "b"
    queue.finish("b")
    assert queue.start() == []
    assert queue.why("both").path_key == "a"
    queue.finish("next")
    assert queue.start() == ["both"]


def test_one_that_waits_above_stands_for_those_below() -> None:
    queue = Limited(*at("t:a", 20), *at("t:b", 1))
    queue.limit("t", most=2)
    queue.limit("t", "a", most=1)
    assert queue.start() == ["t:a0", "t:b0"]
    queue.enqueue(job("t:b1", ["t", "b", "1"], priority=5))
    assert queue.start() == []
    queue.finish("t:a0")
    assert queue.start() == ["t:b1"]
    limiters = {limiter.limit.path: limiter for limiter in queue.engine.table.limits.limiters.values()}
    below = limiters["t", "a"].counters["t", "a"]
    assert len(below.parked) == 18
    assert queue.start() == []
    assert len(below.parked) == 18
    queue.finish("t:b0")
    assert queue.start() == ["t:a1"]
    queue.finish("t:b1", "t:a1")
    assert len(queue.run(5)) == 18


def test_one_that_nobody_claims_does_not_keep_a_slot_from_the_others_for_ever() -> None:
    queue = Limited(job("run", ["a", "x"]), *at("a", 10, pool="dead"), job("last", ["a", "y"]))
    queue.limit("a", most=1)
    assert queue.start(pools=("default", "dead")) == ["run"]
    queue.finish("run")
    assert queue.start() == []
    looks = 0
    while not (ids := queue.start()):
        assert queue.engine.next_ms == queue.now_ms + LOOK_MS
        queue.wait(LOOK_MS)
        looks += 1
    assert ids == ["last"]
    assert looks == 3


def test_no_look_calls_more_than_a_hundred() -> None:
    queue = Limited(job("run", ["a", "x"]), *at("a", 500, pool="dead"), checked=False)
    queue.limit("a", most=1)
    queue.start(pools=("default", "dead"))
    queue.finish("run")
    before = 1
    for _ in range(9):
        queue.wait(LOOK_MS)
        size = queue.stats().ready["dead"]
        assert size - before <= CALLED_MAX
        before = size
    assert before > 2 * CALLED_MAX


def test_pools_share_a_limit() -> None:
    queue = Limited(*at("a", 2), *at("a:b", 2, pool="p"))
    queue.limit("a", most=1)
    assert queue.start(pools=("p",)) == ["a:b0"]
    assert queue.start() == []
    queue.finish("a:b0")
    assert queue.start() == ["a0"]
    assert queue.start(pools=("p",)) == []


def test_a_caller_of_exclusive_is_limited_as_others_are() -> None:
    queue = Limited(job("1", ["a", "1"]), job("2", ["a", "2"], presence_ms=10_000, pool="caller"), job("3", ["a", "3"]))
    queue.limit("a", most=1)
    assert queue.start() == ["1"]
    assert queue.start(pools=("caller",)) == []
    assert queue.why("2").kind is ReasonKind.LIMIT
    queue.finish("1")
    assert queue.why("2").kind is ReasonKind.CALLER
    queue.wait(10_000)
    assert queue.start() == ["3"]


def test_a_pause_goes_first_and_leaves_the_slot_to_others() -> None:
    queue = Limited(*at("a", 4))
    queue.limit("a", most=1)
    queue.start()
    queue.pause("a", "1")
    assert queue.why("a1").kind is ReasonKind.PAUSED
    queue.finish("a0")
    assert queue.start() == ["a2"]
    queue.finish("a2")
    assert queue.run() == ["a3"]
    queue.resume("a", "1")
    assert queue.run() == ["a1"]


# --- rates -----------------------------------------------------------------------------------------------------------


def test_a_start_takes_a_token_and_tokens_come_back_evenly() -> None:
    queue = Limited(*at("a", 8))
    queue.limit("a", rate=(3, 1000))
    assert queue.start() == ["a0", "a1", "a2"]
    assert queue.engine.table.limits.next_ms() == queue.now_ms + 334
    queue.wait(333)
    assert queue.start() == []
    queue.wait(1)
    assert queue.start() == ["a3"]
    queue.wait(10_000)
    assert queue.start() == ["a4", "a5", "a6"]
    assert queue.why("a7").kind is ReasonKind.LIMIT


def test_a_rate_never_lets_more_start_in_any_time_than_its_tokens_and_those_that_came_back() -> None:
    queue = Limited(*at("a", 200), checked=False)
    queue.limit("a", rate=(7, 500))
    starts = []
    for _ in range(40):
        starts += [(queue.now_ms, job_id) for job_id in queue.start(limit=3)]
        queue.wait(37)
    for first, (begin_ms, _) in enumerate(starts):
        for count, (end_ms, _) in enumerate(starts[first:], 1):
            assert count <= 7 + (end_ms - begin_ms) * 7 / 500
    assert len(starts) >= 7 + 39 * 37 * 7 // 500 - 1


def test_a_token_is_not_given_back() -> None:
    queue = Limited(*at("a", 1))
    queue.limit("a", rate=(1, 1000))
    queue.start()
    queue.settle("a0", OutcomeKind.RELEASED)
    assert queue.start() == []
    queue.wait(1000)
    assert queue.start() == ["a0"]


def test_the_timer_of_a_rate_is_gone_with_the_last_that_waits() -> None:
    queue = Limited(*at("a", 2))
    queue.limit("a", rate=(1, 5_000))
    queue.start()
    assert queue.engine.table.limits.next_ms() == queue.now_ms + 5_000
    queue.cancel("a1")
    assert queue.engine.table.limits.next_ms() is None


def test_a_rate_and_a_number_at_once_hold_together() -> None:
    queue = Limited(*at("a", 5))
    queue.limit("a", most=2, rate=(3, 1000))
    assert queue.start() == ["a0", "a1"]
    queue.finish("a0", "a1")
    assert queue.start() == ["a2"]
    queue.wait(1000)
    assert queue.start() == ["a3"]


def test_spent_tokens_stay_spent_when_a_rate_changes() -> None:
    queue = Limited(*at("a", 9))
    queue.limit("a", rate=(4, 1000))
    assert len(queue.start(limit=3)) == 3
    queue.limit("a", rate=(5, 2000))
    assert len(queue.start()) == 2
    queue.limit("a", rate=(2, 1000))
    assert queue.start() == []
    queue.limit("a", most=9)
    assert len(queue.start()) == 4


# --- changes ---------------------------------------------------------------------------------------------------------


def test_a_limit_counts_what_runs_when_it_is_set() -> None:
    queue = Limited(*at("a", 4))
    queue.start(limit=3)
    queue.limit("a", most=2)
    assert queue.started("a") == 3
    queue.finish("a0")
    assert queue.start() == []
    queue.finish("a1")
    assert queue.start() == ["a3"]


def test_each_of_two_limits_counts_its_own() -> None:
    queue = Limited(*at("a", 2), *at("a:b", 1))
    queue.start()
    queue.limit("a", most=9)
    queue.limit("a", "b", most=9)
    assert (queue.started("a"), queue.started("a", "b")) == (3, 1)


def test_a_limit_that_is_raised_or_dropped_lets_those_go_on_that_waited() -> None:
    queue = Limited(*at("a", 6))
    queue.limit("a", most=1)
    assert queue.start() == ["a0"]
    assert queue.limit("a", most=3)
    assert queue.start() == ["a1", "a2"]
    assert queue.unlimit("a")
    assert queue.start() == ["a3", "a4", "a5"]
    assert not queue.unlimit("a")


def test_those_put_aside_are_offered_again_in_bounded_steps() -> None:
    queue = Limited(*at("a", 20), *at("b", 3), budget=5)
    queue.limit("a", most=1)
    queue.limit("b", most=1)
    while queue.exchange(limit=1000).more:
        pass
    assert queue.apply(DropLimit(("a",))).more
    assert queue.stats().ready["default"] == 5
    queue.cancel("a19")
    queue.wait(0)
    assert len(queue.start()) + len(queue.start()) + len(queue.start()) + len(queue.start()) >= 5


def test_a_path_in_the_middle_of_a_drop_may_be_limited_anew() -> None:
    queue = Limited(*at("a", 12), budget=3)
    queue.limit("a", most=1)
    for _ in range(5):
        queue.exchange(limit=1000)
    queue.unlimit("a")
    assert queue.limit("a", most=2)
    queue.wait(0)
    for _ in range(10):
        queue.exchange(limit=1000)
    assert queue.started("a") == 2
    done = 0
    while done < 12:
        running = list(queue.engine.table.registry.running)
        assert len(running) <= 2
        queue.finish(*running)
        done += len(running)
        queue.exchange(limit=1000)
    queue.unlimit("a")
    assert queue.is_clean


def test_setting_what_is_set_changes_nothing() -> None:
    queue = Limited(*at("a", 3))
    assert queue.limit("a", most=1, max_pending=10)
    queue.start()
    limiters = dict(queue.engine.table.limits.limiters)
    assert not queue.limit("a", most=1, max_pending=10)
    assert queue.limit("a", most=1, max_pending=11)
    assert queue.limit("a", most=1)
    assert queue.engine.table.limits.limiters == limiters
    assert queue.limit("a")
    assert not queue.limit("a")
    assert queue.limits() == ()


def test_limits_are_listed_in_order() -> None:
    queue = Limited(*at("a", 1))
    queue.limit("b", rate=(1, 1))
    queue.limit("a", most=1, each=True)
    queue.limit("a", max_pending=5)
    queue.apply(SetLimit(Limit(path=None, max_pending=9)))
    queue.start()
    assert [(state.limit.path, state.limit.each, state.started, state.pending) for state in queue.limits()] == [
        (None, False, None, 1),
        (("a",), False, None, 1),
        (("a",), True, 1, None),
        (("b",), False, 0, None),
    ]
    assert queue.limits()[1].limit.path_key == "a"
    assert queue.limits()[0].limit.path_key is None


def test_the_limits_of_a_path_do_not_touch_each_other() -> None:
    queue = Limited()
    queue.limit("a", max_pending=5)
    queue.limit("a", most=1, each=True)
    queue.limit("a", each=True)
    assert [state.limit.max_pending for state in queue.limits()] == [5]


def test_a_namespace_has_so_many_limits() -> None:
    queue = Limited(checked=False)
    for number in range(LIMITS_MAX):
        queue.limit(str(number), most=1)
    with pytest.raises(InvalidJobError, match="at most 1000 limits"):
        queue.limit("one more", most=1)
    assert queue.limit("0", most=2)


def test_a_job_that_waits_for_a_limit_moves_by_itself() -> None:
    queue = Limited(*at("a", 2))
    queue.limit("a", rate=(1, 60_000))
    queue.finish(*queue.start())
    assert queue.pending().moving
    assert queue.pending(("a",)).moving
    assert queue.stats().stuck["no_worker"] == 0


def test_a_job_whose_limit_has_just_gone_waits_for_a_worker() -> None:
    queue = Limited(*at("a", 5), budget=1)
    queue.limit("a", most=1)
    for _ in range(8):
        queue.exchange(limit=1000)
    queue.unlimit("a")
    assert queue.why("a4").kind is ReasonKind.WORKER


# --- how many may wait -----------------------------------------------------------------------------------------------


def test_a_submission_that_would_leave_too_many_is_refused_whole() -> None:
    queue = Limited(*at("a", 2))
    queue.limit("a", max_pending=3)
    with pytest.raises(QueueFullError) as caught:
        queue.enqueue(job("b"), job("a8", ["a"]), job("a9", ["a", "x"]))
    assert (caught.value.path_key, caught.value.pending, caught.value.limit) == ("a", 2, 3)
    assert queue.find("b") is None
    queue.enqueue(job("b"), job("a8", ["a"]), *at("a", 2))
    queue.start(limit=1)
    with pytest.raises(QueueFullError):
        queue.enqueue(*at("a", 3))
    queue.finish("a0")
    queue.enqueue(*at("a", 3))


def test_the_namespace_may_be_limited_too() -> None:
    queue = Limited(job("1"), *at("a", 1))
    queue.apply(SetLimit(Limit(path=None, max_pending=3)))
    with pytest.raises(QueueFullError) as caught:
        queue.enqueue(job("2"), job("3"))
    assert (caught.value.path_key, caught.value.pending, caught.value.limit) == (None, 2, 3)
    assert "the namespace has 2 unfinished jobs and takes at most 3" in str(caught.value)
    queue.enqueue(job("2"))
    assert queue.apply(DropLimit(None)).changed
    queue.enqueue(job("3"))


def test_a_job_counts_once_a_claim_below_a_path() -> None:
    queue = Limited()
    queue.limit("a", max_pending=1)
    with pytest.raises(QueueFullError, match="path 'a' has 0 unfinished"):
        queue.enqueue(JobSpec(id="1", task="t", claims=(Claim(("a", "x")), Claim(("a", "y")))))


def test_jobs_of_one_key_are_one() -> None:
    queue = Limited()
    queue.limit("a", max_pending=1)
    queue.enqueue(job("1", ["a"], key="k"), job("2", ["a"], key="k"))
    queue.enqueue(job("3", ["a"], key="k", on_conflict="replace"))
    with pytest.raises(QueueFullError):
        queue.enqueue(job("4", ["a"], key="l"))


def test_parts_of_a_flow_count_when_they_come() -> None:
    queue = Limited()
    queue.limit("a", max_pending=3)
    queue.apply(SetLimit(Limit(path=None, max_pending=5)))
    queue.stage("S", *at("a", 2))
    with pytest.raises(QueueFullError):
        queue.stage("S", *at("a:b", 2))
    with pytest.raises(QueueFullError, match="namespace"):
        queue.stage("S", *at("b", 4))
    assert [state.pending for state in queue.limits()] == [2, 2]
    queue.stage("T", *at("b", 3))
    assert [state.pending for state in queue.limits()] == [5, 2]
    queue.commit("S")
    assert [state.pending for state in queue.limits()] == [5, 2]
    queue.wait(600_000)
    assert [state.pending for state in queue.limits()] == [2, 2]


def test_children_are_counted_too() -> None:
    queue = Limited(job("parent"))
    queue.start()
    queue.limit("a", max_pending=1)
    with pytest.raises(QueueFullError):
        queue.enqueue_from("parent", *at("a", 2))


# --- at the door -----------------------------------------------------------------------------------------------------


def test_a_limit_is_what_it_was_checked_to_be() -> None:
    assert check_limit(["a"], 3, rate=(5, A_SECOND), max_pending=7) == Limit(
        path=("a",), most=3, rate=(5, 1000), max_pending=7
    )
    assert check_limit(None, max_pending=1) == Limit(path=None, max_pending=1)
    assert not check_limit(["a"]).holds_back


@pytest.mark.parametrize(
    "fields, refused, says",
    [
        ({"path": "a"}, InvalidHintTypeError, "did you mean"),
        ({"path": ["a"], "most": 0}, InvalidJobError, "most must be from 1 to 1000000, got 0"),
        ({"path": ["a"], "most": 1_000_001}, InvalidJobError, "got 1000001"),
        ({"path": ["a"], "most": True}, InvalidJobTypeError, "most must be int, got bool"),
        ({"path": ["a"], "most": 1.0}, InvalidJobTypeError, "most must be int, got float"),
        ({"path": ["a"], "most": 1, "each": 1}, InvalidJobTypeError, "each must be bool, got int"),
        ({"path": ["a"], "rate": 5}, InvalidJobTypeError, "rate must be a tuple"),
        ({"path": ["a"], "rate": (1, 2, 3)}, InvalidJobTypeError, "rate must be a tuple"),
        ({"path": ["a"], "rate": (0, 1)}, InvalidJobError, "rate must be from 1"),
        ({"path": ["a"], "rate": (1, 0)}, InvalidJobError, "rate: the time must be from 0.001 s to 86400 s"),
        ({"path": ["a"], "rate": (1, timedelta(days=2))}, InvalidJobError, "rate: the time must be"),
        ({"path": ["a"], "max_pending": 0}, InvalidJobError, "max_pending must be from 1"),
        ({"path": None, "most": 1}, InvalidJobError, "takes max_pending alone"),
        ({"path": None, "each": True}, InvalidJobError, "takes max_pending alone"),
        ({"path": ["a"], "each": True, "rate": (1, 1)}, InvalidJobError, "each=True takes most alone"),
        ({"path": ["a"], "each": True, "max_pending": 1}, InvalidJobError, "each=True takes most alone"),
    ],
)
def test_what_is_no_limit_is_refused(fields: dict[str, Any], refused: type[Exception], says: str) -> None:
    with pytest.raises(refused, match=says):
        check_limit(fields.pop("path"), fields.pop("most", None), **fields)


def test_a_limit_that_is_none_is_refused_below_the_door_too() -> None:
    with pytest.raises(InvalidJobError):
        Limited().limit("a", most=0)
    with pytest.raises(InvalidJobError):
        Limited().limit("a", rate=(1, 0))
