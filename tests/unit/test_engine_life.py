"""The engine: attempts, ends, the dead shelf, cancellations, what is kept and for how long."""

from __future__ import annotations

import pytest

from queuehint.core.jobs.lifecycle import ID_KEPT_MS
from queuehint.operations import (
    STAGED_KEPT_MS,
    TALLIES,
    TALLY_MS,
    Cancel,
    CancelPath,
    Delete,
    Discard,
    Enqueue,
    ListDead,
    Pull,
    Redrive,
    SweptPath,
    Verdict,
)
from queuehint.testing.driver import SHARED, Queue, claim, job
from queuehint.values.outcome import JobError, OutcomeKind
from queuehint.values.policy import Retention
from queuehint.values.record import JobState
from queuehint.values.spec import Priority

DAY_MS = 24 * 3600 * 1000

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DONE, REQUESTED, REFUSED, UNKNOWN, LOST, CANCELED_VERDICT, STALE = Verdict
ERROR = JobError(type="ValueError", message="no")


# --- attempts --------------------------------------------------------------------------------------------------------


def test_a_finished_job_keeps_its_result_and_leaves_no_trace_of_its_place() -> None:
    queue = Queue(job("a", ["x"]), now_ms=1000)
    queue.start()
    queue.now_ms = 1500
    queue.settle("a", result=b"42")
    record = queue.record("a")
    assert (record.state, record.result, record.attempts, record.cause) == (FINISHED, b"42", 1, None)
    assert (record.enqueued_ms, record.queued_ms, record.started_ms, record.ended_ms) == (1000, 1000, 1000, 1500)
    assert (record.seq, record.worker) == (None, None)
    assert queue.is_clean


def test_a_job_is_dead_after_its_last_attempt() -> None:
    queue = Queue(job("a", ["x"], max_attempts=3))
    for attempt in range(1, 4):
        assert queue.state("a") is QUEUED
        queue.start()
        queue.fail("a", error=ERROR)
        assert queue.record("a").attempts == attempt
    record = queue.record("a")
    assert (record.state, record.cause, [error.attempt for error in record.errors]) == (FAILED, "failed", [1, 2, 3])


def test_a_final_failure_is_the_last_whatever_attempts_are_left() -> None:
    queue = Queue(job("a", ["x"]))
    queue.start()
    queue.fail("a", error=ERROR, final=True, delay_ms=1000)
    assert (queue.state("a"), queue.record("a").attempts) == (FAILED, 1)
    assert queue.is_clean


def test_a_discarded_attempt_cancels_the_job_with_its_reason() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]))
    queue.start()
    queue.settle("a", OutcomeKind.DISCARDED, reason="the document is gone")
    assert (queue.state("a"), queue.record("a").cause) == (CANCELED, "the document is gone")
    queue.start()
    queue.settle("b", OutcomeKind.DISCARDED)
    assert (queue.state("b"), queue.record("b").cause) == (CANCELED, "discarded")


@pytest.mark.parametrize("max_losses", [1, 3])
@pytest.mark.parametrize("how", ["crash", "exit"])
def test_a_job_is_dead_after_exactly_max_losses_grants(max_losses: int, how: str) -> None:
    queue = Queue(job("a", ["x"], max_losses=max_losses, max_attempts=1), now_ms=0)
    grants = 0
    while queue.start():
        grants += 1
        if how == "crash":
            queue.wait(30_000)
        else:
            queue.settle("a", OutcomeKind.LOST, error=JobError(type="SystemExit", message="3"))
    record = queue.record("a")
    assert (grants, record.losses, record.attempts) == (max_losses, max_losses, 0)
    assert (record.state, record.cause) == (FAILED, "worker_lost")
    assert len(record.errors) == max_losses
    assert queue.stats().lost == max_losses


def test_losses_and_attempts_are_counted_apart() -> None:
    queue = Queue(job("a", ["x"], max_losses=2, max_attempts=2), now_ms=0)
    queue.start()
    queue.fail("a")
    queue.start()
    queue.settle("a", OutcomeKind.LOST)
    assert (queue.record("a").attempts, queue.record("a").losses, queue.state("a")) == (1, 1, QUEUED)
    queue.start()
    queue.fail("a")
    assert queue.state("a") is FAILED


# --- on_dead ---------------------------------------------------------------------------------------------------------


