"""The lifespan of workers: entered before the first claim, left after the last job, and what it yields."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from queuehint import BackendDeniedError, HandlerError, JobContext, JobState, Scheduler
from queuehint.backends.memory import MemoryBackend
from queuehint.cli.loading import load_scheduler
from queuehint.cli.worker import Options, _run
from queuehint.operations import Exchange
from queuehint.testing import drain, drain_sync, on_memory, simulate
from tests.each import for_each
from tests.schedulers import Gate, memory, scheduler, turns
from tests.support import LIMIT_S


class Pool:
    """A resource that tells its story."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.thread = threading.get_ident()

    def __enter__(self) -> Self:
        self.story.append("open")
        return self

    def __exit__(self, *_: object) -> None:
        self.story.append("closed")

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self.__exit__()


class PlainPool(Pool):
    __aenter__ = None  # type: ignore[assignment]


def lifespans(story: list[str]) -> dict[str, Callable[[], Any]]:
    async def generator() -> AsyncIterator[Pool]:
        async with Pool(story) as pool:
            yield pool

    def plain_generator() -> Iterator[Pool]:
        with Pool(story) as pool:
            yield pool

    return {
        "async generator": generator,
        "generator": plain_generator,
        "asynccontextmanager": contextlib.asynccontextmanager(generator),
        "contextmanager": contextlib.contextmanager(plain_generator),
        "returns one": lambda: Pool(story),
        "returns a plain one": lambda: PlainPool(story),
    }


def telling(sched: Scheduler, story: list[str]) -> tuple[Any, Any]:
    @sched.job
    async def on_loop(ctx: JobContext[Pool]) -> bool:
        story.append("on loop")
        return ctx.state.thread == threading.get_ident()

    @sched.job
    def in_thread(ctx: JobContext[Pool]) -> None:
        ctx.state.story.append("in thread")

    return on_loop, in_thread


@pytest.mark.parametrize("name", lifespans([]))
async def test_lifespan_surrounds_claims_and_jobs_on_the_loop(name: str) -> None:
    sched, _ = scheduler()
    story: list[str] = []
    sched.worker_lifespan(lifespans(story)[name])
    sched.before_job(lambda ctx: story.append(type(ctx.state).__name__))
    sched.after_job(lambda ctx, _: story.append(type(ctx.state).__name__))
    on_loop, in_thread = telling(sched, story)
    first = await on_loop.enqueue()
    async with sched.worker(1):
        assert await first.result(), "its own loop"
        await (await in_thread.enqueue()).result()
        assert story[-1] != "closed"
    kind = "PlainPool" if name == "returns a plain one" else "Pool"
    assert story == ["open", kind, "on loop", kind, kind, "in thread", kind, "closed"]


async def test_job_in_the_grace_time_still_has_its_state() -> None:
    sched, _ = scheduler()
    story: list[str] = []
    gate = Gate()
    sched.worker_lifespan(lambda: Pool(story))

    @sched.job
    async def slow(ctx: JobContext[Pool]) -> None:
        await gate.wait()
        ctx.state.story.append("done")

    await slow.enqueue()
    async with sched.worker():
        await gate.reached()
        asyncio.get_running_loop().call_soon(gate.open)
    assert story == ["open", "done", "closed"]


def test_every_way_to_run_jobs_enters_the_lifespan() -> None:
    story: list[str] = []
    whole = ["open", "on loop", "closed"]

    def made() -> tuple[Scheduler, Any]:
        sched = Scheduler()
        sched.worker_lifespan(lambda: Pool(story))
        on_loop, _ = telling(sched, story)
        return sched, on_loop

    def told() -> list[str]:
        told, story[:] = story[:], []
        return told

    sched, job = made()
    with sched.worker_sync():
        job.enqueue_sync().result_sync()
    assert told() == whole

    job.enqueue_sync()
    sched.drain_sync()
    assert told() == whole

    with on_memory(sched):
        job.enqueue_sync()
        drain_sync(sched)
        assert told() == whole

        async def main() -> None:
            await job.enqueue()
            await drain(sched)
            await job.enqueue()
            async with sched.lifespan()(None):
                await sched.drain()

        asyncio.run(main())
        assert told() == whole * 2


def test_simulated_process_enters_the_lifespan_and_crashes_skip_its_exit() -> None:
    story: list[str] = []
    lives: list[Any] = []
    sched = Scheduler()

    @sched.worker_lifespan
    async def resources() -> AsyncIterator[object]:
        await asyncio.sleep(0.01)
        lives.append(object())
        try:
            yield lives[-1]
        except Exception:
            story.append("an error of a worker that went on")
            raise

    used: set[Any] = set()

    @sched.job
    async def work(ctx: JobContext) -> None:
        used.add(ctx.state)
        await asyncio.sleep(1)

    jobs = [work.enqueue] * 6
    simulate(sched, jobs, workers=2, concurrency=1, faults="none")
    assert len(lives) == 2
    assert used == set(lives)
    lives.clear()
    world = simulate(sched, jobs, workers=2, concurrency=1, seed=3, faults="crashes")
    assert len(lives) == 2 + world.faults["crash"]
    assert None not in used
    assert story == []


