"""Drains: run or wait until no work is left."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import threading
import time
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from queuehint.backends.base import Interest
from queuehint.backends.steps import is_loop_running, run_steps, run_steps_sync, was_in_vain
from queuehint.client.stuck import HoldWatch
from queuehint.errors import DrainStalledError, DrainTimeoutError
from queuehint.handlers.context import is_in_handler, refuse_to_wait
from queuehint.operations import CountPending, List, Pending
from queuehint.scheduler.hosting import Hosting
from queuehint.schema.checks import check_bool, check_optional_duration
from queuehint.values.hint import parse_path
from queuehint.values.record import OVER, JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import ReasonKind
from queuehint.worker.schedules.firing import fire_due

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from queuehint.worker.worker import Worker

T = TypeVar("T")

POLL_MIN_S = 0.005
POLL_MAX_S = 1.0
JOBS_A_SECOND = 1000
"""The rate that a poll assumes: with n jobs left it asks again after n / 1000 s. A store of this process wakes it."""
FEW = 10
"""With so few jobs left, it waits for these jobs instead of polling counts."""
WAIT_S = 5.0
WAITS_MAX = 2
"""So many waits for the last jobs may time out before the jobs are counted again."""
NOBODY_RUNS = "start a worker, or have drain(run=True) run them"
FEW_PAUSE_S = 0.02
"""The pause before the next count once one of the last jobs has ended."""


class Draining(Hosting):
    """The part of `Scheduler` that waits until no work is left."""

    async def drain(
        self,
        path: Sequence[str] | None = None,
        *,
        timeout: float | timedelta | None = None,
        include_scheduled: bool = False,
        run: bool | None = None,
    ) -> None:
        """
        Return when no unfinished job is left, at or below *path* if one is given.

        First of all, schedules that are due are fired.

        Args:
            timeout: a timedelta or seconds; None waits for ever.
            include_scheduled: wait for SCHEDULED jobs too, those that wait for their time, or for a retry off their
                places; and for signals that are waited for until a time: without it a signal is what a person gives.
            run: run the jobs too while no worker of this scheduler does in this process; by default in memory and in a
                file.

        Raises:
            DrainStalledError: jobs are left and none can move without a person; one reason each, at most 100.
            DrainTimeoutError: jobs are left when the time is over; what it ran itself is given back.
            WouldDeadlockError: inside a handler, or below an `exclusive` whose place a job that is left needs; unless
                nothing is left.
        """
        question = _question(path, include_scheduled)
        limit_ms = check_optional_duration(timeout, parameter="timeout")
        run = self._is_to_run(run)
        if not is_in_handler():
            await run_steps(self.backend, fire_due())
        if not (await self.backend.call(question)).unfinished:
            return
        refuse_to_wait("drain()")
        holds = HoldWatch(self.backend, "drain()", is_bounded=limit_ms is not None)
        await run_steps(self.backend, holds.refuse_path(question.path))
        loop = asyncio.get_running_loop()
        deadline = None if limit_ms is None else loop.time() + limit_ms / 1000
        async with contextlib.AsyncExitStack() as stack:
            worker: Worker | None = None
            left, pause_s = 0, POLL_MIN_S
            last: tuple[str, ...] = ()
            try:
                while True:
                    pending = await self.backend.call(question)
                    if pending.unfinished and run and worker is None and self._have_all_stopped():
                        worker = self.make_worker()
                        await stack.enter_async_context(self.running(worker))
                        continue
                    if not self._is_one_beginning():
                        _refuse_to_stall(pending, "" if self._workers else NOBODY_RUNS)
                    if pending.unfinished and limit_ms is not None and deadline is not None and loop.time() >= deadline:
                        raise DrainTimeoutError(pending.unfinished, limit_ms / 1000)
                    if not pending.unfinished:
                        return
                    if holds.is_due:
                        await run_steps(self.backend, holds.look(await self._last(question)))
                    least_s = min(max(POLL_MIN_S, pending.unfinished / JOBS_A_SECOND), POLL_MAX_S)
                    if pending.unfinished != left:
                        left, pause_s, last = pending.unfinished, least_s, ()
                    else:
                        pause_s = min(pause_s * 1.5, POLL_MAX_S)
                    until_s = math.inf if deadline is None else max(deadline - loop.time(), 0)
                    if self.backend.is_local:
                        await self.backend.wait(Interest(pending=question), min(pause_s, until_s))
                        continue
                    if left <= FEW and pause_s > FEW_PAUSE_S:
                        last = await self._wait_for_last(last or await self._last(question), until_s)
                        until_s = FEW_PAUSE_S
                    await asyncio.sleep(min(pause_s, until_s))
            except BaseException:
                if worker is not None:
                    worker.stop(at_once=True)
                raise

    def _is_to_run(self, run: bool | None) -> bool:
        return self.backend.is_local if run is None else check_bool(run, parameter="run")

    def _have_all_stopped(self) -> bool:
        """Return whether all workers of this scheduler in this process have stopped claiming."""
        return all(worker.is_stopping for worker in list(self._workers))

    def _is_one_beginning(self) -> bool:
        """Return whether a worker of this scheduler has yet to register with the store."""
        return not all(worker.started.is_set() for worker in list(self._workers))

    async def _last(self, question: CountPending) -> tuple[str, ...]:
        """Return the ids of the last unfinished jobs."""
        none = OVER if question.include_scheduled else OVER | {JobState.SCHEDULED}
        left = RecordFilter(path=question.path, states=tuple([state for state in JobState if state not in none]))
        page = await self.backend.call(List(left, limit=FEW))
        return tuple([record.id for record in page.records])

    async def _wait_for_last(self, last: tuple[str, ...], timeout_s: float) -> tuple[str, ...]:
        """Wait for a while until one of the last jobs has ended. Return the jobs if none has, else ()."""
        for _ in range(WAITS_MAX if last else 0):
            wait_s, begun_s = min(WAIT_S, timeout_s), time.monotonic()
            await self.backend.wait(Interest(jobs=last), wait_s)
            if not was_in_vain(begun_s, wait_s):
                return ()
            timeout_s -= wait_s
            if timeout_s <= 0:
                break
        return last

    def drain_sync(
        self,
        path: Sequence[str] | None = None,
        *,
        timeout: float | timedelta | None = None,
        include_scheduled: bool = False,
        run: bool | None = None,
    ) -> None:
        """Like `drain`, blocking this thread. Also refused on the thread of this scheduler's workers' loop."""
        question = _question(path, include_scheduled)
        limit_ms = check_optional_duration(timeout, parameter="timeout")
        limit = None if limit_ms is None else timedelta(milliseconds=limit_ms)
        run = self._is_to_run(run)
        if not is_in_handler():
            run_steps_sync(self.backend, fire_due())
        if not self.backend.call_sync(question).unfinished:
            return
        refuse_to_wait("drain_sync()")
        holds = HoldWatch(self.backend, "drain_sync()", is_bounded=limit_ms is not None)
        run_steps_sync(self.backend, holds.refuse_path(question.path))
        self._refuse_to_block("drain_sync()")
        options: dict[str, Any] = {"timeout": limit, "include_scheduled": question.include_scheduled, "run": run}
        _run_beside(lambda: self.drain(question.path, **options))


def _question(path: object, include_scheduled: object) -> CountPending:
    return CountPending(
        None if path is None else parse_path(path), check_bool(include_scheduled, parameter="include_scheduled")
    )


def _refuse_to_stall(pending: Pending, advice: str) -> None:
    """Raise if the remaining jobs are stuck. *advice* is for jobs without a worker."""
    if pending.unfinished and not pending.moving:
        is_unserved = any(reason.kind is ReasonKind.NO_WORKER for reason in pending.reasons)
        raise DrainStalledError(pending.reasons, advice if is_unserved else "")


def _run_beside(make: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end from plain code, also on a thread whose loop runs (notebooks)."""

    async def main() -> T:
        return await make()

    if not is_loop_running():
        return asyncio.run(main())
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - handed over to the caller's thread
            done.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="queuehint-drain")
    thread.start()
    thread.join()
    return done.result()
