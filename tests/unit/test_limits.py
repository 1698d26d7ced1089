"""Limits in the core: which jobs may start, when there is room, and which job is released then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from queuehint.core.structures.limits import CALLED_MAX, LOOK_MS
from queuehint.errors import InvalidHintTypeError, InvalidJobError, InvalidJobTypeError
from queuehint.operations import ListLimits, SetLimit
from queuehint.testing.driver import Queue, job
from queuehint.values.limit import Limit, LimitState, check_limit
from queuehint.values.report import ReasonKind
from queuehint.values.spec import JobSpec
from tests.each import for_each

A_SECOND = timedelta(seconds=1)


class Limited(Queue):
    """A queue with access to its limits."""

    def limit(self, *path: str, **kinds: Any) -> bool:
        return self.apply(SetLimit(Limit(path=path, **kinds))).changed

    def limits(self) -> tuple[LimitState, ...]:
        return self.apply(ListLimits()).limits

    def started(self, *path: str, each: bool = False) -> int | None:
        return next(state.started for state in self.limits() if (state.limit.path, state.limit.each) == (path, each))


def at(path: str, count: int, **fields: Any) -> list[JobSpec]:
    """Return jobs below a path that do not conflict: a0, a1, ..."""
    place = path.split(":") if path else []
    return [job(f"{path}{number}", [*place, str(number)], **fields) for number in range(count)]


# --- so many at once -------------------------------------------------------------------------------------------------


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


def test_waiter_above_represents_waiters_below() -> None:
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


def test_unclaimed_job_does_not_keep_a_slot_forever() -> None:
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


# --- rates -----------------------------------------------------------------------------------------------------------


def test_a_start_takes_a_token_and_tokens_come_back_evenly() -> None:
    queue = Limited(*at("a", 8))
    queue.limit("a", rate=(3, 1000), burst=3)
    assert queue.start() == ["a0", "a1", "a2"]
    assert queue.engine.table.limits.next_ms() == queue.now_ms + 334
    queue.wait(333)
    assert queue.start() == []
    queue.wait(1)
    assert queue.start() == ["a3"]
    queue.wait(10_000)
    assert queue.start() == ["a4", "a5", "a6"]
    assert queue.why("a7").kind is ReasonKind.LIMIT


def test_timer_of_a_rate_ends_with_its_last_waiter() -> None:
    queue = Limited(*at("a", 2))
    queue.limit("a", rate=(1, 5_000), burst=1)
    queue.start()
    assert queue.engine.table.limits.next_ms() == queue.now_ms + 5_000
    queue.cancel("a1")
    assert queue.engine.table.limits.next_ms() is None


def test_bucket_of_a_child_is_kept_until_full() -> None:
    queue = Limited(*[job(f"{number}", ["t", str(number)]) for number in range(50)])
    queue.limit("t", rate=(2, 1000), burst=2, each=True)
    (limiter,) = queue.engine.table.limits.limiters.values()
    assert len(queue.run(50)) == 50
    assert len(limiter.counters) == 50
    assert queue.engine.next_ms == queue.now_ms + 500
    queue.enqueue(job("again", ["t", "0", "x"]))
    assert queue.run() == ["again"]
    queue.wait(499)
    assert len(limiter.counters) == 50
    queue.wait(1)
    assert list(limiter.counters) == [("t", "0")]
    queue.wait(500)
    assert not limiter.counters
    assert queue.engine.table.limits.next_ms() is None


def test_child_with_a_full_bucket_is_counted_while_jobs_run() -> None:
    queue = Limited(job("1", ["t", "a"]), job("2", ["t", "b"]))
    queue.limit("t", rate=(1, 10), burst=1, each=True)
    assert queue.start() == ["1", "2"]
    (limiter,) = queue.engine.table.limits.limiters.values()
    queue.wait(20)
    assert queue.started("t", each=True) == len(limiter.counters) == 2
    queue.finish("1", "2")
    assert not limiter.counters


def test_children_keep_spent_tokens_when_their_rate_changes() -> None:
    queue = Limited(*at("t:a", 3), *at("t:b", 3))
    queue.limit("t", rate=(2, 1000), burst=2, each=True)
    assert queue.start() == ["t:a0", "t:a1", "t:b0", "t:b1"]
    queue.finish("t:a0", "t:a1")
    queue.wait(500)
    assert queue.start() == ["t:a2", "t:b2"]
    queue.limit("t", rate=(3, 3000), burst=3, each=True)
    (limiter,) = queue.engine.table.limits.limiters.values()
    assert {place[-1]: counter.meter.spent for place, counter in limiter.counters.items()} == {"a": 6000, "b": 6000}
    queue.limit("t", most=1, each=True)
    queue.limit("t", rate=(1, 1000), burst=1, each=True)
    (limiter,) = queue.engine.table.limits.limiters.values()
    assert not any(counter.meter.spent for counter in limiter.counters.values()), "there was no rate between"


# --- tasks and pools -------------------------------------------------------------------------------------------------


def test_task_limit_has_one_counter_while_jobs_run_or_park() -> None:
    queue = Limited(job("1"), job("2", ["a"]), job("3", ["b"], pool="p"))
    queue.apply(SetLimit(Limit(task="task", most=2)))
    queue.apply(SetLimit(Limit(pool="p", most=1)))
    assert queue.start(pools=("default", "p")) == ["1", "3"]
    of_task, of_pool = queue.engine.table.limits.limiters.values()
    assert (of_task.counters[()].started, len(of_task.counters[()].parked)) == (2, 1)
    assert of_pool.counters[()].started == 1
    assert str(queue.why("2")) == "2 is QUEUED: ready, waits for a limit of --task task"
    assert queue.why("2").way_out == "it comes by itself, or change the limit: queuehint limits set --task task"
    queue.finish("1", "3")
    assert queue.run() == ["2"]
    assert not of_task.counters
    assert not of_pool.counters
    assert queue.unlimit(task="task")
    assert not queue.unlimit(task="task")


# --- so many in all --------------------------------------------------------------------------------------------------


def test_no_count_is_kept_of_a_child_without_unfinished_jobs() -> None:
    queue = Limited(*at("t:a", 2), *at("t:b", 1), job("whole", ["t"]), job("else", ["u"]))
    queue.limit("t", max_pending=5, each=True)
    queue.limit("t", max_pending=9)
    watched = queue.engine.table.paths.watched
    assert watched == {(("t",), True): {("t", "a"): 2, ("t", "b"): 1}, (("t",), False): {("t",): 4}}
    queue.cancel("t:a0", "t:b0")
    assert watched[("t",), True] == {("t", "a"): 1}
    queue.enqueue(job("c", ["t", "c", "x"]))
    assert [state.pending for state in queue.limits()] == [3, 2]
    assert len(queue.run(9)) == 4
    assert watched == {(("t",), True): {}, (("t",), False): {}}
    queue.unlimit(("t",))
    assert watched == {}


# --- changes ---------------------------------------------------------------------------------------------------------


def test_parked_jobs_are_offered_again_in_bounded_steps() -> None:
    queue = Limited(*at("a", 20), *at("b", 3), budget=5)
    queue.limit("a", most=1)
    queue.limit("b", most=1)
    while queue.exchange(limit=1000).more:
        pass
    assert queue.apply(SetLimit(Limit(path=("a",)))).more
    assert queue.stats().ready["default"] == 3, "one offered again uses two units"
    queue.cancel("a19")
    queue.wait(0)
    assert len(queue.start()) + len(queue.start()) + len(queue.start()) + len(queue.start()) >= 5


def test_path_may_be_limited_again_during_a_drop() -> None:
    queue = Limited(*at("a", 12), budget=3)
    queue.limit("a", most=1)
    for _ in range(5):
        queue.exchange(limit=1000)
    queue.unlimit(("a",))
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
    queue.unlimit(("a",))
    assert queue.is_clean


def test_equal_limit_changes_nothing() -> None:
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


def test_job_of_a_removed_limit_waits_for_a_worker() -> None:
    queue = Limited(*at("a", 5), budget=1)
    queue.limit("a", most=1)
    for _ in range(8):
        queue.exchange(limit=1000)
    queue.unlimit(("a",))
    assert queue.why("a4").kind is ReasonKind.WORKER


# --- checks of limits -----------------------------------------------------------------------------------------------


def test_check_limit_returns_the_declared_limit() -> None:
    assert check_limit(["a"], 3, rate=(5, A_SECOND), max_pending=7) == Limit(
        path=("a",), most=3, rate=(5, 1000), max_pending=7
    )
    assert check_limit(None, max_pending=1) == Limit(path=None, max_pending=1)
    assert not check_limit(["a"]).holds_back


@for_each(
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
        ({"path": ["a"], "burst": 2}, InvalidJobError, "burst requires rate, got 2 alone"),
        ({"path": ["a"], "rate": (1, 1), "burst": 0}, InvalidJobError, "burst must be from 1 to 1000000, got 0"),
        ({"path": ["a"], "rate": (1, 1), "burst": 1.5}, InvalidJobTypeError, "burst must be int"),
        ({"path": ["a"], "max_pending": 0}, InvalidJobError, "max_pending must be from 1"),
        ({"path": None, "most": 1}, InvalidJobError, "path None supports only max_pending"),
        ({"path": None, "each": True}, InvalidJobError, "path None supports only max_pending"),
        ({"path": ["a"], "each": True, "max_pending": 1.0}, InvalidJobTypeError, "max_pending must be int"),
        ({"path": None, "task": 1, "most": 1}, InvalidJobTypeError, "task must be str, got int"),
        ({"path": None, "pool": "", "most": 1}, InvalidJobError, "pool is empty"),
        (
            {"path": ["a"], "task": "t", "most": 1},
            InvalidJobError,
            "exactly one of path, task and pool; got path .*'a'.* and task 't'",
        ),
        ({"path": None, "task": "t", "pool": "p", "most": 1}, InvalidJobError, "got task 't' and pool 'p'"),
        (
            {"path": None, "task": "t", "each": True, "most": 1},
            InvalidJobError,
            "each=True requires path",
        ),
    ],
)
def test_malformed_limit_is_refused(fields: dict[str, Any], refused: type[Exception], says: str) -> None:
    with pytest.raises(refused, match=says):
        check_limit(fields.pop("path"), fields.pop("most", None), **fields)


def test_the_core_refuses_an_invalid_limit_too() -> None:
    with pytest.raises(InvalidJobError):
        Limited().limit("a", most=0)
    with pytest.raises(InvalidJobError):
        Limited().limit("a", rate=(1, 0))
