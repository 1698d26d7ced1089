"""Queries for records: checks of user input, and steps on the backend shared by asynchronous and synchronous calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, get_args, overload

import attrs

from queuehint.backends.steps import Steps, order_some
from queuehint.client.flows.children import Children
from queuehint.client.handle import Client, JobHandle, id_of
from queuehint.errors import (
    CorruptStateError,
    InvalidJobError,
    InvalidJobTypeError,
    InvalidTransitionError,
    JobNotFoundError,
    StaleRecordError,
    shown,
)
from queuehint.operations import (
    IDS_MAX,
    LIST_MAX,
    Amend,
    CountRecords,
    Counts,
    Delete,
    Get,
    List,
    ListUsers,
    Note,
    Position,
    Post,
    Verdict,
)
from queuehint.scheduler.records.cursors import read_cursor, write_cursor
from queuehint.schema.checks import check_bool, check_choice, check_int, check_items, check_name, check_run_at
from queuehint.values.record import LOG_LINES_MAX, JobRecord, JobState, log_lines
from queuehint.values.record_filter import RecordFilter

PAGE = 100
QUESTIONS_MAX = 16
"""How often the store is asked for one page, if what it has looked at so far is not enough."""
AMENDS_MAX = 8
"""How often a record that changes meanwhile is read and amended anew."""
LINES_AT_ONCE = 200
VERSION_MAX = 2**62

RecordOrder = Literal["place", "time"]
RECORD_ORDERS: tuple[RecordOrder, ...] = get_args(RecordOrder)

_STATES = tuple([str(state) for state in JobState])


def check_children(children: object, wanted: RecordFilter) -> Children | None:
    """
    Return the search for the children of a flow's jobs, None if it is not asked for.

    Raises:
        InvalidJobError, InvalidJobTypeError: it is no bool, or the filter is not that of a flow alone.
    """
    if not check_bool(children, parameter="children"):
        return None
    flow = wanted.flow_alone
    if flow is None:
        raise InvalidJobError("children requires flow, and no other condition")
    return Children(flow)


class Part(TypedDict, total=False):
    """
    A selection of jobs, whatever their states. A job has to fit all that is given; None selects every job.

    Args:
        service, user, task, pool: of the job.
        path: the job has a claim at or below it; ``[]`` is any job with a claim.
        flow: the id of the flow that it belongs to.
        tag: one of the job's tags.
        parent: the job whose handler made it, an id or a handle.
        waits_for: a job that it still waits for, an id or a handle: one that it depends on, or a child of its own.
        since, until: it was enqueued at *since* or later, and before *until*; timezone-aware.
    """

    service: str | None
    user: str | None
    task: str | None
    pool: str | None
    path: Sequence[str] | None
    since: datetime | None
    until: datetime | None
    flow: str | None
    tag: str | None
    parent: str | JobHandle[Any] | None
    waits_for: str | JobHandle[Any] | None


class Filter(Part, total=False):
    """
    A selection of records: a `Part` of the jobs, and their states.

    Args:
        state: one, or several of which one has to fit.
    """

    state: str | Iterable[str] | None


class Ownership(TypedDict, total=False):
    """
    Owner of a job.

    Args:
        service, user: None for no owner.
    """

    service: str | None
    user: str | None


class Paging(TypedDict, total=False):
    """
    Which page of a listing.

    Args:
        newest_first: by default those enqueued first come first.
        limit: how many records at most, 1–200; 100 by default.
        cursor: that of the page before, of the same listing; the limit may be another.
    """

    newest_first: bool
    limit: int
    cursor: str | None


@attrs.frozen(init=False)
class RecordPage(Sequence[JobRecord]):
    """
    A page of records, a sequence.

    Args:
        cursor: what to pass for the next page; None at the end.
    """

    _records: tuple[JobRecord, ...]
    cursor: str | None

    def __init__(self, records: Iterable[JobRecord], cursor: str | None) -> None:
        self.__attrs_init__(tuple(records), cursor)

    @overload
    def __getitem__(self, index: int) -> JobRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[JobRecord]: ...
    def __getitem__(self, index: int | slice) -> JobRecord | Sequence[JobRecord]:
        """Return a record, or several."""
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)


# --- what is checked first --------------------------------------------------------------------------------------------


def asked_for(given: Filter) -> RecordFilter:
    """
    Return a filter in the form of the store.

    Raises:
        InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter.
    """
    if unknown := sorted(given.keys() - Filter.__annotations__.keys()):
        known = ", ".join(Filter.__annotations__)
        raise InvalidJobTypeError(f"records have no filter {shown(unknown[0])}; there are {known}")
    fields: dict[str, Any] = dict(given)
    fields["states"] = _states(fields.pop("state", None))
    for name in ("since", "until"):
        if (time := fields.pop(name, None)) is not None:
            fields[f"{name}_ms"] = check_run_at(time, parameter=name)
    for name in ("parent", "waits_for"):
        if isinstance(job := fields.get(name), JobHandle):
            fields[name] = job.id
    return RecordFilter(**fields).check()


def _states(value: object) -> tuple[JobState, ...]:
    if value is None:
        return ()
    values = [value] if isinstance(value, str) else check_items(value, parameter="state", most=len(_STATES))
    if not values:
        raise InvalidJobError("state must not be empty; leave it out for any state")
    return tuple([JobState(check_choice(item, _STATES, parameter="state")) for item in values])


def named(**given: object) -> str:
    """Check a required name."""
    ((name, value),) = given.items()
    return check_name(value, parameter=name)


def check_order(value: object) -> bool:
    """Check `newest_first`."""
    return check_bool(value, parameter="newest_first")


def check_record_order(value: object) -> RecordOrder:
    """Check `order`."""
    return check_choice(value, RECORD_ORDERS, parameter="order")


def users_of(service: object, limit: object, after: object) -> ListUsers:
    """Return the question for a page of users."""
    return ListUsers(
        check_name(service, parameter="service"),
        None if after is None else check_name(after, parameter="after"),
        check_int(limit, parameter="limit", least=1, most=LIST_MAX),
    )


def _ids(client: Client, ids: object) -> tuple[str, ...]:
    found = check_items(ids, parameter="ids", most=IDS_MAX)
    return tuple(dict.fromkeys([id_of(client, job, "ids") for job in found]))


def _version(version: object) -> int | None:
    return None if version is None else check_int(version, parameter="version", least=0, most=VERSION_MAX)


# --- what is said then ------------------------------------------------------------------------------------------------


def get(client: Client, job: object) -> Steps[JobRecord]:
    """Read a record."""
    checked = id_of(client, job)
    record: JobRecord | None = (yield Get((checked,))).records[0]
    if record is None:
        raise JobNotFoundError(checked)
    return record


def list_by_ids(client: Client, ids: object) -> Steps[Sequence[JobRecord]]:
    """Read the records that exist."""
    reply = yield Get(_ids(client, ids))
    return [record for record in reply.records if record is not None]


def list_page(
    asked: RecordFilter, newest_first: object, limit: object, cursor: object, order: object = "place"
) -> Steps[RecordPage]:
    """Read a page: query the store until the page is full, no record is left, or `QUESTIONS_MAX` queries are made."""
    newest_first = check_order(newest_first)
    by_time = check_record_order(order) == "time" and asked.is_by_path
    left = check_int(limit, parameter="limit", least=1, most=LIST_MAX)
    listing: dict[str, bool] = {"newest_first": newest_first, "by_time": by_time}
    after: Position | None = None if cursor is None else read_cursor(cursor, asked, **listing)
    records: list[JobRecord] = []
    for _ in range(QUESTIONS_MAX):
        page = yield List(asked, newest_first, after, left, by_time)
        records += page.records
        left -= len(page.records)
        after = page.after
        if after is None or not left:
            break
    return RecordPage(records, None if after is None else write_cursor(after, asked, **listing))


def count(asked: RecordFilter) -> Steps[Counts]:
    """Count the records that pass the filter, in as many steps as necessary."""
    states = dict.fromkeys(JobState, 0)
    after: Position | None = None
    while True:
        found = yield CountRecords(asked, after)
        for state, how_many in found.states.items():
            states[state] += how_many
        after = found.after
        if after is None:
            return Counts(states, None)


def append_log(client: Client, job: object, text: object) -> Steps[None]:
    """Append the lines of a text to a record."""
    checked = id_of(client, job)
    if not isinstance(text, str):
        raise InvalidJobTypeError(f"text must be str, got {type(text).__name__}: {shown(text)}")
    # One more than is kept, so that the record says that lines are missing.
    lines = log_lines(str.__str__(text))[-LOG_LINES_MAX - 1 :]
    for begin in range(0, len(lines), LINES_AT_ONCE):
        reply = yield Post((Note(checked, None, tuple(lines[begin : begin + LINES_AT_ONCE])),))
        if reply.verdicts != (Verdict.DONE,):
            raise JobNotFoundError(checked)


def amend(client: Client, job: object, version: object, ownership: Ownership) -> Steps[None]:
    """Write a record with another owner. Without a version, retry if the record has changed since the read."""
    checked = id_of(client, job)
    if not ownership or ownership.keys() - Ownership.__annotations__.keys():
        raise InvalidJobTypeError(f"amend() takes service, user or both, got {shown(list(ownership))}")
    changes: dict[str, Any] = {
        name: None if value is None else check_name(value, parameter=name) for name, value in ownership.items()
    }
    expected = _version(version)
    for _ in range(AMENDS_MAX if expected is None else 1):
        record = yield from get(client, checked)
        if expected is not None and record.version != expected:
            raise StaleRecordError(checked, expected)
        if record.problem is not None:
            # An amended spec is written whole: what cannot be read of it would be lost.
            raise CorruptStateError(f"job {shown(checked)} cannot be amended: {record.problem}")
        reply = yield Amend(attrs.evolve(record.spec, **changes), record.version)
        if reply.verdict is Verdict.DONE:
            return
        if reply.verdict is Verdict.UNKNOWN:
            raise JobNotFoundError(checked)
    raise StaleRecordError(checked, record.version)


def delete(client: Client, ids: object, version: object) -> Steps[None]:
    """Delete records. Raise for the first refused record."""
    checked, expected = _ids(client, ids), _version(version)
    if expected is not None and len(checked) != 1:
        raise InvalidJobError(f"version is that of one record, {len(checked)} ids are given")
    versions = None if expected is None else (expected,)
    verdicts = yield from order_some(checked, lambda some: Delete(some, versions), first="oldest")
    for job_id, (verdict, state) in zip(checked, verdicts, strict=True):
        if verdict is Verdict.UNKNOWN:
            raise JobNotFoundError(job_id)
        if verdict is Verdict.REFUSED:
            raise InvalidTransitionError(job_id, state or "unknown", "deleted")
        if verdict is Verdict.STALE:
            raise StaleRecordError(job_id, expected or 0)
