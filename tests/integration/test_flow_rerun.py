"""`FlowHandle.rerun`: a job of a flow and what follows from it run again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from queuehint import (
    Children,
    FlowNotFoundError,
    FlowState,
    InvalidJobError,
    InvalidJobTypeError,
    JobContext,
    JobNotFoundError,
    JobState,
    OutcomeUnknownError,
    Scheduler,
    StaleRecordError,
)
from queuehint.client.flows import rerun
from tests.schedulers import Gate, until

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


@pytest.fixture(params=["memory", "file", pytest.param("redis", marks=pytest.mark.redis)])
def sched(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Scheduler]:
    if request.param == "redis":
        url, namespace = request.getfixturevalue("redis_url"), request.getfixturevalue("namespace")
    else:
        url, namespace = ("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"), "default"
    opened = Scheduler(url, namespace=namespace)
    yield opened
    opened.close_sync()


class Import:
    """An import of three rows: check → loads → sum, of whatever end, → send."""

    def __init__(self, sched: Scheduler, rows: int = 3, bad: tuple[int, ...] = ()) -> None:
        self.sched = sched
        self.bad = {*bad}
        self.factor = 1
        self.ran: Counter[str] = Counter()
        self.gate = Gate()
        self.gate.open()

        @sched.job
        async def check() -> int:
            self.ran["check"] += 1
            return self.factor

        @sched.job(max_attempts=1)
        async def load(row: int, factor: int) -> int:
            self.ran[f"load {row}"] += 1
            if row in self.bad:
                raise ValueError(row)
            return row * factor

        @sched.job
        async def send(total: int) -> int:
            self.ran["send"] += 1
            return total

        self.check, self.load, self.send = check, load, send

        @sched.job(name="sum")
        async def add_up(ctx: JobContext) -> int:
            self.ran["sum"] += 1
            await self.gate.wait()
            return sum(value for name, value in ctx.results.items())

        with sched.flow_sync("import") as flow:
            head = flow.add(check)
            loads = [flow.add(load, row, head.out) for row in range(rows)]
            whole = flow.add(add_up.using(after=loads, when="done"))
            flow.add(send, whole.out)
        self.flow = sched.get_flow("import")

    async def over(self) -> None:
        await until(self.is_over)

    async def is_over(self) -> bool:
        return (await self.flow.stats()).unfinished == 0

    async def result(self) -> Any:
        return await (await self.flow.job("send")).result(timeout=60)


async def test_summary_reruns_after_its_failed_inputs_are_redriven(sched: Scheduler) -> None:
    it = Import(sched, bad=(2,))
    async with sched.worker():
        await it.over()
        assert (await it.result(), await it.flow.state()) == (1, FlowState.FAILED)
        it.bad.clear()
        assert await it.flow.redrive() == 1
        assert await it.flow.rerun("sum") == 2
        assert await it.flow.result(timeout=60) == {"send": 3}
        assert await it.flow.state() is FlowState.FINISHED
    assert it.ran == {"check": 1, "load 0": 1, "load 1": 1, "load 2": 2, "sum": 2, "send": 2}
    record = await (await it.flow.job("sum")).record()
    assert [attempt.outcome for attempt in record.history] == ["finished", "finished"]


async def test_a_job_runs_again_with_all_that_follows_from_it(sched: Scheduler) -> None:
    it = Import(sched, bad=(1,))
    async with sched.worker():
        await it.over()
        it.bad.clear()
        it.factor = 10
        assert await it.flow.rerun("check") == 6
        assert await it.flow.result(timeout=60) == {"send": 30}
    assert set(it.ran.values()) == {2}
    with pytest.raises(FlowNotFoundError):
        await sched.get_flow("nobody").rerun("check")


async def test_rerun_without_downstream_leaves_dependents(sched: Scheduler) -> None:
    it = Import(sched)
    async with sched.worker():
        await it.over()
        handle = await it.flow.job("load-2")
        assert await it.flow.rerun(handle, downstream=False) == 1
        await it.over()
        assert await it.flow.rerun(handle.id, downstream=False) == 1
        await it.over()
    assert (it.ran["load 1"], it.ran["sum"], it.ran["check"]) == (3, 1, 1)


def test_code_without_a_loop_runs_jobs_again_too(sched: Scheduler) -> None:
    it = Import(sched)
    with sched.worker_sync():
        it.flow.result_sync(timeout=60)
        assert it.flow.rerun_sync("send") == 1
        it.flow.result_sync(timeout=60)
    assert it.ran["send"] == 2


async def test_one_that_follows_and_runs_is_named(sched: Scheduler) -> None:
    it = Import(sched)
    it.gate = Gate()
    async with sched.worker():
        await it.gate.reached()
        with pytest.raises(InvalidJobError, match="job 'sum' follows from 'check' and is STARTED: wait until"):
            await it.flow.rerun("check")
        assert await it.flow.rerun("sum") == 0
        assert await it.flow.rerun("send") == 0
        it.gate.open()
        await it.over()
    assert set(it.ran.values()) == {1}


async def test_dependent_of_a_rerun_dead_job_keeps_waiting(sched: Scheduler) -> None:
    @sched.job(max_attempts=1)
    async def shaky(fails: list[int]) -> int:
        if fails:
            raise ValueError
        return 5

    @sched.job
    async def head() -> list[int]:
        return fails

    @sched.job
    async def last(value: int) -> int:
        return value

    fails = [1]
    async with sched.flow("f") as flow:
        middle = flow.add(shaky, flow.add(head).out)
        end = flow.add(last, middle.out)
    async with sched.worker():
        await until(lambda: _is(middle, FAILED))
        assert await flow.state() is FlowState.STUCK
        fails.clear()
        assert await flow.rerun("head") == 2
        assert await end.result(timeout=60) == 5


async def _is(handle: Any, state: JobState) -> bool:
    return bool(await handle.state() is state)


async def test_rerun_of_several_jobs_runs_dependents_once(sched: Scheduler) -> None:
    it = Import(sched, rows=5)
    async with sched.worker():
        await it.over()
        handle = await it.flow.job("load-2")
        assert await it.flow.rerun("load-4", handle, "send", handle.id) == 4
        await it.over()
        assert await it.flow.rerun("load", "load-4", downstream=False) == 2
        await it.over()
    assert [it.ran[f"load {row}"] for row in range(5)] == [2, 2, 1, 3, 1]
    assert (it.ran["sum"], it.ran["send"]) == (2, 2)


async def test_newer_of_several_dependents_runs_with_its_dependency(sched: Scheduler) -> None:
    it = Import(sched)
    async with sched.worker():
        await it.over()
        versions = [(await (await it.flow.job(name)).record()).version for name in ("sum", "load")]
        assert await it.flow.rerun("sum") == 2
        await it.over()
        assert await it.flow.rerun("sum", "load", version=versions) == 3
        await it.over()
    assert (it.ran["load 0"], it.ran["load 1"], it.ran["sum"], it.ran["send"]) == (2, 1, 3, 3)


async def test_a_part_runs_again_while_the_join_waits(sched: Scheduler) -> None:
    it = Import(sched, rows=4, bad=(3,))
    async with sched.worker():
        await it.over()
    it.bad.clear()
    assert await it.flow.rerun("load-4") == 3
    assert await it.flow.rerun("load-2") == 1
    assert (await (await it.flow.job("sum")).record()).open_dependencies == 2
    async with sched.worker():
        assert await it.flow.result(timeout=60) == {"send": 6}
    assert [it.ran[f"load {row}"] for row in range(4)] == [1, 2, 1, 2]
    assert (it.ran["sum"], it.ran["send"]) == (2, 2)


async def test_rerun_parent_finds_its_children_unchanged(sched: Scheduler) -> None:
    ran: Counter[str] = Counter()

    @sched.job
    async def child(row: int) -> None:
        ran["child"] += 1

    @sched.job
    async def parent(ctx: JobContext) -> Children | int:
        ran["parent"] += 1
        made = [await ctx.enqueue(child, row) for row in range(3)]
        return Children(result=sum(each.created for each in made))

    async with sched.flow("f") as flow:
        flow.add(parent)
    async with sched.worker():
        assert await flow.result(timeout=60) == {"parent": 3}
        assert await flow.rerun("parent") == 1
        assert await flow.result(timeout=60) == {"parent": 0}
    assert ran == {"parent": 2, "child": 3}


async def test_two_reruns_of_several_jobs_run_each_once(sched: Scheduler) -> None:
    it = Import(sched, rows=6)
    async with sched.worker():
        await it.over()
    counts = await asyncio.gather(it.flow.rerun("load", "load-2"), it.flow.rerun("load-2", "load-3", "load"))
    assert sum(counts) >= 5
    async with sched.worker():
        await it.over()
    assert [it.ran[f"load {row}"] for row in range(6)] == [2, 2, 2, 1, 1, 1]
    assert (it.ran["sum"], it.ran["send"]) == (2, 2)


def lose_answer(monkeypatch: pytest.MonkeyPatch, sched: Scheduler, at: int, *, applied: bool) -> None:
    """Have the answer to one request of a rerun lost, *applied* or not."""
    backend: Any = sched.backend
    call, sent = backend.call, []

    async def broken(operation: Any) -> Any:
        if getattr(operation, "again", ()):
            sent.append(operation)
            if len(sent) == at + 1:
                if applied:
                    await call(operation)
                raise OutcomeUnknownError("the connection broke")
        return await call(operation)

    monkeypatch.setattr(backend, "call", broken)


@pytest.mark.slow
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_several_after_an_unknown_outcome_run_again_once(
    sched: Scheduler, monkeypatch: pytest.MonkeyPatch, at: int, applied: bool
) -> None:
    monkeypatch.setattr(rerun, "AGAIN_MAX", 2)
    it = Import(sched, rows=6)
    async with sched.worker():
        await it.over()
    names = ["load-2", "load-5", "load", "send"]
    versions = [(await (await it.flow.job(name)).record()).version for name in names]
    lose_answer(monkeypatch, sched, at, applied=applied)
    with pytest.raises(OutcomeUnknownError):
        await it.flow.rerun(*names, version=versions)
    async with sched.worker():
        await until(it.is_over)
    await it.flow.rerun(*names, version=versions)
    async with sched.worker():
        await it.over()
    assert [it.ran[f"load {row}"] for row in range(6)] == [2, 2, 1, 1, 2, 1]
    # The sum runs with what there is, and again once the rest has come.
    assert it.ran["sum"] in {2, 3}
    assert await it.flow.rerun(*names, version=versions) == 0


async def test_of_two_callers_at_once_each_job_runs_again_once(sched: Scheduler) -> None:
    it = Import(sched, rows=10)
    async with sched.worker():
        await it.over()
    counts = await asyncio.gather(*[it.flow.rerun("check") for _ in range(2)])
    assert sum(counts) == 13
    async with sched.worker():
        await it.over()
    assert set(it.ran.values()) == {2}


@pytest.mark.slow
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", [0, 1, 3])
async def test_repeated_rerun_after_an_unknown_outcome_runs_jobs_once(
    sched: Scheduler, monkeypatch: pytest.MonkeyPatch, at: int, applied: bool
) -> None:
    monkeypatch.setattr(rerun, "AGAIN_MAX", 2)
    it = Import(sched, rows=6)
    async with sched.worker():
        await it.over()
    version = (await (await it.flow.job("check")).record()).version
    lose_answer(monkeypatch, sched, at, applied=applied)
    with pytest.raises(OutcomeUnknownError):
        await it.flow.rerun("check", version=version)
    # Some of it may have run by the time that the caller asks again.
    async with sched.worker():
        await until(it.is_over)
    left = 9 - 2 * (at + applied)
    assert await it.flow.rerun("check", version=version) == max(left, 0)
    async with sched.worker():
        await it.over()
    assert set(it.ran.values()) == {2}
    assert await it.flow.rerun("check", version=version) == 0
    assert set(it.ran.values()) == {2}


@pytest.mark.slow
async def test_a_flow_of_any_size_runs_again_in_order(sched: Scheduler) -> None:
    it = Import(sched, rows=250)
    async with sched.worker(concurrency=50):
        await it.over()
        it.factor = 2
        assert await it.flow.rerun("check") == 253
        assert await it.flow.result(timeout=60) == {"send": 249 * 250}
    assert set(it.ran.values()) == {2}


@pytest.mark.slow
@pytest.mark.heavy
async def test_a_wide_fan_in_runs_again(sched: Scheduler) -> None:
    it = Import(sched, rows=1_300)
    async with sched.worker(concurrency=100):
        await it.over()
        assert await it.flow.rerun("sum") == 2
        assert await it.flow.result(timeout=60) == {"send": 1_299 * 650}
        assert (await it.flow.rerun("load-7"), await it.flow.result(timeout=60)) == (3, {"send": 1_299 * 650})
    assert (it.ran["sum"], it.ran["load 6"]) == (3, 2)


async def test_a_result_that_a_job_outside_counts_on_stays(sched: Scheduler) -> None:
    it = Import(sched)
    async with sched.worker():
        await it.over()
    stranger = await it.check.using(after=[await it.flow.job("check")]).enqueue()
    with pytest.raises(InvalidJobError, match="job 'check' cannot run again for 'check': an unfinished job outside"):
        await it.flow.rerun("check")
    assert (await it.flow.stats()).unfinished == 0
    await stranger.cancel()
    assert await it.flow.rerun("check") == 6


async def test_records_that_change_all_the_time_are_told(sched: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Import(sched)
    async with sched.worker():
        await it.over()
    backend: Any = sched.backend
    call, sent = backend.call, []

    async def late(operation: Any) -> Any:
        if getattr(operation, "again", ()):
            sent.append(operation)
            operation = attrs.evolve(operation, again=(1,) * len(operation.ids))
        return await call(operation)

    monkeypatch.setattr(backend, "call", late)
    with pytest.raises(StaleRecordError):
        await it.flow.rerun("send")
    assert len(sent) == rerun.TRIES_MAX
    assert it.ran["send"] == 1


@pytest.mark.parametrize(
    "options, error, named",
    [
        ({"job": "nobody"}, JobNotFoundError, "nobody"),
        ({"job": 5}, InvalidJobTypeError, "job must be"),
        ({"job": ""}, InvalidJobError, "job"),
        ({"job": "send", "downstream": "yes"}, InvalidJobTypeError, "downstream"),
        ({"job": "send", "version": "1"}, InvalidJobTypeError, "version"),
        ({"job": "send", "version": 0}, InvalidJobError, "version"),
        ({"job": "send", "version": (1, 2)}, InvalidJobError, "version: 2 for 1 jobs; give one for each"),
        ({"job": ["send", "sum"]}, InvalidJobTypeError, "job must be"),
        ({"job": "send", "steps": "all"}, InvalidJobError, "steps"),
    ],
)
async def test_malformed_rerun_is_refused_by_name(options: Any, error: type[Exception], named: str) -> None:
    sched = Scheduler()
    it = Import(sched)
    with pytest.raises(error, match=named):
        await it.flow.rerun(**options)
    with pytest.raises(InvalidJobError, match=r"jobs: 1001 in one call, limit 1000"):
        await it.flow.rerun(*["send"] * 1_001)
