"""The crew that makes the calls of a history, one caller at a time, up to a given point."""

from __future__ import annotations

import linecache
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import hypothesis

if TYPE_CHECKING:
    from types import FrameType

_LIBRARIES = tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib")})
_OWN = (str(Path(__file__).parent), str(Path(hypothesis.__file__).parent))
"""The crew's own code, and that of Hypothesis, which has a function called at each collection of garbage."""


class Crew(Protocol):
    """Callers by number, each with one call at a time."""

    def make(self, factory: Callable[[], Any]) -> Any:
        """Make a queue, with locks and events that the crew knows of."""

    def begin(self, caller: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Give a caller its next call, without a step."""

    def can_go(self, caller: int) -> bool:
        """Return whether a caller can make a step of its call."""

    def go(self, caller: int, steps: int | None) -> None:
        """Resume a caller for a number of steps, or until it waits or its call has ended."""

    def ended(self, caller: int) -> tuple[Any, BaseException | None] | None:
        """Return the result or the exception of a caller's ended call, None before its end."""

    def where(self, caller: int) -> str | None:
        """Return the line of the queue's code at which a caller stands."""

    def waits_for_lock(self, caller: int) -> bool:
        """Return whether a caller waits for a lock, not for a condition, an event or a semaphore."""

    def holder(self, caller: int) -> int | None:
        """Return the holder of the lock that a caller waits for, None if unknown."""

    def time_out(self, caller: int) -> bool:
        """End a caller's wait by its time-out. Return False if it has none."""

    def close(self) -> None:
        """End all calls."""


def is_library(path: str) -> bool:
    """Return whether code is the standard library's, or the crew's own."""
    return path.startswith(("<frozen", *_OWN)) or (path.startswith(_LIBRARIES) and "site-packages" not in path)


def line_of(frame: FrameType | None) -> str | None:
    """Return the innermost line of a stack that is the queue's own code."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    path = frame.f_code.co_filename
    line = linecache.getline(path, frame.f_lineno).strip()
    place = f"{Path(path).name}:{frame.f_lineno}"
    return f"`{line}`  ({place})" if line else place
