"""
Does a queue keep the rules of order? Any queue: ours, or one that somebody else wrote.

Hypothesis makes up jobs and interleavings, a queue is asked three things, to take a job, to hand one out and to learn
how one ended, and what it does is held against the rules by `find_faults`. What breaks one is shrunk to few jobs and
few steps, and told in words, step by step, and drawn.

>>> class Heap:  # hands out any job, as if places meant nothing
...     def __init__(self):
...         self.jobs = []
...
...     def enqueue(self, job):
...         self.jobs.append(job.id)
...
...     def start(self):
...         return self.jobs.pop() if self.jobs else None
...
...     def end(self, job_id, outcome):
...         if outcome == "retried":
...             self.jobs.append(job_id)
>>> check_queue(Heap)
Traceback (most recent call last):
...
queuehint.testing.queue_check.QueueFaultError: Heap breaks a rule: 2 jobs and 3 steps show it.
<BLANKLINE>
order: b at doc1:intro overtook a at doc1:intro, which was queued before it and was not over
...
"""

from __future__ import annotations

import asyncio
import inspect
import string
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import attrs
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from queuehint.testing.strategies.arguments import check_amount, check_choices, check_strategy
from queuehint.testing.trace import Fault, Rule, TraceError, TraceEvent, TraceJob, find_faults
from queuehint.testing.trace.picture import draw
from queuehint.values.hint import Claim, conflict, parse_key, queue_key
from queuehint.values.spec import Dependency, JobSpec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Ended = Literal["finished", "retried", "failed"]
"""How a job ends: it is over; it failed and has its place until its next attempt; it failed and is over."""
OUTCOMES: Final[tuple[Ended, ...]] = ("finished", "retried", "failed")
JOBS_MAX: Final = len(string.ascii_lowercase)


class QueueUnderTest(Protocol):
    """
    What `check_queue` asks of a queue. Methods may be plain or asynchronous.

    With ``cancels=True`` it also has ``cancel(job_id)``, which takes away a job that does not run. One that has a
    ``close`` method is closed after each history.

    .. versionadded:: 0.1
    """

    def enqueue(self, job: TraceJob, /) -> Awaitable[None] | None:
        """Take a job; its place is ``job.path``, or what ``job.claims`` say."""

    def start(self) -> Awaitable[str | None] | str | None:
        """Return the id of a job that runs from now on, for a worker that is free; None if none may run now."""

    def end(self, job_id: str, outcome: Ended, /) -> Awaitable[None] | None:
        """Learn how a job ended that runs: ``"finished"``, ``"retried"`` or ``"failed"``."""


class QueueFaultError(TraceError):
    """
    A queue breaks a rule.

    ``faults`` is what was found (nothing, if the queue raised or answered what makes no sense), ``jobs`` are the jobs
    of the counterexample and ``steps`` what was done, in words; ``events`` is the same as a trace.

    .. versionadded:: 0.1
    """

    def __init__(self, story: Story) -> None:
        super().__init__(story.faults)
        self.jobs = tuple(story.jobs)
        self.steps = tuple(story.steps)
        self.events = tuple(story.events)
        size = f"{_counted(len(self.jobs), 'job')} and {_counted(len(self.steps), 'step')}"
        self.args = ("\n\n".join([f"{story.name} breaks a rule: {size} show it.", *story.told()]),)


# --- what is done ----------------------------------------------------------------------------------------------------


@attrs.frozen
class _Enqueue:
    spec: Any
    """A `JobSpec`, if the strategy is one of those."""
    back: tuple[int, ...] = ()
    """For each edge how many jobs are between, counted round."""


@attrs.frozen
class _Start:
    pass


@attrs.frozen
class _End:
    outcome: Ended
    which: int = 0
    """Which of the running jobs, counted round."""


@attrs.frozen
class _Cancel:
    which: int = 0
    """Which of the jobs that wait, counted round."""


_Step = _Enqueue | _Start | _End | _Cancel


_RESOLVES = frozenset({"finished", "canceled"})
"""What lets those go on that depend on a job; they wait for one that failed."""


