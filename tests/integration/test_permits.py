"""Permits: room of limits for code, inside of handlers and outside, beside jobs in the same limits."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import sys
import threading
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from queuehint import (
    BackendUnavailableError,
    Claim,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    JobCanceledError,
    JobContext,
    JobSpec,
    JobState,
    LeaseLostError,
    PathClosedError,
    QueueFullError,
    ResultTimeoutError,
    Scheduler,
    WouldDeadlockError,
)
from queuehint.cli.inspect import places
from queuehint.values.ids import new_id
from tests.schedulers import memory, scheduler, until
from tests.support import LIMIT_S


async def counted(sched: Scheduler) -> int | None:
    """Return what the first limit counts."""
    return (await sched.limits())[0].started


async def refused(entering: Any) -> WouldDeadlockError:
    with pytest.raises(WouldDeadlockError) as caught:
        async with asyncio.timeout(LIMIT_S):
            async with entering:
                pass
    return caught.value


async def is_limited(sched: Scheduler, **by: Any) -> bool:
    """Return whether a job waits for a limit."""
    for record in await sched.records.list(state="QUEUED", **by):
        if (await sched.handle(record.id).why()).kind == "limit":
            return True
    return False


def outside(code: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run code in a task that is inside of no block of the caller's."""
    return asyncio.create_task(code, context=contextvars.Context())


in_other_processes = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("redis", marks=pytest.mark.redis)], indirect=True
)


