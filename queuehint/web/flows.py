"""Flows: the progress of a flow, with a page of its jobs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import attrs

from queuehint import operations as op
from queuehint.client.flows.ends import was_not_needed
from queuehint.client.flows.handle import FlowState, state_of
from queuehint.client.flows.stuck import find_dead
from queuehint.client.record_reads import records_of
from queuehint.errors import FlowNotFoundError
from queuehint.schema.kinds import Asked, JobId
from queuehint.values.record import JobRecord, JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import FlowStats
from queuehint.web.questions import COUNTED_MAX, PAGED, Cursor, counted, find_own, page
from queuehint.web.table import Ask, Route

if TYPE_CHECKING:
    from queuehint.backends.steps import Steps

CANCELED_MAX: Final = 1000
"""How many canceled jobs of a flow are looked at, whether one of them was needed: pages of 200."""
STATE_MAX: Final = 300
"""How many questions find the state of a flow at most, once its jobs are counted."""


# --- what is asked and answered --------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class OneFlow:
    """A flow, and the position of a page of its jobs."""

    flow: JobId
    limit: Annotated[int, Asked(1, op.LIST_MAX)] = 50
    cursor: Cursor | None = None


@attrs.frozen(kw_only=True)
class FlowPage:
    """
    The progress of a flow, and a page of its jobs.

    Args:
        state: of the flow as a whole, as `FlowHandle.state` has it; None if not all of its jobs were counted.
        stats: its jobs by state; of a flow that is STUCK the dead jobs that hold it up, in a scope those of the scope.
        complete: all its jobs were counted.
        cursor: what to pass for the next page, None at the end.
    """

    flow: str
    state: FlowState | None
    stats: FlowStats
    complete: bool
    jobs: tuple[JobRecord, ...]
    cursor: str | None


# --- steps -----------------------------------------------------------------------------------------------------------


def flow(ask: Ask) -> Steps[FlowPage]:
    """Read the state of a flow and a page of its jobs. A scope sees its own jobs only."""
    asked = ask.asked
    wanted = jobs_of(ask)
    counts = yield from counted(wanted)
    if not counts.total and counts.complete:
        raise FlowNotFoundError(asked.flow)
    stats, state = FlowStats(states=counts.states), None
    if counts.complete:
        if stats.unfinished:
            stats = attrs.evolve(stats, held_by=(yield from find_dead(stats.states, wanted)))
        state = yield from state_of(stats, partial(_was_canceled, wanted))
        yield from find_own(ask, stats.held_by)
    found = yield from page(ask, wanted)
    return FlowPage(flow=asked.flow, state=state, stats=stats, complete=counts.complete, **found)


def jobs_of(ask: Ask) -> RecordFilter:
    """Return the filter of the jobs of a flow, limited to the scope."""
    return RecordFilter(flow=ask.asked.flow, path=ask.scope or None)


def _was_canceled(wanted: RecordFilter) -> Steps[bool]:
    """Return whether one of the first canceled jobs of a flow was needed."""
    canceled = yield from records_of(attrs.evolve(wanted, states=(JobState.CANCELED,)), CANCELED_MAX)
    return not all(map(was_not_needed, canceled))


FLOWS: Final[tuple[Route, ...]] = (
    Route(
        name="flow",
        path="/flows/{id}",
        asks=OneFlow,
        answers=FlowPage,
        find=flow,
        bind={"id": "flow"},
        most=COUNTED_MAX + STATE_MAX + 2 * PAGED,
        summary="The state of a flow, its jobs by state, and a page of them.",
    ),
)
"""The rows of questions about flows."""
