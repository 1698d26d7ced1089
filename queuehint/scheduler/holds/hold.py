"""A place or permit that plain code holds, by its own clock."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from typing import TYPE_CHECKING

from queuehint.clock import now_s
from queuehint.schema.checks import check_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta


class Hold:
    """
    A place or permit that plain code holds.

    Args:
        id: the id of the job that stands for it.
        token: its fencing token; pass it on to whatever can refuse less.
    """

    def __init__(self, job_id: str, token: int, until_s: float = math.inf) -> None:
        self.id = job_id
        self.token = token
        self._until_s = until_s
        """Until when it is surely held, less a margin, by this machine's monotonic clock."""
        self._wakes: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Hold({self.id!r}, token={self.token}, lost={self.lost})"

    @property
    def lost(self) -> bool:
        """
        True once another job may have the place or the room.

        The store refused a renewal, or none went through until a tenth of the lease (at least 0.5 s) before its end, by
        this machine's monotonic clock. It never becomes false again.
        """
        return now_s() >= self._until_s

    async def wait_lost(self) -> None:
        """Return once `lost` is true. Cancel this wait before the block is left."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(news.set)

        with self._woken(wake):
            while not self.lost:
                news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), self._left_s())

    def wait_lost_sync(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until `lost` is true, on another thread than the block's. Return False after *timeout*."""
        end_s = math.inf if timeout is None else now_s() + check_duration(timeout, parameter="timeout") / 1000
        news = threading.Event()
        with self._woken(news.set):
            while not self.lost and now_s() < end_s:
                news.clear()
                left_s = self._left_s()
                if end_s < math.inf:
                    left_s = max(0.0, min(threading.TIMEOUT_MAX if left_s is None else left_s, end_s - now_s()))
                news.wait(left_s)
        return self.lost

    def extend(self, until_s: float) -> None:
        """Record a renewal. A late renewal has no effect."""
        with self._lock:
            if not self.lost:
                self._until_s = max(self._until_s, until_s)

    def lose(self) -> None:
        """Record that the lease is lost."""
        with self._lock:
            self._until_s = -math.inf
            wakes = list(self._wakes)
        for wake in wakes:
            wake()

    def _left_s(self) -> float | None:
        """Return the remaining time of the lease. Return None if only the store can end the lease."""
        return None if self._until_s == math.inf else max(0.0, self._until_s - now_s())

    @contextlib.contextmanager
    def _woken(self, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._wakes.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakes.remove(wake)
