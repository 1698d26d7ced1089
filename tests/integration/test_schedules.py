"""Schedules by the scheduler API, on all stores: defined, fired, missed, paused."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from queuehint import (
    HandlerError,
    InvalidJobError,
    InvalidJobTypeError,
    JobContext,
    PayloadError,
    ScheduleNotFoundError,
    Scheduler,
)
from queuehint.backends.redis.keys import redis_key
from queuehint.operations import ChangeSchedule, CountJobs, DueSchedules
from queuehint.values.schedule import SCHEDULE_BYTES_MAX
from queuehint.worker.schedules.firing import firing_id
from tests.calls import STATE_FORMAT
from tests.schedulers import scheduler, until
from tests.servers import new_namespace, shared_server

MINUTE = 60_000


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db?durability=process"
    return f"{shared_server().url}?namespace={new_namespace(request.node.name)}"


class App:
    """A scheduler, its clock, and what has run: schedule, due time and argument."""

    def __init__(self, url: str) -> None:
        self.sched, self.clock = scheduler(url)
        self.ran: list[tuple[str | None, datetime | None, int]] = []

        @self.sched.job(queue_hint=["doc"])
        async def work(ctx: JobContext, n: int = 0) -> None:
            self.ran.append((ctx.schedule, ctx.due_at, n))

        self.work = work

    def go_to(self, text: str) -> None:
        """Move the clock to a time of the day on which it begins, or of a later one."""
        self.clock.advance(ms=self.at(text) - self.clock.now_ms())

    def at(self, text: str) -> int:
        day = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)
        hour, minute, second = (*map(int, text.split(":")), 0)[:3]
        return round(day.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp() * 1000)

    @property
    def times(self) -> list[str]:
        return [f"{due_at:%H:%M}" for _, due_at, _ in self.ran if due_at is not None]


async def test_a_schedule_fires_once_each_time_it_is_due(url: str) -> None:
    app = App(url)
    async with app.sched:
        schedule = await app.sched.schedule("five", app.work, cron="*/5 * * * *", kwargs={"n": 3})
        assert schedule.next_at == datetime(2020, 9, 13, 12, 30, tzinfo=UTC)
        assert (schedule.name, schedule.task, schedule.last_at, schedule.last_id) == ("five", "work", None, None)
        for text in ("12:29", "12:30", "12:31", "12:35", "12:40"):
            app.go_to(text)
            await app.sched.drain(run=True)
            await app.sched.drain(run=True)
        assert app.times == ["12:30", "12:35", "12:40"]
        assert {(name, n) for name, _, n in app.ran} == {("five", 3)}
        schedule = await app.sched.schedules.get("five")
        assert schedule.last_at == datetime(2020, 9, 13, 12, 40, tzinfo=UTC)
        assert schedule.last_id == firing_id("five", app.at("12:40")) == "five@2020-09-13T12:40:00.000Z"
        record = await app.sched.get(schedule.last_id)
        assert (record.schedule, record.scheduled_at) == ("five", schedule.last_at)


async def test_workers_fire_without_being_asked(url: str) -> None:
    app = App(url)
    async with app.sched, app.sched.worker(), app.sched.worker(), app.sched.worker():
        await app.sched.schedule("ten", app.work, every=timedelta(seconds=10))
        for number in range(1, 11):
            app.clock.advance(seconds=10)
            await until(lambda number=number: len(app.ran) == number)  # type: ignore[misc]
    assert len({due_at for _, due_at, _ in app.ran}) == 10


async def test_declared_schedule_is_stored_when_a_worker_starts(url: str) -> None:
    async def is_stored(sched: Scheduler, count: int) -> bool:
        return len(await sched.schedules.list()) == count

    app = App(url)
    sched = app.sched
    assert sched.cron("0 * * * *", name="hourly", timezone="Europe/Berlin")(app.work) is app.work
    sched.every(30, args=(5,))(app.work)
    async with sched:
        assert await sched.schedules.list() == []
        async with sched.worker():
            await until(lambda: is_stored(sched, 2))
            app.clock.advance(seconds=30)
            await until(lambda: app.ran != [])
        assert app.ran[0][0] == "work"
        assert app.ran[0][2] == 5
        assert [schedule.name for schedule in await sched.schedules.list()] == ["hourly", "work"]


async def test_schedules_are_listed_by_job_fields_and_pause(url: str) -> None:
    app = App(url)
    async with app.sched as sched:
        book = sched.schedules

        async def names(**given: Any) -> list[str]:
            return [schedule.name for schedule in await book.list(**given)]

        jobs: dict[str, dict[str, Any]] = {
            "a": {"user": "ann", "service": "s"},
            "b": {"user": "ben", "pool": "big", "tags": ["slow", "night"]},
            "c": {"user": "ann", "queue_hint": ["doc", "x"]},
            "d": {"queue_hint": ["doc10"]},
        }
        for name, options in jobs.items():
            await sched.schedule(name, app.work.using(**options), every=60)
        await book.pause("b")
        assert await names(user="ann") == ["a", "c"]
        assert await names(user="ann", service="s", path=None) == ["a"]
        assert await names(pool="big", task="work") == ["b"]
        assert await names(tag="night") == ["b"]
        assert await names(tag="day") == []
        assert await names(task="works") == []
        assert await names(path=["doc"]) == ["a", "b", "c"]
        assert await names(path=["doc", "x"]) == ["c"]
        assert await names(paused=True) == ["b"]
        assert await names(paused=False, path=["doc"]) == ["a", "c"]
        assert await names(paused=None) == await names() == ["a", "b", "c", "d"]
        with pytest.raises(InvalidJobTypeError, match=r"^schedules have no filter 'state'; there are service, user, "):
            await names(state="QUEUED")
        with pytest.raises(InvalidJobTypeError, match=r"^paused must be"):
            await names(paused="no")
        with pytest.raises(InvalidJobTypeError, match=r"^user must be"):
            await names(user=7)


@pytest.mark.slow
async def test_schedules_are_paused_resumed_and_removed_by_a_filter(url: str) -> None:
    app = App(url)
    async with app.sched as sched:
        book = sched.schedules
        # More than one page of each.
        names = [f"{who}{number:03}" for number in range(120) for who in ("ann", "ben")]
        for name in names:
            job = app.work.using(user=name[:3], queue_hint=["doc", name])
            await sched.schedule(name, job, every=60, missed="all")
        await book.pause("ann007")

        async def paused() -> set[str]:
            return {schedule.name for schedule in await book.list(paused=True)}

        ann, ben = ({name for name in names if name.startswith(who)} for who in ("ann", "ben"))
        assert await book.pause(user="ann", path=["doc"], task="work") == 119
        assert await paused() == ann
        assert await book.pause(user="ann") == 0
        assert await book.pause(path=["doc", "ben005"]) == 1
        assert await book.resume(path=["doc", "ann007"]) == 1
        assert await paused() == ann - {"ann007"} | {"ben005"}
        app.clock.advance(seconds=150)
        assert await book.resume(all=True) == 120
        assert await paused() == set()
        app.clock.advance(seconds=30)
        await sched.drain(run=True)
        # Those that were paused go on with the beat they had, and make up for nothing.
        ran = [name for name, due_at, _ in app.ran]
        assert {name for name in names if ran.count(name) == 1} == ann - {"ann007"} | {"ben005"}
        assert {name for name in names if ran.count(name) == 3} == ben - {"ben005"} | {"ann007"}
        assert await book.pause(user="ben") == 120
        assert await book.remove(paused=True) == 120
        assert await book.remove(user="ben") == 0
        assert {schedule.name for schedule in await book.list()} == ann
        assert await book.remove(all=True) == 120
        assert await book.list() == []


async def test_one_that_is_removed_meanwhile_is_passed_over(url: str) -> None:
    app = App(url)
    async with app.sched as sched:
        for name in "abc":
            await sched.schedule(name, app.work, every=60)
        removed: list[bool] = []

        def remove_b(operation: Any) -> None:
            if isinstance(operation, ChangeSchedule) and not removed:
                removed.append(sched.schedules.remove_sync("b"))

        asked = sched.backend.call

        async def call(operation: Any) -> Any:
            remove_b(operation)
            return await asked(operation)

        sched.backend.call = call  # type: ignore[method-assign]
        assert await sched.schedules.pause(task="work") == 2
        assert [(each.name, each.is_paused) for each in await sched.schedules.list()] == [("a", True), ("c", True)]


async def test_schedule_command_without_selection_changes_nothing(url: str) -> None:
    app = App(url)
    async with app.sched as sched:
        await sched.schedule("m", app.work, every=60)
        book: Any = sched.schedules
        for call in (book.pause, book.resume, book.remove):
            with pytest.raises(InvalidJobTypeError, match=r"\(\) takes exactly one of a name, a filter and all="):
                await call()
            with pytest.raises(InvalidJobTypeError, match="takes exactly one"):
                await call("m", task="work")
            with pytest.raises(InvalidJobTypeError, match="takes exactly one"):
                await call(task="work", all=True)
            with pytest.raises(InvalidJobTypeError, match=r"user, path None matches every schedule; pass all=True"):
                await call(user=None, path=None)
            with pytest.raises(InvalidJobTypeError, match="schedules have no filter 'state'"):
                await call(state="QUEUED")
            with pytest.raises(InvalidJobTypeError, match="all must be"):
                await call(all="yes")
        (left,) = await book.list()
        assert not left.is_paused


async def test_sync_leaves_unchanged_schedules_alone(url: str) -> None:
    app = App(url)
    sched = app.sched
    sched.every(30, name="a")(app.work)
    sched.every(40, name="b")(app.work)
    async with sched:
        assert await sched.schedules.sync() == ["a", "b"]
        await sched.schedules.pause("a")
        before = await sched.schedules.list()
        app.clock.advance(seconds=5)
        assert await sched.schedules.sync() == []
        assert await sched.schedules.list() == before
        # The same again, as in a notebook, with another beat.
        again = App(url)
        again.sched._backend = sched.backend
        again.sched.every(50, name="a")(again.work)
        assert await again.sched.schedules.sync() == ["a"]
        changed = await sched.schedules.get("a")
        assert changed.is_paused
        assert changed.recurrence.every_ms == 50_000


async def test_changed_job_of_a_schedule_keeps_due_times_and_rhythm(url: str) -> None:
    app = App(url)
    async with app.sched as sched:
        await sched.schedule("daily", app.work, every=timedelta(days=1), args=[0])
        for deploy in range(1, 7):
            app.clock.advance(ms=7 * 3600 * 1000)
            await sched.schedule("daily", app.work, every=timedelta(days=1), args=[deploy], missed="skip")
        # The time of the first day has come amid the deploys; more than a minute late, it is skipped as it would be.
        assert (await sched.schedules.get("daily")).next_ms == app.at("12:26:40") - 24 * 3600 * 1000
        await sched.drain(run=True)
        assert app.ran == []
        await sched.schedule("nightly", app.work, cron="0 3 * * *", missed="all", args=[1])
        app.clock.advance(ms=24 * 3600 * 1000)
        # A deploy while no worker is there.
        await sched.schedule("nightly", app.work, cron="0 3 * * *", missed="all", args=[2])
        await sched.schedules.remove("daily")
        await sched.drain(run=True)
        assert [(name, f"{due_at:%H:%M}", n) for name, due_at, n in app.ran if due_at] == [("nightly", "03:00", 2)]


@pytest.mark.slow
@pytest.mark.parametrize("missed, fired", [("skip", ["13:00"]), ("once", ["13:00"]), ("all", None)])
async def test_missed_firings_are_skipped_fired_once_or_each(url: str, missed: Any, fired: Any) -> None:
    app = App(url)
    async with app.sched:
        await app.sched.schedule("m", app.work, cron="* * * * *", missed=missed)
        app.go_to("13:00:30")
        await app.sched.drain(run=True)
        assert app.times == (fired or [f"12:{minute}" for minute in range(27, 60)] + ["13:00"])
        # More than one step of them.
        app.go_to("16:00:30")
        await app.sched.drain(run=True)
        assert len(app.times) == (2 if fired else 34 + 180)
        assert app.times == sorted(app.times)
        assert (await app.sched.schedules.get("m")).next_ms == app.at("16:01")


async def test_a_pause_misses_nothing(url: str) -> None:
    app = App(url)
    book = app.sched.schedules
    async with app.sched:
        await app.sched.schedule("m", app.work, cron="*/10 * * * *", missed="all")
        assert await book.pause("m")
        assert not await book.pause("m")
        app.go_to("14:05")
        await app.sched.drain(run=True)
        assert (await book.get("m")).next_at is None
        assert await book.resume("m")
        assert not await book.resume("m")
        assert (await book.get("m")).next_ms == app.at("14:10")
        app.go_to("14:10")
        await app.sched.drain(run=True)
        assert app.times == ["14:10"]


async def test_one_more_job_may_be_asked_for(url: str) -> None:
    app = App(url)
    async with app.sched:
        schedule = await app.sched.schedule("m", app.work, every=60, args=[7])
        await app.sched.schedules.pause("m")
        handles = [await app.sched.schedules.run_now("m") for _ in range(2)]
        await app.sched.drain(run=True)
        now = datetime.fromtimestamp(app.clock.now_ms() / 1000, UTC)
        assert app.ran == [("m", now, 7)] * 2
        assert len({handle.id for handle in handles}) == 2
        assert (await app.sched.schedules.get("m")).next_ms == schedule.next_ms


async def test_removed_schedule_fires_no_more(url: str) -> None:
    app = App(url)
    async with app.sched:
        await app.sched.schedule("m", app.work, every=60)
        assert await app.sched.schedules.remove("m")
        assert not await app.sched.schedules.remove("m")
        app.clock.advance(seconds=60)
        await app.sched.drain(run=True)
        assert app.ran == []
        for call in (app.sched.schedules.get, app.sched.schedules.pause, app.sched.schedules.resume):
            with pytest.raises(ScheduleNotFoundError, match="no schedule 'm'"):
                await call("m")
        with pytest.raises(ScheduleNotFoundError):
            await app.sched.schedules.run_now("m")


async def test_a_firing_that_is_refused_is_lost_and_said_so(url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App(url)
    async with app.sched:
        await app.sched.schedule("m", app.work, cron="* * * * *", missed="all")
        await app.sched.close_path(["doc"])
        app.go_to("12:29")
        with caplog.at_level(logging.ERROR, "queuehint.schedules"):
            await app.sched.drain(run=True)
        (lost,) = [vars(record) for record in caplog.records if record.message == "schedule firings were lost"]
        assert (lost["schedule"], lost["due_at"], lost["count"]) == ("m", "2020-09-13T12:27:00+00:00", 3)
        assert "path 'doc' is closed" in lost["error"]
        await app.sched.reopen_path(["doc"])
        app.go_to("12:30")
        await app.sched.drain(run=True)
        assert app.times == ["12:30"]


async def test_max_pending_limits_schedule_firings(url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App(url)
    async with app.sched:
        await app.sched.limit(["doc"], max_pending=2)
        await app.sched.schedule("m", app.work, cron="* * * * *", missed="all")
        app.go_to("12:31")
        with caplog.at_level(logging.ERROR, "queuehint.schedules"):
            await app.sched.drain(run=True)
        assert app.times == ["12:27", "12:28"]
        assert [
            vars(record)["count"] for record in caplog.records if record.message == "schedule firings were lost"
        ] == [3]


async def test_a_schedule_ends(url: str) -> None:
    app = App(url)
    async with app.sched:
        begin = datetime.fromtimestamp(app.clock.now_ms() / 1000, UTC) + timedelta(seconds=5)
        await app.sched.schedule("m", app.work, every=10, start=begin, end=begin + timedelta(seconds=20))
        for _ in range(6):
            app.clock.advance(seconds=5)
            await app.sched.drain(run=True)
        assert [due_at for _, due_at, _ in app.ran] == [begin + timedelta(seconds=at) for at in (0, 10, 20)]
        assert (await app.sched.schedules.get("m")).next_at is None


async def test_unfireable_schedule_delays_no_other(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(url)
    async with app.sched:
        await app.sched.schedule("cron", app.work, cron="* * * * *", timezone="Europe/Berlin")
        await app.sched.schedule("every", app.work, every=60)
        app.clock.advance(seconds=60)
        with monkeypatch.context() as patch:
            patch.setattr(
                "queuehint.worker.schedules.due_times.zone_of", lambda _: (_ for _ in ()).throw(InvalidJobError("gone"))
            )
            async with app.sched.worker():
                await until(lambda: app.ran != [])
                assert (await app.sched.backend.call(DueSchedules())).schedules[0].name == "cron"
        assert any(record.message.endswith(" cannot be fired here") for record in caplog.records)
        await app.sched.drain(run=True)
        assert [name for name, _, _ in app.ran] == ["every", "cron"]


def test_the_synchronous_twins(url: str) -> None:
    app = App(url)
    sched = app.sched
    sched.every(30, name="code")(app.work)
    schedule = sched.schedule_sync("m", app.work, every=60)
    assert sched.schedules.sync_sync() == ["code"]
    assert sched.schedules.list_sync() == [sched.schedules.get_sync("code"), schedule]
    assert sched.schedules.pause_sync("m") is True
    assert sched.schedules.resume_sync("m") is True
    assert sched.schedules.pause_sync(task="work") == sched.schedules.resume_sync(paused=True) == 2
    assert sched.schedules.run_now_sync("m").state_sync() == "QUEUED"
    app.clock.advance(seconds=60)
    sched.drain_sync(run=True)
    assert sorted(str(name) for name, _, _ in app.ran) == ["code", "code", "m", "m"]
    assert sched.schedules.remove_sync("m")
    assert sched.schedules.remove_sync("nix") is False
    assert sched.schedules.remove_sync(task="work") == 1
    sched.close_sync()


def test_unknown_option_is_refused_and_stores_nothing() -> None:
    app = App("memory://")
    sched: Any = app.sched
    calls = [(sched.schedule_sync, ("m", app.work)), (sched.cron, ("* * * * *",)), (sched.every, (5,))]
    for define, args in calls:
        with pytest.raises(TypeError, match="zone"):
            define(*args, zone="UTC")
    with pytest.raises(InvalidJobTypeError, match="one of them"):
        sched.every(5, cron="* * * * *")
    assert sched.schedules.list_sync() == []
    sched.close_sync()


async def test_inside_a_handler_drain_fires_nothing(url: str) -> None:
    app = App(url)
    seen: list[int] = []

    @app.sched.job
    async def look() -> None:
        # The worker that runs this is not told of schedules that have come due meanwhile.
        app.clock.advance(seconds=5)
        await app.sched.drain(["nowhere"], run=True)
        seen.append(len((await app.sched.backend.call(DueSchedules())).schedules))

    async with app.sched:
        await app.sched.schedule("m", app.work, every=5)
        await look.enqueue()
        await app.sched.drain(run=True)
        assert seen == [1]


@pytest.mark.redis
def test_a_store_that_holds_10_000_takes_no_other() -> None:
    namespace = new_namespace("full")
    app = App(f"{shared_server().url}?namespace={namespace}")
    app.sched.schedule_sync("m", app.work, every=60)
    count = (
        STATE_FORMAT
        + """local state = unpack_state(redis.call('HGET', KEYS[1], 'state'))
        state[48] = tonumber(ARGV[1])
        redis.call('HSET', KEYS[1], 'state', pack_state(state))"""
    )
    shared_server().call("EVAL", count, 1, redis_key(namespace, "meta"), 10_000)
    with pytest.raises(InvalidJobError, match="10000 schedules, the limit"):
        app.sched.schedule_sync("n", app.work, every=60)
    assert app.sched.schedule_sync("m", app.work, every=30).recurrence.every_ms == 30_000
    app.sched.close_sync()


# --- bad input -------------------------------------------------------------------------------------------------------


async def test_malformed_schedule_is_refused_before_any_write(url: str) -> None:
    app, other = App(url), App("memory://")
    sched, work = app.sched, app.work

    async def refused(said: str, name: Any = "m", job: Any = work, **options: Any) -> None:
        with pytest.raises((InvalidJobError, PayloadError), match=said):
            await sched.schedule(name, job, **({"every": 60} | options))

    @sched.job
    async def store(value: Any) -> None: ...

    async with sched:
        await refused("name is empty", name="")
        await refused("name is 129 bytes, limit 128", name="x" * 129)
        await refused("name holds white space", name="two words")
        await refused("name must be str", name=5)
        await refused("job must be a Job", job="work")
        await refused("job must be a Job", job=lambda: None)
        await refused("of another scheduler", job=other.work)
        await refused("args must be a list", args="abc")
        await refused("args must be a list", args=5)
        await refused("kwargs must be a dict", kwargs=[1])
        await refused("unexpected|argument", kwargs={"unknown": 1})
        await refused("too many", args=[1, 2, 3])
        await refused("set is not JSON", job=store, args=[{1}])
        await refused(f"limit {SCHEDULE_BYTES_MAX}", job=store, args=["x" * SCHEDULE_BYTES_MAX])
        await refused("id is for one job", job=work.using(id="a"))
        await refused("run_at is for one job", job=work.using(run_at=datetime.now(UTC)))
        await refused("after is for one job", job=work.using(after=["a"]))
        await refused("cron or every", every=None)
        assert await sched.schedules.list() == []
        assert (await sched.backend.call(CountJobs())).enqueued == 0


def test_schedule_decorator_validates_at_once() -> None:
    app = App("memory://")
    with pytest.raises(InvalidJobTypeError, match=r"@sched.cron stands above @sched.job"):
        app.sched.cron("* * * * *")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(InvalidJobError, match="minute must be 0 to 59"):
        app.sched.cron("61 * * * *")
    with pytest.raises(InvalidJobError, match="every must be"):
        app.sched.every(0)
    app.sched.every(60)(app.work)
    with pytest.raises(HandlerError, match="schedule 'work' is defined twice"):
        app.sched.cron("* * * * *")(app.work)

    @app.sched.job(name="another")
    async def another() -> None: ...

    with pytest.raises(HandlerError, match="defined twice"):
        app.sched.every(60, name="work")(another)


def test_long_names_make_ids_that_fit() -> None:
    assert firing_id("é" * 20, 0) == "é" * 20 + "@1970-01-01T00:00:00.000Z"
    ids = {firing_id("x" * 128, at_ms) for at_ms in range(5)}
    assert len(ids) == 5
    assert {len(each) for each in ids} == {64}


async def test_many_workers_that_start_at_once_store_a_definition_once(url: str) -> None:
    app = App(url)
    app.sched.every(60)(app.work)
    async with app.sched:
        changed = await asyncio.gather(*[app.sched.schedules.sync() for _ in range(8)])
        assert sum(map(len, changed)) == 1
