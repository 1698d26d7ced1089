"""A parent of more children than one outcome names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queuehint import (
    Children,
    InvalidJobError,
    JobContext,
    JobFailedError,
    JobSpec,
    JobState,
    OutcomeUnknownError,
    QueueFullError,
    Scheduler,
)
from queuehint.values.outcome import CHILDREN_MAX
from queuehint.values.spec import CHILDREN_TASK
from queuehint.worker import attempts
from queuehint.worker.calls import wide_children
from tests.schedulers import Gate, until

FINISHED, FAILED, DEFERRED, CANCELED = JobState.FINISHED, JobState.FAILED, JobState.DEFERRED, JobState.CANCELED


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have four children be more than one outcome names."""
    for module in (wide_children, attempts):
        monkeypatch.setattr(module, "CHILDREN_MAX", 3)
    monkeypatch.setattr(wide_children, "PAUSE_S", 0.001)


@contextmanager
def opened(url: str = "memory://", **options: Any) -> Iterator[Scheduler]:
    sched = Scheduler(url, **options)
    try:
        yield sched
    finally:
        sched.close_sync()


@pytest.fixture(params=["memory", "file", pytest.param("redis", marks=pytest.mark.redis)])
def sched(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Scheduler]:
    if request.param == "redis":
        url, namespace = request.getfixturevalue("redis_url"), request.getfixturevalue("namespace")
    else:
        url, namespace = ("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"), "default"
    with opened(url, namespace=namespace) as it:
        yield it


class Family:
    """A parent that makes some children, of which some fail."""

    def __init__(self, sched: Scheduler, *, count: int = 8, bad: tuple[int, ...] = (), **how: Any) -> None:
        self.bad = {*bad}
        self.runs = 0
        self.gate = Gate()
        self.gate.open()

        @sched.job(max_attempts=1)
        async def child(n: int) -> int:
            await self.gate.wait()
            if n in self.bad:
                raise ValueError(n)
            return n

        @sched.job(max_attempts=1, user="ann", pool="families", priority=3, headers={"a": "b"})
        async def parent(ctx: JobContext) -> Children:
            self.runs += 1
            await ctx.enqueue_many(child, [(n,) for n in range(count)])
            return Children(result="all", **how)

        self.parent: Any = parent
        self.child: Any = child


async def parts(sched: Scheduler) -> list[Any]:
    return [record async for record in sched.records.iterate(task=CHILDREN_TASK)]


def both(sched: Scheduler, **options: Any) -> Any:
    return sched.worker(pools=["default", "families"], **options)


async def test_a_parent_is_over_when_all_its_children_are(sched: Scheduler) -> None:
    family = Family(sched)
    family.gate = Gate()
    job = await family.parent.enqueue()
    async with both(sched, concurrency=2):
        await until(lambda: len(family.gate.entered) == 2)
        await until(lambda: _is(job, DEFERRED))
        assert len(await parts(sched)) == 3
        family.gate.open()
        assert await job.result(timeout=60) == "all"
    assert (await sched.records.count(task="child")).states[FINISHED] == 8
    assert family.runs == 1
    for record in await parts(sched):
        spec = record.spec
        assert (record.state, spec.user, spec.pool, spec.priority, spec.parent) == (
            FINISHED,
            "ann",
            "families",
            3,
            job.id,
        )
        assert spec.headers == (("a", "b"),)
    children = [name for record in await parts(sched) for name in json.loads(record.spec.arguments)["children"]]
    assert children == [f"{job.id}.{n}" for n in range(1, 9)]


async def _is(job: Any, state: JobState) -> bool:
    return bool(await job.state() is state)


@pytest.mark.parametrize("bad", [0, 3, 7])
async def test_a_failed_child_fails_the_parent_once_all_are_over(sched: Scheduler, bad: int) -> None:
    family = Family(sched, bad=(bad,))
    job = await family.parent.enqueue()
    async with both(sched):
        with pytest.raises(JobFailedError, match=r"child .* is FAILED"):
            await job.result(timeout=60)
        states = (await sched.records.count(task="child")).states
        assert (states[FINISHED], states[FAILED]) == (7, 1)
        # Repaired, it is waited for as it is then.
        family.bad.clear()
        failed = await sched.records.list(task="child", state="FAILED")
        assert await sched.dead.redrive([failed[0].id]) == 1
        await sched.handle(failed[0].id).result(timeout=60)
        assert await sched.dead.redrive([job.id]) == 1
        assert await job.result(timeout=60) == "all"
    assert family.runs == 2


