"""Partial results that a handler stores while it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from queuehint import (
    BackendUnavailableError,
    Children,
    InvalidJobTypeError,
    JobContext,
    JobHandle,
    JobState,
    JsonCodec,
    Outcome,
    OutcomeKind,
    PayloadError,
    Retry,
    Scheduler,
)
from queuehint.operations import Get
from queuehint.worker import attempts as attempts_module
from queuehint.worker import listening as listening_module
from tests.manual_jobs import on
from tests.schedulers import Gate, until
from tests.support import LIMIT_S

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_running_job_shows_its_partial_result(url: str, is_async: bool) -> None:
    async def main(sched: Scheduler) -> None:
        gate = Gate()

        @sched.job(name="plain")
        def plain(ctx: JobContext) -> None:
            ctx.update({"rows": 1, "by": "plain"})
            ctx.update({"rows": 2})
            gate.wait_sync()

        @sched.job(name="slow")
        async def slow(ctx: JobContext) -> None:
            ctx.update({"rows": 1, "by": "async"})
            ctx.update({"rows": 2})
            await gate.wait()

        async with sched.worker():
            job: JobHandle[Any] = await (slow if is_async else plain).enqueue()
            await gate.reached()
            expected = {"rows": 2, "by": "async" if is_async else "plain"}

            async def is_shown() -> bool:
                record = await job.record()
                return record.state is STARTED and sched.records.result_of(record) == expected

            await until(is_shown)
            gate.open()
            assert await job.result(timeout=60) == expected

    on(url, main)


@pytest.mark.parametrize(
    "returned, expected",
    [(None, {"a": 1, "b": 2}), ({"b": 3}, {"a": 1, "b": 3}), ({}, {"a": 1, "b": 2}), (5, 5), ([], [])],
)
def test_returned_value_is_merged_over_the_partial_result(url: str, returned: Any, expected: Any) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work(ctx: JobContext) -> Any:
            ctx.update({"a": 1})
            ctx.update({"b": 2})
            return returned

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=60) == expected

    on(url, main)


@pytest.mark.parametrize("returned, expected", [(None, {"a": 2, "b": 1, "c": 2}), ({"c": 3}, {"a": 2, "b": 1, "c": 3})])
def test_next_attempt_resumes_from_the_partial_result(url: str, returned: Any, expected: Any) -> None:
    async def main(sched: Scheduler) -> None:
        seen = []

        @sched.job
        async def work(ctx: JobContext) -> Any:
            seen.append(sched.records.result_of(await sched.get(ctx.id)))
            if ctx.attempt == 1:
                ctx.update({"a": 1, "b": 1})
                return Retry(0)
            ctx.update({"a": 2, "c": 2})
            return returned

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=60) == expected
        assert seen == [None, {"a": 1, "b": 1}]

    on(url, main)


def test_running_attempt_shows_the_merged_partial_result(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        gate = Gate()

        @sched.job
        async def work(ctx: JobContext) -> Any:
            ctx.update({"a": ctx.attempt, str(ctx.attempt): True})
            if ctx.attempt == 1:
                return Retry(0)
            await gate.wait()
            return None

        async with sched.worker():
            job = await work.enqueue()
            await gate.reached()
            expected = {"a": 2, "1": True, "2": True}

            async def is_shown() -> bool:
                return bool(sched.records.result_of(await job.record()) == expected)

            await until(is_shown)
            gate.open()
            assert await job.result(timeout=60) == expected

    on(url, main)


def test_attempt_without_return_value_keeps_the_partial_result(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work(ctx: JobContext, last: Any) -> Any:
            if ctx.attempt > 1:
                return last
            ctx.update({"a": 1})
            return Retry(0)

        async with sched.worker():
            kept, replaced = await work.enqueue(None), await work.enqueue({"b": 2})
            assert await kept.result(timeout=60) == {"a": 1}
            assert await replaced.result(timeout=60) == {"b": 2}

    on(url, main)


def test_a_job_that_fails_keeps_no_interim_result(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job(max_attempts=1)
        async def work(ctx: JobContext) -> None:
            ctx.update({"a": 1})
            raise ValueError("no")

        async with sched.worker():
            job = await work.enqueue()
            await sched.drain(timeout=60)
            record = await job.record()
            assert (record.state, record.result) == (FAILED, None)

    on(url, main)


def test_malformed_partial_result_is_refused_at_the_call() -> None:
    async def main(sched: Scheduler) -> None:
        refused = []

        @sched.job
        async def work(ctx: JobContext) -> str:
            for fields in ({"a": {1}}, {"a": "x" * (1 << 20)}, [1], {1: 2}):
                try:
                    ctx.update(fields)  # type: ignore[arg-type]
                except (PayloadError, InvalidJobTypeError) as error:
                    refused.append(type(error))
            return "done"

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=60) == "done"
        assert refused == [PayloadError, PayloadError, InvalidJobTypeError, PayloadError]

    on("memory://", main)


def test_threads_of_a_handler_may_all_store(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        def work(ctx: JobContext) -> None:
            def say(who: int) -> None:
                for n in range(20):
                    ctx.update({f"{who}.{n}": n})

            threads = [threading.Thread(target=say, args=(who,)) for who in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT_S)

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=60) == {f"{who}.{n}": n for who in range(8) for n in range(20)}  # type: ignore[func-returns-value]

    on(url, main)


# --- a store that cannot be reached, a worker that stops -----------------------------------------------------------


def break_gets(sched: Scheduler, monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], Any]) -> list[int]:
    """Have something done before each record is read; return a list that grows with each, numbered from 0."""
    call, asked = sched.backend.call, list[int]()

    async def call_or_break(operation: Any) -> Any:
        if isinstance(operation, Get):
            asked.append(len(asked))
            answer(asked[-1])
            await asyncio.sleep(0)
        return await call(operation)

    monkeypatch.setattr(sched.backend, "call", call_or_break)
    return asked


def finished(sched: Scheduler) -> Callable[[], Awaitable[bool]]:
    """Return a question whether a job is FINISHED, which reads no record."""

    async def ask() -> bool:
        return (await sched.records.count(state="FINISHED")).total > 0

    return ask


def be_gone(*_: Any) -> None:
    raise BackendUnavailableError("gone")


def test_partial_result_is_read_again_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "PAUSE_S", 0)
    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0)

    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work(ctx: JobContext) -> None:
            ctx.update({"a": ctx.attempt})

        asked = break_gets(sched, monkeypatch, lambda n: be_gone() if n < 3 else None)
        async with sched.worker():
            job = await work.enqueue()
            await until(finished(sched))
        assert sched.records.result_of(await job.record()) == {"a": 1}
        assert len(asked) >= 4

    on("memory://", main)


def test_job_with_unavailable_partial_result_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "PAUSE_S", 0)
    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0)

    async def main(sched: Scheduler) -> None:
        ends, broken = [], [True]

        @sched.job
        async def work(ctx: JobContext) -> None:
            ctx.update({"a": 1})

        @sched.after_job
        def heal(ctx: JobContext, outcome: Outcome) -> None:
            ends.append(outcome.kind)
            broken.clear()

        break_gets(sched, monkeypatch, lambda _: be_gone() if broken else None)
        async with sched.worker():
            job = await work.enqueue()
            await until(finished(sched))
        record = await job.record()
        assert (record.attempts, sched.records.result_of(record)) == (1, {"a": 1})
        assert ends == [OutcomeKind.RELEASED, OutcomeKind.FINISHED]

    on("memory://", main)


def test_oversized_merged_partial_result_fails_the_job(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work(ctx: JobContext) -> Any:
            ctx.update({str(ctx.attempt): "x" * 600_000})
            return Retry(0) if ctx.attempt == 1 else None

        async with sched.worker():
            job = await work.enqueue()
            await sched.drain(timeout=60)
            record = await job.record()
        assert (record.state, record.result, record.attempts) == (FAILED, None, 2)
        assert record.errors[-1].type == "queuehint.errors.PayloadError"

    on(url, main)


def test_cancellation_during_the_read_keeps_the_finished_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(sched: Scheduler) -> None:
        tasks: list[Any] = []

        @sched.job
        async def work(ctx: JobContext) -> dict[str, int]:
            ctx.update({"a": 1})
            tasks.append(asyncio.current_task())
            return {"b": 2}

        break_gets(sched, monkeypatch, lambda n: tasks[0].cancel() if n == 0 else None)
        async with sched.worker():
            job = await work.enqueue()
            await until(finished(sched))
        record = await job.record()
        assert (sched.records.result_of(record), record.attempts, record.errors) == ({"a": 1, "b": 2}, 1, ())

    on("memory://", main)


def test_children_are_awaited_with_the_partial_result(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        async def child() -> None: ...

        @sched.job
        async def parent(ctx: JobContext, result: Any) -> Children:
            ctx.update({"a": 1})
            return Children(await ctx.enqueue(child), result=result)

        async with sched.worker():
            jobs = [await parent.enqueue(result) for result in (None, {"b": 2}, 5)]
            assert [await job.result(timeout=60) for job in jobs] == [{"a": 1}, {"a": 1, "b": 2}, 5]

    on(url, main)


def test_custom_codec_encodes_and_decodes_the_partial_result(url: str) -> None:
    class Reversed:
        """JSON backwards."""

        def __init__(self) -> None:
            self._json = JsonCodec()

        def dumps(self, values: Any, annotations: Any, *, bytes_max: int) -> bytes:
            return self._json.dumps(values, annotations, bytes_max=bytes_max)[::-1]

        def loads(self, payload: bytes, annotations: Any) -> dict[str, Any]:
            return self._json.loads(payload[::-1], annotations)

    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work(ctx: JobContext) -> Any:
            ctx.update({str(ctx.attempt): ctx.attempt})
            return Retry(0) if ctx.attempt < 3 else {"last": True}

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=60) == {"1": 1, "2": 2, "3": 3, "last": True}
        record = await job.record()
        assert record.result is not None
        assert record.result.startswith(b"}}")
        assert sched.records.result_of(record) == {"1": 1, "2": 2, "3": 3, "last": True}

    on(url, main, codec=Reversed())
