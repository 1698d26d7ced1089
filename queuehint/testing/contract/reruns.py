"""The rules of reruns: ended jobs run again, all selected ones or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint import operations as op
from queuehint.errors import InvalidJobError
from queuehint.testing.driver import job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DONE, REQUESTED, REFUSED, UNKNOWN, LOST, _CANCELED_VERDICT, STALE = op.Verdict


class Reruns:
    """A rerun job has its original spec, and waits for the reruns of its dependencies."""

    def test_a_finished_job_runs_again_with_its_history(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], max_attempts=3))
        store.start()
        store.fail("a", delay_ms=0)
        store.start()
        store.finish("a")
        assert store.rerun("a") == [(DONE, QUEUED)]
        record = store.record("a")
        assert (record.state, record.result, record.attempts, record.ended_ms) == (QUEUED, None, 0, None)
        assert store.run() == ["a"]
        record = store.record("a")
        assert (record.state, record.attempts) == (FINISHED, 1)
        assert [attempt.outcome for attempt in record.history] == ["retried", "finished", "finished"]

    def test_rerun_keeps_the_first_attempt_in_the_history(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.wait(5)
        store.finish("a")
        first = store.record("a").history
        store.wait(10)
        store.rerun("a")
        assert store.record("a").history == first
        store.start()
        assert [attempt.outcome for attempt in store.record("a").history] == ["finished", "started"]
        store.fail("a", final=True)
        history = store.record("a").history
        assert (history[0], [attempt.outcome for attempt in history]) == (first[0], ["finished", "failed"])

    def test_rerun_dependents_wait_for_rerun_dependencies(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"]), job("c", after=["b"]), job("d", after=["a", "c"]))
        assert store.run() == ["a", "b", "c", "d"]
        assert store.rerun("d", "a", "c", "b") == [(DONE, each) for each in (DEFERRED, QUEUED, DEFERRED, DEFERRED)]
        assert store.why("d").jobs == ("a", "c")
        assert store.run() == ["a", "b", "c", "d"]
        assert store.states("a", "b", "c", "d") == "FINISHED FINISHED FINISHED FINISHED"

    def test_rerun_leaves_unnamed_jobs_unchanged(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"]), job("c", after=["b"]))
        store.run()
        store.rerun("b")
        assert store.states("a", "b", "c") == "FINISHED QUEUED FINISHED"
        assert store.run() == ["b"]

    def test_a_job_takes_a_new_place(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.run()
        store.enqueue(job("b", ["x"]))
        store.rerun("a")
        assert store.why("a").jobs == ("b",)
        assert store.run() == ["b", "a"]

    @pytest.mark.parametrize("waits", [False, True])
    def test_dead_job_keeps_its_held_place_unless_it_waits(self, store: Store, waits: bool) -> None:
        store.enqueue(job("a"), job("dead", ["x"], after=["a"], on_dead="hold", max_attempts=1))
        store.start()
        store.finish("a")
        store.start()
        store.fail("dead")
        store.enqueue(job("b", ["x"]))
        store.rerun(*(["a", "dead"] if waits else ["dead"]))
        assert store.run() == (["a", "b", "dead"] if waits else ["dead", "b"])
        assert store.stats().stuck["dead_hold"] == 0

    def test_jobs_of_any_end_run_again(self, store: Store) -> None:
        store.enqueue(
            job("a", max_attempts=1),
            job("sorry", after=[Dependency("a", when="failure")]),
            job("b", after=["a"], on_dependency_failure="cancel"),
        )
        store.start()
        store.finish("a")
        store.start()
        store.fail("b", final=True)
        assert store.states("a", "sorry", "b") == "FINISHED CANCELED FAILED"
        assert [state for _, state in store.rerun("a", "sorry", "b")] == [QUEUED, DEFERRED, DEFERRED]
        store.start()
        store.fail("a")
        store.wait(0)
        assert store.states("a", "sorry", "b") == "FAILED QUEUED CANCELED"
        assert store.redrive("a", downstream=True) == [DONE]
        store.wait(0)
        assert store.states("a", "b") == "QUEUED DEFERRED"

    def test_rerun_job_waits_for_running_unnamed_dependencies(self, store: Store) -> None:
        store.enqueue(job("row", max_attempts=1), job("sum", after=[Dependency("row", when="done")]))
        store.start()
        store.fail("row")
        store.run()
        assert store.states("row", "sum") == "FAILED FINISHED"
        store.redrive("row")
        assert store.rerun("sum") == [(DONE, DEFERRED)]
        assert store.run() == ["row", "sum"]

    def test_deferred_job_waits_again_for_rerun_dependencies(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("late", delay_ms=60_000), job("sum", after=["a", "b", "late"]))
        store.start(2)
        store.finish("a", "b")
        assert store.record("sum").open_dependencies == 1
        assert store.rerun("a", "b") == [(DONE, QUEUED)] * 2
        assert store.why("sum").jobs == ("a", "b", "late")
        assert store.record("sum").open_dependencies == 3
        store.wait(60_000)
        assert store.run() == ["a", "b", "late", "sum"]
        assert store.states("a", "sum") == "FINISHED FINISHED"

    def test_rerun_with_another_end_settles_waiting_dependents(self, store: Store) -> None:
        store.enqueue(
            job("a", max_attempts=1),
            job("late", delay_ms=60_000),
            job("strict", after=["a", "late"], on_dependency_failure="cancel"),
            job("loose", after=[Dependency("a", when="done"), Dependency("late")]),
        )
        store.start()
        store.finish("a")
        assert store.rerun("a") == [(DONE, QUEUED)]
        store.start()
        store.fail("a")
        store.wait(0)
        assert store.states("a", "strict", "loose") == "FAILED CANCELED DEFERRED"
        assert store.why("loose").jobs == ("late",)

    def test_dead_job_redriven_during_a_rerun_runs_with_old_results(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", ["x"], after=["a"], max_attempts=1))
        store.start()
        store.finish("a")
        store.start()
        store.fail("b")
        assert store.rerun("a") == [(DONE, QUEUED)]
        assert store.redrive("b") == [DONE]
        assert store.states("a", "b") == "QUEUED QUEUED"

    def test_rerun_downstream_revives_canceled_dependents(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", after=["a"], on_dependency_failure="cancel"))
        store.start()
        store.fail("a")
        store.wait(0)
        assert store.states("a", "b") == "FAILED CANCELED"
        assert store.rerun("a", downstream=True) == [(DONE, QUEUED)]
        store.wait(0)
        assert store.run() == ["a", "b"]

    def test_a_key_is_taken_again(self, store: Store) -> None:
        store.enqueue(job("a", key="k", key_for_ms=1_000))
        store.run()
        store.rerun("a")
        store.wait(5_000)
        assert store.enqueue(job("b", key="k")).jobs[0].id == "a"


class RerunsRefused:
    """All selected jobs run again, or none. No rerun happens twice."""

    def test_of_another_version_nothing_is_run_again(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.run()
        version = store.record("a").version
        other = store.record("b").version
        assert store.rerun("b", "a", versions=(other, version + 1)) == [(REQUESTED, FINISHED), (STALE, FINISHED)]
        assert store.states("a", "b") == "FINISHED FINISHED"
        assert store.rerun("a", versions=(version,)) == [(DONE, QUEUED)]
        assert store.rerun("a", versions=(version,)) == [(REFUSED, QUEUED)]
        store.run()
        assert store.rerun("a", versions=(version,)) == [(STALE, FINISHED)]
        assert store.record("a").history[-1:] and store.states("a", "b") == "FINISHED FINISHED"

    def test_rerun_of_unfinished_or_unknown_jobs_is_refused(self, store: Store) -> None:
        store.enqueue(job("over"))
        store.run()
        store.enqueue(job("late", delay_ms=60_000), job("waits", after=["late"]), job("runs"))
        store.start()
        store.enqueue(job("ready"))
        for name, state in (("late", SCHEDULED), ("waits", DEFERRED), ("runs", STARTED), ("ready", QUEUED)):
            assert store.rerun("over", name) == [(REQUESTED, FINISHED), (REFUSED, state)]
        assert store.rerun("over", "nobody") == [(REQUESTED, FINISHED), (UNKNOWN, None)]
        assert store.state("over") is FINISHED

    def test_rerun_below_a_begun_dependent_is_refused(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"]))
        store.start()
        store.finish("a")
        assert store.state("b") is QUEUED
        assert store.rerun("a") == [(REFUSED, FINISHED)]
        store.start()
        assert store.rerun("a") == [(REFUSED, FINISHED)]
        store.enqueue(job("child", delay_ms=60_000))
        store.settle("b", OutcomeKind.CHILDREN, children=("child",))
        assert store.state("b") is DEFERRED
        assert store.rerun("a") == [(REFUSED, FINISHED)]
        store.cancel("b")
        assert store.rerun("a") == [(DONE, QUEUED)]

    def test_jobs_that_wait_for_a_dead_one_go_on_waiting(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"], max_attempts=1), job("c", after=["b"]))
        store.start()
        store.finish("a")
        store.start()
        store.fail("b")
        assert store.states("a", "b", "c") == "FINISHED FAILED DEFERRED"
        assert store.rerun("a", "b") == [(DONE, QUEUED), (DONE, DEFERRED)]
        assert store.run() == ["a", "b", "c"]

    def test_no_circle_is_closed_through_a_parent(self, store: Store) -> None:
        store.enqueue(job("p", max_attempts=1), job("dead", after=[Dependency("p", when="done")], max_attempts=1))
        store.start()
        store.fail("p")
        store.start()
        store.fail("dead")
        store.enqueue(job("child", after=["dead"]))
        store.redrive("p")
        store.start()
        store.settle("p", OutcomeKind.CHILDREN, children=("child",))
        assert store.states("p", "dead", "child") == "DEFERRED FAILED DEFERRED"
        assert store.rerun("dead") == [(REFUSED, FAILED)]
        assert store.redrive("dead") == [DONE]
        assert store.state("dead") is QUEUED
        assert store.run() == ["dead", "child"]
        assert store.state("p") is FINISHED

    @pytest.mark.parametrize("waits_first", [False, True])
    def test_rerun_closes_no_circle_through_a_waiting_job(self, store: Store, waits_first: bool) -> None:
        store.enqueue(job("p", max_attempts=1), job("a", after=[Dependency("p", when="done")]))
        store.start()
        store.fail("p")
        store.start()
        store.finish("a")
        store.enqueue(job("free"))
        store.run()
        store.enqueue(job("late", delay_ms=60_000), job("child", after=["a", "late"]))
        store.redrive("p")
        store.start()
        if waits_first:
            store.settle("p", OutcomeKind.CHILDREN, children=("child",))
            assert store.rerun("a") == [(REFUSED, FINISHED)]
            assert store.rerun("a", "free") == [(REFUSED, FINISHED), (REQUESTED, FINISHED)]
        else:
            assert store.rerun("a") == [(DONE, DEFERRED)]
            store.settle("p", OutcomeKind.CHILDREN, children=("child",))
            assert store.why("child").jobs == ("a", "late")
        assert store.states("p", "child") == ("DEFERRED DEFERRED" if waits_first else "FAILED DEFERRED")
        store.wait(60_000)
        assert store.run() == (["late", "child"] if waits_first else ["a", "late", "child"])

    def test_rerun_behind_an_expired_dependency_is_refused(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=60_000), job("b", after=["a"], retention_ms=10_000_000))
        store.run()
        store.wait(120_000)
        assert store.find("a") is None
        assert store.rerun("b") == [(REFUSED, FINISHED)]

    def test_rerun_that_dependencies_would_cancel_is_refused(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", after=[Dependency("a", when="failure")]))
        store.run()
        assert store.states("a", "b") == "FINISHED CANCELED"
        assert store.rerun("b") == [(REFUSED, CANCELED)]
        assert [verdict for verdict, _ in store.rerun("a", "b")] == [DONE, DONE]

    def test_a_job_that_is_named_twice_runs_again_once(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        version = store.record("a").version
        assert store.rerun("a", "a") == [(DONE, QUEUED)] * 2
        assert store.record("a").version == version + 1

    @pytest.mark.parametrize(
        "ids, versions, problem",
        [
            (("a",), (1, 2), "again: 2 versions for 1 ids"),
            (("a", "b"), (1,), "again: 1 versions for 2 ids"),
            (tuple(map(str, range(101))), (1,) * 101, "again: 101 in one operation, limit 100"),
        ],
    )
    def test_versions_in_another_number_are_refused(
        self, store: Store, ids: tuple[str, ...], versions: tuple[int, ...], problem: str
    ) -> None:
        with pytest.raises(InvalidJobError, match=problem):
            store.rerun(*ids, versions=versions)
