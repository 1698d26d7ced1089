"""`queuehint worker`: processes that claim and run jobs, stop when told, and lose nothing when they die."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queuehint import InvalidJobError, JobState, Scheduler, cli
from queuehint.backends.memory import MemoryBackend
from queuehint.cli.app import app as app_of_commands
from queuehint.cli.health import Health
from queuehint.cli.loading import TargetError, check_shared, load_scheduler
from queuehint.cli.logs import JsonFormatter, TextFormatter
from queuehint.cli.opening import find
from tests.commands import CliRunner
from tests.conftest import StartProxy
from tests.prefork import start
from tests.probes import ask, free_port, until
from tests.remote_memory import ROOT, serving
from tests.servers import Server, find_servers
from tests.support import LIMIT_S, until_sync
from tests.worker_crash_points import POINTS

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals"),
    # On a busy machine a process takes longer to start than the wait for its job is silent.
    pytest.mark.filterwarnings("ignore:result_sync.. waits for job:queuehint.errors.QueueHintWarning"),
]

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
EXIT_USAGE, EXIT_ABANDONED = 2, 3

APP = """
import asyncio, ctypes, multiprocessing, os, subprocess, sys, time
from pathlib import Path
from queuehint import JobContext, Scheduler

if "TESTS_DIE_AT" in os.environ:
    from tests import worker_crash_points
    worker_crash_points.install()

sched = Scheduler(namespace=os.environ.get("APP_NAMESPACE", "default"))
not_one = sched.job

def note(word):
    with open("notes", "a") as file:
        file.write(f"{word}\\n")

@sched.job(queue_hint=["{doc}"])
async def edit(doc: str, n: int) -> int:
    return n

@sched.job(queue_hint=["wait"])
async def wait(name: str) -> str:
    note(name)
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return name

@sched.job(queue_hint=["wait"])
def wait_in_thread(ctx: JobContext, name: str) -> str:
    note(name)
    while not Path("go").exists():
        time.sleep(0.01)
    return name

@sched.job(timeout=0.2)
def overrun() -> None:
    note("overrun")
    time.sleep(3600)

@sched.job(timeout=0.2)
def overrun_until(name: str) -> None:
    while not Path(name).exists():
        time.sleep(0.01)

@sched.job
def hold_gil(seconds: float) -> int:
    note("hold_gil")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return os.getpid()

@sched.job
async def hold_gil_on_loop(seconds: float) -> None:
    note("hold_gil_on_loop")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))

@sched.job(timeout=0.2)
def hold_gil_too_long() -> None:
    note("too long")
    ctypes.PyDLL(None).usleep(3_600_000_000)

@sched.job
async def block_loop(seconds: float) -> None:
    note("block_loop")
    time.sleep(seconds)

@sched.job
async def pid(n: int) -> int:
    await asyncio.sleep(0.05)
    return os.getpid()

@sched.job
def die() -> None:
    os.abort()

class turn:
    def __await__(self):
        yield

