"""The synchronous twins of the asynchronous methods: for scripts, threads and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from queuehint import (
    DrainStalledError,
    DrainTimeoutError,
    DuplicateJobError,
    JobCanceledError,
    JobFailedError,
    JobState,
    PathClosedError,
    ResultTimeoutError,
    Scheduler,
    WouldDeadlockError,
)
from queuehint.scheduler import hosting as hosting_module
from tests.schedulers import Gate, in_thread, memory, scheduler, until

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def make_job(sched: Scheduler) -> Any:
    @sched.job(queue_hint=["{doc}"], name="work", max_attempts=1)
    async def work(doc: str, n: int = 0) -> str:
        if n < 0:
            raise ValueError("negative")
        return f"{doc}{n}"

    return work


def test_every_method_has_a_sync_twin_with_equal_arguments() -> None:
    import inspect

    from queuehint import Flow, Job, JobContext, JobHandle
    from queuehint.scheduler.dead_jobs import DeadLetters
    from queuehint.scheduler.xcom import XCom

    for kind in (Scheduler, Job, JobHandle, JobContext, DeadLetters, Flow, XCom):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or not inspect.iscoroutinefunction(inspect.unwrap(method)):
                continue
            twin = getattr(kind, f"{name}_sync")
            assert list(inspect.signature(method).parameters.values()) == list(
                inspect.signature(twin).parameters.values()
            ), name


def test_a_script_enqueues_drains_and_reads() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    handle = work.enqueue_sync("a", 1)
    many = work.enqueue_many_sync([("a", 2), {"doc": "b"}])
    assert handle.created
    assert handle.state_sync() is QUEUED
    assert sched.stats_sync().unfinished == 3
    sched.drain_sync()
    assert [h.result_sync() for h in (handle, *many)] == ["a1", "a2", "b0"]
    assert handle.record_sync() == sched.get_sync(handle.id)
    assert handle.progress_sync() is None
    assert work.enqueue_many_sync([]) == []
    sched.drain_sync()


def test_results_that_are_errors_raise() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    failing, canceled = work.enqueue_sync("a", -1), work.enqueue_sync("b")
    assert canceled.cancel_sync("no") is True
    with pytest.raises(ResultTimeoutError):
        failing.result_sync(0)
    with pytest.raises(ResultTimeoutError):
        failing.result_sync(0.001)
    sched.drain_sync()
    with pytest.raises(JobFailedError, match="negative"):
        failing.result_sync()
    with pytest.raises(JobCanceledError):
        canceled.result_sync()


def test_operators_orders() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    assert (sched.pause_sync(["a"]), sched.pause_sync(["a"])) == (True, False)
    handle = work.enqueue_sync("a")
    with pytest.raises(DrainStalledError):
        sched.drain_sync()
    with pytest.raises(DrainStalledError):
        sched.drain_sync(["a"])
    sched.drain_sync(["b"])
    assert (sched.resume_sync(["a"]), sched.resume_sync(["a"])) == (True, False)
    sched.drain_sync(["a"])
    assert handle.result_sync() == "a0"
    assert (sched.close_path_sync(["a"]), sched.close_path_sync(["a"])) == (True, False)
    with pytest.raises(PathClosedError):
        work.enqueue_sync("a")
    last = sched.close_path_sync(["a"], last=work.using(id="last").spec("a"))
    assert (last.created, sched.close_path_sync(["a"], last=work.using(id="last").spec("a")).created) == (True, False)
    sched.drain_sync(["a"])
    assert last.result_sync() == "a0"
    assert (sched.reopen_path_sync(["a"]), sched.reopen_path_sync(["a"])) == (True, False)
    other = work.enqueue_sync("a")
    assert sched.cancel_sync([other]) == [True]
    assert sched.can_dequeue_sync(["a"])
    assert sched.tree_sync().children == ()


def test_sync_dead_letters_are_redriven_and_discarded() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    one, two = work.enqueue_many_sync([("a", -1), ("b", -1)])
    sched.drain_sync()
    assert [record.id for record in sched.dead.list_sync()] == [one.id, two.id]
    sched.dead.discard_sync([one.id])
    sched.dead.redrive_sync([two.id])
    assert (one.state_sync(), two.state_sync()) == (CANCELED, QUEUED)
    sched.drain_sync()
    assert [record.id for record in sched.dead.list_sync()] == [two.id]


def test_the_same_id_with_other_content_is_refused() -> None:
    sched, _ = scheduler()
    work = make_job(sched).using(id="x")
    work.enqueue_sync("a")
    assert not work.enqueue_sync("a").created
    with pytest.raises(DuplicateJobError):
        work.enqueue_sync("b")


def test_a_worker_in_a_thread() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    with sched.worker_sync(2):
        assert work.enqueue_sync("a").result_sync(timeout=60) == "a0"
        sched.drain_sync(timeout=60)
    assert not sched._workers
    assert not memory(sched)._adopted
    assert work.enqueue_sync("b").state_sync() is QUEUED


def test_error_in_the_block_stops_the_threaded_worker() -> None:
    sched, _ = scheduler()
    before = set(threading.enumerate())
    with pytest.raises(KeyError), sched.worker_sync():
        raise KeyError
    assert not sched._workers
    assert set(threading.enumerate()) <= before


def test_error_of_an_ending_threaded_worker_is_raised_afterwards() -> None:
    sched, _ = scheduler()

    @sched.worker_lifespan
    def broken() -> Iterator[None]:
        yield
        raise KeyError("left open")

    work = make_job(sched)
    with pytest.raises(KeyError, match="left open"), sched.worker_sync():
        assert work.enqueue_sync("a").result_sync(timeout=60) == "a0"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_threaded_worker_ends_when_its_start_is_interrupted(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    sched, _ = scheduler()
    before = set(threading.enumerate())
    entered = threading.Event()

    class Interrupted(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            entered.wait(60)
            raise error

    @sched.worker_lifespan
    async def hangs() -> AsyncIterator[None]:
        try:
            entered.set()
            await asyncio.Event().wait()
            yield
        finally:
            raise ValueError("canceled")

    monkeypatch.setattr(hosting_module, "Future", Interrupted)
    with pytest.raises(error), sched.worker_sync():
        raise AssertionError("it has started")
    assert set(threading.enumerate()) <= before


def test_threaded_worker_without_a_loop_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    sched, _ = scheduler()

    def refuse(main: Any) -> None:
        main.close()
        raise OSError("too many files")

    monkeypatch.setattr(asyncio, "run", refuse)
    with pytest.raises(OSError, match="too many files"), sched.worker_sync():
        raise AssertionError("it has started")


def test_pools_may_be_given_one_by_one() -> None:
    sched, _ = scheduler()
    work = make_job(sched).using(pool="p")
    with sched.worker_sync(pools=iter(["p"])):
        assert work.enqueue_sync("a").result_sync(60) == "a0"


def test_waiting_threads_are_woken() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    handles = work.enqueue_many_sync([("a", n) for n in range(8)])
    ends = [in_thread(lambda handle=handle: handle.result_sync(60)) for handle in handles]  # type: ignore[misc]
    with sched.worker_sync():
        assert [end() for end in ends] == [f"a{n}" for n in range(8)]


async def test_the_thread_of_the_workers_loop_is_never_blocked() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["a"])
    async def work() -> str:
        await gate.wait()
        return "done"

    async with sched.worker():
        handle = await work.enqueue()
        await gate.reached()
        for call in (
            lambda: handle.result_sync(1),
            lambda: sched.drain_sync(timeout=1),
            lambda: sched.drain_sync(["a"], timeout=1),
            lambda: sched.exclusive_sync(["b"]),
        ):
            with pytest.raises(WouldDeadlockError, match="thread of the workers' loop"):
                call()
        sched.drain_sync(["b"])
        gate.open()
        assert await asyncio.to_thread(handle.result_sync) == "done"
        assert handle.result_sync() == "done"


async def test_twins_work_beside_a_running_loop() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    handle = work.enqueue_sync("a")
    sched.drain_sync()
    assert handle.result_sync() == "a0"
    with sched.exclusive_sync(["a"]):
        pass
    with sched.worker_sync():
        assert work.enqueue_sync("b").result_sync(60) == "b0"
    later = work.using(delay=60).enqueue_sync("c")
    with pytest.raises(DrainTimeoutError):
        sched.drain_sync(include_scheduled=True, timeout=0)
    assert later.state_sync() is SCHEDULED


async def test_handler_in_a_thread_enqueues_followers() -> None:
    sched, _ = scheduler()
    work = make_job(sched)

    @sched.job(queue_hint=["a"])
    def first() -> str:
        return str(work.enqueue_sync("a", 5).id)

    async with sched.worker():
        behind = await (await first.enqueue()).result()
        assert await sched.handle(behind).result() == "a5"


async def test_close_wakes_waiters() -> None:
    sched, _ = scheduler()
    handle = make_job(sched).enqueue_sync("a")
    backend = memory(sched)
    end = in_thread(handle.result_sync)
    await until(lambda: len(backend._waiting) == 1)
    # The scheduler is let go of too: what comes next opens a new store, which does not know the job.
    sched.close_sync()
    with pytest.raises(LookupError):
        await asyncio.to_thread(end)
