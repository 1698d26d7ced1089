"""The chain of reasons: one card a link, with the root cause and its remedy on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queuehint.values.hint import is_counted, parse_key, queue_key
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import JOBS_NAMED_MAX, Reason, ReasonKind
from queuehint.values.signal import name_of
from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import Act, act, danger
from queuehint.web.pages.views.jobs import progress, row

if TYPE_CHECKING:
    from queuehint.web.pages.views.links import Links

View = dict[str, Any]

_DEAD = frozenset({ReasonKind.DEAD_HOLD, ReasonKind.DEAD_DEPENDENCY})
_RUNNING = frozenset({ReasonKind.RUNNING, ReasonKind.PERMIT})
_OF_JOBS = frozenset({ReasonKind.PLACE, ReasonKind.DEPENDENCY, *_DEAD})
FOLDED_AFTER = 3
"""So many blockers of a link are shown at once, the others folded."""


def named_jobs(reasons: Sequence[Reason]) -> list[str]:
    """Return the ids of the jobs in a chain, without repeats and without signals."""
    ids: dict[str, None] = {}
    for reason in reasons:
        ids.update([(job_id, None) for job_id in (reason.job_id, *reason.jobs) if name_of(job_id) is None])
    return list(ids)


def chain_view(reasons: Sequence[Reason], records: Mapping[str, JobRecord], now_ms: int, links: Links) -> View:
    """
    Return the page of a chain.

    Args:
        reasons: from the job that was asked about to the root cause.
        records: of the jobs that they name, by id; those that are not there are shown by their ids.
    """
    cards = [card(reason, records, now_ms, links, step) for step, reason in enumerate(reasons, 1)]
    root = reasons[-1]
    return {
        "job": job_line(reasons[0].job_id, records, now_ms, links),
        "cards": cards,
        "root": {**cards[-1], "sentence": root_sentence(root, records, now_ms), "length": len(reasons)},
        "gates": gates(records.get(reasons[0].job_id), reasons[0], links),
        "text": "\n".join([str(reason) for reason in reasons] + ([root.way_out] if root.way_out else [])),
        "is_over": reasons[0].kind is ReasonKind.OVER,
    }


def job_line(job_id: str, records: Mapping[str, JobRecord], now_ms: int, links: Links) -> View:
    """Return a job by its record, or by its id alone without a record."""
    record = records.get(job_id)
    if record is None:
        return {"id": job_id, "url": links.job(job_id), "state": None, "task": None, "places": []}
    return row(record, now_ms, links)


def card(reason: Reason, records: Mapping[str, JobRecord], now_ms: int, links: Links, step: int = 1) -> View:
    """Return one link of a chain."""
    named = [job_id for job_id in reason.jobs if name_of(job_id) is None]
    blockers = [job_line(job_id, records, now_ms, links) for job_id in named]
    path = None if reason.path_key is None else parse_key(reason.path_key)
    record = records.get(reason.job_id)
    more = max(0, reason.open_dependencies - len(reason.jobs)) if reason.jobs else 0
    return {
        "step": step,
        "job": job_line(reason.job_id, records, now_ms, links),
        "kind": str(reason.kind),
        "title": words.reason_title(reason),
        "sentence": sentence(reason, record, now_ms),
        "stuck": reason.stuck,
        "detail": None if reason.kind in _RUNNING else reason.detail,
        "until": words.when(reason.until_ms, now_ms),
        "place": None if path is None else {"key": queue_key(path), "url": links.place(path), "mark": ""},
        "signals": [name for job_id in reason.jobs if (name := name_of(job_id)) is not None],
        "blockers": blockers[:FOLDED_AFTER],
        "folded": blockers[FOLDED_AFTER:],
        "more": words.number(more) if more else None,
        "may_be_more": reason.kind is ReasonKind.PLACE and len(reason.jobs) == JOBS_NAMED_MAX,
        "progress": progress(record) if record is not None and reason.kind in _RUNNING else None,
        "end": words.reason_end(reason),
        "way_out": reason.way_out,
        "acts": acts(reason),
        "is_over": reason.kind is ReasonKind.OVER,
    }


def sentence(reason: Reason, record: JobRecord | None, now_ms: int) -> str:
    """Return the reason of a job's state in one sentence."""
    kind, count = reason.kind, len(reason.jobs)
    if kind is ReasonKind.RUNNING and record is not None and record.started_ms is not None:
        return f"Runs on {record.worker or 'a worker'} for {words.duration(now_ms - record.started_ms)}."
    if kind is ReasonKind.PLACE and not count:
        return "Is at the head of the line, and about to advance."
    if kind is ReasonKind.PLACE:
        at = "" if reason.path_key is None else f" at {reason.path_key}"
        few = "at least " if count == JOBS_NAMED_MAX else ""
        return f"Waits{at} behind {few}{words.counted(count, 'job')} placed before it."
    if kind is ReasonKind.DEPENDENCY and reason.stuck:
        return "It depends on itself by way of other jobs: none of them can begin."
    if kind is ReasonKind.DEPENDENCY:
        return f"{words.counted(reason.open_dependencies, 'job')} it depends on {_have(reason)} still to end."
    if kind is ReasonKind.SIGNAL:
        return f"Waits for the {'signal' if count == 1 else 'signals'} {words.listed(_signals(reason))}."
    if kind is ReasonKind.PAUSED:
        by = reason.path_key if reason.selection is None else "a pause by filter"
        return f"{by} is paused: nothing there starts." if reason.selection is None else f"Held by {by}."
    if kind is ReasonKind.PERMIT:
        of = f" of {reason.path_key}" if reason.path_key is not None else ""
        return f"A worker runs it, and its code waits for a permit{of}."
    if kind is ReasonKind.LIMIT:
        of = f" of {reason.path_key}" if reason.path_key is not None else ""
        if record is not None and is_counted(record.spec.claims):
            return f"A permit, which takes no place; as many jobs run as the limit{of} allows."
        return f"Has its place; as many jobs run as the limit{of} allows."
    if kind is ReasonKind.OVER:
        return {
            JobState.FINISHED: "Has ended well.",
            JobState.FAILED: "Has failed for good; it is in the dead-letter queue.",
        }.get(reason.state, "Was canceled or discarded.")
    return _SENTENCES[kind]


