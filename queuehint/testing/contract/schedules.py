"""The rules of schedules: firings, due times, pauses and changes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from queuehint import Claim, DuplicateJobError, InvalidJobError, JobState, PathClosedError, PayloadError, Policy
from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.errors import ScheduleChangedError, ScheduleNotFoundError
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import job
from queuehint.values.schedule import FIRINGS_MAX, SCHEDULE_BYTES_MAX, Recurrence, Schedule
from queuehint.values.spec import JobSpec

MINUTE = 60_000
EVERY_MINUTE = Recurrence(every_ms=MINUTE)
ALL_SAID = JobSpec(
    id="nightly",
    task="clean",
    claims=(Claim(("doc", "a:b")), Claim(("other",), "shared")),
    arguments=b'{"n": 9007199254740993, "t": "\xc3\xa9"}',
    priority=5,
    pool="slow",
    user="ann",
    service="docs",
    key="k",
    on_conflict="after",
    delay_ms=5,
    policy=Policy(max_attempts=2, timeout_ms=7, on_dead="hold"),
)


def put(store: Store, name: str = "s", *, due_ms: int = MINUTE, spec: JobSpec | None = None, **fields: Any) -> bool:
    """Store a schedule with the first due time in so many ms."""
    spec = spec or job(name, ["doc"])
    return store.apply(
        op.PutSchedule(name, spec, Recurrence(**fields) if fields else EVERY_MINUTE, store.clock.now_ms() + due_ms)
    ).changed


def get(store: Store, name: str = "s") -> Schedule | None:
    found = store.apply(op.ListSchedules(name, 1)).schedules
    return found[0] if found and found[0].name == name else None


def known(store: Store, name: str = "s") -> Schedule:
    found = get(store, name)
    assert found is not None
    return found


def fire(store: Store, schedule: Schedule, *specs: JobSpec, next_ms: int | None = None) -> op.Enqueued:
    assert schedule.next_ms is not None
    following = schedule.next_ms + MINUTE if next_ms is None else next_ms
    return store.apply(
        op.Enqueue(specs, firing=op.Firing(schedule.name, schedule.version, schedule.next_ms, following))
    )


def due(store: Store) -> list[str]:
    return [schedule.name for schedule in store.apply(op.DueSchedules()).schedules]


class Timetable:
    """A schedule is stored once, listed by name, and due at its time."""

    def test_a_schedule_is_stored_as_it_was_asked_for(self, store: Store) -> None:
        recurrence = Recurrence(cron="0 3 * * *", timezone="Europe/Berlin", missed="all", start_ms=5, end_ms=10**13)
        assert store.apply(op.PutSchedule("nightly", ALL_SAID, recurrence, 99)).changed
        schedule = known(store, "nightly")
        assert (schedule.spec, schedule.recurrence, schedule.next_ms) == (ALL_SAID, recurrence, 99)
        assert (schedule.is_paused, schedule.last_ms, schedule.last_id) == (False, None, None)

    def test_equal_schedule_is_left_unchanged(self, store: Store) -> None:
        assert put(store)
        before = known(store)
        assert not put(store, due_ms=5)
        assert known(store) == before

    @pytest.mark.parametrize("change", [{"every_ms": 5}, {"every_ms": MINUTE, "missed": "all"}])
    def test_replaced_schedule_keeps_its_pause_and_last_firing(self, store: Store, change: dict[str, Any]) -> None:
        put(store)
        store.wait(MINUTE)
        fire(store, known(store), job("first"))
        store.apply(op.ChangeSchedule("s", "pause"))
        before = known(store)
        assert put(store, due_ms=7, **change)
        after = known(store)
        assert after.version > before.version
        assert after.next_ms == store.clock.now_ms() + 7
        assert (after.is_paused, after.last_ms, after.last_id) == (True, before.last_ms, "first")

    def test_schedule_with_new_jobs_keeps_its_due_time(self, store: Store) -> None:
        put(store)
        before = known(store)
        assert put(store, due_ms=7, spec=job("s", ["other"]))
        after = known(store)
        assert (after.next_ms, after.spec.claims) == (before.next_ms, (Claim(("other",)),))
        assert after.version > before.version
        store.apply(op.ChangeSchedule("s", "pause"))
        assert put(store, due_ms=7, spec=job("s", ["third"]))
        assert (known(store).next_ms, known(store).is_paused) == (before.next_ms, True)

    def test_due_schedule_stays_due_with_new_jobs(self, store: Store) -> None:
        put(store)
        store.clock.advance(ms=MINUTE)
        was_due = known(store)
        assert put(store, spec=job("s", ["other"]))
        assert (store.exchange().due, due(store)) == (True, ["s"])
        assert known(store).next_ms == was_due.next_ms
        with pytest.raises(ScheduleChangedError):
            fire(store, was_due, job("a"))
        fire(store, known(store), job("a"))
        assert (due(store), store.run()) == ([], ["a"])

    def test_one_that_was_dropped_keeps_nothing(self, store: Store) -> None:
        put(store)
        store.apply(op.ChangeSchedule("s", "drop"))
        assert put(store, due_ms=7, spec=job("s", ["other"]))
        assert known(store).next_ms == store.clock.now_ms() + 7

    def test_ended_schedule_is_not_due_again_for_new_jobs(self, store: Store) -> None:
        store.apply(op.PutSchedule("s", job("s"), EVERY_MINUTE, None))
        assert put(store, spec=job("s", ["other"]))
        assert known(store).next_ms is None
        assert store.tick().next_ms is None

    def test_they_are_listed_by_name_in_pages(self, store: Store) -> None:
        names = sorted(["b", "a", "é", "a!", "a:", "aa", "Z", "😀"])
        for name in reversed(names):
            put(store, name)
        found: list[str] = []
        first: str | None = ""
        while first is not None:
            page = store.apply(op.ListSchedules(first, 3))
            assert page.now_ms == store.clock.now_ms()
            assert len(page.schedules) <= 3
            found += [schedule.name for schedule in page.schedules]
            first = page.following
        assert found == names
        assert store.apply(op.ListSchedules("b", 1)).schedules[0].name == "b"
        assert get(store, "c") is None

    def test_schedule_is_due_exactly_at_its_time(self, store: Store) -> None:
        put(store)
        assert not store.exchange().due
        assert due(store) == []
        store.clock.advance(ms=MINUTE - 1)
        assert (store.exchange().due, due(store)) == (False, [])
        store.clock.advance(ms=1)
        assert (store.exchange().due, due(store)) == (True, ["s"])
        store.clock.advance(ms=MINUTE)
        assert (store.exchange().due, due(store)) == (True, ["s"])

    def test_schedules_come_by_due_time_then_by_name(self, store: Store) -> None:
        for name, due_ms in (("b", 2), ("a", 2), ("c", 1), ("d", 3), ("later", MINUTE)):
            put(store, name, due_ms=due_ms)
        store.clock.advance(ms=10)
        assert due(store) == ["c", "a", "b", "d"]
        assert [each.name for each in store.apply(op.DueSchedules(2)).schedules] == ["c", "a"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    def test_due_schedules_are_paged_by_time_and_name(self, store: Store, limit: int) -> None:
        names = sorted(["b", "a", "é", "a!", "a:", "aa", "Z", "😀"])
        for name in reversed(names):
            put(store, name, due_ms=2)
        for name, due_ms in (("first", 1), ("last", 3), ("later", MINUTE)):
            put(store, name, due_ms=due_ms)
        store.clock.advance(ms=10)
        found: list[Schedule] = []
        place: tuple[int, str] | None = None
        while len(found) <= 10:
            page = store.apply(op.DueSchedules(limit, place))
            assert len(page.schedules) <= limit
            found += page.schedules
            place = page.behind
            if place is None:
                break
            assert place == (page.schedules[-1].next_ms, page.schedules[-1].name)
        assert [schedule.name for schedule in found] == ["first", *names, "last"]

    def test_a_place_may_be_one_where_no_schedule_is(self, store: Store) -> None:
        for name, due_ms in (("b", 2), ("d", 2), ("a", 3)):
            put(store, name, due_ms=due_ms)
        store.clock.advance(ms=10)
        now_ms = store.clock.now_ms() - 10

        def behind(due_ms: int, name: str) -> list[str]:
            return [each.name for each in store.apply(op.DueSchedules(after=(now_ms + due_ms, name))).schedules]

        assert behind(1, "z") == ["b", "d", "a"]
        assert behind(2, "a") == ["b", "d", "a"]
        assert behind(2, "c") == ["d", "a"]
        assert behind(2, "e") == ["a"]
        assert behind(3, "a") == behind(4, "") == []

    def test_next_due_time_excludes_schedules_that_wait_for_firing(self, store: Store) -> None:
        assert store.tick().next_ms is None
        put(store)
        put(store, "t", due_ms=2 * MINUTE)
        now_ms = store.clock.now_ms()
        assert store.tick().next_ms == now_ms + MINUTE
        store.enqueue(job("x", delay_ms=30_000))
        assert store.tick().next_ms == now_ms + 30_000
        store.cancel("x")
        store.clock.advance(ms=MINUTE)
        # The reply of an exchange says that it is due: no tick has to come for it at once.
        assert store.tick().next_ms == now_ms + 2 * MINUTE

    def test_one_that_is_dropped_is_gone(self, store: Store) -> None:
        put(store)
        assert store.apply(op.ChangeSchedule("s", "drop")).changed
        assert not store.apply(op.ChangeSchedule("s", "drop")).changed
        assert get(store) is None
        store.clock.advance(ms=MINUTE)
        assert (store.exchange().due, due(store), store.tick().next_ms) == (False, [], None)

    def test_ended_schedule_stays_and_is_never_due(self, store: Store) -> None:
        store.apply(op.PutSchedule("s", job("s"), EVERY_MINUTE, None))
        store.clock.advance(ms=10 * MINUTE)
        assert (store.exchange().due, due(store)) == (False, [])
        assert known(store).next_ms is None

    def test_large_arguments_are_refused(self, store: Store) -> None:
        with pytest.raises(PayloadError):
            put(store, spec=job("s", arguments=b'"' + b"x" * SCHEDULE_BYTES_MAX + b'"'))
        assert get(store) is None

    @pytest.mark.parametrize("limit", [0, 101])
    def test_a_page_has_a_limit(self, store: Store, limit: int) -> None:
        with pytest.raises(InvalidJobError, match="limit must be from 1 to 100"):
            store.apply(op.ListSchedules("", limit))
        with pytest.raises(InvalidJobError, match="limit must be from 1 to 100"):
            store.apply(op.DueSchedules(limit))


class Firings:
    """Of all workers that fire a schedule at a due time, one succeeds. Its jobs and the next due time are one step."""

    def test_firing_enqueues_its_jobs_and_sets_the_next_time(self, store: Store) -> None:
        put(store)
        store.clock.advance(ms=MINUTE)
        schedule = known(store)
        spec = job("s@1", ["doc"], schedule="s", scheduled_ms=schedule.next_ms)
        reply = fire(store, schedule, spec)
        assert [(each.id, each.created) for each in reply.jobs] == [("s@1", True)]
        after = known(store)
        assert (after.last_ms, after.last_id) == (schedule.next_ms, "s@1")
        assert after.next_ms == schedule.next_ms + MINUTE if schedule.next_ms else False
        assert not store.exchange().due
        (record,) = store.apply(op.Get(("s@1",))).records
        assert record is not None
        assert (record.schedule, record.spec.scheduled_ms) == ("s", schedule.next_ms)
        assert store.run() == ["s@1"]

    def test_the_second_firing_is_refused_and_enqueues_nothing(self, store: Store) -> None:
        put(store)
        store.clock.advance(ms=MINUTE)
        schedule = known(store)
        fire(store, schedule, job("a"))
        after = known(store)
        with pytest.raises(ScheduleChangedError, match="'s'"):
            fire(store, schedule, job("b"))
        assert known(store) == after
        assert store.run() == ["a"]

    def test_firing_of_a_changed_paused_or_dropped_schedule_is_refused(self, store: Store) -> None:
        for change in (
            lambda: put(store, every_ms=1),
            lambda: store.apply(op.ChangeSchedule("s", "pause")),
            lambda: store.apply(op.ChangeSchedule("s", "drop")),
            lambda: (store.apply(op.ChangeSchedule("s", "drop")), put(store)),
        ):
            store.apply(op.ChangeSchedule("s", "drop"))
            put(store)
            schedule = known(store)
            change()
            with pytest.raises(ScheduleChangedError):
                fire(store, schedule, job("a"))
        assert store.run() == []

    def test_a_due_time_may_be_passed_over(self, store: Store) -> None:
        put(store)
        store.clock.advance(ms=MINUTE)
        schedule = known(store)
        assert fire(store, schedule).jobs == ()
        after = known(store)
        assert (after.last_ms, after.last_id, after.next_ms) == (None, None, (schedule.next_ms or 0) + MINUTE)

    def test_one_that_is_refused_leaves_the_schedule_as_it_is(self, store: Store) -> None:
        put(store)
        store.clock.advance(ms=MINUTE)
        schedule = known(store)
        store.enqueue(job("taken"))
        store.apply(op.Close(("doc",)))
        with pytest.raises(PathClosedError):
            fire(store, schedule, job("a"), job("b", ["doc"]))
        with pytest.raises(DuplicateJobError):
            fire(store, schedule, job("taken", ["other"]))
        assert known(store) == schedule
        assert store.run() == ["taken"]

    def test_firing_of_an_existing_job_returns_that_job(self, store: Store) -> None:
        put(store)
        store.clock.advance(ms=MINUTE)
        store.enqueue(job("a", key="k"))
        (found,) = fire(store, known(store), job("b", key="k")).jobs
        assert (found.id, found.created) == ("a", False)
        assert known(store).last_id == "a"

    def test_firings_of_one_place_run_in_due_order(self, store: Store) -> None:
        put(store, due_ms=1)
        for number in range(4):
            store.clock.advance(ms=MINUTE)
            fire(store, known(store), job(f"s@{number}", ["doc"]))
        assert store.run(limit=10) == ["s@0", "s@1", "s@2", "s@3"]

    def test_several_that_were_missed_are_one_step(self, store: Store) -> None:
        put(store)
        specs = [job(f"s@{number}", ["doc"]) for number in range(FIRINGS_MAX)]
        fire(store, known(store), *specs)
        assert known(store).last_id == specs[-1].id
        with pytest.raises(InvalidJobError, match="firings: 101"):
            fire(store, known(store), *specs, job("one-more"))
        assert store.apply(op.CountJobs()).states[JobState.QUEUED] == FIRINGS_MAX

    def test_one_that_is_due_never_again(self, store: Store) -> None:
        put(store)
        schedule = known(store)
        firing = op.Firing("s", schedule.version, store.clock.now_ms(), None)
        store.apply(op.Enqueue((job("a"),), firing=firing))
        assert known(store).next_ms is None
        store.clock.advance(ms=10 * MINUTE)
        assert due(store) == []


class SchedulePauses:
    """A paused schedule does not fire. The resume sets its next due time."""

    def test_one_that_is_paused_is_due_at_no_time(self, store: Store) -> None:
        put(store)
        assert store.apply(op.ChangeSchedule("s", "pause")).changed
        assert not store.apply(op.ChangeSchedule("s", "pause")).changed
        assert known(store).is_paused
        assert known(store).next_at is None
        store.clock.advance(ms=MINUTE)
        assert (store.exchange().due, due(store), store.tick().next_ms) == (False, [], None)

    def test_one_that_is_resumed_is_due_as_it_is_told(self, store: Store) -> None:
        put(store)
        store.apply(op.ChangeSchedule("s", "pause"))
        store.clock.advance(ms=5 * MINUTE)
        paused = known(store)
        next_ms = store.clock.now_ms() + 10
        assert store.apply(op.ChangeSchedule("s", "resume", paused.version, next_ms)).changed
        assert not store.apply(op.ChangeSchedule("s", "resume", known(store).version, next_ms)).changed
        assert due(store) == []
        store.clock.advance(ms=10)
        assert due(store) == ["s"]

    def test_resuming_a_schedule_that_was_changed_meanwhile_changes_nothing(self, store: Store) -> None:
        put(store)
        store.apply(op.ChangeSchedule("s", "pause"))
        version = known(store).version
        put(store, every_ms=5)
        assert not store.apply(op.ChangeSchedule("s", "resume", version, 5)).changed
        assert known(store).is_paused

    def test_a_change_does_not_end_a_pause(self, store: Store) -> None:
        put(store)
        store.apply(op.ChangeSchedule("s", "pause"))
        put(store, every_ms=5, due_ms=0)
        assert due(store) == []

    def test_there_must_be_one(self, store: Store) -> None:
        for operation in (op.ChangeSchedule("s", "pause"), op.ChangeSchedule("s", "resume", 1, None)):
            with pytest.raises(ScheduleNotFoundError, match="no schedule 's'"):
                store.apply(operation)


def asleep(store: Store) -> threading.Thread:
    store.exchange()
    sleeper = threading.Thread(
        target=lambda: store.backend.wait_sync(Interest(pools=("default",), worker="w"), 60), daemon=True
    )
    sleeper.start()
    time.sleep(0.05)
    return sleeper


class ScheduleWaits:
    """A wait for work ends when a schedule is due."""

    def test_due_schedule_wakes_a_sleeping_worker(self, store: Store) -> None:
        sleeper = asleep(store)
        put(store, due_ms=0)
        sleeper.join(3)
        assert not sleeper.is_alive()

    def test_a_sleeping_worker_is_woken_by_an_earlier_due_time(self, store: Store) -> None:
        store.enqueue(job("x", delay_ms=60 * MINUTE))
        sleeper = asleep(store)
        put(store, due_ms=1000)
        sleeper.join(3)
        assert not sleeper.is_alive()
