"""Attempts of jobs by a worker: answers, errors, results and time-outs of handlers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuehint import (
    Backoff,
    Claim,
    Discard,
    Fail,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobSpec,
    JobState,
    PayloadError,
    Retry,
    Snooze,
)
from queuehint.operations import Post
from queuehint.values.report import ReasonKind
from queuehint.worker import worker as worker_module
from tests.handlers import KINDS, answering, events, in_state
from tests.schedulers import Gate, memory, scheduler, turns, until
from tests.support import until_sync

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- answers ---------------------------------------------------------------------------------------------------------


def throwing(error: BaseException | type[BaseException]) -> Callable[[JobContext], Any]:
    def throw(ctx: JobContext) -> Any:
        raise error

    return throw


@KINDS
async def test_failed_attempt_is_retried_after_backoff_until_exhausted(kind: str) -> None:
    sched, clock = scheduler()
    handle = await answering(sched, throwing(ValueError("no")), kind, max_attempts=3).enqueue()
    async with sched.worker():
        for attempt, back_off_s in [(1, 1), (2, 2)]:
            record = await in_state(handle, QUEUED, attempt)
            assert record.due_ms == clock.now_ms() + back_off_s * 1_000
            clock.advance(seconds=back_off_s)
        with pytest.raises(JobFailedError, match="ValueError: no"):
            await handle.result()
    record = await handle.record()
    assert [error.attempt for error in record.errors] == [1, 2, 3]


@KINDS
async def test_a_retry_with_a_time_waits_that_long_and_counts(kind: str) -> None:
    sched, clock = scheduler()
    handle = await answering(sched, lambda _: Retry(7, "busy"), kind, max_attempts=2).enqueue()
    async with sched.worker():
        record = await in_state(handle, QUEUED, 1)
        assert record.due_ms == clock.now_ms() + 7_000
        clock.advance(seconds=7)
        with pytest.raises(JobFailedError, match="retry: busy"):
            await handle.result()


@KINDS
async def test_a_retry_without_a_time_waits_the_back_off(kind: str) -> None:
    sched, clock = scheduler()
    handle = await answering(sched, lambda ctx: Retry() if ctx.attempt == 1 else "well", kind).enqueue()
    async with sched.worker():
        record = await in_state(handle, QUEUED, 1)
        assert record.due_ms == clock.now_ms() + 1_000
        clock.advance(seconds=1)
        assert await handle.result() == "well"


@KINDS
async def test_a_snooze_counts_for_nothing(kind: str) -> None:
    sched, clock = scheduler()
    calls: list[int] = []

    def answer(ctx: JobContext) -> Any:
        calls.append(ctx.attempt)
        return Snooze(60) if len(calls) < 4 else "well"

    handle = await answering(sched, answer, kind, max_attempts=1).enqueue()
    async with sched.worker():
        for count in (1, 2, 3):
            await until(lambda count=count: len(calls) == count)  # type: ignore[misc]
            await in_state(handle, QUEUED, 0)
            clock.advance(seconds=60)
        assert await handle.result() == "well"
    assert calls == [1, 1, 1, 1]


@KINDS
async def test_fail_ends_the_job_at_once(kind: str) -> None:
    sched, _ = scheduler()
    handle = await answering(sched, lambda _: Fail("why"), kind).enqueue()
    await sched.drain()
    with pytest.raises(JobFailedError, match="fail: why"):
        await handle.result()
    assert (await handle.record()).attempts == 1


@KINDS
async def test_discard_cancels_the_job(kind: str) -> None:
    sched, _ = scheduler()
    handle = await answering(sched, lambda _: Discard("moot"), kind).enqueue()
    await sched.drain()
    with pytest.raises(JobCanceledError, match="moot"):
        await handle.result()


@KINDS
@pytest.mark.parametrize(
    "answer",
    [(Retry, None, 5), (Fail, 5), (Discard, 5), (Fail, "\ud800"), (Fail, "x" * 10**6)],
    ids=["retry", "fail", "discard", "surrogate", "long"],
)
async def test_job_ends_with_any_reason_of_its_handler(kind: str, answer: tuple[Any, ...]) -> None:
    sched, _ = scheduler()
    # Made by the handler: what is no text is refused there.
    handle = await answering(sched, lambda _: answer[0](*answer[1:]), kind, max_attempts=1).enqueue()
    await sched.drain()
    assert await handle.state() in {FAILED, CANCELED}


# --- errors ----------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
async def test_handler_that_exits_counts_as_a_loss_without_stopping_workers(kind: str, error: BaseException) -> None:
    sched, _ = scheduler()
    handle = await answering(sched, throwing(error), kind, max_attempts=1, max_losses=3).enqueue()
    async with sched.worker():
        with pytest.raises(JobFailedError, match=type(error).__name__):
            await handle.result()
        record = await handle.record()
        assert (record.cause, record.losses, record.attempts) == ("worker_lost", 3, 0)
        other = await answering(sched, lambda _: "well", kind).enqueue()
        assert await other.result() == "well"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Endless(Exception):
    def __str__(self) -> str:
        return "x" * (10 << 20)


class Broken(Exception):
    def __str__(self) -> str:
        return "bad \ud800 text"


class NoText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - that is the point


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit


Hostile: Any = type("X" * 10_000, (Exception,), {})


RAISED: list[tuple[BaseException, str, str]] = [
    (GeneratorExit("g"), "GeneratorExit", "g"),
    (asyncio.CancelledError("c"), "asyncio.exceptions.CancelledError", "c"),
    (BaseExceptionGroup("group", [KeyError("k"), SystemExit()]), "BaseExceptionGroup", "group (2 sub-exceptions)"),
    (ExceptionGroup("group", [KeyError("k")]), "ExceptionGroup", "group (1 sub-exception)"),
    (MemoryError("m"), "MemoryError", "m"),
    (RecursionError("r"), "RecursionError", "r"),
    (StopIteration("s"), "RuntimeError", ""),
    (StopAsyncIteration("s"), "", ""),
    (TimeoutError("t"), "TimeoutError", "t"),
    (Unprintable(), f"{__name__}.Unprintable", "<Unprintable>"),
    (NoText(), f"{__name__}.NoText", "<NoText>"),
    (Exiting(), f"{__name__}.Exiting", "<Exiting>"),
    (Endless(), f"{__name__}.Endless", "x" * 4_095 + "…"),
    (Broken(), f"{__name__}.Broken", "bad \\ud800 text"),
    (Hostile("h"), "", "h"),
]


@KINDS
@pytest.mark.parametrize("error, name, message", RAISED, ids=[type(error).__name__[:20] for error, _, _ in RAISED])
async def test_whatever_else_is_raised_fails_the_attempt(
    kind: str, error: BaseException, name: str, message: str
) -> None:
    sched, _ = scheduler()
    handle = await answering(sched, throwing(error), kind, max_attempts=1).enqueue()
    await sched.drain(timeout=60)
    record = await handle.record()
    (described,) = record.errors
    assert record.state is FAILED
    assert name in described.type
    assert message in described.message
    assert max(len(described.type), len(described.message), len(described.traceback or "")) <= 4_096
    for text in (described.type, described.message, described.traceback or ""):
        text.encode()


async def test_endless_recursion_fails_the_attempt() -> None:
    sched, _ = scheduler()

    def deeper(ctx: JobContext) -> Any:
        return deeper(ctx)

    for kind in ("async", "thread"):
        handle = await answering(sched, deeper, kind, max_attempts=1).enqueue()
        await sched.drain()
        assert (await handle.record()).errors[0].type == "RecursionError"


async def test_redacted_reason_is_in_no_record() -> None:
    sched, _ = scheduler(redact=lambda text: text.replace("hunter2", "***"))

    @sched.job(max_attempts=1)
    async def work(how: str) -> Any:
        if how == "raise":
            raise ValueError("password hunter2")
        return {"retry": Retry, "fail": Fail, "discard": Discard}[how](reason="password hunter2")

    for how in ("raise", "retry", "fail", "discard"):
        handle = await work.enqueue(how)
        await sched.drain()
        record = await handle.record()
        assert "hunter2" not in str((record.errors, record.cause, record.logs))
        assert "password ***" in str((record.errors, record.cause))


@pytest.mark.parametrize("redact", [lambda text: 1 / 0, lambda text: None, lambda text: 5])
async def test_a_redaction_that_fails_withholds_the_text(redact: Any, caplog: pytest.LogCaptureFixture) -> None:
    sched, _ = scheduler(redact=redact)
    handle = await answering(sched, throwing(ValueError("hunter2")), "async", max_attempts=1).enqueue()
    await sched.drain(timeout=60)
    record = await handle.record()
    assert record.state is FAILED
    assert "hunter2" not in str(record.errors)
    assert "redact.failed" in events(caplog)


async def test_error_texts_are_not_logged_when_disabled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    sched, _ = scheduler(log_errors=False)

    @sched.job(max_attempts=1)
    async def work(secret: str) -> None:
        raise ValueError(secret)

    await work.enqueue("hunter2")
    await sched.drain()
    assert "job.failed" in events(caplog)
    assert not any("hunter2" in str(record.__dict__) for record in caplog.records if record.name != "asyncio")


# --- results ---------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    "result", [{1, 2}, object(), float("nan"), "x" * (1 << 20), {1: 2}, "\ud800", 10**5_000], ids=lambda _: "result"
)
async def test_non_json_result_fails_the_job_without_a_retry(kind: str, result: Any) -> None:
    sched, _ = scheduler()
    handle = await answering(sched, lambda _: result, kind).enqueue()
    await sched.drain()
    record = await handle.record()
    assert (record.state, record.attempts) == (FAILED, 1)
    assert record.errors[0].type == f"{PayloadError.__module__}.PayloadError"
    assert record.errors[0].message.startswith("$")


async def test_a_codec_that_raises_fails_the_job_without_another_attempt() -> None:
    class Codec:
        def dumps(self, values: Any, annotations: Any, *, bytes_max: int) -> bytes:
            if "result" in values:
                raise ZeroDivisionError
            return b"{}"

        def loads(self, payload: bytes, annotations: Any) -> dict[str, Any]:
            return {}

    sched, _ = scheduler(codec=Codec())
    handle = await answering(sched, lambda _: 1, "async").enqueue()
    await sched.drain(timeout=60)
    assert (await handle.record()).errors[0].type == "ZeroDivisionError"


async def test_plain_handler_that_returns_an_awaitable_fails_once() -> None:
    sched, _ = scheduler()

    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> Any:
        yield 1

    for make, word in [(coroutine, "coroutine"), (generator, "generator"), (agenerator, "async_generator")]:
        for kind in ("async", "thread"):
            handle = await answering(sched, lambda _, make=make: make(), kind).enqueue()  # type: ignore[misc]
            await sched.drain()
            record = await handle.record()
            assert (record.state, record.attempts, record.errors[0].type) == (FAILED, 1, "TypeError")
            assert f"returned a {word}" in record.errors[0].message


async def test_mismatched_arguments_fail_the_job_without_a_retry() -> None:
    sched, _ = scheduler()

    @sched.job
    async def work(n: int) -> None: ...

    handles = await sched.submit(
        [
            JobSpec(id="a", task="work", arguments=b"{}"),
            JobSpec(id="b", task="work", arguments=b"garbage"),
            JobSpec(id="c", task="work", arguments=b"[]"),
        ]
    )
    await sched.drain()
    for handle in handles:
        record = await handle.record()
        assert (record.state, record.attempts) == (FAILED, 1)


async def test_unknown_task_waits_in_place_until_known(caplog: pytest.LogCaptureFixture) -> None:
    sched, clock = scheduler()

    @sched.job(queue_hint=["a"])
    async def known() -> None: ...

    (handle,) = await sched.submit([JobSpec(id="x", task="late", claims=(Claim(("a",)),))])
    behind = await known.enqueue()
    async with sched.worker():

        async def told() -> bool:
            return (await handle.why()).kind is ReasonKind.UNKNOWN_TASK

        await until(told)
        for _ in range(3):
            record = await handle.record()
            assert (record.state, record.attempts, record.due_ms) == (QUEUED, 0, None)
            assert await behind.state() is QUEUED
            assert (await sched.stats()).stuck["unknown_task"] == 1
            clock.advance(seconds=300)
            await asyncio.sleep(0)
        assert memory(sched).engine.state.started == 1, "it is not offered again to the release that refused it"

        @sched.job
        async def late() -> str:
            return "known now"

        clock.advance(seconds=5)
        assert await handle.result() == "known now"
        await behind.result()
    assert "job.unknown_task" in events(caplog)


# --- time-outs -------------------------------------------------------------------------------------------------------


async def test_slow_async_handler_is_stopped_and_retried() -> None:
    sched, clock = scheduler()

    @sched.job(timeout=0.01, retry=Backoff(base=1, jitter=0))
    async def work(ctx: JobContext) -> str:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "well"

    async with sched.worker():
        handle = await work.enqueue()
        record = await in_state(handle, QUEUED, 1)
        assert (record.errors[0].type, record.errors[0].message) == (
            "timeout",
            "the handler ran longer than its timeout of 0.01 s",
        )
        clock.advance(seconds=1)
        assert await handle.result() == "well"


@pytest.mark.parametrize("end", ["return", "raise", "reraise"])
async def test_stubborn_async_handler_keeps_its_path_until_its_end(end: str) -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(timeout=0.01, max_attempts=1, queue_hint=["a"])
    async def work(ctx: JobContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert ctx.canceled
            await gate.wait()
            if end == "raise":
                raise ValueError from None
            if end == "reraise":
                raise
        return "late"

    @sched.job(queue_hint=["a"])
    async def behind() -> None: ...

    async with sched.worker():
        handle, other = await work.enqueue(), await behind.enqueue()
        await gate.reached()
        await turns()
        assert (await handle.state(), await other.state()) == (STARTED, QUEUED)
        gate.open()
        with pytest.raises(JobFailedError, match="timeout"):
            await handle.result()
        await other.result()


@pytest.mark.parametrize("why", ["lease lost", "shutdown", "canceled", "timeout"])
async def test_late_result_fails_the_attempt_despite_an_earlier_stop(
    why: str,
) -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(timeout=0.05, retry=Backoff(base=1, jitter=0))
    async def work() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await gate.wait()
        await asyncio.sleep(0.06)
        return "late"

    async with sched.worker() as worker:
        handle = await work.enqueue()
        await gate.reached()
        worker._state.stopping.find_and_ask(handle.id, None, why)
        record = await in_state(handle, QUEUED, 1)
        assert [error.type for error in record.errors] == ["timeout"]


async def test_the_timeout_of_code_that_blocks_the_loop_counts() -> None:
    sched, _ = scheduler()

    @sched.job(timeout=0.01, retry=Backoff(base=1, jitter=0))
    async def work() -> str:
        time.sleep(0.02)  # noqa: ASYNC251 - the mistake that is tested
        return "late"

    async with sched.worker():
        record = await in_state(await work.enqueue(), QUEUED, 1)
        assert [error.type for error in record.errors] == ["timeout"]


async def test_overrunning_plain_function_keeps_its_path_until_its_end() -> None:
    sched, _ = scheduler()
    gate, told = Gate(), threading.Event()

    @sched.job(timeout=0.01, max_attempts=1, queue_hint=["a"])
    def work(ctx: JobContext) -> str:
        until_sync(lambda: ctx.canceled, "it is canceled")
        told.set()
        gate.wait_sync()
        return "late"

    @sched.job(queue_hint=["a"])
    async def behind() -> None: ...

    async with sched.worker():
        handle, other = await work.enqueue(), await behind.enqueue()
        await gate.reached()
        assert told.is_set()
        await turns(50)
        assert (await handle.state(), await other.state()) == (STARTED, QUEUED)
        gate.open()
        with pytest.raises(JobFailedError, match="timeout"):
            await handle.result()
        await other.result()


async def test_thread_keeps_its_path_despite_a_canceled_waiting_task() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["a"])
    def work() -> str:
        gate.wait_sync()
        return "done"

    async with sched.worker() as worker:
        handle = await work.enqueue()
        await gate.reached()
        (slot,) = worker._state.slots
        assert slot.task is not None
        for _ in range(3):
            slot.task.cancel()  # as a loop does that is closed over it
            await turns()
        assert await handle.state() is STARTED
        gate.open()
        assert await handle.result() == "done"


@KINDS
async def test_stubborn_code_is_reported_and_why_is_overdue(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "ABANDON_AFTER_S", 0.001)

    sched, _ = scheduler()
    gate = Gate()

    @sched.job(name="stubborn")
    async def on_loop() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await gate.wait()

    @sched.job(name="stubborn_in_thread")
    def in_thread() -> None:
        gate.wait_sync()

    async with sched.worker():
        handle = await (on_loop if kind == "async" else in_thread).enqueue()
        await gate.reached()
        assert await handle.cancel() is False
        await until(lambda: "job.overdue" in events(caplog))
        assert (await handle.why()).kind is ReasonKind.OVERDUE
        gate.open()
        await handle.result()
        assert await handle.state() is FINISHED
    assert events(caplog).count("job.overdue") == 1


# --- log lines -------------------------------------------------------------------------------------------------------


async def test_the_lines_of_a_job_are_sent_together() -> None:
    sched, _ = scheduler()
    logs: list[int] = []
    call = memory(sched).call

    async def calling(operation: Any) -> Any:
        if isinstance(operation, Post):
            logs.extend(len(note.lines) for note in operation.notes)
        return await call(operation)

    memory(sched).call = calling  # type: ignore[method-assign]

    @sched.job
    async def work(ctx: JobContext) -> None:
        for n in range(450):
            ctx.log(str(n))

    async with sched.worker():
        handle = await work.enqueue()
        await handle.result()
    assert (await handle.record()).logs == tuple(str(n) for n in range(450))
    assert logs == [200, 200, 50]
