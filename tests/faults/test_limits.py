"""Back-pressure on producers faster than the workers, and a rate limit shared by worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from queuehint import JobState, QueueFullError, Scheduler
from tests import audit
from tests.faults import app, checks
from tests.faults.checks import figures, until_sync
from tests.faults.worker_processes import Crew
from tests.schedulers import run
from tests.servers import Server

pytestmark = pytest.mark.redis

LEASE_S = 2.0


def most_at_once(lines: Iterable[checks.Line], gone: Mapping[int, float]) -> int:
    """Return how much code of jobs ran at once at most, by what it said and by when its process was gone."""
    begun = {(line.job, line.token): line for line in lines if line.event == "start"}
    ends = {(line.job, line.token): line.t for line in lines if line.event in {"end", "stopped"}}
    moments = []
    for key, line in begun.items():
        moments += [(line.t, 1), (min(ends.get(key, float("inf")), gone.get(line.pid, float("inf"))), -1)]
    now = most = 0
    for _, by in sorted(moments):
        now += by
        most = max(most, now)
    return most


@pytest.mark.slow
def test_two_processes_never_exceed_a_limit_after_a_kill(redis_server: Server, namespace: str, tmp_path: Path) -> None:
    client = redis_server.client()
    audit.begin_audit(namespace)
    made = app.make(redis_server.url, namespace=namespace, lease=LEASE_S)
    sched, history = made.sched, checks.History()
    sched.limit_sync(["tenant"], 3)
    sched.limit_sync(["tenant"], 2, each=True)
    with Crew(redis_server.url, namespace, tmp_path, lease=LEASE_S) as crew:
        for number in range(40):
            name = f"job{number}"
            path = ["tenant", "ab"[number % 2], str(number)] if number < 34 else ["else", str(number)]
            made.work.using(id=name, queue_hint=path).enqueue_sync(30)
            history.accepted.add(name)
        members = [crew.started(crew.worker("--concurrency=8")) for _ in range(2)]
        crew.wait_for("start", 6)
        crew.kill(members[0])
        until_sync(lambda: not sched.stats_sync().unfinished, "all jobs are over")
        tenants = [line for line in crew.lines() if int(line.job[3:]) < 34]
        most = most_at_once(tenants, crew.gone)
        assert 2 <= most <= 3
        of_one = [line for line in tenants if int(line.job[3:]) % 2]
        assert most_at_once(of_one, crew.gone) <= 2
    assert [state.started for state in sched.limits_sync()] == [0, 0]
    assert sched.unlimit_sync(["tenant"])
    checks.close_books(client, redis_server.url, namespace, history, states=(JobState.FINISHED,))
    checks.check_no_overlap(crew.lines(), crew.gone)
    sched.close_sync()


def test_idle_redis_worker_wakes_for_slots_tokens_and_changed_limits(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without being woken, each of five would wait for longer than this test may take.
    for name in ("worker.listening.WAIT_CEILING_S", "backends.redis.backend.WAIT_CEILING_S"):
        monkeypatch.setattr(f"queuehint.{name}", 600.0)
    monkeypatch.setattr("queuehint.backends.redis.connections.link.WAIT_TIMEOUT_S", 900.0)

    async def main() -> None:
        sched = Scheduler(redis_server.url, namespace=namespace)
        gates = [asyncio.Event() for _ in range(6)]
        begun: list[int] = []

        @sched.job(queue_hint=["a", "{n}"])
        async def work(n: int) -> None:
            begun.append(n)
            await gates[n].wait()

        await sched.limit(["a"], 1)
        await work.enqueue_many([(n,) for n in range(6)])
        async with sched.worker(concurrency=2), sched.worker(concurrency=2):
            await checks.until(lambda: begun == [0], "one runs")
            gates[0].set()
            await checks.until(lambda: len(begun) == 2, "the next has the slot")
            await sched.limit(["a"], 2)
            await checks.until(lambda: len(begun) == 3, "one more has the new slot")
            await sched.limit(["a"], rate=(2, 0.4))
            await checks.until(lambda: len(begun) == 5, "there are two tokens")
            for gate in gates:
                gate.set()
            await checks.until(lambda: len(begun) == 6, "tokens come back")
            await sched.drain(timeout=30)
        assert await sched.unlimit(["a"])
        await sched.close()

    run(main())


def press(server: Server, namespace: str, most: int, jobs: int, *, batch: int) -> dict[str, float]:
    """Submit faster than one worker works, wait where the queue is full, and see that it never holds more."""

    async def main() -> dict[str, float]:
        sched = Scheduler(server.url, namespace=namespace)
        client = server.client()

        @sched.job(queue_hint=["doc", "{n}"])
        async def work(n: int) -> None: ...

        await sched.limit(None, max_pending=most)
        submitted = bytes_full = 0
        seen: list[int] = []
        refusals: list[tuple[int, int]] = []

        async def produce(first: int) -> None:
            nonlocal submitted, bytes_full
            for begin in range(first, jobs, 2 * batch):
                while True:
                    try:
                        await work.enqueue_many([(n,) for n in range(begin, begin + batch)])
                        submitted += batch
                        break
                    except QueueFullError as error:
                        refusals.append((error.limit, error.pending))
                        bytes_full = bytes_full or int(client.info("memory")["used_memory"])
                        await asyncio.sleep(0.05)

        async def watch() -> None:
            while True:
                (state,) = await sched.limits()
                assert state.pending is not None
                seen.append(state.pending)
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        producing = [asyncio.create_task(produce(first)) for first in (0, batch)]
        await checks.until(lambda: bool(refusals), "the queue is full", 600)
        assert not watching.done()
        assert submitted <= most
        async with sched.worker(concurrency=32):
            await asyncio.gather(*producing)
            bytes_end = int(client.info("memory")["used_memory"])
            await sched.drain(timeout=600)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert submitted == jobs
        assert max(seen) <= most
        assert all((limit, most - batch < pending <= most) == (most, True) for limit, pending in refusals)
        await sched.close()
        return {"refused": len(refusals), "most": max(seen), "bytes_full": bytes_full, "bytes_end": bytes_end}

    return run(main(), 1_200)


def test_producers_that_are_faster_than_the_workers_are_refused(redis_server: Server, namespace: str) -> None:
    figures("F-31", **press(redis_server, namespace, 200, 800, batch=20))


@pytest.mark.nightly
@pytest.mark.heavy
def test_fifty_thousand_jobs_may_wait_and_no_more(redis_server: Server, namespace: str) -> None:
    found = press(redis_server, namespace, 50_000, 120_000, batch=500)
    figures("F-31", **found)
    # Ended jobs are kept for a day: a record takes less than twice the memory of a waiting job.
    assert found["bytes_end"] < 5 * found["bytes_full"]
