"""The jobs with which a flow ends, and the jobs that were not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queuehint.client.stuck import read_records
from queuehint.errors import CorruptStateError, shown
from queuehint.values.record import JobRecord, JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.backends.steps import Steps

READ_OVER_AT_ONCE: Final = 250


def unfinished(job_ids: Iterable[str], read: dict[str, JobRecord]) -> list[str]:
    """Return the jobs that were not FINISHED when read. A failed job may have been redriven since."""
    return [each for each in job_ids if each not in read or read[each].state is not JobState.FINISHED]


def read_over(job_ids: Iterable[str], read: dict[str, JobRecord]) -> Steps[None]:
    """Read the jobs that were not FINISHED when read. Add the records of ended jobs to *read*."""
    left = unfinished(job_ids, read)
    for begin in range(0, len(left), READ_OVER_AT_ONCE):
        records = yield from read_records(left[begin : begin + READ_OVER_AT_ONCE])
        read.update({record.id: record for record in records if record.state.is_over})


def ends_of(records: Sequence[JobRecord]) -> list[JobRecord]:
    """
    Return the jobs on which no other job of the flow depends.

    Raises:
        CorruptStateError: the spec of one of them, which names those it depends on, cannot be read by this release.
    """
    for record in records:
        if record.problem is not None:
            raise CorruptStateError(f"job {shown(record.id)}: {record.problem}")
    needed = {edge.id for record in records for edge in record.spec.depends_on}
    return [record for record in records if record.id not in needed]


def was_not_needed(record: JobRecord) -> bool:
    """Return whether a job was to run only after the failure of a job that has finished."""
    # Here: the engine is imported by none but the stores that have it.
    from queuehint.core.structures.edges import cause_of

    return record.state is JobState.CANCELED and any(
        edge.when == "failure" and record.cause == cause_of(edge.id, JobState.FINISHED)
        for edge in record.spec.depends_on
    )
