"""
Reads of records: all that pass a filter, or one by its id.

Reads by id at about the same time, on one loop, are one request.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from queuehint.operations import LIST_MAX, Get, List, Position

if TYPE_CHECKING:
    from queuehint.backends.base import Backend
    from queuehint.backends.steps import Steps
    from queuehint.operations import Page
    from queuehint.values.record import JobRecord
    from queuehint.values.record_filter import RecordFilter

AT_ONCE_MAX: Final = 100
_Reads = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, "_Batch"]]
_reads: Final[_Reads] = WeakKeyDictionary()
"""By loop and by the identity of the backend; an entry is there while something is asked for."""


def read_page(wanted: RecordFilter, after: Position | None, limit: int = LIST_MAX) -> Steps[Page]:
    """Read up to *limit* records that pass a filter, in order of number, behind a position."""
    page: Page = yield List(wanted, after=after, limit=limit)
    return page


def records_of(wanted: RecordFilter, most: int | None = None) -> Steps[list[JobRecord]]:
    """Read the records that pass a filter, in order of number: all, or the first so many."""
    found: list[JobRecord] = []
    after: Position | None = None
    while most is None or len(found) < most:
        limit = LIST_MAX if most is None else min(most - len(found), LIST_MAX)
        page = yield from read_page(wanted, after, limit)
        found += page.records
        after = page.after
        if after is None:
            break
    return found


async def read_record(backend: Backend, job_id: str) -> JobRecord | None:
    """Return a record as of this call, None if there is none. Raises as the backend."""
    loop = asyncio.get_running_loop()
    batches = _reads.setdefault(loop, {})
    batch = batches.get(id(backend))
    if batch is None:
        batch = batches[id(backend)] = _Batch(backend)
        batch.task = asyncio.create_task(batch.run(batches), name="queuehint-records")
    future: asyncio.Future[JobRecord | None] = loop.create_future()
    batch.waiting.setdefault(job_id, []).append(future)
    return await future


class _Batch:
    """The reads of one request to a backend, by job."""

    task: asyncio.Task[None]

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.waiting: dict[str, list[asyncio.Future[JobRecord | None]]] = {}

    async def run(self, batches: dict[int, _Batch]) -> None:
        try:
            # The others that were woken in this turn.
            await asyncio.sleep(0)
            while self.waiting:
                ids = tuple(islice(self.waiting, AT_ONCE_MAX))
                asked = [self.waiting.pop(job_id) for job_id in ids]
                await self._read(ids, asked)
        finally:
            del batches[id(self._backend)]
            for futures in self.waiting.values():
                for future in futures:
                    future.cancel()

    async def _read(self, ids: tuple[str, ...], asked: list[list[asyncio.Future[JobRecord | None]]]) -> None:
        operation = Get(ids)
        try:
            records = (await self._backend.call(operation)).records
        except Exception as error:  # noqa: BLE001 - those that asked are told
            for future in [future for futures in asked for future in futures if not future.done()]:
                future.set_exception(error)
            return
        except BaseException:
            for future in [future for futures in asked for future in futures]:
                future.cancel()
            raise
        for record, futures in zip(records, asked, strict=True):
            for future in futures:
                if not future.done():
                    future.set_result(record)
        if self._backend.owes_turn(operation):
            await asyncio.sleep(0)
