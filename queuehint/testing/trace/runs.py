"""Traces as runs of jobs: what drawings are made of."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from queuehint.testing.trace.values import PUT_BACK, TraceEvent


@attrs.define(kw_only=True)
class Run:
    """
    One attempt of one job.

    Args:
        queued_ms: when it took its place or was put back before, if known.
        ended_ms: None while it runs.
        how: the kind of its end; ``"started"`` while it runs.
        number: which attempt in the trace, from 1.
    """

    job: str
    started_ms: float
    ended_ms: float | None = None
    queued_ms: float | None = None
    how: str = "started"
    worker: str | None = None
    token: int | None = None
    number: int = 1


def runs_of(events: Iterable[TraceEvent]) -> list[Run]:
    """Return all runs in order of their starts; what ended and was never started is none."""
    runs: list[Run] = []
    running: dict[str, Run] = {}
    queued: dict[str, float] = {}
    counts: dict[str, int] = {}
    for event in events:
        if event.kind == "gap":
            running.clear()
            queued.clear()
        elif event.kind == "started":
            counts[event.job] = counts.get(event.job, 0) + 1
            run = Run(
                job=event.job,
                started_ms=event.at_ms,
                queued_ms=queued.pop(event.job, None),
                worker=event.worker,
                token=event.token,
                number=counts[event.job],
            )
            runs.append(run)
            running[event.job] = run
        elif event.kind in {"queued", "enqueued", "redriven"}:
            if event.state in {None, "QUEUED"}:
                queued.setdefault(event.job, event.at_ms)
        else:
            ended = running.pop(event.job, None)
            if ended is not None:
                ended.ended_ms, ended.how = event.at_ms, event.kind
            if event.state == "QUEUED" or (event.state is None and event.kind in PUT_BACK):
                queued[event.job] = event.at_ms
            else:
                queued.pop(event.job, None)
    return runs
