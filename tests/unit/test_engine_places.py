"""The engine: who may run where, and in which order."""

from __future__ import annotations

import pytest

from queuehint.operations import Verdict
from queuehint.testing.driver import SHARED, Queue, claim, job
from queuehint.values.outcome import Grant, JobError, OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.spec import Priority

DONE, LOST = Verdict.DONE, Verdict.LOST


# --- who conflicts with whom -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hints",
    [
        [["doc1", "a"], ["doc1", "b"], ["doc1", "c"]],
        [["doc1"], ["doc10"], ["doc"]],
        [["a:b"], ["a", "b"], ["a\\", "b"]],
        [["root"], ["a"], ["\\root"]],
        [[], None, None],
        [["a"], None],
        [None, None],
        [["é"], ["e\u0301"]],
        [["*"], ["a"], ["?"]],
    ],
    ids=str,
)
def test_jobs_that_do_not_conflict_start_together(hints: list[list[str] | None]) -> None:
    queue = Queue(*[job(f"j{number}", hint) for number, hint in enumerate(hints)])
    assert len(queue.start()) == len(hints)


@pytest.mark.parametrize(
    "first, second",
    [
        (["a"], ["a"]),
        (["a"], ["a", "b"]),
        (["a", "b"], ["a"]),
        (["a", "b", "c"], ["a"]),
        ([], ["a"]),
        (["a"], []),
        ([], []),
        ([], ["root"]),
        (["root"], []),
    ],
    ids=str,
)
def test_jobs_that_conflict_run_one_at_a_time_in_order(first: list[str], second: list[str]) -> None:
    queue = Queue(job("j1", first), job("j2", second))
    assert queue.start() == ["j1"]
    queue.finish("j1")
    assert queue.start() == ["j2"]
    queue.finish("j2")
    assert queue.is_clean


def test_siblings_start_together_and_their_parent_after_them() -> None:
    queue = Queue(job("a", ["doc", "a"]), job("b", ["doc", "b"]), job("doc", ["doc"]), job("c", ["doc", "c"]))
    assert queue.start() == ["a", "b"]
    queue.finish("a")
    assert queue.start() == []
    queue.finish("b")
    assert queue.start() == ["doc"]
    queue.finish("doc")
    assert queue.start() == ["c"]


def test_readers_share_and_a_writer_between_them_waits_for_its_turn() -> None:
    reads = [job(f"r{number}", claims=(claim("a", mode=SHARED),)) for number in range(4)]
    queue = Queue(*reads[:2], job("w", ["a"]), *reads[2:])
    assert queue.start() == ["r0", "r1"]
    queue.finish("r0", "r1")
    assert queue.start() == ["w"]
    queue.finish("w")
    assert queue.start() == ["r2", "r3"]


def test_a_job_with_several_claims_waits_for_all_of_them() -> None:
    queue = Queue(job("a", ["a"]), job("b", ["b"]), job("both", claims=(claim("a"), claim("b"))), job("b2", ["b"]))
    assert queue.start() == ["a", "b"]
    queue.finish("b")
    assert queue.start() == []
    queue.finish("a")
    assert queue.start() == ["both"]
    queue.finish("both")
    assert queue.start() == ["b2"]


def test_claims_of_one_job_never_block_that_job() -> None:
    claims = (claim("a", mode=SHARED), claim("a", "b"), claim("a", "b", "c"), claim("x"), claim("x", "y", mode=SHARED))
    queue = Queue(job("a", claims=claims).check())
    assert queue.start() == ["a"]
    assert queue.run() == []
    queue.finish("a")
    assert queue.is_clean


def test_a_parent_behind_a_thousand_ever_arriving_children_starts_right_after_those_before_it() -> None:
    queue = Queue(job("c1", ["a", "1"]), job("c2", ["a", "2"]), job("parent", ["a"]), checked=False)
    assert queue.start() == ["c1", "c2"]
    for number in range(1000):
        queue.enqueue(job(f"late{number}", ["a", str(number % 7)]))
        assert queue.start(1) == []
    queue.finish("c1", "c2")
    assert queue.start() == ["parent"]


