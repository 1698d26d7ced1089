"""Limits by the scheduler API on all stores: set, changed, listed, removed; effects on producers and workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from queuehint import (
    FakeClock,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    Job,
    JobContext,
    JobState,
    Limit,
    QueueFullError,
    ReasonKind,
    Scheduler,
)
from queuehint.backends.steps import run_steps
from queuehint.worker.schedules.firing import fire_due
from tests.schedulers import run, scheduler, until


def counting(sched: Scheduler) -> tuple[Job[..., Any], dict[str, int], Callable[[], None]]:
    """Return a job that counts how many run at once, the counts, and what lets those go that run."""
    gate = asyncio.Event()
    counts = {"now": 0, "most": 0, "all": 0}

    @sched.job(queue_hint=["t", "{tenant}", "{row}"])
    async def work(tenant: str, row: int) -> None:
        counts["now"] += 1
        counts["all"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        await gate.wait()
        counts["now"] -= 1

    return work, counts, gate.set


def test_application_worker_never_exceeds_a_limit_and_finishes(url: str) -> None:
    async def main() -> dict[str, int]:
        sched, _ = scheduler(url)
        work, counts, go = counting(sched)
        await sched.limit(["t"], 3)
        await work.enqueue_many([("a", n) for n in range(20)])
        async with sched.worker(concurrency=10), sched.worker(concurrency=10):
            await until(lambda: counts["now"] == 3)
            go()
            await sched.drain()
        await sched.close()
        return counts

    assert run(main()) == {"now": 0, "most": 3, "all": 20}


async def test_idle_worker_wakes_when_a_limit_is_raised_or_removed(url: str) -> None:
    sched, _ = scheduler(url)
    work, counts, go = counting(sched)
    await sched.limit(["t"], 1, each=True)
    handles = await work.enqueue_many([("a", n) for n in range(5)])
    async with sched.worker(concurrency=10):
        await until(lambda: counts["now"] == 1)
        assert (await handles[1].why()).kind is ReasonKind.LIMIT
        assert (await handles[1].why()).path_key == "t:a"
        assert await sched.limit(["t"], 2, each=True)
        await until(lambda: counts["now"] == 2)
        assert await sched.unlimit(["t"])
        await until(lambda: counts["now"] == 5)
        go()
    await sched.close()


def test_an_idle_worker_is_woken_when_a_token_comes(url: str) -> None:
    async def main(sched: Scheduler, clock: FakeClock) -> None:
        work, counts, go = counting(sched)
        go()
        await sched.limit(["t"], rate=(2, timedelta(seconds=10)), burst=2)
        await work.enqueue_many([("a", n) for n in range(4)])
        async with sched.worker(concurrency=10):
            await until(lambda: counts["all"] == 2)
            clock.advance(seconds=5)
            await until(lambda: counts["all"] == 3)
            clock.advance(seconds=5)
            await until(lambda: counts["all"] == 4)
        await sched.close()

    run(main(*scheduler(url)))


async def test_an_exclusive_holder_is_counted_too(url: str) -> None:
    sched, _ = scheduler(url)
    work, counts, go = counting(sched)
    await sched.limit(["t"], 1)
    async with sched.worker(), sched.exclusive(["t", "b"]):
        handle = await work.enqueue("a", 1)
        await until(lambda: _is_limited(handle))
        go()  # The worker may start it before it ends.
    async with sched.worker():
        await handle.result()
    assert counts["all"] == 1
    await sched.close()


async def _is_limited(handle: Any) -> bool:
    return (await handle.why()).kind is ReasonKind.LIMIT


async def test_a_submission_too_many_is_refused_for_producers_and_handlers(url: str) -> None:
    sched, _ = scheduler(url)
    refused: list[QueueFullError] = []

    @sched.job(queue_hint=["a", "{n}"])
    async def leaf(n: int) -> None: ...

    @sched.job
    async def parent(ctx: JobContext) -> None:
        try:
            await ctx.enqueue_many(leaf, [(n,) for n in range(3)])
        except QueueFullError as error:
            refused.append(error)

    await sched.limit(["a"], max_pending=2)
    await leaf.enqueue(0)
    with pytest.raises(QueueFullError) as caught:
        await leaf.enqueue_many([(1,), (2,)])
    assert (caught.value.path_key, caught.value.pending, caught.value.limit) == ("a", 1, 2)
    async with sched.worker():
        await (await parent.enqueue()).result()
    assert len(refused) == 1
    async with sched.flow() as flow:
        flow.add(leaf, 1)
    with pytest.raises(QueueFullError):
        async with sched.flow() as flow:
            flow.add(leaf, 1)
            flow.add(leaf, 2)
            flow.add(leaf, 3)
    await sched.close()


@pytest.mark.parametrize("way", ["enqueue", "enqueue_many", "flow", "exclusive", "schedule"])
async def test_every_enqueue_finds_the_room_of_overdue_jobs(url: str, way: str) -> None:
    sched, clock = scheduler(url)

    @sched.job(queue_hint=["a", "{n}"])
    async def work(n: int) -> None: ...

    await sched.limit(None, max_pending=2)
    if way == "schedule":
        await sched.schedule("s", work, args=(3,), every=10)
    late = await work.using(start_within=1).enqueue_many([(1,), (2,)])
    with pytest.raises(QueueFullError, match="takes at most 2"):
        await work.enqueue(3)
    clock.advance(seconds=10)
    if way == "enqueue":
        await work.enqueue(3)
    elif way == "enqueue_many":
        await work.enqueue_many([(3,), (4,)])
    elif way == "flow":
        async with sched.flow() as flow:
            flow.add(work, 3)
            flow.add(work, 4)
    elif way == "exclusive":
        async with sched.exclusive(["a"], timeout=30):
            pass
    else:
        assert await run_steps(sched.backend, fire_due())
        assert [record.schedule for record in await sched.records.list(state="QUEUED")] == ["s"]
    assert [(await job.record()).state for job in late] == [JobState.CANCELED] * 2
    await sched.close()


def test_limits_are_listed_and_the_synchronous_twins_do_the_same(url: str) -> None:
    sched, _ = scheduler(url)
    assert sched.limit_sync(["b"], 2, rate=(5, 1), max_pending=9)
    assert not sched.limit_sync(["b"], 2, rate=(5, timedelta(seconds=1)), max_pending=9)
    assert sched.limit_sync(None, max_pending=100)
    assert sched.limit_sync([], 7, each=True)
    assert sched.limit_sync(task="mail", most=5)
    assert sched.limit_sync(pool="gpu", rate=(1, 1), burst=7)
    assert [state.limit for state in sched.limits_sync()] == [
        Limit(path=None, max_pending=100),
        Limit(path=(), each=True, most=7),
        Limit(path=("b",), most=2, rate=(5, 1000), max_pending=9),
        Limit(task="mail", most=5),
        Limit(pool="gpu", rate=(1, 1000), burst=7),
    ]
    assert sched.unlimit_sync(task="mail")
    assert sched.unlimit_sync(pool="gpu")
    assert not sched.unlimit_sync(pool="mail")
    for forgotten in (sched.unlimit_sync, sched.limit_sync):
        with pytest.raises(InvalidJobTypeError, match="path=None limits the whole namespace"):
            forgotten()
    assert sched.unlimit_sync(None)
    assert sched.unlimit_sync([])
    assert sched.limit_sync(["b"])
    assert sched.limits_sync() == ()
    sched.close_sync()


@pytest.mark.parametrize(
    "path, options", [("a", {}), (None, {"most": 1}), (["a"], {"most": 0}), (["a"], {"rate": (1,)})]
)
def test_an_invalid_limit_is_refused_and_nothing_is_set(path: Any, options: dict[str, Any]) -> None:
    sched, _ = scheduler()
    with pytest.raises((InvalidJobError, InvalidHintError)):
        sched.limit_sync(path, **options)
    assert sched.limits_sync() == ()
    sched.close_sync()
