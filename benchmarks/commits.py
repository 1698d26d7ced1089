"""
PostgreSQL backend: from the commit of a transaction with a job to the handler of the job.

A worker runs in this process, which leads, and a thread commits transactions that go on for 2 ms after their job was
written. What differs is how the leader notices the commit: it is rung by the library, expects the row, is notified by
the server, or looks by itself, the last two as for a process that is not connected to it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from benchmarks.report import Report
from queuehint import Job, Scheduler

if TYPE_CHECKING:
    from benchmarks.servers import PostgresServer

OPEN_S: Final = 0.002
APART_S: Final = 0.04
Commit: TypeAlias = Callable[[str], float]
"""Commits a transaction with a job; returns when the commit began."""
Open: TypeAlias = Callable[[Job[Any, Any]], AbstractContextManager[Commit]]

_names = count()


def run_commits(report: Report, server: PostgresServer, transactions: int) -> None:
    """Measure each way by which a leader notices a commit."""
    url = f"{server.url}?durability=process&namespace=bench-commits-{os.getpid()}"
    report.title(f"From a commit to the handler of its job: {transactions:,} transactions")
    by_psycopg, by_session = partial(_psycopg, server.url), partial(_session, server.url)
    by_notification = partial(_psycopg, server.url, notify=True)
    for way, opened, is_connected in (
        ("rung", by_session, True),
        ("expected", by_psycopg, True),
        ("notified", by_notification, False),
        ("looked for", by_psycopg, False),
    ):
        delays = sorted(asyncio.run(_delays(url, opened, transactions, is_connected=is_connected)))
        for share in (50, 99):
            report.add(f"{way}, p{share}", "ms", delays[len(delays) * share // 100] * 1e3)


async def _delays(url: str, opened: Open, transactions: int, *, is_connected: bool) -> list[float]:
    """Return the times from commits to handlers, in seconds."""
    worker, writer = Scheduler(url), Scheduler(url)
    begun: dict[str, asyncio.Future[float]] = {}

    async def note(name: str) -> None:
        begun[name].set_result(time.perf_counter())

    of_worker, of_writer = [sched.job(queue_hint=["{name}"])(note) for sched in (worker, writer)]
    delays: list[float] = []
    async with worker.worker(concurrency=8):
        with opened(of_worker if is_connected else of_writer) as commit:
            for _ in range(transactions):
                name = f"commit-{next(_names)}"
                at_s = begun[name] = asyncio.get_running_loop().create_future()
                committed_s = await asyncio.to_thread(commit, name)
                delays.append(await at_s - committed_s)
                await asyncio.sleep(random.random() * APART_S)
    await worker.close()
    await writer.close()
    return delays


@contextmanager
def _psycopg(url: str, job: Job[Any, Any], *, notify: bool = False) -> Iterator[Commit]:
    import psycopg

    with psycopg.connect(url) as connection:

        def commit(name: str) -> float:
            job.within(connection, notify=notify).enqueue_sync(name)
            time.sleep(OPEN_S)
            committed_s = time.perf_counter()
            connection.commit()
            return committed_s

        yield commit


@contextmanager
def _session(url: str, job: Job[Any, Any]) -> Iterator[Commit]:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def commit(name: str) -> float:
        with Session(engine) as session:
            job.within(session).enqueue_sync(name)
            time.sleep(OPEN_S)
            committed_s = time.perf_counter()
            session.commit()
        return committed_s

    yield commit
    engine.dispose()
