"""
A place for plain code: a job without a handler that only its caller may start.

The job goes to a pool of its own, so that nobody else can claim it, and carries a presence lease from the moment it
waits: if the caller dies, waiting or holding, the job is CANCELED (``waiter_lost``) and the place is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

from queuehint.backends.base import Interest
from queuehint.errors import BackendError, InvalidJobError, JobCanceledError, LeaseLostError, ResultTimeoutError
from queuehint.ids import new_id
from queuehint.operations import Cancel, Enqueue, Exchange, Get, Renew, Verdict
from queuehint.policy import Policy
from queuehint.records import Grant, JobRecord, JobSpec, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from queuehint.backends.base import Backend
    from queuehint.hint import Claim

TASK = "exclusive"
POOL_PREFIX = "@"
_POLICY = Policy(max_attempts=1, max_losses=1, retention_ms=60_000)


class Hold:
    """
    The place that plain code holds.

    Args:
        id: the id of the job that stands for it.
        token: the fencing token; pass it on to whatever can refuse less.
    """

    def __init__(self, job_id: str, token: int) -> None:
        self.id = job_id
        self.token = token
        self.lost = False
        """True once the lease was lost: somebody else may hold the place by now."""


class _Request:
    """The steps both colours share: what to send, what the replies mean."""

    def __init__(self, claims: tuple[Claim, ...], lease_ms: int, timeout_ms: int | None, user: str | None) -> None:
        self.id = new_id()
        self.pools = (f"{POOL_PREFIX}{self.id}",)
        self.lease_ms = lease_ms
        self.timeout_ms = timeout_ms
        self.token = 0
        self.hold: Hold | None = None
        self.is_left = False
        """The place is being given back: a renewal that comes too late has lost nothing."""
        self._deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        self.spec = JobSpec(
            id=self.id,
            task=TASK,
            claims=claims,
            pool=self.pools[0],
            user=user,
            presence_ms=lease_ms,
            policy=_POLICY,
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

    def granted(self, grants: tuple[Grant, ...]) -> Hold | None:
        if not grants:
            return None
        self.token = grants[0].token
        self.hold = Hold(self.id, self.token)
        return self.hold

    def settle(self) -> Exchange:
        self.is_left = True
        outcome = Outcome(job_id=self.id, token=self.token, kind=OutcomeKind.FINISHED)
        return Exchange(self.pools[0], (outcome,), self.pools, 0, self.lease_ms)

    def settled(self, verdicts: tuple[Verdict, ...], *, raising: bool) -> None:
        if verdicts[0] is Verdict.LOST and not raising:
            raise LeaseLostError(self.id, self.token)

    def judge_renewal(self, verdicts: tuple[Verdict, ...]) -> None:
        if verdicts[0] is Verdict.LOST and self.hold is not None and not self.is_left:
            self.hold.lost = True

    def check_alive(self, record: JobRecord | None) -> None:
        """Raise if somebody ended the job that stands for the caller."""
        if record is None or record.state.is_over:
            raise JobCanceledError(self.id, record.cause if record is not None else None)

    def pause_s(self) -> float:
        """How long to wait for a wake-up; raises when the time given is over."""
        if self._deadline is None or self.timeout_ms is None:
            return self.renewal_s
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise ResultTimeoutError(self.id, self.timeout_ms / 1000)
        return min(left_s, self.renewal_s)


def _check_unused(request: _Request | None) -> None:
    if request is not None:
        raise InvalidJobError("this exclusive() is held or waited for already; make one for each use at the same time")


class Exclusive:
    """
    ``async with`` holds the place; entering waits for it. It may be entered again once it was left.

    Args:
        refuse: raises where nobody may wait; asked on entering, which may be elsewhere than where it was made.

    Raises:
        InvalidJobError: on entering, if it is held or waited for already: each `async with` takes one of its own.
        ResultTimeoutError: on entering, if the place was not free in time; nothing is held.
        JobCanceledError: on entering, if somebody canceled the job that stands for it.
        LeaseLostError: on leaving, if the lease was lost meanwhile and the block itself did not raise.
    """

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
        self._refuse = refuse
        self._make: Callable[[], _Request] = lambda: _Request(claims, lease_ms, timeout_ms, user)
        self._request: _Request | None = None
        self._forget: Callable[[], None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Hold:
        self._refuse()
        _check_unused(self._request)
        request = self._request = self._make()
        backend = self._backend
        try:
            enqueued = (await backend.call(Enqueue((request.spec,)))).jobs[0]
            request.token = enqueued.presence_token or 0
            self._forget = backend.adopt(request.leases)
            self._renewing = None if backend.is_local else asyncio.create_task(self._renew(request))
            while True:
                hold = request.granted((await backend.call(request.claim())).grants)
                if hold is not None:
                    return hold
                request.check_alive((await backend.call(Get((request.id,)))).records[0])
                await backend.wait(Interest(pools=request.pools, jobs=(request.id,)), request.pause_s())
        except BaseException:
            self._let_go()
            with contextlib.suppress(BackendError):  # it must not take the place of what is being raised
                await asyncio.shield(backend.call(Cancel((request.id,), "the caller gave up")))
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        request = self._request
        assert request is not None
        try:
            reply = await self._backend.call(request.settle())
        finally:
            self._let_go()
        request.settled(reply.verdicts, raising=error is not None)

    def _let_go(self) -> None:
        if self._forget is not None:
            self._forget()
        if self._renewing is not None:
            self._renewing.cancel()
        self._request = None

    async def _renew(self, request: _Request) -> None:
        while True:
            await asyncio.sleep(request.renewal_s)
            with contextlib.suppress(BackendError):
                request.judge_renewal((await self._backend.call(request.renew())).verdicts)


class ExclusiveSync:
    """``with`` holds the place, for code without a loop; raises as `Exclusive`."""

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
        self._refuse = refuse
        self._make: Callable[[], _Request] = lambda: _Request(claims, lease_ms, timeout_ms, user)
        self._request: _Request | None = None
        self._forget: Callable[[], None] | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> Hold:
        self._refuse()
        with self._lock:
            _check_unused(self._request)
            request = self._request = self._make()
        done = self._done = threading.Event()
        backend = self._backend
        try:
            enqueued = backend.call_sync(Enqueue((request.spec,))).jobs[0]
            request.token = enqueued.presence_token or 0
            self._forget = backend.adopt(request.leases)
            if not backend.is_local:
                threading.Thread(target=self._renew, args=(request, done), daemon=True, name="queuehint-renew").start()
            while True:
                hold = request.granted(backend.call_sync(request.claim()).grants)
                if hold is not None:
                    return hold
                request.check_alive(backend.call_sync(Get((request.id,))).records[0])
                backend.wait_sync(Interest(pools=request.pools, jobs=(request.id,)), request.pause_s())
        except BaseException:
            self._let_go()
            with contextlib.suppress(BackendError):  # it must not take the place of what is being raised
                backend.call_sync(Cancel((request.id,), "the caller gave up"))
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        request = self._request
        assert request is not None
        try:
            reply = self._backend.call_sync(request.settle())
        finally:
            self._let_go()
        request.settled(reply.verdicts, raising=error is not None)

    def _let_go(self) -> None:
        self._done.set()
        if self._forget is not None:
            self._forget()
        self._request = None

    def _renew(self, request: _Request, done: threading.Event) -> None:
        while not done.wait(request.renewal_s):
            with contextlib.suppress(BackendError):
                request.judge_renewal(self._backend.call_sync(request.renew()).verdicts)
