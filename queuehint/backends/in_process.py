"""
Base class of the in-process backends: the engine behind a lock, a clock, and waiters.

Whatever else uses such a store asks this process. Leases whose holders live in this process too are renewed by the
store itself in the step before it reaps, so that a stalled loop does not lose its own jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import attrs

from queuehint.backends.base import Backend
from queuehint.backends.waiters import Waiter, WaitingRoom
from queuehint.clock import now_s
from queuehint.core.asking.why import blocked_text
from queuehint.errors import BackendUnavailableError
from queuehint.operations import Chain, ChangeSchedule, CountRecords, List, Operation, PutSchedule, Tick
from queuehint.operations.bounds import check_limits
from queuehint.values.ids import this_process
from queuehint.values.record import JobState
from queuehint.values.report import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queuehint.backends.base import BackendOptions, Interest
    from queuehint.core.engine import Engine

Reply = TypeVar("Reply")
T = TypeVar("T")

OWN_LEASE_MS = 30_000
READY_WITHOUT_WORKER_MS = 5_000
CLOCK_LATE_MS = 1_000
"""How far the machine's clock may be behind the time of the store before that is logged."""
BEHIND_EVERY_S = 60.0
INDEXED_AT_ONCE = 1_000
_SET_TIMES = frozenset({PutSchedule, ChangeSchedule})
"""Operations that may make something due at once."""
VERSION_POLL_S = 0.05
"""Poll interval of waits for changes of a job; each end wakes them at once."""


