"""Processes on machines of their own, whose cables to the database are cut in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from queuehint import Scheduler
from queuehint.backends.postgres import store as store_module
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from tests.machines import Machine, may_cable
from tests.postgres_servers import USER, PostgresServer
from tests.prefork import ROOT
from tests.support import until_sync

pytestmark = [pytest.mark.usefixtures("postgres_server"), pytest.mark.nightly]


class Site:
    """A server, and two machines with a process each that enqueues jobs of one path all the time."""

    def __init__(self, folder: Path) -> None:
        self._opened = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.folder = folder
        self.machines = [self._opened.enter_context(Machine(number)) for number in (1, 2)]
        self.server = self._opened.enter_context(PostgresServer(listen_addresses="*"))
        with (self.server.data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.213.0.0/16 trust\n")
        self.server.run("SELECT pg_reload_conf()")

    def start(self, machine: Machine, options: str) -> Path:
        """Start a process; return the file of its answers."""
        url = f"postgresql://{USER}@{machine.server}:{self.server.port}/postgres?{options}"
        said = self.folder / f"said-{machine.number}"
        with said.open("wb") as output:
            process = subprocess.Popen(
                [*machine.command, sys.executable, "-m", "tests.faults.test_machines", url, f"m{machine.number}"],
                cwd=ROOT,
                stdout=output,
            )
        self._processes.append(process)
        return said

    def stop(self) -> None:
        """Kill all processes."""
        for process in self._processes:
            process.kill()
            process.wait()

    def led_by(self) -> int:
        """Return how often the lead was taken."""
        [(epoch,)] = self.server.run("SELECT epoch FROM queuehint.leader")
        return int(epoch)

    def close(self) -> None:
        self.stop()
        self._opened.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if not may_cable():
        pytest.skip("namespaces of the network with cables between them cannot be made here")
    site = Site(tmp_path)
    yield site
    site.close()


def done(said: Path) -> list[str]:
    """Return the ids of the jobs that were answered."""
    return [line.split()[1] for line in said.read_text().splitlines() if line.startswith("ok ")]


def failed(said: Path) -> list[str]:
    """Return the errors that were raised."""
    return [line.split()[1] for line in said.read_text().splitlines() if line.startswith("error ")]


def more(said: Path) -> Callable[[], bool]:
    """Return what tells whether more jobs were answered since now."""
    before = len(done(said))
    return lambda: len(done(said)) > before + 3


def check(site: Site, said: list[Path]) -> None:
    """Kill all processes, and run all jobs: each that was answered once, in its order."""
    site.stop()
    ran: list[str] = []
    sched = Scheduler(site.server.url)

    @sched.job(queue_hint=["{name}"])
    def note(name: str, number: int) -> None:
        ran.append(f"{name}-{number}")

    until_sync(lambda: answered(sched), "it leads, or the leader answers")
    sched.drain_sync(run=True)
    sched.close_sync()
    for each in said:
        name = done(each)[0].partition("-")[0]
        mine = [job for job in ran if job.startswith(f"{name}-")]
        assert mine == sorted(set(mine), key=lambda job: int(job.partition("-")[2]))
        assert set(done(each)) <= set(mine)


def answered(sched: Scheduler) -> bool:
    try:
        sched.stats_sync()
    except (BackendUnavailableError, OutcomeUnknownError):
        return False
    return True


def test_guest_behind_a_silent_network_fails_and_goes_on(site: Site) -> None:
    leads, guest = site.machines
    first = site.start(leads, "durability=process")
    until_sync(more(first), "it leads")
    second = site.start(guest, "durability=process&lead=no")
    until_sync(more(second), "it is a guest")
    guest.cut()
    until_sync(lambda: failed(second), "its calls are errors")
    assert set(failed(second)) <= {"BackendUnavailableError", "OutcomeUnknownError"}
    until_sync(more(first), "the leader goes on")
    assert site.led_by() == 1
    guest.heal()
    until_sync(more(second), "the guest goes on")
    check(site, [first, second])


def test_leader_behind_a_silent_network_is_followed(site: Site) -> None:
    leads, guest = site.machines
    first = site.start(leads, "durability=process")
    until_sync(more(first), "it leads")
    second = site.start(guest, "durability=process")
    until_sync(more(second), "it is a guest")
    leads.cut()
    until_sync(more(second), "it leads")
    assert site.led_by() == 2
    leads.heal()
    until_sync(more(first), "the one that led is a guest")
    until_sync(more(second), "the other one goes on")
    assert site.led_by() == 2
    check(site, [first, second])


def call(url: str, name: str) -> None:
    """Enqueue one job after the other, and say how it went; one of which nothing is known is asked for again."""
    store_module.machine = lambda: name
    sched = Scheduler(url)

    @sched.job(queue_hint=["{name}"])
    def note(name: str, number: int) -> None:
        pass

    number = 0
    while True:
        try:
            note.using(id=f"{name}-{number}").enqueue_sync(name, number)
        except (BackendUnavailableError, OutcomeUnknownError) as error:
            print("error", type(error).__name__, flush=True)
        else:
            print("ok", f"{name}-{number}", flush=True)
            number += 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    call(*sys.argv[1:])
