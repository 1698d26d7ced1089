"""
Settled gates: the positions of jobs once no line waits to be advanced.

Theory of operation. Settled gates have no memory: after any history they equal the gates that result from placing the
jobs with a place anew, in order of place (``settled_state`` of the proof). How far lines have been advanced makes no
difference in the end. So the gates of a store are right exactly if advancing all lines leads to the gates of the jobs
placed anew; if they are not, those may replace them.

A job that runs, backs off, or is dead and holds its place, keeps its gates: nothing can make it wait again. If one has
gates that an earlier job should have, it is *early*, and it is placed before all jobs that can wait.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.core.structures.trie import CLASHES, IS, IX, ONE, Node, PathTrie, S, Walk, X, counts
from queuehint.values.hint import is_counted
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from queuehint.core.jobs.table import JobTable
    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Claim, Path

UNBOUNDED: Final = 1 << 62
BROKEN: Final = "…"
"""Stands for the rest of a line that cannot be read."""


@attrs.frozen(eq=False)
class Standing:
    """
    A placed job and its positions.

    Args:
        seq: its place.
        claims: one or more.
        passed: how many gates each claim has passed; one more than its path has segments if it is granted.
        keeps: the job runs, backs off, or is dead and holds its place.
    """

    job_id: str
    seq: int
    claims: tuple[Claim, ...]
    passed: tuple[int, ...]
    keeps: bool = False

    @property
    def is_possible(self) -> bool:
        """Return whether the number of passed gates is possible for each claim."""
        return len(self.passed) == len(self.claims) and all(
            0 <= passed <= len(claim.path) + 1 for passed, claim in zip(self.passed, self.claims, strict=True)
        )


@attrs.frozen
class Comparison:
    """
    The gates of jobs, compared with a fresh placement of the same jobs.

    Args:
        misplaced: the jobs that advancing lines does not bring to where placing all anew puts them, and how many gates
            their claims pass then.
        moved: all jobs that stand elsewhere than placed anew; without misplaced ones these wait for lines to advance.
        early: the jobs that keep gates which an earlier job should have.
        order: all jobs in the order in which they are placed anew; None if two that keep their gates conflict, and
            then none is misplaced or moved.
    """

    misplaced: dict[Standing, tuple[int, ...]]
    moved: dict[Standing, tuple[int, ...]]
    early: list[Standing]
    order: list[Standing] | None


@attrs.frozen
class Gate:
    """
    A node as a store keeps it.

    Args:
        held: counts of IS, IX, S and X.
        active: those of them that executing jobs hold.
        line: the ids of the jobs in line, and `BROKEN` where they are not linked well.
        waiting: how many jobs are said to be in line.
    """

    held: tuple[int, ...]
    active: tuple[int, ...]
    line: tuple[str, ...]
    waiting: int


NOTHING: Final = Gate((0,) * 4, (0,) * 4, (), 0)


class _Gates(PathTrie):
    """Gates that place walks afresh, or put them at stored positions."""

    def __init__(self) -> None:
        super().__init__(deque())

    def put(self, walk: Walk, passed: int) -> bool:
        """Put a walk at its stored position in line, or grant it. Return whether it has passed no gate with a line."""
        node, depth, last = self.root, 0, len(walk.path)
        intention, own = (IS, S) if walk.shared else (IX, X)
        overtakes = False
        while depth < last and depth < passed:
            overtakes = overtakes or node.line is not None
            node.held += ONE[intention]
            node = self._child(node, walk.path[depth])
            depth += 1
        if passed <= last:
            self._join(walk, node, depth, own if depth == last else intention)
            return not overtakes
        overtakes = overtakes or node.line is not None
        self._grant(walk, node, depth, own)
        return not overtakes

    def settle(self) -> None:
        """Advance each line as far as it goes. One pass is enough, because no walk leaves."""
        for node in nodes_of(self):
            self.advance(node, UNBOUNDED, [])


def compare(standings: Iterable[Standing]) -> Comparison:
    """
    Compare the places of jobs with a fresh placement of all of them.

    Complexity: O(claims · depth); some microseconds a job.
    """
    order: list[Standing] | None = sorted(standings, key=attrgetter("seq", "job_id"))
    assert order is not None
    anew = _placed_anew(order)
    early = [job for job in anew if job.keeps and anew[job] != _granted(job)]
    if early:
        order.sort(key=lambda job: not job.keeps)
        anew = _placed_anew(order)
        if any(job.keeps and passed != _granted(job) for job, passed in anew.items()):
            return Comparison({}, {}, early, None)
    moved = {job: passed for job, passed in anew.items() if job.passed != passed}
    settled = _settled(order) if moved else {}
    misplaced = {job: passed for job, passed in moved.items() if settled.get(job) != passed}
    return Comparison(misplaced, moved, early, order)


def _granted(job: Standing) -> tuple[int, ...]:
    return tuple([len(claim.path) + 1 for claim in job.claims])


def _placed_anew(order: Iterable[Standing]) -> dict[Standing, tuple[int, ...]]:
    gates, placed = _Gates(), {}
    for job in order:
        walks = [Walk(job, claim) for claim in job.claims]
        for walk in walks:
            gates.place(walk)
        placed[job] = tuple([walk.depth + walk.granted for walk in walks])
    return placed


def _settled(order: Iterable[Standing]) -> dict[Standing, tuple[int, ...]]:
    """
    Return the positions of jobs once all lines have advanced, or nothing if no history leads to the stored ones.

    At each gate all come in order: none has passed one where an earlier walk waits.
    """
    gates, walks_of = _Gates(), {}
    for job in order:
        walks_of[job] = walks = [Walk(job, claim) for claim in job.claims]
        if not job.is_possible or not all(map(gates.put, walks, job.passed)):
            return {}
    gates.settle()
    return {job: tuple([walk.depth + walk.granted for walk in walks]) for job, walks in walks_of.items()}


# --- the gates of a table --------------------------------------------------------------------------------------------


def standings_of(table: JobTable) -> list[Standing]:
    """Return the positions of a table's jobs with claims and a place."""
    return [
        Standing(
            job.id,
            job.seq,
            job.spec.claims,
            tuple([walk.depth + walk.granted for walk in job.walks]),
            job.state is not JobState.QUEUED or job.id in table.backing_off,
        )
        for job in table.jobs.values()
        if job.is_placed and job.spec.claims and not is_counted(job.spec.claims)
    ]


