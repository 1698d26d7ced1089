"""Handlers in processes of their own: the data passed both ways, the ways to end them, and their clean-up."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queuehint import (
    HandlerError,
    InvalidJobTypeError,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobSpec,
    JobState,
    Outcome,
    OutcomeKind,
    Policy,
    ProcessDiedError,
    ReasonKind,
    Scheduler,
)
from queuehint.operations import Exchange
from queuehint.testing import drain_sync, on_memory, simulate
from queuehint.worker.processes import pool, process
from tests import process_tasks as tasks
from tests.process_tasks import sched
from tests.schedulers import until
from tests.support import LIMIT_S, lives


@pytest.fixture(autouse=True)
def _own_store() -> Iterator[None]:
    with on_memory(sched):
        yield


def words(file: Path, count: int = 1) -> list[str]:
    """Wait until a handler has written so many words; return them."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        found = file.read_text("utf-8").split() if file.exists() else []
        if len(found) >= count:
            return found
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.slow
def test_handler_outcomes_cross_the_process_and_one_process_serves_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = tasks.pid.enqueue_sync()
    told = tasks.told.using(after=[first], name="told").enqueue_sync("doc1")
    ends = {
        how: tasks.end.enqueue_sync(how)
        for how in ("raise", "final", "group", "retry", "fail", "discard", "not json", "enqueue")
    }
    plain = sched.job(process=True, name="plain", max_attempts=1)(tasks.plain).enqueue_sync(1)
    snoozed = tasks.end.enqueue_sync("snooze")
    family = tasks.family.enqueue_sync()
    last = tasks.pid.enqueue_sync()
    ends["segfault"] = tasks.end.using(max_attempts=1).enqueue_sync("segfault")
    drain_sync(sched, within=60)

    pid = first.result_sync()
    assert pid == last.result_sync() != os.getpid()
    assert not lives(pid)
    assert plain.result_sync() == 2
    assert snoozed.state_sync() is JobState.QUEUED
    record = told.record_sync()
    assert record is not None
    said: Any = told.result_sync()
    assert said == {
        "part": 1,
        "id": told.id,
        "task": "told",
        "attempt": 1,
        "token": record.token,
        "path": ["doc1"],
        "tags": ["t"],
        "headers": {"h": "v"},
        "canceled": False,
        "results": {first.id: pid},
        "state": said["state"],
    }
    assert "process of the worker" in said["state"]
    assert ("app", logging.WARNING, "a record") in caplog.record_tuples
    children = [sched.handle(f"{family.id}.{number}").record_sync() for number in (1, 2, 3)]
    assert [child.spec.parent for child in children] == [family.id] * 3
    taken, refusal = family.result_sync()
    assert taken == f"{family.id}.1"
    assert taken in refusal
    assert record.progress is not None
    assert (record.progress.done, record.progress.note, record.logs) == (1, "half", ("a line",))

    def ended(how: str) -> tuple[str, int, str, str]:
        found = ends[how].record_sync()
        assert found is not None
        error = found.errors[-1]
        has_frames = how not in {"not json", "segfault"}
        assert ('process_tasks.py", line' in (error.traceback or "")) == has_frames
        assert "queuehint/worker" not in (error.traceback or "")
        return found.state, found.attempts, error.type.rpartition(".")[2], error.message

    assert ended("raise") == ("FAILED", 2, "OddError", "so it is")
    assert ended("final") == ("FAILED", 1, "FileNotFoundError", "gone")
    assert ended("group") == (
        "FAILED",
        1,
        "ExceptionGroup",
        "both (2 sub-exceptions); with FileNotFoundError: a; with PermissionError: b",
    )
    assert ended("retry") == ("FAILED", 2, "retry", "again")
    assert ended("fail") == ("FAILED", 1, "fail", "why")
    assert ended("not json")[:3] == ("FAILED", 1, "PayloadError")
    assert ended("enqueue")[2] == "BackendUnavailableError"
    assert ended("segfault") == ("FAILED", 1, "ProcessDiedError", "the process of end died of SIGSEGV")
    discarded = ends["discard"].record_sync()
    assert discarded is not None
    assert discarded.state is JobState.CANCELED


