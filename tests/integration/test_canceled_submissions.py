"""A submission in parts whose caller is canceled or interrupted on the way takes effect whole or leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from queuehint import Flow, Job, Scheduler
from queuehint.client import arrangement
from queuehint.operations import Commit, Enqueue
from tests.schedulers import scheduler

JOBS, PARTS = 5, 3
AT = pytest.mark.parametrize("at", range(1, PARTS + 2))
"""At which request the caller ends: one of the parts, or the commit."""
ANSWERED = pytest.mark.parametrize("answered", [False, True], ids=["under_way", "answered"])


class GaveUpError(Exception):
    """What is raised by a handler of a signal, for one."""


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrangement, "submissions", partial(arrangement.submissions, jobs_max=2))
    monkeypatch.setattr(arrangement, "PART_JOBS", 2)


class Ending:
    """A flow, and what ends its submission at a request."""

    def __init__(self, url: str, at: int, *, answered: bool) -> None:
        self.sched: Scheduler = scheduler(url)[0]
        self.at, self.answered = at, answered
        self.sched.limit_sync(None, max_pending=JOBS)

        @self.sched.job(name="step")
        def step(number: int) -> None: ...

        self.step: Job[..., Any] = step
        self.asked = 0

    def add_all(self, flow: Flow) -> None:
        for number in range(JOBS):
            flow.add(self.step, number)

    def is_at(self, operation: Any) -> bool:
        self.asked += isinstance(operation, (Enqueue, Commit))
        return self.asked == self.at and isinstance(operation, (Enqueue, Commit))

    def check(self) -> None:
        """Assert that nothing is hidden, and that all is there or nothing."""
        # A cancellation comes with the next turn of the loop, which may be that of the request behind.
        assert self.at <= self.asked <= self.at + 1
        stats = self.sched.stats_sync()
        pending = self.sched.limits_sync()[0].pending
        assert (pending, stats.leftovers) == (stats.unfinished, 0)
        assert pending == 0 or (pending == JOBS and self.asked > PARTS)
        assert pending or not (self.at > PARTS and self.answered), "what was committed is not withdrawn"
        if not pending:
            with self.sched.flow_sync("mine") as flow:
                self.add_all(flow)
        assert self.sched.stats_sync().unfinished == JOBS
        self.sched.close_sync()


@AT
@ANSWERED
async def test_a_submission_that_is_canceled_leaves_nothing_hidden(
    url: str, monkeypatch: pytest.MonkeyPatch, at: int, *, answered: bool
) -> None:
    ending = Ending(url, at, answered=answered)
    call: Callable[[Any], Any] = ending.sched.backend.call

    async def counted(operation: Any) -> Any:
        if not ending.is_at(operation):
            return await call(operation)
        if not answered:
            task.cancel()
        reply = await call(operation)
        task.cancel()
        return reply

    async def submit() -> None:
        async with ending.sched.flow("mine") as flow:
            ending.add_all(flow)

    with monkeypatch.context() as patch:
        patch.setattr(ending.sched.backend, "call", counted)
        task = asyncio.create_task(submit())
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    await asyncio.to_thread(ending.check)


@pytest.mark.slow
@AT
@ANSWERED
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GaveUpError])
def test_a_submission_that_is_interrupted_leaves_nothing_hidden(
    url: str, monkeypatch: pytest.MonkeyPatch, at: int, error: type[BaseException], *, answered: bool
) -> None:
    ending = Ending(url, at, answered=answered)
    call: Callable[[Any], Any] = ending.sched.backend.call_sync

    def counted(operation: Any) -> Any:
        is_at = ending.is_at(operation)
        if is_at and not answered:
            raise error
        reply = call(operation)
        if is_at:
            raise error
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(ending.sched.backend, "call_sync", counted)
        with pytest.raises(error), ending.sched.flow_sync("mine") as flow:
            ending.add_all(flow)
    ending.check()
