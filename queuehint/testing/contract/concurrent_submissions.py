"""The rules of submissions in parts that have a job in common, and of commits that miss a part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint import operations as op
from queuehint.errors import ConcurrentSubmissionError, FlowNotFoundError, QueueFullError
from queuehint.testing.driver import job
from queuehint.values.limit import Limit
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


def stage_two(store: Store) -> None:
    """Send a part of two jobs, `b` after `a`."""
    store.stage("T", job("a", ["x"], flow="f"), job("b", ["x", "y"], after=["a"], flow="f"))


class ConcurrentSubmissions:
    """A hidden job belongs to one submission. Another submission waits for the job, or takes it over."""

    def test_part_with_a_job_of_an_older_submission_is_refused(self, store: Store) -> None:
        stage_two(store)
        store.advance(1_000)
        store.stage("S", job("other", flow="f"))
        before = store.everything()
        for part in ("S", "U"):
            with pytest.raises(ConcurrentSubmissionError) as caught:
                store.stage(part, job("new", flow="f"), job("b", ["x", "y"], after=["new"], flow="f"))
            assert (caught.value.job_id, caught.value.retry_after_s) == ("b", (op.STAGED_FRESH_MS - 1_000) / 1000)
        assert store.everything() == before
        assert store.commit("T") == 2
        again = store.stage("S", job("a", ["x"], flow="f"), job("b", ["x", "y"], after=["a"], flow="f"))
        assert [made.created for made in again.jobs] == [False, False]
        assert store.commit("S") == 1
        assert sorted(store.run()) == ["a", "b", "other"]

    @pytest.mark.parametrize("by", ["part", "portion", "empty part"])
    def test_submission_is_under_way_from_its_last_request(self, store: Store, by: str) -> None:
        stage_two(store)
        store.enqueue(job("c"))
        store.advance(op.STAGED_FRESH_MS - 1)
        if by == "portion":
            store.depend("T", "b", 1, "c")
        else:
            store.stage("T", *[job("d", flow="f")] * (by == "part"))
        store.advance(op.STAGED_FRESH_MS - 1)
        with pytest.raises(ConcurrentSubmissionError):
            store.stage("S", job("a", flow="f"))
        store.advance(1)
        assert store.stage("S", job("a", flow="f")).jobs[0].created

    @pytest.mark.parametrize("order", [1, -1])
    @pytest.mark.parametrize("taker", ["enqueue", "older part", "part of a silent one"])
    def test_submission_that_lost_a_job_is_withdrawn(self, store: Store, taker: str, order: int) -> None:
        if taker == "older part":
            store.stage("S", job("first"))
        store.stage("T", job("a", ["old"]), job("b", ["old"], after=["a"]), job("c"))
        store.depend("T", "c", 1, "b")
        specs = [job("a", ["new"]), job("mine", after=["a"])][::order]
        if taker == "part of a silent one":
            store.advance(op.STAGED_FRESH_MS)
        made = store.enqueue(*specs) if taker == "enqueue" else store.stage("S", *specs)
        assert [each.created for each in made.jobs] == [True, True]
        refused: tuple[op.Operation[Any], ...] = (
            op.Enqueue((job("d", after=["a"]),), staged="T", is_further=True),
            op.Enqueue((), staged="T", is_further=True),
            op.Depend("T", "c", 2, (Dependency("a"),)),
            *[op.Commit("T", jobs, portions) for jobs in (0, 2, 3) for portions in (0, 1)],
        )
        for operation in refused:
            with pytest.raises(FlowNotFoundError) as caught:
                store.apply(operation)
            assert caught.value.flow == "T"
        assert not store.withdraw("T")
        if taker != "enqueue":
            store.commit("S")
        assert (store.find("b"), store.find("c"), store.record("a").path) == (None, None, ("new",))
        assert sorted(store.run()) == ["a", *["first"] * (taker == "older part"), "mine"]
        store.wait(0)
        assert store.is_clean

    def test_enqueue_withdraws_each_submission_that_it_takes_from(self, store: Store) -> None:
        for part in "STU":
            store.stage(part, *[job(f"{part}{number}") for number in range(2)])
        store.enqueue(job("T1"), job("S0"), job("S1"))
        for part in "ST":
            with pytest.raises(FlowNotFoundError):
                store.commit(part)
        assert store.commit("U") == 2
        assert sorted(store.run()) == ["S0", "S1", "T1", "U0", "U1"]
        assert store.is_clean

    def test_withdrawn_submission_of_a_taken_job_leaves_room(self, store: Store) -> None:
        store.apply(op.SetLimit(Limit(path=("x",), max_pending=3)))
        stage_two(store)
        assert store.enqueue(job("a", ["else"])).jobs[0].created
        store.enqueue(*[job(str(number), ["x"]) for number in range(3)])
        assert store.find("b") is None

    @pytest.mark.parametrize(
        "limit", [{"path": None}, {"path": ("x",)}, {"task": "task"}, {"pool": "default"}], ids=str
    )
    @pytest.mark.parametrize("by, limit_first", [("part", True), ("enqueue", True), ("part", False)])
    def test_repeated_submission_fits_the_room_of_its_unanswered_first(
        self, store: Store, limit: dict[str, Any], by: str, limit_first: bool
    ) -> None:
        jobs = [job(each, ["x"]) for each in "ab"]
        steps = [op.SetLimit(Limit(**limit, max_pending=2)), op.Enqueue(tuple(jobs), "T")]
        for step in steps if limit_first else reversed(steps):
            store.apply(step)
        store.advance(op.STAGED_FRESH_MS)
        with pytest.raises(QueueFullError):
            store.stage("S", *jobs, job("c", ["x"]))
        if by == "part":
            store.stage("S", *jobs)
            assert store.commit("S") == 2
        else:
            store.enqueue(*jobs)
        with pytest.raises(QueueFullError) as caught:
            store.enqueue(job("c", ["x"]))
        assert caught.value.pending == 2
        assert sorted(store.run()) == ["a", "b"]
        assert store.enqueue(job("c", ["x"])).jobs[0].created

    def test_large_submission_that_lost_a_job_is_dropped_in_steps(self, store: Store) -> None:
        for part in range(3):
            store.stage("T", *[job(f"{part}-{number}", ["x"]) for number in range(900)])
        store.stage("T", job("a"))
        assert store.enqueue(job("a", ["y"])).more
        with pytest.raises(FlowNotFoundError):
            store.commit("T")
        assert store.enqueue(job("2-899"), job("0-0")).jobs[0].created
        store.wait(0)
        assert sorted(store.run()) == ["0-0", "2-899", "a"]
        assert store.is_clean

    @pytest.mark.parametrize("jobs, portions", [(1, 1), (3, 1), (2, 0), (2, 2)])
    def test_commit_of_other_parts_than_are_there_is_refused(self, store: Store, jobs: int, portions: int) -> None:
        stage_two(store)
        store.enqueue(job("c"))
        store.depend("T", "b", 1, "c")
        before = store.everything()
        with pytest.raises(FlowNotFoundError) as caught:
            store.apply(op.Commit("T", jobs, portions))
        assert (caught.value.flow, store.everything()) == ("T", before)
        assert store.commit("T") == 2

    def test_commit_of_no_jobs_is_of_a_submission_without_any(self, store: Store) -> None:
        stage_two(store)
        store.stage("S")
        with pytest.raises(FlowNotFoundError):
            store.commit("T", jobs=0)
        assert (store.commit("S"), store.find("a")) == (0, None)
