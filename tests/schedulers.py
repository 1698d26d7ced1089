"""Helpers of scheduler tests: a loop with a time limit, a scheduler with a manual clock, a job, and waits by turns."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from queuehint import FakeClock, Scheduler
from queuehint.backends.memory import MemoryBackend
from tests.support import LIMIT_S

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], limit_s: float = 2 * LIMIT_S) -> T:
    """Run a coroutine on a loop of its own; one that hangs fails."""

    async def guarded() -> T:
        return await asyncio.wait_for(main, limit_s)

    return asyncio.run(guarded())


stores = ["memory://"]
"""Where schedulers of tests keep their jobs, the last counts."""


def scheduler(url: str | None = None, **options: Any) -> tuple[Scheduler, FakeClock]:
    """Return a scheduler and the clock that moves its time."""
    clock = FakeClock()
    return Scheduler(url or stores[-1], clock=clock, **options), clock


def make_job(sched: Scheduler, **options: Any) -> Any:
    """Return a job on the path of its first argument."""

    @sched.job(queue_hint=["{doc}"], name="work", **options)
    async def work(doc: str, n: int = 0) -> str:
        return f"{doc}{n}"

    return work


def memory(sched: Scheduler) -> MemoryBackend:
    """Return the store behind a scheduler on memory."""
    backend: Any = sched.backend
    return backend  # type: ignore[no-any-return]


async def until(reached: Callable[[], Awaitable[bool] | bool], limit_s: float = LIMIT_S) -> None:
    """Let others have their turns until something is so; after many turns with pauses, in which other processes run."""
    end_s = time.monotonic() + limit_s
    for turn in itertools.count():
        answer = reached()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < end_s, f"waited {limit_s:g} s in vain"
        await asyncio.sleep(0 if turn < 1_000 else 0.001)


async def turns(count: int = 20) -> None:
    """Let others have some turns, to see that nothing comes of it."""
    for _ in range(count):
        await asyncio.sleep(0)


class Gate:
    """Handlers, async or in threads, that have entered wait here until they are let through."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self._open = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def wait(self, who: Any = None) -> None:
        event = asyncio.Event()
        self._waiting.append((asyncio.get_running_loop(), event))
        self.entered.append(who)
        if not self._open.is_set():
            await event.wait()

    def wait_sync(self, who: Any = None) -> None:
        self.entered.append(who)
        assert self._open.wait(LIMIT_S)

    def open(self) -> None:
        self._open.set()
        for loop, event in self._waiting:
            loop.call_soon_threadsafe(event.set)

    async def reached(self, count: int = 1) -> None:
        await until(lambda: len(self.entered) >= count)


def in_thread(call: Callable[[], T]) -> Callable[[], T]:
    """Begin a call in a thread; the function returned waits for its end and gives what it returned or raised."""
    answer: list[tuple[T | None, BaseException | None]] = []

    def main() -> None:
        try:
            answer.append((call(), None))
        except BaseException as error:
            answer.append((None, error))

    thread = threading.Thread(target=main, daemon=True)
    thread.start()

    def end() -> T:
        thread.join(LIMIT_S)
        assert answer, "the thread hangs"
        value, error = answer[0]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    return end
