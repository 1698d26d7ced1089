"""The small shared store: values by namespace and key, each for a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.heap import LazyHeap

if TYPE_CHECKING:
    from queuehint.core.structures.heap import Entry

EXPIRED_AT_ONCE = 1000

Place = tuple[str, str]
"""Namespace and key."""


class SharedStore:
    """Opaque values with a time to live, ``values`` by their places; expired ones are dropped a few at a time."""

    def __init__(self) -> None:
        self.values: dict[Place, tuple[bytes, Entry]] = {}
        self._ends: LazyHeap[Place] = LazyHeap()

    def __len__(self) -> int:
        return len(self.values)

    def push(self, place: Place, value: bytes, until_ms: int, now_ms: int) -> bool:
        """Store a value; return whether it replaced one."""
        there = self.values.get(place)
        if there is not None:
            self._ends.discard(there[1])
        self.values[place] = (value, self._ends.push(until_ms, 0, place))
        return there is not None and there[1][0] > now_ms

    def pull(self, place: Place, now_ms: int) -> bytes | None:
        """Return the stored value, None if there is none or it has expired."""
        there = self.values.get(place)
        return there[0] if there is not None and there[1][0] > now_ms else None

    def next_ms(self) -> int | None:
        """Return when the next value's time is over, None if there is none; for tests."""
        first = self._ends.first()
        return None if first is None else first[0]

    def expire(self, now_ms: int) -> None:
        """Drop up to 1 000 expired values."""
        for _ in range(EXPIRED_AT_ONCE):
            first = self._ends.first()
            if first is None or first[0] > now_ms:
                return
            del self.values[self._ends.pop()]
