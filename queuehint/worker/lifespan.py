"""
Functions of the application beside a worker: a lifespan opens `JobContext.state`, a setup declares limits.

The worker's own task enters it before the first claim and leaves it after the last job, so that a cancel scope or a
context variable in it lasts as long as it does. It cannot suppress the error that ends the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from queuehint.errors import BackendError, HandlerError, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from queuehint.worker.state import WorkerState

logger = logging.getLogger("queuehint.worker")

SETUP_REST_S = 5.0
"""The pause before a setup that the store did not answer is called again."""

MakesState: TypeAlias = Callable[
    [], AbstractAsyncContextManager[Any] | AbstractContextManager[Any] | AsyncIterator[Any] | Iterator[Any]
]
"""A generator function that yields once, async or plain, or what returns a context manager."""


class Lifespan:
    """
    An application's function that makes the context manager of each worker.

    Raises:
        HandlerError: it cannot be called without arguments, or is a coroutine function.
    """

    def __init__(self, function: MakesState) -> None:
        if not callable(function):
            raise HandlerError(f"worker_lifespan takes a function, got {type(function).__name__}: {shown(function)}")
        self.name = name_of(function)
        if inspect.iscoroutinefunction(function):
            raise HandlerError(f"the lifespan {self.name} is a coroutine function; is a `yield` missing?")
        self._make: Callable[[], Any] = function
        _check_takes_nothing(function, f"the lifespan {self.name}")
        if inspect.isasyncgenfunction(function):
            self._make = contextlib.asynccontextmanager(function)
        elif inspect.isgeneratorfunction(function):
            self._make = contextlib.contextmanager(function)

    async def enter(self, stack: contextlib.AsyncExitStack) -> Any:
        """
        Enter the lifespan, to be left with a stack. Return its yielded value.

        Raises:
            HandlerError: the function returned no context manager.
        """
        manager = self._make()
        if isinstance(manager, AbstractAsyncContextManager):
            return await stack.enter_async_context(manager)
        if isinstance(manager, AbstractContextManager):
            return stack.enter_context(manager)
        raise HandlerError(
            f"the lifespan {self.name} has to yield, or to return a context manager, "
            f"got {type(manager).__name__}: {shown(manager)}"
        )


def check_setup(function: object) -> Callable[[], Any]:
    """
    Check a setup: a plain or a coroutine function without arguments.

    Raises:
        HandlerError: it is none.
    """
    if not callable(function):
        raise HandlerError(f"setup takes a function, got {type(function).__name__}: {shown(function)}")
    name = name_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"the setup {name} must not yield; @sched.worker_lifespan opens resources")
    _check_takes_nothing(function, f"the setup {name}")
    return function


def name_of(function: object) -> str:
    """Return the name that identifies a function of the application."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"


def _check_takes_nothing(function: Callable[..., Any], what: str) -> None:
    with contextlib.suppress(ValueError):  # some functions do not tell what they take
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise HandlerError(f"{what} is called without arguments: {error}") from None


class Setup:
    """
    The functions that declare limits, weights and the like in the store.

    They are called before the first claim, and again beside the jobs when the store has lost data.
    """

    def __init__(self, state: WorkerState, functions: Iterable[Callable[[], Any]]) -> None:
        self._worker = state.name
        self._wakeup = state.wakeup
        self._functions = tuple(functions)
        self._failures = state.outcomes.failures
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        self.is_fresh = False
        """The first round has begun, and what the worker stores at its start was not stored yet."""
        self.is_ready = not self._functions
        """All were called and the store has answered, or refuses this worker: it may claim."""

    def begin_first(self) -> None:
        """Call the functions for the first time. The worker is woken when it may claim."""
        if self._task is None:
            self.begin()
            self.is_fresh = True

    def begin(self) -> None:
        """Call the functions in a task. Queue another round while a round is running, and none just after the first."""
        if self.is_fresh:
            # What is stored at the start of a worker follows this round.
            self.is_fresh = False
            return
        self._is_wanted = True
        if self._functions and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="queuehint-setup")

    def cancel(self) -> None:
        """Cancel the task at the end of the worker."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while self._is_wanted:
            self._is_wanted = is_refused = False
            for function in self._functions:
                try:
                    await _called(function)
                except BackendError as error:
                    extra = {"event": "worker.setup_delayed", "worker": self._worker, "error": str(error)}
                    logger.warning("setup %s is called again later: %s", name_of(function), error, extra=extra)
                    self._is_wanted = True
                    is_refused = is_refused or error.is_lasting
                except Exception as error:  # noqa: BLE001 - the jobs of the worker go on
                    facts = {"event": "worker.setup_failed", "worker": self._worker, "setup": name_of(function)}
                    self._failures.log_hook("a setup of the application failed", error, **facts)
            if is_refused or not self._is_wanted:
                self.is_ready = True
                self._wakeup.set()
            if self._is_wanted:
                await asyncio.sleep(SETUP_REST_S)


async def _called(function: Callable[[], Any]) -> None:
    if inspect.iscoroutinefunction(function):
        await function()
        return
    answer = await asyncio.to_thread(function)
    if inspect.isawaitable(answer):
        await answer


class Resources:
    """The resources that the lifespan has opened for one worker. None without a lifespan."""

    def __init__(self, state: WorkerState, lifespan: Lifespan | None) -> None:
        self._state = state
        self._lifespan = lifespan
        self._entering: asyncio.Task[Any] | None = None
        self._was_stopped = False
        self.is_broken = False
        """The lifespan has raised, and that was logged."""

    @property
    def are_none(self) -> bool:
        """Return whether there is no lifespan."""
        return self._lifespan is None

    async def around(self, work: Callable[[], Awaitable[None]], let_end: Callable[[], Awaitable[object]]) -> None:
        """
        Do the work of a worker inside the lifespan, unless the worker is stopped before the lifespan is entered.

        Args:
            let_end: called after an error of the work, to wait for the code that goes on.
        """
        assert self._lifespan is not None
        ended_by: BaseException | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                if self._was_stopped or not await self._enter(self._lifespan, stack):
                    return
                try:
                    await work()
                except BaseException as error:
                    ended_by = error
                    if isinstance(error, Exception):
                        await let_end()
                    raise
        except Exception as error:
            if error is not ended_by:
                self.is_broken = True
                facts = {"event": "worker.lifespan_failed", "worker": self._state.name, "lifespan": self._lifespan.name}
                self._state.outcomes.failures.log_hook("the lifespan of a worker failed", error, **facts)
            raise
        finally:
            self._state.state = None
        if ended_by is not None:
            raise ended_by

    async def _enter(self, lifespan: Lifespan, stack: contextlib.AsyncExitStack) -> bool:
        task = self._entering = asyncio.current_task()
        assert task is not None
        try:
            self._state.state = await lifespan.enter(stack)
        except asyncio.CancelledError:
            if not self._was_stopped or task.cancelling() > 1:
                raise
        finally:
            self._entering = None
            if self._was_stopped:
                task.uncancel()
        return not self._was_stopped

    def stop(self) -> None:
        """Cancel the lifespan while it is entered, as no job runs yet. A later lifespan is not entered."""
        if self._entering is not None and not self._was_stopped:
            self._entering.cancel()
        self._was_stopped = True
