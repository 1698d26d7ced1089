"""
Jobs in PostgreSQL beside other queues there, in turns on one server; producer and worker share a process.

PgQueuer orders nothing: any two of its jobs may run at once. Procrastinate orders jobs of one lock. Ours stand in order
over 1 000 paths; the process that measures leads, or one beside it. No contender waits for the disk.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from abc import ABC, abstractmethod
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks.report import REPEATS, Report
from benchmarks.servers import PostgresServer
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
        await self._begin(Scheduler(f"{self.url}?namespace=bench{next(_numbers)}&durability=process"))

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
        command = [sys.executable, "-m", "queuehint", "lead", self._sched.url, "--log-level=error"]
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
        library = import_module("pgqueuer")
        asyncpg = import_module("asyncpg")
        self._connection = await asyncpg.connect(self.url)
        self._producer = await asyncpg.connect(self.url)
        self._queue = library.PgQueuer.from_asyncpg_connection(self._connection)
        self._queries = import_module("pgqueuer.queries").Queries.from_asyncpg_connection(self._producer)
        await self._queries.install()

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


class _Count:
    """Counts jobs that ran, and says when all have."""

    def __init__(self) -> None:
        self.left = 0
        self.event = asyncio.Event()

    def begin(self, count: int) -> None:
        self.left = count
        self.event.clear()

    def hit(self) -> None:
        self.left -= 1
        if not self.left:
            self.event.set()


async def measured(kind: type[Queue], server: PostgresServer, jobs: int) -> dict[str, float]:
    """Return the rates of one contender, in jobs a second, and the ms from an enqueue to its handler."""
    count = _Count()
    jobs = max(round(jobs * kind.share), 100)
    queue = kind(server.url, count.hit)
    await queue.open()
    found: dict[str, float] = {}
    begin_s = time.perf_counter()
    for begin in range(0, jobs, AT_ONCE):
        await queue.many(range(begin, min(begin + AT_ONCE, jobs)))
    found["bulk"] = jobs / (time.perf_counter() - begin_s)
    await asyncio.to_thread(server.analyze)
    count.begin(jobs)
    begin_s = time.perf_counter()
    working = asyncio.create_task(queue.work())
    await count.event.wait()
    found["drain"] = jobs / (time.perf_counter() - begin_s)
    waits = []
    for number in range(200):
        await asyncio.sleep(0.005)
        count.begin(1)
        begin_s = time.perf_counter()
        await queue.one(number)
        await count.event.wait()
        waits.append((time.perf_counter() - begin_s) * 1000)
    found["p50"] = sorted(waits)[len(waits) // 2]
    working.cancel()
    await asyncio.wait((working,))
    ones = max(jobs // 10, 50)
    begin_s = time.perf_counter()
    for number in range(ones):
        await queue.one(number)
    found["one by one"] = ones / (time.perf_counter() - begin_s)
    await queue.close()
    return found


UNITS: Final = {"bulk": "jobs/s", "drain": "jobs/s", "one by one": "jobs/s", "p50": "ms"}


def run(report: Report, *, quick: bool) -> None:
    """Measure all contenders that are installed."""
    jobs = 2_000 if quick else 20_000
    found: dict[str, dict[str, list[float]]] = {}
    with PostgresServer().running() as server:
        for _ in range(1 if quick else REPEATS):
            for kind in (Ours, Led, PgQueuer, Procrastinate):
                server.clear()
                try:
                    rates = asyncio.run(measured(kind, server, jobs))
                except ImportError as error:
                    report.missing.append(f"{kind.title}: {error}")
                    continue
                for what, value in rates.items():
                    found.setdefault(what, {}).setdefault(kind.title, []).append(value)
    for what, by_title in found.items():
        report.title(f"PostgreSQL, {what}: {jobs:,} jobs (taken in turns)")
        medians = {title: report.add(title, UNITS[what], *values).median for title, values in by_title.items()}
        for ours, name in ((Ours.title, "queuehint"), (Led.title, Led.title)):
            for title, median in medians.items():
                if title not in {Ours.title, Led.title}:
                    report.add(f"{name} / {title.partition(',')[0]}", "times", medians[ours] / median)
