"""
Ready queue: fair queuing between the users of a pool, priority with ageing inside a user.

Ready jobs are offered per pool. In a pool users take turns: the first user gets as many starts as its weight (one by
default), then goes to the end. A user without ready jobs is not in the turns, and joins them at the end. So between
two turns of a user that always has ready jobs there are at most as many other starts as all others weigh together:
with k users of equal weight, k - 1. That is deficit round robin with jobs of one size.

Inside a user CRITICAL jobs go first, first in first out, then levels 5 to 1 by score: ms at enqueue less a head start
of a minute a level, ties by number, so that low levels age into their turn. With one user and one level this is plain
FIFO. None of this can let a job overtake one it conflicts with: only jobs that have passed all their gates are here.

A job that some **releases** have refused, because their code does not know its task or cannot read its arguments, is in
another **queue** of its pool: one for each set of releases. A claim of a release leaves the queues of those sets out
that it is in, without a look at their jobs, and takes from the others before it takes what nobody has refused: a job
that was refused has had its turn. Each of these queues is ordered like the pool. A job remembers the last
`RELEASES_KEPT` releases; one that it has forgotten is offered it once more. A pool has `QUEUES_MAX` of these queues;
a job of one more set forgets its releases.

Source: M. Shreedhar, G. Varghese, "Efficient Fair Queuing Using Deficit Round-Robin" (1996).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from heapq import nsmallest
from typing import TYPE_CHECKING

from queuehint.core.structures.heap import LazyHeap
from queuehint.values.spec import Priority

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.core.structures.job import Job

HEAD_START_MS = 60_000
USERS_LOOKED_AT_MAX = 100
RELEASES_KEPT = 8
QUEUES_MAX = 64
REFUSED_MARK = "\x01"
"""Separates a pool and the releases in the name of a queue; in no name of a pool."""
_CRITICAL = int(Priority.CRITICAL)
_CRITICAL_RANK = -(1 << 62)


def rank(level: int, enqueued_ms: int) -> int:
    """Return the score of a ready job in its user's order, least first. Ties go by number."""
    if level == _CRITICAL:
        return _CRITICAL_RANK
    return enqueued_ms - HEAD_START_MS * (level - 1)


def queue_of(job: Job) -> str:
    """Return the name of a ready job's queue: its pool, and the releases that refused the job."""
    pool = job.spec.pool
    if job.extras is None or not job.extras.refused_by:
        return pool
    return f"{pool}{REFUSED_MARK}{','.join(sorted(job.extras.refused_by))}"


def releases_of(queue: str) -> list[str]:
    """Return the releases that have refused the jobs of a queue."""
    releases = queue.partition(REFUSED_MARK)[2]
    return releases.split(",") if releases else []