class Gauge:
    """How many are in a block, and the most that there were."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0

    async def pass_through(self) -> None:
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1


async def test_five_calls_inside_one_handler_and_jobs_share_a_limit(url: str) -> None:
    async with Scheduler(url) as sched:
        gauge = Gauge()

        @sched.job(queue_hint=["docs", "{doc}"])
        async def render(ctx: JobContext, doc: str) -> None:
            async def page() -> None:
                async with ctx.permit(["pdf"]):
                    await gauge.pass_through()

            await asyncio.gather(*[page() for _ in range(5)])

        @sched.job(queue_hint=["pdf", "{doc}"])
        async def convert(doc: str) -> None:
            await gauge.pass_through()

        await sched.limit(["pdf"], 2)
        async with sched.worker():
            await render.enqueue_many([(f"d{n}",) for n in range(4)])
            await convert.enqueue_many([(f"d{n}",) for n in range(10)])
            await sched.drain(timeout=LIMIT_S)
        assert (gauge.all, gauge.most) == (30, 2)
        assert await counted(sched) == 0
        assert (await sched.stats()).states[JobState.FAILED] == 0


async def test_plain_handlers_have_a_twin() -> None:
    async with Scheduler() as sched:
        lock, now, most = threading.Lock(), [0], [0]

        @sched.job
        def call(ctx: JobContext) -> str:
            for _ in range(5):
                with ctx.permit_sync(["api"], timeout=LIMIT_S) as held:
                    with lock:
                        now[0] += 1
                        most[0] = max(most[0], now[0])
                    assert not held.lost
                    with lock:
                        now[0] -= 1
            with sched.permit_sync(["api"]):
                return ctx.id

        await sched.limit(["api"], 1)
        async with sched.worker(concurrency=4):
            jobs = await call.enqueue_many([()] * 4)
            assert [await job.result(timeout=LIMIT_S) for job in jobs] == [job.id for job in jobs]
        assert most == [1]


async def test_a_rate_counts_each_permit_once_and_needs_no_worker(url: str) -> None:
    sched, clock = scheduler(url)
    async with sched:
        await sched.limit(["api"], rate=(2, timedelta(seconds=10)), burst=2)
        for _ in range(2):
            async with sched.permit(["api"]):
                pass
        entered = asyncio.Event()

        async def third() -> None:
            async with sched.permit(["api"]):
                entered.set()

        waiting = asyncio.create_task(third())
        await until(lambda: is_limited(sched))
        clock.advance(seconds=4)
        await asyncio.sleep(0.01)
        assert not entered.is_set()
        clock.advance(seconds=1)
        await asyncio.wait_for(waiting, LIMIT_S)


async def test_permits_and_jobs_share_the_room_of_a_limit(url: str) -> None:
    async with Scheduler(url) as sched:
        go = asyncio.Event()

        @sched.job(queue_hint=["pdf", "{n}"])
        async def work(n: int) -> None:
            await go.wait()

        await sched.limit(["pdf"], 3)
        async with sched.worker():
            async with sched.permit(["pdf"], cost=2) as held:
                jobs = await work.enqueue_many([(1,), (2,)])
                await until(lambda: is_limited(sched, task="work"))
                assert await counted(sched) == 3
                record = await sched.handle(held.id).record()
                assert (record.spec.task, places(record)) == ("permit", "pdf (permit)")
                assert "running" in str(await sched.handle(held.id).why())
            await until(lambda: _is(jobs[1], JobState.STARTED))
            with pytest.raises(ResultTimeoutError, match=r"there was no room at 'pdf' within 0\.01 s"):
                async with sched.permit(["pdf"], cost=2, timeout=0.01):
                    pass
            go.set()
            async with sched.permit(["pdf"], cost=3, timeout=LIMIT_S):
                assert await counted(sched) == 3
        assert await counted(sched) == 0
        assert (await sched.records.count(state="QUEUED")).total == 0


async def _is(job: Any, state: JobState) -> bool:
    return (await job.state()) is state


@pytest.mark.parametrize("kinds", [{"path": ["pdf"]}, {"task": "permit"}], ids=["path", "task"])
async def test_why_of_handler_waiting_for_permit_names_its_limit(sched: Scheduler, kinds: Any) -> None:
    @sched.job(queue_hint=["doc"])
    async def work(ctx: JobContext) -> None:
        async with ctx.permit(["pdf"]):
            pass

    await sched.limit(kinds.get("path"), 1, task=kinds.get("task"))

    async def waits() -> bool:
        return (await job.why()).kind == "permit"

    async with sched.worker():
        async with sched.permit(["pdf"]) as held:
            job = await work.enqueue()
            await until(waits)
            behind = await work.enqueue()
            reason = await job.why()
            assert (reason.state, reason.jobs, reason.stuck) == (JobState.STARTED, (held.id,), False)
            assert (reason.path_key, reason.selection is None) == (("pdf", True) if "path" in kinds else (None, False))
            at = " at pdf" if "path" in kinds else " of --task permit"
            assert "running, its code waits for a permit" in reason.text
            assert at in reason.text
            assert held.id in reason.text
            assert sched.why_sync(job.id) == reason
            assert (await behind.why(chain=True))[-1] == reason
        await job.result(timeout=LIMIT_S)
        await behind.result(timeout=LIMIT_S)


async def test_a_permit_takes_no_place(url: str) -> None:
    async with Scheduler(url) as sched:

        @sched.job(queue_hint=["pdf"])
        async def whole() -> str:
            async with sched.permit(["pdf"]), sched.permit(["pdf"]):
                return "both"

        async with sched.worker(), sched.permit(["pdf"]):
            assert await (await whole.enqueue()).result(timeout=LIMIT_S) == "both"
            async with sched.exclusive(["pdf"], timeout=LIMIT_S), sched.permit(["pdf", "x"]):
                pass


async def test_permits_are_granted_in_order_of_request(url: str) -> None:
    async with Scheduler(url) as sched:
        order: list[int] = []
        await sched.limit(["pdf"], 1)

        async def take(n: int) -> None:
            async with sched.permit(["pdf"]):
                order.append(n)

        waiting = []
        async with sched.permit(["pdf"]):
            for n in range(5):
                waiting.append(outside(take(n)))
                await until(lambda n=n: _waiting(sched, n + 1))  # type: ignore[misc]
        await asyncio.wait_for(asyncio.gather(*waiting), LIMIT_S)
        assert order == [0, 1, 2, 3, 4]


async def _waiting(sched: Scheduler, count: int) -> bool:
    return (await sched.records.count(state="QUEUED", task="permit")).total == count and await is_limited(sched)


async def test_one_that_is_canceled_while_it_waits_leaves_nothing(url: str) -> None:
    async with Scheduler(url) as sched:
        await sched.limit(["pdf"], 1)

        async def take() -> None:
            async with sched.permit(["pdf"]):
                pass

        async with sched.permit(["pdf"]):
            waiting = outside(take())
            await until(lambda: _waiting(sched, 1))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await sched.records.count(state="QUEUED")).total == 0
            # By an operator.
            waiting = outside(take())
            await until(lambda: _waiting(sched, 1))
            (record,) = await sched.records.list(state="QUEUED")
            await sched.cancel([record.id])
            with pytest.raises(JobCanceledError):
                await waiting
        assert await counted(sched) == 0


@pytest.mark.slow
async def test_permit_wait_of_a_handler_is_canceled_with_its_job(url: str) -> None:
    async with Scheduler(url) as sched:

        @sched.job
        async def call(ctx: JobContext) -> None:
            async with ctx.permit(["pdf"]):
                pass

        @sched.job
        def call_plainly(ctx: JobContext) -> None:
            with ctx.permit_sync(["pdf"]):
                pass

        await sched.limit(["pdf"], 1)
        async with sched.worker(), sched.permit(["pdf"]):
            for task in (call, call_plainly):
                job = await task.enqueue()
                await until(lambda: _waiting(sched, 1))
                await job.cancel()
                await until(lambda job=job: _is(job, JobState.CANCELED))  # type: ignore[misc]
                assert (await sched.records.count(state="QUEUED")).total == 0


async def test_permit_inherits_priority_and_user_of_its_job(url: str) -> None:
    async with Scheduler(url) as sched:
        ids: list[str] = []

        @sched.job
        async def call(ctx: JobContext) -> None:
            async with ctx.permit(["pdf"]) as held, sched.permit(["pdf"], user="ben") as other:
                ids.extend((held.id, other.id))

        async with sched.worker():
            job = await call.using(priority=5, user="ann").enqueue()
            await job.result(timeout=LIMIT_S)
        held, other = [(await sched.handle(job_id).record()).spec for job_id in ids]
        assert (held.priority, held.user, held.parent) == (5, "ann", job.id)
        assert (other.priority, other.user, other.parent) == (5, "ben", ids[0])


# --- leases ----------------------------------------------------------------------------------------------------------


def far(sched: Scheduler) -> None:
    """Let the store be one that leaves renewing to its callers."""
    memory(sched).__class__ = type("Far", (type(memory(sched)),), {"is_local": False})


async def test_lost_permit_is_reported_and_passed_on() -> None:
    sched, clock = scheduler(lease=5)
    far(sched)
    await sched.limit(["pdf"], 1)
    with pytest.raises(LeaseLostError):
        async with sched.permit(["pdf"]) as held:
            memory(sched)._adopted.clear()
            clock.advance(seconds=5)
            await sched.unlimit(["nobody"])  # Any change does what is due.
            async with sched.permit(["pdf"], timeout=0) as other:
                assert other.token > held.token
    await sched.close()


async def test_a_handler_that_has_lost_its_job_gets_none() -> None:
    sched, clock = scheduler(lease=5)
    problems: list[BaseException] = []

    @sched.job(max_losses=1)
    async def call(ctx: JobContext) -> None:
        memory(sched)._adopted.clear()
        clock.advance(seconds=6)
        await sched.unlimit(["nobody"])
        try:
            async with ctx.permit(["pdf"]):
                pass
        except LeaseLostError as error:
            problems.append(error)

    async with sched.worker():
        job = await call.enqueue()
        await until(lambda: bool(problems))
    assert (await sched.records.count(task="permit")).total == 0
    assert problems[0].job_id == job.id  # type: ignore[attr-defined]
    await sched.close()


HOLDER = """
import sys, time
from queuehint import Scheduler
sched = Scheduler(sys.argv[1], lease=2)
with sched.permit_sync(["pdf"]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@in_other_processes
async def test_permit_of_a_killed_holder_returns_with_its_lease(url: str) -> None:
    async with Scheduler(url, lease=2) as sched:
        await sched.limit(["pdf"], 1)
        holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, url, stdout=asyncio.subprocess.PIPE)
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        # It is renewed for longer than its lease.
        with pytest.raises(ResultTimeoutError):
            async with sched.permit(["pdf"], timeout=2.5):
                pass
        holder.kill()
        await holder.wait()
        async with sched.permit(["pdf"], timeout=LIMIT_S):
            (record,) = await sched.records.list(task="permit", state="CANCELED", newest_first=False, limit=1)
            assert record.cause in {"waiter_lost", "the caller gave up"}
        causes = [record.cause for record in await sched.records.list(task="permit", state="CANCELED")]
        assert "waiter_lost" in causes


