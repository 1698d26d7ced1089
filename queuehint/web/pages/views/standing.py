"""Settings and workers: workers, schedules, limits, users and pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queuehint.values.hint import queue_key
from queuehint.values.limit import Limit, LimitState
from queuehint.values.record import JobRecord
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import PauseState, WorkerInfo
from queuehint.values.schedule import Schedule
from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import act, danger

if TYPE_CHECKING:
    from queuehint.web.pages.views.links import Links

View = dict[str, Any]

LATE_MS = 40_000
"""A worker that was not heard of for so long has missed two of its announcements."""


# --- workers ---------------------------------------------------------------------------------------------------------


def workers_view(
    workers: Sequence[WorkerInfo], running: Sequence[JobRecord], now_ms: int, links: Links, *, is_cut: bool = False
) -> View:
    """
    Return the page of workers.

    Args:
        running: STARTED jobs; *is_cut* says that there are more of them.
    """
    by_worker: dict[str | None, list[JobRecord]] = {}
    for record in running:
        by_worker.setdefault(record.worker, []).append(record)
    names = {worker.name for worker in workers}
    versions = Counter([worker.version or worker.release or "" for worker in workers])
    gone = [record for record in running if record.worker not in names]
    return {
        "rows": [_worker(worker, by_worker.get(worker.name, []), now_ms, links) for worker in workers],
        "count": words.number(len(workers)),
        "slots": words.number(sum(worker.slots for worker in workers)),
        "busy": words.number(sum(worker.running for worker in workers)),
        "versions": [
            {"name": name or "(unknown)", "count": count}
            for name, count in sorted(versions.items(), key=lambda item: -item[1])
        ],
        "differ": len(versions) > 1,
        "gone": [
            {"id": record.id, "url": links.job(record.id), "task": record.spec.task, "worker": record.worker or "?"}
            for record in gone
        ],
        "is_cut": is_cut,
    }


def _worker(worker: WorkerInfo, jobs: Sequence[JobRecord], now_ms: int, links: Links) -> View:
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "release": worker.release[:8],
        "pools": worker.pools,
        "users": _users(worker),
        "slots": words.number(worker.slots),
        "running": words.number(worker.running),
        "percent": words.percent(worker.running, worker.slots),
        "since": words.when(worker.since_ms, now_ms),
        "seen": words.when(worker.seen_ms, now_ms),
        "late": now_ms - worker.seen_ms > LATE_MS,
        "jobs": [
            {
                "id": record.id,
                "url": links.job(record.id),
                "task": record.spec.task,
                "for": None if record.started_ms is None else words.duration(now_ms - record.started_ms),
            }
            for record in jobs
        ],
    }


def _users(worker: WorkerInfo) -> str:
    if worker.users is None:
        return "everyone's jobs"
    named = ", ".join([user or "(no user)" for user in worker.users]) or "nobody's"
    if worker.steal == "*":
        return f"{named}; helps everyone"
    helped = ", ".join([user or "(no user)" for user in worker.steal])
    return f"{named}; helps {helped}" if helped else named


# --- limits and pauses -----------------------------------------------------------------------------------------------


def limits_view(limits: Sequence[LimitState], pauses: Sequence[PauseState], now_ms: int, links: Links) -> View:
    """Return the page of limits, and of pauses."""
    return {
        "rows": [limit_line(state, links) for state in limits],
        "pauses": [pause_line(pause, now_ms, links) for pause in pauses],
    }


def limit_line(state: LimitState, links: Links) -> View:
    """Return a limit with its count."""
    limit = state.limit
    bars = []
    if limit.most is not None and state.started is not None and not limit.each:
        bars.append(_bar("running", state.started, limit.most))
    if limit.max_pending is not None and state.pending is not None and not limit.each:
        bars.append(_bar("unfinished", state.pending, limit.max_pending))
    is_full = any(bar["full"] for bar in bars)
    return {
        "scope": _scope(limit),
        "url": _scope_url(limit, links),
        "text": limit_text(limit),
        "bars": bars,
        "started": None if state.started is None else words.number(state.started),
        "pending": None if state.pending is None else words.number(state.pending),
        "each": limit.each,
        "full": is_full,
        "acts": [danger("unlimit", "Lift", **_limit_fields(limit))],
        "most": limit.most,
        "max_pending": limit.max_pending,
        "burst": limit.burst,
        "rate_count": None if limit.rate is None else limit.rate[0],
        "rate_s": None if limit.rate is None else f"{limit.rate[1] / 1000:g}",
    }


def _bar(label: str, count: int, most: int) -> View:
    return {
        "label": label,
        "text": f"{words.number(count)} of {words.number(most)} {label}",
        "percent": words.percent(count, most),
        "full": count >= most,
    }


def limit_text(limit: Limit) -> str:
    """
    Return a limit in words.

    >>> limit_text(Limit(path=("a",), most=3, rate=(10, 60_000), burst=5))
    'at most 3 run at once; 10 starts in 1 min, 5 at once'
    """
    said = []
    if limit.most is not None:
        said.append(f"at most {words.number(limit.most)} run at once")
    if limit.rate is not None:
        at_once = f", {words.number(limit.burst)} at once" if limit.burst is not None else ""
        said.append(f"{words.counted(limit.rate[0], 'start')} in {words.duration(limit.rate[1])}{at_once}")
    if limit.max_pending is not None:
        said.append(f"at most {words.number(limit.max_pending)} unfinished")
    return "; ".join(said)


def _scope(limit: Limit) -> str:
    if limit.task is not None:
        return f"task {limit.task}"
    if limit.pool is not None:
        return f"pool {limit.pool}"
    if limit.path is None:
        return "the whole namespace"
    return f"each place below {queue_key(limit.path)}" if limit.each else queue_key(limit.path)


def _scope_url(limit: Limit, links: Links) -> str | None:
    if limit.task is not None:
        return links.jobs(task=limit.task)
    if limit.pool is not None:
        return links.jobs(pool=limit.pool)
    return None if limit.path is None else links.place(limit.path)


def _limit_fields(limit: Limit) -> dict[str, str]:
    """Return the fields of an order that name the scope of a limit."""
    if limit.task is not None:
        return {"task": limit.task}
    if limit.pool is not None:
        return {"pool": limit.pool}
    if limit.path is None:
        return {"namespace": "on"}
    return {"path": queue_key(limit.path), **({"each": "on"} if limit.each else {})}


def pause_line(pause: PauseState, now_ms: int, links: Links) -> View:
    """Return a pause with its parked jobs."""
    chosen = pause.filter
    fields = {**({} if chosen.path is None else {"path": queue_key(chosen.path)}), **_selected(chosen)}
    return {
        "text": selection_text(chosen),
        "url": links.place(chosen.path) if chosen.path is not None else links.jobs(**_selected(chosen)),
        "until": words.when(pause.until_ms, now_ms),
        "parked": words.number(pause.parked),
        "acts": [act("resume", **fields)],
    }


def selection_text(chosen: RecordFilter) -> str:
    """
    Return the selection of a pause, in words.

    >>> selection_text(RecordFilter(path=("doc1",), user="ann"))
    'doc1 and below, user ann'
    """
    at = [] if chosen.path is None else [f"{queue_key(chosen.path)} and below"]
    return ", ".join([*at, *[f"{name} {value}" for name, value in _selected(chosen).items()]])


def _selected(chosen: RecordFilter) -> dict[str, str]:
    found = {name: getattr(chosen, name) for name in ("task", "user", "service", "pool", "tag")}
    return {name: value for name, value in found.items() if value is not None}


# --- schedules -------------------------------------------------------------------------------------------------------


def schedule_line(schedule: Schedule, now_ms: int, links: Links) -> View:
    """Return a schedule in words."""
    recurrence = schedule.recurrence
    cron = recurrence.cron
    if cron is not None:
        said, raw = words.cron_words(cron), f"{cron} {recurrence.timezone}"
    else:
        said, raw = f"every {words.duration(recurrence.every_ms or 0)}", None
    word = "resume" if schedule.is_paused else "pause"
    missed = {"skip": "drops them", "once": "fires once for all", "all": "fires for each"}[recurrence.missed]
    return {
        "name": schedule.name,
        "task": schedule.task,
        "task_url": links.jobs(task=schedule.task),
        "words": said or cron,
        "raw": raw,
        "zone": recurrence.timezone if cron is not None and recurrence.timezone != "UTC" else None,
        "missed": missed,
        "next": None if schedule.is_paused else words.when(schedule.next_ms, now_ms),
        "late": not schedule.is_paused and schedule.next_ms is not None and now_ms - schedule.next_ms > LATE_MS,
        "last": words.when(schedule.last_ms, now_ms),
        "last_url": None if schedule.last_id is None else links.job(schedule.last_id),
        "paused": schedule.is_paused,
        "places": [queue_key(claim.path) for claim in schedule.spec.claims],
        "pool": schedule.spec.pool,
        "acts": [
            act("run-schedule", "Run now", name=schedule.name),
            act(f"{word}-schedule", word.capitalize(), name=schedule.name),
        ],
    }


# --- users -----------------------------------------------------------------------------------------------------------


def users_view(
    weights: Mapping[str | None, int],
    running: Sequence[JobRecord],
    ready: Sequence[JobRecord],
    users: Sequence[tuple[str, int]],
    links: Links,
    *,
    is_cut: bool = False,
) -> View:
    """
    Return the page of users, with their weights, and their actual and promised shares of running jobs.

    Args:
        running: STARTED jobs; *is_cut* says that there are more of them.
        ready: QUEUED jobs, of which the users are named too.
        users: of a service, each with how many records are kept.
    """
    runs = Counter([record.spec.user for record in running])
    waits = Counter([record.spec.user for record in ready])
    kept = dict(users)
    names = sorted({*weights, *runs, *waits, *kept}, key=lambda name: (name is not None, name or ""))
    active = [name for name in names if runs[name] or waits[name]]
    promised = sum(weights.get(name, 1) for name in active)
    return {
        "rows": [
            {
                "name": name,
                "label": name if name is not None else "(no user)",
                "url": None if name is None else links.jobs(user=name),
                "weight": weights.get(name, 1),
                "running": words.number(runs[name]),
                "waiting": words.number(waits[name]),
                "kept": words.number(kept[name]) if name in kept else None,
                "share": words.percent(runs[name], runs.total()),
                "promised": words.percent(weights.get(name, 1), promised) if name in active else None,
            }
            for name in names
        ],
        "is_cut": is_cut,
        "is_idle": not active,
    }
