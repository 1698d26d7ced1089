"""
A worker that reads its time from a file: ``python -m tests.faults.file_clock URL FILE``.

Its job does nothing. Writing another time into the file moves the clocks of all its readers.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from queuehint import Scheduler

POLL_S = 0.002
LEASE_S = 12 * 3600
"""Longer than a test lasts by the time in the file, shorter than records are kept."""


class FileClock:
    """The time in a file, as ms."""

    def __init__(self, path: Path, *, follows: bool = False) -> None:
        self._path = path
        self._moved: list[Callable[[], None]] = []
        if follows:
            threading.Thread(target=self._follow, daemon=True).start()

    def now_ms(self) -> int:
        return int(self._path.read_bytes())

    def subscribe(self, moved: Callable[[], None]) -> None:
        self._moved.append(moved)

    def set(self, now_ms: int) -> None:
        """Move the time of all readers of the file; each sees the old time or the new one."""
        beside = self._path.with_suffix(".new")
        beside.write_text(str(now_ms))
        beside.replace(self._path)

    def _follow(self) -> None:
        last_ms = self.now_ms()
        while True:
            time.sleep(POLL_S)
            now_ms = self.now_ms()
            if now_ms != last_ms:
                last_ms = now_ms
                for moved in self._moved:
                    moved()


def scheduler(url: str, clock: FileClock) -> Scheduler:
    """Return a scheduler that has the job."""
    sched = Scheduler(url, clock=clock, lease=LEASE_S)

    @sched.job(queue_hint=["beats"])
    async def beat() -> None: ...

    return sched


async def main(url: str, path: Path) -> None:
    """Work until the process ends."""
    sched = scheduler(url, FileClock(path, follows=True))
    async with sched.worker():
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
