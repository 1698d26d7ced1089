"""Two releases side by side: the lead passes between them while workers of both run jobs; each runs once, in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuehint import JobContext, JobSpec, Policy, Scheduler
from queuehint.backends.base import BackendOptions, open_backend
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.journal.lead.standing import Standby
from queuehint.values.hint import Claim
from tests.folders import quick_folder
from tests.other_rules import become
from tests.postgres_servers import shared_postgres
from tests.prefork import start
from tests.servers import new_namespace
from tests.support import LIMIT_S, until_sync

PATHS, ROUNDS = 20, 16
LEASE_S = 4


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "file":
        yield f"{shared_postgres().url}?namespace={new_namespace()}&durability=process"
    else:
        with quick_folder() as folder:
            yield f"sqlite:///{folder}/jobs.db?durability=process"


class World:
    """Processes of releases A and B on one store, and a producer that leads nothing for long."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self.log = url, log
        self.said = log.with_name("ran.said")
        self.said.touch()
        self.sched = Scheduler(url)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, release: str) -> subprocess.Popen[bytes]:
        process = start("tests.faults.test_two_releases", self.url, str(self.log), role, release)
        self.processes.append(process)
        return process

    def leader(self) -> int | None:
        """Return the process that leads."""
        backend = self.sched.backend
        assert isinstance(backend, JournalBackend)
        self.sched.stats_sync()
        return os.getpid() if backend.is_leading else backend._leader.pid if backend._leader is not None else None

    def until_leads(self, process: subprocess.Popen[bytes]) -> None:
        until_sync(lambda: self.leader() == process.pid, f"process {process.pid} leads", LIMIT_S)

    def until_said(self, process: subprocess.Popen[bytes], event: str) -> None:
        """Wait until a process has logged an event."""
        line = f"{process.pid} {event}\n"
        until_sync(lambda: line in self.said.read_text(), f"process {process.pid} logs {event}", LIMIT_S)

    def submit(self, n: int) -> None:
        self.sched.submit_sync(
            [
                JobSpec(
                    id=f"{doc}-{n}",
                    task="edit",
                    user=f"u{doc % 3}",
                    claims=(Claim((f"doc{doc}",)),),
                    arguments=f'{{"doc":{doc},"n":{n}}}'.encode(),
                    policy=Policy(max_attempts=99, max_losses=99),
                )
                for doc in range(PATHS)
            ]
        )

    def finish(self) -> None:
        until_sync(lambda: not self.sched.stats_sync().unfinished, "all jobs are over", LIMIT_S)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.sched.close_sync()


@pytest.fixture
def world(url: str, tmp_path: Path) -> Iterator[World]:
    log = tmp_path / "ran"
    log.touch()
    made = World(url, log)
    try:
        yield made
    finally:
        made.close()


def check(log: Path, rounds: int) -> None:
    """Each job ran once, those of a path in order and none beside another; tokens grow on each path."""
    ran: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for line in log.read_text().splitlines():
        what, doc, number, token = line.split()
        ran[doc].append((what, int(number), int(token)))
    assert len(ran) == PATHS
    for each in ran.values():
        assert [line[:2] for line in each] == [(what, n) for n in range(rounds) for what in ("begin", "end")]
        tokens = [token for what, _, token in each if what == "begin"]
        assert tokens == sorted(set(tokens))


def end_by(process: subprocess.Popen[bytes], number: int) -> None:
    process.send_signal(number)
    process.wait(LIMIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_lead_passes_between_releases_while_workers_of_both_run(world: World, how: signal.Signals) -> None:
    first = world.start("lead", "A")
    world.until_leads(first)
    for release in "AAB":
        world.start("follow", release)
    second: subprocess.Popen[bytes] | None = None
    for n in range(ROUNDS):
        world.submit(n)
        if n == 2:
            second = world.start("lead", "B")
            world.until_said(second, "journal.standby_waits")
        if n == 6:
            assert second is not None
            end_by(first, how)
            world.until_leads(second)
            first = world.start("lead", "A")
            world.until_said(first, "journal.standby_waits")
        if n == 11:
            assert second is not None
            end_by(second, how)
            world.until_leads(first)
    world.finish()
    check(world.log, ROUNDS)


def test_process_without_worker_leaves_the_lead_to_another_release(world: World) -> None:
    for n in range(3):
        world.submit(n)
    assert world.leader() == os.getpid()
    worker = world.start("work", "B")
    world.until_leads(worker)
    for n in range(3, 6):
        world.submit(n)
    world.finish()
    check(world.log, 6)


# --- a process ---


def main(url: str, path: str, role: str, release: str) -> None:
    if release == "B":
        become(pytest.MonkeyPatch(), "newest_first", "last_user_first")
    roles: dict[str, Callable[[str, str], None]] = {"lead": lead, "work": work, "follow": follow}
    roles[role](url, path)


class Events(logging.Handler):
    """What is logged, as events with the process, one a line."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def emit(self, record: logging.LogRecord) -> None:
        os.write(self.file, f"{os.getpid()} {getattr(record, 'event', '')}\n".encode())


def lead(url: str, path: str) -> None:
    logger = logging.getLogger("queuehint.journal")
    logger.setLevel(logging.INFO)
    logger.addHandler(Events(f"{path}.said"))
    backend = open_backend(url, BackendOptions())
    assert isinstance(backend, JournalBackend)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        Standby(backend).run(stop)
    finally:
        backend.close_sync()


def follow(url: str, path: str) -> None:
    """Run jobs, and leave the lead to others for some seconds, as the command for workers does."""
    work(url, path, leaves_lead=True)


def work(url: str, path: str, *, leaves_lead: bool = False) -> None:
    sched = Scheduler(url)
    assert isinstance(sched.backend, JournalBackend)
    sched.backend.leaves_lead = leaves_lead
    log = os.open(path, os.O_WRONLY | os.O_APPEND)

    @sched.job(name="edit")
    async def edit(ctx: JobContext, doc: int, n: int) -> None:
        os.write(log, f"begin {doc} {n} {ctx.token}\n".encode())
        await asyncio.sleep(0.003)
        os.write(log, f"end {doc} {n} {ctx.token}\n".encode())

    async def run() -> None:
        await sched.make_worker(4, lease=LEASE_S).run()

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
