"""A flow that is submitted a second time, on all stores."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from queuehint import DuplicateFlowError, DuplicateJobError, Flow, Job, Scheduler
from queuehint.backends import sending
from queuehint.client import arrangement


async def test_repeated_flow_id_returns_the_flow_or_is_refused(url: str) -> None:
    sched = Scheduler(url)

    @sched.job
    async def load(n: int) -> int:
        return n

    @sched.job
    async def total(ns: list[int]) -> int:
        return sum(ns)

    async def submit(*numbers: int, last: int = 0) -> list[bool]:
        async with sched.flow("import-7") as flow:
            rows = [flow.add(load, n) for n in numbers]
            flow.add(total, [*[row.out for row in rows], last])
        return [bool(node.created) for node in flow.registry.nodes]

    assert await submit(1, 2) == [True] * 3
    assert await submit(1, 2) == [False] * 3
    for other in ((1, 2, 3), (1,), (1, 3)):
        with pytest.raises((DuplicateFlowError, DuplicateJobError)):
            await submit(*other)
    async with sched.worker():
        assert await sched.get_flow("import-7").result(timeout=60) == {"total": 3}
    assert await submit(1, 2) == [False] * 3
    assert (await sched.get_flow("import-7").stats()).total == 3
    async with sched.flow() as one, sched.flow() as two:
        assert one.add(load, 1).spec.id != two.add(load, 1).spec.id
    await sched.close()


CALLERS, ROWS = 3, 20


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have flows go in parts of two jobs, which wait for others for a few ms."""
    monkeypatch.setattr(arrangement, "PART_JOBS", 2)
    monkeypatch.setattr(arrangement, "submissions", partial(arrangement.submissions, jobs_max=2))
    monkeypatch.setattr(sending, "TURN_PAUSE_S", 0.001)


def add_rows(step: Job[..., int], flow: Flow) -> None:
    """Add a flow of rows, each of two steps, and a summary."""
    loads = []
    for n in range(ROWS):
        valid = flow.add(step.using(name=f"validate-{n}"), n)
        loads.append(flow.add(step.using(name=f"load-{n}"), valid.out))
    flow.add(step.using(name="summary", after=loads), ROWS)


def check_one(sched: Scheduler, flows: list[Flow]) -> None:
    """Assert that flows are one, whole, of which each job is new to one caller."""
    assert [len(flow.registry.nodes) for flow in flows] == [2 * ROWS + 1] * CALLERS
    assert sched.get_flow("import-1").stats_sync().total == 2 * ROWS + 1
    assert sum([bool(node.created) for flow in flows for node in flow.registry.nodes]) == 2 * ROWS + 1
    sched.close_sync()


@pytest.mark.usefixtures("small_parts")
async def test_flow_of_callers_on_one_loop_is_one_flow(url: str) -> None:
    sched = Scheduler(url)
    step = sched.job(name="step")(whole)
    flows = []

    async def submit() -> None:
        async with sched.flow("import-1") as flow:
            flows.append(flow)
            add_rows(step, flow)

    await asyncio.gather(*[submit() for _ in range(CALLERS)])
    await asyncio.to_thread(check_one, sched, flows)


@pytest.mark.usefixtures("small_parts")
def test_flow_of_callers_in_threads_is_one_flow(url: str) -> None:
    sched = Scheduler(url)
    step = sched.job(name="step")(whole)
    flows, start = [], threading.Barrier(CALLERS)

    def submit() -> None:
        with sched.flow_sync("import-1") as flow:
            add_rows(step, flow)
            start.wait(30)
        flows.append(flow)

    threads = [threading.Thread(target=submit) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    check_one(sched, flows)


def whole(n: int) -> int:
    return n
