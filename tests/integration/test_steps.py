"""Steps of a handler: their results are stored, and later attempts do not make them again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import attrs
import pytest

from queuehint import (
    BackendUnavailableError,
    HandlerError,
    InvalidJobError,
    InvalidJobTypeError,
    JobContext,
    JobFailedError,
    JobState,
    LeaseLostError,
    OutcomeUnknownError,
    PayloadError,
    Retry,
    Scheduler,
    Snooze,
    UnknownToReleaseError,
)
from queuehint.backends.redis.keys import redis_key
from queuehint.errors import BackendFullError
from queuehint.handlers.steps import ledger as steps_module
from queuehint.values.outcome import STEP_BYTES_MAX, STEPS_BYTES_MAX, STEPS_MAX
from queuehint.worker import dependency_results as results_module
from queuehint.worker.calls import steps as calls_module
from tests.conftest import StartServer
from tests.manual_jobs import on
from tests.schedulers import Gate, until
from tests.servers import Server, new_namespace
from tests.support import LIMIT_S

T = TypeVar("T")


@attrs.frozen
class Part:
    name: str
    size: int


class Colour(Enum):
    RED = "red"


class Made:
    """What was made, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def plain(self, name: str, value: int = 0) -> int:
        self.names.append(name)
        return value

    async def make(self, name: str, value: int = 0) -> int:
        self.names.append(name)
        return value


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "TRY_PAUSE_S", 0.01)
    monkeypatch.setattr(results_module, "PAUSE_S", 0.01)


def stores_step(operation: Any) -> bool:
    """Return whether an operation stores the result of a step."""
    return any(note.step is not None for note in getattr(operation, "notes", ()))