def fork(how):
    child = os.fork()
    if child:
        # Waiting for a child in a handler of the loop blocks the loop; here the child is over in a moment.
        note(f"child {how} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
    elif how == "sys.exit":
        sys.exit(7)
    elif how == "an exception":
        raise ValueError("canary")
    elif how == "os._exit":
        os._exit(9)

@sched.job(max_attempts=1)
async def fork_on_loop(how: str) -> str:
    fork(how)
    if how == "await":
        await turn()
    return how

@sched.job(max_attempts=1)
def fork_in_thread(how: str) -> str:
    fork(how)
    return how

def end(how):
    if how == "sys.exit":
        sys.exit(7)
    elif how == "an exception":
        raise ValueError("of a child")
    elif how == "os._exit":
        os._exit(9)

def multiprocess(how):
    child = multiprocessing.get_context("fork").Process(target=end, args=(how,))
    child.start()
    child.join()
    note(f"multiprocessing {how} {child.exitcode}")
    return how

@sched.job(max_attempts=1)
async def multiprocess_on_loop(how: str) -> str:
    return multiprocess(how)

@sched.job(max_attempts=1)
def multiprocess_in_thread(how: str) -> str:
    return multiprocess(how)

def run_command(how):
    ends = {"sys.exit": "sys.exit(7)", "an exception": "raise ValueError", "os._exit": "os._exit(9)"}
    code = f"import os, sys; {ends.get(how, '')}"
    note(f"subprocess {how} {subprocess.run([sys.executable, '-ISc', code]).returncode}")
    return how

@sched.job(max_attempts=1)
async def run_on_loop(how: str) -> str:
    return run_command(how)

@sched.job(max_attempts=1)
def run_in_thread(how: str) -> str:
    return run_command(how)

@sched.job(max_attempts=1)
def fork_and_terminate() -> int:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode

@sched.job(max_attempts=1)
def fork_and_forget() -> int:
    child = os.fork()
    if not child:
        time.sleep(3600)
    return child

@sched.job
def take_signal() -> None:
    import signal
    loop.call_soon_threadsafe(signal.signal, signal.SIGTERM, lambda *_: None)

@sched.before_job
async def remember(ctx):
    global loop
    loop = asyncio.get_running_loop()
"""


FORKING = [f"{by}_{where}" for by in ("fork", "multiprocess", "run") for where in ("on_loop", "in_thread")]
"""Tasks whose handler starts a process that ends in some way."""


class Deployment:
    """An application in a folder, its scheduler here, and its worker processes."""

    def __init__(self, folder: Path, sched: Scheduler, environment: dict[str, str]) -> None:
        self.folder = folder
        self.sched = sched
        self.environment = {**os.environ, "PYTHONPATH": ROOT, **environment}
        self.log = folder / "log"
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "app.py").write_text(APP)

    def worker(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker process with short leases; its log goes to a file."""
        with self.log.open("ab") as log:
            process = start(
                "queuehint",
                *("worker", "app:sched", "--log-format=json", *arguments),
                cwd=self.folder,
                env={**self.environment, **environment},
                stderr=log,
            )
        self.processes.append(process)
        return process

    def enqueue(self, task: str, *arguments: Any, **options: Any) -> Any:
        """Enqueue a job of the application, which is not imported here."""
        if task not in self.sched._jobs:
            namespace: dict[str, Any] = {"sched": self.sched}
            names = {
                "edit": "doc, n",
                "wait": "name",
                "wait_in_thread": "name",
                "hold_gil": "seconds",
                "hold_gil_on_loop": "seconds",
                "pid": "n",
            }
            names.update(block_loop="seconds", overrun_until="name", **dict.fromkeys(FORKING, "how"))
            hints = {"edit": "['{doc}']", "wait": "['wait']", "wait_in_thread": "['wait']"}
            timeout = 0.2 if task in {"overrun", "overrun_until", "hold_gil_too_long"} else None
            exec(
                f"@sched.job(queue_hint={hints.get(task)}, timeout={timeout})\n"
                f"def {task}({names.get(task, '')}): ...\n",
                namespace,
            )
        job = self.sched._jobs[task]
        return (job.using(**options) if options else job).enqueue_sync(*arguments)

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def go(self, name: str = "go") -> None:
        """Let jobs that wait for the file end."""
        (self.folder / name).touch()

    def events(self) -> list[str]:
        """The events that worker processes have logged."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line)["event"] for line in lines if line.startswith("{")]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


REMOTE, REDIS = "remote", pytest.param("redis", marks=pytest.mark.redis)
# The processes are the same with either store, and slow to start: one of the two will do by day.
FAR_AT_NIGHT = pytest.param(REMOTE, marks=pytest.mark.nightly if find_servers() else ())


@pytest.fixture(params=[FAR_AT_NIGHT, REDIS])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    folder = tmp_path / "app"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        if request.param == "remote":
            memory = MemoryBackend()
            url, environment = stack.enter_context(serving(memory, tmp_path))
            sched = Scheduler("memory://")
            sched._backend = memory
        else:
            url, namespace = request.getfixturevalue("redis_url"), request.getfixturevalue("namespace")
            environment = {"APP_NAMESPACE": namespace}
            sched = Scheduler(url, namespace=namespace)
        made = Deployment(folder, sched, {"QUEUEHINT_URL": url, **environment})
        stack.callback(sched.close_sync)
        stack.callback(made.end)
        yield made


def finish(process: subprocess.Popen[bytes]) -> int:
    return process.wait(LIMIT_S)


def listed(process: subprocess.Popen[bytes]) -> str:
    """The children of a process, with what they were started as."""
    return subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
    ).stdout


def helpers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that renew for a worker process."""
    return [int(line.split()[0]) for line in listed(process).splitlines() if "queuehint.worker.leases.helper" in line]


# --- running and stopping ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("deployment", [REMOTE, REDIS], indirect=True)
def test_worker_process_runs_jobs_in_order_until_stopped(deployment: Deployment) -> None:
    process = deployment.worker("--health-file=health")
    handles = [deployment.enqueue("edit", f"d{n % 3}", n) for n in range(60)]
    assert [handle.result_sync(LIMIT_S) for handle in handles] == list(range(60))
    health = deployment.folder / "health"
    until(lambda: health.exists() and json.loads(health.read_text())["running"] == 0)
    known = json.loads(health.read_text())
    assert (known["healthy"], known["pid"]) == (True, process.pid)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 0
    assert not health.exists()
    assert [event for event in deployment.events() if event.startswith("worker.")] == [
        "worker.started",
        "worker.stopping",
        "worker.ended",
    ]
    line = json.loads(deployment.log.read_text().splitlines()[0])
    assert line["level"] == "INFO"
    assert line["pools"] == "default"
    assert {"time", "logger", "message", "pid", "worker", "concurrency"} <= set(line)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_after_a_signal_running_jobs_end_and_no_other_begins(deployment: Deployment, number: signal.Signals) -> None:
    process = deployment.worker()
    first, second = deployment.enqueue("wait", "first"), deployment.enqueue("wait", "second")
    until(deployment.notes)
    process.send_signal(number)
    until(lambda: "worker.stopping" in deployment.events())
    deployment.go()
    assert finish(process) == 0
    assert first.result_sync(1) == "first"
    assert second.state_sync() is QUEUED
    assert deployment.notes() == ["first"]
    assert helpers_of(process) == []


@pytest.mark.nightly  # by day that of `tests/faults/test_workers.py`
def test_job_longer_than_the_grace_time_is_released(deployment: Deployment) -> None:
    process = deployment.worker("--grace=0.2")
    handle = deployment.enqueue("wait", "first")
    until(deployment.notes)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 0
    record = handle.record_sync()
    assert (record.state, record.attempts, record.losses) == (QUEUED, 0, 0)


@pytest.mark.nightly  # by day that of `tests/faults/test_workers.py`
def test_a_second_signal_gives_back_at_once(deployment: Deployment) -> None:
    process = deployment.worker()
    handle = deployment.enqueue("wait", "first")
    until(deployment.notes)
    process.send_signal(signal.SIGTERM)
    until(lambda: "worker.stopping" in deployment.events())
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert finish(process) == 0
    record = handle.record_sync()
    assert (record.state, record.attempts, record.losses) == (QUEUED, 0, 0)


@pytest.mark.slow
def test_endless_thread_ends_with_its_process_after_two_signals(deployment: Deployment) -> None:
    process = deployment.worker("--health-file=health")
    handle = deployment.enqueue("wait_in_thread", "first")
    until(deployment.notes)
    until((deployment.folder / "health").exists)
    process.send_signal(signal.SIGTERM)
    until(lambda: "worker.stopping" in deployment.events())
    process.send_signal(signal.SIGTERM)
    assert finish(process) == EXIT_ABANDONED
    assert not (deployment.folder / "health").exists()
    # Its lease would last 30 seconds: the process that renewed it says at once that it is lost.
    until(lambda: handle.state_sync() is QUEUED)
    assert handle.record_sync().losses == 1


# --- handlers that fork ------------------------------------------------------------------------------------------


ENDS = {"return": 0, "sys.exit": 7, "an exception": 1, "os._exit": 9}


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [REDIS], indirect=True)
def test_child_of_a_handler_never_returns_as_the_worker(deployment: Deployment) -> None:
    port = free_port()
    process = deployment.worker(f"--health-port={port}")
    beside = deployment.enqueue("wait", "beside")
    until(deployment.notes)
    kinds = {**dict.fromkeys(FORKING, ENDS), "fork_on_loop": {**ENDS, "await": 0}}
    handles = {(kind, how): deployment.enqueue(kind, how) for kind, ends in kinds.items() for how in ends}
    for (_, how), handle in handles.items():
        assert handle.result_sync(LIMIT_S) == how
    assert deployment.enqueue("fork_and_terminate").result_sync(LIMIT_S) == -signal.SIGTERM
    left_over = deployment.enqueue("fork_and_forget").result_sync(LIMIT_S)
    try:
        assert "worker.stopping" not in deployment.events(), "what a child is told is not for its parent"
        notes = deployment.notes()
        for how, code in ENDS.items():
            assert notes.count(f"child {how} {code}") == notes.count(f"subprocess {how} {code}") == 2
            # In a thread of a pool, Python ends a child that returns or exits with 1: it cannot join its own thread.
            assert notes.count(f"multiprocessing {how} {code}") >= 1
        assert len([note for note in notes if note.startswith("multiprocessing")]) == 2 * len(ENDS)
        assert notes.count("child await 0") == 1
        assert "canary" not in deployment.log.read_text(), "no text of an error is shown"
        deployment.go()
        assert beside.result_sync(LIMIT_S) == "beside"
        assert deployment.notes().count("beside") == 1
        # On a busy machine several of these jobs block the loop for long enough to be told.
        events = sorted(event for event in deployment.events() if event != "job.blocks_loop")
        assert events == sorted({*events}), "only the worker logs, each event once"
        # A child that goes on holds neither a port nor a helper.
        helpers = helpers_of(process)
        process.kill()
        finish(process)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in helpers))
        following = deployment.worker(f"--health-port={port}")
        until(lambda: deployment.events().count("worker.started") == 2)
        following.send_signal(signal.SIGTERM)
        assert finish(following) == 0
    finally:
        os.kill(left_over, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [REDIS], indirect=True)
