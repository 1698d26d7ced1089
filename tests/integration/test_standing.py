"""A process that stands by follows the journal and leads next; others leave the lead to it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queuehint import JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.base import BackendOptions, open_backend
from queuehint.backends.journal import opening
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.journal.lead import standing as standing_module
from queuehint.backends.journal.lead.leadership import LedElsewhereError
from queuehint.backends.journal.lead.replica import Replica
from queuehint.backends.journal.lead.standing import SPARE_EVERY_S, Standby
from queuehint.backends.journal.snapshots import compaction
from queuehint.backends.journal.store import BehindError
from queuehint.backends.journal.writing import NUDGE
from queuehint.backends.postgres.journal.reader import PostgresReader
from queuehint.backends.postgres.lead import PostgresLead
from queuehint.backends.sqlite import store as file_store
from queuehint.backends.sqlite.lock import find_holder, standby_path
from queuehint.cli.app import app
from queuehint.errors import BackendUnavailableError
from tests.commands import CliRunner
from tests.folders import quick_folder
from tests.postgres_servers import shared_postgres
from tests.prefork import start
from tests.servers import new_namespace
from tests.sqlite_store import claim, enqueue, finish, leave_journal, record
from tests.support import LIMIT_S, until_sync


@pytest.fixture(params=["file", pytest.param("application", marks=pytest.mark.nightly), "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "postgres":
        yield f"{shared_postgres().url}?namespace={new_namespace()}&durability=process"
    else:
        with quick_folder() as folder:
            shared = "yes" if request.param == "application" else "no"
            yield f"sqlite:///{folder}/jobs.db?durability=process&shared={shared}"


@pytest.fixture
def make(url: str) -> Iterator[Callable[[], JournalBackend]]:
    made: list[JournalBackend] = []

    def open_it() -> JournalBackend:
        backend = open_backend(url, BackendOptions())
        assert isinstance(backend, JournalBackend)
        made.append(backend)
        return backend

    yield open_it
    for each in made:
        each.close_sync()


@pytest.fixture
def standing() -> Iterator[Callable[[JournalBackend], None]]:
    """Have stores stand by, each in a thread; a call returns once it has said so."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin(backend: JournalBackend) -> None:
        standby = Standby(backend)
        threads.append(threading.Thread(target=standby.run, args=(stop,)))
        threads[-1].start()
        until_sync(lambda: standby._asks_s, "it stands by")

    yield begin
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)


def fill(store: Any, count: int, begin: int = 0) -> None:
    for n in range(begin, begin + count):
        enqueue(store, f"j{n}")
        for grant in claim(store, limit=n % 3):
            finish(store, grant)


def states(store: Any) -> Any:
    """Return the states of all jobs, as the process that leads has them."""
    return [record(store, f"j{n}").state for n in range(5)], store.call_sync(NUDGE)


def test_a_replica_has_the_engine_of_the_leader(make: Callable[[], JournalBackend]) -> None:
    leader, other = make(), make()
    fill(leader, 30)
    with closing(other.store.read()) as reader:
        replica = Replica(reader, other.engine_options)
        replica.follow(reader)
        fill(leader, 30, 30)
        assert replica.follow(reader) > 30
        assert replica.follow(reader) == 0
        there, here = leader.engine.table.jobs, replica._engine.table.jobs
        assert [(each.id, each.state) for each in here.values()] == [(each.id, each.state) for each in there.values()]
        assert replica._engine.token == leader.engine.token
        assert list(replica._answers.workers) == list(leader._answers.workers)
        assert not reader.stand_by()
        before = states(leader)
        leave_journal(leader)
        leader.close_sync()
        assert reader.stand_by()
        other.take_over(replica)
    assert other.is_leading
    assert other.engine is replica._engine
    assert states(other) == before
    other.engine.check()


@pytest.mark.slow
def test_replica_overtaken_by_a_snapshot_is_discarded(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other, third = make(), make(), make()
    fill(leader, 10)
    with closing(other.store.read()) as reader:
        replica = Replica(reader, other.engine_options)
        replica.follow(reader)
        monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 5)
        fill(leader, 30, 10)
        until_sync(lambda: leader._journal.header is not None, "there is a snapshot")  # type: ignore[union-attr]
        fill(leader, 3, 40)
        with pytest.raises(BehindError):
            until_sync(lambda: replica.follow(reader) < 0, "it is left behind")
        before = states(leader)
        leader.close_sync()
        other.take_over(replica)
        assert other.is_leading
        assert other.engine is not replica._engine
        assert states(other) == before
        other.close_sync()
        with closing(third.store.read()) as again:
            fresh = Replica(again, third.engine_options)
            fresh.follow(again)
            third.take_over(fresh)
        assert third.engine is fresh._engine
        assert states(third) == before


