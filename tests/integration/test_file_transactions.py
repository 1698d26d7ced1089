"""Jobs in the application's own transaction where its database is a file of SQLite, by each way to connect."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
from sqlalchemy import text

from queuehint import Claim, Flow, JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.journal.guests import guest as guest_module
from queuehint.backends.sqlite import bell as bell_module
from queuehint.backends.sqlite.bell import bell_path, ring
from queuehint.backends.sqlite.file import _make_private
from queuehint.backends.sqlite.inbox import HASTE, HASTE_S, LOOKS_EVERY_S, RESTS_EVERY_S, Inbox
from queuehint.backends.sqlite.layout import TABLES, statements
from queuehint.backends.sqlite.lock import take_lock
from queuehint.cli.app import app
from queuehint.client.transactions.adapters import adapter_of
from queuehint.client.transactions.sqlite3 import is_outside
from queuehint.errors import (
    BackendDeniedError,
    BackendUnavailableError,
    InvalidJobError,
    InvalidJobTypeError,
    JobNotFoundError,
)
from queuehint.testing import drain_sync, on_memory, relay_now, relay_now_sync
from queuehint.testing.relaying import inbox_of
from tests.commands import CliRunner
from tests.faults.checks import exchange, finished
from tests.file_doors import (
    FILE_APPS,
    Aiosqlite,
    FileCore,
    FileCoreAsync,
    FileCoreEvents,
    FileDjango,
    FileOrm,
    FileOrmAsync,
    FileScopedOrm,
    Sqlite,
    SqliteByHand,
    asked,
    jobs,
    make_application,
    rows,
)
from tests.folders import quick_folder
from tests.inbox_doors import (
    App,
    AsyncApp,
    Core,
    CoreAsync,
    looks_at_rows,
    refuses_bad_input,
    refuses_calls_of_the_other_kind,
)
from tests.support import LIMIT_S, until_sync

EACH_APP = pytest.mark.parametrize("kind", FILE_APPS, ids=lambda kind: kind.name)
UPDATE = "UPDATE document SET version = version + 1 WHERE id = 'd1'"


class Place:
    """The database of an application, and a scheduler that keeps its jobs there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.db"
        make_application(self.path)
        self.url = f"sqlite:///{self.path}?shared=yes&durability=process&namespace=docs"
        self.ran: list[tuple[str, int]] = []
        self.opened: list[Scheduler] = []
        self.sched = self.scheduler()

    def scheduler(self, url: str | None = None) -> Scheduler:
        sched = Scheduler(url or self.url)

        @sched.job(queue_hint=["{doc}"])
        def save(doc: str, version: int = 0) -> str:
            self.ran.append((doc, version))
            return f"{doc} {version}"

        self.opened.append(sched)
        return sched

    def made(self) -> None:
        """Make the tables, and lead no more."""
        sched = self.scheduler()
        sched.stats_sync()
        sched.close_sync()

    @property
    def save(self) -> Any:
        return self.sched.jobs["save"]

    def app(self, kind: type[App] = Sqlite) -> App:
        return kind(str(self.path), self.sched)

    @property
    def ids(self) -> list[str]:
        return [spec.id for spec in jobs(self.path)]


def events(caplog: pytest.LogCaptureFixture, name: str) -> int:
    """Return how often something was logged."""
    return [getattr(each, "event", "") for each in caplog.records].count(name)


@pytest.fixture
def place() -> Iterator[Place]:
    with quick_folder() as folder:
        found = Place(folder)
        yield found
        for sched in found.opened:
            sched.close_sync()


# --- by each way ------------------------------------------------------------------------------------------------------


@EACH_APP
def test_jobs_exist_exactly_if_the_transaction_commits(place: Place, kind: type[App]) -> None:
    place.made()
    with place.app(kind) as app:
        app.do(app.begin)
        app.do(app.execute, UPDATE)
        lost = app.do(app.enqueue, place.save, "d1")
        app.do(app.rollback)
        assert rows(place.path) == []
        app.do(app.begin)
        first = app.do(app.enqueue, place.save.using(priority=5), "d1", 2)
        app.do(app.execute, UPDATE)
        assert rows(place.path) == [], "not before the commit"
        app.do(app.execute, "SAVEPOINT before")
        app.do(app.enqueue, place.save, "d1", 3)
        app.do(app.execute, "ROLLBACK TO SAVEPOINT before")
        second = app.do(app.enqueue, place.save, "d1", 4)
        app.do(app.commit)
    assert place.ids == [first.id, second.id]
    assert lost.id not in place.ids
    assert [spec.claims for spec in jobs(place.path)] == [(Claim(("d1",)),)] * 2
    assert [spec.arguments for spec in jobs(place.path)] == [b'{"doc":"d1","version":2}', b'{"doc":"d1","version":4}']
    assert asked(place.path, "SELECT version FROM document WHERE id = 'd1'") == [(1,)]
    place.sched.drain_sync(run=True)
    assert place.ran == [("d1", 2), ("d1", 4)]
    assert rows(place.path) == []


