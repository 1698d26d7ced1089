"""Jobs that applications write in their transactions, taken by the process that leads, and run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import psycopg
import pytest

from queuehint import JobState, QueueFullError, Scheduler
from queuehint import operations as op
from queuehint.backends.journal.leading import LOST
from queuehint.backends.postgres.backend import PostgresBackend
from queuehint.backends.postgres.journal import journal as journal_module
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.lead import PostgresLead
from queuehint.errors import JobNotFoundError
from queuehint.operations.inbox import operations_of, row_of
from tests.inbox_doors import APPS, App, Psycopg, app_of, looks_at_rows, make_tables
from tests.postgres_servers import PostgresServer, until_waiting
from tests.sqlite_store import leave_journal
from tests.support import until_sync

EACH_APP = pytest.mark.parametrize("kind", APPS, ids=lambda kind: kind.name)
UPDATE = "UPDATE document SET version = version + 1 WHERE id = 'd1'"


class Place:
    """A database of an application with the tables of a store, and a scheduler that keeps its jobs there."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server, self.database = server, database
        self.url = f"{server.url_of(database)}?namespace=docs&durability=process"
        self.ran: list[tuple[str, int]] = []
        self.sched = self.scheduler()

    def scheduler(self) -> Scheduler:
        sched = Scheduler(self.url)

        @sched.job(queue_hint=["{doc}"])
        def save(doc: str, version: int = 0) -> str:
            self.ran.append((doc, version))
            return f"{doc} {version}"

        return sched

    @property
    def save(self) -> Any:
        return self.sched.jobs["save"]

    @property
    def backend(self) -> PostgresBackend:
        assert isinstance(self.sched.backend, PostgresBackend)
        return self.sched.backend

    def app(self, kind: type[App] = Psycopg) -> AbstractContextManager[App]:
        return app_of(kind, self.server, self.database, self.sched)


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database() as database:
        make_tables(postgres_server, database)
        yield database


@pytest.fixture
def place(postgres_server: PostgresServer, database: str) -> Iterator[Place]:
    found = Place(postgres_server, database)
    yield found
    found.sched.close_sync()
    tables = ", ".join(f"queuehint.{each}" for each in ("inbox", "journal", "snapshot", "header", "leader"))
    postgres_server.run(f"TRUNCATE {tables}", "UPDATE document SET version = 0", database=found.database)


@EACH_APP
def test_jobs_of_transactions_run_in_the_order_of_commits(place: Place, kind: type[App]) -> None:
    with place.app(kind) as one, place.app(kind) as two:
        two.do(two.begin)
        two.do(two.execute, UPDATE)
        one.do(one.begin)
        early = one.do(one.enqueue, place.save, "d1", 1)
        waiting = one.start(one.execute, UPDATE)
        until_waiting(place.server, database=place.database)
        late = two.do(two.enqueue, place.save, "d1", 2)
        with pytest.raises(JobNotFoundError):
            place.sched.get_sync(early.id)
        two.do(two.commit)
        assert place.sched.get_sync(late.id).state is JobState.QUEUED
        waiting.result(30)
        lost = one.do(one.enqueue, place.save, "d2", 9)
        one.do(one.rollback)
        one.do(one.begin)
        again = one.do(one.enqueue, place.save, "d1", 3)
        one.do(one.commit)
        place.sched.drain_sync(run=True)
        assert place.ran == [("d1", 2), ("d1", 3)]
        assert again.result_sync() == "d1 3"
    for handle in (early, lost):
        with pytest.raises(JobNotFoundError):
            place.sched.get_sync(handle.id)


def test_committed_job_is_visible_at_once_to_leader_and_guest(place: Place) -> None:
    guest = place.scheduler()
    with ExitStack() as stack:
        stack.callback(guest.close_sync)
        app = stack.enter_context(place.app())
        place.sched.stats_sync()
        for n in range(20):
            app.do(app.begin)
            handle = app.do(app.enqueue, place.save, f"d{n}", n)
            app.do(app.commit)
            assert (place.sched, guest)[n % 2].get_sync(handle.id).state is JobState.QUEUED
            app.do(app.begin)
            other = app.do(app.enqueue, place.save, f"d{n}", n)
            app.do(app.commit)
            assert (place.sched, guest)[n % 2].why_sync(other.id).kind == "place"