def refusing(
    sched: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    times: int,
    *,
    is_async: bool = True,
    is_stored: bool = False,
) -> list[int]:
    """Have calls that store steps fail so many times, before or after they are done; return what counts them."""
    calls: list[int] = []
    backend = sched.backend
    call, call_sync = backend.call, backend.call_sync

    async def broken(operation: Any) -> Any:
        if not stores_step(operation):
            return await call(operation)
        calls.append(1)
        if len(calls) > times:
            return await call(operation)
        if is_stored:
            await call(operation)
        raise error

    def broken_sync(operation: Any) -> Any:
        if not stores_step(operation):
            return call_sync(operation)
        calls.append(1)
        if len(calls) > times:
            return call_sync(operation)
        if is_stored:
            call_sync(operation)
        raise error

    # One of them may be made of the other.
    monkeypatch.setattr(backend, "call" if is_async else "call_sync", broken if is_async else broken_sync)
    return calls


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_a_stored_step_is_not_made_again(url: str, is_async: bool) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()

        @sched.job(name="plain", retry=[0])
        def plain(ctx: JobContext) -> list[Any]:
            first = ctx.step_sync("a", made.plain, "a", value=ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError
            second = ctx.step_sync("b", made.plain, "b", 7)
            return [first, second, [step.name for step in ctx.steps]]

        @sched.job(name="work", retry=[0])
        async def work(ctx: JobContext) -> list[Any]:
            first = await ctx.step("a", made.make, "a", value=ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError
            second = await ctx.step("b", made.plain, "b", 7)
            return [first, second, [step.name for step in ctx.steps]]

        async with sched.worker():
            job = await (work if is_async else plain).enqueue()
            assert await job.result(timeout=LIMIT_S) == [1, 7, ["a", "b"]]
        assert made.names == ["a", "b"]
        record = await job.record()
        assert [step.name for step in record.steps] == ["a", "b"]
        assert record.enqueued_at <= record.steps[0].at <= record.steps[1].at
        assert record.started_ms is not None and record.steps[1].at_ms >= record.started_ms

    on(url, main)


def test_results_are_read_by_the_annotation_of_the_function(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        seen: list[Any] = []

        async def part(name: str) -> Part:
            return Part(name, 2)

        def parts() -> list[Part]:
            return [Part("b", 1)]

        def awaited() -> Awaitable[timedelta]:
            async def later() -> timedelta:
                return timedelta(seconds=1)

            return later()

        def same(value: T) -> T:
            return value

        class Maker:
            async def __call__(self) -> Colour:
                return Colour.RED

        @sched.job(retry=[0])
        async def work(ctx: JobContext) -> None:
            seen.append(
                [
                    await ctx.step("part", part, "a"),
                    await ctx.step("parts", partial(parts)),
                    await ctx.step("awaited", awaited),
                    await ctx.step("same", same, {"x": [1, None]}),
                    await ctx.step("maker", Maker()),
                    await ctx.step("nothing", lambda: None),
                    await ctx.step("length", len, "abc"),
                ]
            )
            if ctx.attempt == 1:
                raise ValueError

        async with sched.worker():
            await (await work.enqueue()).result(timeout=LIMIT_S)
        expected = [Part("a", 2), [Part("b", 1)], timedelta(seconds=1), {"x": [1, None]}, Colour.RED, None, 3]
        assert seen == [expected, expected]

    on(url, main)


def test_failed_step_is_not_stored_and_may_be_repeated(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        tries: list[int] = []

        async def flaky() -> str:
            tries.append(1)
            if len(tries) < 3:
                raise ValueError("not yet")
            return "there"

        @sched.job(retry=[0])
        async def work(ctx: JobContext) -> str:
            while True:
                try:
                    return await ctx.step("flaky", flaky)
                except ValueError:
                    assert ctx.steps == ()
                    if len(tries) == 2:
                        raise

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=LIMIT_S) == "there"
        record = await job.record()
        assert (len(tries), record.attempts, [step.name for step in record.steps]) == (3, 2, ["flaky"])

    on(url, main)


def test_step_name_counts_once_per_attempt_also_concurrently(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()

        @sched.job(retry=[0])
        async def work(ctx: JobContext) -> list[Any]:
            calls = [ctx.step("a", made.make, "a", 1), ctx.step("a", made.make, "again"), ctx.step("b", made.make, "b")]
            found = await asyncio.gather(*calls, return_exceptions=True)
            if ctx.attempt == 1:
                raise Retry(0)
            return [str(each) for each in found]

        async with sched.worker():
            said = await (await work.enqueue()).result(timeout=LIMIT_S)
        assert said == ["1", "step 'a' is called twice in one attempt; name each call differently", "0"]
        assert sorted(made.names) == ["a", "b"]

    on(url, main)


def test_steps_run_at_the_same_time_and_within_one_another(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()
        seen = []

        @sched.job(retry=[0])
        async def work(ctx: JobContext) -> int:
            async def outer(number: int) -> int:
                value = await ctx.step(f"inner {number}", made.make, f"inner {number}", number)
                made.names.append(f"outer {number}")
                if ctx.attempt == 1 and number == 0:
                    raise ValueError
                return value + 10

            numbers = range(20)
            found = await asyncio.gather(
                *[ctx.step(f"outer {number}", outer, number) for number in numbers], return_exceptions=True
            )
            seen.append(found)
            if ctx.attempt == 1:
                raise Retry(0)
            return sum([each for each in found if isinstance(each, int)])

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=LIMIT_S) == sum(range(20)) + 200
        assert isinstance(seen[0][0], ValueError)
        assert made.names.count("outer 0") == 2
        assert all(made.names.count(f"inner {number}") == 1 for number in range(20))
        assert all(made.names.count(f"outer {number}") == 1 for number in range(1, 20))
        assert len((await job.record()).steps) == 40

    on(url, main)


@pytest.mark.parametrize("how", ["snooze", "retry", "release", "lost"])
def test_steps_are_kept_over_every_way_to_a_further_attempt(url: str, how: str) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()
        gate = Gate()
        runs: list[int] = []

        @sched.job(retry=[0], max_losses=5)
        async def work(ctx: JobContext) -> int:
            runs.append(ctx.token)
            found = await ctx.step("a", made.make, "a", len(runs))
            if len(runs) == 1:
                if how == "snooze":
                    raise Snooze(0)
                if how == "retry":
                    raise Retry(0)
                if how == "lost":
                    raise SystemExit
                await gate.wait()
            return found

        job = await work.enqueue()
        async with sched.worker(grace=0):
            if how == "release":
                await gate.reached()
            else:
                assert await job.result(timeout=LIMIT_S) == 1
        if how == "release":
            async with sched.worker():
                assert await job.result(timeout=LIMIT_S) == 1
        assert made.names == ["a"]
        assert len(runs) == 2

    on(url, main)


@pytest.mark.parametrize("steps", ["keep", "drop"])
def test_a_redrive_keeps_steps_or_drops_them(url: str, steps: Any) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()

        @sched.job(max_attempts=1)
        async def work(ctx: JobContext) -> None:
            await ctx.step("a", made.make, "a")
            if not is_over:
                raise ValueError

        is_over: list[int] = []
        async with sched.worker():
            job = await work.enqueue()
            with pytest.raises(JobFailedError):
                await job.result(timeout=LIMIT_S)
            is_over.append(1)
            assert await sched.dead.redrive([job], steps=steps) == 1
            await job.result(timeout=LIMIT_S)
        assert made.names == ["a"] * (2 if steps == "drop" else 1)
        with pytest.raises(InvalidJobError, match="steps must be one of keep, drop, got 'lose'"):
            await sched.dead.redrive([job], steps="lose")  # type: ignore[call-overload]

    on(url, main)


@pytest.mark.parametrize("steps", ["keep", "drop"])
def test_a_redrive_of_a_flow_keeps_steps_or_drops_them(url: str, steps: Any) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()

        @sched.job(max_attempts=1)
        async def work(ctx: JobContext, name: str) -> None:
            await ctx.step(name, made.make, name)
            if not is_over:
                raise ValueError

        is_over: list[int] = []
        async with sched.worker():
            async with sched.flow() as flow:
                for name in "ab":
                    flow.add(work.using(name=name), name)
            with pytest.raises(JobFailedError):
                await flow.result(timeout=LIMIT_S)
            with pytest.raises(InvalidJobError, match="steps must be one of keep, drop, got 'lose'"):
                await flow.redrive(steps="lose")  # type: ignore[arg-type]
            is_over.append(1)
            assert await flow.redrive(steps=steps) == 2
            await flow.result(timeout=LIMIT_S)
            assert await flow.redrive() == 0
        assert sorted(made.names) == sorted("ab" * (2 if steps == "drop" else 1))

    on(url, main)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_briefly_unavailable_store_is_queried_again_for_steps(
    url: str, monkeypatch: pytest.MonkeyPatch, is_async: bool, is_stored: bool
) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()
        error = OutcomeUnknownError("no reply") if is_stored else BackendUnavailableError("away")
        calls = refusing(sched, monkeypatch, error, 4, is_async=is_async, is_stored=is_stored)

        @sched.job(name="plain")
        def plain(ctx: JobContext) -> int:
            return ctx.step_sync("a", made.plain, "a", 5)

        @sched.job(name="work")
        async def work(ctx: JobContext) -> int:
            return await ctx.step("a", made.make, "a", 5)

        async with sched.worker():
            job = await (work if is_async else plain).enqueue()
            assert await job.result(timeout=LIMIT_S) == 5
        assert made.names == ["a"]
        assert len(calls) == 5
        assert (await job.record()).attempts == 1

    on(url, main)


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_a_store_that_cannot_be_told_fails_the_attempt(
    url: str, monkeypatch: pytest.MonkeyPatch, is_async: bool, is_stored: bool
) -> None:
    """The step is made again, unless the store has it."""

    async def main(sched: Scheduler) -> None:
        made = Made()
        refusing(sched, monkeypatch, OutcomeUnknownError("no reply"), 5, is_async=is_async, is_stored=is_stored)

        @sched.job(name="plain", retry=[0])
        def plain(ctx: JobContext) -> int:
            return ctx.step_sync("a", made.plain, "a", ctx.attempt)

        @sched.job(name="work", retry=[0])
        async def work(ctx: JobContext) -> int:
            return await ctx.step("a", made.make, "a", ctx.attempt)

        async with sched.worker():
            job = await (work if is_async else plain).enqueue()
            assert await job.result(timeout=LIMIT_S) == (1 if is_stored else 2)
        record = await job.record()
        assert made.names == ["a"] * (1 if is_stored else 2)
        assert (record.attempts, record.errors[0].type) == (2, "queuehint.errors.OutcomeUnknownError")

    on(url, main)


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_repeated_step_keeps_its_first_result_within_an_attempt(
    url: str, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()
        refusing(sched, monkeypatch, OutcomeUnknownError("no reply"), 5, is_async=is_async, is_stored=True)

        @sched.job(name="plain")
        def plain(ctx: JobContext) -> list[Any]:
            with pytest.raises(OutcomeUnknownError):
                ctx.step_sync("a", made.plain, "a", 1)
            return [ctx.step_sync("a", made.plain, "a", 2), len(ctx.steps)]

        @sched.job(name="work")
        async def work(ctx: JobContext) -> list[Any]:
            with pytest.raises(OutcomeUnknownError):
                await ctx.step("a", made.make, "a", 1)
            return [await ctx.step("a", made.make, "a", 2), len(ctx.steps)]

        async with sched.worker():
            job = await (work if is_async else plain).enqueue()
            assert await job.result(timeout=LIMIT_S) == [1, 1]
        assert made.names == ["a", "a"]

    on(url, main)


def test_a_full_store_fails_the_attempt_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()
        calls = refusing(sched, monkeypatch, BackendFullError("full"), 1)

        @sched.job(retry=[0])
        async def work(ctx: JobContext) -> int:
            return await ctx.step("a", made.make, "a", ctx.attempt)

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=LIMIT_S) == 2
        assert len(calls) == 2

    on(url, main)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_an_attempt_that_has_lost_its_job_stores_nothing(url: str, is_async: bool) -> None:
    async def main(sched: Scheduler) -> None:
        errors: list[LeaseLostError] = []

        @sched.job(name="plain", max_attempts=1)
        def plain(ctx: JobContext) -> None:
            object.__setattr__(ctx._grant, "token", ctx.token - 1)  # as if it were granted to another by now
            try:
                ctx.step_sync("a", lambda: 1)
            except LeaseLostError as error:
                errors.append(error)

        @sched.job(name="work", max_attempts=1)
        async def work(ctx: JobContext) -> None:
            object.__setattr__(ctx._grant, "token", ctx.token - 1)  # as if it were granted to another by now
            try:
                await ctx.step("a", lambda: 1)
            except LeaseLostError as error:
                errors.append(error)

        async with sched.worker():
            job = await (work if is_async else plain).enqueue()
            await until(lambda: bool(errors))
        assert errors[0].job_id == job.id
        assert (await job.record()).steps == ()

    on(url, main)


def test_steps_that_cannot_be_read_now_give_the_job_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()
        fetch = results_module.fetch_steps
        fetched: list[int] = []

        async def broken(call: Any, grant: Any) -> Any:
            async def away(_operation: Any) -> Any:
                raise BackendUnavailableError("away")

            fetched.append(grant.steps)
            return await fetch(away if len(fetched) == 1 else call, grant)  # type: ignore[arg-type]

        monkeypatch.setattr("queuehint.worker.attempts.fetch_steps", broken)

        @sched.job(retry=[0])
        async def work(ctx: JobContext) -> int:
            found = await ctx.step("a", made.make, "a", ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError
            return found

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=LIMIT_S) == 1
        record = await job.record()
        assert (fetched, record.attempts, made.names) == ([1, 1], 2, ["a"])
        assert [attempt.outcome for attempt in record.history] == ["retried", "released", "finished"]

    on(url, main)


def test_a_job_without_steps_asks_for_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sched: Scheduler) -> None:
        async def never(*_: Any) -> Any:
            raise AssertionError

        monkeypatch.setattr("queuehint.worker.attempts.fetch_steps", never)

        @sched.job(retry=[0])
        async def work(ctx: JobContext) -> int:
            if ctx.attempt == 1:
                raise ValueError
            return len(ctx.steps)

        async with sched.worker():
            assert await (await work.enqueue()).result(timeout=LIMIT_S) == 0

    on(url, main)


def test_an_upgrade_renames_steps_and_other_names_are_ignored(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        made = Made()
        seen: list[Any] = []

        def upgrade(arguments: dict[str, Any], steps: dict[str, str]) -> dict[str, Any]:
            seen.append((arguments, dict(steps)))
            if "old" in steps:
                steps["old"] = "new"
            return arguments

        @sched.job(retry=[0], upgrade=upgrade)
        async def work(ctx: JobContext, number: int) -> list[Any]:
            if ctx.attempt == 1:
                await ctx.step("old", made.make, "old", 1)
                await ctx.step("gone", made.make, "gone")
                raise ValueError
            found = await ctx.step("new", made.make, "new", 2)
            return [found, number, [step.name for step in ctx.steps]]

        async with sched.worker():
            job = await work.enqueue(7)
            assert await job.result(timeout=LIMIT_S) == [1, 7, ["new", "gone"]]
        assert made.names == ["old", "gone"]
        assert seen == [({"number": 7}, {"old": "old", "gone": "gone"})]
        assert [step.name for step in (await job.record()).steps] == ["old", "gone"]

    on(url, main)


@attrs.frozen
class Earlier:
    """What an earlier release knows of a result."""

    name: str


def test_a_stored_result_that_cannot_be_read_fails_the_attempt(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        def earlier() -> Earlier:
            raise AssertionError("it is stored")

        @sched.job(max_attempts=2, retry=[0])
        async def work(ctx: JobContext, stored: Any) -> None:
            if ctx.attempt == 1:
                await ctx.step("a", lambda: stored)
                raise ValueError
            await ctx.step("a", earlier)

        async with sched.worker():
            for stored, error in (([1], PayloadError), ({"name": "x", "more": 1}, UnknownToReleaseError)):
                job = await work.enqueue(stored)
                with pytest.raises(JobFailedError, match="the stored result of step 'a': "):
                    await job.result(timeout=LIMIT_S)
                errors = (await job.record()).errors
                assert [each.type for each in errors] == ["ValueError", f"queuehint.errors.{error.__name__}"]

    on(url, main)


def test_release_able_to_read_a_result_resumes_later(url: str) -> None:
    """What the other one has done in between is one failed attempt."""

    async def main(sched: Scheduler) -> None:
        made: list[int] = []

        def later() -> dict[str, str]:
            made.append(ctx_attempts[-1])
            return {"name": "x", "more": "1"}

        def earlier() -> Earlier:
            raise AssertionError("it is stored")

        ctx_attempts: list[int] = []

        @sched.job(max_attempts=3, retry=[0])
        async def work(ctx: JobContext) -> Any:
            ctx_attempts.append(ctx.attempt)
            found = await (ctx.step("a", earlier) if ctx.attempt == 2 else ctx.step("a", later))
            if ctx.attempt == 1:
                raise ValueError
            return found

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=LIMIT_S) == {"name": "x", "more": "1"}
        assert made == [1]
        assert [each.type for each in (await job.record()).errors] == [
            "ValueError",
            "queuehint.errors.UnknownToReleaseError",
        ]

    on(url, main)


def test_wrong_calls_are_refused_by_name_before_anything_is_done(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sched: Scheduler) -> None:
        calls = refusing(sched, monkeypatch, AssertionError("asked"), 10_000)
        monkeypatch.setattr(steps_module, "STEPS_MAX", 2)
        monkeypatch.setattr(steps_module, "STEPS_BYTES_MAX", 100)
        made = Made()
        said: list[tuple[type[Exception], str]] = []

        async def unknown() -> Missing:  # type: ignore[name-defined]  # noqa: F821
            return 1

        @sched.job(name="work", max_attempts=1)
        async def work(ctx: JobContext) -> None:
            async def refused(name: Any, function: Any, *args: Any) -> None:
                with pytest.raises(Exception) as caught:
                    await ctx.step(name, function, *args)
                said.append((caught.type, str(caught.value)))

            await refused("", made.make, "x")
            await refused("n" * 257, made.make, "x")
            await refused(7, made.make, "x")
            await refused("a", 7)
            await refused("a", unknown)
            await refused("a", lambda: {1})
            await refused("a", lambda: "x" * STEP_BYTES_MAX)
            await refused("a", lambda: "x" * 100)

        @sched.job(name="plain", max_attempts=1)
        def plain(ctx: JobContext) -> None:
            with pytest.raises(HandlerError, match=r"write ctx.step_sync\(\), or make the handler an `async def`"):
                _ = ctx.step("a", made.plain, "x")
            with pytest.raises(HandlerError, match=r"step 'a': .* takes plain functions, and this one is `async def`"):
                _ = ctx.step_sync("a", made.make, "x")

        async with sched.worker():
            await (await work.enqueue()).result(timeout=LIMIT_S)
            await (await plain.enqueue()).result(timeout=LIMIT_S)
        assert not calls
        assert made.names == []
        kinds = [kind for kind, _ in said]
        assert kinds == [InvalidJobError] * 2 + [InvalidJobTypeError] * 2 + [PayloadError] * 4
        texts = [text for _, text in said]
        assert texts[0] == "name is empty; it must be 1 to 256 bytes"
        assert texts[1].startswith("name is 257 bytes, limit 256: 'nnn")
        assert texts[2] == "name must be str, got int: 7"
        assert texts[3] == "function must be callable, got int: 7"
        assert "the result of a step has no type: annotation 'Missing' cannot be resolved" in texts[4]
        assert "the result of step 'a': set" in texts[5]
        assert f"limit {STEP_BYTES_MAX}" in texts[6]
        assert texts[7] == "$: the steps take 114 bytes with step 'a', limit 100"

    on(url, main)


def test_one_step_too_many_is_refused_before_it_is_made(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sched: Scheduler) -> None:
        monkeypatch.setattr(steps_module, "STEPS_MAX", 2)
        made = Made()

        @sched.job(max_attempts=1)
        async def work(ctx: JobContext) -> str:
            found = await asyncio.gather(*[ctx.step(name, made.make, name) for name in "abc"], return_exceptions=True)
            return str(found[2])

        async with sched.worker():
            assert await (await work.enqueue()).result(timeout=LIMIT_S) == "steps: 3 with step 'c', limit 2"
        assert made.names == ["a", "b"]

    on(url, main)


@pytest.mark.slow
def test_the_store_has_the_last_word_on_room(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sched: Scheduler) -> None:
        monkeypatch.setattr(steps_module, "STEPS_MAX", STEPS_MAX + 1)

        @sched.job(max_attempts=1)
        async def work(ctx: JobContext) -> str:
            for first in range(0, STEPS_MAX, 100):
                await asyncio.gather(*[ctx.step(str(first + number), dict) for number in range(100)])
            with pytest.raises(InvalidJobError) as caught:
                await ctx.step("more", dict)
            return str(caught.value)

        async with sched.worker():
            job = await work.enqueue()
            expected = (
                f"steps: job '{job.id}' has no room for step 'more', limit {STEPS_MAX} steps of {STEPS_BYTES_MAX} bytes"
            )
            assert await job.result(timeout=60) == expected

    on(url, main)


def test_stored_result_that_misfits_is_refused_by_step_name(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        def text() -> str:
            return "x"

        def when() -> timedelta:
            return timedelta()

        @sched.job(retry=[0], max_attempts=2)
        async def work(ctx: JobContext) -> None:
            await ctx.step("a", text if ctx.attempt == 1 else when)
            raise ValueError

        async with sched.worker():
            job = await work.enqueue()
            with pytest.raises(JobFailedError, match="the stored result of step 'a': cannot be read as"):
                await job.result(timeout=LIMIT_S)

    on(url, main)


def test_steps_of_many_threads_of_one_handler_are_all_stored(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        def work(ctx: JobContext) -> int:
            def part(number: int) -> None:
                ctx.step_sync(str(number), int)

            threads = [threading.Thread(target=part, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return len(ctx.steps)

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=LIMIT_S) == 8
        assert len((await job.record()).steps) == 8

    on(url, main)


def test_step_hook_wraps_only_executed_steps(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        seen: list[Any] = []

        @contextmanager
        def around(job: JobContext, name: str, began_ns: int | None) -> Iterator[None]:
            seen.append(("begin", job.attempt, name, began_ns))
            try:
                yield
            except ValueError:
                seen.append("failed")
                raise
            seen.append(len(job.steps))

        sched.step_hooks.append(around)

        def fail() -> None:
            raise ValueError

        @sched.job(retry=[0], max_attempts=2)
        async def work(ctx: JobContext) -> None:
            await ctx.step("a", int)
            if ctx.attempt == 1:
                await ctx.step("b", fail)

        async with sched.worker():
            await (await work.enqueue()).result(timeout=LIMIT_S)
        assert seen == [("begin", 1, "a", None), 0, ("begin", 1, "b", None), "failed"]

    on(url, main)


def test_a_job_is_canceled_in_the_middle_of_a_step(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        gate = Gate()

        @sched.job
        async def work(ctx: JobContext) -> None:
            await ctx.step("a", gate.wait)

        async with sched.worker():
            job = await work.enqueue()
            await gate.reached()
            await job.cancel()

            async def is_over() -> bool:
                return (await job.record()).state.is_over

            await until(is_over)
        record = await job.record()
        assert (record.state, record.steps) == (JobState.CANCELED, ())

    on(url, main)


@pytest.mark.redis
def test_dropped_steps_and_deleted_records_leave_nothing(redis_server: Server) -> None:
    namespace = new_namespace()

    async def main(sched: Scheduler) -> None:
        made = Made()

        @sched.job(max_attempts=1)
        async def work(ctx: JobContext, fails: bool) -> None:
            await ctx.step("a", made.make, "a")
            if fails:
                raise ValueError

        async with sched.worker():
            dead, done = await work.enqueue(True), await work.enqueue(False)
            await done.result(timeout=LIMIT_S)
            with pytest.raises(JobFailedError):
                await dead.result(timeout=LIMIT_S)
        assert len(steps_of(redis_server, namespace)) == 2
        await sched.dead.redrive([dead], steps="drop")
        assert [key.rpartition(":")[2] for key in steps_of(redis_server, namespace)] == [done.id]
        await sched.records.delete([done.id])
        assert steps_of(redis_server, namespace) == []

    on(redis_server.url, main, namespace=namespace)


def steps_of(server: Server, namespace: str) -> list[str]:
    """Return the keys of the steps of a namespace."""
    client: Any = server.client()
    return [key.decode() for key in client.keys(redis_key(namespace, "steps:") + "*")]


@pytest.mark.redis
def test_full_redis_accepts_few_steps_of_a_job(start_server: StartServer) -> None:
    """As it takes results of up to 64 KiB; then the attempt fails, and goes on once there is room."""
    server = start_server()

    async def main(sched: Scheduler) -> None:
        made = Made()
        errors: list[Exception] = []
        full: Any = server.client()

        @sched.job(retry=[0])
        async def work(ctx: JobContext) -> int:
            if ctx.attempt == 1:
                full.config_set("maxmemory", 1)
            try:
                for number in range(10):
                    await ctx.step(str(number), fill, number)
            except BackendFullError as error:
                errors.append(error)
                full.config_set("maxmemory", 0)
                raise
            return len(ctx.steps)

        def fill(number: int) -> str:
            made.plain(str(number))
            return "x" * 20_000

        async with sched.worker():
            job = await work.enqueue()
            assert await job.result(timeout=LIMIT_S) == 10
        assert len(errors) == 1
        assert made.names == ["0", "1", "2", "3", "3", *map(str, range(4, 10))]

    on(server.url, main)
