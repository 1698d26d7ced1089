"""Whether the jobs of a file can all go on: no I/O but that of opening it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from queuehint.backends.report import CIRCLES_MAX, MORE_CIRCLES, Report, circle_finding
from queuehint.core.structures.edges import circles
from queuehint.operations import CountJobs

if TYPE_CHECKING:
    from queuehint.backends.sqlite.backend import SqliteBackend


def diagnose(backend: SqliteBackend) -> Report:
    """
    Open a file, which looks through it, and see that none of its jobs wait for one another.

    Raises:
        BackendError: the file cannot be used, or is damaged.
    """
    stats = backend.call_sync(CountJobs())
    found = list(islice(circles(backend.open_edges()), CIRCLES_MAX + 1))
    path = str(backend.address.path)
    return Report(
        store=f"sqlite {path}",
        namespace=backend.namespace,
        facts={"jobs": sum(stats.states.values()), "unfinished": stats.unfinished},
        findings=tuple([circle_finding(path, circle) for circle in found[:CIRCLES_MAX]]),
        unchecked=(MORE_CIRCLES,) if len(found) > CIRCLES_MAX else (),
    )
