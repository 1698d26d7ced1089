"""
Base class of the contenders of `benchmarks.redis`: settings from the environment, enqueueing, measuring in the worker.

Producer and worker are processes of their own: `BENCH='{...}' python -m benchmarks.redis_peers NAME produce MODE SHAPE
JOBS` prints its seconds, and `... NAME work` writes a file once the expected number of jobs has run.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Call = tuple[Any, ...]
"""The arguments of a job; the last is when it was sent (0: not measured), or its number in its line."""

DOCS = 1000
PER_S = 100
GATHERED = 50
WIDTH = 100
"""How many jobs of a flow have to be over before its last."""
HELD_S = 0.1
"""How long a job of the backlog holds the one place that all of it needs."""


@attrs.frozen
class Orders:
    """Settings of one process of the benchmark."""

    url: str
    jobs: int = 0
    out: str = ""
    shape: str = ""
    concurrency: int = 128

    @classmethod
    def given(cls) -> Orders:
        return cls(**json.loads(os.environ["BENCH"]))


class Meter:
    """Counts the jobs of a worker and reports when the last one has run; handlers may be threads."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._count = itertools.count(1)  # next() is one step, whatever thread takes it
        self._first_ns = self._first_cpu_ns = 0
        self._waits_ns: list[int] = []
        self._next: dict[str, int] = {}
        self._disorder = 0
        self.report: dict[str, Any] = {}
        self.on_last: Callable[[], None] = self.write

    def hit(self, sent: int = 0) -> None:
        if sent:
            self._waits_ns.append(time.monotonic_ns() - sent)
        number = next(self._count)
        if number == 1:
            self._first_ns, self._first_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        if number == self._orders.jobs:
            self.report = {
                "jobs": number,
                "seconds": (time.monotonic_ns() - self._first_ns) / 1e9,
                "cpu_s": (time.process_time_ns() - self._first_cpu_ns) / 1e9,
                "waits": self._waits_ns,
                "disorder": self._disorder,
                "last_ns": time.monotonic_ns(),
            }
            self.on_last()

    def in_line(self, line: str, number: int) -> None:
        """Count a job of a serial line, and see that it is the line's next."""
        self._disorder += number != self._next.get(line, 0)
        self._next[line] = number + 1
        self.hit()

    def write(self) -> None:
        partial = Path(f"{self._orders.out}.tmp")
        partial.write_text(json.dumps(self.report), encoding="utf-8")
        partial.replace(self._orders.out)


class Contender:
    """One queue: enqueues jobs in the ways it has, and runs a worker. Methods may be plain or async."""

    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    store: ClassVar[str] = "redis"
    modes: ClassVar[tuple[str, ...]] = ("one",)
    """Which of `one`, `one_sync`, `bulk`, `bulk_sync` it has."""
    has_flows: ClassVar[bool] = False
    has_places: ClassVar[bool] = False
    """Whether jobs may need a place: the shapes `held`, all the same one, and `free`, each one of its own."""
    is_plain: ClassVar[bool] = False
    """Whether `one` is no coroutine."""
    share: ClassVar[float] = 1.0
    """Of the jobs the fast ones get: so much a slow one."""

    def __init__(self, orders: Orders, meter: Meter) -> None:
        self.orders = orders
        self.meter = meter

    @classmethod
    def lacks(cls) -> str:
        """Say what has to be installed first; nothing if all is there."""
        missing = [name for name in cls.packages if find_spec(name) is None]
        return f"no {', '.join(missing)}" if missing else ""

    @classmethod
    def command(cls) -> tuple[str, ...]:
        return (sys.executable, "-m", "benchmarks.redis_peers", cls.__name__.lower())

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Disconnect."""

    def calls(self, shape: str, jobs: int) -> Iterable[Call]:
        return itertools.repeat((0,), jobs)

    def places(self, shape: str, jobs: int) -> Iterator[Call]:
        """Yield the calls of `held` or `free`: place, seconds to sleep."""
        for number in range(jobs):
            yield ("hot", HELD_S) if shape == "held" else (f"free-{number}", 0.0)

    async def at_place(self, place: str, busy_s: float) -> None:
        """Run a job of `held` or `free`; those of `free` are counted."""
        if busy_s:
            await asyncio.sleep(busy_s)
        else:
            self.meter.hit()

    def one(self, shape: str, call: Call) -> Any:
        """Enqueue one job and wait until the store has it."""
        raise NotImplementedError

    def bulk(self, shape: str, calls: Iterable[Call]) -> Any:
        """Enqueue many in the fastest documented way; without a bulk call 50 at a time."""
        return self.gathered(shape, calls)

    async def gathered(self, shape: str, calls: Iterable[Call]) -> None:
        for batch in batches(calls, GATHERED):
            await asyncio.gather(*(self.one(shape, call) for call in batch))

    def flows(self, count: int, width: int) -> Any:
        """Enqueue so many times *width* jobs that are not counted, and one that is, once they are over."""
        raise NotImplementedError

    def work(self) -> Any:
        """Run a worker for ever, or become one."""
        raise NotImplementedError


def batches(calls: Iterable[Call], size: int) -> Iterator[list[Call]]:
    iterator = iter(calls)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


async def produce(peer: Contender, mode: str, shape: str, jobs: int) -> dict[str, Any]:
    """Enqueue; return the seconds it took and when it began, by the clock of all processes."""
    calls = peer.calls(shape, jobs)
    await peer.open()
    begin_ns, begin_s = time.monotonic_ns(), time.monotonic()
    if mode == "paced":
        for number, call in enumerate(calls):
            await asyncio.sleep(max(0.0, begin_s + number / PER_S - time.monotonic()))
            await maybe(peer.one(shape, (*call[:-1], time.monotonic_ns())))
    elif mode == "flows":
        await maybe(peer.flows(jobs, WIDTH))
    elif mode.startswith("bulk"):
        await maybe(getattr(peer, mode)(shape, calls))
    else:
        enqueue = getattr(peer, mode)
        for call in calls:
            if (sending := enqueue(shape, call)) is not None:
                await sending
    seconds = time.monotonic() - begin_s
    await peer.close()
    return {"seconds": seconds, "begin_ns": begin_ns}


async def maybe(value: Any) -> None:
    if inspect.isawaitable(value):
        await value
