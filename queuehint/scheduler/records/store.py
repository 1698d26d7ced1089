"""The records of a scheduler: look them up, page through them, count, write to, export and delete them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import attrs

from queuehint.backends.steps import Steps, run_steps, run_steps_sync
from queuehint.operations import LIST_MAX, Draw, Peek
from queuehint.scheduler.records import queries as ask
from queuehint.scheduler.records.export import Export, ExportFormat
from queuehint.scheduler.records.queries import PAGE
from queuehint.schema.checks import check_instance
from queuehint.values.record import JobRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from typing import TextIO

    from queuehint.client.handle import Client, JobHandle
    from queuehint.operations import Counts, ListUsers, Users
    from queuehint.scheduler.records.queries import Filter, Ownership, Paging, RecordOrder, RecordPage
    from queuehint.values.record_filter import RecordFilter

T = TypeVar("T")


class RecordStore:
    """
    The records of one scheduler, in order of enqueue; those of a path in order of their places' keys, then of enqueue.

    What comes out are copies: nothing a caller does with them changes what is stored. A listing over several pages is
    no snapshot: what is enqueued meanwhile may appear, what expires is left out, and nothing is listed twice.

    A record whose spec this release cannot read is listed among the others; its `JobRecord.problem` says why.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    # --- look up -------------------------------------------------------------------------------------------------

    async def get(self, id: str | JobHandle[Any]) -> JobRecord:
        """
        Return the record of a job.

        Raises:
            JobNotFoundError: no such job, or its record has expired.
        """
        return await self._run(ask.get(self._client, id))

    def get_sync(self, id: str | JobHandle[Any]) -> JobRecord:
        """Like `get`, for code without a loop."""
        return self._run_sync(ask.get(self._client, id))

    async def list_by_ids(self, ids: Iterable[str | JobHandle[Any]]) -> Sequence[JobRecord]:
        """Return the records of up to 1 000 jobs, in the order of their ids. Missing records are left out."""
        return await self._run(ask.list_by_ids(self._client, ids))

    def list_by_ids_sync(self, ids: Iterable[str | JobHandle[Any]]) -> Sequence[JobRecord]:
        """Like `list_by_ids`, for code without a loop."""
        return self._run_sync(ask.list_by_ids(self._client, ids))

    async def list(
        self,
        *,
        newest_first: bool = False,
        limit: int = PAGE,
        cursor: str | None = None,
        order: RecordOrder = "place",
        **filter: Unpack[Filter],
    ) -> RecordPage:
        """
        Return a page of the records that fit a `Filter`: ``await sched.records.list(user="ann", state="FAILED")``.

        A page may come short, or empty, where much has to be gone through to find little; only one whose `cursor` is
        None is the last.

        Args:
            newest_first: by default those enqueued first come first.
            limit: how many at most, 1–200.
            cursor: that of the page before; the limit may be another.
            order: with a *path*: ``"place"`` in order of path key, then of enqueue; ``"time"`` in order of enqueue,
                whatever the places. No index has that order below a path: up to 4 000 claims there are looked at for
                each page; of a path with more all records of the other conditions are, 4 000 a question and 16
                questions a page, so that a page may come short. Without a path the order is that of enqueue.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter, the value and the limit; also
                for a cursor of another listing.
        """
        return await self._run(ask.list_page(ask.asked_for(filter), newest_first, limit, cursor, order))

    def list_sync(
        self,
        *,
        newest_first: bool = False,
        limit: int = PAGE,
        cursor: str | None = None,
        order: RecordOrder = "place",
        **filter: Unpack[Filter],
    ) -> RecordPage:
        """Like `list`, for code without a loop."""
        return self._run_sync(ask.list_page(ask.asked_for(filter), newest_first, limit, cursor, order))

    async def list_all(self, **paging: Unpack[Paging]) -> RecordPage:
        """Return a page of all records. `Paging` is as for `list`."""
        return await self.list(**paging)

    def list_all_sync(self, **paging: Unpack[Paging]) -> RecordPage:
        """Like `list_all`, for code without a loop."""
        return self.list_sync(**paging)

    async def list_by_service(self, service: str, **paging: Unpack[Paging]) -> RecordPage:
        """Return a page of the records of a service. `Paging` is as for `list`."""
        return await self.list(service=ask.named(service=service), **paging)

    def list_by_service_sync(self, service: str, **paging: Unpack[Paging]) -> RecordPage:
        """Like `list_by_service`, for code without a loop."""
        return self.list_sync(service=ask.named(service=service), **paging)

    async def list_by_user(self, user: str, **paging: Unpack[Paging]) -> RecordPage:
        """Return a page of the records of a user, whatever their service. `Paging` is as for `list`."""
        return await self.list(user=ask.named(user=user), **paging)

    def list_by_user_sync(self, user: str, **paging: Unpack[Paging]) -> RecordPage:
        """Like `list_by_user`, for code without a loop."""
        return self.list_sync(user=ask.named(user=user), **paging)

    async def list_by_service_and_user(self, service: str, user: str, **paging: Unpack[Paging]) -> RecordPage:
        """Return a page of the records of a user of a service. `Paging` is as for `list`."""
        return await self.list(service=ask.named(service=service), user=ask.named(user=user), **paging)

    def list_by_service_and_user_sync(self, service: str, user: str, **paging: Unpack[Paging]) -> RecordPage:
        """Like `list_by_service_and_user`, for code without a loop."""
        return self.list_sync(service=ask.named(service=service), user=ask.named(user=user), **paging)

    def iterate(
        self, *, newest_first: bool = False, order: RecordOrder = "place", **filter: Unpack[Filter]
    ) -> AsyncIterator[JobRecord]:
        """Go through all records that fit, a page at a time: ``async for record in sched.records.iterate()``."""
        return self._records(ask.asked_for(filter), ask.check_order(newest_first), ask.check_record_order(order))

    def iterate_sync(
        self, *, newest_first: bool = False, order: RecordOrder = "place", **filter: Unpack[Filter]
    ) -> Iterator[JobRecord]:
        """Like `iterate`, for code without a loop."""
        order = ask.check_record_order(order)
        return chain.from_iterable(self._pages_sync(ask.asked_for(filter), ask.check_order(newest_first), order))

    async def count(self, **filter: Unpack[Filter]) -> Counts:
        """
        Return how many records fit, by state.

        Many are counted in several steps: what changes meanwhile may be counted as it was or as it is.
        """
        return await self._run(ask.count(ask.asked_for(filter)))

    def count_sync(self, **filter: Unpack[Filter]) -> Counts:
        """Like `count`, for code without a loop."""
        return self._run_sync(ask.count(ask.asked_for(filter)))

    async def list_users(self, service: str, *, limit: int = PAGE, after: str | None = None) -> Users:
        """
        Return a page of the users of a service, in order of their names, each with how many records are kept.

        Args:
            limit: how many at most, 1–200.
            after: what the page before has as `after`.
        """
        return await self._client.backend.call(ask.users_of(service, limit, after))

    def list_users_sync(self, service: str, *, limit: int = PAGE, after: str | None = None) -> Users:
        """Like `list_users`, for code without a loop."""
        return self._client.backend.call_sync(ask.users_of(service, limit, after))

    def users(self, service: str) -> AsyncIterator[tuple[str, int]]:
        """Go through all users of a service, in order of their names, each with how many records are kept."""
        return self._users(ask.users_of(service, LIST_MAX, None))

    async def _users(self, question: ListUsers) -> AsyncIterator[tuple[str, int]]:
        while True:
            page = await self._client.backend.call(question)
            for user in page.users:
                yield user
            if page.after is None:
                return
            question = attrs.evolve(question, after=page.after)

    def users_sync(self, service: str) -> Iterator[tuple[str, int]]:
        """Like `users`, for code without a loop."""
        return self._users_sync(ask.users_of(service, LIST_MAX, None))

    def _users_sync(self, question: ListUsers) -> Iterator[tuple[str, int]]:
        while True:
            page = self._client.backend.call_sync(question)
            yield from page.users
            if page.after is None:
                return
            question = attrs.evolve(question, after=page.after)

    # --- what is in a record -------------------------------------------------------------------------------------

    def arguments_of(self, record: JobRecord) -> dict[str, Any]:
        """Return the arguments of a job by name, as they travel: plain JSON values with the codec for JSON."""
        return self._client.codec.loads(check_instance(record, JobRecord, parameter="record").spec.arguments, {})

    def result_of(self, record: JobRecord) -> Any:
        """Return the present result of a job as it travels, None without any. See `JobContext.update`."""
        result = check_instance(record, JobRecord, parameter="record").result
        return None if result is None else self._client.codec.loads(result, {}).get("result")

    async def export(
        self,
        file: str | Path | TextIO | None = None,
        *,
        newest_first: bool = False,
        format: ExportFormat = "json",
        children: bool = False,
        **filter: Unpack[Filter],
    ) -> int:
        """
        Write the records that fit as JSON, one object a line, or as a table.

        Args:
            children: also write the children of these, and theirs, behind each page of records: for ``flow=`` and no
                other condition. It takes a question for each job that has begun.
            file: a path, what is there is replaced; or a text file; or None for standard output.
            format: ``"csv"`` for a table as of RFC 4180, with a header, in UTF-8: the fields that people ask for, less
                logs, steps, edges and all errors but the last. A cell that a spreadsheet would take for a formula has a
                ``'`` before it.

        Returns:
            How many records were written.
        """
        asked, newest_first = ask.asked_for(filter), ask.check_order(newest_first)
        search = ask.check_children(children, asked)
        with Export(file, format) as out:
            async for page in self._pages(asked, newest_first):
                await asyncio.to_thread(out.write, page)
                if search is not None:
                    search.follow(page)
                    while not search.is_over:
                        await asyncio.to_thread(out.write, await self._run(search.page()))
            return out.count

    def export_sync(
        self,
        file: str | Path | TextIO | None = None,
        *,
        newest_first: bool = False,
        format: ExportFormat = "json",
        children: bool = False,
        **filter: Unpack[Filter],
    ) -> int:
        """Like `export`, for code without a loop."""
        asked, newest_first = ask.asked_for(filter), ask.check_order(newest_first)
        search = ask.check_children(children, asked)
        with Export(file, format) as out:
            for page in self._pages_sync(asked, newest_first):
                out.write(page)
                if search is not None:
                    search.follow(page)
                    while not search.is_over:
                        out.write(self._run_sync(search.page()))
            return out.count

    # --- write ---------------------------------------------------------------------------------------------------

    async def append_log(self, id: str | JobHandle[Any], text: str) -> None:
        """
        Append to a job's log, whatever its state.

        Each line of *text* is cut at 4 096 bytes, and the last 1 000 are kept.

        Lines of several callers are all kept; up to 200 lines stay together.

        Raises:
            JobNotFoundError: no such job, or its record has expired.
        """
        await self._run(ask.append_log(self._client, id, text))

    def append_log_sync(self, id: str | JobHandle[Any], text: str) -> None:
        """Like `append_log`, for code without a loop."""
        self._run_sync(ask.append_log(self._client, id, text))

    async def amend(
        self, id: str | JobHandle[Any], *, version: int | None = None, **ownership: Unpack[Ownership]
    ) -> None:
        """
        Change the owner of a job, its `Ownership`: ``await sched.records.amend(id, user="ben")``.

        What is not given stays. A job that waits for its turn waits for that of its new user.

        Args:
            version: of the record as the caller has read it; by default the newest is amended.

        Raises:
            JobNotFoundError: no such job, or its record has expired.
            StaleRecordError: the record has changed since *version*, and was not amended.
            CorruptStateError: its spec cannot be read by this release, and stays as it is.
        """
        await self._run(ask.amend(self._client, id, version, ownership))

    def amend_sync(
        self, id: str | JobHandle[Any], *, version: int | None = None, **ownership: Unpack[Ownership]
    ) -> None:
        """Like `amend`, for code without a loop."""
        self._run_sync(ask.amend(self._client, id, version, ownership))

    async def delete(self, ids: Iterable[str | JobHandle[Any]], *, version: int | None = None) -> None:
        """
        Delete the records of ended jobs, as if their retention had ended.

        What waits for a dead one is canceled, a place it held is free. An id stays taken for 10 minutes after the end.

        Args:
            ids: up to 1 000.
            version: of the record as the caller has read it; for a single id.

        Raises:
            JobNotFoundError, InvalidTransitionError, StaleRecordError: for the first of them that is unknown, that is
                not over or whose result a job may still need, or that has changed since *version*; the others were
                deleted.
        """
        await self._run(ask.delete(self._client, ids, version))

    def delete_sync(self, ids: Iterable[str | JobHandle[Any]], *, version: int | None = None) -> None:
        """Like `delete`, for code without a loop."""
        self._run_sync(ask.delete(self._client, ids, version))

    # --- numbers -------------------------------------------------------------------------------------------------

    async def next_id(self) -> str:
        """Draw the next unique number for a job, as with ``ids="sequence"``."""
        return str((await self._client.backend.call(Draw(1))).first)

    def next_id_sync(self) -> str:
        """Like `next_id`, for code without a loop."""
        return str(self._client.backend.call_sync(Draw(1)).first)

    async def peek_id(self) -> str:
        """Return the next number for a job, without drawing the number."""
        return str((await self._client.backend.call(Peek())).first)

    def peek_id_sync(self) -> str:
        """Like `peek_id`, for code without a loop."""
        return str(self._client.backend.call_sync(Peek()).first)

    # --- steps on the store --------------------------------------------------------------------------------------

    async def _records(self, asked: RecordFilter, newest_first: bool, order: RecordOrder) -> AsyncIterator[JobRecord]:
        async for page in self._pages(asked, newest_first, order):
            for record in page:
                yield record

    async def _pages(
        self, asked: RecordFilter, newest_first: bool, order: RecordOrder = "place"
    ) -> AsyncIterator[RecordPage]:
        page = await self._run(ask.list_page(asked, newest_first, PAGE, None, order))
        yield page
        while page.cursor is not None:
            page = await self._run(ask.list_page(asked, newest_first, PAGE, page.cursor, order))
            yield page

    def _pages_sync(
        self, asked: RecordFilter, newest_first: bool, order: RecordOrder = "place"
    ) -> Iterator[RecordPage]:
        page = self._run_sync(ask.list_page(asked, newest_first, PAGE, None, order))
        yield page
        while page.cursor is not None:
            page = self._run_sync(ask.list_page(asked, newest_first, PAGE, page.cursor, order))
            yield page

    async def _run(self, steps: Steps[T]) -> T:
        return await run_steps(self._client.backend, steps)

    def _run_sync(self, steps: Steps[T]) -> T:
        return run_steps_sync(self._client.backend, steps)
