"""Shrinking: leave out steps, many at first, then one by one, as long as the rest still fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Step = TypeVar("Step")

TRIES_MAX = 2_000


def shrunk(
    steps: list[Step],
    fails: Callable[[list[Step]], Exception | None],
    error: Exception,
    *,
    tries_max: int = TRIES_MAX,
) -> tuple[list[Step], Exception]:
    """
    Leave out *steps* while the rest still fails with an error of the same type.

    Args:
        fails: plays steps from the beginning and returns what went wrong, None if nothing did. What speaks of
            something that was left out has to do nothing.
        error: what went wrong with all of them.
        tries_max: how often steps are played at most.

    Returns:
        The steps that are left, of which none can be left out alone, and what goes wrong with these. All of them and
        *error* if they do not fail so a second time.

    Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002), from the end.
    """
    kind = type(error)
    again = fails(steps)
    if again is None or type(again) is not kind:
        return steps, error
    tries, size, error = 1, max(1, len(steps) // 2), again
    while tries < tries_max:
        end, has_shrunk = len(steps), False
        while end > 0 and tries < tries_max:
            begin = max(0, end - size)
            fewer = steps[:begin] + steps[end:]
            tries += 1
            again = fails(fewer)
            # A fault of the simulation's own, or of a handler, must not stand in for a broken promise.
            if again is not None and type(again) is kind:
                steps, error, has_shrunk = fewer, again, True
            end = begin
        if size == 1 and not has_shrunk:
            break
        size = max(1, size // 2)
    return steps, error
