"""
How soon a process that stands by leads, under load: leaders are killed, and calls of a guest go on.

`queuehint lead` runs twice, on a file and in PostgreSQL, beside a backlog of jobs. A guest enqueues and runs jobs all
the time; it is killed who leads, and what is taken is the time until the guest's next call is answered.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Self

from benchmarks.calls import specs_of
from benchmarks.servers import PostgresServer
from queuehint.backends.base import BackendOptions, open_backend
from queuehint.backends.journal.backend import JournalBackend
from queuehint.operations import CountJobs, Enqueue, Exchange
from queuehint.values.outcome import Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.report import Report

KILLS: Final = 20
BACKLOG: Final = 20_000
CALLERS: Final = 2
WORST_S: Final = 1.0
LIMIT_S: Final = 60.0


def run(report: Report, *, quick: bool) -> None:
    """Measure both stores; it takes a minute."""
    kills, backlog = (2, 500) if quick else (KILLS, BACKLOG)
    with tempfile.TemporaryDirectory(prefix="queuehint-bench-") as folder:
        _measure(report, "file", f"sqlite:///{folder}/jobs.db", kills, backlog)
    server = PostgresServer()
    if not server.is_installed:
        report.missing.append("PostgreSQL: initdb and psql are not installed")
        return
    with server.running():
        server.clear()
        _measure(report, "PostgreSQL", server.url, kills, backlog)


def _measure(report: Report, where: str, url: str, kills: int, backlog: int) -> None:
    report.title(f"Take-over by a process that stands by, {where}: {kills} kills, {backlog:,} jobs wait")
    with ExitStack() as stack:
        leads = [stack.enter_context(_Lead(url)) for _ in range(2)]
        for each in leads:
            each.until_ready()
        guest = open_backend(url, BackendOptions())
        assert isinstance(guest, JournalBackend)
        stack.callback(guest.close_sync)
        for begin in range(0, backlog, 500):
            guest.call_sync(Enqueue(tuple(specs_of(min(500, backlog - begin)))))
        with _load(guest) as answers:
            times = []
            for _ in range(kills):
                times.append(_kill(guest, leads, answers))
                leads.append(stack.enter_context(_Lead(url)))
                leads[-1].until_ready()
                time.sleep(0.2)
    report.add(f"{where}: from the kill to the next answer", "ms", *[1000 * each for each in times])
    worst = report.add(f"{where}: the worst", "ms", 1000 * max(times), note=f"{len(answers):,} calls in all")
    report.aim(worst.name, worst.median, 1000 * WORST_S, at_most=True)


class _Lead:
    """A process of `queuehint lead`, killed at the end."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "queuehint", "lead", url]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def until_ready(self) -> None:
        """Wait until it stands by, or leads."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "stands by" in line or "opened" in line:
                return
        raise RuntimeError("a process that was to stand by has ended")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def _load(guest: JournalBackend) -> Iterator[list[tuple[float, float]]]:
    """Have a guest enqueue and run jobs all the time; yield when each call began and when it was answered."""
    answers: list[tuple[float, float]] = []
    ends = threading.Event()

    def enqueue() -> None:
        while not ends.is_set():
            for spec in specs_of(100):
                begun_s = time.monotonic()
                guest.call_sync(Enqueue((spec,)))
                answers.append((begun_s, time.monotonic()))
                if ends.is_set():
                    break

    def work() -> None:
        ended: tuple[Outcome, ...] = ()
        while not ends.is_set():
            begun_s = time.monotonic()
            grants = guest.call_sync(Exchange("worker", ended, limit=20)).grants
            answers.append((begun_s, time.monotonic()))
            ended = tuple(
                [Outcome(job_id=each.spec.id, token=each.token, kind=OutcomeKind.FINISHED) for each in grants]
            )

    threads = [threading.Thread(target=work), *[threading.Thread(target=enqueue) for _ in range(CALLERS)]]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def _kill(guest: JournalBackend, leads: list[_Lead], answers: list[tuple[float, float]]) -> float:
    """Kill who leads; return how long it takes until a call is answered that began after that."""
    guest.call_sync(CountJobs())
    leader = guest._leader  # noqa: SLF001 - no call says which process it is
    assert leader is not None
    (killed,) = [each for each in leads if each.pid == leader.pid]
    leads.remove(killed)
    seen = len(answers)
    killed_s = time.monotonic()
    killed.kill()
    while True:
        for begun_s, answered_s in answers[seen:]:
            # One that was under way is answered by the next leader too.
            if answered_s > killed_s and (begun_s > killed_s or answered_s > killed_s + 0.02):
                return answered_s - killed_s
        assert time.monotonic() < killed_s + LIMIT_S, "no call was answered after the kill"
        time.sleep(0.001)
