"""Orders about more jobs than one request takes: they go by the order of enqueue, on every store."""

from __future__ import annotations

from random import Random

import pytest

from queuehint import JobHandle, Scheduler
from queuehint.operations import JOBS_AT_ONCE, LIST_MAX

COUNT = 2 * JOBS_AT_ONCE + 20
PLACES = (["doc"], ["doc", "part"])
"""Jobs there conflict; a listing has all of the first before those of the second."""


async def fill(sched: Scheduler, count: int = COUNT) -> tuple[list[JobHandle[None]], list[int]]:
    """Enqueue jobs of one document, let all fail, and return them, and which of them run from then on."""
    ran: list[int] = []
    fails = True

    @sched.job(max_attempts=1)
    async def edit(number: int) -> None:
        if fails:
            raise ValueError(number)
        ran.append(number)

    jobs = [await edit.using(queue_hint=PLACES[number % 2]).enqueue(number) for number in range(count)]
    await sched.drain(run=True)
    fails = False
    return jobs, ran


@pytest.mark.slow
async def test_redrive_of_many_ids_keeps_the_order_of_enqueue(url: str) -> None:
    sched = Scheduler(url)
    jobs, ran = await fill(sched)
    shuffled = [job.id for job in jobs]
    Random(7).shuffle(shuffled)
    assert await sched.dead.redrive(shuffled) == COUNT
    await sched.drain(run=True)
    assert ran == list(range(COUNT))
    await sched.close()


@pytest.mark.slow
async def test_redrive_of_a_large_path_keeps_the_order_of_enqueue(url: str) -> None:
    sched = Scheduler(url)
    count = LIST_MAX + 60
    _, ran = await fill(sched, count)
    assert await sched.dead.redrive(path=["doc"]) == count
    await sched.drain(run=True)
    assert ran == list(range(count))
    await sched.close()


async def test_limited_redrive_of_a_path_takes_the_first_listed(url: str) -> None:
    sched = Scheduler(url)
    _, ran = await fill(sched, 9)
    assert await sched.dead.redrive(path=["doc"], limit=4) == 4
    await sched.drain(run=True)
    assert ran == [0, 2, 4, 6], "those of doc come first in the listing"
    assert await sched.dead.redrive(path=["doc"]) == 5
    await sched.drain(run=True)
    assert ran[4:] == [1, 3, 5, 7, 8]
    await sched.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cancel", "discard"])
async def test_cancel_and_discard_of_many_ids_answer_in_their_order(url: str, way: str) -> None:
    sched = Scheduler(url)
    jobs, ran = await fill(sched)
    ids = [job.id for job in reversed(jobs)]
    if way == "discard":
        assert await sched.dead.discard(ids) == COUNT
    else:
        await sched.dead.redrive(ids)
        assert await sched.cancel([*ids, "unknown", ids[0]]) == [*[True] * COUNT, False, True]
    await sched.drain(run=True)
    assert not ran
    assert (await sched.stats()).unfinished == 0
    await sched.close()