def test_jobs_are_taken_without_being_asked_for(place: Place) -> None:
    place.sched.stats_sync()
    unconnected = place.scheduler()
    with app_of(Psycopg, place.server, place.database, unconnected) as app:
        app.do(app.begin)
        app.do(app.enqueue, unconnected.jobs["save"], "d1")
        app.do(app.commit)
        until_sync(lambda: place.sched.stats_sync().enqueued == 1, "it is taken")
    assert place.server.run("SELECT count(*) FROM queuehint.inbox", database=place.database) == [(0,)]


def test_a_submission_takes_effect_all_or_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.sched.limit_sync(None, max_pending=3500)
    with place.app() as app:
        app.do(app.begin)
        good = app.do(app.enqueue_many, place.save, [("d1", n) for n in range(2000)])
        app.do(app.commit)
        assert place.sched.get_sync(good[-1].id).state is JobState.QUEUED
        app.do(app.begin)
        bad = app.do(app.enqueue_many, place.save, [("d1", n) for n in range(2000)])
        app.do(app.commit)
        for handle in (bad[0], bad[-1]):
            with pytest.raises(JobNotFoundError):
                place.sched.get_sync(handle.id)
    assert place.sched.stats_sync().unfinished == 2000
    refused = [vars(each) for each in caplog.records if getattr(each, "event", "") == "postgres.inbox_refused"]
    assert [each["error"].split(":")[0] for each in refused] == [QueueFullError.__name__]
    assert [(each["job_id"], each["task"], each["jobs"]) for each in refused] == [(bad[0].id, "save", 2000)]
    before = place.backend.engine
    while place.backend.call_sync(op.Tick()).more:
        pass
    assert len(before.table.jobs) == 2000, "no hidden part is left"
    leave_journal(place.backend)
    place.sched.close_sync()
    place.sched = place.scheduler()
    assert place.sched.stats_sync().unfinished == 2000
    assert place.backend.engine is not before
    place.backend.engine.check()
    events = {getattr(each, "event", "") for each in caplog.records}
    assert "journal.replay_failed" not in events, "the row is refused again as it was then"


def test_row_waits_while_its_jobs_are_staged(place: Place) -> None:
    backend = place.backend
    with place.app() as app:
        app.do(app.begin)
        handles = app.do(app.enqueue_many, place.save, [("d1", n) for n in range(1_100)])
        app.do(app.enqueue, place.save, "d2")
        app.do(app.commit)
    with psycopg.connect(place.server.url_of(place.database), autocommit=True) as connection:
        found = connection.execute("SELECT data FROM queuehint.inbox ORDER BY position").fetchone()
    assert found is not None
    first, *_ = operations_of(found[0])
    assert isinstance(first, op.Enqueue)
    place.server.run("UPDATE queuehint.inbox SET namespace = 'aside'", database=place.database)
    backend.call_sync(op.Enqueue(first.jobs[:1], staged="another"))
    place.server.run("UPDATE queuehint.inbox SET namespace = 'docs'", database=place.database)
    looks = looks_at_rows(backend)
    until_sync(lambda: looks, "a leader looks at it")
    assert place.sched.stats_sync().enqueued == 0
    assert all(looks), "it has to wait"
    backend.call_sync(op.Withdraw("another"))
    until_sync(lambda: place.sched.stats_sync().enqueued == 1_101, "it is taken")
    assert place.sched.get_sync(handles[-1].id).state is JobState.QUEUED


def test_call_comes_behind_rows_that_had_to_wait(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresJournal, "looks_every_s", 3600.0)
    again = place.save.using(id="a")
    place.backend.call_sync(op.Enqueue((again.spec("d1", 0),), staged="another"))
    with place.app() as app:
        app.do(app.begin)
        app.do(app.enqueue, again, "d1", 2)
        app.do(app.commit)
    place.save.enqueue_sync("d1", 1)
    place.backend.call_sync(op.Withdraw("another"))
    place.save.enqueue_sync("d1", 3)
    place.sched.drain_sync(run=True)
    assert place.ran == [("d1", 1), ("d1", 2), ("d1", 3)]


