"""The clock: an object that tests can move."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from queuehint.schema.checks import check_callable, check_int, check_number

if TYPE_CHECKING:
    from collections.abc import Callable


MS_MAX = 2**53
"""Largest distance of a time from the epoch that all stores represent exactly."""


class Clock(Protocol):
    """Source of the current time."""

    def now_ms(self) -> int:
        """Return ms since the epoch."""

    def subscribe(self, moved: Callable[[], None]) -> None:
        """Register a callback for time jumps, for clocks of tests."""


class SystemClock:
    """The time of this machine, which passes by itself."""

    def now_ms(self) -> int:
        """Return ms since the epoch."""
        return time.time_ns() // 1_000_000

    def subscribe(self, moved: Callable[[], None]) -> None:
        """Do nothing: this clock never jumps."""


class FakeClock:
    """
    A clock for tests, moved by `advance` only.

    >>> clock = FakeClock(1_000)
    >>> clock.advance(seconds=1.5)
    >>> clock.now_ms()
    2500
    """

    def __init__(self, now_ms: int = 1_600_000_000_000) -> None:
        self._now_ms = check_int(now_ms, parameter="now_ms", least=-MS_MAX, most=MS_MAX)
        self._subscribers: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the time last set."""
        return self._now_ms

    def subscribe(self, moved: Callable[[], None]) -> None:
        """Register a callback for each move."""
        self._subscribers.append(check_callable(moved, parameter="moved"))

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """
        Move the time forward.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter; the time is as it was.
        """
        step_ms = round(check_number(seconds, parameter="seconds", least=-MS_MAX, most=MS_MAX) * 1000)
        step_ms += check_int(ms, parameter="ms", least=-MS_MAX, most=MS_MAX)
        self._now_ms = check_int(self._now_ms + step_ms, parameter="the time", least=-MS_MAX, most=MS_MAX)
        for moved in self._subscribers:
            moved()


now_s: Callable[[], float]
"""Returns the time on this machine's monotonic clock, the same for all processes; on Linux it counts in suspension."""
if hasattr(time, "CLOCK_BOOTTIME"):
    _passed_ns: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    now_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:  # pragma: no cover - not Linux
    _passed_ns = time.monotonic_ns
    now_s = time.monotonic


class SteadyClock(SystemClock):
    """
    The time of this machine for one process: steadily increasing where the machine's clock is set back.

    It passes by the monotonic clock, and follows the machine's clock where that is ahead.
    """

    def __init__(self) -> None:
        self._ahead_ms = 0
        """By how much the machine's clock has been ahead of the monotonic one at most."""

    def now_ms(self) -> int:
        """Return ms since the epoch."""
        passed_ms = _passed_ns() // 1_000_000
        ahead_ms = time.time_ns() // 1_000_000 - passed_ms
        self._ahead_ms = max(self._ahead_ms, ahead_ms)
        return passed_ms + self._ahead_ms
