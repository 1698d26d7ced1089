"""The dead-letter shelf: FAILED jobs, until they are redriven or discarded or their records expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.backends.steps import Steps, run_steps, run_steps_sync, tick_until_done
from queuehint.errors import InvalidTransitionError, JobNotFoundError
from queuehint.operations import IDS_MAX, LIST_MAX, Discard, Judged, ListDead, Redrive, Verdict
from queuehint.values.checks import check_bool, check_id, check_int, check_items
from queuehint.values.record import JobRecord, JobState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from queuehint.client.handle import Client

PAGE = 100


class DeadShelf:
    """FAILED jobs of one scheduler, in order of enqueue."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, limit: int = PAGE, *, after: int = 0) -> Sequence[JobRecord]:
        """Return up to *limit* (1–200) dead jobs enqueued after number *after*."""
        return (await self._client.backend.call(_page(limit, after))).records

    def list_sync(self, limit: int = PAGE, *, after: int = 0) -> Sequence[JobRecord]:
        """Like `list`, for code without a loop."""
        return self._client.backend.call_sync(_page(limit, after)).records

    async def __aiter__(self) -> AsyncIterator[JobRecord]:
        """Yield every dead job, a page at a time."""
        cursor: int | None = 0
        while cursor is not None:
            page = await self._client.backend.call(ListDead(cursor, LIST_MAX))
            for record in page.records:
                yield record
            cursor = page.cursor

    async def redrive(self, ids: Iterable[str], *, downstream: bool = False) -> None:
        """
        Queue dead jobs again: to the places they held, or new ones; attempts and losses count anew.

        Args:
            ids: up to 1 000.
            downstream: also revive the jobs that were canceled because of these, on down the graph.

        Raises:
            JobNotFoundError, InvalidTransitionError: for the first of them that is unknown or not FAILED; the
                others were redriven.
        """
        await run_steps(self._client.backend, _redrive(ids, downstream))

    def redrive_sync(self, ids: Iterable[str], *, downstream: bool = False) -> None:
        """Like `redrive`, for code without a loop."""
        run_steps_sync(self._client.backend, _redrive(ids, downstream))

    async def discard(self, ids: Iterable[str]) -> None:
        """Take dead jobs off the shelf, CANCELED; places they held are free. Raises as `redrive`."""
        await run_steps(self._client.backend, _order(Discard(_ids(ids)), JobState.CANCELED))

    def discard_sync(self, ids: Iterable[str]) -> None:
        """Like `discard`, for code without a loop."""
        run_steps_sync(self._client.backend, _order(Discard(_ids(ids)), JobState.CANCELED))


def _redrive(ids: Iterable[str], downstream: object) -> Steps[None]:
    yield from _order(Redrive(_ids(ids), check_bool(downstream, parameter="downstream")), JobState.QUEUED)


def _order(operation: Redrive | Discard, target: JobState) -> Steps[None]:
    reply = yield operation
    yield from tick_until_done(more=reply.more)
    _raise(operation.ids, reply, target)


def _page(limit: int, after: int) -> ListDead:
    return ListDead(
        check_int(after, parameter="after", least=0, most=2**62),
        check_int(limit, parameter="limit", least=1, most=LIST_MAX),
    )


def _ids(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple([check_id(job_id) for job_id in check_items(ids, parameter="ids", most=IDS_MAX)])


def _raise(ids: tuple[str, ...], reply: Judged, target: JobState) -> None:
    for job_id, (verdict, state) in zip(ids, reply.verdicts, strict=True):
        if verdict is Verdict.UNKNOWN:
            raise JobNotFoundError(job_id)
        if verdict is Verdict.REFUSED:
            raise InvalidTransitionError(job_id, state or "unknown", target)
