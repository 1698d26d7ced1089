"""Lists of jobs: their rows, the filter in the address, and counts by state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.errors import InvalidJobError, shown
from queuehint.shown import plain
from queuehint.values.hint import parse_key, queue_key
from queuehint.values.record import JobRecord, JobState
from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import Act, asked, danger

if TYPE_CHECKING:
    from queuehint.web.pages.views.links import Links

View = dict[str, Any]

NAMES: Final = ("task", "user", "service", "pool", "tag", "flow", "parent", "waits_for")
"""Conditions by a text, as the address names them."""
TIMES: Final = ("since", "until")
PAGE_ROWS = 50
COUNTED_MAX = 10_000
"""So many records are counted at first."""
LABELS: Final = {"path": "place", "waits_for": "waits for", "parent": "made by"}
"""What a page calls a condition, if not by its name."""
OF_STATE: Final = {words.STATES[state]: state for state in JobState}


@attrs.frozen(kw_only=True)
class Query:
    """
    The list query of an address.

    Args:
        conditions: by name: ``state`` a tuple of states, ``path`` a queue key, all others a text.
        newest_first: the order.
        cursor: that of the page before.
        exact: count on beyond `COUNTED_MAX`.
    """

    conditions: dict[str, Any]
    newest_first: bool = True
    cursor: str | None = None
    exact: bool = False

    def address(self, **changes: Any) -> dict[str, Any]:
        """Return the query of this list's address with other conditions, without the cursor."""
        query = {**self.conditions, "order": None if self.newest_first else "oldest", **changes}
        query["state"] = [str(state) for state in query.get("state", ())] or None
        return query

    def filter(self) -> dict[str, Any]:
        """
        Return the `Filter` of the records.

        Raises:
            InvalidJobError, InvalidHintError: naming the condition and the value.
        """
        found = dict(self.conditions)
        if "path" in found:
            found["path"] = parse_key(found["path"])
        for name in TIMES:
            if name in found:
                found[name] = moment_of(name, found[name])
        return found

    @property
    def states(self) -> tuple[JobState, ...]:
        """The selected states, none for all."""
        return tuple(self.conditions.get("state", ()))


def moment_of(name: str, text: str) -> datetime:
    """
    Return a time in an address by ISO 8601. A time without a zone is UTC.

    Raises:
        InvalidJobError: it is none.

    >>> moment_of("since", "2026-01-02T03:04").isoformat(), moment_of("until", "2026-01-02T03:04-02:00").isoformat()
    ('2026-01-02T03:04:00+00:00', '2026-01-02T05:04:00+00:00')
    """
    try:
        found = datetime.fromisoformat(text)
        # One that is not within the calendar in UTC is none of a record.
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidJobError(f"{name} must be a time such as 2026-01-02T03:04, got {shown(text)}") from None


def field_of(name: str, text: str) -> str:
    """
    Return a time in an address as the value of a form field: in UTC, without a zone.

    >>> field_of("since", "2026-01-02T03:04:05-01:00"), field_of("since", "")
    ('2026-01-02T04:04:05', '')
    """
    return moment_of(name, text).replace(tzinfo=None, microsecond=0).isoformat() if text else ""


def read_query(pairs: Iterable[tuple[str, str]]) -> Query:
    """
    Read the query of an address. Empty form fields are no conditions.

    Raises:
        InvalidJobError: a name or a state that there is not.

    >>> read_query([("state", "FAILED"), ("state", "running"), ("task", ""), ("path", "doc1")]).conditions
    {'state': (<JobState.STARTED: 'STARTED'>, <JobState.FAILED: 'FAILED'>), 'path': 'doc1'}
    """
    conditions: dict[str, Any] = {}
    states: list[JobState] = []
    plain: dict[str, str] = {}
    for name, value in pairs:
        value = value.strip() if name in TIMES else value
        if not value:
            continue
        if name == "state":
            states.append(_state(value))
        elif name == "path" or name in NAMES or name in TIMES:
            conditions[name] = value
        elif name in {"order", "cursor", "exact"}:
            plain[name] = value
        else:
            known = ", ".join(["state", "path", *NAMES, *TIMES, "order"])
            raise InvalidJobError(f"jobs have no condition {shown(name)}; there are {known}")
    if states:
        conditions = {"state": tuple([state for state in JobState if state in states]), **conditions}
    return Query(
        conditions=conditions,
        newest_first=plain.get("order") != "oldest",
        cursor=plain.get("cursor"),
        exact="exact" in plain,
    )


def _state(text: str) -> JobState:
    state = OF_STATE.get(text.lower())
    if state is None and text.upper() in JobState.__members__:
        state = JobState(text.upper())
    if state is None:
        raise InvalidJobError(f"state must be one of {', '.join(OF_STATE)}, got {shown(text)}")
    return state


def chips(query: Query, links: Links) -> list[View]:
    """Return the conditions of a list, each with the address of the list without that condition."""
    return [
        {"label": LABELS.get(name, name), "value": value, "without": links.jobs(**query.address(**{name: None}))}
        for name, value in query.conditions.items()
        if name != "state"
    ]


def state_tabs(query: Query, counts: Mapping[JobState, int], links: Links, *, complete: bool = True) -> list[View]:
    """Return the states as links, each with its count of matching records, and whether it is selected alone."""
    tabs = [
        {
            "label": "all",
            "help": "every state",
            "count": _count(sum(counts.values()), complete),
            "url": links.jobs(**query.address(state=())),
            "current": not query.states,
        }
    ]
    tabs += [
        {
            "label": words.STATES[state],
            "help": words.STATE_HELP[state],
            "state": state.lower(),
            "count": _count(counts.get(state, 0), complete),
            "url": links.jobs(**query.address(state=(state,))),
            "current": query.states == (state,),
        }
        for state in JobState
    ]
    return tabs


