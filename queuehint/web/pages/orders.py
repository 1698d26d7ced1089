"""
Orders from pages: ``/confirm/{verb}`` shows the affected jobs, ``POST /do/{verb}`` carries out the order.

Both answer a part of a page where a script asks, and a page where a browser does. What is ordered of many jobs is
ordered of the first 1 000, in parts as large as the API takes; the answer says how many are left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from queuehint import operations as op
from queuehint.errors import shown
from queuehint.values.hint import queue_key
from queuehint.values.record import JobState
from queuehint.web.pages import redriving, settings
from queuehint.web.pages.asking import ask, redrive
from queuehint.web.pages.choosing import (
    REACHED_MAX,
    UNFINISHED,
    Chosen,
    Done,
    Fields,
    back_of,
    choose,
    first,
    path_alone,
    read_form,
    told,
    whole,
)
from queuehint.web.pages.rendering import is_fragment, notice, render
from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import act
from queuehint.web.problems import Refused

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from queuehint.web.board import Asker


def check_may_order(asker: Asker) -> None:
    """
    Check that orders are taken of a user.

    Raises:
        Refused: they are not.
    """
    if asker.board.read_only:
        raise Refused(403, "read-only", "this board is read-only: it takes no orders")
    if not asker.may_order:
        raise Refused(403, "forbidden", "you may not order anything here")


async def confirm(asker: Asker, request: Request) -> Response:
    """Show the effect of an order, with a form to confirm it."""
    check_may_order(asker)
    verb = request.path_params["verb"]
    if verb not in QUESTIONS:
        raise Refused(404, "not-found", f"there is no order {shown(verb)}")
    fields = request.query_params.multi_items()
    said = await QUESTIONS[verb](asker, fields)
    kept = [(name, value) for name, value in fields if name not in {"back", "live"}]
    view = {
        "verb": verb,
        "fields": kept,
        "back": back_of(asker, request, fields),
        "inputs": [],
        "named": [],
        "danger": False,
        **said,
    }
    template = "confirm_part.html" if is_fragment(request) else "confirm.html"
    return render(asker, request, template, title=view["question"], ask=view, live=False)


def _named(chosen: Chosen) -> list[str]:
    """Return some of the jobs that an order touches, a line each."""
    lines = [f"{record.spec.task} {record.id} {' '.join(record.queue_keys[:1])}".rstrip() for record in chosen.named]
    rest = chosen.count - len(lines)
    return [*lines, f"and {words.number(rest)} more"] if lines and rest > 0 else lines


def _lines(chosen: Chosen, *more: str, is_sweep: bool = False) -> list[str]:
    """Return what else is said of an order, in sentences; *is_sweep* says that it reaches all."""
    if chosen.count > REACHED_MAX and not is_sweep:
        return [f"One order reaches {words.number(REACHED_MAX)} of them; give it again for the rest.", *more]
    return list(more) if chosen.count else []


def _label(verb: str, chosen: Chosen, *, is_sweep: bool = False) -> str:
    """Return the label of the button of an order: how many jobs it reaches."""
    return f"{verb.capitalize()} {chosen.counted('job') if is_sweep else words.counted(len(chosen.ids), 'job')}"


def _question(verb: str, chosen: Chosen, noun: str) -> str:
    return f"{verb.capitalize()} {chosen.counted(noun)}?" if chosen.count else f"No {noun} is among them."


async def _ask_cancel(asker: Asker, fields: Fields) -> dict[str, Any]:
    chosen, is_sweep = await choose(asker, fields, UNFINISHED), path_alone(fields) is not None
    return {
        "question": _question("cancel", chosen, "unfinished job"),
        "named": _named(chosen),
        "lines": _lines(chosen, "A stop is requested of running jobs.", is_sweep=is_sweep),
        "label": _label("cancel", chosen, is_sweep=is_sweep),
        "keep": "Keep them",
        "count": chosen.count,
        "danger": True,
    }


async def _ask_redrive(asker: Asker, fields: Fields) -> dict[str, Any]:
    chosen = await choose(asker, fields, (JobState.FAILED,))
    lines = _lines(chosen)
    is_guarded = chosen.count > 1
    if is_guarded:
        lines.append(f"It stops by itself when more than {redriving.FAILED_MAX} of them have failed again.")
    rate = {"name": "rate", "label": "Jobs a second", "type": "number", "value": redriving.RATE, "min": 1, "max": 200}
    return {
        "question": _question("redrive", chosen, "dead job"),
        "named": _named(chosen),
        "lines": lines,
        "label": _label("redrive", chosen),
        "keep": "Leave them",
        "count": chosen.count,
        "inputs": [rate] if is_guarded else [],
    }


async def _ask_discard(asker: Asker, fields: Fields) -> dict[str, Any]:
    chosen = await choose(asker, fields, (JobState.FAILED,))
    return {
        "question": _question("discard", chosen, "dead job"),
        "named": _named(chosen),
        "lines": _lines(chosen, "They become canceled: their places are free, and dependents follow their rules."),
        "label": _label("discard", chosen),
        "keep": "Keep them",
        "count": chosen.count,
        "danger": True,
    }


async def do(asker: Asker, request: Request) -> Response:
    """Carry out an order, and show its outcome."""
    verb = request.path_params["verb"]
    fields = await read_form(request)
    if verb not in VERBS:
        raise Refused(404, "not-found", f"there is no order {shown(verb)}")
    check_may_order(asker)
    done = await VERBS[verb](asker, fields)
    said = {
        "level": done.level,
        "title": None,
        "text": done.text,
        "lines": list(done.lines),
        "acts": list(done.undo),
        "back": back_of(asker, request, fields),
    }
    return notice(asker, request, said, title="Done", headers={"HX-Trigger": "done"})


async def _in_parts(ids: Sequence[str], order: Callable[[tuple[str, ...]], Awaitable[op.Judged]]) -> tuple[int, int]:
    """Apply an order to jobs in batches. Return the numbers of done and of requested ones."""
    done = requested = 0
    for begin in range(0, len(ids), op.JOBS_AT_ONCE):
        judged = await order(tuple(ids[begin : begin + op.JOBS_AT_ONCE]))
        done += sum(verdict is op.Verdict.DONE for verdict, _ in judged.verdicts)
        requested += sum(verdict is op.Verdict.REQUESTED for verdict, _ in judged.verdicts)
    return done, requested


def _left(chosen: Chosen, reached: int) -> tuple[str, ...]:
    left = chosen.count - max(reached, len(chosen.ids))
    least = "at least " if chosen.is_least else ""
    return (f"{least}{words.counted(left, 'job')} left: give the order again.",) if left > 0 else ()


async def _cancel(asker: Asker, fields: Fields) -> Done:
    reason = f"canceled by {asker.access.name or 'an operator'} on the board"
    path = path_alone(fields)
    if path is not None:
        swept = await ask(asker, "cancel_place", op.CancelPath(path, reason))
        more = " so far; the rest follows" if swept.more or swept.number is not None else ""
        return Done(text=f"{words.counted(swept.reached, 'job')} at or below {queue_key(path)} canceled{more}.")
    chosen = await choose(asker, fields, UNFINISHED)
    done, requested = await _in_parts(chosen.ids, lambda some: ask(asker, "cancel", op.Cancel(some, reason)))
    parts = []
    if done or not requested:
        parts.append(f"{words.counted(done, 'job')} canceled")
    if requested:
        parts.append(f"stop requested of {words.counted(requested, 'running job')}")
    level = "good" if done or requested else "warn"
    text = ", ".join(parts)
    return Done(text=f"{text[:1].upper()}{text[1:]}.", level=level, lines=_left(chosen, done + requested))


async def _redrive(asker: Asker, fields: Fields) -> Done:
    chosen = await choose(asker, fields, (JobState.FAILED,))
    downstream = bool(first(fields, "downstream"))
    if len(chosen.ids) > 1:
        rate = whole(fields, "rate", redriving.RATE, least=1, most=200)
        started = redriving.start(asker, chosen.ids, rate=rate, downstream=downstream)
        if not started:
            return Done(text="Another redrive is under way: wait for its end, or stop it.", level="warn")
        text = f"Redriving {words.counted(len(chosen.ids), 'job')}, {rate} a second."
        return Done(text=text, undo=(act("stop-redrive", "Stop"),), lines=_left(chosen, len(chosen.ids)))
    done, _ = await _in_parts(chosen.ids, lambda some: redrive(asker, some, downstream=downstream))
    if not done:
        return Done(text="No job was redriven: it is not dead, or its record has expired.", level="warn")
    return Done(text=f"{words.counted(done, 'job')} redriven.")


async def _stop_redrive(asker: Asker, fields: Fields) -> Done:
    stopped = redriving.stop(asker)
    return told("The redrive was stopped.", "No redrive is under way.", is_done=stopped)


async def _discard(asker: Asker, fields: Fields) -> Done:
    chosen = await choose(asker, fields, (JobState.FAILED,))
    done, _ = await _in_parts(chosen.ids, lambda some: ask(asker, "discard", op.Discard(some)))
    return Done(
        text=f"{words.counted(done, 'job')} discarded.", level="good" if done else "warn", lines=_left(chosen, done)
    )


async def _run_now(asker: Asker, fields: Fields) -> Done:
    ids = [value for name, value in fields if name == "id"]
    done, _ = await _in_parts(ids, lambda some: redrive(asker, some, waiting=True))
    if not done:
        return Done(text="The job waits for no time any more.", level="warn")
    return Done(text=f"{words.counted(done, 'job')} due now.")


QUESTIONS: Final[Mapping[str, Callable[[Asker, Fields], Awaitable[dict[str, Any]]]]] = {
    "cancel": _ask_cancel,
    "redrive": _ask_redrive,
    "discard": _ask_discard,
    **settings.QUESTIONS,
}
"""What is said before an order, by its verb."""
VERBS: Final[Mapping[str, Callable[[Asker, Fields], Awaitable[Done]]]] = {
    "cancel": _cancel,
    "redrive": _redrive,
    "stop-redrive": _stop_redrive,
    "discard": _discard,
    "run-now": _run_now,
    **settings.VERBS,
}
"""All orders that a page gives, by their verbs."""
