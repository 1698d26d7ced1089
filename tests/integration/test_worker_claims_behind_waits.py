"""Claims of a worker behind its waits: how much they claim, what they keep free, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import attrs

from queuehint import JobState, OutcomeUnknownError, Scheduler
from queuehint.backends.base import Backend, Interest
from queuehint.backends.memory import MemoryBackend
from queuehint.operations import CountJobs, Exchange
from queuehint.worker.worker import Worker
from tests.schedulers import turns, until


@attrs.define(eq=False)
class Wait:
    """A wait with a claim behind it."""

    operation: Exchange
    take: Callable[[Any], None]
    ended: asyncio.Future[None]


class WaitingStore(Backend):
    """A store elsewhere that ends waits when it is told to."""

    def __init__(self) -> None:
        self.memory = MemoryBackend()
        self.waits: list[Wait] = []
        self.plain = 0
        self.exchanges: list[Exchange] = []
        self.withdrawn: list[Exchange] = []

    @property
    def is_local(self) -> bool:
        return False

    async def call(self, operation: Any) -> Any:
        if isinstance(operation, Exchange):
            self.exchanges.append(operation)
        return self.memory.call_sync(operation)

    def call_sync(self, operation: Any) -> Any:
        return self.memory.call_sync(operation)

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        self.plain += bool(interest.pools)
        await asyncio.Event().wait()

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        raise AssertionError("a worker waits on its loop")

    async def wait_and_call(self, interest: Any, timeout_s: float, operation: Any, take: Any) -> bool:
        wait = Wait(operation, take, asyncio.get_running_loop().create_future())
        self.waits.append(wait)
        try:
            await wait.ended
        except asyncio.CancelledError:
            self.withdrawn.append(operation)
            raise
        finally:
            self.waits.remove(wait)
        take(self.memory.call_sync(operation))
        return True

    async def end(self, error: Exception | None = None) -> None:
        """End the wait, as a marker does."""
        (wait,) = self.waits
        wait.ended.set_exception(error) if error else wait.ended.set_result(None)
        await turns()

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        return lambda: None

    async def close(self) -> None: ...

    def close_sync(self) -> None: ...


@attrs.define(eq=False)
class Idle:
    """An idle worker of such a store; its jobs run until the gate opens."""

    store: WaitingStore
    work: Any
    worker: Worker
    gate: asyncio.Event = attrs.field(factory=asyncio.Event)
    running: int = 0

    async def count(self, state: JobState) -> int:
        return int((await self.store.call(CountJobs())).states.get(state, 0))


@contextlib.asynccontextmanager
async def idling(concurrency: int = 4, lease: float = 30) -> AsyncIterator[Idle]:
    store = WaitingStore()
    sched = Scheduler("memory://", lease=lease)
    sched._backend = store

    @sched.job
    async def work() -> None:
        idle.running += 1
        assert idle.running <= concurrency
        await idle.gate.wait()
        idle.running -= 1

    idle = Idle(store, work, sched.make_worker(concurrency))
    task = asyncio.create_task(idle.worker.run())
    try:
        await until(lambda: bool(store.waits or store.plain))
        yield idle
    finally:
        idle.gate.set()
        idle.worker.stop(at_once=True)
        await task


async def test_idle_worker_claims_one_job_behind_each_wait() -> None:
    async with idling() as idle:
        before = len(idle.store.exchanges)
        for number in (1, 2):
            await idle.work.enqueue()
            await idle.store.end()
            assert idle.running == number
        assert [wait.operation.limit for wait in idle.store.waits] == [2]
        assert len(idle.store.exchanges) == before


async def test_full_reply_triggers_another_claim_within_the_slots() -> None:
    async with idling() as idle:
        await idle.work.enqueue_many([()] * 9)
        await idle.store.end()
        assert [each.limit for each in idle.store.exchanges[-1:]] == [2]
        assert idle.running == 4
        assert idle.store.waits == []
        idle.gate.set()
        await until(lambda: bool(idle.store.waits))
        await turns()
        assert await idle.count(JobState.FINISHED) == 9


async def test_slots_of_a_waiting_claim_are_reserved() -> None:
    async with idling(concurrency=3) as idle:
        await idle.work.enqueue()
        await idle.store.end()
        await until(lambda: bool(idle.store.waits))
        await idle.work.enqueue_many([()] * 9)
        idle.gate.set()
        await turns()
        assert [each.limit for each in idle.store.exchanges if each.settle][:1] == [1], "two of three are taken"
        await idle.store.end()
        assert await idle.count(JobState.FINISHED) == 10


async def test_a_worker_that_stops_withdraws_its_claim_before_it_exchanges() -> None:
    async with idling() as idle:
        await idle.work.enqueue()
        await idle.store.end()
        assert idle.running == 1
        (wait,) = idle.store.waits
        before = len(idle.store.exchanges)
        idle.worker.stop()
        await turns()
        assert idle.store.withdrawn == [wait.operation]
        assert [each.limit for each in idle.store.exchanges[before:]] == [0]
        await idle.work.enqueue()
        await turns()
        assert idle.running == 1
        assert await idle.count(JobState.STARTED) == 1


async def test_grant_of_a_withdrawn_claim_is_released() -> None:
    async with idling() as idle:
        (wait,) = idle.store.waits
        await idle.work.enqueue()
        reply = idle.store.memory.call_sync(wait.operation)
        idle.worker.stop()
        wait.take(reply)
        await until(lambda: bool(idle.store.exchanges[-1].is_last))
        assert idle.running == 0
        assert await idle.count(JobState.QUEUED) == 1


async def test_unanswered_claim_is_repeated_as_the_same_operation() -> None:
    async with idling() as idle:
        (wait,) = idle.store.waits
        await idle.work.enqueue()
        await idle.store.end(OutcomeUnknownError("no answer"))
        assert idle.store.exchanges[-1] is wait.operation
        assert idle.running == 1
        await until(lambda: bool(idle.store.waits))


async def test_a_worker_of_short_leases_waits_and_claims_after_it() -> None:
    async with idling(lease=14) as idle:
        assert (idle.store.waits, idle.store.plain) == ([], 1)


async def test_grant_after_a_worker_died_is_not_begun() -> None:
    async with idling() as idle:
        (wait,) = idle.store.waits
        await idle.work.enqueue()
        reply = idle.store.memory.call_sync(wait.operation)
        idle.worker._exchanges.cancel()
        wait.take(reply)
        await turns()
        assert idle.running == 0