def test_standby_leads_at_once_and_others_yield_to_it(
    make: Callable[[], JournalBackend], standing: Callable[[JournalBackend], None]
) -> None:
    leader, guest, ready = make(), make(), make()
    leader.adopt(list)
    fill(leader, 20)
    guest.call_sync(NUDGE)
    standing(ready)
    before = states(leader)
    leave_journal(leader)
    leader.close_sync()
    assert states(guest) == before
    until_sync(lambda: ready.is_leading, "it leads")
    assert not guest.is_leading
    guest.adopt(list)
    claim(guest, limit=0)
    assert ready.is_leading, "it leaves the lead to nobody"


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # rows of a file have no marks
def test_standby_does_not_reread_rows_after_a_lost_session(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_module, "AGAIN_S", 0.01)
    leader, ready = make(), make()
    leader.adopt(list)
    fill(leader, 20)
    standby, stop = Standby(ready), threading.Event()
    thread = threading.Thread(target=standby.run, args=(stop,))
    thread.start()
    try:
        until_sync(lambda: standby._asks_s, "it stands by")
        replica, reader = standby._replica, standby._reader
        assert isinstance(reader, PostgresReader)
        shared_postgres().run(f"SELECT pg_terminate_backend({reader._session.pid})")
        until_sync(lambda: standby._reader not in {None, reader}, "it reads by another session")
        fill(leader, 20, 20)
        leave_journal(leader)
        leader.close_sync()
        until_sync(lambda: ready.is_leading, "it leads")
        assert replica is not None
        assert ready.engine is replica._engine
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_file_is_briefly_left_to_a_standby_each_time(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(file_store, "time", SimpleNamespace(monotonic=lambda: now))
    store = make().store
    with closing(store.read()) as reader:
        assert reader.stand_by(), "nobody leads"
        for _ in range(2):
            with pytest.raises(LedElsewhereError):
                store.take_lead(is_ready=False)
            now += 1.5 * file_store.YIELDS_S
            store.take_lead(is_ready=False).release()
            now += 1.5 * file_store.YIELDS_S
        store.take_lead(is_ready=True).release()
    store.take_lead(is_ready=False).release()


@pytest.mark.slow
def test_lead_of_a_stalled_process_is_not_awaited(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_store, "YIELDS_S", 1.0)  # as long as in PostgreSQL
    leader, guest, ready = make(), make(), make()
    fill(leader, 5)
    with closing(ready.store.read()) as reader:
        begun_s = time.monotonic()
        assert not reader.stand_by()
        leader.close_sync()
        guest.call_sync(NUDGE)
        assert time.monotonic() - begun_s > 0.5
        assert guest.is_leading


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # the lock of a file is never lost
def test_a_leader_that_is_deposed_is_a_guest(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresLead, "renew_every_s", 0.1)
    leader, other = make(), make()
    fill(leader, 5)
    run = shared_postgres().run
    # With the secret of another leader too, or a renewal may come before the enqueue.
    run(
        f"UPDATE queuehint.leader SET expires_at = '-infinity', secret = '' WHERE namespace = '{leader.namespace}'",
        database="postgres",
    )
    enqueue(other, "j5")
    assert other.is_leading
    until_sync(lambda: not leader.is_leading, "the next renewal")
    enqueue(leader, "j6")
    assert not leader.is_leading
    assert record(leader, "j5").number + 1 == record(other, "j6").number


@pytest.mark.slow
def test_leader_that_yields_regains_an_unclaimed_lead(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LEAVES_S", 0.5)
    backend = make()
    backend.leaves_lead = True
    for _ in range(2):
        begun_s = time.monotonic()
        enqueue(backend, "a")
        assert time.monotonic() - begun_s > 0.4
        assert backend.is_leading
        leave_lead(backend, make())


def leave_lead(backend: JournalBackend, other: JournalBackend) -> None:
    """Have a process leave the lead to one that takes it, and ends."""
    other.keeps_lead = True
    other.call_sync(NUDGE)
    assert other.is_leading
    other.close_sync()


def test_yielding_leader_is_a_guest_only_of_live_leaders(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LEAVES_S", LIMIT_S)
    backend, leader = make(), make()
    backend.leaves_lead = True
    assert backend.store.find_leader() is None
    leader.call_sync(NUDGE)
    enqueue(backend, "a")
    found = backend.store.find_leader()
    assert found is not None
    assert found.pid == os.getpid()
    leader.close_sync()
    assert backend.store.find_leader() is None
    with quick_folder() as folder:  # what one leaves that was killed
        (folder / "jobs.db.lock").write_text(f"{os.getpid():<20}{folder}/jobs.db.sock\n")
        assert find_holder(folder / "jobs.db.lock") is None


@pytest.mark.slow
def test_jobs_of_a_worker_survive_yielding_its_lead(
    make: Callable[[], JournalBackend], standing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LEAVES_S", 0.0)
    worker, leader = make(), make()
    worker.leaves_lead = True
    worker.adopt(list)
    enqueue(worker, "a")
    (grant,) = claim(worker)
    assert worker.is_leading
    monkeypatch.setattr(opening, "_process", "another")
    standing(leader)
    until_sync(lambda: leader.is_leading, "it has the lead")
    assert not claim(leader)
    assert finish(worker, grant) is op.Verdict.DONE
    assert not worker.is_leading
    assert record(worker, "a").state is JobState.FINISHED


def test_spare_standby_follows_nothing_beside_another(
    make: Callable[[], JournalBackend], standing: Callable[..., None]
) -> None:
    leader, ready, spare = make(), make(), make()
    leader.adopt(list)
    enqueue(leader, "a")
    standing(ready)
    spares = Standby(spare, is_spare=True)
    for _ in range(3):
        assert spares._step() == SPARE_EVERY_S
    assert spares._replica is None
    leader.close_sync()
    until_sync(lambda: ready.is_leading, "the other one leads")
    until_sync(lambda: spares._step() is not None and spares._replica, "nobody stands by any more")
    ready.close_sync()
    until_sync(lambda: spares._step() is not None and spare.is_leading, "it leads")
    spares._forget()


@pytest.mark.slow
def test_process_without_a_leader_leads_before_it_reads_everything(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, backend = make(), make()
    fill(before, 5)
    before.close_sync()
    monkeypatch.setattr(standing_module, "Replica", lambda *_: pytest.fail("it reads the journal twice"))
    standby = Standby(backend)
    standby._step()
    assert backend.is_leading
    standby._forget()


def test_unfollowable_store_is_logged_once_per_reason(
    make: Callable[[], JournalBackend], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standing_module, "AGAIN_S", 0.0)
    reasons = iter(["one", "one", "other", "other", "other"])
    stop = threading.Event()

    def fail() -> Any:
        for reason in reasons:
            raise BackendUnavailableError(reason)
        stop.set()
        raise BackendUnavailableError("other")

    backend = make()
    monkeypatch.setattr(backend.store, "read", fail)
    Standby(backend).run(stop)
    assert [each.error for each in caplog.records] == ["one", "other"]  # type: ignore[attr-defined]


def test_a_command_leads_and_another_one_follows(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LEAVES_S", LIMIT_S)  # this process does not lead, however slow they are
    sched = Scheduler(url)

    @sched.job(queue_hint=["{doc}"])
    def edit(doc: str) -> str:
        return doc

    commands = [start("queuehint", "lead", url, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        handles = [edit.enqueue_sync("doc") for _ in range(5)]
        backend = sched.backend
        assert isinstance(backend, JournalBackend)
        until_sync(lambda: led_by(sched) in {each.pid for each in commands}, "a command leads")
        first = next(each for each in commands if each.pid == led_by(sched))
        second = next(each for each in commands if each is not first)
        assert any("stands by" in line for line in second.stderr)  # type: ignore[union-attr]
        if url.startswith("sqlite"):  # one at a time says so, by a lock; the first has it for a moment still
            said = standby_path(Path(backend.name))
            until_sync(lambda: said.read_text().strip() == str(second.pid), "others leave the lead to it")
        first.send_signal(signal.SIGKILL)
        first.wait()
        if url.startswith("postgres"):  # its session has ended: nobody waits for its lease
            extend = "UPDATE queuehint.leader SET expires_at = clock_timestamp() + interval '1 hour' WHERE pid = {}"
            shared_postgres().run(extend.format(first.pid), database="postgres")
        assert handles[0].state_sync() is JobState.QUEUED
        assert led_by(sched) == second.pid
        sched.drain_sync(run=True)
        assert [each.result_sync() for each in handles] == ["doc"] * 5
        second.send_signal(signal.SIGTERM)
        assert second.wait(LIMIT_S) == 0
    finally:
        for each in commands:
            each.kill()
            each.communicate()
        sched.close_sync()


def led_by(sched: Scheduler) -> int | None:
    sched.stats_sync()
    leader = sched.backend._leader  # type: ignore[attr-defined]
    return None if leader is None else leader.pid


def test_a_store_that_nobody_leads_is_refused_by_the_command() -> None:
    for wrong in ("redis://localhost:1/0", "memory://"):
        found = CliRunner().invoke(app, ["lead", wrong])
        assert (found.exit_code, "has no process that leads" in found.output) == (2, True), found.output
