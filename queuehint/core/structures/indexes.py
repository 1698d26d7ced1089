"""Indexes of jobs: by path (in order of queue key, so that a subtree is one range), by deduplication key, by flow."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from queuehint.values.hint import Path, key_of, keys_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from queuehint.core.structures.job import Job


UNSORTED_AFTER = 1_000


class PathIndex:
    """
    Jobs by queue key and number.

    Most paths have one job at a time, which is then kept without a dictionary around it. Of most no range is ever
    asked for: so keys are made and sorted when the first range is, and kept in order from then on, until no range has
    been asked for during as many changes as there are keys, and `UNSORTED_AFTER` more.

    ``old_added`` counts the jobs that were added to others of their path and are not the newest of all: a sweep that
    goes through a path by number then looks again. ``watched`` counts entries: for some paths those at or below them,
    for some those at or below each child by itself; no child is there without one.

    Complexity: O(1) to add or remove a job, O(log paths) for a new path while the order is kept; a range costs
    O(log paths), and the first one a sort of all keys.
    """

    def __init__(self) -> None:
        self._jobs: dict[Path, Job | dict[int, Job]] = {}
        self._order: SortedDict[str, Path] | None = None
        """The paths by key, in order; None until a range is asked for."""
        self._changes = 0
        """How many keys were added or removed since a range was asked for, while the order is kept."""
        self.old_added = 0
        self._newest = 0
        self.watched: dict[tuple[Path, bool], dict[Path, int]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Index a job at each claimed path."""
        index = self._jobs
        if job.number > self._newest:  # noqa: PLR1730 - once a job; a call would cost more than the rest
            self._newest = job.number
        for claim in job.spec.claims:
            path = claim.path
            there = index.get(path)
            if there is None:
                index[path] = job
                if self._order is not None:
                    self._order[key_of(path)] = path
                    self._count_change()
                continue
            # The last of a path may be an old one itself.
            self.old_added += job.number < self._newest
            if isinstance(there, dict):
                there[job.number] = job
            else:
                index[path] = {there.number: there, job.number: job}
        if self.watched:
            self._count(job, 1)

    def remove(self, job: Job) -> None:
        """Remove a job."""
        index = self._jobs
        for claim in job.spec.claims:
            path = claim.path
            there = index[path]
            if isinstance(there, dict):
                del there[job.number]
                if there:
                    continue
            del index[path]
            if self._order is not None:
                del self._order[key_of(path)]
                self._count_change()
        if self.watched:
            self._count(job, -1)

    def _count_change(self) -> None:
        """Drop the sorted order once no range is requested any more."""
        self._changes += 1
        if self._changes > len(self._jobs) + UNSORTED_AFTER:
            self._order = None

    def _sorted(self) -> SortedDict[str, Path]:
        """Return the paths by key, in order."""
        self._changes = 0
        if self._order is None:
            self._order = SortedDict(zip(map(key_of, self._jobs), self._jobs, strict=True))
        return self._order

    def check(self) -> None:
        """Assert that a kept order is that of the paths; for tests."""
        assert self._order is None or dict(self._order) == {key_of(path): path for path in self._jobs}

    def watch(self, path: Path, *, each: bool) -> None:
        """Start to count the entries at or below *path*, or below *each* child of it; O(jobs there)."""
        self.watched[path, each] = self.count_below(path, each=each)

    def ignore(self, path: Path, *, each: bool) -> None:
        """Stop counting the entries at or below *path*, or below *each* child of it."""
        del self.watched[path, each]

    def _count(self, job: Job, by: int) -> None:
        for claim in job.spec.claims:
            for depth in range(len(claim.path) + 1):
                place = claim.path[:depth]
                for key in ((place, False), (place[:-1], True)) if depth else ((place, False),):
                    counts = self.watched.get(key)
                    if counts is not None:
                        counts[place] = counts.get(place, 0) + by
                        if not counts[place]:
                            del counts[place]

    def at(self, key: str) -> dict[int, Job]:
        """Return the jobs at exactly the path of this key, by number; not to be changed."""
        path = self._sorted().get(key)
        return {} if path is None else self.on(path)

    def on(self, path: Path) -> dict[int, Job]:
        """Return the jobs at exactly this path, by number; not to be changed."""
        there = self._jobs.get(path)
        if there is None:
            return {}
        return there if isinstance(there, dict) else {there.number: there}

    def next_key(self, path: Path, after: str | None) -> str | None:
        """Return the first key at or below *path* that comes after *after* (None: the first of all)."""
        if not path:
            return next(self._sorted().irange(after, inclusive=(False, True)), None)
        key = key_of(path)
        if after is None and path in self._jobs:
            return key
        low, high = keys_below(path)
        if after is not None and after > low:
            low = after
        return next(self._sorted().irange(low, high, inclusive=(False, False)), None)

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
        """Yield the keys at or below *path* in order, from *first* on."""
        index = self._sorted()
        if not path:
            low, high = (None, first) if newest_first else (first, None)
            yield from index.irange(low, high, reverse=newest_first)
            return
        own = key_of(path)
        low, high = keys_below(path)
        begins_with_own = path in self._jobs and (first is None or (own <= first if newest_first else own >= first))
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

    def count_below(self, path: Path, *, each: bool) -> dict[Path, int]:
        """Count the entries at or below *path*, or below *each* non-empty child; O(jobs there)."""
        counts: dict[Path, int] = {}
        length = len(path) + each
        for at in map(self._sorted().__getitem__, self._keys(path, None, newest_first=False)):
            if len(at) >= length:
                counts[at[:length]] = counts.get(at[:length], 0) + len(self.on(at))
        return counts

    def below(self, path: Path) -> Iterator[Job]:
        """Yield the jobs with a claim at or below *path*, in order of key; once a claim."""
        key = self.next_key(path, None)
        while key is not None:
            yield from self.at(key).values()
            key = self.next_key(path, key)


