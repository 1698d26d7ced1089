"""A call of a process comes behind the jobs that its transactions have committed before, by whatever door and way."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import psycopg
import pytest

from queuehint import JobState, PathClosedError, Scheduler
from queuehint.backends.journal import looks as looks_module
from queuehint.backends.journal.guests.links import Links
from queuehint.backends.journal.leading import ROWS_FIRST
from queuehint.backends.postgres import store as store_module
from queuehint.backends.postgres.backend import PostgresBackend
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.mail.letters import inbox_channel
from queuehint.client.transactions import adapter as adapter_module
from queuehint.errors import InvalidHintError, InvalidJobError, InvalidJobTypeError, JobNotFoundError, PayloadError
from queuehint.operations import Operation
from queuehint.testing.contract.wrong_values import wrong_operations
from tests.inbox_doors import APPS, App, Asyncpg, Core, Django, Orm, OrmAsync, Psycopg, ScopedOrm, app_of, make_tables
from tests.postgres_servers import PostgresServer
from tests.support import thorough, until_sync

EACH_APP = pytest.mark.parametrize("kind", APPS, ids=lambda kind: kind.name)
WAYS = ("leader", "socket", "mail")


class Place:
    """Processes that use one store, and a leader that looks into its inbox only for calls."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server, self.database = server, database
        self.url = f"{server.url_of(database)}?namespace=docs&durability=process"
        self.ran: list[str] = []
        self._opened = ExitStack()
        self.leader = self.process()
        self.leader.stats_sync()
        self.of = {"leader": self.leader, "socket": self.process(), "mail": self.process(machine="elsewhere")}

    def process(self, machine: str | None = None) -> Scheduler:
        with pytest.MonkeyPatch.context() as patch:
            if machine is not None:
                patch.setattr(store_module, "machine", lambda: machine)
            sched = Scheduler(self.url)

        @sched.job(queue_hint=["doc"])
        def save(name: str) -> None:
            self.ran.append(name)

        self._opened.callback(sched.close_sync)
        return sched

    def app(self, sched: Scheduler, kind: type[App] = Psycopg) -> App:
        return self._opened.enter_context(app_of(kind, self.server, self.database, sched))

    def order(self) -> list[str]:
        """Run all jobs; return their names in order."""
        self.leader.drain_sync(run=True)
        return self.ran

    def close(self) -> None:
        self._opened.close()


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database() as database:
        make_tables(postgres_server, database)
        yield database


