"""FIFO gates on a path trie, without jobs, states or time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from queuehint.core.structures.trie import CLASHES, IS, IX, ONE, Node, PathTrie, S, Walk, X, counts
from queuehint.testing.driver import SHARED, claim
from queuehint.values.hint import Claim
from tests.each import for_each


@dataclass
class Owner:
    """The fields of a job that the trie reads: its place in the order."""

    seq: int


class Gates:
    """A trie and its walks, named by text: ``a:b`` is exclusive, ``a:b?`` is shared, the empty text is the root."""

    def __init__(self) -> None:
        self.leftovers: deque[Any] = deque()
        self.trie = PathTrie(self.leftovers)
        self.seq = itertools.count(1)

    def place(self, text: str) -> Walk:
        path = tuple(text.rstrip("?").split(":")) if text.rstrip("?") else ()
        walk = Walk(Owner(next(self.seq)), Claim(path, SHARED if text.endswith("?") else "exclusive"))
        self.trie.place(walk)
        self.trie.check()
        return walk

    def leave(self, *walks: Walk) -> list[Walk]:
        """Let walks leave and all lines advance; return the walks that arrived, in order."""
        for walk in walks:
            self.trie.leave(walk)
            self.trie.check()
        arrived: list[Walk] = []
        while self.leftovers:
            _, again = self.trie.advance(self.leftovers.popleft(), 10**6, arrived)
            assert not again
            self.trie.check()
        return arrived

    @property
    def is_empty(self) -> bool:
        root = self.trie.root
        return not (self.trie.nodes or root.held or root.line or root.owners or root.children or self.leftovers)


def test_four_counts_are_packed_into_one_int() -> None:
    held = 3 * ONE[IS] + 2 * ONE[IX] + ONE[S] + 4 * ONE[X]
    assert counts(held) == (3, 2, 1, 4)
    assert counts((2**32 - 1) * ONE[IS] + ONE[IX]) == (2**32 - 1, 1, 0, 0)


def test_the_modes_fit_as_in_multi_granularity_locking() -> None:
    fits = {(IS, IS), (IS, IX), (IX, IS), (IS, S), (S, IS), (IX, IX), (S, S)}
    for mode, other in itertools.product((IS, IX, S, X), repeat=2):
        assert (not ONE[other] & CLASHES[mode]) == ((mode, other) in fits)


@for_each(
    "first, second, granted",
    [
        ("a", "b", True),
        ("a:b", "a:c", True),
        ("a", "a", False),
        ("a", "a:b", False),
        ("a:b", "a", False),
        ("", "a", False),
        ("a", "", False),
        ("", "", False),
        ("doc1", "doc10", True),
        ("a?", "a?", True),
        ("a?", "a:b?", True),
        ("a:b?", "a?", True),
        ("?", "a?", True),
        ("a?", "a", False),
        ("a", "a?", False),
        ("a?", "a:b", False),
        ("a:b", "a?", False),
        ("a:b?", "a", False),
        ("a:b?", "a:c", True),
        ("a:b?", "a:c?", True),
        ("root", "", False),
        ("root", "a", True),
    ],
)
def test_claim_passes_claims_without_conflict(first: str, second: str, granted: bool) -> None:
    gates = Gates()
    one, other = gates.place(first), gates.place(second)
    assert one.granted
    assert other.granted is granted
    assert gates.leave(one) == ([] if granted else [other])
    gates.leave(other)
    assert gates.is_empty


def test_walk_visits_one_gate_per_level_and_leaves_as_many() -> None:
    gates = Gates()
    for path in [(), ("a",), ("a", "b", "c")]:
        walk = Walk(Owner(next(gates.seq)), Claim(path))
        assert gates.trie.place(walk) == len(path) + 1
        assert gates.trie.leave(walk) == len(path) + 1
    first = gates.place("a")
    behind = Walk(Owner(next(gates.seq)), claim("a", "b", "c"))
    assert gates.trie.place(behind) == 2
    assert gates.trie.leave(behind) == 2
    gates.leave(first)
    assert gates.is_empty


def test_line_moves_in_order_and_stops_at_the_first_misfit() -> None:
    gates = Gates()
    first = gates.place("a")
    waiting = [gates.place(text) for text in ("a:b", "a:c", "a", "a:d")]
    assert not any(walk.granted for walk in waiting)
    assert gates.leave(first) == waiting[:2]
    assert gates.leave(waiting[0]) == []
    assert gates.leave(waiting[1]) == [waiting[2]]
    assert gates.leave(waiting[2]) == [waiting[3]]
    gates.leave(waiting[3])
    assert gates.is_empty


def test_newcomers_queue_behind_a_line_even_where_they_would_fit() -> None:
    gates = Gates()
    child = gates.place("a:b")
    parent = gates.place("a")
    newcomer = gates.place("a:c")
    assert not newcomer.granted
    assert gates.leave(child) == [parent]
    assert gates.leave(parent) == [newcomer]


def test_a_walk_may_stop_again_further_down() -> None:
    gates = Gates()
    whole, deep = gates.place(""), gates.place("a:b")
    again = gates.place("a:b:c")
    assert gates.leave(whole) == [deep]
    assert again.node is not None and again.node.path == ("a", "b")
    assert gates.leave(deep) == [again]


def test_abandoned_walk_leaves_the_line_in_place() -> None:
    for index in range(3):
        gates = Gates()
        first = gates.place("a")
        waiting = [gates.place("a") for _ in range(3)]
        assert gates.leave(waiting.pop(index)) == []
        assert gates.leave(first) == [waiting[0]]
        assert gates.leave(waiting[0]) == [waiting[1]]
        gates.leave(waiting[1])
        assert gates.is_empty


def test_a_head_that_gives_up_lets_the_next_pass() -> None:
    gates = Gates()
    child, parent, other = gates.place("a:b"), gates.place("a"), gates.place("a:c")
    assert gates.leave(parent) == [other]
    gates.leave(child, other)
    assert gates.is_empty


def test_a_granted_walk_may_leave_from_anywhere_among_the_owners() -> None:
    for index in range(3):
        gates = Gates()
        readers = [gates.place("a?") for _ in range(3)]
        gates.leave(readers.pop(index))
        gates.leave(*readers)
        assert gates.is_empty


def test_line_emptied_before_its_advance_advances_to_no_effect() -> None:
    gates = Gates()
    first, second = gates.place("a:b"), gates.place("a:b")
    gates.trie.leave(first)
    gates.trie.leave(second)
    assert len(gates.leftovers) == 1
    arrived: list[Walk] = []
    assert gates.trie.advance(gates.leftovers.popleft(), 10, arrived) == (0, False)
    assert arrived == []
    assert gates.is_empty


def test_a_line_is_put_among_the_leftovers_once() -> None:
    gates = Gates()
    one, two = gates.place("a?"), gates.place("b?")
    behind = [gates.place(""), gates.place("c"), gates.place("d")]
    gates.trie.leave(one)
    assert not gates.leftovers
    gates.trie.leave(two)
    gates.trie.leave(behind[0])
    assert len(gates.leftovers) == 1
    assert gates.leave(behind[1]) == [behind[2]]


def test_advance_is_cut_between_walks_and_newcomers_stay_behind() -> None:
    gates = Gates()
    first = gates.place("a")
    waiting = [gates.place(f"a:{number}") for number in range(5)]
    gates.trie.leave(first)
    (node,) = gates.leftovers
    arrived: list[Walk] = []
    # Each walk takes two gates: those of `a` and its own; the one under way is finished.
    assert gates.trie.advance(node, 3, arrived) == (4, True)
    assert arrived == waiting[:2]
    newcomer = gates.place("a:new")
    assert not newcomer.granted
    gates.trie.check()
    assert gates.trie.advance(node, 100, arrived) == (8, False)
    assert arrived == [*waiting, newcomer]


def test_node_exists_only_while_held_or_awaited() -> None:
    gates = Gates()
    deep = gates.place("a:b:c:d")
    side = gates.place("a:x")
    assert gates.trie.nodes == 5
    gates.leave(deep)
    assert gates.trie.nodes == 2
    assert gates.trie.find(("a", "x")) is not None
    assert gates.trie.find(("a", "b")) is None
    assert gates.trie.find(("a", "x", "y")) is None
    gates.leave(side)
    assert gates.is_empty


def test_ten_thousand_single_use_paths_leave_nothing() -> None:
    trie = PathTrie(deque())
    for number in range(10_000):
        walk = Walk(Owner(number), claim("docs", str(number), "part"))
        trie.place(walk)
        trie.leave(walk)
    assert trie.nodes == 0
    assert not trie.root.children


def test_parent_behind_many_children_waits_only_for_earlier_ones() -> None:
    gates = Gates()
    before = [gates.place(f"a:{number}") for number in range(3)]
    parent = gates.place("a")
    behind = [Walk(Owner(10 + number), claim("a", f"late{number}")) for number in range(1000)]
    for walk in behind:
        gates.trie.place(walk)
    assert gates.leave(*before) == [parent]


# --- the invariants are watched --------------------------------------------------------------------------------------


def _miscount(gates: Gates, node: Node) -> None:
    node.held += ONE[IS]


def _forget_a_line(gates: Gates, node: Node) -> None:
    gates.place("a")
    node.held -= ONE[X]


def _lose_a_waiter(gates: Gates, node: Node) -> None:
    gates.place("a")
    node.waiting = 0


def _make_an_empty_node(gates: Gates, node: Node) -> None:
    node.children = {"x": Node(node, "x")}
    gates.trie.nodes += 1


def _miscount_nodes(gates: Gates, node: Node) -> None:
    gates.trie.nodes += 1


def _swap_a_line(gates: Gates, node: Node) -> None:
    gates.place("a").job.seq = 9
    gates.place("a")


@pytest.mark.parametrize(
    "harm",
    [_miscount, _forget_a_line, _lose_a_waiter, _make_an_empty_node, _miscount_nodes, _swap_a_line],
    ids=lambda harm: harm.__name__.strip("_"),
)
def test_a_broken_invariant_is_found(harm: Callable[[Gates, Node], None]) -> None:
    gates = Gates()
    walk = gates.place("a")
    assert walk.node is not None
    with pytest.raises(AssertionError):
        harm(gates, walk.node)
        gates.trie.check()
