"""
PostgreSQL backend: what a call costs the leader, and guests by each way to it, measured in turns in one run.

The leader of guests is a process of its own. The server is one of the benchmark, which does not wait for its disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Final
from unittest import mock

from benchmarks.calls import AT_ONCE, enqueue_at_once, enqueue_in_turn
from benchmarks.report import REPEATS, Report
from benchmarks.servers import PostgresServer, off_the_server_cpu
from queuehint.backends.base import BackendOptions
from queuehint.backends.postgres import store
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.backend import PostgresBackend
from queuehint.operations import CountJobs

if TYPE_CHECKING:
    from collections.abc import Iterator

LEADER: Final = "leader"
SOCKET: Final = "guest by the socket"
WAYS: Final = {LEADER: "", SOCKET: "", "guest by mail": "", "guest by mail, polled": "&pooled=1"}
"""What is added to the URL for each."""

LEADS: Final = """
import asyncio, sys
from queuehint import Scheduler

async def main():
    sched = Scheduler(sys.argv[1], namespace=sys.argv[2])
    await sched.stats()
    print("leads", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""

_namespaces = count()


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it; the full run takes a minute."""
    server = PostgresServer()
    if not server.is_installed:
        report.missing.append("PostgreSQL: initdb and psql are not installed")
        return
    with server.running(), off_the_server_cpu():
        server.clear()
        _calls(report, f"{server.url}?durability=process", 200 if quick else 2_000)


def _calls(report: Report, url: str, jobs: int) -> None:
    report.title(f"Calls in PostgreSQL, durability=process: {jobs:,} jobs (taken in turns)")
    for what, measure in {"one after the other": enqueue_in_turn, f"{AT_ONCE} at once": enqueue_at_once}.items():
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(REPEATS):
            for way, found in rates.items():
                with _opened(url, way) as backend:
                    found.append(jobs / measure(backend, jobs))
        medians = {way: report.add(f"{way}, {what}", "jobs/s", *each).median for way, each in rates.items()}
        for way in list(WAYS)[2:]:
            report.add(f"{way} / {SOCKET}, {what}", "times", medians[way] / medians[SOCKET])


@contextmanager
def _opened(url: str, way: str) -> Iterator[PostgresBackend]:
    """Open a store that leads, or is the guest of a leader in another process by one of the ways."""
    options = BackendOptions(namespace=f"bench-{os.getpid()}-{next(_namespaces)}")
    leader: subprocess.Popen[bytes] | None = None
    if way != LEADER:
        leader = subprocess.Popen([sys.executable, "-c", LEADS, url, options.namespace], stdout=subprocess.PIPE)
        assert leader.stdout is not None
        leader.stdout.readline()
    here = store.machine() if way in {LEADER, SOCKET} else "elsewhere"
    with mock.patch.object(store, "machine", return_value=here):
        backend = PostgresBackend(parse_url(url + WAYS[way]), options)
    try:
        backend.call_sync(CountJobs())
        yield backend
    finally:
        backend.close_sync()
        if leader is not None:
            leader.kill()
            leader.wait()
            assert leader.stdout is not None
            leader.stdout.close()
