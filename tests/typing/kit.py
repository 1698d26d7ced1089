"""Types of the testing kit as type checkers infer them, like `calls` for the API. Nothing here runs."""

from __future__ import annotations

from typing import assert_type

from queuehint import Backend, FakeClock, JobRecord, JobSpec, Scheduler
from queuehint.backends.base import BackendOptions
from queuehint.backends.memory import MemoryBackend
from queuehint.testing import (
    BackendConformance,
    SerialEquivalence,
    all_enqueued_sync,
    assert_enqueued,
    assert_enqueued_sync,
    check_serial_equivalence,
    contract,
    drain,
    drain_sync,
    on_memory,
    refute_enqueued_sync,
)

sched = Scheduler()


@sched.job(queue_hint=["{doc}"])
def render(doc: str) -> int:
    return len(doc)


class TestMine(BackendConformance):
    def open(self, clock: FakeClock) -> Backend:
        return MemoryBackend(BackendOptions(clock=clock))


class TestPart(contract.Binding, contract.SerialPath):
    def open(self, clock: FakeClock) -> Backend:
        return MemoryBackend(BackendOptions(clock=clock))


async def applications() -> None:
    with on_memory(sched) as clock:
        assert_type(clock, FakeClock)
        assert_type(await drain(sched, within=60), list[JobRecord])
        assert_type(drain_sync(sched, raise_errors=True), list[JobRecord])
        assert_type(await assert_enqueued(sched, render, args=["doc1"], count=1), list[JobRecord])
        assert_enqueued_sync(sched, "render", kwargs={"doc": "doc1"}, hint=["doc1"], user=None, state="QUEUED")
        assert_enqueued_sync(sched, render, users="ann")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
        assert_enqueued_sync(sched, render, hint=5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        refute_enqueued_sync(sched, render, delay=5)
        assert_type(all_enqueued_sync(sched), list[JobRecord])


async def add(account: dict[str, int], amount: int) -> None:
    account["balance"] += amount


def handlers() -> None:
    tried = check_serial_equivalence(
        {"add": add},
        [("add", ["account1"], (5,)), ("add", None, {"amount": 5}), ("add", []), JobSpec(id="a", task="add")],
        lambda: {"balance": 0},
        view=lambda account: account["balance"],
        expected=(KeyError, ValueError),
    )
    assert_type(tried, SerialEquivalence)
    check_serial_equivalence({"add": add}, [render.spec("doc1")], dict)
    check_serial_equivalence({"add": add}, ["add"], dict)  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    check_serial_equivalence({"add": add}, [], {"balance": 0})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
