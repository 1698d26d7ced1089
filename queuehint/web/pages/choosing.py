"""Forms of pages: their fields, their selections of jobs, and the outcome of an order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

import attrs

from queuehint import operations as op
from queuehint.errors import InvalidJobError, shown
from queuehint.scheduler.records.queries import asked_for
from queuehint.values.hint import Path, parse_key
from queuehint.values.record import JobRecord, JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.web.pages.asking import ask, by_id
from queuehint.web.pages.rendering import links_of
from queuehint.web.pages.views import dead as of_dead
from queuehint.web.pages.views import jobs as of_jobs
from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import Act
from queuehint.web.problems import Refused
from queuehint.web.questions import Listing, Selection

if TYPE_CHECKING:
    from starlette.requests import Request

    from queuehint.web.board import Asker

Fields = Sequence[tuple[str, str]]

FORM_BYTES_MAX: Final = 2 << 20
SECONDS_MAX: Final = 1e12
FIELDS_MAX: Final = 2000
REACHED_MAX: Final = 1000
"""So many jobs one order from a page reaches."""
NAMED: Final = 5
"""So many of the jobs that an order touches are named before it."""
UNFINISHED: Final = tuple([state for state in JobState if not state.is_over])
_OF_FORM: Final = frozenset({"back", "live", "for_min", "rate", "downstream", "cursor", "order"})
"""Fields of a form that select no jobs."""


async def read_form(request: Request) -> list[tuple[str, str]]:
    """
    Return the fields of a form.

    Raises:
        Refused: it is too large, or none.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise Refused(413, "too-large", f"the form is more than {FORM_BYTES_MAX} bytes, the limit")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/x-www-form-urlencoded":
        raise Refused(415, "unsupported", "the form must be application/x-www-form-urlencoded")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise Refused(400, "bad-form", f"the form cannot be read: {error}") from None


def first(fields: Fields, name: str, default: str = "") -> str:
    """Return the first field of a name."""
    return next((value for each, value in fields if each == name), default)


def back_of(asker: Asker, request: Request, fields: Fields) -> str:
    """Return the address of the page with the form, on this board only."""
    links = links_of(asker, request)
    given = first(fields, "back")
    is_own = given.startswith(f"{links.root}/") and not given.startswith("//")
    # Browsers drop control characters of an address, and take a backslash for a slash.
    is_plain = given.isascii() and given.isprintable() and "\\" not in given
    return given if is_own and is_plain else links.at("")


@attrs.frozen(kw_only=True)
class Chosen:
    """
    The jobs that an order is about.

    Args:
        ids: of the first `REACHED_MAX`.
        count: how many there are; with *is_least* there are more.
        named: records of some of them.
    """

    ids: tuple[str, ...]
    count: int
    named: tuple[JobRecord, ...] = ()
    is_least: bool = False

    def counted(self, noun: str) -> str:
        """Return how many there are, with their noun."""
        return f"{'at least ' if self.is_least else ''}{words.counted(self.count, noun)}"


def path_alone(fields: Fields) -> Path | None:
    """Return the place of a selection by place alone, None for any other selection."""
    said = [(name, value) for name, value in fields if name not in _OF_FORM and value]
    return parse_key(said[0][1]) if [name for name, _ in said] == ["path"] else None


async def choose(asker: Asker, fields: Fields, states: tuple[JobState, ...]) -> Chosen:
    """
    Return the jobs of some states that a form selects: by ids, by a group of dead jobs, or by conditions.

    Raises:
        InvalidJobError: nothing is chosen, or a condition is wrong.
    """
    ids = [value for name, value in fields if name == "id"]
    if ids:
        if len(ids) > REACHED_MAX:
            raise InvalidJobError(f"id is given {len(ids)} times, limit {REACHED_MAX}")
        found = await by_id(asker, ids)
        fit = [record for record in found.values() if record.state in states]
        return Chosen(ids=tuple([record.id for record in fit]), count=len(fit), named=tuple(fit[:NAMED]))
    group = first(fields, "group")
    if group:
        page = await ask(
            asker, "jobs", Listing(filter=RecordFilter(states=states), newest_first=True, limit=of_dead.READ_MAX)
        )
        some = [record for record in page.jobs if of_dead.cause_of(record).name == group]
        return Chosen(ids=tuple([record.id for record in some]), count=len(some), named=tuple(some[:NAMED]))
    query = of_jobs.read_query([(name, value) for name, value in fields if name not in _OF_FORM])
    if not query.conditions:
        raise InvalidJobError("no job is chosen: select rows, or give a condition")
    return await _by_filter(asker, query, states)


async def _by_filter(asker: Asker, query: of_jobs.Query, states: tuple[JobState, ...]) -> Chosen:
    asked = asked_for(query.filter())  # type: ignore[arg-type]
    wanted = attrs.evolve(asked, states=tuple([state for state in asked.states or states if state in states]))
    if not wanted.states:
        return Chosen(ids=(), count=0)
    found: list[JobRecord] = []
    cursor = None
    while True:
        listing = Listing(filter=wanted, limit=op.LIST_MAX, cursor=cursor)
        page = await ask(asker, "jobs", listing)
        found += page.jobs
        cursor = page.cursor
        if cursor is None or len(found) >= REACHED_MAX:
            break
    count, is_least = len(found), False
    if cursor is not None:
        counts: op.Counts = await ask(asker, "stats", Selection(filter=wanted))
        count, is_least = max(count, counts.total), not counts.complete
    return Chosen(
        ids=tuple([record.id for record in found[:REACHED_MAX]]),
        count=count,
        named=tuple(found[:NAMED]),
        is_least=is_least,
    )


@attrs.frozen(kw_only=True)
class Done:
    """
    The outcome of an order.

    Args:
        text: in a sentence.
        level: ``good``, or ``warn`` if it has not done all that was asked.
        undo: orders that undo it.
        lines: more, one line each.
    """

    text: str
    level: str = "good"
    undo: tuple[Act, ...] = ()
    lines: tuple[str, ...] = ()


def told(done: str, same: str, *, is_done: bool) -> Done:
    """Return the outcome of an order that an earlier request may have carried out."""
    return Done(text=done if is_done else same, level="good" if is_done else "warn")


def whole(fields: Fields, name: str, default: int, *, least: int, most: int) -> int:
    """
    Return an integer field of a form, *default* if the field is empty.

    Raises:
        InvalidJobError: it is none, or outside its limits.
    """
    text = first(fields, name)
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or not least <= int(text[:20]) <= most:
        raise InvalidJobError(f"{name} must be a whole number from {least} to {most}, got {shown(text)}")
    return int(text)


def number(fields: Fields, name: str) -> float:
    """
    Return a number field of a form, as a time in seconds.

    Raises:
        InvalidJobError: it is none, or beyond all times.
    """
    text = first(fields, name)
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not abs(found) <= SECONDS_MAX:
        raise InvalidJobError(f"{name} must be a number of seconds, got {shown(text)}")
    return found
