"""The history of a queue, in words and as a trace, and the broken rule."""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

import attrs

from queuehint.testing.trace import Fault, Rule, TraceEvent, TraceJob, find_faults
from queuehint.testing.trace.picture import draw
from queuehint.values.hint import conflict, queue_key

Ended = Literal["finished", "retried", "failed"]
"""How an attempt ends: the job has finished; it keeps its place for the next attempt; it has failed for good."""
OUTCOMES: Final[tuple[Ended, ...]] = ("finished", "retried", "failed")
JOBS_MAX: Final = len(string.ascii_lowercase)


class History:
    """
    The calls of a queue in words, and the events of its jobs. The time of an event is the number of its step.

    ``problem`` is a fault of the queue that is not visible in its trace, ``error`` what it raised. ``slots`` is how
    many jobs may run at once, ``max_jobs`` how many there may be, ``done`` what plays it again.
    """

    def __init__(self, queue: object, slots: int, max_jobs: int) -> None:
        self.name = type(queue).__name__
        self.slots = slots
        self.max_jobs = max_jobs
        self.awaited: dict[str, set[str]] = {}
        """By job the dependencies that have not finished."""
        self.jobs: list[TraceJob] = []
        self.done: list[Any] = []
        self.steps: list[str] = []
        """The operations, in words."""
        self.events: list[TraceEvent] = []
        self.faults: tuple[Fault, ...] = ()
        self.problem: str | None = None
        self.trouble: Literal["error", "deadlock"] = "error"
        """What kind of problem that is."""
        self.error: BaseException | None = None
        self.is_odd = False
        """Nothing can follow what it did."""

    def tell(self, kind: Any, job_id: str = "", *, ahead: int = 0) -> None:
        """Append an event of the last step, or of the next one."""
        self.events.append(TraceEvent(kind=kind, job=job_id, at_ms=len(self.steps) + ahead))

    def see_started(self, found: object, running: Collection[str], over: Collection[str]) -> str | None:
        """Record a job handed out by a queue. Return its id, None for an unknown id."""
        if not isinstance(found, str) or all(job.id != found for job in self.jobs):
            what = (
                "a TraceJob: return its id" if isinstance(found, TraceJob) else f"{found!r}, which is the id of no job"
            )
            self.problem, self.is_odd = f"{self.handed_out_by}() returned {what}", True
            return None
        self.is_odd = found in running or found in over
        self.tell("started", found)
        return found

    handed_out_by = "start"
    """The method that hands out jobs."""

    def breaks(self, rules: Collection[Rule]) -> bool:
        """Return whether the history breaks one of these rules. If so, drop its events after the fault."""
        faults = [fault for fault in self._faults(self.events, is_whole=not self.is_odd) if fault.rule in rules]
        if not faults or (self.trouble == "deadlock" and faults[0].rule is Rule.IDLE):
            return self.problem is not None  # of a deadlock, idle workers are a consequence
        first = faults[0]
        if first.rule is not Rule.NOT_OVER:
            self.events = self.events[: first.index + 1]
            steps = round(first.at_ms)
            self.problem, self.trouble, self.error = None, "error", None
            del self.steps[steps:], self.done[steps:]
            seen = {event.job for event in self.events}
            self.jobs = [job for job in self.jobs if job.id in seen]
            faults = [fault for fault in self._faults(self.events, is_whole=False) if fault.rule in rules]
        (first,) = faults[:1]
        known = {job.id: job for job in self.jobs}
        # The picture of an idle slot shows the jobs that ran beside the one that should have run.
        beside = self._running_at_the_end() if first.rule is Rule.IDLE else []
        shown = attrs.evolve(first, other=first.other or next(iter(beside), None))
        (picture,) = draw(self.events, range(len(self.events)), known, [shown], unit="step", also=beside)
        self.faults = (attrs.evolve(first, picture=picture),)
        return True

    @property
    def kind(self) -> str:
        """The fault without the jobs: a rule, a deadlock, an error of the queue, or an invalid reply."""
        return self.faults[0].rule if self.faults else self.trouble

    def _running_at_the_end(self) -> list[str]:
        running: dict[str, None] = {}
        for event in self.events:
            if event.kind == "started":
                running[event.job] = None
            else:
                running.pop(event.job, None)
        return list(running)

    def _faults(self, events: Sequence[TraceEvent], *, is_whole: bool) -> list[Fault]:
        """Return the faults. Dependents of a failed job wait for ever."""
        found = find_faults(events, self.jobs, complete=is_whole)
        return [fault for fault in found if fault.rule is not Rule.NOT_OVER or not self.awaited[fault.job]]

    def told(self) -> list[str]:
        """Return the history in words and pictures, paragraph by paragraph."""
        said = [f"{fault.rule}: {fault.message}{self.why(fault)}" for fault in self.faults]
        if self.problem is not None:
            said.append(f"{self.trouble}: {self.problem}")
        width = len(str(len(self.steps)))
        steps = [f"  {number:>{width}}  {step}" for number, step in enumerate(self.steps, 1)]
        return [*said, "\n".join(steps), *[fault.picture for fault in self.faults]]

    def why(self, fault: Fault) -> str:
        """Return the cause that a picture of an idle slot lacks: the running jobs do not block the ready one."""
        if fault.rule is not Rule.IDLE:
            return ""
        known = {job.id: job for job in self.jobs}
        running = self._running_at_the_end()
        others = [described(known[job_id]) for job_id in running]
        if not others:
            return ";\nnothing ran then"
        assert not any(conflict(known[fault.job].claims, known[job_id].claims) for job_id in running)
        verb = "does" if len(others) == 1 else "do"
        return f";\n{' and '.join(others)} ran then, which {verb} not conflict with {described(known[fault.job])}"


def described(job: TraceJob) -> str:
    """Return a job with its places."""
    places = [queue_key(claim.path) + (" shared" if claim.mode == "shared" else "") for claim in job.claims]
    after = f" after {', '.join(edge.id for edge in job.depends_on)}" if job.depends_on else ""
    return f"{job.id} at {' and '.join(places)}{after}" if places else f"{job.id} without a place{after}"
