"""Processes that lead a journal are killed while all of them run its jobs: nothing is lost, nothing out of order."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from queuehint import JobSpec, Policy, Scheduler
from queuehint.backends.journal import recovery
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.postgres import store
from queuehint.values.hint import Claim
from tests.folders import quick_folder
from tests.postgres_servers import shared_postgres
from tests.prefork import start
from tests.servers import new_namespace
from tests.support import LIMIT_S, until_sync

PATHS, ROUNDS, WORKERS, KILLS = 25, 24, 3, 2
KEPT_MS = 2_000
"""For how long a new leader keeps leases: as long as these are."""


@pytest.fixture(
    params=[
        "file",
        pytest.param("application", marks=pytest.mark.nightly),
        pytest.param("postgres", marks=pytest.mark.nightly),
        pytest.param("port", marks=pytest.mark.nightly),
        "mail",
    ]
)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in {"file", "application"}:
        bind = "&bind=127.0.0.1:0" if request.param == "port" else ""
        yield f"{shared_postgres().url}?namespace={new_namespace()}&durability=process{bind}"
    else:
        with quick_folder() as folder:
            shared = "yes" if request.param == "application" else "no"
            yield f"sqlite:///{folder}/jobs.db?durability=process&shared={shared}"


def started(url: str, log: Path, *, is_far: bool) -> subprocess.Popen[bytes]:
    return start("tests.faults.test_leaders", url, str(log), str(is_far))


def test_jobs_run_in_order_whichever_process_leads_and_dies(
    url: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_far = request.node.callspec.params["url"] in {"mail", "port"}
    if is_far:
        monkeypatch.setattr(store, "machine", lambda: "elsewhere")
    monkeypatch.setattr(recovery, "KEPT_MS", KEPT_MS)
    log = tmp_path / "ran"
    log.touch()
    sched = Scheduler(url)
    workers = [started(url, log, is_far=is_far) for _ in range(WORKERS)]
    try:
        for n in range(ROUNDS):
            sched.submit_sync(
                [
                    JobSpec(
                        id=f"{doc}-{n}",
                        task="edit",
                        claims=(Claim((f"doc{doc}",)),),
                        arguments=f'{{"doc":{doc},"n":{n}}}'.encode(),
                        policy=Policy(max_attempts=99, max_losses=99),
                    )
                    for doc in range(PATHS)
                ]
            )
            if n % (ROUNDS // KILLS) == 5:
                leader = next(each for each in workers if each.pid == led_by(sched))
                leader.send_signal(signal.SIGKILL)
                leader.wait()
                workers.remove(leader)
                workers.append(started(url, log, is_far=is_far))
        until_sync(lambda: not sched.stats_sync().unfinished, "all jobs are over", LIMIT_S)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        sched.close_sync()
    ran: dict[str, list[int]] = defaultdict(list)
    for line in log.read_text().splitlines():
        doc, number = line.split()
        ran[doc].append(int(number))
    assert len(ran) == PATHS
    # One that was cut off by the end of its process comes again, before those behind it.
    assert all([n for n, _ in groupby(each)] == list(range(ROUNDS)) for each in ran.values())
    again = sum(map(len, ran.values())) - PATHS * ROUNDS
    assert again <= KILLS * 4 + KILLS


def led_by(sched: Scheduler) -> int | None:
    """Return the process that leads, once it is one of the workers."""
    backend = sched.backend
    assert isinstance(backend, JournalBackend)

    def found() -> int | None:
        sched.stats_sync()
        return None if backend._leader is None else backend._leader.pid

    return until_sync(found, "one of them leads", LIMIT_S)


# --- a process of a worker ---


def work(url: str, path: str, is_far: str) -> None:
    recovery.KEPT_MS = KEPT_MS  # type: ignore[misc]
    if is_far == "True":
        store.machine = lambda: str(os.getpid())
    sched = Scheduler(url)
    log = os.open(path, os.O_WRONLY | os.O_APPEND)

    @sched.job(name="edit")
    async def edit(doc: int, n: int) -> None:
        os.write(log, f"{doc} {n}\n".encode())
        await asyncio.sleep(0.002)

    async def run() -> None:
        await sched.make_worker(4, lease=KEPT_MS / 1000).run()

    asyncio.run(run())


if __name__ == "__main__":
    work(*sys.argv[1:])
