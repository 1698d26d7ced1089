"""Now: six numbers, the waits that need action, the hottest places, pools and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from queuehint.values.hint import parse_key
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import PauseState, Reason, ReasonKind, Stats, TreeNode, WorkerInfo
from queuehint.values.signal import name_of
from queuehint.web.pages.views import words
from queuehint.web.pages.views.jobs import row
from queuehint.web.pages.views.standing import pause_line
from queuehint.web.pages.views.why import acts

if TYPE_CHECKING:
    from queuehint.web.pages.views.links import Links

View = dict[str, Any]
Samples = Sequence[tuple[int, Mapping[str, int]]]
"""Numbers by name, each with when they were so."""

SPAN_MS = 600_000
"""The span of a sparkline."""

HOT_PLACES = 10
CAUSES_SHOWN = 3
"""So many causes of each kind are shown."""
EDGES_LOOKED_AT = 20
LOOKED_AT = 50
"""So many dead and so many deferred jobs are looked at for causes."""


def tiles(
    states: Mapping[JobState, int],
    links: Links,
    *,
    ready: Mapping[str, int] | None,
    oldest_ready_ms: Mapping[str, int],
    stuck: int,
    slots: int,
    now_ms: int,
) -> list[View]:
    """
    Return the six numbers.

    Args:
        ready: by pool; None where that is not known, below a scope: ready jobs count as waiting in line then.
        slots: of all workers; 0 if that is not known.
    """
    scheduled, deferred = states.get(JobState.SCHEDULED, 0), states.get(JobState.DEFERRED, 0)
    running, queued = states.get(JobState.STARTED, 0), states.get(JobState.QUEUED, 0)
    dead = states.get(JobState.FAILED, 0)
    ready_now = sum((ready or {}).values())
    oldest = [time_ms for pool, time_ms in oldest_ready_ms.items() if (ready or {}).get(pool)]
    oldest_text = f"the oldest for {words.duration(now_ms - min(oldest))}" if oldest else "a worker may take them"
    found = [
        _tile(
            "Running", running, f"in {words.counted(slots, 'slot')}" if slots else "", "started", links, state="running"
        ),
        _tile("Ready", ready_now, oldest_text, "ready", links, state="queued"),
        _tile(
            "In line",
            max(0, queued - ready_now),
            "behind a place, limit, pause or back-off",
            "queued",
            links,
            state="queued",
        ),
        _tile(
            "Not due",
            scheduled + deferred,
            f"{words.number(scheduled)} for a time, {words.number(deferred)} for other jobs",
            "scheduled",
            links,
            state=["scheduled", "deferred"],
        ),
        {
            "label": "Stuck",
            "number": stuck,
            "count": words.number(stuck),
            "note": "need action" if stuck else "",
            "kind": "failed" if stuck else "quiet",
            "url": "#stuck",
        },
        {
            "label": "Dead",
            "number": dead,
            "count": words.number(dead),
            "note": "in the dead-letter queue" if dead else "",
            "kind": "failed" if dead else "quiet",
            "url": links.at("dead"),
        },
    ]
    return found if ready is not None else [found[0], *found[2:]]


def _tile(label: str, count: int, note: str, kind: str, links: Links, *, state: object) -> View:
    return {
        "label": label,
        "number": count,
        "count": words.number(count),
        "note": note if count else "",
        "kind": kind if count else "quiet",
        "url": links.jobs(state=state),
    }


def causes(
    dead: Sequence[JobRecord],
    deferred: Sequence[JobRecord],
    known: Mapping[str, JobRecord],
    pauses: Sequence[PauseState],
    unserved: Sequence[tuple[str, int]],
    now_ms: int,
    links: Links,
) -> list[View]:
    """
    Return the causes of waits that need action, each with the orders that end the wait.

    Args:
        dead: FAILED jobs; those that hold a place are causes.
        deferred: DEFERRED jobs, of which some wait for a signal, or for a dead job.
        known: records of the jobs that *deferred* depend on, by id.
        pauses: those without an end that hold jobs are causes.
        unserved: pools with ready jobs that no worker serves, each with how many jobs are ready.
    """
    found = [_cause(_dead_hold(record), record, now_ms, links) for record in dead if _holds(record)]
    for record in deferred:
        for edge in record.spec.depends_on[:EDGES_LOOKED_AT]:
            other = known.get(edge.id)
            if name_of(edge.id) is not None:
                found.append(_cause(_reason(record, ReasonKind.SIGNAL, edge.id), record, now_ms, links))
                break
            if other is not None and other.state is JobState.FAILED:
                found.append(_cause(_reason(record, ReasonKind.DEAD_DEPENDENCY, other.id), other, now_ms, links))
                break
    for pause in pauses:
        if pause.until_ms is None:
            line, held = pause_line(pause, now_ms, links), words.counted(pause.parked, "ready job")
            said = {"text": line["text"], "url": line["url"], "acts": line["acts"], "note": f"{held} held back"}
            found.append({**_frame(ReasonKind.PAUSED, "paused"), **said})
    found += [
        {
            **_frame(ReasonKind.NO_WORKER, "pool"),
            "text": pool,
            "url": links.jobs(pool=pool, state="queued"),
            "note": f"{words.counted(ready, 'job')} ready",
            "command": f"queuehint worker MODULE:SCHEDULER --pools {quote(pool)}",
        }
        for pool, ready in unserved
    ]
    return found


def groups_of(found: Sequence[View], counts: Mapping[str, int], links: Links) -> list[View]:
    """
    Return the causes by kind: the first of each kind, and the number of waits.

    Args:
        counts: of waits that are stuck, by kind: a kind of which no cause was found is there without one.
    """
    kinds = dict.fromkeys([cause["kind"] for cause in found])
    kinds.update(dict.fromkeys([kind for kind, count in counts.items() if count]))
    groups = []
    for kind in kinds:
        some = [cause for cause in found if cause["kind"] == kind]
        waits = counts.get(kind, 0)
        groups.append(
            {
                "kind": kind,
                "title": words.TITLES[ReasonKind(kind)],
                "waits": f"{words.counted(waits, 'job')} stuck" if waits else None,
                "end": words.ENDS[ReasonKind(kind)],
                "causes": some[:CAUSES_SHOWN],
                "more": words.number(len(some) - CAUSES_SHOWN) if len(some) > CAUSES_SHOWN else None,
                "url": links.jobs(state=_STATES_OF[kind]) if kind in _STATES_OF and not some else None,
            }
        )
    return groups


_STATES_OF: Final = {
    ReasonKind.UNKNOWN_TASK: "queued",
    ReasonKind.DEPENDENCY: "deferred",
    ReasonKind.SIGNAL: "deferred",
}


def edge_ids(deferred: Sequence[JobRecord]) -> list[str]:
    """Return the ids of jobs that some depend on, so far as `causes` looks at them."""
    return [
        edge.id for record in deferred for edge in record.spec.depends_on[:EDGES_LOOKED_AT] if name_of(edge.id) is None
    ]


def _holds(record: JobRecord) -> bool:
    return record.spec.policy.on_dead == "hold" and bool(record.spec.claims)


def _dead_hold(record: JobRecord) -> Reason:
    key = record.queue_keys[0]
    return Reason(
        job_id=record.id, state=record.state, kind=ReasonKind.DEAD_HOLD, jobs=(record.id,), path_key=key, stuck=True
    )


def _reason(record: JobRecord, kind: ReasonKind, other: str) -> Reason:
    return Reason(job_id=record.id, state=record.state, kind=kind, jobs=(other,), stuck=True)


def _frame(kind: ReasonKind, label: str) -> View:
    empty: View = {"text": "", "url": None, "note": None, "acts": [], "command": None, "job": None, "why": None}
    return {"kind": str(kind), "label": label, "signal": None, "error": None, **empty}


def _cause(reason: Reason, record: JobRecord, now_ms: int, links: Links) -> View:
    """Return a cause that is a job: the one that is dead, or the one that waits for a signal."""
    name = name_of(reason.jobs[0])
    at = [key for key in record.queue_keys[:1] if reason.kind is ReasonKind.DEAD_HOLD]
    job = row(record, now_ms, links)
    return {
        **_frame(reason.kind, "job"),
        "job": job,
        "signal": name,
        "error": job["error"],
        "note": f"holds {at[0]}" if at else None,
        "why": links.why(reason.job_id) if reason.kind is not ReasonKind.DEAD_HOLD else None,
        "acts": acts(reason),
    }


def hot_places(root: TreeNode, links: Links) -> list[View]:
    """Return the places with the longest lines, each with its heat."""
    most = max([node.waiting for node in root.children], default=0)
    return [
        {
            "key": node.path_key,
            "url": links.place(parse_key(node.path_key)),
            "waiting": words.number(node.waiting),
            "running": words.number(node.started_below),
            "percent": words.percent(node.waiting, most),
            "heat": words.heat(node.waiting, most),
            "paused": node.paused,
            "closed": node.closed,
            "dead": node.dead,
        }
        for node in root.children
        if node.waiting
    ]


def pools(stats: Stats, workers: Sequence[WorkerInfo], now_ms: int) -> list[View]:
    """Return the pools that have ready jobs or workers. A pool with ready jobs and no worker is an alarm."""
    names = sorted({pool for pool, count in stats.ready.items() if count}.union(*[each.pools for each in workers]))
    found = []
    for pool in names:
        serving = [worker for worker in workers if pool in worker.pools]
        ready, slots = stats.ready.get(pool, 0), sum(worker.slots for worker in serving)
        busy = sum(worker.running for worker in serving)
        oldest_ms = stats.oldest_ready_ms.get(pool) if ready else None
        found.append(
            {
                "name": pool,
                "ready": words.number(ready),
                "oldest": None if oldest_ms is None else words.duration(now_ms - oldest_ms),
                "workers": words.number(len(serving)),
                "busy": words.number(busy),
                "slots": words.number(slots),
                "percent": words.percent(busy, slots),
                "unserved": bool(ready) and not serving,
            }
        )
    return found


def numbers(found: Sequence[View]) -> dict[str, int]:
    """Return the numbers of tiles, by their labels."""
    return {tile["label"]: tile["number"] for tile in found}


def with_sparks(found: Sequence[View], samples: Samples, now_ms: int) -> list[View]:
    """Return tiles with their sparklines, None for a tile without one."""
    return [{**tile, "spark": spark(samples, tile["label"], now_ms)} for tile in found]


def spark(samples: Samples, name: str, now_ms: int) -> str | None:
    """
    Return the points of a line over the last ten minutes, in a box of 100 by 20, None for fewer than two moments.

    >>> spark([(0, {"a": 0}), (300_000, {"a": 5}), (600_000, {"a": 10})], "a", 600_000)
    '0,19 50,10 100,1'
    >>> spark([(0, {"a": 1})], "a", 600_000)
    """
    known = [(at_ms, values[name]) for at_ms, values in samples if name in values]
    most = max([value for _, value in known], default=0)
    if len(known) < 2 or not most:
        return None
    points = [(100 - 100 * (now_ms - at_ms) / SPAN_MS, 19 - 18 * value / most) for at_ms, value in known]
    return " ".join([f"{x:.4g},{y:.4g}" for x, y in points])
