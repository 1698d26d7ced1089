"""The engine: attempts, ends, the dead-letter queue, cancellations, retention."""

from __future__ import annotations

import pytest

from queuehint import operations as op
from queuehint.testing.driver import Queue, claim, job
from queuehint.values.outcome import JobError, OutcomeKind
from queuehint.values.policy import Retention
from queuehint.values.record import JobState

DAY_MS = 24 * 3600 * 1000

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DONE, REQUESTED, REFUSED, UNKNOWN, LOST, CANCELED_VERDICT, STALE = op.Verdict
ERROR = JobError(type="ValueError", message="no")


# --- start_within ----------------------------------------------------------------------------------------------------


def test_job_ended_before_its_deadline_is_not_checked_again() -> None:
    queue = Queue(job("a", start_within_ms=1000), now_ms=0)
    queue.cancel("a")
    assert queue.engine.next_ms == DAY_MS
    queue.wait(1000)
    assert queue.record("a").cause == "canceled"


# --- canceling by path -----------------------------------------------------------------------------------------------


def test_cancel_by_path_is_bounded_and_covers_only_earlier_jobs() -> None:
    queue = Queue(*[job(f"j{number}", ["a", str(number)]) for number in range(20)], budget=7)
    assert queue.cancel_path("a") is True
    assert 0 < queue.stats().states[CANCELED] < 20
    queue.enqueue(job("late", ["a", "0"]))
    steps = 0
    while queue.tick().more:
        steps += 1
    assert steps >= 5
    assert queue.stats().states[CANCELED] == 20
    assert queue.run() == ["late"]
    assert queue.is_clean


def test_cancel_by_path_reaches_jobs_started_during_its_sweep() -> None:
    queue = Queue(*[job(f"j{number}", [f"a{number}"]) for number in range(5)], budget=3)
    assert queue.cancel_path() is True
    started = queue.start(5)
    assert started
    while queue.tick().more:
        pass
    told = queue.exchange().canceled
    assert set(told) <= set(started)
    assert all(queue.record(each).cancel_requested or queue.state(each) is CANCELED for each in started)
    assert queue.stats().states[QUEUED] == 0


def test_job_redriven_after_a_cancel_by_path_is_excluded() -> None:
    queue = Queue(job("dead", ["a", "z"], max_attempts=1), budget=2)
    queue.start()
    queue.fail("dead")
    queue.enqueue(*[job(f"j{number}", ["a"]) for number in range(5)], job("last", ["a", "z"]))
    # The sweep is still at the key `a` when the job comes back at `a:z`.
    assert queue.cancel_path("a") is True
    assert queue.redrive("dead") == [DONE]
    while queue.tick().more:
        pass
    assert queue.states("dead", "last") == "QUEUED CANCELED"
    assert queue.stats().states[CANCELED] == 6


@pytest.mark.parametrize("budget", [1, 3, 7, 100])
def test_a_cancellation_by_path_counts_alike_at_any_budget(budget: int) -> None:
    both = (claim("a", "x"), claim("a", "y"))
    queue = Queue(job("runs", claims=both), budget=budget)
    queue.start()
    queue.enqueue(*[job(f"j{number}", ["a", str(number)]) for number in range(10)], job("two", claims=both))
    assert queue.count_path("a") == 12
    assert queue.count_path("a") == 0


def test_only_a_cancellation_that_was_cut_leaves_a_tally() -> None:
    queue = Queue(*[job(f"j{number}", ["a"]) for number in range(4)], budget=3, now_ms=0)
    cut = queue.apply(op.CancelPath(("a",)))
    assert (cut.more, cut.number, len(queue.engine.state.shared)) == (True, 5, 0)
    assert cut.reached < 4
    queue.wait(0)
    assert queue.apply(op.Pull(op.TALLIES, "5")).value == b"4"
    assert queue.apply(op.CancelPath(("a",))) == op.SweptPath(more=False, reached=0)
    assert len(queue.engine.state.shared) == 1
    queue.wait(op.TALLY_MS)
    assert len(queue.engine.state.shared) == 0


def test_dead_jobs_release_places_stepwise_except_redriven_ones() -> None:
    dead = [job(name, ["x", name], max_attempts=1, on_dead="hold") for name in "abc"]
    queue = Queue(*dead, budget=1, now_ms=0)
    queue.start(3)
    for name in "abc":
        queue.fail(name)
    assert queue.apply(op.Enqueue((job("last", ["x"]),), closing=op.Closing(("x",)))).more
    assert queue.states("a", "b", "c") == "CANCELED FAILED FAILED"
    queue.apply(op.Close(("x",), reopen=True))
    assert queue.redrive("c") == [DONE]
    queue.wait(0)
    assert queue.states("a", "b", "c") == "CANCELED CANCELED QUEUED"
    assert queue.run() == ["c", "last"]


