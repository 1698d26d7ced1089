"""Unfinished jobs by their key: the newest of them is the one a further job of the key meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.core.structures.job import Job


class KeyIndex:
    """Jobs by key and number, in order of number."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, Job]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """Yield every job that has a key; for tests."""
        for jobs in self._jobs.values():
            yield from jobs.values()

    def add(self, key: str, job: Job) -> None:
        """Index an unfinished job; O(1) unless it is an older one that comes back."""
        jobs = self._jobs.setdefault(key, {})
        in_order = not jobs or next(reversed(jobs)) < job.number
        jobs[job.number] = job
        if not in_order:
            self._jobs[key] = dict(sorted(jobs.items()))

    def remove(self, key: str, job: Job) -> None:
        """Forget a job that is over."""
        jobs = self._jobs[key]
        del jobs[job.number]
        if not jobs:
            del self._jobs[key]

    def newest(self, key: str) -> Job | None:
        """Return the key's newest unfinished job, None if there is none."""
        jobs = self._jobs.get(key)
        return jobs[next(reversed(jobs))] if jobs else None
