"""The task that fires schedules: failures, and that jobs never wait for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import attrs
import pytest

from queuehint import BackendUnavailableError, Claim, InvalidJobError
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.memory import MemoryBackend
from queuehint.backends.steps import run_steps_sync
from queuehint.clock import FakeClock
from queuehint.errors import ScheduleChangedError
from queuehint.values.record import JobState
from queuehint.values.schedule import SCHEDULE_BYTES_MAX, Recurrence
from queuehint.values.spec import JobSpec
from queuehint.worker.schedules import firing as timekeeping
from queuehint.worker.schedules.due_times import come_due
from queuehint.worker.schedules.firing import Definition, Timekeeper, fire_due, store
from tests.schedulers import turns, until

EVERY = Recurrence(every_ms=1000, missed="all")


class Store(MemoryBackend):
    """A store that says what it was asked, and may answer otherwise."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        super().__init__(BackendOptions(clock=self.clock))
        self.asked: list[Any] = []
        self.errors: list[Exception] = []

    def call_sync(self, operation: Any) -> Any:
        self.asked.append(operation)
        if self.errors and not isinstance(operation, op.Tick):
            raise self.errors.pop(0)
        return super().call_sync(operation)


def defined(name: str, **fields: Any) -> Definition:
    return Definition(name=name, spec=JobSpec(id=name, task="t", **fields), recurrence=EVERY)


def counted(backend: Store) -> int:
    return backend.call_sync(op.CountJobs()).states[JobState.QUEUED]  # type: ignore[no-any-return]


def test_schedule_fired_elsewhere_meanwhile_is_skipped() -> None:
    backend = Store()
    assert run_steps_sync(backend, store(defined("s")))
    backend.clock.advance(ms=1000)
    talk = fire_due()
    asked = talk.send(None)
    assert isinstance(asked, op.DueSchedules)
    reply = backend.call_sync(asked)
    assert run_steps_sync(backend, fire_due())
    firing = talk.send(reply)
    assert isinstance(firing, op.Enqueue)
    with pytest.raises(ScheduleChangedError) as caught:
        backend.call_sync(firing)
    again = talk.throw(caught.value)
    assert isinstance(again, op.DueSchedules)
    with pytest.raises(StopIteration) as end:
        talk.send(backend.call_sync(again))
    assert end.value.value is True
    assert counted(backend) == 1


def test_a_refused_batch_of_firings_is_fired_one_by_one() -> None:
    backend = Store()
    run_steps_sync(backend, store(defined("s")))
    backend.clock.advance(ms=5000)
    (schedule,) = backend.call_sync(op.DueSchedules()).schedules
    taken = JobSpec(id="s@2020-09-13T12:26:43.000Z", task="another")
    backend.call_sync(op.Enqueue((taken,)))
    assert run_steps_sync(backend, fire_due())
    assert counted(backend) == 5
    (after,) = backend.call_sync(op.ListSchedules()).schedules
    assert after.last_ms == schedule.next_ms + 4000
    assert after.next_ms == schedule.next_ms + 5000


