"""SQLite backend: opening and closing, snapshots, many operations at once, who leads."""

from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuehint import JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.backends.journal import backend as backend_module
from queuehint.backends.journal.groups import DECIDED, unpack
from queuehint.backends.journal.lead.leadership import LedElsewhereError
from queuehint.backends.journal.snapshots import compaction
from queuehint.backends.journal.writer import Ticket
from queuehint.backends.memory import MemoryBackend
from queuehint.backends.sqlite import file as file_module
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.lock import FileLock, take_lock
from queuehint.errors import (
    BackendDeniedError,
    BackendInUseError,
    BackendUnavailableError,
    DuplicateJobError,
)
from queuehint.testing.driver import job
from queuehint.values.policy import Retention
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from tests.schedulers import turns, until
from tests.sqlite_store import Shelf, claim, enqueue, events, finish, make_shelf, record
from tests.support import LIMIT_S, until_sync

QUEUED, STARTED, FINISHED, FAILED = JobState.QUEUED, JobState.STARTED, JobState.FINISHED, JobState.FAILED

shelf = pytest.fixture(make_shelf)


# --- jobs outlive a process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["closed", "crashed"])
def test_all_that_was_answered_is_there_afterwards(shelf: Shelf, end: str) -> None:
    store = shelf.open()
    enqueue(store, "a", "b", "c")
    assert finish(store, claim(store)[0]) is op.Verdict.DONE
    store.call_sync(op.Draw(5))
    store.call_sync(op.Cancel(("c",), "no"))
    known = [record(store, job_id) for job_id in "abc"]
    if end == "crashed":
        shelf.crash()
        assert shelf.count("journal") == 6
    again = shelf.reopen()
    assert [record(again, job_id) for job_id in "abc"] == known
    assert again.call_sync(op.Peek()).first == 6
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
    reply = again.call_sync(op.Enqueue((job("a", ["p"]),)))
    assert [(item.id, item.created) for item in reply.jobs] == [("a", False)]
    with pytest.raises(DuplicateJobError):
        again.call_sync(op.Enqueue((job("a", ["q"]),)))


