"""Signals through the interface of an application: given, waited for by edges and by running handlers."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Any

import pytest

from queuehint import (
    DrainStalledError,
    FakeClock,
    HandlerError,
    InvalidJobError,
    InvalidJobTypeError,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    JobState,
    LeaseLostError,
    PayloadError,
    ReasonKind,
    Scheduler,
    Signal,
    TemplateError,
    template,
)
from queuehint.operations import Fetch
from queuehint.testing import on_memory
from queuehint.values.signal import wait_id, wait_spec
from tests import process_tasks
from tests.schedulers import scheduler, until

DEFERRED, FINISHED, FAILED, CANCELED = JobState.DEFERRED, JobState.FINISHED, JobState.FAILED, JobState.CANCELED


def publishing(**options: Any) -> tuple[Scheduler, FakeClock, Any, list[Any]]:
    """Return a scheduler, its clock, a task that notes what it gets, and these notes."""
    sched, clock = scheduler(**options)
    got: list[Any] = []

    @sched.job(queue_hint=["{doc}"], max_attempts=1)
    async def publish(ctx: JobContext, doc: str, data: Any = None) -> None:
        got.append((doc, dict(ctx.results), data))

    return sched, clock, publish, got


# --- given -----------------------------------------------------------------------------------------------------------


async def test_a_call_returns_whether_its_data_counts() -> None:
    sched, clock, publish, got = publishing()
    await publish.using(after=[Signal("s")]).enqueue("doc1")
    assert await sched.signal("s", {"by": "ann"})
    assert not await sched.signal("s", {"by": "bob"})
    assert await sched.signal("s", {"by": "ann"})
    await publish.using(after=[Signal("s")]).enqueue("doc2")
    await sched.drain(timeout=30)
    assert got == [("doc1", {"s": {"by": "ann"}}, None), ("doc2", {"s": {"by": "ann"}}, None)]
    clock.advance(seconds=7 * 86_400)
    assert await sched.signal("s", {"by": "bob"})


def test_it_is_given_by_code_without_a_loop() -> None:
    sched, clock, publish, got = publishing()
    publish.using(after=[Signal("s", timeout=5)]).enqueue_sync("doc1")
    assert sched.signal_sync("s", keep=timedelta(seconds=1))
    assert not sched.signal_sync("s", 1, keep=1)
    sched.drain_sync(timeout=30)
    assert got == [("doc1", {"s": None}, None)]
    clock.advance(seconds=86_400)
    assert sched.signal_sync("s", 1)


async def test_two_give_one_at_once_and_one_data_counts() -> None:
    sched, _, publish, got = publishing()
    await publish.using(after=[Signal("s")]).enqueue("doc1")
    counts = await asyncio.gather(*[sched.signal("s", n) for n in range(5)])
    assert counts.count(True) == 1
    await sched.drain(timeout=30)
    assert got == [("doc1", {"s": counts.index(True)}, None)]


@pytest.mark.parametrize(
    "name, data, keep, error, text",
    [
        ("", 1, 1, InvalidJobError, "name is empty"),
        ("two words", 1, 1, InvalidJobError, "name holds white space"),
        ("n" * 91, 1, 1, InvalidJobError, "name 'n+… takes 91 bytes, limit 90"),
        (7, 1, 1, InvalidJobTypeError, "name must be str, got int"),
        ("s", {1}, 1, PayloadError, "data: set is not JSON"),
        ("s", "x" * 65_536, 1, PayloadError, "takes 65549 bytes as JSON, limit 65536"),
        ("s", 1, 0, InvalidJobError, "keep must be from 0.001 s to 10 years, got 0"),
        ("s", 1, True, InvalidJobTypeError, "keep must be a timedelta or a number of seconds, got bool"),
        ("s", 1, None, InvalidJobTypeError, "keep must be a timedelta or a number of seconds, got NoneType"),
    ],
)
async def test_malformed_signal_is_refused_by_name(name: Any, data: Any, keep: Any, error: Any, text: str) -> None:
    sched, _, _, _ = publishing()
    with pytest.raises(error, match=text):
        await sched.signal(name, data, keep=keep)
    with pytest.raises(error, match=text):
        sched.signal_sync(name, data, keep=keep)
    assert (await sched.records.count()).total == 0


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"name": "a b"}, InvalidJobError, "name holds white space"),
        ({"name": None}, InvalidJobTypeError, "name must be str"),
        ({"name": "s", "timeout": 0}, InvalidJobError, "timeout must be from 0.001 s to 10 years, got 0"),
        (
            {"name": "s", "timeout": "1"},
            InvalidJobTypeError,
            "timeout must be a timedelta or a number of seconds, got str",
        ),
        (
            {"name": "s", "on_timeout": "stop"},
            InvalidJobError,
            "on_timeout must be one of fail, cancel, run, got 'stop'",
        ),
    ],
)
async def test_a_signal_that_is_wrong_is_refused_by_name(arguments: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        Signal(**arguments)
    sched, _, _, _ = publishing()
    refused = []

    @sched.job(max_attempts=1)
    async def waits(ctx: JobContext) -> None:
        if "on_timeout" not in arguments:
            with pytest.raises(error, match=text):
                await ctx.wait(**arguments)
            refused.append(True)

    await waits.enqueue()
    await sched.drain(timeout=30)
    assert bool(refused) == ("on_timeout" not in arguments)


# --- edges -----------------------------------------------------------------------------------------------------------


async def test_the_data_is_an_argument() -> None:
    sched, _, publish, got = publishing()
    approved = Signal("approved:doc1", timeout=9)
    job = await publish.using(after=[approved]).enqueue("doc1", {"by": approved.out.by, "all": [approved.out]})
    assert [edge.name for edge in (await job.record()).spec.depends_on] == ["approved_doc1"]
    await publish.using(after=[Signal("plain")]).enqueue("doc2", template("by {{plain}}"))
    await sched.signal("approved:doc1", {"by": "ann"})
    await sched.signal("plain", "bob")
    await sched.drain(timeout=30)
    data = {"by": "ann"}
    assert got == [
        ("doc1", {"approved:doc1": data}, {"by": "ann", "all": [data]}),
        ("doc2", {"plain": "bob"}, "by bob"),
    ]


async def test_flows_wait_for_signals() -> None:
    sched, _, publish, got = publishing()
    for flow_id in ("f", "f"):
        async with sched.flow(flow_id) as flow:
            go = flow.signal("go", timeout=timedelta(days=1), on_timeout="cancel")
            first = flow.add(publish.using(name="first"), "doc1", go.out)
            flow.add(publish.using(name="second", after=[first, flow.signal("go", timeout=5)]), "doc2")
    assert (await first.why()).kind is ReasonKind.SIGNAL
    await sched.signal("go", 7)
    await sched.drain(timeout=30)
    assert got == [("doc1", {"go": 7}, 7), ("doc2", {"first": None, "go": 7}, None)]
    records = await sched.records.list(flow="f")
    assert sorted(str(record.state) for record in records) == ["FINISHED"] * 4


async def test_many_calls_each_have_a_wait_of_their_own() -> None:
    sched, clock, publish, got = publishing(ids="sequence")
    handles = await publish.using(after=[Signal("s", timeout=5, on_timeout="run")]).enqueue_many([("a",), ("b",)])
    assert [handle.id for handle in handles] == ["1", "2"]
    assert (await sched.records.count(task="queuehint.signal")).total == 2
    clock.advance(seconds=5)
    await sched.drain(timeout=30)
    assert got == [("a", {}, None), ("b", {}, None)]


async def test_the_same_job_again_has_the_same_wait() -> None:
    sched, _, publish, got = publishing()
    for _ in range(2):
        job = await publish.using(id="j", after=[Signal("s", timeout=5)]).enqueue("a")
    assert (await sched.records.count()).total == 2
    assert (await sched.get(wait_id("s", "j"))).state is DEFERRED
    await job.cancel()
    await sched.drain(timeout=30)
    assert (await sched.get(wait_id("s", "j"))).cause == "nobody waits for it"
    assert got == []


@pytest.mark.parametrize("on_timeout, state", [("fail", FAILED), ("cancel", CANCELED), ("run", FINISHED)])
async def test_a_timeout_ends_a_wait(on_timeout: Any, state: JobState) -> None:
    sched, clock, publish, got = publishing()
    job = await publish.using(after=[Signal("s", timeout=60, on_timeout=on_timeout)]).enqueue("doc1")
    clock.advance(seconds=59)
    with pytest.raises(DrainStalledError, match="waits for the signal s until"):
        await sched.drain(timeout=30)
    clock.advance(seconds=1)
    assert await sched.signal("s", 1)
    await sched.drain(timeout=30)
    assert await job.state() is state
    assert got == ([("doc1", {}, None)] if state is FINISHED else [])
    if state is FAILED:
        with pytest.raises(JobFailedError, match=r"dependency signal-wait:s:.* was canceled"):
            await job.result(timeout=30)
        await sched.dead.redrive([job.id])
        await sched.drain(timeout=30)
        assert got == [("doc1", {}, None)]


@pytest.mark.slow
@pytest.mark.parametrize("path", [None, ["doc1"]], ids=["everywhere", "path"])
async def test_drain_waits_for_signal_timeouts_where_time_moves(url: str, path: Any) -> None:
    sched = Scheduler(url)
    got: list[str] = []

    @sched.job(queue_hint=["{doc}"])
    async def publish(doc: str) -> None:
        got.append(doc)

    async with sched.worker():
        late = await publish.using(after=[Signal("s", timeout=600, on_timeout="run")]).enqueue("doc1")
        with pytest.raises(DrainStalledError, match="waits for the signal s until"):
            await sched.drain(path, timeout=30)
        assert got == []
        await late.cancel()
        await publish.using(after=[Signal("s", timeout=0.3, on_timeout="run")]).enqueue("doc1")
        await sched.drain(path, timeout=30, include_scheduled=True)
        assert got == ["doc1"]
        await publish.using(after=[Signal("t")]).enqueue("doc1")
        with pytest.raises(DrainStalledError, match="waits for the signal t"):
            await sched.drain(path, timeout=30, include_scheduled=True)
    await sched.close()


async def test_without_its_data_a_job_does_not_run() -> None:
    sched, clock, publish, got = publishing()
    s = Signal("s", timeout=60, on_timeout="run")
    job = await publish.enqueue("doc1", s.out)
    clock.advance(seconds=60)
    await sched.drain(timeout=30)
    assert (await job.state(), got) == (CANCELED, [])


async def test_wrong_waits_are_refused() -> None:
    sched, _, publish, _ = publishing()
    for signal in (Signal("s"), Signal("s", timeout=1)):
        with pytest.raises(InvalidJobError, match="when='failure' is not supported for signal 's'"):
            await publish.using(after=[signal], when="failure").enqueue("doc1")
    twice = [Signal("s", timeout=1), Signal("s", timeout=2)]
    with pytest.raises(InvalidJobError, match="waits for the signal 's' twice, with two timeouts"):
        await publish.using(after=twice).enqueue("doc1")
    for job_id in ("signal-within:", "signal-within:x:s", "signal-within:1:", f"signal-within:1:{'s' * 91}"):
        with pytest.raises(InvalidJobError, match=r"after: 'signal-within:.* is no job's id"):
            await publish.using(after=[job_id]).enqueue("doc1")
    for job_id in ("signal:s", "signal-wait:s:0", "signal-within:1:s"):
        with pytest.raises(InvalidJobError, match=f"id '{job_id}' begins like that of a signal"):
            await publish.using(id=job_id).enqueue("doc1")
    with pytest.raises(TemplateError, match="a template names 't'"):
        await publish.using(after=[Signal("s")]).enqueue("doc1", template("{{t}}"))
    with pytest.raises(InvalidJobError, match="begins like"):
        await sched.submit([JobSpec(id="signal:x", task="work")])
    assert (await sched.records.count()).total == 0


# --- running handlers ------------------------------------------------------------------------------------------------


def reviewing(**options: Any) -> tuple[Scheduler, FakeClock, Any, list[Any]]:
    """Return a scheduler, its clock, a task that waits for a signal, and its notes."""
    sched, clock = scheduler(**options)
    notes: list[Any] = []

    @sched.job(queue_hint=["{doc}"], max_attempts=2, retry=[0])
    async def review(ctx: JobContext, doc: str, timeout: float | None = None, fails: int = 0) -> Any:
        notes.append((doc, ctx.attempt))
        found = await ctx.wait(f"reviewed:{doc}", timeout=timeout)
        if ctx.attempt <= fails:
            raise ValueError("not yet")
        return found

    return sched, clock, review, notes


async def test_a_handler_leaves_and_is_run_again() -> None:
    sched, _, review, notes = reviewing()
    job, behind = await review.enqueue("doc1"), await review.using(id="b").enqueue("doc1")
    async with sched.worker(concurrency=1):
        await until(lambda: len(notes) == 2)
        await until(lambda: _is(job, DEFERRED))
        await until(lambda: _is(behind, DEFERRED))
        assert str(await job.why()).endswith("waits for the signal reviewed:doc1")
        await sched.signal("reviewed:doc1", {"ok": True})
        assert [await each.result(timeout=30) for each in (job, behind)] == [{"ok": True}] * 2
    record = await job.record()
    assert (record.attempts, record.errors, notes) == (1, (), [("doc1", 1)] * 4)
    assert [attempt.outcome for attempt in record.history] == ["deferred", "finished"]


async def _is(job: Any, state: JobState) -> bool:
    found: JobState = await job.state()
    return found is state


async def test_one_that_was_given_before_is_there_at_once() -> None:
    sched, _, review, notes = reviewing()
    await sched.signal("reviewed:doc1", [1])
    job = await review.enqueue("doc1", 5)
    await sched.drain(timeout=30)
    assert (await job.result(timeout=30), notes) == ([1], [("doc1", 1)])


async def test_later_attempts_get_the_same_data() -> None:
    sched, clock, review, notes = reviewing()
    job = await review.enqueue("doc1", None, 2)
    with pytest.raises(DrainStalledError):
        await sched.drain(timeout=30)
    await sched.signal("reviewed:doc1", 1, keep=1)
    await sched.drain(timeout=30)
    assert await job.state() is FAILED
    clock.advance(seconds=3 * 86_400)
    assert await sched.signal("reviewed:doc1", 2)
    await sched.dead.redrive([job.id])
    await sched.drain(timeout=30)
    assert (await job.record()).errors[-1].message == "not yet"
    assert len(notes) == 5
    assert (await sched.get(wait_id("reviewed:doc1", job.id))).result == b'{"result":1}'


async def test_a_timeout_is_an_error_each_time() -> None:
    sched, clock, review, notes = reviewing()
    job = await review.enqueue("doc1", 60)
    with pytest.raises(DrainStalledError, match="until"):
        await sched.drain(timeout=30)
    clock.advance(seconds=60)
    await sched.signal("reviewed:doc1", 1)
    await sched.drain(timeout=30)
    with pytest.raises(JobFailedError, match="signal 'reviewed:doc1' was not given in time") as caught:
        await job.result(timeout=30)
    assert caught.value.error_type == "queuehint.errors.SignalTimeoutError"
    assert notes == [("doc1", 1), ("doc1", 1), ("doc1", 2)]


async def test_a_wait_that_was_canceled_is_an_error() -> None:
    sched, _, review, _ = reviewing()
    job = await review.using(max_attempts=1).enqueue("doc1")
    with pytest.raises(DrainStalledError):
        await sched.drain(timeout=30)
    await sched.cancel([wait_id("reviewed:doc1", job.id)], reason="no need")
    await sched.drain(timeout=30)
    with pytest.raises(JobFailedError, match="was not given in time: the wait was ended, no need"):
        await job.result(timeout=30)


async def test_a_job_is_canceled_while_it_waits() -> None:
    sched, _, review, notes = reviewing()
    job = await review.enqueue("doc1")
    with pytest.raises(DrainStalledError):
        await sched.drain(timeout=30)
    await job.cancel()
    await sched.signal("reviewed:doc1", 1)
    await sched.drain(timeout=30)
    with pytest.raises(JobCanceledError):
        await job.result(timeout=30)
    assert len(notes) == 1


async def test_a_group_of_tasks_leaves_by_a_wait_in_one() -> None:
    sched, _ = scheduler()

    @sched.job
    async def both(ctx: JobContext) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(ctx.wait(name)) for name in ("a", "b")]
        return [wait.result() for wait in waits]

    job = await both.enqueue()
    with pytest.raises(DrainStalledError):
        await sched.drain(timeout=30)
    await sched.signal("b", 2)
    with pytest.raises(DrainStalledError):
        await sched.drain(timeout=30)
    await sched.signal("a", 1)
    await sched.drain(timeout=30)
    assert await job.result(timeout=30) == [1, 2]


def test_a_plain_handler_waits_too() -> None:
    sched, _ = scheduler()

    @sched.job
    def review(ctx: JobContext, timeout: float | None = None) -> Any:
        with pytest.raises(HandlerError, match=r"write ctx.wait_sync\(\)"):
            ctx.wait("s").close()
        return ctx.wait_sync("s", timeout=timeout)

    job = review.enqueue_sync()
    with pytest.raises(DrainStalledError):
        sched.drain_sync(timeout=30)
    sched.signal_sync("s", 1)
    sched.drain_sync(timeout=30)
    assert job.result_sync(timeout=30) == 1


@pytest.mark.slow
def test_handlers_in_processes_wait_too() -> None:
    sched = process_tasks.sched
    with on_memory(sched) as clock:
        waits, refused = process_tasks.decided.enqueue_sync("s", None), process_tasks.refused.enqueue_sync()
        late = process_tasks.decided.enqueue_sync("t", 60)
        with pytest.raises(DrainStalledError):
            sched.drain_sync(timeout=30)
        assert refused.result_sync(timeout=30).startswith("name holds white space")
        sched.signal_sync("s", {"by": "ann"})
        clock.advance(seconds=60)
        sched.drain_sync(timeout=30)
        process_id, data = waits.result_sync(timeout=30)
        assert process_id != os.getpid()
        assert data == {"by": "ann"}
        assert late.result_sync(timeout=30) == "signal 't' was not given in time"


@pytest.mark.slow
def test_process_handler_declared_elsewhere_gets_the_signal_data() -> None:
    sched, _ = scheduler()
    job = sched.job(process=True, max_attempts=1)(process_tasks.plainly_decided).enqueue_sync("s")
    sched.signal_sync("s", {"by": "ann"})
    sched.drain_sync(timeout=30)
    assert job.result_sync(timeout=30) == {"by": "ann"}


async def test_a_wait_is_the_business_of_its_job_alone() -> None:
    sched, _ = scheduler()
    tokens: list[int] = []

    @sched.job
    async def review(ctx: JobContext) -> Any:
        tokens.append(ctx.token)
        return await ctx.wait("s")

    job = await review.enqueue()
    with pytest.raises(DrainStalledError):
        await sched.drain(timeout=30)
    wait = wait_id("s", job.id)
    assert (await sched.get(wait)).state is DEFERRED
    with pytest.raises(JobNotFoundError):
        await sched.get(wait_id("s", "other"))
    # Its token is worth nothing any more.
    assert (await sched.backend.call(Fetch(job.id, tokens[0], (wait,)))).results == ()
    with pytest.raises(LeaseLostError):
        await sched.ask_wait(wait_spec("t", job.id, None), (job.id, tokens[0]))
    await sched.signal("s", 1)
    await sched.drain(timeout=30)
    assert await job.result(timeout=30) == 1
