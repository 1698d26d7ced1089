"""Make waiting jobs due now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from queuehint.backends.steps import Steps, order_some, run_steps, run_steps_sync
from queuehint.client.handle import JobHandle, id_of, make_due
from queuehint.errors import InvalidJobError, InvalidJobTypeError
from queuehint.operations import IDS_MAX, Verdict
from queuehint.scheduler.records.bulk import check_choice_of_jobs, checked_filter, order_all
from queuehint.scheduler.restraints import Restraints
from queuehint.schema.checks import check_items
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.scheduler.records.queries import Filter

WAITING = (JobState.SCHEDULED, JobState.QUEUED)
"""The states of jobs that may wait for a time: the first one, or that of the next attempt."""


class DueNow(Restraints):
    """The part of `Scheduler` that makes jobs due before their time."""

    @overload
    async def run_now(self, /, *, ids: Iterable[str | JobHandle[Any]]) -> list[bool]: ...
    @overload
    async def run_now(
        self,
        place: Sequence[str] | None = None,
        /,
        *,
        all: bool = False,
        limit: int | None = None,
        **part: Unpack[Filter],
    ) -> int: ...
    async def run_now(
        self, place: Any = None, /, *, ids: Any = None, all: bool = False, limit: int | None = None, **part: Any
    ) -> list[bool] | int:
        """
        Make waiting jobs due: a delay, a debounce, a back-off, a snooze or the retry of an unknown task ends.

        Each goes on as if its time had come by itself: with the number that it has and the place that it has kept, or
        else behind all that have a place by now; when its other dependencies are over; where nothing is paused.

        Args:
            place: those at or below this path, as in ``run_now(["doc1"])``; ``[]`` is every job that has one; or
            part: those that fit a `Filter`: ``run_now(user="ann", task="save")``; or
            all: all there are; or
            ids: up to 1 000 ids or handles.
            limit: at most so many of those that fit, in order of enqueue (of a path in order of their places).

        Returns:
            For ids, of which 128 are made due at a time: True for each that is due now, False for each that waits for
            no time (any more), is over or unknown. Else how many are: those that fit are read 200 at a time, and of
            these the ones that wait. To ask again after an outcome that is unknown changes nothing more.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter; also for a handle of another
                namespace or another store.

        .. versionadded:: 1.0.0
        """
        return await run_steps(self.backend, self._run_now(place, ids, all, limit, part))

    @overload
    def run_now_sync(self, /, *, ids: Iterable[str | JobHandle[Any]]) -> list[bool]: ...
    @overload
    def run_now_sync(
        self,
        place: Sequence[str] | None = None,
        /,
        *,
        all: bool = False,
        limit: int | None = None,
        **part: Unpack[Filter],
    ) -> int: ...
    def run_now_sync(
        self, place: Any = None, /, *, ids: Any = None, all: bool = False, limit: int | None = None, **part: Any
    ) -> list[bool] | int:
        """Like `run_now`, for code without a loop."""
        return run_steps_sync(self.backend, self._run_now(place, ids, all, limit, part))

    def _run_now(self, place: Any, ids: Any, every: object, limit: object, part: Any) -> Steps[list[bool] | int]:
        if place is not None:
            if "path" in part:
                raise InvalidJobTypeError("run_now() takes a path once: as its first argument, or as path")
            if isinstance(place, list | tuple) and any(isinstance(each, JobHandle) for each in place):
                raise InvalidJobTypeError("run_now() takes a path first; pass a handle of a job as ids=[...]")
            part = {**part, "path": place}
        check_choice_of_jobs("run_now()", ids, every, limit, part)
        if ids is None:
            asked = checked_filter("run_now()", part, WAITING, every=bool(every))
            if not set(asked.states) <= set(WAITING):
                raise InvalidJobError("run_now(): state must be SCHEDULED or QUEUED; others wait for no time")
            return (yield from order_all(asked, limit, make_due, lambda record: record.due_ms is not None))
        found = check_items(ids, parameter="ids", most=IDS_MAX)
        verdicts = yield from order_some([id_of(self, job, "ids") for job in found], make_due, first="oldest")
        return [verdict is Verdict.DONE for verdict, _ in verdicts]