# --- records expire --------------------------------------------------------------------------------------------------


def test_a_record_that_expires_uses_six_units() -> None:
    queue = Queue(*[job(f"j{number}") for number in range(9)], budget=12, now_ms=0)
    queue.run(9)
    queue.advance(DAY_MS)
    assert [(queue.tick().more, queue.stats().pruned) for _ in range(3)] == [(True, 2), (True, 4), (True, 6)]


@pytest.mark.parametrize(
    "kind, fields, kept_ms",
    [
        (OutcomeKind.FINISHED, {}, 1_000_000),
        (OutcomeKind.FAILED, {}, 2_000_000),
        (OutcomeKind.DISCARDED, {}, 3_000_000),
        (OutcomeKind.FINISHED, {"service": "s"}, 4_000_000),
        (OutcomeKind.FAILED, {"service": "s"}, 4_000_000),
        (OutcomeKind.DISCARDED, {"service": "s"}, 4_000_000),
        (OutcomeKind.FINISHED, {"service": "s", "retention_ms": 700_000}, 700_000),
    ],
)
def test_record_is_kept_by_state_service_or_policy(kind: OutcomeKind, fields: dict[str, object], kept_ms: int) -> None:
    retention = Retention(finished=1000, failed=2000, canceled=3000, service=4000)
    queue = Queue(job("a", ["x"], max_attempts=1, **fields), retention=retention, now_ms=0)
    queue.start()
    queue.wait(10)
    queue.settle("a", kind)
    queue.wait(kept_ms - 1)
    assert queue.find("a") is not None
    queue.wait(1)
    assert queue.find("a") is None
    assert queue.stats().pruned == 1
    assert not queue.engine.table.jobs
    assert queue.engine.next_ms is None


def test_waits_for_finished_unknown_or_dropped_jobs_are_not_recorded() -> None:
    queue = Queue(job("over", retention_ms=0), now_ms=0)
    queue.run()
    queue.apply(op.Enqueue((job("part", retention_ms=0),), "s"))
    queue.engine.await_ends(["over", "nobody", "part"])
    assert queue.engine.table.awaited == {"part"}
    queue.wait(op.STAGED_KEPT_MS)
    assert not queue.engine.table.awaited


@pytest.mark.parametrize("size, kept", [(256, 256), (257, 33), (10**6, 33)])
def test_a_digest_of_large_arguments_outlives_the_record(size: int, kept: int) -> None:
    queue = Queue(job("a", key="k", arguments=b"x" * size, retention_ms=0), now_ms=0)
    queue.enqueue(job("b", key="k", on_conflict="replace", arguments=b"y" * size, retention_ms=0))
    queue.run()
    queue.wait(0)
    gone = queue.engine.table.jobs["a"]
    assert gone.extras is not None
    assert gone.extras.asked is not None
    assert (gone.gone, len(gone.spec.arguments), len(gone.extras.asked.arguments)) == (True, kept, kept)


def test_deleting_a_record_drops_its_arguments() -> None:
    queue = Queue(job("a", arguments=b"ann@example.com"), now_ms=0)
    queue.run()
    queue.apply(op.Delete(("a",)))
    assert b"ann" not in queue.engine.table.jobs["a"].spec.arguments


def test_ids_ended_by_the_last_operation_are_kept_for_waiters() -> None:
    queue = Queue(job("a"), job("b"))
    queue.start(1)
    queue.finish("a")
    assert queue.engine.table.ended == ["a"]
    queue.cancel("b")
    assert queue.engine.table.ended == ["b"]
    queue.stats()
    assert queue.engine.table.ended == []


def test_leases_are_extended_without_anything_that_follows() -> None:
    queue = Queue(job("runs", ["a"]), job("waits", ["a"]))
    queue.start()
    engine, token = queue.engine, queue.record("runs").token
    assert token is not None
    verdicts = engine.extend([("runs", token), ("runs", token + 1), ("waits", 1)], 60_000, queue.now_ms + 1)
    assert verdicts == [op.Verdict.DONE, op.Verdict.LOST, op.Verdict.LOST]
    assert engine.next_ms == queue.now_ms + 60_001


def test_an_expired_record_leaves_only_its_id() -> None:
    queue = Queue(job("a", retention_ms=0, max_attempts=2), now_ms=0)
    queue.start()
    queue.fail("a", delay_ms=1, error=JobError(type="E", message="m"))
    assert queue.record("a").errors
    queue.wait(1)
    assert queue.run() == ["a"]
    queue.wait(1)
    kept = queue.engine.table.jobs["a"]
    assert (kept.gone, kept.result, kept.extras) == (True, None, None)