@pytest.fixture
def place(postgres_server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(PostgresJournal, "looks_every_s", 3600.0)
    monkeypatch.setattr(looks_module, "HASTE_S", 3600.0)
    monkeypatch.setattr(looks_module, "LIVELY_S", 3600.0)
    found = Place(postgres_server, database)
    yield found
    found.close()
    tables = ", ".join(f"queuehint.{each}" for each in ("inbox", "journal", "snapshot", "header", "leader"))
    postgres_server.run(f"TRUNCATE {tables}", database=database)


def written(app: App, *names: str) -> list[Any]:
    """Write jobs in a transaction, and commit it."""
    app.do(app.begin)
    handles = [app.do(app.enqueue, app.sched.jobs["save"], name) for name in names]
    app.do(app.commit)
    return handles


@pytest.mark.slow
@EACH_APP
def test_plain_call_comes_behind_jobs_committed_before(
    place: Place, kind: type[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Links, "ring", lambda *_: None)
    expected = []
    for way in WAYS:
        sched = place.of[way]
        app = place.app(sched, kind)
        save = sched.jobs["save"]
        with asyncio.Runner() as loop:
            for turn in range(2):
                names = [f"{way} {turn} {n}" for n in range(5)]
                written(app, *names[:2])
                save.enqueue_sync(names[2])
                written(app, names[3])
                loop.run(save.enqueue(names[4]))
                expected += names
    assert place.order() == expected


@pytest.mark.parametrize("way", WAYS)
def test_operations_and_questions_find_jobs_committed_before(place: Place, way: str) -> None:
    sched = place.of[way]
    app = place.app(sched)
    [early] = written(app, "a")
    assert sched.cancel_sync([early.id]) == [True]
    written(app, "b")
    assert sched.stats_sync().enqueued == 2
    written(app, "c")
    assert sched.tree_sync(["doc"], 0).waiting == 1
    written(app, "d")
    assert len(sched.records.list_sync(path=["doc"])) == 4
    [last] = written(app, "e")
    sched.close_path_sync(["doc"])
    assert place.leader.get_sync(last.id).state is JobState.QUEUED
    with pytest.raises(PathClosedError):
        sched.jobs["save"].enqueue_sync("f")


@pytest.mark.parametrize("way", WAYS)
def test_jobs_that_another_process_has_committed_are_found_by_id(place: Place, way: str) -> None:
    sched, other = place.of[way], place.process()
    app = place.app(other)
    [early] = written(app, "canceled")
    assert sched.cancel_sync([early.id]) == [True]
    [early] = written(app, "dependency")
    late = sched.jobs["save"].using(after=[early.id]).enqueue_sync("dependent")
    assert late.state_sync() is JobState.DEFERRED
    with sched.flow_sync("import") as flow:
        begin = flow.add(sched.jobs["save"], "begin")
        [early] = written(app, "another dependency")
        flow.add(sched.jobs["save"].using(after=[begin, early.id]), "end")
    assert place.order() == ["dependency", "another dependency", "begin", "dependent", "end"]


@pytest.mark.parametrize("way", WAYS)
def test_open_transaction_is_not_waited_for_and_comes_later(place: Place, way: str) -> None:
    sched = place.of[way]
    one, two = place.app(sched), place.app(sched)
    one.do(one.begin)
    one.do(one.enqueue, sched.jobs["save"], "open")
    sched.jobs["save"].enqueue_sync("first call")
    one.do(one.commit)
    sched.jobs["save"].enqueue_sync("second call")
    one.do(one.begin)
    slow = one.do(one.enqueue, sched.jobs["save"], "open again")
    written(two, "committed")
    sched.jobs["save"].enqueue_sync("third call")
    with pytest.raises(JobNotFoundError):
        sched.get_sync(slow.id)
    two.do(two.begin)
    two.do(two.enqueue, sched.jobs["save"], "rolled back")
    two.do(two.rollback)
    one.do(one.commit)
    sched.jobs["save"].enqueue_sync("last call")
    calls = ["first call", "open", "second call", "committed", "third call", "open again", "last call"]
    assert place.order() == calls


def test_call_comes_behind_commits_across_a_change_of_leader(place: Place) -> None:
    for way in ("socket", "mail"):
        sched = place.of[way]
        app = place.app(sched)
        sched.jobs["save"].enqueue_sync(f"{way} 1")
        written(app, f"{way} 2")
        place.leader.close_sync()
        sched.jobs["save"].enqueue_sync(f"{way} 3")
        assert isinstance(sched.backend, PostgresBackend)
        assert sched.backend.is_leading
        place.leader = sched
    expected = [f"{way} {n}" for way in ("socket", "mail") for n in (1, 2, 3)]
    assert place.order() == expected


def until_taken(place: Place) -> None:
    count = "SELECT count(*) FROM queuehint.inbox"
    until_sync(lambda: place.server.run(count, database=place.database) == [(0,)], "a leader has taken the rows")


@pytest.mark.slow
@EACH_APP
def test_leader_looks_often_while_a_row_is_expected(
    place: Place, kind: type[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks_module, "HASTE_S", 0.002)
    monkeypatch.setattr(adapter_module._Adapter, "after_commit", lambda *_: False)
    for way in ("leader", "socket"):
        sched = place.of[way]
        sched.stats_sync()
        written(place.app(sched, kind), way)
        until_taken(place)
    assert place.order() == ["leader", "socket"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Orm, ScopedOrm, OrmAsync, Django], ids=lambda kind: kind.name)
def test_commit_that_a_library_reports_rings_the_leader(
    place: Place, kind: type[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("leader", "socket"):
        sched = place.of[way]
        sched.stats_sync()
        app = place.app(sched, kind)
        app.do(app.begin)
        app.do(app.enqueue, sched.jobs["save"], way)
        with monkeypatch.context() as patch:
            patch.setattr(looks_module, "HASTE_S", 0.0)
            app.do(app.commit)
            until_taken(place)
    assert place.order() == ["leader", "socket"]


def test_leader_looks_often_after_a_row_that_nobody_announced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks_module, "LIVELY_S", 0.003)
    looks: Any = place.leader.backend._looks  # type: ignore[attr-defined]
    written(place.app(place.leader), "announced")
    assert place.leader.stats_sync().enqueued == 1
    assert looks._found_s == -math.inf
    stranger = place.app(place.process())
    [found] = written(stranger, "found")
    assert place.leader.get_sync(found.id).state is JobState.QUEUED
    for n in range(3):
        written(stranger, f"looked for {n}")
        until_taken(place)
    assert place.order() == ["announced", "found", *[f"looked for {n}" for n in range(3)]]


def test_rows_of_several_reads_are_found_by_one_look(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks_module, "LATE_S", 3600.0)
    looks: Any = place.leader.backend._looks  # type: ignore[attr-defined]
    found = written(place.app(place.process()), *map(str, range(3 * ROWS_FIRST)))
    assert place.leader.get_sync(found[-1].id).state is JobState.QUEUED
    assert looks._found_s > -math.inf
    looks.announce()
    looks.begin(3600.0, time.monotonic())
    assert looks._found_s == -math.inf, "the notification of all of them has come"


# --- notified ---


class Listener:
    """A session that listens on the channel of the inbox, as a leader does."""

    def __init__(self, place: Place) -> None:
        self._channel = inbox_channel("queuehint", "docs")
        self._connection = psycopg.connect(place.server.url_of(place.database), autocommit=True)
        self._heard: list[str] = []
        self._connection.add_notify_handler(lambda note: self._heard.append(note.payload))
        self._connection.execute(f'LISTEN "{self._channel}"')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def heard(self) -> int:
        """Return how many transactions have notified since the last call."""
        self._connection.execute(f"NOTIFY \"{self._channel}\", 'end'")

        def has_ended() -> bool:
            self._connection.execute("SELECT 1")
            return "end" in self._heard

        until_sync(has_ended)
        heard, self._heard = self._heard[: self._heard.index("end")], []
        return len(heard)


@pytest.mark.slow
@EACH_APP
def test_leader_takes_rows_of_a_process_that_notifies(place: Place, kind: type[App]) -> None:
    app = place.app(place.process(), kind)
    app.notify = True
    for names in (["a", "b"], ["c"]):
        written(app, *names)
        until_taken(place)
    looks: Any = place.leader.backend._looks  # type: ignore[attr-defined]
    assert looks._found_s == -math.inf, "it was told of them"
    assert place.order() == ["a", "b", "c"]


async def test_handler_begins_after_a_commit_that_notifies(place: Place) -> None:
    app = place.app(place.process())
    app.notify = True
    async with place.leader.worker(concurrency=1):
        for n in range(3):
            await asyncio.to_thread(written, app, str(n))
            await asyncio.to_thread(until_sync, lambda n=n: len(place.ran) > n, "its handler has begun")
    assert place.ran == ["0", "1", "2"]


@pytest.mark.parametrize("kind", [Psycopg, Asyncpg, Core], ids=lambda kind: kind.name)
def test_each_transaction_that_is_committed_notifies_once(place: Place, kind: type[App]) -> None:
    app = place.app(place.process(), kind)
    save = app.sched.jobs["save"]
    with Listener(place) as listener:
        written(app, "said to nobody")
        assert listener.heard() == 0
        app.notify = True
        app.do(app.begin)
        app.do(app.enqueue, save, "rolled back")
        app.do(app.rollback)
        app.do(app.begin)
        app.do(app.execute, "SAVEPOINT part")
        app.do(app.enqueue, save, "undone")
        app.do(app.execute, "ROLLBACK TO SAVEPOINT part")
        app.do(app.commit)
        assert listener.heard() == 0
        written(app, "a", "b", "c")
        assert listener.heard() == 1
    assert place.order() == ["said to nobody", "a", "b", "c"]


@pytest.mark.parametrize("kind", [Psycopg, Asyncpg], ids=lambda kind: kind.name)
def test_each_call_of_a_transaction_notifies_if_chosen(place: Place, kind: type[App]) -> None:
    app = place.app(place.process(), kind)
    save = app.sched.jobs["save"]
    with Listener(place) as listener:
        for app.notify in (False, True):
            calls: list[tuple[Any, ...]] = [
                (app.enqueue_many, save, [("a",), ("b",)]),
                (app.submit, [save.spec("c")]),
                (app.flow, f"import-{app.notify}", lambda flow: flow.add(save, "d")),
                (app.signal, "approved"),
                (app.cancel, "nobody"),
            ]
            for call in calls:
                app.do(app.begin)
                app.do(*call)
                app.do(app.commit)
            assert listener.heard() == len(calls) * app.notify


def test_notify_that_is_no_bool_is_refused(place: Place) -> None:
    sched = place.leader
    for value in (1, "yes", None):
        for within in (sched.within, sched.jobs["save"].within):
            with pytest.raises(InvalidJobTypeError, match="notify must be bool, got"):
                within(object(), notify=value)  # type: ignore[arg-type]


# --- looks ---


def test_ring_of_a_loop_reaches_the_leader(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sched = place.process()

    async def write() -> None:
        await sched.stats()
        monkeypatch.setattr(looks_module, "HASTE_S", 0.002)
        app = place.app(sched)
        written(app, "a")
        await asyncio.to_thread(until_taken, place)
        assert not sched.backend._guest._links._idle  # type: ignore[attr-defined]

    asyncio.run(write())


def test_process_without_rows_causes_no_look(place: Place) -> None:
    """And one whose transactions have ended causes none any more, once all that were older have ended too."""
    looks = counted_looks(place.leader)

    def has_looked(sched: Scheduler) -> bool:
        before = len(looks)
        sched.jobs["save"].enqueue_sync("call")
        return len(looks) > before

    assert not any(map(has_looked, place.of.values()))
    for sched in place.of.values():
        written(place.app(sched), "row")
        assert has_looked(sched)
        until_sync(lambda sched=sched: not has_looked(sched), "the transaction is known to have ended")  # type: ignore[misc]


def counted_looks(sched: Scheduler) -> list[int]:
    """Return a list that gets how many rows a leader finds, each time it looks into the inbox from now on."""
    backend: Any = sched.backend
    looks: list[int] = []
    look: Callable[..., Any] = backend._journal.inbox

    def counted(*said: Any) -> Any:
        rows = look(*said)
        looks.append(len(rows))
        return rows

    backend._journal.inbox = counted
    return looks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(thorough(40, quick=4)))
def test_calls_and_commits_of_random_histories_keep_their_order(place: Place, seed: int) -> None:
    """
    Compare with the definition.

    One thread does all of it, so that commits and calls have an order. A call comes before each row that is committed
    after it, and behind each row that its own process has committed before it; rows come in the order of commits.
    """
    rng = random.Random(seed)
    kinds = rng.choices((Psycopg, Asyncpg, Core, OrmAsync, Django), k=4)
    apps = [place.app(rng.choice([*place.of.values()]), kind) for kind in kinds]
    pending: dict[App, list[str]] = {}
    history: list[tuple[str, Scheduler, str]] = []
    names = map(str, range(10_000))
    with asyncio.Runner() as loop:
        for _ in range(40):
            app = rng.choice(apps)
            if rng.random() < 0.3:
                name, sched = next(names), rng.choice([*place.of.values()])
                save = sched.jobs["save"]
                loop.run(save.enqueue(name)) if rng.random() < 0.5 else save.enqueue_sync(name)
                history.append((name, sched, "call"))
            elif app not in pending:
                app.do(app.begin)
                pending[app] = []
            elif rng.random() < 0.6:
                pending[app].append(next(names))
                app.do(app.enqueue, app.sched.jobs["save"], pending[app][-1])
            elif rng.random() < 0.3:
                del pending[app]
                app.do(app.rollback)
            else:
                app.do(app.commit)
                history += [(name, app.sched, "row") for name in pending.pop(app)]
        for app in pending:
            app.do(app.rollback)
    order = {name: at for at, name in enumerate(place.order())}
    assert sorted(order, key=int) == sorted([name for name, _, _ in history], key=int)
    for at, (name, sched, kind) in enumerate(history):
        for before, its_sched, its_kind in history[:at]:
            if kind == its_kind or (kind == "row" and its_kind == "call") or sched is its_sched:
                assert order[before] < order[name], (history, order)


async def test_malformed_call_fails_alone_and_by_name(place: Place) -> None:
    nameless = [each for each in wrong_operations() if is_nameless(each[1])]
    assert len(nameless) > 10
    for name, wrong in nameless:
        calls = place.leader.backend.call(wrong), place.leader.jobs["save"].enqueue(name)
        refused, handle = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(refused, (InvalidJobError, InvalidHintError, PayloadError)), name
        assert str(refused).startswith(name.partition(".")[0])
        assert not isinstance(handle, BaseException)


def is_nameless(operation: Operation[Any]) -> bool:
    """Return whether its jobs cannot even be listed."""
    try:
        return not all(type(name) is str for name in operation.named)
    except Exception:
        return True
