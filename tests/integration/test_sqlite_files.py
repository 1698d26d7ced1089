"""SQLite backend: foreign, torn and damaged files, full and failing disks."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from queuehint import JobState
from queuehint import operations as op
from queuehint.backends.base import release
from queuehint.backends.journal import leading as leading_module
from queuehint.backends.journal import recovery
from queuehint.backends.journal.snapshots import compaction, snapshot
from queuehint.backends.journal.writer import Ticket
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.file import JournalFile
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
    OutcomeUnknownError,
)
from queuehint.operations.wire import encode
from queuehint.testing.driver import job
from tests.sqlite_store import Shelf, claim, enqueue, events, finish, make_shelf, record
from tests.support import LIMIT_S

QUEUED, STARTED, FINISHED, FAILED = JobState.QUEUED, JobState.STARTED, JobState.FINISHED, JobState.FAILED

shelf = pytest.fixture(make_shelf)


# --- foreign and damaged files ---------------------------------------------------------------------------------------


def file_of(store: SqliteBackend) -> JournalFile:
    assert isinstance(store._journal, JournalFile)
    return store._journal


def test_foreign_file_is_refused_and_left_alone(shelf: Shelf) -> None:
    shelf.path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(CorruptStateError, match="is damaged, or no database"):
        shelf.open().call_sync(op.Peek())
    assert shelf.path.read_bytes() == b"dear diary, " * 1000


def test_a_database_of_another_application_is_refused_and_left_alone(shelf: Shelf) -> None:
    db = sqlite3.connect(shelf.path)
    db.execute("CREATE TABLE diary (day)")
    db.commit()
    before = shelf.path.read_bytes()
    with pytest.raises(BackendDeniedError, match="is a database of another application"):
        shelf.open().call_sync(op.Peek())
    db.close()
    assert shelf.path.read_bytes() == before


def test_a_file_of_a_newer_release_is_refused_by_number(shelf: Shelf) -> None:
    enqueue(shelf.open(), "a")
    shelf.stores[-1].close_sync()
    db = sqlite3.connect(shelf.path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(BackendDeniedError, match="has tables of layout 99, and this release of queuehint knows 2"):
        shelf.open().call_sync(op.Peek())


def test_a_snapshot_of_another_layout_is_refused_by_number(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SCHEMA", 77)
    enqueue(shelf.open(), "a")
    shelf.stores[-1].close_sync()
    monkeypatch.setattr(compaction, "SCHEMA", snapshot.SCHEMA)
    with pytest.raises(BackendDeniedError, match="has a snapshot of layout 77") as caught:
        shelf.open().call_sync(op.Peek())
    assert f"have release {release()} finish its jobs" in str(caught.value)


def test_a_journal_of_another_release_is_replayed_and_said(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery, "release", lambda: "0.0.1")
    enqueue(shelf.open(), "a")
    shelf.crash()
    monkeypatch.undo()
    assert record(shelf.reopen(), "a").state is QUEUED
    assert events(caplog) == ["journal.other_release"]
    shelf.crash()
    assert (shelf.count("journal"), shelf.count("snapshot")) == (0, 3)
    assert record(shelf.reopen(), "a").state is QUEUED
    assert events(caplog) == ["journal.other_release"]


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.9])
def test_truncated_file_is_refused_or_a_prefix_of_history(shelf: Shelf, share: float) -> None:
    store = shelf.open()
    for n in range(200):
        enqueue(store, f"a{n}", arguments=b"x" * 300)
    store.close_sync()
    whole = shelf.path.read_bytes()
    shelf.path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises((CorruptStateError, BackendUnavailableError)):
        shelf.open().call_sync(op.Peek())


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
def test_file_moved_from_its_name_is_refused_and_logged(
    shelf: Shelf, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    store = shelf.open()
    enqueue(store, "before")
    kept = shelf.path.with_name("kept")
    if what == "removed":
        shelf.path.unlink()
    elif what == "moved":
        shelf.path.rename(kept)
    else:
        shutil.copy(shelf.path, kept)
        kept.replace(shelf.path)
    for name in ("after", "again"):
        with pytest.raises(BackendUnavailableError, match="removed, moved or replaced; nothing was changed"):
            enqueue(store, name)
    assert store.call_sync(op.Get(("after",))).records == (None,)
    if what == "moved":
        kept.rename(shelf.path)
        enqueue(store, "back")
        return
    store.close_sync()
    assert [getattr(record, "event", "") for record in caplog.records if record.levelname == "ERROR"] == [
        "sqlite.file_gone"
    ]


def test_file_missing_at_close_is_logged(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    store = shelf.open()
    enqueue(store, "a")
    shelf.path.unlink()
    store.close_sync()
    assert "sqlite.file_gone" in [getattr(record, "event", "") for record in caplog.records]


@pytest.mark.skipif(os.name == "nt", reason="there are no such modes")
def test_all_files_of_a_store_are_for_their_owner_only(shelf: Shelf) -> None:
    before = os.umask(0)
    try:
        store = shelf.open()
        enqueue(store, "a")
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in shelf.path.parent.iterdir()}
    finally:
        os.umask(before)
    assert {"jobs.db", "jobs.db-wal", "jobs.db.lock"} <= modes.keys()
    assert set(modes.values()) == {"0o600"}


@pytest.mark.parametrize("table", ["journal", "snapshot"])
def test_missing_rows_are_noticed(shelf: Shelf, table: str) -> None:
    store = shelf.open()
    enqueue(store, "a")
    enqueue(store, "b")
    if table == "journal":
        shelf.crash()
    store.close_sync()
    db = sqlite3.connect(shelf.path)
    db.execute("DELETE FROM journal WHERE number = 2" if table == "journal" else "DELETE FROM snapshot WHERE part = 1")
    db.commit()
    db.close()
    with pytest.raises(CorruptStateError, match="are missing"):
        shelf.open().call_sync(op.Peek())


@pytest.mark.parametrize("change", ["operations = '{}'", "operations = x'ff'", "operations = NULL"])
def test_a_damaged_row_is_noticed(shelf: Shelf, change: str) -> None:
    enqueue(shelf.open(), "a")
    shelf.crash()
    db = sqlite3.connect(shelf.path)
    try:
        db.execute(f"UPDATE journal SET {change} WHERE number = 2")
    except sqlite3.IntegrityError:
        return
    finally:
        db.commit()
        db.close()
    with pytest.raises(CorruptStateError):
        shelf.open().call_sync(op.Peek())


def test_truncated_log_loses_only_its_last_rows(shelf: Shelf) -> None:
    store = shelf.open()
    counts = []
    log = shelf.path.with_name("jobs.db-wal")
    saved = shelf.path.with_name("saved")
    saved.mkdir()
    for n in range(30):
        enqueue(store, f"a{n}")
        counts.append(log.stat().st_size)
    whole, database = log.read_bytes(), shelf.path.read_bytes()
    store.close_sync()
    for n in (0, 7, 29):
        for cut in (counts[n], counts[n] + 13):
            path = saved / f"{n}-{cut}.db"
            path.write_bytes(database)
            path.with_name(path.name + "-wal").write_bytes(whole[:cut])
            other = SqliteBackend(Address(path=path))
            states = other.call_sync(op.CountJobs()).states
            assert states[QUEUED] == n + 1
            other.close_sync()


# --- full disks, missing rights, failing disks -----------------------------------------------------------------------


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = SqliteBackend(Address(path=tmp_path / "nowhere" / "jobs.db"))
    with pytest.raises(BackendUnavailableError, match=r"nowhere/jobs\.db cannot be opened"):
        store.call_sync(op.Peek())
    store.close_sync()


def test_a_directory_in_place_of_the_file_is_refused(shelf: Shelf) -> None:
    shelf.path.mkdir()
    with pytest.raises(BackendError, match=r"jobs\.db"):
        shelf.open().call_sync(op.Peek())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_must_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    store = SqliteBackend(Address(path=tmp_path / "jobs.db"))
    with pytest.raises(BackendDeniedError, match=r"jobs\.db may not be opened"):
        store.call_sync(op.Peek())
    store.close_sync()


def test_unopenable_file_can_be_opened_later(tmp_path: Path) -> None:
    store = SqliteBackend(Address(path=tmp_path / "later" / "jobs.db"))
    with pytest.raises(BackendUnavailableError):
        enqueue(store, "a")
    (tmp_path / "later").mkdir()
    enqueue(store, "a")
    store.close_sync()


def fill(store: SqliteBackend) -> None:
    """Let the database have no further page."""
    store.call_sync(op.Peek())
    db = file_of(store)._db
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")


def make_room(store: SqliteBackend) -> None:
    file_of(store)._db.execute("PRAGMA max_page_count = 1073741823")


def test_a_full_disk_refuses_and_changes_nothing(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "first")
    fill(store)
    before = store.engine.table.last_number
    with pytest.raises(BackendFullError, match="there is no room left on the disk; nothing was changed"):
        enqueue(store, *[f"a{n}" for n in range(200)], arguments=b"x" * 1000)
    assert store.engine.table.last_number == before
    assert store.call_sync(op.CountJobs()).states[QUEUED] == 1
    make_room(store)
    enqueue(store, "last")
    shelf.crash()
    assert shelf.reopen().call_sync(op.CountJobs()).states[QUEUED] == 2


def test_no_room_for_a_snapshot_leaves_the_journal(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    store = shelf.open()
    enqueue(store, *[f"a{n}" for n in range(50)])
    file_of(store)._db.execute("CREATE TRIGGER full BEFORE INSERT ON snapshot BEGIN SELECT RAISE(FAIL, 'full'); END")
    store.close_sync()
    assert events(caplog) == ["journal.snapshot_failed"]
    db = sqlite3.connect(shelf.path)
    db.execute("DROP TRIGGER full")
    db.close()
    assert shelf.open().call_sync(op.CountJobs()).states[QUEUED] == 50


@pytest.mark.slow
def test_file_that_may_not_grow_refuses_and_recovers(shelf: Shelf) -> None:
    script = (
        "import resource, signal, sys; from queuehint import *; from queuehint.errors import *\n"
        "from queuehint.operations import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "sched = Scheduler(sys.argv[1]); call = sched.backend.call_sync\n"
        "acked = 0\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "call(Draw(1)); resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))\n"
        "try:\n"
        "    while True: call(Enqueue((JobSpec(id=f'a{acked}', task='t', arguments=b'x' * 5000),))); acked += 1\n"
        "except BackendError as error: print(type(error).__name__)\n"
        "assert call(CountJobs()).states['QUEUED'] == acked\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "call(Enqueue((JobSpec(id='last', task='t'),))); print(acked + 1, flush=True)\n"
        "import os; os.kill(os.getpid(), 9)"
    )
    url = f"sqlite:///{shelf.path}"
    ended = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, check=False)
    error, acked = ended.stdout.split()
    assert error in {"BackendFullError", "BackendUnavailableError", "OutcomeUnknownError"}
    assert shelf.open().call_sync(op.CountJobs()).states[QUEUED] == int(acked)
    assert resource.RLIM_INFINITY


class Failing:
    """A connection whose next COMMIT fails, before or after it was done."""

    def __init__(self, db: Any, *, is_done: bool) -> None:
        self.db = db
        self.is_done = is_done
        self.is_armed = True

    def execute(self, statement: str, *more: Any) -> Any:
        if statement == "COMMIT" and self.is_armed:
            self.is_armed = False
            if self.is_done:
                self.db.execute(statement)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self.db.execute(statement, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)


@pytest.mark.parametrize("is_done", [False, True])
def test_disk_failure_leaves_the_outcome_to_the_file(shelf: Shelf, is_done: bool) -> None:
    store = shelf.open()
    enqueue(store, "a")
    file_of(store)._db = Failing(file_of(store)._db, is_done=is_done)  # type: ignore[assignment]
    with pytest.raises(OutcomeUnknownError, match="the disk failed"):
        enqueue(store, "b")
    assert (store.call_sync(op.Get(("b",))).records[0] is not None) == is_done
    enqueue(store, "b")
    shelf.crash()
    again = shelf.reopen()
    assert [record(again, job_id).number for job_id in "ab"] == [1, 2]


@pytest.mark.parametrize("shell", ["sync", "async"])
def test_operation_with_an_unknown_outcome_is_answered_when_repeated(shelf: Shelf, shell: str) -> None:
    store = shelf.open()
    store.call_sync(op.Peek())
    file_of(store)._db = Failing(file_of(store)._db, is_done=False)  # type: ignore[assignment]
    draw = op.Draw(1)

    def call() -> op.Drawn:
        return store.call_sync(draw) if shell == "sync" else asyncio.run(store.call(draw))

    with pytest.raises(OutcomeUnknownError):
        call()
    assert call().first == 1


def test_failed_engine_is_discarded(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = shelf.open()
    enqueue(store, "a")
    apply = store.engine.apply

    def break_down(operation: op.Operation[Any], now_ms: int) -> Any:
        apply(operation, now_ms)
        raise MemoryError

    monkeypatch.setattr(store.engine, "apply", break_down)
    with pytest.raises(MemoryError):
        enqueue(store, "b")
    monkeypatch.undo()
    assert record(store, "b").number == 2
    store.engine.check()


def test_operations_beside_a_failed_one_are_unknown_and_stored(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.open()
    store.call_sync(op.Peek())
    apply = store.engine.apply

    def break_down(operation: op.Operation[Any], now_ms: int) -> Any:
        reply = apply(operation, now_ms)
        if operation == op.Cancel(("b",)):
            raise MemoryError
        return reply

    monkeypatch.setattr(store.engine, "apply", break_down)
    asked: list[op.Operation[Any]] = [
        op.Enqueue((job("a"),)),
        op.Cancel(("b",)),
        op.Enqueue((job("c"),)),
        op.Get(("a",)),
    ]

    are_asked = threading.Event()

    async def together() -> list[Any]:
        calls = asyncio.gather(*map(store.call, asked), return_exceptions=True)
        await asyncio.sleep(0)
        are_asked.set()
        return await calls

    with store._lock:  # what comes meanwhile is written together
        store._queue.put(Ticket(op.Tick()))
        caller = threading.Thread(target=lambda: told.extend(asyncio.run(together())))
        told: list[Any] = []
        asked.pop()
        caller.start()
        assert are_asked.wait(LIMIT_S)
    caller.join(60)
    assert [type(each) for each in told] == [op.Enqueued, MemoryError, OutcomeUnknownError]
    assert [record(store, job_id).number for job_id in "ac"] == [1, 2]
    assert not store.call_sync(asked[2]).jobs[0].created


def test_unwritable_operation_fails_alone(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(operation: op.Operation[Any]) -> bytes:
        if isinstance(operation, op.Draw):
            raise ZeroDivisionError
        return encode(operation)

    store = shelf.open()
    store.call_sync(op.Peek())
    monkeypatch.setattr(leading_module, "encode", refuse)

    async def together() -> list[Any]:
        asked: list[op.Operation[Any]] = [op.Draw(1), op.Enqueue((job("a"),))]
        return await asyncio.gather(*map(store.call, asked), return_exceptions=True)

    assert [type(each) for each in asyncio.run(together())] == [ZeroDivisionError, op.Enqueued]


def test_failed_lease_extension_restores_the_state_of_the_file(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: Any) -> None:
        raise MemoryError

    store = shelf.open()
    enqueue(store, "a")
    (grant,) = claim(store)
    store.adopt(lambda: [("a", grant.token)])
    shelf.clock.advance(seconds=31)
    monkeypatch.setattr(store.engine, "extend", break_down)
    with pytest.raises(MemoryError):
        enqueue(store, "b")
    assert record(store, "b").number == 2
    assert finish(store, grant) is op.Verdict.DONE
