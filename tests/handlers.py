"""Handlers for tests of workers, on the loop or in a thread, and the state of their jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queuehint import (
    Backoff,
    JobContext,
    JobHandle,
    JobRecord,
    JobState,
    Scheduler,
)
from tests.schedulers import until


async def in_state(handle: JobHandle[Any], state: JobState, attempts: int | None = None) -> JobRecord:
    """Wait until a job is in a state, after so many attempts if given."""

    async def reached() -> bool:
        record = await handle.record()
        return record.state is state and attempts in (None, record.attempts)

    await until(reached)
    return await handle.record()


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.__dict__.get("event")) for record in caplog.records]


def answering(sched: Scheduler, answer: Callable[[JobContext], Any], kind: str, **options: Any) -> Any:
    """Return a job whose handler, async or in a thread, gives an answer or raises."""
    options = {"queue_hint": ["a"], "retry": Backoff(base=1, jitter=0), **options}

    @sched.job(name="answering", **options)
    async def on_loop(ctx: JobContext) -> Any:
        return answer(ctx)

    @sched.job(name="answering_in_thread", **options)
    def in_thread(ctx: JobContext) -> Any:
        return answer(ctx)

    return on_loop if kind == "async" else in_thread


KINDS = pytest.mark.parametrize("kind", ["async", "thread"])
