"""A job with more dependencies than one request may hold, by the scheduler API, on all stores."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint import Children, InvalidJobError, JobContext, Scheduler
from queuehint.operations import CountEdges
from queuehint.values.record import JobState
from queuehint.values.spec import PORTION_MAX
from tests.schedulers import run, scheduler


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit a request to five dependencies."""
    for module in ("client.arrangement", "core.refusals", "core.structures.edges", "operations.bounds"):
        monkeypatch.setattr(f"queuehint.{module}.PORTION_MAX", 5)
    return 5


def tasks(sched: Scheduler) -> tuple[Any, Any]:
    """Register a job that returns its number, and one that adds up all it depends on."""

    @sched.job
    async def row(number: int) -> int:
        return number

    @sched.job(max_attempts=1)
    async def total(ctx: JobContext) -> int:
        return sum(ctx.results.values())

    return row, total


async def fan_in(sched: Scheduler, count: int) -> None:
    """Add up many jobs in a flow, by their results."""
    row, total = tasks(sched)
    async with sched.flow() as flow:
        rows = [flow.add(row, number) for number in range(count)]
        last = flow.add(total.using(after=rows))
    reason = await last.why()
    assert (reason.open_dependencies, reason.jobs) == (count, tuple(sorted(each.id for each in rows))[:10])
    await sched.drain(timeout=600, run=True)
    assert await last.result(timeout=0) == sum(range(count))
    record = await last.record()
    assert [edge.id for edge in record.spec.depends_on] == [each.id for each in rows]
    assert (await sched.edges()).open_edges == 0


async def test_a_job_waits_for_all_portions_and_has_their_results(url: str, few: int) -> None:
    sched, _ = scheduler(url)
    await fan_in(sched, 3 * few + 2)
    await sched.close()


@pytest.mark.slow
async def test_a_job_waits_for_3000_others() -> None:
    sched, _ = scheduler()
    await fan_in(sched, 3 * PORTION_MAX)


@pytest.mark.nightly
@pytest.mark.heavy
def test_a_job_waits_for_100_000_others(url: str) -> None:
    async def main() -> None:
        sched = Scheduler(url)
        await fan_in(sched, 99_999)
        await sched.close()

    run(main(), 600)


async def test_fan_in_awaits_earlier_jobs_and_is_idempotent(url: str, few: int) -> None:
    sched, _ = scheduler(url)
    row, total = tasks(sched)
    rows = await row.enqueue_many([(number,) for number in range(2 * few)])
    last = total.using(id="last", after=rows)
    first = await last.enqueue()
    assert first.created
    again = await last.enqueue()
    assert (again.id, again.created) == ("last", False)
    assert (await sched.edges()).open_edges == 2 * few
    await sched.cancel(["last"])
    assert not (await last.enqueue()).created
    assert (await sched.edges()).open_edges == 0
    await sched.drain(timeout=60, run=True)
    assert await first.state() is JobState.CANCELED
    await sched.close()


async def test_a_handler_waits_for_many_by_one_child(few: int) -> None:
    sched, _ = scheduler()
    row, total = tasks(sched)

    @sched.job
    async def parent(ctx: JobContext) -> Children:
        rows = await ctx.enqueue_many(row, [(number,) for number in range(3 * few)])
        return Children(await ctx.enqueue(total.using(after=rows)))

    job = await parent.enqueue()
    await sched.drain(timeout=60, run=True)
    assert await job.state() is JobState.FINISHED
    assert (await sched.stats()).finished == 3 * few + 2


async def test_keyed_job_with_excess_dependencies_is_refused(few: int) -> None:
    sched, _ = scheduler()
    row, total = tasks(sched)
    rows = await row.enqueue_many([(number,) for number in range(few + 1)])
    with pytest.raises(InvalidJobError, match="key is not supported in an atomic submission of this size"):
        await total.using(after=rows, key="k").enqueue()
    with pytest.raises(LookupError, match="nobody"):
        await total.using(after=[*rows, "nobody"]).enqueue()
    assert (await sched.backend.call(CountEdges())).deferred == 0