def pool_of(queue: str) -> str:
    """Return the pool of a queue."""
    return queue.partition(REFUSED_MARK)[0]


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
    """The ready jobs of a user of a pool. ``turn`` orders the turns, ``served`` counts the starts of this one."""

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

    ``weights`` holds the users with more than one start a turn. ``filled`` collects the queues and users that got their
    first ready job, to wake workers that wait; its reader empties it. ``refused`` has by pool the names of the queues
    of refused jobs, in order; pools without any are not in it.
    """

    def __init__(self) -> None:
        self.weights: dict[str | None, int] = {}
        self.filled: set[tuple[str, str | None]] = set()
        self.refused: dict[str, list[str]] = {}
        self._pools: dict[str, _Pool] = {}
        self._rotation = 0
        self._turn = 0

    def add(self, job: Job) -> None:
        """Offer a job. A user without ready jobs joins the end of the turns."""
        spec = job.spec
        name = spec.pool
        if job.extras is not None and job.extras.refused_by:
            name = self._enter(job)
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool()
        user = pool.users.get(spec.user)
        if user is None:
            self._turn += 1
            user = pool.users[spec.user] = _User(self._turn)
            self.filled.add((name, spec.user))
        pool.size += 1
        job.ready = user.push(rank(job.level, job.enqueued_ms), job.number, job)

    def remove(self, job: Job) -> None:
        """Remove an offered job."""
        name = job.spec.pool if job.extras is None else queue_of(job)
        pool = self._pools[name]
        user = pool.users[job.spec.user]
        assert job.ready is not None
        user.discard(job.ready)
        job.ready = None
        pool.size -= 1
        if not pool.size:
            del self._pools[name]
            if self.refused:
                self._leave(name)
        elif not len(user):
            del pool.users[job.spec.user]

    def has_queue(self, job: Job, refused_by: tuple[str, ...]) -> bool:
        """Return whether the queue of a set of refusing releases exists, or has room."""
        names = self.refused.get(job.spec.pool, ())
        return len(names) < QUEUES_MAX or f"{job.spec.pool}{REFUSED_MARK}{','.join(sorted(refused_by))}" in names

    def _enter(self, job: Job) -> str:
        """Return the queue of a refused job that becomes ready. Without room for one the job's refusals are dropped."""
        assert job.extras is not None
        if not self.has_queue(job, job.extras.refused_by):
            job.extras.refused_by = ()
            return job.spec.pool
        name = queue_of(job)
        if name not in self._pools:
            insort(self.refused.setdefault(job.spec.pool, []), name)
        return name

    def _leave(self, name: str) -> None:
        """Drop an empty queue of refused jobs."""
        pool = pool_of(name)
        if name != pool:
            self.refused[pool].remove(name)
            if not self.refused[pool]:
                del self.refused[pool]

    def open_to(self, release: str, pools: Iterable[str]) -> list[str]:
        """Return the queues of refused jobs of pools, without those refused by this release."""
        return [name for pool in pools for name in self.refused.get(pool, ()) if release not in releases_of(name)]

    def rerank(self, job: Job) -> None:
        """Move an offered job to the rank of its new level. The turns do not change."""
        self._pools[queue_of(job)].users[job.spec.user].rerank(job)

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
        Take the next job of a queue, named as its pool: the first job of the user whose turn it is.

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
            if self.refused:
                self._leave(name)
        elif len(users) > 1:
            if len(user):
                self._count(users, whose, user)
            else:
                del users[whose]
        return job

    def _count(self, users: OrderedDict[str | None, _User], whose: str | None, user: _User) -> None:
        """Count a start of a user's turn. End the turn after the last."""
        user.served += 1
        if user.served >= self.weights.get(whose, 1):
            self._turn += 1
            user.turn, user.served = self._turn, 0
            users.move_to_end(whose)

    def size(self, name: str, among: Iterable[str | None] | None = None) -> int:
        """Return the number of ready jobs of a queue, of some users or of all."""
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
        """Return the number of ready jobs by pool, refused ones included."""
        sizes: Counter[str] = Counter()
        for name, pool in sorted(self._pools.items()):
            sizes[pool_of(name)] += pool.size
        return dict(sizes)

    def firsts(self) -> dict[str, list[Job]]:
        """Return by pool the next job of each user of its queues, of the first `USERS_LOOKED_AT_MAX` by name."""
        found: dict[str, list[Job]] = {}
        for name, pool in self._pools.items():
            users = nsmallest(USERS_LOOKED_AT_MAX, pool.users.items(), key=lambda item: item[0] or "")
            entries = [user.first() for _, user in users]
            found.setdefault(pool_of(name), []).extend([entry[3] for entry in entries if entry is not None])
        return found

    def check(self) -> None:
        """Assert that each job is in its queue, and that the queues of refused jobs are known; for tests."""
        for name, queue in self._pools.items():
            users = [(whose, user.items()) for whose, user in queue.users.items()]
            assert queue.size == sum(len(jobs) for _, jobs in users) > 0
            assert all(queue_of(job) == name and job.spec.user == whose for whose, jobs in users for job in jobs)
        queues = sorted(name for name in self._pools if REFUSED_MARK in name)
        assert queues == sorted(name for names in self.refused.values() for name in names)
        for pool, names in self.refused.items():
            assert names == sorted(names) and 0 < len(names) <= QUEUES_MAX
            assert all(pool_of(name) == pool for name in names)

    def jobs(self) -> list[Job]:
        """Return all ready jobs; for tests."""
        return [job for pool in self._pools.values() for user in pool.users.values() for job in user.items()]
