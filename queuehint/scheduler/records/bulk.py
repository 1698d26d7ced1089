"""Commands on all jobs that pass a filter, page by page: read a page, apply the command, read the next page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queuehint.backends.steps import Steps, tick_until_done
from queuehint.errors import InvalidJobTypeError
from queuehint.operations import JOBS_PER_CALL_MAX, LIST_MAX, Judged, List, Position, Verdict
from queuehint.operations.base import Operation
from queuehint.scheduler.records.queries import Filter, asked_for
from queuehint.schema.checks import check_bool, check_int
from queuehint.values.record import JobRecord, JobState
from queuehint.values.record_filter import RecordFilter

_REACHED = (Verdict.DONE, Verdict.REQUESTED)


def check_choice_of_jobs(call: str, ids: object, every: object, limit: object, given: Filter) -> None:
    """
    Check that jobs are selected in exactly one way: by ids, by a filter, or all.

    Raises:
        InvalidJobTypeError: none or two are, or *limit* goes with ids.
    """
    every = check_bool(every, parameter="all")
    if (ids is not None) + every + bool(given) != 1:
        raise InvalidJobTypeError(f"{call} takes exactly one of ids, a filter and all=True")
    if ids is not None and limit is not None:
        raise InvalidJobTypeError(f"{call}: limit requires a filter or all=True; to reach fewer ids, give fewer")


def checked_filter(call: str, given: Filter, states: tuple[JobState, ...], *, every: bool) -> RecordFilter:
    """
    Return a filter of jobs in these states. *given* may select some of the states.

    Raises:
        InvalidJobTypeError: no condition is left of the filter, because all of it is None.
    """
    asked = asked_for(given)
    if not every and asked == RecordFilter():
        raise InvalidJobTypeError(f"{call}: {', '.join(given)} None matches every job; pass all=True to confirm")
    return asked_for({**given, "state": asked.states or states})


def order_all(
    asked: RecordFilter,
    limit: object,
    make: Callable[[tuple[str, ...]], Operation[Judged]],
    is_meant: Callable[[JobRecord], bool] | None = None,
) -> Steps[int]:
    """
    Apply a command to the first *limit* jobs that fit. Return how many jobs the command reached.

    They go by the order of enqueue. A path is listed in another order, so all of its jobs are chosen first.
    A job that is in another state by then is passed over.

    Args:
        is_meant: whether one that fits is meant, by its record; all are by default.
    """
    left = JOBS_PER_CALL_MAX if limit is None else check_int(limit, parameter="limit", least=1, most=JOBS_PER_CALL_MAX)
    after: Position | None = None
    reached = 0
    while True:
        chosen: list[tuple[int, str]] = []
        while True:
            page: Any = yield List(asked, False, after, min(LIST_MAX, left - len(chosen)))
            meant = page.records if is_meant is None else filter(is_meant, page.records)
            chosen += [(record.number, record.id) for record in meant]
            after = page.after
            if asked.path is None or after is None or len(chosen) == left:
                break
        ids = tuple([job_id for _, job_id in sorted(chosen)])
        for begin in range(0, len(ids), LIST_MAX):
            reply = yield make(ids[begin : begin + LIST_MAX])
            yield from tick_until_done(more=reply.more)
            done = sum(verdict in _REACHED for verdict, _ in reply.verdicts)
            reached, left = reached + done, left - done
        if after is None or not left:
            return reached
