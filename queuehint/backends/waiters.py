"""Waiters of one process, indexed by topic: an operation wakes only the waiters of its topics."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from queuehint.core.structures.ready_queue import REFUSED_MARK, pool_of, releases_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queuehint.backends.base import Interest
    from queuehint.operations import CountPending

_Topic = tuple[str, object]


class Waiter:
    """A waiter with its deadline, its wake-up, its topics, and its worker's release."""

    __slots__ = ("pending", "release", "topics", "until_ms", "wake", "works")

    def __init__(self, interest: Interest, until_ms: int, wake: Callable[[], None]) -> None:
        topics: list[_Topic] = [("pool", pool) for pool in interest.pools]
        if interest.users is not None:
            topics = [("user", served) for served in product(interest.pools, interest.users)]
        topics += [("job", job_id) for job_id in interest.jobs]
        if interest.worker is not None:
            topics.append(("worker", interest.worker))
        self.topics = topics
        self.works = bool(interest.pools)
        self.pending = interest.pending
        self.release = interest.release
        self.until_ms = until_ms
        self.wake = wake


class WaitingRoom:
    """Waiters by topic."""

    def __init__(self) -> None:
        self._by_topic: dict[_Topic, dict[Waiter, None]] = {}
        self._workers: dict[Waiter, None] = {}
        self._drains: dict[Waiter, None] = {}
        self._latest_ms = 0
        """No worker here sleeps longer than this."""
        self.waiters: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self.waiters)

    def enter(self, waiter: Waiter) -> None:
        """Add a waiter."""
        self.waiters[waiter] = None
        for topic in waiter.topics:
            self._by_topic.setdefault(topic, {})[waiter] = None
        if waiter.pending is not None:
            self._drains[waiter] = None
        if waiter.works:
            self._workers[waiter] = None
            self._latest_ms = max(self._latest_ms, waiter.until_ms)

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter, if still there."""
        if waiter not in self.waiters:
            return
        del self.waiters[waiter]
        self._workers.pop(waiter, None)
        self._drains.pop(waiter, None)
        for topic in waiter.topics:
            waiters = self._by_topic.get(topic)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._by_topic[topic]

    def call_concerned(
        self,
        ended: Iterable[str],
        filled: set[tuple[str, str | None]],
        canceled: Iterable[str],
        is_drained: Callable[[CountPending], bool],
    ) -> None:
        """
        Wake the waiters whose topics an operation has changed.

        Args:
            ended: jobs that are over.
            filled: queues and users who have got ready jobs.
            canceled: workers that have jobs to stop.
            is_drained: whether a count has reached zero.
        """
        self._call("job", ended)
        self._call_ready(filled)
        self._call("worker", canceled)
        for waiter in list(self._drains):
            if waiter.pending is not None and is_drained(waiter.pending):
                self.leave(waiter)
                waiter.wake()

    def _call(self, kind: str, names: Iterable[object]) -> None:
        """Wake the waiters of any of these topics."""
        for name in names:
            for waiter in list(self._by_topic.get((kind, name), ())):
                self.leave(waiter)
                waiter.wake()

    def _call_ready(self, filled: set[tuple[str, str | None]]) -> None:
        """Wake the workers waiting for jobs of queues and users, except releases that have refused these jobs."""
        refused = [each for each in filled if REFUSED_MARK in each[0]]
        fresh = filled.difference(refused)
        self._call("pool", {pool for pool, _ in fresh})
        self._call("user", fresh)
        for queue, user in refused:
            pool, releases = pool_of(queue), releases_of(queue)
            for topic in (("pool", pool), ("user", (pool, user))):
                for waiter in list(self._by_topic.get(topic, ())):
                    if waiter.release not in releases:
                        self.leave(waiter)
                        waiter.wake()

    def call_workers(self, next_ms: int) -> None:
        """Wake the workers that would sleep past the time when something is due."""
        if next_ms >= self._latest_ms:
            return
        self._latest_ms = next_ms
        for waiter in [waiter for waiter in self._workers if waiter.until_ms > next_ms]:
            self.leave(waiter)
            waiter.wake()

    def call_all(self) -> None:
        """Wake all waiters."""
        for waiter in list(self.waiters):
            self.leave(waiter)
            waiter.wake()