@EACH_APP
def test_jobs_of_transactions_run_in_the_order_of_commits(place: Place, kind: type[App]) -> None:
    place.sched.stats_sync()
    with place.app(kind) as one, place.app(kind) as two:
        two.do(two.begin)
        two.do(two.execute, UPDATE)

        def wait() -> None:
            one.begin()
            one.execute(UPDATE)
            one.enqueue(place.save, "d1", 2)

        waiting = one.start(wait)
        late = two.do(two.enqueue, place.save, "d1", 1)
        with pytest.raises(JobNotFoundError):
            place.sched.get_sync(late.id)
        assert not waiting.done()
        two.do(two.commit)
        waiting.result(30)
        one.do(one.commit)
        assert place.sched.get_sync(late.id).state is JobState.QUEUED
        two.do(two.begin)
        again = two.do(two.enqueue, place.save, "d1", 3)
        two.do(two.commit)
        place.sched.drain_sync(run=True)
        assert place.ran == [("d1", 1), ("d1", 2), ("d1", 3)]
        assert again.result_sync() == "d1 3"


@pytest.mark.slow
@EACH_APP
def test_lists_flows_and_cancellations_are_one_row_each(place: Place, kind: type[App]) -> None:
    place.made()

    def build(flow: Flow) -> None:
        parts = [flow.add(place.save, f"d{n}", 1) for n in (1, 2)]
        flow.add(place.save.using(after=parts), "d3", 1)

    with place.app(kind) as app:
        app.do(app.begin)
        many = app.do(app.enqueue_many, place.save, [("d1", n) for n in range(700)])
        app.do(app.flow, "import", build)
        app.do(app.cancel, many[0])
        app.do(app.cancel, path=["d9"])
        app.do(app.commit)
    assert len(rows(place.path)) == 4
    place.sched.drain_sync(run=True)
    assert [n for doc, n in place.ran if doc == "d1"] == [*range(1, 700), 1]
    assert place.ran[-1] == ("d3", 1)
    assert len(place.ran) == 702
    assert place.sched.get_sync(many[0].id).state is JobState.CANCELED


@EACH_APP
def test_notify_changes_nothing_on_a_file(place: Place, kind: type[App]) -> None:
    place.made()
    with place.app(kind) as app:
        app.notify = True
        app.do(app.begin)
        job = app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
    assert place.ids == [job.id]


@EACH_APP
def test_bad_input_is_refused_before_anything_is_written(place: Place, kind: type[App]) -> None:
    place.made()
    with place.app(kind) as app:
        app.do(app.begin)
        refuses_bad_input(app, place.save)
        app.do(app.execute, UPDATE)
        good = app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
    assert place.ids == [good.id]


@EACH_APP
def test_calls_of_the_other_kind_are_refused_by_name(place: Place, kind: type[App]) -> None:
    place.made()
    with place.app(kind) as app:
        app.do(app.begin)
        refuses_calls_of_the_other_kind(app, place.save)
        app.do(app.commit)
    assert rows(place.path) == []


@EACH_APP
def test_a_connection_to_another_file_is_refused_by_name(place: Place, kind: type[App]) -> None:
    place.made()
    elsewhere = Place.__new__(Place)
    folder = place.path.with_name("elsewhere")
    folder.mkdir()
    elsewhere.__init__(folder)  # type: ignore[misc]
    elsewhere.made()
    with kind(str(elsewhere.path), place.sched) as app:
        app.do(app.begin)
        with pytest.raises(
            InvalidJobError, match=r"is connected to another database than Scheduler\('sqlite:.*elsewhere/app.db"
        ):
            app.do(app.enqueue, place.save, "d1")
        app.do(app.execute, UPDATE)
        app.do(app.commit)
    assert rows(elsewhere.path) == rows(place.path) == []


@EACH_APP
def test_a_link_to_the_file_is_the_file(place: Place, kind: type[App]) -> None:
    place.made()
    link = place.path.with_name("link.db")
    link.symlink_to(place.path)
    with kind(str(link), place.sched) as app:
        app.do(app.begin)
        handle = app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
    assert place.ids == [handle.id]


@EACH_APP
def test_file_without_tables_names_the_command_to_create_them(place: Place, kind: type[App]) -> None:
    with place.app(kind) as app:
        app.do(app.begin)
        with pytest.raises(Exception, match=r"no such table: main.queuehint_inbox") as raised:
            app.do(app.enqueue, place.save, "d1")
        app.do(app.rollback)
    assert "queuehint stats --target URL" in raised.value.__notes__[0]


@EACH_APP
def test_a_transaction_that_is_never_committed_hands_its_jobs_over(place: Place, kind: type[App]) -> None:
    place.made()
    sched, save = place.sched, place.save
    with place.app() as committed:
        committed.do(committed.enqueue, save.using(id="elsewhere"), "d1")
        committed.do(committed.commit)
    with on_memory(sched), place.app(kind) as app:

        def take() -> list[Any]:
            if isinstance(app, AsyncApp):
                handles: list[Any] = app.run(relay_now(sched, app.connection))
                return handles
            return relay_now_sync(sched, app.connection)

        app.do(app.begin)
        app.do(app.execute, UPDATE)
        app.do(app.execute, "SAVEPOINT before")
        first = app.do(app.enqueue, save, "d1")
        app.do(app.execute, "RELEASE SAVEPOINT before")
        second = app.do(app.enqueue, save, "d1")
        app.do(app.cancel, second)
        assert [handle.id for handle in app.do(take)] == [first.id, second.id]
        assert app.do(take) == []
        assert [record.id for record in drain_sync(sched)] == [first.id]
        assert second.state_sync() is JobState.CANCELED
        app.do(app.rollback)
    assert place.ids == ["elsewhere"]