def test_unfireable_schedules_delay_no_later_ones(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Store()
    for at in range(250):
        run_steps_sync(backend, store(defined(f"stuck{at:03}")))
    backend.clock.advance(ms=1)
    # One amid them, and one behind them that has missed more due times than are fired at once.
    run_steps_sync(backend, store(defined("s")))
    run_steps_sync(backend, store(attrs.evolve(defined("stuck100!"), recurrence=Recurrence(every_ms=999))))
    backend.clock.advance(ms=150_000)
    tries = []

    def fire_some(recurrence: Recurrence, next_ms: int, now_ms: int, most: int) -> Any:
        if recurrence == EVERY and next_ms % 1000 == 0:
            tries.append(next_ms)
            raise InvalidJobError("no such zone")
        return come_due(recurrence, next_ms, now_ms, most)

    monkeypatch.setattr(timekeeping, "come_due", fire_some)
    assert not run_steps_sync(backend, fire_due())
    due = backend.call_sync(op.DueSchedules()).schedules
    assert {schedule.name[:5] for schedule in due} == {"stuck"}
    last = {schedule.name: schedule.last_id for schedule in backend.call_sync(op.ListSchedules()).schedules}
    assert last["s"] == "s@2020-09-13T12:29:10.001Z"
    assert backend.call_sync(op.CountJobs()).states[JobState.QUEUED] == 150 + 60
    assert (len(tries), len(caplog.records)) == (250, 250)


class NewerStore(Store):
    """A store in which this release cannot read some schedules."""

    def call_sync(self, operation: Any) -> Any:
        reply = super().call_sync(operation)
        if not isinstance(operation, op.DueSchedules):
            return reply
        names = [schedule.name for schedule in reply.schedules]
        read = tuple([schedule for schedule in reply.schedules if not schedule.name.startswith("new")])
        return attrs.evolve(reply, schedules=read, unreadable=tuple([name for name in names if name.startswith("new")]))


def test_unreadable_schedules_delay_no_others_and_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = NewerStore()
    for at in range(250):
        run_steps_sync(backend, store(defined(f"new{at:03}")))
    backend.clock.advance(ms=1)
    # Behind them, two that have missed more due times than are fired at once.
    run_steps_sync(backend, store(defined("s")))
    run_steps_sync(backend, store(defined("t")))
    backend.clock.advance(ms=150_000)
    assert not run_steps_sync(backend, fire_due())
    assert counted(backend) == 2 * 150
    assert len(caplog.records) == 250


def test_a_store_that_cannot_be_reached_loses_no_firing() -> None:
    backend = Store()
    run_steps_sync(backend, store(defined("s")))
    backend.clock.advance(ms=1000)
    for at in (0, 1):
        backend.errors = [BackendUnavailableError("away")]
        talk = fire_due()
        step = talk.send(None)
        if at:
            backend.errors, errors = [], backend.errors
            step = talk.send(backend.call_sync(step))
            backend.errors = errors
        with pytest.raises(BackendUnavailableError) as caught:
            backend.call_sync(step)
        with pytest.raises(BackendUnavailableError):
            talk.throw(caught.value)
    assert run_steps_sync(backend, fire_due())
    assert counted(backend) == 1


async def test_a_definition_that_is_refused_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    backend = Store()
    keeper = Timekeeper(backend, lambda: [defined("large", arguments=b" " * 70_000), defined("s")])
    keeper.see(due=False)
    await until(lambda: len(backend.asked) == 5)
    assert [schedule.name for schedule in backend.call_sync(op.ListSchedules()).schedules] == ["s"]
    keeper.stop()
    assert [record.message for record in caplog.records] == ["schedule large cannot be stored"]


async def test_definitions_are_stored_once_then_only_due_schedules_are_queried() -> None:
    backend = Store()
    keeper = Timekeeper(backend, lambda: [defined("s")])
    for due in (False, False, True, False):
        keeper.see(due=due)
        await turns()
    asked = [type(operation) for operation in backend.asked]
    assert asked == [op.ListSchedules, op.PutSchedule, op.DueSchedules, op.DueSchedules]


async def test_schedule_due_during_a_firing_is_fired_at_once() -> None:
    backend = Store()
    call = backend.call
    looked, answers = asyncio.Event(), asyncio.Event()

    async def calling(operation: Any) -> Any:
        reply = await call(operation)
        if isinstance(operation, op.DueSchedules):
            looked.set()
            await answers.wait()
        return reply

    backend.call = calling  # type: ignore[method-assign]
    keeper = Timekeeper(backend, lambda: [defined("s")])
    keeper.see(due=False)
    await looked.wait()
    backend.clock.advance(ms=1000)
    keeper.see(due=True)
    answers.set()
    await turns()
    assert counted(backend) == 1


def test_the_timekeeper_retries_failed_stores_and_firings_after_a_pause(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]

    async def main() -> None:
        backend = Store()
        keeper = Timekeeper(backend, lambda: [defined("s")], lambda: now[0])

        async def see() -> int:
            before = len(backend.asked)
            keeper.see(due=True)
            await turns()
            return len(backend.asked) - before

        backend.errors = [BackendUnavailableError("away")]
        assert await see() == 1
        assert await see() == 0
        now[0] += 5
        assert await see() == 3
        backend.clock.advance(ms=1000)
        monkeypatch.setattr("queuehint.worker.schedules.firing.come_due", _fail)
        assert await see() == 1
        assert await see() == 0
        monkeypatch.undo()
        now[0] += 5
        assert await see() == 3
        assert counted(backend) == 1

    with caplog.at_level(logging.WARNING, "queuehint.schedules"):
        asyncio.run(main())
    assert [vars(record)["event"] for record in caplog.records] == ["schedule.backend", "schedule.stuck"]


def _fail(*_: Any) -> Any:
    raise InvalidJobError("no such zone")


def test_permanently_refused_firing_ends(caplog: pytest.LogCaptureFixture) -> None:
    backend = Store()
    run_steps_sync(backend, store(defined("s", claims=(Claim(("doc",)),))))
    backend.call_sync(op.Close(("doc",)))
    backend.clock.advance(ms=250_000)
    with caplog.at_level(logging.ERROR, "queuehint.schedules"):
        assert run_steps_sync(backend, fire_due())
    assert [vars(record)["count"] for record in caplog.records] == [100, 100, 50]
    assert counted(backend) == 0
    assert backend.call_sync(op.DueSchedules()).schedules == ()


def test_firings_with_large_arguments_are_several_submissions() -> None:
    backend = Store()
    assert run_steps_sync(backend, store(defined("s", arguments=b"x" * SCHEDULE_BYTES_MAX)))
    backend.clock.advance(ms=100_000)
    assert run_steps_sync(backend, fire_due())
    assert counted(backend) == 100
    sent = [len(asked.jobs) for asked in backend.asked if isinstance(asked, op.Enqueue)]
    assert sent == [op.BYTES_PER_SUBMISSION_MAX // SCHEDULE_BYTES_MAX, 36]
