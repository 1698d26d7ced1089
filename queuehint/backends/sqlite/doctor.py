"""Examination of a SQLite store, and repair: integrity of the file, gates, cycles of jobs, waits for signals."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import attrs

from queuehint.backends.journal.doctor import DAMAGE_MAX, report
from queuehint.backends.report import Finding, Report

if TYPE_CHECKING:
    from pathlib import Path

    from queuehint.backends.sqlite.backend import SqliteBackend


def diagnose(backend: SqliteBackend, *, fix: bool = False) -> Report:
    """
    Check the pages of a file, its gates, that no jobs wait in a cycle, and waits for signals.

    The file is opened, which reads its snapshot and journal; if another process leads, that one is asked. A damaged
    file is refused, and which of the jobs that wait for one another is to be canceled is for a person to say.

    Args:
        fix: replace gates that are wrong by those of all jobs placed anew; cancel the waits for signals that no job
            waits for, and the jobs whose waits are lost.

    Raises:
        BackendError: the file cannot be used, or is damaged.
    """
    found = report(backend, "the pages of the file, its snapshot and journal", fix=fix)
    damage = [Finding(kind="file", where=backend.name, what=what) for what in _damage(backend.address.path)]
    return attrs.evolve(found, findings=(*damage, *found.findings))


def _damage(path: Path) -> list[str]:
    """Return problems of the pages of a file; O(file)."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = [str(text) for (text,) in db.execute(f"PRAGMA quick_check({DAMAGE_MAX})")]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if found == ["ok"] else found
