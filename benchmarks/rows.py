"""
PostgreSQL backend: what a job written in a transaction costs the transaction.

Writers in processes of their own update a row and commit, each in a loop, and do one thing more in between. What they
do more changes in turns, so that what else the machine does meets all of it. Nobody takes the jobs meanwhile.

On a machine that others use too the CPU time of a transaction says more than how many there are a second.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from benchmarks.report import Report
from queuehint import Scheduler
from queuehint.operations import Enqueue
from queuehint.operations.inbox import row_of

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

    from psycopg import Connection

    from benchmarks.servers import PostgresServer

WRITERS: Final = 4
TURNS: Final = 15
"""Short ones: the load of the machine changes from one second to the next."""
DOCUMENTS: Final = 1_000
"""How many rows each writer updates, and no other one."""
ALONE: Final = "the UPDATE alone"
NOTHING: Final = "with SELECT 1"
PLAIN: Final = "with a row in a plain table"
"""One of the application, and of as many bytes as a job has."""
OURS: Final = "with a job"
TABLES: Final = f"""
CREATE TABLE document (id int PRIMARY KEY, version int NOT NULL) WITH (fillfactor = 50);
INSERT INTO document SELECT n, 0 FROM generate_series(0, {WRITERS * DOCUMENTS - 1}) n;
CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, namespace text NOT NULL, data bytea NOT NULL);
"""
PATIENCE_S: Final = 300
RATE: Final = "commits/s"
CPU: Final = "us of CPU"
"""Of a writer and the process that serves it, for a transaction."""
UNITS: Final[dict[str, Callable[[Iterable[float]], float]]] = {RATE: sum, CPU: statistics.fmean}
"""What is made of the figures of all writers in a turn."""
Figures: TypeAlias = dict[tuple[str, str], list[float]]
"""What a writer has found in each turn: by what it does, and the unit."""


def run_rows(report: Report, server: PostgresServer, seconds: float) -> None:
    """Measure each for some seconds in each turn, with all writers at once."""
    import psycopg

    report.title(f"What a job costs the transaction that writes it: {WRITERS} writers (taken in turns)")
    url = f"{server.url}?namespace=bench-rows-{os.getpid()}"
    sched = Scheduler(url)
    sched.stats_sync()  # makes the tables
    sched.close_sync()
    with psycopg.connect(server.url) as connection:
        connection.execute(TABLES)
    context = multiprocessing.get_context("spawn")
    together, found = context.Barrier(WRITERS), context.Queue()
    writers = [
        context.Process(target=_write, args=(server.url, url, n, seconds, together, found)) for n in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    of_all = [found.get(timeout=PATIENCE_S) for _ in writers]
    for writer in writers:
        writer.join()
    for unit, of_writers in UNITS.items():
        medians = {}
        for way in (ALONE, NOTHING, PLAIN, OURS):
            turns = zip(*[each[way, unit] for each in of_all], strict=True)
            medians[way] = report.add(way, unit, *[of_writers(turn) for turn in turns]).median
        for other in (ALONE, PLAIN):
            report.add(f"{OURS} / {other}, {unit}", "times", medians[OURS] / medians[other])


def _write(database: str, url: str, writer: int, seconds: float, together: Barrier, found: Queue[Figures]) -> None:
    """Put what one writer has found in each turn."""
    import psycopg

    with psycopg.connect(database) as connection:
        ways = _ways(connection, url)
        figures: Figures = {(way, unit): [] for way in ways for unit in UNITS}
        server = connection.info.backend_pid
        for _ in range(TURNS):
            for way, act in ways.items():
                _count(connection, writer, act, seconds / 10)
                together.wait(PATIENCE_S)
                begun_ns = _cpu_ns(server)
                count = _count(connection, writer, act, seconds)
                figures[way, RATE].append(count / seconds)
                figures[way, CPU].append((_cpu_ns(server) - begun_ns) / count / 1e3)
    found.put(figures)


def _cpu_ns(server: int) -> int:
    """Return for how long this process has had a CPU, and the one that serves it."""
    on_cpu_ns = Path(f"/proc/{server}/schedstat").read_text(encoding="ascii").split()[0]
    return time.process_time_ns() + int(on_cpu_ns)


def _ways(connection: Connection[Any], url: str) -> dict[str, Callable[[], object]]:
    """Return what is done in a transaction besides the update."""
    sched = Scheduler(f"{url}&lead=no")

    @sched.job(queue_hint=["{doc}"])
    def save(doc: str) -> None: ...

    values = "bench", row_of([Enqueue((save.spec("doc1"),))])
    return {
        ALONE: lambda: None,
        NOTHING: lambda: connection.execute("SELECT 1"),
        PLAIN: lambda: connection.execute("INSERT INTO plain (namespace, data) VALUES (%s, %s)", values),
        OURS: lambda: save.within(connection).enqueue_sync("doc1"),
    }


def _count(connection: Connection[Any], writer: int, act: Callable[[], object], seconds: float) -> int:
    """Return how many transactions, at least one, are committed in so many seconds."""
    count, end_s = 0, time.perf_counter() + seconds
    while not count or time.perf_counter() < end_s:
        document = writer * DOCUMENTS + random.randrange(DOCUMENTS)
        connection.execute("UPDATE document SET version = version + 1 WHERE id = %s", (document,))
        act()
        connection.commit()
        count += 1
    return count