_SENTENCES = {
    ReasonKind.RUNNING: "A worker runs it.",
    ReasonKind.OVERDUE: "Its stop is requested, and its code still runs: the place is free when that ends.",
    ReasonKind.TIME: "It is not due yet.",
    ReasonKind.DEAD_DEPENDENCY: "A job that it depends on has failed for good.",
    ReasonKind.DEAD_HOLD: "A job before it has failed for good, and holds the place until a person decides.",
    ReasonKind.BACKOFF: "Its last attempt failed; it keeps its place and is tried again.",
    ReasonKind.UNKNOWN_TASK: "The workers that took it do not know its task, or an argument of it.",
    ReasonKind.NO_WORKER: "It is ready, and no worker serves its pool.",
    ReasonKind.WORKER: "It is ready, and waits for a free slot of a worker.",
    ReasonKind.CALLER: "It is ready, and its caller is about to take it.",
}


def _have(reason: Reason) -> str:
    return "has" if reason.open_dependencies == 1 else "have"


def _signals(reason: Reason) -> list[str]:
    return [name_of(job_id) or job_id for job_id in reason.jobs]


def root_sentence(root: Reason, records: Mapping[str, JobRecord], now_ms: int) -> str:
    """Return the root cause in one sentence."""
    dead = records.get(root.jobs[0]) if root.jobs and root.kind in _DEAD else None
    if dead is not None:
        last = dead.errors[-1].type if dead.errors else dead.cause or "an unknown reason"
        tail = " and holds its place" if root.kind is ReasonKind.DEAD_HOLD else ""
        return f"{dead.spec.task} failed for good of {last}{tail}."
    job = records.get(root.job_id)
    if root.kind is ReasonKind.RUNNING and job is not None and job.started_ms is not None:
        return f"{job.spec.task} runs on {job.worker or 'a worker'} for {words.duration(now_ms - job.started_ms)}."
    return f"{words.reason_title(root)}."


def acts(reason: Reason) -> list[Act]:
    """Return the orders that end a wait."""
    kind, job_id = reason.kind, reason.job_id
    if kind in _DEAD and reason.jobs:
        dead = reason.jobs[0]
        return [act("redrive", "Redrive the dead job", id=dead), danger("discard", "Discard it", id=dead)]
    if kind is ReasonKind.PAUSED and reason.selection is None and reason.path_key is not None:
        return [act("resume", f"Resume {reason.path_key}", path=reason.path_key)]
    if kind is ReasonKind.PAUSED and reason.selection is not None:
        chosen = {name: getattr(reason.selection, name) for name in ("task", "user", "service", "pool", "tag")}
        fields = {name: value for name, value in chosen.items() if value is not None}
        if reason.selection.path is not None:
            fields["path"] = queue_key(reason.selection.path)
        return [act("resume", "Resume what is paused", **fields)]
    if kind is ReasonKind.SIGNAL:
        given = [act("signal", f"Give signal {name}", name=name) for name in _signals(reason)[:1]]
        return [*given, danger("cancel", "Cancel the job", id=job_id)]
    if kind in {ReasonKind.TIME, ReasonKind.BACKOFF}:
        return [act("run-now", "Run now", id=job_id), danger("cancel", "Cancel the job", id=job_id)]
    if kind in {ReasonKind.RUNNING, ReasonKind.PERMIT, ReasonKind.UNKNOWN_TASK}:
        return [danger("cancel", "Cancel the job", id=job_id)]
    if kind is ReasonKind.DEPENDENCY and reason.stuck:
        return [danger("cancel", "Cancel one of them", id=reason.jobs[0] if reason.jobs else job_id)]
    return []


def gates(record: JobRecord | None, reason: Reason, links: Links) -> list[View]:
    """
    Return the places on the way of a job from the root, for a job with one place: which is the one it waits at.

    A permit takes no place, and has no way to one.
    """
    if record is None or record.path is None or is_counted(record.spec.claims):
        return []
    path = record.path
    waits_at = reason.path_key if reason.kind in {ReasonKind.PLACE, ReasonKind.DEAD_HOLD} else None
    keys = [queue_key(path[:depth]) for depth in range(len(path) + 1)]
    stop = keys.index(waits_at) if waits_at in keys else len(keys)
    return [
        {
            "name": "all" if depth == 0 else path[depth - 1],
            "url": links.place(path[:depth]),
            "mark": "waits" if depth == stop else "passed" if depth < stop else "ahead",
            "is_last": depth == len(path),
        }
        for depth in range(len(path) + 1)
    ]
