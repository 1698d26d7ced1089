"""Two releases side by side: renamed tasks, changed arguments, arguments of a later release."""

from __future__ import annotations

import enum
import json
from typing import Any, Literal

import attrs
import pytest

from queuehint import (
    HandlerError,
    InvalidJobError,
    InvalidJobTypeError,
    JobHandle,
    JobSpec,
    JobState,
    Policy,
    ReasonKind,
    Scheduler,
)
from tests.schedulers import until


async def enqueue(sched: Scheduler, task: str, arguments: dict[str, Any]) -> JobHandle[Any]:
    """Enqueue a job as another release does."""
    spec = JobSpec(id=task, task=task, arguments=json.dumps(arguments).encode(), policy=Policy(max_attempts=1))
    (job,) = await sched.submit([spec])
    return job


async def why(job: JobHandle[Any], *kinds: ReasonKind) -> None:
    async def is_so() -> bool:
        return (await job.why()).kind in kinds

    await until(is_so)


async def test_job_with_a_later_argument_waits_for_its_release() -> None:
    sched, ran = Scheduler(), []

    @sched.job
    async def work(n: int) -> None:
        ran.append(n)

    job = await enqueue(sched, "work", {"n": 1, "unit": "t"})
    async with sched.worker():
        await why(job, ReasonKind.UNKNOWN_TASK)
    record = await job.record()
    assert (record.state, record.attempts, record.errors, ran) == (JobState.QUEUED, 0, (), [])


class Status(enum.Enum):
    DRAFT = "draft"


@attrs.frozen
class Price:
    cents: int


@pytest.mark.parametrize(
    "arguments",
    [{"status": "archived"}, {"level": "high"}, {"price": {"cents": 5, "currency": "JPY"}}, {"prices": [{"c": 1}]}],
    ids=["member", "literal", "field", "nested"],
)
async def test_job_with_a_later_value_is_released(arguments: dict[str, Any]) -> None:
    sched, ran = Scheduler(), []

    @sched.job
    async def work(
        status: Status = Status.DRAFT,
        level: Literal["low"] = "low",
        price: Price | None = None,
        prices: list[Price] | None = None,
    ) -> None:
        ran.append(status)

    job = await enqueue(sched, "work", arguments)
    async with sched.worker():
        await why(job, ReasonKind.UNKNOWN_TASK)
    record = await job.record()
    assert (record.state, record.attempts, record.errors, ran) == (JobState.QUEUED, 0, (), [])


@pytest.mark.parametrize("arguments", [{"status": 5}, {"level": 5}])
async def test_job_with_a_value_of_a_wrong_type_is_failed(arguments: dict[str, Any]) -> None:
    sched = Scheduler()

    @sched.job
    async def work(status: Status = Status.DRAFT, level: Literal["low"] = "low") -> None: ...

    job = await enqueue(sched, "work", arguments)
    await sched.drain()
    record = await job.record()
    assert (record.state, record.errors[-1].type) == (JobState.FAILED, "queuehint.errors.PayloadError")


async def test_renamed_task_runs_old_jobs_with_upgraded_arguments() -> None:
    sched, ran = Scheduler(), []

    def split(arguments: dict[str, Any]) -> dict[str, Any]:
        a, b = arguments["text"].split()
        return {"a": int(a), "b": int(b)}

    @sched.job(aliases=("old", "older"), upgrade=split)
    async def work(a: int, b: int = 9) -> None:
        ran.append((a, b))

    await enqueue(sched, "old", {"text": "1 2"})
    await enqueue(sched, "work", {"a": 3})
    await sched.drain()
    assert sorted(ran) == [(1, 2), (3, 9)]


@pytest.mark.parametrize("returned", [None, {"c": 1}, {}])
async def test_upgrade_without_arguments_fails_or_releases_the_job(returned: Any) -> None:
    sched = Scheduler()

    @sched.job(upgrade=lambda _: returned)
    async def work(a: int) -> None: ...

    job = await enqueue(sched, "work", {"text": "x"})
    async with sched.worker():
        await why(job, ReasonKind.UNKNOWN_TASK, ReasonKind.OVER)
    record = await job.record()
    assert record.state is (JobState.QUEUED if returned == {"c": 1} else JobState.FAILED)
    if returned is None:
        assert "upgrade of work must return a dict, got NoneType" in record.errors[-1].message


@pytest.mark.parametrize(
    "options, error, said",
    [
        ({"aliases": "old"}, InvalidJobTypeError, "aliases"),
        ({"aliases": [""]}, InvalidJobError, "aliases is empty"),
        ({"aliases": [str(n) for n in range(101)]}, InvalidJobError, "aliases"),
        ({"aliases": ["other"]}, HandlerError, "task 'other' is"),
        ({"upgrade": 1}, InvalidJobTypeError, "upgrade must be callable"),
    ],
)
def test_wrong_options_of_a_release_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    sched = Scheduler()

    @sched.job
    async def other() -> None: ...

    async def work() -> None: ...

    with pytest.raises(error, match=said):
        sched.job(**options)(work)
    assert sched.handler("work") is None
