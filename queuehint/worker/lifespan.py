"""
Resources of a worker: what a lifespan of the application opens for its jobs, `JobContext.state`.

The worker's own task enters it before the first claim and leaves it after the last job, so that a cancel scope or a
context variable in it lasts as long as it does. It cannot suppress the error that ends the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from queuehint.errors import HandlerError, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from queuehint.worker.failures import Failures

MakesState: TypeAlias = Callable[
    [], AbstractAsyncContextManager[Any] | AbstractContextManager[Any] | AsyncIterator[Any] | Iterator[Any]
]
"""A generator function that yields once, async or plain, or what returns a context manager."""


class Lifespan:
    """
    A function of the application's that makes the context manager of each worker.

    Raises:
        HandlerError: it cannot be called without arguments, or is a coroutine function.
    """

    def __init__(self, function: MakesState) -> None:
        if not callable(function):
            raise HandlerError(f"worker_lifespan takes a function, got {type(function).__name__}: {shown(function)}")
        self.name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
        if inspect.iscoroutinefunction(function):
            raise HandlerError(f"the lifespan {self.name} is a coroutine function; is a `yield` missing?")
        self._make: Callable[[], Any] = function
        with contextlib.suppress(ValueError):  # some functions do not tell what they take
            try:
                inspect.signature(function).bind()
            except TypeError as error:
                raise HandlerError(f"the lifespan {self.name} is called without arguments: {error}") from None
        if inspect.isasyncgenfunction(function):
            self._make = contextlib.asynccontextmanager(function)
        elif inspect.isgeneratorfunction(function):
            self._make = contextlib.contextmanager(function)

    async def enter(self, stack: contextlib.AsyncExitStack) -> Any:
        """
        Enter it, to be left with a stack; return what it yields.

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


class Resources:
    """The resources that the lifespan has opened for one worker; none without a lifespan."""

    def __init__(self, worker: str, lifespan: Lifespan | None, failures: Failures) -> None:
        self._worker = worker
        self._lifespan = lifespan
        self._failures = failures
        self._entering: asyncio.Task[Any] | None = None
        self._was_stopped = False
        self.is_broken = False
        """The lifespan has raised, and that was logged."""
        self.state: Any = None

    @property
    def are_none(self) -> bool:
        """Return whether there is no lifespan."""
        return self._lifespan is None

    async def around(self, work: Callable[[], Awaitable[None]], let_end: Callable[[], Awaitable[object]]) -> None:
        """
        Do the work of a worker inside the lifespan; nothing if it is stopped before that is entered.

        Args:
            let_end: called after an error of the work, to wait for the code that goes on.
        """
        assert self._lifespan is not None
        ended_by: BaseException | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                if not await self._enter(self._lifespan, stack):
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
                facts = {"event": "worker.lifespan_failed", "worker": self._worker, "lifespan": self._lifespan.name}
                self._failures.log_hook("the lifespan of a worker failed", error, **facts)
            raise
        finally:
            self.state = None
        if ended_by is not None:
            raise ended_by

    async def _enter(self, lifespan: Lifespan, stack: contextlib.AsyncExitStack) -> bool:
        task = self._entering = asyncio.current_task()
        assert task is not None
        try:
            self.state = await lifespan.enter(stack)
        except asyncio.CancelledError:
            if not self._was_stopped or task.cancelling() > 1:
                raise
        finally:
            self._entering = None
            if self._was_stopped:
                task.uncancel()
        return not self._was_stopped

    def stop(self) -> None:
        """Cancel the lifespan while it is entered, because nothing runs yet."""
        if self._entering is not None and not self._was_stopped:
            self._was_stopped = True
            self._entering.cancel()
