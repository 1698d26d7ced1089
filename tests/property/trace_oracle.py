"""
A slow and plain checker of traces: it reads the whole trace again at every start.

The place of a job follows from its own events alone, so it is computed from the beginning each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from queuehint.testing import TraceEvent, TraceJob
from queuehint.values.hint import conflict, is_prefix

PUT_BACK = ("retried", "snoozed", "released", "lost")
ENDS = ("finished", "failed", "canceled", "ended", "pruned")
Broken = tuple[str, str, str | None, int]


@attrs.define
class Seen:
    """One job, after some events."""

    place: float | None = None
    """The position of the event by which it took its place."""
    bound: float = -1
    """Jobs with a place before this one precede it, even if its own place was not seen."""
    placed_ms: float = 0
    running: int | None = None
    started_ms: float = 0
    is_over: bool = False
    is_away: bool = False
    has_children: bool = False
    is_known: bool = False
    is_willing: bool = False
    """Nothing of its own keeps it from running, as far as is known."""
    ends: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """The rules about this job alone that its last event has broken."""
    token: int | None = None


def follow(job: TraceJob, events: Sequence[tuple[int, TraceEvent]], tolerance_ms: float) -> Seen:
    """Return where a job is after events of its own, each with its position."""
    seen = Seen()
    for at, event in events:
        kind, faults = event.kind, []
        if kind == "queued":
            if seen.running is not None and tolerance_ms and event.at_ms - seen.started_ms <= tolerance_ms:
                pass
            elif seen.running is not None or (seen.place is not None and not seen.is_over and not seen.is_away):
                faults.append("queued_twice")
            else:
                if seen.place is None:
                    seen.place = seen.bound = at
                    seen.placed_ms = event.at_ms
                seen.is_over = seen.is_away = seen.has_children = False
                seen.is_willing = True
        elif kind == "started":
            if event.token is not None:
                if seen.token is not None and event.token <= seen.token:
                    faults.append("token")
                seen.token = event.token
            if seen.running is not None:
                faults.append("started_twice")
            else:
                if seen.is_over:
                    faults.append("started_after_end")
                    seen.is_over, seen.place, seen.bound = False, None, at
                if seen.place is None:
                    seen.place, seen.placed_ms = at, event.at_ms
                seen.running, seen.started_ms = at, event.at_ms
                seen.is_away = seen.has_children = False
        elif kind in PUT_BACK or kind in ENDS:
            needs_run = kind not in {"canceled", "pruned"} and not (
                seen.has_children and kind in {"finished", "failed", "ended"}
            )
            if needs_run and seen.running is None and seen.is_known:
                faults.append("not_started")
            if needs_run and seen.running is not None and None not in {event.token, seen.token}:
                faults += ["token"] * (event.token != seen.token)
            seen.running = None
            if kind in PUT_BACK:
                seen.is_away = True
                seen.is_willing = kind in {"released", "lost"}
                if kind in {"retried", "snoozed"} and job.on_retry == "yield":
                    seen.place, seen.bound, seen.is_away = None, at, False
            else:
                seen.is_over, seen.has_children, seen.is_willing = True, False, False
                seen.ends += (kind,)
                if kind != "failed" or job.on_dead != "hold":
                    seen.place, seen.bound = None, at
                    seen.is_away = False
        else:
            assert kind == "deferred"
            seen.has_children = seen.running is not None
            seen.running = seen.place = None
            seen.bound, seen.is_away = at, False
        seen.is_known = True
        seen.faults = tuple(faults)
    return seen


def look_through(
    events: Sequence[tuple[int, TraceEvent]], jobs: dict[str, TraceJob], tolerance_ms: float
) -> list[Broken]:
    """
    Return what is broken: the rule, both jobs and the position in the trace as it was given.

    Of a slot that is idle, all jobs that are ready.
    """
    found: list[Broken] = []
    lined = list(enumerate(events))
    for at, (index, event) in lined:
        if event.kind == "idle":
            ready = idle_jobs(lined[:at], jobs, tolerance_ms)
            if ready:
                found.append(("idle", "".join(ready), None, index))
            continue
        name = event.job
        own = [(one, other) for one, (_, other) in lined[: at + 1] if other.job == name]
        before, now = (follow(jobs[name], some, tolerance_ms) for some in (own[:-1], own))
        found += [(rule, name, None, index) for rule in now.faults]
        if event.kind != "started" or {"started_twice", "started_after_end"} & set(now.faults):
            continue
        others = {
            other: follow(job, [(one, e) for one, (_, e) in lined[:at] if e.job == other], tolerance_ms)
            for other, job in jobs.items()
            if other != name
        }
        rivals = {other: seen for other, seen in others.items() if conflict(jobs[name].claims, jobs[other].claims)}
        running = [(seen.running, other) for other, seen in rivals.items() if seen.running is not None]
        if running:
            found.append(("overlap", name, min(running)[1], index))
            continue
        first = min([(seen.place, other) for other, seen in rivals.items() if seen.place is not None], default=None)
        if first is not None:
            is_unsure = bool(tolerance_ms) and before.place is not None
            is_unsure = is_unsure and before.placed_ms - rivals[first[1]].placed_ms <= tolerance_ms
            if first[0] < before.bound and not is_unsure:
                found.append(("order", name, first[1], index))
                continue
        for edge in jobs[name].depends_on:
            ends = others[edge.id].ends
            began = [e for _, (_, e) in lined[at + 1 :] if e.job == edge.id]
            if {"finished", "canceled", "ended"} & set(ends) or set(ends) == {"pruned"}:
                continue
            if others[edge.id].is_known or (began and began[0].kind != "pruned"):
                found.append(("dependency", name, edge.id, index))
    return found


def idle_jobs(
    lined: Sequence[tuple[int, tuple[int, TraceEvent]]], jobs: dict[str, TraceJob], tolerance_ms: float
) -> list[str]:
    """Return the jobs that are ready after these events for certain."""
    states = {
        name: follow(job, [(one, e) for one, (_, e) in lined if e.job == name], tolerance_ms)
        for name, job in jobs.items()
    }
    ready = []
    for name, seen in states.items():
        if seen.place is None or seen.running is not None or seen.is_over or not seen.is_willing:
            continue
        earlier = [jobs[o] for o, other in states.items() if other.place is not None and other.place < seen.place]
        if any(conflict(jobs[name].claims, other.claims) for other in earlier):
            continue
        if not any(may_stand_in_line(claim.path, earlier) for claim in jobs[name].claims if claim.mode == "shared"):
            ready.append(name)
    return ready


def may_stand_in_line(path: tuple[str, ...], earlier: Sequence[TraceJob]) -> bool:
    """Return whether a shared claim may find a line on its way: a node is held by a job that another one waits for."""
    return any(
        any(claim.path == node for job in earlier for claim in job.claims)
        and any(claim.mode == "exclusive" and is_prefix(node, claim.path) for job in earlier for claim in job.claims)
        for node in (path[:depth] for depth in range(len(path) + 1))
    )
