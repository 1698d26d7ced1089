"""Workers and listeners inside this process: on a loop, in a thread, inside a web application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, overload

from queuehint.errors import HandlerError, InvalidJobTypeError, WouldDeadlockError, shown
from queuehint.operations import GRANTS_MAX, POOLS_MAX, USERS_NAMED_MAX, ListWorkers
from queuehint.scheduler.base import SchedulerBase
from queuehint.scheduler.event_streams import check_kinds
from queuehint.scheduler.listening import MISSED
from queuehint.schema.checks import check_callable, check_int, check_items
from queuehint.worker.lifespan import Lifespan, MakesState, check_setup, name_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
    from datetime import timedelta

    from queuehint.backends.base import Backend
    from queuehint.scheduler.event_streams import HeardKinds
    from queuehint.scheduler.listening import ListenerState
    from queuehint.values.report import WorkerInfo
    from queuehint.worker.worker import Worker

DEFAULT_CONCURRENCY = 16
WORKER_OPTIONS = frozenset({"abandon_after", "give_up", "helper", "executor", "version"})
"""Options that `Scheduler.make_worker` passes through to a worker."""

logger = logging.getLogger("queuehint.worker")
_in_memory: list[tuple[str, Backend]] = []
"""The stores in memory whose jobs workers of this process run, each with its namespace."""

L = TypeVar("L", bound="Callable[[Any], Any]")
F = TypeVar("F", bound=MakesState)
S = TypeVar("S", bound="Callable[[], Any]")


class Hosting(SchedulerBase):
    """The part of `Scheduler` that runs workers and event listeners."""

    def make_worker(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        *,
        pools: Iterable[str] | None = None,
        users: Iterable[str | None] | None = None,
        steal: Iterable[str | None] = (),
        grace: float | timedelta = 30,
        lease: float | timedelta | None = None,
        **options: Any,
    ) -> Worker:
        """
        Return a worker, to be run by a program without other work.

        Args:
            options: *abandon_after*, *give_up*, *helper*, *executor* and *version* of `Worker`.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
        """
        if unknown := [name for name in options if name not in WORKER_OPTIONS]:
            known = ", ".join(sorted(WORKER_OPTIONS))
            raise InvalidJobTypeError(f"a worker has no option {shown(unknown[0])}; there are {known}")
        if pools is None:
            pools = sorted({"default", *(job.pool for job in self._jobs.values())})
        make = self._worker_class
        if make is None:
            # A process that only enqueues needs none of it.
            from queuehint.worker.worker import Worker

            make = Worker
        return make(
            scheduler=self,
            backend=self.backend,
            handlers=self._handlers,
            codec=self.codec,
            before=self._before,
            after=self._after,
            redact=self._redact,
            log_errors=self._log_errors,
            definitions=lambda: [definition for definition, _ in list(self._definitions.values())],
            setups=tuple(self._setups.values()),
            concurrency=concurrency,
            pools=pools,
            users=users,
            steal=steal,
            lease=self.lease_ms / 1000 if lease is None else lease,
            grace=grace,
            lifespan=self._given_state or self._lifespan,
            **options,
        )

    def worker_lifespan(self, function: F, /) -> F:
        """
        Have each worker open a resource for its jobs, and close it on leaving: ``@sched.worker_lifespan``.

        The worker enters it on its own loop before it claims a job, and leaves it when the last one has ended. What it
        yields is `JobContext.state`. A process of ``queuehint worker`` has one worker; each worker inside an
        application, also that of `drain`, enters it for itself. One that is told to stop meanwhile cancels it.

        Args:
            function: takes no arguments: an async generator function that yields once, a plain one, or what returns a
                context manager of either kind. What it raises ends the worker; on entering, without a claim.

        Returns:
            The function.

        Raises:
            HandlerError: it takes arguments or is a coroutine function, or there is another lifespan.

        .. versionadded:: 1.0.0
        """
        lifespan = Lifespan(function)
        if self._lifespan is not None and self._lifespan.name != lifespan.name:
            raise HandlerError(f"the lifespan of workers is {self._lifespan.name} and cannot be {lifespan.name} too")
        self._lifespan = lifespan
        return function

    def setup(self, function: S, /) -> S:
        """
        Have each worker call a function that declares limits, weights and the like: ``@sched.setup``.

        It is called before the worker claims its first job, so it must not wait for one, and again when the store has
        lost data, as after a FLUSHALL, an empty restart or a failover to a replica that lacked it. So each call in it
        has to be one that may be repeated: `limit`, `set_weight`, `schedule`, `close_path`, `pause`. Schedules of
        `Scheduler.cron` and `Scheduler.every` need none.

        Args:
            function: a coroutine function, or a plain one, which runs in a thread; takes no arguments. While the store
                does not answer it is called again after 5 seconds, and nothing is claimed before; anything else that it
                raises is logged.

        Returns:
            The function. The same again, by module and qualified name, replaces it.

        Raises:
            HandlerError: it takes arguments, or yields.

        .. versionadded:: 1.0.0
        """
        checked = check_setup(function)
        self._setups[name_of(checked)] = checked
        return function

    @contextlib.asynccontextmanager
    async def worker(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        *,
        pools: Iterable[str] | None = None,
        users: Iterable[str | None] | None = None,
        steal: Iterable[str | None] = (),
        grace: float | timedelta = 30,
        version: str | None = None,
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
            version: what the application calls this release of itself, 1–256 bytes; `workers` shows it.
        """
        worker = self.make_worker(concurrency, pools=pools, users=users, steal=steal, grace=grace, version=version)
        backend = self.backend
        try:
            async with self.running(worker):
                yield worker
        finally:
            if not (self._workers or backend.is_durable) and (say_left := getattr(backend, "say_left", None)):
                say_left()

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
        version: str | None = None,
    ) -> Iterator[None]:
        """Like `worker`, in a thread with a loop of its own."""
        if pools is not None:
            pools = check_items(pools, parameter="pools", most=POOLS_MAX)
        if users is not None:
            users = check_items(users, parameter="users", most=USERS_NAMED_MAX)
        if not isinstance(steal, str):
            steal = check_items(steal, parameter="steal", most=USERS_NAMED_MAX)
        self.make_worker(
            concurrency, pools=pools, users=users, steal=steal, grace=grace, version=version
        )  # bad input raises here, not in the thread
        begun, started = threading.Event(), Future[None]()
        stops: list[Callable[[], object]] = []
        errors: list[BaseException] = []

        async def work() -> None:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            stops.append(lambda: loop.call_soon_threadsafe(task.cancel))
            begun.set()
            async with self.worker(concurrency, pools=pools, users=users, steal=steal, grace=grace, version=version):
                started.set_result(None)
                await asyncio.Event().wait()

        def main() -> None:
            try:
                asyncio.run(work())
            except asyncio.CancelledError:
                pass
            except BaseException as error:  # noqa: BLE001 - raised where the block is
                errors.append(error)
            finally:
                begun.set()
                if not started.done():
                    started.set_result(None)

        thread = threading.Thread(target=main, name="queuehint-worker")
        thread.start()
        try:
            started.result()
            if not errors:
                yield
        finally:
            begun.wait()
            for stop in stops:
                with contextlib.suppress(RuntimeError):  # it could not begin, and its loop is closed
                    stop()
            thread.join()
            # What interrupts the program may be why the worker has failed.
            if errors and not isinstance(sys.exception(), (KeyboardInterrupt, SystemExit)):
                raise errors[0]

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """
        Return the workers of all processes, in order of their names.

        Each tells the store of itself when it starts and every 15 seconds. It is gone when it has stopped, or a process
        of ``queuehint worker`` was killed; if it was lost otherwise, when the lease of one of its jobs expires, or a
        minute after its last word. Up to 1 000 are known.

        .. versionadded:: 1.0.0
        """
        return (await self.backend.call(ListWorkers())).workers

    def workers_sync(self) -> tuple[WorkerInfo, ...]:
        """Like `workers`, for code without a loop."""
        return self.backend.call_sync(ListWorkers()).workers

    @contextlib.contextmanager
    def hosts(self, worker: Worker) -> Iterator[None]:
        """Mark this thread's loop as a worker's while the block runs: calls that would block the loop are refused."""
        if worker in self._workers:
            raise RuntimeError(f"worker {worker.name} runs already; make another one by Scheduler.make_worker")
        host = None if self.backend.is_durable else (self.namespace, self.backend)
        if host is not None:
            if any(namespace == self.namespace and backend is not self.backend for namespace, backend in _in_memory):
                logger.warning(
                    "two schedulers on memory:// run workers in this process, in namespace %s, and share no places: "
                    "use one scheduler, or give each a namespace",
                    self.namespace,
                    extra={"event": "worker.two_memories", "namespace": self.namespace},
                )
            _in_memory.append(host)
        self._workers[worker] = threading.get_ident()
        try:
            yield
        finally:
            del self._workers[worker]
            if host is not None:
                _in_memory.remove(host)

    def _refuse_to_block(self, call: str) -> None:
        if self.runs_workers_here():
            raise WouldDeadlockError(call, where="on the thread of the workers' loop")

    def lifespan(
        self, *, workers: bool | None = None, concurrency: int = DEFAULT_CONCURRENCY
    ) -> Callable[[Any], contextlib.AbstractAsyncContextManager[Mapping[str, Any]]]:
        """
        Return a lifespan for ASGI applications: ``Starlette(lifespan=sched.lifespan())``.

        Args:
            workers: run a worker inside the application; by default in memory and on a file.
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

    # --- listeners -----------------------------------------------------------------------------------------------

    @overload
    def on(self, kinds: HeardKinds, listener: L) -> L: ...
    @overload
    def on(self, kinds: HeardKinds) -> Callable[[L], L]: ...
    def on(self, kinds: Any, listener: Any = None) -> Any:
        """
        Call a function with each `Event` of some kinds: ``sched.on("failed", tell)`` or ``@sched.on("failed")``.

        Listeners are told while a worker of this scheduler runs in this process, or inside `listening`. They hear of
        the jobs of all processes; with several processes each has its own listeners, and each of these hears of all.

        Args:
            kinds: one or several kinds, as `EventKind` or their words; ``"*"`` for all. With ``"missed"``, which
                ``"*"`` includes, it is called with a `Missed` when events are gone that it was not told.
            listener: plain, and then run in a thread, or async, and then run on the loop that listens. It gets one
                event at a time, in order. What it raises is logged, once a minute, and changes nothing; 1 000 events
                wait for it at most.

        Raises:
            InvalidJobError, InvalidJobTypeError: one is not a kind of event, or the listener cannot be called.
        """
        found = check_kinds(kinds, also=(MISSED,))

        def register(listener: L) -> L:
            self._announcer.add(found, check_callable(listener, parameter="listener"))
            return listener

        return register if listener is None else register(listener)

    def off(self, listener: Callable[[Any], Any]) -> None:
        """
        Remove a listener.

        Raises:
            InvalidJobTypeError: it cannot be called, so it is none.
        """
        self._announcer.remove(check_callable(listener, parameter="listener"))

    @property
    def listeners(self) -> tuple[ListenerState, ...]:
        """How the listeners of this process are doing."""
        return self._announcer.states

    def listening(self) -> contextlib.AbstractAsyncContextManager[None]:
        """
        Call the listeners with events while the block runs: ``async with sched.listening(): ...``

        A worker does that by itself. At the end listeners have 5 s to be told what has happened last.
        """
        return self._announcer.announcing()


async def _first(awaited: Coroutine[Any, Any, Any], running: asyncio.Task[None]) -> None:
    """Wait for an effect of a running task, or for its exception."""
    waiting = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if running.done():
        running.result()
