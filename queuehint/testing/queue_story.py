"""One history of a queue: its calls, their results, and the broken rule."""

from __future__ import annotations

import asyncio
import inspect
import string
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import attrs
from hypothesis.errors import InvalidArgument

from queuehint.testing.histories.history import Ended, History, described
from queuehint.testing.trace import TraceJob
from queuehint.values.spec import Dependency, JobSpec


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
        """Enqueue a job. Its place is ``job.path``, or ``job.claims``."""

    def start(self) -> Awaitable[str | None] | str | None:
        """Return the id of a job started for a free worker, None if no job may run now."""

    def end(self, job_id: str, outcome: Ended, /) -> Awaitable[None] | None:
        """Receive the end of a running job: ``"finished"``, ``"retried"`` or ``"failed"``."""


@attrs.frozen
class EnqueueStep:
    """A job is enqueued."""

    spec: Any
    """A `JobSpec`, if the strategy is one of those."""
    back: tuple[int, ...] = ()
    """For each edge how many jobs are between, counted round."""


@attrs.frozen
class StartStep:
    """A worker requests a job."""


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


class Story(History):
    """One history of a queue: its calls, their results, and the broken rule."""

    def __init__(self, queue: QueueUnderTest, slots: int, max_jobs: int) -> None:
        super().__init__(queue, slots, max_jobs)
        lacking = [name for name in ("enqueue", "start", "end") if not callable(getattr(queue, name, None))]
        if lacking:
            raise InvalidArgument(
                f"factory() returned {self.name}, which has no method {' and no '.join(lacking)}: a queue under test "
                "has enqueue(job), start() and end(job_id, outcome)"
            )
        self._queue = queue
        self._runner: asyncio.Runner | None = None
        self._running: list[str] = []
        self._over: dict[str, str] = {}
        self._was_refused = False
        """A worker got nothing, and nothing has happened since."""

    # --- what a queue is asked -----------------------------------------------------------------------------------

    def play(self, plan: Sequence[Step], ends: Sequence[EndStep] = ()) -> None:
        """Play a plan as far as it applies, then run the rest with the outcomes of *ends*, finished by default."""
        rest = iter(ends)
        try:
            for step in plan:
                if self.is_odd:
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
            while not self.is_odd:
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
        """Close the queue, if it has a `close`."""
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
        self.awaited[job_id] = {other for other in edges if self._over.get(other) not in _RESOLVES}
        self.done.append(step)
        self.tell("enqueued" if self.awaited[job_id] else "queued", job_id, ahead=1)
        self._ask(f"enqueue {described(job)}", self._queue.enqueue, job)
        self._was_refused = False

    def _start(self) -> None:
        if not self._can_start:
            return
        self.done.append(StartStep())
        found = self._ask("start", self._queue.start)
        if self.is_odd:
            return
        self.steps[-1] += f": {'nothing' if found is None else getattr(found, 'id', found)}"
        if found is None:
            self.tell("idle")
            self._was_refused = True
        elif (job_id := self.see_started(found, self._running, self._over)) is not None:
            self._running.append(job_id)
            self._was_refused = False

    def _end(self, job_id: str, outcome: Ended) -> None:
        self.done.append(EndStep(outcome, self._running.index(job_id)))
        self._running.remove(job_id)
        self.tell(outcome, job_id, ahead=1)
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
        self.tell("canceled", job_id, ahead=1)
        self._over[job_id] = "canceled"
        self.awaited[job_id].clear()
        self._resolve(job_id)
        queue: Any = self._queue
        self._ask(f"cancel {job_id}", queue.cancel, job_id)
        self._was_refused = False

    def _resolve(self, job_id: str) -> None:
        """Give places to the dependents that waited for this job only."""
        for other, awaited in self.awaited.items():
            if job_id in awaited:
                awaited.remove(job_id)
                if not awaited:
                    self.tell("queued", other, ahead=1)

    def _ask(self, step: str, method: Callable[..., Any], *arguments: Any) -> Any:
        self.steps.append(step)
        try:
            return self._await(method(*arguments))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is wrong
            self.error, self.is_odd = error, True
            self.problem = f"{method.__name__}() raised {type(error).__name__}: {error}"
            return None

    def _await(self, answer: Any) -> Any:
        if not inspect.isawaitable(answer):
            return answer
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_finish(answer))


async def _finish(answer: Awaitable[Any]) -> Any:
    return await answer
