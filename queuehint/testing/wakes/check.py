"""Search for a history of calls side by side that breaks a rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, get_args

import attrs
from hypothesis import strategies as st

from queuehint.testing.histories.history import Ended
from queuehint.testing.histories.search import search
from queuehint.testing.wakes.locks import switched
from queuehint.testing.wakes.story import Call, Turn, WakePlan, WakeStory, check_methods, close_by
from queuehint.testing.wakes.tasks import TaskCrew
from queuehint.testing.wakes.threads import ThreadCrew

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from queuehint.testing.trace import Rule
    from queuehint.testing.wakes.crew import Crew
    from queuehint.values.spec import JobSpec

CALLERS_MAX: Final = 5
STEPS_OF_TASKS, STEPS_OF_THREADS = 4, 60
"""After how many steps at most another caller goes on."""
CALLS: Final[tuple[Call, ...]] = get_args(Call)
_BEFORE: Final[tuple[tuple[Call, ...], ...]] = (
    (),
    ("take",),
    ("enqueue",),
    ("enqueue", "take"),
    ("enqueue", "take", "take"),
    ("enqueue", "enqueue", "take"),
    ("enqueue", "enqueue", "take", "take"),
    ("enqueue", "enqueue", "enqueue", "take", "take", "take"),
)
BEFORE: Final = tuple([tuple(map(Turn, calls)) for calls in _BEFORE])
"""What may have happened before a call is stopped, as whole calls."""


@attrs.frozen
class Probe:
    """
    The properties of a queue, found before its check.

    Args:
        make: makes the crew of a history: of tasks if `take` is asynchronous, else of threads.
        features: what the queue says that it can do besides.
        has_start: it can be asked for a job without waiting, too.
    """

    make: Callable[[], Crew]
    features: object
    has_start: bool


def probe(factory: Callable[[], Any]) -> Probe:
    """Make a queue, probe it, and close it."""
    crew = TaskCrew()
    try:
        queue = crew.make(factory)
        check_methods(queue)
        close_by(crew, queue)
    finally:
        crew.close()
    return Probe(
        make=TaskCrew if inspect.iscoroutinefunction(queue.take) else ThreadCrew,
        features=getattr(queue, "features", ()),
        has_start=callable(getattr(queue, "start", None)),
    )


class WakeSearch:
    """
    The search for the smallest history of calls side by side that breaks a rule.

    Args:
        factory: makes a queue.
        make: what makes the crew of a history.
        rules: which rules are looked at.
        see: is told each history.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        make: Callable[[], Crew],
        *,
        rules: Collection[Rule],
        seed: int | None,
        see: Callable[[WakeStory], None],
    ) -> None:
        self._factory = factory
        self._make = make
        self._rules = rules
        self._seed = seed
        self._see = see
        self._steps_max = STEPS_OF_TASKS if make is TaskCrew else STEPS_OF_THREADS

    def sweep(self, rows: Sequence[tuple[Sequence[JobSpec], int]], *, max_examples: int) -> WakeStory | None:
        """
        Play all histories of few jobs with one preemption. Return the first that breaks a rule.

        Args:
            rows: the jobs, and how many workers there are.
        """
        with switched():
            return self._sweep(rows, max_examples)

    def _sweep(self, rows: Sequence[tuple[Sequence[JobSpec], int]], max_examples: int) -> WakeStory | None:
        whole = [WakePlan(workers, tuple(specs), before, ()) for specs, workers in rows for before in BEFORE]
        for count, plan in enumerate(whole, 1):
            story = self._play(plan, len(plan.specs))
            if story.breaks(self._rules):
                return self._shortened(story)
            if count == max_examples:
                return None
        left = max_examples - len(whole)
        for specs, workers in rows:
            plans = one_switch(specs, workers, self._steps_max * 4)
            plan = next(plans)
            for _ in range(left):
                left -= 1
                story = self._play(plan, len(specs))
                if story.breaks(self._rules):
                    return self._shortened(story)
                try:
                    plan = plans.send(story.was_cut_short)
                except StopIteration:
                    break
        return None

    def draw(
        self,
        specs: Collection[SearchStrategy[JobSpec]],
        *,
        outcomes: Collection[Ended],
        workers: Collection[int],
        max_jobs: int,
        max_examples: int,
    ) -> WakeStory | None:
        """
        Draw histories. Return the smallest that breaks a rule, None without a fault.

        Args:
            specs: the jobs of a history are of one of these.
        """
        made = partial(plans_of, workers=workers, outcomes=outcomes, steps_max=self._steps_max, max_jobs=max_jobs)
        plans = st.one_of([made(each) for each in specs])

        def look(max_jobs: int, max_examples: int) -> WakeStory | None:
            play = lambda plan: self._play(plan, max_jobs)  # noqa: E731
            return search(plans, play, rules=self._rules, seed=self._seed, max_examples=max_examples)

        with switched():
            return self._smallest(look, max_jobs, max_examples)

    def _smallest(
        self, look: Callable[[int, int], WakeStory | None], max_jobs: int, max_examples: int
    ) -> WakeStory | None:
        convicted = story = look(max_jobs, max_examples)
        # A shrinker does not get from one kind of counterexample to a smaller one of another kind: look for it afresh.
        while story is not None and len(story.jobs) > 1:
            convicted, story = story, look(len(story.jobs) - 1, max(1, max_examples // 4))
        return None if convicted is None else self._shortened(convicted)

    def _shortened(self, story: WakeStory) -> WakeStory:
        """Return the same history without unused turns and switches."""
        at = 0
        while at < len(story.plan.turns):
            before, turn, after = story.plan.turns[:at], story.plan.turns[at], story.plan.turns[at + 1 :]
            for turns in ((*before, *after), (*before, attrs.evolve(turn, steps=None), *after)):
                shorter = self._play(attrs.evolve(story.plan, turns=turns), len(story.jobs))
                if shorter.breaks(self._rules) and shorter.kind == story.kind and shorter.size < story.size:
                    story, at = shorter, -1
                    break
            at += 1
        return story

    def _play(self, plan: WakePlan, max_jobs: int) -> WakeStory:
        crew = self._make()
        try:
            story = WakeStory(crew.make(self._factory), crew, plan, max_jobs)
            story.play()
        finally:
            crew.close()
        self._see(story)
        return story


def plans_of(
    specs: SearchStrategy[JobSpec],
    *,
    workers: Collection[int],
    outcomes: Collection[Ended],
    steps_max: int,
    max_jobs: int,
) -> SearchStrategy[WakePlan]:
    """Return a strategy for histories, the simplest of few jobs, one call after the other."""
    # Calls are short: most switches come early in them.
    early = st.integers(0, max(1, steps_max // 6)) | st.integers(0, max(1, steps_max // 3))
    steps = st.none() | early | st.integers(0, steps_max)
    turns = st.lists(st.builds(Turn, st.integers(0, CALLERS_MAX), steps), max_size=16).map(tuple)
    stopped = st.builds(
        lambda before, call, at, between: (*before, Turn(call, at), Turn(between)),
        st.sampled_from(BEFORE),
        st.sampled_from(CALLS),
        early,
        st.sampled_from(CALLS),
    )
    return st.builds(
        WakePlan,
        st.sampled_from(tuple(workers)),
        st.lists(specs, min_size=1, max_size=max_jobs).map(tuple),
        turns | stopped,
        st.lists(st.sampled_from(tuple(outcomes)), max_size=max_jobs).map(tuple),
    )


def one_switch(specs: Sequence[JobSpec], workers: int, steps_max: int) -> Generator[WakePlan, bool, None]:
    """
    Yield the histories of some jobs in which one call is preempted, at each of its steps, by another one.

    Sent is whether the call was stopped: if not, it has no later step.
    """
    for before, call, between in product(BEFORE, CALLS, CALLS):
        if [turn.who for turn in before].count("enqueue") > len(specs):
            continue
        for at in range(steps_max):
            if not (yield WakePlan(workers, tuple(specs), (*before, Turn(call, at), Turn(between)), ())):
                break
