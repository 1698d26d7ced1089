"""The queries of pages: those of the API, records by id or by time, counts, and edges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from queuehint import operations as op
from queuehint.scheduler.records.queries import list_page
from queuehint.schema.compiled import check_of
from queuehint.values.limit import LimitState
from queuehint.values.record import JobRecord
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import EdgeStats, PauseState, Stats
from queuehint.web.board import BY_NAME
from queuehint.web.questions import Listed, Listing, Selection, jobs
from queuehint.web.scope import forced, is_within, pruned
from queuehint.web.table import Ask, Route

if TYPE_CHECKING:
    from queuehint.backends.steps import Steps
    from queuehint.web.board import Asker


def records(ask: Ask) -> Steps[op.Got]:
    """Read records. Records of another scope are not found."""
    found = (yield ask.asked).records
    own = tuple([each if each is not None and is_within(each.spec, ask.scope) else None for each in found])
    ask.own.update([each.id for each in own if each is not None])
    return op.Got(own)


def by_time(ask: Ask) -> Steps[Listed]:
    """
    Read a page of records in order of time.

    In a scope they come in order of their places: of a large path the other order looks at records of all.
    """
    asked: Listing = ask.asked
    if ask.scope:
        return (yield from jobs(ask))
    page = yield from list_page(asked.filter, asked.newest_first, asked.limit, asked.cursor, "time")
    return Listed(jobs=tuple(page), cursor=page.cursor)


COUNTING_S: Final = 20.0
"""So long records are counted on, if that is asked for."""
COUNTED_S: Final = 1.0
"""So old the counts of a page may be."""
ROWS: Final = {
    "by_time": Route(name="by_time", path="", asks=Listing, answers=Listed, find=by_time, summary=""),
    "counts": Route(name="counts", path="", asks=op.CountRecords, answers=op.Counts, summary=""),
    "records": Route(name="records", path="", asks=op.Get, answers=op.Got, find=records, summary=""),
    "page": Route(name="page", path="", asks=op.List, answers=op.Page, summary=""),
    "edges": Route(name="edges", path="", asks=op.CountEdges, answers=EdgeStats, is_scoped=False, summary=""),
}
"""What only pages ask, by name; each is asked as a row of the API is."""
CHECKS: Final = {name: check_of(row.asks) for name, row in ROWS.items()}


async def ask(asker: Asker, name: str, asked: Any) -> Any:
    """
    Answer a query, or carry out an order, by the name of its row. See `Asker.answer`.

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
    """Return the records of some jobs, by id. Without ids no request is sent."""
    wanted = tuple(dict.fromkeys(ids))[: op.IDS_MAX]
    if not wanted:
        return {}
    got = await ask(asker, "records", op.Get(wanted))
    return {record.id: record for record in got.records if record is not None}


async def counted_on(asker: Asker, wanted: RecordFilter, counts: op.Counts) -> op.Counts:
    """Count on behind some counts, until all records are counted or `COUNTING_S` have passed."""
    until_s = time.monotonic() + COUNTING_S
    while not counts.complete and time.monotonic() < until_s:
        found: op.Counts = await ask(asker, "counts", op.CountRecords(wanted, counts.after))
        states = {state: count + found.states.get(state, 0) for state, count in counts.states.items()}
        counts = op.Counts(states, found.after)
    return counts


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


async def whole(asker: Asker, name: str) -> Any:
    """Return all pages of a query as one answer, by the name of its row."""
    return await ask(asker, name, BY_NAME[name].asks())


async def counts_of(asker: Asker) -> Stats:
    """
    Return the counts of the namespace, for a reader in no scope.

    They are those of the last look at a busy store, unless something has changed since.
    """
    asker.check(BY_NAME["stats"])
    assert not asker.access.scope
    counts = asker.pulse.counts(COUNTED_S)
    if counts is None:
        counts = await ask(asker, "stats", Selection())
    return counts


async def limits_of(asker: Asker) -> tuple[LimitState, ...]:
    """Return the limits and their counts."""
    found: op.Limits = await whole(asker, "limits")
    return found.limits


async def pauses_of(asker: Asker) -> tuple[PauseState, ...]:
    """Return the pauses."""
    found: op.Pauses = await whole(asker, "pauses")
    return found.pauses


async def workers_of(asker: Asker) -> op.Workers:
    """Return the workers."""
    found: op.Workers = await whole(asker, "workers")
    return found


async def edges_of(asker: Asker) -> EdgeStats:
    """Return how the edges are."""
    found: EdgeStats = await ask(asker, "edges", op.CountEdges())
    return found


async def redrive(asker: Asker, ids: tuple[str, ...], *, downstream: bool = False, waiting: bool = False) -> op.Judged:
    """Redrive dead jobs, or make waiting jobs due. Return the verdicts."""
    name = "run_now" if waiting else "redrive"
    found: op.Judged = await ask(asker, name, op.Redrive(ids, downstream, waiting=waiting))
    return found