@pytest.mark.slow
async def test_endless_process_code_is_killed_before_its_place_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough for an answer on a busy machine.
    monkeypatch.setattr(process, "TOLD_S", LIMIT_S)
    monkeypatch.setattr(process, "GRACE_S", 3.0)
    spins, holds, polite = tmp_path / "spins", tmp_path / "holds", tmp_path / "polite"
    seen: dict[str, list[bool]] = {}

    @sched.job(name="look")
    def look(file: str) -> None:
        seen[file] = [lives(pid) for pid in Path(file).read_text("utf-8").split() if pid.isdigit()]

    jobs = {
        file: (await job.enqueue(str(file)), await look.using(queue_hint=[hint]).enqueue(str(file)))
        for file, job, hint in (
            (spins, tasks.spin, "spin"),
            (holds, tasks.hold_on, "hold"),
            (polite, tasks.polite, "polite"),
        )
    }
    async with sched.worker():
        (pid,) = await asyncio.to_thread(words, polite)
        os.kill(int(pid), signal.SIGTERM)  # as a supervisor does that signals all
        await asyncio.to_thread(words, holds, 2)
        assert lives(pid)
        assert not seen.keys() & {str(holds), str(polite)}
        canceled_s = time.monotonic()
        await jobs[holds][0].cancel()
        await jobs[polite][0].cancel()
        for _, after in jobs.values():
            await after.result(timeout=LIMIT_S)
        assert time.monotonic() - canceled_s > process.GRACE_S  # the one in C is killed no sooner

    assert seen == {str(spins): [False], str(holds): [False, False], str(polite): [False]}
    assert spins.read_text("utf-8").endswith(" interrupted")
    assert polite.read_text("utf-8").endswith(" told")
    record = await jobs[spins][0].record()
    assert record is not None
    assert [(error.type, "in spin" in (error.traceback or "")) for error in record.errors] == [("timeout", True)]
    assert [await jobs[file][0].state() for file in (holds, polite)] == [JobState.CANCELED, JobState.FINISHED]


def test_steps_of_a_process_are_stored_by_its_worker(tmp_path: Path) -> None:
    file = tmp_path / "said"
    seen: list[tuple[str, bool]] = []

    @contextmanager
    def around(job: JobContext, name: str, began_ns: int | None) -> Iterator[None]:
        assert began_ns is not None and began_ns <= time.time_ns()
        yield
        seen.append((name, job.attempt == 1))

    sched.step_hooks.append(around)
    try:
        job = tasks.in_steps.enqueue_sync(str(file))
        drain_sync(sched, within=60)
    finally:
        sched.step_hooks.remove(around)
    first, second, took, names, errors = job.result_sync()
    assert words(file, 2) == ["first", "second"]
    assert (first, second, took, names) == ("first", "second", 6, ["first", "is"])
    assert errors[0] == "step 'first' is called twice in one attempt; name each call differently"
    assert "name" in errors[1]
    assert "limit 65536" in errors[2]
    record = job.record_sync()
    assert [step.name for step in record.steps] == ["first", "was"]
    assert [attempt.outcome for attempt in record.history] == ["retried", "finished"]
    assert seen == [("first", True), ("was", True)]


def test_a_process_whose_job_is_lost_stores_no_step(tmp_path: Path) -> None:
    file = tmp_path / "said"

    async def main() -> None:
        async with sched.worker(grace=0):
            job = await tasks.lost_step.enqueue(str(file))
            await asyncio.to_thread(words, file)
            # As its lease ends: it is given back, and another has it.
            token = (await job.record()).token or 0
            await sched.backend.call(Exchange("w", (Outcome(job_id=job.id, token=token, kind=OutcomeKind.DISCARDED),)))
            with file.open("a") as out:
                out.write(" lost ")
            assert (await asyncio.to_thread(words, file, 3))[0] == job.id
            assert (await job.record()).steps == ()

    asyncio.run(main())


