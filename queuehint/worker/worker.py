"""
Claim, run, settle, renew, stop gracefully.

A worker lives on one asyncio loop. Its main task exchanges with the backend: finished outcomes are sent and as many
grants as there are free slots received, in one round trip; it never waits to fill a batch. A worker of many slots may
have two exchanges under way, half of the slots each. Each grant runs in a task of its own: async handlers in it, plain
functions in a thread.

A job is settled when its code has *really* ended. A timeout or a cancellation asks the code to stop (async code is
canceled, a thread sees ``ctx.canceled``); until it does, slot, lease and place are kept, and after a while it is
reported as overdue. So code of two conflicting jobs never runs at once in live workers. Code that never ends can only
be abandoned with its process: a worker with a process of its own lets its other jobs end and exits. A job that is
granted again while its code still runs on an expired lease waits for that code, in a slot of its own.

`queuehint.worker.exchanges` holds the exchanges, `queuehint.worker.attempts` the run of one job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from queuehint.clock import now_s
from queuehint.errors import BackendError
from queuehint.operations import GRANTS_MAX, Announce
from queuehint.schema.checks import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    check_bool,
    check_callable,
    check_duration,
    check_instance,
    check_int,
    check_items,
    check_name,
    check_object,
)
from queuehint.worker.attempts import AttemptRunner, check_executor
from queuehint.worker.exchanges import Exchanges
from queuehint.worker.failures import Failures
from queuehint.worker.leases.loop_watch import LoopWatch
from queuehint.worker.leases.presence import Presence, host_name, new_worker_name
from queuehint.worker.leases.release import Release
from queuehint.worker.leases.renewal import Renewal
from queuehint.worker.lifespan import Lifespan, Resources, Setup, check_setup
from queuehint.worker.listening import Listening, check_served
from queuehint.worker.schedules.firing import Timekeeper
from queuehint.worker.state import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable
    from concurrent.futures import Executor
    from datetime import timedelta

    from queuehint.backends.base import Backend
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.handler import Handler
    from queuehint.worker.leases.held import Helper
    from queuehint.worker.schedules.firing import Definition

logger = logging.getLogger("queuehint.worker")

ABANDON_AFTER_S = 60.0
RELEASE_S = 5.0
"""How long jobs have to end when their worker gives up another one, or is told a second time to stop."""
GRACE_S = 30.0
LEAVE_S = 1.0
"""How long a worker that stops tries to tell the store."""


class Worker:
    """
    One worker.

    Args:
        scheduler: what contexts hand out; the worker itself asks nothing of it.
        backend: where to claim and settle.
        handlers: by task name; looked up at each grant, so it may grow.
        codec: how arguments and results travel.
        before, after: hooks, called with the context, and with the context and the outcome.
        redact: applied to error messages and tracebacks before they are stored or logged.
        log_errors: whether messages and tracebacks of handlers' exceptions are logged.
        definitions: the schedules that the code defines, stored once the backend has answered, and again when the store
            has lost data.
        setups: called at the same times, to declare limits and the like; plain ones in a thread.
        concurrency: slots, 1–1 000.
        pools: which pools to serve, at most 64, taken in rotation.
        users: whose jobs to run, at most 64, None among them for jobs without a user; by default everyone's.
        steal: whom to help while *users* have nothing ready, at most 64, none of *users*; `ANYONE` for everyone.
        lease: of each grant; renewed after a third of it.
        grace: how long running jobs may go on once the worker stops; then async handlers are canceled and given back.
        abandon_after: how long code that was asked to stop may go on before it is reported, and its process given up
            if there is a *give_up*.
        give_up: ends the process at once; only for a worker that has a process to itself. Called with the ids of the
            jobs whose code has not ended, once all others have been settled.
        helper: renews the leases from another process; without it a thread does.
        executor: what runs plain functions, by default threads of the worker's own: an `Executor` whose calls run in
            this process, such as a `ThreadPoolExecutor`; not shut down here. Tasks with ``process=True`` do not use it.
        lifespan: opens what contexts hand out as their state, before the first claim, and closes it after the last job.
        version: what the application calls this release of itself, 1–256 bytes; shown beside the worker.
    """

    renewal_class: ClassVar[type[Renewal]] = Renewal
    """Keeps the leases of its jobs."""
    presence_class: ClassVar[type[Presence]] = Presence
    """Tells the store about the worker."""
    watch_class: ClassVar[type[LoopWatch]] = LoopWatch
    """Reports code that blocks its event loop."""
    uses_processes: ClassVar[bool] = True
    """Whether handlers declared with ``process=True`` run in processes; else as any plain function."""

    def __init__(
        self,
        *,
        scheduler: Any,
        backend: Backend,
        handlers: Mapping[str, Handler],
        codec: Codec,
        before: Collection[Callable[..., Any]] = (),
        after: Collection[Callable[..., Any]] = (),
        redact: Callable[[str], str] | None = None,
        log_errors: bool = True,
        definitions: Callable[[], Iterable[Definition]] = tuple,
        setups: Iterable[Callable[[], Any]] = (),
        concurrency: int = 16,
        pools: Iterable[str] = ("default",),
        users: Iterable[str | None] | None = None,
        steal: Iterable[str | None] = (),
        lease: float | timedelta = 30,
        grace: float | timedelta = GRACE_S,
        abandon_after: float | timedelta | None = None,
        give_up: Callable[[list[str]], None] | None = None,
        helper: Helper | None = None,
        executor: Executor | None = None,
        lifespan: Lifespan | None = None,
        version: str | None = None,
    ) -> None:
        check_object(backend, "call", "wait", parameter="backend", what="a Backend")
        handlers = check_instance(handlers, Mapping, parameter="handlers")  # type: ignore[type-abstract]
        setups = [check_setup(setup) for setup in check_items(setups, parameter="setups")]
        concurrency = check_int(concurrency, parameter="concurrency", least=1, most=GRANTS_MAX)
        served, among, helped = check_served(pools, users, steal)
        lease_ms = check_duration(lease, parameter="lease", least_ms=LEASE_MIN_MS, most_ms=LEASE_MAX_MS)
        grace_s = check_duration(grace, parameter="grace") / 1000
        abandon_after = ABANDON_AFTER_S if abandon_after is None else abandon_after
        self._abandon_after_s = check_duration(abandon_after, parameter="abandon_after") / 1000
        give_up = None if give_up is None else check_callable(give_up, parameter="give_up")
        executor = None if executor is None else check_executor(executor)
        version = None if version is None else check_name(version, parameter="version")
        self.name = self.make_name()
        state = self._state = WorkerState(
            backend,
            codec,
            self.name,
            pools=served,
            users=among,
            steal=helped,
            lease_ms=lease_ms,
            scheduler=scheduler,
            concurrency=concurrency,
            failures=Failures(redact, log_errors=check_bool(log_errors, parameter="log_errors")),
            now_s=self.make_clock(),
            grace_s=grace_s,
            overdue_after_s=self._abandon_after_s,
            release_s=RELEASE_S,
            give_up=give_up,
            helper=helper,
        )
        self._runner = AttemptRunner(
            state, handlers, before=before, after=after, executor=executor, uses_processes=self.uses_processes
        )
        self._resources = Resources(state, lifespan)
        self._watch = self.watch_class(state)
        self._renewal: Renewal | None = None if backend.keeps_leases else self.renewal_class(state)
        self._setup = Setup(state, setups)
        self._timekeeper = Timekeeper(backend, definitions, state.now_s, self._setup.begin)
        self._presence = self.presence_class(
            state, Announce(self.name, host_name(), os.getpid(), concurrency, 0, served, among, helped, version)
        )
        self._exchanges = Exchanges(state, Release(handlers, version))
        self._listening = Listening(state)
        self.started = state.started
        """Set once the backend has answered for the first time."""

    @staticmethod
    def make_name() -> str:
        """Return a name that no other worker has or had."""
        return new_worker_name()

    @staticmethod
    def make_clock() -> Callable[[], float]:
        """Return the clock by which leases are held to last."""
        return now_s

    # --- the main task -------------------------------------------------------------------------------------------

    def run(self) -> Coroutine[Any, Any, None]:
        """
        Work until `stop` is called. Return when every job has ended or has been given back.

        Canceled, it stops at once and is over when the code of its jobs has ended, because until then they keep their
        places.

        Raises:
            BackendError: the store refuses this worker from the start, and another attempt would not help, see its
                *is_lasting*; or it cannot be reached while the worker stops, and nothing runs any more.
            Exception: what the lifespan raised; nothing was claimed if that was on entering it.
            RuntimeError: it runs, or has been run: a worker runs once.
        """
        # Not a coroutine around others: its main task would pass through each of them at every turn.
        return self._work() if self._resources.are_none else self._work_with_resources()

    def _open(self) -> None:
        state = self._state
        if state.loop is not None:
            raise RuntimeError("this worker has been run already; make another one by Scheduler.make_worker")
        state.loop = asyncio.get_running_loop()
        state.stopping.open()

    async def _work_with_resources(self) -> None:
        self._open()
        try:
            await self._resources.around(self._work, self._let_end)
        finally:
            self._state.stopping.close()

    async def _work(self) -> None:
        if self._resources.are_none:
            self._open()
        state = self._state
        state.outbox.open()
        forget = state.backend.adopt(state.leases.all, state.pulse.blocked_ms)
        canceled: asyncio.CancelledError | None = None
        try:
            if self._renewal is not None:
                self._renewal.start()
            self._watch.start()
            served = {"pools": ",".join(state.empty.pools), "concurrency": state.concurrency}
            logger.info("worker started", extra={"event": "worker.started", "worker": self.name, **served})
            self._presence.announce(state.now_s())
            while True:
                try:
                    if await self._turn():
                        break
                except asyncio.CancelledError as error:
                    canceled = error
                    self.stop(at_once=True)
        except Exception as error:
            if not isinstance(error, BackendError):
                extra = {"event": "worker.died", "worker": self.name, "running": self.running}
                logger.exception("a worker ended because of an error", extra=extra)
            # Running jobs are neither renewed nor settled any more: other workers will get them.
            state.stopping.ask_all("lease lost")
            raise
        finally:
            forget()
            if self._renewal is not None:
                self._renewal.end()
            self._exchanges.cancel()
            self._presence.cancel()
            self._listening.cancel()
            self._timekeeper.stop()
            self._setup.cancel()
            state.outbox.stop()
            self._watch.stop()
            if self._resources.are_none:
                state.stopping.close()
            self._runner.close()
            state.outcomes.failures.given_back.flush(at_end=True)
            logger.info("worker ended", extra={"event": "worker.ended", "worker": self.name})
        if canceled is not None:
            raise canceled

    async def _let_end(self) -> None:
        """Wait a while for code with a stop request, after an error that ended the worker."""
        tasks = [slot.task for slot in self._state.slots if slot.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=RELEASE_S)

    async def _turn(self) -> bool:
        """Exchange and, unless there is more to send, wait for an event. Return whether the work is over."""
        state, stopping, wakeup = self._state, self._state.stopping, self._state.wakeup
        # One turn of the loop: jobs that are about to end are settled in this exchange, and no other task starves.
        if state.keeps_leases or state.slots.taken:
            await asyncio.sleep(0)
        wakeup.clear()
        if not (self._setup.is_ready or stopping.is_begun):
            self._setup.begin_first()
            await wakeup.wait()
            return False
        is_full, wakeup.is_full = wakeup.is_full, False
        if not (is_full or stopping.is_begun or state.settlements.waiting or self._exchanges.is_due):
            self._look_around()
            await state.outbox.send()
            self._listen(takes_more=state.free > 0)
            await wakeup.wait()
            return False
        if stopping.is_begun and state.behind is not None:
            await self._listening.end()
        free = await self._exchanges.exchange()
        self._look_around()
        if stopping.has_given_up:
            return True
        if free is None:
            return False
        if stopping.is_begun:
            if not state.slots.taken:
                await state.outbox.close()
                await self._leave()
                return True
            if stopping.is_giving_up and all(slot.is_overdue for slot in state.slots):
                stopping.end_process()
                return True
        self._listen(takes_more=free > 0)
        await wakeup.wait()
        return False

    def _look_around(self) -> None:
        """Do the periodic work, and the work that replies of the store require, beside the jobs."""
        state = self._state
        if state.answered_s >= state.announce_due_s:
            self._presence.announce(state.answered_s)
        if state.has_lost_data:
            state.has_lost_data = self._setup.is_fresh = False
            self._timekeeper.begin_again()
        if state.schedule_is_due is not None:
            is_due, state.schedule_is_due = state.schedule_is_due, None
            if (is_due or not self._timekeeper.is_stored) and not state.stopping.is_begun:
                self._timekeeper.see(due=is_due)

    def _listen(self, *, takes_more: bool) -> None:
        if not self._listening.is_wide:
            self._listening.listen(takes_more=takes_more)

    async def _leave(self) -> None:
        """Deregister, stop waiting, and pass on wake-ups that this worker consumed; best effort."""
        with contextlib.suppress(BackendError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._presence.leave()
                if self._state.keeps_leases:
                    return
                await self._listening.end()
                await self._state.backend.call(attrs.evolve(self._state.empty, is_last=True))

    def stop(self, *, at_once: bool = False) -> None:
        """
        Claim no more jobs. Running jobs may end within the grace time (*at_once*: none), and the rest is given back.

        From the loop of the worker. Idempotent, also before `run` and after its end.
        """
        self._state.stopping.begin(at_once=at_once)
        self._resources.stop()

    def abandon(self) -> None:
        """Stop at once. `RELEASE_S` later, end the process despite running code."""
        self._state.stopping.abandon()
        self._resources.stop()

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return len(self._state.slots)

    @property
    def is_stopping(self) -> bool:
        """True once a stop was requested."""
        return self._state.stopping.is_begun

    @property
    def gave_up(self) -> bool:
        """True once the worker has stopped by itself, because code went on after a stop request."""
        return self._state.stopping.gave_up

    @property
    def has_broken_lifespan(self) -> bool:
        """True once the lifespan has raised. The exception is logged."""
        return self._resources.is_broken

    @property
    def notes_dropped(self) -> int:
        """The number of log lines, progress reports and partial results that were refused by the store or not sent."""
        return self._state.outbox.dropped

    @property
    def answered_s(self) -> float:
        """The time of the last reply of the store, by `queuehint.clock.now_s`. 0 before the first."""
        answered_s = self._state.answered_s
        if not self._state.keeps_leases:
            return max(answered_s, self._state.leases.answered_s)
        # A store of this process is asked by the loop alone: while the loop is blocked, no answer is missing.
        return answered_s and answered_s + self.blocked_s

    @property
    def blocked_s(self) -> float:
        """For how long code has blocked the loop of this worker. 0 while the loop turns, and while it does not run."""
        return self._state.pulse.blocked_s

    @property
    def is_stuck(self) -> bool:
        """True once code has blocked the loop for as long as code may go on after a stop request."""
        return self._state.pulse.is_stuck(self._abandon_after_s)

    async def join_helper(self) -> None:
        """Wait for the end of the process that renews, once `run` has returned."""
        if self._renewal is not None:
            await asyncio.to_thread(self._renewal.join, RELEASE_S)
