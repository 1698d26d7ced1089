"""Callers as tasks of one loop: a step is the code from one ``await`` to the next."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from queuehint.testing.interleaving.loop import OWNER, SteppedLoop
from queuehint.testing.wakes.crew import is_library, line_of

if TYPE_CHECKING:
    from types import FrameType

STEPS_MAX: Final = 100
"""A task that makes so many steps without an end waits for something: it polls."""


class TaskCrew:
    """Tasks, each of which makes one step on request. No other loop may run on this thread."""

    def __init__(self) -> None:
        self._loop = SteppedLoop()  # type: ignore[abstract] # it refuses the rest
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._polls: set[int] = set()

    def make(self, factory: Callable[[], Any]) -> Any:
        """Make a queue on the running loop, for factories that look up the loop."""
        with self._running():
            return factory()

    def begin(self, caller: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Make a task of a call."""
        context = contextvars.copy_context()
        context.run(OWNER.set, caller)
        self._polls.discard(caller)
        self._tasks[caller] = self._loop.create_task(_call(function, arguments), context=context)

    def can_go(self, caller: int) -> bool:
        """Return whether the caller's task can make a step."""
        return caller not in self._polls and not self._tasks[caller].done() and self._loop.can_step(caller)

    def go(self, caller: int, steps: int | None) -> None:
        """Make steps of the caller's task."""
        count = 0
        with self._running():
            while self.can_go(caller) and (steps is None or count <= steps):
                self._loop.step(caller)
                count += 1
                if count > STEPS_MAX:
                    self._polls.add(caller)
        if count <= STEPS_MAX:
            self._polls.clear()

    def ended(self, caller: int) -> tuple[Any, BaseException | None] | None:
        """Return the result of the caller's task."""
        task = self._tasks[caller]
        if not task.done():
            return None
        if task.cancelled():
            return None, asyncio.CancelledError()
        error = task.exception()
        return (None, error) if error is not None else (task.result(), None)

    def where(self, caller: int) -> str | None:
        """Return the line at which the caller's task awaits."""
        return line_of(next((each for each in self._frames(caller) if not is_library(each.f_code.co_filename)), None))

    def waits_for_lock(self, caller: int) -> bool:
        """Return whether the caller's task awaits an `asyncio.Lock`, or the lock of a condition."""
        return any(frame.f_code is asyncio.Lock.acquire.__code__ for frame in self._frames(caller))

    def holder(self, caller: int) -> None:
        """Return None, because a lock of asyncio does not know its holder."""

    def _frames(self, caller: int) -> list[FrameType]:
        """Return the frames in which the caller's task awaits, the innermost first."""
        awaited: Any = self._tasks[caller].get_coro()
        found: list[FrameType] = []
        while awaited is not None:
            frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
            if frame is not None:
                found.insert(0, frame)
            awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")
        return found

    def time_out(self, caller: int) -> bool:
        """Let the nearest time-out of a caller strike."""
        return self._loop.time_out(caller) is not None

    def close(self) -> None:
        """Drop all tasks, without warnings."""
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if coroutine is not None:
                with contextlib.suppress(Exception, RuntimeError):  # errors of its clean-up do not matter any more
                    coroutine.close()

    @contextlib.contextmanager
    def _running(self) -> Any:
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)


async def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    answer = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer


def _first(thing: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)
