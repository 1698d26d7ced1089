"""Flows, data passed between jobs, children and shared values by the scheduler API, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuehint import (
    Children,
    DuplicateFlowError,
    DuplicateJobError,
    FlowNotFoundError,
    FlowState,
    JobContext,
    JobFailedError,
    JobState,
    PathClosedError,
    QueueFullError,
    ReasonKind,
    Scheduler,
    TemplateError,
    UnknownDependencyError,
    template,
)
from queuehint.operations import Tick
from tests.servers import new_namespace, shared_server
from tests.support import LIMIT_S

pytestmark = pytest.mark.redis


@asynccontextmanager
async def opened() -> AsyncIterator[Scheduler]:
    async with Scheduler(f"{shared_server().url}?namespace={new_namespace('flow')}") as sched:
        yield sched
        edges = await sched.edges()
        assert edges.orphans == ()


async def test_an_import_fans_out_and_in_with_its_data() -> None:
    async with opened() as sched:

        @sched.job(queue_hint=["{import_id}"])
        async def validate(import_id: str) -> dict[str, Any]:
            return {"owner": {"name": "ann"}, "rows": [10, 20, 30], "at": "2020-01-02"}

        @sched.job(queue_hint=["{import_id}", "{row}"])
        def load(import_id: str, row: int, owner: str, amount: int) -> int:
            assert owner == "for ann"
            return amount + row

        @sched.job(queue_hint=["{import_id}"])
        async def summarise(ctx: JobContext, import_id: str, counts: list[int], day: dt.date) -> str:
            return f"{sum(counts)} on {day:%d.%m.}; {sorted(ctx.results)}"

        async with sched.flow() as flow:
            head = flow.add(validate, "42")
            out: Any = head.out
            rows = [
                flow.add(load, "42", row, template("for {{validate.owner.name}}"), out["rows"][row]) for row in range(3)
            ]
            end = flow.add(summarise, "42", [row.out for row in rows], out["at"])
        assert await flow.state() is FlowState.RUNNING
        assert (await end.why()).kind is ReasonKind.DEPENDENCY
        async with sched.worker():
            assert await flow.result(LIMIT_S) == {"summarise": "63 on 02.01.; ['load', 'load-2', 'load-3', 'validate']"}
        assert await flow.state() is FlowState.FINISHED
        assert [record.spec.name async for record in flow.jobs()] == [
            "validate",
            "load",
            "load-2",
            "load-3",
            "summarise",
        ]
        text = (await flow.graph()).mermaid()
        assert text.count("==>") == 7


@pytest.mark.slow
async def test_a_large_flow_takes_effect_at_once() -> None:
    async with opened() as sched:

        @sched.job
        async def step(n: int) -> int:
            return n

        async with sched.flow() as building:
            last = building.add(step, 0)
            for n in range(1, 2_500):
                last = building.add(step.using(after=[last]), n)
        stats = await sched.stats()
        assert stats.states[JobState.DEFERRED] == 2_499
        assert stats.states[JobState.QUEUED] == 1
        await building.cancel("enough")
        assert (await building.stats()).states[JobState.CANCELED] == 2_500
        assert await building.state() is FlowState.CANCELED
        with pytest.raises(FlowNotFoundError):
            await sched.get_flow("nowhere").state()


async def test_dependents_of_a_failed_job_run_after_its_redrive() -> None:
    async with opened() as sched:
        broken = [True]

        @sched.job(max_attempts=1)
        async def shaky() -> int:
            if broken:
                raise ValueError("broken")
            return 5

        @sched.job
        async def double(n: int) -> int:
            return 2 * n

        async with sched.flow() as flow:
            head = flow.add(shaky)
            waits = flow.add(double, head.out)
            stops = flow.add(double.using(on_dependency_failure="cancel", name="stops"), head.out)
            more = flow.add(double.using(on_dependency_failure="cancel", name="more"), stops.out)
        async with sched.worker():
            with pytest.raises(JobFailedError):
                await flow.result(LIMIT_S)
            reason = await waits.why()
            assert (reason.kind, reason.jobs, reason.stuck) == (ReasonKind.DEAD_DEPENDENCY, (head.id,), True)
            assert (await sched.stats()).stuck["dead_dependency"] == 1
            assert await more.state() is JobState.CANCELED
            broken.clear()
            await sched.dead.redrive([head.id], downstream=True)
            assert await flow.result(LIMIT_S) == {"double": 10, "more": 20}


@pytest.mark.slow
async def test_a_parent_is_over_when_its_children_are() -> None:
    async with opened() as sched:
        tries: list[int] = []

        @sched.job(queue_hint=["{doc}", "{n}"])
        async def child(doc: str, n: int) -> int:
            return n

        @sched.job(queue_hint=["{doc}"])
        async def parent(ctx: JobContext, doc: str) -> Children | str:
            tries.append(ctx.attempt)
            for n in range(3):
                await ctx.enqueue(child, doc, n)
            if len(tries) == 1:
                raise ValueError("once more")
            return Children(result="all there")

        @sched.job
        async def orphaned(ctx: JobContext) -> Children:
            return Children("nobody")

        handle = await parent.enqueue("d")
        async with sched.worker():
            assert await handle.result(LIMIT_S) == "all there"
            with pytest.raises(JobFailedError, match="nobody"):
                await (await orphaned.enqueue()).result(LIMIT_S)
        stats = await sched.stats()
        assert stats.states[JobState.FINISHED] == 4
        assert tries == [1, 2]


async def test_values_are_shared_for_a_time() -> None:
    async with opened() as sched:
        assert await sched.xcom.pull("k") is None
        assert await sched.xcom.push("k", {"a": [1]}) is False
        assert await sched.xcom.push("k", {"a": [2]}, namespace="other", ttl=0.001) is False
        assert await sched.xcom.push("k", {"a": [3]}) is True
        assert await sched.xcom.pull("k") == {"a": [3]}
        await asyncio.sleep(0.01)
        assert await sched.xcom.pull("k", namespace="other", default=1) == 1
        await sched.backend.call(Tick())


async def test_malformed_flow_is_refused_and_enqueues_nothing() -> None:
    async with opened() as sched:

        @sched.job
        async def step(n: int = 0) -> None: ...

        with pytest.raises(UnknownDependencyError):
            await step.using(after=["nobody"]).enqueue()
        with pytest.raises(TemplateError):
            await step.enqueue(template("{{nobody.x}}"))
        with pytest.raises(ZeroDivisionError):
            async with sched.flow() as flow:
                flow.add(step)
                raise ZeroDivisionError
        assert sum((await sched.stats()).states.values()) == 0


def test_sync_run_executes_tasks_with_their_dependencies() -> None:
    sched = Scheduler(f"{shared_server().url}?namespace={new_namespace('flow')}")

    @sched.job
    def extract(day: str) -> list[int]:
        return [len(day)]

    @sched.job(depends_on=["extract"])
    def transform(extract: list[int]) -> int:
        return extract[0] * 2

    @sched.job(depends_on=["transform", "extract"])
    def load(transform: int, extract: list[int]) -> list[int]:
        return [transform, *extract]

    flow = sched.run_sync(load, day="monday")
    with sched.worker_sync(4):
        assert flow.result_sync(LIMIT_S) == {"load": [12, 6]}
    with sched.flow_sync() as other:
        first = other.add(extract, "friday")
        other.add(transform.using(after=[first]), first.out)
    with sched.worker_sync(4):
        assert other.result_sync(LIMIT_S) == {"transform": 12}
    sched.close_sync()


@pytest.mark.parametrize("refused", ["full", "closed", "taken", "unknown"])
async def test_a_flow_in_parts_that_is_refused_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr("queuehint.client.arrangement.PART_JOBS", 2)
    async with opened() as sched:

        @sched.job(queue_hint=["{place}", "{number}"])
        async def step(place: str, number: int) -> int:
            return number

        await step.using(id="taken").enqueue("other", 0)
        await sched.close_path(["closed"])
        await sched.limit(["doc"], max_pending=4)
        kinds: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
            "full": (QueueFullError, "doc", {}),
            "closed": (PathClosedError, "closed", {}),
            "taken": (DuplicateJobError, "doc", {"id": "taken"}),
            "unknown": (UnknownDependencyError, "doc", {"after": ["nobody"]}),
        }
        error, place, options = kinds[refused]
        for _ in range(2):
            with pytest.raises(error):
                async with sched.flow("mine") as flow:
                    for number in range(4):
                        flow.add(step, "doc", number)
                    flow.add(step.using(**options), place, 4)
            with pytest.raises(FlowNotFoundError):
                await sched.get_flow("mine").state()
            stats = await sched.stats()
            assert (stats.unfinished, stats.leftovers) == (1, 0)
        async with sched.flow("mine") as flow:
            for number in range(4):
                flow.add(step, "doc", number)
        assert (await flow.stats()).unfinished == 4
        async with sched.worker(4):
            await flow.result()


@pytest.mark.parametrize("part_jobs", [2, 200])
async def test_repeated_flow_is_the_same_and_a_subset_is_refused(
    monkeypatch: pytest.MonkeyPatch, part_jobs: int
) -> None:
    monkeypatch.setattr("queuehint.client.arrangement.PART_JOBS", part_jobs)
    async with opened() as sched:

        @sched.job
        async def step(number: int) -> int:
            return number

        for count, error in ((5, None), (5, None), (4, DuplicateFlowError), (6, DuplicateFlowError), (5, None)):
            with pytest.raises(error) if error else contextlib.nullcontext():
                async with sched.flow("mine") as flow:
                    for number in range(count):
                        flow.add(step.using(id=f"s{number}"), number)
            stats = await sched.stats()
            assert (stats.unfinished, stats.leftovers) == (5, 0)
