"""Jobs by the flow they belong to, in order of number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queuehint.core.structures.job import Job


class FlowIndex:
    """The jobs of each flow whose records are kept, hidden ones too; a job without a flow is in none."""

    def __init__(self) -> None:
        self._jobs: dict[str, SortedDict[int, Job]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Index a new job."""
        assert job.spec.flow is not None
        self._jobs.setdefault(job.spec.flow, SortedDict())[job.number] = job

    def remove(self, job: Job) -> None:
        """Forget a job whose record is dropped."""
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
        """Return how many jobs of a flow are known; O(jobs)."""
        return sum(not job.is_hidden for job in self._jobs.get(flow, {}).values())

    def check(self, jobs: Mapping[str, Job]) -> None:
        """Assert that every kept job is in its flow and nowhere else; for tests."""
        kept = {job.id for job in jobs.values() if job.spec.flow is not None and not job.gone and not job.is_start}
        indexed = {job.id for of_flow in self._jobs.values() for job in of_flow.values()}
        assert kept == indexed
        assert all(self._jobs.values())
