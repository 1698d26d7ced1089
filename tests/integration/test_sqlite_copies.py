"""Snapshots of a file that are made beside the work: copies by a child, put into the file a little at a time."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuehint.backends.journal import recovery
from queuehint.backends.journal.snapshots import compaction, copying
from queuehint.backends.journal.snapshots.copying import Copying
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.file import JournalFile
from queuehint.core.engine import Engine
from queuehint.testing.driver import Queue, job
from tests.snapshots import read
from tests.sqlite_store import Shelf, enqueue, leave_journal, make_shelf, record
from tests.support import until_sync

pytestmark = pytest.mark.skipif(not copying.IS_POSSIBLE, reason="copies are made by a fork, on Linux only")

ROOT = Path(__file__).parents[2]

shelf = pytest.fixture(make_shelf)


@pytest.fixture(autouse=True)
def _all_engines_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SMALL_JOBS", 0)


def queue_of(jobs: int) -> Queue:
    queue = Queue()
    for begin in range(0, jobs, 1000):
        queue.enqueue(*[job(f"j{n}", [f"doc{n % 7}"]) for n in range(begin, min(begin + 1000, jobs))])
    return queue


def engine_of(jobs: int) -> Engine:
    return queue_of(jobs).engine


def copy_of(jobs: int) -> Copying:
    return Copying(partial(freeze, engine_of(jobs)))


def jobs_in(store: SqliteBackend) -> int:
    record(store, "a0")
    return len(store.engine.table.jobs)


def all_parts(under_way: Copying, most_bytes: int = 1 << 20) -> list[bytes]:
    found: list[bytes] = []
    while not under_way.is_at_end:
        found += under_way.parts(most_bytes)
        time.sleep(0.001)
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that waits to be waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- the copy --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("most_bytes", [1, 1 << 20])
def test_a_copy_is_the_engine_as_it_was(most_bytes: int) -> None:
    queue = queue_of(3_000)
    engine = queue.engine
    as_it_was = list(freeze(engine))
    under_way = Copying(partial(freeze, engine))
    queue.start(2)
    assert all_parts(under_way, most_bytes) == as_it_was
    assert under_way.end()
    assert list(freeze(read(as_it_was))) == as_it_was
    assert list(freeze(engine)) != as_it_was


def test_a_copy_whose_process_dies_is_not_whole() -> None:
    under_way = copy_of(5_000)
    os.kill(under_way._pid, signal.SIGKILL)
    all_parts(under_way)
    assert not under_way.end()


def test_copy_awaited_by_a_foreign_child_handler_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = copy_of(10)
    parts = all_parts(under_way)
    os.waitpid(under_way._pid, 0)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    assert under_way.end()
    assert len(parts) == 2
    assert not killed, "its id may be another process by now"


def test_a_copy_that_is_given_up_leaves_no_process() -> None:
    under_way = copy_of(5_000)
    assert is_alive(under_way._pid)
    assert not under_way.end()
    assert not is_alive(under_way._pid)


@pytest.mark.slow
def test_copying_process_has_no_parent_file_and_ignores_signals(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: (tmp_path / f"{os.getpid()}").touch())
    try:
        with (tmp_path / "open").open("w"):
            under_way = copy_of(5_000)
            pid = under_way._pid
            until_sync(lambda: len([*Path(f"/proc/{pid}/fd").iterdir()]) == 1, "it has closed all but its pipe")
            os.kill(pid, signal.SIGTERM)
            assert all_parts(under_way)
            assert under_way.end(), "it went on"
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        os.kill(os.getpid(), signal.SIGTERM)
        assert [path.name for path in tmp_path.iterdir() if path.name != "open"] == [f"{os.getpid()}"]
    finally:
        signal.signal(signal.SIGTERM, before)


ALONE = """
import time
from tests.integration.test_sqlite_copies import copy_of
under_way = copy_of(5_000)
print(under_way._pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_the_process_that_copies_ends_soon_after_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ALONE], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    until_sync(lambda: not is_alive(pid), "it has nobody to send to")


