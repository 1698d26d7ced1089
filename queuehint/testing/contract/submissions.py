"""The rules of submissions: numbers and places of their jobs, and refusal as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint.errors import DuplicateJobError, InvalidHintError, InvalidJobError, PathClosedError, QueueHintError
from queuehint.operations import Close
from queuehint.testing.driver import claim, job
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Submissions:
    """A submission is numbered, placed and answered job by job. A repeated job resolves to the existing one."""

    def test_jobs_are_numbered_in_the_order_of_their_submission(self, store: Store) -> None:
        assert store.enqueue().jobs == ()
        reply = store.enqueue(job("b", ["x"]), job("a", ["x"]), job("c", delay_ms=5))
        assert [(made.id, made.number, made.state, made.created) for made in reply.jobs] == [
            ("b", 1, QUEUED, True),
            ("a", 2, QUEUED, True),
            ("c", 3, SCHEDULED, True),
        ]
        assert store.run() == ["b", "a"]

    @pytest.mark.parametrize(
        "fields, ahead_ms",
        [
            ({}, None),
            ({"delay_ms": 0}, None),
            ({"delay_ms": 1}, 1),
            ({"run_in_ms": -1}, None),
            ({"run_in_ms": 0}, None),
            ({"run_in_ms": -(10**14)}, None),
            ({"run_in_ms": 1}, 1),
        ],
    )
    def test_job_with_a_future_time_waits_and_others_are_queued(
        self, store: Store, fields: dict[str, Any], ahead_ms: int | None
    ) -> None:
        if "run_in_ms" in fields:
            fields = {"run_at_ms": store.began_ms + fields["run_in_ms"]}
        store.enqueue(job("a", ["x"], **fields))
        record = store.record("a")
        if ahead_ms is None:
            assert (record.state, record.due_ms) == (QUEUED, None)
        else:
            assert (record.state, record.due_ms) == (SCHEDULED, store.began_ms + ahead_ms)
        store.wait(1)
        assert store.run() == ["a"]

    def test_jobs_due_together_take_places_in_enqueue_order(self, store: Store) -> None:
        store.enqueue(job("b", ["x"], delay_ms=1000), job("a", ["x"], run_at_ms=store.began_ms + 1000))
        store.wait(1000)
        assert store.run() == ["b", "a"]

    def test_a_submission_sent_again_and_a_new_job_go_together(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        reply = store.enqueue(job("a", ["x"]), job("b", ["x"]))
        assert [made.created for made in reply.jobs] == [False, True]
        assert store.run() == ["a", "b"]


def make_busy(store: Store) -> None:
    """Fill a store with one object of each kind, all of which a refused operation must leave unchanged."""
    store.enqueue(job("a", ["x"], key="k"), job("b", ["x"]), job("timed", delay_ms=10), job("dead", max_attempts=1))
    store.apply(Close(("closed",)))
    store.start()
    store.fail("dead")
    store.cancel("a")


class AllOrNothing:
    """A submission of which one job is refused changes nothing."""

    @pytest.mark.parametrize(
        "other, fields",
        [
            (job("a", ["y"], arguments=b'"old"'), ("claims",)),
            (job("a", ["x"], arguments=b'"new"'), ("arguments",)),
            (job("a", ["x"], arguments=b'"new"', priority=5, max_attempts=9), ("arguments", "priority", "policy")),
        ],
    )
    def test_repeated_id_with_changed_content_is_refused_without_values(
        self, store: Store, other: JobSpec, fields: tuple[str, ...]
    ) -> None:
        store.enqueue(job("a", ["x"], arguments=b'"old"'))
        before = store.everything()
        with pytest.raises(DuplicateJobError) as caught:
            store.enqueue(job("new"), other)
        assert (caught.value.job_id, caught.value.fields) == ("a", fields)
        assert "old" not in str(caught.value) and "new" not in str(caught.value)
        assert store.everything() == before

    @pytest.mark.parametrize(
        "bad, error",
        [
            (job("b", ["y"]), DuplicateJobError),
            (job("first"), DuplicateJobError),
            (job("c", key="k", on_conflict="reject"), DuplicateJobError),
            (job("c", ["closed", "d"]), PathClosedError),
            (job("c", claims=(claim("x"), claim("closed"))), PathClosedError),
            (job("c", claims=tuple(claim(*["d"] * 60, str(number)) for number in range(65))), InvalidHintError),
        ],
    )
    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_a_submission_with_one_bad_job_changes_nothing_at_all(
        self, store: Store, bad: JobSpec, error: type[QueueHintError], index: int
    ) -> None:
        make_busy(store)
        before = store.everything()
        jobs = [job("first", ["x"]), job("second", key="k2"), job("third", delay_ms=1)]
        jobs.insert(index, bad)
        with pytest.raises(error):
            store.enqueue(*jobs)
        assert store.everything() == before

    def test_key_taken_within_a_submission_refuses_it_whole(self, store: Store) -> None:
        with pytest.raises(DuplicateJobError) as caught:
            store.enqueue(job("a", key="k"), job("b", key="k", on_conflict="reject"))
        assert (caught.value.job_id, caught.value.key) == ("a", "k")
        assert store.stats().enqueued == 0

    def test_submission_accepts_a_thousand_jobs_and_no_more(self, store: Store) -> None:
        store.enqueue(*[job(str(number)) for number in range(1000)])
        with pytest.raises(InvalidJobError, match="jobs: 1001 in one operation, limit 1000"):
            store.enqueue(*[job(f"x{number}") for number in range(1001)])
        assert store.stats().enqueued == 1000

    def test_submission_accepts_sixteen_thousand_gates_and_no_more(self, store: Store) -> None:
        claims = [tuple(claim(*["d"] * 62, f"{number}-{each}") for each in range(10)) for number in range(25)]
        jobs = [job(str(number), claims=one) for number, one in enumerate(claims)]
        store.enqueue(*jobs)
        with pytest.raises(InvalidJobError, match=r"visits 16001 gates \(depth \+ 1 a claim\), limit 16000"):
            store.enqueue(*jobs, job("one-more", []))


class ClosedPaths:
    """A closed path refuses new jobs at or below it."""

    def test_closed_path_refuses_new_jobs_until_reopened(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "x"]))
        assert store.apply(Close(("doc",))).changed is True
        assert store.apply(Close(("doc",))).changed is False
        for hint in (["doc"], ["doc", "x"], ["doc", "x", "y"]):
            with pytest.raises(PathClosedError, match="path 'doc' is closed") as caught:
                store.enqueue(job("b", hint))
            assert caught.value.path_key == "doc"
        store.enqueue(job("above", []), job("beside", ["doc1"]), job("none"))
        assert store.enqueue(job("a", ["doc", "x"])).jobs[0].created is False
        assert store.run() == ["a", "above", "beside", "none"]
        assert store.apply(Close(("doc",), reopen=True)).changed is True
        assert store.apply(Close(("doc",), reopen=True)).changed is False
        assert store.enqueue(job("b", ["doc", "x"])).jobs[0].created

    def test_a_closed_root_refuses_every_job_that_has_a_place(self, store: Store) -> None:
        store.apply(Close(()))
        with pytest.raises(PathClosedError, match="path 'root'"):
            store.enqueue(job("a", ["x"]))
        assert store.enqueue(job("b")).jobs[0].created
