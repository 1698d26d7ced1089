"""Workers: they run ready jobs, settle a job when its code has really ended, and survive faults of handlers."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from queuehint import (
    BackendDeniedError,
    BackendUnavailableError,
    Backoff,
    Claim,
    Discard,
    Fail,
    FakeClock,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobSpec,
    JobState,
    PayloadError,
    Retry,
    Scheduler,
    Snooze,
)
from queuehint.backends.memory import MemoryBackend
from queuehint.operations import Exchange, Log, Post, Renew, Tick, Verdict
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.report import Reason, ReasonKind
from queuehint.worker import attempts as attempts_module
from queuehint.worker import listening as listening_module
from queuehint.worker import worker as worker_module
from queuehint.worker.leases import loop_watch as watch_module
from tests.schedulers import Gate, in_thread, memory, run, scheduler, turns, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from queuehint import JobHandle, JobRecord, Worker

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


async def in_state(handle: JobHandle[Any], state: JobState, attempts: int | None = None) -> JobRecord:
    """Wait until a job is in a state, after so many attempts if given."""

    async def reached() -> bool:
        record = await handle.record()
        return record.state is state and attempts in (None, record.attempts)

    await until(reached)
    return await handle.record()


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.__dict__.get("event")) for record in caplog.records]


# --- slots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_eight_enqueues_at_once_never_run_more_than_the_slots(kind: str) -> None:
    sched, _ = scheduler()
    running, most = [0], [0]
    lock = threading.Lock()

    def enter() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])

    def leave() -> None:
        with lock:
            running[0] -= 1

    @sched.job(name="work")
    async def work(n: int) -> int:
        enter()
        await turns(n)
        leave()
        return n

    @sched.job(name="work_in_thread")
    def work_in_thread(n: int) -> int:
        enter()
        leave()
        return n

    job = work if kind == "async" else work_in_thread
    async with sched.worker(3):
        for _ in range(10):
            handles = await asyncio.gather(*[job.enqueue(n) for n in range(8)])
            assert await asyncio.gather(*[handle.result() for handle in handles]) == list(range(8))
    assert 1 <= most[0] <= 3
    if kind == "async":
        assert most[0] == 3


async def test_two_workers_run_every_job_once() -> None:
    sched, _ = scheduler()
    seen: list[int] = []

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str, n: int) -> None:
        await asyncio.sleep(0)
        seen.append(n)

    await work.enqueue_many([(f"d{n % 7}", n) for n in range(700)])
    async with sched.worker(2), sched.worker(3):
        await sched.drain()
    assert sorted(seen) == list(range(700))
    for doc in range(7):
        assert [n for n in seen if n % 7 == doc] == list(range(doc, 700, 7))


async def test_plain_functions_run_in_threads_beside_one_another() -> None:
    sched, _ = scheduler()
    barrier = threading.Barrier(3, timeout=20)
    threads: set[int] = set()

    @sched.job
    def work() -> None:
        threads.add(threading.get_ident())
        barrier.wait()

    async with sched.worker(3):
        for handle in await work.enqueue_many([()] * 3):
            await handle.result()
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_a_worker_gets_jobs_of_its_pools_only() -> None:
    sched, _ = scheduler()

    @sched.job(pool="gpu")
    async def gpu() -> str:
        return "gpu"

    @sched.job
    async def cpu() -> str:
        return "cpu"

    async with sched.worker(pools=["gpu"]):
        other, handle = await cpu.enqueue(), await gpu.enqueue()
        assert await handle.result() == "gpu"
        assert await other.state() is QUEUED
    async with sched.worker():
        assert await other.result() == "cpu"
        assert await (await gpu.enqueue()).result() == "gpu"


# --- what a handler answers --------------------------------------------------------------------------------------


def answering(sched: Scheduler, answer: Callable[[JobContext], Any], kind: str, **options: Any) -> Any:
    """Return a job whose handler, async or in a thread, gives an answer or raises."""
    options = {"queue_hint": ["a"], "retry": Backoff(base=1, jitter=0), **options}

    @sched.job(name="answering", **options)
    async def on_loop(ctx: JobContext) -> Any:
        return answer(ctx)

    @sched.job(name="answering_in_thread", **options)
    def in_thread(ctx: JobContext) -> Any:
        return answer(ctx)

    return on_loop if kind == "async" else in_thread


def throwing(error: BaseException | type[BaseException]) -> Callable[[JobContext], Any]:
    def throw(ctx: JobContext) -> Any:
        raise error

    return throw


KINDS = pytest.mark.parametrize("kind", ["async", "thread"])


@KINDS
async def test_an_error_is_tried_again_after_its_back_off_until_no_attempt_is_left(kind: str) -> None:
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
async def test_a_job_is_over_whatever_its_handler_gives_as_a_reason(kind: str, answer: tuple[Any, ...]) -> None:
    sched, _ = scheduler()
    # Made by the handler: what is no text is refused there.
    handle = await answering(sched, lambda _: answer[0](*answer[1:]), kind, max_attempts=1).enqueue()
    await sched.drain()
    assert await handle.state() in {FAILED, CANCELED}


# --- what a handler raises ---------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
async def test_a_handler_that_wants_to_end_the_process_counts_as_a_loss_and_the_worker_goes_on(
    kind: str, error: BaseException
) -> None:
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
    await sched.drain(timeout=15)
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


async def test_what_is_redacted_is_nowhere_in_the_record() -> None:
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
    await sched.drain(timeout=15)
    record = await handle.record()
    assert record.state is FAILED
    assert "hunter2" not in str(record.errors)
    assert "redact.failed" in events(caplog)


async def test_texts_of_errors_are_not_logged_where_that_is_not_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    sched, _ = scheduler(log_errors=False)

    @sched.job(max_attempts=1)
    async def work(secret: str) -> None:
        raise ValueError(secret)

    await work.enqueue("hunter2")
    await sched.drain()
    assert "job.failed" in events(caplog)
    assert not any("hunter2" in str(record.__dict__) for record in caplog.records if record.name != "asyncio")


# --- results -----------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    "result", [{1, 2}, object(), float("nan"), "x" * (1 << 20), {1: 2}, "\ud800", 10**5_000], ids=lambda _: "result"
)
async def test_a_result_that_is_no_json_fails_the_job_without_another_attempt(kind: str, result: Any) -> None:
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
    await sched.drain(timeout=15)
    assert (await handle.record()).errors[0].type == "ZeroDivisionError"


async def test_a_plain_handler_that_returns_what_it_did_not_await_fails_once() -> None:
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


async def test_arguments_that_no_longer_fit_fail_the_job_without_another_attempt() -> None:
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


async def test_an_unknown_task_is_given_back_with_a_pause_and_keeps_its_place(caplog: pytest.LogCaptureFixture) -> None:
    sched, clock = scheduler()

    @sched.job(queue_hint=["a"])
    async def known() -> None: ...

    (handle,) = await sched.submit([JobSpec(id="x", task="late", claims=(Claim(("a",)),))])
    behind = await known.enqueue()
    async with sched.worker():

        async def told() -> bool:
            return (await handle.why()).kind is ReasonKind.UNKNOWN_TASK

        for times, pause_s in [(1, 5), (2, 10)]:
            await until(lambda times=times: memory(sched).engine.state.started == times)  # type: ignore[misc]
            await until(told)
            record = await handle.record()
            assert (record.state, record.attempts) == (QUEUED, 0)
            assert record.due_ms == clock.now_ms() + pause_s * 1_000
            assert await behind.state() is QUEUED
            assert (await sched.stats()).stuck["unknown_task"] == 1
            clock.advance(seconds=pause_s)

        @sched.job
        async def late() -> str:
            return "known now"

        assert await handle.result() == "known now"
        await behind.result()
    assert "job.unknown_task" in events(caplog)


# --- time-outs ---------------------------------------------------------------------------------------------------


async def test_an_async_handler_that_runs_too_long_is_stopped_and_tried_again() -> None:
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
async def test_an_async_handler_that_swallows_its_end_keeps_its_path_until_it_has_ended(end: str) -> None:
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
async def test_a_result_returned_after_the_timeout_fails_the_attempt_whatever_asked_the_code_to_stop_first(
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
        worker._stopping.find_and_ask(handle.id, None, why)
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


async def test_a_plain_function_that_overruns_its_timeout_keeps_its_path_until_its_thread_has_ended() -> None:
    sched, _ = scheduler()
    gate, told = Gate(), threading.Event()

    @sched.job(timeout=0.01, max_attempts=1, queue_hint=["a"])
    def work(ctx: JobContext) -> str:
        while not ctx.canceled:
            pass
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


async def test_a_thread_keeps_its_path_although_the_task_that_waits_for_it_is_canceled() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["a"])
    def work() -> str:
        gate.wait_sync()
        return "done"

    async with sched.worker() as worker:
        handle = await work.enqueue()
        await gate.reached()
        (slot,) = worker._slots
        assert slot.task is not None
        for _ in range(3):
            slot.task.cancel()  # as a loop does that is closed over it
            await turns()
        assert await handle.state() is STARTED
        gate.open()
        assert await handle.result() == "done"


@KINDS
async def test_code_that_does_not_stop_is_reported_and_why_says_overdue(
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


# --- cancellation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_running_async_handler_that_is_canceled_stops(concurrency: int) -> None:
    sched, _ = scheduler()
    gate = Gate()
    cleaned: list[bool] = []

    @sched.job
    async def work(ctx: JobContext) -> None:
        try:
            await gate.wait()
        finally:
            cleaned.append(ctx.canceled)

    async with sched.worker(concurrency):
        handle = await work.enqueue()
        await gate.reached()
        assert await handle.cancel("enough") is False
        with pytest.raises(JobCanceledError, match="enough"):
            await handle.result()
        assert cleaned == [True]
        assert (await handle.record()).attempts == 1


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_running_thread_sees_that_it_is_canceled(concurrency: int) -> None:
    sched, _ = scheduler()
    gate = Gate()
    gate.open()

    @sched.job
    def work(ctx: JobContext) -> None:
        gate.wait_sync()
        while not ctx.canceled:
            pass
        raise InterruptedError

    async with sched.worker(concurrency):
        handle = await work.enqueue()
        await gate.reached()
        await handle.cancel()
        with pytest.raises(JobCanceledError):
            await handle.result()


@KINDS
async def test_a_canceled_handler_that_finishes_all_the_same_is_finished(kind: str) -> None:
    sched, _ = scheduler()
    gate, seen = Gate(), Gate()

    @sched.job(name="tough")
    async def on_loop() -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            seen.entered.append(True)
        return "done"

    @sched.job(name="tough_in_thread")
    def in_thread(ctx: JobContext) -> str:
        gate.entered.append(True)
        while not ctx.canceled:
            pass
        return "done"

    async with sched.worker():
        handle = await (on_loop if kind == "async" else in_thread).enqueue()
        await gate.reached()
        await handle.cancel()
        assert await handle.result() == "done"
        assert await handle.state() is FINISHED


async def test_a_job_canceled_before_its_task_began_does_not_run() -> None:
    sched, _ = scheduler()
    called: list[str] = []

    @sched.job
    async def work() -> None:
        called.append("x")

    backend = memory(sched)
    call = backend.call

    async def calling(operation: Any) -> Any:
        reply = await call(operation)
        if isinstance(operation, Exchange) and reply.grants:
            # Between the grant and the first step of its task, the worker hears that the job is canceled.
            await sched.cancel([grant.spec.id for grant in reply.grants])
            more = await call(Exchange(operation.worker))
            object.__setattr__(reply, "canceled", more.canceled)
        return reply

    backend.call = calling  # type: ignore[method-assign]
    async with sched.worker():
        handle = await work.enqueue()
        with pytest.raises(JobCanceledError):
            await handle.result()
    assert called == []


@KINDS
async def test_a_job_canceled_while_a_before_hook_runs_does_not_run(kind: str) -> None:
    sched, _ = scheduler()
    gate = Gate()
    called: list[str] = []

    @sched.before_job
    async def before(ctx: JobContext) -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if kind == "async":
                raise

    handle = await answering(sched, lambda _: called.append("x"), kind).enqueue()
    async with sched.worker():
        await gate.reached()
        await handle.cancel()

        (worker,) = sched._workers
        (slot,) = worker._slots
        await until(lambda: slot.context.canceled)
        gate.open()
        with pytest.raises(JobCanceledError):
            await handle.result()
    assert called == []


@KINDS
async def test_a_cancellation_while_an_after_hook_runs_changes_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sched, _ = scheduler()
    gate = Gate()
    ended: list[bool] = []

    @sched.after_job
    async def after(ctx: JobContext, outcome: Any) -> None:
        await gate.wait()
        ended.append(True)

    handle = await answering(sched, lambda _: "done", kind).enqueue()
    async with sched.worker():
        await gate.reached()
        assert await handle.cancel() is False
        (worker,) = sched._workers
        (slot,) = worker._slots
        await until(lambda: slot.context.canceled)
        gate.open()
        assert await handle.result() == "done"
        assert slot.timer is not None
        assert slot.timer.cancelled()
    assert ended == [True]


async def test_a_cancellation_is_heard_although_the_store_renewed_the_lease_meanwhile() -> None:
    sched, clock = scheduler()
    gate = Gate()

    @sched.job
    async def work() -> None:
        await gate.wait()

    async with sched.worker():
        handle = await work.enqueue()
        await gate.reached()
        await handle.cancel()
        clock.advance(seconds=3_600)
        await sched.backend.call(Tick())
        with pytest.raises(JobCanceledError):
            await handle.result()


# --- leases ------------------------------------------------------------------------------------------------------


@KINDS
async def test_a_stalled_loop_never_loses_its_own_work(kind: str) -> None:
    sched, clock = scheduler(lease=5)
    gate = Gate()

    @sched.job(name="slow", queue_hint=["a"])
    async def on_loop() -> str:
        await gate.wait()
        return "done"

    @sched.job(name="slow_in_thread", queue_hint=["a"])
    def in_thread() -> str:
        gate.wait_sync()
        return "done"

    async with sched.worker():
        handle = await (on_loop if kind == "async" else in_thread).enqueue()
        await gate.reached()
        for _ in range(3):
            clock.advance(seconds=86_400)
            await sched.backend.call(Tick())
            await turns()
        record = await handle.record()
        assert (record.state, record.losses) == (STARTED, 0)
        gate.open()
        assert await handle.result() == "done"
        assert len(gate.entered) == 1


async def test_the_lease_of_a_job_that_has_ended_is_kept_until_it_is_settled() -> None:
    sched, clock = scheduler(lease=5)
    gate = Gate()

    @sched.after_job
    async def after(ctx: JobContext, outcome: Any) -> None:
        await gate.wait()

    handle = await answering(sched, lambda _: "done", "async").enqueue()
    async with sched.worker():
        await gate.reached()
        clock.advance(seconds=86_400)
        await sched.backend.call(Tick())
        gate.open()
        assert await handle.result() == "done"
    assert (await handle.record()).losses == 0


# --- stopping ----------------------------------------------------------------------------------------------------


async def test_a_worker_that_stops_lets_its_jobs_end_and_claims_nothing_more() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str) -> str:
        await gate.wait(doc)
        return doc

    async with sched.worker() as worker:
        running = await work.enqueue("a")
        await gate.reached()
        worker.stop()
        late = await work.enqueue("b")
        await turns()
        assert await late.state() is QUEUED
        gate.open()
    assert await running.result() == "a"
    assert gate.entered == ["a"]


async def test_what_does_not_end_within_the_grace_time_is_given_back_to_its_place() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["a"], max_attempts=1)
    async def work(n: int) -> int:
        await gate.wait(n)
        return n

    first, second = await work.enqueue_many([(1,), (2,)])
    async with sched.worker(grace=0):
        await gate.reached()
    record = await first.record()
    assert (record.state, record.attempts, record.losses, record.errors) == (QUEUED, 0, 0, ())
    gate.open()
    async with sched.worker(1):
        assert [await first.result(), await second.result()] == [1, 2]
    assert gate.entered == [1, 1, 2]


async def test_a_thread_is_waited_for_and_told_to_stop() -> None:
    sched, _ = scheduler()
    gate = Gate()
    gate.open()

    @sched.job
    def work(ctx: JobContext) -> bool:
        gate.wait_sync()
        while not ctx.canceled:
            pass
        return ctx.canceled

    async with sched.worker(grace=0):
        handle = await work.enqueue()
        await gate.reached()
    assert await handle.result() is True


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_cancellation_is_heard_within_the_grace_time(concurrency: int) -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work() -> None:
        await gate.wait()

    async with sched.worker(concurrency) as worker:
        handle = await work.enqueue()
        await gate.reached()
        worker.stop()
        await turns()
        await handle.cancel()
        with pytest.raises(JobCanceledError):
            await handle.result()


async def test_an_error_in_the_block_stops_the_worker_and_goes_on() -> None:
    sched, _ = scheduler()
    with pytest.raises(KeyError):
        async with sched.worker():
            raise KeyError
    assert not sched._workers
    assert not memory(sched)._adopted


# --- a store that cannot be reached ------------------------------------------------------------------------------


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scheduler], list[int]]:
    """Return a function that lets the next calls of a scheduler's workers fail, as many as its list says."""
    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0)

    def break_it(sched: Scheduler) -> list[int]:
        backend = memory(sched)
        call = backend.call
        left = [0]

        async def calling(operation: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise BackendUnavailableError("for a while")
            return await call(operation)

        backend.call = calling  # type: ignore[method-assign]
        return left

    return break_it


async def test_a_worker_outlives_a_store_that_cannot_be_reached_for_a_while(
    flaky: Callable[[Scheduler], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["a"])
    async def work(n: int) -> int:
        await gate.wait(n)
        return n

    async with sched.worker():
        first, second = await work.enqueue_many([(1,), (2,)])
        left = flaky(sched)
        await gate.reached()
        left[0] = 10
        gate.open()
        await until(lambda: left[0] == 0)
        assert [await first.result(), await second.result()] == [1, 2]
    assert gate.entered == [1, 2]
    assert events(caplog).count("worker.backend") == 10


async def test_what_a_handler_said_meanwhile_is_not_lost(flaky: Callable[[Scheduler], list[int]]) -> None:
    sched, _ = scheduler()
    left: list[int] = []

    @sched.job
    async def work(ctx: JobContext) -> None:
        left[0] = 5
        for n in range(3):
            ctx.log(str(n))
        ctx.progress(3)

    left = flaky(sched)
    async with sched.worker():
        handle = await work.enqueue()
        await until(lambda: memory(sched).engine.table.jobs[handle.id].is_over)
        record = await handle.record()
        assert record.logs == ("0", "1", "2")
        assert record.progress is not None


async def test_a_worker_that_stops_without_its_store_says_so(flaky: Callable[[Scheduler], list[int]]) -> None:
    sched, _ = scheduler()
    left = flaky(sched)
    with pytest.raises(BackendUnavailableError):
        async with sched.worker() as worker:
            await worker.started.wait()
            left[0] = 10**9
    assert not sched._workers
    assert not memory(sched)._adopted


# --- a store that other processes share --------------------------------------------------------------------------


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scheduler]:
    """Return a function that makes a scheduler whose store renews nothing by itself; its time passes by itself."""
    monkeypatch.setattr(MemoryBackend, "is_local", False)
    monkeypatch.setattr(MemoryBackend, "adopt", lambda self, *_: lambda: None)
    return lambda **options: Scheduler("memory://", **options)


@pytest.mark.parametrize("kind", ["async", "blocking", "thread"])
async def test_a_job_that_runs_longer_than_its_lease_keeps_it(far: Callable[..., Scheduler], kind: str) -> None:
    sched = far(lease=1)

    @sched.job(name="long")
    async def on_loop() -> str:
        if kind == "blocking":
            time.sleep(2.2)  # noqa: ASYNC251 - that is the point
        else:
            await asyncio.sleep(2.2)
        return "done"

    @sched.job(name="long_in_thread")
    def in_thread() -> str:
        time.sleep(2.2)
        return "done"

    async with sched.worker(1):
        handle = await (in_thread if kind == "thread" else on_loop).enqueue()
        end = ticking_elsewhere(sched)
        assert await handle.result() == "done"
        end()
    assert (await handle.record()).losses == 0


def is_said_blocked(reason: Reason) -> bool:
    return reason.kind is ReasonKind.RUNNING and ", its event loop blocked for " in (reason.detail or "")


def test_code_that_holds_up_the_loop_is_told_and_what_has_not_begun_goes_back(
    far: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(watch_module, "BLOCKED_S", 0.2)
    monkeypatch.setattr(watch_module, "BEAT_S", 0.05)

    async def main() -> None:
        sched = far(lease=1)
        go_on = threading.Event()
        ran: list[int] = []

        @sched.job
        async def blocks() -> str:
            assert go_on.wait(30)
            return "done"

        @sched.job(name="innocent")
        async def innocent(n: int) -> None:
            ran.append(n)

        def see(blocking: JobHandle[Any], others: list[JobHandle[Any]], worker: Worker) -> list[Any]:
            """Collect what another worker sees meanwhile."""
            end_s = time.monotonic() + 20
            while time.monotonic() < end_s and not all(handle.state_sync() is QUEUED for handle in others):
                time.sleep(0.01)
            while time.monotonic() < end_s and not is_said_blocked(blocking.why_sync()):
                time.sleep(0.01)
            # The code that runs keeps its lease for longer than that would last.
            time.sleep(1.5)
            sched.backend.call_sync(Tick())
            running, why = blocking.record_sync(), blocking.why_sync()
            grants = sched.backend.call_sync(Exchange("elsewhere", limit=1, lease_ms=60_000)).grants
            told = [worker.blocked_s > 1, worker.is_stuck, is_said_blocked(why)]
            seen = [running.state, running.losses, *told, *grants]
            go_on.set()
            return seen

        worker = sched.make_worker(8, abandon_after=1)
        blocking = await blocks.enqueue()
        others = await innocent.enqueue_many([(n,) for n in range(3)])
        assert worker.blocked_s == 0
        seen = asyncio.get_running_loop().run_in_executor(None, see, blocking, others, worker)
        async with sched.running(worker):
            assert await blocking.result() == "done"
            *found, grant = await seen
            assert found == [STARTED, 0, True, True, True]
            for handle in others:
                if handle.id != grant.spec.id:
                    await handle.result()
            assert not worker.is_stuck
            settled = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED)
            assert (await sched.backend.call(Exchange("elsewhere", (settled,)))).verdicts == (Verdict.DONE,)
            await until(lambda: "worker.unblocked" in events(caplog))
        assert len(ran) == 2, "the one that another worker has taken runs there alone"
        assert worker.blocked_s == 0

    run(main())
    told = next(record for record in caplog.records if record.__dict__.get("event") == "worker.blocked")
    assert "blocks" in told.__dict__["where"]
    assert events(caplog).count("worker.blocked") == 1
    assert events(caplog).count("worker.gives_back") == 1
    assert "job.lease_lost" not in events(caplog)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_why_says_of_a_job_that_blocks_the_loop_in_a_store_of_this_process(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch_module, "BLOCKED_S", 0.2)
    monkeypatch.setattr(watch_module, "BEAT_S", 0.05)

    sched = Scheduler("memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}")
    go_on = threading.Event()

    @sched.job
    async def blocks() -> None:
        assert go_on.wait(30)

    @sched.job
    async def yields() -> None:
        await asyncio.Event().wait()

    def see(*handles: JobHandle[Any]) -> list[bool]:
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s and not all(is_said_blocked(handle.why_sync()) for handle in handles):
            time.sleep(0.01)
        seen = [is_said_blocked(handle.why_sync()) for handle in handles]
        go_on.set()
        return seen

    beside = await yields.enqueue()
    async with sched.worker(2, grace=0):
        await until(lambda: beside.state_sync() is STARTED)
        blocking = await blocks.enqueue()
        seen = asyncio.get_running_loop().run_in_executor(None, see, blocking, beside)
        await blocking.result()
        assert await seen == [True, True], "all that the worker holds stands still"
        await until(lambda: not is_said_blocked(beside.why_sync()))
        await until(lambda: "worker.blocked" in events(caplog))
    await sched.close()


async def test_code_that_holds_the_gil_is_told_once_it_is_over(
    far: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch_module, "BLOCKED_S", 0.2)
    monkeypatch.setattr(watch_module, "BEAT_S", 0.05)
    monkeypatch.setattr(watch_module, "STOOD_STILL_S", 0.3)

    sched = far()

    @sched.job
    async def holds() -> None:
        ctypes.PyDLL(None).usleep(600_000)

    async with sched.worker(1):
        await (await holds.enqueue()).result()
        await until(lambda: "worker.blocked" in events(caplog))


@pytest.mark.parametrize("is_far", [False, True])
async def test_only_an_answer_of_the_store_is_one(
    far: Callable[..., Scheduler], is_far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBackend, "is_local", not is_far)
    for name in ("BACKEND_PAUSE_S", "WAIT_CEILING_S"):
        monkeypatch.setattr(listening_module, name, 0.01)
    is_away, asked = [True], [0]
    call, call_sync = MemoryBackend.call, MemoryBackend.call_sync

    def refuse() -> None:
        asked[0] += 1
        if is_away[0]:
            raise BackendUnavailableError("away")

    async def calling(self: MemoryBackend, operation: Any) -> Any:
        refuse()
        return await call(self, operation)

    def calling_sync(self: MemoryBackend, operation: Any) -> Any:
        refuse()
        return call_sync(self, operation)

    sched = far(lease=1)

    @sched.job
    async def work() -> None:
        await Gate().wait()

    await work.enqueue()
    worker = sched.make_worker(grace=0)
    monkeypatch.setattr(MemoryBackend, "call", calling)
    monkeypatch.setattr(MemoryBackend, "call_sync", calling_sync)
    task = asyncio.create_task(worker.run())
    await until(lambda: asked[0] > 3)
    assert worker.answered_s == 0
    is_away[0] = False
    await until(lambda: worker.running == 1)
    first_s = worker.answered_s
    await until(lambda: worker.answered_s > first_s > 0)
    is_away[0] = True
    # Requests under way may still be answered.
    before = asked[0]
    await until(lambda: asked[0] > before + 2)
    last_s, before = worker.answered_s, asked[0]
    await until(lambda: asked[0] > before + 5)
    assert worker.answered_s == last_s
    is_away[0] = False
    await until(lambda: worker.answered_s > last_s)
    worker.stop(at_once=True)
    await task


def ticking_elsewhere(sched: Scheduler) -> Callable[[], None]:
    """Do due work as other workers would; return a function that ends this."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.02):
            sched.backend.call_sync(Tick())

    end = in_thread(tick)

    def stop() -> None:
        done.set()
        end()

    return stop


@KINDS
async def test_a_worker_that_cannot_renew_has_its_jobs_stop_before_the_lease_ends(
    far: Callable[..., Scheduler], kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sched = far(lease=2)
    stopped: list[float] = []
    is_away = [False]
    call = MemoryBackend.call_sync

    def calling(self: MemoryBackend, operation: Any) -> Any:
        if is_away[0]:
            raise BackendUnavailableError("away")
        return call(self, operation)

    monkeypatch.setattr(MemoryBackend, "call_sync", calling)

    @sched.job(name="work")
    async def on_loop(ctx: JobContext) -> None:
        began_s = time.monotonic()
        is_away[0] = not stopped
        try:
            while not stopped:  # noqa: ASYNC110 - a handler that does something
                await asyncio.sleep(0.01)
        finally:
            stopped.append(time.monotonic() - began_s)

    @sched.job(name="work_in_thread")
    def in_thread(ctx: JobContext) -> None:
        began_s = time.monotonic()
        is_away[0] = not stopped
        while not stopped and not ctx.canceled:
            time.sleep(0.01)
        stopped.append(time.monotonic() - began_s)
        if ctx.canceled:
            raise InterruptedError

    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0.05)
    job = on_loop if kind == "async" else in_thread
    handle = await job.enqueue()
    async with sched.worker():
        await until(lambda: bool(stopped))
        is_away[0] = False
        await handle.result()
    assert 1.0 < stopped[0] < 2.0
    record = await handle.record()
    # Given back in time or reaped: either way no attempt has failed.
    assert (record.state, record.attempts, record.errors) == (FINISHED, 1, ())
    assert events(caplog).count("job.fenced") == 1


async def test_an_exchange_without_an_answer_is_sent_again_as_it_was(
    far: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0)
    caplog.set_level(logging.INFO)

    sched = far()
    sent: list[Exchange] = []
    call = sched.backend.call

    async def calling(operation: Any) -> Any:
        if isinstance(operation, Exchange):
            sent.append(operation)
            if len(sent) in {2, 3, 4}:
                raise BackendUnavailableError("cut")
        return await call(operation)

    sched.backend.call = calling  # type: ignore[method-assign]

    @sched.job
    async def work() -> str:
        return "done"

    async with sched.worker() as worker:
        assert worker.answered_s > 0
        assert await (await work.enqueue()).result() == "done"
    assert sent[1] is sent[2] is sent[3] is sent[4]
    assert sent[5] is not sent[4]
    assert events(caplog).count("worker.backend") == 3
    assert events(caplog).count("worker.reconnected") == 1


async def test_what_was_granted_while_the_worker_was_told_to_stop_is_given_back_at_once(
    far: Callable[..., Scheduler],
) -> None:
    sched = far()
    called: list[str] = []

    @sched.job
    async def work() -> None:
        called.append("x")

    call = sched.backend.call

    async def calling(operation: Any) -> Any:
        reply = await call(operation)
        if isinstance(operation, Exchange) and reply.grants:
            worker.stop()
        return reply

    sched.backend.call = calling  # type: ignore[method-assign]
    async with sched.worker() as worker:
        handle = await work.enqueue()
        await until(lambda: not worker.running and worker.is_stopping)
    record = await handle.record()
    assert (record.state, record.attempts) == (QUEUED, 0)
    assert called == []


async def test_what_was_granted_too_long_ago_is_given_back_and_does_not_run(far: Callable[..., Scheduler]) -> None:
    sched = far(lease=1)
    granted: list[int] = []
    began: list[int] = []
    call = sched.backend.call

    async def calling(operation: Any) -> Any:
        reply = await call(operation)
        if isinstance(operation, Exchange) and reply.grants:
            granted.append(reply.grants[0].token)
            if len(granted) == 1:
                await asyncio.sleep(0.9)
        return reply

    sched.backend.call = calling  # type: ignore[method-assign]

    @sched.job
    async def work(ctx: JobContext) -> int:
        began.append(ctx.token)
        return ctx.attempt

    handle = await work.enqueue()
    async with sched.worker():
        assert await handle.result() == 1
    assert len(granted) == 2
    assert began == granted[1:]


class Stubborn:
    """
    A handler that ends when its run's gate is opened, whatever it is asked; at the end of the block all are.

    Args:
        kind: ``async``, or in a ``thread``.
    """

    def __init__(self, sched: Scheduler, kind: str) -> None:
        self.gates = [Gate(), Gate(), Gate()]
        self.tokens: list[int] = []
        self.inside: list[int] = []
        self.most = 0
        options: dict[str, Any] = {"queue_hint": ["a"], "max_losses": 9}

        @sched.job(name="stubborn", **options)
        async def on_loop(ctx: JobContext) -> int:
            waiting = asyncio.ensure_future(self._enter(ctx).wait())
            while not waiting.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(waiting)
            return self._leave(ctx)

        @sched.job(name="stubborn_in_thread", **options)
        def in_thread(ctx: JobContext) -> int:
            self._enter(ctx).wait_sync()
            return self._leave(ctx)

        self.job: Any = on_loop if kind == "async" else in_thread

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        for gate in self.gates:
            gate.open()

    def _enter(self, ctx: JobContext) -> Gate:
        gate = self.gates[len(self.tokens)]
        self.tokens.append(ctx.token)
        self.inside.append(ctx.token)
        self.most = max(self.most, len(self.inside))
        return gate

    def _leave(self, ctx: JobContext) -> int:
        self.inside.remove(ctx.token)
        return ctx.token


async def lose_all(sched: Scheduler, clock: FakeClock, worker: Worker, running: int) -> None:
    """Have all leases end behind a worker's back, and wait until so many slots are taken by what it is granted."""
    clock.advance(seconds=60)
    while (await sched.backend.call(Tick())).more:
        pass
    await until(lambda: worker.running == running)
    await turns()


@KINDS
async def test_a_job_granted_again_begins_when_the_code_of_its_former_lease_has_ended(
    far: Callable[..., Scheduler], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    sched = far(clock=clock)
    code = Stubborn(sched, kind)
    handle = await code.job.enqueue()
    behind = await code.job.enqueue()
    async with sched.worker(4) as worker, code:
        await code.gates[0].reached()
        await lose_all(sched, clock, worker, running=2)
        record = await handle.record()
        assert (record.state, record.losses, len(code.tokens)) == (STARTED, 1, 1)
        assert await behind.state() is QUEUED
        code.gates[0].open()
        await code.gates[1].reached()
        code.gates[1].open()
        assert await handle.result() == code.tokens[1] > code.tokens[0]
        code.gates[2].open()
        await behind.result()
    assert code.most == 1
    assert (await handle.record()).attempts == 1
    assert events(caplog).count("job.waits_for_its_code") == 1
    assert events(caplog).count("job.lease_lost") == 1
    assert "hook.failed" not in events(caplog)


async def test_a_job_granted_a_third_time_runs_once_for_the_newest_grant(far: Callable[..., Scheduler]) -> None:
    clock = FakeClock()
    sched = far(clock=clock)
    code = Stubborn(sched, "async")
    handle = await code.job.enqueue()
    async with sched.worker(4) as worker, code:
        await code.gates[0].reached()
        await lose_all(sched, clock, worker, running=2)
        await lose_all(sched, clock, worker, running=3)
        for gate in code.gates:
            gate.open()
        newest = await handle.result()
    assert len(code.tokens) == 2
    assert newest == code.tokens[1]
    assert (code.most, (await handle.record()).losses) == (1, 2)


@pytest.mark.parametrize("end", ["canceled", "stopped"])
async def test_what_waits_for_its_code_is_given_back_once_that_has_ended(
    far: Callable[..., Scheduler], end: str
) -> None:
    clock = FakeClock()
    sched = far(clock=clock)
    code = Stubborn(sched, "async")
    handle = await code.job.enqueue()
    async with sched.worker(4) as worker, code:
        await code.gates[0].reached()
        await lose_all(sched, clock, worker, running=2)
        if end == "canceled":
            await handle.cancel()
        else:
            worker.stop(at_once=True)
        await turns()
        assert (worker.running, await handle.state()) == (2, STARTED)
        code.gates[0].open()
        await until(lambda: not worker.running)
    record = await handle.record()
    assert record.state is (CANCELED if end == "canceled" else QUEUED)
    assert (record.losses, record.errors[1:], len(code.tokens)) == (1, (), 1)


async def test_code_whose_job_was_granted_again_is_asked_to_stop(far: Callable[..., Scheduler]) -> None:
    clock = FakeClock()
    sched = far(clock=clock)
    gate = Gate()

    @sched.job(max_losses=9)
    async def work(ctx: JobContext) -> int:
        await gate.wait(ctx.token)
        return ctx.token

    handle = await work.enqueue()
    async with sched.worker(4) as worker:
        await gate.reached()
        await lose_all(sched, clock, worker, running=1)
        await gate.reached(2)
        gate.open()
        assert await handle.result() == gate.entered[1]
    assert len(gate.entered) == 2


async def test_a_worker_that_the_store_refuses_from_the_start_says_so(far: Callable[..., Scheduler]) -> None:
    sched = far()

    async def calling(operation: Any) -> Any:
        raise BackendDeniedError("NOPERM")

    sched.backend.call = calling  # type: ignore[method-assign]
    with pytest.raises(BackendDeniedError):
        async with sched.worker():
            pass


# --- what handlers say -------------------------------------------------------------------------------------------


async def test_the_lines_of_a_job_are_sent_together() -> None:
    sched, _ = scheduler()
    logs: list[int] = []
    call = memory(sched).call

    async def calling(operation: Any) -> Any:
        said = operation.notes if isinstance(operation, Post) else [operation] if isinstance(operation, Log) else []
        logs.extend(len(note.lines) for note in said)
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


# --- a worker that has a process to itself -----------------------------------------------------------------------


async def test_a_process_is_given_up_with_code_that_does_not_end_once_the_others_have() -> None:
    sched, _ = scheduler()
    gate = Gate()
    given_up: list[list[str]] = []

    @sched.job(timeout=0.01)
    def stuck() -> None:
        gate.wait_sync("stuck")

    @sched.job
    async def other() -> None:
        await gate.wait("other")

    worker = sched.make_worker(abandon_after=0.05, give_up=given_up.append)
    running = asyncio.create_task(worker.run())
    first, second = await stuck.enqueue(), await other.enqueue()
    await running
    assert given_up == [[first.id]]
    assert await first.state() is STARTED
    assert (await second.state(), (await second.record()).attempts) == (QUEUED, 0)
    gate.open()


async def test_what_has_ended_by_then_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RELEASE_S", 0.2)

    sched, _ = scheduler()
    gate = Gate()
    given_up: list[list[str]] = []

    @sched.job
    def work(ctx: JobContext, doc: str) -> str:
        gate.entered.append(doc)
        while not (ctx.canceled if doc == "hears" else gate._open.is_set()):
            time.sleep(0.001)
        return "done"

    worker = sched.make_worker(give_up=given_up.append)
    running = asyncio.create_task(worker.run())
    hears, deaf = await work.enqueue("hears"), await work.enqueue("deaf")
    await gate.reached(2)
    worker.abandon()
    worker.abandon()
    await running
    assert given_up == [[deaf.id]]
    assert await hears.result() == "done"
    gate.open()


async def test_inside_an_application_a_worker_that_is_told_to_abandon_stops_at_once() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work() -> None:
        await gate.wait()

    async with sched.worker() as worker:
        handle = await work.enqueue()
        await gate.reached()
        worker.abandon()
    assert await handle.state() is QUEUED


async def test_a_worker_runs_once() -> None:
    sched, _ = scheduler()
    worker = sched.make_worker()
    async with sched.running(worker):
        with pytest.raises(RuntimeError, match="has been run already"):
            await worker.run()
        assert not worker.is_stopping
    with pytest.raises(RuntimeError, match="make another one"):
        async with sched.running(worker):
            pass


# --- jobs that have cost workers their lives ---------------------------------------------------------------------


def lost_twice(sched: Scheduler, *ids: str) -> None:
    """Let workers die twice with these jobs."""
    for _ in range(2):
        grants = sched.backend.call_sync(Exchange("dead", limit=len(ids))).grants
        lost = [Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.LOST) for grant in grants]
        sched.backend.call_sync(Exchange("dead", tuple(lost)))


async def test_jobs_on_their_last_life_begin_one_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work(n: int) -> int:
        await gate.wait(n)
        return n

    handles = await work.enqueue_many([(0,), (1,), (2,)])
    lost_twice(sched, *[handle.id for handle in handles])
    async with sched.worker() as worker:
        other = await work.enqueue(9)
        await gate.reached(2)
        await turns()
        assert sorted(gate.entered) == [0, 9]
        assert worker.running == 4
        await handles[2].cancel()
        with pytest.raises(JobCanceledError):
            await handles[2].result()
        gate.open()
        assert [await handle.result() for handle in (*handles[:2], other)] == [0, 1, 9]
    assert events(caplog).count("job.last_life") == 2


async def test_jobs_that_may_lose_no_worker_begin_once_the_store_is_told_of_all_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sched, _ = scheduler()
    told: list[Renew] = []
    is_away = True
    call = sched.backend.call

    async def listen(operation: Any) -> Any:
        if isinstance(operation, Renew) and operation.begun:
            told.append(operation)
            await turns(3)
            assert not gate.entered, "its code waits until the store knows that it begins"
            if is_away:
                raise BackendUnavailableError("away")
        return await call(operation)

    sched.backend.call = listen  # type: ignore[method-assign]
    gate = Gate()

    @sched.job(max_losses=1)
    async def work(n: int) -> int:
        await gate.wait(n)
        return n

    handles = await work.enqueue_many([(0,), (1,), (2,)])
    async with sched.worker():
        await until(lambda: len(told) > 1)
        is_away = False
        await gate.reached(3)
        assert {len(each.leases) for each in told} == {3}
        gate.open()
        assert [await handle.result() for handle in handles] == [0, 1, 2]
        assert [(await handle.record()).attempts for handle in handles] == [1, 1, 1]
    assert events(caplog).count("job.last_life") == 0


async def test_a_job_that_may_lose_no_worker_fails_alone_with_what_its_announcement_met() -> None:
    sched, _ = scheduler()
    call = sched.backend.call

    async def fail(operation: Any) -> Any:
        if isinstance(operation, Renew) and operation.begun:
            raise RuntimeError("a driver broke")
        return await call(operation)

    sched.backend.call = fail  # type: ignore[method-assign]
    careful = sched.job(name="careful", max_losses=1, max_attempts=1)(lambda: None)
    async with sched.worker():
        handle = await careful.enqueue()
        record = await in_state(handle, FAILED)
        assert record.errors[-1].message == "a driver broke"
        await sched.job(name="other")(lambda: None).enqueue()


async def test_a_job_that_survives_its_last_life_for_a_while_lets_the_next_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts_module, "LAST_LIFE_S", 0.01)

    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work(n: int) -> int:
        await gate.wait(n)
        return n

    handles = await work.enqueue_many([(0,), (1,)])
    lost_twice(sched, *[handle.id for handle in handles])
    async with sched.worker():
        await gate.reached(2)
        gate.open()
        assert [await handle.result() for handle in handles] == [0, 1]
