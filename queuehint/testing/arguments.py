"""Arguments of the checks of handlers: functions, and jobs as tuples. Needs neither Hypothesis nor pytest."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from queuehint.backends.steps import is_loop_running
from queuehint.errors import InvalidJobTypeError, shown

T = TypeVar("T")


def check_function(value: object, *, parameter: str) -> None:
    """
    Check that a plain function is given, which is called and not awaited.

    Raises:
        InvalidJobTypeError: it is not callable, or a coroutine function: to call that does nothing.
    """
    if not callable(value):
        raise InvalidJobTypeError(f"{parameter} must be a function, got {type(value).__name__}: {shown(value)}")
    if inspect.iscoroutinefunction(value):
        raise InvalidJobTypeError(f"{parameter} must be a plain function, got an async one: {shown(value)}")


def read_call(item: object, *, parameter: str) -> tuple[str, Sequence[str] | None, tuple[Any, ...], dict[str, Any]]:
    """
    Return the task, the hint and the arguments of a job, by position and by name, without a check of the hint.

    Raises:
        InvalidJobTypeError: it is no tuple of these.
    """
    if not isinstance(item, tuple) or len(item) not in (2, 3) or not isinstance(item[0], str):
        raise InvalidJobTypeError(
            f"{parameter} must be a JobSpec or a tuple of a task, a hint and arguments, such as "
            f"('edit', ['doc1'], ('text',)), got {type(item).__name__}: {shown(item)}"
        )
    task, hint, *rest = item
    given = rest[0] if rest else ()
    if isinstance(given, Mapping):
        return task, hint, (), dict(given)
    if not isinstance(given, (tuple, list)):
        raise InvalidJobTypeError(
            f"{parameter} must have its arguments in a tuple, a list or a mapping, got "
            f"{type(given).__name__}: {shown(given)}"
        )
    return task, hint, tuple(given), {}


def off_the_loop(call: Callable[[], T]) -> T:
    """Call a function on this thread, or on another one where a loop runs, so that the function may run a loop."""
    if not is_loop_running():
        return call()
    answer: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(call())
        except BaseException as error:  # noqa: BLE001 - handed over to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="queuehint-check")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answer[0]
