"""Examination of a SQLite store: integrity of the file, and cycles of jobs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Final

from queuehint.backends.report import CIRCLES_MAX, MORE_CIRCLES, Finding, Report, circle_finding
from queuehint.core.structures.edges import circles
from queuehint.operations import CountJobs

if TYPE_CHECKING:
    from pathlib import Path

    from queuehint.backends.sqlite.backend import SqliteBackend

DAMAGE_MAX: Final = 20
"""The most damaged places of a file that one examination reports."""


def diagnose(backend: SqliteBackend) -> Report:
    """
    Open a file, which reads its snapshot and journal, check its pages, and see that no jobs wait for one another.

    There is nothing to repair: what follows from the jobs is made anew when it is opened, a damaged file is refused,
    and which of the jobs that wait for one another is to be canceled is for a person to say.

    Raises:
        BackendError: the file cannot be used, or is damaged.
    """
    stats = backend.call_sync(CountJobs())
    found = list(islice(circles(backend.open_edges()), CIRCLES_MAX + 1))
    path = str(backend.address.path)
    jobs = sum(stats.states.values())
    damage = [Finding(kind="file", where=path, what=what) for what in _damage(backend.address.path)]
    return Report(
        store=f"sqlite {path}",
        namespace=backend.namespace,
        facts={
            "jobs": jobs,
            "unfinished": stats.unfinished,
            "looked_at": f"the pages of the file, its snapshot and journal, {jobs} jobs and what they wait for",
        },
        findings=(*damage, *[circle_finding(path, circle) for circle in found[:CIRCLES_MAX]]),
        unchecked=(MORE_CIRCLES,) if len(found) > CIRCLES_MAX else (),
    )


def _damage(path: Path) -> list[str]:
    """Return problems of the pages of a file; O(file)."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = [str(text) for (text,) in db.execute(f"PRAGMA quick_check({DAMAGE_MAX})")]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if found == ["ok"] else found
