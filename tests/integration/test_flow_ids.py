"""A flow that is submitted a second time, on all stores."""

from __future__ import annotations

import pytest

from queuehint import DuplicateFlowError, DuplicateJobError, Scheduler


async def test_submitting_a_flow_again_returns_it_and_a_different_flow_with_its_id_is_refused(url: str) -> None:
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