def test_a_worker_says_that_a_library_has_taken_its_signal(deployment: Deployment) -> None:
    deployment.worker()
    deployment.enqueue("take_signal").result_sync(LIMIT_S)
    until(lambda: "worker.signal_taken" in deployment.events())
    time.sleep(1.5)
    assert deployment.events().count("worker.signal_taken") == 1


# --- users -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [REDIS], indirect=True)
def test_single_job_starts_soon_beside_a_thousand_of_another_user(deployment: Deployment) -> None:
    ids = [deployment.enqueue("pid", n, user="ann").id for n in range(1000)]
    workers = [deployment.worker("--concurrency=2") for _ in range(2)]
    until(lambda: deployment.sched.stats_sync().started > 8)
    handle = deployment.enqueue("pid", 0, user="bob")
    handle.result_sync(LIMIT_S)
    bob = handle.record_sync()
    anns = [
        record for n in range(0, 1000, 200) for record in deployment.sched.records.list_by_ids_sync(ids[n : n + 200])
    ]
    started = [ann for ann in anns if ann.started_ms is not None]
    # The order of jobs that start in one millisecond is unknown.
    assert sum(ann.token < bob.token for ann in started if ann.started_ms > bob.enqueued_ms) <= 10
    assert deployment.sched.stats_sync().ready["default"] > 500
    for worker in workers:
        worker.kill()


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [REDIS], indirect=True)
def test_worker_process_accepts_users_and_users_to_help(deployment: Deployment) -> None:
    jobs = {user: deployment.enqueue("pid", n, user=user) for n, user in enumerate(("ann", "bob", "cy"))}
    process = deployment.worker("--users=ann", "--steal=bob,")
    for user in ("ann", "bob"):
        jobs[user].result_sync(LIMIT_S)
    assert jobs["cy"].state_sync() is QUEUED
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("deployment", [REDIS], indirect=True)
def test_children_are_told_whom_to_help(deployment: Deployment) -> None:
    jobs = {"cy": deployment.enqueue("pid", 0, user="cy")}
    children = deployment.worker("--processes=2", "--users=ann,bob", QUEUEHINT_STEAL="*")
    jobs["cy"].result_sync(LIMIT_S)
    children.send_signal(signal.SIGTERM)
    assert finish(children) == 0


