"""One run of all jobs in a given order of steps."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import linecache
import sysconfig
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from queuehint.handlers.context import RaisedAnswer, raised_answer
from queuehint.testing.interleaving.loop import OWNER, SteppedLoop

if TYPE_CHECKING:
    from types import FrameType

    from queuehint.testing.interleaving.jobs import Part, Rules

S = TypeVar("S")

Choose = Callable[[Sequence[int], "int | None"], int]
"""Choose one of several jobs to make the next step; the second argument made the last one, if it can go on."""

STEPS_MAX = 20_000
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib")})


@attrs.frozen
class Step:
    """
    One step of a run.

    Args:
        job: its number.
        begins, ends: it is the job's first, or its last.
        where: the line that the job waits at now, or None.
        error: what it raised.
    """

    job: int
    begins: bool
    ends: bool
    where: str | None
    error: BaseException | None


@attrs.frozen(eq=False)
class Played(Generic[S]):
    """
    The outcome of a run.

    Args:
        state: what the jobs left.
        choices: the number of the job of each step.
        errors: what jobs raised, by number.
        stuck: the jobs that had begun when nothing could go on, each with the line that it waits at.
        steps: the steps, if they were to be told.
    """

    state: S
    choices: tuple[int, ...]
    errors: dict[int, BaseException]
    stuck: dict[int, str]
    steps: list[Step]

    @property
    def is_one_by_one(self) -> bool:
        """Whether no step of one job lies between those of another."""
        return sum(a != b for a, b in pairwise(self.choices)) < max(1, len({*self.choices}))


class EndlessError(RuntimeError):
    """A run takes too many steps."""


def play(
    parts: Sequence[Part],
    rules: Rules,
    state: S,
    choose: Choose,
    *,
    one_by_one: bool = False,
    telling: bool = False,
) -> Played[S]:
    """
    Run the jobs once, on a separate loop. No other loop may run on this thread.

    Args:
        one_by_one: a job begins once nothing is left to do of any other.
        telling: note each step.

    Raises:
        EndlessError: more than `STEPS_MAX` steps.
    """
    run = _Run(parts, rules, state, one_by_one=one_by_one, telling=telling)
    asyncio._set_running_loop(run.loop)
    try:
        run.play(choose)
        stuck = {number: _where(task) or "" for number, task in run.tasks.items() if number not in run.over}
    finally:
        run.abandon()
        asyncio._set_running_loop(None)
    return Played(state, tuple(run.choices), run.errors, stuck, run.steps)


class _Run:
    def __init__(self, parts: Sequence[Part], rules: Rules, state: Any, *, one_by_one: bool, telling: bool) -> None:
        self.loop = SteppedLoop()  # type: ignore[abstract] # it refuses the rest
        self.rules = rules
        self.state = state
        self.one_by_one = one_by_one
        self.telling = telling
        self.parts = {part.number: part for part in parts}
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.begun: set[int] = set()
        self.over: set[int] = set()
        self.ends: tuple[tuple[int, bool], ...] = ()
        self.startable = list(rules.may_start(()))
        self.choices: list[int] = []
        self.errors: dict[int, BaseException] = {}
        self.steps: list[Step] = []

    def play(self, choose: Choose) -> None:
        current: int | None = None
        while True:
            options = [number for number in self.begun if self.loop.can_step(number)]
            if not self.one_by_one or (not options and self.begun == self.over):
                options += self.startable
            options.sort()
            if not options:
                owner = self.loop.time_out()
                if owner is None:
                    return
                options = [owner]
            if len(self.choices) >= STEPS_MAX:
                raise EndlessError(f"the jobs have not ended after {STEPS_MAX} steps")
            current = choose(options, current if current in options else None)
            self.step(current)

    def step(self, number: int) -> None:
        begins = number not in self.begun
        if begins:
            self.startable.remove(number)
            self.begun.add(number)
            error = self.begin(number)
        else:
            self.loop.step(number)
        task = self.tasks.get(number)
        ends = number not in self.over and (task is None or task.done())
        if ends:
            if task is not None:
                error = _error_of(task)
            self.end(number, error)
        self.choices.append(number)
        if self.telling:
            where = None if task is None or task.done() else _where(task)
            self.steps.append(Step(number, begins, ends, where, error if ends else None))

    def begin(self, number: int) -> BaseException | None:
        """Begin a job and make its first step. Return the exception of a plain job that has ended."""
        part = self.parts[number]
        context = contextvars.copy_context()
        context.run(OWNER.set, number)
        try:
            result = context.run(part.function, self.state, *part.args, **part.kwargs)
        except RaisedAnswer:  # as if it had returned it
            return None
        except Exception as error:  # noqa: BLE001 - an end like any other
            return error
        if inspect.isawaitable(result):
            self.tasks[number] = self.loop.create_task(_awaited(result), context=context)
            self.loop.step(number)
        return None

    def end(self, number: int, error: BaseException | None) -> None:
        self.over.add(number)
        if error is not None:
            self.errors[number] = error
        self.ends = (*self.ends, (number, error is None))
        self.startable = [job for job in self.rules.may_start(self.ends) if job not in self.begun]

    def abandon(self) -> None:
        """Drop tasks that have not ended, without warnings."""
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if coroutine is not None:
                with contextlib.suppress(Exception):  # errors of its clean-up do not matter any more
                    coroutine.close()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    return None if error is not None and raised_answer(error) is not None else error


def _where(task: asyncio.Task[Any]) -> str | None:
    """Return the line of the handler's own code that a task waits at."""
    awaited: Any = task.get_coro()
    found: FrameType | None = None
    while awaited is not None:
        frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None and frame.f_code is not _awaited.__code__ and not _is_library(frame.f_code.co_filename):
            found = frame
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    if found is None:
        return None
    path = found.f_code.co_filename
    line = linecache.getline(path, found.f_lineno).strip()
    place = f"{Path(path).name}:{found.f_lineno}"
    return f"{line}  ({place})" if line else place


def _first(thing: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARIES)
