"""The rules of explicit edges: dependencies, and the effect of an end on dependents."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from queuehint import (
    DuplicateJobError,
    JobState,
    OutcomeKind,
    UnknownDependencyError,
)
from queuehint.operations import (
    Redrive,
    Verdict,
)
from queuehint.testing.contract.store import DAY_MS, error
from queuehint.testing.driver import job
from queuehint.values.policy import ON_DEPENDENCY_FAILURE
from queuehint.values.report import ReasonKind
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
MINUTE = 60_000
CANCELING: dict[str, Any] = {"on_dependency_failure": "cancel"}


def end(store: Store, job_id: str, how: str) -> None:
    """End a job that is QUEUED or STARTED."""
    if how == "canceled":
        store.cancel(job_id)
        return
    if store.state(job_id) is QUEUED:
        store.start()
    store.settle(job_id, OutcomeKind(how), final=True, result=b"1" if how == "finished" else None)
    store.wait(0)


class Edges:
    """A job waits for its dependencies without a place, and is queued once, when the last of them has ended."""

    def test_a_dependent_is_deferred_until_its_dependency_has_finished(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"], after=["a"]), job("c", ["doc"]))
        record = store.record("b")
        assert (record.state, record.seq) == (DEFERRED, None)
        assert (store.why("b").kind, store.why("b").jobs) == (ReasonKind.DEPENDENCY, ("a",))
        assert store.run() == ["a", "c", "b"]

    def test_job_may_depend_on_a_later_one_of_its_path(self, store: Store) -> None:
        store.enqueue(job("first", ["doc"], after=["second"]), job("second", ["doc"]))
        assert store.run() == ["second", "first"]

    def test_a_line_runs_one_after_the_other(self, store: Store) -> None:
        store.enqueue(job("c", after=["b"]), job("b", after=["a"]), job("a"))
        assert store.run() == ["a", "b", "c"]

    def test_a_diamond_joins_once_both_its_sides_are_over(self, store: Store) -> None:
        store.enqueue(job("top"), job("left", after=["top"]), job("right", after=["top"]))
        store.enqueue(job("bottom", after=["left", "right"]))
        store.start()
        store.finish("top")
        assert store.start() == ["left", "right"]
        store.finish("right")
        assert store.start() == []
        store.finish("left")
        assert store.start() == ["bottom"]

    def test_the_complex_case_goes_step_by_step(self, store: Store) -> None:
        store.enqueue(job("A"), job("B"), job("C"))
        store.enqueue(job("D", after="ABC"), job("E", after="AB"), job("F", after="C"))
        assert [store.why(each).jobs for each in "DEF"] == [("A", "B", "C"), ("A", "B"), ("C",)]
        assert store.start() == ["A", "B", "C"]
        store.finish("A")
        assert [store.why(each).jobs for each in "DEF"] == [("B", "C"), ("B",), ("C",)]
        assert store.start() == []
        store.finish("C")
        assert store.start() == ["F"]
        assert [store.why(each).jobs for each in "DE"] == [("B",), ("B",)]
        store.finish("B")
        assert store.start() == ["D", "E"]

    def test_one_end_releases_all_that_wait_in_order_of_enqueue(self, store: Store) -> None:
        store.enqueue(job("a"), *[job(f"b{number:03}", ["doc"], after=["a"]) for number in range(300)])
        store.start()
        store.finish("a")
        store.wait(0)
        assert store.stats().states[QUEUED] == 300
        assert store.run()[:3] == ["b000", "b001", "b002"]

    def test_a_fan_in_is_queued_once_however_its_parents_end(self, store: Store) -> None:
        for number, order in enumerate(permutations("abc")):
            for groups in ([order], [order[:1], order[1:]], [order[:2], order[2:]], [(each,) for each in order]):
                names = {each: f"{each}{number}-{len(groups)}{len(groups[0])}" for each in "abcd"}
                store.enqueue(*[job(names[each]) for each in "abc"])
                store.enqueue(job(names["d"], after=[names[each] for each in "abc"]))
                store.start()
                for group in groups:
                    assert store.state(names["d"]) is DEFERRED
                    store.exchange(*[store.outcome(names[each]) for each in group])
                assert store.start() == [names["d"]]
                assert store.start() == []
                store.finish(names["d"])

    def test_a_finished_dependency_opens_no_edge(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        assert store.enqueue(job("b", after=["a"])).jobs[0].state is QUEUED
        assert store.edges().open_edges == 0

    def test_a_job_that_is_scheduled_and_dependent_waits_for_both(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"], delay_ms=1_000), job("c", after=["a"], delay_ms=1_000))
        assert store.states("b", "c") == "SCHEDULED SCHEDULED"
        store.wait(1_000)
        assert store.states("b", "c") == "DEFERRED DEFERRED"
        assert store.run() == ["a", "b", "c"]

    def test_dependency_that_ends_first_leaves_the_scheduled_time(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"], delay_ms=1_000))
        store.run()
        assert store.state("b") is SCHEDULED
        store.wait(1_000)
        assert store.start() == ["b"]

    def test_canceling_one_that_waits_leaves_the_others_waiting(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"]), job("c", after=["a", "b"]))
        assert store.cancel("b") == [Verdict.DONE]
        assert store.why("c").jobs == ("a",)
        assert store.run() == ["a", "c"]

    def test_a_key_and_its_dependencies_are_both_waited_for(self, store: Store) -> None:
        store.enqueue(job("a", key="k"), job("x"))
        store.start()
        store.enqueue(job("b", key="k", on_conflict="after", after=["x"]))
        assert store.why("b").jobs == ("a", "x")
        store.finish("a")
        store.finish("x")
        assert store.start() == ["b"]

    def test_replaced_dependent_of_a_key_keeps_its_edges(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", key="k", after=["a"]))
        store.enqueue(job("c", key="k", on_conflict="replace", arguments=b'{"n":2}'))
        assert (store.state("b"), store.record("b").spec.arguments) == (DEFERRED, b'{"n":2}')
        assert store.run() == ["a", "b"]

    def test_the_same_dependent_again_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a"))
        spec = job("b", after=["a", Dependency("a")], name="n", flow="f")
        assert [store.enqueue(spec.check()).jobs[0].created for _ in "12"] == [True, False]
        assert store.record("b").spec == spec.check()
        with pytest.raises(DuplicateJobError) as caught:
            store.enqueue(job("b", name="n", flow="f"))
        assert caught.value.fields == ("depends_on",)

    def test_edges_of_a_spec_are_returned_unchanged(self, store: Store) -> None:
        store.enqueue(job("a"), job("é"))
        edges = [Dependency("a", name="first", data=True), Dependency("é", when="failure")]
        spec = job("b", after=edges, templates=("/x", "/y~1z"), name="Ü", flow="f", parent="p", **CANCELING)
        other = job("c", after=[Dependency("a", when="done")], templates=True)
        store.enqueue(spec, other)
        assert (store.record("b").spec, store.record("c").spec) == (spec, other)


class Refusals:
    """A submission with a wrong edge is refused as a whole."""

    def test_a_dependency_whose_record_has_expired_is_unknown(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=0))
        store.run()
        store.wait(0)
        with pytest.raises(UnknownDependencyError):
            store.enqueue(job("b", after=["a"]))
        with pytest.raises(UnknownDependencyError):
            store.enqueue(job("a", retention_ms=0), job("b", after=["a"]))


class Ends:
    """The policy of the dependent decides about the end of a dependency."""

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize("on_failure", ON_DEPENDENCY_FAILURE)
    @pytest.mark.parametrize("how", ["finished", "failed", "discarded", "canceled"])
    def test_dependency_end_follows_on_dependency_failure(
        self, store: Store, how: str, on_failure: str, late: bool
    ) -> None:
        expected = {"finished": QUEUED, "failed": DEFERRED}.get(how, QUEUED)
        if how != "finished" and on_failure != "wait":
            expected = CANCELED if on_failure == "cancel" else QUEUED
        dependent = job("b", ["doc"], after=["a"], on_dependency_failure=on_failure)
        store.enqueue(job("a"))
        if not late:
            store.enqueue(dependent)
        end(store, "a", how)
        if late:
            assert store.enqueue(dependent).jobs[0].state is expected
        assert store.state("b") is expected
        if expected is CANCELED:
            cause = "has failed" if how == "failed" else "was canceled"
            assert store.record("b").cause == f"dependency a {cause}"
        elif expected is QUEUED:
            assert store.start() == ["b"]

    def test_a_cancellation_goes_on_down_the_graph(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"], **CANCELING), job("c", after=["b"], **CANCELING))
        end(store, "a", "failed")
        assert [store.record(each).cause for each in "bc"] == ["dependency a has failed", "dependency b was canceled"]

    def test_lost_job_fails_its_dependents_once_dead(self, store: Store) -> None:
        store.enqueue(job("a", max_losses=1), job("b", after=["a"], **CANCELING))
        store.start(lease_ms=30_000)
        store.wait(30_000)
        assert store.record("b").cause == "dependency a has failed"

    def test_a_job_that_expires_cancels_its_dependents(self, store: Store) -> None:
        store.enqueue(job("a", start_within_ms=1_000), job("b", after=["a"], **CANCELING), job("c", after=["a"]))
        store.wait(1_000)
        assert store.states("a", "b", "c") == "CANCELED CANCELED QUEUED"

    def test_a_job_behind_a_dead_one_waits_for_its_redrive(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", ["doc"], after=["a"]))
        store.start()
        store.fail("a", error=error())
        reason = store.why("b")
        assert (reason.kind, reason.jobs, reason.stuck) == (ReasonKind.DEAD_DEPENDENCY, ("a",), True)
        assert store.stats().stuck["dead_dependency"] == 1
        assert store.pending().moving is False
        store.redrive("a")
        assert store.run() == ["a", "b"]

    def test_an_edge_that_was_dropped_is_not_dropped_again(self, store: Store) -> None:
        store.enqueue(
            job("a", max_attempts=1), job("c"), job("b", after=["a", "c"], on_dependency_failure="run"), job("d")
        )
        store.start(2)
        store.fail("a")
        store.redrive("a")
        store.run()
        assert store.states("a", "b", "c", "d") == "FINISHED DEFERRED STARTED FINISHED"
        store.finish("c")
        assert store.start() == ["b"]

    def test_discarding_a_dead_job_counts_as_its_cancellation(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", after=["a"]), job("c", after=[Dependency("a", data=True)]))
        end(store, "a", "failed")
        store.discard("a")
        assert store.states("b", "c") == "QUEUED CANCELED"

    def test_expired_dead_record_cancels_its_dependents(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", after=["a"]), job("c", after=["b"]))
        end(store, "a", "failed")
        store.wait(7 * DAY_MS)
        assert store.find("a") is None
        assert store.record("b").cause == "dependency a has expired"
        assert store.start() == ["c"]


class Downstream:
    """A redrive may revive the jobs that were canceled because of the redriven job."""

    def test_a_redrive_downstream_revives_all_that_fell(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", ["doc"], after=["a"], **CANCELING))
        store.enqueue(job("c", after=["b"], **CANCELING), job("d", ["doc"], after=["a"], **CANCELING))
        end(store, "a", "failed")
        assert store.states("b", "c", "d") == "CANCELED CANCELED CANCELED"
        assert store.apply(Redrive(("a",), downstream=True)).verdicts == ((Verdict.DONE, QUEUED),)
        store.wait(0)
        assert store.states("a", "b", "c", "d") == "QUEUED DEFERRED DEFERRED DEFERRED"
        assert store.record("b").cause is None
        assert store.run() == ["a", "b", "c", "d"]

    def test_a_plain_redrive_revives_nobody(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", after=["a"], **CANCELING))
        end(store, "a", "failed")
        store.redrive("a")
        store.wait(0)
        assert store.state("b") is CANCELED

    def test_dependent_canceled_by_two_stays_canceled_until_both_are_redriven(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("x", max_attempts=1), job("b", after=["a", "x"], **CANCELING))
        store.start()
        store.fail("a")
        store.fail("x")
        store.redrive("a", downstream=True)
        store.wait(0)
        assert store.state("b") is CANCELED
        store.redrive("x", downstream=True)
        store.wait(0)
        assert (store.state("b"), store.why("b").jobs) == (DEFERRED, ("a", "x"))

    def test_job_is_revived_after_its_end_reached_all_dependents(self, store: Store) -> None:
        """While some wait for it yet, a job that it waits for may come to wait for one of them."""
        store.enqueue(job("e"), job("d", max_attempts=1), job("x", after=["d", "e"], **CANCELING))
        for part in range(3):
            store.enqueue(*[job(f"{part}-{number}", after=["x"], **CANCELING) for number in range(1_000)])
        store.enqueue(job("c", after=["x"], **CANCELING))
        store.start()
        store.fail("d")
        store.await_children("e", "c")
        store.redrive("d", downstream=True)
        store.wait(0)
        assert store.run() == ["d"]
        assert store.states("d", "e", "x", "c") == "FINISHED FAILED CANCELED CANCELED"

    def test_expired_dependency_stays_expired_when_its_id_returns(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", max_attempts=1))
        store.enqueue(job("c", after=["a", "b"], retention_ms=3 * DAY_MS, **CANCELING))
        store.start()
        store.finish("a")
        store.fail("b")
        store.wait(2 * DAY_MS)
        assert store.find("a") is None
        store.enqueue(job("a"))
        store.redrive("b", downstream=True)
        store.wait(0)
        assert store.state("c") is CANCELED

    def test_revived_job_regains_its_key_and_flow(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", after=["a"], key="k", flow="f", **CANCELING))
        end(store, "a", "failed")
        store.redrive("a", downstream=True)
        store.wait(0)
        assert store.enqueue(job("c", key="k")).jobs[0].id == "b"
        assert store.flow("f").states[DEFERRED] == 1