@pytest.mark.parametrize(
    "task, why, is_told", [("polite", "timeout", True), ("polite", "lease lost", False), ("spin", "canceled", False)]
)
async def test_handler_with_time_to_see_it_is_warned_before_interruption(
    task: str, why: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, ended = threading.Event(), threading.Event()
    told: list[bool] = []

    class Process(process.HandlerProcess):
        def run(self, *_: Any) -> Any:
            runs.set()
            assert ended.wait(LIMIT_S)
            return {"end": "result", "kind": "none"}, b"{}"

        def stop(self, *, is_told_first: bool) -> None:
            told.append(is_told_first)
            ended.set()

    monkeypatch.setattr(pool, "HandlerProcess", Process)
    async with sched.worker() as worker:
        job = await getattr(tasks, task).enqueue("file")
        await asyncio.to_thread(runs.wait, LIMIT_S)
        assert told == []
        worker._state.stopping.find_and_ask(job.id, None, why)
        await asyncio.to_thread(ended.wait, LIMIT_S)
    assert told == [is_told]


@pytest.mark.slow
def test_a_process_does_not_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    code = "import sys; from tests.process_tasks import *; hold_on.enqueue_sync(sys.argv[1]); sched.drain_sync()"
    worker = subprocess.Popen([sys.executable, "-c", code, str(file)])
    pids = words(file, 2)
    assert all(map(lives, pids))
    worker.kill()
    worker.wait()
    until_s = time.monotonic() + LIMIT_S
    while any(map(lives, pids)):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_simulated_handler_runs_in_the_same_process() -> None:
    found = simulate(sched, [tasks.pid.enqueue], seeds=2)
    pids = [json.loads(record.result or b"")["result"] for record in found.jobs.values()]
    assert pids == [os.getpid()]


async def nothing_async() -> None: ...


class Many:
    def method(self) -> None: ...


@pytest.mark.parametrize(
    "function, says",
    [
        (nothing_async, "plain function, and this one is async"),
        (lambda: None, "got a lambda; define it at the top of a module"),
        (functools.partial(tasks.plain, 1), "requires a function of a module, got partial"),
        (Many().method, "got the method Many.method of an object"),
    ],
)
def test_unimportable_process_handler_is_refused_at_once(function: Callable[..., Any], says: str) -> None:
    def local() -> None: ...

    with pytest.raises(HandlerError, match=f"task: process=True .*{says}"):
        Scheduler().job(process=True, name="task")(function)
    with pytest.raises(HandlerError, match=r"got the local function .*<locals>\.local"):
        Scheduler().job(process=True)(local)


def test_an_executor_is_one_of_threads_and_of_a_worker() -> None:
    taken = ThreadPoolExecutor(1)
    sched.make_worker(executor=taken)
    taken.shutdown()
    for executor, says in (
        (taken, "ThreadPoolExecutor, which is shut down"),
        (ProcessPoolExecutor(1), "got ProcessPoolExecutor, .* give the task process=True"),
        (ThreadPoolExecutor, "got type"),
        ("threads", "got str: 'threads'"),
    ):
        with pytest.raises(InvalidJobTypeError, match=f"executor must be an Executor whose calls run in .*{says}"):
            sched.make_worker(executor=executor)
    with pytest.raises(InvalidJobTypeError, match=r"'executor': it is one of workers"):
        sched.job(process=True, executor=taken)(tasks.plain)  # type: ignore[call-overload]
    with pytest.raises(InvalidJobTypeError, match="process must be"):
        sched.job(process="yes")(tasks.plain)  # type: ignore[call-overload]


def test_error_of_a_dead_process_names_signal_or_code() -> None:
    died = ProcessDiedError("work", 7)
    assert (died.task, died.exit_code, died.signal) == ("work", 7, None)
    assert str(died) == "the process of work ended with exit code 7"
    killed = ProcessDiedError("work", -signal.SIGKILL)
    assert (killed.exit_code, killed.signal) == (None, "SIGKILL")
    assert str(killed) == "the process of work died of SIGKILL; the system kills what takes too much memory"
    assert str(ProcessDiedError("work", -99)) == "the process of work died of signal 99"


@pytest.mark.slow
async def test_process_gives_back_a_job_of_a_later_release() -> None:
    policy = Policy(max_attempts=1)
    later = JobSpec(id="later", task="end", arguments=b'{"how":"raise","x":1}', policy=policy)
    own = tasks.end.using(max_attempts=1)
    (job,) = await sched.submit([later])
    async with sched.worker():
        raised = await own.enqueue("unknown")
        with pytest.raises(JobFailedError):
            await raised.result(timeout=LIMIT_S)

        async def is_given_back() -> bool:
            return (await job.why()).kind is ReasonKind.UNKNOWN_TASK

        await until(is_given_back)
    record = await raised.record()
    assert (record.state, record.errors[-1].message) == (JobState.FAILED, "$: of another job's result")
    assert (await job.record()).errors == ()


class Starts:
    """Starts processes of handlers, and signals each of some as soon as it is there."""

    def __init__(self, number: signal.Signals, count: int) -> None:
        self.number, self.count, self.pids = number, count, list[int]()

    def __call__(self, *args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started: subprocess.Popen[bytes] = subprocess.Popen(*args, **options)
        self.pids.append(started.pid)
        if len(self.pids) <= self.count:
            os.kill(started.pid, self.number)
        return started


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, count, started",
    [(signal.SIGTERM, 9, 1), (signal.SIGINT, 9, 1), (signal.SIGHUP, 9, 1), (signal.SIGKILL, 1, 2)],
)
def test_signal_to_a_process_that_starts_costs_its_job_nothing(
    number: signal.Signals, count: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(number, count)
    monkeypatch.setattr(process, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": starts}))
    job = tasks.plain_job.using(max_attempts=1).enqueue_sync(1)
    drain_sync(sched)
    record = job.record_sync()
    assert (record.state, record.attempts, record.errors, job.result_sync()) == (JobState.FINISHED, 1, (), 2)
    assert len(starts.pids) == started
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "the worker's own signals are not blocked"


def test_process_that_dies_twice_before_its_code_fails_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(signal.SIGKILL, 9)
    monkeypatch.setattr(process, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": starts}))
    job = tasks.plain_job.using(max_attempts=1).enqueue_sync(1)
    drain_sync(sched)
    record = job.record_sync()
    assert (record.state, record.attempts, len(starts.pids)) == (JobState.FAILED, 1, 2)
    assert "died of SIGKILL" in record.errors[-1].message


async def test_job_asked_to_stop_as_its_process_died_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, dies = threading.Event(), threading.Event()
    made: list[object] = []

    class Dying:
        """A process that has died before its code began when it is told to stop."""

        pid, is_usable, has_died_unbegun = None, False, True

        def __init__(self, *, is_durable: bool) -> None:
            made.append(self)

        def run(self, *_: object) -> ProcessDiedError:
            begun.set()
            assert dies.wait(LIMIT_S)
            return ProcessDiedError("plain", -9)

        def stop(self, *, is_told_first: bool) -> None:
            dies.set()

        def close(self) -> None: ...

    monkeypatch.setattr(pool, "HandlerProcess", Dying)
    async with sched.worker():
        job = await tasks.plain_job.enqueue(1)
        await asyncio.to_thread(begun.wait, LIMIT_S)
        await job.cancel()
        with pytest.raises(JobCanceledError):
            await job.result(timeout=LIMIT_S)
    assert len(made) == 1
