"""The rules of limits that hold for each child of a path by itself."""

from __future__ import annotations

import pytest

from queuehint.backends.base import Interest
from queuehint.core.meters import counted_ms
from queuehint.errors import QueueFullError
from queuehint.operations import ListLimits
from queuehint.testing.contract.limits import at, limit, unlimit
from queuehint.testing.contract.slots import running_at
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import job
from queuehint.values.hint import Claim
from queuehint.values.report import ReasonKind
from queuehint.values.spec import JobSpec

A_MINUTE_MS = 60_000


class RatesOfChildren:
    """With ``each``, a rate counts the starts of every child of the path separately, or gives each child a bucket."""

    def test_each_child_of_a_path_has_tokens_of_its_own(self, store: Store) -> None:
        store.enqueue(*at("t:a", 4), *at("t:b", 1), job("free"))
        limit(store, "t", rate=(2, 1000), burst=2, each=True)
        assert store.start() == ["t:a0", "t:a1", "t:b0", "free"]
        reason = store.why("t:a2")
        assert (reason.kind, reason.path_key) == (ReasonKind.LIMIT, "t:a")
        assert reason.until_ms == store.clock.now_ms() + 500
        store.finish("t:a0", "t:a1", "t:b0")
        store.enqueue(*at("t:c", 3))
        assert store.start() == ["t:c0", "t:c1"]

    def test_child_rate_bounds_the_starts_of_every_window(self, store: Store) -> None:
        store.enqueue(*at("t:a", 5), *at("t:b", 1))
        limit(store, "t", rate=(2, 1000), each=True)
        assert store.start(limit=1) == ["t:a0"]
        store.wait(600)
        assert store.start() == ["t:a1", "t:b0"]
        store.finish("t:a0", "t:a1", "t:b0")
        reason = store.why("t:a2")
        assert (reason.kind, reason.path_key, reason.until_ms) == (
            ReasonKind.LIMIT,
            "t:a",
            store.began_ms + counted_ms(1000),
        )
        store.wait(counted_ms(1000) - 601)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["t:a2"]
        store.wait(599)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["t:a3"]

    def test_worker_is_notified_of_the_next_token_of_a_child(self, store: Store) -> None:
        store.enqueue(*at("t:a", 2), *at("t:b", 1))
        limit(store, "t", rate=(1, 1000), burst=1, each=True)
        assert store.start() == ["t:a0", "t:b0"]
        store.finish("t:b0")
        assert store.tick().next_ms == store.clock.now_ms() + 1000
        store.wait(999)
        assert store.start() == []
        store.wait(1)
        store.sleep(Interest(pools=("default",)), 30)
        assert store.start() == ["t:a1"]

    def test_child_rate_never_exceeds_burst_and_refill(self, store: Store) -> None:
        store.enqueue(*[spec for child in "abc" for spec in at(f"t:{child}", 30)])
        limit(store, "t", rate=(3, 500), burst=3, each=True)
        starts: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        for _ in range(30):
            for job_id in store.start(limit=2):
                starts[job_id[2]].append(store.clock.now_ms())
            store.wait(53)
        for times in starts.values():
            for first, begin_ms in enumerate(times):
                for count, end_ms in enumerate(times[first:], 1):
                    assert count <= 3 + (end_ms - begin_ms) * 3 / 500
            assert len(times) >= 3 + 29 * 53 * 3 // 500 - 1

    def test_job_of_two_children_takes_a_token_of_each(self, store: Store) -> None:
        both = JobSpec(id="both", task="t", claims=(Claim(("t", "a")), Claim(("t", "b"))))
        limit(store, "t", rate=(1, A_MINUTE_MS), burst=1, each=True)
        store.enqueue(job("whole", ["t"]))
        assert store.run() == ["whole"]
        store.enqueue(both)
        assert store.run() == ["both"]
        store.enqueue(*at("t:a", 1), *at("t:b", 1), *at("t:c", 1))
        assert store.run() == ["t:c0"]
        assert {store.why(f"t:{child}0").path_key for child in "ab"} == {"t:a", "t:b"}

    def test_number_and_rates_of_children_and_whole_apply_together(self, store: Store) -> None:
        store.enqueue(*at("t:a", 4), *at("t:b", 4))
        limit(store, "t", most=1, rate=(2, 1000), burst=2, each=True)
        limit(store, "t", rate=(3, 1000), burst=3)
        assert store.start() == ["t:a0", "t:b0"]
        store.finish("t:a0", "t:b0")
        assert store.start() == ["t:a1"]
        store.finish("t:a1")
        assert store.start() == []
        store.wait(334)
        assert store.start() == ["t:b1"], "the third token of the whole; a has none before 500"
        assert running_at(store, "t", each=True) == running_at(store, "t") == 1

    def test_spent_tokens_of_a_child_outlive_its_jobs(self, store: Store) -> None:
        limit(store, "t", rate=(2, 1000), burst=2, each=True)
        store.enqueue(*at("t:a", 2))
        store.finish(*store.start())
        assert store.stats().unfinished == 0
        store.enqueue(job("late", ["t", "a"]))
        assert store.start() == []
        assert store.why("late").until_ms == store.clock.now_ms() + 500
        store.wait(500)
        assert store.start() == ["late"]

    def test_spent_tokens_of_a_child_survive_a_changed_rate(self, store: Store) -> None:
        limit(store, "t", rate=(2, 1000), burst=2, each=True)
        store.enqueue(*at("t:a", 4))
        store.finish(*store.start())
        store.enqueue(*at("t:b", 3))
        assert limit(store, "t", rate=(3, 3000), burst=3, each=True)
        assert sorted(store.run(9)) == ["t:a2", "t:b0", "t:b1", "t:b2"]
        assert store.why("t:a3").path_key == "t:a"
        store.wait(999)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["t:a3"]

    def test_starts_of_a_child_survive_a_changed_rate_without_jobs(self, store: Store) -> None:
        limit(store, "t", rate=(2, 1000), each=True)
        store.enqueue(*at("t:a", 2), *at("t:b", 1))
        assert len(store.run(9)) == 3
        store.wait(500)
        limit(store, "t", rate=(3, 2000), each=True)
        store.enqueue(*at("t:c", 3), job("a2", ["t", "a"]), job("a3", ["t", "a"]))
        assert store.start() == ["t:c0", "t:c1", "t:c2", "a2"]
        store.finish("t:c0", "t:c1", "t:c2", "a2")
        assert store.start() == []
        assert store.why("a3").until_ms == store.began_ms + counted_ms(2000)
        store.wait(counted_ms(2000) - 501)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["a3"]
        store.finish("a3")
        store.wait(counted_ms(2000))
        next_ms = store.tick().next_ms
        assert next_ms is None or next_ms > store.clock.now_ms() + 2000, "nothing is kept"
        limit(store, "t", each=True)

    def test_bucket_is_used_in_the_step_that_changes_its_rate(self, store: Store) -> None:
        limit(store, "t", rate=(1, 60_000), burst=1, each=True)
        store.enqueue(job("1", ["t", "a"]), job("2", ["t", "a"], start_within_ms=1000), job("b1", ["t", "b"]))
        assert store.start() == ["1", "b1"]
        store.finish("1", "b1")
        assert store.start() == []
        store.advance(2000)
        assert limit(store, "t", rate=(2, 60_000), burst=2, each=True), "with this the job that waits expires"
        assert store.state("2") == "CANCELED"
        store.enqueue(*[job(f"{child}{n}", ["t", child, str(n)]) for child in "ab" for n in (3, 4)])
        assert store.start() == ["a3", "b3"], "the token that was spent of each is still spent"
        store.finish("a3", "b3")
        assert store.start() == []
        store.wait(30_000)
        assert store.start() == ["a4", "b4"]

    def test_child_with_a_full_bucket_is_forgotten(self, store: Store) -> None:
        limit(store, "t", rate=(2, 1000), burst=2, each=True)
        store.enqueue(*at("t:a", 2), *at("t:b", 1))
        assert len(store.run(3)) == 3
        assert store.tick().next_ms == store.clock.now_ms() + 500, "when the bucket of b is full"
        store.wait(500)
        assert store.tick().next_ms == store.clock.now_ms() + 500, "when that of a is"
        store.wait(500)
        next_ms = store.tick().next_ms
        assert next_ms is None or next_ms > store.clock.now_ms() + 1000
        assert unlimit(store, "t")

    def test_full_bucket_of_a_running_child_ends_with_it(self, store: Store) -> None:
        limit(store, "t", rate=(1, 1000), burst=1, each=True)
        store.enqueue(*at("t:a", 1))
        store.start(lease_ms=A_MINUTE_MS)
        store.wait(2000)
        assert running_at(store, "t", each=True) == 1
        store.finish("t:a0")
        assert running_at(store, "t", each=True) == 0
        next_ms = store.tick().next_ms
        assert next_ms is None or next_ms > store.clock.now_ms() + 1000
        store.enqueue(job("next", ["t", "a"]))
        assert store.start() == ["next"]


