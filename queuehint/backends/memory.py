"""
The memory backend: the engine, a clock and a wake-up.

Its jobs are lost when the process ends. Any thread may call; one lock serializes the operations, and none of them
waits, so the asynchronous calls never suspend.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, ClassVar, TypeVar

import attrs

from queuehint.backends.base import BackendOptions
from queuehint.backends.in_process import OWN_LEASE_MS, LocalBackend
from queuehint.clock import SteadyClock, SystemClock
from queuehint.core.engine import EPOCH_BEGIN_S, Engine, EngineOptions
from queuehint.operations import Enqueue, Operation
from queuehint.values.ids import this_process
from queuehint.values.record import OVER, JobState

Reply = TypeVar("Reply")

ENQUEUED_AT_ONCE = 10
"""How many single jobs a caller may enqueue in a row before others on its loop have their turn."""


class MemoryBackend(LocalBackend):
    """
    `Engine` behind a lock.

    Args:
        options: the namespace is ignored: each instance is a store of its own.
        engine_options: for tests, another budget.
    """

    kind: ClassVar = "memory"
    logger: ClassVar = logging.getLogger("queuehint.memory")
    unserved: ClassVar = "jobs are ready but no worker runs in this process; memory:// has no others"

    def __init__(self, options: BackendOptions | None = None, engine_options: EngineOptions | None = None) -> None:
        options = options or BackendOptions()
        self._is_real = type(options.clock) is SystemClock
        if self._is_real:
            options = attrs.evolve(options, clock=SteadyClock())
        super().__init__(options)
        epoch_s = max(0, self._clock.now_ms() // 1000 - EPOCH_BEGIN_S)
        self.engine = Engine(engine_options or EngineOptions(epoch_s=epoch_s, retention=options.retention))
        self._begin_use()
        self._said_volatile = False
        self._said_left = ""
        self._enqueuer = threading.get_ident()
        self._in_a_row = 0
        """How many single jobs this thread has enqueued since others on its loop had their turn."""

    @classmethod
    def from_url(cls, _url: str, options: BackendOptions) -> MemoryBackend:
        """Make a store for ``memory://``."""
        return cls(options)

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Apply one operation, and suspend only to index records for a query by path."""
        if operation.is_question:
            await self._prepare(operation)
        return self.call_sync(operation)

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """
        Carry out one operation.

        Raises:
            BackendUnavailableError: the backend was closed, or this process was forked from the one that made it.
        """
        if self._closed or self._process is not this_process.mark:
            self._check_usable()
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._adopted and (leases := self._own_leases(now_ms)):
                self.engine.extend(leases, OWN_LEASE_MS, now_ms)
            reply = self._apply(operation, now_ms)
            if type(operation) is Enqueue and not self._said_volatile:
                self._said_volatile = True
                self.logger.info("jobs live in memory only", extra={"event": "memory.volatile"})
            return reply

    def owes_turn(self, operation: Operation[Any]) -> bool:
        """Return whether other tasks of the loop need a turn. Of single enqueues of one thread one in ten does."""
        if type(operation) is not Enqueue or len(operation.jobs) > 1:
            return True
        thread, self._in_a_row = threading.get_ident(), self._in_a_row + 1
        if thread == self._enqueuer and self._in_a_row < ENQUEUED_AT_ONCE:
            return False
        # Two loops that enqueue in turn would count for each other: each of them lets others have their turn.
        self._enqueuer, self._in_a_row = thread, 0
        return True

    async def _await_ends(self, job_ids: tuple[str, ...]) -> None:
        self._await_ends_sync(job_ids)

    def _await_ends_sync(self, job_ids: tuple[str, ...]) -> None:
        with self._lock:
            self.engine.await_ends(job_ids)

    def say_left(self, what: str = "stay in memory without a worker, and are lost when the process ends") -> None:
        """Warn of unfinished jobs by state, once for equal counts, and never under a test's clock."""
        if self._closed or not self._is_real or self._is_gone():
            return
        with self._lock:
            counts = self.engine.state.table.counts
            left = {state.value: counts[state] for state in JobState if counts[state] and state not in OVER}
        text = ", ".join([f"{count} {state}" for state, count in left.items()])
        if left and text != self._said_left:
            extra = {"event": "memory.jobs_left", "jobs": sum(left.values()), **left}
            message = (
                "unfinished jobs %s: %s; drain first (include_scheduled=True), or keep jobs in a file, in PostgreSQL "
                "or on Redis"
            )
            self.logger.warning(message, what, text, extra=extra)
        self._said_left = text

    async def close(self) -> None:
        """Drop all jobs, with a warning that names how many are unfinished, and wake all waiters."""
        self.close_sync()

    def close_sync(self) -> None:
        """Like `close`."""
        if self._is_gone():
            self._closed = True
            return
        self.say_left("are lost, because the store in memory is closed")
        with self._lock:
            self._closed = True
        self._wake_all()