# --- who else holds the file ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_leader_waits_for_a_transaction_in_bounded_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.backends.sqlite.file.BUSY_S", 0.5)
    before = place.save.using(id="before").enqueue_sync("d2")
    guest = place.scheduler()
    with place.app() as app:
        app.do(app.execute, UPDATE)
        handle = app.do(app.enqueue, place.save, "d1", 1)
        for sched in (place.sched, guest):
            assert sched.get_sync(before.id).state is JobState.QUEUED, "a question is answered meanwhile"
            with pytest.raises(JobNotFoundError):
                sched.get_sync(handle.id)
            began_s = time.monotonic()
            with pytest.raises(BackendUnavailableError, match="is held by another program: database is locked"):
                sched.jobs["save"].using(id="refused").enqueue_sync("d1", 2)
            assert time.monotonic() < began_s + LIMIT_S
        for sched in (place.sched, guest):
            with pytest.raises(JobNotFoundError):
                sched.get_sync("refused")
        monkeypatch.setattr("queuehint.backends.sqlite.file.BUSY_S", LIMIT_S)
        waiting = threading.Thread(target=lambda: place.save.using(id="waits").enqueue_sync("d1", 3))
        waiting.start()
        app.do(app.execute, UPDATE)
        app.do(app.commit)
        waiting.join(LIMIT_S)
    place.sched.drain_sync(run=True)
    assert sorted(place.ran) == [("d1", 1), ("d1", 3), ("d2", 0)]


def test_rows_wait_for_a_leader_and_for_one_another(place: Place) -> None:
    place.made()
    with place.app() as app:
        for n in range(40):
            app.do(app.enqueue, place.save, "d1", n)
            app.do(app.commit if n % 2 else app.rollback)
    place.sched.drain_sync(run=True)
    assert place.ran == [("d1", n) for n in range(40) if n % 2]


def test_rows_are_taken_without_being_asked_for(place: Place) -> None:
    place.sched.stats_sync()
    with place.app() as app:
        app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
        until_sync(lambda: not rows(place.path), "it is taken")
    assert place.sched.stats_sync().enqueued == 1


def test_a_submission_takes_effect_all_or_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.sched.limit_sync(None, max_pending=3500)
    with place.app() as app:
        good = app.do(app.enqueue_many, place.save, [("d1", n) for n in range(2000)])
        app.do(app.commit)
        assert place.sched.get_sync(good[-1].id).state is JobState.QUEUED
        bad = app.do(app.enqueue_many, place.save, [("d1", n) for n in range(2000)])
        after = app.do(app.enqueue, place.save, "d2")
        app.do(app.commit)
        assert place.sched.get_sync(after.id).state is JobState.QUEUED
        for handle in (bad[0], bad[-1]):
            with pytest.raises(JobNotFoundError):
                place.sched.get_sync(handle.id)
    assert place.sched.stats_sync().unfinished == 2001
    assert events(caplog, "sqlite.inbox_refused") == 1
    assert f"job {bad[0].id!r} of task 'save' and 1999 more: " in caplog.text


def test_row_waits_while_its_jobs_are_staged(place: Place) -> None:
    backend = place.sched.backend
    place.made()
    with place.app() as app:
        handles = app.do(app.enqueue_many, place.save, [("d1", n) for n in range(1_100)])
        app.do(app.enqueue, place.save, "d2")
        app.do(app.commit)
    first, *_, commit = [cast("Any", operation) for operation in rows(place.path)[0]]
    asked(place.path, "CREATE TABLE aside AS SELECT * FROM queuehint_inbox")
    asked(place.path, "DELETE FROM queuehint_inbox")
    backend.call_sync(attrs.evolve(first, jobs=first.jobs[:1], staged="another"))
    asked(place.path, "INSERT INTO queuehint_inbox SELECT * FROM aside")
    looks = looks_at_rows(backend)
    until_sync(lambda: looks, "a leader looks at it")
    assert place.sched.stats_sync().enqueued == 0
    assert all(looks), "it has to wait"
    backend.call_sync(attrs.evolve(commit, staged="another", jobs=1))
    until_sync(lambda: place.sched.stats_sync().enqueued == 1_101, "it is taken")
    assert place.sched.get_sync(handles[-1].id).state is JobState.QUEUED


