"""
Exclusive sections and permits for plain code: a job without a handler that no worker but its caller may start.

The job goes to a pool of its own, so that no worker can claim it, and carries a presence lease from the moment it
waits: if the caller dies, waiting or holding, the job is CANCELED (``waiter_lost``) and what it held is free.

That of an exclusive section claims a place. That of a permit claims none, and counts under the limits of a path. Its
``parent`` is the job, or the hold, inside of which its caller waits: so `Circles` finds who waits for whom.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from queuehint.backends.base import Interest
from queuehint.backends.steps import Steps, Wait, run_steps, run_steps_sync, was_in_vain, with_room
from queuehint.client.circles import CircleWatch
from queuehint.client.holds import HeldPlace, forget_left, identity_of, mark_held
from queuehint.client.stuck import HoldWatch
from queuehint.clock import now_s
from queuehint.errors import BackendError, InvalidJobError
from queuehint.operations import Cancel, Get, Verdict
from queuehint.scheduler.holds.hold import Hold
from queuehint.scheduler.holds.request import Asked, Request
from queuehint.values.outcome import OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from queuehint.backends.base import Backend

logger = logging.getLogger("queuehint.exclusive")


class _Entrance(abc.ABC):
    """The steps to wait for a place, hold and release it. The driver renews the lease, on a loop or in a thread."""

    def __init__(self, backend: Backend, asked: Asked) -> None:
        self._backend = backend
        self._asked = asked
        self._request: Request | None = None
        self._forget: Callable[[], None] | None = None
        self._lock = threading.Lock()

    @property
    def _call(self) -> str:
        return f"{self._asked.task}()"

    def _begin(self) -> Request:
        self._asked.refuse()
        owner = self._asked.owner()
        with self._lock:
            if self._request is not None:
                name = f"{self._asked.task}()"
                raise InvalidJobError(
                    f"this {name} is held or waited for already: call {name} again for each concurrent use"
                )
            self._request = Request(self._asked, owner, is_kept=self._backend.keeps_leases)
            return self._request

    def _enter(self, request: Request) -> Steps[Hold]:
        claims = request.asked.claims
        is_bounded = request.timeout_ms is not None
        holds = HoldWatch(self._backend, self._call, is_bounded=is_bounded)
        circles = CircleWatch(self._backend, self._call, request.id, request.owner, is_bounded=is_bounded)
        if request.timeout_ms != 0:
            yield from holds.refuse_claims(claims)
        enqueued = yield from with_room(request.enqueue())
        request.token = enqueued.jobs[0].presence_token or 0
        self._forget = self._backend.adopt(request.leases)
        if not self._backend.keeps_leases:
            self._begin_to_renew(request)
        is_in_vain = True
        while True:
            sent_s = now_s()
            hold = request.granted((yield request.claim()).grants, sent_s)
            if hold is not None:
                mark_held(HeldPlace(request.id, hold.token, claims, identity_of(self._backend), request.is_held))
                return hold
            request.check_owner()
            if request.timeout_ms != 0:
                if holds.is_due and not request.asked.is_permit:
                    yield from holds.look((request.id,))
                if circles.is_due:
                    yield from circles.look()
            if not is_in_vain:
                request.check_alive((yield Get((request.id,))).records[0])
            begun_s, pause_s = time.monotonic(), request.pause_s()
            yield Wait(Interest(pools=request.pools, jobs=(request.id,)), pause_s)
            is_in_vain = was_in_vain(begun_s, pause_s)

    @staticmethod
    def _give_up(request: Request) -> Steps[None]:
        """Cancel the job of a caller that has stopped waiting."""
        with contextlib.suppress(BackendError):  # it must not take the place of what is being raised
            reply = yield Cancel((request.id,), "the caller gave up")
            if reply.verdicts[0][0] is not Verdict.REQUESTED:
                return
            # It was granted, and the caller does not know: it would keep the place until its lease ends.
            record = (yield Get((request.id,))).records[0]
            if record is not None:
                request.token = record.token or 0
                yield request.settle(OutcomeKind.RELEASED)

    @staticmethod
    def _leave(request: Request, error: BaseException | None) -> Steps[None]:
        reply = yield request.settle()
        request.settled(reply.verdicts, raising=error is not None)

    def _let_go(self) -> None:
        self._end_renewing()
        if self._forget is not None:
            self._forget()
        self._request = None
        forget_left()

    @abc.abstractmethod
    def _begin_to_renew(self, request: Request) -> None:
        """Renew the lease from time to time, beside the block."""

    @abc.abstractmethod
    def _end_renewing(self) -> None:
        """Stop the renewals."""


@contextlib.contextmanager
def _failures_said(request: Request) -> Iterator[None]:
    """Log a failed renewal: the next renewal may succeed, and otherwise the lease expires."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        task = request.asked.task
        extra = {"event": f"{task}.not_renewed", "job_id": request.id, "error": f"{type(error).__name__}: {error}"}
        logger.warning("the lease of what %s() holds was not renewed", task, extra=extra)


