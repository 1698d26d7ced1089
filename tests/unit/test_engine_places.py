"""The engine: conflicts of places, and the order of jobs."""

from __future__ import annotations

import pytest

from queuehint.operations import Verdict
from queuehint.testing.driver import Queue, claim, job
from queuehint.values.record import JobState
from tests.support import thorough

DONE, LOST = Verdict.DONE, Verdict.LOST


# --- conflicts -------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_tens_of_thousands_of_blocked_jobs_hide_no_ready_one() -> None:
    queue = Queue(job("running", ["doc"]), checked=False)
    queue.start()
    claims = (claim("doc"),)
    for batch in range(thorough(100, quick=20)):
        queue.enqueue(*[job(f"{batch}-{number}", claims=claims) for number in range(1000)])
    queue.enqueue(job("ready", ["other"]))
    assert queue.start(1) == ["ready"]
    assert queue.start(1) == []


# --- leases and tokens -----------------------------------------------------------------------------------------------


def test_restart_advances_tokens_and_grants_time_to_renew() -> None:
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


def test_end_leases_frees_all_leases_and_expired_waits() -> None:
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
