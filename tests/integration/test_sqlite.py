"""SQLite backend: opening and closing, torn and damaged files, full disks, one process at a time."""

from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from queuehint import FakeClock, JobState, Scheduler
from queuehint.backends.base import BackendOptions, Interest, release
from queuehint.backends.memory import MemoryBackend
from queuehint.backends.sqlite import backend as backend_module
from queuehint.backends.sqlite import file as file_module
from queuehint.backends.sqlite import recovery, snapshot
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.lock import FileInUseError, FileLock, take_lock
from queuehint.backends.sqlite.writer import Ticket
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendInUseError,
    BackendUnavailableError,
    CorruptStateError,
    DuplicateJobError,
    OutcomeUnknownError,
)
from queuehint.operations import (
    Cancel,
    CountJobs,
    Draw,
    Enqueue,
    Enqueued,
    Exchange,
    Follow,
    Get,
    List,
    Operation,
    Peek,
    PutSchedule,
    Tick,
    Verdict,
)
from queuehint.operations.wire import encode
from queuehint.testing.driver import job
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Retention
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from tests.folders import quick_folder
from tests.schedulers import turns, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from queuehint.values.outcome import Grant
    from queuehint.values.record import JobRecord

QUEUED, STARTED, FINISHED, FAILED = JobState.QUEUED, JobState.STARTED, JobState.FINISHED, JobState.FAILED


