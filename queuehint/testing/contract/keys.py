"""The rules of deduplication keys: the effect of a second job of a key, and the job of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint.errors import DuplicateJobError
from queuehint.testing.driver import claim, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def keyed(id: str, on_conflict: str = "return", hint: list[str] | None = None, **fields: Any) -> JobSpec:
    return job(id, ["x"] if hint is None else hint, key="k", on_conflict=on_conflict, **fields)


def enqueue(store: Store, spec: JobSpec) -> tuple[str, bool]:
    (made,) = store.enqueue(spec).jobs
    return made.id, made.created


class Keys:
    """A burst of jobs of one key becomes one job. The later job chooses how to resolve the conflict."""

    def test_return_makes_a_burst_one_job_while_it_is_fresh(self, store: Store) -> None:
        store.enqueue(job("before", ["x"]), keyed("a"))
        assert enqueue(store, keyed("b", arguments=b"new")) == ("a", False)
        assert store.record("a").spec.arguments == b"{}"
        assert store.find("b") is None
        store.run(limit=1)
        assert enqueue(store, keyed("c")) == ("c", True)

    def test_return_makes_a_new_job_once_the_first_was_started(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        store.start()
        assert enqueue(store, keyed("b")) == ("b", True)
        assert enqueue(store, keyed("c")) == ("b", False)
        store.fail("a")
        assert store.state("a") is QUEUED
        assert enqueue(store, keyed("d")) == ("b", False)
        assert store.run() == ["a", "b"]
        assert store.is_clean

    def test_a_job_that_was_started_once_is_fresh_no_more(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        store.start()
        store.settle("a", OutcomeKind.RELEASED)
        assert enqueue(store, keyed("b")) == ("b", True)

    def test_within_one_submission_a_key_makes_one_job_too(self, store: Store) -> None:
        reply = store.enqueue(keyed("a"), keyed("b"), keyed("c", "after"), keyed("d", "replace", arguments=b"4"))
        assert [made.id for made in reply.jobs] == ["a"] * 4
        assert [made.created for made in reply.jobs] == [True, False, False, False]
        assert store.record("a").spec.arguments == b"4"
        assert store.run() == ["a"]

    def test_replace_with_equal_claims_keeps_id_and_place(self, store: Store) -> None:
        store.enqueue(job("before", ["x"]), keyed("a"), job("behind", ["x"]))
        new = keyed("b", "replace", arguments=b"new", priority=5, user="ann", pool="p")
        assert enqueue(store, new) == ("a", False)
        record = store.record("a")
        assert (record.id, record.spec.id, record.spec.arguments, record.spec.priority) == ("a", "a", b"new", 5)
        assert (record.seq, record.version) == (2, 2)
        store.start()
        store.finish("before")
        assert store.start() == []
        assert store.start(pools=("p",)) == ["a"]
        assert store.grants["a"].spec.arguments == b"new"
        store.finish("a")
        assert store.run() == ["behind"]

    def test_replaced_ready_job_is_offered_with_its_new_content(self, store: Store) -> None:
        store.enqueue(keyed("a"), job("b"))
        enqueue(store, keyed("c", "replace", pool="p"))
        assert store.start() == ["b"]
        assert store.start(pools=("p",)) == ["a"]

    def test_replace_with_other_claims_takes_a_new_place(self, store: Store) -> None:
        store.enqueue(job("before", ["x"]), keyed("a"), job("behind", ["x"]), job("other", ["y"]))
        assert enqueue(store, keyed("b", "replace", ["y"])) == ("a", False)
        assert store.record("a").seq == 5
        assert store.start() == ["before", "other"]
        store.finish("before", "other")
        assert store.start() == ["a", "behind"]
        store.finish("a", "behind")
        assert store.is_clean

    def test_replace_may_take_a_place_away_or_give_one(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        enqueue(store, job("b", key="k", on_conflict="replace"))
        assert store.record("a").spec.claims == ()
        enqueue(store, keyed("c", "replace", ["z"]))
        assert store.record("a").spec.claims == (claim("z"),)
        store.cancel_path("z")
        assert store.state("a") is CANCELED
        assert store.is_clean

    def test_replace_with_a_time_gives_the_place_up_until_then(self, store: Store) -> None:
        store.enqueue(keyed("a"), job("behind", ["x"]))
        assert enqueue(store, keyed("b", "replace", delay_ms=1000)) == ("a", False)
        assert (store.state("a"), store.record("a").due_ms) == (SCHEDULED, store.began_ms + 1000)
        assert store.run() == ["behind"]
        enqueue(store, keyed("c", "replace", run_at_ms=store.began_ms + 3000))
        assert (store.state("a"), store.record("a").due_ms) == (SCHEDULED, store.began_ms + 3000)
        store.wait(2999)
        assert store.start() == []
        store.wait(1)
        assert store.run() == ["a"]

    def test_replace_without_a_time_queues_a_job_that_had_one(self, store: Store) -> None:
        store.enqueue(keyed("a", delay_ms=1000))
        enqueue(store, keyed("b", "replace"))
        assert (store.state("a"), store.record("a").due_ms) == (QUEUED, None)
        assert store.run() == ["a"]
        store.wait(10_000)
        assert store.state("a") is FINISHED

    def test_replace_begins_the_time_allowed_anew(self, store: Store) -> None:
        store.enqueue(job("before", ["x"]), keyed("a", start_within_ms=1000))
        store.start(lease_ms=10**6)
        store.wait(500)
        enqueue(store, keyed("b", "replace", start_within_ms=1000))
        store.wait(999)
        assert store.state("a") is QUEUED
        store.wait(1)
        assert store.state("a") is CANCELED

    def test_replaced_parked_job_is_offered_at_its_new_place(self, store: Store) -> None:
        store.enqueue(keyed("a", hint=["paused"]))
        store.pause("paused")
        assert store.start() == []
        enqueue(store, keyed("b", "replace", ["x"]))
        assert store.start() == ["a"]
        store.finish("a")
        assert store.resume("paused")
        assert store.is_clean

    def test_replace_makes_a_new_job_once_the_first_was_started(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        store.start()
        assert enqueue(store, keyed("b", "replace")) == ("b", True)
        store.finish("a")
        assert store.run() == ["b"]

    def test_after_waits_for_the_one_that_was_started(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        assert enqueue(store, keyed("b", "after")) == ("a", False)
        store.start()
        assert enqueue(store, keyed("c", "after", ["elsewhere"])) == ("c", True)
        assert store.state("c") is DEFERRED
        assert enqueue(store, keyed("d", "after")) == ("c", False)
        assert store.start() == []
        store.finish("a")
        assert store.run() == ["c"]
        assert store.is_clean

    @pytest.mark.parametrize("end", ["failed", "canceled"])
    def test_after_waits_for_any_end(self, store: Store, end: str) -> None:
        store.enqueue(keyed("a"))
        store.start()
        enqueue(store, keyed("b", "after"))
        store.settle("a", OutcomeKind.FAILED if end == "failed" else OutcomeKind.DISCARDED, final=True)
        assert store.run() == ["b"]

    def test_on_conflict_after_waits_for_the_keyed_job(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        store.start()
        enqueue(store, keyed("b", "after"))
        store.enqueue(job("meanwhile", ["x"]))
        store.finish("a")
        assert store.run() == ["meanwhile", "b"]

    def test_after_with_a_time_waits_for_both_in_either_order(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        store.start(lease_ms=10**6)
        enqueue(store, keyed("b", "after", delay_ms=1000))
        assert store.state("b") is SCHEDULED
        store.wait(1000)
        assert store.state("b") is DEFERRED
        store.finish("a")
        assert store.state("b") is QUEUED
        store.start(lease_ms=10**6)
        enqueue(store, keyed("c", "after", delay_ms=1000))
        store.finish("b")
        assert store.state("c") is SCHEDULED
        store.wait(1000)
        assert store.run() == ["c"]

    def test_one_that_waits_may_be_replaced_and_still_waits(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        store.start(lease_ms=10**6)
        enqueue(store, keyed("b", "after"))
        enqueue(store, keyed("c", "replace", arguments=b"new"))
        assert (store.state("b"), store.record("b").spec.arguments) == (DEFERRED, b"new")
        enqueue(store, keyed("c", "replace", delay_ms=500))
        assert store.state("b") is SCHEDULED
        store.wait(500)
        assert store.state("b") is DEFERRED
        store.finish("a")
        assert store.run() == ["b"]

    def test_canceled_waiter_of_a_key_is_awaited_no_more(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        store.start()
        enqueue(store, keyed("b", "after"))
        store.cancel("b")
        store.finish("a")
        assert store.run() == []
        assert store.is_clean

    def test_reject_refuses_while_the_key_s_job_is_unfinished(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        for step in (lambda: None, store.start):
            step()
            with pytest.raises(DuplicateJobError, match="key 'k' belongs to job 'a'"):
                store.enqueue(keyed("b", "reject"))
        store.finish("a")
        assert enqueue(store, keyed("b", "reject")) == ("b", True)

    def test_reject_does_not_refuse_the_same_job_sent_again(self, store: Store) -> None:
        store.enqueue(keyed("a", "reject"))
        assert enqueue(store, keyed("a", "reject")) == ("a", False)

    @pytest.mark.parametrize("on_conflict", ["return", "replace", "after", "reject"])
    def test_key_is_freed_in_the_step_that_ends_its_job(self, store: Store, on_conflict: str) -> None:
        store.enqueue(keyed("a"))
        store.cancel("a")
        assert enqueue(store, keyed("b", on_conflict)) == ("b", True)
        assert store.state("b") is QUEUED

    def test_older_job_does_not_free_the_key_of_the_newest(self, store: Store) -> None:
        store.enqueue(keyed("a"))
        store.start()
        enqueue(store, keyed("b"))
        store.finish("a")
        assert enqueue(store, keyed("c")) == ("b", False)


class KeyHolders:
    """A key resolves to its newest unfinished job."""

    def test_end_of_the_newest_returns_the_key_to_its_predecessor(self, store: Store) -> None:
        store.enqueue(job("running", key="k", on_conflict="after"))
        store.start()
        store.enqueue(job("waits", key="k", on_conflict="after"))
        store.cancel("waits")
        store.enqueue(job("waits-too", key="k", on_conflict="after"))
        assert store.state("waits-too") is DEFERRED
        assert store.why("waits-too").jobs == ("running",)
        with pytest.raises(DuplicateJobError):
            store.enqueue(job("refused", key="k", on_conflict="reject"))

    def test_redriven_job_regains_its_key_behind_newer_jobs(self, store: Store) -> None:
        store.enqueue(job("old", key="k", max_attempts=1))
        store.start()
        store.fail("old")
        store.enqueue(job("new", key="k"))
        store.redrive("old")
        assert store.enqueue(job("more", key="k")).jobs[0].id == "new"
        store.cancel("new")
        with pytest.raises(DuplicateJobError, match="old"):
            store.enqueue(job("refused", key="k", on_conflict="reject"))

    def test_replaced_job_is_recognised_by_its_first_spec(self, store: Store) -> None:
        first = job("a", ["x"], key="k")
        store.enqueue(first)
        store.enqueue(job("b", ["x"], key="k", on_conflict="replace", arguments=b'{"new":1}'))
        assert not store.enqueue(first).jobs[0].created
        assert store.record("a").spec.arguments == b'{"new":1}'
        with pytest.raises(DuplicateJobError):
            store.enqueue(job("a", ["y"], key="k"))

    def test_first_spec_of_a_replaced_job_outlives_its_record(self, store: Store) -> None:
        first = job("a", ["x"], key="k", retention_ms=0)
        store.enqueue(first)
        store.enqueue(job("b", ["x"], key="k", on_conflict="replace", arguments=b'{"new":1}', retention_ms=0))
        assert store.run() == ["a"]
        store.wait(1)
        assert store.find("a") is None
        assert store.enqueue(first).jobs[0].state is FINISHED
