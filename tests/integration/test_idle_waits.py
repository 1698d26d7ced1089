"""Cost of idle waits on Redis: the commands that a client sends, each script as one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuehint import Scheduler
from queuehint.backends.redis.connections.async_link import AsyncLink
from queuehint.backends.redis.transport import Send
from tests.servers import Server

WARM_S, MEASURED_S = 5.0, 20.0
PAUSES = (
    "queuehint.backends.redis.backend.WAIT_CEILING_S",
    "queuehint.backends.redis.session.ROLE_EVERY_S",
    "queuehint.backends.redis.subscriptions.LISTEN_S",
    "queuehint.backends.redis.subscriptions.TOGETHER_S",
    "queuehint.backends.redis.subscriptions.TRUSTED_S",
    "queuehint.client.flows.handle.POLL_MAX_S",
    "queuehint.client.flows.handle.POLL_MIN_S",
    "queuehint.client.handle.WAIT_CEILING_S",
    "queuehint.client.stuck.ASK_EVERY_S",
    "queuehint.client.stuck.LOOK_AFTER_S",
    "queuehint.client.stuck.LOOK_EVERY_MAX_S",
    "queuehint.scheduler.draining.POLL_MAX_S",
    "queuehint.scheduler.draining.WAIT_S",
    "queuehint.client.event_reader.PAUSES_S",
    "queuehint.scheduler.holds.request.WAIT_CEILING_S",
    "queuehint.worker.listening.WAIT_CEILING_S",
)
"""All intervals of waiters, except those of leases."""


async def follow(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


async def hold(sched: Scheduler) -> None:
    async with sched.exclusive(["doc"]):
        pass


async def drain(sched: Scheduler) -> None:
    async with sched.worker(grace=0):
        await sched.drain(["doc"])


class Waiting:
    """A scheduler with a wait that never ends."""

    def __init__(self, url: str, name: str, lease_s: float) -> None:
        self.sched = sched = Scheduler(url, namespace=f"waits-{name.replace(' ', '-')}", lease=lease_s)
        self.name = name

        @sched.job(queue_hint=["doc"], pool="default" if name == "drain" else "nobody")
        async def never() -> None:
            await asyncio.sleep(3600)

        self._never = never

    async def begin(self) -> list[asyncio.Task[None]]:
        jobs = [await self._never.enqueue() for _ in range(20 if self.name.startswith("100") else 1)]
        async with self.sched.flow() as flow:
            flow.add(self._never)
        waits: dict[str, list[Any]] = {
            "result": [jobs[0].result()],
            "100 results": [job.result() for job in jobs for _ in range(5)],
            "job events": [follow(jobs[0].events())],
            "100 job events": [follow(job.events()) for job in jobs for _ in range(5)],
            "events": [follow(self.sched.events())],
            "exclusive": [hold(self.sched)],
            "flow": [flow.result()],
            "drain": [drain(self.sched)],
        }
        for name, coroutines in waits.items():
            if name != self.name:
                for coroutine in coroutines:
                    coroutine.close()
        return [asyncio.create_task(each) for each in waits[self.name]]

    def sent(self, counts: Counter[AsyncLink]) -> int:
        backend: Any = self.sched.backend
        loop = backend._loop()
        return counts[loop.link] + counts[loop._waits]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::queuehint.QueueHintWarning")
@pytest.mark.parametrize("faster", [10, pytest.param(1, marks=pytest.mark.nightly)])
async def test_a_waiter_sends_at_most_one_command_a_second(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch, faster: int
) -> None:
    for path in PAUSES:
        module, _, name = path.rpartition(".")
        pause = getattr(__import__(module, fromlist=[name]), name)
        paced = tuple([each / faster for each in pause]) if isinstance(pause, tuple) else pause / faster
        monkeypatch.setattr(path, paced)
    counts: Counter[AsyncLink] = Counter()
    asked = AsyncLink.ask

    async def ask(link: AsyncLink, send: Send) -> Any:
        counts[link] += 1
        return await asked(link, send)

    monkeypatch.setattr(AsyncLink, "ask", ask)
    names = ("result", "100 results", "job events", "100 job events", "events", "exclusive", "flow", "drain")
    waiting = [Waiting(redis_server.url, name, 30 / faster) for name in names]
    tasks = [task for each in waiting for task in await each.begin()]

    async def sent_in(seconds: float) -> tuple[dict[str, int], float]:
        """Return how much each sends in some seconds, and how many they were."""
        before, begun_s = {each.name: each.sent(counts) for each in waiting}, time.monotonic()
        await asyncio.sleep(seconds / faster)
        sent = {each.name: each.sent(counts) - before[each.name] for each in waiting}
        return sent, (time.monotonic() - begun_s) * faster

    for _ in range(20):  # on a slow machine it takes a while until they have begun
        sent, took_s = await sent_in(WARM_S)
        if max(sent.values()) <= took_s:
            break
    sent, took_s = await sent_in(MEASURED_S)
    # With pauses as short as that, a slow machine tells a hundred waiters of a change in several pauses.
    most = took_s if faster == 1 else 3 * took_s
    assert not [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in waiting:
        await each.sched.close()
    assert {name: count for name, count in sent.items() if count > most} == {}, sent
    assert min(sent.values()) > 0
    print(sent)
