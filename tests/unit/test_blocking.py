"""Blocking code in async handlers: noticed from another thread, with the line where it stands."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from queuehint import Scheduler
from queuehint.worker.leases import blocking
from queuehint.worker.leases.blocking import AGAIN_S, BLOCKS_S, PULSE_S, BlockWatch
from queuehint.worker.slots import Slots
from tests.support import LIMIT_S

LATER_S = PULSE_S + BLOCKS_S + 0.1


@pytest.fixture(autouse=True)
def _looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "_looker", blocking._Looker())
    monkeypatch.setattr(blocking._looker, "add", lambda _: None)


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if vars(record).get("event") == "job.blocks_loop"]


def while_blocked(look: Callable[[BlockWatch], None], *, is_blocked: bool = True) -> None:
    """Look at a loop that is blocked, or waits for events, from another thread."""

    async def main() -> None:
        watch = BlockWatch(Slots())
        watch.start()
        begin, done = threading.Event(), threading.Event()

        def run() -> None:
            begin.wait(60)
            look(watch)
            done.set()
            loop.call_soon_threadsafe(over.set)

        loop, over = asyncio.get_running_loop(), asyncio.Event()
        thread = threading.Thread(target=run)
        if is_blocked:
            thread.start()
            _ = begin.set(), done.wait(60)  # type: ignore[func-returns-value]  # this line blocks the loop
        else:
            begin.set()
            loop.call_later(0.05, thread.start)
        await over.wait()
        thread.join()
        watch.stop()
        watch.look(time.monotonic() + LATER_S, is_late=False)

    asyncio.run(main())


def test_code_that_blocks_the_loop_is_logged_once_with_line(caplog: pytest.LogCaptureFixture) -> None:
    def look(watch: BlockWatch) -> None:
        now_s = time.monotonic()
        watch.look(now_s, is_late=False)
        assert told(caplog) == []
        for later_s in (LATER_S, LATER_S, 2 * AGAIN_S):
            watch.look(now_s + later_s, is_late=False)

    while_blocked(look)
    (said,) = told(caplog)
    assert said["levelno"] == logging.WARNING
    assert f"{__file__}:" in said["message"]
    assert " in main;" in said["message"], "not the line of the library in which it waits"
    assert "threading.py" in said["where"]


def test_a_loop_that_waits_for_events_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    def look(watch: BlockWatch) -> None:
        time.sleep(0.05)
        watch.look(time.monotonic() + LATER_S, is_late=False)

    while_blocked(look, is_blocked=False)
    assert told(caplog) == []


def test_a_process_that_stood_still_has_blocked_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def look(watch: BlockWatch) -> None:
        now_s = time.monotonic() + LATER_S
        watch.look(now_s, is_late=True)
        watch.look(now_s + PULSE_S, is_late=False)
        assert told(caplog) == []
        watch.look(now_s + LATER_S, is_late=False)

    while_blocked(look)
    assert len(told(caplog)) == 1


def test_the_same_line_is_told_again_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    at_s = [0.0, 1.0, AGAIN_S + 1]
    for later_s in at_s:
        while_blocked(lambda watch, later_s=later_s: watch.look(time.monotonic() + LATER_S + later_s, is_late=False))  # type: ignore[misc]
    assert len(told(caplog)) == 2


async def test_a_job_that_blocks_is_named_while_it_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(blocking, "_looker", blocking._Looker())
    monkeypatch.setattr(blocking, "PULSE_S", 0.02)
    monkeypatch.setattr(blocking, "BLOCKS_S", 0.02)
    sched = Scheduler("memory://")

    @sched.job
    async def work() -> None:
        until_s = time.monotonic() + LIMIT_S
        while not told(caplog) and time.monotonic() < until_s:
            time.sleep(0.01)  # noqa: ASYNC251 - it blocks the loop

    async with sched.worker():
        job = await work.enqueue()
        await job.result()
    said = told(caplog)[0]
    assert (said["job_id"], said["task"]) == (job.id, "work")
    assert " in work;" in said["message"]


async def test_job_that_blocks_the_loop_past_its_timeout_times_out() -> None:
    sched = Scheduler("memory://")

    @sched.job(timeout=0.02, max_attempts=1)
    async def work() -> str:
        time.sleep(0.05)  # noqa: ASYNC251 - as above
        return "done"

    async with sched.worker():
        job = await work.enqueue()
        await sched.drain()
    record = await job.record()
    assert (record.state, record.errors[0].type) == ("FAILED", "timeout")


def test_stack_without_code_of_the_application_blames_nothing() -> None:
    """The line that runs the loop stands above it: `asyncio.run` of the application."""
    found: list[FrameType | None] = []

    async def look() -> None:
        # Called by the loop through asyncio alone, as what an idle loop does for itself.
        asyncio.get_running_loop().call_soon(sys.setprofile, None)

    def keep(frame: FrameType, event: str, _: Any) -> None:
        if event == "c_call" and frame.f_code.co_name in {"_run_once", "select"} and len(found) < 20:
            found.append(blocking.blamed_frame(frame))

    async def main() -> None:
        sys.setprofile(keep)
        await asyncio.sleep(0.01)
        await look()
        await asyncio.sleep(0)

    try:
        asyncio.run(main())
    finally:
        sys.setprofile(None)
    assert found
    assert set(found) == {None}


def test_stack_with_a_handler_blames_its_line() -> None:
    async def handler() -> FrameType | None:
        return blocking.blamed_frame(sys._getframe())

    frame = asyncio.run(handler())
    assert frame is not None
    assert frame.f_code.co_name == "handler"


def test_thread_that_waits_for_a_processor_blocks_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued_s = [0.0]
    monkeypatch.setattr(blocking, "_queued_s", lambda _: queued_s[0])

    def look(watch: BlockWatch) -> None:
        now_s = time.monotonic()
        watch.look(now_s, is_late=False)
        queued_s[0] = 1.0
        watch.look(now_s + LATER_S, is_late=False)
        assert told(caplog) == []
        watch.look(now_s + LATER_S + 1, is_late=False)

    while_blocked(look)
    assert len(told(caplog)) == 1


def test_wait_for_a_processor_is_read_from_the_system() -> None:
    assert blocking._queued_s(threading.get_native_id()) >= 0.0
    assert blocking._queued_s(0) == 0.0


async def test_late_loop_is_to_blame_by_its_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_s = [0.0]
    monkeypatch.setattr("queuehint.worker.leases.blocking.time.thread_time", lambda: cpu_s[0])
    watch = BlockWatch(Slots())
    assert watch.is_to_blame(6.0), "it does not watch"
    watch.start()
    assert not watch.is_to_blame(6.0)
    cpu_s[0] = 5.0
    assert watch.is_to_blame(6.0)
    watch._pulse()
    assert watch.is_to_blame(6.0), "the pulse came first"
    watch._pulse()
    assert not watch.is_to_blame(6.0)
    watch._seen_s = time.monotonic() - 2
    assert watch.is_to_blame(6.0), "code that sleeps was seen"
    watch.stop()
