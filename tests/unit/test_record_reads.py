"""Concurrent reads of records are combined into one request, and each caller gets its own record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuehint import BackendUnavailableError, JobNotFoundError, JobState, Scheduler
from queuehint.backends.memory import MemoryBackend
from queuehint.client import record_reads
from queuehint.client.record_reads import read_record
from queuehint.operations import Get
from tests.schedulers import until


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the ids of each request for records."""
    found: list[tuple[str, ...]] = []
    call = MemoryBackend.call

    async def note(self: MemoryBackend, operation: Any) -> Any:
        if isinstance(operation, Get):
            found.append(operation.ids)
            await asyncio.sleep(0.001)
            if "x" in operation.ids:
                raise BackendUnavailableError("away")
        return await call(self, operation)

    monkeypatch.setattr(MemoryBackend, "call", note)
    return found


async def test_concurrent_reads_share_requests_of_at_most_one_hundred(asked: list[tuple[str, ...]]) -> None:
    sched = Scheduler("memory://")

    @sched.job
    async def work(number: int) -> None: ...

    handles = await work.enqueue_many([(number,) for number in range(150)])
    ids = [handle.id for handle in handles]
    reads = [asyncio.create_task(read_record(sched.backend, job_id)) for job_id in (*ids, ids[0], "gone", ids[1])]
    await asyncio.sleep(0)
    reads[-1].cancel()
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert [record.id for record in found[:151] if record and not isinstance(record, BaseException)] == [*ids, ids[0]]
    assert found[151] is None and isinstance(found[152], asyncio.CancelledError)
    assert asked == [tuple(ids[:100]), (*ids[100:], "gone")]
    assert not any(record_reads._reads.values())


async def test_read_during_another_read_is_sent_afterwards(asked: list[tuple[str, ...]]) -> None:
    backend = Scheduler("memory://").backend
    first = asyncio.create_task(read_record(backend, "a"))
    await until(lambda: bool(asked))
    assert [await read_record(backend, "a"), await first] == [None, None]
    assert asked == [("a",), ("a",)]


async def test_read_error_reaches_only_affected_callers(asked: list[tuple[str, ...]]) -> None:
    backend = Scheduler("memory://").backend
    found = await asyncio.gather(*[read_record(backend, job_id) for job_id in "xy"], return_exceptions=True)
    assert [type(error) for error in found] == [BackendUnavailableError] * 2
    assert await read_record(backend, "z") is None


def test_a_loop_that_ends_meanwhile_leaves_nothing(asked: list[tuple[str, ...]]) -> None:
    backend = Scheduler("memory://").backend

    async def main() -> asyncio.Task[Any]:
        task = asyncio.create_task(read_record(backend, "a"))
        await until(lambda: bool(asked))
        return task

    assert asyncio.run(main()).cancelled()
    assert not any(record_reads._reads.values())
    assert asyncio.run(read_record(backend, "a")) is None


async def test_events_of_many_handles_are_read_together(asked: list[tuple[str, ...]]) -> None:
    sched = Scheduler("memory://")

    @sched.job
    async def work(number: int) -> int:
        return number

    handles = await work.enqueue_many([(number,) for number in range(50)])

    async def last(number: int) -> Any:
        record = None
        async for record in handles[number].events():  # noqa: B007 - the last one
            pass
        return record

    lasts = [asyncio.create_task(last(number)) for number in range(50)]
    async with sched.worker(50):
        assert {(await each).state for each in lasts} == {JobState.FINISHED}
    assert len(asked) < 15
    with pytest.raises(JobNotFoundError):
        await anext(sched.handle("gone").events())
