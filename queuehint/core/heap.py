"""
A heap from which any entry can be taken: the order of what is ready, of what is due, of what is parked.

An entry taken out of turn stays in the heap as a dead one until it comes up or until the dead outnumber the living,
when the heap is rebuilt: every operation is O(log n) amortised and memory is O(living).
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

# rank, number, serial, item; item is None once the entry is dead. The serial keeps items from being compared.
Entry = list[Any]
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
        self._dead = 0
        self._serial = name
        self._step = names

    def __len__(self) -> int:
        return len(self._run) + len(self._heap) - self._dead

    def push(self, rank: int, number: int, item: Item) -> Entry:
        """Add an item; the entry returned is what `discard` takes."""
        self._serial = serial = self._serial + self._step
        entry = [rank, number, serial, item]
        run = self._run
        if not run or run[-1] < entry:
            run.append(entry)
        else:
            heappush(self._heap, entry)
        return entry

    def discard(self, entry: Entry) -> None:
        """Take out an entry that is still in."""
        assert entry[3] is not None
        entry[3] = None
        self._dead = dead = self._dead + 1
        if dead > _DEAD_ALLOWED and dead * 2 > len(self._run) + len(self._heap):
            self._run = deque(entry for entry in self._run if entry[3] is not None)
            self._heap = [entry for entry in self._heap if entry[3] is not None]
            heapify(self._heap)
            self._dead = 0

    def first(self) -> Entry | None:
        """Return the first living entry, None if there is none."""
        run, heap = self._run, self._heap
        while run and run[0][3] is None:
            run.popleft()
            self._dead -= 1
        while heap and heap[0][3] is None:
            heappop(heap)
            self._dead -= 1
        if heap and (not run or heap[0] < run[0]):
            return heap[0]
        return run[0] if run else None

    def pop(self) -> Item:
        """
        Take out the first item and return it.

        Raises:
            IndexError: there is none.
        """
        entry = self.first()
        if entry is None:
            raise IndexError("pop from an empty heap")
        if self._run and self._run[0] is entry:
            self._run.popleft()
        else:
            heappop(self._heap)
        item: Item = entry[3]
        entry[3] = None
        return item

    def items(self) -> list[Item]:
        """Return all items, in order; O(n log n), for questions and tests."""
        return [entry[3] for entry in sorted([*self._run, *self._heap]) if entry[3] is not None]
