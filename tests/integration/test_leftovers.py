"""Leftover work is shared: each call does a bounded part, and calls are made until none is left."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint import Claim, JobSpec, JobState, Scheduler
from queuehint.operations import CancelPath, CountJobs, Enqueue
from tests.manual_jobs import on

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
COUNT = 5000


def leave_over(sched: Scheduler) -> None:
    """Begin the cancellation of many jobs, which later calls complete."""
    for begin in range(0, COUNT, 1000):
        claims = [(f"j{n}", (Claim((f"doc{n}",)),)) for n in range(begin, begin + 1000)]
        sched.backend.call_sync(Enqueue(tuple(JobSpec(id=job, task="t", pool="p", claims=at) for job, at in claims)))
    assert sched.backend.call_sync(CancelPath(())).more


def count_calls(sched: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    call = sched.backend.call_sync

    def calling(operation: Any) -> Any:
        calls.append(operation)
        return call(operation)

    monkeypatch.setattr(sched.backend, "call_sync", calling)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_enqueue_answers_after_its_own_work_and_its_share(
    url: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        def one() -> None: ...

        def enqueue() -> None:
            if count == 1:
                one.enqueue_sync()
            else:
                one.enqueue_many_sync([()] * count)

        leave_over(sched)
        calls = count_calls(sched, monkeypatch)
        enqueue()
        assert len(calls) == 2
        # Without any worker, other operations do all of it before long.
        for _ in range(30):
            enqueue()
        assert len(calls) < 62
        assert sched.backend.call_sync(CountJobs()).states[CANCELED] == COUNT

    on(url, main)


@pytest.mark.slow
def test_cancel_path_returns_when_all_jobs_are_canceled(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        leave_over(sched)
        assert await sched.cancel(path=["doc1"]) == 0
        assert (await sched.stats()).states[CANCELED] == COUNT

    on(url, main)
