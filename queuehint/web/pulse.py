"""
The pulse of a store: whether it is busy, found for all pages of a process together.

A store writes its events down only while somebody follows them, which makes each job dearer for it. So pages follow the
events of a quiet store alone. While a store is busy, they tick by looks at its counts, one look for all pages.

A look comes the later the longer it took to make the pages that the look before has told: at most a fifteenth of the
time goes into them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from queuehint.values.report import Stats
from queuehint.web.store import BoundedStore

if TYPE_CHECKING:
    from queuehint.scheduler.scheduler import Scheduler

BUSY_PER_S: Final = 20.0
"""A store with so many events a second is busy."""
QUIET_LOOKS: Final = 5
"""After so many looks in a row that found fewer events, a store is quiet."""
FIRST_S: Final = 0.25
"""So far apart the first two looks are, and two numbers of events by which a quiet store is judged."""
KNOWN_S: Final = 60.0
"""So long it is known whether a store is busy. For as long it keeps events after somebody has followed them."""
TIMES_LONGER: Final = 15.0
"""Between two looks so many times longer passes than it took to make pages."""
APART_S_MAX: Final = 10.0
PATIENCE_S: Final = 10.0
"""So long a look waits for its answer."""


class Pulse:
    """
    The pulse of the store of a scheduler.

    ``beats`` grows with each look that has found a change, ``changes`` with each change that pages are told of.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._store = BoundedStore(scheduler, PATIENCE_S)
        self._waiting: set[asyncio.Future[bool]] = set()
        self._task: asyncio.Task[None] | None = None
        self._counts: Stats | None = None
        self._counted_at = 0
        self._looked_s = self._known_s = float("-inf")
        self._slow = QUIET_LOOKS - 1
        self._at: int | None = None
        self._at_s = float("-inf")
        self._took_s = 0.0
        self.beats = self.changes = 0

    async def beat(self, seen: int, apart_s: float) -> bool:
        """
        Wait until a look has found a change in a busy store.

        Args:
            seen: the number of the beat that was seen last; for a later one there is no wait.
            apart_s: how far looks are apart at least.

        Returns:
            False, at once or after some looks, if the store is quiet: its events are to be followed.

        Raises:
            BackendError: the store does not answer.
        """
        if self.is_quiet:
            return False
        if self.beats != seen:
            return True
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_on(apart_s), name="queuehint-pulse")
        try:
            return bool(await future)
        finally:
            self._waiting.discard(future)
            if not self._waiting:
                self._task.cancel()
                self._task = None

    def follow(self, at: int) -> None:
        """Judge a quiet store by the number of its last event."""
        now_s = asyncio.get_running_loop().time()
        passed_s = now_s - self._at_s
        if passed_s < FIRST_S:
            return
        if self._at is not None and at - self._at >= BUSY_PER_S * passed_s:
            self._slow = 0
        self._at, self._at_s, self._known_s = at, now_s, now_s

    def change(self) -> None:
        """Note a change: what was read before is out of date."""
        self.changes += 1

    def took(self, seconds: float) -> None:
        """Note that it took so long to make pages."""
        self._took_s += seconds

    def counts(self, most_s: float) -> Stats | None:
        """Return the counts of the last look, unless something has changed since or they are older than *most_s*."""
        is_new = asyncio.get_running_loop().time() - self._looked_s < most_s
        return self._counts if is_new and self._counted_at == self.changes else None

    @property
    def is_quiet(self) -> bool:
        """Whether the store is known to be quiet."""
        return self._slow >= QUIET_LOOKS and self._is_known

    @property
    def _is_known(self) -> bool:
        return asyncio.get_running_loop().time() - self._known_s < KNOWN_S

    async def _look_on(self, apart_s: float) -> None:
        try:
            is_busy = await self._looks(apart_s)
        except Exception as error:  # noqa: BLE001 - those that wait are told
            for future in self._waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for future in self._waiting:
                if not future.done():
                    future.set_result(is_busy)

    async def _looks(self, apart_s: float) -> bool:
        """Look until something has changed in a busy store, or the store is quiet; return whether it is busy."""
        loop = asyncio.get_running_loop()
        if self._is_known and self._counts is not None:
            counts, looked_s = self._counts, self._looked_s
            due_s = looked_s + max(apart_s, min(TIMES_LONGER * self._took_s, APART_S_MAX))
        else:
            self._slow = QUIET_LOOKS - 1
            counts = await self._look()
            looked_s = self._looked_s
            due_s = looked_s + FIRST_S
        while True:
            await asyncio.sleep(due_s - loop.time())
            self._took_s = 0.0
            before, before_s = counts, looked_s
            counts = await self._look()
            looked_s = self._known_s = self._looked_s
            is_slow = _moves(before, counts) < BUSY_PER_S * (looked_s - before_s)
            self._slow = self._slow + 1 if is_slow else 0
            is_changed = counts != before
            if is_changed:
                is_latest = self._counted_at == self.changes
                self.change()
                self.beats += 1
                self._counted_at += is_latest
            if self._slow >= QUIET_LOOKS:
                self._at = None
                return False
            if is_changed:
                return True
            due_s = looked_s + apart_s

    async def _look(self) -> Stats:
        changes = self.changes
        counts = self._counts = await self._store.run(self._store.scheduler.stats())
        self._counted_at, self._looked_s = changes, asyncio.get_running_loop().time()
        return counts


def _moves(before: Stats, now: Stats) -> int:
    """Return how many times jobs have moved between two looks."""
    return now.enqueued + now.started + now.settled - before.enqueued - before.started - before.settled