class Story:
    """One history of a queue: what it was asked, what it did, and which rule that breaks."""

    def __init__(self, queue: QueueUnderTest, slots: int, max_jobs: int) -> None:
        self.name = type(queue).__name__
        lacking = [name for name in ("enqueue", "start", "end") if not callable(getattr(queue, name, None))]
        if lacking:
            raise InvalidArgument(
                f"factory() returned {self.name}, which has no method {' and no '.join(lacking)}: a queue under test "
                "has enqueue(job), start() and end(job_id, outcome)"
            )
        self._queue = queue
        self._slots = slots
        self._max_jobs = max_jobs
        self._runner: asyncio.Runner | None = None
        self._running: list[str] = []
        self._over: dict[str, str] = {}
        self._awaited: dict[str, set[str]] = {}
        """By job the dependencies that have not finished."""
        self._was_refused = False
        """A worker got nothing, and nothing has happened since."""
        self.jobs: list[TraceJob] = []
        self.steps: list[str] = []
        self.events: list[TraceEvent] = []
        self.faults: tuple[Fault, ...] = ()
        self.problem: str | None = None
        """What the queue did that no trace can tell."""
        self.error: Exception | None = None
        self._is_odd = False
        """Nothing can follow what it did."""

    # --- what a queue is asked -----------------------------------------------------------------------------------

    def play(self, plan: Sequence[_Step]) -> None:
        """Go through a plan, as far as it makes sense; then let everything run and end."""
        try:
            for step in plan:
                if self._is_odd:
                    return
                match step:
                    case _Enqueue():
                        self._enqueue(step)
                    case _Start():
                        self._start()
                    case _End() if self._running:
                        self._end(self._running[step.which % len(self._running)], step.outcome)
                    case _Cancel():
                        self._cancel(step.which)
            while not self._is_odd:
                if self._can_start and not self._was_refused:
                    self._start()
                elif self._running:
                    self._end(self._running[0], "finished")
                else:
                    break
        finally:
            if (close := getattr(self._queue, "close", None)) is not None:
                self._await(close())
            if self._runner is not None:
                self._runner.close()

    @property
    def _can_start(self) -> bool:
        return len(self._running) < self._slots

    def _enqueue(self, step: _Enqueue) -> None:
        if len(self.jobs) == self._max_jobs:
            return
        if not isinstance(step.spec, JobSpec):
            raise InvalidArgument(f"jobs= must generate JobSpec values, got {type(step.spec).__name__}: {step.spec!r}")
        job_id = string.ascii_lowercase[len(self.jobs)]
        edges = {self.jobs[-1 - back % len(self.jobs)].id for back in step.back} if self.jobs else set()
        spec = attrs.evolve(step.spec, id=job_id, depends_on=tuple(map(Dependency, sorted(edges))))
        job = TraceJob.of(spec)
        self.jobs.append(job)
        self._awaited[job_id] = {other for other in edges if self._over.get(other) not in _RESOLVES}
        self._tell("enqueued" if self._awaited[job_id] else "queued", job_id, ahead=1)
        self._ask(f"enqueue {_described(job)}", self._queue.enqueue, job)
        self._was_refused = False

    def _start(self) -> None:
        if not self._can_start:
            return
        found = self._ask("start", self._queue.start)
        if self._is_odd:
            return
        self.steps[-1] += f": {'nothing' if found is None else found}"
        if found is None:
            self._tell("idle")
            self._was_refused = True
        elif all(job.id != found for job in self.jobs):
            self.problem, self._is_odd = f"start() returned {found!r}, which is the id of no job", True
        else:
            self._is_odd = found in self._running or found in self._over
            self._tell("started", found)
            self._running.append(found)
            self._was_refused = False

    def _end(self, job_id: str, outcome: Ended) -> None:
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
        job_id = waiting[which % len(waiting)]
        self._tell("canceled", job_id, ahead=1)
        self._over[job_id] = "canceled"
        self._awaited[job_id].clear()
        self._resolve(job_id)
        queue: Any = self._queue
        self._ask(f"cancel {job_id}", queue.cancel, job_id)
        self._was_refused = False

    def _resolve(self, job_id: str) -> None:
        """Let those that depended on a job, and on none besides, take their places."""
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

    def judge(self, rules: Collection[Rule]) -> bool:
        """Return whether it breaks one of these rules; if so, forget what happened after it did."""
        faults = [fault for fault in self._faults(self.events, is_whole=not self._is_odd) if fault.rule in rules]
        if not faults:
            return self.problem is not None
        first = faults[0]
        if first.rule is not Rule.NOT_OVER:
            self.events = self.events[: first.index + 1]
            steps = round(first.at_ms)
            self.problem = self.error = None
            del self.steps[steps:]
            seen = {event.job for event in self.events}
            self.jobs = [job for job in self.jobs if job.id in seen]
            faults = [fault for fault in self._faults(self.events, is_whole=False) if fault.rule in rules]
        (first,) = faults[:1]
        known = {job.id: job for job in self.jobs}
        # Who ran beside a job that should have run is what the picture of an idle slot is to show.
        beside = next(iter(self._running_at_the_end()), None) if first.rule is Rule.IDLE else None
        shown = attrs.evolve(first, other=first.other or beside)
        (picture,) = draw(self.events, range(len(self.events)), known, [shown], unit="step")
        self.faults = (attrs.evolve(first, picture=picture),)
        return True

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


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