class LatePathIndex:
    """
    A path index filled on demand: the next query indexes new jobs.

    Most records are never looked up by path; until a query each costs one entry in a dictionary.

    Complexity: O(1) to add a job, or to remove one that is not indexed yet; a query indexes all jobs added since the
    last one.
    """

    def __init__(self) -> None:
        self._index = PathIndex()
        self._new: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._index)

    def __contains__(self, job: Job) -> bool:
        if job.number in self._new:
            return True
        return all(job.number in self._index.on(claim.path) for claim in job.spec.claims)

    def add(self, job: Job) -> None:
        """Add a job, to be indexed at the next query."""
        self._new[job.number] = job

    def remove(self, job: Job) -> None:
        """Remove a job."""
        if self._new.pop(job.number, None) is None:
            self._index.remove(job)

    def index_some(self, count: int) -> bool:
        """Index the oldest *count* unindexed jobs. Return whether any are left."""
        for number in list(islice(self._new, count)):
            self._index.add(self._new.pop(number))
        return bool(self._new)

    def entries(
        self, path: Path, after: tuple[str, int] | None = None, *, newest_first: bool = False
    ) -> Iterator[tuple[str, int, Job]]:
        """Index new records, then yield as `PathIndex.entries`."""
        self.index_some(len(self._new))
        return self._index.entries(path, after, newest_first=newest_first)


class KeyIndex:
    """
    The jobs with a deduplication key, in order of number: a further job of a key meets the newest.

    They are unfinished, or over with an expiry, which is when they give the key up.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, Job]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """Yield every job with a key; for tests."""
        for jobs in self._jobs.values():
            yield from jobs.values()

    def add(self, key: str, job: Job) -> None:
        """Index a job that gets or regains its key; O(1) except for an older job that regains its key."""
        jobs = self._jobs.setdefault(key, {})
        in_order = not jobs or next(reversed(jobs)) < job.number
        jobs[job.number] = job
        if not in_order:
            self._jobs[key] = dict(sorted(jobs.items()))

    def remove(self, key: str, job: Job) -> None:
        """Remove a job that gives up its key."""
        jobs = self._jobs[key]
        del jobs[job.number]
        if not jobs:
            del self._jobs[key]

    def newest(self, key: str, now_ms: int) -> Job | None:
        """Return the newest job of a key, or None."""
        for job in reversed(self._jobs.get(key, {}).values()):
            if not job.is_over or (job.expiry is not None and job.expiry[0] > now_ms):
                return job
        return None


class FlowIndex:
    """The jobs of each flow with kept records, hidden jobs included. A job without a flow is not indexed."""

    def __init__(self) -> None:
        self._jobs: dict[str, SortedDict[int, Job]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Index a new job."""
        assert job.spec.flow is not None
        self._jobs.setdefault(job.spec.flow, SortedDict())[job.number] = job

    def remove(self, job: Job) -> None:
        """Remove a job whose record is dropped."""
        flow = job.spec.flow
        assert flow is not None
        jobs = self._jobs[flow]
        del jobs[job.number]
        if not jobs:
            del self._jobs[flow]

    def of(self, flow: str) -> SortedDict[int, Job]:
        """Return the jobs of a flow by number; not to be changed."""
        jobs: SortedDict[int, Job] | None = self._jobs.get(flow)
        return SortedDict() if jobs is None else jobs

    def visible(self, flow: str) -> int:
        """Return how many jobs of a flow are visible; O(jobs)."""
        return sum(not job.is_hidden for job in self._jobs.get(flow, {}).values())

    def check(self, jobs: Mapping[str, Job]) -> None:
        """Assert that every kept job is in its flow and nowhere else; for tests."""
        kept = {job.id for job in jobs.values() if job.spec.flow is not None and not job.gone and not job.is_start}
        indexed = {job.id for of_flow in self._jobs.values() for job in of_flow.values()}
        assert kept == indexed
        assert all(self._jobs.values())
