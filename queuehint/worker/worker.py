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
from queuehint.handlers.context import JobContext
from queuehint.operations import GRANTS_MAX, Announce, Exchange
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
from queuehint.worker.leases.begins import Begins
from queuehint.worker.leases.blocking import BlockWatch
from queuehint.worker.leases.loop_watch import LoopWatch
from queuehint.worker.leases.presence import Presence, host_name, new_worker_name
from queuehint.worker.leases.release import Release
from queuehint.worker.leases.renewal import Renewal, marks_of
from queuehint.worker.lifespan import Lifespan, Resources, Setup, check_setup
from queuehint.worker.listening import Listening, Wakeup, check_served
from queuehint.worker.outbox import Outbox
from queuehint.worker.outcomes import Settlements
from queuehint.worker.schedules.firing import Timekeeper
from queuehint.worker.slots import Slot, Slots, Stopping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
    from concurrent.futures import Executor
    from datetime import timedelta

    from queuehint.backends.base import Backend
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.handler import Handler
    from queuehint.handlers.partial_result import PartialResult
    from queuehint.values.outcome import Grant, Outcome, Progress
    from queuehint.worker.leases.renewal import Helper
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
        abandon_after: how long code that was asked to stop may go on before it is reported, and given up if
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
        self.scheduler = scheduler
        self._backend = check_object(backend, "call", "wait", parameter="backend", what="a Backend")
        handlers = check_instance(handlers, Mapping, parameter="handlers")  # type: ignore[type-abstract]
        setups = [check_setup(setup) for setup in check_items(setups, parameter="setups")]
        self._concurrency = check_int(concurrency, parameter="concurrency", least=1, most=GRANTS_MAX)
        self._pools, among, helped = check_served(pools, users, steal)
        self._lease_ms = check_duration(lease, parameter="lease", least_ms=LEASE_MIN_MS, most_ms=LEASE_MAX_MS)
        grace_s = check_duration(grace, parameter="grace") / 1000
        abandon_after = ABANDON_AFTER_S if abandon_after is None else abandon_after
        abandon_after_s = check_duration(abandon_after, parameter="abandon_after") / 1000
        give_up = None if give_up is None else check_callable(give_up, parameter="give_up")
        executor = None if executor is None else check_executor(executor)
        version = None if version is None else check_name(version, parameter="version")
        self.name = self.make_name()
        self._event = Wakeup()
        self._slots = Slots()
        self._stopping = Stopping(
            self.name,
            self._slots,
            wake=self._event.set,
            grace_s=grace_s,
            overdue_after_s=abandon_after_s,
            release_s=RELEASE_S,
            give_up=give_up,
        )
        self._runner = AttemptRunner(
            handlers=handlers,
            codec=codec,
            backend=backend,
            before=before,
            after=after,
            failures=Failures(redact, log_errors=check_bool(log_errors, parameter="log_errors")),
            threads=self._concurrency,
            executor=executor,
            uses_processes=self.uses_processes,
            scheduler=scheduler,
            stop=self._stopping.ask,
            begin=self._begin_last_life,
            ended=self._end,
            marks=marks_of(helper),
        )
        self._resources = Resources(self.name, lifespan, self._runner.outcomes.failures)
        self._watch = self.watch_class(self.name, backend, self._slots, abandon_after_s)
        self._block_watch = BlockWatch(self._slots)
        self._watch.is_to_blame = self._block_watch.is_to_blame
        self._outcomes = Settlements()
        self._renewal: Renewal | None = None
        if not backend.is_local:
            self._renewal = self.renewal_class(
                backend,
                self._lease_ms,
                tell=self._stopping.tell,
                more=self._wake,
                returned=self._slots.note_given_back,
                look=self._watch.look,
                blocked_ms=self._watch.blocked_ms,
                helper=helper,
            )
            self._watch.attach(self._renewal)
        self._setup = Setup(self.name, setups, self._runner.outcomes.failures)
        worker_now_s = now_s if self._renewal is None else self._renewal.now_s
        self._timekeeper = Timekeeper(backend, definitions, worker_now_s, self._setup.begin)
        self._presence = self.presence_class(
            backend,
            Announce(self.name, host_name(), os.getpid(), self._concurrency, 0, self._pools, among, helped, version),
            lambda: self._exchanges.announced(),  # noqa: PLW0108 - they are made below
            self._timekeeper.begin_again,
        )
        self._outbox = Outbox(backend, codec, self._event.set_for_notes)
        self._exchanges = Exchanges(
            Exchange(self.name, (), self._pools, 0, self._lease_ms, among, helped, announces=True),
            backend,
            concurrency=self._concurrency,
            slots=self._slots,
            settlements=self._outcomes,
            outcomes=self._runner.outcomes,
            outbox=self._outbox,
            release=Release(handlers, version),
            stopping=self._stopping,
            timekeeper=self._timekeeper,
            renewal=self._renewal,
            wake=self._event.set,
            begin=self._begin,
            see_epoch=self._presence.announce_soon,
        )
        self._begins = Begins(self._exchanges.call, self._lease_ms, self._renewal)
        self._listening = Listening(lambda: self._exchanges.empty, self._exchanges.wait, self._event)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.started = self._exchanges.started
        """Set once the backend has answered for the first time."""

    @staticmethod
    def make_name() -> str:
        """Return a name that no other worker has or had."""
        return new_worker_name()

    # --- the main task -------------------------------------------------------------------------------------------

    def run(self) -> Coroutine[Any, Any, None]:
        """
        Work until `stop` is called; returns when every job has ended or has been given back.

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
        if self._loop is not None:
            raise RuntimeError("this worker has been run already; make another one by Scheduler.make_worker")
        self._loop = asyncio.get_running_loop()
        self._stopping.open()

    async def _work_with_resources(self) -> None:
        self._open()
        try:
            await self._resources.around(self._work, self._let_end)
        finally:
            self._stopping.close()

    async def _work(self) -> None:
        if self._resources.are_none:
            self._open()
        self._outbox.open()
        forget = self._backend.adopt(self._leases, self._watch.blocked_ms)
        canceled: asyncio.CancelledError | None = None
        if self._renewal is not None:
            self._renewal.start()
        self._watch.start()
        self._block_watch.start()
        served = {"pools": ",".join(self._pools), "concurrency": self._concurrency}
        logger.info("worker started", extra={"event": "worker.started", "worker": self.name, **served})
        try:
            self._presence.announce(now_s() if self._renewal is None else self._renewal.now_s())
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
            self._stopping.ask_all("lease lost")
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
            self._outbox.stop()
            self._watch.stop()
            self._block_watch.stop()
            if self._resources.are_none:
                self._stopping.close()
            self._runner.close()
            self._runner.outcomes.failures.given_back.flush(at_end=True)
            logger.info("worker ended", extra={"event": "worker.ended", "worker": self.name})
        if canceled is not None:
            raise canceled

    async def _let_end(self) -> None:
        """After an error that ended the worker, wait a while for the code that was asked to stop."""
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=RELEASE_S)

    async def _turn(self) -> bool:
        """Exchange and, unless there is more to send, wait for something to do; say whether the work is over."""
        # One turn of the loop: jobs that are about to end are settled in this exchange, and no other task starves.
        if self._renewal is None or self._slots.taken:
            await asyncio.sleep(0)
        is_full = self._event.take() or self._stopping.is_begun or self._outcomes or self._exchanges.is_due
        if not is_full:
            if self._exchanges.answered_s >= self._presence.due_s:
                self._presence.announce(self._exchanges.answered_s)
            await self._outbox.send()
            self._listening.listen(takes_more=self._exchanges.free > 0)
            await self._event.wait()
            return False
        if self._stopping.is_begun:
            self._stopping.begin_grace()
            if self._exchanges.is_claiming_behind:
                await self._listening.end()
        is_answered = await self._exchanges.exchange()
        if self._exchanges.answered_s >= self._presence.due_s:
            self._presence.announce(self._exchanges.answered_s)
        if self._stopping.has_given_up:
            return True
        if self._outcomes or self._exchanges.is_due:
            return False
        if self._stopping.is_begun and not self._slots.taken:
            await self._outbox.close()
            await self._leave()
            return True
        if self._stopping.is_giving_up and all(slot.is_overdue for slot in self._slots):
            self._stopping.end_process()
            return True
        takes_more = is_answered and not self._stopping.is_begun and self._exchanges.free > 0
        self._listening.listen(takes_more=takes_more)
        await self._event.wait()
        return False

    async def _leave(self) -> None:
        """Deregister, stop waiting, and pass on wake-ups that this worker consumed; best effort."""
        with contextlib.suppress(BackendError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._presence.leave()
                if self._backend.is_local:
                    return
                await self._listening.end()
                await self._backend.call(attrs.evolve(self._exchanges.empty, is_last=True))

    def stop(self, *, at_once: bool = False) -> None:
        """Claim nothing more; jobs may end within the grace time (*at_once*: there is none), the rest is given back."""
        self._stopping.begin(at_once=at_once)
        self._resources.stop()

    def abandon(self) -> None:
        """Stop at once, and give up the process `RELEASE_S` later with what has not ended by then."""
        self._stopping.abandon()
        self._resources.stop()

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return len(self._slots)

    @property
    def is_stopping(self) -> bool:
        """True once a stop was requested."""
        return self._stopping.is_begun

    @property
    def gave_up(self) -> bool:
        """True once it has stopped by itself, because of code that was asked to stop and did not."""
        return self._stopping.gave_up

    @property
    def has_broken_lifespan(self) -> bool:
        """True once its lifespan has raised, which is logged."""
        return self._resources.is_broken

    @property
    def notes_dropped(self) -> int:
        """How many log lines, reports of progress and partial results the store has refused, or could not be sent."""
        return self._outbox.dropped

    @property
    def answered_s(self) -> float:
        """When the newest call that the store has answered was sent, by `queuehint.clock.now_s`; 0 before."""
        answered_s = self._exchanges.answered_s
        if self._renewal is not None:
            return max(answered_s, self._renewal.answered_s)
        # A store of this process is asked by the loop alone: while the loop is blocked, no answer is missing.
        return answered_s and answered_s + self.blocked_s

    @property
    def blocked_s(self) -> float:
        """For how long code has held up the loop of this worker; 0 while it turns, and while it does not run."""
        return self._watch.blocked_s

    @property
    def is_stuck(self) -> bool:
        """True once code has held up the loop for as long as code that was asked to stop may go on."""
        return self._watch.is_stuck

    async def join_helper(self) -> None:
        """Wait until the process that renews has ended, once `run` has returned."""
        if self._renewal is not None:
            await asyncio.to_thread(self._renewal.join, RELEASE_S)

    def _leases(self) -> tuple[tuple[str, int], ...]:
        """Return the leases of running and of unsettled jobs: neither may be reaped."""
        leases = [(slot.grant.spec.id, slot.grant.token) for slot in self._slots] + self._exchanges.leases
        return tuple(leases + [(outcome.job_id, outcome.token) for outcome in self._outcomes])

    # --- one job -------------------------------------------------------------------------------------------------

    def _begin(self, grants: Iterable[Grant]) -> None:
        assert self._loop is not None
        loop, run, enter = self._loop, self._runner.run, self._slots.enter
        task_class, has_factory = asyncio.Task, loop.get_task_factory() is not None
        for grant in grants:
            slot = Slot(grant, JobContext(grant, self))
            enter(slot)
            if slot.previous is not None:
                self._stopping.hold_back(slot, slot.previous)
            # Without a factory of the application's, `create_task` does nothing more than make a task.
            slot.task = loop.create_task(run(slot)) if has_factory else task_class(run(slot), loop=loop)

    def _begin_last_life(self, grant: Grant) -> Awaitable[bool]:
        return self._begins.announce(grant)

    def _end(self, slot: Slot, outcome: Outcome) -> None:
        """Leave the outcome of an attempt to the main task."""
        if not slot.is_given_back:
            self._outcomes.append(outcome)
            # An exchange is wanted as long as this is not sent, by a second one maybe.
            self._event.set_for_outcomes()
        else:
            if self._renewal is not None:
                self._renewal.exchange((outcome,), (), 0.0)
            self._event.set()
        self._slots.leave(slot)
        if self._exchanges.may_be_two:
            self._exchanges.look_beside()

    # --- what contexts ask of their worker -------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The value that its lifespan has yielded; None without one."""
        return self._resources.state

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Send progress soon, and before the job is settled; from any thread."""
        self._outbox.report(job_id, token, progress)

    def log(self, job_id: str, token: int, line: str) -> None:
        """Send a log line soon, and before the job is settled; from any thread."""
        self._outbox.log(job_id, token, line)

    def store(self, partial_result: PartialResult) -> None:
        """Send a partial result soon, and before the job is settled; from any thread."""
        self._outbox.store(partial_result)

    def _wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed over this worker
                self._loop.call_soon_threadsafe(self._event.set)
