"""
The blockers of a queued job: the jobs that hold or precede it at a gate, named the same on every store.

A walk waits at a gate for the holders in a mode that does not fit, and for the walks ahead in its line. Dead jobs among
the holders block the line until an operator frees their places, so where there are any, only they are named.
"""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from queuehint.core.structures.trie import CLASHES, IS, IX, ONE, X, counts
from queuehint.values.hint import key_of
from queuehint.values.record import JobState
from queuehint.values.report import JOBS_NAMED_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.core.jobs.table import JobTable
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.trie import Node, Walk
    from queuehint.values.hint import Path

LINE_LOOKED_AT_MAX = 100
DEAD_LOOKED_AT_MAX = 1000
HOLDERS_LOOKED_AT_MAX = 1000
ENTRIES_LOOKED_AT_MAX = 5000


class Blockers:
    """
    Blockers found for one question, each gate visited once.

    Complexity: bounded, whatever stands in the line or below the gate.
    """

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._dead: dict[tuple[Node, int], list[Job]] = {}
        self._holders: dict[tuple[Node, int], list[Job]] = {}

    def of(self, walk: Walk) -> tuple[Job, ...]:
        """
        Return up to ten blockers of a waiting walk, in order of place: the dead ones if there are any.

        Holders are taken in order of path and number, then those ahead in the line from its head on; 100 of the line
        are looked at. An exclusive claim conflicts with one of the holders or with the head, unless the line waits to
        be advanced: then nothing stops the head, and none is returned for it.
        """
        node = walk.node
        assert node is not None
        ahead: list[Walk] = []
        other = node.line
        while other is not None and other is not walk and len(ahead) < LINE_LOOKED_AT_MAX:
            ahead.append(other)
            other = other.after
        clashes = CLASHES[walk.wants]
        for other in ahead:
            clashes |= CLASHES[other.wants]
        if dead := self._dead_at(node, clashes):
            return tuple(dead)
        found = dict.fromkeys(self._holders_of(node, CLASHES[walk.wants]))
        for other in ahead:
            if other.job is not walk.job and len(found) < JOBS_NAMED_MAX:
                found[other.job] = None
        return tuple(sorted(found, key=_SEQ))

    def against(self, path: Path) -> tuple[list[Job], int]:
        """
        Return up to ten jobs that hold the place against a new exclusive claim, in order of place.

        Those of the first gate on its way that it does not pass: the dead ones if there are any. A line does not count.
        With them comes how many claims hold that gate.
        """
        node: Node | None = self._table.trie.root
        depth = 0
        while node is not None:
            is_end = depth == len(path)
            clashes = CLASHES[X if is_end else IX]
            if node.held & clashes:
                jobs = self._dead_at(node, clashes) or sorted(self._holders_of(node, clashes), key=_SEQ)
                return jobs, sum(counts(node.held & clashes))
            node = None if is_end or not node.children else node.children.get(path[depth])
            depth += 1
        return [], 0

    def _dead_at(self, node: Node, clashes: int) -> list[Job]:
        """Return dead jobs that hold a gate in a conflicting mode, in order of place."""
        holds = self._table.holds
        if not len(holds) or not node.held & clashes:
            return []
        found = self._dead.get((node, clashes))
        if found is None:
            path = node.path
            some = [job for _, _, job in islice(holds.entries(path), DEAD_LOOKED_AT_MAX)]
            dead = dict.fromkeys([job for job in some if _holds(job, node, len(path), clashes)])
            found = self._dead[node, clashes] = sorted(dead, key=_SEQ)[:JOBS_NAMED_MAX]
        return found

    def _holders_of(self, node: Node, clashes: int) -> list[Job]:
        """Return the first jobs, by path and number, that hold a gate in a conflicting mode."""
        if not node.held & clashes:
            return []
        found = self._holders.get((node, clashes))
        if found is None:
            depth = len(node.path)
            jobs = self._few(node) if sum(counts(node.held)) <= HOLDERS_LOOKED_AT_MAX else self._many(node)
            holders: dict[Job, None] = {}
            for job in jobs:
                if job.state is not JobState.FAILED and _holds(job, node, depth, clashes):
                    holders[job] = None
                    if len(holders) == JOBS_NAMED_MAX:
                        break
            found = self._holders[node, clashes] = list(holders)
        return found

    def _few(self, node: Node) -> Iterable[Job]:
        """Return the jobs of all that hold a gate, by path and number."""
        entries = [(key_of(walk.path), walk.job.number, walk.job) for walk in self._table.trie.holders(node)]
        return [job for _, _, job in sorted(entries, key=lambda entry: entry[:2])]

    def _many(self, node: Node) -> Iterable[Job]:
        """Return the first jobs at or below a gate, by path and number, whether or not they hold the gate."""
        entries = islice(self._table.paths.entries(node.path), ENTRIES_LOOKED_AT_MAX)
        return (job for _, _, job in entries)


_SEQ = attrgetter("seq")


def _holds(job: Job, node: Node, depth: int, clashes: int) -> bool:
    """Return whether a job holds a gate, *depth* segments below the root, in a conflicting mode."""
    for walk in job.walks:
        here = walk.node
        if here is node:
            mode = walk.wants if walk.granted else None
        elif walk.depth > depth and _is_below(here, node, walk.depth - depth):
            mode = IS if walk.shared else IX
        else:
            mode = None
        if mode is not None and ONE[mode] & clashes:
            return True
    return False


def _is_below(here: Node | None, node: Node, levels: int) -> bool:
    for _ in range(levels):
        assert here is not None
        here = here.parent
    return here is node
