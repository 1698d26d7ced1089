"""The small shared store: values by namespace and key, each for a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from queuehint.core.structures.heap import LazyHeap
from queuehint.operations import SHARED_LIST_MAX

if TYPE_CHECKING:
    from queuehint.core.structures.heap import Entry

EXPIRED_AT_ONCE = 1000

Place = tuple[str, str]
"""Namespace and key."""


class SharedStore:
    """
    Opaque values with a time to live, ``values`` by their places. Expired values are dropped a few at a time.

    Places are sorted when keys are listed for the first time, and kept in order from then on.
    """

    def __init__(self) -> None:
        self.values: dict[Place, tuple[bytes, Entry]] = {}
        self._ends: LazyHeap[Place] = LazyHeap()
        self._order: SortedList[Place] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def push(self, place: Place, value: bytes, until_ms: int, now_ms: int) -> bool:
        """Store a value. Return whether the key had a value."""
        there = self.values.get(place)
        if there is not None:
            self._ends.discard(there[1])
        elif self._order is not None:
            self._order.add(place)
        self.values[place] = (value, self._ends.push(until_ms, 0, place))
        return there is not None and there[1][0] > now_ms

    def pull(self, place: Place, now_ms: int) -> bytes | None:
        """Return the stored value; None for a missing or expired one."""
        there = self.values.get(place)
        return there[0] if there is not None and there[1][0] > now_ms else None

    def keys(
        self, namespace: str, prefix: str, after: str | None, limit: int, now_ms: int
    ) -> tuple[tuple[str, ...], str | None]:
        """
        Return keys of a namespace with *prefix*, behind *after*, and the key to continue after.

        Complexity: O(log values + keys looked at); the first time a sort of all.
        """
        if self._order is None:
            self._order = SortedList(self.values)
        found: list[str] = []
        looked_at, last = 0, prefix if after is None else after
        for place in self._order.irange(
            (namespace, max(prefix, last)), inclusive=(after is None or after < prefix, True)
        ):
            if place[0] != namespace or not place[1].startswith(prefix):
                break
            if len(found) == limit or looked_at == SHARED_LIST_MAX:
                return tuple(found), last
            looked_at, last = looked_at + 1, place[1]
            if self.pull(place, now_ms) is not None:
                found.append(last)
        return tuple(found), None

    def next_ms(self) -> int | None:
        """Return the next expiry of a value, or None; for tests."""
        first = self._ends.first()
        return None if first is None else first[0]

    def expire(self, now_ms: int) -> None:
        """Drop up to 1 000 expired values."""
        for _ in range(EXPIRED_AT_ONCE):
            first = self._ends.first()
            if first is None or first[0] > now_ms:
                return
            place = self._ends.pop()
            del self.values[place]
            if self._order is not None:
                self._order.remove(place)
