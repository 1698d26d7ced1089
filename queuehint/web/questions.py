"""The queries of a board: the classes without an operation, the steps of composite queries, and the rows."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs

from queuehint import operations as op
from queuehint.backends.steps import Steps
from queuehint.client.circles import explained
from queuehint.client.handle import PATH_JOBS
from queuehint.errors import InvalidJobError, JobNotFoundError
from queuehint.scheduler.records.queries import QUESTIONS_MAX, list_page
from queuehint.schema.kinds import Asked, JobId, NameText, Text
from queuehint.values.hint import KEY_LENGTH_MAX, Path
from queuehint.values.record import JobRecord, JobState
from queuehint.values.record_filter import ALL_RECORDS, RecordFilter
from queuehint.values.report import Reason, Stats, TreeNode
from queuehint.web.problems import Refused
from queuehint.web.scope import is_own, is_within, pruned
from queuehint.web.table import Ask, Route

if TYPE_CHECKING:
    from collections.abc import Iterable

Cursor = Annotated[str, Text(8 * KEY_LENGTH_MAX)]
COUNTED_MAX: Final = 10
"""How many questions count the records of a filter at most; each looks at 1 024 or more of them."""
DEAD_PAGES: Final = 5
MESSAGE_LENGTH: Final = 200
NAMED_MAX: Final = 500
"""How many jobs that an answer names are looked up, where it is not known whether they are of a scope."""
_DIGITS: Final = re.compile(r"\d+")


# --- what is asked and answered besides operations -------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Selection:
    """A selection of records, for their counts."""

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
    The id of one job.

    Args:
        arguments: with its arguments, its result and its headers.
    """

    job_id: JobId
    arguments: bool = False


@attrs.frozen(kw_only=True)
class Wait:
    """
    The wait of one job.

    Args:
        limit: how many reasons the chain has at most.
    """

    job_id: JobId
    limit: Annotated[int, Asked(1, op.CHAIN_MAX)] = 1


@attrs.frozen
class Chain:
    """Reasons from a waiting job to the root cause of its wait, each but the last naming the job of the next."""

    reasons: tuple[Reason, ...]


@attrs.frozen(kw_only=True)
class PlaceWait:
    """
    The waits at a place.

    Args:
        path: the place; the jobs that wait at it or below it.
        limit: how many of the oldest jobs are named, and how many of the newest.
    """

    path: Path = ()
    limit: Annotated[int, Asked(1, op.CHAIN_MAX)] = PATH_JOBS


@attrs.frozen(kw_only=True)
class Dead:
    """A selection of dead jobs to group, at most the newest 1 000."""

    filter: RecordFilter = ALL_RECORDS


@attrs.frozen(kw_only=True)
class DeadGroup:
    """
    Dead jobs of one task that failed alike.

    Args:
        cause: why they are dead.
        error_type, message: the last error, its digits as ``0``; None where there is none.
        count: how many they are.
        first_ms, last_ms: when the first and the last of them ended.
        ids: of all of them, the newest first.
    """

    task: str
    cause: str | None
    error_type: str | None
    message: str | None
    count: int
    first_ms: int
    last_ms: int
    ids: tuple[str, ...]


@attrs.frozen(kw_only=True)
class DeadGroups:
    """
    Dead jobs by task and error, the largest groups first.

    Args:
        complete: there are no more than these.
    """

    groups: tuple[DeadGroup, ...]
    complete: bool


@attrs.frozen(kw_only=True)
class Pool:
    """A pool of workers."""

    pool: NameText = "default"


@attrs.frozen(kw_only=True)
class Scale:
    """
    How many jobs of a pool want a slot of a worker, for autoscalers.

    Args:
        ready: a worker may start them now; those that wait for a place, a time, a limit or other jobs are none of them.
        running: STARTED; at least so many if not *complete*.
        wanted: both together.
        complete: all that run were counted; with more than 10 000 or so of all pools there may be more.
    """

    pool: str
    ready: int
    running: int
    wanted: int
    complete: bool


# --- steps -----------------------------------------------------------------------------------------------------------


def stats(ask: Ask) -> Steps[Stats | op.Counts]:
    """Count the jobs of the namespace, or the records that pass a filter, as far as ten questions reach."""
    wanted = ask.asked.filter
    if wanted == ALL_RECORDS:
        counts: Stats = yield op.CountJobs()
        return counts
    return (yield from counted(wanted))


def counted(wanted: RecordFilter) -> Steps[op.Counts]:
    """Count the records that pass a filter, as far as ten questions reach."""
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
    return Listed(**(yield from page(ask, ask.asked.filter, newest_first=ask.asked.newest_first)))


