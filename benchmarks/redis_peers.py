"""
Other queues, as contenders of `benchmarks.redis`; each with the fastest settings found for it.

Only two of them keep an order: Procrastinate, by its `lock`, and the task table written here, by the resources that its
tasks reserve. Queues with a command line run their worker by it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contender import DOCS, Call, Contender, Meter, Orders, batches, maybe, produce
from benchmarks.redis_ours import Queuehint

if TYPE_CHECKING:
    from collections.abc import Iterable

BATCH = 1000


class Dramatiq(Contender):
    title = "dramatiq, 4 threads, prefetch 1 000"
    packages = ("dramatiq", "redis")
    is_plain = True
    has_flows = True

    def __init__(self, orders: Orders, meter: Meter) -> None:
        super().__init__(orders, meter)
        library = import_module("dramatiq")
        self.broker = import_module("dramatiq.brokers.redis").RedisBroker(url=orders.url)
        library.set_broker(self.broker)
        self._library = library
        self._noop = library.actor(meter.hit, actor_name="noop")
        callbacks = import_module("dramatiq.rate_limits.backends").RedisBackend(url=orders.url)
        self.broker.add_middleware(import_module("dramatiq.middleware").GroupCallbacks(callbacks))
        self._child = library.actor(_nothing, actor_name="child")

    async def open(self) -> None:
        self.broker.client.ping()

    def flows(self, count: int, width: int) -> None:
        for _ in range(count):
            group = self._library.group([self._child.message() for _ in range(width)])
            group.add_completion_callback(self._noop.message())
            group.run()

    def one(self, shape: str, call: Call) -> None:
        self._noop.send(*call)

    def work(self) -> None:
        # With the stock prefetch, twice the threads, the consumer sleeps whenever it is full.
        os.environ |= {"dramatiq_queue_prefetch": "1000"}
        _become("-m", "dramatiq", "benchmarks.redis_peers:become_dramatiq", "-p", "1", "-t", "4", "--skip-logging")


class Huey(Contender):
    title = "huey, 1 thread, no results"
    packages = ("huey", "redis")
    is_plain = True
    has_flows = True

    def __init__(self, orders: Orders, meter: Meter) -> None:
        super().__init__(orders, meter)
        # A chord keeps the results of its members; it is chosen where flows are measured.
        self._huey = import_module("huey").RedisHuey("bench", url=orders.url, results="flows" in orders.shape)
        self._noop = self._huey.task(name="noop")(meter.hit)
        self._join = self._huey.task(name="join")(lambda _results: meter.hit())
        self._child = self._huey.task(name="child")(lambda: 1)

    async def open(self) -> None:
        self._huey.storage.conn.ping()

    def one(self, shape: str, call: Call) -> None:
        self._noop(*call)

    def flows(self, count: int, width: int) -> None:
        chord = import_module("huey.api").chord
        for _ in range(count):
            self._huey.enqueue(chord([self._child.s() for _ in range(width)], self._join.s()))

    def work(self) -> None:
        self._huey.create_consumer(workers=1, worker_type="thread", periodic=False).run()


class Taskiq(Contender):
    title = "taskiq, streams, 100 at once"
    packages = ("taskiq", "taskiq_redis")
    modes = ("one", "bulk")

    def __init__(self, orders: Orders, meter: Meter) -> None:
        super().__init__(orders, meter)
        self.broker = import_module("taskiq_redis").RedisStreamBroker(
            orders.url, max_connection_pool_size=60, consumer_id="0", xread_count=1000
        )

        async def noop(sent: int) -> None:
            meter.hit(sent)

        self._noop = self.broker.register_task(noop, task_name="noop")

    async def open(self) -> None:
        await self.broker.startup()

    async def close(self) -> None:
        await self.broker.shutdown()

    def one(self, shape: str, call: Call) -> Any:
        return self._noop.kiq(*call)

    def work(self) -> None:
        options = "--workers 1 --no-parse --max-async-tasks 100 --max-prefetch 100 --log-level ERROR"
        _become("-m", "taskiq", "worker", "benchmarks.redis_peers:become_taskiq", *options.split())


class Saq(Contender):
    title = "saq, 10 at once"
    packages = ("saq", "redis")
    modes = ("one", "bulk")
    share = 0.5

    def __init__(self, orders: Orders, meter: Meter) -> None:
        super().__init__(orders, meter)
        self._queue = import_module("saq").Queue.from_url(orders.url)

    async def open(self) -> None:
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    def one(self, shape: str, call: Call) -> Any:
        return self._queue.enqueue("noop", ttl=-1, sent=call[-1])

    async def work(self) -> None:
        async def noop(_context: Any, *, sent: int) -> None:
            self.meter.hit(sent)

        await self._queue.connect()
        await import_module("saq").Worker(self._queue, [("noop", noop)], concurrency=10).start()


class Rq(Contender):
    title = "rq, SimpleWorker"
    packages = ("rq", "redis")
    modes = ("one", "bulk")
    is_plain = True
    share = 0.2

    def __init__(self, orders: Orders, meter: Meter) -> None:
        super().__init__(orders, meter)
        self._library = import_module("rq")
        self._connection = import_module("redis").Redis.from_url(orders.url)
        self._queue = self._library.Queue("bench", connection=self._connection)

    async def open(self) -> None:
        self._connection.ping()

    def one(self, shape: str, call: Call) -> None:
        self._queue.enqueue("benchmarks.redis_peers.rq_noop", *call, result_ttl=0)

    def bulk(self, shape: str, calls: Iterable[Call]) -> None:
        prepare = self._library.Queue.prepare_data
        for batch in batches(calls, BATCH):
            many = [prepare("benchmarks.redis_peers.rq_noop", args=call, result_ttl=0) for call in batch]
            self._queue.enqueue_many(many)

    def work(self) -> None:
        _METERS.append(self.meter)
        self._library.SimpleWorker([self._queue], connection=self._connection).work(logging_level="WARNING")


class StreaQ(Contender):
    title = "streaQ, 16 at once"
    packages = ("streaq",)
    modes = ()
    has_flows = True

    def __init__(self, orders: Orders, meter: Meter) -> None:
        super().__init__(orders, meter)
        self.worker = import_module("streaq").Worker(redis_url=orders.url, concurrency=16)

        async def join() -> None:
            meter.hit()

        async def child() -> None:
            pass

        self._join = self.worker.task(name="join", silent=True)(join)
        self._child = self.worker.task(name="child", silent=True)(child)

    async def open(self) -> None:
        await self.worker.__aenter__()

    async def close(self) -> None:
        await self.worker.__aexit__(None, None, None)

    async def flows(self, count: int, width: int) -> None:
        for _ in range(count):
            children = [self._child.enqueue() for _ in range(width)]
            await self.worker.enqueue_many(children)
            await self._join.enqueue().start(after=[child.id for child in children])

    async def work(self) -> None:
        await self.worker.run_async()


class OnNode(Contender):
    """A queue of Node: producer and worker are a program of its own."""

    folder = Path(sys.prefix, "node")
    program: str
    modules: tuple[str, ...]
    """Required modules, the queue itself first."""

    @classmethod
    def lacks(cls) -> str:
        if shutil.which("node") is None:
            return "no node"
        has_it = Path(cls.folder, "node_modules", cls.modules[0].partition("@")[0]).exists()
        return "" if has_it else f"try: npm install --prefix {cls.folder} {' '.join(cls.modules)}"

    @classmethod
    def command(cls) -> tuple[str, ...]:
        return ("env", f"NODE_FOLDER={cls.folder}", "node", str(Path(__file__).with_name(cls.program)))


class BullMQ(OnNode):
    title = "BullMQ on Node, 50 at once"
    program = "bullmq.mjs"
    modules = ("bullmq", "ioredis")
    modes = ("one", "bulk")
    has_flows = True


class Graphile(OnNode):
    title = "graphile-worker on Node and PostgreSQL, a named queue for each place"
    program = "graphile.mjs"
    # The last release for Node 20.
    modules = ("graphile-worker@0.17.3",)
    store = "postgres"
    modes = ()
    has_places = True


class PgQueuer(Contender):
    title = "PgQueuer on PostgreSQL, batches of 500"
    packages = ("pgqueuer", "asyncpg")
    store = "postgres"
    modes = ("one", "bulk")

    async def open(self) -> None:
        library = import_module("pgqueuer")
        self._pool = await import_module("asyncpg").create_pool(self.orders.url, min_size=2, max_size=4)
        self._driver = library.AsyncpgPoolDriver(self._pool)
        self._queries = library.Queries(self._driver)

    async def close(self) -> None:
        await self._pool.close()

    async def set_up(self) -> None:
        await self.open()
        await self._queries.install()

    def one(self, shape: str, call: Call) -> Any:
        return self._queries.enqueue("noop", str(call[-1]).encode())

    async def bulk(self, shape: str, calls: Iterable[Call]) -> None:
        for batch in batches(calls, BATCH):
            payloads = [str(call[-1]).encode() for call in batch]
            await self._queries.enqueue(["noop"] * len(batch), payloads, [0] * len(batch))

    async def work(self) -> None:
        await self.open()
        worker = import_module("pgqueuer").PgQueuer(self._driver)

        async def noop(job: Any) -> None:
            self.meter.hit(int(job.payload))

        worker.entrypoint("noop")(noop)
        await worker.run(batch_size=500)


class Procrastinate(Contender):
    title = "Procrastinate on PostgreSQL, at most 20 at once"
    packages = ("procrastinate", "psycopg")
    store = "postgres"
    modes = ("one", "bulk")
    has_places = True
    share = 0.25

    def __init__(self, orders: Orders, meter: Meter) -> None:
        super().__init__(orders, meter)
        library = import_module("procrastinate")
        self._app = library.App(connector=library.PsycopgConnector(conninfo=orders.url))

        async def noop(sent: int) -> None:
            meter.hit(sent)

        async def serial(doc: str, number: int) -> None:
            meter.in_line(doc, number)

        self._noop = self._app.task(name="noop")(noop)
        self._serial = self._app.task(name="serial")(serial)
        self._at_place = self._app.task(name="at_place")(self.at_place)

    async def open(self) -> None:
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def set_up(self) -> None:
        await self.open()
        await self._app.schema_manager.apply_schema_async()

    def calls(self, shape: str, jobs: int) -> Iterable[Call]:
        if shape == "serial":
            return ((f"doc-{i % DOCS}", i // DOCS) for i in range(jobs))
        if shape in ("held", "free"):
            return self.places(shape, jobs)
        return super().calls(shape, jobs)

    def one(self, shape: str, call: Call) -> Any:
        if shape == "serial":
            return self._serial.configure(lock=call[0]).defer_async(doc=call[0], number=call[1])
        if shape in ("held", "free"):
            return self._at_place.configure(lock=call[0]).defer_async(place=call[0], busy_s=call[1])
        return self._noop.defer_async(sent=call[0])

    async def bulk(self, shape: str, calls: Iterable[Call]) -> None:
        if shape == "held":
            # All of a batch have one lock.
            at_hot = self._at_place.configure(lock="hot")
            for batch in batches(calls, BATCH):
                await at_hot.batch_defer_async(*({"place": place, "busy_s": busy_s} for place, busy_s in batch))
            return
        if shape == "free":
            await self.gathered(shape, calls)
            return
        for batch in batches(calls, BATCH):
            await self._noop.batch_defer_async(*({"sent": call[0]} for call in batch))

    async def work(self) -> None:
        await self.open()
        await self._app.run_worker_async(concurrency=min(20, self.orders.concurrency), delete_jobs="always")


class Reserved(Contender):
    """
    A table of tasks in the order of their creation, each with the resource that it reserves, as Pulp's workers have it.

    A worker that finds no task free for it looks through all unfinished ones in order, with a lock that one worker has
    at a time: free is a task whose resource none before it reserves. See https://pulpproject.org/pulpcore/docs/.
    """

    title = "a task table with reserved resources on PostgreSQL"
    packages = ("psycopg",)
    store = "postgres"
    modes = ()
    has_places = True

    async def set_up(self) -> None:
        await self.open()
        await self._connection.execute(
            "create table task (id bigserial primary key, place text, busy_s float, state text default 'waiting', "
            "is_free bool default false)"
        )
        await self._connection.execute("create index on task (id) where state = 'waiting' and is_free")
        await self.close()

    async def open(self) -> None:
        self._connection = await self._connected()

    async def close(self) -> None:
        await self._connection.close()

    def calls(self, shape: str, jobs: int) -> Iterable[Call]:
        return self.places(shape, jobs)

    async def bulk(self, shape: str, calls: Iterable[Call]) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.executemany("insert into task (place, busy_s) values (%s, %s)", list(calls))
        await self._connection.execute("notify task")

    async def work(self) -> None:
        await asyncio.gather(*(self._worker() for _ in range(self.orders.concurrency)))

    async def _connected(self) -> Any:
        return await import_module("psycopg").AsyncConnection.connect(self.orders.url, autocommit=True)

    async def _worker(self) -> None:
        connection = await self._connected()
        await connection.execute("listen task")
        while True:
            taken = await connection.execute(
                "update task set state = 'running' where id = (select id from task where state = 'waiting' and is_free "
                "order by id limit 1 for update skip locked) returning id, place, busy_s"
            )
            if (task := await taken.fetchone()) is not None:
                number, place, busy_s = task
                await self.at_place(place, busy_s)
                await connection.execute("update task set state = 'over' where id = %s", (number,))
            elif not await self._free(connection):
                async for _ in connection.notifies(timeout=0.1, stop_after=1):
                    pass

    @staticmethod
    async def _free(connection: Any) -> bool:
        """Mark the tasks that nothing before them holds up; return whether there was one."""
        locked = await connection.execute("select pg_try_advisory_lock(1)")
        if not (await locked.fetchone())[0]:
            return False
        try:
            found = await connection.execute(
                "select id, place, is_free from task where state in ('waiting', 'running') order by id"
            )
            reserved, free = set(), []
            for number, place, is_free in await found.fetchall():
                if place not in reserved and not is_free:
                    free.append(number)
                reserved.add(place)
            await connection.execute("update task set is_free = true where id = any(%s)", (free,))
            if free:
                await connection.execute("notify task")
            return bool(free)
        finally:
            await connection.execute("select pg_advisory_unlock(1)")


KINDS: dict[str, type[Contender]] = {
    kind.__name__.lower(): kind
    for kind in (
        Queuehint,
        BullMQ,
        PgQueuer,
        Dramatiq,
        Taskiq,
        Huey,
        Saq,
        Rq,
        Procrastinate,
        Graphile,
        StreaQ,
        Reserved,
    )
}

_METERS: list[Meter] = []


def _nothing() -> None:
    """A job that does nothing and is not counted."""


def rq_noop(sent: int) -> None:
    """Count a job; RQ's worker imports this by name."""
    _METERS[0].hit(sent)


def become_dramatiq() -> None:
    """Set the broker; dramatiq's command line calls this."""
    orders = Orders.given()
    Dramatiq(orders, Meter(orders))


def become_taskiq() -> Any:
    """Return the broker; taskiq's command line calls this."""
    orders = Orders.given()
    return Taskiq(orders, Meter(orders)).broker


def _become(*arguments: str) -> None:
    os.execv(sys.executable, [sys.executable, *arguments])


def main() -> None:
    name, role, *arguments = sys.argv[1:]
    orders = Orders.given()
    peer = KINDS[name](orders, Meter(orders))
    if role == "produce":
        mode, shape, jobs = arguments
        print(json.dumps(asyncio.run(produce(peer, mode, shape, int(jobs)))))
    elif inspect.isawaitable(running := getattr(peer, role)()):
        asyncio.run(maybe(running))


if __name__ == "__main__":
    # Handlers have to be found under this module's own name.
    import_module("benchmarks.redis_peers").main()
