"""
Run the jobs of an application inside a test, on a store of the test's own and in virtual time.

`on_memory` gives an application's scheduler a fresh store and a clock for a while. `drain` runs its jobs and moves the
clock to the next due time, as often as it takes; nothing waits for real time to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import attrs

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.steps import run_steps, run_steps_sync
from queuehint.client.stuck import HoldWatch
from queuehint.clock import FakeClock
from queuehint.errors import DrainStalledError, JobFailedError
from queuehint.handlers.context import CURRENT, refuse_to_wait
from queuehint.schema.checks import check_duration, check_int
from queuehint.testing.relaying import MemoryWithInbox, inbox_of
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import ReasonKind
from queuehint.worker.lifespan import Lifespan
from queuehint.worker.schedules.firing import fire_due

if TYPE_CHECKING:
    from datetime import timedelta

    from queuehint.handlers.context import JobContext
    from queuehint.handlers.handler import Handler
    from queuehint.scheduler.scheduler import Scheduler

T = TypeVar("T")

LOOKS_HERE, LOOKS_ELSEWHERE = 20, 2_000
"""
After so many looks at jobs that no worker asks for, none will: a worker on this loop asks within a few turns, one on
another thread, or over a network, in its own time.
"""
FAST_TURNS = 8
"""So many looks come one after the other; then code that runs is left alone for a while."""
PAUSE_S = 0.0005
GET_MAX = 1000
AS_DECLARED: Final[Any] = object()
"""The state that the application's lifespan opens."""


class TooManyRunsError(AssertionError):
    """`drain` has run its maximum of jobs, and more are ready."""


