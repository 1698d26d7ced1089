"""Exclusive sections: they exclude jobs and are excluded by them, and end with their caller."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from queuehint import Hold, JobCanceledError, JobState, LeaseLostError, ResultTimeoutError, Scheduler
from queuehint.operations import Tick
from queuehint.scheduler.holds.entrance import Exclusive
from queuehint.values.report import ReasonKind
from tests.schedulers import Gate, in_thread, memory, scheduler, turns, until


def make_job(sched: Scheduler, gate: Gate) -> Any:
    @sched.job(queue_hint=["{doc}"], name="work")
    async def work(doc: str) -> None:
        await gate.wait(doc)

    return work


def only(sched: Scheduler) -> str:
    """Return the id of the newest job that stands for a place held or waited for."""
    return [job.id for job in list(memory(sched).engine.table.jobs.values()) if job.spec.presence_ms is not None][-1]


async def waits(sched: Scheduler) -> None:
    """Wait until a caller stands in line."""

    def somebody() -> bool:
        return any(
            job.spec.presence_ms is not None and job.state is JobState.QUEUED
            for job in list(memory(sched).engine.table.jobs.values())
        )

    await until(somebody)
    await turns()


async def hold(exclusive: Exclusive, inside: asyncio.Event, leave: asyncio.Event) -> Hold:
    async with exclusive as held:
        inside.set()
        await leave.wait()
    return held


def apart(work: Coroutine[Any, Any, Hold]) -> asyncio.Task[Hold]:
    """Start a task that does not count for the caller, and so may wait for a place that the caller holds."""
    return asyncio.create_task(work, context=contextvars.Context())


async def test_a_free_place_is_taken_at_once_and_given_back() -> None:
    sched, _ = scheduler()
    async with sched.exclusive(["a"]) as held:
        assert not held.lost
        assert not await sched.can_dequeue(["a", "b"])
        assert await sched.can_dequeue(["b"])
        record = await sched.get(held.id)
        assert (record.state, record.token) == (JobState.STARTED, held.token)
    assert await sched.can_dequeue(["a"])
    assert memory(sched).engine.table.trie.nodes == 0
    assert not memory(sched)._adopted


async def test_it_excludes_jobs_and_is_excluded_by_them_in_order() -> None:
    sched, _ = scheduler()
    gate = Gate()
    work = make_job(sched, gate)
    async with sched.worker():
        await work.enqueue("a")
        await gate.reached(1)
        inside, leave = asyncio.Event(), asyncio.Event()
        holding = apart(hold(sched.exclusive(["a"]), inside, leave))
        await waits(sched)
        behind = await work.enqueue("a")
        assert (await behind.why()).kind is ReasonKind.PLACE
        assert not inside.is_set()
        gate.open()
        await inside.wait()
        assert len(gate.entered) == 1
        leave.set()
        await behind.result()
        await holding


async def test_exclusive_places_conflict_with_paths_above_and_below() -> None:
    sched, _ = scheduler()
    async with sched.exclusive(["a", "b"]), sched.exclusive(["a", "c"]):
        for path in ([], ["a"], ["a", "b"], ["a", "c", "d"]):
            with pytest.raises(ResultTimeoutError):
                await sched.exclusive(path, timeout=0).__aenter__()
        async with sched.exclusive(["b"], timeout=0):
            pass


async def test_shared_holders_stand_beside_one_another() -> None:
    sched, _ = scheduler()
    async with sched.exclusive(["a"], mode="shared"), sched.exclusive(["a"], mode="shared", timeout=0):
        with pytest.raises(ResultTimeoutError):
            async with sched.exclusive(["a"], timeout=0):
                pass
    async with sched.exclusive(["a"], timeout=0):
        pass


async def test_plain_code_in_a_thread_takes_its_turn_too() -> None:
    sched, _ = scheduler()
    gate, held = Gate(), Gate()
    work = make_job(sched, gate)

    def call() -> int:
        with sched.exclusive_sync(["a"]) as hold:
            held.wait_sync()
            return hold.token

    async with sched.worker():
        await work.enqueue("a")
        await gate.reached(1)
        end = in_thread(call)
        await waits(sched)
        behind = await work.enqueue("a")
        gate.open()
        await held.reached()
        assert len(gate.entered) == 1
        held.open()
        await behind.result()
        assert await asyncio.to_thread(end) > 0


def test_it_works_without_a_loop() -> None:
    sched, _ = scheduler()
    with sched.exclusive_sync(["a"]), sched.exclusive_sync(["b"]):
        assert not sched.can_dequeue_sync(["a"])
        with pytest.raises(ResultTimeoutError), sched.exclusive_sync(["a"], timeout=0):
            pass
    assert sched.can_dequeue_sync(["a"])
    assert memory(sched).engine.table.trie.nodes == 0


@pytest.mark.parametrize("timeout", [0, 0.001])
async def test_place_not_free_in_time_is_awaited_no_more(timeout: float) -> None:
    sched, _ = scheduler()
    holder = sched.exclusive(["a"])
    await asyncio.create_task(holder.__aenter__())
    with pytest.raises(TimeoutError) as caught:
        async with sched.exclusive(["a"], timeout=timeout):
            pass
    assert isinstance(caught.value, ResultTimeoutError)
    assert (await sched.tree(["a"])).waiting == 0
    await holder.__aexit__(None, None, None)
    assert not memory(sched)._adopted


async def test_an_error_inside_gives_the_place_back_and_goes_on() -> None:
    sched, _ = scheduler()
    with pytest.raises(KeyError):
        async with sched.exclusive(["a"]):
            raise KeyError
    with pytest.raises(KeyError), sched.exclusive_sync(["a"], timeout=0):
        raise KeyError
    assert await sched.can_dequeue(["a"])


@pytest.mark.parametrize("holding", [True, False])
async def test_a_caller_whose_task_is_canceled_frees_the_place(holding: bool) -> None:
    sched, _ = scheduler()
    first = sched.exclusive(["a"])
    if not holding:
        await first.__aenter__()
    inside, leave = asyncio.Event(), asyncio.Event()
    task = apart(hold(sched.exclusive(["a"]), inside, leave))
    await (inside.wait() if holding else waits(sched))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if not holding:
        assert (await sched.tree(["a"])).waiting == 0
        await first.__aexit__(None, None, None)
    async with sched.exclusive(["a"], timeout=0):
        pass
    assert not memory(sched)._adopted


async def test_caller_canceled_before_its_grant_frees_the_place() -> None:
    sched, _ = scheduler()
    entering = asyncio.create_task(sched.exclusive(["a"]).__aenter__())
    while await sched.can_dequeue(["a"]):  # noqa: ASYNC110 - canceled in this very turn of the loop
        await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert await sched.can_dequeue(["a"])
    assert (await sched.get(only(sched))).state is JobState.CANCELED


async def test_an_operator_may_cancel_a_waiting_caller() -> None:
    sched, _ = scheduler()
    async with sched.exclusive(["a"]):
        task = apart(hold(sched.exclusive(["a"]), asyncio.Event(), asyncio.Event()))
        await waits(sched)
        await sched.cancel([only(sched)], reason="enough")
        with pytest.raises(JobCanceledError):
            await task

        def call() -> None:
            with sched.exclusive_sync(["a"]):
                pass

        end = in_thread(call)
        await waits(sched)
        await sched.cancel([only(sched)])
        with pytest.raises(JobCanceledError):
            await asyncio.to_thread(end)
    assert await sched.can_dequeue(["a"])


async def test_cancel_does_not_take_a_held_place() -> None:
    sched, _ = scheduler()
    async with sched.exclusive(["a"]) as held:
        assert await sched.cancel([held.id]) == [False]
        assert not await sched.can_dequeue(["a"])
    assert await sched.can_dequeue(["a"])


async def test_job_of_a_hold_cannot_be_started_by_workers() -> None:
    sched, _ = scheduler()
    async with sched.exclusive(["a"]), sched.worker():
        task = apart(hold(sched.exclusive(["a"]), asyncio.Event(), asyncio.Event()))
        await waits(sched)
        await turns()
        assert (await sched.why(only(sched))).kind is ReasonKind.PLACE
        task.cancel()


def die(sched: Scheduler) -> None:
    """Let all callers of this process be gone, as far as their store can tell."""
    memory(sched)._adopted.clear()


async def test_a_caller_that_dies_while_it_waits_frees_its_place() -> None:
    sched, clock = scheduler(lease=5)
    gate = Gate()
    work = make_job(sched, gate)
    first = sched.exclusive(["a"])
    await first.__aenter__()
    dead = apart(hold(sched.exclusive(["a"]), asyncio.Event(), asyncio.Event()))
    await waits(sched)
    waiter = only(sched)
    behind = await work.enqueue("a")
    assert len(memory(sched)._adopted) == 2
    memory(sched)._adopted.popitem()  # the newest is the one that waits
    clock.advance(seconds=5)
    await sched.backend.call(Tick())
    assert memory(sched).engine.table.jobs[waiter].state is JobState.CANCELED
    with pytest.raises(JobCanceledError):
        await dead
    await first.__aexit__(None, None, None)
    gate.open()
    async with sched.worker():
        await behind.result()


async def test_dead_holder_frees_its_place_and_learns_of_it() -> None:
    sched, clock = scheduler(lease=5)

    def lose() -> None:
        die(sched)
        clock.advance(seconds=5)
        sched.backend.call_sync(Tick())

    with pytest.raises(LeaseLostError):
        async with sched.exclusive(["a"]):
            lose()
            async with sched.exclusive(["a"], timeout=0):
                pass
    with pytest.raises(LeaseLostError), sched.exclusive_sync(["a"]):
        lose()
    with pytest.raises(KeyError):  # an error of the block itself is worth more
        async with sched.exclusive(["a"]):
            lose()
            raise KeyError
    assert await sched.can_dequeue(["a"])


async def test_live_holder_keeps_its_place_through_a_stalled_loop() -> None:
    sched, clock = scheduler(lease=5)
    inside, leave = asyncio.Event(), asyncio.Event()
    async with sched.exclusive(["a"]) as held:
        task = apart(hold(sched.exclusive(["a"]), inside, leave))
        await waits(sched)
        clock.advance(seconds=86_400)
        await sched.backend.call(Tick())
        assert (await sched.get(held.id)).state is JobState.STARTED
        await turns()
        assert not task.done()
    await inside.wait()
    leave.set()
    await task


def far(sched: Scheduler) -> None:
    """Let the store be one that leaves renewing to its callers."""
    memory(sched).__class__ = type("Far", (type(memory(sched)),), {"is_local": False})


@pytest.mark.parametrize("how", ["async", "sync"])
async def test_a_caller_of_a_far_store_renews_by_itself(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from queuehint.scheduler.holds import request

    monkeypatch.setattr(request.Request, "renewal_s", 0.001)

    sched, clock = scheduler(lease=5)
    far(sched)
    table = memory(sched).engine.table

    def ends() -> int:
        timer = table.jobs[only(sched)].timer
        assert timer is not None
        return table.timers.next_ms() or 0

    async def outlive() -> None:
        for _ in range(3):
            clock.advance(seconds=4)
            due = clock.now_ms() + 5_000
            memory(sched)._adopted.clear()
            await until(lambda due=due: ends() >= due)  # type: ignore[misc]

    if how == "async":
        async with sched.exclusive(["a"]) as held:
            await outlive()
    else:
        gate = Gate()

        def call() -> Hold:
            with sched.exclusive_sync(["a"]) as held:
                gate.wait_sync()
            return held

        end: Callable[[], Hold] = in_thread(call)
        await gate.reached()
        await outlive()
        gate.open()
        held = await asyncio.to_thread(end)
    assert not held.lost


@pytest.mark.parametrize("how", ["async", "sync"])
async def test_remote_holder_is_notified_of_its_lost_lease(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from queuehint.scheduler.holds import request

    monkeypatch.setattr(request.Request, "renewal_s", 0.001)

    sched, _ = scheduler(lease=5)
    far(sched)

    def lose() -> None:
        job = memory(sched).engine.table.jobs[only(sched)]
        job.token = (job.token or 0) + 1

    if how == "async":
        with pytest.raises(LeaseLostError):
            async with sched.exclusive(["a"]) as held:
                lose()
                await until(lambda: held.lost)
    else:
        gate = Gate()

        def call() -> None:
            with sched.exclusive_sync(["a"]) as held:
                gate.wait_sync(held)

        end = in_thread(call)
        await gate.reached()
        lose()
        await until(lambda: bool(gate.entered[0].lost))
        gate.open()
        with pytest.raises(LeaseLostError):
            await asyncio.to_thread(end)


async def test_one_exclusive_may_be_entered_again_after_it_was_left() -> None:
    sched, _ = scheduler()
    exclusive = sched.exclusive(["a"])
    ids = []
    for _ in range(2):
        async with exclusive as held:
            ids.append(held.id)
    assert len(set(ids)) == 2


async def test_hold_shows_its_id_token_and_loss() -> None:
    sched = Scheduler("memory://")
    async with sched.exclusive(["doc1"]) as held:
        assert repr(held) == f"Hold({held.id!r}, token={held.token}, lost=False)"
        held.lose()
        assert repr(held).endswith("lost=True)")