async def test_state_without_a_lifespan_is_none() -> None:
    sched, _ = scheduler()

    @sched.job
    async def work(ctx: JobContext) -> bool:
        return ctx.state is None

    handle = await work.enqueue()
    await sched.drain()
    assert await handle.result()


async def test_on_memory_state_replaces_the_lifespan(queuehint_state: object) -> None:
    sched = Scheduler()
    seen: list[object] = []

    @sched.job
    async def work(ctx: JobContext) -> None:
        seen.append(ctx.state)

    with on_memory(sched, state="before it is declared"):

        @sched.worker_lifespan
        def resources() -> Iterator[str]:
            yield "real"

        await work.enqueue()
        await drain(sched)
        for state in (None, "a fake"):
            with on_memory(sched, state=state):
                await work.enqueue()
                async with sched.worker():
                    await sched.drain()
                simulate(sched, [work.enqueue], workers=1, faults="none")
        with on_memory(sched, state=queuehint_state):
            await work.enqueue()
            await drain(sched)
    await work.enqueue()
    await sched.drain()
    assert seen == ["before it is declared", None, None, "a fake", "a fake", "before it is declared", "real"]


@pytest.mark.redis
async def test_server_worker_enters_the_lifespan_once_and_leaves_last(redis_url: str, namespace: str) -> None:
    sched = Scheduler(redis_url, namespace=namespace)
    story: list[str] = []
    sched.worker_lifespan(lifespans(story)["async generator"])
    on_loop, in_thread = telling(sched, story)
    async with sched.worker(2):
        assert await (await on_loop.enqueue()).result(timeout=30)
        await (await in_thread.enqueue()).result(timeout=30)
    await sched.close()
    assert story == ["open", "on loop", "in thread", "closed"]


# --- failures --------------------------------------------------------------------------------------------------------


class BrokenError(Exception):
    pass


async def test_failed_entry_ends_the_worker_without_a_claim(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sched, _ = scheduler(redact=lambda text: text.replace("no database", "***"))
    asked: list[object] = []
    call = MemoryBackend.call

    async def noted(self: MemoryBackend, operation: Any) -> Any:
        asked.append(operation)
        return await call(self, operation)

    monkeypatch.setattr(MemoryBackend, "call", noted)

    @sched.worker_lifespan
    async def broken() -> AsyncIterator[None]:
        raise BrokenError("no database")
        yield

    on_loop, _ = telling(sched, [])
    handle = await on_loop.enqueue()
    with pytest.raises(BrokenError, match="no database"):
        async with sched.worker():
            pass
    with pytest.raises(BrokenError):
        await sched.drain()
    assert not any(isinstance(each, Exchange) for each in asked)
    record = await handle.record()
    assert (record.state, record.attempts, record.losses) == (JobState.QUEUED, 0, 0)
    (first, *_) = caplog.records
    assert (first.levelno, first.__dict__["event"]) == (logging.ERROR, "worker.lifespan_failed")
    assert "broken" in first.__dict__["lifespan"]
    assert "no database" not in caplog.text, "it is redacted like errors of handlers"
    with pytest.raises(BrokenError), sched.worker_sync():
        pass


async def test_failed_exit_ends_the_worker_after_all_settlements() -> None:
    sched, _ = scheduler()

    @sched.worker_lifespan
    def broken() -> Iterator[None]:
        yield
        raise BrokenError

    @sched.job
    async def work() -> str:
        return "well"

    handle = await work.enqueue()
    with pytest.raises(BrokenError):
        async with sched.worker():
            assert await handle.result() == "well"


async def test_lifespan_receives_and_cannot_suppress_the_worker_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sched, _ = scheduler()
    story: list[str] = []
    gate = Gate()

    @sched.worker_lifespan
    async def hiding() -> AsyncIterator[None]:
        try:
            yield
        except BackendDeniedError:
            story.append("left")

    @sched.job
    async def work() -> None:
        try:
            await gate.wait()
        finally:
            await turns(3)
            story.append("ended")

    await work.enqueue()
    worker = sched.make_worker()
    task = asyncio.create_task(worker.run())
    await gate.reached()

    async def denied() -> int | None:
        raise BackendDeniedError("no")

    monkeypatch.setattr(worker._exchanges, "exchange", denied)
    worker._state.wakeup.set()
    with pytest.raises(BackendDeniedError):
        await task
    assert story == ["ended", "left"]


@pytest.mark.parametrize("swallows", [False, True])
async def test_worker_stopped_while_entering_its_lifespan_cancels_the_lifespan(swallows: bool) -> None:
    sched, _ = scheduler()
    story: list[str] = []

    @sched.worker_lifespan
    async def slow() -> AsyncIterator[None]:
        story.append("begun")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            story.append("canceled")
            if not swallows:
                raise
        yield
        story.append("left")

    on_loop, _ = telling(sched, story)
    handle = await on_loop.enqueue()
    worker = sched.make_worker()
    task = asyncio.create_task(worker.run())
    await turns(3)
    worker.stop()
    worker.abandon()
    await task
    assert story == ["begun", "canceled", "left"] if swallows else ["begun", "canceled"]
    assert task.cancelling() == 0
    assert await handle.state() is JobState.QUEUED
    assert memory(sched).engine.table.counts[JobState.STARTED] == 0


async def test_worker_stopped_before_it_runs_does_not_enter_it() -> None:
    sched, _ = scheduler()
    story: list[str] = []

    @sched.worker_lifespan
    async def opened() -> AsyncIterator[None]:
        story.append("open")
        yield

    worker = sched.make_worker()
    worker.stop()
    await asyncio.wait_for(worker.run(), LIMIT_S)
    assert story == []


async def test_worker_is_hosted_once_at_a_time() -> None:
    sched, _ = scheduler()
    worker = sched.make_worker()
    async with sched.running(worker):
        with pytest.raises(RuntimeError, match=f"worker {worker.name} runs already; make another one"):
            await sched.running(worker).__aenter__()
        assert sched.runs_workers_here()
    assert not sched.runs_workers_here()


async def test_worker_canceled_while_entering_its_lifespan_is_canceled() -> None:
    sched, _ = scheduler()

    @sched.worker_lifespan
    async def slow() -> AsyncIterator[None]:
        await asyncio.sleep(3600)
        yield

    for stops in (False, True):
        worker = sched.make_worker()
        task = asyncio.create_task(worker.run())
        await turns(3)
        if stops:
            worker.stop()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# --- bad input -------------------------------------------------------------------------------------------------------


async def coroutine() -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (5, "^worker_lifespan takes a function, got int: 5$"),
    (coroutine, "coroutine is a coroutine function; is a `yield` missing"),
    (lambda app: app, "is called without arguments: missing a required argument: 'app'"),
]


