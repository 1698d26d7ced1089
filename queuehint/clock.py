"""The time, as an object that tests can move."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """What tells the time."""

    def now_ms(self) -> int:
        """Return ms since the epoch."""

    def subscribe(self, moved: Callable[[], None]) -> None:
        """Have *moved* called whenever the time jumps instead of passing by itself."""


class SystemClock:
    """The time of this machine; it passes by itself."""

    def now_ms(self) -> int:
        """Return ms since the epoch."""
        return time.time_ns() // 1_000_000

    def subscribe(self, moved: Callable[[], None]) -> None:
        """Do nothing: this clock never jumps on purpose."""


class FakeClock:
    """
    A time that moves only when told to, for tests.

    >>> clock = FakeClock(1_000)
    >>> clock.advance(seconds=1.5)
    >>> clock.now_ms()
    2500
    """

    def __init__(self, now_ms: int = 1_600_000_000_000) -> None:
        self._now_ms = now_ms
        self._subscribers: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the time last set."""
        return self._now_ms

    def subscribe(self, moved: Callable[[], None]) -> None:
        """Have *moved* called after each move."""
        self._subscribers.append(moved)

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Move the time forward."""
        self._now_ms += round(seconds * 1000) + ms
        for moved in self._subscribers:
            moved()
