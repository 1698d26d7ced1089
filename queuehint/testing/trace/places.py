"""
Places of jobs, so that the first conflicting one is found in O(depth).

Independent of the engine on purpose: there are no lines. Each node of a tree of paths holds its claims and those at or
below it, all of them and the exclusive ones, in order of arrival. A claim conflicts with claims at the nodes above it
and with claims at or below it: the first of each set is at hand, because numbers are given in order and an
`OrderedDict` keeps it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from queuehint.values.hint import Claim

Item = TypeVar("Item")
Line = OrderedDict[int, Item]
"""Jobs or claims at a node, by number."""


class _Node(Generic[Item]):
    __slots__ = ("below", "below_exclusive", "children", "here", "here_exclusive")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Item]] = {}
        self.here: Line[Item] = OrderedDict()
        self.here_exclusive: Line[Item] = OrderedDict()
        self.below: Line[Item] = OrderedDict()
        self.below_exclusive: Line[Item] = OrderedDict()


class Places(Generic[Item]):
    """Items with claims, each under a number greater than all before."""

    def __init__(self) -> None:
        self._root: _Node[Item] = _Node()

    def add(self, claims: tuple[Claim, ...], number: int, item: Item) -> None:
        """Add an item; O(depth) a claim."""
        for claim in claims:
            is_exclusive = claim.mode == "exclusive"
            node = self._root
            for segment in (None, *claim.path):
                if segment is not None:
                    child = node.children.get(segment)
                    if child is None:
                        child = node.children[segment] = _Node()
                    node = child
                node.below[number] = item
                if is_exclusive:
                    node.below_exclusive[number] = item
            node.here[number] = item
            if is_exclusive:
                node.here_exclusive[number] = item

    def remove(self, claims: tuple[Claim, ...], number: int) -> None:
        """Remove the item of these claims, and empty nodes."""
        for claim in claims:
            node = self._root
            above: list[tuple[_Node[Item], str]] = []
            for segment in (None, *claim.path):
                if segment is not None:
                    above.append((node, segment))
                    if segment not in node.children:
                        break  # gone with another claim of the same item
                    node = node.children[segment]
                node.below.pop(number, None)
                node.below_exclusive.pop(number, None)
                node.here.pop(number, None)
                node.here_exclusive.pop(number, None)
            for parent, segment in reversed(above):
                child = parent.children.get(segment)
                if child is not None and not child.below:
                    del parent.children[segment]

    def in_the_way(self, claims: tuple[Claim, ...]) -> Iterator[Line[Item]]:
        """Yield sets that together hold all that conflicts with one of *claims*, and nothing else."""
        for claim in claims:
            is_exclusive = claim.mode == "exclusive"
            node: _Node[Item] | None = self._root
            for segment in claim.path:
                assert node is not None
                line = node.here if is_exclusive else node.here_exclusive
                if line:
                    yield line
                node = node.children.get(segment)
                if node is None:
                    break
            else:
                assert node is not None
                line = node.below if is_exclusive else node.below_exclusive
                if line:
                    yield line

    def first(self, claims: tuple[Claim, ...]) -> tuple[int, Item] | None:
        """Return the first that conflicts with one of *claims*."""
        return min((next(iter(line.items())) for line in self.in_the_way(claims)), key=_number, default=None)

    def last(self, claims: tuple[Claim, ...]) -> tuple[int, Item] | None:
        """Return the last that conflicts with one of *claims*."""
        return max((next(reversed(line.items())) for line in self.in_the_way(claims)), key=_number, default=None)

    def nodes(self, claim: Claim) -> Iterator[tuple[Line[Item], Line[Item]]]:
        """Yield, for each node from the root to a claim's own, its claims, and the exclusive claims below it."""
        node: _Node[Item] | None = self._root
        for segment in (None, *claim.path):
            if segment is not None:
                assert node is not None
                node = node.children.get(segment)
            if node is None:
                return
            yield node.here, node.below_exclusive

    @property
    def is_empty(self) -> bool:
        """True if nothing is left, no node either."""
        return not self._root.below and not self._root.children


def _number(found: tuple[int, Item]) -> int:
    return found[0]
