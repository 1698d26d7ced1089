"""Orders on places, limits, weights, signals and schedules, and their confirmations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from queuehint import operations as op
from queuehint.errors import InvalidJobError, shown
from queuehint.handlers.conversion.plain_json import encode_json
from queuehint.values.hint import parse_key, queue_key
from queuehint.values.limit import check_limit
from queuehint.values.record_filter import RecordFilter
from queuehint.values.signal import SIGNAL_BYTES_MAX
from queuehint.web.orders import Given, ScheduleOrder
from queuehint.web.pages.asking import ask
from queuehint.web.pages.choosing import UNFINISHED, Done, Fields, first, number, told, whole
from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import act
from queuehint.web.questions import Selection

if TYPE_CHECKING:
    from queuehint.web.board import Asker


async def _counted(asker: Asker, key: str) -> str:
    wanted = RecordFilter(path=parse_key(key), states=UNFINISHED)
    counts = await ask(asker, "stats", Selection(filter=wanted))
    more = "" if counts.after is None else "at least "
    return f"{more}{words.counted(counts.total, 'unfinished job')}"


async def _ask_pause(asker: Asker, fields: Fields) -> dict[str, Any]:
    key = _key(fields)
    minutes = {
        "name": "for_min",
        "label": "For minutes, or empty until it is resumed",
        "type": "number",
        "value": "",
        "min": 1,
    }
    return {
        "question": f"Pause {key} and all below?",
        "lines": [
            f"It holds back {await _counted(asker, key)}: none of them starts, each keeps its place.",
            "What runs goes on.",
        ],
        "label": "Pause it",
        "keep": "Leave it",
        "count": 1,
        "inputs": [minutes],
    }


async def _ask_close(asker: Asker, fields: Fields) -> dict[str, Any]:
    key = _key(fields)
    return {
        "question": f"Close {key} and all below?",
        "lines": [
            f"New jobs there are refused. {await _counted(asker, key)} there go on.".replace(
                ". 1 unfinished job there go on", ". 1 unfinished job there goes on"
            )
        ],
        "label": "Close it",
        "keep": "Leave it open",
        "count": 1,
    }


async def _ask_unlimit(asker: Asker, fields: Fields) -> dict[str, Any]:
    return {
        "question": f"Lift the limit of {_limit_text(fields)}?",
        "lines": ["Jobs start then as places and slots allow."],
        "label": "Lift the limit",
        "keep": "Keep it",
        "count": 1,
        "danger": True,
    }


def _key(fields: Fields) -> str:
    """
    Return the place that a form names.

    Raises:
        InvalidJobError: it names none.
    """
    key = first(fields, "path")
    if not key:
        raise InvalidJobError("path is missing: the key of a place")
    return queue_key(parse_key(key))


def _limit_text(fields: Fields) -> str:
    for name in ("task", "pool", "path"):
        if value := first(fields, name):
            kind = "each place below " if first(fields, "each") else ""
            return f"{kind}{value}" if name == "path" else f"{name} {value}"
    return "the whole namespace"


def _selected(fields: Fields) -> RecordFilter:
    found: dict[str, Any] = {name: first(fields, name) or None for name in ("task", "user", "service", "pool", "tag")}
    key = first(fields, "path")
    return RecordFilter(path=parse_key(key) if key else None, **found)


def _pairs(chosen: RecordFilter) -> dict[str, str]:
    found = {name: getattr(chosen, name) for name in ("task", "user", "service", "pool", "tag")}
    if chosen.path is not None:
        found["path"] = queue_key(chosen.path)
    return {name: value for name, value in found.items() if value is not None}


async def _pause(asker: Asker, fields: Fields) -> Done:
    chosen = _selected(fields)
    minutes = first(fields, "for_min")
    for_ms = 60_000 * whole(fields, "for_min", 0, least=1, most=5_256_000) if minutes else None
    changed = (await ask(asker, "pause", op.Pause(chosen, for_ms))).changed
    what = " ".join(_pairs(chosen).values())
    until = f" for {words.duration(for_ms)}" if for_ms is not None else ""
    text = f"{what} is paused{until}." if changed else f"{what} was paused already."
    return Done(text=text, undo=(act("resume", **_pairs(chosen)),))


async def _resume(asker: Asker, fields: Fields) -> Done:
    chosen = _selected(fields)
    changed = (await ask(asker, "resume", op.Resume(chosen))).changed
    what = " ".join(_pairs(chosen).values())
    if not changed:
        return Done(text=f"{what} was not paused.", level="warn")
    return Done(text=f"{what} goes on.", undo=(act("pause", "Pause again", **_pairs(chosen)),))


async def _close(asker: Asker, fields: Fields) -> Done:
    key = _key(fields)
    changed = (await ask(asker, "close_place", op.Close(parse_key(key)))).changed
    text = f"{key} is closed: new jobs are refused." if changed else f"{key} was closed already."
    return Done(text=text, undo=(act("reopen", path=key),))


async def _reopen(asker: Asker, fields: Fields) -> Done:
    key = _key(fields)
    changed = (await ask(asker, "reopen_place", op.Close(parse_key(key), reopen=True))).changed
    return told(f"{key} takes new jobs.", f"{key} was not closed.", is_done=changed)


async def _limit(asker: Asker, fields: Fields) -> Done:
    kind, name = first(fields, "kind", "path"), first(fields, "name")
    if kind not in {"path", "each", "task", "pool"}:
        raise InvalidJobError(f"kind must be one of path, each, task, pool, got {shown(kind)}")
    rate = None
    if first(fields, "rate_count") or first(fields, "rate_s"):
        rate = (whole(fields, "rate_count", 0, least=1, most=1_000_000), number(fields, "rate_s"))
    numbers = {
        each: whole(fields, each, 0, least=1, most=1_000_000_000) if first(fields, each) else None
        for each in ("most", "max_pending")
    }
    scope: dict[str, Any] = {"task": name} if kind == "task" else {"pool": name} if kind == "pool" else {}
    path = parse_key(name) if kind in {"path", "each"} else None
    limit = check_limit(path, each=kind == "each", rate=rate, **numbers, **scope)
    if rate is None and not any(numbers.values()):
        raise InvalidJobError("a limit requires a number: at most running, starts in a time, or at most unfinished")
    changed = (await ask(asker, "set_limits", op.SetLimit(limit))).changed
    return told(f"The limit of {name} is set.", "It was so already.", is_done=changed)


async def _unlimit(asker: Asker, fields: Fields) -> Done:
    key = first(fields, "path")
    limit = check_limit(
        parse_key(key) if key else None,
        each=bool(first(fields, "each")),
        task=first(fields, "task") or None,
        pool=first(fields, "pool") or None,
    )
    changed = (await ask(asker, "set_limits", op.SetLimit(limit))).changed
    return told(f"The limit of {_limit_text(fields)} is lifted.", "There was no such limit.", is_done=changed)


async def _weight(asker: Asker, fields: Fields) -> Done:
    user, weight = first(fields, "user") or None, whole(fields, "weight", 1, least=1, most=op.WEIGHT_MAX)
    changed = (await ask(asker, "set_weights", op.Weigh(user, weight))).changed
    who = user or "Jobs without a user"
    turn = words.counted(weight, "start")
    return told(f"{who}: up to {turn} a turn.", f"{who}: it was so already.", is_done=changed)


async def _signal(asker: Asker, fields: Fields) -> Done:
    name = first(fields, "name")
    given = Given(name=name, data=encode_json(None, bytes_max=SIGNAL_BYTES_MAX))
    counts = (await ask(asker, "signal", given)).counts
    if not counts:
        return Done(text=f"Signal {name} was given before, with other data.", level="warn")
    return Done(text=f"Signal {name} is given.")


async def _schedule(asker: Asker, fields: Fields, order: str, changed: str, same: str) -> Done:
    name = first(fields, "name")
    reply = await ask(asker, f"{order}_schedule", ScheduleOrder(name=name))
    return told(f"{name} {changed}.", f"{name} {same}.", is_done=reply.changed)


async def _pause_schedule(asker: Asker, fields: Fields) -> Done:
    return await _schedule(asker, fields, "pause", "is paused", "was paused already")


async def _resume_schedule(asker: Asker, fields: Fields) -> Done:
    return await _schedule(asker, fields, "resume", "goes on", "was not paused")


async def _run_schedule(asker: Asker, fields: Fields) -> Done:
    name = first(fields, "name")
    fired = await ask(asker, "run_now_schedule", ScheduleOrder(name=name))
    return Done(text=f"{name} has made job {fired.job_id}.")


QUESTIONS: Final[Mapping[str, Callable[[Asker, Fields], Awaitable[dict[str, Any]]]]] = {
    "pause": _ask_pause,
    "close": _ask_close,
    "unlimit": _ask_unlimit,
}
"""What is said before an order, by its verb."""
VERBS: Final[Mapping[str, Callable[[Asker, Fields], Awaitable[Done]]]] = {
    "pause": _pause,
    "resume": _resume,
    "close": _close,
    "reopen": _reopen,
    "limit": _limit,
    "unlimit": _unlimit,
    "weight": _weight,
    "signal": _signal,
    "pause-schedule": _pause_schedule,
    "resume-schedule": _resume_schedule,
    "run-schedule": _run_schedule,
}
"""The orders, by their verbs."""