def test_refused_operation_is_refused_again_in_a_replay(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    for _ in range(3):
        with pytest.raises(DuplicateJobError):
            enqueue(store, "b", "a", priority=5)
    shelf.crash()
    again = shelf.reopen()
    assert again.call_sync(op.Get(("b",))).records == (None,)
    assert record(again, "a").number == 1


def test_job_of_a_dead_process_is_granted_again_in_place(shelf: Shelf) -> None:
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
    assert finish(again, old) is op.Verdict.LOST
    assert record(again, "waits").cause == "waiter_lost"


def test_a_process_that_opens_its_file_again_keeps_its_leases(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    grant = claim(store)[0]
    again = shelf.reopen()
    assert claim(again) == []
    assert finish(again, grant) is op.Verdict.DONE


def test_tokens_go_on_though_the_clock_has_gone_back(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    old = claim(store)[0]
    shelf.clock.advance(seconds=-1_000_000)
    again = shelf.reopen(by_another=True)
    assert claim(again)[0].token > old.token


def test_retention_is_that_of_the_file_owner_at_end(shelf: Shelf) -> None:
    store = shelf.open(retention=Retention(finished=3600))
    enqueue(store, "a", "b")
    finish(store, claim(store)[0])
    shelf.crash()
    again = shelf.reopen(retention=Retention(finished=7200))
    finish(again, claim(again)[0])
    shelf.crash()
    last = shelf.reopen(retention=Retention(finished=7200))
    shelf.clock.advance(seconds=3601)
    while last.call_sync(op.Tick()).more:
        pass
    assert [found and found.id for found in last.call_sync(op.Get(("a", "b"))).records] == [None, "b"]


def test_events_are_kept_for_subscribers_across_a_restart(shelf: Shelf) -> None:
    store = shelf.open()
    after = store.call_sync(op.Follow()).after
    enqueue(store, "a")
    shelf.crash()
    followed = shelf.reopen().call_sync(op.Follow(after))
    assert ([event.id for event in followed.events], followed.missed) == (["a"], 0)


def test_clock_behind_the_file_is_logged_until_it_caught_up(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    store = shelf.open()
    for seconds in (0, -3600, 1, 3600):
        shelf.clock.advance(seconds=seconds)
        store.call_sync(op.Tick())
    found = [vars(record) for record in caplog.records if getattr(record, "event", "") == "sqlite.clock_behind"]
    assert [(each["levelname"], each["behind_s"]) for each in found] == [("ERROR", 3600.0), ("WARNING", 0.0)]


def test_the_time_never_goes_back(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a", delay_ms=5000)
    shelf.clock.advance(seconds=5)
    store.call_sync(op.Tick())
    shelf.clock.advance(seconds=-100)
    enqueue(store, "b")
    shelf.crash()
    again = shelf.reopen()
    assert record(again, "b").enqueued_ms == record(again, "a").queued_ms
    again.engine.check()


# --- who leads -------------------------------------------------------------------------------------------------------


def test_a_second_store_runs_jobs_too(shelf: Shelf) -> None:
    first, second = shelf.open(), shelf.open()
    enqueue(first, "a")
    (grant,) = claim(first)
    first.adopt(lambda: [("a", grant.token)])
    enqueue(second, "b", "c")
    assert finish(second, grant) is op.Verdict.DONE
    (other,) = claim(second)
    first.close_sync()
    assert finish(second, other) is op.Verdict.DONE
    assert [record(second, job_id).state for job_id in "abc"] == [FINISHED, FINISHED, QUEUED]


@pytest.mark.slow
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
    assert store.call_sync(op.Draw(1)).first == 2
    with pytest.raises(LedElsewhereError) as caught:
        take_lock(shelf.path)
    assert caught.value.leader.pid == first.pid
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()
    assert store.call_sync(op.Draw(1)).first == 3
    assert store._journal is not None


def test_a_link_to_a_file_is_the_file(shelf: Shelf) -> None:
    enqueue(shelf.open(), "a")
    link = shelf.path.with_name("link.db")
    link.symlink_to(shelf.path)
    other = SqliteBackend(Address(path=link))
    assert record(other, "a").id == "a"
    assert other._journal is None
    other.close_sync()


def test_anonymous_file_lock_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    path.write_bytes(b"")
    with pytest.raises(LedElsewhereError) as caught:
        FileLock(path)
    assert caught.value.leader.pid is None
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
        store.call_sync(op.Peek())
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
    assert "belongs to process" in said.get(timeout=60)
    child.join()
    enqueue(store, "b")
    second = shelf.open()
    assert record(second, "b").number == 2
    assert second._journal is None
    shelf.stores.reverse()
    shelf.crash()
    again = shelf.reopen()
    assert [record(again, job_id).number for job_id in "ab"] == [1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_that_outlives_its_parent_does_not_keep_locks(shelf: Shelf) -> None:
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
        assert shelf.open().call_sync(op.Draw(1)).first == 2
    finally:
        os.kill(child, signal.SIGKILL)
        first.stdout.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_fork_closes_stores_locked_by_a_thread_of_its_parent(shelf: Shelf, kind: str) -> None:
    store = shelf.open() if kind == "sqlite" else MemoryBackend()
    store.call_sync(op.Peek())
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
    fork.join(60)
    code = fork.exitcode
    fork.kill()
    go_on.set()
    busy.join()
    assert code == 0


@pytest.mark.slow
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
    assert shelf.open().call_sync(op.Draw(1)).first == 2


def test_each_namespace_has_a_file_of_its_own(shelf: Shelf) -> None:
    enqueue(shelf.open(namespace="docs"), "a")
    with pytest.raises(BackendDeniedError, match="holds the jobs of namespace 'docs', not 'default'"):
        shelf.reopen().call_sync(op.Peek())
    assert shelf.reopen(namespace="docs").call_sync(op.CountJobs()).states[QUEUED] == 1


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_a_long_journal_is_replaced_by_a_snapshot(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 50)
    store = shelf.open()
    for n in range(120):
        enqueue(store, f"a{n}")
        if n > 3:
            finish(store, claim(store)[0])
    store.call_sync(op.Tick())
    shelf.crash()
    assert 0 < shelf.count("journal") < 250
    again = shelf.reopen()
    assert again.call_sync(op.CountJobs()).states[FINISHED] == 116
    again.engine.check()


def test_a_heavy_journal_is_replaced_by_a_snapshot(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_BYTES", 20_000)
    store = shelf.open()
    for n in range(30):
        enqueue(store, f"a{n}", arguments=b"x" * 2000)
    store.call_sync(op.Tick())
    shelf.crash()
    assert shelf.count("journal") < 25


def test_file_only_read_is_not_rewritten(shelf: Shelf) -> None:
    enqueue(shelf.open(), "a")
    shelf.reopen(by_another=True).call_sync(op.CountJobs())
    shelf.stores[-1].close_sync()
    assert shelf.count("journal") == 1
    assert shelf.count("snapshot") == 3


# --- many at once ----------------------------------------------------------------------------------------------------


def test_concurrent_operations_share_one_commit(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []
    append = file_module.JournalFile.append

    def count(self: Any, at_ms: int, data: bytes, **others: Any) -> None:
        commits.append(sum(request is not DECIDED for request, _ in unpack(data)))
        append(self, at_ms, data, **others)

    monkeypatch.setattr(file_module.JournalFile, "append", count)
    store = shelf.open(durability="full")

    async def many() -> None:
        await asyncio.gather(*[store.call(op.Enqueue((job(f"a{n}", ["p"]),))) for n in range(300)])

    asyncio.run(many())
    assert sum(commits) == 301
    assert len(commits) < 100
    assert store.call_sync(op.CountJobs()).states[QUEUED] == 300


def test_threads_and_loops_together_lose_nothing(shelf: Shelf) -> None:
    store = shelf.open()

    def by_thread(name: str) -> None:
        for n in range(40):
            enqueue(store, f"{name}{n}")

    async def by_loop(name: str) -> None:
        await asyncio.gather(*[store.call(op.Enqueue((job(f"{name}{n}", ["q"]),))) for n in range(40)])

    threads = [threading.Thread(target=by_thread, args=(f"t{n}-",)) for n in range(3)]
    threads += [threading.Thread(target=lambda n=n: asyncio.run(by_loop(f"l{n}-"))) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shelf.crash()
    assert shelf.reopen().call_sync(op.CountJobs()).states[QUEUED] == 240


def test_question_does_not_wait_for_the_disk(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.open()
    enqueue(store, "a")
    began, go_on = threading.Event(), threading.Event()
    append = file_module.JournalFile.append

    def wait(self: Any, *said: Any, **others: Any) -> None:
        began.set()
        assert go_on.wait(60)
        append(self, *said, **others)

    monkeypatch.setattr(file_module.JournalFile, "append", wait)
    thread = threading.Thread(target=enqueue, args=(store, "b"))
    thread.start()
    assert began.wait(60)
    now_ms = shelf.clock.now_ms()
    shelf.clock.advance(seconds=5)
    assert store.call_sync(op.Get(("a", "b"))).records[1] is None
    assert store.engine.now_ms == now_ms
    go_on.set()
    thread.join()
    assert record(store, "b").enqueued_ms == now_ms


def test_a_canceled_call_is_done_and_harms_nobody(shelf: Shelf) -> None:
    store = shelf.open()

    async def cancel() -> None:
        call = asyncio.create_task(store.call(op.Enqueue((job("a", ["p"]),))))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await store.call(op.Enqueue((job("b", ["p"]),)))

    asyncio.run(cancel())
    assert [record(store, job_id).number for job_id in "ab"] == [1, 2]


async def test_a_canceled_claim_that_is_repeated_returns_the_missed_grants(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "MISSED_MAX", 2)
    store = shelf.open()
    enqueue(store, "a", "b")

    async def waited(_ticket: Ticket) -> None:
        """Wait for ever: the reply may be there before the caller is canceled."""
        await asyncio.get_running_loop().create_future()

    async def miss(operation: op.Operation[Any]) -> None:
        with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
            patch.setattr(Ticket, "waited", waited)
            call = asyncio.create_task(store.call(operation))
            await asyncio.sleep(0)
            call.cancel()
            await call

    asked = op.Exchange("w", limit=1)
    await miss(asked)
    await miss(asked)
    assert [grant.spec.id for grant in (await store.call(asked)).grants] == ["a"]
    assert not store._missed
    assert (await store.call(asked)).grants == ()
    for _ in range(4):
        await miss(op.Tick())
    assert len(store._missed) == 2


def test_after_its_end_a_store_says_so(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    waiter = threading.Thread(target=store.wait_sync, args=(Interest(jobs=("a",)), 60))
    waiter.start()
    until_sync(lambda: store._waiting, "it waits")
    asyncio.run(store.close())
    waiter.join(60)
    assert not waiter.is_alive()
    for _ in range(2):
        store.close_sync()
        with pytest.raises(BackendUnavailableError, match="the sqlite backend was closed"):
            enqueue(store, "b")


def test_a_second_close_waits_until_the_file_is_closed(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.open()
    enqueue(store, "a")
    go_on = threading.Event()
    monkeypatch.setattr(compaction.Compaction, "close", lambda *_, **__: go_on.wait(LIMIT_S))

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


def test_unstartable_thread_is_logged_and_retried(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = shelf.open()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(BackendUnavailableError, match="can't start new thread"):
        enqueue(store, "a")
    monkeypatch.undo()
    enqueue(store, "a")


def test_unused_store_closes_at_once(shelf: Shelf) -> None:
    asyncio.run(shelf.open().close())
    assert not shelf.path.exists()


# --- as part of a scheduler ------------------------------------------------------------------------------------------


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
            await sched.drain(timeout=60)
        await sched.close()

    asyncio.run(first())
    asyncio.run(second())
    assert ran == [f"w{n}" for n in range(5)]


def test_file_store_renews_and_records_leases_of_its_process(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a")
    grant = claim(store, lease_ms=1000)[0]
    forget = store.adopt(lambda: [("a", grant.token)])
    shelf.clock.advance(seconds=60)
    store.call_sync(op.Tick())
    assert record(store, "a").state is STARTED
    shelf.crash()
    again = shelf.reopen()
    assert record(again, "a") == record(again, "a")
    assert (record(again, "a").state, record(again, "a").losses) == (STARTED, 0)
    forget()
    assert finish(again, grant) is op.Verdict.DONE


def test_it_says_once_that_nobody_serves_its_jobs(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    store = shelf.open()
    enqueue(store, "a")
    for _ in range(3):
        shelf.clock.advance(seconds=6)
        store.call_sync(op.Tick())
    assert events(caplog) == ["sqlite.unserved"]


def test_opened_file_logs_the_replayed_rows(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "queuehint.sqlite")
    enqueue(shelf.open(), "a")
    shelf.crash()
    shelf.reopen(by_another=True).call_sync(op.Peek())
    assert events(caplog) == ["sqlite.opened", "sqlite.opened"]
    assert [entry.__dict__["replayed"] for entry in caplog.records] == [0, 2]


def test_new_schedule_wakes_workers(shelf: Shelf) -> None:
    store = shelf.open()
    waiter = threading.Thread(target=store.wait_sync, args=(Interest(pools=("default",)), 60))
    waiter.start()
    until_sync(lambda: store._waiting, "it waits")
    store.call_sync(op.PutSchedule("s", job("s"), Recurrence(every_ms=1000), shelf.clock.now_ms()))
    waiter.join(60)
    assert not waiter.is_alive()
    assert store.call_sync(op.Exchange("w", limit=1)).due


# --- the loop goes on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["ask", "list", "wait", "leave"])
async def test_the_loop_goes_on_while_the_writer_has_the_engine(shelf: Shelf, what: str) -> None:
    store = shelf.open()
    enqueue(store, "a")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock:
            held.set()
            assert release.wait(60)

    waiting = asyncio.create_task(store.wait(Interest(jobs=("a",)), 60))
    await until(lambda: len(store._waiting) == 1)
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    if what == "leave":
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        acting = None
    else:
        questions = {"ask": op.Get(("a",)), "list": op.List(RecordFilter(path=("p",)))}
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
