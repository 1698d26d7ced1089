"""Queuehint as a contender of `benchmarks.redis`."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from benchmarks.contender import DOCS, Call, Contender, Meter, Orders
from queuehint import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Queuehint(Contender):
    """
    Ourselves, with a hint for each job. The shapes:

    parts: depth 2, 1 000 documents in turn, each job in a part of its own: none waits for another.
    branches: depth 3, 1 000 documents at random, 4 branches each: most wait, as under the memory benchmarks.
    serial: depth 1, 1 000 documents in turn, all jobs of one strictly in order. hot: the same with one document.
    depth1, depth3, depth8: each job at a leaf of its own, below 1 000 documents.
    blocked: depth 3, below the place that `hold` holds.
    """

    title = "queuehint, a hint each"
    modes = ("one", "one_sync", "bulk", "bulk_sync")
    has_flows = True
    has_places = True

    def __init__(self, orders: Orders, meter: Meter) -> None:
        super().__init__(orders, meter)
        scheduler = self.scheduler = Scheduler(orders.url, namespace="bench")

        @scheduler.job(queue_hint=["{doc}", "{part}"])
        async def part(doc: str, part: str, sent: int) -> None:
            meter.hit(sent)

        @scheduler.job(queue_hint=["{doc}", "{section}", "{branch}"])
        async def branch(doc: str, section: str, branch: str, sent: int) -> None:
            meter.hit(sent)

        @scheduler.job(queue_hint=["{doc}"])
        async def serial(doc: str, number: int) -> None:
            meter.in_line(doc, number)

        @scheduler.job(queue_hint=["{place}"])
        async def at_place(place: str, busy_s: float) -> None:
            await self.at_place(place, busy_s)

        @scheduler.job(queue_hint=["{leaf}"])
        async def depth1(leaf: str, sent: int) -> None:
            meter.hit(sent)

        @scheduler.job(queue_hint=["{doc}", "2", "3", "4", "5", "6", "7", "{leaf}"])
        async def depth8(doc: str, leaf: str, sent: int) -> None:
            meter.hit(sent)

        @scheduler.job
        async def child() -> None:
            pass

        @scheduler.job
        async def join() -> None:
            meter.hit()

        self._child, self._join = child, join

        @scheduler.job(queue_hint=["hot", "all"], pool="holder")
        async def hold() -> None:
            meter.hit()
            await asyncio.Event().wait()

        self._hold = hold
        three = {"branches": branch, "depth3": branch, "blocked": branch}
        two: dict[str, Any] = {"parts": part, "serial": serial, "hot": serial, "depth1": depth1, "depth8": depth8}
        two |= {"held": at_place, "free": at_place}
        self._jobs = two | three

    def calls(self, shape: str, jobs: int) -> Iterator[Call]:
        if shape in ("held", "free"):
            yield from self.places(shape, jobs)
            return
        choose = random.Random(1)
        for i in range(jobs):
            doc = f"doc-{i % DOCS}"
            if shape == "parts":
                yield doc, f"part-{i // DOCS}", 0
            elif shape == "branches":
                doc = f"doc-{choose.randrange(DOCS)}"
                yield doc, f"section-{choose.randrange(2)}", f"branch-{choose.randrange(2)}", 0
            elif shape == "serial":
                yield doc, i // DOCS
            elif shape == "hot":
                yield "hot", i
            elif shape == "depth1":
                yield f"leaf-{i}", 0
            elif shape == "depth3":
                yield doc, "2", f"leaf-{i}", 0
            elif shape == "depth8":
                yield doc, f"leaf-{i}", 0
            else:
                assert shape == "blocked"
                yield "hot", "all", f"branch-{i % DOCS}", 0

    async def open(self) -> None:
        await self.scheduler.stats()

    async def close(self) -> None:
        await self.scheduler.close()

    def one(self, shape: str, call: Call) -> Any:
        return self._jobs[shape].enqueue(*call)

    def one_sync(self, shape: str, call: Call) -> None:
        self._jobs[shape].enqueue_sync(*call)

    def bulk(self, shape: str, calls: Iterable[Call]) -> Any:
        return self._jobs[shape].enqueue_many(calls)

    def bulk_sync(self, shape: str, calls: Iterable[Call]) -> None:
        self._jobs[shape].enqueue_many_sync(calls)

    async def flows(self, count: int, width: int) -> None:
        for _ in range(count):
            async with self.scheduler.flow() as flow:
                children = [flow.add(self._child) for _ in range(width)]
                flow.add(self._join.using(after=children))

    async def work(self) -> None:
        """Report when the worker has settled all it ran, and how much later that was."""
        last = asyncio.Event()
        self.meter.on_last = last.set
        async with self.scheduler.worker(self.orders.concurrency, pools=["default"]):
            await last.wait()
            begin_s = time.perf_counter()
        self.meter.report["settled_s"] = time.perf_counter() - begin_s
        await self.scheduler.close()
        self.meter.write()

    async def hold(self) -> None:
        await self._hold.enqueue()
        async with self.scheduler.worker(1, pools=["holder"]):
            await asyncio.Event().wait()
