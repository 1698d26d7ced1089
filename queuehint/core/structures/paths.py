"""Jobs by the paths they claim, in order of queue key: what is at or below a path is one range."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from queuehint.values.hint import Path, key_of, keys_below

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.core.structures.job import Job


class PathIndex:
    """
    Jobs by queue key and number.

    Most paths have one job at a time, which is then kept without a dictionary around it.

    ``old_added`` counts the jobs that were added to others of their path and are not the newest of all: who goes
    through a path by number then looks again. ``watched`` counts, for some paths, the entries at or below them.

    Complexity: O(1) to add or remove on a path that has other jobs, O(log paths) for a new path.
    """

    def __init__(self) -> None:
        self._jobs: SortedDict[str, Job | dict[int, Job]] = SortedDict()
        self.old_added = 0
        self._newest = 0
        self.watched: dict[Path, int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Index a job at each path it claims."""
        index = self._jobs
        self._newest = max(self._newest, job.number)
        for claim in job.spec.claims:
            key = key_of(claim.path)
            there = index.get(key)
            if there is None:
                index[key] = job
                continue
            # The last of a path may be an old one itself.
            self.old_added += job.number < self._newest
            if isinstance(there, dict):
                there[job.number] = job
            else:
                index[key] = {there.number: there, job.number: job}
        if self.watched:
            self._count(job, 1)

    def remove(self, job: Job) -> None:
        """Forget a job."""
        index = self._jobs
        for claim in job.spec.claims:
            key = key_of(claim.path)
            there = index[key]
            if isinstance(there, dict):
                del there[job.number]
                if there:
                    continue
            del index[key]
        if self.watched:
            self._count(job, -1)

    def watch(self, path: Path) -> None:
        """Count from now on what is at or below *path*; O(jobs there)."""
        self.watched[path] = sum(1 for _ in self.below(path))

    def ignore(self, path: Path) -> None:
        """Count no more what is at or below *path*."""
        del self.watched[path]

    def _count(self, job: Job, by: int) -> None:
        for claim in job.spec.claims:
            for depth in range(len(claim.path) + 1):
                if claim.path[:depth] in self.watched:
                    self.watched[claim.path[:depth]] += by

    def at(self, key: str) -> dict[int, Job]:
        """Return the jobs at exactly this path, by number; not to be changed."""
        there = self._jobs.get(key)
        if there is None:
            return {}
        return there if isinstance(there, dict) else {there.number: there}

    def next_key(self, path: Path, after: str | None) -> str | None:
        """Return the first key at or below *path* that comes after *after* (None: the first of all)."""
        if not path:
            return next(self._jobs.irange(after, inclusive=(False, True)), None)
        key = key_of(path)
        if after is None and key in self._jobs:
            return key
        low, high = keys_below(path)
        if after is not None and after > low:
            low = after
        return next(self._jobs.irange(low, high, inclusive=(False, False)), None)

    def entries(
        self, path: Path, after: tuple[str, int] | None = None, *, newest_first: bool = False
    ) -> Iterator[tuple[str, int, Job]]:
        """
        Yield key, number and job of each claim at or below *path*, in order of key, then of number.

        Args:
            after: a key and a number to begin behind, which need not be there.
            newest_first: in the reverse order.

        Complexity: O(log paths) and, for each key come to, O(jobs there).
        """
        for key in self._keys(path, None if after is None else after[0], newest_first=newest_first):
            jobs = self.at(key)
            for number in sorted(jobs, reverse=newest_first):
                if after is None or ((key, number) < after if newest_first else (key, number) > after):
                    yield key, number, jobs[number]

    def _keys(self, path: Path, first: str | None, *, newest_first: bool) -> Iterator[str]:
        """Yield the keys at or below *path* in order, beginning with *first* or what comes behind it."""
        index = self._jobs
        if not path:
            low, high = (None, first) if newest_first else (first, None)
            yield from index.irange(low, high, reverse=newest_first)
            return
        own = key_of(path)
        low, high = keys_below(path)
        begins_with_own = own in index and (first is None or (own <= first if newest_first else own >= first))
        if begins_with_own and not newest_first:
            yield own
        if first is None:
            first = high if newest_first else low
        if newest_first:
            yield from index.irange(low, min(first, high), inclusive=(False, first < high), reverse=True)
        else:
            yield from index.irange(max(first, low), high, inclusive=(True, False))
        if begins_with_own and newest_first:
            yield own

    def below(self, path: Path) -> Iterator[Job]:
        """Yield the jobs with a claim at or below *path*, in order of key; once a claim."""
        key = self.next_key(path, None)
        while key is not None:
            yield from self.at(key).values()
            key = self.next_key(path, key)


class LatePathIndex:
    """
    Jobs by the paths they claim, indexed when somebody asks for them.

    What most jobs are never asked for by path costs them one entry in a dictionary until then.

    Complexity: O(1) to add a job, or to remove one nobody has asked for since; a question indexes what has come since
    the last one.
    """

    def __init__(self) -> None:
        self._index = PathIndex()
        self._new: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._index)

    def __contains__(self, job: Job) -> bool:
        if job.number in self._new:
            return True
        return all(job.number in self._index.at(key_of(claim.path)) for claim in job.spec.claims)

    def add(self, job: Job) -> None:
        """Take in a job."""
        self._new[job.number] = job

    def remove(self, job: Job) -> None:
        """Forget a job."""
        if self._new.pop(job.number, None) is None:
            self._index.remove(job)

    def index_some(self, count: int) -> bool:
        """Index the first of what has come since the last question; return whether anything is left."""
        for number in list(islice(self._new, count)):
            self._index.add(self._new.pop(number))
        return bool(self._new)

    def entries(
        self, path: Path, after: tuple[str, int] | None = None, *, newest_first: bool = False
    ) -> Iterator[tuple[str, int, Job]]:
        """Yield what `PathIndex.entries` does."""
        self.index_some(len(self._new))
        return self._index.entries(path, after, newest_first=newest_first)