@contextlib.contextmanager
def on_memory(sched: Scheduler, clock: FakeClock | None = None, *, state: Any = AS_DECLARED) -> Iterator[FakeClock]:
    """
    Give a scheduler an empty store in memory and a clock to move, while the block runs.

    For an application's own scheduler, made where its modules are imported: whatever its URL says, its jobs stay in
    this process until the block ends; then it has the store that it had before. Those of a PostgreSQL that are written
    within a transaction (`Scheduler.within`) are in that database still, until `relay_now` hands them over.

    Args:
        clock: by default one that begins now.
        state: what jobs get as `JobContext.state`, None too; the lifespan of workers is not entered then, whatever runs
            the jobs: `drain`, a worker inside the application, or `simulate`. By default what the lifespan yields.

    Returns:
        The clock.

    Raises:
        RuntimeError: a worker of the scheduler runs in this process.

    >>> from queuehint import Scheduler
    >>> sched = Scheduler("redis://db.example:6379/0")
    >>> @sched.job(queue_hint=["{doc}"])
    ... def render(doc: str) -> None: ...
    >>> with on_memory(sched) as clock:
    ...     handle = render.using(delay=3600).enqueue_sync("doc1")
    ...     [record.state.value for record in drain_sync(sched)]
    ['FINISHED']

    >>> @sched.worker_lifespan
    ... def resources():
    ...     yield connect("postgresql://db.example/documents")
    >>> @sched.job
    ... def count(ctx) -> int:
    ...     return len(ctx.state)
    >>> with on_memory(sched, state=["a", "b"]):
    ...     handle = count.enqueue_sync()
    ...     [record] = drain_sync(sched)
    ...     handle.result_sync()
    2

    .. versionadded:: 1.0.0
    """
    if sched._workers:
        raise RuntimeError("a worker of this scheduler runs here; begin on_memory() before it, and end it after")
    clock = clock or FakeClock(time.time_ns() // 1_000_000)
    before = sched._backend, sched._clock, sched.url, sched._given_state
    options = BackendOptions(namespace=sched.namespace, retention=sched._retention, clock=clock)
    # The URL too: after a `close` inside the block the scheduler must not open the real store.
    sched._backend = MemoryWithInbox(options, inbox_of(sched.url, sched.namespace))
    sched._clock, sched.url = clock, "memory://"
    if state is not AS_DECLARED:
        sched._given_state = Lifespan(lambda: contextlib.nullcontext(state))
    try:
        yield clock
    finally:
        sched.close_sync()
        sched._backend, sched._clock, sched.url, sched._given_state = before


async def drain(
    sched: Scheduler,
    *,
    within: float | timedelta | None = None,
    raise_errors: bool = False,
    concurrency: int = 1,
    runs_max: int = 10_000,
) -> list[JobRecord]:
    """
    Run all jobs now. The clock jumps to the next due time instead of passing.

    What becomes due on the way happens as it would: delayed jobs, retries, schedules, leases, records that expire. If
    a worker of the scheduler runs in this process it runs the jobs, else one runs until this returns.

    Args:
        within: move the time by this and no further, a timedelta or seconds; what is due later is left alone. By
            default until no unfinished job is left.
        raise_errors: raise what a handler raises, at once; its job is then QUEUED for its next attempt, or FAILED.
        concurrency: how many jobs run at once, if this runs them; with 1 they run in the order of their turns.
        runs_max: how many attempts at most.

    Returns:
        The records of the jobs of which an attempt ended, in the order of these ends: each as it was when the time was
        moved on, or at the end.

    Raises:
        DrainStalledError: jobs are left that no passing of time can move, unless *within* is given.
        TooManyRunsError: jobs keep coming.
        JobFailedError: with *raise_errors*, an attempt failed of which no handler ran.
        ValueError: the scheduler's clock is no `FakeClock`.
        WouldDeadlockError: inside a handler, or inside an `exclusive` of the scheduler unless *within* is given.

    .. versionadded:: 1.0.0
    """
    refuse_to_wait("drain()")
    options = _Options(sched, within, raise_errors, concurrency, runs_max)
    if within is None:
        await run_steps(sched.backend, HoldWatch(sched.backend, "drain()").refuse_path(None))
    return await _drain(sched, options, None)


def drain_sync(
    sched: Scheduler,
    *,
    within: float | timedelta | None = None,
    raise_errors: bool = False,
    concurrency: int = 1,
    runs_max: int = 10_000,
) -> list[JobRecord]:
    """
    Like `drain`, for code without a loop. Plain handlers run on the thread that calls this, one at a time.

    So they see what belongs to that thread: its open transaction, its connection to a database.

    .. versionadded:: 1.0.0
    """
    refuse_to_wait("drain_sync()")
    sched._refuse_to_block("drain_sync()")
    if within is None:
        run_steps_sync(sched.backend, HoldWatch(sched.backend, "drain_sync()").refuse_path(None))
    options = _Options(sched, within, raise_errors, concurrency, runs_max)
    caller = _Caller()
    return caller.run(lambda: _drain(sched, options, caller))


@attrs.frozen(init=False)
class _Options:
    clock: FakeClock
    within_ms: int | None
    raise_errors: bool
    concurrency: int
    runs_max: int

    def __init__(self, sched: Scheduler, within: Any, raise_errors: bool, concurrency: int, runs_max: int) -> None:
        clock = sched._clock
        if not isinstance(clock, FakeClock):
            raise ValueError(
                f"{sched!r} has a clock that cannot be moved: use on_memory(), or Scheduler(clock=FakeClock())"
            )
        self.__attrs_init__(
            clock,
            None if within is None else check_duration(within, parameter="within"),
            raise_errors,
            check_int(concurrency, parameter="concurrency", least=1, most=1000),
            check_int(runs_max, parameter="runs_max", least=1, most=10**9),
        )


async def _drain(sched: Scheduler, options: _Options, executor: Executor | None) -> list[JobRecord]:
    with _Watch(sched, options) as watch:
        async with _worker(sched, options, executor):
            await _run_all(sched, options, watch)
    return list(watch.records.values())


@contextlib.asynccontextmanager
async def _worker(sched: Scheduler, options: _Options, executor: Executor | None) -> AsyncIterator[None]:
    """Start a worker unless one runs."""
    if sched._workers:
        yield
        return
    worker = sched.make_worker(options.concurrency, executor=executor)
    async with sched.running(worker):
        try:
            yield
        except BaseException:
            worker.stop(at_once=True)
            raise


async def _run_all(sched: Scheduler, options: _Options, watch: _Watch) -> None:
    """Run jobs and move the time until nothing is left to do."""
    clock = options.clock
    end_ms = None if options.within_ms is None else clock.now_ms() + options.within_ms
    await sched.schedules.sync()
    while True:
        next_ms = await _rest(sched, watch)
        pending = await sched.backend.call(op.CountPending(include_scheduled=True))
        if end_ms is None:
            if not pending.unfinished:
                return
            if not pending.moving or next_ms is None:
                raise DrainStalledError(pending.reasons)
        elif next_ms is None or next_ms > end_ms:
            clock.advance(ms=max(0, end_ms - clock.now_ms()))
            return
        clock.advance(ms=max(0, next_ms - clock.now_ms()))


async def _rest(sched: Scheduler, watch: _Watch) -> int | None:
    """Wait until no job makes progress without the clock. Return the next due time."""
    backend = sched.backend
    looks = LOOKS_HERE if backend.is_local and sched.runs_workers_here() else LOOKS_ELSEWHERE
    turns = patience = 0
    while True:
        ticked = await backend.call(op.Tick())
        if not ticked.more:
            await run_steps(backend, fire_due())
            stats = await backend.call(op.CountJobs())
            ready = sum(stats.ready.values())
            # An attempt is noted before it is settled: what ended until now is known.
            watch.check()
            # Nobody asks for the ones, and the releases of all who ask have refused the others.
            stuck = stats.stuck.get(ReasonKind.NO_WORKER, 0) + stats.stuck.get(ReasonKind.UNKNOWN_TASK, 0)
            if stats.states[JobState.STARTED] or ready > stuck:
                patience = 0
            elif not ready or patience == looks:
                await watch.read()
                return (await backend.call(op.Tick())).next_ms
            else:
                # No worker has asked for them lately; if time has moved, one may be about to.
                patience += 1
        turns += 1
        await asyncio.sleep(0 if turns < FAST_TURNS and not patience else PAUSE_S)


class _Watch:
    """Records ended attempts and exceptions of handlers while the block runs, from any thread."""

    def __init__(self, sched: Scheduler, options: _Options) -> None:
        self._sched = sched
        self._options = options
        self._handlers: dict[str, Handler] = {}
        self._raised: dict[str, BaseException] = {}
        self._error: BaseException | None = None
        self.ended: list[str] = []
        """Since they were read last, the ids of jobs of which an attempt has ended."""
        self.runs = 0
        self.records: dict[str, JobRecord] = {}

    def __enter__(self) -> Self:
        self._handlers = dict(self._sched._handlers)
        for task, handler in self._handlers.items():
            self._sched._handlers[task] = self._watched(handler)
        self._sched._after.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._sched._after.remove(self._note)
        self._sched._handlers.update(self._handlers)

    def check(self) -> None:
        """Raise the recorded exception, if there is one."""
        if self._options.raise_errors and self._error is not None:
            raise self._error
        if self.runs > self._options.runs_max:
            raise TooManyRunsError(
                f"{self.runs} attempts have ended and there may be more to come; "
                "give runs_max=, or within= if jobs make jobs for ever"
            )

    async def read(self) -> None:
        """Read the records of jobs of which an attempt has ended, before the time comes when some are forgotten."""
        ended, self.ended[:] = list(dict.fromkeys(self.ended)), []
        for begin in range(0, len(ended), GET_MAX):
            ids = tuple(ended[begin : begin + GET_MAX])
            for job_id, record in zip(ids, (await self._sched.backend.call(op.Get(ids))).records, strict=True):
                if record is not None:
                    self.records.pop(job_id, None)
                    self.records[job_id] = record

    def _note(self, context: JobContext, outcome: Outcome) -> None:
        self.runs += 1
        self.ended.append(context.id)
        raised = self._raised.pop(context.id, None)
        if outcome.kind is OutcomeKind.FAILED and self._error is None:
            error = outcome.error
            handler = self._handlers.get(context.task)
            is_apart = handler is not None and handler.import_path is not None and error is not None
            if raised is None and error is not None and (outcome.final or (is_apart and error.type != "retry")):
                raised = JobFailedError(context.id, error.type, error.message, error.traceback)
            self._error = raised

    def _watched(self, handler: Handler) -> Handler:
        """Return a handler that reports the exceptions of its function."""
        watched = copy.copy(handler)
        function = handler.function

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except Exception as error:
                self._note_raised(error)
                raise

        def call_plain(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self._note_raised(error)
                raise

        watched.function = call if handler.is_async else call_plain
        return watched

    def _note_raised(self, error: Exception) -> None:
        context = CURRENT.get()
        if context is not None:
            self._raised[context.id] = error


class _Caller(Executor):
    """Runs a coroutine on another thread's loop, and calls submitted meanwhile on the waiting thread."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Schedule a callback on the waiting thread."""
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
                    future.set_exception(error)

        self._calls.put(call)
        return future

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine to its end. Return its result or raise its exception."""
        done: Future[T] = Future()
        begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

        async def main() -> T:
            task = asyncio.ensure_future(make())
            begun.set_result((asyncio.get_running_loop(), task))
            return await task

        def work() -> None:
            try:
                done.set_result(asyncio.run(main()))
            except BaseException as error:  # noqa: BLE001 - handed over to the caller's thread
                done.set_exception(error)
            finally:
                self._calls.put(None)

        # Handlers see the caller's context variables.
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="queuehint-drain")
        thread.start()
        try:
            while (call := self._calls.get()) is not None:
                call()
        except BaseException:
            loop, task = begun.result()
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
            while (call := self._calls.get()) is not None:
                call()
            raise
        finally:
            thread.join()
        return done.result()
