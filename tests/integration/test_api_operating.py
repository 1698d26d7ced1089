"""Scheduler API for operators: queries about jobs and places, and commands on them."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint import (
    InvalidTransitionError,
    JobNotFoundError,
    JobState,
    PathClosedError,
    Scheduler,
)
from queuehint import operations as op
from queuehint.values.report import ReasonKind, TreeNode
from tests.each import for_each
from tests.schedulers import Gate, make_job, scheduler

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- queries and commands --------------------------------------------------------------------------------------------


async def test_why_names_the_blocking_job() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    first = await work.enqueue("a")
    second = await work.enqueue("a")
    reason = await second.why()
    assert (reason.kind, reason.jobs, reason.path_key) == (ReasonKind.PLACE, (first.id,), "a")
    assert await sched.why(second) == await sched.why(second.id) == sched.why_sync(second) == second.why_sync()
    assert (await first.why()).kind is ReasonKind.NO_WORKER
    await sched.drain()
    assert (await first.why()).kind is ReasonKind.OVER


async def test_why_of_a_path_names_waiting_jobs_and_blockers() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    jobs = [await work.using(queue_hint=["x"], user="ann").enqueue("a") for _ in range(9)]
    ids = [job.id for job in jobs]
    await work.using(id="other").enqueue("y")
    found = await sched.why(path=["x"])
    assert found == sched.why_sync(path=("x",)) == sched.why_sync(path=["x"], limit=3)
    assert [job.id for job in found.oldest] == ids[:3]
    assert [job.id for job in found.newest] == ids[:-4:-1]
    assert (found.path_key, found.waiting, found.more, found.complete, found.holders) == ("x", 9, 3, True, 1)
    assert [len(sched.why_sync(path=[], limit=limit).oldest) for limit in (1, 16)] == [1, 10]
    assert str(found).splitlines() == [
        "x: 9 jobs waiting",
        "oldest:",
        f"  {ids[0]} (work of ann at x) is QUEUED: {found.oldest[0].reason.text}",
        *[f"  {job}" for job in found.oldest[1:]],
        "newest:",
        *[f"  {job}" for job in found.newest],
        "  and 3 more",
    ]
    await sched.drain()
    assert str(await sched.why(path=["x"])) == "x: 0 jobs waiting"


@for_each(
    "given, words",
    [
        ({}, "give the id of a job or path, one of the two"),
        ({"job": "a", "path": ["x"]}, "give the id of a job or path, one of the two"),
        ({"job": "a", "limit": 3}, "limit requires path, not a job, got 3"),
        ({"path": ["x"], "chain": True}, "chain requires a job, not path, got True"),
        ({"path": ["x"], "limit": 0}, "limit must be from 1 to 16, got 0"),
        ({"path": ["x"], "limit": 17}, "limit must be from 1 to 16, got 17"),
        ({"path": ["x"], "limit": 1.5}, "limit must be int, got float: 1.5"),
        ({"path": "x"}, "path must be a list of segments, got str; did you mean ['x']?"),
        ({"path": ["x", ""]}, "path segment 1 is empty"),
    ],
)
def test_why_that_cannot_be_meant_is_refused_before_a_question(given: Any, words: str) -> None:
    sched = Scheduler("redis://localhost:1")
    with pytest.raises(ValueError) as caught:
        sched.why_sync(**given)
    assert words in str(caught.value)


async def test_an_unknown_job_is_not_found() -> None:
    sched, _ = scheduler()
    handle = sched.handle("nobody")
    for call in (handle.record, handle.state, handle.progress, handle.why, handle.cancel, handle.result):
        with pytest.raises(JobNotFoundError) as caught:
            await call()
        assert isinstance(caught.value, LookupError)
        assert "'nobody'" in str(caught.value)
    for sync in (
        handle.record_sync,
        handle.state_sync,
        handle.progress_sync,
        handle.why_sync,
        handle.cancel_sync,
        handle.result_sync,
    ):
        with pytest.raises(JobNotFoundError):
            sync()
    with pytest.raises(JobNotFoundError):
        await sched.get("nobody")
    with pytest.raises(JobNotFoundError):
        await sched.why("nobody")
    for order in (sched.dead.redrive, sched.dead.discard):
        with pytest.raises(JobNotFoundError):
            await order(["nobody"])
    assert await sched.cancel(["nobody"]) == [False]


async def test_a_job_of_another_store_is_not_found() -> None:
    one, two = scheduler()[0], scheduler()[0]
    handle = await make_job(one).enqueue("a")
    with pytest.raises(JobNotFoundError):
        await two.get(handle.id)


async def test_a_job_that_is_over_cannot_be_canceled() -> None:
    sched, _ = scheduler()
    handle = await make_job(sched).enqueue("a")
    await sched.drain()
    with pytest.raises(InvalidTransitionError, match="FINISHED") as caught:
        await handle.cancel()
    assert (caught.value.state, caught.value.target) == (FINISHED, CANCELED)
    with pytest.raises(InvalidTransitionError, match="FINISHED"):
        await sched.dead.redrive([handle.id])
    assert await sched.cancel([handle]) == [False]
    assert await handle.state() is FINISHED


async def test_tree_and_can_dequeue_show_running_jobs() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["{doc}", "x"])
    async def work(doc: str) -> None:
        await gate.wait()

    async with sched.worker():
        await work.enqueue("a")
        await work.enqueue("a")
        await gate.reached()
        for hint, may in [(["a"], False), ([], False), (["a", "x", "y"], False), (["a", "y"], True), (None, True)]:
            assert await sched.can_dequeue(hint) is sched.can_dequeue_sync(hint) is may
        assert not await sched.can_dequeue(["a"], "shared")
        tree = await sched.tree(depth=2)
        assert tree == sched.tree_sync((), 2)
        assert (tree.path_key, tree.started_below, tree.children[0].path_key) == ("root", 1, "a")
        leaf = tree.children[0].children[0]
        assert (leaf.path_key, leaf.started, leaf.waiting) == ("a:x", 1, 1)
        assert (await sched.tree(["a"], 0)).children == ()
        stats = await sched.stats()
        assert (stats.states[STARTED], stats.states[QUEUED], stats.unfinished) == (1, 1, 2)
        assert stats == sched.stats_sync()
        gate.open()


async def test_a_tree_comes_in_pages_and_by_the_longest_lines() -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=["{doc}", "{section}"])
    async def edit(doc: str, section: str) -> None: ...

    for number, section in enumerate("abc"):
        await edit.enqueue_many([(f"doc{number}", section)] * (number + 2))
    page = await sched.tree(limit=2)
    assert ([child.path_key for child in page.children], page.after) == (["doc0", "doc1"], "doc1")
    assert page == sched.tree_sync(after="", limit=2)
    page = await sched.tree(after=page.after)
    assert ([child.path_key for child in page.children], page.after) == (["doc2"], None)
    longest = await sched.tree(depth=2, order="line")
    assert [(place.path_key, place.waiting) for place in longest.children] == [
        ("doc2:c", 3),
        ("doc1:b", 2),
        ("doc0:a", 1),
    ]
    assert (longest.passing, longest) == (9, sched.tree_sync((), 2, order="line"))
    assert sched.tree_sync((), 2, limit=1, order="line").children == longest.children[:1]
    assert sched.tree_sync(order="line").children == sched.tree_sync(depth=0, order="line").children == ()


def test_the_longest_lines_of_all_pages_are_merged() -> None:
    """Pages as a store may answer: a line that has grown since comes again, and one as long as the shortest."""
    sched, _ = scheduler()
    asked: list[tuple[str | None, int]] = []
    answers = iter(
        [({"d": 3, "e": 2}, "e"), ({"a": 4, "d": 5}, "a"), ({}, "m"), ({"b": 4, "z": 4}, None)],
    )

    def call_sync(operation: op.Operation[Any]) -> Any:
        if isinstance(operation, op.Tree):
            return node_of("root", 0)
        assert isinstance(operation, op.ListLines)
        asked.append((operation.after, operation.longer_than))
        lines, after = next(answers)
        return op.Lines(tuple([node_of(key, waiting) for key, waiting in lines.items()]), after)

    sched.backend.call_sync = call_sync  # type: ignore[method-assign]
    found = sched.tree_sync(("x",), 3, limit=2, order="line")
    assert [(place.path_key, place.waiting) for place in found.children] == [("d", 5), ("a", 4)]
    assert asked == [(None, 0), ("e", 1), ("a", 3), ("m", 3)]


def test_longest_lines_of_the_root_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    sched, _ = scheduler()
    asked: list[Any] = []
    call_sync = sched.backend.call_sync

    def ask(operation: op.Operation[Any]) -> Any:
        asked.append(operation)
        return call_sync(operation)

    monkeypatch.setattr(sched.backend, "call_sync", ask)
    assert sched.tree_sync((), 3, limit=2, order="line").children == ()
    assert asked == [op.Tree((), 0), op.ListLines((), 3, limit=2, longest=True)]


def node_of(path_key: str, waiting: int) -> TreeNode:
    return TreeNode(
        path_key=path_key, started=0, started_below=0, waiting=waiting, granted=0, passing=0, paused=False, closed=False
    )


async def test_jobs_are_canceled_by_ids_and_by_path() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    a, b, c, d = [await work.enqueue(name) for name in "abcd"]
    assert await sched.cancel([a, b.id, "nobody"], reason="why not") == [True, True, False]
    assert (await a.record()).cause == "why not"
    assert await sched.cancel(path=["c"]) == 1
    assert [await handle.state() for handle in (a, b, c, d)] == [CANCELED, CANCELED, CANCELED, QUEUED]
    assert sched.cancel_sync(path=[]) == 1
    assert await d.state() is CANCELED
    assert await sched.cancel([]) == []


async def test_a_large_path_is_canceled_to_its_end() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    await work.enqueue_many([("doc", n) for n in range(10_000)])
    assert await sched.cancel(path=["doc"]) == 10_000
    async with sched.worker():
        await sched.drain()
    stats = await sched.stats()
    assert (stats.states[CANCELED], stats.states[FINISHED], stats.leftovers) == (10_000, 0, 0)


async def test_a_paused_path_waits_until_it_is_resumed() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    assert await sched.pause(["a"]) is True
    assert await sched.pause(["a"]) is False
    paused, free = await work.enqueue("a"), await work.enqueue("b")
    async with sched.worker():
        await free.result()
        assert await paused.state() is QUEUED
        assert (await paused.why()).kind is ReasonKind.PAUSED
        assert (await sched.stats()).stuck["paused"] == 1
        assert await sched.resume(["a"]) is True
        assert await sched.resume(["a"]) is False
        assert await paused.result() == "a0"


async def test_a_large_path_is_closed_with_a_last_job() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    await work.enqueue_many([("doc", n) for n in range(2_500)])
    last = await sched.close_path(["doc"], last=work.using(id="last").spec("doc"))
    assert (await sched.stats()).states[CANCELED] == 2_500
    again = await sched.close_path(["doc"], last=work.using(id="last").spec("doc"))
    assert (last.created, again.created) == (True, False)
    async with sched.worker():
        assert await last.result() == "doc0"
    with pytest.raises(PathClosedError):
        await work.enqueue("doc")


async def test_waiting_jobs_precede_the_last_job_of_a_path() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    first = await work.enqueue("doc")
    last = await sched.close_path(["doc"], last=work.spec("doc", 1), waiting="run")
    async with sched.worker():
        assert [await first.result(), await last.result()] == ["doc0", "doc1"]


async def test_a_closed_path_takes_nothing_until_it_is_reopened() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    assert await sched.close_path(["a"]) is True
    assert await sched.close_path(["a"]) is False
    with pytest.raises(PathClosedError, match="'a'"):
        await work.enqueue_many([("b",), ("a",)])
    assert (await sched.stats()).enqueued == 0
    assert await sched.reopen_path(["a"]) is True
    assert await sched.reopen_path(["a"]) is False
    await work.enqueue("a")


def make_dead(sched: Scheduler, count: int = 1) -> tuple[list[Any], list[bool]]:
    """Enqueue jobs that fail at once, unless told to go well; drain them."""
    well: list[bool] = []

    @sched.job(max_attempts=1, name="mortal")
    async def mortal(n: int) -> int:
        if not well:
            raise ValueError("no")
        return n

    return mortal.enqueue_many_sync([(n,) for n in range(count)]), well


async def test_dead_letters_are_listed_redriven_and_discarded() -> None:
    sched, _ = scheduler()
    handles, well = make_dead(sched, 250)
    await sched.drain()
    ids = [handle.id for handle in handles]
    page = await sched.dead.list(3)
    assert [record.id for record in page] == ids[:3]
    assert [record.id for record in await sched.dead.list(2, after=page[-1].number)] == ids[3:5]
    assert list(sched.dead.list_sync()) == list(await sched.dead.list()) != []
    assert [record.id async for record in sched.dead] == ids
    well.append(True)
    await sched.dead.redrive(ids[:2])
    await sched.dead.discard(ids[2:4])
    await sched.drain()
    assert await handles[1].result() == 1
    assert await handles[2].state() is CANCELED
    assert [record.id async for record in sched.dead] == ids[4:]


async def test_redriving_goes_on_past_a_job_that_is_not_dead() -> None:
    sched, _ = scheduler()
    (handle,), well = make_dead(sched)
    await sched.drain()
    well.append(True)
    with pytest.raises(JobNotFoundError):
        await sched.dead.redrive(["nobody", handle.id])
    await sched.drain()
    assert await handle.state() is FINISHED
