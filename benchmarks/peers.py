"""
No-op jobs through in-memory brokers of other libraries: at the fastest settings found, and at their defaults.

None of them orders jobs by path: their jobs carry the same arguments, and any two may run at once. Each function
enqueues all jobs, then runs them in this process, and returns the seconds of both until the last handler has run. A
peer that is not installed raises ImportError.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.report import TIMER

if TYPE_CHECKING:
    from collections.abc import Callable

Calls = list[tuple[str, str, str]]
Seconds = tuple[float, float]


class _Countdown:
    """Sets an event when the last job runs; next() of a count is one step, whatever thread takes it."""

    def __init__(self, jobs: int) -> None:
        self.event = threading.Event()
        self._jobs = jobs
        self._count = itertools.count(1)

    def hit(self) -> None:
        if next(self._count) == self._jobs:
            self.event.set()


def dramatiq(calls: Calls, *, bare: bool) -> Seconds:
    # One thread: more of them only share the interpreter lock.
    os.environ.setdefault("dramatiq_queue_prefetch", "1000")
    import dramatiq as library
    from dramatiq.brokers.stub import StubBroker

    countdown = _Countdown(len(calls))
    broker = StubBroker(middleware=[] if bare else None)

    @library.actor(broker=broker)
    def noop(doc: str, section: str, branch: str) -> None:
        countdown.hit()

    begin_s = TIMER.read_s()
    for call in calls:
        noop.send(*call)
    enqueued_s = TIMER.read_s()
    worker = library.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    countdown.event.wait()
    drained_s = TIMER.read_s()
    worker.stop()
    broker.close()
    return enqueued_s - begin_s, drained_s - enqueued_s


def huey(calls: Calls, *, results: bool) -> Seconds:
    from huey import MemoryHuey

    countdown = _Countdown(len(calls))
    library = MemoryHuey(results=results, store_none=results)

    @library.task()  # type: ignore[untyped-decorator, unused-ignore]
    def noop(doc: str, section: str, branch: str) -> None:
        countdown.hit()

    begin_s = TIMER.read_s()
    for call in calls:
        noop(*call)
    enqueued_s = TIMER.read_s()
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    consumer = library.create_consumer(workers=1, worker_type="thread", periodic=False, check_worker_health=False)
    consumer.start()
    countdown.event.wait()
    drained_s = TIMER.read_s()
    consumer.stop(graceful=True)
    for number, handler in kept.items():
        signal.signal(number, handler)
    return enqueued_s - begin_s, drained_s - enqueued_s


def taskiq(calls: Calls, *, casts: bool) -> Seconds:
    from taskiq import InMemoryBroker

    countdown = _Countdown(len(calls))

    async def main() -> Seconds:
        # Its broker makes an asyncio task of each job at once; they run in the order in which they were made.
        # With await_inplace it would be a sixth faster, but then enqueuing runs the job and there is no queue.
        broker = InMemoryBroker(cast_types=casts)

        @broker.task
        async def noop(doc: str, section: str, branch: str) -> None:
            countdown.hit()

        await broker.startup()
        begin_s = TIMER.read_s()
        for call in calls:
            await noop.kiq(*call)
        enqueued_s = TIMER.read_s()
        await broker.wait_all()
        drained_s = TIMER.read_s()
        assert countdown.event.is_set()
        await broker.shutdown()
        return enqueued_s - begin_s, drained_s - enqueued_s

    return asyncio.run(main())


PEERS: dict[str, tuple[tuple[str, Callable[[Calls], Seconds]], ...]] = {
    "dramatiq": (
        ("dramatiq StubBroker, 1 thread, no middleware", partial(dramatiq, bare=True)),
        ("dramatiq StubBroker, 1 thread, with retries and limits", partial(dramatiq, bare=False)),
    ),
    "huey": (
        ("huey MemoryHuey, 1 thread, no results", partial(huey, results=False)),
        ("huey MemoryHuey, 1 thread, keeps results", partial(huey, results=True)),
    ),
    "taskiq": (
        ("taskiq InMemoryBroker, async, no casts", partial(taskiq, casts=False)),
        ("taskiq InMemoryBroker, async", partial(taskiq, casts=True)),
    ),
}
"""Of each library the fastest setting found first, and last as it comes, which does more of what a queue is for."""
