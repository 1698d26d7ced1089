"""The schedules of a namespace, by name and by due time."""

from __future__ import annotations

import pytest

from queuehint import operations as op
from queuehint.core.schedules import Timetable
from queuehint.errors import InvalidJobError
from queuehint.testing.driver import Queue, job
from queuehint.values.schedule import SCHEDULES_MAX, Recurrence

EVERY = Recurrence(every_ms=1000)


def asked(name: str, next_ms: int | None) -> op.PutSchedule:
    return op.PutSchedule(name, job(name), EVERY, next_ms)


def test_schedules_are_at_most_10_000_and_still_replaceable() -> None:
    timetable = Timetable()
    for number in range(SCHEDULES_MAX):
        assert timetable.put(asked(str(number), number))
    with pytest.raises(InvalidJobError, match="10000 schedules, the limit"):
        timetable.put(asked("one more", 5))
    assert timetable.put(op.PutSchedule("7", job("7"), Recurrence(every_ms=5), 7))
    assert timetable.drop("7")
    assert timetable.put(asked("one more", 5))
    assert len(timetable) == timetable.count_dues() == SCHEDULES_MAX


def test_no_two_states_of_any_schedule_share_a_version() -> None:
    timetable = Timetable()
    versions = []
    for _ in range(3):
        timetable.put(asked("s", 5))
        versions.append(timetable.versions)
        timetable.pause("s")
        versions.append(timetable.versions)
        timetable.drop("s")
    assert len(set(versions)) == 6


def test_paused_ended_and_dropped_schedules_are_never_due() -> None:
    timetable = Timetable()
    for name, next_ms in (("ended", None), ("paused", 5), ("dropped", 6), ("left", 7)):
        timetable.put(asked(name, next_ms))
    timetable.pause("paused")
    timetable.drop("dropped")
    assert timetable.count_dues() == 1
    assert (timetable.next_ms(0), timetable.next_ms(6), timetable.next_ms(7)) == (7, 7, None)
    assert (timetable.is_due(6), timetable.is_due(7)) == (False, True)
    assert [schedule.name for schedule in timetable.due(100, 10)] == ["left"]


def test_leftovers_precede_the_next_due_time() -> None:
    queue = Queue(*[job(str(number), ["doc"]) for number in range(3)], budget=1)
    queue.apply(op.PutSchedule("s", job("s"), EVERY, queue.now_ms + 5))
    assert queue.apply(op.Tick()).next_ms == queue.now_ms + 5
    queue.cancel_path("doc")
    assert queue.engine.next_ms == queue.now_ms


def test_a_firing_is_judged_before_its_jobs() -> None:
    queue = Queue()
    queue.apply(op.PutSchedule("s", job("s"), EVERY, queue.now_ms))
    (schedule,) = queue.apply(op.ListSchedules()).schedules
    firing = op.Firing("s", schedule.version, queue.now_ms, queue.now_ms + 1000)
    assert queue.apply(op.Enqueue((job("a"),), firing=firing)).jobs[0].created
    assert queue.engine.state.timetable.page("", 1)[0][0].last_id == "a"