# --- leases ------------------------------------------------------------------------------------------------------


@pytest.mark.nightly  # by day that of `tests/faults/test_workers.py`
@pytest.mark.parametrize("task", ["hold_gil", "block_loop"])
def test_handler_that_holds_the_gil_keeps_its_lease(deployment: Deployment, task: str) -> None:
    process = deployment.worker("--lease=2")
    handle = deployment.enqueue(task, 4.5)
    until(deployment.notes)
    other = deployment.worker("--lease=2")
    until(lambda: deployment.events().count("worker.started") == 2)
    assert handle.result_sync(LIMIT_S) in {None, process.pid}
    assert handle.record_sync().losses == 0
    assert deployment.notes() == [task]
    for each in (process, other):
        each.send_signal(signal.SIGTERM)
        assert finish(each) == 0
    assert not {"job.fenced", "renewal.restarted", "job.lease_lost"} & set(deployment.events())


@pytest.mark.nightly
def test_unbegun_jobs_beside_gil_holding_code_run_elsewhere(deployment: Deployment) -> None:
    blocks = deployment.enqueue("hold_gil_on_loop", 25)
    others = [deployment.enqueue("pid", n) for n in range(3)]
    stuck = deployment.worker("--lease=2", "--concurrency=4", "--abandon-after=60")
    until(deployment.notes)
    other = deployment.worker("--lease=2")
    pids = {handle.result_sync(24) for handle in others}
    assert pids == {other.pid}
    assert blocks.result_sync(LIMIT_S) is None
    assert [handle.record_sync().losses for handle in (blocks, *others)] == [0] * 4
    until(lambda: "worker.gives_back" in deployment.events())
    for each in (stuck, other):
        each.send_signal(signal.SIGTERM)
        assert finish(each) == 0
    assert not {"job.fenced", "renewal.restarted"} & set(deployment.events())


