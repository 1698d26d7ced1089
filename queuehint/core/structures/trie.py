"""
FIFO gates on a path trie: multi-granularity locks with a fair line at every node.

Theory of operation. A claim on ``a:b:c`` passes a
gate at the root, at ``a`` and at ``a:b`` with an *intention* (``IS`` or ``IX``) and at ``a:b:c`` with its own mode
(``S`` or ``X``). A gate counts its granted claims by mode, four counts packed into one int, so that "does this mode
fit" and "count it" are one operation each.

- *place*: walk from the root. Where the line is empty and the mode fits the counts, count it and go one level down;
  else join the line and stop. At its own node the claim is granted.
- *advance*: while the head of a line fits, take it out, count it and let it walk on from there.
- *leave*: from the deepest gate up, drop the counts; a line whose head fits now is left to be advanced.

Invariants, asserted by `check`: the counts of a node are the sum of the walks that passed it; walks that stand in a
line are in order of place; no head of a line fits unless its node waits to be advanced; a node exists only while
something is held or waits there, or a child exists.

A line that waits to be advanced is not empty, so a claim that comes meanwhile queues behind it: work can be cut between
any two walks and the order holds. One walk, from its gate to the gate where it stops, is never cut.

Source: J. Gray, R. Lorie, G. Putzolu, I. Traiger, "Granularity of Locks and Degrees of Consistency in a Shared Data
Base" (1976); the fair line is that of PostgreSQL's lock manager.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.values.hint import Claim, Path

# A count takes 32 bits; ONE[mode] adds one to its count, CLASHES[mode] covers the counts that mode does not fit.
IS, IX, S, X = range(4)
_BITS = 32
_COUNT = (1 << _BITS) - 1
ONE = tuple(1 << _BITS * mode for mode in range(4))
_MASK = tuple(_COUNT << _BITS * mode for mode in range(4))
CLASHES = (
    _MASK[X],
    _MASK[S] | _MASK[X],
    _MASK[IX] | _MASK[X],
    _MASK[IS] | _MASK[IX] | _MASK[S] | _MASK[X],
)


def counts(held: int) -> tuple[int, int, int, int]:
    """Unpack the held claims into four counts, ``(IS, IX, S, X)``."""
    return (held & _COUNT, held >> _BITS & _COUNT, held >> 2 * _BITS & _COUNT, held >> 3 * _BITS)


class Node:
    """
    One gate: the counts held, the line of waiting walks, the walks granted here, and the children.

    ``active`` is kept by the registry of executing jobs: what of ``held`` belongs to STARTED jobs, counted apart.

    ``line`` and ``owners`` are the heads of two lists threaded through the walks themselves, so that any walk
    leaves either in O(1).
    """

    __slots__ = (
        "active",
        "children",
        "held",
        "line",
        "line_end",
        "owners",
        "parent",
        "segment",
        "to_advance",
        "waiting",
    )

    def __init__(self, parent: Node | None, segment: str) -> None:
        self.parent = parent
        self.segment = segment
        self.held = 0
        self.active = 0
        self.waiting = 0
        self.children: dict[str, Node] | None = None
        self.line: Walk | None = None
        self.line_end: Walk | None = None
        self.owners: Walk | None = None
        self.to_advance = False

    @property
    def path(self) -> Path:
        """The path of this node, O(depth)."""
        segments: list[str] = []
        node = self
        while node.parent is not None:
            segments.append(node.segment)
            node = node.parent
        return tuple(reversed(segments))


class Walk:
    """
    One claim of one placed job on its way down, in the line of ``node`` or granted there.

    ``wants`` is the mode it asks for, or holds, at ``node``; ``depth`` is how many segments lie above; ``next`` is the
    walk of the same job's next claim.
    """

    __slots__ = ("after", "before", "depth", "granted", "job", "next", "node", "path", "shared", "wants")

    def __init__(self, job: Any, claim: Claim) -> None:
        self.job = job
        self.path = claim.path
        self.shared = claim.mode == "shared"
        self.node: Node | None = None
        self.depth = 0
        self.wants = IS
        self.granted = False
        self.before: Walk | None = None
        self.after: Walk | None = None
        self.next: Walk | None = None


class PathTrie:
    """
    The gates of one namespace.

    Args:
        leftovers: where a node is appended whose line has to be advanced; its owner calls `advance`.
    """

    def __init__(self, leftovers: deque[Any]) -> None:
        self.root = Node(None, "")
        self.nodes = 0
        self._leftovers = leftovers

    def place(self, walk: Walk) -> int:
        """
        Start a walk at the root. Afterwards ``walk.granted`` is set if it has arrived.

        Returns:
            How many gates it visited, 1 to depth + 1.
        """
        return self._walk_on(walk, self.root, 0)

    def _walk_on(self, walk: Walk, node: Node, depth: int) -> int:
        """Walk on from *node*, whose gate is not passed yet, until the walk stops. Return the gates visited."""
        path = walk.path
        length = len(path)
        intention = IS if walk.shared else IX
        clashes, one = CLASHES[intention], ONE[intention]
        visited = 1
        while depth < length:
            if node.line is not None or node.held & clashes:
                self._join(walk, node, depth, intention)
                return visited
            node.held += one
            segment = path[depth]
            children = node.children
            if children is None:
                children = node.children = {}
                child = None
            else:
                child = children.get(segment)
            if child is None:
                child = children[segment] = Node(node, segment)
                self.nodes += 1
            node = child
            depth += 1
            visited += 1
        own = S if walk.shared else X
        if node.line is not None or node.held & CLASHES[own]:
            self._join(walk, node, depth, own)
        else:
            self._grant(walk, node, depth, own)
        return visited

    def advance(self, node: Node, budget: int, arrived: list[Walk]) -> tuple[int, bool]:
        """
        Advance the line of *node* while its head fits.

        Args:
            budget: stop once this many gates were visited; the walk under way is finished first.
            arrived: walks that are granted are appended here.

        Returns:
            The gates visited, and whether the line may still move.
        """
        used = 0
        walk = node.line
        while walk is not None and not node.held & CLASHES[walk.wants]:
            if used >= budget:
                return used, True
            after = walk.after
            node.line = after
            if after is None:
                node.line_end = None
            else:
                after.before = None
                walk.after = None
            node.waiting -= 1
            depth = walk.depth
            if depth == len(walk.path):
                self._grant(walk, node, depth, walk.wants)
                used += 1
            else:
                node.held += ONE[walk.wants]
                used += 1 + self._walk_on(walk, self._child(node, walk.path[depth]), depth + 1)
            if walk.granted:
                arrived.append(walk)
            walk = node.line
        node.to_advance = False
        return used, False

    def leave(self, walk: Walk) -> int:
        """
        Remove a walk, from its present node up to the root. Return the gates it left.

        Lines whose head fits now are put among the leftovers; nodes that are empty now are gone.
        """
        node: Node | None = walk.node
        assert node is not None
        if walk.granted:
            self._disown(walk, node)
            node.held -= ONE[walk.wants]
        else:
            self._unjoin(walk, node)
        walk.node = None
        left = 1
        one = ONE[IS if walk.shared else IX]
        while True:
            parent = node.parent
            head = node.line
            if head is not None:
                if not node.to_advance and not node.held & CLASHES[head.wants]:
                    node.to_advance = True
                    self._leftovers.append(node)
            elif parent is not None and not node.held and not node.children:
                children = parent.children
                assert children is not None
                del children[node.segment]
                self.nodes -= 1
            if parent is None:
                return left
            node = parent
            node.held -= one
            left += 1

    def find(self, path: Path) -> Node | None:
        """Return the node of *path*, None if nothing is there."""
        node = self.root
        for segment in path:
            child = node.children.get(segment) if node.children else None
            if child is None:
                return None
            node = child
        return node

    def _child(self, node: Node, segment: str) -> Node:
        children = node.children
        if children is None:
            children = node.children = {}
        child = children.get(segment)
        if child is None:
            child = children[segment] = Node(node, segment)
            self.nodes += 1
        return child

    @staticmethod
    def _join(walk: Walk, node: Node, depth: int, mode: int) -> None:
        walk.node = node
        walk.depth = depth
        walk.wants = mode
        last = node.line_end
        if last is None:
            node.line = walk
        else:
            last.after = walk
            walk.before = last
        node.line_end = walk
        node.waiting += 1

    @staticmethod
    def _unjoin(walk: Walk, node: Node) -> None:
        before, after = walk.before, walk.after
        if before is None:
            node.line = after
        else:
            before.after = after
            walk.before = None
        if after is None:
            node.line_end = before
        else:
            after.before = before
            walk.after = None
        node.waiting -= 1

    @staticmethod
    def _grant(walk: Walk, node: Node, depth: int, mode: int) -> None:
        walk.node = node
        walk.depth = depth
        walk.wants = mode
        walk.granted = True
        node.held += ONE[mode]
        first = node.owners
        if first is not None:
            first.before = walk
            walk.after = first
        node.owners = walk

    @staticmethod
    def _disown(walk: Walk, node: Node) -> None:
        before, after = walk.before, walk.after
        if before is None:
            node.owners = after
        else:
            before.after = after
            walk.before = None
        if after is not None:
            after.before = before
            walk.after = None
        walk.granted = False

    # --- questions ---------------------------------------------------------------------------------------------

    def before(self, walk: Walk, limit: int) -> list[Walk]:
        """
        Return up to *limit* walks ahead of a waiting one at its gate.

        First the walks that hold the gate, in whatever mode, then the walks ahead in the line, from its head on.
        """
        node = walk.node
        assert node is not None
        found = list(islice(self.holders(node), limit))
        ahead = node.line
        while ahead is not None and ahead is not walk and len(found) < limit:
            found.append(ahead)
            ahead = ahead.after
        return found

    @staticmethod
    def holders(node: Node) -> Iterator[Walk]:
        """Yield the walks that hold *node*: granted here, or in line or granted below."""
        stack = [node]
        first = True
        while stack:
            here = stack.pop()
            walk = here.owners
            while walk is not None:
                yield walk
                walk = walk.after
            if not first:
                walk = here.line
                while walk is not None:
                    yield walk
                    walk = walk.after
            first = False
            if here.children:
                stack.extend(here.children.values())

    # --- invariants --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Recount everything and assert the invariants; for tests, O(all)."""
        nodes, stack = -1, [self.root]
        totals: dict[int, int] = {}
        walks: list[Walk] = []
        while stack:
            node = stack.pop()
            nodes += 1
            assert node.parent is None or node.held or node.line or node.children, f"empty node {node.path}"
            walk, before, waiting = node.line, None, 0
            while walk is not None:
                assert walk.node is node and walk.before is before and not walk.granted
                assert before is None or before.job.seq <= walk.job.seq, f"line out of order at {node.path}"
                walks.append(walk)
                waiting += 1
                before, walk = walk, walk.after
            assert node.line_end is before
            assert node.waiting == waiting
            if node.line is not None:
                assert node.to_advance or node.held & CLASHES[node.line.wants], f"line forgotten at {node.path}"
            assert node.to_advance == (node in self._leftovers) or not node.to_advance
            walk, before = node.owners, None
            while walk is not None:
                assert walk.node is node and walk.before is before and walk.granted
                walks.append(walk)
                before, walk = walk, walk.after
            for child in (node.children or {}).values():
                assert child.parent is node
                stack.append(child)
        assert nodes == self.nodes
        for walk in walks:
            node_ = walk.node
            assert node_ is not None and node_.path == walk.path[: walk.depth]
            if walk.granted:
                assert walk.depth == len(walk.path)
                totals[id(node_)] = totals.get(id(node_), 0) + ONE[walk.wants]
            above = node_.parent
            while above is not None:
                totals[id(above)] = totals.get(id(above), 0) + ONE[IS if walk.shared else IX]
                above = above.parent
        stack = [self.root]
        while stack:
            node = stack.pop()
            assert node.held == totals.get(id(node), 0), f"miscount at {node.path}: {counts(node.held)}"
            stack.extend((node.children or {}).values())
