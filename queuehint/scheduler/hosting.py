"""Workers inside this process: on a loop, in a thread, inside a web application."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from queuehint.client.handle import Desk
from queuehint.errors import WouldDeadlockError
from queuehint.operations import GRANTS_MAX, POOLS_MAX, USERS_NAMED_MAX
from queuehint.scheduler.listening import Listening
from queuehint.values.checks import check_int, check_items

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
    from datetime import timedelta

    from queuehint.worker.worker import Worker

DEFAULT_CONCURRENCY = 16


class _Maker(Desk, Protocol):
    _workers: dict[Worker, int]
    """Those that run here, each with its thread."""

    def make_worker(
        self,
        concurrency: int = ...,
        *,
        pools: Iterable[str] | None = None,
        users: Iterable[str | None] | None = None,
        steal: Iterable[str | None] = (),
        grace: float | timedelta = 30,
    ) -> Worker: ...


class Hosting(_Maker, Listening):
    """The part of `Scheduler` that runs workers."""

    @contextlib.asynccontextmanager
    async def worker(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        *,
        pools: Iterable[str] | None = None,
        users: Iterable[str | None] | None = None,
        steal: Iterable[str | None] = (),
        grace: float | timedelta = 30,
    ) -> AsyncIterator[Worker]:
        """
        Run a worker on this loop while the block runs.

        Args:
            concurrency: how many jobs at once, 1–1 000; as many threads for plain functions.
            pools: which pools to serve; by default those of the jobs registered here.
            users: whose jobs to run, 1–64, in turn; None among them stands for jobs without a user. By default
                everyone's.
            steal: whom to help while none of *users* has a job ready in these pools, up to 64; `ANYONE` for
                everyone. Pools times users named here may be 1 000.
            grace: how long running jobs may go on once the block ends; then async handlers are canceled and given
                back to their places. A plain function is waited for until its code has ended.
        """
        worker = self.make_worker(concurrency, pools=pools, users=users, steal=steal, grace=grace)
        async with self.running(worker):
            yield worker

    @contextlib.asynccontextmanager
    async def running(self, worker: Worker) -> AsyncIterator[None]:
        """Run a worker that was made by `make_worker` on this loop while the block runs."""
        with self.hosts(worker):
            async with self.listening():
                task = asyncio.create_task(worker.run(), name="queuehint-worker")
                try:
                    await _first(worker.started.wait(), task)
                    yield
                finally:
                    worker.stop()
                    await task

    @contextlib.contextmanager
    def worker_sync(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        *,
        pools: Iterable[str] | None = None,
        users: Iterable[str | None] | None = None,
        steal: Iterable[str | None] = (),
        grace: float | timedelta = 30,
    ) -> Iterator[None]:
        """Like `worker`, in a thread with a loop of its own."""
        if pools is not None:
            pools = check_items(pools, parameter="pools", most=POOLS_MAX)
        if users is not None:
            users = check_items(users, parameter="users", most=USERS_NAMED_MAX)
        if not isinstance(steal, str):
            steal = check_items(steal, parameter="steal", most=USERS_NAMED_MAX)
        self.make_worker(
            concurrency, pools=pools, users=users, steal=steal, grace=grace
        )  # bad input raises here, not in the thread
        started: Future[tuple[asyncio.AbstractEventLoop, Worker]] = Future()

        async def work() -> None:
            async with self.worker(concurrency, pools=pools, users=users, steal=steal, grace=grace) as worker:
                started.set_result((asyncio.get_running_loop(), worker))
                await stop.wait()

        def main() -> None:
            try:
                asyncio.run(work())
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)  # raised by whoever waits for the start

        stop = asyncio.Event()
        thread = threading.Thread(target=main, name="queuehint-worker")
        thread.start()
        loop, _ = started.result()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()

    @contextlib.contextmanager
    def hosts(self, worker: Worker) -> Iterator[None]:
        """While the block runs, the loop on this thread runs a worker: what would block it for a job is refused."""
        self._workers[worker] = threading.get_ident()
        try:
            yield
        finally:
            del self._workers[worker]

    def runs_workers_here(self) -> bool:
        """Say whether the calling thread runs a loop on which this scheduler has workers."""
        return threading.get_ident() in self._workers.values()

    def _refuse_to_block(self, call: str) -> None:
        if self.runs_workers_here():
            raise WouldDeadlockError(call, where="on the thread of the workers' loop")

    def lifespan(
        self, *, workers: bool | None = None, concurrency: int = DEFAULT_CONCURRENCY
    ) -> Callable[[Any], contextlib.AbstractAsyncContextManager[Mapping[str, Any]]]:
        """
        Return a lifespan for ASGI applications: ``Starlette(lifespan=sched.lifespan())``.

        Args:
            workers: run a worker inside the application; by default only if jobs live in this process.
            concurrency: of that worker.
        """
        check_int(concurrency, parameter="concurrency", least=1, most=GRANTS_MAX)

        @contextlib.asynccontextmanager
        async def lifespan(_app: Any) -> AsyncIterator[Mapping[str, Any]]:
            async with contextlib.AsyncExitStack() as stack:
                if self.backend.is_local if workers is None else workers:
                    await stack.enter_async_context(self.worker(concurrency))
                yield {"queuehint": self}

        return lifespan


async def _first(awaited: Coroutine[Any, Any, Any], running: asyncio.Task[None]) -> None:
    """Await what a running task brings about, or what it raises."""
    waiting = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if running.done():
        running.result()
