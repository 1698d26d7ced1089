"""Redrive, discard, cancel and make due the jobs that pass a filter, and those of a flow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import InvalidHintError, InvalidJobError, InvalidJobTypeError, JobNotFoundError, JobState, Scheduler
from queuehint.errors import FlowNotFoundError, InvalidTransitionError
from queuehint.operations import LIST_MAX
from queuehint.testing import drain, drain_sync
from tests.each import for_each
from tests.schedulers import scheduler

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
broken: set[str] = set()


def shop() -> tuple[Scheduler, Any]:
    """Return a scheduler with a task that fails at once while its document is broken, and then ends."""
    sched, _ = scheduler()
    broken.clear()

    @sched.job(queue_hint=["{doc}", "{n}"], max_attempts=1, user="{user}")
    def edit(doc: str, n: int = 0, user: str | None = None) -> str:
        if doc in broken:
            raise ValueError(doc)
        return doc

    return sched, edit


def dead(count: int = 3) -> tuple[Scheduler, Any]:
    """Return a scheduler with so many dead jobs each of `a` for ann, and of `b` for bob and without a user."""
    sched, edit = shop()
    broken.update("ab")
    edit.enqueue_many_sync([("a", n, "ann") for n in range(count)])
    edit.enqueue_many_sync([("b", n, "bob" if n % 2 else None) for n in range(count)])
    drain_sync(sched)
    return sched, edit


def states(sched: Scheduler, **part: Any) -> dict[JobState, int]:
    """Return how many jobs of a part of the namespace are in each state, 0 left out."""
    return {state: count for state, count in sched.records.count_sync(**part).states.items() if count}


def test_dead_jobs_are_paged_by_filter() -> None:
    sched, _ = dead()
    assert [record.path for record in sched.dead.list_sync(path=["a"])] == [("a", "0"), ("a", "1"), ("a", "2")]
    first = sched.dead.list_sync(2, task="edit")
    second = sched.dead.list_sync(task="edit", cursor=first.cursor)
    assert [record.number for record in [*first, *second]] == [1, 2, 3, 4, 5, 6]
    assert second.cursor is None
    assert [record.spec.user for record in sched.dead.list_sync(user="bob")] == ["bob"]
    assert [record.number for record in sched.dead.list_sync(1, after=4)] == [5]


async def test_redrive_by_filter_leaves_other_dead_jobs() -> None:
    sched, _ = dead()
    assert await sched.dead.redrive(path=["b"], user="bob") == 1
    assert states(sched) == {QUEUED: 1, FAILED: 5}
    assert await sched.dead.redrive(user="ann", limit=2) == 2
    assert [record.path for record in await sched.dead.list(user="ann")] == [("a", "2")]
    assert await sched.dead.redrive(all=True) == 3
    assert await sched.dead.redrive(all=True) == await sched.dead.redrive(task="nothing") == 0
    assert states(sched) == {QUEUED: 6}


def test_discard_by_filter_leaves_other_dead_jobs() -> None:
    sched, _ = dead()
    assert sched.dead.discard_sync(path=["a"], limit=1) == 1
    assert states(sched, path=["a"]) == {FAILED: 2, CANCELED: 1}
    assert sched.dead.discard_sync(all=True) == 5
    assert states(sched) == {CANCELED: 6}


@pytest.mark.slow
def test_redrive_of_many_jobs_is_bounded_by_steps_and_limit() -> None:
    count = LIST_MAX + 5
    sched, _ = dead(count)
    asked: list[int] = []
    call = sched.backend.call_sync

    def count_ids(operation: Any) -> Any:
        asked.append(len(getattr(operation, "ids", ())))
        return call(operation)

    sched.backend.call_sync = count_ids  # type: ignore[method-assign]
    assert sched.dead.redrive_sync(path=["a"]) == count
    assert max(asked) <= LIST_MAX
    assert sched.dead.redrive_sync(task="edit", limit=LIST_MAX + 1) == LIST_MAX + 1
    assert states(sched) == {QUEUED: count + LIST_MAX + 1, FAILED: count - LIST_MAX - 1}


async def test_cancel_by_filter_leaves_ended_jobs() -> None:
    sched, edit = dead(2)
    edit.enqueue_many_sync([("c", n, "ann") for n in range(3)])
    edit.using(delay=60).enqueue_sync("c", 9, "ann")
    assert await sched.cancel(user="ann", state="SCHEDULED", reason="late") == 1
    assert await sched.cancel(user="ann", task="edit", limit=1) == 1
    assert await sched.cancel(path=["c"], limit=1) == 1
    assert states(sched, path=["c"]) == {QUEUED: 1, CANCELED: 3}
    edit.enqueue_sync("d")
    assert await sched.cancel(all=True, reason="the end") == 2
    assert states(sched) == {FAILED: 4, CANCELED: 5}
    assert {record.cause for record in sched.records.list_sync(path=["d"])} == {"the end"}


def test_a_path_alone_is_one_sweep() -> None:
    sched, edit = shop()
    edit.enqueue_many_sync([("c", n) for n in range(3)])
    assert sched.cancel_sync(path=["c"]) == 3


def test_handles_go_wherever_ids_go() -> None:
    sched, _ = dead()
    handles = [sched.handle(record.id) for record in sched.dead.list_sync()]
    assert sched.dead.redrive_sync([handles[0], handles[1].id]) == 2
    assert sched.dead.discard_sync(handles[2:4]) == 2
    with pytest.raises(JobNotFoundError):
        sched.dead.redrive_sync([sched.handle("x")])
    records = sched.records
    records.append_log_sync(handles[0], "seen")
    records.amend_sync(handles[0], user="cid")
    assert records.get_sync(handles[0]).spec.user == sched.get_sync(handles[0]).spec.user == "cid"
    assert records.get_sync(handles[0]).logs == ("seen",)
    assert [record.id for record in records.list_by_ids_sync(handles)] == [handle.id for handle in handles]
    records.delete_sync([handles[2]])
    assert len(records.list_by_ids_sync(handles)) == 5
    assert sched.handle(handles[0]).id == handles[0].id


def waiting(count: int = 2) -> tuple[Scheduler, Any]:
    """Return a scheduler with so many jobs each that wait for a time at `a` for ann, and that wait for none at `b`."""
    sched, edit = shop()
    edit.using(delay=600).enqueue_many_sync([("a", n, "ann") for n in range(count)])
    edit.enqueue_many_sync([("b", n, "ann") for n in range(count)])
    return sched, edit


async def test_run_now_by_path_makes_jobs_due_and_counts_them() -> None:
    sched, edit = waiting()
    await edit.using(delay=600).enqueue("c", 1, "ann")
    assert await sched.run_now(["a"]) == 2
    assert await sched.run_now(["a"]) == await sched.run_now(["b"]) == await sched.run_now(["nowhere"]) == 0
    assert states(sched) == {QUEUED: 4, SCHEDULED: 1}
    assert await sched.run_now([], user="bob") == 0
    assert await sched.run_now(user="ann", state="SCHEDULED") == 1
    await drain(sched)
    assert states(sched) == {FINISHED: 5}


async def test_run_now_of_all_jobs_is_bounded_by_its_limit() -> None:
    sched, _ = waiting(LIST_MAX + 5)
    assert await sched.run_now(all=True, limit=LIST_MAX + 1) == LIST_MAX + 1
    assert states(sched, path=["a"]) == {QUEUED: LIST_MAX + 1, SCHEDULED: 4}
    assert await sched.run_now(path=["a"]) == 4


async def test_run_now_ends_a_backoff_and_reports_each_id() -> None:
    sched, edit = waiting(1)
    broken.add("x")
    retried = await edit.using(max_attempts=2, backoff=[600]).enqueue("x")
    after = await edit.using(after=[retried]).enqueue("c")
    drain_sync(sched, within=1)
    record = await retried.record()
    assert (record.state, record.due_ms is not None) == (QUEUED, True)
    broken.clear()
    finished = next(record.id for record in sched.records.list_sync(path=["b"]))
    asked = [retried, finished, after, "nobody", retried.id]
    assert await sched.run_now(ids=asked) == [True, False, False, False, True]
    assert sched.run_now_sync(ids=[retried]) == [False]
    drain_sync(sched)
    assert [await retried.state(), await after.state()] == [FINISHED, FINISHED]


async def test_run_now_of_a_handle_reports_ended_or_unknown_jobs() -> None:
    sched, edit = shop()
    job = await edit.using(delay=600).enqueue("a")
    assert await job.run_now() is True
    assert job.run_now_sync() is False, "it waits for no time any more"
    drain_sync(sched)
    with pytest.raises(InvalidTransitionError, match="FINISHED"):
        await job.run_now()
    with pytest.raises(JobNotFoundError):
        sched.handle("nobody").run_now_sync()


async def test_concurrent_run_now_takes_effect_once() -> None:
    sched, edit = waiting(20)
    made = await asyncio.gather(*[sched.run_now(["a"]) for _ in range(4)])
    assert sum(made) == 20
    await edit.using(delay=600).enqueue("d")
    (job,) = sched.records.list_sync(path=["d"])
    assert sorted(await asyncio.gather(*[sched.handle(job.id).run_now() for _ in range(3)])) == [False, False, True]


CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s.dead.redrive_sync(), "redrive() takes exactly one of ids, a filter and all=True"),
    (lambda s: s.dead.redrive_sync(["x"], all=True), "redrive() takes exactly one of ids, a filter and all=True"),
    (lambda s: s.dead.discard_sync(["x"], user="ann"), "discard() takes exactly one of ids, a filter and all=True"),
    (lambda s: s.dead.discard_sync(all=True, user="ann"), "discard() takes exactly one of ids, a filter and all=True"),
    (lambda s: s.cancel_sync(), "cancel() takes exactly one of ids, a filter and all=True"),
    (lambda s: s.dead.redrive_sync(["x"], limit=1), "redrive(): limit requires a filter or all=True"),
    (lambda s: s.dead.redrive_sync(user=None), "redrive(): user None matches every job; pass all=True to confirm"),
    (lambda s: s.cancel_sync(path=None), "cancel(): path None matches every job"),
    (lambda s: s.cancel_sync(state="FAILED"), "cancel(): state must be a state of unfinished jobs"),
    (lambda s: s.dead.redrive_sync(state="FAILED"), "dead jobs have no filter by state: all are FAILED"),
    (lambda s: s.dead.list_sync(state="FAILED"), "dead jobs have no filter by state: all are FAILED"),
    (lambda s: s.dead.list_sync(user="ann", after=5), "after pages through all dead jobs"),
    (lambda s: s.dead.list_sync(owner="ann"), "records have no filter 'owner'"),
    (lambda s: s.dead.redrive_sync(all=True, limit=0), "limit must be from 1 to 1000000, got 0"),
    (lambda s: s.dead.redrive_sync(all="yes"), "all must be"),
    (lambda s: s.dead.redrive_sync(path="doc1"), "did you mean ['doc1']"),
    (lambda s: s.dead.redrive_sync("x"), "ids must be a list"),
    (lambda s: s.run_now_sync(), "run_now() takes exactly one of ids, a filter and all=True"),
    (lambda s: s.run_now_sync(["a"], all=True), "run_now() takes exactly one of ids, a filter and all=True"),
    (lambda s: s.run_now_sync(["a"], ids=["x"]), "run_now() takes exactly one of ids, a filter and all=True"),
    (lambda s: s.run_now_sync(["a"], path=["b"]), "run_now() takes a path once: as its first argument, or as path"),
    (lambda s: s.run_now_sync(ids=["x"], limit=1), "run_now(): limit requires a filter or all=True"),
    (lambda s: s.run_now_sync(user=None), "run_now(): user None matches every job; pass all=True to confirm"),
    (lambda s: s.run_now_sync(state=["QUEUED", "STARTED"]), "run_now(): state must be SCHEDULED or QUEUED"),
    (lambda s: s.run_now_sync(owner="ann"), "records have no filter 'owner'"),
    (lambda s: s.run_now_sync("doc1"), "did you mean ['doc1']"),
    (lambda s: s.run_now_sync([s.handle("x")]), "pass a handle of a job as ids"),
    (lambda s: s.run_now_sync(all=True, limit=0), "limit must be from 1 to 1000000, got 0"),
    (lambda s: s.run_now_sync(ids="x"), "ids must be a list"),
]


@pytest.mark.slow
@for_each("case", CALLS)
def test_command_without_selection_is_refused_and_changes_nothing(case: tuple[Callable[[Any], Any], str]) -> None:
    call, told = case
    sched, _ = dead(1)
    with pytest.raises((InvalidJobError, InvalidJobTypeError, InvalidHintError)) as caught:
        call(sched)
    assert told in str(caught.value)
    assert states(sched) == {FAILED: 2}


def test_flow_is_redriven_with_its_canceled_dependents() -> None:
    sched, edit = dead(1)
    sent = sched.job(name="send", on_dependency_failure="cancel", max_attempts=1)(lambda doc: doc)
    with sched.flow_sync() as flow:
        first = flow.add(edit, "a", 5)
        flow.add(edit, "c")
        flow.add(sent.using(name="send"), first.out)
    drain_sync(sched)
    assert states(sched, path=["a"]) == {FAILED: 2}
    assert (flow["send"].state_sync(), flow.state_sync().value) == (CANCELED, "FAILED")
    broken.clear()
    assert sched.get_flow(flow.id).redrive_sync(downstream=False) == 1
    assert flow["send"].state_sync() is CANCELED
    broken.add("a")
    drain_sync(sched)
    broken.clear()
    assert flow.redrive_sync() == 1
    drain_sync(sched)
    assert (flow["send"].state_sync(), flow.state_sync().value) == (FINISHED, "FINISHED")
    assert states(sched) == {FAILED: 2, FINISHED: 3}, "dead jobs of no flow stay"
    assert flow.redrive_sync() == 0
    with pytest.raises(FlowNotFoundError):
        sched.get_flow("nowhere").redrive_sync()


async def test_a_flow_is_redriven_in_asynchronous_code_too() -> None:
    sched, edit = shop()
    broken.add("a")
    async with sched.flow() as flow:
        flow.add(edit, "a")
    async with sched.worker():
        await sched.drain(timeout=30)
        broken.clear()
        assert await flow.redrive() == 1
        assert await flow.result(timeout=30) == {"edit": "a"}
