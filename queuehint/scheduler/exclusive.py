"""
Exclusive sections for plain code: a job without a handler that only its caller may start.

The job goes to a pool of its own, so that no worker can claim it, and carries a presence lease from the moment it
waits: if the caller dies, waiting or holding, the job is CANCELED (``waiter_lost``) and the place is free.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from queuehint.backends.base import Interest
from queuehint.backends.steps import Steps, Wait, run_steps, run_steps_sync, was_in_vain, with_room
from queuehint.client.stuck import HeldPlace, HoldWatch, forget_left, identity_of, mark_held
from queuehint.clock import now_s
from queuehint.errors import BackendError, InvalidJobError, JobCanceledError, LeaseLostError, ResultTimeoutError
from queuehint.operations import Cancel, Enqueue, Exchange, Get, Renew, Verdict
from queuehint.schema.checks import check_duration
from queuehint.values.ids import new_id
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record import JobRecord
from queuehint.values.spec import JobSpec, note_checked
from queuehint.worker.leases.held import margin_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta
    from types import TracebackType

    from queuehint.backends.base import Backend
    from queuehint.values.hint import Claim

TASK = "exclusive"
POOL_PREFIX = "@"
WAIT_CEILING_S = 5.0
logger = logging.getLogger("queuehint.exclusive")

_POLICY = Policy(max_attempts=1, max_losses=1, retention_ms=60_000)


class Hold:
    """
    The place that plain code holds.

    Args:
        id: the id of the job that stands for it.
        token: the fencing token; pass it on to whatever can refuse less.
    """

    def __init__(self, job_id: str, token: int, until_s: float = math.inf) -> None:
        self.id = job_id
        self.token = token
        self._until_s = until_s
        """Until when it is surely held, less a margin, by this machine's monotonic clock."""
        self._wakes: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Hold({self.id!r}, token={self.token}, lost={self.lost})"

    @property
    def lost(self) -> bool:
        """
        True once another job may hold the place.

        The store refused a renewal, or none went through until a tenth of the lease (at least 0.5 s) before its end, by
        this machine's monotonic clock. It never becomes false again.
        """
        return now_s() >= self._until_s

    async def wait_lost(self) -> None:
        """Return once `lost` is true; cancel it where the block is left."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(news.set)

        with self._woken(wake):
            while not self.lost:
                news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), self._left_s())

    def wait_lost_sync(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until `lost` is true, for another thread than the block's; return whether it is after *timeout*."""
        end_s = math.inf if timeout is None else now_s() + check_duration(timeout, parameter="timeout") / 1000
        news = threading.Event()
        with self._woken(news.set):
            while not self.lost and now_s() < end_s:
                news.clear()
                left_s = self._left_s()
                if end_s < math.inf:
                    left_s = max(0.0, min(threading.TIMEOUT_MAX if left_s is None else left_s, end_s - now_s()))
                news.wait(left_s)
        return self.lost

    def extend(self, until_s: float) -> None:
        """Record a renewal; a late one changes nothing."""
        with self._lock:
            if not self.lost:
                self._until_s = max(self._until_s, until_s)

    def lose(self) -> None:
        """Record that the lease is lost."""
        with self._lock:
            self._until_s = -math.inf
            wakes = list(self._wakes)
        for wake in wakes:
            wake()

    def _left_s(self) -> float | None:
        """Return how long it lasts; None if only the store can end it."""
        return None if self._until_s == math.inf else max(0.0, self._until_s - now_s())

    @contextlib.contextmanager
    def _woken(self, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._wakes.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakes.remove(wake)


class _Request:
    """Steps shared by the asynchronous and the synchronous form: operations to send, replies to interpret."""

    def __init__(
        self, claims: tuple[Claim, ...], lease_ms: int, timeout_ms: int | None, user: str | None, *, is_kept: bool
    ) -> None:
        self.id = new_id()
        self._is_kept = is_kept
        """The store renews by itself: no lease ends while this process lives."""
        self.pools = (f"{POOL_PREFIX}{self.id}",)
        self.lease_ms = lease_ms
        self.timeout_ms = timeout_ms
        self.token = 0
        self.hold: Hold | None = None
        self.is_left = False
        """The place is being given back: a renewal that comes too late has lost nothing."""
        self._deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        self.spec = note_checked(
            JobSpec(
                id=self.id,
                task=TASK,
                claims=claims,
                pool=self.pools[0],
                user=user,
                presence_ms=lease_ms,
                policy=_POLICY,
            )
        )

    @property
    def renewal_s(self) -> float:
        return self.lease_ms / 3000

    def claim(self) -> Exchange:
        return Exchange(self.pools[0], (), self.pools, 1, self.lease_ms)

    def leases(self) -> tuple[tuple[str, int], ...]:
        return ((self.id, self.token),)

    def renew(self) -> Renew:
        return Renew(self.leases(), self.lease_ms)

    def until_s(self, sent_s: float) -> float:
        """Return the earliest expiry of a lease that is requested at that time."""
        lease_s = self.lease_ms / 1000
        return math.inf if self._is_kept else sent_s + lease_s - margin_s(lease_s)

    def granted(self, grants: tuple[Grant, ...], sent_s: float) -> Hold | None:
        if not grants:
            return None
        self.token = grants[0].token
        self.hold = Hold(self.id, self.token, self.until_s(sent_s))
        return self.hold

    def settle(self, kind: OutcomeKind = OutcomeKind.FINISHED) -> Exchange:
        self.is_left = True
        if self.hold is not None:
            self.hold.extend(math.inf)
        outcome = Outcome(job_id=self.id, token=self.token, kind=kind)
        return Exchange(self.pools[0], (outcome,), self.pools, 0, self.lease_ms)

    def settled(self, verdicts: tuple[Verdict, ...], *, raising: bool) -> None:
        if verdicts[0] is Verdict.LOST and not raising:
            raise LeaseLostError(self.id, self.token)

    def judge_renewal(self, renew: Renew, verdicts: tuple[Verdict, ...], sent_s: float) -> None:
        if (
            self.hold is None or self.is_left or renew.leases != self.leases()
        ):  # or it was for the time before the grant
            return
        if verdicts[0] is Verdict.LOST:
            self.hold.lose()
        else:
            self.hold.extend(self.until_s(sent_s))

    def is_held(self) -> bool:
        """Return whether the block holds the place now, as far as is known here."""
        return self.hold is not None and not self.is_left and not self.hold.lost

    def check_alive(self, record: JobRecord | None) -> None:
        """Raise if the job of the caller was canceled or deleted."""
        if record is None or record.state.is_over:
            raise JobCanceledError(self.id, record.cause if record is not None else None)

    def pause_s(self) -> float:
        """How long to wait for a wake-up; raises when the time given is over."""
        if self._deadline is None or self.timeout_ms is None:
            return min(self.renewal_s, WAIT_CEILING_S)
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise ResultTimeoutError(self.id, self.timeout_ms / 1000)
        return min(left_s, self.renewal_s, WAIT_CEILING_S)

    def renewal(self) -> Steps[None]:
        renew, sent_s = self.renew(), now_s()
        self.judge_renewal(renew, (yield renew).verdicts, sent_s)


class _Entrance(abc.ABC):
    """The steps to wait for a place, keep it and leave it; their driver renews, on a loop or in a thread."""

    def __init__(
        self,
        backend: Backend,
        claims: tuple[Claim, ...],
        *,
        lease_ms: int,
        timeout_ms: int | None,
        user: str | None,
        refuse: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._claims = claims
        self._refuse = refuse
        self._make: Callable[[], _Request] = lambda: _Request(
            claims, lease_ms, timeout_ms, user, is_kept=backend.keeps_leases
        )
        self._request: _Request | None = None
        self._forget: Callable[[], None] | None = None
        self._lock = threading.Lock()

    @property
    def _call(self) -> str:
        return "exclusive()"

    def _begin(self) -> _Request:
        self._refuse()
        with self._lock:
            if self._request is not None:
                raise InvalidJobError(
                    "this exclusive() is held or waited for already: call exclusive() again for each concurrent use"
                )
            self._request = self._make()
            return self._request

    def _enter(self, request: _Request) -> Steps[Hold]:
        holds = HoldWatch(self._backend, self._call, is_bounded=request.timeout_ms is not None)
        if request.timeout_ms != 0:
            yield from holds.refuse_claims(self._claims)
        enqueued = yield from with_room(Enqueue((request.spec,)))
        request.token = enqueued.jobs[0].presence_token or 0
        self._forget = self._backend.adopt(request.leases)
        if not self._backend.keeps_leases:
            self._begin_to_renew(request)
        is_in_vain = True
        while True:
            sent_s = now_s()
            hold = request.granted((yield request.claim()).grants, sent_s)
            if hold is not None:
                mark_held(HeldPlace(request.id, hold.token, self._claims, identity_of(self._backend), request.is_held))
                return hold
            if request.timeout_ms != 0 and holds.is_due:
                yield from holds.look((request.id,))
            if not is_in_vain:
                request.check_alive((yield Get((request.id,))).records[0])
            begun_s, pause_s = time.monotonic(), request.pause_s()
            yield Wait(Interest(pools=request.pools, jobs=(request.id,)), pause_s)
            is_in_vain = was_in_vain(begun_s, pause_s)

    @staticmethod
    def _give_up(request: _Request) -> Steps[None]:
        """Cancel the job that stands for a caller that does not wait any more."""
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
    def _leave(request: _Request, error: BaseException | None) -> Steps[None]:
        reply = yield request.settle()
        request.settled(reply.verdicts, raising=error is not None)

    def _let_go(self) -> None:
        self._end_renewing()
        if self._forget is not None:
            self._forget()
        self._request = None
        forget_left()

    @abc.abstractmethod
    def _begin_to_renew(self, request: _Request) -> None:
        """Renew the lease from time to time, beside the block."""

    @abc.abstractmethod
    def _end_renewing(self) -> None:
        """Renew it no more."""


@contextlib.contextmanager
def _failures_said(request: _Request) -> Iterator[None]:
    """Log a renewal that fails: the next one may go through; if none does, the place is lost in time."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        extra = {"event": "exclusive.not_renewed", "job_id": request.id, "error": f"{type(error).__name__}: {error}"}
        logger.warning("the lease of an exclusive section was not renewed", extra=extra)


class Exclusive(_Entrance):
    """
    ``async with`` holds the place; entering waits for it. It may be entered again once it was left.

    Args:
        refuse: raises where waiting is not allowed; called on entering, which may be elsewhere than where it was made.

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

    def _begin_to_renew(self, request: _Request) -> None:
        self._renewing = asyncio.create_task(self._renew(request))

    def _end_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    async def _renew(self, request: _Request) -> None:
        while True:
            await asyncio.sleep(request.renewal_s)
            with _failures_said(request):
                await run_steps(self._backend, request.renewal())


class ExclusiveSync(_Entrance):
    """``with`` holds the place, for code without a loop; raises as `Exclusive`."""

    _done: threading.Event | None = None

    @property
    def _call(self) -> str:
        return "exclusive_sync()"

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

    def _begin_to_renew(self, request: _Request) -> None:
        self._done = done = threading.Event()
        threading.Thread(target=self._renew, args=(request, done), daemon=True, name="queuehint-renew").start()

    def _end_renewing(self) -> None:
        if self._done is not None:
            self._done.set()

    def _renew(self, request: _Request, done: threading.Event) -> None:
        while not done.wait(request.renewal_s):
            with _failures_said(request):
                run_steps_sync(self._backend, request.renewal())
