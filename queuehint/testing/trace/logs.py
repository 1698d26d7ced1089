"""Traces from the log of a worker: ``queuehint worker --log-format json --log-level debug``."""

from __future__ import annotations

from typing import Any

from queuehint.testing.trace.values import PUT_BACK

_OUTCOMES = {
    "finished": "finished",
    "failed": "retried",
    "snoozed": "snoozed",
    "released": "released",
    "unknown_task": "released",
    "lost": "lost",
    "discarded": "canceled",
    "children": "deferred",
}


class LogReader:
    """Knows from line to line which jobs run, and how attempts have failed."""

    def __init__(self) -> None:
        self._dead: set[object] = set()
        self._running: dict[object, object] = {}
        self._taken: dict[object, int] = {}
        """Jobs that were started again before their end was logged, with the older token."""
        self._has_starts = False
        self._has_jobs = False

    def events_of(self, line: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the fields of the events in a line, none for an uninformative line."""
        event, job_id, token = line["event"], line.get("job_id"), line.get("token")
        self._has_jobs = True
        told = {name: line[name] for name in ("worker", "token") if line.get(name) is not None}
        if event == "job.started":
            self._has_starts = True
            before = self._running.get(job_id)
            self._running[job_id] = token
            # Only a store that has given up its worker grants a job again, with a greater token.
            started = {"kind": "started", **told}
            if isinstance(before, int) and isinstance(token, int) and before < token:
                self._taken[job_id] = before
                return [{"kind": "lost"}, started]
            return [started]
        if event == "job.failed":
            self._dead.add(job_id)
        if event != "job.settled":
            return []
        outcome = line.get("outcome")
        kind = _OUTCOMES.get(outcome) if isinstance(outcome, str) else None
        if kind is None:
            return []
        if outcome == "failed" and job_id in self._dead:
            self._dead.discard(job_id)
            kind = "failed"
        if kind in PUT_BACK and job_id in self._taken and self._taken[job_id] == token:
            # One worker learns that it has put a job back when another has started it again already: this was told.
            del self._taken[job_id]
            return []
        self._running.pop(job_id, None)
        return [{"kind": kind, **({"cause": outcome} if outcome == "unknown_task" else {}), **told}]

    def missing(self) -> list[str]:
        """Return the events missing in the log."""
        if self._has_jobs and not self._has_starts:
            return ["the log does not tell when jobs start: run workers with --log-level debug"]
        return []
