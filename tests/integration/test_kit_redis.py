"""Test helpers for applications, on a store that other processes use too."""

from __future__ import annotations

from queuehint import FakeClock, JobState, Retry, Scheduler
from queuehint.testing import assert_enqueued, assert_enqueued_sync, drain, drain_sync, refute_enqueued_sync


def test_jobs_on_redis_are_drained_with_a_fake_clock(redis_url: str, namespace: str) -> None:
    clock = FakeClock()
    sched = Scheduler(redis_url, namespace=namespace, clock=clock)
    began = clock.now_ms()
    answers: list[str | Retry] = [Retry(after=3600), "done"]

    @sched.job(queue_hint=["{doc}"])
    def render(doc: str) -> str | Retry:
        return answers.pop(0)

    @sched.every(600)
    @sched.job
    async def tidy() -> None: ...

    handle = render.using(delay=60).enqueue_sync("doc1")
    assert_enqueued_sync(sched, render, hint=["doc1"], delay=60, count=1)
    refute_enqueued_sync(sched, tidy)
    drained = drain_sync(sched, within=7200)
    assert clock.now_ms() - began == 7_200_000
    assert [record.spec.task for record in drained].count("tidy") == 12
    assert handle.result_sync(timeout=30) == "done"
    sched.close_sync()


async def test_the_asynchronous_twins_do_the_same(redis_url: str, namespace: str) -> None:
    async with Scheduler(redis_url, namespace=namespace, clock=FakeClock()) as sched:
        job = sched.job(name="t")(lambda: 5)
        await job.using(delay=86_400).enqueue()
        await assert_enqueued(sched, "t", state="SCHEDULED")
        (record,) = await drain(sched, raise_errors=True)
        assert (record.state, sched.records.result_of(record)) == (JobState.FINISHED, 5)
