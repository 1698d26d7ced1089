"""The rules of ends: the last attempt or loss, the policy for dead jobs, dead letters, and the deadline to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint import operations as op
from queuehint.core.jobs.lifecycle import ID_KEPT_MS
from queuehint.testing.contract.store import DAY_MS, error
from queuehint.testing.driver import SHARED, claim, job
from queuehint.values.outcome import JobError, OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.record_filter import DEAD_RECORDS

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Attempts:
    """Attempts and losses are counted apart, and the last one is the end."""

    def test_finished_job_keeps_its_result_and_no_place(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.start()
        store.advance(1500)
        store.settle("a", result=b"42")
        record = store.record("a")
        assert (record.state, record.result, record.attempts, record.cause) == (FINISHED, b"42", 1, None)
        assert (record.enqueued_ms, record.queued_ms, record.started_ms, record.ended_ms) == (
            *[store.began_ms] * 3,
            store.began_ms + 1500,
        )
        assert (record.seq, record.worker) == (None, None)
        assert store.is_clean

    def test_a_job_is_dead_after_its_last_attempt(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], max_attempts=3))
        for attempt in range(1, 4):
            assert store.state("a") is QUEUED
            store.start()
            store.fail("a", error=error())
            assert store.record("a").attempts == attempt
        record = store.record("a")
        assert (record.state, record.cause, [error.attempt for error in record.errors]) == (FAILED, "failed", [1, 2, 3])

    def test_a_discarded_attempt_cancels_the_job_with_its_reason(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]))
        store.start()
        store.settle("a", OutcomeKind.DISCARDED, reason="the document is gone")
        assert (store.state("a"), store.record("a").cause) == (CANCELED, "the document is gone")
        store.start()
        store.settle("b", OutcomeKind.DISCARDED)
        assert (store.state("b"), store.record("b").cause) == (CANCELED, "discarded")

    @pytest.mark.parametrize("max_losses", [1, 3])
    @pytest.mark.parametrize("how", ["crash", "exit"])
    def test_a_job_is_dead_after_exactly_max_losses_grants(self, store: Store, max_losses: int, how: str) -> None:
        store.enqueue(job("a", ["x"], max_losses=max_losses, max_attempts=1))
        grants = 0
        while store.start():
            grants += 1
            if how == "crash":
                store.wait(30_000)
            else:
                store.settle("a", OutcomeKind.LOST, error=JobError(type="SystemExit", message="3"))
        record = store.record("a")
        assert (grants, record.losses, record.attempts) == (max_losses, max_losses, 0)
        assert (record.state, record.cause) == (FAILED, "worker_lost")
        assert len(record.errors) == max_losses
        assert store.stats().lost == max_losses

    def test_losses_and_attempts_are_counted_apart(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], max_losses=2, max_attempts=2))
        store.start()
        store.fail("a")
        store.start()
        store.settle("a", OutcomeKind.LOST)
        assert (store.record("a").attempts, store.record("a").losses, store.state("a")) == (1, 1, QUEUED)
        store.start()
        store.fail("a")
        assert store.state("a") is FAILED


def let_first_die(store: Store, on_dead: str, **fields: Any) -> None:
    """Make j1 dead; behind it wait j2 on its path, `below`, `above` and `late`."""
    store.enqueue(
        job("j1", ["a", "b"], on_dead=on_dead, max_attempts=1, **fields),
        job("j2", ["a", "b"]),
        job("below", ["a", "b", "c"]),
        job("above", ["a"]),
        job("late", ["a", "b"]),
    )
    assert store.start() == ["j1"]
    store.fail("j1", error=error())
    assert store.state("j1") is FAILED


class OnDead:
    """The policy of a dead job decides about the jobs behind it on its path."""

    def test_on_dead_hold_keeps_the_place_until_it_is_discarded(self, store: Store) -> None:
        let_first_die(store, "hold")
        assert store.start() == []
        assert store.stats().stuck["dead_hold"] == 1
        assert store.discard("j1") == [op.Verdict.DONE]
        assert (store.state("j1"), store.record("j1").cause) == (CANCELED, "discarded")
        assert store.run() == ["j2", "below", "above", "late"]
        assert store.is_clean

    def test_on_dead_hold_keeps_the_place_until_its_record_expires(self, store: Store) -> None:
        let_first_die(store, "hold")
        store.wait(7 * DAY_MS - 1)
        assert store.start() == []
        store.wait(1)
        assert store.find("j1") is None
        assert store.run() == ["j2", "below", "above", "late"]

    def test_on_dead_hold_without_a_place_holds_nothing(self, store: Store) -> None:
        store.enqueue(job("a", on_dead="hold", max_attempts=1))
        store.start()
        store.fail("a")
        assert store.stats().stuck["dead_hold"] == 0
        assert store.discard("a") == [op.Verdict.DONE]
        assert store.state("a") is CANCELED

    def test_cancel_behind_cancels_jobs_behind_and_frees_the_place(self, store: Store) -> None:
        let_first_die(store, "cancel_behind")
        assert store.states("j2", "below", "late") == "CANCELED CANCELED CANCELED"
        assert store.record("below").cause == "behind the dead job j1"
        assert store.state("above") is QUEUED
        assert store.stats().stuck["dead_hold"] == 0
        assert store.run() == ["above"]
        assert store.is_clean

    def test_cancel_behind_spares_earlier_places_and_unqueued_jobs(self, store: Store) -> None:
        store.enqueue(
            job("before", claims=(claim("x"), claim("a", "c", mode=SHARED))),
            job("dies", claims=(claim("a", "b"), claim("z")), on_dead="cancel_behind", max_attempts=1),
            job("timed", ["a", "b"], delay_ms=1000),
            job("behind", claims=(claim("z", "1"), claim("y"))),
        )
        assert store.start() == ["before", "dies"]
        store.fail("dies")
        assert store.states("before", "timed", "behind") == "STARTED SCHEDULED CANCELED"
        store.wait(1000)
        assert store.start() == ["timed"]

    def test_cancel_behind_without_a_place_cancels_nothing(self, store: Store) -> None:
        store.enqueue(job("dies", on_dead="cancel_behind", max_attempts=1), job("other", ["a"]))
        store.start(1)
        store.fail("dies")
        assert store.states("dies", "other") == "FAILED QUEUED"

    def test_a_death_by_losses_does_as_on_dead_says_too(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], on_dead="hold", max_losses=1), job("b", ["x"]))
        store.start()
        store.wait(30_000)
        assert (store.state("a"), store.start()) == (FAILED, [])


class DeadLetters:
    """A dead job is redriven or discarded, and nothing else is."""

    def test_redriven_job_that_held_its_place_precedes_jobs_behind(self, store: Store) -> None:
        let_first_die(store, "hold")
        seq = store.record("j1").seq
        assert store.redrive("j1") == [op.Verdict.DONE]
        record = store.record("j1")
        assert (record.state, record.seq, record.attempts, record.losses, record.cause) == (QUEUED, seq, 0, 0, None)
        assert (record.ended_ms, record.result) == (None, None)
        assert [error.message for error in record.errors] == ["no"]
        assert store.run() == ["j1", "j2", "below", "above", "late"]
        assert store.stats().stuck["dead_hold"] == 0

    def test_several_are_redriven_in_order_of_enqueue_and_each_once(self, store: Store) -> None:
        store.enqueue(*[job(f"j{number}", ["x"], max_attempts=1) for number in range(3)])
        for number in range(3):
            store.start()
            store.fail(f"j{number}")
        assert store.redrive("j2", "j0", "j1", "j0") == [op.Verdict.DONE] * 4
        assert store.run() == ["j0", "j1", "j2"]

    def test_a_redriven_job_may_die_again(self, store: Store) -> None:
        let_first_die(store, "hold")
        for _ in range(3):
            store.redrive("j1")
            store.start()
            store.fail("j1")
            assert store.state("j1") is FAILED
        assert store.discard("j1") == [op.Verdict.DONE]
        assert store.run() == ["j2", "below", "above", "late"]

    @pytest.mark.parametrize("operation", [op.Redrive, op.Discard])
    def test_redrive_and_discard_accept_only_dead_jobs(
        self, store: Store, operation: type[op.Redrive | op.Discard]
    ) -> None:
        store.enqueue(job("finished"), job("timed", delay_ms=1), job("queued"), job("canceled"))
        store.cancel("canceled")
        assert store.start(1) == ["finished"]
        store.finish("finished")
        before = store.visible()
        reply = store.apply(operation(("finished", "timed", "queued", "canceled", "nobody")))
        assert reply.verdicts == (
            (op.Verdict.REFUSED, FINISHED),
            (op.Verdict.REFUSED, SCHEDULED),
            (op.Verdict.REFUSED, QUEUED),
            (op.Verdict.REFUSED, CANCELED),
            (op.Verdict.UNKNOWN, None),
        )
        assert store.visible() == before

    def test_dead_letters_are_paged_in_order_of_enqueue(self, store: Store) -> None:
        store.enqueue(*[job(f"j{number}", max_attempts=1) for number in range(5)])
        for number in reversed(range(5)):
            store.start()
            store.fail(f"j{number}")
        page = store.apply(op.List(DEAD_RECORDS, limit=2))
        assert [record.id for record in page.records] == ["j0", "j1"]
        page = store.apply(op.List(DEAD_RECORDS, after=page.after, limit=3))
        assert ([record.id for record in page.records], page.after) == (["j2", "j3", "j4"], None)
        page = store.apply(op.List(DEAD_RECORDS, newest_first=True, limit=2))
        assert [record.id for record in page.records] == ["j4", "j3"]
        page = store.apply(op.List(DEAD_RECORDS, newest_first=True, after=page.after))
        assert ([record.id for record in page.records], page.after) == (["j2", "j1", "j0"], None)
        store.discard("j2")
        store.redrive("j3")
        assert [record.id for record in store.apply(op.List(DEAD_RECORDS)).records] == ["j0", "j1", "j4"]

    def test_a_discarded_job_is_kept_as_a_canceled_one(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.start()
        store.fail("a")
        store.wait(6 * DAY_MS)
        store.discard("a")
        store.wait(DAY_MS - 1)
        assert store.state("a") is CANCELED
        store.wait(1)
        assert store.find("a") is None

    @pytest.mark.parametrize("move, state", [(op.Redrive, QUEUED), (op.Discard, CANCELED)])
    def test_redriven_or_discarded_job_outlives_its_old_expiry(
        self, store: Store, move: type[op.Redrive | op.Discard], state: JobState
    ) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.start()
        store.fail("a")
        store.advance(7 * DAY_MS)
        assert store.apply(move(("a",))).verdicts == ((op.Verdict.DONE, state),)
        store.wait(0)
        assert store.state("a") is state

    def test_dead_job_leaves_the_dead_letter_queue_with_its_record(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], retention_ms=0, on_dead="hold", max_attempts=1), job("b", ["x"]))
        store.start()
        store.fail("a")
        assert store.find("a") is None
        assert store.apply(op.List(DEAD_RECORDS)).records == ()
        assert store.start() == ["b"]
        store.wait(ID_KEPT_MS)
        assert store.stats().pruned == 1


class StartWithin:
    """A job that is not started in time is canceled."""

    def test_a_job_not_started_in_time_is_canceled_as_expired(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"], start_within_ms=1000), job("c", ["x"]))
        store.start()
        store.wait(999)
        assert store.state("b") is QUEUED
        store.wait(1)
        assert (store.state("b"), store.record("b").cause) == (CANCELED, "expired")
        store.finish("a")
        assert store.run() == ["c"]

    def test_a_job_that_was_started_in_time_never_expires(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], start_within_ms=1000))
        store.start()
        store.fail("a", delay_ms=5000)
        store.wait(4999)
        assert store.state("a") is QUEUED
        store.wait(1)
        assert store.run() == ["a"]

    def test_a_ready_job_that_expires_is_offered_no_more(self, store: Store) -> None:
        store.enqueue(job("a", start_within_ms=1000))
        store.wait(1000)
        assert (store.start(), store.state("a")) == ([], CANCELED)