# --- into the file ---------------------------------------------------------------------------------------------------


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Have a snapshot begun after 50 operations, and its copy kept waiting until this is called."""
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 50)
    event, parts = threading.Event(), Copying.parts
    monkeypatch.setattr(Copying, "parts", lambda self, most: parts(self, most) if event.is_set() else [])
    yield event.set
    event.set()


def fill(store: Any, count: int = 80) -> None:
    for n in range(count):
        enqueue(store, f"a{n}")


def is_copying(store: Any) -> bool:
    return store._compaction._under_way is not None


def rest(store: Any) -> bool:
    """Whether nothing is left to do but what calls bring."""
    return not is_copying(store) and not store._compaction._is_clearing


def test_store_serves_during_a_copy_and_removes_replaced_rows(shelf: Shelf, go_on: Callable[[], None]) -> None:
    store = shelf.open()
    fill(store)
    assert is_copying(store)
    assert shelf.count("snapshot") == 0
    enqueue(store, "meanwhile")
    go_on()
    until_sync(lambda: rest(store), "it is there")
    covered = store._journal.header.number  # type: ignore[union-attr]
    assert 50 <= covered < 82
    assert shelf.count("journal") == store._journal.number - covered  # type: ignore[union-attr]
    leave_journal(store)
    again = shelf.reopen()
    assert jobs_in(again) == 81
    again.engine.check()


@pytest.mark.slow
def test_successive_copies_leave_only_the_last_parts(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 20)
    store = shelf.open()
    firsts = set()
    for n in range(30):
        for _ in range(5):
            enqueue(store, f"a{n}")
        until_sync(lambda: rest(store), "it is there")
        firsts.add(store._journal.header.first if store._journal.header else None)  # type: ignore[union-attr]
    assert len(firsts) > 2
    header = store._journal.header  # type: ignore[union-attr]
    assert header is not None
    with closing(sqlite3.connect(shelf.path)) as db:
        assert [part for (part,) in db.execute("SELECT part FROM snapshot ORDER BY part")] == [
            *range(header.first, header.first + header.parts)
        ]
    leave_journal(store)
    assert jobs_in(shelf.reopen()) == 30


def test_parts_of_a_snapshot_that_was_never_finished_are_removed(shelf: Shelf) -> None:
    store = shelf.open()
    fill(store, 3)
    store.close_sync()
    with closing(sqlite3.connect(shelf.path)) as db, db:
        db.executemany("INSERT INTO snapshot VALUES (?, ?)", [(n, b"half") for n in range(10, 40)])
    again = shelf.open()
    assert jobs_in(again) == 3
    until_sync(lambda: shelf.count("snapshot") == 3, "only the parts that count are left")


def test_file_closes_at_once_during_a_copy(
    shelf: Shelf, go_on: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "CLOSING_JOBS", 0)
    store = shelf.open()
    fill(store)
    pid = store._compaction._under_way.copy._pid  # type: ignore[union-attr]
    store.close_sync()
    assert not is_alive(pid)
    assert shelf.count("journal") == 81
    assert shelf.count("snapshot") == 0
    assert jobs_in(shelf.open()) == 80


def test_small_store_closed_during_a_copy_has_a_whole_snapshot(shelf: Shelf, go_on: Callable[[], None]) -> None:
    store = shelf.open()
    fill(store, 49)
    until_sync(lambda: is_copying(store), "it has begun, and nothing has changed since")
    store.close_sync()
    assert shelf.count("journal") == 0
    assert jobs_in(shelf.open()) == 49


def test_leftover_rows_of_a_snapshot_are_not_read_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 50)
    monkeypatch.setattr(JournalFile, "clear", lambda *_: False)
    store = shelf.open()
    fill(store)
    until_sync(lambda: store._journal and store._journal.header, "it is there")
    assert shelf.count("journal") == 81
    read_again: list[int] = []
    replay = recovery._replay

    def count(*what: Any) -> Any:
        read_again.append(what[-1])
        return replay(*what)

    monkeypatch.setattr(recovery, "_replay", count)
    covered = store._journal.header.number  # type: ignore[union-attr]
    leave_journal(store)
    jobs_in(shelf.reopen())
    assert len(read_again) == 81 - covered


@pytest.mark.slow
def test_failed_copy_leaves_the_journal_and_is_retried(
    shelf: Shelf, go_on: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = shelf.open()
    for n in range(80):
        enqueue(store, f"a{n}", arguments=os.urandom(3_000))  # more than a pipe holds
    os.kill(store._compaction._under_way.copy._pid, signal.SIGKILL)  # type: ignore[union-attr]
    go_on()
    until_sync(lambda: caplog.records, "it is given up")
    assert [getattr(each, "event", None) for each in caplog.records] == ["journal.snapshot_failed"]
    assert shelf.count("journal") >= 81
    for n in range(80, 200):
        enqueue(store, f"a{n}")
    until_sync(lambda: rest(store) and shelf.count("snapshot"), "it was tried again")
    leave_journal(store)
    assert jobs_in(shelf.reopen()) == 200


@pytest.mark.parametrize("why", ["no process is left", "not on this system"])
def test_impossible_copy_is_replaced_by_a_synchronous_write(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def refuse() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 50)
    if why == "no process is left":
        monkeypatch.setattr(copying, "_fork", refuse)
    else:
        monkeypatch.setattr(copying, "IS_POSSIBLE", False)
    files = len([*Path("/proc/self/fd").iterdir()])
    store = shelf.open()
    fill(store)
    until_sync(lambda: shelf.count("snapshot"), "it was made")
    leave_journal(store)
    assert jobs_in(shelf.reopen()) == 80
    shelf.close()
    assert len([*Path("/proc/self/fd").iterdir()]) <= files


def test_a_store_that_nobody_asks_makes_its_snapshot_sooner(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 400)
    monkeypatch.setattr(compaction, "IDLE_S", 0.05)
    store = shelf.open()
    fill(store, 60)
    until_sync(lambda: shelf.count("snapshot") and rest(store), "it was made")
    assert store._compaction.patience_s is None  # type: ignore[union-attr]


def test_the_collector_looks_at_many_jobs_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "COLLECTED_JOBS", 40)
    store = shelf.open()
    frozen = gc.get_freeze_count()
    try:
        fill(store, 39)
        assert gc.get_freeze_count() <= frozen
        fill(store, 45)
        until_sync(lambda: gc.get_freeze_count() > frozen + 40, "they are left alone")
    finally:
        with suppress(AttributeError):
            gc.unfreeze()
