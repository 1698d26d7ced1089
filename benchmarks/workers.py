"""Workers as a user starts them, by `queuehint worker`: they run the jobs of a store that the benchmark has opened."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.report import TIMER
from queuehint.errors import BackendUnavailableError
from queuehint.operations import CountJobs, Enqueue, ListWorkers, Pause, Resume
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from queuehint import JobSpec
    from queuehint.backends.journal.backend import JournalBackend

APP: Final = """
import time

from queuehint import Scheduler

sched = Scheduler()

@sched.job(name="edit", queue_hint=["{doc}", "{section}", "{branch}"])
async def edit(doc: str, section: str, branch: str) -> None:
    pass

@sched.job(name="work", queue_hint=["{doc}", "{section}", "{branch}"])
async def work(doc: str, section: str, branch: str) -> None:
    until_ns = time.thread_time_ns() + 200_000
    while time.thread_time_ns() < until_ns:
        pass

@sched.job(queue_hint=["{doc}"])
def compute(doc: str, count: int) -> None:
    while count:
        count -= 1
"""
INSIDE: Final = "one process that leads too"
ONE: Final = "one process, and one that leads"
TWO: Final = "two processes, and one that leads"
WAYS: Final = {INSIDE: ("--lead=inside",), ONE: (), TWO: ("--processes=2",)}
"""How `queuehint worker` is started."""
ALL: Final = RecordFilter(path=())


def drain(store: JournalBackend, url: str, specs: Sequence[JobSpec], way: str, *options: str) -> float:
    """Enqueue jobs, return the seconds from when workers may begin until all have ended; the store is closed."""
    store.call_sync(Pause(ALL))
    for begin in range(0, len(specs), 1000):
        store.call_sync(Enqueue(tuple(specs[begin : begin + 1000])))
    with working(store, url, way, *options):
        begin_s = TIMER.read_s()
        store.call_sync(Resume(ALL))
        while store.call_sync(CountJobs()).unfinished:
            time.sleep(0.01)
        return TIMER.read_s() - begin_s


@contextmanager
def working(store: JournalBackend, url: str, way: str, *options: str) -> Iterator[None]:
    """Have `queuehint worker` run the jobs of a store, which has the lead, and leaves it; both are ended."""
    with tempfile.TemporaryDirectory(prefix="queuehint-") as folder:
        Path(folder, "app.py").write_text(APP)
        store.leaves_lead = True
        command = [sys.executable, "-m", "queuehint", "worker", "app:sched", "--log-level=error", *WAYS[way], *options]
        worker = subprocess.Popen(command, cwd=folder, env={**os.environ, "QUEUEHINT_URL": url})
        try:
            workers = 0
            while workers < 1 + (way == TWO) or store.is_leading:
                assert worker.poll() is None, "the worker has ended"
                with suppress(BackendUnavailableError):  # on a busy machine it takes long to begin to lead
                    workers = len(store.call_sync(ListWorkers()).workers)
                time.sleep(0.01)
            yield
        finally:
            worker.terminate()
            worker.wait()
            store.close_sync()
