"""A submission without an answer raises its ids; repeating it creates no job twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queuehint import JobContext, OutcomeUnknownError, QueueFullError, Scheduler
from queuehint.operations import JOBS_PER_SUBMISSION_MAX, Enqueue
from tests.manual_jobs import ids, on


def lose_answers(sched: Scheduler) -> Callable[[], None]:
    """Lose the replies to submissions that the store has applied; return a function that ends this."""
    call = sched.backend.call

    async def calling(operation: Any) -> Any:
        reply = await call(operation)
        if isinstance(operation, Enqueue):
            raise OutcomeUnknownError("cut")
        return reply

    sched.backend.call = calling  # type: ignore[method-assign]

    def end() -> None:
        sched.backend.call = call  # type: ignore[method-assign]

    return end


def test_an_enqueue_is_asked_for_again_with_its_id(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        def charge(order: int) -> None: ...

        end = lose_answers(sched)
        with pytest.raises(OutcomeUnknownError) as raised:
            await charge.enqueue(1)
        end()
        (job_id,) = raised.value.job_ids
        again = await charge.using(id=job_id).enqueue(1)
        assert (again.id, again.created) == (job_id, False)

    on(url, main)


def test_unknown_outcome_of_many_jobs_names_all_ids(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        def charge(order: int) -> None: ...

        end = lose_answers(sched)
        with pytest.raises(OutcomeUnknownError) as raised:
            await charge.enqueue_many([(n,) for n in range(5)])
        end()
        assert ids(await sched.records.list()) == list(raised.value.job_ids)

    on(url, main)


def test_flow_with_a_lost_answer_names_its_job_ids(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        def step(n: int) -> int:
            return n

        end = lose_answers(sched)
        with pytest.raises(OutcomeUnknownError) as raised:
            async with sched.flow() as flow:
                second = flow.add(step.using(after=[flow.add(step, 1)]), 2)
        end()
        assert second.id in raised.value.job_ids
        assert len(raised.value.job_ids) == 2
        await flow.submit()
        assert sorted(ids(await sched.records.list())) == sorted(raised.value.job_ids)

    on(url, main)


def test_a_handler_is_told_the_id_of_the_child(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        told: list[tuple[str, ...]] = []

        @sched.job
        def child() -> None: ...

        @sched.job
        async def parent(ctx: JobContext) -> None:
            end = lose_answers(sched)
            try:
                await ctx.enqueue(child)
            except OutcomeUnknownError as error:
                told.append(error.job_ids)
            finally:
                end()

        async with sched.worker():
            job = await parent.enqueue()
            await job.result(timeout=60)
        assert told == [(f"{job.id}.1",)]

    on(url, main)


def test_a_refused_later_part_names_the_enqueued_ids(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        def charge(order: int) -> None: ...

        await sched.limit(None, max_pending=JOBS_PER_SUBMISSION_MAX)
        with pytest.raises(QueueFullError, match=r"^the first 1000 of 1005 jobs were enqueued; ") as raised:
            await charge.enqueue_many([(n,) for n in range(1005)])
        there = [record async for record in sched.records.iterate()]
        assert ids(there) == list(raised.value.enqueued_ids)
        assert [sched.records.arguments_of(record)["order"] for record in there] == list(range(1000))
        with pytest.raises(QueueFullError) as raised:
            await charge.enqueue_many([(n,) for n in range(1000, 1005)])
        assert raised.value.enqueued_ids == ()

    on(url, main)
