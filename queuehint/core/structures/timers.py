"""
Timers of all jobs and pauses, a priority queue for each kind.

Timers of the same ms fire in order of kind, then of number, so that the order is the same on every backend.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from queuehint.core.structures.heap import Entry, LazyHeap

if TYPE_CHECKING:
    from queuehint.core.structures.job import Job


class Timed(Protocol):
    """A job, or a pause."""

    number: int


class TimerKind(IntEnum):
    """Kind of a timer."""

    DUE = 0
    """SCHEDULED: it is due. QUEUED: its back-off is over, or has held the place for `max_hold`."""
    LEASE = 1
    """STARTED: its lease has expired. QUEUED: the presence of its caller (`exclusive`) has."""
    EXPIRY = 2
    """It was not started within `start_within`; of a submission in parts, it was not committed in time.
    Over: it gives its key up."""
    PRUNE = 3
    """Over: the retention of its record has ended."""
    RESUME = 4
    """Of a pause, not of a job: it ends by itself."""


_KINDS = len(TimerKind)
_NEVER_MS = 1 << 62


class Timers:
    """
    Timers of jobs and of pauses with an end, by due time; a heap a kind.

    Entries of one kind mostly come in order of time, so that adding one is O(1): a lease of seconds does not climb
    over retentions of days.
    """

    __slots__ = ("_first_ms", "_heaps", "_is_exact")

    def __init__(self) -> None:
        self._first_ms = _NEVER_MS
        """When the first entry is due, or one before it that was dropped; no heap need be looked at until then."""
        self._is_exact = True
        """It is the first that has its time; else one that was dropped may have had it."""
        self._heaps: tuple[LazyHeap[Any], ...] = tuple(LazyHeap(kind, _KINDS) for kind in TimerKind)

    def __len__(self) -> int:
        return sum(map(len, self._heaps))

    def add(self, kind: int, due_ms: int, job: Timed) -> Entry:
        """Add a timer that fires at *due_ms*. Return its entry, for `drop`."""
        if due_ms < self._first_ms:
            self._first_ms, self._is_exact = due_ms, True
        return self._heaps[kind].push(due_ms, job.number, job)

    def drop(self, entry: Entry) -> None:
        """Remove an unfired entry."""
        self._heaps[entry[2] % _KINDS].discard(entry)
        self._is_exact = self._is_exact and entry[0] != self._first_ms

    def next_ms(self) -> int | None:
        """Return when the next entry is due, None if there is none."""
        if not self._is_exact:
            firsts = [entry[0] for heap in self._heaps if (entry := heap.first()) is not None]
            self._first_ms, self._is_exact = min(firsts, default=_NEVER_MS), True
        return None if self._first_ms == _NEVER_MS else self._first_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether an entry is due at *now_ms*."""
        if self._first_ms <= now_ms:
            self.next_ms()
        return self._first_ms <= now_ms

    def pop_due(self, now_ms: int) -> tuple[TimerKind, Any] | None:
        """Remove and return the first entry due at *now_ms*, by time, then kind, then number."""
        if not self.is_due(now_ms):
            return None
        kind, heap = next(
            (kind, heap)
            for kind, heap in zip(TimerKind, self._heaps, strict=True)
            if (entry := heap.first()) is not None and entry[0] == self._first_ms
        )
        self._is_exact = False
        return kind, heap.pop()

    def of(self, kind: int) -> list[Any]:
        """Return the jobs or pauses of all entries of a kind, in the order in which they fire."""
        return self._heaps[kind].items()

    def check(self) -> None:
        """Assert that the first due time is exact, or else a lower bound; for tests."""
        first_ms = min([entry[0] for heap in self._heaps if (entry := heap.first()) is not None], default=_NEVER_MS)
        assert self._first_ms == first_ms if self._is_exact else self._first_ms <= first_ms

    def entries(self) -> list[Job]:
        """Return the jobs of all entries; for tests."""
        return [job for heap in self._heaps[: TimerKind.RESUME] for job in heap.items()]
