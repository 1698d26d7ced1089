"""
Shrinking: shorten a failing history by leaving out operations.

Hypothesis shrinks its draws, one choice at a time; here whole operations are left out, then parts of them. The history
is run again each time, which takes milliseconds: a second in all, and not a minute.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.testing.state_machine.source import as_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["shorten"]

History = list[tuple[int, Any]]

_KEPT = {"id", "job_id", "task", "token"}
"""Fields that are never left out: without them it would be another history."""


def shorten(history: History, fails: Callable[[History], bool], *, seconds_max: float = 30) -> History:
    """
    Return a part of a history that fails too, as short as is found in the time.

    Args:
        history: times in ms and operations.
        fails: does a history from the beginning, and says whether it fails.

    >>> shorten([(0, "a"), (3, "b"), (5, "c")], lambda history: any(step == "b" for _, step in history))
    [(0, 'b')]
    """
    stop_at = time.monotonic() + seconds_max

    def try_one(candidate: History) -> bool:
        return time.monotonic() < stop_at and fails(candidate)

    before = None
    while history != before and time.monotonic() < stop_at:
        before = history
        history = _leave_out(history, try_one)
        history = _simplify(history, try_one)
        history = _hurry(history, try_one)
    return history


def _leave_out(history: History, fails: Callable[[History], bool]) -> History:
    """Leave out operations, many at once at first, from the end."""
    size = max(1, len(history) // 2)
    while True:
        at = len(history)
        while at > 0:
            begin = max(0, at - size)
            candidate = history[:begin] + history[at:]
            if fails(candidate):
                history = candidate
            at = begin
        if size == 1:
            return history
        size //= 2


def _simplify(history: History, fails: Callable[[History], bool]) -> History:
    """Leave out parts of operations."""
    for at, (at_ms, operation) in enumerate(history):
        found = True
        while found:
            found = False
            size = len(as_code(operation))
            for simpler in _simpler(operation):
                if len(as_code(simpler)) >= size:
                    continue
                candidate = [*history[:at], (at_ms, simpler), *history[at + 1 :]]
                if fails(candidate):
                    history, operation, found = candidate, simpler, True
                    break
    return history


def _hurry(history: History, fails: Callable[[History], bool]) -> History:
    """Remove time steps that are not needed."""
    for at in range(len(history)):
        passed_ms = history[at][0] - (history[at - 1][0] if at else 0)
        if passed_ms > 0:
            candidate = history[:at] + [(at_ms - passed_ms, operation) for at_ms, operation in history[at:]]
            if fails(candidate):
                history = candidate
    return history


def _simpler(value: Any) -> Iterator[Any]:
    """Yield values like this one with a little less in them."""
    if isinstance(value, tuple):
        for at in range(len(value)):
            yield value[:at] + value[at + 1 :]
        for at, item in enumerate(value):
            for simpler in _simpler(item):
                yield (*value[:at], simpler, *value[at + 1 :])
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            if not field.init or field.name in _KEPT:
                continue
            item = getattr(value, field.name)
            default: Any = field.default
            default = default.factory() if hasattr(default, "factory") else default
            if default is not attrs.NOTHING and item != default:
                yield from _evolved(value, field, default)
            for simpler in _simpler(item):
                if simpler != default:
                    yield from _evolved(value, field, simpler)


def _evolved(value: Any, field: attrs.Attribute[Any], item: Any) -> Iterator[Any]:
    try:
        yield attrs.evolve(value, **{field.alias or field.name: item})
    except (ValueError, TypeError):
        # Not all values are values of a field.
        return
