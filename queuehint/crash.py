"""
Points at which a process that keeps a file can be made to die, for tests only.

``QUEUEHINT_CRASH_AT=journal.written:3`` kills the process with SIGKILL when it passes that point the third time
(without a number: the first time). The variable is read once, at import; without it `reach` is None and a point
costs one comparison.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VARIABLE = "QUEUEHINT_CRASH_AT"
FILE_POINTS = (
    "file.made",
    "journal.begun",
    "journal.written",
    "journal.committed",
    "journal.applied",
    "snapshot.begun",
    "snapshot.written",
    "snapshot.committed",
    "file.closing",
)


def armed(setting: str | None, points: Sequence[str] = FILE_POINTS) -> Callable[[str], None] | None:
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


reach: Callable[[str], None] | None = armed(os.environ.get(VARIABLE))
