"""The dead-letter queue: FAILED jobs, until they are redriven or discarded or their records expire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from queuehint.backends.steps import Steps, order_some, run_steps, run_steps_sync
from queuehint.client.handle import JobHandle, id_of
from queuehint.errors import InvalidJobTypeError, InvalidTransitionError, JobNotFoundError
from queuehint.operations import IDS_MAX, LIST_MAX, Discard, List, Position, Redrive, Verdict
from queuehint.scheduler.records import queries as ask
from queuehint.scheduler.records.bulk import check_choice_of_jobs, checked_filter, order_all
from queuehint.schema.checks import check_bool, check_choice, check_int, check_items
from queuehint.values.record import STEPS_CHOICES, JobRecord, JobState
from queuehint.values.record_filter import DEAD_RECORDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from queuehint.client.handle import Client
    from queuehint.scheduler.records.queries import Filter, Part, RecordPage
    from queuehint.values.record import StepsChoice

PAGE = 100


class DeadLetters:
    """FAILED jobs of one scheduler, in order of enqueue."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @overload
    async def list(self, limit: int = PAGE, *, after: int = 0) -> Sequence[JobRecord]: ...
    @overload
    async def list(self, limit: int = PAGE, *, cursor: str | None = None, **part: Unpack[Part]) -> RecordPage: ...
    async def list(
        self, limit: int = PAGE, *, after: int = 0, cursor: str | None = None, **part: Any
    ) -> Sequence[JobRecord]:
        """
        Return up to *limit* (1–200) dead jobs: all, or a page of the jobs that fit a `Part`.

        Args:
            after: of all: only those enqueued after this number.
            cursor: of those that fit: that of the page before.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter, the value and the limit.
        """
        return await run_steps(self._client.backend, _list(limit, after, cursor, part))

    @overload
    def list_sync(self, limit: int = PAGE, *, after: int = 0) -> Sequence[JobRecord]: ...
    @overload
    def list_sync(self, limit: int = PAGE, *, cursor: str | None = None, **part: Unpack[Part]) -> RecordPage: ...
    def list_sync(
        self, limit: int = PAGE, *, after: int = 0, cursor: str | None = None, **part: Any
    ) -> Sequence[JobRecord]:
        """Like `list`, for code without a loop."""
        return run_steps_sync(self._client.backend, _list(limit, after, cursor, part))

    async def __aiter__(self) -> AsyncIterator[JobRecord]:
        """Yield every dead job, a page at a time."""
        after: Position | None = ("", 0)
        while after is not None:
            page = await self._client.backend.call(List(DEAD_RECORDS, after=after, limit=LIST_MAX))
            for record in page.records:
                yield record
            after = page.after

    @overload
    async def redrive(
        self, ids: Iterable[str | JobHandle[Any]], *, downstream: bool = False, steps: StepsChoice = "keep"
    ) -> int: ...
    @overload
    async def redrive(
        self,
        ids: None = None,
        *,
        downstream: bool = False,
        steps: StepsChoice = "keep",
        all: bool = False,
        limit: int | None = None,
        **part: Unpack[Part],
    ) -> int: ...
    async def redrive(
        self,
        ids: Any = None,
        *,
        downstream: bool = False,
        steps: StepsChoice = "keep",
        all: bool = False,
        limit: int | None = None,
        **part: Any,
    ) -> int:
        """
        Queue dead jobs again, at the places they held or new ones. Attempts and losses start from zero.

        Args:
            ids: up to 1 000 ids or handles; or
            part: those that fit a `Part`: ``redrive(task="send", since=...)``; or
            all: all there are.
            downstream: also revive the jobs that were canceled because of these, on down the graph.
            steps: ``"keep"`` what the steps of these jobs have stored, so that they are not made again, or ``"drop"``
                it; jobs that are revived keep theirs.
            limit: at most so many of those that fit, in order of enqueue (of a path in order of their places).

        Returns:
            How many were redriven, in order of enqueue, whatever the order of *ids*. Those that fit are redriven 200 at
            a time, *ids* 128 at a time: if the store fails, those before are, and the next call goes on.

        Raises:
            JobNotFoundError, InvalidTransitionError: for the first of the *ids* that is unknown or not FAILED; the
                others were redriven.
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter; also for a handle of another
                namespace or another store.
        """
        return await run_steps(self._client.backend, self._redrive(ids, downstream, steps, all, limit, part))

    @overload
    def redrive_sync(
        self, ids: Iterable[str | JobHandle[Any]], *, downstream: bool = False, steps: StepsChoice = "keep"
    ) -> int: ...
    @overload
    def redrive_sync(
        self,
        ids: None = None,
        *,
        downstream: bool = False,
        steps: StepsChoice = "keep",
        all: bool = False,
        limit: int | None = None,
        **part: Unpack[Part],
    ) -> int: ...
    def redrive_sync(
        self,
        ids: Any = None,
        *,
        downstream: bool = False,
        steps: StepsChoice = "keep",
        all: bool = False,
        limit: int | None = None,
        **part: Any,
    ) -> int:
        """Like `redrive`, for code without a loop."""
        return run_steps_sync(self._client.backend, self._redrive(ids, downstream, steps, all, limit, part))

    @overload
    async def discard(self, ids: Iterable[str | JobHandle[Any]]) -> int: ...
    @overload
    async def discard(
        self, ids: None = None, *, all: bool = False, limit: int | None = None, **part: Unpack[Part]
    ) -> int: ...
    async def discard(self, ids: Any = None, *, all: bool = False, limit: int | None = None, **part: Any) -> int:
        """
        Remove jobs from the dead-letter queue as CANCELED. Their places are released.

        Says which, returns how many and raises as `redrive`.
        """
        return await run_steps(self._client.backend, self._discard(ids, all, limit, part))

    @overload
    def discard_sync(self, ids: Iterable[str | JobHandle[Any]]) -> int: ...
    @overload
    def discard_sync(
        self, ids: None = None, *, all: bool = False, limit: int | None = None, **part: Unpack[Part]
    ) -> int: ...
    def discard_sync(self, ids: Any = None, *, all: bool = False, limit: int | None = None, **part: Any) -> int:
        """Like `discard`, for code without a loop."""
        return run_steps_sync(self._client.backend, self._discard(ids, all, limit, part))

    # --- steps ---------------------------------------------------------------------------------------------------

    def _redrive(
        self, ids: object, downstream: object, steps: Any, every: object, limit: object, part: Any
    ) -> Steps[int]:
        revives = check_bool(downstream, parameter="downstream")
        drops = check_choice(steps, STEPS_CHOICES, parameter="steps") == "drop"

        def make(some: tuple[str, ...]) -> Redrive:
            return Redrive(some, revives, drop_steps=drops)

        return self._order("redrive()", JobState.QUEUED, make, ids, every, limit, part)

    def _discard(self, ids: object, every: object, limit: object, part: Any) -> Steps[int]:
        return self._order("discard()", JobState.CANCELED, Discard, ids, every, limit, part)

    def _order(
        self,
        call: str,
        target: JobState,
        make: Callable[[tuple[str, ...]], Redrive | Discard],
        ids: object,
        every: object,
        limit: object,
        part: Filter,
    ) -> Steps[int]:
        check_choice_of_jobs(call, ids, every, limit, part)
        if ids is None:
            _refuse_states(part)
            asked = checked_filter(call, part, (JobState.FAILED,), every=bool(every))
            return (yield from order_all(asked, limit, make))
        found = check_items(ids, parameter="ids", most=IDS_MAX)
        job_ids = [id_of(self._client, job, "ids") for job in found]
        _raise(job_ids, (yield from order_some(job_ids, make, first="oldest")), target)
        return len(job_ids)


def _list(limit: object, after: object, cursor: object, part: Any) -> Steps[Sequence[JobRecord]]:
    if part or cursor is not None:
        if after != 0:
            raise InvalidJobTypeError("list(): after pages through all dead jobs; with a filter give cursor")
        _refuse_states(part)
        part["state"] = JobState.FAILED
        return cast("Sequence[JobRecord]", (yield from ask.list_page(ask.asked_for(part), False, limit, cursor)))
    number = check_int(after, parameter="after", least=0, most=2**62)
    most = check_int(limit, parameter="limit", least=1, most=LIST_MAX)
    page = yield List(DEAD_RECORDS, after=("", number), limit=most)
    return cast("Sequence[JobRecord]", page.records)


def _refuse_states(part: Filter) -> None:
    if "state" in part:
        raise InvalidJobTypeError("dead jobs have no filter by state: all are FAILED")


def _raise(ids: list[str], verdicts: list[tuple[Verdict, JobState | None]], target: JobState) -> None:
    for job_id, (verdict, state) in zip(ids, verdicts, strict=True):
        if verdict is Verdict.UNKNOWN:
            raise JobNotFoundError(job_id)
        if verdict is Verdict.REFUSED:
            raise InvalidTransitionError(job_id, state or "unknown", target)
