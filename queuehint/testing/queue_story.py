"""One history of a queue: its calls, their results, and the rule that they break."""

from __future__ import annotations

import asyncio
import inspect
import string
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, Literal, Protocol

import attrs
from hypothesis.errors import InvalidArgument

from queuehint.testing.trace import Fault, Rule, TraceEvent, TraceJob, find_faults
from queuehint.testing.trace.picture import draw
from queuehint.values.hint import conflict, queue_key
from queuehint.values.spec import Dependency, JobSpec

Ended = Literal["finished", "retried", "failed"]
"""How an attempt ends: the job has finished; it keeps its place for the next attempt; it has failed for good."""
OUTCOMES: Final[tuple[Ended, ...]] = ("finished", "retried", "failed")
JOBS_MAX: Final = len(string.ascii_lowercase)


class QueueUnderTest(Protocol):
    """
    The interface of a queue for `check_queue`. Methods may be plain or asynchronous.

    One that also has ``cancel(job_id)``, which takes away a job that does not run, is asked that too. One that has a
    ``close`` method is closed after each history. What else it can do it says in an attribute ``features``: any of
    ``"edges"`` (jobs depend on others), ``"shared"`` (shared claims), ``"several"`` (several claims a job) and
    ``"unplaced"`` (jobs without a place).

    .. versionadded:: 1.0.0
    """

    def enqueue(self, job: TraceJob, /) -> Awaitable[None] | None:
        """Take a job; its place is ``job.path``, or what ``job.claims`` say."""

    def start(self) -> Awaitable[str | None] | str | None:
        """Return the id of a job that runs from now on, for a worker that is free; None if none may run now."""

    def end(self, job_id: str, outcome: Ended, /) -> Awaitable[None] | None:
        """Learn how a job ended that runs: ``"finished"``, ``"retried"`` or ``"failed"``."""


@attrs.frozen
class EnqueueStep:
    """A job is enqueued."""

    spec: Any
    """A `JobSpec`, if the strategy is one of those."""
    back: tuple[int, ...] = ()
    """For each edge how many jobs are between, counted round."""


@attrs.frozen
class StartStep:
    """A worker asks for a job."""


@attrs.frozen
class EndStep:
    """A job that runs ends."""

    outcome: Ended
    which: int = 0
    """Which of the running jobs, counted round."""


@attrs.frozen
class CancelStep:
    """A job that waits is canceled."""

    which: int = 0
    """Which of the jobs that wait, counted round."""


_FINISH: Final = EndStep("finished")

Step = EnqueueStep | StartStep | EndStep | CancelStep


_RESOLVES = frozenset({"finished", "canceled"})
"""Ends after which the dependents of a job may start; they wait for a job that has failed."""


