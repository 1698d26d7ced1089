"""
Closed paths: their refusals, and the last job of each.

`Close` closes a path to new jobs. `Enqueue.closing` closes it behind a last job: then no other job at or below it takes
a place either. A SCHEDULED or DEFERRED job is canceled when it would take its place, and a redrive is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.leftovers import CancelSweep, DiscardSweep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queuehint.core.jobs.table import JobTable
    from queuehint.operations import Closing
    from queuehint.values.hint import Path
    from queuehint.values.spec import JobSpec


def cause_of_closing(last: str) -> str:
    """Return the cause of a cancellation at a path closed with another job as its last."""
    return f"closed with {last} as the last job"


def closed_above(closed: Mapping[Path, str | None], spec: JobSpec, closing: Closing | None = None) -> Path | None:
    """Return a closed path at or above a claim of a job, other than the job's own closing; None if all are open."""
    for claim in spec.claims:
        for depth in range(len(claim.path) + 1):
            path = claim.path[:depth]
            if path in closed and (closing is None or path[: len(closing.path)] != closing.path):
                return path
    return None


def last_above(closed: Mapping[Path, str | None], spec: JobSpec) -> str | None:
    """Return the last job of a path at or above a claim of a job; None without one, or for the last job itself."""
    found = None
    for claim in spec.claims:
        for depth in range(len(claim.path) + 1):
            last = closed.get(claim.path[:depth])
            if last == spec.id:
                return None
            found = found or last
    return found


def close(table: JobTable, closing: Closing, last: str) -> None:
    """Close a path with the next job as its last, and start the cancellations of its closing."""
    table.closed[closing.path] = last
    if closing.waiting == "cancel":
        # As a cancellation it takes a number itself: the last job is not covered.
        table.last_number += 1
        cause = cause_of_closing(last)
        table.leftovers.append(CancelSweep((closing.path,), table.last_number, cause, table.last_seq))
        table.leftovers.append(DiscardSweep(closing.path, table.last_number))
