"""
Jobs in PostgreSQL beside other queues there, in turns on one server; producer and worker share a process.

No contender waits for the disk. Then one and two processes of workers drain jobs, ours beside PgQueuer's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.pairs import run_pairs
from benchmarks.postgres_queues import AT_ONCE, Graphile, Led, Ours, PgQueuer, Procrastinate, Queue, UnorderedGraphile
from benchmarks.report import REPEATS, Report
from benchmarks.servers import PostgresServer


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


KINDS: Final[tuple[type[Queue | Graphile], ...]] = (Ours, Led, PgQueuer, Procrastinate, Graphile, UnorderedGraphile)
UNITS: Final = {"bulk": "jobs/s", "drain": "jobs/s", "one by one": "jobs/s", "p50": "ms"}


def run(report: Report, *, quick: bool) -> None:
    """Measure all contenders that are installed."""
    jobs, repeats = (2_000, 1) if quick else (20_000, REPEATS)
    found: dict[str, dict[str, list[float]]] = {}
    with PostgresServer().running() as server:
        for _ in range(repeats):
            for kind in KINDS:
                server.clear()
                count = max(round(jobs * kind.share), 100)
                try:
                    rates = (
                        kind.measured(server.url, count)
                        if issubclass(kind, Graphile)
                        else asyncio.run(measured(kind, server, count))
                    )
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
                    report.add(f"{name} / {title}", "times", medians[ours] / median)
    with PostgresServer().running() as server:
        run_pairs(report, server, jobs, repeats)