# --- the check -------------------------------------------------------------------------------------------------------

_KEYS = ("doc1:intro", "doc1:body", "doc1", "doc1:intro:p1", "doc2", "root", None)
_DOCUMENTS: SearchStrategy[JobSpec] = st.sampled_from(
    [JobSpec(id="a", task="task", claims=() if key is None else (Claim(parse_key(key)),)) for key in _KEYS]
)


def check_queue(
    factory: Callable[[], QueueUnderTest],
    *,
    jobs: SearchStrategy[JobSpec] = _DOCUMENTS,
    outcomes: Collection[Ended] = OUTCOMES,
    edges: bool = False,
    cancels: bool = False,
    slots: int = 3,
    max_jobs: int = 5,
    max_steps: int = 20,
    rules: Collection[Rule | str] = tuple(Rule),
    max_examples: int = 500,
    seed: int | None = 0,
) -> None:
    """
    Check that a queue keeps the rules of order, whatever jobs come and however they end.

    Two jobs conflict when the path of one is a prefix of the other's, unless both are shared. Conflicting jobs run one
    at a time in the order in which they were enqueued, a retried job keeps its place, and no slot is idle while a job
    is ready. With *edges* a job takes its place when the last of those it depends on has finished or was canceled.

    Args:
        factory: makes a new, empty queue; called once for each history. See `QueueUnderTest`.
        jobs: what is enqueued; ids and edges are replaced. By default jobs with one exclusive claim, or none.
        outcomes: how jobs end; leave out what the queue does not know.
        edges: jobs also depend on others, in ``job.depends_on``.
        cancels: jobs that wait are also canceled.
        slots: how many jobs run at once, 1–16.
        max_jobs: how many jobs a history has at most, 1–26.
        max_steps: how many steps are made up for a history at most; then what is there runs and ends.
        rules: which rules to look at.
        max_examples: how many histories are tried before the queue is acquitted.
        seed: the same histories each time; None for others.

    Raises:
        QueueFaultError: the queue breaks a rule, raises, or hands out what is no job; with the smallest history found.
        InvalidArgument: an argument is of the wrong type or out of its range.

    .. versionadded:: 0.1
    """
    __tracebackhide__ = True
    if not callable(factory):
        raise InvalidArgument(f"factory={factory!r} must be a class or a function that makes a queue")
    check_strategy("jobs", jobs)
    check_amount("max_jobs", max_jobs, most=JOBS_MAX)
    check_amount("max_steps", max_steps, most=1000)
    check_amount("slots", slots, most=16)
    check_amount("max_examples", max_examples, most=10**9)
    if seed is not None and type(seed) is not int:
        raise InvalidArgument(f"seed={seed!r} must be an int, or None")
    looked_at = frozenset(map(Rule, check_choices("rules", rules, list(Rule))))
    ends = [_End(how, which) for how in check_choices("outcomes", outcomes, OUTCOMES) for which in range(slots)]
    taken = [_Cancel(which) for which in range(max_jobs)] if cancels else []
    back = st.lists(st.integers(0, max(max_jobs - 2, 0)), max_size=2, unique=True).map(tuple) if edges else st.just(())
    step: SearchStrategy[_Step] = st.one_of(
        st.builds(_Enqueue, jobs, back), st.sampled_from([*[_Start()] * len(ends), *ends, *taken])
    )
    steps = st.lists(step, max_size=max_steps)
    search = partial(_search, factory, steps, slots, looked_at, seed)
    convicted = story = search(max_examples, max_jobs)
    # A shrinker does not get from one kind of counterexample to a smaller one of another kind: look for it afresh.
    while story is not None and len(story.jobs) > 1:
        convicted, story = story, search(max(1, max_examples // 4), len(story.jobs) - 1)
    if convicted is not None:
        raise QueueFaultError(convicted) from convicted.error


def _search(
    factory: Callable[[], QueueUnderTest],
    plans: SearchStrategy[list[_Step]],
    slots: int,
    rules: Collection[Rule],
    seed: int | None,
    max_examples: int,
    max_jobs: int,
) -> Story | None:
    """Return the smallest history with so many jobs that breaks a rule, None if none was found."""
    found: list[Story] = []

    @settings(
        max_examples=max_examples,
        phases=(Phase.generate, Phase.shrink),
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(plans)
    def convict(plan: list[_Step]) -> None:
        story = Story(factory(), slots, max_jobs)
        story.play(plan)
        if story.judge(rules):
            found[:] = [story]
            raise _Convicted

    try:
        (convict if seed is None else seeded(seed)(convict))()
    except _Convicted:
        return found[0]
    return None


class _Convicted(Exception):  # noqa: N818 - no error, but a way out
    """Ends one history; never seen outside."""