PROCESS_TASK = """
import os
from queuehint import JobContext, Scheduler
sched = Scheduler(os.environ["PERMITS_URL"])
@sched.job(process=True)
def call(ctx: JobContext) -> list[str]:
    with ctx.permit_sync(["pdf"]) as outer, sched.permit_sync(["api"]) as inner:
        return [outer.id, inner.id]
"""


@pytest.mark.slow
@in_other_processes
async def test_a_handler_in_a_process_of_its_own_takes_permits(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"permitted_{new_id()}"
    (tmp_path / f"{name}.py").write_text(PROCESS_TASK, "utf-8")
    monkeypatch.setenv("PERMITS_URL", url)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    async with module.sched as sched:
        await sched.limit(["pdf"], 1)
        async with sched.worker():
            job = await module.call.enqueue()
            outer, inner = await job.result(timeout=LIMIT_S)
        records = [await sched.handle(each).record() for each in (outer, inner)]
        assert [record.spec.parent for record in records] == [job.id, outer]
        assert [record.state for record in records] == [JobState.FINISHED] * 2


async def test_closed_scheduler_ends_permit_waits_and_leaves_holds_to_leases() -> None:
    sched, _ = scheduler()
    await sched.limit(["pdf"], 1)

    async def take() -> None:
        async with sched.permit(["pdf"]):
            pass

    with pytest.raises(BackendUnavailableError, match="was closed"):
        async with sched.permit(["pdf"]):
            waiting = outside(take())
            await until(lambda: _waiting(sched, 1))
            await sched.close()
            with pytest.raises(BackendUnavailableError, match="was closed"):
                await asyncio.wait_for(waiting, LIMIT_S)


# --- circles ---------------------------------------------------------------------------------------------------------


async def test_job_that_fills_the_limit_itself_is_refused_alone(url: str) -> None:
    async with Scheduler(url) as sched:
        refusals: list[WouldDeadlockError] = []

        @sched.job(queue_hint=["pdf", "{n}"])
        async def nested(ctx: JobContext, n: int) -> None:
            try:
                async with ctx.permit(["pdf"], timeout=LIMIT_S):
                    pass
            except WouldDeadlockError as error:
                refusals.append(error)

        await sched.limit(["pdf"], 1)
        async with sched.worker():
            job = await nested.enqueue(1)
            await job.result(timeout=LIMIT_S)
            (error,) = refusals
            assert (error.held, error.circle) == ("pdf", (job.id,))
            assert str(error).startswith("permit() of pdf would wait in vain: what it asks for is held by ")
            assert (await sched.records.count(state="QUEUED")).total == 0
            # With room for two, and another one there that goes on, it waits.
            refusals.clear()
            await sched.limit(["pdf"], 2)
            async with sched.permit(["pdf"]):
                job = await nested.enqueue(2)
                await until(lambda: _waiting(sched, 1))
            await job.result(timeout=LIMIT_S)
            assert refusals == []


async def test_last_of_jobs_that_deadlock_on_a_limit_is_refused(url: str) -> None:
    async with Scheduler(url) as sched:
        refusals: list[WouldDeadlockError] = []
        got: list[str] = []
        there = asyncio.Barrier(3)

        @sched.job(queue_hint=["pdf", "{n}"])
        async def nested(ctx: JobContext, n: int) -> None:
            await there.wait()
            try:
                async with ctx.permit(["pdf"]):
                    got.append(ctx.id)
            except WouldDeadlockError as error:
                refusals.append(error)

        await sched.limit(["pdf"], 3)
        async with sched.worker():
            jobs = await nested.enqueue_many([(n,) for n in range(3)])
            for job in jobs:
                await job.result(timeout=LIMIT_S)
        assert len(refusals) == 1
        assert len(got) == 2
        assert set(refusals[0].circle) == {job.id for job in jobs}


async def test_callers_of_two_limits_in_opposite_orders_do_not_deadlock(url: str) -> None:
    async with Scheduler(url) as sched:
        there, got, refusals = asyncio.Barrier(2), [], []

        async def both(first: str, second: str) -> None:
            async with sched.permit([first]):
                await there.wait()
                try:
                    async with sched.permit([second]):
                        got.append(second)
                except WouldDeadlockError as error:
                    refusals.append(error)

        await sched.limit(["a"], 1)
        await sched.limit(["b"], 1)
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(both("a", "b"), both("b", "a"))
        assert (len(got), len(refusals)) == (1, 1)
        assert len(refusals[0].circle) == 2


async def test_permit_behind_a_heavy_one_that_awaits_it_is_refused(url: str) -> None:
    async with Scheduler(url) as sched:

        @sched.job(queue_hint=["a", "{n}"], cost=2)
        async def heavy(n: int) -> None: ...

        await sched.limit(["a"], 2)
        async with sched.worker():
            async with sched.permit(["a"]):
                job = await heavy.enqueue(1)
                await until(lambda: is_limited(sched))
                error = await refused(sched.permit(["a"]))
                assert error.held == "a"
            await job.result(timeout=LIMIT_S)


async def test_victims_of_a_circle_wait_on(url: str) -> None:
    async with Scheduler(url) as sched:
        there, got, refusals = asyncio.Barrier(3), [], []

        async def take(first: str, second: str) -> None:
            async with sched.permit([first]):
                await there.wait()
                try:
                    async with sched.permit([second]):
                        got.append(first)
                except WouldDeadlockError:
                    refusals.append(first)

        for name in "abc":
            await sched.limit([name], 1)
        async with asyncio.timeout(LIMIT_S):
            # The holder of c waits for those of a and b, and nobody for it.
            await asyncio.gather(take("a", "b"), take("b", "a"), take("c", "a"))
        assert "c" in got
        assert len(refusals) == 1


@pytest.mark.slow
async def test_siblings_wait_for_each_other_and_not_for_their_parent(url: str) -> None:
    async with Scheduler(url) as sched:
        await sched.limit(["a"], 2)

        async def take() -> None:
            async with sched.permit(["a"]):
                await asyncio.sleep(0)

        async with asyncio.timeout(LIMIT_S), sched.permit(["a"]):
            await asyncio.gather(*[take() for _ in range(4)])
        await sched.limit(["a"], 1)
        async with asyncio.timeout(LIMIT_S), sched.permit(["a"]):
            found = await asyncio.gather(*[take() for _ in range(2)], return_exceptions=True)
        assert [type(each) for each in found] == [WouldDeadlockError] * 2


async def test_result_of_a_handler_that_awaits_our_permit_is_refused(url: str) -> None:
    async with Scheduler(url) as sched:

        @sched.job
        async def call(ctx: JobContext) -> None:
            async with ctx.permit(["a"]):
                pass

        await sched.limit(["a"], 1)
        async with sched.worker():
            async with sched.permit(["a"]):
                job = await call.enqueue()
                await until(lambda: _waiting(sched, 1))
                with pytest.raises(WouldDeadlockError) as caught:
                    await job.result(timeout=LIMIT_S)
                assert "inside permit() of a" in str(caught.value)
                with pytest.raises(WouldDeadlockError):
                    await sched.drain(["a"], timeout=LIMIT_S)
            await job.result(timeout=LIMIT_S)


async def test_job_that_needs_more_than_the_caller_leaves_is_refused(url: str) -> None:
    async with Scheduler(url) as sched:

        @sched.job(queue_hint=["a", "{n}"], cost=2)
        async def heavy(n: int) -> None: ...

        await sched.limit(["a"], 2)
        async with sched.worker():
            async with sched.permit(["a"]):
                job = await heavy.enqueue(1)
                await until(lambda: is_limited(sched))
                with pytest.raises(WouldDeadlockError):
                    await job.result()
            await job.result(timeout=LIMIT_S)


async def test_a_circle_through_a_place_is_refused(url: str) -> None:
    async with Scheduler(url) as sched:
        there, done, refusals = asyncio.Barrier(2), [], []

        async def place_first() -> None:
            async with sched.exclusive(["doc"]):
                await there.wait()
                await until(lambda: _queued(sched, "exclusive"))
                try:
                    async with sched.permit(["a"]):
                        done.append("place")
                except WouldDeadlockError as error:
                    refusals.append(error)

        async def permit_first() -> None:
            async with sched.permit(["a"]):
                await there.wait()
                async with sched.exclusive(["doc"]):
                    done.append("permit")

        await sched.limit(["a"], 1)
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(place_first(), permit_first())
        assert done == ["permit"]
        assert len(refusals) == 1


async def _queued(sched: Scheduler, task: str) -> bool:
    return (await sched.records.count(state="QUEUED", task=task)).total == 1


async def test_permit_around_a_worker_is_not_inherited_by_handlers(url: str) -> None:
    async with Scheduler(url) as sched:
        parents: list[str | None] = []

        @sched.job
        async def call(ctx: JobContext) -> None:
            async with sched.permit(["a"]) as held:
                parents.append((await sched.handle(held.id).record()).spec.parent)

        async with sched.permit(["b"]), sched.worker():
            job = await call.enqueue()
            await job.result(timeout=LIMIT_S)
        assert parents == [job.id]


async def test_it_is_refused_on_the_thread_of_the_workers_loop() -> None:
    async with Scheduler() as sched:

        @sched.job
        async def call(ctx: JobContext) -> None:
            with pytest.raises(WouldDeadlockError, match=r"write `async with sched.permit\(\.\.\.\)`"):
                ctx.permit_sync(["a"])

        async with sched.worker():
            await (await call.enqueue()).result(timeout=LIMIT_S)


# --- input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, error, text",
    [
        ({"path": None}, TypeError, "path must be a list of segments, got None"),
        ({"path": "pdf"}, TypeError, "path"),
        ({"path": [""]}, InvalidHintError, "path segment 0 is empty"),
        ({"cost": 0}, InvalidJobError, "cost must be from 1 to 1000, got"),
        ({"cost": 1001}, InvalidJobError, "cost must be from 1 to 1000, got"),
        ({"cost": True}, InvalidJobTypeError, "cost must be int"),
        ({"cost": 1.0}, InvalidJobTypeError, "cost must be int"),
        ({"timeout": -1}, InvalidJobError, "timeout"),
        ({"timeout": "1"}, InvalidJobTypeError, "timeout"),
        ({"user": ""}, InvalidJobError, "user"),
        ({"user": 1}, InvalidJobTypeError, "user"),
    ],
)
def test_bad_input_is_refused_by_name_before_anything_is_asked(
    fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    sched = Scheduler("redis://127.0.0.1:1")
    asked = {"path": ["pdf"], **fields}
    for call in (sched.permit, sched.permit_sync):
        with pytest.raises(error, match=text):
            call(asked["path"], **{name: value for name, value in asked.items() if name != "path"})


async def test_a_job_of_workers_has_no_claim_without_a_place() -> None:
    async with Scheduler() as sched:

        @sched.job
        async def work() -> None: ...

        @sched.job(claims=lambda: [Claim(("a",), "counted")])
        async def computed() -> None: ...

        said = r"claims\[0\] mode must be one of exclusive, shared, got 'counted'"
        with pytest.raises(InvalidHintError, match=said):
            work.using(claims=[Claim(("a",), "counted")])
        with pytest.raises(InvalidHintError, match=said):
            await computed.enqueue()
        with pytest.raises(InvalidJobError, match="that of a permit: ask for it by"):
            await sched.submit([JobSpec(id="x", task="work", claims=(Claim(("a",), "counted"),))])
        assert (await sched.records.count()).total == 0


async def test_permit_refused_on_entry_holds_nothing(url: str) -> None:
    async with Scheduler(url) as sched:
        await sched.limit(["pdf"], 2)
        with pytest.raises(InvalidJobError, match="cost is 3, and the limit of path 'pdf' has 2"):
            async with sched.permit(["pdf"], cost=3):
                pass
        await sched.limit(["pdf"], max_pending=1)
        async with sched.permit(["pdf"]) as held:
            with pytest.raises(QueueFullError):
                async with sched.permit(["pdf"]):
                    pass
            assert held.id
        await sched.close_path(["pdf"])
        with pytest.raises(PathClosedError):
            async with sched.permit(["pdf", "x"]):
                pass
        permit = sched.permit(["other"])
        async with permit:
            with pytest.raises(InvalidJobError, match=r"this permit\(\) is held or waited for already"):
                async with permit:
                    pass
        async with permit:
            pass
        assert (await sched.records.count(state="STARTED")).total == 0
