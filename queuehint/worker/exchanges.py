"""
Exchanges of one worker with its store: outcomes are sent and grants received, in one round trip.

An exchange without a reply is sent again unchanged, so that a backend recognizes the repetition and gives the same
answer. One that fails with an error that is none of the store's may be the fault of an outcome: it is sent again in
halves, until the outcome is found.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from queuehint.clock import now_s
from queuehint.errors import BackendDeniedError, BackendError
from queuehint.operations import Exchange
from queuehint.operations.bounds import check_limits
from queuehint.values.outcome import OutcomeKind
from queuehint.worker.listening import pause_s
from queuehint.worker.outcomes import log_exchange, outcome_of, qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.base import Backend
    from queuehint.operations import Exchanged
    from queuehint.values.outcome import Grant, Outcome
    from queuehint.worker.firing import Timekeeper
    from queuehint.worker.leases.renewal import Renewal
    from queuehint.worker.outbox import Outbox
    from queuehint.worker.outcomes import OutcomeBuilder, Settlements
    from queuehint.worker.slots import Slots, Stopping

logger = logging.getLogger("queuehint.worker")


class Exchanges:
    """
    The exchanges of one worker, one after the other.

    Args:
        empty: an exchange that settles nothing and claims nothing.
        concurrency: how many slots there are.
        settlements: outcomes to be sent.
        outcomes: makes those of grants that cannot be run.
        renewal: told of leases that were granted and settled; None for a store of this process.
        wake: requests another exchange.
        begin: begins the job of a grant.

    Raises:
        InvalidJobError, InvalidJobTypeError: the store would refuse these exchanges.
    """

    def __init__(
        self,
        empty: Exchange,
        backend: Backend,
        *,
        concurrency: int,
        slots: Slots,
        settlements: Settlements,
        outcomes: OutcomeBuilder,
        outbox: Outbox,
        stopping: Stopping,
        timekeeper: Timekeeper,
        renewal: Renewal | None,
        wake: Callable[[], None],
        begin: Callable[[Grant], None],
    ) -> None:
        check_limits(empty)
        self.empty = empty
        self._backend = backend
        self._concurrency = concurrency
        self._slots = slots
        self._settlements = settlements
        self._outcomes = outcomes
        self._outbox = outbox
        self._stopping = stopping
        self._timekeeper = timekeeper
        self._renewal = renewal
        self._now_s = now_s if renewal is None else renewal.now_s
        self._wake = wake
        self._begin = begin
        self.unanswered: tuple[Exchange, float] | None = None
        """An exchange to be sent again, and when it was sent first."""
        self._failures = 0
        self.answered_s = 0.0
        """When the newest exchange that the store has answered was answered; 0 before."""
        self.started = asyncio.Event()
        """Set once the backend has answered for the first time."""

    async def exchange(self) -> bool:
        """Send outcomes and claim jobs for free slots; return whether listening for more makes no sense."""
        again = self.unanswered
        settle = self._settlements.batch() if again is None else again[0].settle
        # All that the jobs to be settled have said goes first; what others say meanwhile goes with the next.
        if self._outbox and not await self._outbox.send([(each.job_id, each.token) for each in settle]):
            settle = ()
        if again is None:
            limit = 0 if self._stopping.is_begun else self._concurrency - len(self._slots)
            again = self.unanswered = self._ask(settle, limit), self._now_s()
        operation, sent_s = again
        try:
            reply: Exchanged | None = await self.call(operation)
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001 - what a handler has ended with must not end the worker
            self.unanswered = None
            return await self._survive(operation, error)
        if reply is None:
            return await self._rest()
        self.unanswered = None
        self._take_in(operation, reply, sent_s)
        return len(reply.grants) == operation.limit

    async def call(self, operation: Any) -> Any:
        """Carry out one operation; None if the backend is unreachable now."""
        try:
            return await self._backend.call(operation)
        except BackendError as error:
            if self._stopping.is_begun and not self._slots:
                raise
            if isinstance(error, BackendDeniedError) and not self.started.is_set():
                raise
            logger.warning("backend unavailable", extra={"event": "worker.backend", "error": str(error)})
            return None

    def _ask(self, settle: tuple[Outcome, ...], limit: int) -> Exchange:
        to = self.empty
        return Exchange(to.worker, settle, to.pools, limit, to.lease_ms, to.users, to.steal, announces=True)

    async def _survive(self, operation: Exchange, error: Exception) -> bool:
        """Recover from an exchange that failed without a store error: an outcome may be to blame."""
        if self._settlements.halve(len(operation.settle)):
            return True
        sent_s = self._now_s()
        try:
            reply = await self.call(self.empty) if operation.settle else None
        except BackendError:
            raise
        except Exception:  # noqa: BLE001 - then no outcome is to blame
            reply = None
        if reply is None:
            if not self.started.is_set():
                raise error
            logger.error("an exchange failed", extra={"event": "worker.exchange_failed"}, exc_info=error)
            return await self._rest()
        self._take_in(self.empty, reply, sent_s)
        outcome = operation.settle[0]
        if not self._settlements.is_suspect(outcome):
            return True
        extra = {"event": "job.not_settled", "job_id": outcome.job_id, "error": qualified_name(error)}
        logger.error("how a job ended cannot be stored; it is FAILED", extra=extra)
        given_up = self._settlements.replace(self._outcomes.of_refusal(outcome, error))
        if given_up is not None and self._renewal is not None:
            # Not even that: its lease ends.
            self._renewal.exchange((given_up,), (), sent_s)
        return True

    def _take_in(self, operation: Exchange, reply: Exchanged, sent_s: float) -> None:
        """Process the reply to an exchange that was sent then."""
        self.answered_s = self._now_s()
        if self._renewal is not None:
            self._renewal.exchange(operation.settle, reply.grants, sent_s)
        if self._failures:
            extra = {"event": "worker.reconnected", "worker": operation.worker}
            logger.info("the store answers again", extra=extra)
            self._failures = 0
        self.started.set()
        if not self._stopping.is_begun:
            self._timekeeper.see(due=reply.due)
        if self._outbox:
            if self._outbox.see_answer():
                self._wake()
            ends = zip(operation.settle, reply.verdicts, strict=True)
            self._outbox.forget({(outcome.job_id, outcome.token): verdict for outcome, verdict in ends})
        self._settlements.settled(len(operation.settle))
        log_exchange(operation.worker, operation.settle, reply)
        if self._stopping.is_begun or (self._renewal is not None and self._renewal.is_short(sent_s)):
            # Claimed before the worker was told to stop, or long ago by an exchange whose reply did not come.
            self._settlements.add(outcome_of(grant, OutcomeKind.RELEASED) for grant in reply.grants)
        else:
            for grant in reply.grants:
                self._begin(grant)
        self._settlements.add(self._outcomes.of_unreadable(job) for job in reply.unreadable)
        for job_id in reply.canceled:
            self._stopping.find_and_ask(job_id, None, "canceled")
        if reply.more:
            self._wake()

    async def _rest(self) -> bool:
        """Leave a backend that cannot be reached alone, for longer each time."""
        await asyncio.sleep(pause_s(self._failures))
        self._failures += 1
        self._wake()
        return True