def dead(on_dead: str, **fields: object) -> Queue:
    """Return a queue where j1 is dead, and behind it wait j2 on its path, `below`, `above`, `beside` and `reader`."""
    queue = Queue(
        job("j1", ["a", "b"], on_dead=on_dead, max_attempts=1, **fields),
        job("j2", ["a", "b"]),
        job("below", ["a", "b", "c"]),
        job("above", ["a"]),
        job("late", ["a", "b"]),
        now_ms=0,
    )
    assert queue.start() == ["j1"]
    queue.fail("j1", error=ERROR)
    assert queue.state("j1") is FAILED
    return queue


def test_on_dead_continue_frees_the_path() -> None:
    queue = dead("continue")
    assert queue.run() == ["j2", "below", "above", "late"]
    assert queue.is_clean


def test_on_dead_hold_keeps_the_place_until_it_is_discarded() -> None:
    queue = dead("hold")
    assert queue.start() == []
    assert queue.stats().stuck["dead_hold"] == 1
    assert queue.discard("j1") == [DONE]
    assert (queue.state("j1"), queue.record("j1").cause) == (CANCELED, "discarded")
    assert queue.run() == ["j2", "below", "above", "late"]
    assert queue.is_clean


def test_on_dead_hold_keeps_the_place_until_its_record_expires() -> None:
    queue = dead("hold")
    queue.wait(7 * DAY_MS - 1)
    assert queue.start() == []
    queue.wait(1)
    assert queue.find("j1") is None
    assert queue.run() == ["j2", "below", "above", "late"]


def test_on_dead_hold_without_a_place_holds_nothing() -> None:
    queue = Queue(job("a", on_dead="hold", max_attempts=1))
    queue.start()
    queue.fail("a")
    assert queue.stats().stuck["dead_hold"] == 0
    assert queue.discard("a") == [DONE]
    assert queue.state("a") is CANCELED


def test_on_dead_cancel_behind_cancels_what_is_queued_behind_at_or_below_and_frees_the_place() -> None:
    queue = dead("cancel_behind")
    assert queue.states("j2", "below", "late") == "CANCELED CANCELED CANCELED"
    assert queue.record("below").cause == "behind the dead job j1"
    assert queue.state("above") is QUEUED
    assert queue.stats().stuck["dead_hold"] == 0
    assert queue.run() == ["above"]
    assert queue.is_clean


def test_cancel_behind_leaves_alone_what_was_placed_before_and_what_is_not_queued() -> None:
    queue = Queue(
        job("before", claims=(claim("x"), claim("a", "c", mode=SHARED))),
        job("dies", claims=(claim("a", "b"), claim("z")), on_dead="cancel_behind", max_attempts=1),
        job("timed", ["a", "b"], delay_ms=1000),
        job("behind", claims=(claim("z", "1"), claim("y"))),
        now_ms=0,
    )
    assert queue.start() == ["before", "dies"]
    queue.fail("dies")
    assert queue.states("before", "timed", "behind") == "STARTED SCHEDULED CANCELED"
    queue.wait(1000)
    assert queue.start() == ["timed"]


def test_cancel_behind_leaves_alone_what_shares_the_path_and_was_placed_before() -> None:
    shared = (claim("a", mode=SHARED),)
    queue = Queue(
        job("before", claims=shared),
        job("dies", claims=shared, priority=Priority.CRITICAL, on_dead="cancel_behind", max_attempts=1),
        job("behind", claims=shared),
    )
    assert queue.start(1) == ["dies"]
    queue.fail("dies")
    assert queue.states("before", "behind") == "QUEUED CANCELED"


def test_cancel_behind_without_a_place_cancels_nothing() -> None:
    queue = Queue(job("dies", on_dead="cancel_behind", max_attempts=1), job("other", ["a"]))
    queue.start(1)
    queue.fail("dies")
    assert queue.states("dies", "other") == "FAILED QUEUED"


def test_a_death_by_losses_does_as_on_dead_says_too() -> None:
    queue = Queue(job("a", ["x"], on_dead="hold", max_losses=1), job("b", ["x"]), now_ms=0)
    queue.start()
    queue.wait(30_000)
    assert (queue.state("a"), queue.start()) == (FAILED, [])


# --- the dead shelf --------------------------------------------------------------------------------------------------


