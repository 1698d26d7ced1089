"""The request of a caller for a place or permit, and its job: the operations to send, and the handling of replies."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.client.circles import EXCLUSIVE_TASK, PERMIT_TASK
from queuehint.clock import now_s
from queuehint.errors import JobCanceledError, LeaseLostError, ResultTimeoutError, shown
from queuehint.operations import Enqueue, Exchange, Renew, Verdict
from queuehint.scheduler.holds.hold import Hold
from queuehint.values.hint import queue_key
from queuehint.values.ids import new_id
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.spec import JobSpec, Priority, note_checked
from queuehint.worker.leases.held import margin_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.steps import Steps
    from queuehint.client.circles import Owner
    from queuehint.values.hint import Claim
    from queuehint.values.record import JobRecord

POOL_PREFIX: Final = "@"
WAIT_CEILING_S = 5.0
_OF_PLACES: Final = Policy(max_attempts=1, max_losses=1, retention_ms=60_000)
_OF_PERMITS: Final = Policy(max_attempts=1, max_losses=1, retention_ms=10_000)


@attrs.frozen(kw_only=True)
class Asked:
    """
    A caller's request for a place or a permit.

    Args:
        claims: of an exclusive section one with a place, of a permit one without.
        is_permit: whether it is room of a limit, and no place.
        lease_ms: how long it is held when its caller dies.
        timeout_ms: how long to wait for it; None for ever.
        refuse: raises where waiting is not allowed; called on entering, which may be elsewhere than where it was made.
        owner: returns the job inside of which the caller waits, if it does.
    """

    claims: tuple[Claim, ...]
    lease_ms: int
    timeout_ms: int | None
    refuse: Callable[[], None]
    user: str | None = None
    priority: int = Priority.NORMAL
    cost: int = 1
    owner: Callable[[], Owner | None] = lambda: None
    is_permit: bool = False

    @property
    def task(self) -> str:
        """The task of the job that represents the caller."""
        return PERMIT_TASK if self.is_permit else EXCLUSIVE_TASK

    @property
    def policy(self) -> Policy:
        """The policy of the job that represents the caller."""
        policy = _OF_PERMITS if self.is_permit else _OF_PLACES
        return policy if self.cost == 1 else attrs.evolve(policy, cost=self.cost)


class Request:
    """Steps shared by the asynchronous and the synchronous form: operations to send, replies to interpret."""

    def __init__(self, asked: Asked, owner: Owner | None, *, is_kept: bool) -> None:
        self.id = new_id()
        self.asked = asked
        self.owner = owner
        self._is_kept = is_kept
        """The store renews by itself: no lease ends while this process lives."""
        self.pools = (f"{POOL_PREFIX}{self.id}",)
        self.lease_ms = lease_ms = asked.lease_ms
        self.timeout_ms = timeout_ms = asked.timeout_ms
        self.token = 0
        self.hold: Hold | None = None
        self.is_left = False
        """The place is being given back: a renewal that comes too late has lost nothing."""
        self._deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        self.spec = note_checked(
            JobSpec(
                id=self.id,
                task=asked.task,
                claims=asked.claims,
                priority=asked.priority,
                pool=self.pools[0],
                user=asked.user,
                presence_ms=lease_ms,
                parent=None if owner is None else owner.job_id,
                policy=asked.policy,
            )
        )

    def enqueue(self) -> Enqueue:
        """Return the submission of the job. That of a permit is refused if the job or hold of its caller is lost."""
        owner = self.owner if self.asked.is_permit else None
        return Enqueue((self.spec,), None, None if owner is None else (owner.job_id, owner.token))

    @property
    def renewal_s(self) -> float:
        """The time between two renewals."""
        return self.lease_ms / 3000

    def claim(self) -> Exchange:
        """Return the exchange that claims the job. The reply has its token."""
        return Exchange(self.pools[0], (), self.pools, 1, self.lease_ms)

    def leases(self) -> tuple[tuple[str, int], ...]:
        """Return the id and token to renew: of the presence while the caller waits, then of the lease."""
        return ((self.id, self.token),)

    def renew(self) -> Renew:
        """Return the operation that renews the presence or the lease."""
        return Renew(self.leases(), self.lease_ms)

    def until_s(self, sent_s: float) -> float:
        """Return the earliest expiry of a lease requested at that time."""
        lease_s = self.lease_ms / 1000
        return math.inf if self._is_kept else sent_s + lease_s - margin_s(lease_s)

    def granted(self, grants: tuple[Grant, ...], sent_s: float) -> Hold | None:
        """Return the hold if the store has granted a claim that was sent at that time, else None."""
        if not grants:
            return None
        self.token = grants[0].token
        self.hold = Hold(self.id, self.token, self.until_s(sent_s))
        return self.hold

    def settle(self, kind: OutcomeKind = OutcomeKind.FINISHED) -> Exchange:
        """Return the exchange that settles the job."""
        self.is_left = True
        if self.hold is not None:
            self.hold.extend(math.inf)
        outcome = Outcome(job_id=self.id, token=self.token, kind=kind)
        return Exchange(self.pools[0], (outcome,), self.pools, 0, self.lease_ms)

    def settled(self, verdicts: tuple[Verdict, ...], *, raising: bool) -> None:
        """Raise if the lease was lost before the settlement, unless the block raises itself."""
        if verdicts[0] is Verdict.LOST and not raising:
            raise LeaseLostError(self.id, self.token)

    def judge_renewal(self, renew: Renew, verdicts: tuple[Verdict, ...], sent_s: float) -> None:
        """Process the verdict on a renewal that was sent at that time."""
        # One of other leases was for the time before the grant.
        if self.hold is None or self.is_left or renew.leases != self.leases():
            return
        if verdicts[0] is Verdict.LOST:
            self.hold.lose()
        else:
            self.hold.extend(self.until_s(sent_s))

    def is_held(self) -> bool:
        """Return whether the block holds the place now, as far as this process knows."""
        return self.hold is not None and not self.is_left and not self.hold.lost

    def check_owner(self) -> None:
        """Raise if the job whose handler waits is to stop."""
        if self.owner is not None and self.owner.is_to_stop():
            raise JobCanceledError(self.owner.job_id, "asked to stop while it waited for a permit")

    def check_alive(self, record: JobRecord | None) -> None:
        """Raise if the job of the caller was canceled or deleted."""
        if record is None or record.state.is_over:
            raise JobCanceledError(self.id, record.cause if record is not None else None)

    def pause_s(self) -> float:
        """Return how long to wait for a wake-up. Raise at the end of the timeout."""
        if self._deadline is None or self.timeout_ms is None:
            return min(self.renewal_s, WAIT_CEILING_S)
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            (claim,) = self.asked.claims
            place = shown(queue_key(claim.path))
            problem = f"there was no room at {place}" if self.asked.is_permit else f"{place} was not free"
            raise ResultTimeoutError(self.id, self.timeout_ms / 1000, problem=problem)
        return min(left_s, self.renewal_s, WAIT_CEILING_S)

    def renewal(self) -> Steps[None]:
        """Renew the presence or the lease."""
        renew, sent_s = self.renew(), now_s()
        self.judge_renewal(renew, (yield renew).verdicts, sent_s)
