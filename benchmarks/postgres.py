"""
PostgreSQL backend: what a call costs the leader, and guests by each way to it, measured in turns in one run.

The leader of guests is a process of its own. The server is one of the benchmark, which does not wait for its disk.
Jobs are run by guests too: drained, from an enqueue to its handler, and enqueued one by one by the process that works.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Final
from unittest import mock

from benchmarks.calls import AT_ONCE, enqueue_at_once, enqueue_in_turn
from benchmarks.commits import run_commits
from benchmarks.postgres_peers import measured
from benchmarks.postgres_queues import Ours
from benchmarks.report import REPEATS, Report
from benchmarks.rows import run_rows
from benchmarks.servers import PostgresServer, off_the_server_cpu
from queuehint import Scheduler
from queuehint.backends.base import BackendOptions
from queuehint.backends.postgres import store
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.backend import PostgresBackend
from queuehint.errors import BackendUnavailableError
from queuehint.operations import CountJobs

if TYPE_CHECKING:
    from collections.abc import Iterator

LEADER: Final = "leader"
SOCKET: Final = "guest by the socket"
PORT: Final = "guest by the port"
MAIL: Final = "guest by mail"
WAYS: Final = {LEADER: "", SOCKET: "", PORT: "", MAIL: "", "guest by mail, polled": "&pooled=1"}
"""What is added to the URL for each."""
BIND: Final = "&bind=127.0.0.1:0"
"""What is added to the URL of the leader that has a port open."""

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
    """Measure all of it; the full run takes three minutes."""
    server = PostgresServer()
    if not server.is_installed:
        report.missing.append("PostgreSQL: initdb and psql are not installed")
        return
    with server.running(), off_the_server_cpu():
        server.clear()
        _calls(report, f"{server.url}?durability=process", 200 if quick else 2_000)
        _jobs(report, server, 1_000 if quick else 20_000)
        run_commits(report, server, 20 if quick else 300)
        run_rows(report, server, 0.02 if quick else 0.2)


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
        leads = [sys.executable, "-c", LEADS, url + BIND * (way == PORT), options.namespace]
        leader = subprocess.Popen(leads, stdout=subprocess.PIPE)
        assert leader.stdout is not None
        leader.stdout.readline()
    here = store.machine() if way in {LEADER, SOCKET} else "elsewhere"
    with mock.patch.object(store, "machine", return_value=here):
        backend = PostgresBackend(parse_url(url + WAYS[way]), options)
    try:
        backend.call_sync(CountJobs())
        assert way != PORT or backend.lead_facts()["reached_by"] == "port"
        yield backend
    finally:
        backend.close_sync()
        if leader is not None:
            leader.kill()
            leader.wait()
            assert leader.stdout is not None
            leader.stdout.close()


class Guest(Ours):
    """A process that produces and works, and does not lead."""

    way: ClassVar[str]

    async def open(self) -> None:
        url = f"{self.url}?namespace=bench-{os.getpid()}-{next(_namespaces)}&durability=process"
        leads = ["-m", "queuehint", "lead", url + BIND * (self.way == PORT), "--log-level", "error"]
        self._leader = await asyncio.create_subprocess_exec(sys.executable, *leads)
        try:
            await self._begin(await self._reached(f"{url}&lead=no"))
        except BaseException:
            with suppress(ProcessLookupError):  # it has ended by itself
                self._leader.kill()
            raise

    async def _reached(self, url: str) -> Scheduler:
        """Return a scheduler that has reached the leader, which may have to begin first."""
        with mock.patch.object(store, "machine", return_value=store.machine() if self.way == SOCKET else "elsewhere"):
            sched = Scheduler(url)
            backend = sched.backend  # made now
        assert isinstance(backend, PostgresBackend)
        while not backend.lead_facts():
            assert self._leader.returncode is None, "the process that leads has ended"
            with suppress(BackendUnavailableError):
                await sched.stats()
            await asyncio.sleep(0.05)
        way = {SOCKET: "socket", PORT: "port", MAIL: "mail"}[self.way]
        assert backend.lead_facts()["reached_by"] == way
        return sched

    async def close(self) -> None:
        await super().close()
        self._leader.kill()
        await self._leader.wait()


class BySocket(Guest):
    way = SOCKET


class ByPort(Guest):
    way = PORT


class ByMail(Guest):
    way = MAIL


def _jobs(report: Report, server: PostgresServer, jobs: int) -> None:
    report.title(f"Jobs of a guest that works, of a leader that runs none: {jobs:,} (taken in turns)")
    kinds = (BySocket, ByPort, ByMail)
    found: dict[str, list[dict[str, float]]] = {kind.way: [] for kind in kinds}
    for _ in range(REPEATS):
        for kind in kinds:
            found[kind.way].append(asyncio.run(measured(kind, server, jobs)))
    for what, unit in {"drain": "jobs/s", "one by one": "jobs/s", "p50": "ms"}.items():
        medians = {
            way: report.add(f"{way}, {what}", unit, *[each[what] for each in runs]).median
            for way, runs in found.items()
        }
        for way in (PORT, MAIL):
            report.add(f"{way} / {SOCKET}, {what}", "times", medians[way] / medians[SOCKET])
