"""The rules of jobs made due: a wait for a time ends as if the time had come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint import operations as op
from queuehint.errors import InvalidJobError
from queuehint.testing.driver import job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DONE, REFUSED, UNKNOWN = op.Verdict.DONE, op.Verdict.REFUSED, op.Verdict.UNKNOWN


class DueNow:
    """A wait for a time, before the first attempt or the next one, ends now. No other job moves."""

    def test_delayed_job_made_due_takes_place_behind_placed_jobs(self, store: Store) -> None:
        store.enqueue(job("late", ["x"], delay_ms=60_000), job("a", ["x"]), job("timed", ["x"], run_at_ms=10**14))
        number = store.record("late").number
        assert store.apply(op.Redrive(("late",), waiting=True)).verdicts == ((DONE, QUEUED),)
        record = store.record("late")
        assert (record.due_ms, record.number, record.queued_ms) == (None, number, record.enqueued_ms)
        store.enqueue(job("b", ["x"]))
        assert store.run() == ["a", "late", "b"]
        assert store.make_due("timed") == [DONE]
        assert store.run() == ["timed"]
        assert store.is_clean

    def test_debounced_job_made_due_runs_with_its_last_replacement(self, store: Store) -> None:
        stroke: dict[str, Any] = {
            "hint": ["doc1"],
            "key": "save",
            "on_conflict": "replace",
            "delay_ms": 5000,
        }
        store.enqueue(job("a", **stroke, arguments=b"1"))
        store.enqueue(job("b", **stroke, arguments=b"2"))
        assert store.make_due("a") == [DONE]
        assert (store.state("a"), store.record("a").spec.arguments) == (QUEUED, b"2")
        assert store.run() == ["a"]
        store.enqueue(job("c", **stroke))
        assert store.state("c") is SCHEDULED, "a new burst waits as long as any other"

    def test_job_in_backoff_made_due_returns_to_its_kept_place(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]))
        store.start()
        store.fail("a", delay_ms=60_000)
        seq = store.record("a").seq
        assert store.start() == []
        assert store.apply(op.Redrive(("a",), waiting=True)).verdicts == ((DONE, QUEUED),)
        assert (store.record("a").seq, store.record("a").attempts, store.record("a").due_ms) == (seq, 1, None)
        assert store.run() == ["a", "b"]

    def test_job_in_backoff_made_due_takes_a_new_place(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], max_hold_ms=1000), job("b", ["x"]), job("y", ["y"], on_retry="yield"))
        store.start()
        for name in "ay":
            store.fail(name, delay_ms=60_000)
        store.wait(1000)
        assert [store.state(name) for name in "ay"] == [SCHEDULED, SCHEDULED]
        assert store.make_due("a", "y") == [DONE, DONE]
        assert store.run() == ["b", "a", "y"]

    def test_a_place_that_would_be_given_up_is_kept(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], max_hold_ms=1000), job("b", ["x"]))
        store.start()
        store.fail("a", delay_ms=60_000)
        store.wait(999)
        assert store.make_due("a") == [DONE]
        store.wait(60_000)
        assert store.run() == ["a", "b"]

    def test_snoozed_and_unknown_jobs_made_due_are_ready(self, store: Store) -> None:
        store.enqueue(job("snoozed", ["x"]), job("unknown", ["y"]))
        store.start()
        store.settle("snoozed", OutcomeKind.SNOOZED, delay_ms=60_000)
        store.settle("unknown", OutcomeKind.UNKNOWN_TASK)
        assert store.start() == []
        assert store.make_due("snoozed", "unknown") == [DONE, DONE]
        assert sorted(store.start()) == ["snoozed", "unknown"]
        store.settle("unknown", OutcomeKind.UNKNOWN_TASK)
        assert store.record("unknown").due_ms == store.began_ms + 10_000, "its pause has grown"

    def test_delayed_dependent_made_due_waits_only_for_dependencies(self, store: Store) -> None:
        store.enqueue(job("first"), job("a", ["x"], after=["first"], delay_ms=60_000))
        assert store.apply(op.Redrive(("a",), waiting=True)).verdicts == ((DONE, DEFERRED),)
        assert store.make_due("a") == [REFUSED]
        assert store.run() == ["first", "a"]

    def test_start_within_begins_when_a_job_is_made_due(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], delay_ms=60_000, start_within_ms=1000), job("before", ["x"]))
        store.start()
        store.make_due("a")
        store.wait(999)
        assert store.state("a") is QUEUED
        store.wait(1)
        assert (store.state("a"), store.record("a").cause) == (CANCELED, "expired")

    def test_job_made_due_at_a_closed_place_is_canceled(self, store: Store) -> None:
        store.enqueue(job("a", ["x", "y"], delay_ms=60_000))
        store.apply(op.Enqueue((job("last", ["x"]),), closing=op.Closing(("x",), "run")))
        assert store.apply(op.Redrive(("a",), waiting=True)).verdicts == ((DONE, CANCELED),)

    def test_several_take_their_places_in_order_of_enqueue(self, store: Store) -> None:
        store.enqueue(*[job(f"j{number}", ["x"], delay_ms=60_000 - number) for number in range(4)])
        assert store.make_due("j3", "j1", "j0", "j1") == [DONE] * 4
        assert store.run() == ["j0", "j1", "j3"]

    def test_make_due_refuses_jobs_without_due_time_and_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("runs"), job("over"), job("failed", max_attempts=1))
        store.start()
        store.finish("over")
        store.fail("failed")
        store.enqueue(job("ready"), job("waits", after=["runs"]))
        store.stage("part", job("hidden", delay_ms=1000))
        before = store.visible()
        reply = store.apply(op.Redrive(("runs", "over", "failed", "ready", "waits", "hidden", "nobody"), waiting=True))
        assert reply.verdicts == (
            (REFUSED, STARTED),
            (REFUSED, FINISHED),
            (REFUSED, FAILED),
            (REFUSED, QUEUED),
            (REFUSED, DEFERRED),
            (UNKNOWN, None),
            (UNKNOWN, None),
        )
        assert store.visible() == before

    def test_make_due_of_a_due_job_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], delay_ms=60_000), job("b", ["x"]))
        assert store.make_due("a") == [DONE]
        before = store.visible()
        assert store.make_due("a") == [REFUSED]
        assert store.visible() == before
        assert store.start() == ["b"]

    def test_due_job_is_not_moved_behind_others(self, store: Store) -> None:
        store.enqueue(job("later", ["x"], delay_ms=2000), job("due", ["x"], delay_ms=1000))
        store.advance(2500)
        assert store.make_due("later", "due") == [DONE, DONE]
        assert store.run() == ["due", "later"]

    def test_both_dead_and_waiting_jobs_at_once_are_refused(self, store: Store) -> None:
        with pytest.raises(InvalidJobError, match="downstream requires dead jobs, not waiting"):
            store.apply(op.Redrive(("a",), downstream=True, waiting=True))
        with pytest.raises(InvalidJobError, match="drop_steps requires dead jobs, not waiting"):
            store.apply(op.Redrive(("a",), drop_steps=True, waiting=True))
        with pytest.raises(InvalidJobError, match="again requires ended jobs, not waiting ones"):
            store.apply(op.Redrive(("a",), waiting=True, again=(1,)))
