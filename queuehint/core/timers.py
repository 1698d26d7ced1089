"""
Due times of every kind in one sorted structure.

What is due at the same ms is done in order of kind, then of the job's number, so that every backend does the same
things in the same order.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from queuehint.core.heap import Entry, LazyHeap

if TYPE_CHECKING:
    from queuehint.core.job import Job


class TimerKind(IntEnum):
    """Why a job is to be looked at."""

    DUE = 0
    """SCHEDULED: its time has come. QUEUED: its back-off is over, or has held the place long enough."""
    LEASE = 1
    """STARTED: the worker did not renew. QUEUED: the caller of `exclusive` did not."""
    EXPIRY = 2
    """It was not started within the time allowed."""
    PRUNE = 3
    """Over: the record has been kept long enough."""


_KINDS = 4
_DUE, _LEASE, _EXPIRY, _PRUNE = TimerKind
KIND_OF = (_DUE, _LEASE, _EXPIRY, _PRUNE)


class Timers:
    """Jobs by due time; an entry carries ``(kind, job)``."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: LazyHeap[Job] = LazyHeap()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, kind: int, due_ms: int, job: Job) -> Entry:
        """Look at *job* at *due_ms*; the entry returned is what `drop` takes."""
        return self._heap.push(due_ms * _KINDS + kind, job.number, job)

    def drop(self, entry: Entry) -> None:
        """Forget an entry that has not come up."""
        self._heap.discard(entry)

    def next_ms(self) -> int | None:
        """Return when the next entry is due, None if there is none."""
        entry = self._heap.first()
        return None if entry is None else int(entry[0]) // _KINDS

    def pop_due(self, now_ms: int) -> tuple[TimerKind, Job] | None:
        """Take out the first entry that is due at *now_ms*."""
        entry = self._heap.first()
        if entry is None or entry[0] >= (now_ms + 1) * _KINDS:
            return None
        kind = KIND_OF[entry[0] % _KINDS]
        return kind, self._heap.pop()

    def entries(self) -> list[Job]:
        """Return the jobs of all entries; for tests."""
        return self._heap.items()
