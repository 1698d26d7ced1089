"""
The store of one process: the engine, a clock and a wake-up.

Everything is lost when the process ends. Any thread may call; one lock keeps operations apart, and none of them
waits for anything, so the asynchronous calls never suspend.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from queuehint.backends.base import Backend, BackendOptions, Interest
from queuehint.core.engine import EPOCH_BEGIN_S, Engine, EngineOptions
from queuehint.errors import BackendUnavailableError
from queuehint.operations import Enqueue, Operation, PutSchedule, ResumeSchedule, Tick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Reply = TypeVar("Reply")
_Topic = tuple[str, object]

logger = logging.getLogger("queuehint.memory")

OWN_LEASE_MS = 30_000
READY_WITHOUT_WORKER_MS = 5_000


class _Waiter:
    """Somebody who waits: until when at most, how to wake them, and what for, as topics."""

    __slots__ = ("topics", "until_ms", "wake", "works")

    def __init__(self, interest: Interest, until_ms: int, wake: Callable[[], None]) -> None:
        topics: list[_Topic] = [("pool", pool) for pool in interest.pools]
        if interest.users is not None:
            topics = [("user", served) for served in product(interest.pools, interest.users)]
        topics += [("job", job_id) for job_id in interest.jobs]
        if interest.worker is not None:
            topics.append(("worker", interest.worker))
        self.topics = topics
        self.works = bool(interest.pools)
        self.until_ms = until_ms
        self.wake = wake


class _WaitingRoom:
    """Those who wait, by topic, so that what an operation did wakes just those whom it concerns."""

    def __init__(self) -> None:
        self._by_topic: dict[_Topic, dict[_Waiter, None]] = {}
        self._workers: dict[_Waiter, None] = {}
        self._latest_ms = 0
        """No worker here sleeps longer than this."""
        self._all: dict[_Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, waiter: _Waiter) -> None:
        self._all[waiter] = None
        for topic in waiter.topics:
            self._by_topic.setdefault(topic, {})[waiter] = None
        if waiter.works:
            self._workers[waiter] = None
            self._latest_ms = max(self._latest_ms, waiter.until_ms)

    def leave(self, waiter: _Waiter) -> None:
        if waiter not in self._all:
            return
        del self._all[waiter]
        self._workers.pop(waiter, None)
        for topic in waiter.topics:
            waiters = self._by_topic.get(topic)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._by_topic[topic]

    def call(self, kind: str, names: Iterable[object]) -> None:
        """Wake those who wait for any of these."""
        for name in names:
            for waiter in list(self._by_topic.get((kind, name), ())):
                self.leave(waiter)
                waiter.wake()

    def call_workers(self, next_ms: int) -> None:
        """Wake the workers that would sleep past the time when something is due."""
        if next_ms >= self._latest_ms:
            return
        self._latest_ms = next_ms
        for waiter in [waiter for waiter in self._workers if waiter.until_ms > next_ms]:
            self.leave(waiter)
            waiter.wake()

    def call_all(self) -> None:
        for waiter in list(self._all):
            self.leave(waiter)
            waiter.wake()


class MemoryBackend(Backend):
    """
    `Engine` behind a lock.

    Args:
        options: the namespace is ignored: each instance is a store of its own.
        engine_options: for tests, another budget.
    """

    def __init__(self, options: BackendOptions | None = None, engine_options: EngineOptions | None = None) -> None:
        options = options or BackendOptions()
        self._clock = options.clock
        epoch_s = max(0, self._clock.now_ms() // 1000 - EPOCH_BEGIN_S)
        self.engine = Engine(engine_options or EngineOptions(epoch_s=epoch_s, retention=options.retention))
        self._lock = threading.RLock()
        self._waiting = _WaitingRoom()
        self._adopted: dict[object, Callable[[], Sequence[tuple[str, int]]]] = {}
        self._pid = os.getpid()
        self._closed = False
        self._said_volatile = False
        self._said_unserved = False
        self._unserved_since_ms: int | None = None
        self._clock.subscribe(self._wake_all)

    @classmethod
    def from_url(cls, _url: str, options: BackendOptions) -> MemoryBackend:
        """Make a store for ``memory://``."""
        return cls(options)

    @property
    def is_local(self) -> bool:
        """Always true."""
        return True

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Do one operation; never suspends."""
        return self.call_sync(operation)

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """
        Do one operation.

        Raises:
            BackendUnavailableError: the backend was closed, or this process was forked from the one that made it.
        """
        self._check_usable()
        with self._lock:
            now_ms = self._clock.now_ms()
            engine = self.engine
            next_ms = engine.ledger.timers.next_ms()
            if next_ms is not None and next_ms <= now_ms and self._adopted:
                self._renew_own(now_ms)
            try:
                reply = engine.apply(operation, now_ms)
            finally:
                self._wake()
            if type(operation) in {PutSchedule, ResumeSchedule} and engine.timetable.is_due(engine.now_ms):
                self._waiting.call_workers(engine.now_ms)
            if type(operation) is Enqueue and not self._said_volatile:
                self._said_volatile = True
                logger.info("jobs live in memory only", extra={"event": "memory.volatile"})
            if not self._adopted and not self._said_unserved:
                self._watch_unserved(now_ms)
            return reply

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """Return once what is waited for may be there, or after *timeout_s*."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop that waited has been closed
                loop.call_soon_threadsafe(resolve)

        waiter = self._enter(interest, timeout_s, wake)
        if waiter is None:
            await asyncio.sleep(0)
            return
        timer = loop.call_later(self._left_s(waiter), resolve)
        try:
            await future
        finally:
            timer.cancel()
            self._leave(waiter)
        self._tick_unless_a_worker_does()

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Like `wait`, blocking this thread."""
        event = threading.Event()
        waiter = self._enter(interest, timeout_s, event.set)
        if waiter is None:
            return
        try:
            event.wait(self._left_s(waiter))
        finally:
            self._leave(waiter)
        self._tick_unless_a_worker_does()

    def adopt(self, leases: Callable[[], Sequence[tuple[str, int]]]) -> Callable[[], None]:
        """Renew these leases before anything is reaped."""
        key = object()
        with self._lock:
            self._adopted[key] = leases

        def forget() -> None:
            with self._lock:
                self._adopted.pop(key, None)

        return forget

    async def close(self) -> None:
        """Forget everything; whoever waits is woken."""
        self.close_sync()

    def close_sync(self) -> None:
        """Forget everything; whoever waits is woken."""
        with self._lock:
            self._closed = True
        self._wake_all()

    # --- waiting -------------------------------------------------------------------------------------------------

    def _enter(self, interest: Interest, timeout_s: float, wake: Callable[[], None]) -> _Waiter | None:
        """Register somebody who waits; None if what they wait for is there."""
        self._check_usable()
        with self._lock:
            if self._closed:  # meanwhile: nobody would wake this waiter any more
                return None
            engine, now_ms = self.engine, self._clock.now_ms()
            ledger = engine.ledger
            until_ms = now_ms + round(timeout_s * 1000)
            if any(ledger.ready.size(pool, interest.users) for pool in interest.pools):
                return None
            # A worker is up when something is due; where there is none, whoever waits for a result is.
            next_ms = engine.next_ms if interest.pools or not self._adopted else None
            if next_ms is not None:
                if next_ms <= now_ms and interest.pools:
                    return None
                until_ms = min(until_ms, next_ms)
            if interest.worker is not None and interest.worker in ledger.untold:
                return None
            for job_id in interest.jobs:
                job = ledger.jobs.get(job_id)
                if job is None or job.is_over:
                    return None
            waiter = _Waiter(interest, until_ms, wake)
            self._waiting.enter(waiter)
            return waiter

    def _tick_unless_a_worker_does(self) -> None:
        """Do what is due, for those who wait for results in a process without a worker."""
        next_ms = self.engine.next_ms
        if not self._adopted and not self._closed and next_ms is not None and next_ms <= self._clock.now_ms():
            self.call_sync(Tick())

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            self._waiting.leave(waiter)

    def _left_s(self, waiter: _Waiter) -> float:
        return max(0, waiter.until_ms - self._clock.now_ms()) / 1000

    def _wake(self) -> None:
        """Wake those whose wait is over after an operation."""
        ledger, waiting = self.engine.ledger, self._waiting
        if waiting:
            waiting.call("job", ledger.ended)
            waiting.call("pool", {pool for pool, _ in ledger.ready.filled})
            waiting.call("user", ledger.ready.filled)
            waiting.call("worker", list(ledger.untold))
            next_ms = self.engine.next_ms
            if next_ms is not None:
                waiting.call_workers(next_ms)
        ledger.ready.filled.clear()

    def _wake_all(self) -> None:
        with self._lock:
            self._waiting.call_all()

    # --- care ----------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Refuse before the lock is taken: in a fork, the thread that held it may not exist."""
        if self._closed:
            raise BackendUnavailableError("the memory backend was closed")
        if os.getpid() != self._pid:
            raise BackendUnavailableError(
                f"the memory backend belongs to process {self._pid} and cannot be used in its fork {os.getpid()}; "
                "make the scheduler after the fork, or use Redis"
            )

    def _renew_own(self, now_ms: int) -> None:
        """Renew what lives in this process, in the step before anything is reaped."""
        leases = [lease for held in list(self._adopted.values()) for lease in held()]
        self.engine.extend(leases, OWN_LEASE_MS, now_ms)

    def _watch_unserved(self, now_ms: int) -> None:
        """Say once that jobs have been ready for a while and no worker runs in this process."""
        if not self.engine.ledger.ready.sizes():
            self._unserved_since_ms = None
        elif self._unserved_since_ms is None:
            self._unserved_since_ms = now_ms
        elif now_ms - self._unserved_since_ms >= READY_WITHOUT_WORKER_MS:
            self._said_unserved = True
            logger.warning(
                "jobs are ready but no worker runs in this process; memory:// has no others",
                extra={"event": "memory.unserved"},
            )
