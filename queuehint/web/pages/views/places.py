"""Places: a tree with heat, and the holders and the line of a place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queuehint.values.hint import Path, is_prefix, parse_key, queue_key
from queuehint.values.limit import LimitState
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import PauseState, TreeNode
from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import Act, act, asked, danger
from queuehint.web.pages.views.jobs import row
from queuehint.web.pages.views.standing import limit_line

if TYPE_CHECKING:
    from queuehint.web.pages.views.links import Links

View = dict[str, Any]

TREE_ROWS = 50
"""So many children of a place are on a page."""
ROWS_MAX = 100
"""So many places of two levels are on a page."""
LINE_SHOWN = 50
_HOLDING = frozenset({JobState.STARTED, JobState.FAILED})
"""A job that another one waits for, in one of these states, holds a place."""


def crumbs(path: Path, links: Links, scope: Path = ()) -> list[View]:
    """Return the path to a place from the root or the scope, each step with its address."""
    return [
        {
            "name": path[depth - 1] if depth else "all places",
            "url": links.place(path[:depth]),
            "current": depth == len(path),
        }
        for depth in range(len(scope), len(path) + 1)
    ]


def live(node: TreeNode) -> int:
    """Return the number of claims at a place, or past it."""
    return node.waiting + node.granted + node.passing


def line_below(node: TreeNode) -> int:
    """Return how many claims wait at a place and below it, as far as the tree was read."""
    return node.waiting + sum(line_below(child) for child in node.children)


def tree_rows(node: TreeNode, links: Links, limits: Sequence[LimitState] = ()) -> list[View]:
    """
    Return the places below one as rows of a treegrid, in the order in which they stand.

    With more than `ROWS_MAX` of them those of the second level are left out, and their parents say so.
    """
    every = _all_below(node)
    depth = 2 if len(every) <= ROWS_MAX else 1
    most_line, most_live = _most(every)
    rows: list[View] = []

    def add(children: Sequence[TreeNode], level: int) -> None:
        for position, child in enumerate(children, 1):
            row = _row(child, level, position, len(children), most_line, most_live, links, limits)
            is_folded = level == depth and bool(child.children)
            rows.append(
                {**row, "is_cut": row["is_cut"] or is_folded, "has_children": row["has_children"] and not is_folded}
            )
            if level < depth:
                add(child.children, level + 1)

    add(node.children, 1)
    return rows


def line_rows(places: Sequence[TreeNode], links: Links, limits: Sequence[LimitState] = ()) -> list[View]:
    """Return the places with the longest lines as rows, labeled with the whole key."""
    most_line, most_live = _most(places)
    rows = [
        _row(place, 1, position, len(places), most_line, most_live, links, limits)
        for position, place in enumerate(places, 1)
    ]
    return [{**row, "name": row["key"]} for row in rows]


def _most(nodes: Sequence[TreeNode]) -> tuple[int, int]:
    """Return the longest line of some places, and the most claims."""
    return max([line_below(each) for each in nodes], default=0), max([live(each) for each in nodes], default=0)


def _all_below(node: TreeNode) -> list[TreeNode]:
    found: list[TreeNode] = []
    for child in node.children:
        found += [child, *_all_below(child)]
    return found


def _row(
    node: TreeNode,
    level: int,
    position: int,
    size: int,
    most_line: int,
    most_live: int,
    links: Links,
    limits: Sequence[LimitState],
) -> View:
    path = parse_key(node.path_key)
    line = line_below(node)
    return {
        "key": node.path_key,
        "name": path[-1] if path else "all places",
        "url": links.place(path),
        "level": level,
        "position": position,
        "size": size,
        "running": node.started_below,
        "here": node.granted,
        "waiting": node.waiting,
        "line": line,
        "passing": node.passing,
        "live": live(node),
        "heat": words.heat(line, most_line),
        "bar": bar(node, most_live),
        "paused": node.paused,
        "closed": node.closed,
        "dead": node.dead,
        "signals": node.waiting_for_signals_below,
        "limits": [limit_line(state, links)["text"] for state in limits if applies(state, path)],
        "has_children": bool(node.children),
        "is_cut": node.after is not None,
    }


def bar(node: TreeNode, most: int) -> View:
    """
    Return the parts of a bar in thousandths: running, granted without running, waiting, passing.

    The whole bar is the share of the place in the place with most claims; each part that is there is seen.
    """
    total = live(node)
    width = max(40, round(1000 * total / most)) if total and most else 0
    running = min(node.started, node.granted)
    parts = [
        ("started", running),
        ("failed", min(node.dead, node.granted - running)),
        ("granted", max(0, node.granted - running - node.dead)),
        ("queued", node.waiting),
        ("passing", node.passing),
    ]
    at, found = 0, []
    for kind, count in parts:
        if count > 0:
            size = max(8, round(width * count / total))
            found.append({"kind": kind, "at": at, "width": size})
            at += size
    said = {"started": "running", "failed": "dead", "granted": "granted", "queued": "waiting", "passing": "below"}
    text = ", ".join([f"{words.number(count)} {said[kind]}" for kind, count in parts if count > 0])
    return {"parts": found, "text": text or "nothing live"}


def applies(state: LimitState, path: Path) -> bool:
    """Return whether a limit is one of this very place."""
    limit = state.limit
    if limit.path is None:
        return False
    return limit.path == path[:-1] if limit.each and path else limit.path == path and not limit.each


def place_view(
    path: Path,
    node: TreeNode,
    running: Sequence[JobRecord],
    queued: Sequence[JobRecord],
    ahead: Mapping[str, JobRecord],
    limits: Sequence[LimitState],
    pauses: Sequence[PauseState],
    now_ms: int,
    links: Links,
    *,
    is_cut: bool = False,
) -> View:
    """
    Return a place with its holders and its line.

    Args:
        running: STARTED jobs at or below it.
        queued: QUEUED jobs at or below it, in order of their places; at the root those without a place too.
        ahead: the jobs that the first of *queued* waits for, by id: one further up may hold the place.
        is_cut: there are more QUEUED jobs.
    """
    ours = [record for record in running if at(record, path)]
    below = [record for record in running if record.spec.claims and not at(record, path)]
    known = {record.id for record in running}
    others = [record for record in ahead.values() if record.state in _HOLDING and record.id not in known]
    held = [record for record in others if at(record, path)]
    above = [record for record in others if not _is_below(record, path)]
    line = [record for record in queued if record.spec.claims]
    covering = [pause for pause in pauses if pause.filter.path is not None and is_prefix(pause.filter.path, path)]
    own = [pause for pause in covering if pause.filter.path == path and _is_by_path(pause)]
    return {
        "key": queue_key(path),
        "path": path,
        "node": node,
        "counts": {
            "running": words.number(node.started_below),
            "granted": words.number(node.granted),
            "waiting": words.number(node.waiting),
            "passing": words.number(node.passing),
            "dead": words.number(node.dead),
        },
        "signals": node.waiting_for_signals_below,
        "signals_url": links.jobs(path=queue_key(path), state="deferred", order="oldest"),
        "holders": [{**row(record, now_ms, links), "where": "above"} for record in above]
        + [{**row(record, now_ms, links), "where": "here"} for record in [*held, *ours]],
        "below_count": words.number(max(len(below), node.started_below - len(ours))),
        "below": [row(record, now_ms, links) for record in below[:LINE_SHOWN]],
        "line": [{**row(record, now_ms, links), "here": at(record, path)} for record in line[:LINE_SHOWN]],
        "is_cut": is_cut,
        "oldest": words.duration(now_ms - line[0].queued_ms) if line and line[0].queued_ms is not None else None,
        "paused": bool(own),
        "paused_until": words.when(own[0].until_ms, now_ms) if own else None,
        "paused_above": [
            {"key": queue_key(pause.filter.path), "url": links.place(pause.filter.path)}
            for pause in covering
            if pause not in own and pause.filter.path is not None
        ],
        "closed": node.closed,
        "limits": [limit_line(state, links) for state in limits if _covers(state, path)],
        "jobs_url": links.jobs(path=queue_key(path)),
        "line_url": links.jobs(path=queue_key(path), state="queued", order="oldest"),
    }


def in_line(records: Sequence[JobRecord]) -> list[JobRecord]:
    """Return jobs in order of their places in the order, which in a scope is that of the moments they took them."""
    return sorted(records, key=lambda record: (record.queued_ms or 0, record.seq or 0, record.number or 0))


def acts(place: View, path: Path) -> list[Act]:
    """Return the orders on a place. All but resume and reopen show the number of affected jobs first."""
    key = queue_key(path)
    return [
        act("resume", path=key) if place["paused"] else asked("pause", path=key),
        act("reopen", path=key) if place["closed"] else asked("close", path=key),
        danger("cancel", "Cancel all below", path=key),
    ]


def at(record: JobRecord, path: Path) -> bool:
    """Return whether a job has a claim at this very place."""
    return any(claim.path == path for claim in record.spec.claims)


def _is_below(record: JobRecord, path: Path) -> bool:
    return any(is_prefix(path, claim.path) for claim in record.spec.claims)


def _is_by_path(pause: PauseState) -> bool:
    chosen = pause.filter
    return not any([chosen.task, chosen.user, chosen.service, chosen.pool, chosen.tag])


def _covers(state: LimitState, path: Path) -> bool:
    """Return whether jobs at a place count under a limit."""
    limit = state.limit
    if limit.path is None:
        return False
    return is_prefix(limit.path, path) and (not limit.each or len(path) > len(limit.path))
