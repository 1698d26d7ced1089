"""Replies of scripts about waiting jobs: reasons, counts and trees. No I/O."""

from __future__ import annotations

import json
from typing import Any

import attrs

from queuehint.backends.redis.codec.specs import IDENTITY_MARK, facts, number_of, parse_claims_text, parse_identity
from queuehint.backends.redis.scripts import STATES
from queuehint.errors import JobNotFoundError
from queuehint.operations import (
    ANYONE,
    Chain,
    CountEdges,
    CountJobs,
    CountPending,
    Lines,
    ListLines,
    PathReasons,
    Pending,
    PlacedJob,
    Tree,
    Why,
)
from queuehint.values.hint import DEPTH_MAX, Path, key_of, parse_gate_key
from queuehint.values.outcome import Progress
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import Delays, EdgeStats, Reason, ReasonKind, Stats, TreeNode, WorkerInfo, unserved_text

_REASON_FIELDS = 11
"""
The items of a reply that every reason has. After them come: for a running job, whether it is overdue; for a job that
no worker serves, the number of workers and the first of them; for a job that is paused by a filter, the filter.
"""


def edge_stats(_operation: CountEdges, reply: list[Any]) -> EdgeStats:
    """Return statistics of edges."""
    deferred, open_edges, oldest_id, oldest_ms, looked_at, most_blocked, most_awaited, behind_dead, orphans = reply
    return EdgeStats(
        deferred=deferred,
        open_edges=open_edges,
        oldest_id=oldest_id.decode() or None,
        oldest_ms=oldest_ms if oldest_id else None,
        looked_at=looked_at,
        most_blocked=most_blocked,
        most_awaited=most_awaited,
        behind_dead=behind_dead,
        orphans=tuple([job_id.decode() for job_id in orphans]),
    )


def _reason(reply: list[Any]) -> Reason:
    job_id, state, kind, jobs, path, until, stuck, detail, open_dependencies, dependencies, progress = [
        field.decode() for field in reply[:_REASON_FIELDS]
    ]
    return Reason(
        job_id=job_id,
        state=STATES[state],
        kind=ReasonKind(kind),
        jobs=tuple(jobs.split("\n")) if jobs else (),
        path_key=key_of(parse_gate_key(path[1:])) if path else None,
        until_ms=number_of(until),
        stuck=stuck == "1",
        detail=detail[1:] if detail else None,
        open_dependencies=int(open_dependencies),
        dependencies=int(dependencies),
        progress=Progress(*json.loads(progress)) if progress else None,
    )


def _overdue(reason: Reason, started: bytes, now_ms: bytes, rest: bytes) -> Reason:
    """Mark the report of a running job as overdue after its timeout, which no script can compute."""
    if reason.kind is not ReasonKind.RUNNING:
        return reason
    if rest.startswith(IDENTITY_MARK):
        _, rest = parse_identity(rest)
    timeout_ms = facts(rest.partition(b"\n")[0].partition(b"\t")[0], "").policy.timeout_ms
    overdue = timeout_ms is not None and int(started) + timeout_ms < int(now_ms)
    return attrs.evolve(reason, kind=ReasonKind.OVERDUE) if overdue else reason


def worker_info(name: bytes, told: bytes, since_ms: int, seen_ms: int, release: bytes) -> WorkerInfo:
    """Return the info of a worker."""
    host, pid, version, pools, users, steal, slots, running = json.loads(told)
    return WorkerInfo(
        name=name.decode(),
        host=host,
        pid=pid,
        version=version,
        pools=tuple(pools),
        users=None if users is None else tuple(users),
        steal=steal if steal == ANYONE else tuple(steal),
        slots=slots,
        running=running,
        since_ms=since_ms,
        seen_ms=seen_ms,
        release=release.decode(),
    )


def _told(reply: list[Any]) -> Reason:
    """Complete a reason on the client: overdue jobs, and workers that do not serve the job."""
    started, now_ms, rest, *workers = reply[_REASON_FIELDS:]
    reason = _overdue(_reason(reply), started, now_ms, rest)
    if reason.kind in {ReasonKind.PAUSED, ReasonKind.LIMIT} and workers:
        return attrs.evolve(reason, selection=parse_pause(workers[0]))
    if reason.kind is not ReasonKind.NO_WORKER or reason.detail is None:
        return reason
    count, *some = workers
    named = [worker_info(*some[at : at + 5]) for at in range(0, len(some), 5)]
    return attrs.evolve(reason, detail=unserved_text(reason.detail, named, count))


def parse_pause(name: bytes) -> RecordFilter:
    """Return the filter of a pause by its name in the store: a gate key, or words behind line ends."""
    text = name.decode()
    if not text.startswith("\n"):
        return RecordFilter(path=parse_gate_key(text))
    service, user, task, pool, tag, path = text[1:].split("\n")
    return RecordFilter(
        service=service or None,
        user=user or None,
        task=task or None,
        pool=pool or None,
        tag=tag or None,
        path=parse_gate_key(path[1:]) if path else None,
    )


