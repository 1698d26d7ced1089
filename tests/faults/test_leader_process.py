"""A worker has a process of its own that leads: what for, and what follows when one of them ends or stands still."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuehint import JobState, Scheduler
from queuehint.backends.journal import opening
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.journal.guests import guest
from queuehint.errors import BackendError, JobNotFoundError
from tests.folders import quick_folder
from tests.postgres_servers import shared_postgres
from tests.prefork import start
from tests.servers import new_namespace
from tests.support import LIMIT_S, lives, until_sync

ROOT = str(Path(__file__).parents[2])
COUNT = 40_000_000
"""So many take about a second."""
APP = """
import time
from queuehint import Scheduler

sched = Scheduler()

@sched.job(queue_hint=["{doc}"])
def edit(doc: str) -> str:
    return doc

@sched.job(queue_hint=["{doc}"])
def hold(doc: str, count: int) -> int:
    # A function in C: no other thread of this process goes on until it has ended.
    return sum(range(count))

@sched.job(queue_hint=["{doc}"])
def sleep(doc: str, s: float) -> None:
    time.sleep(s)
"""


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.nightly)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "postgres":
        yield f"{shared_postgres().url}?namespace={new_namespace()}&durability=process"
    else:
        with quick_folder() as folder:
            yield f"sqlite:///{folder}/jobs.db?durability=process"


class Commands:
    """Commands of queuehint that run; all that they have started is gone after `end`."""

    def __init__(self, folder: Path) -> None:
        (folder / "app.py").write_text(APP)
        self.folder = folder
        self.log = folder / "log"
        self._made: list[subprocess.Popen[Any]] = []

    def __call__(self, url: str, *arguments: str) -> subprocess.Popen[Any]:
        environment = {**os.environ, "PYTHONPATH": ROOT, "QUEUEHINT_URL": url, "QUEUEHINT_LOG_FORMAT": "json"}
        with self.log.open("ab") as log:
            self._made.append(start("queuehint", *arguments, cwd=self.folder, env=environment, stderr=log))
        return self._made[-1]

    def worker(self, url: str, *arguments: str) -> subprocess.Popen[Any]:
        return self(url, "worker", "app:sched", *arguments)

    def end(self) -> None:
        living = [each for each in self._made if each.poll() is None]
        left = [pid for each in living for pid in below(each.pid)]
        for each in living:
            each.kill()
            each.wait()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path)
    yield made
    made.end()


@pytest.fixture
def sched(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """A process that asks, never leads, and waits for as long as a busy machine needs to start a process."""
    monkeypatch.setattr(opening, "LEAVES_S", LIMIT_S)
    monkeypatch.setattr(guest, "SILENCE_S", LIMIT_S)
    made = Scheduler(url)
    assert isinstance(made.backend, JournalBackend)
    made.backend.leaves_lead = True
    yield made
    made.close_sync()


def leader_of(sched: Scheduler) -> int | None:
    """Return the process that leads; None while none answers."""
    backend = sched.backend
    assert isinstance(backend, JournalBackend)
    try:
        sched.stats_sync()
    except BackendError:
        return None
    assert not backend.is_leading
    return None if backend._leader is None else backend._leader.pid


def below(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found[1:]


def run_by(worker: subprocess.Popen[Any]) -> set[int]:
    """Return the processes that lead or stand by for a worker; those that renew leases are others."""
    return {pid for pid in below(worker.pid) if b"queuehint.cli.leader" in command_of(pid)}


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def led_by(sched: Scheduler, processes: Callable[[], set[int]]) -> int:
    """Return the process that leads once it is one of these."""
    found: list[int] = []

    def is_led() -> bool:
        pid = leader_of(sched)
        if pid in processes():
            found.append(pid or 0)
        return bool(found)

    until_sync(is_led, "one of them leads", LIMIT_S)
    return found[0]


def edits(sched: Scheduler) -> Any:
    @sched.job(name="edit", queue_hint=["{doc}"])
    def edit(doc: str) -> str:
        return doc

    return edit


def held(sched: Scheduler) -> Any:
    @sched.job(name="hold", queue_hint=["{doc}"])
    def hold(doc: str, count: int) -> int:
        return count

    return hold


@pytest.mark.slow
def test_calls_are_answered_while_a_handler_holds_the_gil(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url)
    edit, hold = edits(sched), held(sched)
    assert edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"
    led_by(sched, lambda: run_by(worker))
    handle = hold.enqueue_sync("doc", COUNT)
    until_sync(lambda: handle.state_sync() is JobState.STARTED, "it runs")
    # The worker cannot say that the job has ended before its code has.
    answered = 0
    while handle.state_sync() is JobState.STARTED:
        edit.enqueue_sync("other")
        answered += 1
    assert answered > 20
    assert handle.result_sync(timeout=LIMIT_S) == sum(range(COUNT))


def test_killed_leader_is_replaced_by_one_of_its_worker(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url)
    edit = edits(sched)
    handles = [edit.enqueue_sync(f"doc{n % 3}") for n in range(20)]
    before = led_by(sched, lambda: run_by(worker))
    os.kill(before, signal.SIGKILL)
    handles += [edit.enqueue_sync(f"doc{n % 3}") for n in range(20)]
    assert [each.result_sync(timeout=LIMIT_S) for each in handles] == [f"doc{n % 3}" for n in range(20)] * 2
    assert led_by(sched, lambda: run_by(worker)) != before
    assert worker.poll() is None


@pytest.mark.slow
def test_a_job_outlives_the_leader_and_not_the_worker(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url)

    @sched.job(name="sleep", queue_hint=["{doc}"])
    def sleep(doc: str, s: float) -> None: ...

    handle = sleep.enqueue_sync("doc", 3)
    until_sync(lambda: handle.state_sync() is JobState.STARTED, "it runs", LIMIT_S)
    os.kill(led_by(sched, lambda: run_by(worker)), signal.SIGKILL)
    handle.result_sync(timeout=LIMIT_S)
    assert sched.get_sync(handle.id).attempts == 1


@pytest.mark.slow
def test_the_leader_ends_with_a_worker_that_was_killed(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url)
    leader = led_by(sched, lambda: run_by(worker))
    worker.kill()
    worker.wait()
    until_sync(lambda: not lives(leader), "it has ended", LIMIT_S)
    other = run.worker(url)
    assert edits(sched).enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"
    assert led_by(sched, lambda: run_by(other)) != leader


@pytest.mark.slow
def test_killed_worker_and_leader_are_followed_by_another(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url)
    edit = edits(sched)
    assert edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"
    for pid in (led_by(sched, lambda: run_by(worker)), worker.pid):
        os.kill(pid, signal.SIGKILL)
    other = run.worker(url)
    assert edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"
    led_by(sched, lambda: run_by(other))


@pytest.mark.slow
def test_stalled_leader_is_killed_and_replaced(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url)
    edit = edits(sched)
    before = led_by(sched, lambda: run_by(worker))
    os.kill(before, signal.SIGSTOP)
    until_sync(lambda: not lives(before), "it was killed", LIMIT_S)
    assert led_by(sched, lambda: run_by(worker)) != before
    assert edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"


@pytest.mark.slow
def test_two_workers_have_one_leader_and_one_standby(url: str, run: Commands, sched: Scheduler) -> None:
    workers = [run.worker(url) for _ in range(2)]
    edit = edits(sched)
    leader = led_by(sched, lambda: run_by(workers[0]) | run_by(workers[1]))
    first = next(each for each in workers if leader in run_by(each))
    second = next(each for each in workers if each is not first)
    until_sync(lambda: stands_by(sched), "the other one stands by", LIMIT_S)
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 0
    assert not lives(leader)
    until_sync(lambda: leader_of(sched) in run_by(second), "the other one leads", LIMIT_S)
    assert edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"


def stands_by(sched: Scheduler) -> bool:
    backend = sched.backend
    assert isinstance(backend, JournalBackend)
    reader = backend.store.read()
    found = reader.others()
    reader.close()
    return found.stands_by


@pytest.mark.slow
def test_leading_command_keeps_the_lead_and_a_later_stands_by(url: str, run: Commands, sched: Scheduler) -> None:
    operator = run(url, "lead", url)
    led_by(sched, lambda: {operator.pid})
    worker = run.worker(url)
    edit = edits(sched)
    assert edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"
    until_sync(lambda: stands_by(sched), "the worker's leader stands by", LIMIT_S)
    assert leader_of(sched) == operator.pid
    operator.kill()
    operator.wait()
    led_by(sched, lambda: run_by(worker))
    later = run(url, "lead", url)
    until_sync(lambda: stands_by(sched), "it stands by", LIMIT_S)
    assert leader_of(sched) in run_by(worker)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(LIMIT_S) == 0
    assert led_by(sched, lambda: {later.pid})


@pytest.mark.slow
def test_workers_of_one_parent_share_a_leader_until_they_end(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url, "--processes=2")
    edit = edits(sched)
    until_sync(lambda: leader_of(sched) is not None and len(sched.workers_sync()) == 2, "both are there", LIMIT_S)
    leader = led_by(sched, lambda: run_by(worker))
    assert edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"
    assert run_by(worker) == {leader}
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(LIMIT_S) == 0
    assert not lives(leader)


@pytest.mark.slow
def test_workers_whose_parent_was_killed_end_with_their_leader(url: str, run: Commands, sched: Scheduler) -> None:
    parent = run.worker(url, "--processes=2")
    until_sync(lambda: leader_of(sched) is not None and len(sched.workers_sync()) == 2, "both are there", LIMIT_S)
    led_by(sched, lambda: run_by(parent))
    processes = below(parent.pid)
    assert len(processes) == 5, "two workers, two that renew leases, and the leader"
    parent.kill()
    parent.wait()
    until_sync(lambda: not any(map(lives, processes)), "all have ended", LIMIT_S)


def test_worker_leads_inside_its_process_if_configured(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url, "--lead=inside")
    assert led_by(sched, lambda: {worker.pid})
    assert not run_by(worker)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_worker_that_may_not_lead_has_no_leader(url: str, run: Commands, sched: Scheduler) -> None:
    operator = run(url, "lead", url)
    led_by(sched, lambda: {operator.pid})
    worker = run.worker(f"{url}&lead=no")
    assert edits(sched).enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"
    assert not run_by(worker)


@pytest.mark.slow
def test_worker_restarted_for_changed_code_keeps_its_leader(url: str, run: Commands, sched: Scheduler) -> None:
    worker = run.worker(url, "--reload")
    edit = edits(sched)
    assert edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "doc"
    leader = led_by(sched, lambda: run_by(worker))
    (run.folder / "app.py").write_text(APP.replace("return doc", "return doc.upper()"))
    until_sync(lambda: '"event": "worker.reload"' in run.log.read_text(), "it has seen that", LIMIT_S)
    until_sync(lambda: edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S) == "DOC", "it runs anew", LIMIT_S)
    assert (leader_of(sched), run_by(worker)) == (leader, {leader})


def test_records_are_kept_for_as_long_as_the_application_says(url: str, run: Commands, sched: Scheduler) -> None:
    kept = "Scheduler(retention=Retention(finished=0.001))"
    app = APP.replace("Scheduler()", kept).replace("import Scheduler", "import Retention, Scheduler")
    (run.folder / "app.py").write_text(app)
    worker = run.worker(url)
    led_by(sched, lambda: run_by(worker))
    handle = edits(sched).enqueue_sync("doc")

    def is_kept() -> bool:
        try:
            return handle.record_sync() is not None
        except JobNotFoundError:
            return False

    until_sync(lambda: not is_kept(), "its record is gone", LIMIT_S)
