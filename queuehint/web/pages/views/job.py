"""One job: its life as a line, its attempts as a list, its arguments and its result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.errors import PayloadError
from queuehint.handlers.conversion.plain_json import decode_json
from queuehint.values.policy import Policy
from queuehint.values.record import Attempt, JobRecord, JobState
from queuehint.values.signal import name_of
from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import Act, act, danger
from queuehint.web.pages.views.jobs import row

if TYPE_CHECKING:
    from queuehint.values.report import Reason
    from queuehint.web.pages.views.links import Links

View = dict[str, Any]

SHOWN_BYTES_MAX = 65_536
"""So many bytes of arguments or of a result are shown."""
EDGES_SHOWN = 20
LOG_LINES_SHOWN = 200

_OUTCOMES = {
    "started": ("runs", "started"),
    "finished": ("finished", "finished"),
    "failed": ("failed for good", "failed"),
    "retried": ("failed, tried again", "retried"),
    "snoozed": ("put off by its handler", "scheduled"),
    "released": ("given back by its worker", "queued"),
    "lost": ("its worker was lost", "failed"),
    "canceled": ("canceled", "canceled"),
    "deferred": ("waits for its children", "deferred"),
}


def life(record: JobRecord, now_ms: int) -> list[View]:
    """Return the events of a job in order of time, each with the time since the previous one."""
    moments = [
        ("enqueued", record.enqueued_ms),
        ("placed", record.queued_ms),
        ("started", record.started_ms),
        ("ended", record.ended_ms),
    ]
    known = [(name, time_ms) for name, time_ms in moments if time_ms is not None]
    found: list[View] = []
    before_ms: int | None = None
    for name, time_ms in known:
        took = None if before_ms is None else words.duration(time_ms - before_ms)
        found.append({"name": name, "when": words.when(time_ms, now_ms), "took": took, "ahead": False})
        before_ms = time_ms
    if record.due_ms is not None and not record.state.is_over and record.due_ms > now_ms:
        took = words.duration(record.due_ms - now_ms)
        found.append({"name": "due", "when": words.when(record.due_ms, now_ms), "took": took, "ahead": True})
    elif not record.state.is_over and before_ms is not None:
        found.append({"name": "now", "when": None, "took": words.duration(now_ms - before_ms), "ahead": True})
    return found


def attempts(record: JobRecord, now_ms: int) -> list[View]:
    """Return the attempts of a job with their errors, the newest first, and the errors without an attempt."""
    shown = [error for attempt in record.history if (error := attempt.error) is not None]
    rest = [error for error in record.errors if error not in shown]
    found = [_attempt(attempt, now_ms) for attempt in record.history]
    found += [
        {
            "word": "failed",
            "kind": "failed",
            "started": words.when(error.at_ms, now_ms),
            "took": None,
            "worker": None,
            "error": _error(error),
            "at_ms": error.at_ms,
        }
        for error in rest
    ]
    return sorted(found, key=lambda each: -each["at_ms"])


def _attempt(attempt: Attempt, now_ms: int) -> View:
    word, kind = _OUTCOMES[attempt.outcome]
    end_ms = now_ms if attempt.ended_ms is None else attempt.ended_ms
    return {
        "word": word,
        "kind": kind,
        "started": words.when(attempt.started_ms, now_ms),
        "took": words.duration(end_ms - attempt.started_ms),
        "worker": attempt.worker,
        "error": None if attempt.error is None else _error(attempt.error),
        "at_ms": attempt.started_ms,
    }


def _error(error: Any) -> View:
    return {
        "type": error.type,
        "message": error.message,
        "traceback": error.traceback,
        "attempt": error.attempt,
    }


def payload(data: bytes | None) -> View | None:
    r"""
    Return arguments or a result as text: indented JSON, truncated at `SHOWN_BYTES_MAX`, None for no value.

    >>> payload(b'{"a":[1]}')["text"]
    '{\n  "a": [\n    1\n  ]\n}'
    """
    if data is None:
        return None
    size = len(data)
    text, is_json = "", False
    if size <= SHOWN_BYTES_MAX:
        try:
            text, is_json = json.dumps(decode_json(data), ensure_ascii=False, indent=2), True
        except (PayloadError, ValueError):
            is_json = False
    if not is_json:
        text = data[:SHOWN_BYTES_MAX].decode("utf-8", "replace")
    return {
        "text": text,
        "size": words.counted(size, "byte"),
        "is_json": is_json,
        "cut": words.number(SHOWN_BYTES_MAX) if size > SHOWN_BYTES_MAX else None,
    }


def facts(record: JobRecord, links: Links) -> list[View]:
    """Return the other fields of a record as names and values, some with an address."""
    spec = record.spec
    found: list[tuple[str, object, str | None]] = [
        ("pool", spec.pool, links.jobs(pool=spec.pool)),
        ("user", spec.user, spec.user and links.jobs(user=spec.user)),
        ("service", spec.service, spec.service and links.jobs(service=spec.service)),
        ("key", spec.key, None),
        ("flow", spec.flow, spec.flow and links.jobs(flow=spec.flow)),
        ("name in the flow", spec.name if spec.flow else None, None),
        ("made by", spec.parent, spec.parent and links.job(spec.parent)),
        ("schedule", spec.schedule, spec.schedule and links.at("schedules")),
        ("priority", spec.priority, None),
        ("losses", f"{record.losses} of {spec.policy.max_losses}" if record.losses else None, None),
        ("worker", record.worker, None),
    ]
    return [{"name": name, "value": value, "url": url} for name, value, url in found if value not in (None, "")]


def policy(record: JobRecord) -> list[View]:
    """Return the policy fields of a job that differ from the default."""
    default, own = Policy(), record.spec.policy
    found = []
    for field in attrs.fields(Policy):
        value = getattr(own, field.name)
        if value != getattr(default, field.name) and not field.name.startswith("_"):
            is_ms = field.name.endswith("_ms") and isinstance(value, int)
            text = words.duration(value) if is_ms else str(value)
            found.append({"name": field.name.removesuffix("_ms").replace("_", " "), "value": text})
    return found


def edges(record: JobRecord, found: Sequence[JobRecord], now_ms: int, links: Links) -> View:
    """
    Return the jobs that one depends on.

    Args:
        found: the records of the first `EDGES_SHOWN` of them.
    """
    by_id = {each.id: each for each in found}
    lines: list[View] = []
    for edge in record.spec.depends_on[:EDGES_SHOWN]:
        signal = name_of(edge.id)
        if signal is not None:
            lines.append({"signal": signal, "when": edge.when, "row": None, "id": edge.id})
        else:
            each = by_id.get(edge.id)
            shown = None if each is None else row(each, now_ms, links)
            lines.append({"signal": None, "when": edge.when, "row": shown, "id": edge.id, "url": links.job(edge.id)})
    count = len(record.spec.depends_on)
    return {
        "lines": lines,
        "more": words.number(count - EDGES_SHOWN) if count > EDGES_SHOWN else None,
        "open": words.number(record.open_dependencies) if record.open_dependencies else None,
    }


def edge_ids(record: JobRecord) -> tuple[str, ...]:
    """Return the ids of the jobs that `edges` shows."""
    return tuple([edge.id for edge in record.spec.depends_on[:EDGES_SHOWN] if name_of(edge.id) is None])


def acts(record: JobRecord) -> list[Act]:
    """Return the orders allowed in the state of a job."""
    found: list[Act] = []
    if record.state is JobState.FAILED:
        found.append(act("redrive", id=record.id))
        found.append(act("redrive", "Redrive with what it canceled", id=record.id, downstream="on"))
        found.append(danger("discard", id=record.id))
    if record.due_ms is not None and not record.state.is_over:
        found.append(act("run-now", "Run now", id=record.id))
    if not record.state.is_over and not record.cancel_requested:
        found.append(danger("cancel", id=record.id))
    return found


def job_view(
    record: JobRecord,
    reason: Reason | None,
    found: Sequence[JobRecord],
    dependents: Sequence[JobRecord],
    children: Sequence[JobRecord],
    now_ms: int,
    links: Links,
    *,
    shows_payloads: bool,
) -> View:
    """
    Return the page of a job.

    Args:
        reason: why it waits, of one that is not over.
        found: the records of jobs that it depends on.
        dependents: the first that wait for it; *children* the first that its handler made.
        shows_payloads: show arguments, result and headers.
    """
    logs = record.logs[-LOG_LINES_SHOWN:]
    return {
        "row": row(record, now_ms, links),
        "id": record.id,
        "life": life(record, now_ms),
        "attempts": attempts(record, now_ms),
        "facts": facts(record, links),
        "policy": policy(record),
        "edges": edges(record, found, now_ms, links),
        "dependents": [row(each, now_ms, links) for each in dependents],
        "children": [row(each, now_ms, links) for each in children],
        "steps": [{"name": step.name, "when": words.when(step.at_ms, now_ms)} for step in record.steps],
        "logs": logs,
        "logs_cut": record.logs_truncated or len(logs) < len(record.logs),
        # An attempt has what it failed of.
        "cause": None if record.cause == "failed" and record.errors else record.cause,
        "problem": record.problem,
        "cancel_requested": record.cancel_requested and not record.state.is_over,
        "reason": None if reason is None else {"text": words.reason_title(reason), "stuck": reason.stuck},
        "arguments": payload(record.spec.arguments) if shows_payloads else None,
        "result": payload(record.result) if shows_payloads else None,
        "has_result": record.result is not None,
        "headers": list(record.spec.headers) if shows_payloads else [],
        "shows_payloads": shows_payloads,
        "acts": acts(record),
        "copy_url": links.copy(record.id),
        "why_url": links.why(record.id),
        "over": record.state.is_over,
    }