def test_a_row_that_is_none_is_dropped_and_said(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.sched.stats_sync()
    insert = "INSERT INTO queuehint.inbox (namespace, data) VALUES ('docs', %s)"
    with psycopg.connect(place.server.url_of(place.database), autocommit=True) as connection:
        for data in (b"", b"2\n{}", b'1\n{"":"Peek"}', row_of([op.Cancel(("nobody",))])):
            connection.execute(insert, (data,))
    until_sync(
        lambda: not place.server.run("SELECT id FROM queuehint.inbox", database=place.database), "they are taken"
    )
    events = [getattr(each, "event", "") for each in caplog.records]
    assert events.count("postgres.inbox_refused") == 3


def test_jobs_whose_transaction_the_server_has_lost_are_canceled(place: Place) -> None:
    place.sched.stats_sync()
    with place.app() as app:
        app.do(app.begin)
        handle = app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
    assert place.sched.get_sync(handle.id).state is JobState.QUEUED
    journal: Any = place.backend._journal
    journal._lost.append(row_of([op.Enqueue((place.sched.get_sync(handle.id).spec,))]))
    until_sync(lambda: place.sched.get_sync(handle.id).state is JobState.CANCELED, "it is canceled")
    error = place.sched.get_sync(handle.id)
    assert LOST in repr(error)


def test_writers_are_followed_while_the_leader_changes(place: Place) -> None:
    place.sched.stats_sync()
    others = [place.scheduler() for _ in range(2)]
    for other in others:
        other.stats_sync()
    done = threading.Event()

    def write() -> None:
        with psycopg.connect(place.server.url_of(place.database)) as connection:
            for n in range(150):
                connection.execute(UPDATE)
                place.save.within(connection).enqueue_sync("d1", n)
                connection.commit()
        done.set()

    writing = threading.Thread(target=write)
    writing.start()
    place.backend.close_sync()
    until_sync(done.is_set, "all are written")
    writing.join()
    others[0].drain_sync(run=True)
    until_sync(lambda: len(place.ran) == 150, "all have run")
    assert place.ran == [("d1", n) for n in range(150)]
    for other in others:
        other.close_sync()


def in_time(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(call, 60))


@pytest.mark.parametrize("asks", ["a question", "a change", "nothing"])
def test_deposed_leader_becomes_a_guest(place: Place, asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresLead, "renew_every_s", 0.1)
    monkeypatch.setattr(journal_module, "THERE_EVERY_S", 0.1)
    other = place.scheduler()
    with ExitStack() as stack:
        stack.callback(other.close_sync)
        place.save.enqueue_sync("d1")
        take = "UPDATE queuehint.leader SET secret = '', expires_at = '-infinity' WHERE namespace = 'docs'"
        place.server.run(take, database=place.database)
        other.jobs["save"].enqueue_sync("d2")
        if asks == "nothing":
            until_sync(lambda: not place.backend._is_open, "it has learned that another one leads")
        elif asks == "a change":
            in_time(place.save.enqueue("d3"))
        until_sync(
            lambda: in_time(place.sched.stats()).enqueued == other.stats_sync().enqueued, "it asks the other one"
        )
        assert isinstance(other.backend, PostgresBackend)
        assert other.backend._is_open
        assert not place.backend._is_open


def test_tables_missing_at_close_are_logged_by_name(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.save.enqueue_sync("d1")
    monkeypatch.setattr(journal_module, "THERE_EVERY_S", 0.0)
    place.server.run("ALTER SCHEMA queuehint RENAME TO moved", database=place.database)
    try:
        place.sched.close_sync()
    finally:
        place.server.run("ALTER SCHEMA moved RENAME TO queuehint", database=place.database)
    said = {getattr(record, "event", ""): record.getMessage() for record in caplog.records}
    assert (
        said["postgres.journal_gone"] == "the journal is not there any more, or cannot be reached; nothing is written"
    )
