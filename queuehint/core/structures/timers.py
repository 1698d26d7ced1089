"""
Timers of all jobs, a priority queue for each kind.

Timers of the same ms fire in order of kind, then of the job's number, so that every backend does the same things in
the same order.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from queuehint.core.structures.heap import Entry, LazyHeap

if TYPE_CHECKING:
    from queuehint.core.structures.job import Job


class TimerKind(IntEnum):
    """Purpose of a timer."""

    DUE = 0
    """SCHEDULED: it is due. QUEUED: its back-off is over, or has held the place for `max_hold`."""
    LEASE = 1
    """STARTED: its lease has expired. QUEUED: the presence of its caller (`exclusive`) has."""
    EXPIRY = 2
    """It was not started within `start_within`; of a submission in parts, it was not committed in time."""
    PRUNE = 3
    """Over: the retention of its record has ended."""


_KINDS = len(TimerKind)


class Timers:
    """
    Jobs by due time, a heap a kind.

    Entries of one kind mostly come in order of time, so that adding one is O(1): a lease of seconds does not climb
    over retentions of days.
    """

    __slots__ = ("_heaps",)

    def __init__(self) -> None:
        self._heaps: tuple[LazyHeap[Job], ...] = tuple(LazyHeap(kind, _KINDS) for kind in TimerKind)

    def __len__(self) -> int:
        return sum(map(len, self._heaps))

    def add(self, kind: int, due_ms: int, job: Job) -> Entry:
        """Add a timer that fires at *due_ms*; return its entry, for `drop`."""
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

    def pop_due(self, now_ms: int) -> tuple[TimerKind, Job] | None:
        """Remove and return the first entry that is due at *now_ms*: in order of time, then of kind, then of number."""
        least_ms, least_kind = now_ms + 1, None
        for kind, heap in enumerate(self._heaps):
            entry = heap.first()
            if entry is not None and entry[0] < least_ms:
                least_ms, least_kind = entry[0], kind
        return None if least_kind is None else (TimerKind(least_kind), self._heaps[least_kind].pop())

    def of(self, kind: int) -> list[Job]:
        """Return the jobs of all entries of a kind, in the order in which they fire."""
        return self._heaps[kind].items()

    def entries(self) -> list[Job]:
        """Return the jobs of all entries; for tests."""
        return [job for heap in self._heaps for job in heap.items()]
