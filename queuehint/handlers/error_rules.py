"""Rules of one task for exceptions: which fail its job at once, and which are retried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.handlers.remote import Kinds, RemoteError, class_name

if TYPE_CHECKING:
    from collections.abc import Sequence

CLASSES_MAX = 100


class ErrorRules:
    """
    The rules of one task.

    If both lists have a class of the exception, the most derived one decides. An exception in neither list is retried,
    unless there is a *retry_on*. An exception group in neither list is final if each of its exceptions is.

    Args:
        fail_on: a class of exceptions, or up to 100 of them, after which there is no further attempt.
        retry_on: those after which there is one, and after no others; None for all but *fail_on*.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
    """

    def __init__(self, fail_on: object = (), retry_on: object = None) -> None:
        self._fail_on = frozenset(_classes(fail_on, "fail_on"))
        self._retry_on = None if retry_on is None else frozenset(_classes(retry_on, "retry_on"))
        self._fail_names = {class_name(each) for each in self._fail_on}
        self._retry_names = {class_name(each) for each in self._retry_on or ()}
        both = sorted([each.__name__ for each in self._fail_on & (self._retry_on or frozenset())])
        if both:
            raise InvalidJobError(f"fail_on and retry_on both name {both[0]}")

    def is_final(self, error: BaseException) -> bool:
        """Return whether an exception is final: no further attempt follows."""
        retry_on = self._retry_on
        if not self._fail_on and retry_on is None:
            return isinstance(error, RemoteError) and error.trouble.is_final
        if isinstance(error, RemoteError):
            return error.trouble.is_final or self._is_final_kind(error.trouble.kinds)
        for cls in type(error).__mro__:
            if cls in self._fail_on:
                return True
            if retry_on is not None and cls in retry_on:
                return False
        if isinstance(error, BaseExceptionGroup):
            return all(self.is_final(each) for each in error.exceptions)
        return retry_on is not None

    def _is_final_kind(self, kinds: Kinds) -> bool:
        """Do as `is_final`, by the names of the classes, for an exception raised in another process."""
        for name in kinds.names:
            if name in self._fail_names:
                return True
            if name in self._retry_names:
                return False
        if kinds.members is not None:
            return all(self._is_final_kind(member) for member in kinds.members)
        return self._retry_on is not None


def _classes(value: object, parameter: str) -> Sequence[type[Exception]]:
    if isinstance(value, type):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        kind = type(value).__name__
        raise InvalidJobTypeError(f"{parameter} must be exception classes, such as (ValueError,), got {kind}")
    if len(value) > CLASSES_MAX:
        raise InvalidJobError(f"{parameter}: {len(value)} classes, limit {CLASSES_MAX}")
    for at, each in enumerate(value):
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise InvalidJobTypeError(f"{parameter}[{at}] must be a class of exceptions, got {shown(each)}")
    return value
