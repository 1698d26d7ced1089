"""What pages ask: as the API does, and besides several records by their ids, and how the edges are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from queuehint import operations as op
from queuehint.schema.compiled import check_of
from queuehint.values.limit import LimitState
from queuehint.values.record import JobRecord
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import EdgeStats, PauseState
from queuehint.web.scope import forced, is_within, pruned
from queuehint.web.table import Ask, Route

if TYPE_CHECKING:
    from queuehint.backends.steps import Steps
    from queuehint.web.board import Asker


def records(ask: Ask) -> Steps[op.Got]:
    """Read records; those of another scope are not there."""
    found = (yield ask.asked).records
    own = tuple([each if each is not None and is_within(each.spec, ask.scope) else None for each in found])
    ask.own.update([each.id for each in own if each is not None])
    return op.Got(own)


ROWS: Final = {
    "records": Route(name="records", path="", asks=op.Get, answers=op.Got, find=records, summary=""),
    "page": Route(name="page", path="", asks=op.List, answers=op.Page, summary=""),
    "edges": Route(name="edges", path="", asks=op.CountEdges, answers=EdgeStats, is_scoped=False, summary=""),
}
"""What only pages ask, by name; each is asked as a row of the API is."""
CHECKS: Final = {name: check_of(row.asks) for name, row in ROWS.items()}


async def ask(asker: Asker, name: str, asked: Any) -> Any:
    """
    Return the answer to a question, or carry out an order, by the name of its row; see `Asker.answer`.

    Raises:
        Refused: the user may not, or names a path outside their scope.
        QueueHintError: the library or the store refuses it.
    """
    row = ROWS.get(name)
    if row is None:
        return await asker.answer(name, asked)
    asker.check(row)
    asked = forced(asked, asker.access.scope)
    CHECKS[name](asked)
    asked_for = Ask(asked, asker.access, asker.scheduler, asker.board.seal)
    found = await asker.board.stores[asker.namespace].run(row.find(asked_for))
    return pruned(found, asker.access, own=asked_for.own)


async def by_id(asker: Asker, ids: Sequence[str]) -> dict[str, JobRecord]:
    """Return the records of some jobs, by id; nothing is asked if there are no ids."""
    wanted = tuple(dict.fromkeys(ids))[: op.IDS_MAX]
    if not wanted:
        return {}
    got = await ask(asker, "records", op.Get(wanted))
    return {record.id: record for record in got.records if record is not None}


async def some_records(
    asker: Asker, wanted: RecordFilter, most: int, *, behind: int | None = None
) -> tuple[tuple[JobRecord, ...], bool]:
    """
    Return the first records that pass a filter, as far as one question looks, and whether there may be more.

    Args:
        behind: only of jobs enqueued after this number.
    """
    after = None if behind is None else ("", behind)
    found: op.Page = await ask(asker, "page", op.List(wanted, after=after, limit=most))
    return found.records, found.after is not None


async def limits_of(asker: Asker) -> tuple[LimitState, ...]:
    """Return the limits and their counts."""
    found: op.Limits = await ask(asker, "limits", op.ListLimits())
    return found.limits


async def pauses_of(asker: Asker) -> tuple[PauseState, ...]:
    """Return the pauses."""
    found: op.Pauses = await ask(asker, "pauses", op.ListPauses())
    return found.pauses


async def workers_of(asker: Asker) -> op.Workers:
    """Return the workers."""
    found: op.Workers = await ask(asker, "workers", op.ListWorkers())
    return found


async def edges_of(asker: Asker) -> EdgeStats:
    """Return how the edges are."""
    found: EdgeStats = await ask(asker, "edges", op.CountEdges())
    return found


async def redrive(asker: Asker, ids: tuple[str, ...], *, downstream: bool = False, waiting: bool = False) -> op.Judged:
    """Queue dead jobs again, or make due those that wait for a time; return the verdicts."""
    name = "run_now" if waiting else "redrive"
    found: op.Judged = await ask(asker, name, op.Redrive(ids, downstream, waiting=waiting))
    return found
