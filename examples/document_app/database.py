"""The documents, in a SQLite database; the web application and each worker open it separately."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

PATH = Path(os.environ.get("DOCUMENTS_DB", "documents.db"))

SCHEMA = """
CREATE TABLE IF NOT EXISTS sections (doc TEXT, name TEXT, text TEXT NOT NULL, PRIMARY KEY (doc, name));
CREATE TABLE IF NOT EXISTS published (doc TEXT PRIMARY KEY, address TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS versions (doc TEXT PRIMARY KEY, number INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS applied (job TEXT PRIMARY KEY, length INTEGER NOT NULL);
"""


class Database:
    """
    One connection, which several threads may use: plain handlers run in threads.

    Args:
        path: the file; it is made if it does not exist.
    """

    def __init__(self, path: Path = PATH) -> None:
        self._connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def edit(self, job_id: str, doc: str, section: str, insert: str, at: int | None, delete: int) -> int:
        """
        Edit a section once, however often the job is run, and return the new length of the section.

        A job is run again if its worker dies before the outcome is recorded. So what the job has done is written in
        the transaction that does it, and read first.
        """
        with self._transaction() as connection:
            done = connection.execute("SELECT length FROM applied WHERE job = ?", (job_id,)).fetchone()
            if done is not None:
                return int(done[0])
            text = self._sections(doc).get(section, "")
            at = len(text) if at is None else at
            text = text[:at] + insert + text[at + delete :]
            connection.execute("INSERT OR REPLACE INTO sections VALUES (?, ?, ?)", (doc, section, text))
            connection.execute("INSERT INTO applied VALUES (?, ?)", (job_id, len(text)))
            return len(text)

    def note_published(self, doc: str, address: str) -> None:
        """Remember where a document was published."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO published VALUES (?, ?)", (doc, address))

    def keep_version(self, doc: str) -> int:
        """Keep a document as it is now, unless the last version is just that; return the number of the last version."""
        with self._transaction() as connection:
            sections = self._sections(doc)
            text = "\n\n".join(sections.values())
            last = connection.execute("SELECT number, text FROM versions WHERE doc = ?", (doc,)).fetchone() or (0, None)
            if last[1] == text or not sections:
                return int(last[0])
            connection.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", (doc, last[0] + 1, text))
            return int(last[0]) + 1

    def erase(self, doc: str) -> None:
        """Delete all there is of a document; nothing if that is done."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM sections WHERE doc = ?", (doc,))
            connection.execute("DELETE FROM published WHERE doc = ?", (doc,))
            connection.execute("DELETE FROM versions WHERE doc = ?", (doc,))

    def sections(self, doc: str) -> dict[str, str]:
        """Return the texts of a document's sections by their names."""
        with self._lock:
            return self._sections(doc)

    def published(self, doc: str) -> str | None:
        """Return where a document was published last."""
        with self._lock:
            found = self._connection.execute("SELECT address FROM published WHERE doc = ?", (doc,)).fetchone()
        return None if found is None else str(found[0])

    def _sections(self, doc: str) -> dict[str, str]:
        return dict(self._connection.execute("SELECT name, text FROM sections WHERE doc = ? ORDER BY name", (doc,)))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Begin by taking the right to write, and commit at the end; an exception rolls back."""
        with self._lock, self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
