"""
Crash points: a process of a test kills itself at a named point.

A variable such as ``TESTS_DIE_AT=claim.after_reply:3`` kills the process with SIGKILL when it passes that point the
third time (without a number: the first time). Tests wrap the functions at such points; the package contains none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

VARIABLE = "TESTS_DIE_AT"


def armed(setting: str | None, points: Sequence[str]) -> Callable[[str], None] | None:
    """
    Return what to call at each of some points, None if there is nothing to do.

    Raises:
        ValueError: the setting names no point, or no number.
    """
    if not setting:
        return None
    point, _, count = setting.partition(":")
    if point not in points:
        raise ValueError(f"{setting}: no such point to die at; there are {', '.join(points)}")
    left = int(count or 1)

    def reach(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if not left:
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    return reach