class Story:
    """One history of a queue: its calls, their results, and the rule that they break."""

    def __init__(self, queue: QueueUnderTest, slots: int, max_jobs: int) -> None:
        self.name = type(queue).__name__
        lacking = [name for name in ("enqueue", "start", "end") if not callable(getattr(queue, name, None))]
        if lacking:
            raise InvalidArgument(
                f"factory() returned {self.name}, which has no method {' and no '.join(lacking)}: a queue under test "
                "has enqueue(job), start() and end(job_id, outcome)"
            )
        self._queue = queue
        self.slots = slots
        self.max_jobs = max_jobs
        self._runner: asyncio.Runner | None = None
        self._running: list[str] = []
        self._over: dict[str, str] = {}
        self._awaited: dict[str, set[str]] = {}
        """By job the dependencies that have not finished."""
        self._was_refused = False
        """A worker got nothing, and nothing has happened since."""
        self.jobs: list[TraceJob] = []
        self.done: list[Step] = []
        self.steps: list[str] = []
        """The operations, in words."""
        self.events: list[TraceEvent] = []
        self.faults: tuple[Fault, ...] = ()
        self.problem: str | None = None
        """Faults of the queue that are not visible in its trace."""
        self.error: Exception | None = None
        self._is_odd = False
        """Nothing can follow what it did."""

    # --- what a queue is asked -----------------------------------------------------------------------------------

    def play(self, plan: Sequence[Step], ends: Sequence[EndStep] = ()) -> None:
        """Go through a plan, as far as it makes sense; then let everything run and end: so, and the others finish."""
        rest = iter(ends)
        try:
            for step in plan:
                if self._is_odd:
                    return
                match step:
                    case EnqueueStep():
                        self._enqueue(step)
                    case StartStep():
                        self._start()
                    case EndStep() if self._running:
                        self._end(self._running[step.which % len(self._running)], step.outcome)
                    case CancelStep():
                        self._cancel(step.which)
            while not self._is_odd:
                if self._can_start and not self._was_refused:
                    self._start()
                elif self._running:
                    end = next(rest, _FINISH)
                    self._end(self._running[end.which % len(self._running)], end.outcome)
                else:
                    break
        finally:
            self.close()

    def close(self) -> None:
        """Close the queue, if it can be."""
        if (close := getattr(self._queue, "close", None)) is not None:
            self._await(close())
        if self._runner is not None:
            self._runner.close()

    @property
    def _can_start(self) -> bool:
        return len(self._running) < self.slots

    def _enqueue(self, step: EnqueueStep) -> None:
        if len(self.jobs) == self.max_jobs:
            return
        if not isinstance(step.spec, JobSpec):
            raise InvalidArgument(f"jobs= must generate JobSpec values, got {type(step.spec).__name__}: {step.spec!r}")
        job_id = string.ascii_lowercase[len(self.jobs)]
        edges = {self.jobs[-1 - back % len(self.jobs)].id for back in step.back} if self.jobs else set()
        spec = attrs.evolve(step.spec, id=job_id, depends_on=tuple(map(Dependency, sorted(edges))))
        job = TraceJob.of(spec)
        self.jobs.append(job)
        self._awaited[job_id] = {other for other in edges if self._over.get(other) not in _RESOLVES}
        self.done.append(step)
        self._tell("enqueued" if self._awaited[job_id] else "queued", job_id, ahead=1)
        self._ask(f"enqueue {_described(job)}", self._queue.enqueue, job)
        self._was_refused = False

    def _start(self) -> None:
        if not self._can_start:
            return
        self.done.append(StartStep())
        found = self._ask("start", self._queue.start)
        if self._is_odd:
            return
        self.steps[-1] += f": {'nothing' if found is None else getattr(found, 'id', found)}"
        if found is None:
            self._tell("idle")
            self._was_refused = True
        elif all(job.id != found for job in self.jobs):
            what = (
                "a TraceJob: return its id" if isinstance(found, TraceJob) else f"{found!r}, which is the id of no job"
            )
            self.problem, self._is_odd = f"start() returned {what}", True
        else:
            self._is_odd = found in self._running or found in self._over
            self._tell("started", found)
            self._running.append(found)
            self._was_refused = False

    def _end(self, job_id: str, outcome: Ended) -> None:
        self.done.append(EndStep(outcome, self._running.index(job_id)))
        self._running.remove(job_id)
        self._tell(outcome, job_id, ahead=1)
        if outcome != "retried":
            self._over[job_id] = outcome
        if outcome in _RESOLVES:
            self._resolve(job_id)
        self._ask(f"end {job_id}: {outcome}", self._queue.end, job_id, outcome)
        self._was_refused = False

    def _cancel(self, which: int) -> None:
        waiting = [job.id for job in self.jobs if job.id not in self._over and job.id not in self._running]
        if not waiting:
            return
        self.done.append(CancelStep(which))
        job_id = waiting[which % len(waiting)]
        self._tell("canceled", job_id, ahead=1)
        self._over[job_id] = "canceled"
        self._awaited[job_id].clear()
        self._resolve(job_id)
        queue: Any = self._queue
        self._ask(f"cancel {job_id}", queue.cancel, job_id)
        self._was_refused = False

    def _resolve(self, job_id: str) -> None:
        """Give places to the dependents that waited for this job only."""
        for other, awaited in self._awaited.items():
            if job_id in awaited:
                awaited.remove(job_id)
                if not awaited:
                    self._tell("queued", other, ahead=1)

    def _ask(self, step: str, method: Callable[..., Any], *arguments: Any) -> Any:
        self.steps.append(step)
        try:
            return self._await(method(*arguments))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is wrong
            self.error, self._is_odd = error, True
            self.problem = f"{method.__name__}() raised {type(error).__name__}: {error}"
            return None

    def _await(self, answer: Any) -> Any:
        if not inspect.isawaitable(answer):
            return answer
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_finish(answer))

    def _tell(self, kind: Any, job_id: str = "", *, ahead: int = 0) -> None:
        self.events.append(TraceEvent(kind=kind, job=job_id, at_ms=len(self.steps) + ahead))

    # --- what is wrong with it -----------------------------------------------------------------------------------

    def breaks(self, rules: Collection[Rule]) -> bool:
        """Return whether it breaks one of these rules; if so, forget what happened after it did."""
        faults = [fault for fault in self._faults(self.events, is_whole=not self._is_odd) if fault.rule in rules]
        if not faults:
            return self.problem is not None
        first = faults[0]
        if first.rule is not Rule.NOT_OVER:
            self.events = self.events[: first.index + 1]
            steps = round(first.at_ms)
            self.problem = self.error = None
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
        """The fault without the jobs: a rule, an error of the queue, or an answer that makes no sense."""
        return self.faults[0].rule if self.faults else "error"

    def _running_at_the_end(self) -> list[str]:
        running: dict[str, None] = {}
        for event in self.events:
            if event.kind == "started":
                running[event.job] = None
            else:
                running.pop(event.job, None)
        return list(running)

    def _faults(self, events: Sequence[TraceEvent], *, is_whole: bool) -> list[Fault]:
        """Return what is wrong; those that wait for a job that failed do so for ever."""
        found = find_faults(events, self.jobs, complete=is_whole)
        return [fault for fault in found if fault.rule is not Rule.NOT_OVER or not self._awaited[fault.job]]

    def told(self) -> list[str]:
        """Return what happened, in words and pictures, paragraph by paragraph."""
        said = [f"{fault.rule}: {fault.message}{self._why(fault)}" for fault in self.faults]
        if self.problem is not None:
            said.append(f"error: {self.problem}")
        width = len(str(len(self.steps)))
        steps = [f"  {number:>{width}}  {step}" for number, step in enumerate(self.steps, 1)]
        return [*said, "\n".join(steps), *[fault.picture for fault in self.faults]]

    def _why(self, fault: Fault) -> str:
        """Return what a picture of an idle slot does not show: with what runs, the job has nothing to do."""
        if fault.rule is not Rule.IDLE:
            return ""
        known = {job.id: job for job in self.jobs}
        running = self._running_at_the_end()
        others = [_described(known[job_id]) for job_id in running]
        if not others:
            return ";\nnothing ran then"
        assert not any(conflict(known[fault.job].claims, known[job_id].claims) for job_id in running)
        verb = "does" if len(others) == 1 else "do"
        return f";\n{' and '.join(others)} ran then, which {verb} not conflict with {_described(known[fault.job])}"


async def _finish(answer: Awaitable[Any]) -> Any:
    return await answer


def _described(job: TraceJob) -> str:
    places = [queue_key(claim.path) + (" shared" if claim.mode == "shared" else "") for claim in job.claims]
    after = f" after {', '.join(edge.id for edge in job.depends_on)}" if job.depends_on else ""
    return f"{job.id} at {' and '.join(places)}{after}" if places else f"{job.id} without a place{after}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"
