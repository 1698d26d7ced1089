"""
Priority queue with lazy deletion: the order of ready, due and parked jobs.

An entry removed out of turn stays in the heap as a dead one until it is at the top or until the dead outnumber the
living, when the heap is rebuilt: every operation is O(log n) amortised and memory is O(living).
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

# Rank, number, serial, item. The serial is unique, so that items are never compared.
Entry = tuple[int, int, int, Any]
_DEAD_ALLOWED = 64


class LazyHeap(Generic[Item]):
    """
    Items in order of rank, then number.

    Entries that come in order, as most do, are kept in a run at no cost for their number; only the others go to the
    heap.

    Args:
        name, names: this heap is number *name* of *names*; each of its entries' serials leaves that rest by *names*.
    """

    __slots__ = ("_dead", "_heap", "_run", "_serial", "_step")

    def __init__(self, name: int = 0, names: int = 1) -> None:
        self._run: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._dead: set[int] = set()
        self._serial = name
        self._step = names

    def __len__(self) -> int:
        return len(self._run) + len(self._heap) - len(self._dead)

    def push(self, rank: int, number: int, item: Item) -> Entry:
        """Add an item. Return its entry, for `discard`."""
        self._serial = serial = self._serial + self._step
        entry = (rank, number, serial, item)
        run = self._run
        if not run or run[-1] < entry:
            run.append(entry)
        else:
            heappush(self._heap, entry)
        return entry

    def discard(self, entry: Entry) -> None:
        """Remove a live entry."""
        dead = self._dead
        assert entry[2] not in dead
        dead.add(entry[2])
        if len(dead) > _DEAD_ALLOWED and len(dead) * 2 > len(self._run) + len(self._heap):
            self.compact()

    def compact(self) -> None:
        """Drop the dead entries; O(n log n). The order of equal entries does not depend on the history."""
        dead = self._dead
        self._run = deque([entry for entry in self._run if entry[2] not in dead])
        self._heap = sorted([entry for entry in self._heap if entry[2] not in dead])
        dead.clear()

    def first(self) -> Entry | None:
        """Return the first living entry, None if there is none."""
        run, heap, dead = self._run, self._heap, self._dead
        if dead:
            while run and run[0][2] in dead:
                dead.remove(run.popleft()[2])
            while heap and heap[0][2] in dead:
                dead.remove(heappop(heap)[2])
        if heap and (not run or heap[0] < run[0]):
            return heap[0]
        return run[0] if run else None

    def pop(self) -> Item:
        """
        Remove and return the first item.

        Raises:
            IndexError: there is none.
        """
        if self._run and not self._dead and not self._heap:
            # As most do, all have come in order and none was removed.
            first: Item = self._run.popleft()[3]
            return first
        entry = self.first()
        if entry is None:
            raise IndexError("pop from an empty heap")
        if self._run and self._run[0] is entry:
            self._run.popleft()
        else:
            heappop(self._heap)
        item: Item = entry[3]
        return item

    def items(self) -> list[Item]:
        """Return all items, in order; O(n log n), for queries and tests."""
        return [entry[3] for entry in sorted([*self._run, *self._heap]) if entry[2] not in self._dead]
