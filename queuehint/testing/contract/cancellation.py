"""The rules of cancellation, by id and by path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint.core.jobs.lifecycle import ID_KEPT_MS
from queuehint.operations import Cancel, CancelPath, Verdict
from queuehint.testing.driver import claim, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def fill_every_state(store: Store) -> None:
    """Make a job in every state, and in every way to be QUEUED."""
    store.enqueue(
        job("started", ["x"], key="k"),
        job("finished"),
        job("failed", max_attempts=1),
        job("backing_off", ["y"]),
        job("stranger", ["z"]),
    )
    store.start()
    store.settle("backing_off", OutcomeKind.FAILED, delay_ms=10_000)
    store.settle("stranger", OutcomeKind.UNKNOWN_TASK)
    store.finish("finished")
    store.fail("failed")
    store.enqueue(
        job("deferred", ["x"], key="k", on_conflict="after"),
        job("scheduled", ["x"], delay_ms=1000),
        job("waiting", ["x"]),
        job("canceled"),
        job("parked", ["paused"]),
    )
    store.cancel("canceled")
    store.pause("paused")
    assert store.start() == []
    store.enqueue(job("ready"))


class CanceledByIds:
    """An unfinished job is canceled at once. A running job is requested to stop."""

    def test_cancel_ends_waiting_jobs_and_requests_running_ones(self, store: Store) -> None:
        fill_every_state(store)
        expected = {
            "scheduled": (Verdict.DONE, CANCELED),
            "deferred": (Verdict.DONE, CANCELED),
            "waiting": (Verdict.DONE, CANCELED),
            "backing_off": (Verdict.DONE, CANCELED),
            "stranger": (Verdict.DONE, CANCELED),
            "parked": (Verdict.DONE, CANCELED),
            "ready": (Verdict.DONE, CANCELED),
            "started": (Verdict.REQUESTED, STARTED),
            "finished": (Verdict.REFUSED, FINISHED),
            "failed": (Verdict.REFUSED, FAILED),
            "canceled": (Verdict.REFUSED, CANCELED),
            "nobody": (Verdict.UNKNOWN, None),
        }
        reply = store.apply(Cancel(tuple(expected), "no need"))
        assert dict(zip(expected, reply.verdicts, strict=True)) == expected
        for job_id, (verdict, state) in expected.items():
            if verdict is Verdict.DONE:
                assert (store.state(job_id), store.record(job_id).cause) == (state, "no need")
        store.finish("started")
        assert store.is_clean

    @pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.FINISHED])
    def test_any_other_end_after_a_cancellation_makes_it_canceled(self, store: Store, kind: OutcomeKind) -> None:
        store.enqueue(job("a", ["x"], on_dead="hold"), job("b", ["x"]))
        store.start()
        store.apply(Cancel(("a",), "no need"))
        assert store.settle("a", kind, delay_ms=1000, reason="other") is Verdict.DONE
        assert (store.state("a"), store.record("a").cause) == (CANCELED, "no need")
        assert store.run() == ["b"]

    def test_worker_lost_after_a_cancellation_leaves_the_job_canceled(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.start()
        store.cancel("a")
        store.wait(30_000)
        assert (store.state("a"), store.record("a").cause, store.stats().lost) == (CANCELED, "canceled", 1)
        assert store.is_clean

    def test_a_second_cancellation_keeps_the_first_reason(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.apply(Cancel(("a",), "first"))
        assert store.apply(Cancel(("a",), "second")).verdicts == ((Verdict.REQUESTED, STARTED),)
        assert store.record("a").cause == "first"

    def test_renewal_repeats_a_cancellation_until_an_exchange_reports_it(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("c"))
        store.start()
        store.cancel("b", "c")
        assert store.renew("a", "b") == [Verdict.DONE, Verdict.CANCELED]
        assert store.renew("b") == [Verdict.CANCELED]
        assert store.exchange().canceled == ("c",)
        store.wait(29_999)
        assert store.state("b") is STARTED

    def test_a_settled_job_is_not_told_of_any_more(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.start()
        store.cancel("a", "b")
        assert store.exchange(store.outcome("a")).canceled == ("b",)
        assert store.is_clean is False
        store.finish("b")
        assert store.is_clean


class CanceledByPath:
    """Jobs with a place at or below a path are canceled."""

    def test_cancel_by_path_covers_only_the_path_and_below(self, store: Store) -> None:
        store.enqueue(
            job("running", ["a", "b"]),
            job("at", ["a"]),
            job("below", ["a", "b", "c"]),
            job("one_of_two", claims=(claim("a", "x"), claim("z"))),
            job("above", []),
            job("beside", ["ab"]),
            job("like", ["a:b"]),
            job("none"),
        )
        store.start(1)
        assert store.apply(CancelPath(("a",), "document closed")).more is False
        assert store.states("at", "below", "one_of_two") == "CANCELED CANCELED CANCELED"
        assert store.record("below").cause == "document closed"
        assert store.states("above", "beside", "like", "none") == "QUEUED QUEUED QUEUED QUEUED"
        assert store.record("running").cancel_requested
        assert store.exchange().canceled == ("running",)

    def test_cancel_of_path_named_root_covers_paths_below(self, store: Store) -> None:
        store.enqueue(job("at", ["root"]), job("below", ["root", "x"]), job("beside", ["a"]))
        store.cancel_path("root")
        assert store.states("at", "below", "beside") == "CANCELED CANCELED QUEUED"

    def test_cancel_of_the_root_covers_every_placed_job(self, store: Store) -> None:
        store.enqueue(job("a", ["a"]), job("root", []), job("timed", ["b"], delay_ms=5), job("none"))
        store.cancel_path()
        assert store.states("a", "root", "timed", "none") == "CANCELED CANCELED CANCELED QUEUED"
        assert store.record("a").cause == "canceled"

    def test_canceling_an_empty_path_does_nothing(self, store: Store) -> None:
        store.enqueue(job("a", ["a"]))
        assert store.cancel_path("b") is False
        assert store.state("a") is QUEUED


class KeptIds:
    """The id of a job outlives its record."""

    def test_retention_zero_drops_the_record_and_keeps_the_id(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], retention_ms=0))
        store.start()
        store.settle("a", result=b"1")
        assert store.find("a") is None
        assert sum(store.stats().states.values()) == 0
        again = store.enqueue(job("a", ["x"], retention_ms=0)).jobs[0]
        assert (again.created, again.state) == (False, FINISHED)
        for verdicts in (store.cancel("a"), store.redrive("a"), store.discard("a")):
            assert verdicts == [Verdict.UNKNOWN]
        store.wait(ID_KEPT_MS - 1)
        assert store.stats().pruned == 0
        store.wait(1)
        assert store.stats().pruned == 1
        assert store.enqueue(job("a", ["x"], retention_ms=0)).jobs[0].created