@for_each("case", REFUSED)
def test_wrong_lifespan_is_refused_at_registration(case: tuple[Any, str]) -> None:
    function, message = case
    with pytest.raises(HandlerError, match=message):
        Scheduler().worker_lifespan(function)


def test_lifespan_is_replaced_by_one_of_the_same_name_only() -> None:
    sched = Scheduler()

    def define() -> Callable[[], Iterator[int]]:
        @sched.worker_lifespan
        def resources() -> Iterator[int]:
            yield 1

        return resources

    assert list(define()()) == [1], "the function itself is what it was"
    define()
    with pytest.raises(
        HandlerError, match=r"the lifespan of workers is .*resources and cannot be .*coroutine_less too"
    ):

        @sched.worker_lifespan
        def coroutine_less() -> Iterator[int]:
            yield 1


async def test_lifespan_that_is_no_context_manager_ends_the_worker() -> None:
    sched, _ = scheduler()
    sched.worker_lifespan(lambda: 5)  # type: ignore[type-var]
    with pytest.raises(HandlerError, match=r"has to yield, or to return a context manager, got int: 5$"):
        async with sched.worker():
            pass


def test_context_annotation_may_name_the_state_type() -> None:
    sched = Scheduler()

    @sched.job
    async def unresolved(context: JobContext[NowhereAtRunTime]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    @sched.job
    async def resolved(context: JobContext[Pool], doc: str) -> None: ...

    assert unresolved.handler.wants_context
    assert resolved.handler.wants_context
    assert list(resolved.handler.parameters) == ["doc"]
    with pytest.raises(HandlerError, match="has to be the first parameter"):

        @sched.job
        async def second(doc: str, context: JobContext[Pool]) -> None: ...


# --- queuehint worker ------------------------------------------------------------------------------------------------

APP = """
import os, signal
from queuehint import JobContext, Scheduler

sched = Scheduler("sqlite:///jobs.db?durability=process")
story = []

@sched.worker_lifespan
async def resources():
    story.append("open")
    if STORY:
        raise ConnectionError("no database")
    yield story
    story.append("closed")

@sched.job
async def last(ctx: JobContext[list[str]]) -> None:
    ctx.state.append("job")
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_worker_process_with_a_failed_lifespan_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, fails, code in (("lifespan_broken", True, 1), ("lifespan_sound", False, 0)):
        (tmp_path / f"{name}.py").write_text(APP.replace("STORY", str(fails)))
        app = import_app(f"{name}:sched", tmp_path)
        app.last.enqueue_sync()
        app.sched.close_sync()
        given: dict[str, Any] = {
            "processes": 1,
            "concurrency": 1,
            "grace": 1,
            "abandon_after": 1,
            "health_host": "127.0.0.1",
        }
        given |= dict.fromkeys(["pools", "users", "lease", "health_file", "health_port"])
        given |= {"log_format": None, "log_level": None, "steal": []}
        assert _run(Options(target=f"{name}:sched", **given)) == code
        assert app.story == (["open"] if fails else ["open", "job", "closed"])
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.getMessage() == "the lifespan of a worker failed"
    assert record.__dict__["lifespan"] == "lifespan_broken.resources"


def import_app(target: str, folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    load_scheduler(target)
    return sys.modules[target.partition(":")[0]]
