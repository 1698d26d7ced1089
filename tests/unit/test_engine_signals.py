"""Signals where the budget of an operation is used up."""

from __future__ import annotations

from queuehint.testing.driver import Queue, job
from queuehint.values.record import JobState
from queuehint.values.signal import signal_spec


def test_expired_signal_is_given_again_despite_its_undropped_record() -> None:
    queue = Queue(budget=1)
    queue.enqueue(signal_spec("s", b"1", 1000))
    queue.enqueue(job("a"), *[job(str(n), after=["a"]) for n in range(5)])
    queue.cancel("a")
    queue.advance(1000)
    reply = queue.enqueue(signal_spec("s", b"2", 1000))
    assert (reply.jobs[0].created, reply.jobs[0].state, reply.more) == (True, JobState.FINISHED, True)
    assert queue.record("signal:s").result == b"2"
    queue.engine.check()
