"""Jobs in the application's own transaction, by each way to connect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from queuehint import Claim, Dependency, FakeClock, Flow, JobState, Scheduler, Signal
from queuehint.backends.base import InboxAddress
from queuehint.client.transactions import writer
from queuehint.errors import InvalidJobError, InvalidJobTypeError
from queuehint.operations import Operation
from queuehint.operations.inbox import ROW_BYTES_MAX
from queuehint.testing import drain_sync, on_memory, relay_now, relay_now_sync
from queuehint.testing.relaying import inbox_of
from queuehint.values.signal import wait_id
from queuehint.values.spec import JobSpec
from tests.inbox_doors import (
    APPS,
    App,
    AsyncApp,
    Asyncpg,
    AsyncpgPool,
    Django,
    Psycopg,
    app_of,
    facts,
    jobs_of,
    make_tables,
    refuses_bad_input,
    refuses_calls_of_the_other_kind,
    rows,
    scheduler_at,
    sqlalchemy_url,
)
from tests.postgres_servers import PostgresServer, until_waiting

EACH_APP = pytest.mark.parametrize("kind", APPS, ids=lambda kind: kind.name)


class Place:
    """A database with the tables of a store, a scheduler, and its task."""

    def __init__(self, server: PostgresServer, database: str, address: InboxAddress) -> None:
        self.server, self.database, self.address = server, database, address
        self.clock = FakeClock()
        self.sched = scheduler_at(self.address, self.clock)

        @self.sched.job(queue_hint=["{doc}"])
        def save(doc: str, version: int = 0) -> None: ...

        self.save = save

    def app(self, kind: type[App] = Psycopg) -> contextlib.AbstractContextManager[App]:
        return app_of(kind, self.server, self.database, self.sched)

    @property
    def rows(self) -> list[tuple[int, tuple[Operation[Any], ...]]]:
        return rows(self.server, self.database)

    @property
    def jobs(self) -> list[JobSpec]:
        """What was enqueued and committed, in order of position."""
        return [spec for _, asked in self.rows for spec in jobs_of(asked)]

    @property
    def ids(self) -> list[str]:
        return [spec.id for spec in self.jobs]


@pytest.fixture(scope="module")
def tables(postgres_server: PostgresServer) -> Iterator[tuple[str, InboxAddress]]:
    with postgres_server.database() as database:
        yield database, make_tables(postgres_server, database)


@pytest.fixture
def place(postgres_server: PostgresServer, tables: tuple[str, InboxAddress]) -> Iterator[Place]:
    found = Place(postgres_server, *tables)
    yield found
    found.sched.close_sync()
    postgres_server.run("TRUNCATE queuehint.inbox", "UPDATE document SET version = 0", database=found.database)


@pytest.fixture(scope="module")
def elsewhere(postgres_server: PostgresServer) -> Iterator[str]:
    """Another database of the same server, with tables of its own."""
    with postgres_server.database() as database:
        make_tables(postgres_server, database)
        yield database


# --- by each way ------------------------------------------------------------------------------------------------------


@EACH_APP
def test_jobs_exist_exactly_if_the_transaction_commits(place: Place, kind: type[App]) -> None:
    with place.app(kind) as app:
        app.do(app.begin)
        app.do(app.execute, "UPDATE document SET version = 1 WHERE id = 'd1'")
        lost = app.do(app.enqueue, place.save, "d1")
        app.do(app.rollback)
        assert place.rows == []
        app.do(app.begin)
        app.do(app.execute, "UPDATE document SET version = 2 WHERE id = 'd1'")
        first = app.do(app.enqueue, place.save.using(priority=5), "d1", 2)
        assert place.rows == [], "not before the commit"
        app.do(app.execute, "SAVEPOINT before")
        app.do(app.enqueue, place.save, "d1", 3)
        app.do(app.execute, "ROLLBACK TO SAVEPOINT before")
        second = app.do(app.enqueue, place.save, "d1", 4)
        app.do(app.commit)
    assert place.ids == [first.id, second.id]
    assert lost.id not in place.ids
    assert [spec.claims for spec in place.jobs] == [(Claim(("d1",)),)] * 2
    assert [spec.arguments for spec in place.jobs] == [b'{"doc":"d1","version":2}', b'{"doc":"d1","version":4}']
    assert place.jobs[0].priority == 5
    assert place.server.run("SELECT version FROM document WHERE id = 'd1'", database=place.database) == [(2,)]
    assert place.sched.stats_sync().enqueued == 0, "nothing is sent to the store"


@EACH_APP
def test_jobs_follow_commits_ordered_by_a_lock(place: Place, kind: type[App]) -> None:
    update = "UPDATE document SET version = version + 1 WHERE id = 'd1'"
    with place.app(kind) as one, place.app(kind) as two:
        two.do(two.begin)
        two.do(two.execute, update)
        one.do(one.begin)
        early = one.do(one.enqueue, place.save, "d1", 1)
        waiting = one.start(one.execute, update)
        until_waiting(place.server, database=place.database)
        late = two.do(two.enqueue, place.save, "d1", 2)
        two.do(two.commit)
        waiting.result(30)
        one.do(one.commit)
    assert place.ids == [late.id, early.id]
    numbers = [row for row, _ in place.rows]
    assert numbers[0] > numbers[1], "by the numbers of the rows they would run in the order of the inserts"


@EACH_APP
def test_lists_flows_and_cancellations_are_one_row_each(place: Place, kind: type[App]) -> None:
    def build(flow: Flow) -> None:
        first = flow.add(place.save, "d1")
        flow.add(place.save.using(after=[first], name="last"), "d2")

    with place.app(kind) as app:
        app.do(app.begin)
        earlier = app.do(app.enqueue, place.save, "d1")
        many = app.do(app.enqueue_many, place.save, [("d1", n) for n in range(1_100)])
        specs = [JobSpec(id="made", task="save"), JobSpec(id="next", task="save", depends_on=(Dependency("made"),))]
        handles = app.do(app.submit, specs)
        flow = app.do(app.flow, "import-7", build)
        other = Flow(place.sched, "import-8")
        other.add(place.save, "d3")
        assert app.do(app.submit, other) is other
        app.do(app.cancel, earlier, reason="moot")
        app.do(app.cancel, ["made", handles[1]])
        app.do(app.cancel, path=["d1"])
        app.do(app.commit)
    found = [asked for _, asked in place.rows]
    assert [len(asked) for asked in found] == [1, 3, 1, 1, 1, 1, 1, 1]
    assert place.ids == [
        earlier.id,
        *[handle.id for handle in many],
        "made",
        "next",
        *[job.id for job in (flow["save"], flow["last"])],
        other["save"].id,
    ]
    assert [facts(asked[0])["flow"] for asked in found[3:5]] == ["import-7", "import-8"]
    assert [facts(asked[0]) for asked in found[5:]] == [
        {"ids": (earlier.id,), "reason": "moot"},
        {"ids": ("made", "next"), "reason": None},
        {"path": ("d1",), "reason": None},
    ]


@EACH_APP
def test_bad_input_is_refused_before_anything_is_written(place: Place, kind: type[App]) -> None:
    with place.app(kind) as app:
        app.do(app.begin)
        refuses_bad_input(app, place.save)
        app.do(app.execute, "UPDATE document SET version = 1 WHERE id = 'd1'")
        good = app.do(app.enqueue, place.save, "d1")
        app.do(app.commit)
    assert place.ids == [good.id]


@EACH_APP
def test_signal_is_given_exactly_if_the_transaction_commits(place: Place, kind: type[App]) -> None:
    with place.app(kind) as app:
        app.do(app.begin)
        app.do(app.signal, "s", 1)
        app.do(app.rollback)
        app.do(app.begin)
        app.do(app.enqueue, place.save.using(id="j", after=[Signal("s", timeout=60)]), "d1")
        app.do(app.signal, "s", 2, keep=60)
        with pytest.raises(InvalidJobError, match="name holds white space"):
            app.do(app.signal, "two words")
        app.do(app.commit)
    assert place.ids == [wait_id("s", "j"), "j", "signal:s"]
    assert place.jobs[-1].arguments == b'{"result":2}'


@EACH_APP
def test_calls_of_the_other_kind_are_refused_by_name(place: Place, kind: type[App]) -> None:
    with place.app(kind) as app:
        app.do(app.begin)
        refuses_calls_of_the_other_kind(app, place.save)
        app.do(app.commit)
    assert place.rows == []


@EACH_APP
def test_a_connection_to_another_database_is_refused_by_name(
    place: Place, postgres_server: PostgresServer, elsewhere: str, kind: type[App]
) -> None:
    with app_of(kind, postgres_server, elsewhere, place.sched) as app:
        app.do(app.begin)
        with pytest.raises(InvalidJobError, match=r"is connected to another database than Scheduler\('memory://'"):
            app.do(app.enqueue, place.save, "d1")
        app.do(app.execute, "UPDATE document SET version = 1 WHERE id = 'd1'")
        app.do(app.commit)
    assert rows(postgres_server, elsewhere) == []


@EACH_APP
def test_a_connection_is_asked_once_which_database_it_leads_to(
    place: Place, kind: type[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    insertion = writer._insertion

    def insert(*arguments: Any, **options: Any) -> str:
        statements.append(insertion(*arguments, **options))
        return statements[-1]

    monkeypatch.setattr(writer, "_insertion", insert)
    with place.app(kind) as app:
        for _ in range(2):
            app.do(app.begin)
            app.do(app.enqueue, place.save, "d1")
            app.do(app.enqueue, place.save, "d1")
            app.do(app.commit)
        asked = [statement for statement in statements if "pg_control_system" in statement]
        # What a pool of asyncpg has lent cannot be remembered.
        assert (len(statements), len(asked)) == (4, 4 if kind is AsyncpgPool else 1)
        # What is known of a connection counts for this database alone.
        backend: Any = place.sched.backend
        backend.address = InboxAddress(namespace="docs", schema="queuehint", database="1/elsewhere")
        app.do(app.begin)
        with pytest.raises(InvalidJobError, match="is connected to another database"):
            app.do(app.enqueue, place.save, "d1")
        app.do(app.rollback)
    assert len(place.rows) == 4


@EACH_APP
def test_database_without_tables_names_the_command_to_create_them(place: Place, kind: type[App]) -> None:
    backend: Any = place.sched.backend
    backend.address = InboxAddress(namespace="docs", schema="elsewhere")
    with place.app(kind) as app:
        app.do(app.begin)
        with pytest.raises(Exception, match="elsewhere") as raised:
            app.do(app.enqueue, place.save, "d1")
        app.do(app.rollback)
    assert "queuehint postgres migrate" in raised.value.__notes__[0]


# --- what a row holds -------------------------------------------------------------------------------------------------


def test_delay_counts_from_the_call_rather_than_the_commit(place: Place) -> None:
    now_ms = place.clock.now_ms()
    with place.app() as app:
        app.do(app.begin)
        app.do(app.enqueue, place.save.using(delay=60), "d1")
        app.do(app.enqueue, place.save.using(delay=0), "d1")
        app.do(app.commit)
    due, at_once = place.jobs
    assert (due.run_at_ms, due.delay_ms) == (now_ms + 60_000, None)
    assert (at_once.run_at_ms, at_once.delay_ms) == (None, 0)


def test_option_may_precede_or_follow_the_connection(place: Place) -> None:
    with place.app() as app:
        app.do(app.begin)
        app.do(place.save.using(priority=5).within(app.connection).enqueue_sync, "d1")
        app.do(place.save.within(app.connection).using(priority=4).enqueue_sync, "d1")
        app.do(place.save.enqueue_sync, "d1")
        app.do(app.commit)
    assert [spec.priority for spec in place.jobs] == [5, 4]
    assert place.sched.stats_sync().enqueued == 1, "the job itself is as before"


def test_the_same_jobs_again_are_the_same_jobs(place: Place) -> None:
    with place.app() as app:
        for _ in range(2):
            app.do(app.begin)
            app.do(app.enqueue, place.save.using(id="once"), "d1")
            app.do(app.flow, "import-7", lambda flow: flow.add(place.save, "d1"))
            app.do(app.commit)
    first, flow, again, flow_again = [asked for _, asked in place.rows]
    assert first == again
    assert flow == flow_again


def test_no_jobs_are_no_row(place: Place) -> None:
    with place.app() as app:
        app.do(app.begin)
        assert app.do(app.submit, []) == []
        assert app.do(app.enqueue_many, place.save, []) == []
        app.do(app.cancel, [])
        app.do(app.commit)
    assert place.rows == []


def test_a_submission_larger_than_a_row_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.operations.inbox.ROW_BYTES_MAX", 10_000)
    with place.app() as app:
        app.do(app.begin)
        with pytest.raises(InvalidJobError, match="at most 10000 bytes"):
            app.do(app.enqueue_many, place.save, [("d1", n) for n in range(200)])
        app.do(app.commit)
    assert place.rows == []
    assert ROW_BYTES_MAX == 64 << 20


def test_flow_of_a_single_job_is_written_as_a_flow(place: Place) -> None:
    spec = JobSpec(id="a", task="save", flow="f")
    with place.app() as app:
        app.do(app.begin)
        app.do(place.sched.within(app.connection).submit_checked_sync, [spec], whole=True, flow_timeout_ms=5)
        app.do(app.commit)
    ((_, [asked]),) = place.rows
    assert (facts(asked)["jobs"], facts(asked)["flow"], facts(asked)["flow_timeout_ms"]) == ((spec,), "f", 5)


def test_a_flow_of_any_size_is_one_row(place: Place) -> None:
    def build(flow: Flow) -> None:
        nodes = [flow.add(place.save, f"d{n}") for n in range(3_000)]
        flow.add(place.save.using(after=nodes, name="last"), "all")

    with place.app() as app:
        app.do(app.begin)
        app.do(app.flow, "large", build)
        app.do(app.commit)
    ((_, operations),) = place.rows
    assert len(jobs_of(operations)) == 3_001
    commit = facts(operations[-1])
    assert (commit["jobs"], commit["portions"], commit["flow"]) == (3_001, 2, "large")


def test_a_number_cannot_be_drawn_in_a_transaction(place: Place) -> None:
    sched = scheduler_at(place.address, ids="sequence")

    @sched.job
    def save() -> None: ...

    with app_of(Psycopg, place.server, place.database, sched) as app:
        app.do(app.begin)
        with pytest.raises(InvalidJobError, match=r'ids="sequence" .* using\(id='):
            app.do(app.enqueue, save)
        with pytest.raises(InvalidJobError, match=r'ids="sequence"'):
            app.do(app.submit, [JobSpec(id="", task="save")])
        app.do(app.enqueue, save.using(id="mine"))
        app.do(app.commit)
    assert place.ids == ["mine"]
    sched.close_sync()


def test_caller_bound_submission_is_refused_in_a_transaction(place: Place) -> None:
    with place.app() as app:
        app.do(app.begin)
        with pytest.raises(InvalidJobError, match="presence_ms is not supported in a transaction"):
            app.do(app.submit, [JobSpec(id="a", task="save", presence_ms=5_000)])
        with pytest.raises(InvalidJobError, match="a child of job 'p' is not supported in a transaction"):
            app.do(app.enqueue, place.save.as_child_of(("p", 1)), "d1")
        app.do(app.commit)
    assert place.rows == []


# --- which connections ------------------------------------------------------------------------------------------------


def test_a_store_that_takes_no_jobs_in_transactions_is_refused() -> None:
    sched = Scheduler("memory://")

    @sched.job
    def save() -> None: ...

    for call in (lambda: sched.within(object()), lambda: save.within(object())):
        with pytest.raises(InvalidJobError, match=r"requires a store on PostgreSQL, .*Scheduler\('memory://'"):
            call()
    sched.close_sync()


def test_an_object_that_is_no_connection_is_refused_by_name(place: Place) -> None:
    import sqlite3

    import asyncpg
    import psycopg
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_engine("sqlite://")
    lite = sqlite3.connect(":memory:")
    with (
        psycopg.connect(place.server.url_of(place.database)) as connection,
        connection.cursor() as cursor,
        engine.connect() as alchemist,
    ):
        for wrong, said in (
            (None, "got builtins.NoneType"),
            ("default", "got builtins.str"),
            (cursor, "got psycopg.Cursor: give cursor.connection"),
            (engine, "got sqlalchemy.engine.base.Engine: give one of `with engine.begin"),
            (create_async_engine("postgresql+asyncpg://h/d"), "AsyncEngine: give one of `async with engine.begin"),
            (asyncpg.Pool.__new__(asyncpg.Pool), "got asyncpg.pool.Pool: give one of `async with pool.acquire"),
        ):
            with pytest.raises(InvalidJobTypeError) as raised:
                place.sched.within(wrong)
            assert said in str(raised.value)
        for other, name in ((alchemist, "SQLAlchemy"), (lite, "sqlite3")):
            with pytest.raises(InvalidJobError, match=f"the {name} Connection leads to sqlite: .* of PostgreSQL"):
                place.save.within(other).enqueue_sync("d1")
    lite.close()


def test_a_django_connection_to_another_kind_of_database_is_refused(place: Place) -> None:
    with place.app(Django):
        from django.db import connections

        connections.settings["lite"] = {
            **connections.settings["default"],
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": ":memory:",
        }
        with pytest.raises(InvalidJobError, match="Django's connection 'lite' leads to sqlite"):
            place.sched.within(connections["lite"])


def test_a_connection_that_commits_each_statement_by_itself_is_refused(place: Place) -> None:
    import psycopg
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    from tests.inbox_doors import (
        Django,
    )

    url = place.server.url_of(place.database)
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(InvalidJobError, match=r"is in no transaction.*`with connection.transaction\(\):`"):
            place.save.within(connection).enqueue_sync("d1")
        with connection.transaction():
            kept = place.save.within(connection).enqueue_sync("d1")
    engine = create_engine(sqlalchemy_url(url, "psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as alchemist, pytest.raises(InvalidJobError, match="AUTOCOMMIT"):
        place.save.within(alchemist).enqueue_sync("d1")
    with Session(engine) as session, pytest.raises(InvalidJobError, match="AUTOCOMMIT"):
        place.save.within(session).enqueue_sync("d1")
    engine.dispose()
    said = r"is in no transaction.*`with transaction.atomic\(\):`"
    with place.app(Django) as app, pytest.raises(InvalidJobError, match=said):
        app.do(app.enqueue, place.save, "d1")
    assert place.ids == [kept.id]


async def test_asynchronous_autocommit_connection_is_refused(place: Place) -> None:
    import asyncpg
    import psycopg
    from sqlalchemy.ext.asyncio import create_async_engine

    url = place.server.url_of(place.database)
    plain = await asyncpg.connect(url)
    with pytest.raises(InvalidJobError, match=r"is in no transaction.*`async with connection.transaction\(\):`"):
        await place.save.within(plain).enqueue("d1")
    await plain.close()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        with pytest.raises(InvalidJobError, match=r"is in no transaction.*`async with connection.transaction\(\):`"):
            await place.save.within(connection).enqueue("d1")
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(sqlalchemy_url(url, driver), isolation_level="AUTOCOMMIT")
        async with engine.connect() as alchemist:
            with pytest.raises(InvalidJobError, match="AUTOCOMMIT"):
                await place.save.within(alchemist).enqueue("d1")
        await engine.dispose()
    assert place.rows == []


def test_writer_role_needs_no_other_right(place: Place) -> None:
    place.server.run(
        "DROP ROLE IF EXISTS writes_jobs",
        "CREATE ROLE writes_jobs LOGIN",
        "GRANT USAGE ON SCHEMA queuehint TO writes_jobs",
        "GRANT INSERT (namespace, data) ON queuehint.inbox TO writes_jobs",
        database=place.database,
    )
    for kind in APPS:
        with kind(place.server.url_of(place.database, "writes_jobs"), place.sched) as app:
            for app.notify in (False, True):
                app.do(app.begin)
                app.do(app.enqueue, place.save, "d1")
                app.do(app.commit)
    assert len(place.rows) == 2 * len(APPS)


def test_a_pipeline_of_psycopg_takes_jobs(place: Place) -> None:
    import psycopg

    with psycopg.connect(place.server.url_of(place.database)) as connection, connection.pipeline():
        connection.execute("UPDATE document SET version = 5 WHERE id = 'd1'")
        job = place.save.within(connection).enqueue_sync("d1")
    assert place.ids == [job.id]


def test_two_writers_at_once_write_whole_rows(place: Place) -> None:
    with contextlib.ExitStack() as stack:
        apps = [stack.enter_context(place.app(kind)) for kind in APPS]

        def work(app: App) -> list[str]:
            ids = []
            for _ in range(5):
                app.begin()
                ids += [app.enqueue(place.save, "d1").id for _ in range(2)]
                app.commit()
            return ids

        done = [app.start(work, app) for app in apps]
        written = [future.result(30) for future in done]
    ids = place.ids
    assert sorted(ids) == sorted(each for one in written for each in one)
    assert all([each for each in ids if each in one] == one for one in written)


@pytest.mark.slow
def test_writers_of_all_libraries_together_keep_the_order_of_commits(place: Place) -> None:
    place.server.run("CREATE TABLE saved (document text, version int, job text)", database=place.database)
    with contextlib.ExitStack() as stack:
        apps = [stack.enter_context(place.app(kind)) for kind in APPS]

        def save(app: App, number: int) -> None:
            random = Random(number)
            for turn in range(15):
                document, job_id = f"d{random.randint(1, 3)}", f"{number}-{turn}"
                job = place.save.using(id=job_id)
                is_early = random.random() < 0.5
                app.begin()
                if is_early:
                    app.enqueue(job, document)
                if random.random() < 0.2:
                    app.execute("SAVEPOINT before")
                    app.enqueue(place.save.using(id=f"ghost-{job_id}"), document)
                    app.execute("ROLLBACK TO SAVEPOINT before")
                app.execute(f"UPDATE document SET version = version + 1 WHERE id = '{document}'")
                if not is_early:
                    app.enqueue(job, document)
                app.execute(f"INSERT INTO saved SELECT id, version, '{job_id}' FROM document WHERE id = '{document}'")
                if random.random() < 0.1:
                    app.rollback()
                else:
                    app.commit()

        for done in [app.start(save, app, number) for number, app in enumerate(apps)]:
            done.result(60)
    saved = place.server.run("SELECT document, job FROM saved ORDER BY version", database=place.database)
    assert len(saved) > 100
    turned = 0
    for document in ("d1", "d2", "d3"):
        wanted = [job for name, job in saved if name == document]
        found = [
            (row, spec.id) for row, asked in place.rows for spec in jobs_of(asked) if document in str(spec.arguments)
        ]
        assert [job for _, job in found] == wanted
        turned += found != sorted(found)
    assert turned, "the order of the inserts is another one"


# --- tests of applications --------------------------------------------------------------------------------------------


@EACH_APP
def test_a_transaction_that_is_never_committed_hands_its_jobs_over(place: Place, kind: type[App]) -> None:
    sched, save = place.sched, place.save
    committed = Psycopg(place.server.url_of(place.database), sched)
    with committed:
        committed.do(committed.begin)
        committed.do(committed.enqueue, save.using(id="elsewhere"), "d1")
        committed.do(committed.commit)
    with place.app(kind) as app:

        def take() -> list[Any]:
            if isinstance(app, AsyncApp):
                handles: list[Any] = app.run(relay_now(sched, app.connection))
                return handles
            return relay_now_sync(sched, app.connection)

        app.do(app.begin)
        app.do(app.execute, "SAVEPOINT before")
        first = app.do(app.enqueue, save, "d1")
        app.do(app.execute, "RELEASE SAVEPOINT before")
        second = app.do(app.enqueue, save, "d1")
        app.do(app.cancel, second)
        assert [handle.id for handle in app.do(take)] == [first.id, second.id]
        assert app.do(take) == []
        assert [record.id for record in drain_sync(sched)] == [first.id]
        assert (first.state_sync(), second.state_sync()) == (JobState.FINISHED, JobState.CANCELED)
        # Django's TestCase has deferred triggers run before it rolls back.
        app.do(app.execute, "SET CONSTRAINTS ALL IMMEDIATE")
        app.do(app.rollback)
    assert place.ids == ["elsewhere"]


def test_postgresql_application_keeps_its_inbox_in_tests(place: Place) -> None:
    sched = Scheduler("memory://")
    sched.url, sched.namespace = f"{place.server.url_of('elsewhere')}?schema=queuehint", "docs"

    @sched.job
    def save() -> None: ...

    with on_memory(sched), app_of(Psycopg, place.server, place.database, sched) as app:
        app.do(app.begin)
        app.do(app.enqueue, save)
        assert len(app.do(relay_now_sync, sched, app.connection)) == 1
        app.do(app.rollback)
        assert [record.state for record in drain_sync(sched)] == [JobState.FINISHED]
    sched.close_sync()
    assert inbox_of("redis://localhost", "docs") is None


def test_the_plugin_hands_over_jobs_of_a_test(place: Place, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("queuehint_sched")._backend.address = place.address
    sched: Scheduler = request.getfixturevalue("queuehint_sched")

    @sched.job
    def save() -> None: ...

    with app_of(Psycopg, place.server, place.database, sched) as app:
        app.do(app.begin)
        app.do(app.enqueue, save)
        assert len(app.do(request.getfixturevalue("relay_now_sync"), app.connection)) == 1
        app.do(app.rollback)
    with app_of(Asyncpg, place.server, place.database, sched) as app:
        assert isinstance(app, AsyncApp)
        app.do(app.begin)
        app.do(app.enqueue, save)
        coroutine = request.getfixturevalue("relay_now")(app.connection)
        assert len(app.do(app.run, coroutine)) == 1
        app.do(app.rollback)
