"""Health of the store: availability, version and warnings, also during an outage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from queuehint.backends.masks import masked
from queuehint.errors import BackendError, BackendUnavailableError
from queuehint.values.report import EdgeStats, Stats, WorkerInfo
from queuehint.web.pages.views import words

if TYPE_CHECKING:
    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.web.pages.views.links import Links

View = dict[str, Any]


def checks(stats: Stats, edges: EdgeStats, workers: Sequence[WorkerInfo], took_ms: float, links: Links) -> list[View]:
    """Return the checks, each with its level (``good``, ``warn`` or ``bad``), and the action to take."""
    served = {pool for worker in workers for pool in worker.pools}
    unserved = sorted({pool for pool, count in stats.ready.items() if count} - served)
    versions = {worker.version or worker.release for worker in workers}
    stuck, orphans = sum(stats.stuck.values()), len(edges.orphans)
    found = [_check("store", "good", "The store answers", f"in {words.duration(took_ms)} for this page")]
    if unserved:
        advice = "start one: queuehint worker MODULE:SCHEDULER --pools …"
        found.append(_check("workers", "bad", f"No worker serves pool {words.listed(unserved)}", advice))
    elif workers:
        text = "Each pool with ready jobs has a worker"
        found.append(_check("workers", "good", text, words.counted(len(workers), "worker")))
    else:
        found.append(_check("workers", "warn", "No worker is running", "no job is ready for one now"))
    if len(versions) > 1:
        note = "as during a deployment; else look at the workers"
        found.append(_check("versions", "warn", "Workers run different releases", note, links.at("workers")))
    elif versions:
        found.append(_check("versions", "good", "All workers run one release", ""))
    if stuck:
        text = f"{words.counted(stuck, 'wait')} in need of action"
        found.append(_check("stuck", "warn", text, "their orders are on the page Now", f"{links.at('')}#stuck"))
    else:
        found.append(_check("stuck", "good", "No wait needs action", ""))
    if orphans:
        text = f"{words.counted(orphans, 'job')} with an edge that leads nowhere"
        found.append(_check("edges", "bad", text, "repair: queuehint doctor URL --fix"))
    else:
        note = words.counted(edges.open_edges, "open edge")
        found.append(_check("edges", "good", "Every edge leads to a job", note))
    if stats.dropped:
        text = f"{words.counted(stats.dropped, 'record')} dropped before their time"
        found.append(_check("dropped", "warn", text, "the store was short of memory"))
    else:
        found.append(_check("dropped", "good", "No record was dropped before its time", ""))
    return found


def _check(name: str, level: str, text: str, note: str, url: str | None = None) -> View:
    return {"name": name, "level": level, "text": text, "note": note, "url": url}


def totals(stats: Stats) -> list[View]:
    """Return the totals since the store began."""
    names = ("enqueued", "started", "settled", "finished", "failed", "canceled")
    more = ("retried", "snoozed", "released", "lost", "pruned", "dropped")
    found = [{"name": name, "value": words.number(getattr(stats, name))} for name in (*names, *more)]
    delays = stats.resolved
    mean = words.duration(delays.sum_ms / delays.count) if delays.count else "–"
    return [
        *found,
        {"name": "places in the tree", "value": words.number(stats.nodes)},
        {"name": "mean wait after the last dependency", "value": mean},
    ]


def away(error: BackendError, store: str) -> View:
    """
    Return the message for a store that is unavailable, or refuses a request.

    Args:
        store: its address without a password.
    """
    is_away = isinstance(error, BackendUnavailableError)
    if store.startswith(("redis", "rediss", "valkey", "unix")):
        advice = ["redis-cli -u URL ping", "queuehint doctor URL"]
    elif store.startswith("postgres"):
        advice = ["psql URL -c 'select 1'", "queuehint doctor URL"]
    else:
        advice = ["queuehint doctor URL"]
    head = "The store does not answer" if is_away else "The store reports an error"
    return {"head": head, "error": str(error), "store": store, "advice": advice}


def facts(scheduler: Scheduler) -> list[View]:
    """Return the known facts of a store, without a request."""
    backend = scheduler.backend
    return [
        {"name": "address", "value": masked(scheduler.url)},
        {"name": "namespace", "value": scheduler.namespace},
        {"name": "kind", "value": type(backend).__name__.removesuffix("Backend")},
        {"name": "keeps jobs", "value": "beyond this process" if backend.is_durable else "in this process alone"},
        {"name": "asked", "value": "within this process" if backend.is_local else "over a connection"},
    ]
