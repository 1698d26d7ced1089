"""Background tasks of a worker never end silently: errors are survived and logged, or end the worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import Scheduler
from queuehint.operations import Follow
from queuehint.scheduler import listening
from queuehint.worker import listening as listening_module
from queuehint.worker.leases.renewal import Renewal
from queuehint.worker.schedules import firing as timekeeping_module
from tests.manual_jobs import on
from tests.schedulers import Gate, scheduler, until

ERROR = RuntimeError("a fault of ours")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.__dict__.get("event")) for record in caplog.records]


def break_waits(sched: Scheduler, count: int) -> list[int]:
    """Have so many waits of workers fail."""
    backend, left = sched.backend, [count]

    def breaking(wait: Any) -> Any:
        async def waiting(interest: Any, *args: Any) -> Any:
            if interest.worker is not None and left[0]:
                left[0] -= 1
                raise ERROR
            return await wait(interest, *args)

        return waiting

    backend.wait, backend.wait_and_call = breaking(backend.wait), breaking(backend.wait_and_call)  # type: ignore[method-assign]
    return left


def test_a_worker_whose_listening_fails_says_so_and_works_on(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0.001)

    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work(n: int) -> int:
            return n

        left = break_waits(sched, 5)
        async with sched.worker():
            await until(lambda: left[0] < 5)
            assert [await (await work.enqueue(n)).result(timeout=60) for n in range(3)] == [0, 1, 2]
            await until(lambda: not left[0])
            assert await (await work.enqueue(3)).result(timeout=60) == 3

    on(url, main)
    assert events(caplog).count("worker.listening_failed") == 5


@pytest.mark.slow
def test_listeners_are_told_although_following_failed_for_a_while(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "STORE_PAUSE_S", 0.001)

    async def main(sched: Scheduler) -> None:
        told: list[str] = []
        left = [0]
        call = sched.backend.call

        async def calling(operation: Any) -> Any:
            if isinstance(operation, Follow) and left[0]:
                left[0] -= 1
                raise ERROR
            return await call(operation)

        sched.backend.call = calling  # type: ignore[method-assign]

        @sched.on("finished")
        async def note(event: Any) -> None:
            told.append(event.id)

        @sched.job
        async def work() -> None: ...

        async with sched.worker():
            left[0] = 3
            await until(lambda: not left[0])
            job = await work.enqueue()
            await until(lambda: told == [job.id])

    on(url, main)
    assert events(caplog).count("events.failed") == 3


async def test_schedules_are_looked_after_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timekeeping_module, "REST_S", 0)

    sched, _ = scheduler()
    left = [3]
    store_all = timekeeping_module.Timekeeper._store_all

    async def break_it(self: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise ERROR
        await store_all(self)
        left.append(0)

    monkeypatch.setattr(timekeeping_module.Timekeeper, "_store_all", break_it)

    @sched.job
    async def work() -> None: ...

    async with sched.worker():
        while len(left) == 1:
            await (await work.enqueue()).result(timeout=60)
    assert events(caplog).count("schedule.stuck") == 3


@pytest.mark.slow
@pytest.mark.parametrize("part", ["_due", "_fence"])
def test_leases_survive_temporary_failures_of_their_threads(
    url: str, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    method: Callable[..., Any] = getattr(Renewal, part)
    left = [2]

    def fail(self: Renewal, *args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise ERROR
        return method(self, *args)

    monkeypatch.setattr(Renewal, part, fail)

    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work() -> int:
            await until(lambda: not left[0])
            return 1

        async with sched.worker():
            assert await (await work.enqueue()).result(timeout=60) == 1

    if url == "memory://" or url.startswith("sqlite"):
        pytest.skip("such a store renews by itself")
    on(url, main, lease=1)
    assert {"renewal.failed", "renewal.watch_failed"} & set(events(caplog))


async def test_error_that_ends_a_worker_is_logged_and_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sched, _ = scheduler()
    gate, stopped = Gate(), list[bool]()

    @sched.job
    async def work() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    worker: Any = sched.make_worker()
    task = asyncio.create_task(worker.run())
    await work.enqueue()
    await gate.reached()

    def fail(*_: Any, **__: Any) -> None:
        raise ERROR

    worker._state.take_in = fail
    worker._state.wakeup.set()
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await task
    await until(lambda: stopped == [True])
    assert "worker.died" in events(caplog)


async def test_a_worker_whose_threads_cannot_all_be_started_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if thread.name == "queuehint-renewal_renew":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    sched = Scheduler("redis://127.0.0.1:1", lease=1)
    with pytest.raises(RuntimeError, match="new thread"):
        async with sched.worker():
            raise AssertionError("it has started")
    await until(lambda: "queuehint-renewal_watch" not in {thread.name for thread in threading.enumerate()})
    await sched.close()
