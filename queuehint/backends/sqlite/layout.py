"""
The tables of a journal in a file, as text.

A file of its own has ``meta``, ``journal`` and ``snapshot``; its application id and ``user_version`` are ours. In the
file of an application each table has a prefix, the number of the layout is a row of ``meta``, and there is one table
more, ``inbox``: what the application has written in its own transactions. Its rows are numbered in the order of their
commits, since SQLite has one writer at a time, and no number is used again, or one row could be taken for another.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from queuehint.backends.sqlite.statements import Statements
from queuehint.errors import BackendDeniedError

APPLICATION_ID: Final = 0x71756875
"""The application id of our files: "quhu", at a fixed place of the first page."""
TABLES: Final = 2
"""The number of the layout of these tables."""
PREFIX: Final = "queuehint_"
"""Of the names of our tables in the file of an application."""
OLDEST: Final = (3, 35)
"""The oldest SQLite that knows the statements about the inbox."""

_MAKE: Final = """\
CREATE TABLE {prefix}meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE {prefix}journal (number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, operations BLOB NOT NULL);
CREATE TABLE {prefix}snapshot (part INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""
_MAKE_INBOX: Final = """\
CREATE TABLE {prefix}inbox (number INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL);
INSERT INTO {prefix}meta VALUES ('layout', '{number}');
"""


def prefix_of(*, shared: bool) -> str:
    """Return how the names of the tables begin."""
    return PREFIX if shared else ""


def statements(*, shared: bool) -> list[str]:
    """Return the statements that make the tables where there are none."""
    text = _MAKE + (_MAKE_INBOX if shared else "")
    return text.format(prefix=prefix_of(shared=shared), number=TABLES).splitlines()


def reversal() -> list[str]:
    """Return the statements that remove our tables from the file of an application, with all jobs."""
    return [f"DROP TABLE {PREFIX}{name};" for name in ("inbox", "snapshot", "journal", "meta")]


def is_made(db: sqlite3.Connection, path: object, *, shared: bool) -> bool:
    """
    Return whether our tables are in a file; nothing is written.

    Raises:
        BackendDeniedError: it is one of another application, or of the other kind, or of another release.
        sqlite3.Error: it cannot be read.
    """
    application = db.execute("PRAGMA application_id").fetchone()[0]
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if shared and application == APPLICATION_ID:
        raise BackendDeniedError(f"{path} has jobs only, and is no database of an application: leave out shared=yes")
    if not shared and names and application != APPLICATION_ID:
        raise BackendDeniedError(
            f"{path} is a database of another application; with shared=yes jobs are kept beside its tables"
        )
    if not (f"{PREFIX}meta" in names if shared else names):
        return False
    number = Statements(PREFIX).layout if shared else "PRAGMA user_version"
    (version,) = db.execute(number).fetchone() or (0,)
    if version != TABLES:
        raise BackendDeniedError(
            f"{path} has tables of layout {version}, and this release of queuehint knows {TABLES}: "
            f"use the release that wrote it{', or a newer one' if version > TABLES else ' to finish its jobs'}"
        )
    return True