def test_a_redriven_job_that_held_its_place_goes_before_those_behind_it() -> None:
    queue = dead("hold")
    seq = queue.record("j1").seq
    assert queue.redrive("j1") == [DONE]
    record = queue.record("j1")
    assert (record.state, record.seq, record.attempts, record.losses, record.cause) == (QUEUED, seq, 0, 0, None)
    assert (record.ended_ms, record.result) == (None, None)
    assert [error.message for error in record.errors] == ["no"]
    assert queue.run() == ["j1", "j2", "below", "above", "late"]
    assert queue.stats().stuck["dead_hold"] == 0


def test_a_redriven_job_that_did_not_hold_takes_a_new_place() -> None:
    queue = dead("continue")
    assert queue.redrive("j1") == [DONE]
    assert queue.run() == ["j2", "below", "above", "late", "j1"]
    assert queue.is_clean


def test_several_are_redriven_in_order_of_enqueue_and_each_once() -> None:
    queue = Queue(*[job(f"j{number}", ["x"], max_attempts=1) for number in range(3)])
    for number in range(3):
        queue.start()
        queue.fail(f"j{number}")
    assert queue.redrive("j2", "j0", "j1", "j0") == [DONE] * 4
    assert queue.run() == ["j0", "j1", "j2"]


def test_a_redriven_job_may_die_again() -> None:
    queue = dead("hold")
    for _ in range(3):
        queue.redrive("j1")
        queue.start()
        queue.fail("j1")
        assert queue.state("j1") is FAILED
    assert queue.discard("j1") == [DONE]
    assert queue.run() == ["j2", "below", "above", "late"]


@pytest.mark.parametrize("operation", [Redrive, Discard])
def test_only_what_is_dead_is_redriven_or_discarded(operation: type[Redrive | Discard]) -> None:
    queue = Queue(job("finished"), job("timed", delay_ms=1), job("queued"), job("canceled"))
    queue.cancel("canceled")
    assert queue.start(1) == ["finished"]
    queue.finish("finished")
    before = queue.everything()
    reply = queue.apply(operation(("finished", "timed", "queued", "canceled", "nobody")))
    assert reply.verdicts == (
        (REFUSED, FINISHED),
        (REFUSED, SCHEDULED),
        (REFUSED, QUEUED),
        (REFUSED, CANCELED),
        (UNKNOWN, None),
    )
    assert queue.everything() == before


def test_the_dead_shelf_is_read_in_pages_in_order_of_enqueue() -> None:
    queue = Queue(*[job(f"j{number}", max_attempts=1) for number in range(5)])
    for number in reversed(range(5)):
        queue.start()
        queue.fail(f"j{number}")
    page = queue.apply(ListDead(limit=2))
    assert [record.id for record in page.records] == ["j0", "j1"]
    page = queue.apply(ListDead(cursor=page.cursor or 0, limit=3))
    assert ([record.id for record in page.records], page.cursor) == (["j2", "j3", "j4"], None)
    queue.discard("j2")
    queue.redrive("j3")
    assert [record.id for record in queue.apply(ListDead()).records] == ["j0", "j1", "j4"]


def test_a_discarded_job_is_kept_as_a_canceled_one() -> None:
    queue = Queue(job("a", max_attempts=1), now_ms=0)
    queue.start()
    queue.fail("a")
    queue.wait(6 * DAY_MS)
    queue.discard("a")
    queue.wait(DAY_MS - 1)
    assert queue.state("a") is CANCELED
    queue.wait(1)
    assert queue.find("a") is None


# --- start_within ----------------------------------------------------------------------------------------------------


def test_a_job_not_started_in_time_is_canceled_as_expired() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"], start_within_ms=1000), job("c", ["x"]), now_ms=0)
    queue.start()
    queue.wait(999)
    assert queue.state("b") is QUEUED
    queue.wait(1)
    assert (queue.state("b"), queue.record("b").cause) == (CANCELED, "expired")
    queue.finish("a")
    assert queue.run() == ["c"]


def test_the_time_allowed_begins_when_the_job_is_due() -> None:
    queue = Queue(job("a", delay_ms=5000, start_within_ms=1000), now_ms=0)
    queue.wait(5999)
    assert queue.state("a") is QUEUED
    queue.wait(1)
    assert queue.state("a") is CANCELED


def test_a_job_that_was_started_in_time_never_expires() -> None:
    queue = Queue(job("a", ["x"], start_within_ms=1000), now_ms=0)
    queue.start()
    queue.fail("a", delay_ms=5000)
    queue.wait(4999)
    assert queue.state("a") is QUEUED
    queue.wait(1)
    assert queue.run() == ["a"]