@pytest.mark.nightly  # by day that of `tests/faults/test_workers.py`
def test_jobs_of_a_stopped_process_pass_to_another_worker(deployment: Deployment) -> None:
    process = deployment.worker("--lease=1", "--abandon-after=1")
    handle = deployment.enqueue("wait", "name")
    until(deployment.notes)
    process.send_signal(signal.SIGSTOP)
    deployment.worker("--lease=1")
    until(lambda: deployment.notes() == ["name", "name"])
    assert handle.record_sync().losses == 1
    process.send_signal(signal.SIGCONT)
    until(lambda: "job.fenced" in deployment.events() or "job.lease_lost" in deployment.events())
    deployment.go()
    assert handle.result_sync(LIMIT_S) == "name"


@pytest.mark.slow
def test_worker_with_a_dead_helper_gets_another_and_keeps_leases(deployment: Deployment) -> None:
    process = deployment.worker("--lease=4")
    handle = deployment.enqueue("wait_in_thread", "first")
    until(deployment.notes)

    def killed(before: int = 0) -> int:
        """Kill the helper that is there, unless it is the one killed before; return it, 0 if there is none yet."""
        assert process.poll() is None, f"the worker ended with {process.returncode}: {deployment.events()}"
        pid = next((pid for pid in helpers_of(process) if pid != before), 0)
        if pid:
            os.kill(pid, signal.SIGKILL)
        return pid

    pid = 0
    for count in (1, 2):
        try:
            pid = until_sync(lambda pid=pid: killed(pid), limit_s=LIMIT_S)  # type: ignore[misc]
        except AssertionError as error:
            error.add_note(f"events: {deployment.events()}\n{listed(process)}")
            raise
        until(lambda count=count: deployment.events().count("renewal.restarted") >= count)  # type: ignore[misc]
        time.sleep(2.5)
    assert handle.state_sync() is STARTED
    deployment.go()
    assert handle.result_sync(LIMIT_S) == "first"
    assert handle.record_sync().losses == 0
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 0


@pytest.mark.slow
def test_jobs_of_a_killed_worker_pass_on_at_once(deployment: Deployment) -> None:
    process = deployment.worker()
    handle = deployment.enqueue("wait", "first")
    until(deployment.notes)
    helpers = helpers_of(process)
    process.kill()
    process.wait()
    until(lambda: handle.state_sync() is QUEUED)
    record = handle.record_sync()
    assert (record.losses, record.attempts, record.errors[0].type) == (1, 0, "worker_lost")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in helpers))


@pytest.mark.slow
def test_jobs_of_a_killed_worker_without_helper_pass_on_later(
    deployment: Deployment,
) -> None:
    process = deployment.worker("--lease=3")
    handle = deployment.enqueue("wait", "first")
    until(deployment.notes)
    os.kill(process.pid, signal.SIGSTOP)
    for pid in helpers_of(process):
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    deployment.go()
    other = deployment.worker()
    assert handle.result_sync(LIMIT_S) == "first"
    assert handle.record_sync().losses == 1
    other.send_signal(signal.SIGTERM)
    assert finish(other) == 0


