"""Helpers of flow tests: a scheduler with a few tasks, and the operations of a submission."""

from __future__ import annotations

from typing import Any

from queuehint import (
    JobHandle,
    JobState,
    Node,
    Scheduler,
)
from tests.schedulers import memory, scheduler


class Shop:
    """A scheduler with a few tasks, and what they did in order."""

    def __init__(self, **options: Any) -> None:
        self.sched, self.clock = scheduler(**options)
        self.did: list[Any] = []
        did = self.did

        @self.sched.job(max_attempts=1)
        async def step(what: Any = None, *inputs: Any) -> Any:
            did.append(what)
            return {"what": what, "inputs": list(inputs)}

        @self.sched.job(max_attempts=1)
        async def fail(why: str = "no") -> None:
            did.append(why)
            raise ValueError(why)

        @self.sched.job
        async def add_up(numbers: list[int]) -> int:
            return sum(numbers)

        @self.sched.job
        def number(n: int) -> int:
            return n

        self.step: Any = step
        self.fail: Any = fail
        self.add_up: Any = add_up
        self.number: Any = number
        self.asked = asked_of(self.sched)

    def edges(self, *nodes: Node[Any]) -> list[list[str]]:
        """Return what each node's job depends on, by the names in the flow."""
        called = {node.id: node.name for node in nodes[0].registry.nodes}
        records = [node.record_sync() for node in nodes]
        return [[called.get(edge.id, edge.id) for edge in record.spec.depends_on] for record in records]


def asked_of(sched: Scheduler) -> list[Any]:
    """Return a list to which each operation is added that a scheduler on memory is asked."""
    asked: list[Any] = []
    backend: Any = memory(sched)
    call_sync = backend.call_sync

    def noting(operation: Any) -> Any:
        asked.append(operation)
        return call_sync(operation)

    backend.call_sync = noting
    return asked


async def _is(handle: JobHandle[Any], state: JobState) -> bool:
    return await handle.state() is state
