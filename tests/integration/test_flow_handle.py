"""Handles of submitted flows: state, results, cancellation, retries."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest

from queuehint import (
    Children,
    FlowHandle,
    FlowNotFoundError,
    FlowState,
    InvalidJobError,
    InvalidJobTypeError,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    JobState,
    Progress,
    ResultTimeoutError,
    WouldDeadlockError,
)
from queuehint import operations as op
from queuehint.client.flows import children as children_of_flows
from queuehint.client.flows.children import Children as Search
from queuehint.values.record import JobRecord
from tests.flow_shop import Shop, _is
from tests.schedulers import Gate, turns, until

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- state and results -----------------------------------------------------------------------------------------------


async def test_result_of_a_flow_collects_its_final_jobs() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.number, 1)
        flow.add(shop.add_up.using(name="a"), [head.out])
        flow.flow("g").add(shop.add_up.using(name="b"), [head.out, 1])
    stranger = await shop.step.using(after=[flow]).enqueue("later")
    async with shop.sched.worker():
        assert await flow.result() == {"a": 1, "g.b": 2}
        assert await shop.sched.get_flow(flow.id).result(timeout=30) == {"a": 1, "g.b": 2}
        await stranger.result()


async def test_a_result_is_waited_for_without_asking_again_and_again() -> None:
    shop = Shop()
    gate = Gate()

    @shop.sched.job
    async def slow() -> int:
        await gate.wait()
        return 1

    async with shop.sched.flow() as flow:
        flow.add(slow)
    async with shop.sched.worker():
        waits = [asyncio.create_task(handle.result()) for handle in (flow, shop.sched.get_flow(flow.id))]
        await gate.reached()
        await asyncio.sleep(0.1)
        asked = len([step for step in shop.asked if not isinstance(step, op.Exchange)])
        assert asked < 60
        gate.open()
        assert await asyncio.gather(*waits) == [{"slow": 1}, {"slow": 1}]


async def test_unnamed_job_is_named_by_its_id() -> None:
    shop = Shop()
    await shop.sched.submit(
        [JobSpec(id="one", task="number", arguments=b'{"n": 1}', flow="f"), JobSpec(id="x", task="step")]
    )
    async with shop.sched.worker():
        flow = shop.sched.get_flow("f")
        assert await flow.result() == {"one": 1}
        assert (await flow.stats()).total == 1


async def test_failed_job_is_raised_once_the_flow_is_stuck() -> None:
    shop = Shop()
    gate = Gate()

    @shop.sched.job
    async def slow() -> int:
        await gate.wait()
        return 1

    async with shop.sched.flow() as flow:
        bad = flow.add(shop.fail, "broken")
        flow.add(shop.step.using(after=[bad]))
        flow.add(slow)
    async with shop.sched.worker():
        waiting = asyncio.create_task(flow.result())
        await until(lambda: _is(bad, FAILED))
        await gate.reached()
        await turns()
        assert not waiting.done()
        assert await flow.state() is FlowState.RUNNING
        assert not (await flow.stats()).stuck, "one of its jobs runs"
        gate.open()
        with pytest.raises(JobFailedError, match="broken") as caught:
            await waiting
        assert caught.value.job_id == bad.id
    assert await flow.state() == "STUCK"
    assert await flow.progress() == Progress(2, 3)
    assert (await flow.stats()).held_by == (bad.id,)
    await flow.cancel("enough")
    assert not (await flow.stats()).stuck
    assert await flow.state() == "FAILED"


async def test_a_canceled_job_is_raised_unless_one_has_failed() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        first = flow.add(shop.step)
        last = flow.add(shop.fail.using(on_dependency_failure="cancel"))
    await first.cancel("unwanted")
    async with shop.sched.worker():
        await until(lambda: _is(last, FAILED))
        with pytest.raises(JobFailedError):
            await flow.result()
    assert await flow.state() == "FAILED"
    async with shop.sched.flow() as other:
        other.add(shop.step)
    await other.cancel("unwanted")
    assert await other.state() == "CANCELED"
    with pytest.raises(JobCanceledError, match="unwanted"):
        await other.result()


async def test_a_redriven_job_leads_to_the_result_after_all() -> None:
    shop = Shop()
    broken = [True]

    @shop.sched.job(max_attempts=1)
    async def shaky() -> int:
        if broken:
            raise ValueError("broken")
        return 5

    async with shop.sched.flow() as flow:
        head = flow.add(shaky)
        end = flow.add(shop.step.using(after=[head], on_dependency_failure="cancel"), head.out)
    async with shop.sched.worker():
        with pytest.raises(JobFailedError):
            await flow.result()
        assert await end.state() is CANCELED
        broken.clear()
        await shop.sched.dead.redrive([head.id], downstream=True)
        assert (await flow.result())["step"]["what"] == 5
    assert [step.downstream for step in shop.asked if isinstance(step, op.Redrive)] == [True]
    with pytest.raises(InvalidJobTypeError, match="downstream"):
        await shop.sched.dead.redrive([head.id], downstream=1)  # type: ignore[call-overload]


async def test_a_flow_that_is_not_over_in_time_goes_on() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.step)
        end = flow.add(shop.step.using(after=[head]))
    for handle in (flow, shop.sched.get_flow(flow.id)):
        with pytest.raises(ResultTimeoutError) as caught:
            await handle.result(0.05)
        assert caught.value.job_id == end.id
        with pytest.raises(ResultTimeoutError):
            handle.result_sync(0)
        with pytest.raises(InvalidJobError, match="timeout"):
            await handle.result(-1)
    assert (await flow.stats()).unfinished == 2


async def test_early_canceled_end_does_not_end_the_wait() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.step)
        end = flow.add(shop.step.using(after=[head]))
    await end.cancel()
    with pytest.raises(ResultTimeoutError, match=flow.id):
        await flow.result(0.05)
    with pytest.raises(ResultTimeoutError, match=flow.id):
        flow.result_sync(0.05)
    async with shop.sched.worker():
        with pytest.raises(JobCanceledError):
            await flow.result()


async def test_a_handler_never_waits_for_a_flow() -> None:
    shop = Shop()

    @shop.sched.job(max_attempts=1)
    async def impatient(which: str) -> Any:
        return await shop.sched.get_flow(which).result()

    async with shop.sched.flow() as over:
        over.add(shop.number, 1)
    async with shop.sched.worker():
        await over.result()
        assert await (await impatient.enqueue(over.id)).result() == {"number": 1}
        async with shop.sched.flow() as flow:
            flow.add(shop.number.using(pool="elsewhere"), 1)
        with pytest.raises(JobFailedError, match=r"flow\.result\(\) inside a handler"):
            await (await impatient.enqueue(flow.id)).result()
        with pytest.raises(WouldDeadlockError, match="on the thread of the workers' loop"):
            flow.result_sync()


@pytest.mark.slow
async def test_canceling_a_flow_cancels_all_of_it() -> None:
    shop = Shop()
    gate = Gate()

    @shop.sched.job
    async def slow() -> int:
        await gate.wait()
        return 1

    async with shop.sched.flow() as flow:
        running = flow.add(slow)
        for _ in range(2500):
            flow.add(shop.step.using(after=[running]))
    other = await shop.step.enqueue("other")
    async with shop.sched.worker():
        await gate.reached()
        await flow.cancel("stop")
        states = (await flow.stats()).states
        assert states[DEFERRED] == states[QUEUED] == 0
        gate.open()
        with pytest.raises(JobCanceledError, match="stop"):
            await flow.result()
        await other.result()
    assert len([step for step in shop.asked if isinstance(step, op.CancelFlow)]) == 1
    with pytest.raises(InvalidJobError, match="reason"):
        await flow.cancel("")


async def test_a_flow_nobody_knows_is_told_so() -> None:
    shop = Shop()
    flow = shop.sched.get_flow("nowhere")
    asks: list[Callable[[], Awaitable[Any]]] = [
        flow.state,
        flow.progress,
        flow.stats,
        flow.result,
        flow.graph,
        flow.cancel,
        lambda: flow.job("x"),
    ]
    for ask in asks:
        with pytest.raises(FlowNotFoundError, match="nowhere"):
            await ask()
    with pytest.raises(FlowNotFoundError):
        async for _ in flow.jobs():
            pass
    with pytest.raises(FlowNotFoundError):
        next(iter(flow.jobs_sync()))
    assert repr(flow) == "FlowHandle('nowhere')"


async def test_a_flow_that_has_expired_is_unknown() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        flow.add(shop.number, 1)
    async with shop.sched.worker():
        await flow.result()
        shop.clock.advance(seconds=3 * 86_400)
        await shop.step.enqueue("later")
        with pytest.raises(FlowNotFoundError):
            await flow.result()


async def test_the_jobs_of_a_flow_come_in_pages_in_order() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        for n in range(450):
            flow.add(shop.number.using(name=f"n{n}"), n)
    by_id = shop.sched.get_flow(flow.id)
    assert [record.spec.name async for record in by_id.jobs()] == [f"n{n}" for n in range(450)]
    assert (await by_id.job("n449")).id == flow["n449"].id
    with pytest.raises(JobNotFoundError):
        await by_id.job("n450")
    with pytest.raises(InvalidJobError):
        await by_id.job("a b")
    async with shop.sched.worker():
        results = await flow.result()
        assert results == await by_id.result() == {f"n{n}": n for n in range(450)}
        assert list(results) == [f"n{n}" for n in range(450)]


async def family(shop: Shop) -> FlowHandle:
    """Run a flow whose one job makes three children, the first of which makes one of its own."""

    @shop.sched.job
    async def leaf() -> None: ...

    @shop.sched.job
    async def middle(ctx: JobContext, number: int) -> None:
        if number == 0:
            await ctx.enqueue(leaf.using(id="leaf"))

    @shop.sched.job
    async def top(ctx: JobContext) -> Children:
        for number in range(3):
            await ctx.enqueue(middle.using(id=f"m{number}"), number)
        return Children()

    async with shop.sched.flow("f") as flow:
        flow.add(top.using(id="top"))
    async with shop.sched.worker():
        await shop.sched.drain(timeout=60)
    return shop.sched.get_flow(flow.id)


async def test_graph_of_a_flow_has_children_and_grandchildren() -> None:
    shop = Shop()
    flow = await family(shop)
    graph = await flow.graph()
    assert [node.id for node in graph.nodes] == ["top", "m0", "m1", "m2", "leaf"]
    assert graph.is_whole
    assert {(edge.source, edge.target) for edge in graph.edges if edge.child} == {
        *[("top", f"m{number}") for number in range(3)], ("m0", "leaf"),
    }  # fmt: skip


@pytest.mark.parametrize("limit, most", [("PAGES_MAX", 1), ("CHILDREN_MAX", 2)])
async def test_graph_of_many_children_says_that_some_are_left_out(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    flow = await family(Shop())
    monkeypatch.setattr(children_of_flows, limit, most)
    graph = await flow.graph()
    assert (len(graph.nodes), graph.is_whole) == (4, False)


async def test_records_of_a_flow_are_exported_with_children() -> None:
    shop = Shop()
    await family(shop)
    for children, ids in (
        (True, ["top", "m0", "m1", "m2", "leaf"]),
        (False, ["top"]),
    ):
        for is_sync in (True, False):
            out = io.StringIO()
            export = shop.sched.records.export_sync if is_sync else shop.sched.records.export
            count = export(out, flow="f", children=children)
            count = await count if isinstance(count, Awaitable) else count
            assert (count, [json.loads(line)["id"] for line in out.getvalue().splitlines()]) == (len(ids), ids)


async def test_children_are_exported_of_a_flow_alone() -> None:
    records = Shop().sched.records
    wrong: list[dict[str, Any]] = [{}, {"flow": "f", "user": "ann"}, {"parent": "top"}]
    for part in wrong:
        with pytest.raises(InvalidJobError, match="children requires flow, and no other condition"):
            await records.export(io.StringIO(), children=True, **part)
    with pytest.raises(InvalidJobTypeError, match="children"):
        records.export_sync(io.StringIO(), children=1, flow="f")  # type: ignore[arg-type]


async def begun() -> JobRecord:
    """Return the record of a job `a` that has begun."""
    shop = Shop()
    record = await shop.sched.get((await shop.step.using(id="a").enqueue()).id)
    assert record is not None
    search = Search("f")
    search.follow([record])
    assert search.is_over, "it has not begun"
    return attrs.evolve(record, attempts=1)


async def found_in(*pages: op.Page) -> tuple[list[JobRecord], list[op.Position | None]]:
    """Search for the children of the job `a`, whose pages are these. Return those found and the positions asked for."""
    search = Search("f")
    search.follow([await begun()])
    found: list[JobRecord] = []
    asked: list[op.Position | None] = []
    for page in pages:
        steps = search.page()
        question: Any = next(steps)
        assert question.filter.parent == "a"
        asked.append(question.after)
        with pytest.raises(StopIteration) as end:
            steps.send(page)
        found += end.value.value
    assert search.is_over
    return found, asked


async def test_children_of_reused_ids_are_exported_once() -> None:
    again = await begun()
    inner = attrs.evolve(again, id="b", spec=attrs.evolve(again.spec, flow="f"))
    found, _ = await found_in(op.Page((again, inner), None), op.Page((again,), None))
    assert found == [again]


async def test_all_pages_of_children_are_read() -> None:
    assert await found_in(op.Page((), ("", 7)), op.Page((), None)) == ([], [None, ("", 7)])


async def test_a_flow_is_drawn_with_its_states() -> None:
    shop = Shop()
    outside = await shop.step.using(id="outside").enqueue()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.number, 1)
        flow.add(shop.add_up.using(after=[outside]), [head.out])
    graph = await flow.graph()
    assert [(node.name, node.state) for node in graph.nodes] == [
        ("number", QUEUED),
        ("add_up", DEFERRED),
        ("outside", None),
    ]
    assert "n0 ==> n1" in graph.mermaid()
    assert 'label="number\\nQUEUED"' in graph.dot()