def refused(store: Store, *jobs: JobSpec) -> tuple[str | None, int, int]:
    """Return the place, the number there and the limit that a submission is refused by."""
    with pytest.raises(QueueFullError) as caught:
        store.enqueue(*jobs)
    return caught.value.path_key, caught.value.pending, caught.value.limit


class RoomOfChildren:
    """With ``each``, `max_pending` bounds the unfinished jobs of every child of the path separately."""

    def test_each_child_admits_max_pending_unfinished_jobs(self, store: Store) -> None:
        limit(store, "t", max_pending=2, each=True)
        store.enqueue(*at("t:a", 2), *at("t:b", 1), job("whole", ["t"]), job("else", ["u"]), job("free"))
        assert refused(store, job("a2", ["t", "a"])) == ("t:a", 2, 2)
        store.enqueue(job("b2", ["t", "b", "x", "y"]), job("c1", ["t", "c"]))
        assert refused(store, job("b3", ["t", "b"])) == ("t:b", 2, 2)
        store.finish(*store.start(limit=1))
        store.enqueue(job("a3", ["t", "a"]))
        assert refused(store, job("a4", ["t", "a", "x"])) == ("t:a", 2, 2)

    def test_submission_that_exceeds_one_child_is_refused_whole(self, store: Store) -> None:
        limit(store, "t", max_pending=2, each=True)
        store.enqueue(*at("t:a", 1))
        assert refused(store, *at("t:b", 2), job("a1", ["t", "a"]), job("a2", ["t", "a", "x"])) == ("t:a", 1, 2)
        assert store.find("t:b0") is None
        assert store.find("a1") is None
        store.enqueue(*at("t:b", 2), job("a1", ["t", "a"]))
        assert [state.pending for state in store.apply(ListLimits()).limits] == [4]

    def test_job_counts_once_per_claim_and_at_each_claimed_child(self, store: Store) -> None:
        limit(store, "t", max_pending=1, each=True)
        both = JobSpec(id="both", task="t", claims=(Claim(("t", "a")), Claim(("t", "b"))))
        twice = JobSpec(id="twice", task="t", claims=(Claim(("t", "c", "1")), Claim(("t", "c", "2"))))
        assert refused(store, twice) == ("t:c", 0, 1)
        store.enqueue(both)
        assert refused(store, job("1", ["t", "b"])) == ("t:b", 1, 1)
        store.run()
        store.enqueue(job("1", ["t", "b"]))

    def test_path_and_each_child_may_be_limited_at_once(self, store: Store) -> None:
        limit(store, "t", max_pending=3)
        limit(store, "t", max_pending=2, each=True)
        limit(store, max_pending=4, each=True)
        store.enqueue(*at("t:a", 2))
        assert refused(store, job("a2", ["t", "a"])) == ("t:a", 2, 2)
        assert refused(store, job("b1", ["t", "b"]), job("b2", ["t", "b"])) == ("t", 2, 3)
        limit(store, "t")
        assert refused(store, *at("t:b", 2), job("c", ["t", "c"])) == ("t", 2, 4)
        assert [state.pending for state in store.apply(ListLimits()).limits] == [2, 2]

    def test_child_limit_counts_present_jobs_when_set_without_revoking_any(self, store: Store) -> None:
        store.enqueue(*at("t:a", 3), *at("t:b", 1), job("t", ["t"]), job("later", ["t", "b"], delay_ms=1000))
        store.stage("S", job("hidden", ["t", "b"]))
        limit(store, "t", max_pending=2, each=True)
        assert [state.pending for state in store.apply(ListLimits()).limits] == [6]
        assert refused(store, job("a3", ["t", "a"])) == ("t:a", 3, 2)
        assert refused(store, job("b3", ["t", "b"])) == ("t:b", 3, 2)
        assert unlimit(store, "t")
        store.enqueue(job("a3", ["t", "a"]))

    def test_refusal_of_a_child_estimates_retry_from_running_times(self, store: Store) -> None:
        limit(store, "t", max_pending=2, each=True)
        store.enqueue(*at("t:a", 2), *at("t:b", 2))
        assert len(store.start(limit=3)) == 3
        store.advance(8_000)
        with pytest.raises(QueueFullError) as caught:
            store.enqueue(job("a2", ["t", "a"]))
        assert caught.value.retry_after_s == 4
        with pytest.raises(QueueFullError) as caught:
            store.enqueue(job("b2", ["t", "b"]))
        assert caught.value.retry_after_s == 8
