"""Priority queue with lazy deletion."""

from __future__ import annotations

import pytest

from queuehint.core.structures.heap import LazyHeap


def test_items_come_by_rank_then_number_then_arrival() -> None:
    heap: LazyHeap[str] = LazyHeap()
    for rank, number, item in [(2, 0, "d"), (1, 9, "c"), (1, 1, "a"), (1, 1, "b")]:
        heap.push(rank, number, item)
    assert heap.items() == ["a", "b", "c", "d"]
    assert [heap.pop() for _ in range(4)] == ["a", "b", "c", "d"]


def test_items_are_never_compared() -> None:
    heap: LazyHeap[object] = LazyHeap()
    heap.push(1, 1, object())
    heap.push(1, 1, object())
    assert len(heap) == 2


def test_an_entry_taken_out_of_turn_never_comes_up() -> None:
    heap: LazyHeap[str] = LazyHeap()
    first, _, third = (heap.push(rank, 0, item) for rank, item in enumerate("abc"))
    heap.discard(first)
    heap.discard(third)
    assert len(heap) == 1
    entry = heap.first()
    assert entry is not None and entry[3] == "b"
    assert heap.pop() == "b"
    assert heap.first() is None


def test_dead_entries_are_passed_over_when_popping() -> None:
    heap: LazyHeap[str] = LazyHeap()
    dead = heap.push(0, 0, "a")
    heap.push(1, 0, "b")
    heap.discard(dead)
    assert heap.pop() == "b"
    assert len(heap) == 0


def test_an_empty_heap_has_nothing_to_pop() -> None:
    heap: LazyHeap[str] = LazyHeap()
    with pytest.raises(IndexError):
        heap.pop()


def test_an_entry_is_discarded_once() -> None:
    heap: LazyHeap[str] = LazyHeap()
    entry = heap.push(0, 0, "a")
    heap.push(1, 0, "b")
    heap.discard(entry)
    with pytest.raises(AssertionError):
        heap.discard(entry)


def test_memory_is_that_of_the_living_however_many_are_discarded() -> None:
    heap: LazyHeap[int] = LazyHeap()
    kept = [heap.push(number, 0, number) for number in range(10)]
    for number in range(10_000):
        heap.discard(heap.push(number, 1, -1))
    assert len(heap._heap) < 150
    assert len(heap) == len(kept)
    assert heap.items() == [heap.pop() for _ in range(10)] == list(range(10))
