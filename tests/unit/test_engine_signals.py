"""Signals where the budget of an operation is used up."""

from __future__ import annotations

from queuehint.core.engine import Engine
from queuehint.core.state import EngineOptions
from queuehint.operations import Cancel, Enqueue, Get
from queuehint.testing.driver import job
from queuehint.values.record import JobState
from queuehint.values.signal import signal_spec


def test_one_whose_time_is_over_is_given_anew_though_its_record_is_not_dropped_yet() -> None:
    engine = Engine(EngineOptions(budget=1))
    engine.apply(Enqueue((signal_spec("s", b"1", 1000),)), 0)
    engine.apply(Enqueue((job("a"), *[job(str(n), after=["a"]) for n in range(5)])), 0)
    engine.apply(Cancel(("a",)), 0)
    reply = engine.apply(Enqueue((signal_spec("s", b"2", 1000),)), 1000)
    assert (reply.jobs[0].created, reply.jobs[0].state, reply.more) == (True, JobState.FINISHED, True)
    (record,) = engine.apply(Get(("signal:s",)), 1000).records
    assert record is not None
    assert record.result == b"2"
    engine.check()
