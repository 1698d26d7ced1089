"""The application's door: one object that registers handlers, takes jobs, runs workers and answers questions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from queuehint.backends.base import BackendOptions, check_namespace, masked, open_backend
from queuehint.checks import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    check_choice,
    check_duration,
    check_int,
    check_items,
    check_name,
    check_optional_duration,
)
from queuehint.clock import Clock, SystemClock
from queuehint.context import JobContext, refuse_to_wait
from queuehint.control import Control
from queuehint.dead import DeadShelf
from queuehint.errors import (
    DrainStalledError,
    DrainTimeoutError,
    HandlerError,
    InvalidJobTypeError,
    WouldDeadlockError,
    shown,
)
from queuehint.exclusive import Exclusive, ExclusiveSync
from queuehint.handler import Handler, HintTemplate, Placement
from queuehint.handles import JobHandle
from queuehint.hint import Claim, Mode, normalise, parse_mode, parse_path
from queuehint.ids import new_id
from queuehint.jobs import Job, Options
from queuehint.operations import (
    GRANTS_MAX,
    CountPending,
    Draw,
    Enqueue,
    Pending,
)
from queuehint.payload import JsonCodec
from queuehint.policy import Backoff, OnDead, OnDependencyFailure, OnRetry, Retention
from queuehint.records import JobSpec
from queuehint.submission import checked, numbered, portions, submissions
from queuehint.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from queuehint.backends.base import Backend
    from queuehint.payload import Codec

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

URL_VARIABLE = "QUEUEHINT_URL"
IDS: tuple[Literal["time", "sequence"], ...] = ("time", "sequence")
DRAIN_POLL_MIN_S = 0.005
DRAIN_POLL_MAX_S = 0.05
DEFAULT_CONCURRENCY = 16


class _Decorator:
    """What ``@sched.job(...)`` returns: takes the function."""

    def __init__(self, register: Callable[[Callable[..., Any]], Job[..., Any]]) -> None:
        self._register = register

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Job[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Job[..., Any]:
        """Register the function and return its job."""
        return self._register(function)


class Scheduler(Control):
    """
    One per application; safe to create at import, connects on first use.

    Args:
        url: the store; by default the environment's ``QUEUEHINT_URL``, else ``memory://``.
        namespace: jobs of different namespaces never meet; ``[A-Za-z0-9_.-]{1,64}``.
        ids: ``"time"`` makes unique ids in order of time, ``"sequence"`` draws 1, 2, 3.
        lease: of grants, 1 s to 24 h; a worker that does not renew loses its jobs when it ends.
        retention: how long records are kept once a job is over; a `Retention`.
        codec: how arguments and results travel; JSON through cattrs.
        redact: applied to the text of errors before it is stored.
        clock: for tests.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        ids: Literal["time", "sequence"] = "time",
        lease: float | timedelta = 30,
        retention: Retention | None = None,
        codec: Codec | None = None,
        redact: Callable[[str], str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = url if url is not None else os.environ.get(URL_VARIABLE) or "memory://"
        if not isinstance(self.url, str):
            raise InvalidJobTypeError(f"url must be str, got {type(url).__name__}: {shown(url)}")
        if retention is not None and not isinstance(retention, Retention):
            raise InvalidJobTypeError(f"retention must be a Retention, got {type(retention).__name__}")
        self.namespace = check_namespace(namespace)
        self.ids = check_choice(ids, IDS, parameter="ids")
        self.lease_ms = check_duration(lease, parameter="lease", least_ms=LEASE_MIN_MS, most_ms=LEASE_MAX_MS)
        self.codec: Codec = codec or JsonCodec()
        self._retention = retention or Retention()
        self._redact = redact
        self._clock = clock or SystemClock()
        self._backend: Backend | None = None
        self._lock = threading.Lock()
        self._handlers: dict[str, Handler] = {}
        self._jobs: dict[str, Job[..., Any]] = {}
        self._workers: dict[Worker, int] = {}
        self._before: list[Callable[..., Any]] = []
        self._after: list[Callable[..., Any]] = []
        self.dead = DeadShelf(self)
        """The dead shelf: FAILED jobs, to list, redrive and discard."""

    def __repr__(self) -> str:
        return f"Scheduler({masked(self.url)!r}, namespace={self.namespace!r})"

    @property
    def backend(self) -> Backend:
        """The store, opened on first use."""
        if self._backend is None:
            with self._lock:
                if self._backend is None:
                    options = BackendOptions(namespace=self.namespace, retention=self._retention, clock=self._clock)
                    self._backend = open_backend(self.url, options)
        return self._backend

    # --- handlers ------------------------------------------------------------------------------------------------

    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], R], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def job(
        self,
        hint: Sequence[str] | None = None,
        /,
        *,
        queue_hint: HintTemplate = None,
        name: str | None = None,
        max_attempts: int = 5,
        max_losses: int = 3,
        retry: Backoff | None = None,
        timeout: float | timedelta | None = None,
        priority: int = 3,
        pool: str = "default",
        service: str | None = None,
        mode: Mode = "exclusive",
        on_retry: OnRetry = "hold",
        on_dead: OnDead = "continue",
        on_dependency_failure: OnDependencyFailure = "wait",
        max_hold: float | timedelta = 300,
        start_within: float | timedelta | None = None,
        retention: float | timedelta | None = None,
    ) -> _Decorator: ...
    def job(self, function_or_hint: Any = None, /, *, queue_hint: Any = None, **options: Any) -> Any:
        """
        Make a job of a function: ``@sched.job`` or ``@sched.job(queue_hint=[...], ...)``.

        Args:
            queue_hint: where its jobs go: a template such as ``["{doc_id}", "{section}"]``, filled from the call's
                arguments and checked against the signature now; a callable that gets the arguments by name; None
                for no place.
            name: the task's name; by default the function's own. Unique in a scheduler: the same function again
                (by qualified name) replaces it, another one is refused.
            max_attempts: counted attempts before it is FAILED, 1–1 000.
            max_losses: workers it may lose before it is FAILED ``worker_lost``.
            retry: the back-off between attempts.
            timeout: how long the handler may run, a timedelta or seconds.
            priority: 1–5 (most urgent) or `Priority.CRITICAL`; orders ready jobs only.
            pool: which workers serve it.
            service: whose records it belongs to.
            mode: ``"exclusive"``, or ``"shared"`` for jobs that may run beside others at the same place.
            on_retry, on_dead, on_dependency_failure, max_hold, start_within, retention: see `Policy`.

        Raises:
            HandlerError: the name is taken by another function, or the template does not fit the signature.
            InvalidJobError, InvalidJobTypeError, InvalidHintError: an option is not valid.
        """
        if callable(function_or_hint):
            return self._register(function_or_hint, queue_hint, options)
        if function_or_hint is not None:
            queue_hint = function_or_hint
        return _Decorator(lambda function: self._register(function, queue_hint, options))

    def _register(self, function: Callable[..., Any], queue_hint: Any, options: dict[str, Any]) -> Job[..., Any]:
        options = dict(options)
        name = options.pop("name", None)
        name = check_name(name if name is not None else getattr(function, "__name__", None), parameter="name")
        unknown = [option for option in options if option not in _JOB_OPTIONS]
        if unknown:
            raise InvalidJobTypeError(f"job() has no option {', '.join(unknown)}")
        handler = Handler(name, function)
        placement = Placement(queue_hint, handler)
        existing = self._handlers.get(name)
        if existing is not None and _identity(existing.function) != _identity(function):
            raise HandlerError(
                f"task {name!r} is {_identity(existing.function)} and cannot be {_identity(function)} too; "
                "give one another name="
            )
        job: Job[..., Any] = Job(self, handler, placement, Options().changed(**options))
        self._handlers[name] = handler
        self._jobs[name] = job
        return job

    def handler(self, task: str) -> Handler | None:
        """Return the handler of a task, if this process has it."""
        return self._handlers.get(task)

    def before_job(self, hook: Callable[[JobContext], Any]) -> Callable[[JobContext], Any]:
        """Have *hook*, plain or async, called with the context before each handler; if it raises, the attempt fails."""
        self._before.append(hook)
        return hook

    def after_job(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Have *hook*, plain or async, called with context and outcome after each handler; what it raises is logged."""
        self._after.append(hook)
        return hook

    # --- producers -----------------------------------------------------------------------------------------------

    def make_id(self) -> str:
        """Return an id for a new job; ``""`` stands for one that is drawn when the job is submitted."""
        return new_id() if self.ids == "time" else ""

    async def submit(self, specs: Iterable[JobSpec]) -> list[JobHandle[Any]]:
        """
        Enqueue jobs by their specs, in order; the layer below `Job.enqueue`, for tools and other languages.

        Args:
            specs: up to 1 000 jobs with 16 000 gates are one submission, all or nothing; more are several, in order.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError: a spec is not valid; nothing was
                enqueued.
            DuplicateJobError, PathClosedError: refused; submissions before the refused one went through.
        """
        return await self.hand_in(checked(specs, may_lack_id=self.ids == "sequence"))

    def submit_sync(self, specs: Iterable[JobSpec]) -> list[JobHandle[Any]]:
        """Like `submit`, for code without a loop."""
        return self.hand_in_sync(checked(specs, may_lack_id=self.ids == "sequence"))

    async def hand_in(self, specs: list[JobSpec]) -> list[JobHandle[Any]]:
        """Enqueue jobs whose specs were checked as they were made; otherwise as `submit`."""
        handles: list[JobHandle[Any]] = []
        backend = self.backend
        missing = sum(not spec.id for spec in specs) if self.ids == "sequence" else 0
        firsts = [(await backend.call(Draw(count))).first for count in portions(missing)]
        for part in submissions(numbered(specs, firsts)):
            reply = await backend.call(Enqueue(part))
            if backend.is_local:
                # The call never suspends: a producer in a loop would starve the workers on its own loop.
                await asyncio.sleep(0)
            handles += [JobHandle(self, job.id, created=job.created) for job in reply.jobs]
        return handles

    def hand_in_sync(self, specs: list[JobSpec]) -> list[JobHandle[Any]]:
        """Like `hand_in`, for code without a loop."""
        handles: list[JobHandle[Any]] = []
        backend = self.backend
        missing = sum(not spec.id for spec in specs) if self.ids == "sequence" else 0
        firsts = [backend.call_sync(Draw(count)).first for count in portions(missing)]
        for part in submissions(numbered(specs, firsts)):
            reply = backend.call_sync(Enqueue(part))
            handles += [JobHandle(self, job.id, created=job.created) for job in reply.jobs]
        return handles

    def exclusive(
        self,
        path: Sequence[str],
        *,
        mode: Mode = "exclusive",
        timeout: float | timedelta | None = None,
        user: str | None = None,
    ) -> Exclusive:
        """
        Hold a place from plain code: ``async with sched.exclusive(["doc1"]):``; excludes jobs and waits its turn.

        Args:
            path: the place.
            mode: ``"shared"`` lets other shared holders in.
            timeout: how long to wait for the place; None for ever.

        Raises:
            WouldDeadlockError: inside a handler, also on entering what was made outside.
            InvalidHintError, InvalidJobError: bad input, before anything is queued.
        """

        def refuse() -> None:
            refuse_to_wait("exclusive()")

        return Exclusive(self.backend, **self._exclusive(path, mode, timeout, user, refuse))

    def exclusive_sync(
        self,
        path: Sequence[str],
        *,
        mode: Mode = "exclusive",
        timeout: float | timedelta | None = None,
        user: str | None = None,
    ) -> ExclusiveSync:
        """Like `exclusive`, a plain context manager; also refused on the thread of this scheduler's workers' loop."""

        def refuse() -> None:
            refuse_to_wait("exclusive_sync()")
            self._refuse_to_block("exclusive_sync()")

        return ExclusiveSync(self.backend, **self._exclusive(path, mode, timeout, user, refuse))

    def _exclusive(self, path: Any, mode: Any, timeout: Any, user: Any, refuse: Callable[[], None]) -> dict[str, Any]:
        refuse()
        return {
            "refuse": refuse,
            "claims": normalise([Claim(parse_path(path), parse_mode(mode))]),
            "lease_ms": self.lease_ms,
            "timeout_ms": check_optional_duration(timeout, parameter="timeout"),
            "user": None if user is None else check_name(user, parameter="user"),
        }

    # --- workers -------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def worker(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        *,
        pools: Iterable[str] | None = None,
        grace: float | timedelta = 30,
    ) -> AsyncIterator[Worker]:
        """
        Run a worker on this loop while the block runs.

        Args:
            concurrency: how many jobs at once, 1–1 000; as many threads for plain functions.
            pools: which pools to serve; by default those of the jobs registered here.
            grace: how long running jobs may go on once the block ends; then async handlers are canceled and given
                back to their places. A plain function is waited for until its code has ended.
        """
        worker = self.make_worker(concurrency, pools=pools, grace=grace)
        with self.hosts(worker):
            running = asyncio.create_task(worker.run(), name="queuehint-worker")
            try:
                await _first(worker.started.wait(), running)
                yield worker
            finally:
                worker.stop()
                await running

    @contextlib.contextmanager
    def worker_sync(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        *,
        pools: Iterable[str] | None = None,
        grace: float | timedelta = 30,
    ) -> Iterator[None]:
        """Like `worker`, in a thread with a loop of its own."""
        if pools is not None:
            pools = check_items(pools, parameter="pools")
        self.make_worker(concurrency, pools=pools, grace=grace)  # bad input raises here, not in the thread
        started: Future[tuple[asyncio.AbstractEventLoop, Worker]] = Future()

        async def work() -> None:
            async with self.worker(concurrency, pools=pools, grace=grace) as worker:
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

    def make_worker(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        *,
        pools: Iterable[str] | None = None,
        grace: float | timedelta = 30,
        lease: float | timedelta | None = None,
        **options: Any,
    ) -> Worker:
        """Return a worker, to be run by a program that is nothing else; *options* as of `Worker`."""
        if pools is None:
            pools = sorted({"default", *(job.pool for job in self._jobs.values())})
        return Worker(
            scheduler=self,
            backend=self.backend,
            handlers=self._handlers,
            codec=self.codec,
            before=self._before,
            after=self._after,
            redact=self._redact,
            concurrency=concurrency,
            pools=pools,
            lease=self.lease_ms / 1000 if lease is None else lease,
            grace=grace,
            **options,
        )

    @contextlib.contextmanager
    def hosts(self, worker: Worker) -> Iterator[None]:
        """While the block runs, the loop on this thread runs a worker: what would block it for a job is refused."""
        self._workers[worker] = threading.get_ident()
        try:
            yield
        finally:
            del self._workers[worker]

    async def drain(
        self,
        path: Sequence[str] | None = None,
        *,
        timeout: float | timedelta | None = None,
        include_scheduled: bool = False,
    ) -> None:
        """
        Return when no unfinished job is left, at or below *path* if one is given.

        Runs the jobs itself if no worker of this scheduler runs in this process.

        Args:
            timeout: a timedelta or seconds; None waits for ever.
            include_scheduled: wait for SCHEDULED jobs too: those that wait for their time, or for a retry off their
                places.

        Raises:
            DrainStalledError: jobs are left and none can move without a person; one reason each, at most 100.
            DrainTimeoutError: jobs are left when the time is over; what it ran itself is given back.
            WouldDeadlockError: inside a handler, unless nothing is left.
        """
        question = CountPending(None if path is None else parse_path(path), include_scheduled)
        limit_ms = check_optional_duration(timeout, parameter="timeout")
        if not (await self.backend.call(question)).unfinished:
            return
        refuse_to_wait("drain()")
        loop = asyncio.get_running_loop()
        deadline = None if limit_ms is None else loop.time() + limit_ms / 1000
        async with contextlib.AsyncExitStack() as stack:
            worker = None if self._workers else await stack.enter_async_context(self.worker())
            pause_s = DRAIN_POLL_MIN_S
            try:
                while True:
                    pending = await self.backend.call(question)
                    _judge(pending, None if deadline is None or loop.time() < deadline else limit_ms)
                    if not pending.unfinished:
                        return
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 1.5, DRAIN_POLL_MAX_S)
            except BaseException:
                if worker is not None:
                    worker.stop(at_once=True)
                raise

    def drain_sync(
        self,
        path: Sequence[str] | None = None,
        *,
        timeout: float | timedelta | None = None,
        include_scheduled: bool = False,
    ) -> None:
        """Like `drain`, blocking this thread; also refused on the thread of this scheduler's workers' loop."""
        question = CountPending(None if path is None else parse_path(path), include_scheduled)
        check_optional_duration(timeout, parameter="timeout")
        if not self.backend.call_sync(question).unfinished:
            return
        refuse_to_wait("drain_sync()")
        self._refuse_to_block("drain_sync()")
        _run_beside(lambda: self.drain(path, timeout=timeout, include_scheduled=include_scheduled))

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

    async def close(self) -> None:
        """Let go of the store; a further call opens it anew."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()

    def close_sync(self) -> None:
        """Like `close`, for code without a loop."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close_sync()

    async def __aenter__(self) -> Self:
        """Return the scheduler; leaving closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()


_JOB_OPTIONS = frozenset(
    {
        "max_attempts",
        "max_losses",
        "retry",
        "timeout",
        "priority",
        "pool",
        "service",
        "mode",
        "on_retry",
        "on_dead",
        "on_dependency_failure",
        "max_hold",
        "start_within",
        "retention",
    }
)


def _identity(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _judge(pending: Pending, timed_out_ms: int | None) -> None:
    """Raise if what is left cannot move, or if the time is over."""
    if pending.unfinished and not pending.moving:
        raise DrainStalledError(pending.reasons)
    if pending.unfinished and timed_out_ms is not None:
        raise DrainTimeoutError(pending.unfinished, timed_out_ms / 1000)


async def _first(awaited: Coroutine[Any, Any, Any], running: asyncio.Task[None]) -> None:
    """Await what a running task brings about, or what it raises."""
    waiting = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if running.done():
        running.result()


def _run_beside(make: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end from plain code, also beside a loop that runs on this thread (notebooks)."""

    async def main() -> T:
        return await make()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - handed over to the caller's thread
            done.set_exception(error)

    thread = threading.Thread(target=run, name="queuehint-drain")
    thread.start()
    thread.join()
    return done.result()
