"""
The questions and orders of a board, as a table: what is asked, what comes back, and what it is in a scope.

A row names a class of what is asked, an operation mostly, from whose fields follow the parameters of a question and the
body of an order; and the class of the answer. Most are one operation each; the others have a function of steps here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import attrs

from queuehint import operations as op
from queuehint.backends.steps import Steps
from queuehint.errors import JobNotFoundError
from queuehint.scheduler.records.queries import list_page
from queuehint.schema.kinds import Asked, JobId, Text
from queuehint.values.hint import KEY_LENGTH_MAX
from queuehint.values.record import JobRecord, JobState
from queuehint.values.record_filter import ALL_RECORDS, RecordFilter
from queuehint.values.report import Reason, Stats
from queuehint.web.scope import is_within

if TYPE_CHECKING:
    from queuehint.values.hint import Path
    from queuehint.web.access import Access

Cursor = Annotated[str, Text(2 * KEY_LENGTH_MAX)]
COUNTED_MAX: Final = 10
"""How many questions count the records of a filter at most; each looks at 1 024 or more of them."""
TICKS_MAX: Final = 16
"""How many steps of the work that follows from an order are done at once; the rest is done by what is asked next."""


@attrs.frozen
class Ask:
    """
    What is asked of a store, and by whom.

    Args:
        asked: a value of the class that the route names, each of its paths in the scope.
        access: of the one who asks.
    """

    asked: Any
    access: Access

    @property
    def scope(self) -> Path:
        """The path below which all is."""
        return self.access.scope


def one(ask: Ask) -> Steps[Any]:
    """Ask one operation, and return its reply."""
    return (yield ask.asked)


@attrs.frozen(kw_only=True)
class Route:
    """
    A row of the table.

    Args:
        name: unique, for programs and pages.
        method: ``"GET"`` for a question, ``"POST"`` for an order.
        path: below ``/api/v1``, with parameters in braces.
        asks: the class of what is asked.
        answers: the class of the answer.
        summary: a sentence.
        steps: how the answer is found.
        bind: which parameter of the path is which field.
        is_scoped: whether it may be asked in a scope.
    """

    name: str
    method: Literal["GET", "POST"] = "GET"
    path: str
    asks: type[Any]
    answers: Any
    summary: str
    steps: Callable[[Ask], Steps[Any]] = one
    bind: Mapping[str, str] = attrs.field(factory=dict)
    is_scoped: bool = True

    @property
    def is_order(self) -> bool:
        """It changes something."""
        return self.method == "POST"


# --- what is asked and answered besides operations -----------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Selection:
    """Which records; their counts."""

    filter: RecordFilter = ALL_RECORDS


@attrs.frozen(kw_only=True)
class Listing:
    """Which records, and which page of them."""

    filter: RecordFilter = ALL_RECORDS
    newest_first: bool = False
    limit: Annotated[int, Asked(1, op.LIST_MAX)] = 50
    cursor: Cursor | None = None


@attrs.frozen(kw_only=True)
class Listed:
    """
    A page of records.

    Args:
        cursor: what to pass for the next page, None at the end. A page may be short, or empty, and not be the last.
    """

    jobs: tuple[JobRecord, ...]
    cursor: str | None


@attrs.frozen(kw_only=True)
class One:
    """
    One job.

    Args:
        arguments: with its arguments, its result and its headers.
    """

    job_id: JobId
    arguments: bool = False


# --- steps -----------------------------------------------------------------------------------------------------------


def stats(ask: Ask) -> Steps[Stats | op.Counts]:
    """Count the jobs of the namespace, or the records that pass a filter, as far as ten questions reach."""
    wanted = ask.asked.filter
    if wanted == ALL_RECORDS:
        counts: Stats = yield op.CountJobs()
        return counts
    states = dict.fromkeys(JobState, 0)
    after: op.Position | None = None
    for _ in range(COUNTED_MAX):
        found = yield op.CountRecords(wanted, after)
        for state, count in found.states.items():
            states[state] += count
        after = found.after
        if after is None:
            break
    return op.Counts(states, after)


def jobs(ask: Ask) -> Steps[Listed]:
    """Read a page of records."""
    asked = ask.asked
    page = yield from list_page(asked.filter, asked.newest_first, asked.limit, asked.cursor)
    return Listed(jobs=tuple(page), cursor=page.cursor)


def job(ask: Ask) -> Steps[JobRecord]:
    """Read a record; one of another scope is not there."""
    records: tuple[JobRecord | None, ...] = (yield op.Get((ask.asked.job_id,))).records
    (record,) = records
    if record is None or not is_within(record.spec, ask.scope):
        raise JobNotFoundError(ask.asked.job_id)
    return record


def why(ask: Ask) -> Steps[op.Chain]:
    """Ask why a job waits; in a scope the chain ends before the first job of another, and no other is named."""
    if ask.scope:
        yield from job(Ask(One(job_id=ask.asked.job_id), ask.access))
    chain: op.Chain = yield ask.asked
    if not ask.scope:
        return chain
    named = list(dict.fromkeys([name for reason in chain.reasons for name in (reason.job_id, *reason.jobs)]))
    records = (yield op.Get(tuple(named))).records
    own = {record.id for record in records if record is not None and is_within(record.spec, ask.scope)}
    reasons: list[Reason] = []
    for reason in chain.reasons:
        if reason.job_id not in own:
            break
        reasons.append(attrs.evolve(reason, jobs=tuple([name for name in reason.jobs if name in own])))
    return op.Chain(tuple(reasons))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        name="stats",
        path="/stats",
        asks=Selection,
        answers=Stats | op.Counts,
        steps=stats,
        summary="Counts of the namespace, or how many records pass a filter.",
    ),
    Route(name="tree", path="/tree", asks=op.Tree, answers=op.Tree.reply_class, summary="Live counts of places."),
    Route(
        name="lines",
        path="/lines",
        asks=op.ListLines,
        answers=op.ListLines.reply_class,
        summary="The longest lines of claims that wait.",
    ),
    Route(name="jobs", path="/jobs", asks=Listing, answers=Listed, steps=jobs, summary="A page of records."),
    Route(
        name="job",
        path="/jobs/{id}",
        asks=One,
        answers=JobRecord,
        steps=job,
        bind={"id": "job_id"},
        summary="All that is known of a job.",
    ),
    Route(
        name="why",
        path="/jobs/{id}/why",
        asks=op.Why,
        answers=op.Why.reply_class,
        steps=why,
        bind={"id": "job_id"},
        summary="Why a job waits, and why those wait that it waits for.",
    ),
)
"""All questions and orders."""
BY_NAME: Final[Mapping[str, Route]] = {route.name: route for route in ROUTES}
