"""Schedules while workers die: each due time is fired once, by any living worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from queuehint import Schedule
from queuehint.operations import CountJobs, Get
from queuehint.values.record import JobState
from queuehint.worker.schedules.firing import firing_id
from tests.faults.file_clock import LEASE_S, FileClock, scheduler
from tests.prefork import start
from tests.servers import new_namespace, shared_server, until

pytestmark = pytest.mark.redis

ROOT = Path(__file__).parents[2]
BEGIN_MS = 1_600_000_000_000
BEAT_MS = 60_000
FIRINGS = 200


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"{shared_server().url}?namespace={new_namespace(request.node.name)}"


class Workers:
    """Processes that work by the time in a file."""

    def __init__(self, url: str, path: Path) -> None:
        self.processes = [
            start("tests.faults.file_clock", url, str(path), env=os.environ | {"PYTHONPATH": str(ROOT)})
            for _ in range(3)
        ]

    def kill(self) -> None:
        """Kill one of them."""
        process = self.processes.pop()
        process.kill()
        process.wait()

    def end(self) -> None:
        while self.processes:
            self.kill()


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    FileClock(tmp_path / "now").set(BEGIN_MS)
    there = Workers(url, tmp_path / "now")
    yield there
    there.end()


def test_three_processes_fire_each_due_time_once_despite_a_kill(url: str, workers: Workers, tmp_path: Path) -> None:
    random = Random(1)
    clock = FileClock(tmp_path / "now")
    sched = scheduler(url, clock)
    (job,) = sched._jobs.values()
    sched.schedule_sync("beat", job, every=BEAT_MS / 1000, missed="all")

    def schedule() -> Schedule:
        return sched.schedules.get_sync("beat")

    now_ms = BEGIN_MS
    end_ms = BEGIN_MS + FIRINGS * BEAT_MS
    while now_ms < end_ms:
        now_ms = min(end_ms, now_ms + BEAT_MS * random.choice((1, 1, 1, 5)))
        clock.set(now_ms)
        # Now and then the next time comes before this one was fired.
        if random.random() < 0.8:
            until(lambda now_ms=now_ms: schedule().last_ms == now_ms, "the due time is fired")  # type: ignore[misc]
        if now_ms >= BEGIN_MS + FIRINGS // 3 * BEAT_MS and len(workers.processes) == 3:
            workers.kill()
    until(lambda: schedule().last_ms == end_ms, "the last due time is fired")
    # The one that was killed may have had the place: it is free when its lease has ended.
    sched.schedules.pause_sync("beat")
    clock.set(end_ms + LEASE_S * 1000 + BEAT_MS)
    ids = tuple(firing_id("beat", BEGIN_MS + number * BEAT_MS) for number in range(1, FIRINGS + 1))
    until(lambda: _states(sched, ids) == {JobState.FINISHED}, "all jobs are finished")
    stats = sched.backend.call_sync(CountJobs())
    assert stats.enqueued == FIRINGS, "no due time was fired twice"
    records = sched.backend.call_sync(Get(ids)).records
    numbers = [record.number for record in records if record is not None]
    assert numbers == sorted(numbers)
    assert len(numbers) == FIRINGS
    # Jobs of one place: they ran in the order of their due times.
    started = [(record.seq, record.number) for record in records if record is not None]
    assert started == sorted(started, key=lambda pair: pair[1])
    sched.close_sync()


def _states(sched: object, ids: tuple[str, ...]) -> set[JobState | None]:
    reply = sched.backend.call_sync(Get(ids))  # type: ignore[attr-defined]
    return {None if record is None else record.state for record in reply.records}
