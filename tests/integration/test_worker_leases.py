"""Leases of a worker: renewal, an unreachable store, jobs granted again, suspected poison jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import (
    BackendDeniedError,
    BackendUnavailableError,
    FakeClock,
    JobCanceledError,
    JobContext,
    JobState,
    Scheduler,
    Worker,
)
from queuehint.backends.memory import MemoryBackend
from queuehint.operations import Exchange, Renew, Tick
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.worker import attempts as attempts_module
from queuehint.worker import listening as listening_module
from queuehint.worker import worker as worker_module
from tests.handlers import KINDS, answering, events, in_state
from tests.schedulers import Gate, in_thread, memory, scheduler, turns, until
from tests.support import Lateness, until_sync

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- leases ----------------------------------------------------------------------------------------------------------


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


async def test_lease_of_an_ended_job_is_kept_until_settlement() -> None:
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


# --- an unreachable store --------------------------------------------------------------------------------------------


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


async def test_worker_survives_a_temporarily_unreachable_store(
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


async def test_notes_of_a_handler_survive_an_outage(flaky: Callable[[Scheduler], list[int]]) -> None:
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


# --- a shared store --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "blocking", "thread"])
async def test_a_job_that_runs_longer_than_its_lease_keeps_it(far: Callable[..., Scheduler], kind: str) -> None:
    sched = far(lease=3)

    @sched.job(name="long")
    async def on_loop() -> str:
        if kind == "blocking":
            time.sleep(3.5)  # noqa: ASYNC251 - that is the point
        else:
            await asyncio.sleep(3.5)
        return "done"

    @sched.job(name="long_in_thread")
    def in_thread() -> str:
        time.sleep(3.5)
        return "done"

    async with sched.worker(1):
        handle = await (in_thread if kind == "thread" else on_loop).enqueue()
        end = ticking_elsewhere(sched)
        assert await handle.result() == "done"
        end()
    assert (await handle.record()).losses == 0


# --- lost leases -----------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
@KINDS
async def test_worker_without_renewals_stops_its_jobs_before_lease_end(
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
        until_sync(lambda: stopped or ctx.canceled)
        stopped.append(time.monotonic() - began_s)
        if ctx.canceled:
            raise InterruptedError

    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0.05)
    job = on_loop if kind == "async" else in_thread
    handle = await job.enqueue()
    with Lateness() as late:
        async with sched.worker():
            await until(lambda: bool(stopped))
            is_away[0] = False
            await handle.result()
    assert 1.0 < stopped[0] < 2.0 + late.total_s
    record = await handle.record()
    # Given back in time or reaped: either way no attempt has failed.
    assert (record.state, record.attempts, record.errors) == (FINISHED, 1, ())
    assert events(caplog).count("job.fenced") == 1


async def test_unanswered_exchange_is_sent_again_unchanged(
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


async def test_grant_during_a_stop_is_released_at_once(
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


@pytest.mark.slow
async def test_expired_grant_is_released_without_running(far: Callable[..., Scheduler]) -> None:
    sched = far(lease=3)
    granted: list[int] = []
    began: list[int] = []
    call = sched.backend.call

    async def calling(operation: Any) -> Any:
        reply = await call(operation)
        if isinstance(operation, Exchange) and reply.grants:
            granted.append(reply.grants[0].token)
            if len(granted) == 1:
                await asyncio.sleep(2.8)
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
async def test_job_granted_again_begins_after_its_former_code_ended(
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


async def test_job_granted_thrice_runs_once_for_the_newest_grant(far: Callable[..., Scheduler]) -> None:
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
async def test_job_behind_stubborn_code_is_released_when_that_ended(far: Callable[..., Scheduler], end: str) -> None:
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


async def test_worker_refused_from_the_start_raises(far: Callable[..., Scheduler]) -> None:
    sched = far()

    async def calling(operation: Any) -> Any:
        raise BackendDeniedError("NOPERM")

    sched.backend.call = calling  # type: ignore[method-assign]
    with pytest.raises(BackendDeniedError):
        async with sched.worker():
            pass


# --- a worker with a process of its own ------------------------------------------------------------------------------


async def test_process_with_endless_code_exits_after_the_other_jobs() -> None:
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


async def test_job_that_ended_in_time_is_not_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RELEASE_S", 0.2)

    sched, _ = scheduler()
    gate = Gate()
    given_up: list[list[str]] = []

    @sched.job
    def work(ctx: JobContext, doc: str) -> str:
        gate.entered.append(doc)
        until_sync(lambda: ctx.canceled if doc == "hears" else gate._open.is_set())
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


async def test_embedded_worker_told_to_abandon_stops_at_once() -> None:
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


@pytest.mark.parametrize("is_before", [True, False])
async def test_idle_worker_may_be_stopped_and_ends_no_process(is_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RELEASE_S", 0)
    sched, _ = scheduler()
    given_up: list[list[str]] = []
    worker = sched.make_worker(give_up=given_up.append)

    def tell() -> None:
        worker.stop()
        worker.abandon()
        worker.abandon()
        worker.stop(at_once=True)

    if is_before:
        tell()
        await worker.run()
    else:
        async with sched.running(worker):
            pass
        tell()
    await turns()
    assert given_up == []


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


# --- suspected poison jobs -------------------------------------------------------------------------------------------


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


async def test_jobs_without_losses_begin_after_one_joint_announcement(
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


async def test_announcement_failure_fails_only_its_own_job() -> None:
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


async def test_job_that_survives_its_last_life_releases_the_next(
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
