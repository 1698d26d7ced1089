"""Examination of a SQLite store: integrity of the file, gates, and cycles of jobs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from queuehint.backends.report import CIRCLES_MAX, MORE_CIRCLES, Finding, Report, circle_finding
from queuehint.core.jobs.invariants import misplaced
from queuehint.core.structures.edges import circles
from queuehint.operations import CountJobs
from queuehint.values.hint import queue_key

if TYPE_CHECKING:
    from pathlib import Path

    from queuehint.backends.sqlite.backend import SqliteBackend
    from queuehint.core.engine import Engine
    from queuehint.core.structures.trie import Walk

DAMAGE_MAX: Final = 20
"""The most damaged places of a file, and jobs at wrong gates, that one examination reports."""
_LINE_ADVANCES: Final = "gates: a line is about to advance; look again when work goes on"


def diagnose(backend: SqliteBackend) -> Report:
    """
    Open a file, which reads its snapshot and journal, and check its pages, its gates and that no jobs wait in a circle.

    There is nothing to repair: what follows from the jobs is made anew when it is opened, a damaged file is refused,
    and which of the jobs that wait for one another is to be canceled is for a person to say; so it is of a job that
    stands at another gate than it should, for jobs may have run out of order.

    Raises:
        BackendError: the file cannot be used, or is damaged.
    """
    stats = backend.call_sync(CountJobs())
    path = str(backend.address.path)
    found = list(islice(circles(backend.examine(_open_edges)), CIRCLES_MAX + 1))
    gates = backend.examine(partial(_gates, path))
    unchecked = [] if gates is not None else [_LINE_ADVANCES]
    if len(found) > CIRCLES_MAX:
        unchecked.append(MORE_CIRCLES)
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
        findings=(*damage, *(gates or ()), *[circle_finding(path, circle) for circle in found[:CIRCLES_MAX]]),
        unchecked=tuple(unchecked),
    )


def _open_edges(engine: Engine) -> dict[str, list[str]]:
    """Return the jobs that each job waits for along open edges; O(jobs)."""
    jobs = engine.table.jobs.values()
    return {job.id: list(job.blocked) for job in jobs if not job.is_over and job.blocked}


def _gates(path: str, engine: Engine) -> list[Finding] | None:
    """Return the first jobs that stand at another gate than placing all anew puts them at; None at a cut."""
    found = misplaced(engine.table)
    if found is None:
        return None
    return [
        Finding(
            kind="gate",
            where=path,
            what=f"job {job.id} {_standing(walk)}, but {_standing(anew)} if all jobs are placed anew: cancel it",
            job_id=job.id,
        )
        for job, walk, anew in found[:DAMAGE_MAX]
    ]


def _standing(walk: Walk) -> str:
    key = queue_key(walk.path[: walk.depth])
    return f"has {key}" if walk.granted else f"waits at {key}"


def _damage(path: Path) -> list[str]:
    """Return problems of the pages of a file; O(file)."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = [str(text) for (text,) in db.execute(f"PRAGMA quick_check({DAMAGE_MAX})")]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if found == ["ok"] else found