@pytest.mark.parametrize("count", [1000, pytest.param(100_000, marks=pytest.mark.heavy)])
def test_a_blocked_job_never_hides_a_ready_one_however_many_stand_before_it(count: int) -> None:
    queue = Queue(job("running", ["doc"]), checked=False)
    queue.start()
    claims = (claim("doc"),)
    for batch in range(count // 1000):
        queue.enqueue(*[job(f"{batch}-{number}", claims=claims) for number in range(1000)])
    queue.enqueue(job("ready", ["other"]))
    assert queue.start(1) == ["ready"]
    assert queue.start(1) == []


def test_priority_never_lets_a_job_overtake_one_it_conflicts_with() -> None:
    queue = Queue(job("low", ["a", "b"], priority=1), job("high", ["a"], priority=Priority.CRITICAL))
    assert queue.run() == ["low", "high"]


# --- keeping and giving up a place -----------------------------------------------------------------------------------


def three(**fields: object) -> Queue:
    """Return a queue of j1, j2 and j3 on one path; j1 is started, *fields* are of its policy."""
    queue = Queue(job("j1", ["a"], **fields), job("j2", ["a"]), job("j3", ["a"]), now_ms=0)
    assert queue.start() == ["j1"]
    return queue


def test_a_retried_job_keeps_its_place() -> None:
    queue = three()
    queue.fail("j1")
    assert ["j1", *queue.run()] == ["j1", "j1", "j2", "j3"]
    assert queue.record("j1").attempts == 2


def test_a_job_in_back_off_holds_its_place_until_it_is_due() -> None:
    queue = three()
    seq = queue.record("j1").seq
    queue.fail("j1", delay_ms=1000)
    assert queue.state("j1") is JobState.QUEUED
    queue.wait(999)
    assert queue.start() == []
    queue.wait(1)
    assert queue.run() == ["j1", "j2", "j3"]
    assert queue.record("j1").seq is None and seq == 1


def test_a_retry_that_yields_gives_its_place_up_and_takes_a_new_one_when_due() -> None:
    queue = three(on_retry="yield")
    queue.fail("j1", delay_ms=1000)
    assert (queue.state("j1"), queue.record("j1").due_ms, queue.record("j1").seq) == (JobState.SCHEDULED, 1000, None)
    assert queue.start() == ["j2"]
    queue.wait(1000)
    assert queue.state("j1") is JobState.QUEUED
    queue.finish("j2")
    assert queue.run() == ["j3", "j1"]


def test_a_retry_that_yields_without_a_delay_goes_to_the_end_at_once() -> None:
    queue = three(on_retry="yield")
    queue.fail("j1")
    assert queue.run() == ["j2", "j3", "j1"]


def test_a_back_off_longer_than_max_hold_gives_the_place_up_when_that_is_over() -> None:
    queue = three(max_hold_ms=5000)
    queue.fail("j1", delay_ms=8000)
    queue.wait(4999)
    assert (queue.state("j1"), queue.start()) == (JobState.QUEUED, [])
    queue.wait(1)
    assert (queue.state("j1"), queue.record("j1").due_ms) == (JobState.SCHEDULED, 8000)
    assert queue.start() == ["j2"]
    queue.finish("j2")
    queue.wait(2999)
    assert queue.state("j1") is JobState.SCHEDULED
    queue.wait(1)
    assert queue.run() == ["j3", "j1"]


def test_a_back_off_as_long_as_max_hold_keeps_the_place() -> None:
    queue = three(max_hold_ms=5000)
    queue.fail("j1", delay_ms=5000)
    queue.wait(5000)
    assert queue.run() == ["j1", "j2", "j3"]


def test_a_crash_keeps_the_place_and_counts_a_loss_but_no_attempt() -> None:
    queue = three()
    queue.wait(29_999)
    assert queue.state("j1") is JobState.STARTED
    queue.wait(1)
    record = queue.record("j1")
    assert (record.state, record.attempts, record.losses, record.worker) == (JobState.QUEUED, 0, 1, None)
    assert [(error.type, error.message) for error in record.errors] == [
        ("worker_lost", "worker w did not renew its lease")
    ]
    assert queue.run() == ["j1", "j2", "j3"]


def test_a_released_job_is_ready_at_once_at_its_old_place() -> None:
    queue = three()
    assert queue.settle("j1", OutcomeKind.RELEASED) is DONE
    record = queue.record("j1")
    assert (record.attempts, record.losses, record.errors) == (0, 0, ())
    assert queue.run() == ["j1", "j2", "j3"]


@pytest.mark.parametrize("on_retry, order", [("hold", ["j1", "j2", "j3"]), ("yield", ["j2", "j3", "j1"])])
def test_a_snooze_does_as_on_retry_says_and_counts_for_nothing(on_retry: str, order: list[str]) -> None:
    queue = three(on_retry=on_retry, max_attempts=1)
    assert queue.settle("j1", OutcomeKind.SNOOZED, delay_ms=1000) is DONE
    assert queue.record("j1").attempts == 0
    if on_retry == "hold":
        assert queue.start() == []
    else:
        assert queue.run() == order[:2]
        order = order[2:]
    queue.wait(1000)
    assert queue.run() == order


def test_a_task_unknown_to_the_worker_pauses_longer_each_time_and_keeps_its_place() -> None:
    queue = three(max_attempts=1)
    pauses = []
    for _ in range(9):
        assert queue.settle("j1", OutcomeKind.UNKNOWN_TASK) is DONE
        record = queue.record("j1")
        assert (record.state, record.attempts, record.losses, record.errors) == (JobState.QUEUED, 0, 0, ())
        assert record.due_ms is not None
        pauses.append((record.due_ms - queue.now_ms) // 1000)
        queue.wait(pauses[-1] * 1000 - 1)
        assert queue.start() == []
        queue.wait(1)
        assert queue.start() == ["j1"]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    queue.finish("j1")
    assert queue.run() == ["j2", "j3"]
    assert queue.is_clean


# --- leases and tokens -----------------------------------------------------------------------------------------------


def test_a_lease_lasts_as_long_as_it_is_renewed() -> None:
    queue = Queue(job("a", ["x"]), now_ms=0)
    queue.start(lease_ms=10_000)
    for _ in range(10):
        queue.wait(9_999)
        assert queue.renew("a", lease_ms=10_000) == [DONE]
    queue.wait(10_000)
    assert queue.state("a") is JobState.QUEUED
    assert queue.renew("a") == [LOST]


@pytest.mark.parametrize("kind", OutcomeKind)
def test_a_late_worker_s_settlement_is_refused_and_changes_nothing(kind: OutcomeKind) -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]), now_ms=0)
    queue.start()
    late = queue.outcome("a", kind, result=b"1", error=JobError(type="E", message="m"), delay_ms=5, reason="r")
    queue.wait(30_000)
    before = queue.record("a"), queue.record("b"), queue.stats()
    assert queue.exchange(late).verdicts == (LOST,)
    assert (queue.record("a"), queue.record("b"), queue.stats()) == before
    queue.start(worker="other")
    before = queue.record("a"), queue.record("b"), queue.stats()
    assert queue.exchange(late).verdicts == (LOST,)
    assert (queue.record("a"), queue.record("b"), queue.stats()) == before
    queue.finish("a")
    assert queue.exchange(late).verdicts == (LOST,)
    assert queue.state("a") is JobState.FINISHED


