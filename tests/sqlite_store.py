"""Stores that tests open on one file, one after the other, and short forms of their operations."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from queuehint import FakeClock
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.testing.driver import job
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.record import JobRecord
from tests.folders import quick_folder


def leave_journal(store: Any) -> None:
    """Have the file of a store closed without a snapshot, as if its process had died."""
    if store._compaction is not None:
        store._compaction.stop()
        store._compaction.is_changed = False


class Shelf:
    """A file, a clock, and the stores that were opened on it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.clock = FakeClock()
        self.stores: list[SqliteBackend] = []

    def open(self, path: Path | None = None, **options: Any) -> SqliteBackend:
        address = Address(path=path or self.path, durability=options.pop("durability", "process"))
        store = SqliteBackend(address, BackendOptions(clock=self.clock, **options))
        self.stores.append(store)
        return store

    def reopen(self, *, by_another: bool = False, **options: Any) -> SqliteBackend:
        """Close the last store and open another one, as the same process or as the next."""
        self.stores[-1].close_sync()
        if by_another:
            with sqlite3.connect(self.path) as db:
                db.execute("UPDATE meta SET value = '1-before' WHERE name = 'owner'")
            db.close()
        return self.open(**options)

    def crash(self) -> None:
        """Lose all that is not in the file, as a killed process does."""
        store = self.stores[-1]
        assert store._journal is not None
        leave_journal(store)
        store.close_sync()

    def close(self) -> None:
        for store in self.stores:
            store.close_sync()

    def count(self, what: str) -> int:
        db = sqlite3.connect(self.path)
        try:
            found: int = db.execute(f"SELECT count(*) FROM {what}").fetchone()[0]
        finally:
            db.close()
        return found


def make_shelf() -> Iterator[Shelf]:
    """Make a shelf for a test and close its stores at the end: test modules make it their fixture."""
    with quick_folder() as folder, closing(Shelf(folder)) as shelf:
        yield shelf


def enqueue(store: JournalBackend, *ids: str, **fields: Any) -> None:
    store.call_sync(op.Enqueue(tuple(job(job_id, ["p"], **fields) for job_id in ids)))


def free(store: JournalBackend, *ids: str, **fields: Any) -> None:
    """Enqueue jobs that wait for none, each by itself."""
    for job_id in ids:
        store.call_sync(op.Enqueue((job(job_id, [job_id], **fields),)))


def claiming(limit: int = 1, worker: str = "w", **fields: Any) -> op.Exchange:
    return op.Exchange(worker, limit=limit, **fields)


def claim(store: JournalBackend, limit: int = 1, **fields: Any) -> list[Grant]:
    return list(store.call_sync(op.Exchange("w", limit=limit, **fields)).grants)


def finish(store: JournalBackend, grant: Grant) -> op.Verdict:
    outcome = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
    return store.call_sync(op.Exchange("w", (outcome,))).verdicts[0]


def record(store: JournalBackend, job_id: str) -> JobRecord:
    found = store.call_sync(op.Get((job_id,))).records[0]
    assert found is not None
    return found


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        entry.__dict__["event"] for entry in caplog.records if entry.name in {"queuehint.sqlite", "queuehint.journal"}
    ]