def test_a_row_that_is_none_is_dropped_and_said(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.sched.stats_sync()
    for data in (b"", b"2\n{}", b'1\n{"":"Begin"}', "text", 5):
        asked(place.path, "INSERT INTO queuehint_inbox (data) VALUES (?)", data)
    with place.app() as app:
        app.do(app.cancel, "nobody")
        good = app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
    assert place.sched.get_sync(good.id).state is JobState.QUEUED
    assert events(caplog, "sqlite.inbox_refused") == 5
    assert asked(place.path, "SELECT count(*) FROM queuehint_inbox") == [(0,)]


def test_rows_removed_while_being_taken_are_not_taken(place: Place) -> None:
    place.sched.stats_sync()
    backend: Any = place.sched.backend
    inbox = backend._journal._inbox
    read = inbox.read
    refused: list[BackendUnavailableError] = []

    def read_and_lose(limit: int) -> Any:
        found = read(limit)
        if found and not refused:
            asked(place.path, "DELETE FROM queuehint_inbox WHERE number = ?", found[0].id)
        return found

    take = inbox.take

    def refusing(numbers: Any) -> None:
        try:
            take(numbers)
        except BackendUnavailableError as error:
            refused.append(error)
            raise

    inbox.read, inbox.take = read_and_lose, refusing
    with place.app() as app:
        lost = app.do(app.enqueue, place.save, "d1")
        kept = app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
    until_sync(lambda: bool(refused), "the leader has tried to take them")
    assert "another program has changed rows of the inbox" in str(refused[0])
    assert place.sched.get_sync(kept.id).state is JobState.QUEUED
    with pytest.raises(JobNotFoundError):
        place.sched.get_sync(lost.id)


def test_a_leader_looks_seldom_into_an_inbox_that_nobody_uses(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.sched.stats_sync()
    journal: Any = place.sched.backend._journal  # type: ignore[attr-defined]
    assert journal.looks_every_s == RESTS_EVERY_S
    with place.app() as app:
        app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
        until_sync(lambda: not rows(place.path), "it is taken")
    assert journal.looks_every_s == LOOKS_EVERY_S
    until_sync(lambda: journal._inbox._empty_at is not None, "it has found nothing")
    statements: list[str] = []
    journal._db.set_trace_callback(statements.append)
    until_sync(lambda: len(statements) > 5, "it looks")
    journal._db.set_trace_callback(None)
    assert set(statements) == {"PRAGMA data_version"}, "where nobody has written there is nothing to read"
    monkeypatch.setattr("queuehint.backends.sqlite.inbox.USED_S", 0)
    until_sync(lambda: journal.looks_every_s == RESTS_EVERY_S, "it rests")


@pytest.mark.parametrize("kind", [FileOrm, FileScopedOrm, FileOrmAsync, FileDjango], ids=lambda kind: kind.name)
def test_a_commit_of_which_a_library_tells_rings_the_leader(
    place: Place, kind: type[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuehint.backends.sqlite.inbox.RESTS_EVERY_S", 60)
    monkeypatch.setattr("queuehint.backends.sqlite.inbox.LOOKS_EVERY_S", 60)
    place.sched.stats_sync()
    rung: list[bytes] = []
    monkeypatch.setattr(bell_module, "_ring", tee(bell_module._ring, rung))
    with place.app(kind) as app:
        for n in range(3):
            app.do(app.begin)
            app.do(app.enqueue, place.save, "d1", n)
            app.do(app.enqueue, place.save, "d1", n)
            app.do(app.rollback)
        assert not rung, "nothing was committed"
        app.do(app.begin)
        app.do(app.enqueue, place.save, "d1", 1)
        app.do(app.enqueue, place.save, "d1", 2)
        app.do(app.commit)
        until_sync(lambda: not rows(place.path), "it is taken")
    assert 1 <= len(rung) <= 2
    assert set(rung) == {b"!"}


@pytest.mark.parametrize(
    "kind",
    [Sqlite, SqliteByHand, Aiosqlite, FileCore, FileCoreEvents, FileCoreAsync],
    ids=lambda kind: kind.name,
)
def test_a_row_that_is_coming_makes_the_leader_look_often(
    place: Place, kind: type[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuehint.backends.sqlite.inbox.RESTS_EVERY_S", 60)
    monkeypatch.setattr("queuehint.backends.sqlite.inbox.LOOKS_EVERY_S", 60)
    place.sched.stats_sync()
    journal: Any = place.sched.backend._journal  # type: ignore[attr-defined]
    rung: list[bytes] = []
    monkeypatch.setattr(bell_module, "_ring", tee(bell_module._ring, rung))
    with place.app(kind) as app:
        for n in range(2):
            app.do(app.begin)
            app.do(app.enqueue, place.save, "d1", n)
            assert rung == [b"?1"], "of a row that is not committed yet"
            until_sync(lambda: journal.looks_every_s < 60, "it looks often")
            app.do(app.rollback)
            assert rung == [b"?1"], "nothing was committed"
            rung.clear()
        app.do(app.begin)
        app.do(app.enqueue, place.save, "d1", 1)
        app.do(app.enqueue, place.save, "d1", 2)
        app.do(app.commit)
        until_sync(lambda: not rows(place.path), "it is taken")
        until_sync(lambda: journal.looks_every_s == 60, "no row is coming any more")
    assert rung in ([b"?1", b"?2"], [b"?1", b"?2", b"?2"])
    assert (len(rung) == 3) is isinstance(app, Core | CoreAsync), "a connection of SQLAlchemy tells before it commits"


def test_inbox_poll_interval_follows_the_delay_of_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.sched.stats_sync()
    inbox: Inbox = place.sched.backend._journal._inbox  # type: ignore[attr-defined]
    clock = [1000.0]
    monkeypatch.setattr("queuehint.backends.sqlite.inbox.time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert inbox.looks_every_s == RESTS_EVERY_S
    inbox._coming.note(5)
    for after_s, every_s in (
        (0, HASTE_S),
        (HASTE_S * HASTE * 4, HASTE_S * 4),
        (30, LOOKS_EVERY_S),
        (60, RESTS_EVERY_S),
    ):
        clock[0] = 1000 + after_s
        assert inbox.looks_every_s == pytest.approx(every_s)
    inbox._coming.note(5)
    inbox._seen = 4
    assert inbox.looks_every_s == HASTE_S
    inbox._seen = 5
    assert inbox.looks_every_s == LOOKS_EVERY_S
    for number in (7, 6):
        inbox._coming.note(number)
    inbox._seen = 6
    assert inbox.looks_every_s == HASTE_S, "the row rung for before is still to come"


def test_malformed_ring_does_not_stop_the_bell(place: Place) -> None:
    place.sched.stats_sync()
    inbox: Inbox = place.sched.backend._journal._inbox  # type: ignore[attr-defined]
    noted = inbox._coming.newest
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for said in (b"", b"?", b"??1", b"?-1", b"?" + b"9" * 20, b"?1 ", "?\u0661".encode(), b"x" * 5000):
            stranger.sendto(said, os.fspath(bell_path(place.path)))
        stranger.sendto(b"?7", os.fspath(bell_path(place.path)))
    until_sync(lambda: inbox._coming.newest != noted, "the last one is heard")
    assert inbox._coming.newest[0] == 7


def tee(call: Callable[[Path, bytes], None], calls: list[bytes]) -> Callable[..., None]:
    """Return a function that notes what its calls say."""

    def called(where: Path, said: bytes = b"!") -> None:
        calls.append(said)
        call(where, said)

    return called


def test_commit_of_each_scoped_session_is_reported() -> None:
    """A session may have the address of an earlier one, by which SQLAlchemy knows who listens."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    engine = create_engine("sqlite://")
    reported: list[int] = []
    for n in range(100):
        session: Any = Session(engine) if n % 2 else scoped_session(sessionmaker(engine))
        session.connection()
        assert adapter_of(session, "sqlite").after_commit(partial(reported.append, n))
        session.commit()
        session.close()
    engine.dispose()
    assert reported == [*range(100)]


def test_a_savepoint_of_a_session_rings_nobody_before_the_commit(place: Place) -> None:
    from sqlalchemy.orm import Session

    place.made()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell, place.app(FileOrm) as app:
        bell.bind(os.fspath(bell_path(place.path)))
        bell.setblocking(False)

        def write() -> None:
            with Session(app.engine) as session:  # type: ignore[attr-defined]
                session.execute(text(UPDATE))
                with session.begin_nested():
                    place.save.within(session).enqueue_sync("d1", 1)
                with pytest.raises(BlockingIOError):
                    bell.recv(1)
                session.commit()

        app.do(write)
        assert bell.recv(1) == b"!"
        with pytest.raises(BlockingIOError):
            bell.recv(1)


def test_bell_ends_with_its_leader_and_stale_ones_are_replaced(place: Place) -> None:
    where = bell_path(place.path)
    ring(place.path)  # nobody hears it
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(os.fspath(where))
    place.sched.stats_sync()
    assert where.is_socket()
    assert where.stat().st_mode & 0o777 == 0o600
    ring(place.path)
    place.sched.close_sync()
    assert not where.exists()
    until_sync(lambda: "queuehint-bell" not in {thread.name for thread in threading.enumerate()}, "its thread ends")


def test_a_file_that_is_no_bell_is_kept(place: Place) -> None:
    where = bell_path(place.path)
    where.write_text("of the application")
    place.sched.stats_sync()
    ring(place.path)
    place.sched.close_sync()
    assert where.read_text() == "of the application"


def test_a_leader_without_a_bell_looks_by_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell_module, "bell_path", lambda path: path.with_name("x" * 200))
    place.sched.stats_sync()
    with place.app(FileOrm) as app:
        app.do(app.begin)
        app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
        until_sync(lambda: not rows(place.path), "it is taken")


# --- the file of an application ---------------------------------------------------------------------------------------


def test_tables_of_the_application_stay_as_they_are(place: Place) -> None:
    asked(place.path, "PRAGMA user_version = 7")
    asked(place.path, "PRAGMA application_id = 1234")
    place.save.enqueue_sync("d1")
    place.sched.close_sync()
    assert asked(place.path, "PRAGMA user_version") == [(7,)]
    assert asked(place.path, "PRAGMA application_id") == [(1234,)]
    names = asked(place.path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    assert [name for (name,) in names] == [
        "document",
        *[f"queuehint_{each}" for each in ("inbox", "journal", "meta", "snapshot")],
        "sqlite_sequence",
    ]
    again = place.scheduler()
    again.drain_sync(run=True)
    assert place.ran == [("d1", 0)]


def test_commands_take_the_url_and_make_the_tables(place: Place) -> None:
    run = CliRunner()
    assert run.invoke(app, ["stats", "--target", place.url]).exit_code == 0
    with contextlib.closing(sqlite3.connect(place.path)) as db, db:
        handle = place.save.within(db).enqueue_sync("d1")
    shown = run.invoke(app, ["show", handle.id, "--target", place.url])
    assert (shown.exit_code, "QUEUED" in shown.stdout) == (0, True)
    assert run.invoke(app, ["doctor", place.url]).exit_code == 0
    asked(place.path, "DELETE FROM queuehint_snapshot")
    assert run.invoke(app, ["doctor", place.url]).exit_code != 0


def test_a_file_of_the_other_kind_is_refused_by_name(place: Place) -> None:
    own = place.path.with_name("own.db")
    first = place.scheduler(f"sqlite:///{own}")
    first.stats_sync()
    first.close_sync()
    for path, query, said in (
        (own, "?shared=yes", "has jobs only, and is no database of an application: leave out shared=yes"),
        (place.path, "", "with shared=yes jobs are kept beside its tables"),
    ):
        sched = place.scheduler(f"sqlite:///{path}{query}")
        with pytest.raises(BackendDeniedError, match=said):
            sched.stats_sync()
        reader = sched.backend.store.read  # type: ignore[attr-defined]
        with pytest.raises(BackendDeniedError, match=said):
            reader()
    with pytest.raises(InvalidJobError, match="requires a store on PostgreSQL, or on a SQLite file with shared=yes"):
        first.within(object())


def test_a_file_of_another_layout_or_namespace_is_refused(place: Place) -> None:
    place.made()
    other = place.scheduler(f"sqlite:///{place.path}?shared=yes&namespace=other")
    with pytest.raises(BackendDeniedError, match="holds the jobs of namespace 'docs', not 'other'"):
        other.stats_sync()
    with (
        contextlib.closing(sqlite3.connect(place.path)) as db,
        pytest.raises(InvalidJobError, match="leads to a file with jobs of another namespace than 'other'"),
    ):
        other.jobs["save"].within(db).enqueue_sync("d1")
    asked(place.path, "UPDATE queuehint_meta SET value = '99' WHERE name = 'layout'")
    with pytest.raises(
        BackendDeniedError, match=f"has tables of layout 99, and this release of queuehint knows {TABLES}"
    ):
        place.sched.stats_sync()
    asked(place.path, "DELETE FROM queuehint_meta WHERE name = 'layout'")
    with pytest.raises(BackendDeniedError, match="has tables of layout 0"):
        place.sched.stats_sync()


def test_tables_that_a_migration_has_made_are_used(place: Place) -> None:
    with contextlib.closing(sqlite3.connect(place.path)) as db:
        for statement in statements(shared=True):
            db.execute(statement)
        db.commit()
        early = place.save.within(db).enqueue_sync("d1")
        db.commit()
    place.sched.drain_sync(run=True)
    assert early.result_sync() == "d1 0"
    assert asked(place.path, "SELECT value FROM queuehint_meta WHERE name = 'namespace'") == [("docs",)]


def test_a_reader_makes_the_tables_unless_another_process_does(place: Place) -> None:
    store: Any = place.sched.backend.store  # type: ignore[attr-defined]
    held = take_lock(place.path)
    with pytest.raises(BackendUnavailableError, match="another process makes the tables just now"):
        store.read()
    held.release()
    reader = store.read()
    assert reader.is_made
    reader.close()
    assert asked(place.path, "SELECT count(*) FROM queuehint_inbox") == [(0,)]


def test_a_connection_of_the_same_process_keeps_its_locks(place: Place) -> None:
    attempt = f"import sqlite3; sqlite3.connect({str(place.path)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    with contextlib.closing(sqlite3.connect(place.path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        _make_private(place.path)
        found = subprocess.run([sys.executable, "-c", attempt], capture_output=True, text=True, check=False)
    assert "database is locked" in found.stderr


def test_file_locked_for_long_is_refused_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.backends.sqlite.file.BUSY_S", 0.3)
    with contextlib.closing(sqlite3.connect(place.path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute(UPDATE)
        with pytest.raises(BackendUnavailableError, match="is held by another program"):
            place.sched.stats_sync()
    place.sched.stats_sync()


def test_file_without_a_log_gets_one_without_readers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.backends.sqlite.file.BUSY_S", 0.3)
    with contextlib.closing(sqlite3.connect(place.path, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.execute("SELECT * FROM document").fetchall()
        with pytest.raises(BackendUnavailableError, match="is held by another program"):
            place.sched.stats_sync()
        db.execute("COMMIT")
        place.sched.stats_sync()
    assert asked(place.path, "PRAGMA journal_mode") == [("wal",)]


def test_foreign_statements_on_the_file_are_harmless(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RESTS_EVERY_S", "LOOKS_EVERY_S"):  # each call looks for itself
        monkeypatch.setattr(f"queuehint.backends.sqlite.inbox.{name}", 60)
    copy = tmp_path / "copy.db"
    place.made()
    with contextlib.closing(sqlite3.connect(place.path, timeout=20, isolation_level=None)) as db:
        acts: tuple[Callable[[], object], ...] = (
            lambda: db.execute("VACUUM"),
            lambda: db.backup(sqlite3.connect(copy)),
            lambda: db.executescript(
                "BEGIN IMMEDIATE; CREATE TABLE newer (id TEXT PRIMARY KEY, version INT, more INT);"
                "INSERT INTO newer SELECT *, 0 FROM document; DROP TABLE document;"
                "ALTER TABLE newer RENAME TO document; COMMIT"
            ),
            lambda: db.execute("PRAGMA wal_checkpoint(TRUNCATE)"),
            lambda: db.execute("REINDEX"),
            lambda: db.execute("ANALYZE"),
        )
        for n, act in enumerate(acts):
            db.execute("BEGIN IMMEDIATE")
            place.save.within(db).enqueue_sync("d1", 2 * n)
            db.execute("COMMIT")
            act()
            place.save.enqueue_sync("d1", 2 * n + 1)
            if n % 2:
                place.sched.close_sync()
                place.sched = place.scheduler()
    place.sched.drain_sync(run=True)
    assert place.ran == [("d1", n) for n in range(12)]
    restored = place.scheduler(f"sqlite:///{copy}?shared=yes&namespace=docs")
    place.ran.clear()
    restored.drain_sync(run=True)
    assert place.ran == [("d1", n) for n in range(3)], "what was committed when the copy was made"


def test_backup_restored_under_a_leader_takes_effect(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "copy.db"
    before = place.save.enqueue_sync("d1", 1)
    with contextlib.closing(sqlite3.connect(place.path)) as db, contextlib.closing(sqlite3.connect(copy)) as kept:
        db.backup(kept)
        after = place.save.enqueue_sync("d1", 2)
        kept.backup(db)

    def is_unknown() -> bool:
        try:
            return place.sched.get_sync(after.id) is None
        except JobNotFoundError:
            return True

    until_sync(is_unknown, "the leader has noticed")
    third = place.save.enqueue_sync("d1", 3)
    assert events(caplog, "sqlite.journal_replaced") == 1
    place.sched.drain_sync(run=True)
    assert place.ran == [("d1", 1), ("d1", 3)]
    assert (before.result_sync(), third.result_sync()) == ("d1 1", "d1 3")


def test_leader_with_a_repeatedly_replaced_journal_is_awaited(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guest_module, "SILENCE_S", 0.3)
    place.sched.stats_sync()
    asked(
        place.path,
        "CREATE TRIGGER takes_away AFTER INSERT ON queuehint_journal BEGIN "
        "DELETE FROM queuehint_journal WHERE number = new.number; INSERT INTO queuehint_inbox (data) VALUES (x'00'); "
        "END",
    )
    place.save.enqueue_sync("d0")  # from now on there is a row to be taken before each other one is written
    said = r"in use by another process, which has taken the lead again and again for 0\.3 s; nothing was changed"
    with pytest.raises(BackendUnavailableError, match=said):
        asyncio.run(asyncio.wait_for(place.save.enqueue("d1"), 60))
    with pytest.raises(BackendUnavailableError, match=said):
        place.save.enqueue_sync("d1")
    assert events(caplog, "sqlite.journal_replaced") < 2 * (2 + 0.3 / guest_module.RETRY_S)
    asked(place.path, "DROP TRIGGER takes_away")
    place.save.enqueue_sync("d2")
    place.sched.drain_sync(run=True)
    assert place.ran == [("d2", 0)]


def test_lease_of_a_replaced_journal_ends_nothing(place: Place, tmp_path: Path) -> None:
    """The same process grants the job again after a backup is put back: under another token."""
    copy = tmp_path / "copy.db"
    job = place.save.enqueue_sync("d1", 1)
    backend = place.sched.backend
    tokens: list[int] = []
    with contextlib.closing(sqlite3.connect(place.path)) as db, contextlib.closing(sqlite3.connect(copy)) as kept:
        db.backup(kept)
        for _ in range(3):
            [grant] = exchange(backend, "w", limit=1).grants
            assert grant.spec.id == job.id
            tokens.append(grant.token)
            kept.backup(db)
            until_sync(lambda: place.sched.get_sync(job.id).state is JobState.QUEUED, "the leader has noticed")
    [grant] = exchange(backend, "w", limit=1).grants
    assert tokens == sorted({*tokens}) and grant.token > tokens[-1]
    for token in tokens:
        answer = exchange(backend, "w", finished(attrs.evolve(grant, token=token)))
        assert answer.verdicts == (op.Verdict.LOST,)
    assert exchange(backend, "w", finished(grant)).verdicts == (op.Verdict.DONE,)


def test_backup_older_than_the_last_snapshot_takes_effect(place: Place, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    place.save.enqueue_sync("d1", 1)
    place.sched.close_sync()
    place.sched = place.scheduler()
    place.sched.stats_sync()
    with contextlib.closing(sqlite3.connect(place.path)) as db, contextlib.closing(sqlite3.connect(copy)) as kept:
        db.backup(kept)
        for n in range(2, 5):
            place.save.enqueue_sync("d1", n)
        kept.backup(db)
    place.sched.close_sync()  # the snapshot at the end would be of what was replaced
    place.sched = place.scheduler()
    place.sched.drain_sync(run=True)
    assert place.ran == [("d1", 1)]


# --- which connections ------------------------------------------------------------------------------------------------


def test_a_connection_that_commits_each_statement_by_itself_is_refused(place: Place) -> None:
    from sqlalchemy import create_engine

    place.made()
    said = r'is in no transaction.*execute "BEGIN IMMEDIATE" before it'
    with (
        contextlib.closing(sqlite3.connect(place.path, isolation_level=None)) as db,
        pytest.raises(InvalidJobError, match=said),
    ):
        place.save.within(db).enqueue_sync("d1")
    engine = create_engine(f"sqlite:///{place.path}", isolation_level="AUTOCOMMIT")
    with engine.connect() as alchemist, pytest.raises(InvalidJobError, match="AUTOCOMMIT"):
        place.save.within(alchemist).enqueue_sync("d1")
    engine.dispose()
    said = r"is in no transaction.*`with transaction.atomic\(\):`"
    with place.app(FileDjango) as app, pytest.raises(InvalidJobError, match=said):
        app.do(app.enqueue, place.save, "d1")
    assert rows(place.path) == []


def test_job_may_be_the_first_statement_where_an_event_begins(place: Place) -> None:
    place.made()
    app = FileCoreEvents(str(place.path), place.sched)
    with app, app.engine.connect() as connection:  # begun by its first statement
        handle = place.save.within(connection).enqueue_sync("d1")
        assert place.ids == []
        connection.commit()
    assert place.ids == [handle.id]


async def test_asynchronous_autocommit_connection_is_refused(place: Place) -> None:
    import aiosqlite

    async with aiosqlite.connect(place.path, isolation_level=None) as db:
        with pytest.raises(InvalidJobError, match=r'is in no transaction.*execute "BEGIN IMMEDIATE" before it'):
            await place.save.within(db).enqueue("d1")


@pytest.mark.parametrize(
    "autocommit, isolation, in_transaction, commits",
    [
        (None, "", False, False),
        (None, None, False, True),
        (None, None, True, False),
        (-1, "", False, False),
        (-1, None, False, True),
        (True, "", False, True),
        (True, "", True, False),
        (False, None, False, False),
    ],
)
def test_connection_of_a_later_python_reports_its_autocommit(
    autocommit: Any, isolation: str | None, in_transaction: bool, commits: bool
) -> None:
    facts = {"isolation_level": isolation, "in_transaction": in_transaction}
    connection = SimpleNamespace(**facts, **({} if autocommit is None else {"autocommit": autocommit}))
    assert is_outside(connection) is commits
    assert is_outside(SimpleNamespace(**facts, _conn=connection)) is commits


def test_another_object_is_refused_by_name(place: Place) -> None:
    import psycopg
    from sqlalchemy import create_engine

    with (
        contextlib.closing(sqlite3.connect(place.path)) as db,
        pytest.raises(InvalidJobTypeError, match=r"got sqlite3.Cursor: give cursor.connection"),
    ):
        place.sched.within(db.cursor())
    with pytest.raises(InvalidJobTypeError, match=r"connection must be one of .* sqlite3 .* got builtins.str"):
        place.sched.within("app.db")
    for kind, name in (
        (psycopg.Connection, "psycopg Connection"),
        (psycopg.AsyncConnection, "psycopg AsyncConnection"),
    ):
        connection = kind.__new__(kind)
        with pytest.raises(InvalidJobError, match=f"the {name} leads to postgresql: .* in transactions of SQLite"):
            place.sched.within(connection)
    memory = create_engine("sqlite://")
    with memory.connect() as alchemist, pytest.raises(InvalidJobError, match="a database in memory"):
        place.save.within(alchemist).enqueue_sync("d1")
    memory.dispose()


def test_a_file_that_is_attached_to_another_one_is_refused(place: Place, tmp_path: Path) -> None:
    place.made()
    with contextlib.closing(sqlite3.connect(tmp_path / "main.db")) as db:
        db.execute("ATTACH ? AS jobs", (str(place.path),))
        with pytest.raises(InvalidJobError, match="attached, as 'jobs': SQLite does not commit two files as one"):
            place.save.within(db).enqueue_sync("d1")


def test_transaction_on_a_stale_read_names_the_remedy(place: Place) -> None:
    place.made()
    with contextlib.closing(sqlite3.connect(place.path, isolation_level=None, timeout=5)) as db:
        db.execute("BEGIN")
        db.execute("SELECT * FROM document").fetchall()
        asked(place.path, UPDATE)
        with pytest.raises(sqlite3.OperationalError, match="database is locked") as raised:
            place.save.within(db).enqueue_sync("d1")
    assert "BEGIN IMMEDIATE" in raised.value.__notes__[0]


def test_tests_of_an_application_may_have_a_database_in_memory(place: Place) -> None:
    with on_memory(place.sched), contextlib.closing(sqlite3.connect(":memory:")) as db:
        for statement in statements(shared=True):
            db.execute(statement)
        db.commit()
        place.save.within(db).enqueue_sync("d1", 4)
        assert len(relay_now_sync(place.sched, db)) == 1
        db.rollback()
        assert [record.state for record in drain_sync(place.sched)] == [JobState.FINISHED]
    assert inbox_of("sqlite:///jobs.db", "docs") is None


def test_the_plugin_hands_over_jobs_of_a_test(place: Place, request: pytest.FixtureRequest) -> None:
    place.made()
    sched: Scheduler = request.getfixturevalue("queuehint_sched")
    backend: Any = sched._backend
    backend.address = place.sched.backend.inbox

    @sched.job
    def save() -> None: ...

    with place.app() as app:
        app.do(app.enqueue, save)
        assert len(app.do(request.getfixturevalue("relay_now_sync"), app.connection)) == 1
        app.do(app.rollback)
    with place.app(Aiosqlite) as app:
        assert isinstance(app, AsyncApp)
        app.do(app.enqueue, save)
        coroutine = request.getfixturevalue("relay_now")(app.connection)
        assert len(app.do(app.run, coroutine)) == 1
        app.do(app.rollback)
