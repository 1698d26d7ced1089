"""The rules of concurrency slots: their grant, their release, and the next job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint.core.meters import counted_ms
from queuehint.errors import QueueFullError
from queuehint.operations import ListLimits, SetLimit
from queuehint.testing.contract.limits import at, limit, unlimit
from queuehint.testing.driver import job
from queuehint.values.limit import Limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def running_at(store: Store, *path: str, each: bool = False) -> int | None:
    """Return how many jobs a limit counts."""
    limits = store.apply(ListLimits()).limits
    return next(state.started for state in limits if (state.limit.path, state.limit.each) == (path, each))


class Slots:
    """A limit counts each running job at or below its path once."""

    def test_limit_of_the_root_counts_every_placed_job(self, store: Store) -> None:
        store.enqueue(*at("a", 2), *at("b", 2), job("free"))
        limit(store, most=1)
        assert store.start() == ["a0", "free"]

    def test_each_child_of_a_path_may_have_its_own_limit(self, store: Store) -> None:
        store.enqueue(*at("t:a", 3), *at("t:b", 2), job("whole", ["t"]), job("a", ["t", "a"]))
        limit(store, "t", most=1, each=True)
        assert store.start() == ["t:a0", "t:b0"]
        assert running_at(store, "t", each=True) == 2
        store.finish("t:b0")
        assert store.start() == ["t:b1"]
        assert store.why("t:a1").path_key == "t:a"
        store.finish("t:a0", "t:b1")
        assert store.run() == ["t:a1", "t:a2", "whole", "a"]

    def test_a_job_of_the_path_itself_counts_under_no_child(self, store: Store) -> None:
        store.enqueue(job("whole", ["t"]), job("all", []))
        limit(store, "t", most=1, each=True)
        limit(store, most=1, each=True)
        assert store.run(2) == ["whole", "all"]
        store.enqueue(job("again", []))
        assert store.start() == ["again"]
        assert running_at(store, "t", each=True) == running_at(store, each=True) == 0

    def test_jobs_that_conflict_keep_their_order_whatever_the_limit(self, store: Store) -> None:
        store.enqueue(job("1", ["a", "x"]), job("2", ["a"]), job("3", ["a", "x"]), job("other", ["b"]))
        limit(store, most=1)
        assert store.run(10) == ["1", "2", "3", "other"]

    def test_parked_jobs_leave_by_rank_then_enqueue(self, store: Store) -> None:
        store.enqueue(*at("a", 2), job("urgent", ["a", "u"], priority=9))
        limit(store, "a", most=1)
        assert store.start() == ["urgent"]
        assert store.run() == []
        store.enqueue(job("later", ["a", "l"], priority=5))
        assert store.start() == []
        store.finish("urgent")
        assert store.run() == ["later", "a0", "a1"]

    def test_canceled_running_job_keeps_its_slot_until_its_end(self, store: Store) -> None:
        store.enqueue(*at("a", 2))
        limit(store, "a", most=1)
        store.start()
        store.cancel("a0")
        assert store.start() == []
        store.settle("a0", OutcomeKind.RELEASED)
        assert store.start() == ["a1"]

    def test_slot_is_free_while_a_job_awaits_its_children(self, store: Store) -> None:
        store.enqueue(*at("a", 2))
        limit(store, "a", most=1)
        assert store.start() == ["a0"]
        store.enqueue_from("a0", job("child"))
        store.await_children("a0", "child")
        assert running_at(store, "a") == 0
        assert store.start() == ["a1", "child"]
        assert running_at(store, "a") == 1

    def test_a_job_that_is_put_aside_may_be_canceled(self, store: Store) -> None:
        store.enqueue(*at("a", 4))
        limit(store, "a", most=1)
        store.start()
        store.cancel("a1", "a2")
        store.finish("a0")
        assert store.run() == ["a3"]
        assert unlimit(store, "a")
        assert store.is_clean

    def test_pools_share_a_limit(self, store: Store) -> None:
        store.enqueue(*at("a", 2), *at("a:b", 2, pool="p"))
        limit(store, "a", most=1)
        assert store.start(pools=("p",)) == ["a:b0"]
        assert store.start() == []
        store.finish("a:b0")
        assert store.start() == ["a0"]
        assert store.start(pools=("p",)) == []

    def test_a_caller_of_exclusive_is_limited_as_others_are(self, store: Store) -> None:
        store.enqueue(
            job("1", ["a", "1"]), job("2", ["a", "2"], presence_ms=10_000, pool="caller"), job("3", ["a", "3"])
        )
        limit(store, "a", most=1)
        assert store.start() == ["1"]
        assert store.start(pools=("caller",)) == []
        assert store.why("2").kind is ReasonKind.LIMIT
        store.finish("1")
        assert store.why("2").kind is ReasonKind.CALLER
        store.wait(10_000)
        assert store.start() == ["3"]

    def test_a_pause_goes_first_and_leaves_the_slot_to_others(self, store: Store) -> None:
        store.enqueue(*at("a", 4))
        limit(store, "a", most=1)
        store.start()
        store.pause("a", "1")
        assert store.why("a1").kind is ReasonKind.PAUSED
        store.finish("a0")
        assert store.start() == ["a2"]
        store.finish("a2")
        assert store.run() == ["a3"]
        store.resume("a", "1")
        assert store.run() == ["a1"]


class Rates:
    """A rate bounds the starts in any window of its period, a bucket by its tokens."""

    @pytest.mark.parametrize("tokens", [7, 100])
    def test_rate_bounds_the_starts_of_every_window(self, store: Store, tokens: int) -> None:
        store.enqueue(*at("a", 5 * tokens))
        limit(store, "a", rate=(tokens, 500))
        starts = []
        for _ in range(40):
            starts += [store.clock.now_ms() for _ in store.start(limit=tokens // 2)]
            store.wait(37)
        for first in starts:
            assert sum(first <= at_ms <= first + 500 for at_ms in starts) <= tokens
        # Each window is used up: its first starts come again as soon as they may.
        assert len(starts) >= 3 * tokens - 1

    def test_start_counts_its_whole_window_after_earlier_ones_expired(self, store: Store) -> None:
        store.enqueue(*at("a", 9))
        limit(store, "a", rate=(4, 1000))
        assert store.start(limit=1) == ["a0"]
        store.wait(500)
        assert store.start() == ["a1", "a2", "a3"]
        store.wait(counted_ms(1000) - 500)
        assert store.start() == ["a4"]
        store.wait(500)
        assert store.start() == ["a5", "a6", "a7"]

    def test_starts_of_large_buckets_count_by_parts_of_the_window(self, store: Store) -> None:
        store.enqueue(*at("a", 130))
        limit(store, "a", rate=(65, 6400))
        assert store.start(limit=1) == ["a0"]
        store.wait(99)
        assert len(store.start()) == 64
        store.wait(counted_ms(6400) - 99)
        assert store.start() == []
        store.wait(99)
        assert len(store.start()) == 65

    def test_bucket_never_exceeds_burst_and_refill_in_any_interval(self, store: Store) -> None:
        store.enqueue(*at("a", 200))
        limit(store, "a", rate=(7, 500), burst=4)
        starts = []
        for _ in range(40):
            starts += [(store.clock.now_ms(), job_id) for job_id in store.start(limit=3)]
            store.wait(37)
        for first, (begin_ms, _) in enumerate(starts):
            for count, (end_ms, _) in enumerate(starts[first:], 1):
                assert count <= 4 + (end_ms - begin_ms) * 7 / 500
        assert len(starts) >= 4 + 39 * 37 * 7 // 500 - 1

    def test_a_rate_and_a_number_at_once_hold_together(self, store: Store) -> None:
        store.enqueue(*at("a", 5))
        limit(store, "a", most=2, rate=(3, 1000))
        assert store.start() == ["a0", "a1"]
        store.finish("a0", "a1")
        assert store.start() == ["a2"]
        store.wait(counted_ms(1000) - 1)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["a3"]

    def test_spent_tokens_stay_spent_when_a_rate_changes(self, store: Store) -> None:
        store.enqueue(*at("a", 9))
        limit(store, "a", rate=(4, 1000))
        assert len(store.start(limit=3)) == 3
        limit(store, "a", rate=(5, 2000))
        assert len(store.start()) == 2
        assert not limit(store, "a", rate=(5, 2000))
        limit(store, "a", rate=(2, 1000))
        assert store.start() == []
        limit(store, "a", most=9)
        assert len(store.start()) == 4


class LimitsTold:
    """Limits are listed with their counts, which include the jobs that ran before the limit was set."""

    def test_each_of_two_limits_counts_its_own(self, store: Store) -> None:
        store.enqueue(*at("a", 2), *at("a:b", 1))
        store.start()
        limit(store, "a", most=9)
        limit(store, "a", "b", most=9)
        assert (running_at(store, "a"), running_at(store, "a", "b")) == (3, 1)

    def test_limits_are_listed_in_order(self, store: Store) -> None:
        store.enqueue(*at("a", 1))
        limit(store, "b", rate=(1, 1))
        limit(store, "a", most=1, each=True)
        limit(store, "a", max_pending=5)
        store.apply(SetLimit(Limit(path=None, max_pending=9)))
        store.start()
        assert [
            (state.limit.path, state.limit.each, state.started, state.pending)
            for state in store.apply(ListLimits()).limits
        ] == [
            (None, False, None, 1),
            (("a",), False, None, 1),
            (("a",), True, 1, None),
            (("b",), False, 0, None),
        ]
        limit(store, "b", rate=(1, 1), burst=3)
        assert [state.limit.burst for state in store.apply(ListLimits()).limits] == [None, None, None, 3]
        assert store.apply(ListLimits()).limits[1].limit.path_key == "a"
        assert store.apply(ListLimits()).limits[0].limit.path_key is None

    def test_the_limits_of_a_path_do_not_touch_each_other(self, store: Store) -> None:
        limit(store, "a", max_pending=5)
        limit(store, "a", most=1, each=True)
        limit(store, "a", each=True)
        assert [state.limit.max_pending for state in store.apply(ListLimits()).limits] == [5]

    def test_a_job_that_waits_for_a_limit_moves_by_itself(self, store: Store) -> None:
        store.enqueue(*at("a", 2))
        limit(store, "a", rate=(1, 60_000))
        store.finish(*store.start())
        assert store.pending().moving
        assert store.pending(("a",)).moving
        assert store.stats().stuck["no_worker"] == 0

    def test_jobs_of_one_key_are_one(self, store: Store) -> None:
        limit(store, "a", max_pending=1)
        store.enqueue(job("1", ["a"], key="k"), job("2", ["a"], key="k"))
        store.enqueue(job("3", ["a"], key="k", on_conflict="replace"))
        with pytest.raises(QueueFullError):
            store.enqueue(job("4", ["a"], key="l"))

    def test_parts_of_a_flow_count_when_they_come(self, store: Store) -> None:
        limit(store, "a", max_pending=3)
        store.apply(SetLimit(Limit(path=None, max_pending=5)))
        store.stage("S", *at("a", 2))
        with pytest.raises(QueueFullError):
            store.stage("S", *at("a:b", 2))
        with pytest.raises(QueueFullError, match="namespace"):
            store.stage("S", *at("b", 4))
        assert [state.pending for state in store.apply(ListLimits()).limits] == [2, 2]
        store.stage("T", *at("b", 3))
        assert [state.pending for state in store.apply(ListLimits()).limits] == [5, 2]
        store.commit("S")
        assert [state.pending for state in store.apply(ListLimits()).limits] == [5, 2]
        store.wait(600_000)
        assert [state.pending for state in store.apply(ListLimits()).limits] == [2, 2]

    def test_children_are_counted_too(self, store: Store) -> None:
        store.enqueue(job("parent"))
        store.start()
        limit(store, "a", max_pending=1)
        with pytest.raises(QueueFullError):
            store.enqueue_from("parent", *at("a", 2))
