"""Test helpers for applications: a store for one test, and a clock that is moved to the next due time."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from queuehint import (
    BackendUnavailableError,
    DrainStalledError,
    FakeClock,
    JobFailedError,
    JobSpec,
    JobState,
    Retry,
    Scheduler,
    Snooze,
    WouldDeadlockError,
)
from queuehint.operations import CountJobs
from queuehint.testing import TooManyRunsError, drain, drain_sync, on_memory
from tests.schedulers import Gate, run, scheduler, until

HOUR = 3600


def ids(records: list[Any]) -> list[str]:
    return [record.id for record in records]


# --- on_memory -------------------------------------------------------------------------------------------------------


def test_on_memory_replaces_the_store_and_restores_it() -> None:
    sched, clock = scheduler()
    sched.job(print)
    sched.submit_sync([JobSpec(id="before", task="print")])
    with on_memory(sched) as virtual:
        assert sched.records.count_sync().states == dict.fromkeys(JobState, 0)
        sched.submit_sync([JobSpec(id="inside", task="print")])
        backend = sched.backend
        assert abs(virtual.now_ms() - time.time() * 1000) < 60_000
        with on_memory(sched, FakeClock(5)) as inner:
            assert inner.now_ms() == 5
            assert sched.records.list_sync(limit=1)[:] == ()
        assert ids(list(sched.records.list_sync())) == ["inside"]
    assert ids(list(sched.records.list_sync())) == ["before"]
    assert sched._clock is clock
    with pytest.raises(BackendUnavailableError):
        backend.call_sync(CountJobs())


def test_real_store_is_never_reached_from_the_memory_block() -> None:
    sched = Scheduler("redis://nowhere.invalid:1/0")
    with pytest.raises(ZeroDivisionError), on_memory(sched):
        sched.submit_sync([JobSpec(id="a", task="t")])
        sched.close_sync()
        sched.submit_sync([JobSpec(id="a", task="t")])
        raise ZeroDivisionError
    assert sched.url == "redis://nowhere.invalid:1/0"
    assert sched._backend is None


async def test_it_is_refused_while_a_worker_runs() -> None:
    sched, _ = scheduler()

    async with sched.worker():
        with pytest.raises(RuntimeError, match="a worker of this scheduler runs"), on_memory(sched):
            pass


# --- drain -----------------------------------------------------------------------------------------------------------


def test_delayed_jobs_drain_in_due_order_without_real_time() -> None:
    sched, clock = scheduler()
    at: dict[str, int] = {}
    began = clock.now_ms()

    @sched.job
    async def note(name: str) -> None:
        at[name] = clock.now_ms() - began

    note.using(id="late", delay=timedelta(days=30)).enqueue_sync("late")
    note.using(id="soon", delay=60).enqueue_sync("soon")
    note.using(id="now").enqueue_sync("now")
    assert ids(run(drain(sched))) == ["now", "soon", "late"]
    assert at == {"now": 0, "soon": 60_000, "late": 30 * 24 * HOUR * 1000}
    assert run(drain(sched)) == []


def test_attempts_are_made_until_a_job_is_over() -> None:
    sched, _ = scheduler()
    answers = [ZeroDivisionError("no"), Retry(after=HOUR), Snooze(HOUR), "done"]

    @sched.job(queue_hint=["doc"])
    def work() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    handle = work.enqueue_sync()
    (record,) = drain_sync(sched)
    assert (record.id, record.state, len(record.errors)) == (handle.id, JobState.FINISHED, 2)
    assert answers == []


def test_drain_within_a_time_leaves_later_jobs_and_advances_time() -> None:
    sched, clock = scheduler()
    began = clock.now_ms()
    sched.job(name="t")(lambda: None)
    sched.submit_sync([JobSpec(id=f"{delay}", task="t", delay_ms=delay * 1000) for delay in (0, 5, 10, 11)])
    assert ids(drain_sync(sched, within=0)) == ["0"]
    assert ids(drain_sync(sched, within=timedelta(seconds=10))) == ["5", "10"]
    assert drain_sync(sched, within=0.5) == []
    assert clock.now_ms() - began == 10_500
    assert ids(drain_sync(sched)) == ["11"]


def test_schedules_fire_as_their_times_come() -> None:
    sched, clock = scheduler()
    fired: list[int] = []
    began = clock.now_ms()

    @sched.every(600)
    @sched.job
    async def tidy() -> None:
        fired.append((clock.now_ms() - began) // 1000)

    assert len(drain_sync(sched, within=HOUR)) == 6
    assert len(fired) == 6
    assert {b - a for a, b in pairwise(fired)} == {600}
    assert drain_sync(sched) == []


def test_schedules_fire_that_were_defined_after_a_worker_had_begun() -> None:
    sched, _ = scheduler()
    with sched.worker_sync():
        sched.every(600)(sched.job(name="t")(lambda: None))
        assert len(drain_sync(sched, within=HOUR)) == 6


async def test_dependents_children_and_neighbours_follow() -> None:
    sched, _ = scheduler()
    order: list[str] = []

    @sched.job(queue_hint=["doc"])
    def step(name: str) -> None:
        order.append(name)

    async with sched.flow() as flow:
        last = flow.add(step.using(after=["first"], name="last"), "last")
        assert last is not None
        flow.add(step.using(name="first", delay=HOUR), "first")
    await step.enqueue("other")
    await drain(sched)
    assert order == ["other", "first", "last"]


def test_drain_with_raise_errors_raises_the_handler_error() -> None:
    sched, _ = scheduler()

    class OwnError(Exception):
        pass

    @sched.job
    async def bad() -> None:
        raise OwnError("here")

    @sched.job
    def worse() -> None:
        raise OwnError("there")

    for job, text in ((bad, "here"), (worse, "there")):
        handle = job.enqueue_sync()
        with pytest.raises(OwnError, match=text) as caught:
            drain_sync(sched, raise_errors=True)
        assert caught.traceback[-1].name == job.name
        assert handle.state_sync() is JobState.QUEUED
        assert [record.state for record in drain_sync(sched)] == [JobState.FAILED]
    assert "call" not in sched._handlers["bad"].function.__qualname__


def test_an_attempt_that_fails_without_its_handler_is_raised_too() -> None:
    sched, _ = scheduler()

    @sched.job
    def work(count: int) -> None: ...

    sched.submit_sync([JobSpec(id="a", task="work", arguments=b"{}")])
    with pytest.raises(JobFailedError, match="job 'a' failed: "):
        drain_sync(sched, raise_errors=True)


def test_drain_names_stalled_jobs() -> None:
    sched, _ = scheduler()
    sched.job(name="t", queue_hint=["doc"])(lambda: None)
    sched.submit_sync([JobSpec(id="a", task="nobody knows")])
    with pytest.raises(DrainStalledError, match="a is QUEUED: no release that works here can run it"):
        drain_sync(sched)
    assert ids(drain_sync(sched, within=0)) == []
    sched.cancel_sync(["a"])
    sched.submit_sync([JobSpec(id="b", task="t", pool="of nobody")])
    with pytest.raises(DrainStalledError):
        drain_sync(sched)


def test_jobs_that_make_jobs_for_ever_are_stopped() -> None:
    sched, _ = scheduler()

    @sched.job
    async def again() -> None:
        await again.using(delay=1).enqueue()

    again.enqueue_sync()
    with pytest.raises(TooManyRunsError, match="give runs_max=, or within="):
        drain_sync(sched, runs_max=20)
    assert len(drain_sync(sched, within=5)) in {5, 6}


def test_drain_runs_one_job_at_a_time_by_default() -> None:
    for concurrency in (1, 3):
        sched, _ = scheduler()
        now, most = 0, 0

        @sched.job
        async def work() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            for _ in range(5):
                await asyncio.sleep(0)
            now -= 1

        work.enqueue_many_sync([()] * 6)
        drain_sync(sched, concurrency=concurrency)
        assert most == concurrency


def test_limits_of_rate_are_waited_for() -> None:
    sched, clock = scheduler()
    began = clock.now_ms()
    sched.job(name="t", queue_hint=["doc"])(lambda: None)
    sched.limit_sync(["doc"], rate=(1, 60))
    for name in "abc":
        sched._jobs["t"].using(id=name, queue_hint=["doc", name]).enqueue_sync()
    assert ids(drain_sync(sched)) == ["a", "b", "c"]
    assert clock.now_ms() - began >= 120_000


def test_plain_handlers_drain_on_the_calling_thread_without_loop() -> None:
    sched, _ = scheduler()
    who = contextvars.ContextVar("who", default="nobody")
    seen: list[Any] = []

    @sched.job
    def plain() -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        seen.append((threading.get_ident(), who.get()))

    @sched.job
    async def asynchronous() -> None:
        seen.append(who.get())

    who.set("me")
    plain.enqueue_sync()
    asynchronous.enqueue_sync()
    drain_sync(sched)
    assert seen == [(threading.get_ident(), "me"), "me"]


def test_drain_uses_a_running_worker_of_the_application() -> None:
    sched, _ = scheduler()
    threads: set[str] = set()

    @sched.job
    async def work() -> None:
        threads.add(threading.current_thread().name)
        raise ZeroDivisionError

    with sched.worker_sync():
        work.using(delay=HOUR).enqueue_sync()
        with pytest.raises(ZeroDivisionError):
            drain_sync(sched, raise_errors=True)
        assert [record.state for record in drain_sync(sched)] == [JobState.FAILED]
    assert threads == {"queuehint-worker"}


async def test_it_waits_for_code_that_takes_real_time() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work() -> str:
        await gate.wait()
        return "done"

    await work.enqueue()
    draining = asyncio.ensure_future(drain(sched))
    await gate.reached()
    for _ in range(500):
        await asyncio.sleep(0)
    assert not draining.done()
    gate.open()
    (record,) = await draining
    assert sched.records.result_of(record) == "done"


def test_an_interrupt_of_a_plain_handler_counts_as_its_loss() -> None:
    sched, _ = scheduler()

    @sched.job(max_losses=1)
    def work() -> None:
        raise KeyboardInterrupt

    work.enqueue_sync()
    (record,) = drain_sync(sched)
    assert (record.state, record.cause) == (JobState.FAILED, "worker_lost")


def test_drain_is_refused_in_handlers_and_without_a_movable_clock() -> None:
    sched, _ = scheduler()

    @sched.job
    async def work() -> None:
        with pytest.raises(WouldDeadlockError):
            await drain(sched)
        with pytest.raises(WouldDeadlockError):
            drain_sync(sched)

    work.enqueue_sync()
    drain_sync(sched, raise_errors=True)
    with pytest.raises(ValueError, match="has a clock that cannot be moved"):
        drain_sync(Scheduler("memory://"))


async def test_it_is_refused_on_the_thread_of_the_workers_loop() -> None:
    sched, _ = scheduler()

    async with sched.worker():
        with pytest.raises(WouldDeadlockError):
            drain_sync(sched)
        await until(lambda: True)