def nodes_of(trie: PathTrie) -> Iterator[Node]:
    """Yield all nodes of a trie, including nodes added meanwhile below a later one."""
    nodes = deque((trie.root,))
    while nodes:
        node = nodes.popleft()
        yield node
        nodes.extend((node.children or {}).values())


def miscounted(table: JobTable) -> dict[Path, tuple[Gate, Gate]]:
    """Return gates whose counts disagree with the jobs' positions, as (actual, expected)."""
    right = _Gates()
    for standing in sorted(standings_of(table), key=attrgetter("seq", "job_id")):
        if not standing.is_possible:
            continue
        is_active = standing.job_id in table.registry.running
        for claim, passed in zip(standing.claims, standing.passed, strict=True):
            walk = Walk(standing, claim)
            right.put(walk, passed)
            node = walk.node if is_active else None
            mode = walk.wants
            while node is not None:
                node.active += ONE[mode]
                node, mode = node.parent, IS if walk.shared else IX
    here, there = ({node.path: _gate_of(node) for node in nodes_of(trie)} for trie in (table.trie, right))
    pairs = {path: (here.get(path, NOTHING), there.get(path, NOTHING)) for path in sorted(here.keys() | there.keys())}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def _gate_of(node: Node) -> Gate:
    line: list[str] = []
    walk, before = node.line, None
    while walk is not None:
        line.append(walk.job.job_id if isinstance(walk.job, Standing) else walk.job.id)
        if walk.before is not before:
            break
        before, walk = walk, walk.after
    if walk is not None or node.line_end is not before:
        line.append(BROKEN)
    return Gate(counts(node.held), counts(node.active), tuple(line), node.waiting)


def stalled(table: JobTable) -> list[Path]:
    """Return the paths of the nodes whose line can advance without a leftover to advance it."""
    left = {item for item in table.leftovers if isinstance(item, Node)}
    return [
        node.path
        for node in nodes_of(table.trie)
        if not (node.to_advance and node in left)
        and (node.to_advance or (node.line is not None and not node.held & CLASHES[node.line.wants]))
    ]


def misoffered(table: JobTable) -> list[Job]:
    """Return the placed jobs with miscounted gates, or a wrong offer."""
    return [
        job
        for job in table.jobs.values()
        if job.is_placed
        and (
            job.missing != sum([not walk.granted for walk in job.walks])
            or _may_start(table, job) == (job.ready is None)
        )
    ]


def _may_start(table: JobTable, job: Job) -> bool:
    return job.state is JobState.QUEUED and not job.missing and job.id not in table.backing_off


def place_anew(table: JobTable) -> bool:
    """
    Replace the gates of a table by a fresh placement of its jobs, and offer exactly the jobs that may start now.

    Returns:
        False if two jobs that keep their gates conflict; then nothing is changed.
    """
    order = compare(standings_of(table)).order
    if order is None:
        return False
    trie, registry, leftovers = table.trie, table.registry, table.leftovers
    trie.root, trie.nodes = Node(None, ""), 0
    others = [item for item in leftovers if not isinstance(item, Node)]
    leftovers.clear()
    leftovers.extend(others)
    jobs = [table.jobs[standing.job_id] for standing in order]
    for job in jobs:
        walks = [Walk(job, claim) for claim in job.spec.claims]
        for walk in walks:
            trie.place(walk)
        for walk, after in pairwise(walks):
            walk.next = after
        job.walk = walks[0]
        job.missing = sum([not walk.granted for walk in walks])
    running = list(registry.running.values())
    registry.running.clear()
    for job in running:
        registry.enter(job)
    for job in jobs:
        if not _may_start(table, job):
            table.withdraw(job)
        elif job.ready is None:
            table.ready.add(job)
    return True