def page(ask: Ask, wanted: RecordFilter, *, newest_first: bool = False) -> Steps[dict[str, Any]]:
    """
    Read a page. In a scope its cursor is hidden, because the cursor counts the jobs of all scopes.

    Jobs of a flow, and those that wait for one, are looked at whatever their scope: there a cursor is returned only if
    another record of the scope follows, as far as `QUESTIONS_MAX` questions look.
    """
    cursor = ask.asked.cursor
    if ask.scope and cursor is not None:
        cursor = ask.reveal(cursor, parameter="cursor").decode()
    found = yield from list_page(wanted, newest_first, ask.asked.limit, cursor)
    cursor = found.cursor
    if ask.scope and cursor is not None and not wanted.is_by_path:
        following = yield from list_page(wanted, newest_first, 1, cursor)
        cursor = cursor if following or following.cursor is not None else None
    if ask.scope and cursor is not None:
        cursor = ask.hide(cursor.encode(), parameter="cursor")
    ask.own.update([record.id for record in found])
    return {"jobs": tuple(found), "cursor": cursor}


def lines(ask: Ask) -> Steps[op.Lines]:
    """Read a page of lines; in a scope not the longest ones in one page, which are sought among those of all."""
    if ask.scope and ask.asked.longest:
        raise Refused(403, "out-of-scope", "longest looks at the lines of the whole namespace: leave it out in a scope")
    found: op.Lines = yield ask.asked
    return found


def job(ask: Ask) -> Steps[JobRecord]:
    """Read a record. A record of another scope is not found."""
    record = yield from _one(ask, ask.asked.job_id)
    parent = [] if record.spec.parent is None else [record.spec.parent]
    yield from find_own(ask, [*parent, *[edge.id for edge in record.spec.depends_on]])
    return record


def _one(ask: Ask, job_id: str) -> Steps[JobRecord]:
    records: tuple[JobRecord | None, ...] = (yield op.Get((job_id,))).records
    (record,) = records
    if record is None or not is_within(record.spec, ask.scope):
        raise JobNotFoundError(job_id)
    ask.own.add(record.id)
    return record


def find_own(ask: Ask, named: Iterable[str]) -> Steps[None]:
    """Note which of the jobs that an answer in a scope names are of the scope; at most `NAMED_MAX` are looked up."""
    ids = tuple(dict.fromkeys([job_id for job_id in named if not is_own(job_id, ask.access, ask.own)]))[:NAMED_MAX]
    yield from _look_up(ask, ids)


def _look_up(ask: Ask, ids: tuple[str, ...]) -> Steps[None]:
    """Note which of some jobs are of the scope."""
    if ids:
        records = (yield op.Get(ids)).records
        ask.own.update([each.id for each in records if each is not None and is_within(each.spec, ask.scope)])


def why(ask: Ask) -> Steps[Chain]:
    """Return the reasons why a job waits. In a scope the chain ends before the first job of another scope."""
    if ask.scope:
        yield from _one(ask, ask.asked.job_id)
    chain: tuple[Reason, ...] = (yield from explained(op.Why(ask.asked.job_id, ask.asked.limit))).reasons
    if not ask.scope:
        return Chain(chain)
    # By their records and not by their ids: what is asked of them is about more than their names.
    named = dict.fromkeys([name for reason in chain for name in (reason.job_id, *reason.jobs)])
    yield from _look_up(ask, tuple(named))
    return Chain(tuple(takewhile(lambda reason: reason.job_id in ask.own, chain)))


def why_place(ask: Ask) -> Steps[op.PathReasons]:
    """Return the waiting jobs of a path and their blockers. In a scope no job of another scope is named."""
    asked = ask.asked
    found: op.PathReasons | None = (yield from explained(op.Why(None, asked.limit, asked.path))).at_path
    assert found is not None
    if not ask.scope:
        return found
    jobs = (*found.oldest, *found.newest, *found.ahead)
    yield from _look_up(ask, tuple(dict.fromkeys([name for each in jobs for name in (each.id, *each.reason.jobs)])))
    return attrs.evolve(found, ahead=tuple([each for each in found.ahead if each.id in ask.own]))


def dead(ask: Ask) -> Steps[DeadGroups]:
    """Group the newest dead jobs by cause."""
    if ask.asked.filter.states:
        raise InvalidJobError("state is not supported for dead jobs: all are FAILED")
    wanted = attrs.evolve(ask.asked.filter, states=(JobState.FAILED,))
    groups: dict[tuple[str | None, ...], list[JobRecord]] = {}
    after: op.Position | None = None
    for _ in range(DEAD_PAGES):
        read = yield op.List(wanted, newest_first=True, after=after, limit=op.LIST_MAX)
        for record in pruned(read.records, ask.access):
            groups.setdefault(_likeness(record), []).append(record)
        after = read.after
        if after is None:
            break
    found = sorted(groups.items(), key=lambda group: -len(group[1]))
    return DeadGroups(groups=tuple([_group(*each) for each in found]), complete=after is None)