def test_a_job_that_ends_before_it_expires_is_not_looked_at_again() -> None:
    queue = Queue(job("a", start_within_ms=1000), now_ms=0)
    queue.cancel("a")
    assert queue.engine.next_ms == DAY_MS
    queue.wait(1000)
    assert queue.record("a").cause == "canceled"


def test_a_ready_job_that_expires_is_offered_no_more() -> None:
    queue = Queue(job("a", start_within_ms=1000), now_ms=0)
    queue.wait(1000)
    assert (queue.start(), queue.state("a")) == ([], CANCELED)


# --- canceling by id -------------------------------------------------------------------------------------------------


def in_every_state() -> Queue:
    """Return a queue with a job in every state and every way to be QUEUED."""
    queue = Queue(
        job("started", ["x"], key="k"),
        job("finished"),
        job("failed", max_attempts=1),
        job("backing_off", ["y"]),
        job("stranger", ["z"]),
        now_ms=0,
    )
    queue.start()
    queue.settle("backing_off", OutcomeKind.FAILED, delay_ms=10_000)
    queue.settle("stranger", OutcomeKind.UNKNOWN_TASK)
    queue.finish("finished")
    queue.fail("failed")
    queue.enqueue(
        job("deferred", ["x"], key="k", on_conflict="after"),
        job("scheduled", ["x"], delay_ms=1000),
        job("waiting", ["x"]),
        job("canceled"),
        job("parked", ["paused"]),
    )
    queue.cancel("canceled")
    queue.pause("paused")
    assert queue.start() == []
    queue.enqueue(job("ready"))
    return queue


def test_what_is_unfinished_is_canceled_at_once_or_told_and_nothing_else_is_touched() -> None:
    queue = in_every_state()
    expected = {
        "scheduled": (DONE, CANCELED),
        "deferred": (DONE, CANCELED),
        "waiting": (DONE, CANCELED),
        "backing_off": (DONE, CANCELED),
        "stranger": (DONE, CANCELED),
        "parked": (DONE, CANCELED),
        "ready": (DONE, CANCELED),
        "started": (REQUESTED, STARTED),
        "finished": (REFUSED, FINISHED),
        "failed": (REFUSED, FAILED),
        "canceled": (REFUSED, CANCELED),
        "nobody": (UNKNOWN, None),
    }
    reply = queue.apply(Cancel(tuple(expected), "no need"))
    assert dict(zip(expected, reply.verdicts, strict=True)) == expected
    for job_id, (verdict, state) in expected.items():
        if verdict is DONE:
            assert (queue.state(job_id), queue.record(job_id).cause) == (state, "no need")
    queue.finish("started")
    assert queue.is_clean


def test_each_state_can_be_canceled_alone() -> None:
    for job_id in ("scheduled", "deferred", "waiting", "backing_off", "stranger", "parked", "ready"):
        queue = in_every_state()
        assert queue.cancel(job_id) == [DONE]
        assert queue.cancel(job_id) == [REFUSED]
        assert queue.record(job_id).cause == "canceled"


def test_a_settlement_finished_wins_over_a_cancellation() -> None:
    queue = Queue(job("a", ["x"]))
    queue.start()
    assert queue.cancel("a") == [REQUESTED]
    queue.settle("a", result=b"1")
    assert (queue.state("a"), queue.record("a").result) == (FINISHED, b"1")


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.FINISHED])
def test_any_other_end_after_a_cancellation_makes_it_canceled(kind: OutcomeKind) -> None:
    queue = Queue(job("a", ["x"], on_dead="hold"), job("b", ["x"]))
    queue.start()
    queue.apply(Cancel(("a",), "no need"))
    assert queue.settle("a", kind, delay_ms=1000, reason="other") is DONE
    assert (queue.state("a"), queue.record("a").cause) == (CANCELED, "no need")
    assert queue.run() == ["b"]


def test_a_worker_that_dies_after_a_cancellation_leaves_the_job_canceled() -> None:
    queue = Queue(job("a", ["x"]), now_ms=0)
    queue.start()
    queue.cancel("a")
    queue.wait(30_000)
    assert (queue.state("a"), queue.record("a").cause, queue.stats().lost) == (CANCELED, "canceled", 1)
    assert queue.is_clean


