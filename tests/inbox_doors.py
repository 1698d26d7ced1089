"""
Applications that write jobs in their transactions, one for each way to connect: all do the same by the same calls.

Each runs on a thread of its own, with a loop of its own where its library is asynchronous: so one may wait for a lock
that another one holds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

import attrs
import psycopg
import pytest

from queuehint import Flow, Job, JobSpec, Scheduler
from queuehint.backends.base import WHICH_DATABASE, BackendOptions, InboxAddress
from queuehint.backends.postgres.layout import ddl
from queuehint.clock import Clock, SystemClock
from queuehint.errors import DuplicateJobError, InvalidHintError, InvalidJobError, InvalidJobTypeError, PayloadError
from queuehint.operations import Operation
from queuehint.operations.inbox import operations_of
from queuehint.testing.relaying import MemoryWithInbox
from tests.postgres_servers import PostgresServer

T = TypeVar("T")


def make_tables(server: PostgresServer, database: str, schema: str = "queuehint") -> InboxAddress:
    """Make the tables of a store and one of an application; return where its jobs are written."""
    server.run(
        ddl(schema), "CREATE TABLE document (id text PRIMARY KEY, version int NOT NULL DEFAULT 0)", database=database
    )
    server.run("INSERT INTO document SELECT 'd' || n FROM generate_series(1, 9) n", database=database)
    return InboxAddress(namespace="docs", schema=schema, database=server.run(WHICH_DATABASE, database=database)[0][0])


def scheduler_at(address: InboxAddress, clock: Clock | None = None, **options: Any) -> Scheduler:
    """Return a scheduler whose store takes jobs in transactions."""
    sched = Scheduler("memory://", clock=clock or SystemClock(), **options)
    sched._backend = MemoryWithInbox(BackendOptions(clock=sched.clock), address)
    return sched


def rows(
    server: PostgresServer, database: str, namespace: str = "docs"
) -> list[tuple[int, tuple[Operation[Any], ...]]]:
    """Return what was committed, in order of position: row numbers and operations."""
    found = server.run("SELECT id, data, namespace FROM queuehint.inbox ORDER BY position", database=database)
    assert {said for *_, said in found} <= {namespace}
    return [(row, operations_of(data)) for row, data, _ in found]


def facts(operation: Operation[Any]) -> dict[str, Any]:
    """Return the fields of an operation."""
    found: dict[str, Any] = attrs.asdict(operation, recurse=False)  # type: ignore[arg-type]
    return found


def jobs_of(operations: Sequence[Operation[Any]]) -> list[JobSpec]:
    """Return the jobs of the operations that have some; a commit has their number."""
    found = [facts(operation).get("jobs", ()) for operation in operations]
    return [spec for jobs in found if isinstance(jobs, tuple) for spec in jobs]


class App:
    """
    An application with one connection.

    Attributes:
        connection: what is given to `within`, once a transaction was begun.
        notify: whether its transactions notify the leader.
    """

    name: ClassVar[str]
    is_async: ClassVar[bool] = False

    def __init__(self, url: str, sched: Scheduler) -> None:
        self.url, self.sched = url, sched
        self.connection: Any = None
        self.notify = False
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self.do(self.open)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.close)
        self._thread.shutdown()

    def start(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Begin something on its thread."""
        return self._thread.submit(call, *arguments)

    def do(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Do something on its thread."""
        return self._thread.submit(call, *arguments, **options).result(30)

    # --- what it does, on its thread ---

    def open(self) -> None:
        """Connect."""

    def begin(self) -> None:
        """Begin a transaction."""

    def execute(self, statement: str) -> None:
        """Execute a statement in it."""

    def commit(self) -> None:
        """Commit it."""

    def rollback(self) -> None:
        """Roll it back."""

    def close(self) -> None:
        """Disconnect."""

    def enqueue(self, job: Job[Any, Any], *arguments: Any) -> Any:
        """Enqueue a job in it."""
        return job.within(self.connection, notify=self.notify).enqueue_sync(*arguments)

    def enqueue_many(self, job: Job[Any, Any], calls: list[tuple[Any, ...]]) -> Any:
        """Enqueue many calls of a job in it."""
        return job.within(self.connection, notify=self.notify).enqueue_many_sync(calls)

    def submit(self, specs: list[JobSpec] | Flow) -> Any:
        """Submit specs or a flow in it."""
        return self.sched.within(self.connection, notify=self.notify).submit_sync(specs)

    def flow(self, id: str, build: Callable[[Flow], None]) -> Flow:
        """Submit a flow in it."""
        with self.sched.within(self.connection, notify=self.notify).flow_sync(id) as flow:
            build(flow)
        return flow

    def signal(self, *arguments: Any, **options: Any) -> None:
        """Give a signal in it."""
        self.sched.within(self.connection, notify=self.notify).signal_sync(*arguments, **options)

    def cancel(self, *arguments: Any, **options: Any) -> None:
        """Cancel jobs in it."""
        self.sched.within(self.connection, notify=self.notify).cancel_sync(*arguments, **options)


class AsyncApp(App):
    """An application with a loop."""

    is_async = True

    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.run(self.aopen())

    def close(self) -> None:
        self.run(self.aclose())
        self.loop.close()

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def begin(self) -> None:
        self.run(self.abegin())

    def execute(self, statement: str) -> None:
        self.run(self.aexecute(statement))

    def commit(self) -> None:
        self.run(self.aend("commit"))

    def rollback(self) -> None:
        self.run(self.aend("rollback"))

    async def aopen(self) -> None: ...
    async def abegin(self) -> None: ...
    async def aexecute(self, statement: str) -> None: ...
    async def aend(self, how: str) -> None: ...
    async def aclose(self) -> None: ...

    def enqueue(self, job: Job[Any, Any], *arguments: Any) -> Any:
        return self.run(job.within(self.connection, notify=self.notify).enqueue(*arguments))

    def enqueue_many(self, job: Job[Any, Any], calls: list[tuple[Any, ...]]) -> Any:
        return self.run(job.within(self.connection, notify=self.notify).enqueue_many(calls))

    def submit(self, specs: list[JobSpec] | Flow) -> Any:
        return self.run(self.sched.within(self.connection, notify=self.notify).submit(specs))

    def flow(self, id: str, build: Callable[[Flow], None]) -> Flow:
        async def submit() -> Flow:
            async with self.sched.within(self.connection, notify=self.notify).flow(id) as flow:
                build(flow)
            return flow

        return self.run(submit())  # type: ignore[no-any-return]

    def signal(self, *arguments: Any, **options: Any) -> None:
        self.run(self.sched.within(self.connection, notify=self.notify).signal(*arguments, **options))

    def cancel(self, *arguments: Any, **options: Any) -> None:
        self.run(self.sched.within(self.connection, notify=self.notify).cancel(*arguments, **options))


# --- psycopg ----------------------------------------------------------------------------------------------------------


class Psycopg(App):
    name = "psycopg"

    def open(self) -> None:
        from psycopg.rows import dict_row

        # An application has its own kinds of rows and cursors.
        self.connection = psycopg.connect(self.url, row_factory=dict_row, cursor_factory=psycopg.RawCursor)

    def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


class PsycopgBlocks(Psycopg):
    """By autocommit and blocks."""

    name = "psycopg, autocommit and transaction()"

    def open(self) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True)

    def begin(self) -> None:
        self.block = self.connection.transaction()
        self.block.__enter__()

    def commit(self) -> None:
        self.block.__exit__(None, None, None)

    def rollback(self) -> None:
        with contextlib.suppress(KeyError):
            self.block.__exit__(KeyError, KeyError(), None)


class PsycopgAsync(AsyncApp):
    name = "psycopg, asynchronous"

    async def aopen(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.url)

    async def aexecute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def aend(self, how: str) -> None:
        await getattr(self.connection, how)()

    async def aclose(self) -> None:
        await self.connection.close()


# --- asyncpg ----------------------------------------------------------------------------------------------------------


class Asyncpg(AsyncApp):
    name = "asyncpg"

    async def aopen(self) -> None:
        import asyncpg

        self.connection = await asyncpg.connect(self.url)

    async def abegin(self) -> None:
        self.block = self.connection.transaction()
        await self.block.start()

    async def aexecute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def aend(self, how: str) -> None:
        await getattr(self.block, how)()

    async def aclose(self) -> None:
        await self.connection.close()


class AsyncpgPool(Asyncpg):
    name = "asyncpg, of a pool"

    async def aopen(self) -> None:
        import asyncpg

        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.connection = await self.pool.acquire()

    async def aclose(self) -> None:
        await self.pool.release(self.connection)
        await self.pool.close()


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


class Core(App):
    name = "SQLAlchemy, Core"
    driver: ClassVar[str] = "psycopg"

    def open(self) -> None:
        import sqlalchemy

        self.engine = sqlalchemy.create_engine(sqlalchemy_url(self.url, self.driver))

    def begin(self) -> None:
        self.connection = self.engine.connect()

    def execute(self, statement: str) -> None:
        import sqlalchemy

        self.connection.execute(sqlalchemy.text(statement))

    def commit(self) -> None:
        self.connection.commit()
        self.connection.close()

    def rollback(self) -> None:
        self.connection.rollback()
        self.connection.close()

    def close(self) -> None:
        self.engine.dispose()


class Orm(Core):
    name = "SQLAlchemy, ORM"

    def begin(self) -> None:
        from sqlalchemy.orm import Session

        self.connection = Session(self.engine)


class ScopedOrm(Core):
    name = "SQLAlchemy, a scoped session"

    def begin(self) -> None:
        from sqlalchemy.orm import scoped_session, sessionmaker

        self.connection = scoped_session(sessionmaker(self.engine))


class CoreAsync(AsyncApp):
    name = "SQLAlchemy, Core, asyncpg"
    driver: ClassVar[str] = "asyncpg"

    async def aopen(self) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        self.engine = create_async_engine(sqlalchemy_url(self.url, self.driver))

    async def abegin(self) -> None:
        self.connection = await self.engine.connect()

    async def aexecute(self, statement: str) -> None:
        import sqlalchemy

        await self.connection.execute(sqlalchemy.text(statement))

    async def aend(self, how: str) -> None:
        await getattr(self.connection, how)()
        await self.connection.close()

    async def aclose(self) -> None:
        await self.engine.dispose()


class CoreAsyncPsycopg(CoreAsync):
    name = "SQLAlchemy, Core, psycopg, asynchronous"
    driver = "psycopg"


class OrmAsync(CoreAsync):
    name = "SQLAlchemy, ORM, asyncpg"

    async def abegin(self) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession

        self.connection = AsyncSession(self.engine)


# --- Django -----------------------------------------------------------------------------------------------------------


class Django(App):
    name = "Django"

    def open(self) -> None:
        self.alias = django_alias(self.url)

        from django.db import connections

        self.connection = connections[self.alias]

    def begin(self) -> None:
        from django.db import transaction

        self.block = transaction.atomic(using=self.alias)
        self.block.__enter__()

    def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def commit(self) -> None:
        self.block.__exit__(None, None, None)

    def rollback(self) -> None:
        self.block.__exit__(KeyError, KeyError(), None)

    def close(self) -> None:
        self.connection.close()


class DjangoProxy(Django):
    """By `django.db.connection`, which is another one in each thread."""

    name = "Django, its proxy"

    def open(self) -> None:
        super().open()

        from django.db import connections
        from django.utils.connection import ConnectionProxy

        self.connection = ConnectionProxy(connections, self.alias)


def django_settings(alias: str, **settings: Any) -> None:
    """Have Django know a database by a name."""
    import django
    from django.conf import settings as known

    if not known.configured:
        known.configure(DATABASES={"default": {}}, USE_TZ=True)
        django.setup()

    from django.db import connections

    connections.settings[alias] = {**connections.settings["default"], **settings}


def django_alias(url: str) -> str:
    """Return the name by which Django knows a database of a server, from now on."""
    parts = urlsplit(url)
    django_settings(
        parts.path[1:],
        ENGINE="django.db.backends.postgresql",
        NAME=parts.path[1:],
        USER=parts.username,
        HOST=parts.hostname,
        PORT=parts.port,
    )
    return parts.path[1:]


APPS: tuple[type[App], ...] = (
    Psycopg,
    PsycopgBlocks,
    PsycopgAsync,
    Asyncpg,
    AsyncpgPool,
    Core,
    Orm,
    ScopedOrm,
    CoreAsync,
    CoreAsyncPsycopg,
    OrmAsync,
    Django,
    DjangoProxy,
)


@contextlib.contextmanager
def app_of(kind: type[App], server: PostgresServer, database: str, sched: Scheduler) -> Iterator[App]:
    """Run an application."""
    with kind(server.url_of(database), sched) as app:
        yield app


def looks_at_rows(backend: Any) -> list[bool]:
    """Return a list that gets, each time a leader looks at a row from now on, whether the row has to wait."""
    looks: list[bool] = []
    is_under_way = backend._is_under_way

    def look(*said: Any) -> bool:
        looks.append(is_under_way(*said))
        return looks[-1]

    backend._is_under_way = look
    return looks


def refuses_bad_input(app: App, save: Job[Any, Any]) -> None:
    """See that an application that has begun a transaction is refused what is no job and names none."""
    for error, call, arguments in (
        (InvalidJobTypeError, app.enqueue, (save, 5)),
        (InvalidHintError, app.enqueue, (save, "")),
        (InvalidJobTypeError, app.enqueue, (save, "d1", 1, "too many")),
        (PayloadError, app.enqueue, (save.using(check_arguments=False), "d1", object())),
        (DuplicateJobError, app.submit, ([JobSpec(id="a", task="save")] * 2,)),
        (InvalidJobTypeError, app.submit, (["a"],)),
        (InvalidJobError, app.cancel, ()),
        (InvalidJobTypeError, app.cancel, (5,)),
    ):
        with pytest.raises(error):
            app.do(call, *arguments)


def refuses_calls_of_the_other_kind(app: App, save: Job[Any, Any]) -> None:
    """See that each asynchronous call is refused on a synchronous connection by its name, and each other way round."""

    def ask_wrongly() -> None:
        within, job = app.sched.within(app.connection), save.within(app.connection)
        flow = Flow(app.sched)
        flow.add(save, "d1")
        with contextlib.ExitStack() as stack:
            calls: list[Any] = (
                [
                    lambda: job.enqueue_sync("d1"),
                    lambda: job.enqueue_many_sync([("d1",)]),
                    lambda: within.submit_sync([]),
                    lambda: within.submit_sync(flow),
                    lambda: within.cancel_sync("a"),
                    lambda: within.signal_sync("a"),
                    lambda: stack.enter_context(within.flow_sync()),
                ]
                if isinstance(app, AsyncApp)
                else [
                    lambda: job.enqueue("d1").send(None),
                    lambda: job.enqueue_many([("d1",)]).send(None),
                    lambda: within.submit([]).send(None),
                    lambda: within.submit(flow).send(None),
                    lambda: within.cancel("a").send(None),
                    lambda: within.signal("a").send(None),
                    within.flow,
                ]
            )
            for call in calls:
                with pytest.raises(InvalidJobTypeError, match=r"is a?synchronous: .*_sync"):
                    call()
        flow.add(save, "d2")

    app.do(ask_wrongly)