def test_a_settlement_counts_until_the_job_was_really_reaped() -> None:
    queue = Queue(job("a", ["x"]), now_ms=0)
    queue.start()
    queue.now_ms = 10**6
    assert queue.settle("a") is DONE
    assert queue.state("a") is JobState.FINISHED


def test_a_job_is_settled_once_even_within_one_batch() -> None:
    queue = Queue(job("a", ["x"]))
    queue.start()
    outcome = queue.outcome("a")
    assert queue.exchange(outcome, outcome).verdicts == (DONE, LOST)
    assert queue.stats().settled == 1


def test_a_job_cannot_be_settled_without_a_claim_or_with_another_s_token() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["y"]), job("c", ["x"]))
    queue.start()
    queue.grants["c"] = queue.grants["a"]
    assert queue.settle("c") is LOST
    queue.grants["nobody"] = queue.grants["a"]
    assert queue.settle("nobody") is LOST
    queue.grants["a"], queue.grants["b"] = queue.grants["b"], queue.grants["a"]
    assert [queue.settle(letter) for letter in "ab"] == [LOST, LOST]
    assert queue.states("a", "b", "c") == "STARTED STARTED QUEUED"


def test_tokens_strictly_increase_over_all_grants_and_callers() -> None:
    queue = Queue(now_ms=0)
    tokens = []
    for number in range(5):
        made = queue.enqueue(job(f"caller{number}", ["x"], presence_ms=10**9, pool="p"), job(f"j{number}", ["y"]))
        assert made.jobs[0].presence_token is not None
        tokens.append(made.jobs[0].presence_token)
        tokens += [grant.token for grant in queue.exchange(limit=2).grants]
        queue.wait(30_000)
    assert len(tokens) >= 10
    assert tokens == sorted(set(tokens))


def test_a_grant_tells_what_to_run_and_until_when() -> None:
    queue = Queue(job("a", ["x"]), now_ms=500)
    queue.start(lease_ms=2000)
    grant = queue.grants["a"]
    assert (grant.spec, grant.attempt, grant.losses, grant.lease_until_ms) == (job("a", ["x"]), 1, 0, 2500)
    queue.wait(2000)
    queue.start()
    queue.fail("a")
    queue.start()
    assert (queue.grants["a"].attempt, queue.grants["a"].losses) == (2, 1)


