"""
Check whether a queue keeps the rules of order, queuehint or any other.

Hypothesis draws jobs and interleavings; the queue is called to enqueue a job, to hand one out, and to learn how one
ended; `find_faults` checks the resulting trace. A failing case is shrunk to few jobs and few steps, described step by
step, and drawn.

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

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from queuehint.testing.arguments import off_the_loop
from queuehint.testing.histories.history import JOBS_MAX, OUTCOMES, Ended, History
from queuehint.testing.histories.search import search
from queuehint.testing.queue_story import (
    CancelStep,
    EndStep,
    EnqueueStep,
    QueueUnderTest,
    StartStep,
    Step,
    Story,
)
from queuehint.testing.strategies.arguments import check_amount, check_choices, check_strategy
from queuehint.testing.trace import Rule, TraceError
from queuehint.testing.trace.faults import counted
from queuehint.testing.wakes.check import WakeSearch, probe
from queuehint.values.hint import Claim
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from queuehint.testing.wakes.story import WaitingQueue, WakeStory

FEATURES: Final = ("edges", "shared", "several", "unplaced")
"""Features that a queue may declare."""
SLOTS: Final = (3, 1, 2)
WORKERS: Final = (2, 3)
FEW_JOBS: Final = 5
"""Most histories have no more jobs than these: what goes wrong goes wrong with few, and more often."""
SLOTS_MAX: Final = 16


class QueueFaultError(TraceError):
    """
    A queue breaks a rule.

    ``faults`` is what was found (nothing, if the queue raised, answered what makes no sense, or came to a deadlock),
    ``jobs`` are the jobs of the counterexample and ``steps`` what was done, in words; ``events`` is the same as a
    trace.

    .. versionadded:: 1.0.0
    """

    def __init__(self, story: History) -> None:
        super().__init__(story.faults)
        self.jobs = tuple(story.jobs)
        self.steps = tuple(story.steps)
        self.events = tuple(story.events)
        size = f"{counted(len(self.jobs), 'job')} and {counted(len(self.steps), 'step')}"
        self.args = ("\n\n".join([f"{story.name} breaks a rule: {size} show it.", *story.told()]),)


@attrs.frozen(kw_only=True)
class QueueReport:
    """
    Report on a queue without a fault: the coverage, in a few lines as ``str``.

    Args:
        histories: how many there were.
        jobs, starts, retries, failures, cancels: how many, in all of them.
        jobs_max, depth_max: the most jobs of a history, and the most segments of a path.
        not_tried: what never came, in words, with what to say so that it does.
        side_by_side: how many of the histories were of calls side by side.
        switches: how often another caller went on in the midst of a call, in all of these.

    .. versionadded:: 1.0.0
    """

    histories: int
    jobs: int
    starts: int
    retries: int
    failures: int
    cancels: int
    jobs_max: int
    depth_max: int
    not_tried: tuple[str, ...]
    side_by_side: int = 0
    switches: int = 0

    def __str__(self) -> str:
        said = (
            f"no rule was broken in {counted(self.histories, 'history')} of up to {counted(self.jobs_max, 'job')} and "
            f"{counted(self.depth_max, 'level')}:\n{counted(self.starts, 'start')}, "
            f"{counted(self.retries, 'retry')}, {counted(self.failures, 'failure')}, "
            f"{counted(self.cancels, 'cancellation')}"
        )
        if self.side_by_side:
            said += f"\n{self.side_by_side} of them of calls side by side, with {counted(self.switches, 'switch')}"
        return "\n".join([said, *[f"not tried: {each}" for each in self.not_tried]])


# --- what comes ------------------------------------------------------------------------------------------------------

_DOCUMENTS = (("doc1", "intro"), ("doc1", "body"), ("doc1",), ("doc1", "intro", "p1"), ("doc2",), (), None)
_ONE_MORE = ("doc2", "intro")
"""In place of no place, where jobs without one are not wanted."""
_DEEP = (
    ("doc1", "a", "b", "c"),
    ("doc1", "a", "b", "d"),
    ("doc1", "a"),
    ("doc1", "a", "b", "c", "d", "e"),
    ("doc1", "a", "b", "c", "d", "f"),
)
_FAMILY = (("doc1",), ("doc1", "intro"), ("doc1", "body"))
"""Of which many come in rows."""
_ALIKE = (
    (("doc1",), ("doc10",)),
    (("doc1",), ("Doc1",)),
    (("doc1", "a"), ("doc1:a",)),
    (("doc1", "a"), ("doc1/a",)),
    (("doc1",), ("doc1 ",)),
    (("é",), ("e\u0301",)),
)
"""Paths that do not conflict, and are alike to code that compares text, joins segments, ignores case, or normalizes."""

_ROWS = tuple(
    tuple(JobSpec(id="a", task="task", claims=(Claim(path),)) for path in paths)
    for paths in (
        (("doc1",),),
        (("doc1",), ("doc1",)),
        (("doc1",), ("doc2",)),
        (("doc1",), ("doc1", "a"), ("doc1", "b")),
    )
)
"""The jobs of histories in which each call is stopped at each of its steps."""


@attrs.frozen
class _Plan:
    slots: int
    jobs_max: int
    steps: tuple[Step, ...]
    ends: tuple[EndStep, ...]
    """How those end that still run or wait after the steps; the others finish."""


def _specs(
    paths: Collection[tuple[str, ...] | None], *, is_shared: bool, is_several: bool, is_unplaced: bool
) -> SearchStrategy[JobSpec]:
    paths = [path if path is not None or is_unplaced else _ONE_MORE for path in paths]
    claim = st.builds(Claim, st.sampled_from([path for path in paths if path is not None]))
    if is_shared:
        claim = st.one_of(claim, claim.map(lambda each: Claim(each.path, "shared")))
    one = st.sampled_from([() if path is None else (Claim(path),) for path in paths])
    claims: SearchStrategy[tuple[Claim, ...]] = st.one_of(one, claim.map(lambda each: (each,))) if is_shared else one
    if is_several:
        several = st.lists(claim, min_size=2, max_size=2, unique_by=lambda each: each.path).map(tuple)
        claims = st.one_of(claims, several)
    return claims.map(lambda made: JobSpec(id="a", task="task", claims=made))


def _plans(
    specs: Collection[SearchStrategy[JobSpec]],
    *,
    ends: Collection[Ended],
    slots: Collection[int],
    max_jobs: int,
    max_steps: int,
    has_edges: bool,
    has_cancels: bool,
    in_rows: bool = False,
) -> SearchStrategy[_Plan]:
    """Return a strategy for histories: few jobs one by one, or more jobs in rows."""
    few = min(max_jobs, FEW_JOBS)
    endings = [EndStep(how, which) for how in ends for which in range(max(slots))]
    cancels = [CancelStep(which) for which in range(few)] if has_cancels else []
    back = st.lists(st.integers(0, max(few - 2, 0)), max_size=2, unique=True).map(tuple) if has_edges else st.just(())
    other: SearchStrategy[Step] = st.sampled_from([*[StartStep()] * len(endings), *endings, *cancels])

    def steps_of(made: tuple[list[tuple[EnqueueStep, int]], list[Step]]) -> list[Step]:
        rows, others = made
        return [*[step for step, count in rows for _ in range(count)], *others]

    def plans(jobs_max: int, steps: SearchStrategy[list[Step]]) -> SearchStrategy[_Plan]:
        last = st.lists(st.sampled_from(endings), max_size=max_steps // 2).map(tuple)
        return st.builds(_Plan, st.sampled_from(tuple(slots)), st.just(jobs_max), steps.map(tuple), last)

    if not in_rows:
        ones = [st.lists(st.one_of(st.builds(EnqueueStep, spec, back), other), max_size=max_steps) for spec in specs]
        return st.one_of([plans(few, steps) for steps in ones])
    # A long row between two short ones: what looks back too short a way is caught by the one before it.
    length = st.sampled_from([1, max(1, max_jobs - 3)])
    rows = st.lists(st.tuples(st.builds(EnqueueStep, st.one_of(list(specs)), back), length), min_size=2, max_size=4)
    return plans(max_jobs, st.tuples(rows, st.lists(other, max_size=max_steps // 2)).map(steps_of))


# --- the check -------------------------------------------------------------------------------------------------------


def check_queue(
    factory: Callable[[], QueueUnderTest | WaitingQueue],
    *,
    jobs: SearchStrategy[JobSpec] | None = None,
    outcomes: Collection[Ended] = OUTCOMES,
    edges: bool | None = None,
    cancels: bool | None = None,
    shared: bool | None = None,
    several: bool | None = None,
    unplaced: bool | None = None,
    wakes: bool = False,
    slots: int | None = None,
    max_jobs: int = 8,
    max_steps: int = 20,
    rules: Collection[Rule | str] = tuple(Rule),
    max_examples: int = 1500,
    seed: int | None = 0,
) -> QueueReport:
    """
    Check that a queue keeps the rules of order, whatever jobs come and however they end.

    Two jobs conflict when the path of one is a prefix of the other's, unless both are shared. Conflicting jobs run one
    at a time in the order in which they were enqueued, a retried job keeps its place, and no slot is idle while a job
    is ready. With *edges* a job takes its place when the last of those it depends on has finished or was canceled.

    Args:
        factory: makes a new, empty queue; called once for each history. See `QueueUnderTest`.
        jobs: what is enqueued; ids and edges are replaced. By default jobs at few paths, up to six segments deep, some
            of them alike but for case, a separator or the form of an accent; each with one exclusive claim.
        outcomes: how jobs end; leave out what the queue does not know.
        edges: jobs also depend on others, in ``job.depends_on``.
        cancels: jobs that wait are also canceled. By default if the queue has a method ``cancel``.
        shared: jobs have shared claims too, unless *jobs* says what they have.
        several: jobs have several claims too, unless *jobs* says what they have.
        unplaced: jobs without a place come too, with no claim, unless *jobs* says what they have. *edges*, *shared*,
            *several* and *unplaced* are by default what the queue has in an attribute ``features``.
        wakes: the queue has a method ``take``, which waits for a job (`WaitingQueue`): a producer and workers call it
            side by side, as tasks of one loop or as threads, one of which goes on at a time, and their calls are
            interleaved in many ways. A worker that waits while a job is ready has lost its wake-up; calls that wait
            for one another's locks are a deadlock. A queue that has ``start`` too is checked as ever before: only
            then with edges, cancellations, and more than five jobs.
        slots: how many jobs run at once, 1–16; by default one to three. With *wakes* how many workers there are; by
            default two or three.
        max_jobs: how many jobs a history has at most, 1–26. Most have no more than five.
        max_steps: how many steps are made up for a history at most; then what is there runs and ends.
        rules: which rules to look at.
        max_examples: how many histories are tried before the queue is acquitted; with *wakes* as many in which one
            call is stopped, and as many more in which calls are stopped by chance.
        seed: the same histories each time; None for others.

    Returns:
        What was tried, and what was not.

    Raises:
        QueueFaultError: the queue breaks a rule, raises, or hands out what is no job; with the smallest history found.
        InvalidArgument: an argument is of the wrong type or out of its range.

    .. versionadded:: 1.0.0
    """
    __tracebackhide__ = True
    if not callable(factory):
        raise InvalidArgument(f"factory={factory!r} must be a class or a function that makes a queue")
    if jobs is not None:
        check_strategy("jobs", jobs)
    check_amount("max_jobs", max_jobs, most=JOBS_MAX)
    check_amount("max_steps", max_steps, most=1000)
    if type(wakes) is not bool:
        raise InvalidArgument(f"wakes={wakes!r} must be True or False")
    if slots is not None:
        check_amount("slots", slots, most=SLOTS_MAX)
    check_amount("max_examples", max_examples, most=10**9)
    if seed is not None and type(seed) is not int:
        raise InvalidArgument(f"seed={seed!r} must be an int, or None")
    looked_at = frozenset(map(Rule, check_choices("rules", rules, list(Rule))))
    ends = check_choices("outcomes", outcomes, OUTCOMES)
    make_queue: Callable[[], Any] = factory
    known = off_the_loop(lambda: probe(factory)) if wakes else None
    features = _features(make_queue) if known is None or known.has_start else _checked_features(known.features)
    can = {
        name: name in features if said is None else said
        for name, said in (
            ("edges", edges),
            ("cancels", cancels),
            ("shared", shared),
            ("several", several),
            ("unplaced", unplaced),
        )
    }
    make = partial(_specs, is_shared=can["shared"], is_several=can["several"], is_unplaced=can["unplaced"])
    plans = partial(
        _plans,
        ends=ends,
        slots=SLOTS if slots is None else (slots,),
        max_jobs=max_jobs,
        max_steps=max_steps,
        has_edges=can["edges"],
        has_cancels=can["cancels"],
    )
    # Everyday paths first: of two counterexamples the one with these is read more easily.
    worlds = (
        [plans([make(_DOCUMENTS)]), plans([make(_DEEP), *map(make, _ALIKE)]), plans([make(_FAMILY)], in_rows=True)]
        if jobs is None
        else [plans([jobs]), plans([jobs], in_rows=True)]
    )
    tried = _Tried(is_side_by_side=known is not None, has_start=known is None or known.has_start)

    def play(plan: _Plan, jobs_max: int) -> Story:
        story = Story(make_queue(), plan.slots, min(plan.jobs_max, jobs_max))
        story.play(plan.steps, plan.ends)
        tried.add(story)
        return story

    for number, world in enumerate(worlds if known is None or known.has_start else []):
        look = partial(search, world, rules=looked_at, seed=seed)
        share = (max_examples + number) // len(worlds)
        convicted = story = look(partial(play, jobs_max=max_jobs), max_examples=share) if share else None
        # A shrinker does not get from one kind of counterexample to a smaller one of another kind: look for it afresh.
        while story is not None and len(story.jobs) > 1:
            fewer = partial(play, jobs_max=len(story.jobs) - 1)
            convicted, story = story, look(fewer, max_examples=max(1, max_examples // 8))
        if convicted is not None:
            convicted = _shortened(make_queue, convicted, looked_at)
            raise QueueFaultError(convicted) from convicted.error
    if known is not None:
        side_by_side = WakeSearch(factory, known.make, rules=looked_at, seed=seed, see=tried.add_side_by_side)
        workers = WORKERS if slots is None else (slots,)
        rows = [(row, workers[0]) for row in _ROWS] + [(_ROWS[-1], each) for each in workers[1:]]
        sweep = partial(side_by_side.sweep, rows, max_examples=max_examples)
        lost = off_the_loop(sweep) if jobs is None else None
        everyday = [st.one_of(make(_DOCUMENTS), make(_FAMILY)) if jobs is None else jobs]
        # One by one these are tried of `start`; where there is none, side by side.
        others = [make(_DEEP), *map(make, _ALIKE)] if jobs is None and not known.has_start else []
        share = max_examples // 3 if others else 0
        draw = partial(side_by_side.draw, outcomes=ends, workers=workers, max_jobs=min(max_jobs, FEW_JOBS))
        for specs, count in ((everyday, max_examples - share), (others, share)):
            if lost is None and count:
                lost = off_the_loop(partial(draw, specs, max_examples=count))
        if lost is not None:
            raise QueueFaultError(lost) from lost.error
    return tried.report()


def _features(factory: Callable[[], QueueUnderTest]) -> frozenset[str]:
    """Return the features that a queue declares."""
    queue = factory()
    story = Story(queue, 1, 1)
    said = _checked_features(getattr(queue, "features", ()))
    story.close()
    return said | {"cancels"} if callable(getattr(queue, "cancel", None)) else said


def _checked_features(said: object) -> frozenset[str]:
    return frozenset(check_choices("features", said, FEATURES, may_be_empty=True))


class _Tried:
    """Counts of all histories."""

    def __init__(self, *, is_side_by_side: bool, has_start: bool) -> None:
        self._is_side_by_side = is_side_by_side
        self._has_start = has_start
        self._counts = Counter[str]()
        self._jobs_max = self._depth_max = 0

    def add_side_by_side(self, story: WakeStory) -> None:
        """Count the features of a history of concurrent calls."""
        self.add(story)
        self._counts["side_by_side"] += 1
        self._counts["switches"] += story.switches
        self._counts["time_outs"] += story.time_outs

    def add(self, story: History) -> None:
        """Count the features of a history."""
        self._counts.update(event.kind for event in story.events)
        self._counts["histories"] += 1
        self._counts["jobs"] += len(story.jobs)
        self._jobs_max = max(self._jobs_max, len(story.jobs))
        for job in story.jobs:
            self._counts["edges"] += len(job.depends_on)
            self._counts["several"] += len(job.claims) > 1
            self._counts["unplaced"] += not job.claims
            for claim in job.claims:
                self._counts["shared"] += claim.mode == "shared"
                self._depth_max = max(self._depth_max, len(claim.path))

    def report(self) -> QueueReport:
        """Return the counts, and the features never covered."""
        counts = self._counts
        missing = {
            "retried": 'retries (outcomes has no "retried")',
            "failed": 'failures (outcomes has no "failed")',
            "canceled": "cancellations (a method cancel, or cancels=True)",
            "edges": 'dependencies (features = {"edges"}, or edges=True)',
            "shared": 'shared claims (features = {"shared"}, or shared=True)',
            "several": 'jobs with several claims (features = {"several"}, or several=True)',
            "unplaced": 'jobs without a place (features = {"unplaced"}, or unplaced=True)',
        }
        if not self._has_start:
            missing = {name: text for name, text in missing.items() if name not in {"canceled", "edges"}}
        not_tried = [text for name, text in missing.items() if not counts[name]]
        if not self._has_start:
            not_tried.append("cancellations, dependencies, long rows of jobs (a method start besides take)")
        if not self._is_side_by_side:
            not_tried.append("calls side by side, and what wakes a worker that waits (a method take, and wakes=True)")
        else:
            not_tried.append("side by side: cancellations, dependencies, several producers")
        if counts["time_outs"]:
            waits = counted(counts["time_outs"], "wait")
            not_tried.append(f"wake-ups behind time-outs: {waits} ended by time, where a wake-up may have been lost")
        return QueueReport(
            histories=counts["histories"],
            jobs=counts["jobs"],
            starts=counts["started"],
            retries=counts["retried"],
            failures=counts["failed"],
            cancels=counts["canceled"],
            jobs_max=self._jobs_max,
            depth_max=self._depth_max,
            not_tried=tuple(not_tried),
            side_by_side=counts["side_by_side"],
            switches=counts["switches"],
        )


def _shortened(factory: Callable[[], QueueUnderTest], story: Story, rules: Collection[Rule]) -> Story:
    """Return the same history without its inapplicable steps."""
    left_out = 0
    while left_out < len(story.done):
        shorter = Story(factory(), story.slots, story.max_jobs)
        shorter.play([*story.done[:left_out], *story.done[left_out + 1 :]])
        if shorter.breaks(rules) and len(shorter.steps) < len(story.steps) and shorter.kind == story.kind:
            story, left_out = shorter, 0
        else:
            left_out += 1
    return story
