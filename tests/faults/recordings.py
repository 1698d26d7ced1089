"""
Real recordings as jobs for worker processes that are killed: documents keystroke by keystroke, a git history.

The texts and the tree lie in SQLite, as a resource of the application's own: a handler that runs again finds what it
did, and one that runs out of order finds what it should not.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from examples import replay_history
from queuehint import Job, Scheduler

FILE, NAMESPACE = "RECORDINGS_FILE", "RECORDINGS_NAMESPACE"

Patch = list[Any]


class OutOfOrderError(Exception):
    """A job did not find what the jobs before it should have left."""


@contextmanager
def resource(file: str | None = None) -> Iterator[sqlite3.Connection]:
    """Open the application's own store for one transaction."""
    with closing(sqlite3.connect(file or os.environ[FILE], timeout=30, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")


def prepare(file: Path, texts: Mapping[str, str], tree: Mapping[str, str]) -> None:
    """Put down the texts and the tree as they are before the first job."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE texts (name TEXT PRIMARY KEY, next INTEGER, text TEXT)")
        connection.execute("CREATE TABLE files (path TEXT PRIMARY KEY, state TEXT)")
        connection.execute("CREATE TABLE checks (number INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO texts VALUES (?, 0, ?)", texts.items())
        connection.executemany("INSERT INTO files VALUES (?, ?)", tree.items())
        connection.commit()


def digest(tree: Mapping[str, str]) -> str:
    """Return one word for a whole tree."""
    return hashlib.sha256("\n".join(f"{path} {tree[path]}" for path in sorted(tree)).encode()).hexdigest()


def make(url: str, namespace: str) -> tuple[Scheduler, Job[..., Any], Job[..., Any], Job[..., Any]]:
    """Return a scheduler and its jobs: edit a text, change a file, check the whole tree."""
    sched = Scheduler(url, namespace=namespace, lease=1)

    @sched.job(queue_hint=["texts", "{document}"], max_attempts=1, max_losses=1000)
    def edit(document: str, index: int, patches: list[Patch]) -> None:
        with resource() as store:
            following, text = store.execute("SELECT next, text FROM texts WHERE name = ?", (document,)).fetchone()
            if index < following:
                return  # done before, by a worker that was killed before it could say so
            if index > following:
                raise OutOfOrderError(f"{document}: edit {index} runs before edit {following}")
            for position, deleted, inserted in patches:
                text = text[:position] + inserted + text[position + deleted :]
            store.execute("UPDATE texts SET next = ?, text = ? WHERE name = ?", (index + 1, text, document))

    def place(path: str, **_: object) -> list[str]:
        return replay_history.place("tree", path)

    @sched.job(queue_hint=place, max_attempts=1, max_losses=1000)
    def change(path: str, before: str | None, after: str | None) -> None:
        with resource() as store:
            row = store.execute("SELECT state FROM files WHERE path = ?", (path,)).fetchone()
            found = row[0] if row else None
            if found == after:
                return
            if found != before:
                raise OutOfOrderError(f"{path} is {found}, the change before left {before}")
            if after is None:
                store.execute("DELETE FROM files WHERE path = ?", (path,))
            else:
                store.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (path, after))

    @sched.job(queue_hint=["tree"], max_attempts=1, max_losses=1000)
    def check(number: int, expected: str) -> None:
        with resource() as store:
            if digest(dict(store.execute("SELECT path, state FROM files"))) != expected:
                raise OutOfOrderError(f"the tree is not that of commit {number}")
            store.execute("INSERT OR IGNORE INTO checks VALUES (?)", (number,))

    return sched, edit, change, check


if NAMESPACE in os.environ:
    sched = make(os.environ["QUEUEHINT_URL"], os.environ[NAMESPACE])[0]
