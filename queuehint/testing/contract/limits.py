"""The rules of limits."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint import InvalidJobError, Limit, OutcomeKind, QueueFullError
from queuehint.backends.base import Interest
from queuehint.core.meters import counted_ms
from queuehint.core.structures.limits import LOOK_MS
from queuehint.operations import STAGED_KEPT_MS, ListLimits, SetLimit
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import job
from queuehint.values.hint import Claim
from queuehint.values.limit import LIMITS_MAX
from queuehint.values.report import ReasonKind
from queuehint.values.spec import JobSpec


def limit(store: Store, *path: str, **kinds: Any) -> bool:
    return store.apply(SetLimit(Limit(path=path, **kinds))).changed


def unlimit(store: Store, *path: str) -> bool:
    return store.unlimit(path)


def started(store: Store) -> list[int | None]:
    return [state.started for state in store.apply(ListLimits()).limits]


def at(path: str, count: int, **fields: Any) -> list[JobSpec]:
    return [job(f"{path}{number}", [*path.split(":"), str(number)], **fields) for number in range(count)]


class LimitsAtOnce:
    """The jobs running at a place never exceed its limit, and no job waits while a slot is free."""

    def test_limit_bounds_running_jobs_at_and_below_a_path(self, store: Store) -> None:
        store.enqueue(*at("a", 5), job("b", ["b"]), job("free"))
        assert limit(store, "a", most=2)
        assert store.start() == ["a0", "a1", "b", "free"]
        assert started(store) == [2]
        assert store.why("a2").kind is ReasonKind.LIMIT
        assert store.why("a2").path_key == "a"
        store.finish("a1")
        assert store.start() == ["a2"]
        assert store.start() == []
        store.finish("a0", "a2")
        assert store.start() == ["a3", "a4"]

    def test_a_job_with_several_claims_below_a_path_counts_once(self, store: Store) -> None:
        store.enqueue(JobSpec(id="two", task="t", claims=(Claim(("a", "x")), Claim(("a", "y")))), *at("a", 2))
        limit(store, "a", most=2)
        assert store.start() == ["two", "a0"]

    def test_several_limits_hold_together(self, store: Store) -> None:
        store.enqueue(*at("t:a", 3), *at("t:b", 3), *at("t:c", 3))
        limit(store, "t", most=2)
        limit(store, "t", most=1, each=True)
        assert store.start() == ["t:a0", "t:b0"]
        order = []
        while running := [grant for grant in store.grants if store.state(grant) == "STARTED"]:
            assert len(running) <= 2
            assert len({grant[:3] for grant in running}) == len(running)
            store.finish(running[0])
            order.append(running[0])
            store.start()
        assert len(order) == 9

    @pytest.mark.parametrize("kind", ["failed", "snoozed", "released", "lost", "discarded", "unknown_task"])
    def test_a_slot_is_free_once_however_a_job_stops(self, store: Store, kind: str) -> None:
        store.enqueue(*at("a", 3))
        limit(store, "a", most=1)
        assert store.start() == ["a0"]
        store.settle("a0", OutcomeKind(kind), delay_ms=60_000)
        assert started(store) == [0]
        assert len(store.start()) == 1
        assert store.start() == []
        assert started(store) == [1]

    def test_slot_of_a_dead_worker_is_free_after_reaping(self, store: Store) -> None:
        store.enqueue(*at("a", 2, max_losses=1))
        limit(store, "a", most=1)
        store.start(lease_ms=1000)
        store.wait(1000)
        assert started(store) == [0]
        assert store.start() == ["a1"]

    def test_waiter_above_represents_waiters_below(self, store: Store) -> None:
        store.enqueue(*at("t:a", 20), *at("t:b", 1))
        limit(store, "t", most=2)
        limit(store, "t", "a", most=1)
        assert store.start() == ["t:a0", "t:b0"]
        store.enqueue(job("t:b1", ["t", "b", "1"], priority=5))
        assert store.start() == []
        store.finish("t:a0")
        assert store.start() == ["t:b1"]
        waits = [store.why(f"t:a{number}").path_key for number in range(1, 20)]
        assert waits == ["t", *["t:a"] * 18]
        store.finish("t:b0")
        assert store.start() == ["t:a1"]

    def test_called_job_parked_elsewhere_leaves_its_slot_to_the_next(self, store: Store) -> None:
        both = JobSpec(id="both", task="t", claims=(Claim(("a", "0")), Claim(("b", "0"))))
        store.enqueue(job("a", ["a", "1"]), job("b", ["b", "1"]), both, job("next", ["a", "2"]))
        limit(store, "a", most=1)
        limit(store, "b", most=1)
        assert store.start() == ["a", "b"]
        store.finish("a")
        assert store.start() == ["next"]
        store.finish("b")
        assert store.start() == []
        store.finish("next")
        assert store.start() == ["both"]

    def test_called_job_canceled_or_paused_leaves_its_slot_to_next(self, store: Store) -> None:
        store.enqueue(*at("a", 4))
        limit(store, "a", most=1)
        store.start()
        store.finish("a0")
        store.cancel("a1")
        store.pause("a", "2")
        assert store.start() == ["a3"]
        store.resume("a", "2")
        store.finish("a3")
        assert store.start() == ["a2"]

    def test_unclaimed_called_job_keeps_its_slot_only_for_a_while(self, store: Store) -> None:
        store.enqueue(job("run", ["a", "x"]), *at("a", 10, pool="dead"), job("last", ["a", "y"]))
        limit(store, "a", most=1)
        assert store.start(pools=("default", "dead")) == ["run"]
        store.finish("run")
        looks = 0
        while not (ids := store.start()):
            assert store.tick().next_ms == store.clock.now_ms() + LOOK_MS
            store.wait(LOOK_MS)
            looks += 1
        assert (ids, looks) == (["last"], 3)

    def test_a_worker_that_waits_is_told_of_a_slot(self, store: Store) -> None:
        store.enqueue(*at("a", 2))
        limit(store, "a", most=1)
        store.start()
        store.finish("a0")
        store.sleep(Interest(pools=("default",)), 30)
        assert store.start() == ["a1"]


class LimitsInTime:
    """A rate counts the starts in any window of its period. With a burst, each start takes a token from a bucket."""

    def test_rate_bounds_starts_of_a_window_and_why_dates_it(self, store: Store) -> None:
        store.enqueue(*at("a", 7))
        limit(store, "a", rate=(3, 1000))
        assert store.start(limit=1) == ["a0"]
        store.wait(700)
        assert store.start() == ["a1", "a2"]
        reason = store.why("a3")
        assert (reason.kind, reason.path_key, reason.stuck) == (ReasonKind.LIMIT, "a", False)
        assert store.pending().moving
        # A start counts for the time of the rate and a little more: its code may begin late.
        assert reason.until_ms == store.tick().next_ms == store.began_ms + counted_ms(1000)
        store.wait(counted_ms(1000) - 701)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["a3"]
        store.settle("a3", OutcomeKind.RELEASED)
        assert store.start() == [], "a start counts, whatever becomes of it"
        store.wait(10_000)
        assert len(store.start()) == 3

    def test_rate_with_changed_burst_counts_spent_tokens(self, store: Store) -> None:
        store.enqueue(*at("a", 9))
        limit(store, "a", rate=(3, 1000))
        assert len(store.start(limit=2)) == 2
        limit(store, "a", rate=(3, 1000), burst=3)
        assert len(store.start()) == 1
        store.wait(334)
        limit(store, "a", rate=(3, 1000))
        assert len(store.start()) == 1, "one token has come back"
        limit(store, "a", rate=(3, 1000), burst=1)
        assert store.start() == []

    def test_why_dates_the_next_token_unless_slots_are_missing(self, store: Store) -> None:
        store.enqueue(*at("a", 4))
        limit(store, "a", rate=(2, 1000), burst=2)
        assert store.start() == ["a0", "a1"]
        next_ms = store.clock.now_ms() + 500
        reason = store.why("a2")
        assert (reason.kind, reason.path_key, reason.until_ms, reason.stuck) == (ReasonKind.LIMIT, "a", next_ms, False)
        assert store.why("a3").until_ms == next_ms
        store.advance(200)
        assert store.why("a3").until_ms == next_ms, "it is the time, not how long from now"
        limit(store, "a", most=2, rate=(2, 1000), burst=2)
        assert store.start() == []
        assert (store.why("a2").kind, store.why("a2").until_ms) == (ReasonKind.LIMIT, None)
        store.finish("a0")
        assert store.why("a2").until_ms == store.tick().next_ms
        store.wait(500)
        assert store.start() == ["a2"]
        store.wait(500)
        assert store.start() == []
        assert store.why("a3").until_ms is None, "it has a token, and waits for the end of another"

    def test_no_more_start_than_there_are_tokens(self, store: Store) -> None:
        store.enqueue(*at("a", 7))
        limit(store, "a", rate=(3, 1000), burst=3)
        assert store.start() == ["a0", "a1", "a2"]
        assert store.why("a3").kind is ReasonKind.LIMIT
        assert store.pending().moving
        assert store.tick().next_ms == store.clock.now_ms() + 334
        store.wait(333)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["a3"]
        store.settle("a3", OutcomeKind.RELEASED)
        assert store.start() == []
        store.wait(10_000)
        assert len(store.start()) == 3


class LimitsInAll:
    """A submission that would leave too many jobs unfinished is refused whole."""

    def test_too_many_at_or_below_a_path(self, store: Store) -> None:
        store.enqueue(*at("a", 2))
        limit(store, "a", max_pending=3)
        with pytest.raises(QueueFullError) as caught:
            store.enqueue(job("b"), job("a8", ["a"]), job("a9", ["a", "x"]))
        assert (caught.value.path_key, caught.value.pending, caught.value.limit) == ("a", 2, 3)
        assert store.find("b") is None
        store.enqueue(job("b"), job("a8", ["a"]), *at("a", 2))
        store.finish(*store.start(limit=1))
        store.enqueue(*at("a", 3))

    def test_refusal_estimates_retry_from_running_times(self, store: Store) -> None:
        limit(store, "a", max_pending=3)
        store.enqueue(job("a1", ["a", "1"]), job("a2", ["a", "2"]), job("a3", ["a", "3"]), job("b"))

        def retry_after_s(*jobs: JobSpec) -> float | None:
            with pytest.raises(QueueFullError) as caught:
                store.enqueue(*jobs)
            return caught.value.retry_after_s

        assert retry_after_s(job("a4", ["a"])) is None, "none runs"
        store.start()
        assert retry_after_s(job("a4", ["a"])) == 0.1, "none has run for long"
        store.settle("a3", OutcomeKind.SNOOZED, delay_ms=100_000)
        store.advance(5_000)
        assert retry_after_s(job("a4", ["a"])) == 2.5, "one of two ends in half of what they take"
        store.apply(SetLimit(Limit(path=None, max_pending=4)))
        assert retry_after_s(job("b4")) == 1.667, "one of three in a third"
        store.apply(SetLimit(Limit(path=None, max_pending=2)))
        assert retry_after_s(job("b4")) == 5, "three have to end"

    def test_too_many_in_the_namespace(self, store: Store) -> None:
        store.apply(SetLimit(Limit(path=None, max_pending=3)))
        store.stage("S", job("1"), job("2"))
        with pytest.raises(QueueFullError) as caught:
            store.enqueue(job("3"), job("4"))
        assert (caught.value.path_key, caught.value.pending, caught.value.limit) == (None, 2, 3)
        store.commit("S")
        store.enqueue(job("3"))
        assert [state.pending for state in store.apply(ListLimits()).limits] == [3]
        assert store.unlimit()
        store.enqueue(job("4"))

    def test_max_pending_counts_each_claim_and_one_job_per_key(self, store: Store) -> None:
        limit(store, "a", max_pending=2)
        two = JobSpec(id="1", task="t", claims=(Claim(("a", "x")), Claim(("a", "y"))))
        with pytest.raises(QueueFullError, match="path 'a' has 0"):
            store.enqueue(two, job("2", ["a"]))
        store.enqueue(job("3", ["a"], key="k"), job("4", ["a"], key="k"), job("5", ["a"], key="l"))

    def test_refusal_for_lack_of_room_reports_due_work_without_writes(self, store: Store) -> None:
        store.apply(SetLimit(Limit(path=None, max_pending=2)))
        store.stage("S", job("1"), job("2"))
        store.advance(STAGED_KEPT_MS - 1)
        for is_due in (False, True):
            before = store.everything()
            with pytest.raises(QueueFullError) as caught:
                store.enqueue(job("3"))
            assert caught.value.more is is_due
            assert store.everything() == before
            store.advance(1)
        store.tick()
        store.enqueue(job("3"))

    def test_submission_finds_room_of_expired_and_overdue_jobs(self, store: Store) -> None:
        store.apply(SetLimit(Limit(path=None, max_pending=2)))
        store.stage("S", job("1"), job("2"))
        store.advance(STAGED_KEPT_MS)
        assert [made.created for made in store.submit(job("3"), job("4", start_within_ms=5))] == [True, True]
        with pytest.raises(QueueFullError):
            store.submit(job("5"))
        store.advance(5)
        store.submit(job("5"))
        assert store.states("3", "4", "5") == "QUEUED CANCELED QUEUED"
        with pytest.raises(QueueFullError) as caught:
            store.submit(job("6"))
        assert (caught.value.pending, caught.value.more) == (2, False)

    def test_a_producer_finds_room_that_takes_many_steps_to_make(self, store: Store) -> None:
        limit(store, "a", max_pending=2)
        for begin in range(0, 3_000, 1_000):
            store.stage("S", *[job(str(begin + at)) for at in range(1_000)])
        store.stage("S", *at("a", 2))
        store.advance(STAGED_KEPT_MS)
        store.submit(job("new", ["a"]))


class LimitChanges:
    """A limit may be set, changed and taken away while jobs run."""

    def test_limit_counts_running_jobs_when_set(self, store: Store) -> None:
        store.enqueue(*at("a", 4))
        store.start(limit=3)
        limit(store, "a", most=2)
        assert started(store) == [3]
        store.finish("a0")
        assert store.start() == []
        store.finish("a1")
        assert store.start() == ["a3"]

    def test_parked_jobs_continue_when_the_limit_is_raised_or_removed(self, store: Store) -> None:
        store.enqueue(*at("a", 6))
        limit(store, "a", most=1)
        assert store.start() == ["a0"]
        assert limit(store, "a", most=3)
        assert store.start() == ["a1", "a2"]
        assert unlimit(store, "a")
        assert store.start() == ["a3", "a4", "a5"]
        assert not unlimit(store, "a")

    def test_limits_are_listed_in_order_as_set(self, store: Store) -> None:
        limits = [
            Limit(path=None, max_pending=5),
            Limit(path=(), most=2),
            Limit(path=("a:b", "root"), most=1, each=True),
            Limit(path=("b",), most=1_000_000, rate=(1_000_000, 86_400_000), max_pending=1_000_000_000),
        ]
        for each in reversed(limits):
            assert store.apply(SetLimit(each)).changed
            assert not store.apply(SetLimit(each)).changed
        assert [state.limit for state in store.apply(ListLimits()).limits] == limits
        for each in limits:
            assert store.apply(SetLimit(Limit(path=each.path, each=each.each))).changed
        assert store.apply(ListLimits()).limits == ()

    def test_there_are_so_many_and_no_more(self, store: Store) -> None:
        for number in range(LIMITS_MAX):
            limit(store, str(number), most=1)
        with pytest.raises(InvalidJobError, match="at most 1000 limits"):
            limit(store, "one more", most=1)
