"""The rules of debouncing: how long a burst of one key delays its job, and how long the key is kept after its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint.errors import DuplicateJobError
from queuehint.operations import Delete
from queuehint.testing.driver import job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def stroke(id: str, **fields: Any) -> JobSpec:
    return job(id, **{"hint": ["x"], "key": "k", "on_conflict": "replace", "delay_ms": 1000, **fields})


def due_in(store: Store, job_id: str = "a") -> int | None:
    """Return the ms from the enqueue of a job to its due time, None for a job without one."""
    record = store.record(job_id)
    return None if record.due_ms is None else record.due_ms - record.enqueued_ms


class Debounces:
    """`max_delay_ms` of a replacement bounds the delay of the key's job, counted from the job's enqueue."""

    def test_each_replacement_restarts_the_delay_up_to_max_delay(self, store: Store) -> None:
        dues = []
        for number in range(5):
            store.enqueue(stroke("a" if number == 0 else f"r{number}", max_delay_ms=2500))
            dues.append(due_in(store))
            store.wait(600)
        assert dues == [1000, 1600, 2200, 2500, 2500]
        assert store.state("a") is QUEUED
        assert store.run() == ["a"]
        assert store.is_clean

    def test_replacement_after_max_delay_leaves_the_job_in_place(self, store: Store) -> None:
        store.enqueue(job("before", ["x"]))
        store.start(lease_ms=10**6)
        store.enqueue(stroke("a", max_delay_ms=1000))
        store.wait(1000)
        store.enqueue(job("behind", ["x"]))
        store.enqueue(stroke("b", max_delay_ms=1000, arguments=b"new"))
        assert (store.state("a"), store.record("a").spec.arguments) == (QUEUED, b"new")
        store.finish("before")
        assert store.run() == ["a", "behind"]

    def test_debounce_delays_a_due_waiting_job_until_max_delay(self, store: Store) -> None:
        store.enqueue(job("before", ["x"]))
        store.start(lease_ms=10**6)
        store.enqueue(stroke("a", max_delay_ms=3000))
        store.wait(1500)
        assert store.state("a") is QUEUED
        store.enqueue(stroke("b", max_delay_ms=2000))
        assert (store.state("a"), due_in(store)) == (SCHEDULED, 2000)

    def test_the_bound_is_that_of_the_replacement(self, store: Store) -> None:
        store.enqueue(stroke("a"))
        store.wait(900)
        store.enqueue(stroke("b", max_delay_ms=1500))
        assert due_in(store) == 1500
        store.enqueue(stroke("c", max_delay_ms=1700))
        assert due_in(store) == 1700
        store.enqueue(stroke("d"))
        assert due_in(store) == 1900

    def test_a_new_job_of_the_key_begins_a_new_burst(self, store: Store) -> None:
        store.enqueue(stroke("a", max_delay_ms=1500))
        store.wait(1000)
        store.start()
        store.enqueue(stroke("b", max_delay_ms=1500))
        store.finish("a")
        store.wait(800)
        store.enqueue(stroke("c", max_delay_ms=1500))
        assert due_in(store, "b") == 1500
        store.cancel("b")
        store.enqueue(stroke("d", max_delay_ms=1500))
        assert due_in(store, "d") == 1000

    def test_within_one_submission_it_is_the_same(self, store: Store) -> None:
        store.enqueue(stroke("a", max_delay_ms=1500), stroke("b", delay_ms=2000, max_delay_ms=2000))
        assert due_in(store) == 2000

    def test_max_delay_is_part_of_the_identity_of_a_job(self, store: Store) -> None:
        first = stroke("a", max_delay_ms=1500)
        store.enqueue(first)
        assert not store.enqueue(first).jobs[0].created
        assert store.record("a").spec == first
        with pytest.raises(DuplicateJobError):
            store.enqueue(stroke("a", max_delay_ms=1501))

    def test_job_behind_its_key_counts_from_its_own_enqueue(self, store: Store) -> None:
        store.enqueue(job("old", ["x"], key="k"))
        store.start(lease_ms=10**6)
        store.enqueue(job("a", ["x"], key="k", on_conflict="after"))
        store.wait(1800)
        store.enqueue(stroke("b", max_delay_ms=2000))
        assert (store.state("a"), due_in(store)) == (SCHEDULED, 2000)
        store.enqueue(stroke("c", max_delay_ms=1000))
        assert store.state("a") is DEFERRED
        store.finish("old")
        assert store.run() == ["a"]


KEPT_MS = 5000
OTHERS = ["return", "replace", "after"]


def kept(id: str, on_conflict: str = "return", **fields: Any) -> JobSpec:
    """Return a job whose key outlasts its end."""
    return job(id, **{"hint": ["x"], "key": "k", "on_conflict": on_conflict, "key_for_ms": KEPT_MS, **fields})


def enqueue(store: Store, spec: JobSpec) -> tuple[str, bool, JobState]:
    (made,) = store.enqueue(spec).jobs
    return made.id, made.created, made.state


def is_taken(store: Store) -> bool:
    """Return whether some job has the key."""
    try:
        (made,) = store.enqueue(job("probe", key="k", on_conflict="reject")).jobs
    except DuplicateJobError:
        return True
    store.cancel(made.id)
    store.apply(Delete((made.id,)))
    return False


class Throttles:
    """With `key_for_ms` a started job keeps its key for that long after its end. At most one job runs meanwhile."""

    @pytest.mark.parametrize("on_conflict", OTHERS)
    def test_repeated_job_returns_the_key_holder_until_the_window_ends(self, store: Store, on_conflict: str) -> None:
        assert enqueue(store, kept("a")) == ("a", True, QUEUED)
        assert store.run() == ["a"]
        for wait_ms in (0, KEPT_MS - 1):
            store.wait(wait_ms)
            assert enqueue(store, kept("b", on_conflict, arguments=b"new")) == ("a", False, FINISHED)
        assert store.record("a").spec.arguments == b"{}"
        store.wait(1)
        assert enqueue(store, kept("c", on_conflict)) == ("c", True, QUEUED)
        assert store.run() == ["c"]
        assert store.is_clean

    @pytest.mark.parametrize("on_conflict", OTHERS)
    def test_repeated_job_returns_the_running_key_holder_unchanged(self, store: Store, on_conflict: str) -> None:
        store.enqueue(kept("a"))
        store.start()
        assert enqueue(store, kept("b", on_conflict, arguments=b"new")) == ("a", False, STARTED)
        store.fail("a")
        assert enqueue(store, kept("c", on_conflict, arguments=b"new")) == ("a", False, QUEUED)
        assert store.record("a").spec.arguments == b"{}"
        assert store.run() == ["a"]

    def test_before_it_is_started_it_is_replaced_as_any_other(self, store: Store) -> None:
        store.enqueue(kept("a"))
        assert enqueue(store, kept("b", "replace", arguments=b"new")) == ("a", False, QUEUED)
        assert store.record("a").spec.arguments == b"new"

    def test_reject_refuses_until_the_time_is_over(self, store: Store) -> None:
        store.enqueue(kept("a"))
        store.run()
        store.wait(KEPT_MS - 1)
        with pytest.raises(DuplicateJobError, match="key 'k' belongs to job 'a', which is unfinished or keeps it"):
            store.enqueue(kept("b", "reject"))
        store.wait(1)
        assert enqueue(store, kept("b", "reject")) == ("b", True, QUEUED)

    def test_window_is_defined_by_the_key_holder(self, store: Store) -> None:
        store.enqueue(kept("a", key_for_ms=1000))
        store.enqueue(kept("b", "replace", key_for_ms=3000))
        store.run()
        store.wait(2999)
        assert enqueue(store, kept("c", key_for_ms=None))[0] == "a"
        store.wait(1)
        assert enqueue(store, kept("c", key_for_ms=None))[0] == "c"
        store.run()
        assert enqueue(store, kept("d"))[0] == "d"

    @pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.DISCARDED])
    def test_any_end_of_a_started_job_begins_the_window(self, store: Store, kind: OutcomeKind) -> None:
        store.enqueue(kept("a"))
        store.start()
        store.wait(1000)
        store.settle("a", kind, final=kind is OutcomeKind.FAILED)
        store.wait(KEPT_MS - 1)
        assert is_taken(store)
        store.wait(1)
        assert not is_taken(store)

    def test_unstarted_job_frees_its_key_at_its_end(self, store: Store) -> None:
        store.enqueue(kept("a"))
        store.cancel("a")
        assert enqueue(store, kept("b", start_within_ms=1000, delay_ms=0))[:2] == ("b", True)
        store.wait(1000)
        assert store.state("b") is CANCELED
        assert enqueue(store, kept("c")) == ("c", True, QUEUED)

    def test_redriven_job_regains_its_key_and_restarts_its_window(self, store: Store) -> None:
        store.enqueue(kept("a", max_attempts=1))
        store.start()
        store.fail("a")
        store.wait(3000)
        store.redrive("a")
        assert enqueue(store, kept("b")) == ("a", False, QUEUED)
        store.wait(3000)
        assert store.state("a") is QUEUED
        store.run()
        store.wait(KEPT_MS - 1)
        assert is_taken(store)
        store.wait(1)
        assert not is_taken(store)

    def test_a_discarded_job_keeps_its_key(self, store: Store) -> None:
        store.enqueue(kept("a", max_attempts=1))
        store.start()
        store.fail("a")
        store.discard("a")
        assert enqueue(store, kept("b")) == ("a", False, CANCELED)

    def test_newer_unfinished_job_of_the_key_takes_precedence(self, store: Store) -> None:
        store.enqueue(kept("old", key_for_ms=None))
        store.start(lease_ms=10**6)
        store.enqueue(kept("a", hint=["y"]))
        store.start(lease_ms=10**6)
        store.finish("a")
        assert enqueue(store, kept("b")) == ("a", False, FINISHED)
        store.wait(KEPT_MS)
        store.enqueue(kept("c", hint=["y"]))
        store.finish("old")
        assert enqueue(store, kept("d")) == ("c", False, QUEUED)

    def test_ended_window_leaves_the_key_to_an_older_job(self, store: Store) -> None:
        store.enqueue(kept("old", key_for_ms=None))
        store.start(lease_ms=10**6)
        store.enqueue(kept("a", hint=["y"]))
        store.start(lease_ms=10**6)
        store.finish("a")
        store.advance(KEPT_MS)
        with pytest.raises(DuplicateJobError, match="key 'k' belongs to job 'old'"):
            store.enqueue(kept("b", "reject"))

    @pytest.mark.parametrize("retention_ms", [0, 700_000])
    def test_the_key_outlives_the_record_and_with_it_the_id(self, store: Store, retention_ms: int) -> None:
        store.enqueue(kept("a", key_for_ms=10**6, retention_ms=retention_ms))
        store.run()
        store.wait(retention_ms + 1)
        assert store.find("a") is None
        store.wait(10**6 - retention_ms - 2)
        with pytest.raises(DuplicateJobError):
            store.enqueue(kept("a", arguments=b"new"))
        assert enqueue(store, kept("b")) == ("a", False, FINISHED)
        store.wait(1)
        assert enqueue(store, kept("a", arguments=b"new")) == ("a", True, QUEUED)

    def test_a_deleted_record_does_not_give_the_key_up(self, store: Store) -> None:
        store.enqueue(kept("a"))
        store.run()
        store.apply(Delete(("a",)))
        assert is_taken(store)
        store.wait(KEPT_MS)
        assert not is_taken(store)

    def test_kept_job_stays_when_others_end(self, store: Store) -> None:
        store.enqueue(kept("a"), kept("other", key="l"), job("plain", ["x"]))
        assert store.run() == ["a", "other", "plain"]
        reply = store.enqueue(kept("b"), kept("c", key="l"), kept("d", key="m"))
        assert [(made.id, made.created) for made in reply.jobs] == [("a", False), ("other", False), ("d", True)]
