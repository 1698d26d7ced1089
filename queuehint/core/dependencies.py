"""
Explicit edges between jobs: who waits for whom.

An edge is kept at both ends: ``waiting`` holds, for each job, those that wait for it; a job's own ``blocked`` set
holds what it still waits for. Both change in one step. So far only ``on_conflict="after"`` makes edges.

Source: FairQueue's dependency sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuehint.core.job import Job


class DependencySets:
    """The edges of one namespace; a job that is over has none."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, Job]] = {}

    def add(self, job: Job, dependency: Job) -> None:
        """Let *job* wait for *dependency*, which is unfinished."""
        self._waiting.setdefault(dependency.id, {})[job.number] = job
        job.note().blocked.add(dependency.id)

    def has_dependents(self, job: Job) -> bool:
        """Say whether any job waits for *job*."""
        return job.id in self._waiting

    def resolve_one(self, dependency: Job) -> Job | None:
        """
        Remove one edge to *dependency*, which is over.

        Returns:
            The job it led from, that of the least number first; None if no edge was left.
        """
        dependents = self._waiting.get(dependency.id)
        if dependents is None:
            return None
        job = dependents.pop(min(dependents))
        if not dependents:
            del self._waiting[dependency.id]
        job.blocked.discard(dependency.id)
        return job

    def drop(self, job: Job) -> None:
        """Remove the edges of a job that waits no more."""
        for dependency in job.blocked:
            dependents = self._waiting[dependency]
            del dependents[job.number]
            if not dependents:
                del self._waiting[dependency]
        job.blocked.clear()

    def __len__(self) -> int:
        return len(self._waiting)
