"""
Jobs in PostgreSQL drained by one and by two worker processes, beside PgQueuer's, in turns on one server.

Time is taken from when workers that are ready may begin until the last job has run.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any, Final

import attrs

from benchmarks.calls import specs_of
from benchmarks.postgres_queues import AT_ONCE, CONCURRENCY, PATHS, Led, Ours, PgQueuer, Queue
from benchmarks.report import Report
from benchmarks.workers import ONE, TWO, drain
from queuehint import Claim, Scheduler
from queuehint.backends.base import BackendOptions
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.backend import PostgresBackend

if TYPE_CHECKING:
    from benchmarks.servers import PostgresServer

COMMAND: Final = "queuehint, as `queuehint worker` is started"
_processes: Final = multiprocessing.get_context("spawn")
_numbers = itertools.count()


class Guest(Ours):
    """A worker of a store that another process leads."""

    async def open(self) -> None:
        await self._begin(Scheduler(f"{self.url}&lead=no"))


class Connected(PgQueuer):
    """A worker where the tables are there."""

    async def open(self) -> None:
        await self.connect()


WORKERS: Final[dict[type[Queue], type[Queue]]] = {Led: Guest, PgQueuer: Connected}


def run_pairs(report: Report, server: PostgresServer, jobs: int, repeats: int) -> None:
    """Measure all that are installed."""
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(repeats):
        for count in (1, 2):
            for kind in WORKERS:
                server.clear()
                try:
                    seconds = asyncio.run(_drained(kind, server, jobs, count))
                except ImportError as error:
                    report.missing.append(f"{kind.title}: {error}")
                    continue
                found.setdefault((kind.title, count), []).append(jobs / seconds)
            server.clear()
            found.setdefault((COMMAND, count), []).append(jobs / _drained_by_command(server, jobs, count))
    report.title(f"PostgreSQL, jobs drained by worker processes of their own: {jobs:,} jobs (taken in turns)")
    medians = {key: report.add(f"{key[0]}: {key[1]}", "jobs/s", *each).median for key, each in found.items()}
    for title in dict.fromkeys(title for title, _ in medians):
        report.add(f"{title}: 2 / 1", "times", medians[title, 2] / medians[title, 1])
        if title != PgQueuer.title and (peer := medians.get((PgQueuer.title, 2))):
            report.add(f"{title} / {PgQueuer.title}: 2", "times", medians[title, 2] / peer)


async def _drained(kind: type[Queue], server: PostgresServer, jobs: int, count: int) -> float:
    queue = kind(server.url, lambda: None)
    await queue.open()
    for begin in range(0, jobs, AT_ONCE):
        await queue.many(range(begin, min(begin + AT_ONCE, jobs)))
    await asyncio.to_thread(server.analyze)
    seconds = await asyncio.to_thread(_drain, WORKERS[kind], queue.url, jobs, count)
    await queue.close()
    return seconds


def _drain(kind: type[Queue], url: str, jobs: int, count: int) -> float:
    """Return the seconds that worker processes take for all jobs."""
    ran, ready, may_begin = _processes.RawArray("q", count), _processes.Semaphore(0), _processes.Event()
    workers = [
        _processes.Process(target=_work, args=(kind, url, number, ran, ready, may_begin)) for number in range(count)
    ]
    for worker in workers:
        worker.start()
    try:
        for _ in workers:
            while not ready.acquire(timeout=1):
                assert all(worker.is_alive() for worker in workers), "a worker has ended"
        begin_s = time.perf_counter()
        may_begin.set()
        while sum(ran) < jobs:
            assert all(worker.is_alive() for worker in workers), "a worker has ended"
            time.sleep(0.002)
        return time.perf_counter() - begin_s
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _work(kind: type[Queue], url: str, number: int, ran: Any, ready: Any, may_begin: Any) -> None:
    def hit() -> None:
        ran[number] += 1

    async def work() -> None:
        queue = kind(url, hit)
        await queue.open()
        ready.release()
        await asyncio.to_thread(may_begin.wait)
        await queue.work()

    asyncio.run(work())


def _drained_by_command(server: PostgresServer, jobs: int, count: int) -> float:
    namespace = f"command-{os.getpid()}-{next(_numbers)}"
    address = f"{server.url}?durability=process"
    store = PostgresBackend(parse_url(address), BackendOptions(namespace=namespace))
    specs = [attrs.evolve(spec, claims=(Claim((f"d{n % PATHS}",)),)) for n, spec in enumerate(specs_of(jobs))]
    way = ONE if count == 1 else TWO
    return drain(store, f"{address}&namespace={namespace}", specs, way, f"--concurrency={CONCURRENCY}")