@pytest.mark.nightly  # by day that of `tests/faults/test_workers.py`
def test_a_job_that_kills_its_workers_is_given_up(deployment: Deployment) -> None:
    deployment.worker("--lease=1", "--processes=2")
    # The other one may be in each process that dies.
    handle, other = deployment.enqueue("die"), deployment.enqueue("edit", "doc", 1, max_losses=20)
    until(lambda: handle.state_sync() is FAILED)
    record = handle.record_sync()
    assert (record.cause, record.losses) == ("worker_lost", 3)
    assert other.result_sync(LIMIT_S) == 1


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.parametrize("how", ["refuse", pytest.param("blackhole", marks=pytest.mark.nightly)])
def test_cut_off_worker_fences_itself_and_returns(
    tmp_path: Path, redis_server: Server, namespace: str, start_proxy: StartProxy, how: str
) -> None:
    proxy = start_proxy(redis_server)
    sched = Scheduler(redis_server.url, namespace=namespace)
    deployment = Deployment(tmp_path, sched, {"QUEUEHINT_URL": proxy.url, "APP_NAMESPACE": namespace})
    try:
        cut_off = deployment.worker("--lease=3")
        handle = deployment.enqueue("wait", "first")
        until(deployment.notes)
        getattr(proxy, how)()
        if how == "refuse":
            proxy.rst()
        until(lambda: "job.fenced" in deployment.events())
        other = deployment.worker(QUEUEHINT_URL=redis_server.url)
        until(lambda: len(deployment.notes()) == 2)
        deployment.go()
        assert handle.result_sync(LIMIT_S) == "first"
        assert handle.record_sync().losses == 1
        other.send_signal(signal.SIGTERM)
        assert finish(other) == 0
        proxy.heal()
        assert cut_off.poll() is None
        assert [deployment.enqueue("edit", "doc", n).result_sync(LIMIT_S) for n in range(3)] == [0, 1, 2]
        cut_off.send_signal(signal.SIGTERM)
        assert finish(cut_off) == 0
        assert deployment.notes() == ["first", "first"]
    finally:
        deployment.end()
        sched.close_sync()


# --- code that does not end --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_process_with_endless_code_releases_other_jobs_and_ends(deployment: Deployment) -> None:
    process = deployment.worker("--abandon-after=0.3")
    stuck, other = deployment.enqueue("overrun"), deployment.enqueue("wait", "first")
    until(lambda: len(deployment.notes()) == 2)
    assert finish(process) == EXIT_ABANDONED
    record = other.record_sync()
    assert (record.state, record.losses, record.attempts) == (QUEUED, 0, 0)
    until(lambda: stuck.state_sync() is QUEUED)
    assert stuck.record_sync().losses == 1
    assert {"job.overdue", "worker.gives_up"} <= set(deployment.events())


@pytest.mark.slow
def test_process_that_gives_up_exits_with_an_error(deployment: Deployment) -> None:
    # It gives up after 5.2 s, the other one would be overdue after 10.2 s: in between the first one ends.
    process = deployment.worker("--abandon-after=5")
    beside = deployment.enqueue("wait_in_thread", "beside")
    until(deployment.notes)
    overran = deployment.enqueue("overrun_until", "over")
    until(lambda: "worker.stopping" in deployment.events())
    deployment.go("over")
    until(lambda: overran.record_sync().attempts and overran.state_sync() is QUEUED)
    deployment.go()
    assert finish(process) == EXIT_ABANDONED
    assert {"job.overdue", "worker.stopping", "worker.ended"} <= set(deployment.events())
    assert "worker.gives_up" not in deployment.events(), "all code has ended in time after that"
    assert beside.record_sync().losses == overran.record_sync().losses == 0


@pytest.mark.slow
def test_process_stuck_in_code_that_holds_the_gil_is_killed(deployment: Deployment) -> None:
    process = deployment.worker("--abandon-after=1", "--lease=1")
    handle = deployment.enqueue("hold_gil_too_long")
    assert finish(process) == -signal.SIGKILL
    until(lambda: handle.state_sync() is QUEUED)
    assert handle.record_sync().losses == 1


# --- several processes -------------------------------------------------------------------------------------------


LIFESPAN = """
@sched.worker_lifespan
async def resources():
    note(f"open {os.getpid()}")
    yield os.getpid()
    note(f"closed {os.getpid()}")
"""


