"""The rules of a fan-in: dependencies added in portions have the same effect as those of the spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint import operations as op
from queuehint.errors import CycleError, FlowNotFoundError, InvalidJobError, UnknownDependencyError
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind
from queuehint.values.spec import PORTION_MAX, Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def gather(store: Store, *, on_failure: str = "wait", ids: str = "abcd", last: str = "last") -> None:
    """Enqueue jobs and a dependent of all, with one dependency in its spec and the others in two portions."""
    store.enqueue(*[job(each, max_attempts=1) for each in ids])
    store.stage("T", job(last, ["x"], after=ids[0], on_dependency_failure=on_failure))
    assert store.depend("T", last, 1, *ids[1:3], on_failure=on_failure)
    assert store.depend("T", last, 2, *ids[3:], on_failure=on_failure)
    assert store.commit("T") == 1


class FanIn:
    """A job may have more dependencies than fit into one operation."""

    def test_a_job_waits_for_the_jobs_of_all_portions(self, store: Store) -> None:
        gather(store)
        reason = store.why("last")
        assert (reason.kind, reason.jobs, reason.open_dependencies) == (ReasonKind.DEPENDENCY, tuple("abcd"), 4)
        assert reason.dependencies == 4
        edges = store.edges()
        assert (edges.deferred, edges.open_edges, edges.most_blocked, edges.orphans) == (1, 4, 4, ())
        store.start()
        store.finish("d", "a", "b")
        assert (store.state("last"), store.record("last").open_dependencies) == (DEFERRED, 1)
        assert (store.why("last").open_dependencies, store.why("last").dependencies) == (1, 4)
        store.finish("c")
        assert store.run() == ["last"]
        assert store.is_clean

    def test_dependencies_in_portions_are_each_stored_once(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("c"))
        store.stage("T", job("last", ["x"]))
        assert store.depend("T", "last", 1, "a", "b")
        assert store.depend("T", "last", 2, "c")
        assert store.commit("T") == 1
        assert (store.why("last").open_dependencies, store.why("last").dependencies) == (3, 3)
        assert store.run() == ["a", "b", "c", "last"]
        assert store.is_clean

    @pytest.mark.parametrize("on_failure", ["wait", "cancel", "run"])
    def test_dependency_of_a_portion_ends_as_its_edge_prescribes(self, store: Store, on_failure: str) -> None:
        gather(store, on_failure=on_failure)
        store.start()
        store.finish("a", "b", "c")
        store.fail("d")
        state = {"wait": DEFERRED, "cancel": CANCELED, "run": QUEUED}[on_failure]
        cause = "dependency d has failed" if on_failure == "cancel" else None
        assert (store.state("last"), store.record("last").cause) == (state, cause)
        assert store.why("last").jobs == (("d",) if on_failure == "wait" else ())
        store.redrive("d", downstream=True)
        store.wait(0)
        if on_failure != "run":
            assert store.record("last").open_dependencies == 1
        assert store.run() == ["d", "last"]
        assert store.is_clean

    @pytest.mark.parametrize("portion", ["first", "second"])
    def test_portion_that_failed_meanwhile_is_judged_at_commit(self, store: Store, portion: str) -> None:
        store.enqueue(job("a"), job("b", max_attempts=1))
        store.stage("T", job("last", on_dependency_failure="cancel"))
        store.depend("T", "last", 1, *("b" if portion == "first" else "a"), on_failure="cancel")
        store.depend("T", "last", 2, *("a" if portion == "first" else "b"), on_failure="cancel")
        store.start()
        store.fail("b")
        store.commit("T")
        assert (store.state("last"), store.record("last").cause) == (CANCELED, "dependency b has failed")
        store.redrive("b", downstream=True)
        store.wait(0)
        assert store.why("last").jobs == ("a", "b")
        store.finish("a")
        assert store.run() == ["b", "last"]
        assert store.is_clean

    def test_results_of_all_portions_are_kept_for_the_job(self, store: Store) -> None:
        gather(store, ids="abc")
        store.start()
        for each in "abc":
            store.settle(each, result=each.encode())
        store.wait(DAY_MS * 30)
        assert not any(verdict is op.Verdict.DONE for verdict in store.apply(op.Delete(tuple("abc"))).verdicts)
        assert store.start() == ["last"]
        store.enqueue(job("other"))
        reply = store.fetch("last", "a", "b", "c", "other")
        assert [payload for _, payload in reply.results] == [b"a", b"b", b"c", None]
        store.finish("last")
        store.wait(DAY_MS * 30)
        assert [store.find(each) for each in ("a", "b", "c", "last")] == [None] * 4

    def test_a_canceled_job_keeps_no_dependency_of_a_portion(self, store: Store) -> None:
        gather(store)
        store.cancel("last")
        assert store.edges().open_edges == 0
        assert store.run(9) == ["a", "b", "c", "d"]
        store.wait(DAY_MS * 30)
        assert [store.find(each) for each in ("a", "d", "last")] == [None] * 3

    def test_portion_may_depend_on_earlier_jobs_of_its_submission(self, store: Store) -> None:
        store.stage("T", job("a"), job("b", after=["a"]), job("last"), job("behind"))
        assert store.depend("T", "last", 1, "a", Dependency("b", when="done"))
        with pytest.raises(CycleError):
            store.depend("T", "last", 2, "behind")
        with pytest.raises(CycleError):
            store.depend("T", "last", 2, "last")
        assert store.commit("T") == 4
        assert store.run() == ["a", "b", "last", "behind"]
        assert store.is_clean

    def test_portion_may_depend_on_a_job_committed_just_before(self, store: Store) -> None:
        store.stage("T", job("last"))
        store.stage("S", job("a"))
        store.commit("S")
        assert store.depend("T", "last", 1, "a")
        store.commit("T")
        assert store.why("last").jobs == ("a",)
        assert store.run() == ["a", "last"]

    def test_hundreds_of_dependencies_are_bound_in_several_steps(self, store: Store) -> None:
        ids = [f"j{number:03}" for number in range(520)]
        store.enqueue(*[job(each) for each in ids])
        for last in ("last", "spare"):
            store.stage(last, job(last, ["x"], after=ids, on_dependency_failure="cancel"))
        assert store.commit("last") == store.commit("spare") == 1
        store.cancel("spare")
        while store.apply(op.Tick()).more:
            pass
        assert (store.edges().open_edges, store.why("last").dependencies) == (520, 520)
        assert store.why("last").jobs == tuple(ids[:10])
        store.cancel(ids[0], ids[-1])
        while store.apply(op.Tick()).more:
            pass
        assert (store.state("last"), store.edges().open_edges) == (CANCELED, 0)

    def test_portion_closes_no_cycle_through_an_unordered_part(self, store: Store) -> None:
        store.stage("T", job("a"))
        store.stage("T", job("first", after=["last"]), job("between", after=["first"]), job("last"))
        for other in ("first", "between"):
            with pytest.raises(CycleError):
                store.depend("T", "last", 1, other)
        assert store.depend("T", "last", 1, "a")
        assert store.commit("T") == 4
        assert store.run() == ["a", "last", "first", "between"]
        assert store.is_clean

    def test_a_portion_that_is_refused_changes_nothing(self, store: Store) -> None:
        store.stage("T", job("last"))
        store.stage("S", job("hidden"))
        before = store.everything()
        for unknown in ("nobody", "hidden"):
            with pytest.raises(UnknownDependencyError):
                store.depend("T", "last", 1, unknown)
        with pytest.raises(FlowNotFoundError):
            store.depend("U", "last", 1)
        assert store.everything() == before
        many = tuple([Dependency(str(number)) for number in range(PORTION_MAX + 1)])
        with pytest.raises(InvalidJobError, match=r"more than 1000 go in parts"):
            store.enqueue(job("wide", after=many))
        assert store.everything() == before

    def test_repeated_or_foreign_portion_is_not_added(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("known"))
        store.stage("T", job("last", after=["a"]), job("known"))
        assert store.depend("T", "last", 1, "b")
        for job_id, portion in [("last", 1), ("last", 3), ("known", 1), ("nobody", 1)]:
            assert not store.depend("T", job_id, portion, "a")
        store.commit("T")
        assert store.edges().open_edges == 2
        with pytest.raises(FlowNotFoundError):
            store.depend("T", "last", 2)

    def test_submission_waits_for_its_commit_after_its_last_portion(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.stage("T", job("last"))
        store.wait(op.STAGED_KEPT_MS - 1)
        store.depend("T", "last", 1, "a")
        store.wait(op.STAGED_KEPT_MS - 1)
        store.stage("S", job("unused"))
        store.depend("S", "unused", 1, "a")
        assert store.commit("T") == 1
        store.wait(op.STAGED_KEPT_MS)
        assert store.run() == ["a", "last"]
        assert store.is_clean
