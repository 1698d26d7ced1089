"""The pulse of a worker's event loop: whether code blocks it, as every part and thread sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_S = 1.0
"""How often a worker's loop says that it turns."""
BLOCKED_S = 5.0
"""How long code may block the loop before a report, and before jobs that have not begun are given back."""


class Pulse:
    """
    The time at which the loop of one worker last turned.

    Args:
        now_s: the clock of the worker.
        is_looked_at: whether a thread looks, and finds out whether it is code that blocks the loop.
    """

    def __init__(self, now_s: Callable[[], float], *, is_looked_at: bool) -> None:
        self.now_s = now_s
        self._is_looked_at = is_looked_at
        self.turned_s: float | None = None
        """None while the worker does not run."""
        self.is_blocked = False
        """The thread has found that code blocks the loop."""

    @property
    def blocked_s(self) -> float:
        """For how long code has blocked the loop of this worker. 0 while the loop turns, and while it does not run."""
        turned_s = self.turned_s
        return 0.0 if turned_s is None else max(0.0, self.now_s() - turned_s - BEAT_S)

    def blocked_ms(self) -> int:
        """Return for how long code has blocked the loop, 0 below the reporting threshold; from any thread."""
        blocked_s = self.blocked_s
        # A thread has checked that not the whole process stood still; for a store that keeps leases no thread checks.
        is_told = self.is_blocked if self._is_looked_at else blocked_s >= BLOCKED_S
        return round(blocked_s * 1000) if is_told else 0

    def is_stuck(self, after_s: float) -> bool:
        """Return whether code has blocked the loop for longer than a time and the reporting threshold."""
        return self.blocked_s > max(after_s, BLOCKED_S)
