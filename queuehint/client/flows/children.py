"""
The children of the jobs of a flow, and theirs, from the index of records by parent.

They belong to no flow, so no filter of a flow has them: each job that has begun is asked for the jobs that its handler
made, a page at a time, breadth first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from queuehint.client.flows.graph import draw
from queuehint.client.record_reads import read_page
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.backends.steps import Steps
    from queuehint.client.flows.graph import FlowGraph
    from queuehint.operations import Position
    from queuehint.values.record import JobRecord


PAGES_MAX = 1000
"""How many pages of children are read for a drawing."""
CHILDREN_MAX = 10_000
"""How many children a drawing has before no more are read."""


def draw_with_children(flow: str, records: Sequence[JobRecord]) -> Steps[FlowGraph]:
    """Return the graph of a flow's jobs and their children, and theirs, up to the bounds of a drawing."""
    search = Children(flow)
    search.follow(records)
    found: list[JobRecord] = []
    for _ in range(PAGES_MAX):
        if search.is_over or len(found) >= CHILDREN_MAX:
            break
        found += yield from search.page()
    return draw(flow, records, found, is_whole=search.is_over)


class Children:
    """
    A search for children that are not of the flow themselves, each once.

    Args:
        flow: the id of the flow.
    """

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._parents: deque[tuple[str, Position | None]] = deque()
        """The jobs yet to be asked for their children, each with the position behind which its next page begins."""
        self._found: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether no job is left to be asked."""
        return not self._parents

    def follow(self, records: Iterable[JobRecord]) -> None:
        """Search for the children of some jobs, behind those of the jobs before."""
        self._parents += [(record.id, None) for record in records if _has_begun(record)]

    def page(self) -> Steps[list[JobRecord]]:
        """Read the next page of children, and follow them. A page may be empty."""
        parent, after = self._parents.popleft()
        page = yield from read_page(RecordFilter(parent=parent), after)
        if page.after is not None:
            self._parents.appendleft((parent, page.after))
        found = [each for each in page.records if each.spec.flow != self._flow and each.id not in self._found]
        self._found.update([each.id for each in found])
        self.follow(found)
        return found


def _has_begun(record: JobRecord) -> bool:
    """Return whether the handler of a job may have made children. A redrive counts attempts from 0 again."""
    return bool(record.attempts or record.losses or record.started_ms is not None or record.history)