def why(operation: Why, reply: list[Any]) -> Chain:
    """Return the reasons from a job to the root cause of its wait, or the waiting jobs of a path."""
    if operation.job_id is None:
        assert operation.path is not None
        return Chain((), _at_path(operation.path, reply))
    if not reply:
        raise JobNotFoundError(operation.job_id)
    return Chain(tuple([_told(hop) for hop in reply]))


def _at_path(path: Path, reply: list[Any]) -> PathReasons:
    waiting, is_whole, more_ahead, holders, oldest, newest, *told = reply
    jobs = tuple(map(_placed, told))
    return PathReasons(
        path_key=key_of(path),
        oldest=jobs[:oldest],
        newest=jobs[oldest : oldest + newest],
        ahead=jobs[oldest + newest :],
        waiting=waiting,
        more_ahead=more_ahead,
        holders=holders,
        complete=bool(is_whole),
    )


def _placed(reply: list[Any]) -> PlacedJob:
    task, user, claim, count, enqueued, reason = reply
    claims = parse_claims_text(claim.decode())
    told = _told(reason)
    return PlacedJob(
        id=told.job_id,
        task=task.decode(),
        user=user.decode() or None,
        path_key=key_of(claims[0].path) if claims else None,
        mode=claims[0].mode if claims else None,
        claims=count,
        enqueued_ms=int(enqueued),
        reason=told,
    )


def pending(_operation: CountPending, reply: list[Any]) -> Pending:
    """Return the unfinished counts, and the reasons of stalled jobs."""
    return Pending(reply[0], moving=bool(reply[1]), reasons=tuple([_told(reason) for reason in reply[2:]]))


_NODE = 12
"""How many values tell of a place."""


def tree(operation: Tree, reply: list[Any]) -> TreeNode:
    """Build the tree of a flat list of places in depth-first order."""
    children: list[list[TreeNode]] = [[] for _ in range(DEPTH_MAX + 2)]
    for at in range(len(reply) - _NODE, -1, -_NODE):
        path = parse_gate_key(reply[at].decode())
        below = children[len(path) + 1]
        children[len(path)].append(_place(reply, at, path, tuple(reversed(below))))
        below.clear()
    return children[len(operation.path)][0]


def lines(_operation: ListLines, reply: list[Any]) -> Lines:
    """Return a page of the longest lines."""
    places = [_place(reply, at, parse_gate_key(reply[at].decode())) for at in range(1, len(reply), _NODE)]
    return Lines(tuple(places), reply[0].decode() or None)


def _place(reply: list[Any], at: int, path: Path, children: tuple[TreeNode, ...] = ()) -> TreeNode:
    counts, cursor = reply[at + 1 : at + _NODE - 1], reply[at + _NODE - 1]
    started, started_below, waiting, granted, passing, paused, closed, dead, signals, signals_below = counts
    after = None
    if cursor:
        (after,) = parse_gate_key(cursor[1:].decode()) or ("",)
    return TreeNode(
        path_key=key_of(path),
        started=started,
        started_below=started_below,
        waiting=waiting,
        granted=granted,
        passing=passing,
        paused=bool(paused),
        closed=bool(closed),
        dead=dead,
        waiting_for_signals=signals,
        waiting_for_signals_below=signals_below,
        children=children,
        after=after,
    )


_STATS = (
    "enqueued", "started", "settled", "finished", "failed", "canceled", "retried", "snoozed", "released", "lost",
    "pruned", "dropped", "waiting_for_signals", "leftovers", "nodes",
)  # fmt: skip


def stats(_operation: CountJobs, reply: list[Any]) -> Stats:
    """Return the counts of a namespace."""
    states, totals, stuck, ready, (resolved, sum_ms, max_ms), oldest = reply
    return Stats(
        states=dict(zip(JobState, states, strict=True)),
        ready={ready[at].decode(): ready[at + 1] for at in range(0, len(ready), 2)},
        oldest_ready_ms={oldest[at].decode(): oldest[at + 1] for at in range(0, len(oldest), 2)},
        stuck=dict(
            zip(
                (
                    ReasonKind.PAUSED.value,
                    ReasonKind.DEAD_HOLD.value,
                    ReasonKind.DEAD_DEPENDENCY.value,
                    ReasonKind.NO_WORKER.value,
                    ReasonKind.UNKNOWN_TASK.value,
                ),
                stuck,
                strict=True,
            )
        ),
        resolved=Delays(count=resolved, sum_ms=sum_ms, max_ms=max_ms),
        **dict(zip(_STATS, totals, strict=True)),
    )
