"""The lease helper process of a worker: it renews the worker's leases, and ends with the worker."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuehint import operations as op
from queuehint.backends.memory import MemoryBackend
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec
from queuehint.worker.leases.helper import RenewerProcess
from tests.probes import until
from tests.remote_memory import serving

FILES = 1_100


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MemoryBackend, str]]:
    """A store that other processes reach, with three started jobs, and its URL."""
    memory = MemoryBackend()
    with serving(memory, tmp_path) as (url, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        memory.call_sync(op.Enqueue(tuple(JobSpec(id=job_id, task="task") for job_id in "abc")))
        yield memory, url


@pytest.fixture
def process(remote: tuple[MemoryBackend, str]) -> Iterator[RenewerProcess]:
    """The worker's end of a process for that store, which is not started yet."""
    made = RenewerProcess(remote[1], "default", abandon_after_s=60)
    yield made
    made.end(at_once=True)


def started(memory: MemoryBackend, lease_ms: int) -> dict[str, int]:
    grants = memory.call_sync(op.Exchange("w", limit=3, lease_ms=lease_ms)).grants
    return {grant.spec.id: grant.token for grant in grants}


def states(memory: MemoryBackend) -> list[tuple[JobState, int]]:
    return [(record.state, record.losses) for record in memory.call_sync(op.Get(("a", "b", "c"))).records if record]


@pytest.mark.slow
def test_a_process_renews_until_it_is_told_to_end(remote: tuple[MemoryBackend, str], process: RenewerProcess) -> None:
    memory, _ = remote
    process.start(3.0)
    until(lambda: process.hear(0.1))
    tokens = started(memory, 3000)
    process.send("".join(f"+{token} {job_id}\n" for job_id, token in tokens.items()))
    heard: list[str] = []

    def has_renewed() -> bool:
        heard.extend(process.hear(0.1))
        return sum(line.startswith("renewed ") and line.endswith(" 3") for line in heard) >= 4

    # At each third of the lease, which would be over by the third time.
    until(has_renewed)
    assert states(memory) == [(JobState.STARTED, 0)] * 3
    assert not process.is_dead
    process.end()
    assert process.is_dead
    # Its worker lives: nothing is given away.
    assert states(memory) == [(JobState.STARTED, 0)] * 3


def test_process_with_a_pipe_above_1024_files_is_heard(
    remote: tuple[MemoryBackend, str], process: RenewerProcess
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES + 100:
        pytest.skip("the system allows too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES + 100), hard))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(FILES)]
    try:
        process.start(1)
        until(lambda: "idle" in process.hear(0.01))
    finally:
        process.end(at_once=True)
        for number in files:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_jobs_of_a_dead_worker_are_lost_at_once(remote: tuple[MemoryBackend, str]) -> None:
    memory, url = remote
    tokens = started(memory, 3_600_000)
    lines = "".join(f"+{token} {job_id}\n" for job_id, token in tokens.items() if job_id != "c")
    program = (
        "import os, sys, time\n"
        "from queuehint.worker.leases.helper import RenewerProcess\n"
        "process = RenewerProcess(sys.argv[1], 'default', abandon_after_s=60)\n"
        "process.start(3600)\n"
        f"process.send({lines!r})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, url], check=False)
    until(lambda: states(memory) == [(JobState.QUEUED, 1), (JobState.QUEUED, 1), (JobState.STARTED, 0)])


@pytest.mark.slow
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "process.end()"], ids=["killed", "ended"])
def test_dead_worker_is_signed_off_at_once(end: str, remote: tuple[MemoryBackend, str]) -> None:
    memory, url = remote
    for name in ("other", "dead"):
        memory.call_sync(op.Announce(name, "host", 7, 4, running=3))
    program = (
        "import os, sys, time\n"
        "from queuehint.worker.leases.helper import RenewerProcess\n"
        "process = RenewerProcess(sys.argv[1], 'default', abandon_after_s=60)\n"
        "process.worker_name = 'dead'\n"
        "process.start(1)\n"
        "while not process.hear(0.1): pass\n"
        f"{end}\n"
    )
    subprocess.run([sys.executable, "-c", program, url], check=False)
    if end == "process.end()":
        # The worker signs off by itself.
        assert [worker.name for worker in memory.call_sync(op.ListWorkers()).workers] == ["dead", "other"]
    else:
        until(lambda: [worker.name for worker in memory.call_sync(op.ListWorkers()).workers] == ["other"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_helper_ends_with_its_worker_rather_than_by_signal(name: str, process: RenewerProcess) -> None:
    process.start(1.0)
    until(lambda: process.hear(0.1))
    assert process.pid is not None
    os.kill(process.pid, getattr(signal, name))
    until(lambda: process.hear(0.1))
    until(lambda: process.hear(0.1))
    assert not process.is_dead


def test_dead_helper_is_dead_and_may_be_written_to(process: RenewerProcess) -> None:
    assert process.is_dead
    assert process.hear(0.1) == []
    process.send("+1 a\n")
    process.end()
    process.start(1.0)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: process.is_dead)
    process.send("+1 a\n")
    process.hear(0.1)


def test_helper_that_does_not_read_is_dead_before_memory_fills(process: RenewerProcess) -> None:
    process.start(1.0)
    until(lambda: process.hear(0.1))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    for n in range(300):
        process.send(f"+{n} {'x' * 100}\n" * 100)
    assert process.is_dead


def test_no_password_is_an_argument_or_a_variable(remote: tuple[MemoryBackend, str]) -> None:
    _, url = remote
    process = RenewerProcess(f"{url}?password=hunter2", "default", abandon_after_s=60)
    try:
        process.start(1.0)
        until(lambda: process.hear(0.1))
        for what in ("cmdline", "environ"):
            assert b"hunter2" not in Path(f"/proc/{process.pid}/{what}").read_bytes()
    finally:
        process.end()


def test_the_helper_imports_nothing_from_the_working_directory(
    process: RenewerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "random.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(folder)
    process.start(1.0)
    until(lambda: process.hear(0.1))
