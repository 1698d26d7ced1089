"""
The tree of places and the longest lines, computed from the gates: no index is kept for these questions.

A page of children is cut by name and costs a look at the name of each child of its place. The longest lines cost a look
at each place below a path.
"""

from __future__ import annotations

from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING

from queuehint import operations as op
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
    node = state.table.trie.find(question.path)
    if node is None:
        return _tree_node(state, question.path, Node(None, ""))
    return _Drawing(state).subtree(question.path, node, question.depth, question.after or "", question.limit)


class _Drawing:
    """One answer, with room for a number of further nodes."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.room = op.TREE_NODES_MAX

    def subtree(self, path: Path, node: Node, depth: int, after: str = "", limit: int = op.TREE_NODES_MAX) -> TreeNode:
        """Describe a node and *depth* levels below it, depth first while there is room."""
        if not depth or not node.children:
            return _tree_node(self.state, path, node)
        done = gate_key((after,))
        names = (name for segment in node.children if (name := gate_key((segment,))) > done)
        children: list[TreeNode] = []
        cut: str | None = None
        for name in nsmallest(min(limit, self.room) + 1, names):
            if self.room <= 0 or len(children) == limit:
                cut = after
                break
            self.room -= 1
            ((after,)) = parse_gate_key(name)
            children.append(self.subtree((*path, after), node.children[after], depth - 1))
        return _tree_node(self.state, path, node, tuple(children), cut)


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
    return op.Lines(tuple([_tree_node(state, path, here) for _, _, path, here in nsmallest(question.limit, lines)]))


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
    state: State, path: Path, node: Node, children: tuple[TreeNode, ...] = (), after: str | None = None
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
