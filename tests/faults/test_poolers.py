"""PgBouncer in transaction mode is between: all works by the options that the URL has for it, also while it ends."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest

from queuehint import JobState, Scheduler
from queuehint.backends.journal.snapshots import compaction
from queuehint.backends.postgres import store as store_module
from queuehint.backends.postgres.backend import PostgresBackend
from tests.faults.doing import Caller, Ran, Running, Writer, doing
from tests.inbox_doors import App, Asyncpg, Core, CoreAsync, Django, Psycopg, make_tables
from tests.postgres_servers import Pooler, PostgresServer, find_pooler

pytestmark = [
    pytest.mark.usefixtures("postgres_server"),
    pytest.mark.skipif(find_pooler() is None, reason="PgBouncer is not installed"),
]


class Place:
    """A database behind a pooler, and schedulers that keep jobs there."""

    def __init__(self, server: PostgresServer, pooler: Pooler, database: str) -> None:
        self.server, self.pooler, self.database = server, pooler, database
        self.ran: Ran = []
        self._guard = threading.Lock()
        self._made: list[Scheduler] = []

    def scheduler(self, options: str, *, machine: str | None = None) -> Scheduler:
        with pytest.MonkeyPatch.context() as patch:
            if machine is not None:
                patch.setattr(store_module, "machine", lambda: machine)
            sched = Scheduler(f"{self.pooler.url_of(self.database)}?namespace=docs&durability=process{options}")
            assert isinstance(sched.backend, PostgresBackend)
        self._made.append(sched)

        @sched.job(queue_hint=["{doc}"])
        def edit(doc: str, n: int) -> None:
            with self._guard:
                self.ran.append((doc, n))

        return sched

    @property
    def direct(self) -> str:
        """The option that names the server itself."""
        return "&direct=" + quote(self.server.url_of(self.database), safe="")

    def sessions(self) -> list[Any]:
        """Return the session of the leader, as far as it is known."""
        return self.server.run("SELECT session_pid FROM queuehint.leader", database=self.database)

    def close(self) -> None:
        for sched in self._made:
            sched.close_sync()


@pytest.fixture
def place(postgres_server: PostgresServer) -> Iterator[Place]:
    with opened(postgres_server, 4) as place:
        yield place


@contextmanager
def opened(server: PostgresServer, size: int) -> Iterator[Place]:
    with server.database() as database, Pooler(server, size) as pooler:
        make_tables(server, database)
        place = Place(server, pooler, database)
        try:
            yield place
        finally:
            place.close()


class AsyncpgBehindPooler(Asyncpg):
    """As asyncpg's documentation has it."""

    async def aopen(self) -> None:
        import asyncpg

        self.connection = await asyncpg.connect(self.url, statement_cache_size=0)


class CoreAsyncBehindPooler(CoreAsync):
    """As SQLAlchemy's documentation has it."""

    async def aopen(self) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine
        from sqlalchemy.pool import NullPool

        self.engine = create_async_engine(
            self.url.replace("postgresql:", "postgresql+asyncpg:"),
            poolclass=NullPool,
            connect_args={"statement_cache_size": 0, "prepared_statement_name_func": lambda: ""},
        )


APPS: tuple[type[App], ...] = (Psycopg, AsyncpgBehindPooler, Core, CoreAsyncBehindPooler, Django)


@pytest.mark.parametrize(
    "way", ["named", *[pytest.param(way, marks=pytest.mark.nightly) for way in ("not named", "direct")]]
)
def test_everything_goes_on_behind_a_pooler(place: Place, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"named": "&pooled=1", "not named": "", "direct": f"&pooled=1{place.direct}"}[way]
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 5)
    leader = place.scheduler(options)
    first = leader.jobs["edit"].enqueue_sync("d", 0)
    assert (place.sessions() == [(None,)]) == (way != "direct"), "a session says nothing behind a pooler"
    near, far = place.scheduler(options), place.scheduler(options, machine="elsewhere")
    handles = [first, *[each.jobs["edit"].enqueue_sync("d", n) for n, each in enumerate((near, far), 1)]]
    for kind in APPS:
        number = len(handles)
        with kind(place.pooler.url_of(place.database), far) as app:
            app.notify = kind is not Core
            app.do(app.begin)
            app.do(app.execute, "UPDATE document SET version = version + 1 WHERE id = 'd1'")
            app.do(app.enqueue, far.jobs["edit"], "gone", number)
            app.do(app.rollback)
            app.do(app.begin)
            handles.append(app.do(app.enqueue, far.jobs["edit"], "d", number))
            app.do(app.commit)
            handles.append(far.jobs["edit"].enqueue_sync("d", number + 1))
            assert far.get_sync(handles[-2].id).state is JobState.QUEUED
    far.drain_sync(run=True)
    assert place.ran == [("d", n) for n in range(len(handles))]
    leader.close_sync()
    assert {near.get_sync(each.id).state for each in handles} == {JobState.FINISHED}
    assert far.jobs["edit"].enqueue_sync("d", 9).state_sync() is JobState.QUEUED
    assert len(place.server.run("SELECT 1 FROM queuehint.header", database=place.database)) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["named", "direct"])
def test_stopped_or_stalled_pooler_loses_and_duplicates_nothing(place: Place, way: str) -> None:
    options = {"named": "&pooled=1", "direct": f"&pooled=1{place.direct}"}[way]
    leader = place.scheduler(options)
    leader.stats_sync()
    near, far = place.scheduler(options), place.scheduler(options, machine="elsewhere")
    place.server.run(*[f"CREATE TABLE w{number} (n int)" for number in range(2)], database=place.database)
    callers = [Caller(each, f"c{number}") for number, each in enumerate((leader, near, far))]
    writers = [Writer(far, f"w{number}", lambda: place.pooler.url_of(place.database)) for number in range(2)]
    with doing([*callers, *writers, Running(near, place.ran)]) as more:
        for turn in range(10):
            more()
            if turn % 2:
                place.pooler.pause()
                time.sleep(6)
                place.pooler.resume()
            else:
                place.pooler.restart()
        more()
    near.drain_sync(run=True)
    ran: dict[str, list[int]] = defaultdict(list)
    for doc, n in place.ran:
        ran[doc].append(n)
    for caller in callers:
        assert ran[caller.doc] == list(range(caller.done))
    for writer in writers:
        kept = place.server.run(f"SELECT n FROM {writer.doc} ORDER BY n", database=place.database)
        assert ran[writer.doc] == [n for (n,) in kept]
