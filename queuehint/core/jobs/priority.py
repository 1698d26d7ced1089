"""
Priority inheritance: the jobs ahead of a waiting job inherit its level, so that low ones do not delay it.

A job is ranked by its level: its own priority, or a higher one inherited from a job that waits behind it. Nothing
overtakes a job it conflicts with: only ready jobs are ranked by their levels. Source: Sha, Rajkumar, Lehoczky 1990.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.ready_queue import Ranked
from queuehint.values.record import JobState
from queuehint.values.spec import Priority

if TYPE_CHECKING:
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.ready_queue import ReadyQueue
    from queuehint.core.structures.trie import PathTrie

HEIRS_MAX = 100
"""How many jobs may inherit from, or are looked at for, one job that begins to wait."""
HEIRS_OF_STEP_MAX = 400
"""How many for all jobs that begin to wait in one operation: a Redis is not to be blocked by 1 000 times 100."""


class PriorityInheritance:
    """
    The levels of the placed jobs.

    ``levels`` counts these jobs by level. ``heirs_left`` is how many more jobs may be looked at in this operation.
    """

    def __init__(self, trie: PathTrie, ready: ReadyQueue) -> None:
        self.trie = trie
        self.ready = ready
        self.levels = [0] * (max(Priority) + 1)
        self.heirs_left = HEIRS_OF_STEP_MAX

    def inherit(self, job: Job) -> None:
        """
        Raise the jobs ahead of a waiting job to its level, through all lines in which they wait themselves.

        Complexity: up to `HEIRS_MAX` jobs, `HEIRS_OF_STEP_MAX` in one operation; O(levels) if no job is lower.
        """
        level = job.level
        if not any(self.levels[1:level]) or not self.heirs_left:
            return
        room, waiting = min(HEIRS_MAX, self.heirs_left), [job]
        for heir in waiting:
            for walk in heir.walks:
                # If the one before it in line has that level, those ahead have inherited it already.
                if walk.granted or (walk.before is not None and walk.before.job.level >= level):
                    continue
                found: set[Job] = {other.job for other in self.trie.before(walk, HEIRS_MAX)}
                for other in sorted(found - {heir}, key=lambda other: other.seq):
                    if other.state is JobState.FAILED:
                        continue
                    if not room:
                        return
                    room -= 1
                    self.heirs_left -= 1
                    if other.level < level:
                        self.set_level(other, level)
                        if other.missing:
                            waiting.append(other)

    def set_level(self, job: Job, level: int) -> None:
        """Change the level of a job, and its rank where offered or parked."""
        if job.seq:
            self.levels[job.level] -= 1
            self.levels[level] += 1
        job.level = level
        if job.ready is None:
            return
        if job.parked is None:
            self.ready.rerank(job)
        elif isinstance(job.parked, Ranked):
            job.parked.rerank(job)
