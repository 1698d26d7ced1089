"""
The memory backend: the engine, a clock and a wake-up.

Its jobs are lost when the process ends. Any thread may call; one lock serializes the operations, and none of them
waits, so the asynchronous calls never suspend.
"""

from __future__ import annotations

import logging
from typing import ClassVar, TypeVar

from queuehint.backends.base import BackendOptions
from queuehint.backends.in_process import OWN_LEASE_MS, LocalBackend
from queuehint.core.engine import EPOCH_BEGIN_S, Engine, EngineOptions
from queuehint.operations import CountRecords, Enqueue, List, Operation

Reply = TypeVar("Reply")


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
        super().__init__(options)
        epoch_s = max(0, self._clock.now_ms() // 1000 - EPOCH_BEGIN_S)
        self.engine = Engine(engine_options or EngineOptions(epoch_s=epoch_s, retention=options.retention))
        self._begin_use()
        self._said_volatile = False

    @classmethod
    def from_url(cls, _url: str, options: BackendOptions) -> MemoryBackend:
        """Make a store for ``memory://``."""
        return cls(options)

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Do one operation; suspends only before a question by path, while records are indexed for it."""
        if isinstance(operation, (List, CountRecords)):
            await self._prepare(operation)
        return self.call_sync(operation)

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """
        Carry out one operation.

        Raises:
            BackendUnavailableError: the backend was closed, or this process was forked from the one that made it.
        """
        self._check_usable()
        with self._lock:
            now_ms = self._clock.now_ms()
            if leases := self._own_leases(now_ms):
                self.engine.extend(leases, OWN_LEASE_MS, now_ms)
            reply = self._apply(operation, now_ms)
            if type(operation) is Enqueue and not self._said_volatile:
                self._said_volatile = True
                self.logger.info("jobs live in memory only", extra={"event": "memory.volatile"})
            return reply

    async def _await_ends(self, job_ids: tuple[str, ...]) -> None:
        self._await_ends_sync(job_ids)

    def _await_ends_sync(self, job_ids: tuple[str, ...]) -> None:
        with self._lock:
            self.engine.await_ends(job_ids)

    async def close(self) -> None:
        """Drop all jobs and wake all waiters."""
        self.close_sync()

    def close_sync(self) -> None:
        """Drop all jobs and wake all waiters."""
        if self._is_gone():
            self._closed = True
            return
        with self._lock:
            self._closed = True
        self._wake_all()
