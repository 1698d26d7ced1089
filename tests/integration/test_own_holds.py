"""Waits below a hold of the caller's own: refused where they wait for the held place, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from queuehint import LeaseLostError, ResultTimeoutError, Scheduler, WouldDeadlockError
from queuehint.client import stuck
from queuehint.operations import Tick
from queuehint.testing import drain, drain_sync
from tests.schedulers import memory, scheduler, turns, until
from tests.support import LIMIT_S


def jobs(sched: Scheduler) -> Any:
    @sched.job(queue_hint=["{doc}"])
    async def edit(doc: str) -> str:
        return doc

    return edit


async def refused(awaited: Awaitable[Any]) -> WouldDeadlockError:
    with pytest.raises(WouldDeadlockError) as caught:
        async with asyncio.timeout(LIMIT_S):
            await awaited
    return caught.value


async def enter(sched: Scheduler, *path: str, **options: Any) -> None:
    async with sched.exclusive(list(path), **options):
        pass


async def test_waits_for_the_held_place_are_refused(url: str) -> None:
    async with Scheduler(url) as sched:
        edit = jobs(sched)
        async with sched.worker():
            async with sched.exclusive(["doc1"]):
                job = await edit.enqueue("doc1")
                other = await edit.enqueue("doc2")
                error = await refused(job.result())
                assert (error.job_id, error.held) == (job.id, "doc1")
                assert str(error) == (
                    f"result() for job '{job.id}' inside exclusive() of doc1 would wait in vain: what it waits for "
                    "needs the place that is held here. Leave the block first"
                )
                await refused(job.result(timeout=30))
                await refused(enter(sched, "doc1", "intro"))
                await refused(enter(sched))
                await refused(enter(sched, "doc1", mode="shared"))
                await refused(sched.drain())
                await refused(sched.drain(["doc1"]))
                await refused(_all_events(job))
                # What does not need the place is waited for as ever.
                assert await other.result(timeout=LIMIT_S) == "doc2"
                await enter(sched, "doc2")
                await sched.drain(["doc2"], timeout=LIMIT_S)
                assert await other.result() == "doc2"
            assert await job.result(timeout=LIMIT_S) == "doc1"
            await sched.drain(timeout=LIMIT_S)
            assert (await sched.records.count(state="CANCELED")).total == 0


async def _all_events(job: Any) -> None:
    async for _ in job.events():
        pass


async def test_wait_that_needs_the_place_through_other_jobs_is_refused(url: str) -> None:
    async with Scheduler(url) as sched:
        edit = jobs(sched)
        async with sched.worker(), sched.exclusive(["doc1"]):
            first = await edit.enqueue("doc1")
            across = await edit.using(claims=[["doc1"], ["doc2"]]).enqueue("doc1")
            behind = await edit.enqueue("doc2")
            after = await edit.using(after=[first]).enqueue("doc3")
            assert (await refused(behind.result())).job_id == behind.id
            assert (await refused(after.result())).job_id == after.id
            await refused(enter(sched, "doc2"))
            await refused(sched.drain(["doc2"]))
            await across.cancel()
            assert await behind.result(timeout=LIMIT_S) == "doc2"


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
async def test_wait_for_a_limit_used_up_by_holds_is_refused(each: bool) -> None:
    async with Scheduler() as sched:
        edit = jobs(sched)
        await sched.limit([] if each else ["doc"], 1, each=each)
        async with sched.worker(), sched.exclusive(["doc", "1"]):
            job = await edit.using(queue_hint=["doc", "2"]).enqueue("doc")
            await refused(job.result())
            await refused(enter(sched, "doc", "3"))
            await sched.limit([] if each else ["doc"], 2, each=each)
            assert await job.result(timeout=LIMIT_S) == "doc"


async def test_shared_hold_refuses_exclusive_waits_alone() -> None:
    async with Scheduler() as sched:
        edit = jobs(sched)
        async with sched.worker(), sched.exclusive(["doc1"], mode="shared"):
            reader = await edit.using(mode="shared").enqueue("doc1")
            assert await reader.result(timeout=LIMIT_S) == "doc1"
            await enter(sched, "doc1", mode="shared")
            await sched.drain(["doc1", "intro"], timeout=LIMIT_S)
            await refused(enter(sched, "doc1"))
            writer = await edit.enqueue("doc1")
            # A reader behind the writer, which waits for this hold.
            await refused(enter(sched, "doc1", mode="shared"))
            await refused(writer.result())


async def test_wait_that_comes_to_need_the_place_is_refused_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, "LOOK_AFTER_S", 0.01)
    async with Scheduler() as sched:
        edit = jobs(sched)
        gate = asyncio.Event()

        @sched.job
        async def step() -> None:
            await gate.wait()

        async with sched.worker(), sched.exclusive(["doc1"]):
            before = await step.enqueue()
            middle = await edit.using(after=[before], claims=[["doc1"], ["doc2"]]).enqueue("doc1")
            last = await edit.using(after=[middle]).enqueue("doc3")
            waiting = asyncio.ensure_future(last.result())
            await until(lambda: bool(before.id))
            assert not waiting.done()
            gate.set()
            await refused(waiting)


async def test_flow_that_needs_the_place_is_refused(url: str) -> None:
    async with Scheduler(url) as sched:
        edit = jobs(sched)
        async with sched.worker():
            async with sched.exclusive(["doc1"]):
                async with sched.flow() as flow:
                    first = flow.add(edit, "doc2")
                    flow.add(edit.using(after=[first]), "doc1")
                handle = sched.get_flow(flow.id)
                error = await refused(handle.result())
                assert error.call == "flow.result()"
            await handle.result(timeout=LIMIT_S)


async def test_mark_is_inherited_by_tasks_and_threads_alone() -> None:
    async with Scheduler() as sched:
        edit = jobs(sched)
        ask: asyncio.Queue[Any] = asyncio.Queue()

        async def elsewhere() -> Any:
            return await (await ask.get()).result(timeout=LIMIT_S)

        unrelated = asyncio.ensure_future(elsewhere())
        async with sched.worker():
            async with sched.exclusive(["doc1"]):
                job = await edit.enqueue("doc1")
                await refused(asyncio.gather(job.result()))
                await refused(asyncio.gather(sched.exclusive(["doc1"]).__aenter__()))
                await refused(asyncio.to_thread(sched.drain_sync))
                background = asyncio.create_task(job.result(), context=contextvars.Context())
                await ask.put(job)
            assert await unrelated == await background == await job.result(timeout=LIMIT_S) == "doc1"


async def test_bounded_wait_is_refused_to_the_holder_alone() -> None:
    async with Scheduler() as sched:
        edit = jobs(sched)
        async with sched.worker():
            async with sched.exclusive(["doc1"]):
                job = await edit.enqueue("doc1")
                with pytest.raises(ResultTimeoutError):
                    await job.result(timeout=0)
                with pytest.raises(ResultTimeoutError):
                    await enter(sched, "doc1", timeout=0)
                waiting = asyncio.create_task(job.result(timeout=LIMIT_S))
                entering = asyncio.create_task(enter(sched, "doc1", timeout=LIMIT_S))
                await turns()
            assert await waiting == "doc1"
            await entering


async def test_hold_that_was_lost_refuses_nothing() -> None:
    sched, clock = scheduler(lease=5)
    with pytest.raises(LeaseLostError):
        async with sched.exclusive(["doc1"]):
            memory(sched)._adopted.clear()
            clock.advance(seconds=5)
            await sched.backend.call(Tick())
            await enter(sched, "doc1")


async def test_hold_that_another_task_leaves_marks_nobody_afterwards() -> None:
    async with Scheduler() as sched:
        edit = jobs(sched)
        async with sched.worker():
            hold = sched.exclusive(["doc1"])
            await hold.__aenter__()
            job = await edit.enqueue("doc1")
            await refused(job.result())
            await asyncio.create_task(hold.__aexit__(None, None, None))
            assert await job.result(timeout=LIMIT_S) == "doc1"


async def test_hold_entered_in_its_own_task_marks_no_other() -> None:
    async with Scheduler() as sched:
        edit = jobs(sched)
        async with sched.worker():
            hold = sched.exclusive(["doc1"])
            await asyncio.create_task(hold.__aenter__())
            job = await edit.enqueue("doc1")
            waiting = asyncio.ensure_future(job.result(timeout=LIMIT_S))
            await asyncio.create_task(hold.__aexit__(None, None, None))
            assert await waiting == "doc1"


async def test_holds_of_another_store_or_of_the_past_refuse_nothing() -> None:
    async with Scheduler() as sched, Scheduler() as other:
        edit, more = jobs(sched), jobs(other)
        async with sched.worker(), other.worker(), sched.exclusive(["doc1"]):
            assert await (await more.enqueue("doc1")).result(timeout=LIMIT_S) == "doc1"
            await enter(other, "doc1")
        async with sched.worker():
            assert await (await edit.enqueue("doc1")).result(timeout=LIMIT_S) == "doc1"
            with contextlib.suppress(ResultTimeoutError):
                await enter(sched, "doc1", timeout=LIMIT_S)


def test_sync_waits_for_the_held_place_are_refused(url: str) -> None:
    sched = Scheduler(url)
    edit = jobs(sched)
    with sched.worker_sync():
        with sched.exclusive_sync(["doc1"]):
            job, other = edit.enqueue_sync("doc1"), edit.enqueue_sync("doc2")
            calls: list[Callable[[], Any]] = [
                job.result_sync,
                sched.drain_sync,
                lambda: sched.drain_sync(["doc1"]),
                sched.exclusive_sync(["doc1", "intro"]).__enter__,
            ]
            for call in calls:
                with pytest.raises(WouldDeadlockError, match="inside exclusive\\(\\) of doc1"):
                    call()
            assert other.result_sync(timeout=LIMIT_S) == "doc2"
            sched.drain_sync(["doc2"], timeout=LIMIT_S)
        assert job.result_sync(timeout=LIMIT_S) == "doc1"
        with sched.exclusive_sync(["doc1", "intro"], timeout=LIMIT_S):
            pass
    sched.close_sync()


async def test_two_holders_of_neighbours_wait_for_each_other_in_order() -> None:
    async with Scheduler() as sched:
        entered: list[str] = []

        async def both(name: str, *path: str) -> None:
            async with sched.exclusive(list(path), timeout=LIMIT_S):
                entered.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(both("a", "doc1"), both("b", "doc1", "x"), both("c", "doc1"))
        assert entered == ["a", "b", "c"]


async def test_drain_of_the_test_kit_is_refused_below_a_hold() -> None:
    sched, _ = scheduler()
    edit = jobs(sched)
    async with sched.exclusive(["doc1"]):
        await edit.enqueue("doc1")
        await refused(drain(sched))
    await drain(sched)
    with sched.exclusive_sync(["doc1"]), pytest.raises(WouldDeadlockError):
        drain_sync(sched)
