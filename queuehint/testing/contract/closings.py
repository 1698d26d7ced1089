"""The rules of a path that is closed behind a last job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint import operations as op
from queuehint.errors import DuplicateJobError, InvalidJobError, PathClosedError
from queuehint.testing.driver import claim, job
from queuehint.values.limit import Limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store
    from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def close_with(store: Store, last: JobSpec, *path: str, waiting: op.BeforeLast = "cancel") -> op.EnqueuedJob:
    """Close a path with its last job."""
    return store.apply(op.Enqueue((last,), closing=op.Closing(path, waiting))).jobs[0]


class LastJobs:
    """No job is accepted behind the last job of a closed path, from any client and after any wait."""

    def test_closing_cancels_waiting_jobs_and_orders_last_after_running_ones(self, store: Store) -> None:
        store.enqueue(job("running", ["doc", "1"], max_attempts=5))
        store.start()
        store.enqueue(
            job("at", ["doc"]),
            job("below", ["doc", "1"]),
            job("timed", ["doc"], delay_ms=1000),
            job("deferred", ["doc", "2"], after=["running"]),
            job("one_of_two", claims=(claim("doc", "3"), claim("z"))),
            job("beside", ["doc1"]),
            job("none"),
        )
        made = close_with(store, job("last", ["doc"]), "doc")
        assert (made.created, made.state) == (True, QUEUED)
        assert store.states("at", "below", "timed", "deferred", "one_of_two") == " ".join(["CANCELED"] * 5)
        assert store.record("below").cause == "closed with last as the last job"
        assert store.exchange().canceled == ("running",)
        assert store.start() == ["beside", "none"]
        # It was asked to stop, so it is not tried again.
        store.settle("running", OutcomeKind.FAILED, delay_ms=0)
        assert store.state("running") is CANCELED
        assert store.start() == ["last"]

    def test_closed_path_refuses_jobs_before_and_after_the_last(self, store: Store) -> None:
        store.enqueue(job("parent", ["doc"]))
        store.start()
        close_with(store, job("last", ["doc"]), "doc")
        for hint in (["doc"], ["doc", "1"]):
            with pytest.raises(PathClosedError, match="path 'doc' is closed"):
                store.enqueue(job("late", hint))
        store.enqueue(job("above", []), job("beside", ["doc1"]))
        store.finish("parent")
        assert store.run() == ["last", "above", "beside"]
        with pytest.raises(PathClosedError):
            store.enqueue(job("late", ["doc"]))
        assert store.apply(op.Close(("doc",), reopen=True)).changed
        assert store.enqueue(job("late", ["doc"])).jobs[0].created

    def test_where_another_job_was_the_last_none_is_run_again(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("b", ["z"]))
        store.run()
        close_with(store, job("last", ["doc"]), "doc")
        assert store.rerun("a") == [(op.Verdict.REFUSED, FINISHED)]
        assert store.rerun("b") == [(op.Verdict.DONE, QUEUED)]

    def test_closing_with_run_lets_placed_jobs_precede_the_last(self, store: Store) -> None:
        store.enqueue(
            job("a", ["doc", "1"]),
            job("b", ["doc", "2"], on_retry="yield", max_attempts=5),
            job("timed", ["doc"], delay_ms=1000),
            job("other"),
        )
        store.enqueue(job("deferred", ["doc", "3"], after=["other"]))
        close_with(store, job("last", ["doc"]), "doc", waiting="run")
        assert store.states("a", "b", "timed", "deferred") == "QUEUED QUEUED SCHEDULED DEFERRED"
        assert store.start() == ["a", "b", "other"]
        store.finish("other")
        assert (store.state("deferred"), store.record("deferred").cause) == (
            CANCELED,
            "closed with last as the last job",
        )
        # It gives its place up between attempts, and gets none behind the last job.
        store.settle("b", OutcomeKind.FAILED, delay_ms=500)
        store.finish("a")
        assert store.start() == ["last"]
        store.wait(1000)
        assert store.states("b", "timed") == "CANCELED CANCELED"
        store.finish("last")
        assert store.is_clean

    def test_jobs_of_a_submission_that_is_committed_later_are_canceled(self, store: Store) -> None:
        store.apply(op.Enqueue((job("a", ["doc", "1"]), job("b", ["else"]), job("c", ["doc"], delay_ms=5)), staged="s"))
        close_with(store, job("last", ["doc"]), "doc")
        store.apply(op.Commit("s", 3))
        store.wait(0)
        assert store.states("a", "b", "c") == "CANCELED QUEUED CANCELED"
        assert sorted(store.run()) == ["b", "last"]

    def test_asked_for_again_it_changes_nothing(self, store: Store) -> None:
        last = job("last", ["doc"])
        close_with(store, last, "doc")
        before = store.visible()
        again = close_with(store, last, "doc")
        assert (again.created, again.state) == (False, QUEUED)
        assert store.visible() == before
        assert store.run() == ["last"]
        assert close_with(store, last, "doc").state is FINISHED

    def test_a_job_that_is_there_already_is_not_the_last(self, store: Store) -> None:
        last = job("last", ["doc"])
        store.enqueue(last, job("late", ["doc"]))
        with pytest.raises(DuplicateJobError, match="job 'last' exists, and not as the last job of path 'doc'"):
            close_with(store, last, "doc")
        store.apply(op.Close(("doc",)))
        with pytest.raises(DuplicateJobError):
            close_with(store, last, "doc")
        assert store.run() == ["last", "late"]

    def test_another_last_job_takes_the_place_of_the_first(self, store: Store) -> None:
        close_with(store, job("first", ["doc", "1"]), "doc", "1")
        close_with(store, job("second", ["doc"]), "doc")
        close_with(store, job("third", ["doc"]), "doc")
        assert store.states("first", "second") == "CANCELED CANCELED"
        assert store.run() == ["third"]

    def test_closing_passes_closed_paths_below_and_is_refused_under_one(self, store: Store) -> None:
        store.apply(op.Close(("doc",)))
        store.apply(op.Close(("doc", "1")))
        close_with(store, job("last", claims=(claim("doc"), claim("list"))), "doc")
        store.apply(op.Close(("list",)))
        with pytest.raises(PathClosedError, match="path 'list'"):
            close_with(store, job("other", claims=(claim("doc"), claim("list"))), "doc")
        with pytest.raises(PathClosedError, match="path 'doc'"):
            close_with(store, job("other", ["doc", "1"]), "doc", "1")
        assert store.apply(op.Close(("doc",))).changed is False
        assert store.run() == ["last"]

    def test_closing_ignores_max_pending(self, store: Store) -> None:
        store.apply(op.SetLimit(Limit(path=("doc",), max_pending=1)))
        store.enqueue(job("a", ["doc"]))
        assert close_with(store, job("last", ["doc"]), "doc").created

    def test_failed_last_job_is_retried_and_the_path_stays_closed(self, store: Store) -> None:
        close_with(store, job("last", ["doc"], on_retry="yield", max_attempts=2), "doc")
        store.start()
        store.settle("last", OutcomeKind.FAILED, delay_ms=1000)
        store.wait(1000)
        assert store.start() == ["last"]
        store.fail("last")
        assert store.state("last") is FAILED
        with pytest.raises(PathClosedError):
            store.enqueue(job("late", ["doc"]))
        assert store.redrive("last") == [op.Verdict.DONE]
        assert store.run() == ["last"]

    def test_dead_job_of_a_closed_path_loses_its_place(self, store: Store) -> None:
        store.enqueue(
            job("held", ["doc", "1"], max_attempts=1, on_dead="hold"), job("dead", ["doc", "2"], max_attempts=1)
        )
        store.enqueue(job("after", after=["held"]))
        store.start()
        store.fail("held")
        store.fail("dead")
        close_with(store, job("last", ["doc"]), "doc")
        assert (store.states("held", "dead", "after"), store.record("held").cause) == (
            "CANCELED FAILED QUEUED",
            "discarded",
        )
        assert store.redrive("dead") == [op.Verdict.REFUSED]
        assert sorted(store.run()) == ["after", "last"]
        store.apply(op.Close(("doc",), reopen=True))
        assert store.redrive("dead") == [op.Verdict.DONE]

    def test_dead_job_that_goes_first_holds_its_place_until_discarded(self, store: Store) -> None:
        store.enqueue(job("held", ["doc", "1"], max_attempts=1, on_dead="hold"))
        store.start()
        store.fail("held")
        close_with(store, job("last", ["doc"]), "doc", waiting="run")
        assert store.start() == []
        assert store.why("last").kind is ReasonKind.DEAD_HOLD
        assert store.redrive("held") == [op.Verdict.REFUSED]
        store.discard("held")
        assert store.run() == ["last"]

    def test_closing_keeps_canceled_dependents_from_being_revived(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.enqueue(job("b", ["doc"], after=["a"], on_dependency_failure="cancel"))
        store.start()
        store.fail("a")
        close_with(store, job("last", ["doc"]), "doc")
        store.redrive("a", downstream=True)
        store.wait(0)
        assert store.states("a", "b") == "QUEUED CANCELED"

    def test_malformed_last_job_is_refused_and_closes_nothing(self, store: Store) -> None:
        at_doc = op.Closing(("doc",))
        refused = {
            "no exclusive claim at 'doc', the path to close; its claims are 'doc:1'": op.Enqueue(
                (job("a", ["doc", "1"]),), closing=at_doc
            ),
            "its claims are none": op.Enqueue((job("a"),), closing=at_doc),
            "has a key": op.Enqueue((job("a", ["doc"], key="k"),), closing=at_doc),
            "2 jobs in one operation, limit 1": op.Enqueue((job("a", ["doc"]), job("b")), closing=at_doc),
            "0 jobs in one operation, limit 1": op.Enqueue((), closing=at_doc),
            "must have no flow": op.Enqueue((job("a", ["doc"]),), staged="s", closing=at_doc),
        }
        for text, operation in refused.items():
            with pytest.raises(InvalidJobError, match=text):
                store.apply(operation)
        assert store.enqueue(job("a", ["doc"])).jobs[0].created