@pytest.mark.slow
def test_processes_work_side_by_side_and_dead_ones_are_replaced(deployment: Deployment) -> None:
    app = APP.replace("pid(n: int)", "pid(ctx: JobContext, n: int)")
    app = app.replace("return os.getpid()\n\n@sched.job\ndef die", "return ctx.state\n\n@sched.job\ndef die")
    (deployment.folder / "app.py").write_text(app + LIFESPAN)
    port = free_port()
    parent = deployment.worker(
        "--processes=2", "--concurrency=2", f"--health-port={port}", QUEUEHINT_PROCESSES="7", QUEUEHINT_POOLS="default"
    )
    until(lambda: ask(port)[0] == 200)

    def pids() -> set[int]:
        handles = [deployment.enqueue("pid", n) for n in range(20)]
        return {handle.result_sync(LIMIT_S) for handle in handles}

    first = pids()
    assert len(first) == 2
    assert parent.pid not in first
    killed = next(iter(first))
    os.kill(killed, signal.SIGKILL)
    until(lambda: "process.ended" in deployment.events())
    until(lambda: len(pids() - first) == 1)
    status, known = ask(port)
    assert status == 200
    assert (known["pid"], len(known["processes"])) == (parent.pid, 2)
    parent.send_signal(signal.SIGTERM)
    assert finish(parent) == 0
    opened, closed = (
        [int(note.split()[1]) for note in deployment.notes() if word in note] for word in ("open", "closed")
    )
    assert len(opened) == len({*opened}) == 3, "each process has entered its lifespan once"
    assert sorted(closed) == sorted({*opened} - {killed})


@pytest.mark.slow
def test_the_parent_s_signals_are_its_children_s(deployment: Deployment) -> None:
    parent = deployment.worker("--processes=2", "--concurrency=1")
    handle = deployment.enqueue("wait", "first")
    until(deployment.notes)
    parent.send_signal(signal.SIGINT)
    until(lambda: deployment.events().count("worker.ended") == 1)
    assert parent.poll() is None
    assert handle.state_sync() is STARTED
    parent.send_signal(signal.SIGINT)
    assert finish(parent) == 0
    assert handle.state_sync() is QUEUED


@pytest.mark.slow
def test_children_stop_when_their_parent_is_killed(deployment: Deployment) -> None:
    parent = deployment.worker("--processes=2")
    until(lambda: deployment.events().count("worker.started") == 2)
    parent.kill()
    until(lambda: deployment.events().count("worker.ended") == 2)


@pytest.mark.slow
def test_an_error_that_no_restart_mends_ends_all(deployment: Deployment) -> None:
    (deployment.folder / "app.py").write_text("sched = 5")
    assert finish(deployment.worker("--processes=2")) == EXIT_USAGE


# --- points at which a process may die ---------------------------------------------------------------------------


@pytest.mark.nightly  # by day that of `tests/faults/test_workers.py`
@pytest.mark.parametrize("point", POINTS)
def test_wherever_a_worker_dies_each_job_ends_once(deployment: Deployment, point: str) -> None:
    handles = [deployment.enqueue("edit", f"d{n % 2}", n) for n in range(10)]
    dying = deployment.worker("--lease=1", TESTS_DIE_AT=f"{point}:2")
    assert finish(dying) == -signal.SIGKILL
    living = deployment.worker("--lease=1")
    assert [handle.result_sync(LIMIT_S) for handle in handles] == list(range(10))
    assert all(handle.record_sync().losses <= 1 for handle in handles)
    living.send_signal(signal.SIGTERM)
    assert finish(living) == 0


