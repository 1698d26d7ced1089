"""A worker and a producer in this process, for faults of servers and links."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from redis import Redis

from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from queuehint.worker.worker import Worker
from tests import audit
from tests.faults import app, checks
from tests.faults.checks import History
from tests.servers import Server


class WorkerAndProducer:
    """
    A worker in this process behind a proxy, and a producer who reaches the server directly.

    Its handlers' lines go to a file.

    Args:
        server: that has the namespace.
        url: where the worker reaches it.
        near: where all others reach it; the server's own address if not given.
    """

    def __init__(
        self, server: Server, url: str, namespace: str, lines: Path, *, lease: float = 1.0, near: str | None = None
    ) -> None:
        self.server = server
        self.namespace = namespace
        self.lines = lines
        self.far = app.make(url, namespace=namespace, lease=lease)
        self.near = app.make(near or server.url, namespace=namespace, lease=lease)
        self.history = History()
        self.made = 0
        audit.begin_audit(namespace)

    @contextlib.asynccontextmanager
    async def working(self, concurrency: int = 8, grace: float = 0) -> AsyncIterator[Worker]:
        async with self.far.sched.worker(concurrency, grace=grace) as worker:
            yield worker
        for made in (self.far, self.near):
            await made.sched.close()

    async def enqueue(self, count: int, *, paths: int = 4, ms: float = 0) -> None:
        """Enqueue some jobs one by one; what is not known to be in is asked again with the same id."""
        for number in range(count):
            self.made += 1
            name = f"j{self.made}"
            job = self.near.work.using(queue_hint=["p", str(number % paths)], id=name)
            while True:
                try:
                    await job.enqueue(ms)
                except (OutcomeUnknownError, BackendUnavailableError):
                    self.history.unknown.add(name)
                else:
                    self.history.accepted.add(name)
                    break

    async def drained(self, limit_s: float = checks.LIMIT_S) -> None:
        end_s = time.monotonic() + limit_s
        while (await self.near.sched.stats()).unfinished:
            assert time.monotonic() < end_s, await self.near.sched.stats()
            await asyncio.sleep(0.02)

    def client(self) -> Redis:
        """Return a client of the server that has the namespace now."""
        return self.server.client()

    def close(self, *, one_history: bool = True) -> dict[str, Any]:
        """Make all checks; return figures. Where a history was lost, code of it may run beside that of the next."""
        found = checks.close_books(self.client(), self.near.sched.url, self.namespace, self.history)
        lines = checks.read_lines(self.lines)
        grants = checks.check_no_overlap(lines) if one_history else len(checks.grants_of(lines))
        checks.check_tokens_grow(lines)
        return {"jobs": len(found), "grants": grants, "twice": grants - len(found), "lost": 0}


@contextlib.contextmanager
def repeated(act: Callable[[], object], every_s: float) -> Iterator[list[float]]:
    """Do something again and again in a thread; gives the moments."""
    done = threading.Event()
    moments: list[float] = []

    def loop() -> None:
        while not done.wait(every_s):
            act()
            moments.append(time.monotonic())

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield moments
    finally:
        done.set()
        thread.join(checks.LIMIT_S)
        assert not thread.is_alive()