class Shelf:
    """A file, a clock, and the stores that were opened on it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.clock = FakeClock()
        self.stores: list[SqliteBackend] = []

    def open(self, **options: Any) -> SqliteBackend:
        address = Address(path=self.path, durability=options.pop("durability", "process"))
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
        assert store._file is not None
        store._is_changed = False
        store.close_sync()

    def count(self, what: str) -> int:
        db = sqlite3.connect(self.path)
        try:
            found: int = db.execute(f"SELECT count(*) FROM {what}").fetchone()[0]
        finally:
            db.close()
        return found


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with quick_folder() as folder:
        shelf = Shelf(folder)
        yield shelf
        for store in shelf.stores:
            store.close_sync()


def enqueue(store: SqliteBackend, *ids: str, **fields: Any) -> None:
    store.call_sync(Enqueue(tuple(job(job_id, ["p"], **fields) for job_id in ids)))


def claim(store: SqliteBackend, limit: int = 1, **fields: Any) -> list[Grant]:
    return list(store.call_sync(Exchange("w", limit=limit, **fields)).grants)


def finish(store: SqliteBackend, grant: Grant) -> Verdict:
    outcome = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
    return store.call_sync(Exchange("w", (outcome,))).verdicts[0]


def record(store: SqliteBackend, job_id: str) -> JobRecord:
    found = store.call_sync(Get((job_id,))).records[0]
    assert found is not None
    return found


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.__dict__["event"] for entry in caplog.records if entry.name == "queuehint.sqlite"]


# --- what outlives a process -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["closed", "crashed"])
def test_all_that_was_answered_is_there_afterwards(shelf: Shelf, end: str) -> None:
    store = shelf.open()
    enqueue(store, "a", "b", "c")
    assert finish(store, claim(store)[0]) is Verdict.DONE
    store.call_sync(Draw(5))
    store.call_sync(Cancel(("c",), "no"))
    known = [record(store, job_id) for job_id in "abc"]
    if end == "crashed":
        shelf.crash()
        assert shelf.count("journal") == 6
    again = shelf.reopen()
    assert [record(again, job_id) for job_id in "abc"] == known
    assert again.call_sync(Peek()).first == 6
    again.engine.check()
    assert [grant.spec.id for grant in claim(again)] == ["b"]


def test_a_journal_and_a_snapshot_after_it_make_the_same(shelf: Shelf) -> None:
    store = shelf.open()
    for step in range(6):
        enqueue(store, f"a{step}")
        if step % 2:
            shelf.crash()
        store = shelf.reopen()
    assert [record(store, f"a{step}").number for step in range(6)] == [1, 2, 3, 4, 5, 6]


def test_a_repeated_request_after_a_crash_gets_the_first_reply(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    shelf.crash()
    again = shelf.reopen(by_another=True)
    reply = again.call_sync(Enqueue((job("a", ["p"]),)))
    assert [(item.id, item.created) for item in reply.jobs] == [("a", False)]
    with pytest.raises(DuplicateJobError):
        again.call_sync(Enqueue((job("a", ["q"]),)))


def test_what_was_refused_is_refused_when_it_is_replayed(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    for _ in range(3):
        with pytest.raises(DuplicateJobError):
            enqueue(store, "b", "a", priority=5)
    shelf.crash()
    again = shelf.reopen()
    assert again.call_sync(Get(("b",))).records == (None,)
    assert record(again, "a").number == 1


def test_a_job_of_a_dead_process_is_granted_again_at_once_at_its_place(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a", "b")
    enqueue(store, "waits", presence_ms=60_000)
    old = claim(store)[0]
    shelf.crash()
    shelf.clock.advance(seconds=1)
    again = shelf.reopen(by_another=True)
    new = claim(again)
    assert [(grant.spec.id, grant.losses) for grant in new] == [("a", 1)]
    assert new[0].token >> 32 > old.token >> 32
    assert finish(again, old) is Verdict.LOST
    assert record(again, "waits").cause == "waiter_lost"


def test_a_process_that_opens_its_file_again_keeps_its_leases(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    grant = claim(store)[0]
    again = shelf.reopen()
    assert claim(again) == []
    assert finish(again, grant) is Verdict.DONE


def test_tokens_go_on_though_the_clock_has_gone_back(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    old = claim(store)[0]
    shelf.clock.advance(seconds=-1_000_000)
    again = shelf.reopen(by_another=True)
    assert claim(again)[0].token > old.token


def test_retention_is_that_of_the_owner_of_the_file_when_a_job_ended(shelf: Shelf) -> None:
    store = shelf.open(retention=Retention(finished=3600))
    enqueue(store, "a", "b")
    finish(store, claim(store)[0])
    shelf.crash()
    again = shelf.reopen(retention=Retention(finished=7200))
    finish(again, claim(again)[0])
    shelf.crash()
    last = shelf.reopen(retention=Retention(finished=7200))
    shelf.clock.advance(seconds=3601)
    while last.call_sync(Tick()).more:
        pass
    assert [found and found.id for found in last.call_sync(Get(("a", "b"))).records] == [None, "b"]


def test_events_are_kept_for_who_follows_across_a_restart(shelf: Shelf) -> None:
    store = shelf.open()
    after = store.call_sync(Follow()).after
    enqueue(store, "a")
    shelf.crash()
    followed = shelf.reopen().call_sync(Follow(after))
    assert ([event.id for event in followed.events], followed.missed) == (["a"], 0)


def test_the_time_never_goes_back(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a", delay_ms=5000)
    shelf.clock.advance(seconds=5)
    store.call_sync(Tick())
    shelf.clock.advance(seconds=-100)
    enqueue(store, "b")
    shelf.crash()
    again = shelf.reopen()
    assert record(again, "b").enqueued_ms == record(again, "a").queued_ms
    again.engine.check()


# --- one process at a time -------------------------------------------------------------------------------------------


def test_a_second_store_may_not_run_jobs_and_is_told_who_does(shelf: Shelf) -> None:
    first, second = shelf.open(), shelf.open()
    enqueue(first, "a")
    (grant,) = claim(first)
    first.adopt(lambda: [("a", grant.token)])
    with pytest.raises(BackendInUseError) as caught:
        claim(second)
    assert (caught.value.path, caught.value.pid) == (str(shelf.path), os.getpid())
    assert f"{shelf.path} is in use by process {os.getpid()}, and one process at a time may run" in str(caught.value)
    first.close_sync()
    enqueue(second, "b")
    assert [record(second, job_id).number for job_id in "ab"] == [1, 2]


def test_the_lock_ends_with_its_process(shelf: Shelf) -> None:
    script = (
        "import sys, time; from queuehint import Scheduler; from queuehint.operations import Draw\n"
        "sched = Scheduler(sys.argv[1]); print(sched.backend.call_sync(Draw(1)), flush=True); time.sleep(60)"
    )
    url = f"sqlite:///{shelf.path}"
    first = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE)
    assert first.stdout is not None
    assert b"Drawn" in first.stdout.readline()
    store = shelf.open()
    assert store.call_sync(Draw(1)).first == 2
    with pytest.raises(FileInUseError) as caught:
        take_lock(shelf.path)
    assert caught.value.pid == first.pid
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()
    assert store.call_sync(Draw(1)).first == 3
    assert store._file is not None


def test_a_link_to_a_file_is_the_file(shelf: Shelf) -> None:
    enqueue(shelf.open(), "a")
    link = shelf.path.with_name("link.db")
    link.symlink_to(shelf.path)
    other = SqliteBackend(Address(path=link))
    assert record(other, "a").id == "a"
    assert other._file is None
    other.close_sync()


def test_a_lock_of_somebody_who_has_not_said_who_is_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    path.write_bytes(b"")
    with pytest.raises(FileInUseError) as caught:
        FileLock(path)
    assert caught.value.pid is None
    assert "in use by another process" in str(BackendInUseError("jobs.db", None))
    lock.release()
    lock.release()
    FileLock(path).release()


@pytest.mark.parametrize("call", ["os.write", "fcntl.flock"])
def test_a_lock_that_could_not_be_had_is_nobodys(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    store = shelf.open()
    monkeypatch.setattr(call, fail)
    with pytest.raises(BackendUnavailableError, match="no room"):
        enqueue(store, "a")
    monkeypatch.undo()
    enqueue(store, "a")


def _use_in_fork(store: SqliteBackend, said: Any) -> None:
    try:
        store.call_sync(Peek())
    except BackendUnavailableError as error:
        said.put(str(error))
    store.close_sync()
    sys.exit(0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_refused_and_does_no_harm(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    context = multiprocessing.get_context("fork")
    said: Any = context.Queue()
    child = context.Process(target=_use_in_fork, args=(store, said))
    child.start()
    assert "belongs to process" in said.get(timeout=20)
    child.join()
    enqueue(store, "b")
    second = shelf.open()
    assert record(second, "b").number == 2
    assert second._file is None
    shelf.stores.reverse()
    shelf.crash()
    again = shelf.reopen()
    assert [record(again, job_id).number for job_id in "ab"] == [1, 2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_that_outlives_its_parent_does_not_keep_the_lock(shelf: Shelf) -> None:
    script = (
        "import os, sys, time; from queuehint import Scheduler; from queuehint.operations import Draw\n"
        "sched = Scheduler(sys.argv[1]); sched.backend.call_sync(Draw(1))\n"
        "if not os.fork(): print(os.getpid(), flush=True); os.kill(os.getppid(), 9)\n"
        "time.sleep(30)"
    )
    first = subprocess.Popen([sys.executable, "-c", script, f"sqlite:///{shelf.path}"], stdout=subprocess.PIPE)
    assert first.stdout is not None
    child = int(first.stdout.readline())
    try:
        first.wait()
        assert shelf.open().call_sync(Draw(1)).first == 2
    finally:
        os.kill(child, signal.SIGKILL)
        first.stdout.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_fork_closes_what_a_thread_of_its_parent_was_busy_with(shelf: Shelf, kind: str) -> None:
    store = shelf.open() if kind == "sqlite" else MemoryBackend()
    store.call_sync(Peek())
    locked, go_on = threading.Event(), threading.Event()

    def be_busy() -> None:
        with store._lock:
            locked.set()
            go_on.wait()

    busy = threading.Thread(target=be_busy)
    busy.start()
    locked.wait()
    fork = multiprocessing.get_context("fork").Process(target=store.close_sync)
    fork.start()
    fork.join(10)
    code = fork.exitcode
    fork.kill()
    go_on.set()
    busy.join()
    assert code == 0


def test_a_process_that_closes_at_the_very_end_ends(shelf: Shelf) -> None:
    script = (
        "import sys; from queuehint import *; from queuehint.errors import *; from queuehint.operations import *\n"
        "class Last:\n"
        "    def __del__(self):\n"
        "        for ask in (lambda: self.store.call_sync(Peek()), lambda: self.store.call_sync(Draw(1))):\n"
        "            try: ask()\n"
        "            except BackendUnavailableError as error: print(error)\n"
        "        self.store.close_sync()\n"
        "last = Last(); last.cycle = last\n"
        "last.store = Scheduler(sys.argv[1]).backend; last.store.call_sync(Draw(1))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, f"sqlite:///{shelf.path}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert ended.stdout.count("the interpreter is shutting down") == 2
    assert shelf.open().call_sync(Draw(1)).first == 2


def test_each_namespace_has_a_file_of_its_own(shelf: Shelf) -> None:
    enqueue(shelf.open(namespace="docs"), "a")
    with pytest.raises(BackendDeniedError, match="holds the jobs of namespace 'docs', not 'default'"):
        shelf.reopen().call_sync(Peek())
    assert shelf.reopen(namespace="docs").call_sync(CountJobs()).states[QUEUED] == 1


# --- files that are not ours, or not whole -----------------------------------------------------------------------


def test_what_is_no_database_is_refused_and_left_alone(shelf: Shelf) -> None:
    shelf.path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(CorruptStateError, match="is damaged, or no database"):
        shelf.open().call_sync(Peek())
    assert shelf.path.read_bytes() == b"dear diary, " * 1000


def test_a_database_of_another_application_is_refused_and_left_alone(shelf: Shelf) -> None:
    db = sqlite3.connect(shelf.path)
    db.execute("CREATE TABLE diary (day)")
    db.commit()
    before = shelf.path.read_bytes()
    with pytest.raises(BackendDeniedError, match="is a database of another application"):
        shelf.open().call_sync(Peek())
    db.close()
    assert shelf.path.read_bytes() == before


def test_a_file_of_a_newer_release_is_refused_by_number(shelf: Shelf) -> None:
    enqueue(shelf.open(), "a")
    shelf.stores[-1].close_sync()
    db = sqlite3.connect(shelf.path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(BackendDeniedError, match="has tables of layout 99, and this release of queuehint knows 1"):
        shelf.open().call_sync(Peek())


def test_a_snapshot_of_another_layout_is_refused_by_number(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "SCHEMA", 77)
    enqueue(shelf.open(), "a")
    shelf.stores[-1].close_sync()
    monkeypatch.setattr(backend_module, "SCHEMA", snapshot.SCHEMA)
    with pytest.raises(BackendDeniedError, match="has a snapshot of layout 77") as caught:
        shelf.open().call_sync(Peek())
    assert f"have release {release()} finish its jobs" in str(caught.value)


def test_a_journal_of_another_release_is_replayed_and_said(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery, "release", lambda: "0.0.1")
    enqueue(shelf.open(), "a")
    shelf.crash()
    monkeypatch.undo()
    assert record(shelf.reopen(), "a").state is QUEUED
    assert events(caplog) == ["sqlite.other_release"]
    shelf.crash()
    assert (shelf.count("journal"), shelf.count("snapshot")) == (0, 2)
    assert record(shelf.reopen(), "a").state is QUEUED
    assert events(caplog) == ["sqlite.other_release"]


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.9])
def test_a_file_that_was_cut_off_is_refused_or_a_part_of_history(shelf: Shelf, share: float) -> None:
    store = shelf.open()
    for n in range(200):
        enqueue(store, f"a{n}", arguments=b"x" * 300)
    store.close_sync()
    whole = shelf.path.read_bytes()
    shelf.path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises((CorruptStateError, BackendUnavailableError)):
        shelf.open().call_sync(Peek())


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
def test_a_file_that_its_name_leads_to_no_more_is_refused_and_said(
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
    assert store.call_sync(Get(("after",))).records == (None,)
    if what == "moved":
        kept.rename(shelf.path)
        enqueue(store, "back")
        return
    store.close_sync()
    assert [getattr(record, "event", "") for record in caplog.records if record.levelname == "ERROR"] == [
        "sqlite.file_gone"
    ]


def test_a_file_that_is_gone_when_it_is_closed_is_said(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
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
        shelf.open().call_sync(Peek())


@pytest.mark.parametrize("change", ["operation = '{}'", "operation = x'ff'", "operation = NULL"])
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
        shelf.open().call_sync(Peek())


def test_a_log_that_was_cut_off_loses_what_came_last(shelf: Shelf) -> None:
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
            states = other.call_sync(CountJobs()).states
            assert states[QUEUED] == n + 1
            other.close_sync()


# --- where there is no room, no right, no disk -----------------------------------------------------------------------


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = SqliteBackend(Address(path=tmp_path / "nowhere" / "jobs.db"))
    with pytest.raises(BackendUnavailableError, match=r"nowhere/jobs\.db cannot be opened"):
        store.call_sync(Peek())
    store.close_sync()


def test_a_directory_in_place_of_the_file_is_refused(shelf: Shelf) -> None:
    shelf.path.mkdir()
    with pytest.raises(BackendError, match=r"jobs\.db"):
        shelf.open().call_sync(Peek())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_must_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    store = SqliteBackend(Address(path=tmp_path / "jobs.db"))
    with pytest.raises(BackendDeniedError, match=r"jobs\.db may not be opened"):
        store.call_sync(Peek())
    store.close_sync()


def test_what_cannot_be_opened_now_can_be_later(tmp_path: Path) -> None:
    store = SqliteBackend(Address(path=tmp_path / "later" / "jobs.db"))
    with pytest.raises(BackendUnavailableError):
        enqueue(store, "a")
    (tmp_path / "later").mkdir()
    enqueue(store, "a")
    store.close_sync()


def fill(store: SqliteBackend) -> None:
    """Let the database have no further page."""
    store.call_sync(Peek())
    assert store._file is not None
    db = store._file._db
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")


def make_room(store: SqliteBackend) -> None:
    assert store._file is not None
    store._file._db.execute("PRAGMA max_page_count = 1073741823")


def test_a_full_disk_refuses_and_changes_nothing(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "first")
    fill(store)
    before = store.engine.table.last_number
    with pytest.raises(BackendFullError, match="there is no room left on the disk; nothing was changed"):
        enqueue(store, *[f"a{n}" for n in range(200)], arguments=b"x" * 1000)
    assert store.engine.table.last_number == before
    assert store.call_sync(CountJobs()).states[QUEUED] == 1
    make_room(store)
    enqueue(store, "last")
    shelf.crash()
    assert shelf.reopen().call_sync(CountJobs()).states[QUEUED] == 2


def test_no_room_for_a_snapshot_leaves_the_journal(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    store = shelf.open()
    enqueue(store, *[f"a{n}" for n in range(50)])
    assert store._file is not None
    store._file._db.execute("CREATE TRIGGER full BEFORE INSERT ON snapshot BEGIN SELECT RAISE(FAIL, 'full'); END")
    store.close_sync()
    assert events(caplog) == ["sqlite.snapshot_failed"]
    db = sqlite3.connect(shelf.path)
    db.execute("DROP TRIGGER full")
    db.close()
    assert shelf.open().call_sync(CountJobs()).states[QUEUED] == 50


def test_a_file_that_may_not_grow_refuses_and_goes_on_later(shelf: Shelf) -> None:
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
    assert shelf.open().call_sync(CountJobs()).states[QUEUED] == int(acked)
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
def test_when_the_disk_fails_only_the_file_says_what_was_done(shelf: Shelf, is_done: bool) -> None:
    store = shelf.open()
    enqueue(store, "a")
    assert store._file is not None
    store._file._db = Failing(store._file._db, is_done=is_done)  # type: ignore[assignment]
    with pytest.raises(OutcomeUnknownError, match="the disk failed"):
        enqueue(store, "b")
    assert (store.call_sync(Get(("b",))).records[0] is not None) == is_done
    enqueue(store, "b")
    shelf.crash()
    again = shelf.reopen()
    assert [record(again, job_id).number for job_id in "ab"] == [1, 2]


def test_an_engine_that_raised_what_it_should_not_is_thrown_away(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = shelf.open()
    enqueue(store, "a")
    apply = store.engine.apply

    def break_down(operation: Operation[Any], now_ms: int) -> Any:
        apply(operation, now_ms)
        raise MemoryError

    monkeypatch.setattr(store.engine, "apply", break_down)
    with pytest.raises(MemoryError):
        enqueue(store, "b")
    monkeypatch.undo()
    assert record(store, "b").number == 2
    store.engine.check()


def test_what_comes_together_with_what_broke_the_engine_is_unknown_and_in_the_file(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shelf.open()
    store.call_sync(Peek())
    apply = store.engine.apply

    def break_down(operation: Operation[Any], now_ms: int) -> Any:
        reply = apply(operation, now_ms)
        if operation == Cancel(("b",)):
            raise MemoryError
        return reply

    monkeypatch.setattr(store.engine, "apply", break_down)
    asked: list[Operation[Any]] = [Enqueue((job("a"),)), Cancel(("b",)), Enqueue((job("c"),)), Get(("a",))]

    async def together() -> list[Any]:
        return await asyncio.gather(*map(store.call, asked), return_exceptions=True)

    with store._lock:  # what comes meanwhile is written together
        store._queue.put(Ticket(Tick()))
        caller = threading.Thread(target=lambda: told.extend(asyncio.run(together())))
        told: list[Any] = []
        asked.pop()
        caller.start()
        # The writer may have taken some already, and waits for the lock with them.
        until_s = time.monotonic() + 1
        while store._queue.qsize() < 3 and time.monotonic() < until_s:
            time.sleep(0.001)
    caller.join(20)
    assert [type(each) for each in told] == [Enqueued, MemoryError, OutcomeUnknownError]
    assert [record(store, job_id).number for job_id in "ac"] == [1, 2]
    assert not store.call_sync(asked[2]).jobs[0].created


def test_what_cannot_be_written_fails_nobody_else(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(operation: Operation[Any]) -> bytes:
        if isinstance(operation, Draw):
            raise ZeroDivisionError
        return encode(operation)

    store = shelf.open()
    store.call_sync(Peek())
    monkeypatch.setattr(backend_module, "encode", refuse)

    async def together() -> list[Any]:
        asked: list[Operation[Any]] = [Draw(1), Enqueue((job("a"),))]
        return await asyncio.gather(*map(store.call, asked), return_exceptions=True)

    assert [type(each) for each in asyncio.run(together())] == [ZeroDivisionError, Enqueued]


def test_leases_that_broke_the_engine_leave_what_the_file_says(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert finish(store, grant) is Verdict.DONE


# --- snapshots ---------------------------------------------------------------------------------------------------


def test_a_long_journal_is_replaced_by_a_snapshot(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "SNAPSHOT_ROWS", 50)
    store = shelf.open()
    for n in range(120):
        enqueue(store, f"a{n}")
        if n > 3:
            finish(store, claim(store)[0])
    store.call_sync(Tick())
    shelf.crash()
    assert 0 < shelf.count("journal") < 250
    again = shelf.reopen()
    assert again.call_sync(CountJobs()).states[FINISHED] == 116
    again.engine.check()


def test_a_heavy_journal_is_replaced_by_a_snapshot(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "SNAPSHOT_BYTES", 20_000)
    store = shelf.open()
    for n in range(30):
        enqueue(store, f"a{n}", arguments=b"x" * 2000)
    store.call_sync(Tick())
    shelf.crash()
    assert shelf.count("journal") < 25


def test_a_file_that_was_only_looked_into_is_not_written_anew(shelf: Shelf) -> None:
    enqueue(shelf.open(), "a")
    shelf.reopen(by_another=True).call_sync(CountJobs())
    shelf.stores[-1].close_sync()
    assert shelf.count("journal") == 1
    assert shelf.count("snapshot") == 2


# --- many at once ------------------------------------------------------------------------------------------------


def test_what_comes_together_is_written_together(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []
    append = file_module.JournalFile.append

    def count(self: Any, rows: Any, owner: Any = None) -> None:
        commits.append(len(rows))
        append(self, rows, owner)

    monkeypatch.setattr(file_module.JournalFile, "append", count)
    store = shelf.open(durability="full")

    async def many() -> None:
        await asyncio.gather(*[store.call(Enqueue((job(f"a{n}", ["p"]),))) for n in range(300)])

    asyncio.run(many())
    assert sum(commits) == 301
    assert len(commits) < 100
    assert store.call_sync(CountJobs()).states[QUEUED] == 300


def test_threads_and_loops_together_lose_nothing(shelf: Shelf) -> None:
    store = shelf.open()

    def by_thread(name: str) -> None:
        for n in range(40):
            enqueue(store, f"{name}{n}")

    async def by_loop(name: str) -> None:
        await asyncio.gather(*[store.call(Enqueue((job(f"{name}{n}", ["q"]),))) for n in range(40)])

    threads = [threading.Thread(target=by_thread, args=(f"t{n}-",)) for n in range(3)]
    threads += [threading.Thread(target=lambda n=n: asyncio.run(by_loop(f"l{n}-"))) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shelf.crash()
    assert shelf.reopen().call_sync(CountJobs()).states[QUEUED] == 240


def test_a_question_does_not_wait_for_the_disk_and_sees_no_later_time(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shelf.open()
    enqueue(store, "a")
    began, go_on = threading.Event(), threading.Event()
    append = file_module.JournalFile.append

    def wait(self: Any, rows: Any, owner: Any = None) -> None:
        began.set()
        assert go_on.wait(20)
        append(self, rows, owner)

    monkeypatch.setattr(file_module.JournalFile, "append", wait)
    thread = threading.Thread(target=enqueue, args=(store, "b"))
    thread.start()
    assert began.wait(20)
    now_ms = shelf.clock.now_ms()
    shelf.clock.advance(seconds=5)
    assert store.call_sync(Get(("a", "b"))).records[1] is None
    assert store.engine.now_ms == now_ms
    go_on.set()
    thread.join()
    assert record(store, "b").enqueued_ms == now_ms


def test_a_canceled_call_is_done_and_harms_nobody(shelf: Shelf) -> None:
    store = shelf.open()

    async def cancel() -> None:
        call = asyncio.create_task(store.call(Enqueue((job("a", ["p"]),))))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await store.call(Enqueue((job("b", ["p"]),)))

    asyncio.run(cancel())
    assert [record(store, job_id).number for job_id in "ab"] == [1, 2]


async def test_a_canceled_claim_that_is_repeated_returns_the_missed_grants(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "MISSED_MAX", 2)
    store = shelf.open()
    enqueue(store, "a", "b")

    async def miss(operation: Operation[Any]) -> None:
        call = asyncio.create_task(store.call(operation))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asked = Exchange("w", limit=1)
    await miss(asked)
    await miss(asked)
    assert [grant.spec.id for grant in (await store.call(asked)).grants] == ["a"]
    assert not store._missed
    assert (await store.call(asked)).grants == ()
    for _ in range(4):
        await miss(Tick())
    assert len(store._missed) == 2


def test_after_its_end_a_store_says_so(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    waiter = threading.Thread(target=store.wait_sync, args=(Interest(jobs=("a",)), 60))
    waiter.start()
    while not store._waiting:
        pass
    asyncio.run(store.close())
    waiter.join(20)
    assert not waiter.is_alive()
    for _ in range(2):
        store.close_sync()
        with pytest.raises(BackendUnavailableError, match="the sqlite backend was closed"):
            enqueue(store, "b")


def test_a_second_close_waits_until_the_file_is_closed(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.open()
    enqueue(store, "a")
    go_on = threading.Event()
    monkeypatch.setattr(store, "_make_snapshot", go_on.wait)

    async def close() -> None:
        first = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        others = [asyncio.create_task(store.close()), asyncio.create_task(asyncio.to_thread(store.close_sync))]
        canceled = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        canceled.cancel()
        done, _ = await asyncio.wait([first, *others], timeout=0.05)
        assert not done
        go_on.set()
        await asyncio.gather(first, *others)

    asyncio.run(close())
    enqueue(shelf.open(), "b")


def test_a_thread_that_cannot_be_started_is_said_and_tried_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = shelf.open()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(BackendUnavailableError, match="can't start new thread"):
        enqueue(store, "a")
    monkeypatch.undo()
    enqueue(store, "a")


def test_a_store_of_which_nobody_asked_anything_is_closed_at_once(shelf: Shelf) -> None:
    asyncio.run(shelf.open().close())
    assert not shelf.path.exists()


# --- as part of a scheduler --------------------------------------------------------------------------------------


def test_a_scheduler_goes_on_where_the_last_one_stopped(shelf: Shelf) -> None:
    url = f"sqlite:///{shelf.path}?durability=process"
    ran: list[str] = []

    def make() -> tuple[Scheduler, Callable[..., Any]]:
        sched = Scheduler(url)

        @sched.job(queue_hint=["{doc}"])
        async def edit(doc: str, what: str) -> str:
            ran.append(what)
            return what

        return sched, edit

    async def first() -> None:
        sched, edit = make()
        for n in range(5):
            await edit.enqueue("doc1", f"w{n}")  # type: ignore[attr-defined]
        await sched.close()

    async def second() -> None:
        sched, _ = make()
        async with sched.worker(concurrency=2):
            await sched.drain(timeout=20)
        await sched.close()

    asyncio.run(first())
    asyncio.run(second())
    assert ran == [f"w{n}" for n in range(5)]


def test_it_renews_the_leases_of_its_own_process_and_remembers_that(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    grant = claim(store, lease_ms=1000)[0]
    forget = store.adopt(lambda: [("a", grant.token)])
    shelf.clock.advance(seconds=60)
    store.call_sync(Tick())
    assert record(store, "a").state is STARTED
    shelf.crash()
    again = shelf.reopen()
    assert record(again, "a") == record(again, "a")
    assert (record(again, "a").state, record(again, "a").losses) == (STARTED, 0)
    forget()
    assert finish(again, grant) is Verdict.DONE


def test_it_says_once_that_nobody_serves_its_jobs(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    store = shelf.open()
    enqueue(store, "a")
    for _ in range(3):
        shelf.clock.advance(seconds=6)
        store.call_sync(Tick())
    assert events(caplog) == ["sqlite.unserved"]


def test_it_says_that_it_was_opened_and_how_much_was_replayed(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "queuehint.sqlite")
    enqueue(shelf.open(), "a")
    shelf.crash()
    shelf.reopen(by_another=True).call_sync(Peek())
    assert events(caplog) == ["sqlite.opened", "sqlite.opened"]
    assert [entry.__dict__["replayed"] for entry in caplog.records] == [0, 2]


def test_a_schedule_wakes_who_works(shelf: Shelf) -> None:
    store = shelf.open()
    waiter = threading.Thread(target=store.wait_sync, args=(Interest(pools=("default",)), 60))
    waiter.start()
    while not store._waiting:
        pass
    store.call_sync(PutSchedule("s", job("s"), Recurrence(every_ms=1000), shelf.clock.now_ms()))
    waiter.join(20)
    assert not waiter.is_alive()
    assert store.call_sync(Exchange("w", limit=1)).due


# --- the loop goes on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["ask", "list", "wait", "leave"])
async def test_the_loop_goes_on_while_the_writer_has_the_engine(shelf: Shelf, what: str) -> None:
    store = shelf.open()
    enqueue(store, "a")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock:
            held.set()
            assert release.wait(20)

    waiting = asyncio.create_task(store.wait(Interest(jobs=("a",)), 60))
    await until(lambda: len(store._waiting) == 1)
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    if what == "leave":
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        acting = None
    else:
        questions = {"ask": Get(("a",)), "list": List(RecordFilter(path=("p",)))}
        act = store.wait(Interest(jobs=("a",)), 60) if what == "wait" else store.call(questions[what])
        acting = asyncio.create_task(act)
        await turns(5)
        assert not acting.done()
    release.set()
    thread.join()
    if what == "wait":
        assert acting is not None
        acting.cancel()
    if acting is not None:
        await asyncio.gather(acting, return_exceptions=True)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: len(store._waiting) == 0)
