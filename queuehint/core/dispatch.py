"""
Which of the jobs that are ready goes next.

Ready jobs are offered per pool. In a pool users take turns; inside a user CRITICAL jobs go first, first in first
out, then levels 5 to 1 by score: ms at enqueue less a head start of a minute a level, ties by number, so that low
levels age into their turn. With one user and one level this is plain FIFO. None of this can let a job overtake one
it conflicts with: only jobs that have passed all their gates are here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from queuehint.core.heap import LazyHeap
from queuehint.records import Priority

if TYPE_CHECKING:
    from queuehint.core.job import Job

HEAD_START_MS = 60_000
_CRITICAL = int(Priority.CRITICAL)
_CRITICAL_RANK = -(1 << 62)


def rank(priority: int, enqueued_ms: int) -> int:
    """Return the score by which a user's ready jobs are ordered, least first; ties go by number."""
    if priority == _CRITICAL:
        return _CRITICAL_RANK
    return enqueued_ms - HEAD_START_MS * (priority - 1)


class _Pool:
    """The users with ready jobs, in order of their turns."""

    __slots__ = ("size", "turns", "users")

    def __init__(self) -> None:
        self.users: dict[str | None, LazyHeap[Job]] = {}
        self.turns: deque[str | None] = deque()
        self.size = 0


class ReadyQueue:
    """
    Jobs a worker may start now, by pool, user and rank.

    ``filled`` collects the pools that had nothing ready and now do, for whoever waits for work; its reader empties it.
    """

    def __init__(self) -> None:
        self.filled: set[str] = set()
        self._pools: dict[str, _Pool] = {}
        self._rotation = 0

    def add(self, job: Job) -> None:
        """Offer a job; a user who had nothing ready joins the end of the turns."""
        spec = job.spec
        pool = self._pools.get(spec.pool)
        if pool is None:
            pool = self._pools[spec.pool] = _Pool()
            self.filled.add(spec.pool)
        heap = pool.users.get(spec.user)
        if heap is None:
            heap = pool.users[spec.user] = LazyHeap()
            pool.turns.append(spec.user)
        pool.size += 1
        job.ready = heap.push(rank(spec.priority, job.enqueued_ms), job.number, job)

    def remove(self, job: Job) -> None:
        """Take back an offer; O(users) when it was the user's last."""
        name, user = job.spec.pool, job.spec.user
        pool = self._pools[name]
        heap = pool.users[user]
        assert job.ready is not None
        heap.discard(job.ready)
        job.ready = None
        pool.size -= 1
        if not pool.size:
            del self._pools[name]
        elif not len(heap):
            del pool.users[user]
            pool.turns.remove(user)

    def rotate(self, names: tuple[str, ...]) -> list[str]:
        """Return the pools among *names* that have ready jobs, beginning with another at each call."""
        count = len(names)
        if count == 1:
            return [names[0]] if names[0] in self._pools else []
        begin = self._rotation % count
        self._rotation += 1
        return [name for name in names[begin:] + names[:begin] if name in self._pools]

    def take(self, name: str) -> Job | None:
        """Take the next job of a pool: the first of the user whose turn it is, who then goes to the end."""
        pool = self._pools.get(name)
        if pool is None:
            return None
        turns = pool.turns
        user = turns[0]
        heap = pool.users[user]
        job = heap.pop()
        job.ready = None
        pool.size -= 1
        if not pool.size:
            del self._pools[name]
        elif not len(heap):
            del pool.users[user]
            turns.popleft()
        elif len(turns) > 1:
            turns.rotate(-1)
        return job

    def size(self, name: str) -> int:
        """Return how many jobs of a pool are ready."""
        pool = self._pools.get(name)
        return pool.size if pool is not None else 0

    def sizes(self) -> dict[str, int]:
        """Return how many jobs are ready, by pool."""
        return {name: pool.size for name, pool in sorted(self._pools.items())}

    def jobs(self) -> list[Job]:
        """Return all ready jobs; for tests."""
        return [job for pool in self._pools.values() for heap in pool.users.values() for job in heap.items()]