async def test_any_end_of_children_will_do_where_it_is_said(sched: Scheduler) -> None:
    family = Family(sched, bad=(0, 5), on_child_failure="ignore")
    job = await family.parent.enqueue()
    async with both(sched):
        assert await job.result(timeout=60) == "all"
    assert {record.state for record in await parts(sched)} == {FINISHED}


async def test_hooks_see_nothing_of_the_jobs_in_between(sched: Scheduler) -> None:
    family, seen = Family(sched), []
    sched.before_job(lambda ctx: seen.append(ctx.task))
    sched.after_job(lambda ctx, _outcome: seen.append(ctx.task))
    job = await family.parent.enqueue()
    async with both(sched):
        await job.result(timeout=60)
    assert {*seen} == {"child", "parent"}


async def test_attempt_with_unknown_children_sends_the_same_again(
    sched: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family(sched)
    submit, sent = sched.submit_checked, []

    async def unknown(specs: Any, **how: Any) -> Any:
        handles = await submit(specs, **how)
        if specs[0].task == CHILDREN_TASK:
            sent.append([handle.created for handle in handles])
            if len(sent) == 1:
                raise OutcomeUnknownError("the connection broke", job_ids=[spec.id for spec in specs])
        return handles

    monkeypatch.setattr(sched, "submit_checked", unknown)
    job = await family.parent.enqueue()
    async with both(sched):
        assert await job.result(timeout=60) == "all"
    assert sent == [[True] * 3, [False] * 3]
    assert family.runs == 1


async def test_a_parent_whose_parts_cannot_be_sent_is_given_back(
    sched: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family(sched)
    submit, left = sched.submit_checked, [wide_children.SENDS_MAX]

    async def unavailable(specs: Any, **how: Any) -> Any:
        if specs[0].task == CHILDREN_TASK and left[0]:
            left[0] -= 1
            raise OutcomeUnknownError("the connection broke", job_ids=[])
        return await submit(specs, **how)

    monkeypatch.setattr(sched, "submit_checked", unavailable)
    job = await family.parent.enqueue()
    async with both(sched):
        assert await job.result(timeout=60) == "all"
    record = await job.record()
    assert (record.history[0].outcome, family.runs) == ("released", 2)


async def test_parts_that_are_refused_fail_the_attempt(sched: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family(sched)
    submit = sched.submit_checked

    async def full(specs: Any, **how: Any) -> Any:
        if specs[0].task == CHILDREN_TASK:
            raise QueueFullError(None, 5, 5)
        return await submit(specs, **how)

    monkeypatch.setattr(sched, "submit_checked", full)
    job = await family.parent.enqueue()
    async with both(sched):
        with pytest.raises(JobFailedError, match="QueueFullError"):
            await job.result(timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        b"{}",
        b"[]",
        b"\x80",
        b'{"children":["a b"],"on_child_failure":"fail"}',
        b'{"children":"ab","on_child_failure":"fail"}',
        b'{"children":[5],"on_child_failure":"fail"}',
        b'{"children":["a"],"on_child_failure":"never"}',
        b'{"children":["1","2","3","4"],"on_child_failure":"fail"}',
    ],
)
async def test_malformed_children_arguments_fail_the_job(arguments: bytes) -> None:
    with opened() as sched:
        (job,) = await sched.submit([JobSpec(id="p", task=CHILDREN_TASK, arguments=arguments)])
        async with sched.worker():
            with pytest.raises(JobFailedError):
                await job.result(timeout=60)


async def test_the_limit_is_named_before_the_first_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.handlers.context.CHILDREN_OF_JOB_MAX", 10)
    with opened() as sched:
        job = await Family(sched, count=10).parent.enqueue()
        async with both(sched):
            assert await job.result(timeout=60) == "all"
    with opened() as sched:
        job = await Family(sched, count=11).parent.enqueue()
        async with both(sched):
            with pytest.raises(JobFailedError, match="children: 11 jobs, limit 10; for more, have each of several"):
                await job.result(timeout=60)
        assert (await sched.records.count(task="child")).total == 0
    with pytest.raises(InvalidJobError, match="children: 11 jobs, limit 10"):
        Children(*[str(n) for n in range(11)])


@pytest.mark.heavy
@pytest.mark.usefixtures("_few")
async def test_2_500_children_are_waited_for_by_three_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (wide_children, attempts):
        monkeypatch.setattr(module, "CHILDREN_MAX", CHILDREN_MAX)
    with opened() as sched:
        family = Family(sched, count=2_500)
        job = await family.parent.enqueue()
        async with both(sched, concurrency=100):
            assert await job.result(timeout=60) == "all"
        assert [len(json.loads(record.spec.arguments)["children"]) for record in await parts(sched)] == [
            1000,
            1000,
            500,
        ]
