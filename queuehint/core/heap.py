"""
A heap from which any entry can be taken: the order of what is ready, of what is due, of what is parked.

An entry taken out of turn stays in the heap as a dead one until it comes up or until the dead outnumber the living,
when the heap is rebuilt: every operation is O(log n) amortised and memory is O(living).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

# rank, number, serial, item; item is None once the entry is dead. The serial keeps items from being compared.
Entry = list[Any]
_DEAD_ALLOWED = 64


class LazyHeap(Generic[Item]):
    """
    Items in order of rank, then number.

    Args:
        name, names: this is heap number *name* of *names*; each of its entries' serials leaves that rest by *names*.
    """

    __slots__ = ("_dead", "_heap", "_serial", "_step")

    def __init__(self, name: int = 0, names: int = 1) -> None:
        self._heap: list[Entry] = []
        self._dead = 0
        self._serial = name
        self._step = names

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def push(self, rank: int, number: int, item: Item) -> Entry:
        """Add an item; the entry returned is what `discard` takes."""
        self._serial = serial = self._serial + self._step
        entry = [rank, number, serial, item]
        heappush(self._heap, entry)
        return entry

    def discard(self, entry: Entry) -> None:
        """Take out an entry that is still in."""
        assert entry[3] is not None
        entry[3] = None
        self._dead = dead = self._dead + 1
        if dead > _DEAD_ALLOWED and dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[3] is not None]
            heapify(self._heap)
            self._dead = 0

    def first(self) -> Entry | None:
        """Return the first living entry, None if there is none."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[3] is not None:
                return entry
            heappop(heap)
            self._dead -= 1
        return None

    def pop(self) -> Item:
        """
        Take out the first item and return it.

        Raises:
            IndexError: there is none.
        """
        heap = self._heap
        while True:
            entry = heappop(heap)
            item: Item | None = entry[3]
            if item is not None:
                entry[3] = None
                return item
            self._dead -= 1

    def items(self) -> list[Item]:
        """Return all items, in order; O(n log n), for questions and tests."""
        return [entry[3] for entry in sorted(self._heap) if entry[3] is not None]
