"""
The tree of places and the longest lines, computed from the gates: no index is kept for these questions.

Jobs that wait for a signal pass no gates: those that `stats` counts are counted by the paths of their claims, at most
1 000 jobs for each question.

A page of children is cut by name and costs a look at the name of each child of its place. The longest lines cost a look
at each place below a path.
"""

from __future__ import annotations

from heapq import nlargest, nsmallest
from itertools import chain
from typing import TYPE_CHECKING

from queuehint import operations as op
from queuehint.core.asking.why import waiting_for_signals
from queuehint.core.state import State, handles
from queuehint.core.structures.registry import ActiveExecutions
from queuehint.core.structures.trie import Node, counts
from queuehint.values.hint import gate_key, key_of, parse_gate_key
from queuehint.values.record import JobState
from queuehint.values.report import TreeNode

if TYPE_CHECKING:
    from queuehint.values.hint import Path


@handles(op.Tree)
def tree(state: State, question: op.Tree) -> TreeNode:
    """Answer `Tree`."""
    node = state.table.trie.find(question.path) or _NO_GATE
    waits = _SignalWaits.of(state).find(question.path)
    return _Drawing(state).subtree(question.path, node, waits, question.depth, question.after or "", question.limit)


_NO_GATE = Node(None, "")


class _SignalWaits:
    """The claims of jobs that wait for signals, counted at one place and at or below it, and its children with any."""

    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.here = 0
        self.below = 0
        self.children: dict[str, _SignalWaits] = {}

    @classmethod
    def of(cls, state: State) -> _SignalWaits:
        """Return the counts of all places, those of the root."""
        root = cls()
        for job in waiting_for_signals(state.table):
            for claim in job.spec.claims:
                waits = root
                waits.below += 1
                for segment in claim.path:
                    waits = waits.children.setdefault(segment, cls())
                    waits.below += 1
                waits.here += 1
        return root

    def find(self, path: Path) -> _SignalWaits:
        """Return the counts of a path."""
        waits = self
        for segment in path:
            waits = waits.children.get(segment, _NO_WAITS)
        return waits


_NO_WAITS = _SignalWaits()


class _Drawing:
    """One answer, with room for a number of further nodes."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.room = op.TREE_NODES_MAX

    def subtree(
        self,
        path: Path,
        node: Node,
        waits: _SignalWaits,
        depth: int,
        after: str = "",
        limit: int = op.TREE_NODES_MAX,
    ) -> TreeNode:
        """Describe a node and *depth* levels below it, depth first while there is room."""
        below = node.children or {}
        if not depth or not (below or waits.children):
            return _tree_node(self.state, path, node, waits)
        done = gate_key((after,))
        segments = chain(below, (segment for segment in waits.children if segment not in below))
        names = (name for segment in segments if (name := gate_key((segment,))) > done)
        children: list[TreeNode] = []
        cut: str | None = None
        for name in nsmallest(min(limit, self.room) + 1, names):
            if self.room <= 0 or len(children) == limit:
                cut = after
                break
            self.room -= 1
            ((after,)) = parse_gate_key(name)
            child, waits_of_child = below.get(after, _NO_GATE), waits.children.get(after, _NO_WAITS)
            children.append(self.subtree((*path, after), child, waits_of_child, depth - 1))
        return _tree_node(self.state, path, node, waits, tuple(children), cut)


@handles(op.ListLines)
def list_lines(state: State, question: op.ListLines) -> op.Lines:
    """Answer `ListLines`, in one page."""
    node = state.table.trie.find(question.path)
    if node is None:
        return op.Lines(())
    found = _waiting_below(node, question.depth, question.longer_than)
    if len(found) > question.limit:
        # Only the paths of the longest lines are worked out.
        shortest = nlargest(question.limit, [waiting for waiting, _ in found])[-1]
        found = [line for line in found if line[0] >= shortest]
    lines = [(-waiting, key_of(path), path, here) for waiting, here in found for path in (here.path,)]
    waits = _SignalWaits.of(state)
    some = nsmallest(question.limit, lines)
    return op.Lines(tuple([_tree_node(state, path, here, waits.find(path)) for _, _, path, here in some]))


def _waiting_below(node: Node, depth: int, longer_than: int) -> list[tuple[int, Node]]:
    """Return the places 1 to *depth* levels below a node where more claims wait, each behind their number."""
    found: list[tuple[int, Node]] = []
    level = [node]
    for _ in range(depth):
        level = [child for here in level if here.children for child in here.children.values()]
        found += [(child.waiting, child) for child in level if child.waiting > longer_than]
        if not level:
            break
    return found


def _tree_node(
    state: State,
    path: Path,
    node: Node,
    waits: _SignalWaits,
    children: tuple[TreeNode, ...] = (),
    after: str | None = None,
) -> TreeNode:
    shared_passing, passing, shared, exclusive = counts(node.held)
    started, started_below = ActiveExecutions.counts(node)
    return TreeNode(
        path_key=key_of(path),
        started=started,
        started_below=started_below,
        waiting=node.waiting,
        granted=shared + exclusive,
        passing=shared_passing + passing,
        paused=path in state.table.pauses.by_path,
        closed=path in state.table.closed,
        dead=_count_dead(node) if state.table.holding else 0,
        waiting_for_signals=waits.here,
        waiting_for_signals_below=waits.below,
        children=children,
        after=after,
    )


def _count_dead(node: Node) -> int:
    """Return how many of the claims granted at a node are held by dead jobs."""
    count, walk = 0, node.owners
    while walk is not None:
        count += walk.job.state is JobState.FAILED
        walk = walk.after
    return count
