"""The rules of keys over time: how long a burst puts its one job off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint.errors import DuplicateJobError
from queuehint.testing.driver import job
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def stroke(id: str, **fields: Any) -> JobSpec:
    return job(id, **{"hint": ["x"], "key": "k", "on_conflict": "replace", "delay_ms": 1000, **fields})


def due_in(store: Store, job_id: str = "a") -> int | None:
    """Return in how many ms from its enqueue a job is due, None if it waits for no time."""
    record = store.record(job_id)
    return None if record.due_ms is None else record.due_ms - record.enqueued_ms


class Debounces:
    """`max_delay_ms` of a replacement bounds how long it puts its key's job off, counted from the job's enqueue."""

    def test_each_replacement_begins_the_delay_anew_up_to_the_most_since_the_first(self, store: Store) -> None:
        dues = []
        for number in range(5):
            store.enqueue(stroke("a" if number == 0 else f"r{number}", max_delay_ms=2500))
            dues.append(due_in(store))
            store.wait(600)
        assert dues == [1000, 1600, 2200, 2500, 2500]
        assert store.state("a") is QUEUED
        assert store.run() == ["a"]
        assert store.is_clean

    def test_a_replacement_after_the_most_leaves_the_job_where_it_waits(self, store: Store) -> None:
        store.enqueue(job("before", ["x"]))
        store.start(lease_ms=10**6)
        store.enqueue(stroke("a", max_delay_ms=1000))
        store.wait(1000)
        store.enqueue(job("behind", ["x"]))
        store.enqueue(stroke("b", max_delay_ms=1000, arguments=b"new"))
        assert (store.state("a"), store.record("a").spec.arguments) == (QUEUED, b"new")
        store.finish("before")
        assert store.run() == ["a", "behind"]

    def test_what_was_due_and_waits_for_its_place_is_put_off_before_the_most(self, store: Store) -> None:
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

    def test_the_bound_is_part_of_what_a_job_was_asked_to_be(self, store: Store) -> None:
        first = stroke("a", max_delay_ms=1500)
        store.enqueue(first)
        assert not store.enqueue(first).jobs[0].created
        assert store.record("a").spec == first
        with pytest.raises(DuplicateJobError):
            store.enqueue(stroke("a", max_delay_ms=1501))

    def test_a_job_that_waits_for_another_of_its_key_counts_from_its_own_enqueue(self, store: Store) -> None:
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