def test_a_second_cancellation_keeps_the_first_reason() -> None:
    queue = Queue(job("a"))
    queue.start()
    queue.apply(Cancel(("a",), "first"))
    assert queue.apply(Cancel(("a",), "second")).verdicts == ((REQUESTED, STARTED),)
    assert queue.record("a").cause == "first"


def test_an_exchange_tells_a_worker_once_of_its_canceled_jobs() -> None:
    queue = Queue(job("a"), job("b"), job("c"))
    queue.start(2)
    queue.start(1, worker="other")
    queue.cancel("a", "b", "c")
    assert queue.exchange().canceled == ("a", "b")
    assert queue.exchange().canceled == ()
    assert queue.exchange(worker="other").canceled == ("c",)
    assert queue.exchange(worker="third").canceled == ()


def test_a_renewal_tells_it_each_time_and_an_exchange_then_no_more() -> None:
    queue = Queue(job("a"), job("b"), job("c"), now_ms=0)
    queue.start()
    queue.cancel("b", "c")
    assert queue.renew("a", "b") == [DONE, CANCELED_VERDICT]
    assert queue.renew("b") == [CANCELED_VERDICT]
    assert queue.exchange().canceled == ("c",)
    queue.wait(29_999)
    assert queue.state("b") is STARTED


def test_a_settled_job_is_not_told_of_any_more() -> None:
    queue = Queue(job("a"), job("b"))
    queue.start()
    queue.cancel("a", "b")
    assert queue.exchange(queue.outcome("a")).canceled == ("b",)
    assert queue.is_clean is False
    queue.finish("b")
    assert queue.is_clean


# --- canceling by path -----------------------------------------------------------------------------------------------


def test_a_path_is_canceled_at_and_below_it_and_nowhere_else() -> None:
    queue = Queue(
        job("running", ["a", "b"]),
        job("at", ["a"]),
        job("below", ["a", "b", "c"]),
        job("one_of_two", claims=(claim("a", "x"), claim("z"))),
        job("above", []),
        job("beside", ["ab"]),
        job("like", ["a:b"]),
        job("none"),
    )
    queue.start(1)
    assert queue.apply(CancelPath(("a",), "document closed")).more is False
    assert queue.states("at", "below", "one_of_two") == "CANCELED CANCELED CANCELED"
    assert queue.record("below").cause == "document closed"
    assert queue.states("above", "beside", "like", "none") == "QUEUED QUEUED QUEUED QUEUED"
    assert queue.record("running").cancel_requested
    assert queue.exchange().canceled == ("running",)


def test_a_path_named_root_is_canceled_with_what_is_below_it() -> None:
    queue = Queue(job("at", ["root"]), job("below", ["root", "x"]), job("beside", ["a"]))
    queue.cancel_path("root")
    assert queue.states("at", "below", "beside") == "CANCELED CANCELED QUEUED"


def test_the_root_is_canceled_with_every_job_that_has_a_place() -> None:
    queue = Queue(job("a", ["a"]), job("root", []), job("timed", ["b"], delay_ms=5), job("none"))
    queue.cancel_path()
    assert queue.states("a", "root", "timed", "none") == "CANCELED CANCELED CANCELED QUEUED"
    assert queue.record("a").cause == "canceled"


def test_a_cancellation_by_path_is_bounded_and_covers_what_was_enqueued_before_it_alone() -> None:
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


def test_a_cancellation_by_path_tells_jobs_that_start_while_it_sweeps() -> None:
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


def test_a_job_redriven_after_a_cancellation_by_path_is_not_covered() -> None:
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
    cut = queue.apply(CancelPath(("a",)))
    assert (cut.more, cut.number, len(queue.engine.state.shared)) == (True, 5, 0)
    assert cut.reached < 4
    queue.wait(0)
    assert queue.apply(Pull(TALLIES, "5")).value == b"4"
    assert queue.apply(CancelPath(("a",))) == SweptPath(more=False, reached=0)
    assert len(queue.engine.state.shared) == 1
    queue.wait(TALLY_MS)
    assert len(queue.engine.state.shared) == 0


def test_canceling_an_empty_path_does_nothing() -> None:
    queue = Queue(job("a", ["a"]))
    assert queue.cancel_path("b") is False
    assert queue.state("a") is QUEUED


