"""Requests of many concurrent clients, replayed into the engine: it gives the same replies."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from queuehint import Children, InvalidTransitionError, JobContext, JobState, Retry, Scheduler
from tests.audit import audit_key, begin_audit, check_audit
from tests.servers import Server


async def test_a_busy_namespace_gives_the_answers_of_the_engine(redis_server: Server, namespace: str) -> None:
    client = redis_server.client()
    begin_audit(namespace)

    sched = Scheduler(redis_server.url, namespace=namespace)
    runs = 0

    @sched.job(queue_hint=["{doc}", "{part}"], max_attempts=3)
    async def edit(doc: str, part: str, fails: bool) -> int | Retry:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0)
        return Retry(after=0.01) if fails and runs % 3 else runs

    @sched.job(queue_hint=["{doc}"], priority=5)
    async def snapshot(doc: str) -> str:
        return doc

    async with sched.worker(concurrency=8), sched.worker(concurrency=8):
        for number in range(40):
            doc = f"doc{number % 5}"
            await edit.enqueue_many([(doc, f"s{part}", part == number % 3) for part in range(3)])
            handle = await snapshot.enqueue(doc)
            if number % 7 == 0:
                with contextlib.suppress(InvalidTransitionError):  # it may be over by now
                    await handle.cancel()
            if number % 10 == 0:
                await sched.pause([doc])
                await sched.resume([doc])
        await sched.drain(timeout=30)
    await sched.close()
    assert check_audit(client, namespace) > 50
    client.delete(audit_key(namespace))


@pytest.mark.slow
async def test_audit_replays_flows_and_children(redis_server: Server, namespace: str) -> None:
    client = redis_server.client()
    begin_audit(namespace)

    sched = Scheduler(redis_server.url, namespace=namespace)

    @sched.job(queue_hint=["{doc}"], max_attempts=1)
    async def part(doc: str, inputs: list[int]) -> int:
        if doc == "broken":
            raise ValueError(doc)
        return sum(inputs) + 1

    @sched.job
    async def parent(ctx: JobContext, doc: str) -> Children | int:
        for number in range(2):
            await ctx.enqueue(part, f"{doc}{number}", [])
        return Children(result=7)

    async with sched.worker(concurrency=8), sched.worker(concurrency=8):
        flows = []
        for number in range(10):
            async with sched.flow() as flow:
                heads = [flow.add(part, f"d{number % 3}", []) for _ in range(3)]
                broken = flow.add(part, "broken" if number % 4 == 0 else "d", [heads[0].out])
                flow.add(part.using(after=[broken], when="failure"), "repair", [])
                flow.add(part.using(on_dependency_failure="cancel"), "end", [broken.out, *[head.out for head in heads]])
            flows.append(flow)
            await sched.xcom.push("k", number, ttl=0.01)
            await parent.enqueue(f"p{number}")
        async with sched.flow() as large:
            last = large.add(part, "large", [])
            for _ in range(1_050):
                last = large.add(part.using(after=[last]), "large", [])
        await large.cancel()
        await flows[1].result(30)
        async for record in flows[0].jobs():
            if record.state is JobState.FAILED:
                await sched.dead.redrive([record.id], downstream=True)
        await sched.drain(timeout=30)
    await sched.close()
    assert check_audit(client, namespace) > 50
    client.delete(audit_key(namespace))


def test_an_audit_that_was_changed_is_noticed(redis_server: Server, namespace: str) -> None:
    client = redis_server.client()
    begin_audit(namespace)
    sched = Scheduler(redis_server.url, namespace=namespace)

    @sched.job(queue_hint=["{doc}"])
    def edit(doc: str) -> None: ...

    edit.enqueue_sync("a")
    edit.enqueue_sync("b")
    sched.close_sync()
    key = audit_key(namespace)
    words: Any = client.lrange(key, 0, -1)
    # The first reply ends with the number of its job and the letter of its state.
    at = words.index(b"$Q")
    assert words[at - 1] == b":1"
    client.lset(key, at - 1, ":9")
    with pytest.raises(AssertionError, match="operation 0"):
        check_audit(client, namespace)