class Exclusive(_Entrance):
    """
    ``async with`` holds the place, and entering waits for its turn. Once left, the section may be entered again.

    Raises:
        InvalidJobError: on entering, if it is held or waited for already: each `async with` takes one of its own.
        ResultTimeoutError: on entering, if the place was not free in time; nothing is held.
        JobCanceledError: on entering, if the job that stands for it was canceled.
        LeaseLostError: on leaving, if the lease was lost meanwhile and the block itself did not raise.
    """

    _renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Hold:
        request = self._begin()
        try:
            return await run_steps(self._backend, self._enter(request))
        except BaseException:
            self._let_go()
            await asyncio.shield(run_steps(self._backend, self._give_up(request)))
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._request is not None
        try:
            await run_steps(self._backend, self._leave(self._request, error))
        finally:
            self._let_go()

    def _begin_to_renew(self, request: Request) -> None:
        self._renewing = asyncio.create_task(self._renew(request))

    def _end_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    async def _renew(self, request: Request) -> None:
        while True:
            await asyncio.sleep(request.renewal_s)
            with _failures_said(request):
                await run_steps(self._backend, request.renewal())


class Permit(Exclusive):
    """
    ``async with`` holds room of limits, and entering waits for room. Once left, the permit may be entered again.

    Raises:
        InvalidJobError: on entering, if it is held or waited for already: each `async with` takes one of its own; or if
            it costs more than a limit has.
        ResultTimeoutError: on entering, if there was no room in time; nothing is held.
        WouldDeadlockError: on entering, if only those who wait for this caller could make room.
        JobCanceledError: on entering, if the job that stands for it was canceled, or that of the handler is to stop.
        LeaseLostError: on entering, if the handler's own job is lost; on leaving, if the lease was lost meanwhile and
            the block itself did not raise.
        QueueFullError, PathClosedError: on entering, as of a job at the path.
    """


class ExclusiveSync(_Entrance):
    """``with`` holds the place, for code without a loop. Raises as `Exclusive`."""

    _done: threading.Event | None = None

    @property
    def _call(self) -> str:
        return f"{self._asked.task}_sync()"

    def __enter__(self) -> Hold:
        request = self._begin()
        try:
            return run_steps_sync(self._backend, self._enter(request))
        except BaseException:
            self._let_go()
            run_steps_sync(self._backend, self._give_up(request))
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._request is not None
        try:
            run_steps_sync(self._backend, self._leave(self._request, error))
        finally:
            self._let_go()

    def _begin_to_renew(self, request: Request) -> None:
        self._done = done = threading.Event()
        threading.Thread(target=self._renew, args=(request, done), daemon=True, name="queuehint-renew").start()

    def _end_renewing(self) -> None:
        if self._done is not None:
            self._done.set()

    def _renew(self, request: Request, done: threading.Event) -> None:
        while not done.wait(request.renewal_s):
            with _failures_said(request):
                run_steps_sync(self._backend, request.renewal())


class PermitSync(ExclusiveSync):
    """``with`` holds room of limits, for code without a loop. Raises as `Permit`."""