# --- what cannot be run ------------------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    name = f"app_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(APP)
    (tmp_path / f"{name}_broken.py").write_text("import not_there_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Path(name)


@pytest.mark.parametrize(
    "target, says",
    [
        ("APP", "must be module:attribute"),
        (":sched", "must be module:attribute"),
        ("APP:", "must be module:attribute"),
        ("not_there:sched", "there is no module 'not_there'"),
        ("APP.more:sched", "there is no module"),
        ("APP:shed", "has no 'shed'; it has sched"),
        ("APP:sched.nothing", "has no 'sched.nothing'"),
        ("APP:edit", "must be a queuehint.Scheduler, got Job"),
        ("APP:note", "must be a queuehint.Scheduler, got function"),
    ],
)
def test_malformed_target_is_refused_with_the_reason(app: Path, target: str, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        load_scheduler(target.replace("APP", str(app)))


@pytest.mark.parametrize(
    "target, says",
    [
        ("localhost:6390", "did you mean redis://localhost:6390?"),
        ("db.example:6390/0", "did you mean redis://host:port?"),
        ("memory", "did you mean memory://?"),
        ("jobs.db", "did you mean sqlite:///file?"),
    ],
)
def test_target_without_a_scheme_is_refused_with_the_right_form(target: str, says: str) -> None:
    with pytest.raises(InvalidJobError, match=re.escape(says)):
        find(target, None)


def test_an_error_inside_the_module_is_shown_as_it_is(app: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load_scheduler(f"{app}_broken:sched")


def test_memory_is_refused_for_no_other_process_shares_it(app: Path) -> None:
    sched = load_scheduler(f"{app}:sched")
    with pytest.raises(TargetError, match=r"QUEUEHINT_URL=postgresql://"):
        check_shared(sched)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "queuehint", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": ROOT, "COLUMNS": "200", **environment},
    )


@pytest.mark.slow
def test_usage_error_exits_with_2_and_its_reason(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    ended = command("worker", "app:sched", PYTHONPATH=os.pathsep.join([ROOT, str(tmp_path)]), QUEUEHINT_URL="memory://")
    assert ended.returncode == EXIT_USAGE
    assert ended.stderr.startswith("queuehint worker: Scheduler('memory://'")
    assert CliRunner().invoke(app_of_commands, ["worker"]).exit_code == EXIT_USAGE
    assert CliRunner().invoke(app_of_commands, ["worker", "app:sched", "--concurrency=0"]).exit_code == EXIT_USAGE


@pytest.mark.slow
def test_the_command_tells_its_version() -> None:
    ended = command("--version")
    assert (ended.returncode, ended.stdout.split()[0]) == (0, "queuehint")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_command_names_it(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from queuehint.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 1
    assert "pip install 'queuehint[cli]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_end_of_a_command_looks_for_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(sys, "argv", ["queuehint", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert at_exit == [gc.freeze]


# --- health and logs ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_health_is_a_file_while_sound_and_always_a_reply(tmp_path: Path) -> None:
    known = {"healthy": True, "last_round_trip": 1.0}
    file, port = tmp_path / "health", free_port()
    health = Health(lambda: known, file=file, port=port)
    health.start()
    until(file.exists)
    assert json.loads(file.read_text()) == known
    assert ask(port) == (200, known)
    known.update(healthy=False, last_round_trip=2.0)
    assert ask(port) == (503, known)
    time.sleep(1.3)
    assert json.loads(file.read_text())["last_round_trip"] == 1.0
    known.update(healthy=True)
    until(lambda: json.loads(file.read_text())["last_round_trip"] == 2.0)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 405")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"x" * 100_000)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(100) == b""
    health.end()
    assert not file.exists()
    assert list(tmp_path.iterdir()) == []
    assert ask(port)[0] == 0


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="address"):
            Health(dict, port=other.getsockname()[1]).start()
    with pytest.raises(OSError, match="nowhere"):
        Health(dict, file=tmp_path / "nowhere" / "health").start()


def record(message: str, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("queuehint.worker", logging.WARNING, __file__, 1, message, (), None)
    vars(made).update(extra)
    return made


def test_a_json_line_holds_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    line = json.loads(JsonFormatter().format(record("job fenced", event="job.fenced", job_id="a", odd=object())))
    assert line["message"] == "job fenced"
    assert (line["event"], line["job_id"], line["level"]) == ("job.fenced", "a", "WARNING")
    assert line["time"].endswith("Z")
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("queuehint.worker").exception("failed")
    assert "ValueError: x" in json.loads(JsonFormatter().format(caplog.records[0]))["traceback"]


def test_a_text_line_is_one_line_whatever_its_fields_hold(caplog: pytest.LogCaptureFixture) -> None:
    text = TextFormatter().format(record("said", event="x", job_id="a\nb\x1b[31m", note="two words"))
    assert "\n" not in text
    assert "\x1b" not in text
    assert text.endswith(r"said event=x job_id='a\nb\x1b[31m' note='two words'")


def test_text_log_line_repeats_nothing_and_colours_errors() -> None:
    made = record("job %s failed: %s", event="job.retry", job_id="a", attempt=2, error="E", error_message="no")
    made.args, made.exc_text = ("a", "E: no"), "Traceback"
    assert TextFormatter().format(made).endswith(" job a failed: E: no event=job.retry attempt=2\nTraceback")
    assert "\x1b[33mjob a failed: E: no\x1b[0m" in TextFormatter(in_colour=True).format(made)
    assert json.loads(JsonFormatter().format(made))["traceback"] == "Traceback"
    made.levelno = logging.INFO
    assert " job a failed: E: no" in TextFormatter(in_colour=True).format(made)