def _likeness(record: JobRecord) -> tuple[str | None, ...]:
    error = record.errors[-1] if record.errors else None
    message = None if error is None else _DIGITS.sub("0", error.message[:MESSAGE_LENGTH])
    return record.spec.task, record.cause, None if error is None else error.type, message


def _group(likeness: tuple[str | None, ...], records: list[JobRecord]) -> DeadGroup:
    task, cause, error_type, message = likeness
    ends = [record.ended_ms for record in records if record.ended_ms is not None]
    return DeadGroup(
        task=task or "",
        cause=cause,
        error_type=error_type,
        message=message,
        count=len(records),
        first_ms=min(ends),
        last_ms=max(ends),
        ids=tuple([record.id for record in records]),
    )


def scale(ask: Ask) -> Steps[Scale]:
    """Count the ready and the running jobs of a pool."""
    pool = ask.asked.pool
    stats: Stats = yield op.CountJobs()
    found = yield from counted(RecordFilter(pool=pool, states=(JobState.STARTED,)))
    ready, running = stats.ready.get(pool, 0), found.total
    return Scale(pool=pool, ready=ready, running=running, wanted=ready + running, complete=found.complete)


_OF_A_JOB: Final = {"id": "job_id"}
PAGED: Final = QUESTIONS_MAX
"""How many questions find a page at most."""

QUESTIONS: Final[tuple[Route, ...]] = (
    Route(
        name="stats",
        path="/stats",
        asks=Selection,
        answers=Stats | op.Counts,
        find=stats,
        most=COUNTED_MAX,
        summary="Counts of the namespace, or of the records that pass a filter.",
    ),
    Route(name="tree", path="/tree", asks=op.Tree, answers=TreeNode, summary="Live counts of places."),
    Route(name="lines", path="/lines", asks=op.ListLines, answers=op.Lines, find=lines, summary="The longest lines."),
    Route(name="jobs", path="/jobs", asks=Listing, answers=Listed, find=jobs, most=PAGED, summary="A page of records."),
    Route(
        name="job",
        path="/jobs/{id}",
        asks=One,
        answers=JobRecord,
        find=job,
        bind=_OF_A_JOB,
        summary="All that is known of a job.",
    ),
    Route(
        name="why",
        path="/jobs/{id}/why",
        asks=Wait,
        answers=Chain,
        find=why,
        bind=_OF_A_JOB,
        most=6,
        summary="Why a job waits, and why those wait that it waits for.",
    ),
    Route(
        name="why_place",
        path="/why",
        asks=PlaceWait,
        answers=op.PathReasons,
        find=why_place,
        most=2,
        summary="What waits at a path or below it, and what is in its way.",
    ),
    Route(
        name="dead",
        path="/dead",
        asks=Dead,
        answers=DeadGroups,
        find=dead,
        most=DEAD_PAGES,
        summary="The newest dead jobs by task and error.",
    ),
    Route(name="limits", path="/limits", asks=op.ListLimits, answers=op.Limits, summary="All limits and their counts."),
    Route(name="pauses", path="/pauses", asks=op.ListPauses, answers=op.Pauses, summary="All pauses."),
    Route(
        name="workers",
        path="/workers",
        asks=op.ListWorkers,
        answers=op.Workers,
        is_scoped=False,
        summary="The workers that were heard of in the last minute.",
    ),
    Route(
        name="schedules",
        path="/schedules",
        asks=op.ListSchedules,
        answers=op.Schedules,
        is_scoped=False,
        summary="A page of the schedules.",
    ),
    Route(
        name="users",
        path="/users",
        asks=op.ListUsers,
        answers=op.Users,
        is_scoped=False,
        summary="A page of the users of a service.",
    ),
    Route(
        name="weights",
        path="/weights",
        asks=op.ListWeights,
        answers=op.Weights,
        is_scoped=False,
        summary="The users with a weight other than 1.",
    ),
    Route(
        name="scale",
        path="/scale",
        asks=Pool,
        answers=Scale,
        find=scale,
        most=1 + COUNTED_MAX,
        is_scoped=False,
        summary="How many jobs of a pool want a worker, for autoscalers.",
    ),
)
"""The rows of all questions."""