def _count(count: int, complete: bool) -> str:
    return words.number(count) + ("" if complete else "+")


def row(record: JobRecord, now_ms: int, links: Links) -> View:
    """Return a job as a line of a list."""
    spec = record.spec
    return {
        "id": record.id,
        "url": links.job(record.id),
        "why": None if record.state.is_over else links.why(record.id),
        "state": record.state.lower(),
        "state_word": words.STATES[record.state],
        "task": spec.task,
        "places": places(record, links),
        "user": spec.user,
        "service": spec.service,
        "pool": spec.pool,
        "tags": spec.tags,
        "attempts": record.attempts,
        "attempts_max": spec.policy.max_attempts,
        "since": words.when(_since_ms(record), now_ms),
        "progress": progress(record),
        "worker": record.worker if record.state is JobState.STARTED else None,
        "error": error_text(record),
        "open_dependencies": record.open_dependencies,
        "due": words.when(record.due_ms, now_ms) if record.state in _DUE else None,
    }


_DUE = frozenset({JobState.SCHEDULED, JobState.QUEUED})


def _since_ms(record: JobRecord) -> int:
    """Return the time at which a job entered its state."""
    if record.state.is_over:
        return record.ended_ms if record.ended_ms is not None else record.updated_ms
    if record.state is JobState.STARTED and record.started_ms is not None:
        return record.started_ms
    if record.state is JobState.QUEUED and record.queued_ms is not None:
        return record.queued_ms
    return record.enqueued_ms


def places(record: JobRecord, links: Links) -> list[View]:
    """Return the places that a job claims."""
    return [{"key": queue_key(path), "url": links.place(path), "mark": mark} for path, mark in words.claims(record)]


def progress(record: JobRecord) -> View | None:
    """Return the progress of a job, None without a report."""
    said = record.progress
    if said is None:
        return None
    done, total = said.done, said.total
    counts = " of ".join([words.number(value) for value in (done, total) if value is not None])
    share = words.percent(done, total) if done is not None and total else None
    return {"text": " · ".join(filter(None, [counts, said.note])), "percent": share, "note": said.note}


def error_text(record: JobRecord) -> str | None:
    """Return the last error of a job, or the cause of its cancellation."""
    if record.errors and record.state not in {JobState.FINISHED, JobState.CANCELED}:
        last = record.errors[-1]
        return f"{last.type}: {last.message}" if last.message else last.type
    return record.cause


def values_of(records: Sequence[JobRecord]) -> dict[str, list[str]]:
    """Return distinct values of a condition in some records, for completion."""
    found: dict[str, set[str | None]] = {name: set() for name in ("task", "user", "service", "pool", "tag", "path")}
    for record in records:
        spec = record.spec
        for name in ("task", "user", "service", "pool"):
            found[name].add(getattr(spec, name))
        found["tag"].update(spec.tags)
        found["path"].update(record.queue_keys)
    return {
        # Completion has to be the value itself, so one that a page would obey is left out.
        name: sorted([value for value in values if value and plain(value) == value])[:100]
        for name, values in found.items()
    }


def list_view(
    query: Query,
    records: Sequence[JobRecord],
    cursor: str | None,
    counts: Mapping[JobState, int],
    now_ms: int,
    links: Links,
    *,
    complete: bool = True,
    by_place: bool = False,
) -> View:
    """
    Return the page of a list of jobs.

    Args:
        counts: by state; there are more, if they are not *complete*.
        by_place: they are in the order of their places, not of time.
    """
    total = sum(count for state, count in counts.items() if not query.states or state in query.states)
    unfinished = sum(counts.get(state, 0) for state in JobState if not state.is_over and _asked(query, state))
    return {
        "tabs": state_tabs(query, counts, links, complete=complete),
        "chips": chips(query, links),
        "rows": [row(record, now_ms, links) for record in records],
        "values": values_of(records),
        "conditions": query.conditions,
        "states": [str(state) for state in query.states],
        "hidden": [(name, value) for name, value in query.conditions.items() if name != "state"],
        "total": _count(total, complete),
        "complete": complete,
        "exact_url": None if complete or query.exact else links.jobs(**query.address(exact=1)),
        "times": {name: field_of(name, query.conditions.get(name, "")) for name in TIMES},
        "unfinished": unfinished,
        "dead": counts.get(JobState.FAILED, 0) if _asked(query, JobState.FAILED) else 0,
        "next": None if cursor is None else links.jobs(**query.address(), cursor=cursor),
        "first": links.jobs(**query.address()) if query.cursor is not None else None,
        "other_label": _ORDERS[by_place, not query.newest_first],
        "other_order": links.jobs(**query.address(order="oldest" if query.newest_first else None)),
        "clear_url": links.jobs() if query.conditions else None,
        "has_conditions": bool(query.conditions),
    }


_ORDERS: Final = {
    (False, True): "Newest first",
    (False, False): "Oldest first",
    (True, True): "Last place first",
    (True, False): "First place first",
}


def _asked(query: Query, state: JobState) -> bool:
    return not query.states or state in query.states


def bulk(view: View, query: Query) -> list[Act]:
    """Return the orders for all matching jobs, beyond the page. A list without conditions has none."""
    if not query.conditions:
        return []
    fields = {name: value for name, value in query.address().items() if value and name != "order"}
    found: list[Act] = []
    if view["dead"]:
        found.append(asked("redrive", "Redrive all that match", **fields))
    if view["unfinished"]:
        found.append(danger("cancel", "Cancel all that match", **fields))
    return found
