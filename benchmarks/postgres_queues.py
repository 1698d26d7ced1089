"""
Queues in PostgreSQL, as contenders of `benchmarks.postgres_peers`; each with the fastest settings found for it.

PgQueuer orders nothing: any two of its jobs may run at once. Procrastinate orders jobs of one lock, graphile-worker
those of one named queue. Ours stand in order over 1 000 paths; the process that measures leads, or one beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks import redis_peers
from queuehint import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

PATHS: Final = 1_000
AT_ONCE: Final = 500
CONCURRENCY: Final = 128
_numbers = itertools.count()


class Queue(ABC):
    """
    A queue whose jobs do nothing.

    Args:
        hit: called by each job that runs.
    """

    title: ClassVar[str]
    share: ClassVar[float] = 1.0
    """Of the jobs that are measured: slow contenders get fewer."""

    def __init__(self, url: str, hit: Callable[[], None]) -> None:
        self.url = url
        self.hit = hit

    @abstractmethod
    async def open(self) -> None: ...
    @abstractmethod
    async def one(self, number: int) -> None: ...
    @abstractmethod
    async def many(self, numbers: range) -> None: ...
    @abstractmethod
    async def work(self) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...


class Ours(Queue):
    title = "queuehint, in order over 1 000 paths"

    async def open(self) -> None:
        self.url += f"?namespace=bench{next(_numbers)}&durability=process"
        await self._begin(Scheduler(self.url))

    async def _begin(self, sched: Scheduler) -> None:
        self._sched = sched

        @self._sched.job(name="noop", queue_hint=["{doc}"])
        async def noop(doc: str) -> None:
            self.hit()

        self._noop = noop
        await self._sched.stats()

    async def one(self, number: int) -> None:
        await self._noop.enqueue(f"d{number % PATHS}")

    async def many(self, numbers: range) -> None:
        await self._noop.enqueue_many([(f"d{number % PATHS}",) for number in numbers])

    async def work(self) -> None:
        async with self._sched.worker(CONCURRENCY):
            await asyncio.sleep(3600)

    async def close(self) -> None:
        await self._sched.close()


class Led(Ours):
    title = "queuehint, led by another process"

    async def open(self) -> None:
        await super().open()
        backend: Any = self._sched.backend
        backend.leaves_lead = True
        command = [sys.executable, "-m", "queuehint", "lead", self.url, "--log-level=error"]
        self._leader = await asyncio.create_subprocess_exec(*command)
        while backend.is_leading:
            assert self._leader.returncode is None, "the process that leads has ended"
            await asyncio.sleep(0.05)
            await self._sched.stats()

    async def close(self) -> None:
        await super().close()
        self._leader.terminate()
        await self._leader.wait()


class PgQueuer(Queue):
    title = "PgQueuer, in no order"

    async def open(self) -> None:
        await self.connect()
        await self._queries.install()

    async def connect(self) -> None:
        library = import_module("pgqueuer")
        asyncpg = import_module("asyncpg")
        self._connection = await asyncpg.connect(self.url)
        self._producer = await asyncpg.connect(self.url)
        self._queue = library.PgQueuer.from_asyncpg_connection(self._connection)
        self._queries = import_module("pgqueuer.queries").Queries.from_asyncpg_connection(self._producer)

        @self._queue.entrypoint("noop")  # type: ignore[untyped-decorator]
        async def noop(_job: Any) -> None:
            self.hit()

    async def one(self, _number: int) -> None:
        await self._queries.enqueue("noop", b"1")

    async def many(self, numbers: range) -> None:
        count = len(numbers)
        await self._queries.enqueue(["noop"] * count, [b"1"] * count, [0] * count)

    async def work(self) -> None:
        await self._queue.run(batch_size=100, dequeue_timeout=timedelta(seconds=1))

    async def close(self) -> None:
        await self._queries.uninstall()
        await self._producer.close()
        await self._connection.close()


class Procrastinate(Queue):
    title = "Procrastinate, in order over 1 000 locks"
    share = 0.05

    async def open(self) -> None:
        library = import_module("procrastinate")
        self._app = library.App(connector=library.PsycopgConnector(conninfo=self.url))
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

        async def noop() -> None:
            self.hit()

        self._noop = self._app.task(name="noop")(noop)

    async def one(self, number: int) -> None:
        await self._noop.configure(lock=f"d{number % PATHS}").defer_async()

    async def many(self, numbers: range) -> None:
        for number in numbers:
            await self.one(number)

    async def work(self) -> None:
        await self._app.run_worker_async(concurrency=20, install_signal_handlers=False, listen_notify=True)

    async def close(self) -> None:
        await self._app.close_async()


class Graphile:
    """Named queues of graphile-worker run one job at a time; a program of Node takes all figures by the same rules."""

    title: ClassVar[str] = "graphile-worker, in order over 1 000 named queues"
    share: ClassVar[float] = 0.05
    mode: ClassVar[str] = "named"
    worker: ClassVar[dict[str, Any]] = {"concurrentJobs": 4}

    @classmethod
    def measured(cls, url: str, jobs: int) -> dict[str, float]:
        """Return the figures, as `postgres_peers.measured` does."""
        if lack := redis_peers.Graphile.lacks():
            raise ImportError(lack)
        orders = {"url": url, "jobs": jobs, "paths": PATHS, "at_once": AT_ONCE, "worker": cls.worker}
        program = (*redis_peers.Graphile.command(), "measure", cls.mode)
        printed = subprocess.run(
            program, env={**os.environ, "BENCH": json.dumps(orders)}, check=True, stdout=subprocess.PIPE
        )
        found: dict[str, float] = json.loads(printed.stdout)
        return found


class UnorderedGraphile(Graphile):
    title = "graphile-worker, in no order"
    share = 1.0
    mode = "any"
    # Jobs that a worker takes into its local queue do not keep the order of their named queues.
    worker: ClassVar[dict[str, Any]] = {"concurrentJobs": 24, "localQueue": {"size": 500}, "completeJobBatchDelay": 0}
