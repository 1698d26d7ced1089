"""Threads in which a worker runs plain functions: handlers, and steps of asynchronous handlers."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from queuehint.handlers.forks import end_any_child
from queuehint.values.ids import this_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor


class Threads:
    """
    Threads of one worker, created at first use.

    Args:
        most: how many at once.
        executor: what runs functions instead of threads of its own; it is not shut down.
    """

    def __init__(self, most: int, executor: Executor | None = None) -> None:
        self._most = most
        self._executor = executor
        self._own_executor: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Shut the own threads down, without waiting for running threads."""
        if self._own_executor is not None:
            self._own_executor.shutdown(wait=False)

    async def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a plain function in a thread, and return no earlier than the function."""
        loop = asyncio.get_running_loop()
        if self._executor is None:
            self._executor = self._own_executor = ThreadPoolExecutor(self._most, thread_name_prefix="queuehint")
        context = contextvars.copy_context()

        def call() -> tuple[Any, BaseException | None]:
            process = this_process.mark
            try:
                result = context.run(function, *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - handed over as a value: futures refuse some of them
                end_any_child(process, error)
                return None, error
            end_any_child(process)
            return result, None

        future = loop.run_in_executor(self._executor, call)
        while True:
            try:
                result, error = await asyncio.shield(future)
                break
            except asyncio.CancelledError:
                # The thread cannot be stopped, and its place must not be freed under it. An executor of the
                # application's may drop what it has not begun.
                if future.cancelled() or loop.is_closed():
                    raise
        if error is not None:
            raise error
        return result