class LocalBackend(Backend):
    """
    The engine of a single process, and its waiters.

    A subclass sets ``engine`` before the first operation or wait; it is used under ``_lock`` only.
    """

    kind: ClassVar[str]
    """Its name in errors and in events of the log."""
    logger: ClassVar[logging.Logger]
    unserved: ClassVar[str]
    """Logged once when jobs are ready and no worker runs in this process."""
    engine: Engine

    def __init__(self, options: BackendOptions) -> None:
        self._clock = options.clock
        self._lock = threading.RLock()
        self._waiting = WaitingRoom()
        self._adopted: dict[object, tuple[Callable[[], Sequence[tuple[str, int]]], Callable[[], int]]] = {}
        self._pid: int | None = None
        self._process: object = None
        """The process that may use it, once it is in use."""
        self._closed = False
        self._behind_said_s = -math.inf
        self._said_unserved = False
        self._unserved_since_ms: int | None = None
        self._clock.subscribe(self._wake_all)

    @property
    def is_local(self) -> bool:
        """Always true."""
        return True

    @abstractmethod
    async def call(self, operation: Operation[Reply]) -> Reply:
        """Carry out one operation."""

    @abstractmethod
    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """Carry out one operation, for code without a loop."""

    @abstractmethod
    async def _await_ends(self, job_ids: tuple[str, ...]) -> None:
        """Record in the engine that a caller waits for jobs."""

    @abstractmethod
    def _await_ends_sync(self, job_ids: tuple[str, ...]) -> None:
        """Like `_await_ends`, for code without a loop."""

    # --- waiting -------------------------------------------------------------------------------------------------

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """Return once a topic may have news, or after *timeout_s*."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop that waited has been closed
                loop.call_soon_threadsafe(resolve)

        if going := await self._apart(lambda: self._going_soon(interest)):
            await self._await_ends(going)
        waiter = await self._apart(lambda: self._enter(interest, timeout_s, wake), self._leave)
        if waiter is None:
            await asyncio.sleep(0)
            return
        timer = loop.call_later(self._left_s(waiter), resolve)
        try:
            await future
        finally:
            timer.cancel()
            self._leave_soon(waiter)
        if await self._apart(self._is_left_to_waiters):
            await self.call(Tick())

    async def _apart(self, act: Callable[[], T], _undo: Callable[[T], None] | None = None) -> T:
        """Run a function that takes the lock without blocking this loop for long."""
        return act()

    def _leave_soon(self, waiter: Waiter) -> None:
        """Remove a waiter without blocking this loop for long."""
        self._leave(waiter)

    async def _prepare(self, question: Operation[Any]) -> None:
        """Index records by path for the coming query, in steps that let other callers in between."""
        if not isinstance(question, List | CountRecords):
            return
        self._check_usable()
        check_limits(question)
        if question.filter.path is not None and question.filter.flow is None:
            is_more = True
            while is_more:
                is_more = await self._apart(self._index_some)
                await asyncio.sleep(0)

    def _index_some(self) -> bool:
        with self._lock:
            return self.engine.state.table.past.index_some(INDEXED_AT_ONCE)

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Like `wait`, blocking this thread."""
        event = threading.Event()
        if going := self._going_soon(interest):
            self._await_ends_sync(going)
        waiter = self._enter(interest, timeout_s, event.set)
        if waiter is None:
            return
        try:
            event.wait(self._left_s(waiter))
        finally:
            self._leave(waiter)
        if self._is_left_to_waiters():
            self.call_sync(Tick())

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        """Renew these leases before the store reaps, and report a blocked event loop by `Why`."""
        # Without the lock, which may be held for long: each is one step, and readers take a copy.
        key = object()
        self._adopted[key] = leases, blocked_ms

        def forget() -> None:
            self._adopted.pop(key, None)

        return forget

    def _going_soon(self, interest: Interest) -> tuple[str, ...]:
        """Return the awaited jobs whose records the engine would drop before they can be read."""
        job_ids = (*interest.jobs, *interest.kept)
        if not job_ids:
            return ()
        self._check_usable()
        with self._lock:
            table = self.engine.state.table
            known = [table.jobs.get(job_id) for job_id in job_ids if job_id not in table.awaited]
            return tuple([job.id for job in known if job is not None and not job.is_over and table.goes_soon(job)])

    def _enter(self, interest: Interest, timeout_s: float, wake: Callable[[], None]) -> Waiter | None:
        """Register a waiter. Return None if there is news already."""
        self._check_usable()
        with self._lock:
            if self._closed:  # closed meanwhile: this waiter would never be woken
                return None
            engine, now_ms = self.engine, self._clock.now_ms()
            table = engine.state.table
            until_ms = now_ms + round(
                min(timeout_s, VERSION_POLL_S if interest.version is not None else timeout_s) * 1000
            )
            ready = table.ready
            if any(ready.size(pool, interest.users) for pool in interest.pools):
                return None
            if ready.refused and any(
                ready.size(queue, interest.users) for queue in ready.open_to(interest.release, interest.pools)
            ):
                return None
            # A worker wakes when something is due; without a worker, waits for results do.
            next_ms = engine.state.next_ms() if interest.pools or not self._adopted else None
            if next_ms is not None:
                if next_ms <= now_ms and interest.pools:
                    return None
                until_ms = min(until_ms, next_ms)
            if interest.worker is not None and interest.worker in table.undelivered_cancellations:
                return None
            if interest.pending is not None and engine.is_drained(interest.pending):
                return None
            for job_id in interest.jobs:
                job = table.jobs.get(job_id)
                if job is None or job.is_over or interest.version not in {None, job.version}:
                    return None
            waiter = Waiter(interest, until_ms, wake)
            self._waiting.enter(waiter)
            return waiter

    def _is_left_to_waiters(self) -> bool:
        """Return whether work is due that waiters for results have to do, in a process without a worker."""
        if self._adopted or self._closed:
            return False
        with self._lock:
            next_ms = self.engine.state.next_ms()
        return next_ms is not None and next_ms <= self._clock.now_ms()

    def _leave(self, waiter: Waiter | None) -> None:
        with self._lock:
            if waiter is not None:
                self._waiting.leave(waiter)

    def _left_s(self, waiter: Waiter) -> float:
        return max(0, waiter.until_ms - self._clock.now_ms()) / 1000

    def _wake(self) -> None:
        """Wake the waiters whose wait has ended after an operation."""
        table, waiting = self.engine.state.table, self._waiting
        if waiting.waiters:
            waiting.call_concerned(
                table.ended, table.ready.filled, list(table.undelivered_cancellations), self.engine.is_drained
            )
            next_ms = self.engine.state.next_ms()
            if next_ms is not None:
                waiting.call_workers(next_ms)
        table.ready.filled.clear()

    def _wake_all(self) -> None:
        if self._is_gone():
            return
        with self._lock:
            self._waiting.call_all()

    # --- what every operation does -------------------------------------------------------------------------------

    def _apply(self, operation: Operation[Reply], now_ms: int) -> Reply:
        """Apply an operation to the engine and wake the waiters concerned, under the lock."""
        engine = self.engine
        try:
            reply = engine.apply(operation, now_ms)
        finally:
            self._wake()
        if (
            type(operation) in _SET_TIMES
            and engine.state.timetable.dues
            and engine.state.timetable.is_due(engine.now_ms)
        ):
            self._waiting.call_workers(engine.now_ms)
        if not self._adopted and not self._said_unserved:
            self._watch_unserved(now_ms)
        return self._say_blocked(reply) if type(reply) is Chain else reply

    def _own_leases(self, now_ms: int) -> list[tuple[str, int]]:
        """Return the leases to renew before the store reaps, none while nothing is due."""
        if not self._adopted or not self.engine.state.table.timers.is_due(now_ms):
            return []
        return [lease for held, _ in list(self._adopted.values()) for lease in held()]

    def _say_blocked(self, reply: Reply) -> Reply:
        """Report a blocked event loop of a worker among the reasons of its running jobs."""
        if not isinstance(reply, Chain):
            return reply
        at_path = None if reply.at_path is None else reply.at_path.each_reason(self._with_blocked)
        return attrs.evolve(reply, reasons=tuple(map(self._with_blocked, reply.reasons)), at_path=at_path)

    def _with_blocked(self, reason: Reason) -> Reason:
        if reason.state is JobState.STARTED:
            for held, ask_blocked_ms in list(self._adopted.values()):
                blocked_ms = ask_blocked_ms()
                if blocked_ms and any(job_id == reason.job_id for job_id, _ in held()):
                    return attrs.evolve(reason, detail=f"{reason.detail}{blocked_text(blocked_ms)}")
        return reason

    # --- care ----------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Refuse before taking the lock, which a lost thread may hold in a fork."""
        if self._closed:
            raise BackendUnavailableError(f"the {self.kind} backend was closed")
        if self._is_forked():
            raise BackendUnavailableError(
                f"the {self.kind} backend belongs to process {self._pid} and cannot be used in its fork {os.getpid()}; "
                "make the scheduler after the fork, or use Redis"
            )

    def _is_gone(self) -> bool:
        """Return whether threads that held the lock may be lost, as in a fork or at interpreter exit."""
        return self._is_forked() or sys.is_finalizing()

    def _begin_use(self) -> None:
        """Bind the backend to this process."""
        self._pid, self._process = os.getpid(), this_process.mark

    def _is_forked(self) -> bool:
        """Return whether this process is a fork of the one that used the backend."""
        return self._process is not None and self._process is not this_process.mark

    def _time_ms(self) -> int:
        """Return the time of the store. Log once a minute when the clock of the machine is behind."""
        clock_ms, time_ms = self._clock.now_ms(), self.engine.state.now_ms
        if clock_ms < time_ms - CLOCK_LATE_MS:
            if now_s() >= self._behind_said_s + BEHIND_EVERY_S:
                self._behind_said_s, behind_s = now_s(), (time_ms - clock_ms) / 1000
                self.logger.error(
                    "the clock of this machine is %.0f s behind the time of the store, which stands still until then: "
                    "nothing delayed or retried begins",
                    behind_s,
                    extra={"event": f"{self.kind}.clock_behind", "behind_s": behind_s},
                )
        elif clock_ms >= time_ms and self._behind_said_s > -math.inf:
            self._behind_said_s = -math.inf
            extra = {"event": f"{self.kind}.clock_behind", "behind_s": 0.0}
            self.logger.warning("the clock of this machine has caught up with the time of the store", extra=extra)
        return max(clock_ms, time_ms)

    def _watch_unserved(self, now_ms: int) -> None:
        """Log once that jobs have been ready for a while and no worker runs in this process."""
        if not self.engine.state.table.ready:
            self._unserved_since_ms = None
        elif self._unserved_since_ms is None:
            self._unserved_since_ms = now_ms
        elif now_ms - self._unserved_since_ms >= READY_WITHOUT_WORKER_MS:
            self._said_unserved = True
            self.logger.warning(self.unserved, extra={"event": f"{self.kind}.unserved"})
