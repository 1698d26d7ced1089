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
    Jobs, and pauses that end by themselves, by due time; a heap a kind.

    Entries of one kind mostly come in order of time, so that adding one is O(1): a lease of seconds does not climb
    over retentions of days.
    """

    __slots__ = ("_first_ms", "_heaps")

    def __init__(self) -> None:
        self._first_ms = _NEVER_MS
        """When the first entry is due, or one before it that was dropped; no heap need be looked at until then."""
        self._heaps: tuple[LazyHeap[Any], ...] = tuple(LazyHeap(kind, _KINDS) for kind in TimerKind)

    def __len__(self) -> int:
        return sum(map(len, self._heaps))

    def add(self, kind: int, due_ms: int, job: Timed) -> Entry:
        """Add a timer that fires at *due_ms*; return its entry, for `drop`."""
        if due_ms < self._first_ms:  # noqa: PLR1730 - twice a job; a call would cost more than the rest
            self._first_ms = due_ms
        return self._heaps[kind].push(due_ms, job.number, job)

    def drop(self, entry: Entry) -> None:
        """Remove an entry that has not fired."""
        self._heaps[entry[2] % _KINDS].discard(entry)

    def next_ms(self) -> int | None:
        """Return when the next entry is due, None if there is none."""
        least_ms = None
        for heap in self._heaps:
            entry = heap.first()
            if entry is not None and (least_ms is None or entry[0] < least_ms):
                least_ms = entry[0]
        return least_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether an entry is due at *now_ms*."""
        if self._first_ms <= now_ms:
            next_ms = self.next_ms()
            self._first_ms = _NEVER_MS if next_ms is None else next_ms
        return self._first_ms <= now_ms

    def pop_due(self, now_ms: int) -> tuple[TimerKind, Any] | None:
        """Remove and return the first entry that is due at *now_ms*: in order of time, then of kind, then of number."""
        if not self.is_due(now_ms):
            return None
        kind, heap = next(
            (kind, heap)
            for kind, heap in zip(TimerKind, self._heaps, strict=True)
            if (entry := heap.first()) is not None and entry[0] == self._first_ms
        )
        return kind, heap.pop()

    def of(self, kind: int) -> list[Any]:
        """Return the jobs or pauses of all entries of a kind, in the order in which they fire."""
        return self._heaps[kind].items()

    def check(self) -> None:
        """Assert that no entry is due before the first is said to be; for tests."""
        next_ms = self.next_ms()
        assert next_ms is None or self._first_ms <= next_ms

    def entries(self) -> list[Job]:
        """Return the jobs of all entries; for tests."""
        return [job for heap in self._heaps[: TimerKind.RESUME] for job in heap.items()]
