"""The rules of attempts: retries, cancellation, dead jobs, and the history in the record."""

from __future__ import annotations

from typing import Any, TypeVar

import attrs

from queuehint import (
    Claim,
    JobState,
    OutcomeKind,
)
from queuehint import operations as op
from queuehint.testing.contract.store import Store, error
from queuehint.testing.driver import SHARED, job
from queuehint.values.report import ReasonKind

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Retries:
    """A failed attempt is retried, with its place kept or released, until no attempt is left."""

    def test_a_failed_attempt_keeps_its_place_while_it_waits(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start()
        store.fail("a", error=error(), delay_ms=1_000)
        assert store.start() == []
        assert (store.why("a").kind, store.why("b").jobs) == (ReasonKind.BACKOFF, ("a",))
        store.wait(1_000)
        assert store.start() == ["a"]
        assert store.grants["a"].attempt == 2

    def test_a_failed_attempt_that_yields_lets_others_pass(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], on_retry="yield"), job("b", ["doc"]))
        store.start()
        store.fail("a", error=error(), delay_ms=1_000)
        assert store.state("a") is SCHEDULED
        assert store.start() == ["b"]
        store.wait(1_000)
        assert store.start() == []
        store.finish("b")
        assert store.start() == ["a"]

    def test_a_snooze_counts_for_nothing(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1))
        for _ in range(3):
            store.start()
            store.settle("a", OutcomeKind.SNOOZED, delay_ms=1_000)
            store.wait(1_000)
        assert (store.state("a"), store.record("a").attempts) == (QUEUED, 0)

    def test_last_attempt_leaves_a_dead_job_and_frees_the_path(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], max_attempts=2), job("b", ["doc"]))
        for attempt in (1, 2):
            store.start()
            store.fail("a", error=error(str(attempt)))
        record = store.record("a")
        assert record.state is FAILED
        assert [(e.message, e.attempt) for e in record.errors] == [("1", 1), ("2", 2)]
        assert store.start() == ["b"]

    def test_a_final_failure_leaves_no_attempt(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.fail("a", error=error(), final=True)
        assert store.state("a") is FAILED

    def test_delayed_job_takes_its_place_when_due(self, store: Store) -> None:
        store.enqueue(job("later", ["doc"], delay_ms=1_000), job("now", ["doc"]))
        assert store.states("later", "now") == "SCHEDULED QUEUED"
        store.wait(1_000)
        assert store.run() == ["now", "later"]

    def test_a_time_in_the_past_is_now(self, store: Store) -> None:
        store.enqueue(job("a", run_at_ms=0))
        assert store.state("a") is QUEUED

    def test_start_within_counts_from_the_due_time(self, store: Store) -> None:
        store.enqueue(job("a", delay_ms=1_000, start_within_ms=1_000))
        store.wait(1_999)
        assert store.state("a") is QUEUED
        store.wait(1)
        assert store.state("a") is CANCELED


class Cancellation:
    """Any unfinished job can be canceled. A running job is requested to stop."""

    def test_a_waiting_job_leaves_its_place(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]), job("c", ["doc"]))
        assert store.cancel("b") == [op.Verdict.DONE]
        assert store.run() == ["a", "c"]

    def test_a_running_job_is_asked_and_its_worker_told_once(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(worker="w")
        assert store.cancel("a") == [op.Verdict.REQUESTED]
        assert store.exchange(worker="other").canceled == ()
        assert store.exchange(worker="w").canceled == ("a",)
        assert store.exchange(worker="w").canceled == ()
        assert (store.state("a"), store.record("a").cancel_requested) == (STARTED, True)

    def test_one_that_finishes_all_the_same_is_finished(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.cancel("a")
        store.finish("a")
        assert store.state("a") is FINISHED

    def test_unknown_and_over_jobs_are_named(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        assert store.apply(op.Cancel(("a", "b"))).verdicts == (
            (op.Verdict.REFUSED, FINISHED),
            (op.Verdict.UNKNOWN, None),
        )

    def test_cancel_by_path_covers_jobs_below_and_no_later_ones(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc", "1"]), job("c", ["other"]), job("d"), job("r", []))
        store.cancel_path("doc")
        store.wait(0)
        store.enqueue(job("e", ["doc"]))
        assert store.states("a", "b", "c", "d", "r", "e") == "CANCELED CANCELED QUEUED QUEUED QUEUED QUEUED"

    def test_cancel_by_path_counts_each_job_once(self, store: Store) -> None:
        store.enqueue(job("runs", claims=(Claim(("doc", "1")), Claim(("doc", "2")))), job("over", ["doc", "3"]))
        store.start()
        store.finish("over")
        store.enqueue(job("waits", claims=(Claim(("doc", "1")), Claim(("doc", "2")))), job("below", ["doc", "4"]))
        store.enqueue(job("timed", ["doc"], delay_ms=1_000), job("beside", ["other"]), job("nowhere"))
        assert store.count_path("doc") == 4
        assert store.states("runs", "waits", "below", "timed", "beside") == "STARTED CANCELED CANCELED CANCELED QUEUED"

    def test_cancel_by_path_counts_only_newly_requested_jobs(self, store: Store) -> None:
        store.enqueue(job("runs", ["doc", "1"]), job("too", ["doc", "2"]))
        store.start()
        assert store.count_path("doc") == 2
        assert store.count_path("doc") == 0
        assert store.count_path("nobody", "there") == 0

    def test_long_cancel_by_path_keeps_its_tally_for_ten_minutes(self, store: Store) -> None:
        for part in range(2):
            store.enqueue(*[job(f"{part}-{number}", ["doc", str(number)]) for number in range(700)])
        reply = store.apply(op.CancelPath(("doc",)))
        assert reply.more
        assert reply.number is not None
        assert 0 < reply.reached < 1_400
        assert store.apply(op.Pull(op.TALLIES, str(reply.number))).value is None
        store.wait(0)
        assert store.apply(op.Pull(op.TALLIES, str(reply.number))).value == b"1400"
        store.advance(op.TALLY_MS - 1)
        assert store.apply(op.Pull(op.TALLIES, str(reply.number))).value == b"1400"
        store.advance(1)
        assert store.apply(op.Pull(op.TALLIES, str(reply.number))).value is None


def let_one_die(store: Store, **fields: Any) -> None:
    store.enqueue(job("a", ["doc"], max_attempts=1, **fields), job("b", ["doc"]), job("c", ["doc", "1"]))
    store.start()
    store.fail("a", error=error())


class Dead:
    """A dead job stays in the dead-letter queue until it is redriven or discarded."""

    def test_a_dead_job_holds_its_place_if_asked_to(self, store: Store) -> None:
        let_one_die(store, on_dead="hold")
        assert store.start() == []
        assert (store.why("b").kind, store.why("b").jobs) == (ReasonKind.DEAD_HOLD, ("a",))

    def test_redriven_job_without_a_held_place_goes_last(self, store: Store) -> None:
        let_one_die(store)
        store.redrive("a")
        assert store.run() == ["b", "c", "a"]

    def test_a_dead_job_cancels_nothing_that_came_before_it(self, store: Store) -> None:
        before = job("before", claims=(Claim(("doc", "1"), SHARED),), priority=1)
        dead = job("dead", claims=(Claim(("doc",), SHARED),), priority=5, max_attempts=1, on_dead="cancel_behind")
        store.enqueue(before, dead, attrs.evolve(before, id="behind"))
        assert store.start(limit=1) == ["dead"]
        store.fail("dead", error=error())
        store.wait(0)
        assert store.states("before", "dead", "behind") == "QUEUED FAILED CANCELED"


class History:
    """A record lists the last 20 attempts of its job, each with its worker, times, outcome and error."""

    def test_each_attempt_is_told_as_it_ended(self, store: Store) -> None:
        began = store.clock.now_ms()
        store.enqueue(job("a", ["x"], max_attempts=3, max_losses=2))
        store.start(worker="one")
        store.wait(5)
        store.fail("a", error=error("first"))
        store.start(worker="two w")
        store.settle("a", OutcomeKind.SNOOZED)
        store.start(worker="two w")
        store.settle("a", OutcomeKind.RELEASED)
        store.start(worker="three")
        running = store.record("a").history[-1]
        assert (running.outcome, running.worker, running.ended_ms) == ("started", "three", None)
        store.wait(30_000)
        store.start(worker="four")
        store.finish("a")
        record = store.record("a")
        assert [(attempt.outcome, attempt.worker) for attempt in record.history] == [
            ("retried", "one"),
            ("snoozed", "two w"),
            ("released", "two w"),
            ("lost", "three"),
            ("finished", "four"),
        ]
        assert [attempt.error for attempt in record.history if attempt.error] == list(record.errors)
        assert (record.history[0].started_ms, record.history[0].ended_ms) == (began, began + 5)
        assert (record.history[3].started_ms, record.history[3].ended_ms) == (began + 5, began + 30_005)

    def test_a_job_that_finishes_at_once_has_one_attempt(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b"))
        assert store.record("a").history == ()
        store.start()
        store.wait(7)
        store.finish("a")
        (attempt,) = store.record("a").history
        now = store.clock.now_ms()
        assert (attempt.outcome, attempt.started_ms, attempt.ended_ms) == ("finished", now - 7, now)
        store.cancel("b")
        store.settle("b", OutcomeKind.FAILED, error=error())
        assert [attempt.outcome for attempt in store.record("b").history] == ["canceled"]

    def test_job_ended_at_its_first_attempt_names_its_worker(self, store: Store) -> None:
        def told(*ids: str) -> list[tuple[str | None, list[str]]]:
            records = [store.record(job_id) for job_id in ids]
            return [(record.worker, [attempt.worker for attempt in record.history]) for record in records]

        # A store may keep a job of which there is little to say, and settle one alone, in a shorter way.
        store.enqueue(job("alone", ["x"]))
        store.start(worker="two w")
        store.finish("alone")
        store.enqueue(job("a"), job("keyed", key="k"), job("failed", max_attempts=1), job("canceled"))
        store.start(worker="one")
        assert told("a", "keyed") == [("one", ["one"])] * 2
        store.cancel("canceled")
        outcomes = [store.outcome("a"), store.outcome("keyed")]
        outcomes += [store.outcome(job_id, OutcomeKind.FAILED, error=error()) for job_id in ("failed", "canceled")]
        store.exchange(*outcomes)
        store.enqueue(job("long"))
        store.start(worker="w" * 256)
        store.finish("long")
        assert told("alone", "a", "keyed", "failed", "canceled", "long") == [
            (None, ["two w"]),
            *[(None, ["one"])] * 4,
            (None, ["w" * 256]),
        ]

    def test_parent_and_redriven_dead_job_keep_their_workers(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("p"))
        store.start()
        store.fail("a", error=error("dead"))
        store.enqueue_from("p", job("c"))
        store.await_children("p", "c")
        store.redrive("a")
        store.run()
        store.run()
        assert [attempt.outcome for attempt in store.record("a").history] == ["failed", "finished"]
        assert [attempt.outcome for attempt in store.record("p").history] == ["deferred"]
        assert store.record("p").state is JobState.FINISHED

    def test_the_last_twenty_are_kept(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        for number in range(22):
            store.start(worker=f"w{number}")
            store.settle("a", OutcomeKind.RELEASED)
        assert [attempt.worker for attempt in store.record("a").history] == [f"w{number}" for number in range(2, 22)]

    def test_a_record_tells_when_the_job_last_moved(self, store: Store) -> None:
        began = store.clock.now_ms()
        store.enqueue(job("a", max_attempts=2), job("d", delay_ms=1_000), job("p"))
        assert [store.record(job_id).updated_ms - began for job_id in "adp"] == [0, 0, 0]
        store.wait(5)
        store.start(worker="one")
        assert store.record("a").updated_ms == began + 5
        store.wait(5)
        store.fail("a", error=error(), delay_ms=100)
        store.enqueue_from("p", job("c", delay_ms=10_000))
        store.await_children("p", "c")
        assert [store.record(job_id).updated_ms - began for job_id in "ap"] == [10, 10]
        store.wait(1_000)
        assert [store.record(job_id).updated_ms - began for job_id in "ad"] == [10, 1_010]
        store.run()
        assert [store.record(job_id).updated_ms - began for job_id in "ad"] == [1_010, 1_010]
