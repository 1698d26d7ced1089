"""Timers of all jobs and pauses: due times of every kind, in one order."""

from __future__ import annotations

from queuehint.core.structures.job import Job
from queuehint.core.structures.timers import TimerKind, Timers
from queuehint.testing.driver import job
from queuehint.values.record import JobState

DUE, LEASE, EXPIRY, PRUNE, RESUME = TimerKind


def a_job(number: int) -> Job:
    return Job(job(f"j{number}"), number, JobState.QUEUED, 0)


def due(timers: Timers, now_ms: int) -> list[tuple[TimerKind, str]]:
    found = []
    while (entry := timers.pop_due(now_ms)) is not None:
        found.append((entry[0], entry[1].id))
    return found


def test_timers_due_together_fire_by_kind_then_number() -> None:
    timers = Timers()
    for number, kind in [(2, PRUNE), (4, DUE), (1, LEASE), (3, DUE), (5, EXPIRY)]:
        timers.add(kind, 10, a_job(number))
    timers.add(PRUNE, 9, a_job(9))
    assert due(timers, 10) == [(PRUNE, "j9"), (DUE, "j3"), (DUE, "j4"), (LEASE, "j1"), (EXPIRY, "j5"), (PRUNE, "j2")]


def test_nothing_is_due_before_its_time() -> None:
    timers = Timers()
    assert timers.next_ms() is None
    assert due(timers, 10**15) == []
    timers.add(PRUNE, 10, a_job(1))
    assert timers.next_ms() == 10
    assert due(timers, 9) == []
    assert due(timers, 10) == [(PRUNE, "j1")]


def test_a_dropped_entry_never_comes_up() -> None:
    timers = Timers()
    entry = timers.add(LEASE, 5, a_job(1))
    timers.add(LEASE, 7, a_job(2))
    timers.drop(entry)
    assert (len(timers), timers.next_ms()) == (1, 7)
    assert [each.id for each in timers.entries()] == ["j2"]
    assert due(timers, 100) == [(LEASE, "j2")]
