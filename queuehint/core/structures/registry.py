"""
Registry of executing jobs, counted at every gate they pass.

It counts the claims of STARTED jobs by mode, apart from the counts that the gates themselves hold. It answers whether
an executing job conflicts with a hint, and it double-checks the gates: a start that conflicts was let through by a
broken gate, which is raised as `CorruptStateError`, never skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.trie import CLASHES, IS, IX, ONE, Node, PathTrie, S, X, counts
from queuehint.errors import CorruptStateError

if TYPE_CHECKING:
    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Path


class ActiveExecutions:
    """
    STARTED jobs by id, and at each gate the counts of their claims by mode.

    Args:
        trie: its nodes carry the counts; a node lives as long as a granted claim below it does.
    """

    def __init__(self, trie: PathTrie) -> None:
        self.running: dict[str, Job] = {}
        self._trie = trie

    def enter(self, job: Job) -> None:
        """
        Register a job that starts now. All its walks are granted.

        Raises:
            CorruptStateError: an executing job conflicts with it; the counts are not to be trusted any more.

        Complexity: O(depth) a claim.
        """
        if job.id in self.running:
            raise CorruptStateError(f"job {job.id!r} is started twice")
        walk = job.walk
        while walk is not None:
            node = walk.node
            # Its own mode where it is granted, intentions above.
            mode, intention = (S, IS) if walk.shared else (X, IX)
            clashes, one = CLASHES[mode], ONE[mode]
            above_clashes, above_one = CLASHES[intention], ONE[intention]
            while node is not None:
                if node.active & clashes:
                    raise CorruptStateError(
                        f"job {job.id!r} was let through a gate at {node.path} while a job that conflicts executes"
                    )
                node.active += one
                clashes, one = above_clashes, above_one
                node = node.parent
            walk = walk.next
        self.running[job.id] = job

    def leave(self, job: Job) -> None:
        """Remove a job that has stopped executing. Its walks are still granted."""
        del self.running[job.id]
        walk = job.walk
        while walk is not None:
            one, above = (ONE[S], ONE[IS]) if walk.shared else (ONE[X], ONE[IX])
            node = walk.node
            while node is not None:
                node.active -= one
                one = above
                node = node.parent
            walk = walk.next

    def can_dequeue(self, path: Path, *, shared: bool = False) -> bool:
        """
        Return whether no executing job conflicts with a claim on *path*.

        Complexity: O(depth).
        """
        clashes = CLASHES[IS if shared else IX]
        node: Node | None = self._trie.root
        for segment in path:
            assert node is not None
            if node.active & clashes:
                return False
            node = node.children.get(segment) if node.children else None
            if node is None:
                return True
        assert node is not None
        return not node.active & CLASHES[S if shared else X]

    @staticmethod
    def counts(node: Node) -> tuple[int, int]:
        """Return the number of executing claims on the path of a node, and at or below it."""
        passing_shared, passing, shared, exclusive = counts(node.active)
        here = shared + exclusive
        return here, here + passing_shared + passing

    def check(self) -> None:
        """Recount and assert; for tests."""
        totals: dict[int, int] = {}
        for job in self.running.values():
            for walk in job.walks:
                assert walk.granted
                node, mode = walk.node, S if walk.shared else X
                while node is not None:
                    totals[id(node)] = totals.get(id(node), 0) + ONE[mode]
                    mode = IS if walk.shared else IX
                    node = node.parent
        stack = [self._trie.root]
        while stack:
            node = stack.pop()
            assert node.active == totals.get(id(node), 0), f"executing claims miscounted at {node.path}"
            stack.extend((node.children or {}).values())
