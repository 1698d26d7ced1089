"""
Trace one call through the package: the files that it enters, and the calls that lead from one file to another.

``python -m scripts.journeys [-v] [redis://…]`` prints a line for each journey, with ``-v`` each step too;
`tests/integration/test_journeys.py` holds the numbers as upper limits. Each journey runs once before it is traced, so
that initialisation on first use does not count.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import queuehint
from queuehint import Backoff, FakeClock, JobState, Scheduler

if TYPE_CHECKING:
    from types import FrameType

ROOT = str(Path(queuehint.__file__).parent) + "/"


class Trace:
    """
    The calls between entering and leaving a ``with`` block, in this thread.

    ``files`` counts the calls of each file; ``steps`` are the calls from one file to another, in order: the calling
    file (None: no file of the package), the called one, and the function.
    """

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.steps: list[tuple[str | None, str, str]] = []

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _arg: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(ROOT):
            return
        name = file.removeprefix(ROOT)
        self.files[name] = self.files.get(name, 0) + 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        before = None if caller is None else caller.f_code.co_filename.removeprefix(ROOT)
        if before != name:
            self.steps.append((before, name, frame.f_code.co_qualname))


async def _return(doc: str) -> str:
    return doc


async def _fail(doc: str) -> str:
    raise ValueError(doc)


def _enqueue(url: str) -> Trace:
    sched = Scheduler(url, clock=FakeClock())
    index = sched.job(queue_hint=lambda doc: [doc], name="index")(_return)
    for n in range(3):
        index.enqueue_sync(f"doc{n}")
    with Trace() as trace:
        index.enqueue_sync("doc1")
    sched.close_sync()
    return trace


def enqueue_in_memory() -> Trace:
    """One `Job.enqueue_sync` with the memory backend."""
    return _enqueue("memory://")


def enqueue_on_redis(url: str) -> Trace:
    """One `Job.enqueue_sync` on Redis: its Python files."""
    return _enqueue(url)


def why() -> Trace:
    """One `JobHandle.why_sync` of a job that waits for its place."""
    sched = Scheduler("memory://", clock=FakeClock())
    index = sched.job(queue_hint=lambda doc: [doc], name="index")(_return)
    index.enqueue_sync("a")
    behind = index.enqueue_sync("a")
    behind.why_sync()
    with Trace() as trace:
        behind.why_sync()
    sched.close_sync()
    return trace


async def _turns(run: Callable[[str], Coroutine[Any, Any, str]], end: JobState) -> Trace:
    """Let a worker run three jobs; trace the last one, from when it is ready until its worker waits again."""
    sched = Scheduler("memory://", clock=FakeClock())
    index = sched.job(queue_hint=lambda doc: [doc], name="index", retry=Backoff(base=30))(run)
    worker = sched.make_worker()
    running = asyncio.create_task(worker.run())
    for n in range(3):
        await _rest()
        handle = await index.enqueue(f"doc{n}")
        with Trace() as trace:
            await _rest()
        assert (await handle.record()).state is end
    worker.stop()
    await running
    await sched.close()
    return trace


async def _rest() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def turn_of_a_worker() -> Trace:
    """A worker claims a job, runs it and settles it."""
    return asyncio.run(_turns(_return, JobState.FINISHED))


def retry() -> Trace:
    """A worker claims a job that fails, and puts it back for a retry."""
    return asyncio.run(_turns(_fail, JobState.QUEUED))


JOURNEYS: dict[str, Callable[[], Trace]] = {
    "enqueue in memory": enqueue_in_memory,
    "a worker's turn": turn_of_a_worker,
    "a retry": retry,
    "why": why,
}

if __name__ == "__main__":
    journeys = dict(JOURNEYS)
    for url in set(sys.argv[1:]) - {"-v"}:
        journeys["enqueue on Redis"] = partial(enqueue_on_redis, url)
    for name, make in journeys.items():
        made = make()
        print(f"{name}: {len(made.files)} files, {len(made.steps)} calls from one to another")
        if "-v" in sys.argv:
            for step in made.steps:
                print("   ", *step)