def test_after_a_restart_tokens_go_on_from_a_later_one_and_nobody_is_reaped_who_could_not_renew() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]), now_ms=0)
    queue.start(lease_ms=1000)
    queue.engine.begin_epoch(7 << 32, 5000)
    queue.wait(1000)
    assert (queue.state("a"), queue.engine.next_ms) == (JobState.STARTED, 5000)
    queue.wait(3999)
    assert queue.renew("a", lease_ms=2) == [Verdict.DONE]
    queue.wait(2)
    assert (queue.state("a"), queue.start()) == (JobState.QUEUED, ["a"])
    assert queue.grants["a"].token == (7 << 32) + 1


def test_when_all_who_held_leases_are_dead_the_leases_end_at_once_and_what_waits_for_nobody_too() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["y"]), job("c", ["x"], presence_ms=9000), job("later", ["z"]), now_ms=0)
    assert queue.start(2, lease_ms=5000) == ["a", "b"]
    token = queue.engine.token
    assert token == queue.grants["b"].token
    queue.engine.end_leases(1000)
    assert (queue.engine.next_ms, queue.states("a", "b", "c")) == (1000, "STARTED STARTED QUEUED")
    queue.wait(1000)
    assert queue.states("a", "b", "c", "later") == "QUEUED QUEUED CANCELED QUEUED"
    assert (queue.record("a").losses, queue.record("a").seq, queue.record("c").cause) == (1, 1, "waiter_lost")
    assert queue.settle("a") is Verdict.LOST
    assert queue.engine.token == token


# --- the caller of exclusive -----------------------------------------------------------------------------------------


def waiter(**fields: object) -> tuple[Queue, int]:
    """Return a queue where a caller waits behind a running job and before another, and the caller's token."""
    queue = Queue(job("before", ["x"]), now_ms=0)
    queue.start(lease_ms=10**6)
    made = queue.enqueue(job("caller", ["x"], presence_ms=10_000, pool="private", **fields), job("after", ["x"]))
    token = made.jobs[0].presence_token
    assert token is not None
    queue.grants["caller"] = Grant(job("caller"), token, 0, 0, 0)
    return queue, token


def test_a_caller_that_dies_while_it_waits_frees_its_place() -> None:
    queue, _ = waiter()
    queue.wait(9_999)
    assert queue.state("caller") is JobState.QUEUED
    queue.wait(1)
    record = queue.record("caller")
    assert (record.state, record.cause) == (JobState.CANCELED, "waiter_lost")
    queue.finish("before")
    assert queue.start() == ["after"]


def test_a_caller_that_renews_its_presence_keeps_waiting() -> None:
    queue, _ = waiter()
    for _ in range(5):
        queue.wait(9_000)
        assert queue.renew("caller", lease_ms=10_000) == [DONE]
    queue.finish("before")
    assert queue.start() == []
    assert queue.start(pools=("private",)) == ["caller"]
    queue.finish("caller")
    assert queue.start() == ["after"]


def test_a_caller_that_dies_while_it_has_the_place_frees_it() -> None:
    queue, _ = waiter()
    queue.finish("before")
    queue.start(pools=("private",), lease_ms=5_000)
    queue.wait(5_000)
    record = queue.record("caller")
    assert (record.state, record.cause, record.losses) == (JobState.CANCELED, "waiter_lost", 0)
    assert queue.start() == ["after"]


@pytest.mark.parametrize(
    "kind", [OutcomeKind.RELEASED, OutcomeKind.SNOOZED, OutcomeKind.UNKNOWN_TASK, OutcomeKind.LOST]
)
def test_a_caller_that_gives_its_place_back_has_left(kind: OutcomeKind) -> None:
    queue, _ = waiter()
    queue.finish("before")
    queue.start(pools=("private",))
    queue.settle("caller", kind)
    assert (queue.state("caller"), queue.record("caller").cause) == (JobState.CANCELED, "waiter_lost")
    assert queue.start() == ["after"]


def test_a_caller_that_fails_is_not_tried_again() -> None:
    queue, _ = waiter()
    queue.finish("before")
    queue.start(pools=("private",))
    queue.fail("caller", delay_ms=1000)
    assert queue.state("caller") is JobState.FAILED
    assert queue.redrive("caller") == [Verdict.REFUSED]
    assert queue.start() == ["after"]


def test_only_the_caller_s_own_token_renews_its_presence() -> None:
    queue, token = waiter()
    queue.grants["caller"] = Grant(job("caller"), token + 100, 0, 0, 0)
    assert queue.renew("caller") == [LOST]
    queue.wait(10_000)
    assert queue.state("caller") is JobState.CANCELED


def test_a_caller_that_asks_again_gets_the_same_token() -> None:
    queue, token = waiter()
    again = queue.enqueue(job("caller", ["x"], presence_ms=10_000, pool="private"))
    assert (again.jobs[0].created, again.jobs[0].presence_token) == (False, token)
    assert queue.enqueue(job("after", ["x"])).jobs[0].presence_token is None
