"""The rules of parents: the state of a job that waits for its children, and how it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint.errors import CycleError
from queuehint.operations import Exchange, Verdict
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def start_family(store: Store, *children: str, **fields: Any) -> None:
    """Start `p` at ["x"] and have it make children at the same place; *fields* as of its policy."""
    store.enqueue(job("p", ["x"], **fields))
    store.start()
    store.enqueue_from("p", *[job(each, ["x"], max_attempts=1, parent="p") for each in children])


class Parents:
    """A parent ends when its children have ended."""

    def test_a_child_cannot_depend_on_its_parent(self, store: Store) -> None:
        store.enqueue(job("p"), job("b", after=["p"]), job("c", after=["b"]), job("free"))
        store.start()
        before = store.everything()
        for dependency in ("p", "b", "c"):
            with pytest.raises(CycleError) as caught:
                store.enqueue_from("p", job("ok", after=["free"]), job("child", after=["free", dependency]))
            assert caught.value.cycle == ("p", "child")
        assert store.everything() == before
        store.enqueue_from("p", job("child", after=["free"]), job("second", after=["child"]))

    def test_dependent_of_a_parent_waits_for_its_children_too(self, store: Store) -> None:
        start_family(store, "a")
        store.enqueue(job("after", after=["p"]))
        store.await_children("p", "a")
        assert store.run() == ["a", "after"]

    def test_a_child_that_is_retried_is_not_over(self, store: Store) -> None:
        store.enqueue(job("p"))
        store.start()
        store.enqueue_from("p", job("a", max_attempts=2))
        store.await_children("p", "a")
        store.start()
        store.fail("a")
        assert store.state("p") is DEFERRED
        store.run()
        assert store.state("p") is FINISHED

    def test_a_child_named_twice_is_waited_for_once(self, store: Store) -> None:
        start_family(store, "a")
        store.await_children("p", "a", "a")
        assert store.edges().open_edges == 1
        store.run()
        assert store.state("p") is FINISHED

    def test_any_job_may_be_a_child_of_several(self, store: Store) -> None:
        store.enqueue(job("a"), job("p"), job("q"))
        store.start()
        store.await_children("p", "a")
        store.await_children("q", "a")
        store.finish("a")
        assert store.states("p", "q") == "FINISHED FINISHED"

    def test_children_may_have_children(self, store: Store) -> None:
        store.enqueue(job("p"))
        store.start()
        for parent, child in (("p", "c"), ("c", "g")):
            store.enqueue_from(parent, job(child))
            store.await_children(parent, child)
            assert store.start() == [child]
        assert store.states("p", "c", "g") == "DEFERRED DEFERRED STARTED"
        store.finish("g")
        assert store.states("p", "c", "g") == "FINISHED FINISHED FINISHED"

    def test_child_may_also_be_a_dependency_of_its_parent(self, store: Store) -> None:
        store.enqueue(job("x", max_attempts=1))
        store.enqueue(job("p", after=["x"], on_dependency_failure="run"))
        store.start()
        store.fail("x")
        assert store.start() == ["p"]
        store.redrive("x")
        store.await_children("p", "x")
        store.start()
        store.settle("x", result=b"1")
        assert store.state("p") is FINISHED
        assert store.is_clean

    def test_a_caller_has_no_children(self, store: Store) -> None:
        store.enqueue(job("a"), job("c", presence_ms=1000, pool="@c"))
        grant = store.apply(Exchange("@c", (), ("@c",), 1)).grants[0]
        outcome = Outcome(job_id="c", token=grant.token, kind=OutcomeKind.CHILDREN, children=("a",))
        assert store.exchange(outcome).verdicts == (Verdict.DONE,)
        assert (store.state("c"), store.record("c").cause) == (CANCELED, "waiter_lost")


class FailedParents:
    """A child that fails, is missing or waits for the job itself fails its parent."""

    @pytest.mark.parametrize("on_child_failure, state", [("fail", FAILED), ("ignore", FINISHED)])
    def test_a_child_that_has_failed_before_counts(self, store: Store, on_child_failure: str, state: JobState) -> None:
        store.enqueue(job("a", max_attempts=1), job("b"), job("p"), job("q"))
        store.start()
        store.fail("a")
        store.await_children("p", "a", on_child_failure=on_child_failure)
        assert store.state("p") is state
        store.await_children("q", "b", "a", on_child_failure=on_child_failure)
        assert store.why("q").jobs == ("b",)
        store.finish("b")
        assert store.state("q") is state
        assert store.is_clean

    def test_unknown_child_fails_the_job_for_good(self, store: Store) -> None:
        store.enqueue(job("p", ["x"], max_attempts=5), job("a"))
        store.start()
        store.finish("a")
        store.await_children("p", "a", "nobody", result=b"1")
        record = store.record("p")
        assert (record.state, record.cause, record.result, record.attempts) == (FAILED, "failed", None, 1)
        error = record.errors[0]
        assert (error.type, error.message) == ("queuehint.errors.UnknownDependencyError", "child nobody does not exist")
        assert store.is_clean

    def test_end_of_a_child_outlives_its_record_with_its_id(self, store: Store) -> None:
        store.enqueue(*[job(each, max_attempts=1, retention_ms=0) for each in "afp"], job("q"), job("r"))
        store.start()
        store.finish("a")
        store.fail("f")
        store.wait(0)
        assert (store.find("a"), store.find("f")) == (None, None)
        store.await_children("p", "a", result=b"1")
        store.await_children("q", "a", "f")
        assert store.record("q").cause == "child_failed"
        store.renew("r", lease_ms=DAY_MS)
        store.wait(10 * 60_000)
        store.await_children("r", "a")
        assert store.record("r").cause == "failed"

    def test_a_cycle_of_parents_is_found(self, store: Store) -> None:
        store.enqueue(job("p"), job("q"))
        store.start()
        store.await_children("p", "q")
        store.await_children("q", "p")
        assert store.states("p", "q") == "FAILED FAILED"
        assert [store.record(each).errors[0].type for each in "pq"] == ["child_failed", "queuehint.errors.CycleError"]

    def test_a_redriven_parent_runs_its_handler_again(self, store: Store) -> None:
        start_family(store, "a")
        store.await_children("p", "a", result=b"1")
        store.start()
        store.fail("a")
        assert store.state("p") is FAILED
        assert store.redrive("p") == [Verdict.DONE]
        assert store.start() == ["p"]
        assert (store.grants["p"].attempt, store.record("p").result) == (1, None)
        store.enqueue_from("p", job("b", ["x"]))
        store.await_children("p", "b", result=b"2")
        store.run()
        assert (store.state("p"), store.record("p").result) == (FINISHED, b"2")

    def test_parent_of_failed_children_dies_on_its_place(self, store: Store) -> None:
        store.enqueue(job("a"), job("p", ["x"], on_dead="hold"), job("behind", ["x"]))
        store.cancel("a")
        store.start()
        store.await_children("p", "a")
        assert store.state("p") is FAILED
        assert (store.start(), store.why("behind").kind) == ([], ReasonKind.DEAD_HOLD)

    def test_a_redriven_child_does_not_hold_its_parent_up(self, store: Store) -> None:
        start_family(store, "a", "b")
        store.await_children("p", "a", "b")
        store.start()
        store.fail("a")
        store.redrive("a")
        assert store.why("p").jobs == ("b",)
        assert store.run() == ["b", "a"]
        assert store.state("p") is FAILED
