"""What code declares once: stored again by workers when the store has lost data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import HandlerError, PathClosedError, Scheduler
from queuehint.core.engine import Engine, EngineOptions
from queuehint.errors import BackendUnavailableError
from queuehint.worker import lifespan as lifespan_module
from queuehint.worker.leases import presence
from tests.conftest import StartServer
from tests.schedulers import Gate, memory, scheduler, turns, until

EPOCH_S = 100_000_000


def lose(sched: Scheduler, epoch_s: int) -> None:
    """Have a memory store begin a new history, as a Redis does whose replica lacked everything."""
    memory(sched).engine = Engine(EngineOptions(epoch_s=epoch_s))


def declared(sched: Scheduler) -> Any:
    """Declare a schedule, a limit, a weight and a closed path; return a job to wake workers with."""

    @sched.every(3600)
    @sched.job
    async def beat() -> None: ...

    @sched.setup
    async def limits() -> None:
        await sched.limit(["mail"], 2)
        await sched.close_path(["gone"])

    @sched.setup
    def weights() -> None:
        sched.set_weight_sync("ann", 3)

    @sched.job(queue_hint=["gone", "section"])
    async def at() -> None: ...

    @sched.job
    async def plain() -> None: ...

    return plain


async def has_all(sched: Scheduler) -> bool:
    names = [each.name for each in await sched.schedules.list()]
    limits = [(limit.limit.path, limit.limit.most) for limit in await sched.limits()]
    is_closed = False
    try:
        await sched.jobs["at"].enqueue()
    except PathClosedError:
        is_closed = True
    return names == ["beat"] and limits == [(("mail",), 2)] and await sched.weights() == {"ann": 3} and is_closed


async def is_idle(sched: Scheduler) -> bool:
    """Return whether no job is left, such as those with which `has_all` asked for the path too early."""
    return not (await sched.stats()).unfinished


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records if record.levelno >= logging.WARNING]


async def test_worker_stores_declarations_again_after_grants_of_another_epoch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sched, _ = scheduler()
    plain = declared(sched)
    async with sched.worker():
        await until(lambda: has_all(sched))
        await (await plain.enqueue()).result(timeout=60)
        for epoch_s in (EPOCH_S * 9, EPOCH_S):
            await until(lambda: is_idle(sched))
            lose(sched, epoch_s)
            assert not await has_all(sched)
            await (await plain.enqueue()).result(timeout=60)
            await until(lambda: has_all(sched))
        await turns()
    assert events(caplog) == ["schedule.restored"] * 2


async def test_idle_worker_learns_of_lost_data_by_its_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "ANNOUNCE_EVERY_S", 0.0)
    sched, clock = scheduler()
    declared(sched)
    async with sched.worker():
        await until(lambda: has_all(sched))
        lose(sched, memory(sched).engine.state.token >> 32)
        assert not await has_all(sched)

        async def moved() -> bool:
            clock.advance(ms=1000)  # something may be due: the worker looks, and runs no job
            return await has_all(sched)

        await until(moved)


async def test_worker_on_redis_stores_declarations_again_after_a_flush(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "ANNOUNCE_EVERY_S", 0.0)
    server = start_server()
    async with Scheduler(server.url) as sched:
        plain = declared(sched)
        async with sched.worker():
            await until(lambda: has_all(sched))
            server.call("FLUSHALL")
            assert not await has_all(sched)
            await (await plain.enqueue()).result(timeout=60)
            await until(lambda: has_all(sched))


async def test_two_workers_store_lost_declarations_once(caplog: pytest.LogCaptureFixture) -> None:
    sched, _ = scheduler()
    plain = declared(sched)
    async with sched.worker(1), sched.worker(1):
        await until(lambda: has_all(sched))
        await (await plain.enqueue()).result(timeout=60)
        lose(sched, EPOCH_S * 9)
        for _ in range(4):
            await (await plain.enqueue()).result(timeout=60)
        await until(lambda: has_all(sched))
        assert len(await sched.schedules.list()) == 1
    assert events(caplog) == ["schedule.restored"]


async def test_setup_that_fails_is_logged_and_others_are_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifespan_module, "SETUP_REST_S", 0.0)
    sched, _ = scheduler()
    errors: list[Exception] = [
        ValueError("no such tenant"),
        BackendUnavailableError("away"),
        BackendUnavailableError("away"),
    ]
    calls: list[str] = []

    @sched.setup
    def bad() -> None:
        calls.append("bad")
        if len(calls) == 1:
            raise errors[0]

    @sched.setup
    async def away() -> None:
        calls.append("away")
        if len(errors) > 1:
            raise errors.pop()

    async with sched.worker():
        await until(lambda: calls.count("away") == 3)
        await turns()
    assert calls == ["bad", "away"] * 3
    assert events(caplog) == ["worker.setup_failed", "worker.setup_delayed", "worker.setup_delayed"]


def _with_argument(_tenant: str) -> None: ...


def _yields() -> Any:
    yield


@pytest.mark.parametrize(
    "function, message",
    [
        (5, "setup takes a function, got int: 5"),
        (_with_argument, "is called without arguments"),
        (_yields, "must not yield; @sched.worker_lifespan opens resources"),
    ],
)
def test_setup_refuses_functions_that_it_cannot_call(function: Callable[[], Any], message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        Scheduler().setup(function)


async def test_limits_of_a_setup_hold_for_the_first_grants() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.setup
    async def limits() -> None:
        await turns()
        await sched.limit(["mail"], 1)

    @sched.job(queue_hint=["mail", "{n}"])
    async def send(n: int) -> None:
        await gate.wait(n)

    for n in range(5):
        await send.enqueue(n)
    async with sched.worker(concurrency=5):
        await gate.reached()
        await turns()
        assert gate.entered == [0]
        gate.open()
        await sched.drain(timeout=60)


async def test_nothing_is_claimed_before_a_setup_has_reached_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifespan_module, "SETUP_REST_S", 0.0)
    sched, _ = scheduler()
    did: list[str] = []
    is_there = asyncio.Event()

    @sched.setup
    async def away() -> None:
        did.append("setup")
        if not is_there.is_set():
            raise BackendUnavailableError("away")

    @sched.job
    async def work() -> None:
        did.append("work")

    job = await work.enqueue()
    worker = sched.make_worker()
    task = asyncio.create_task(worker.run())
    await until(lambda: len(did) > 20)
    assert {*did} == {"setup"}
    is_there.set()
    await job.result(timeout=60)
    await turns()
    worker.stop()
    await task
    assert (did[-1], did.count("work")) == ("work", 1)


async def test_a_worker_stops_while_its_first_setup_hangs() -> None:
    sched, _ = scheduler()
    begun = asyncio.Event()

    @sched.setup
    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = sched.make_worker()
    task = asyncio.create_task(worker.run())
    await begun.wait()
    worker.stop()
    await asyncio.wait_for(task, 60)


async def test_setup_of_the_same_name_replaces_the_one_before() -> None:
    sched, _ = scheduler()
    calls: list[int] = []
    for number in range(2):

        @sched.setup
        def declare(number: int = number) -> None:
            calls.append(number)

    async with sched.worker():
        await until(lambda: bool(calls))
        await turns()
    assert calls == [1]
