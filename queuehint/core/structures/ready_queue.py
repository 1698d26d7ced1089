"""
Ready queue: fair queuing between the users of a pool, priority with ageing inside a user.

Ready jobs are offered per pool. In a pool users take turns: the first user gets as many starts as its weight (one by
default), then goes to the end. A user without ready jobs is not in the turns, and joins them at the end. So between
two turns of a user that always has ready jobs there are at most as many other starts as all others weigh together:
with k users of equal weight, k - 1. That is deficit round robin with jobs of one size.

Inside a user CRITICAL jobs go first, first in first out, then levels 5 to 1 by score: ms at enqueue less a head start
of a minute a level, ties by number, so that low levels age into their turn. With one user and one level this is plain
FIFO. None of this can let a job overtake one it conflicts with: only jobs that have passed all their gates are here.

Source: M. Shreedhar, G. Varghese, "Efficient Fair Queuing Using Deficit Round-Robin" (1996).
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import nsmallest
from typing import TYPE_CHECKING

from queuehint.core.structures.heap import LazyHeap
from queuehint.values.spec import Priority

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.core.structures.job import Job

HEAD_START_MS = 60_000
USERS_LOOKED_AT_MAX = 100
_CRITICAL = int(Priority.CRITICAL)
_CRITICAL_RANK = -(1 << 62)


def rank(level: int, enqueued_ms: int) -> int:
    """Return the score by which a user's ready jobs are ordered, least first; ties go by number."""
    if level == _CRITICAL:
        return _CRITICAL_RANK
    return enqueued_ms - HEAD_START_MS * (level - 1)


class Ranked(LazyHeap["Job"]):
    """Jobs in order of rank."""

    __slots__ = ()

    def offer(self, job: Job) -> None:
        """Add a job by its level."""
        job.ready = self.push(rank(job.level, job.enqueued_ms), job.number, job)

    def rerank(self, job: Job) -> None:
        """Move a job to the rank of its new level."""
        assert job.ready is not None
        self.discard(job.ready)
        self.offer(job)


class _User(Ranked):
    """The ready jobs of a user of a pool; ``turn`` orders the turns, ``served`` counts the starts of this one."""

    __slots__ = ("served", "turn")

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.turn = turn
        self.served = 0


class _Pool:
    """The users with ready jobs, in order of their turns."""

    __slots__ = ("size", "users")

    def __init__(self) -> None:
        self.users: OrderedDict[str | None, _User] = OrderedDict()
        self.size = 0


class ReadyQueue:
    """
    Jobs a worker may start now, by pool, user and rank.

    ``weights`` holds the users with more than one start a turn. ``filled`` collects the pools and users that got their
    first ready job, to wake workers that wait; its reader empties it.
    """

    def __init__(self) -> None:
        self.weights: dict[str | None, int] = {}
        self.filled: set[tuple[str, str | None]] = set()
        self._pools: dict[str, _Pool] = {}
        self._rotation = 0
        self._turn = 0

    def add(self, job: Job) -> None:
        """Offer a job; a user without ready jobs joins the end of the turns."""
        spec = job.spec
        pool = self._pools.get(spec.pool)
        if pool is None:
            pool = self._pools[spec.pool] = _Pool()
        user = pool.users.get(spec.user)
        if user is None:
            self._turn += 1
            user = pool.users[spec.user] = _User(self._turn)
            self.filled.add((spec.pool, spec.user))
        pool.size += 1
        job.ready = user.push(rank(job.level, job.enqueued_ms), job.number, job)

    def remove(self, job: Job) -> None:
        """Remove an offered job."""
        name = job.spec.pool
        pool = self._pools[name]
        user = pool.users[job.spec.user]
        assert job.ready is not None
        user.discard(job.ready)
        job.ready = None
        pool.size -= 1
        if not pool.size:
            del self._pools[name]
        elif not len(user):
            del pool.users[job.spec.user]

    def rerank(self, job: Job) -> None:
        """Move an offered job to the rank of its new level; the turns do not change."""
        self._pools[job.spec.pool].users[job.spec.user].rerank(job)

    def rotate(self, names: tuple[str, ...]) -> list[str]:
        """Return the pools among *names* that have ready jobs, starting with another at each call."""
        count = len(names)
        if count == 1:
            return [names[0]] if names[0] in self._pools else []
        begin = self._rotation % count
        self._rotation += 1
        return [name for name in names[begin:] + names[:begin] if name in self._pools]

    def take(self, name: str, among: Iterable[str | None] | None = None) -> Job | None:
        """
        Take the next job of a pool: the first of the user whose turn it is.

        A user that has used its starts of this turn goes to the end, unless no other user has ready jobs.

        Args:
            among: the users whose jobs may be taken; None for all.

        Returns:
            The job, None if there is none.

        Complexity: O(log n), and O(among) to find whose turn it is.
        """
        pool = self._pools.get(name)
        if pool is None:
            return None
        users = pool.users
        if among is None:
            whose, user = next(iter(users.items()))
        else:
            ready = [(users[whose].turn, whose) for whose in among if whose in users]
            if not ready:
                return None
            _, whose = min(ready)
            user = users[whose]
        job = user.pop()
        job.ready = None
        pool.size -= 1
        if not pool.size:
            del self._pools[name]
        elif len(users) > 1:
            if len(user):
                self._count(users, whose, user)
            else:
                del users[whose]
        return job

    def _count(self, users: OrderedDict[str | None, _User], whose: str | None, user: _User) -> None:
        """Count a start of a user's turn; end the turn after the last."""
        user.served += 1
        if user.served >= self.weights.get(whose, 1):
            self._turn += 1
            user.turn, user.served = self._turn, 0
            users.move_to_end(whose)

    def size(self, name: str, among: Iterable[str | None] | None = None) -> int:
        """Return the number of ready jobs of a pool, of some users or of all."""
        pool = self._pools.get(name)
        if pool is None:
            return 0
        if among is None:
            return pool.size
        return sum([len(pool.users[whose]) for whose in among if whose in pool.users])

    def __bool__(self) -> bool:
        """Return whether any job is ready."""
        return bool(self._pools)

    def sizes(self) -> dict[str, int]:
        """Return the number of ready jobs by pool."""
        return {name: pool.size for name, pool in sorted(self._pools.items())}

    def firsts(self) -> dict[str, list[Job]]:
        """Return by pool the next job of each of its users, of the first `USERS_LOOKED_AT_MAX` by name."""
        found = {}
        for name, pool in self._pools.items():
            users = nsmallest(USERS_LOOKED_AT_MAX, pool.users.items(), key=lambda item: item[0] or "")
            entries = [user.first() for _, user in users]
            found[name] = [entry[3] for entry in entries if entry is not None]
        return found

    def jobs(self) -> list[Job]:
        """Return all ready jobs; for tests."""
        return [job for pool in self._pools.values() for user in pool.users.values() for job in user.items()]