# --- records expire --------------------------------------------------------------------------------------------------


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
def test_a_record_is_kept_by_state_service_or_policy_from_its_end_on(
    kind: OutcomeKind, fields: dict[str, object], kept_ms: int
) -> None:
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


def test_nobody_is_known_to_wait_for_what_is_over_unknown_or_dropped() -> None:
    queue = Queue(job("over", retention_ms=0), now_ms=0)
    queue.run()
    queue.apply(Enqueue((job("part", retention_ms=0),), "s"))
    queue.engine.await_ends(["over", "nobody", "part"])
    assert queue.engine.table.awaited == {"part"}
    queue.wait(STAGED_KEPT_MS)
    assert not queue.engine.table.awaited


@pytest.mark.parametrize("size, kept", [(256, 256), (257, 33), (10**6, 33)])
def test_of_large_arguments_a_digest_is_kept_when_the_record_goes(size: int, kept: int) -> None:
    queue = Queue(job("a", key="k", arguments=b"x" * size, retention_ms=0), now_ms=0)
    queue.enqueue(job("b", key="k", on_conflict="replace", arguments=b"y" * size, retention_ms=0))
    queue.run()
    queue.wait(0)
    gone = queue.engine.table.jobs["a"]
    assert gone.extras is not None
    assert gone.extras.asked is not None
    assert (gone.gone, len(gone.spec.arguments), len(gone.extras.asked.arguments)) == (True, kept, kept)


def test_of_a_deleted_record_no_arguments_are_kept() -> None:
    queue = Queue(job("a", arguments=b"ann@example.com"), now_ms=0)
    queue.run()
    queue.apply(Delete(("a",)))
    assert b"ann" not in queue.engine.table.jobs["a"].spec.arguments


def test_retention_zero_drops_the_record_at_once_and_keeps_the_id_ten_minutes() -> None:
    queue = Queue(job("a", ["x"], retention_ms=0), now_ms=0)
    queue.start()
    queue.settle("a", result=b"1")
    assert queue.find("a") is None
    assert sum(queue.stats().states.values()) == 0
    again = queue.enqueue(job("a", ["x"], retention_ms=0)).jobs[0]
    assert (again.created, again.state) == (False, FINISHED)
    for verdicts in (queue.cancel("a"), queue.redrive("a"), queue.discard("a")):
        assert verdicts == [UNKNOWN]
    queue.wait(ID_KEPT_MS - 1)
    assert queue.stats().pruned == 0
    queue.wait(1)
    assert queue.stats().pruned == 1
    assert queue.enqueue(job("a", ["x"], retention_ms=0)).jobs[0].created


def test_a_dead_job_leaves_the_shelf_with_its_record() -> None:
    queue = Queue(job("a", ["x"], retention_ms=0, on_dead="hold", max_attempts=1), job("b", ["x"]), now_ms=0)
    queue.start()
    queue.fail("a")
    assert queue.find("a") is None
    assert queue.apply(ListDead()).records == ()
    assert queue.start() == ["b"]
    queue.wait(ID_KEPT_MS)
    assert queue.stats().pruned == 1


@pytest.mark.parametrize("move, state", [(Redrive, QUEUED), (Discard, CANCELED)])
def test_a_redriven_or_discarded_job_is_not_pruned_by_its_old_time(
    move: type[Redrive | Discard], state: JobState
) -> None:
    queue = Queue(job("a", max_attempts=1), now_ms=0)
    queue.start()
    queue.fail("a")
    queue.now_ms = 7 * DAY_MS
    assert queue.apply(move(("a",))).verdicts == ((DONE, state),)
    queue.wait(0)
    assert queue.state("a") is state


def test_ids_of_jobs_that_ended_in_the_last_operation_are_kept_for_who_waits() -> None:
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
    assert verdicts == [Verdict.DONE, Verdict.LOST, Verdict.LOST]
    assert engine.next_ms == queue.now_ms + 60_001


def test_of_a_job_whose_record_is_gone_nothing_but_its_id_is_kept() -> None:
    queue = Queue(job("a", retention_ms=0, max_attempts=2), now_ms=0)
    queue.start()
    queue.fail("a", delay_ms=1, error=JobError(type="E", message="m"))
    assert queue.record("a").errors
    queue.wait(1)
    assert queue.run() == ["a"]
    queue.wait(1)
    kept = queue.engine.table.jobs["a"]
    assert (kept.gone, kept.result, kept.extras) == (True, None, None)
