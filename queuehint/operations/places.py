"""Operations that ask about places: the tree of counts, the longest lines, whether a claim conflicts."""

from __future__ import annotations

from typing import Annotated, ClassVar

import attrs

from queuehint.operations.base import Operation
from queuehint.schema.kinds import AnyCount, Asked, Count
from queuehint.values.hint import DEPTH_MAX, KeyText, Mode, Path
from queuehint.values.report import TreeNode

__all__ = ["TREE_NODES_MAX", "CanDequeue", "Lines", "ListLines", "Tree"]

TREE_NODES_MAX = 1000
"""Maximum number of nodes of a tree besides the first, and of places on a page of lines."""


@attrs.frozen
class Tree(Operation[TreeNode]):
    """
    Ask for live counts at *path* and *depth* levels below it, at most 1 000 nodes besides the first.

    Args:
        after: only the children of *path* that come behind this name, in order of `TreeNode.children`; None: all.
        limit: at most so many children of *path*; a store may answer fewer, with a cursor.
    """

    is_question: ClassVar[bool] = True
    path: Path = ()
    depth: Annotated[int, Count(0, DEPTH_MAX)] = 1
    after: KeyText | None = None
    limit: Annotated[int, Asked(1, TREE_NODES_MAX)] = TREE_NODES_MAX


@attrs.frozen
class Lines:
    """
    One page of places where claims wait.

    Args:
        places: the longest lines first, those of one length in order of path key; without children.
        after: the cursor of the next page, a path key; None: no more. Pages are by path key: the longest line of all
            may come in any of them.
    """

    places: tuple[TreeNode, ...]
    after: str | None = None


@attrs.frozen
class ListLines(Operation[Lines]):
    """
    Ask for the longest lines at the places 1 to *depth* levels below *path*, a page at a time.

    A page looks at so many places that it is bounded. A place where one job waits all the while is in some page; it may
    be in several.

    Args:
        after: the cursor of the page before.
        limit: at most so many places, the longest lines of the page.
        longer_than: only lines of more claims than this.
        longest: answer in one page, without *after*, at a bounded cost. With more than 1 000 lines of four or more in
            the namespace a store may leave out lines that are less than twice as long as the shortest of these; and
            shorter ones where it has more than 1 000 places.
    """

    is_question: ClassVar[bool] = True
    path: Path = ()
    depth: Annotated[int, Asked(1, DEPTH_MAX)] = 1
    after: KeyText | None = None
    limit: Annotated[int, Asked(1, TREE_NODES_MAX)] = TREE_NODES_MAX
    longer_than: AnyCount = 0
    longest: bool = False


@attrs.frozen
class CanDequeue(Operation[bool]):
    """Ask whether nothing executing conflicts with a claim on *path*."""

    is_question: ClassVar[bool] = True
    path: Path
    mode: Mode = "exclusive"
