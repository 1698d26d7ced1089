"""
Exchanges of one worker with its store: outcomes are sent and grants received, in one round trip.

An exchange without a reply is sent again unchanged, so that a backend recognizes the repetition and gives the same
answer. If it fails with an error other than the store's, an outcome may be the cause: the batch is sent again in
halves, until that outcome is found.

While the main task of the worker waits for a reply, a **second** exchange may go out beside it, so that a remote store
works while the worker does. Each claims at most half of the slots, both together at most all. No exchange claims or
settles more than `JOBS_AT_ONCE` jobs. A second exchange needs at least `BESIDE_MIN` outcomes or slots, because smaller
ones cost a store more than they gain. There is none once the worker stops, after an exchange has failed, or while jobs
have messages to be sent. The main task repeats a second exchange that failed.

While the worker waits for work, a claim is sent **behind the wait**, so that a store elsewhere carries it out in the
round trip that ends the wait. It claims one job, or two so that a full reply says that there may be more. Its slots
are taken until it is answered. So a worker that is lost while it waits may still be granted these jobs, whose leases
then expire; one that stops withdraws the claim first. A lease is counted from the moment the wait was sent, so it has
to be several times as long as a wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.clock import now_s
from queuehint.errors import BackendError, OutcomeUnknownError
from queuehint.operations import JOBS_AT_ONCE, Exchange
from queuehint.operations.bounds import check_limits
from queuehint.values.outcome import OutcomeKind
from queuehint.worker.failures import qualified_name
from queuehint.worker.listening import WAIT_CEILING_S, pause_s
from queuehint.worker.outcomes import log_exchange, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queuehint.backends.base import Backend, Interest
    from queuehint.operations import Exchanged
    from queuehint.values.outcome import Grant, Outcome
    from queuehint.worker.leases.release import Release
    from queuehint.worker.leases.renewal import Renewal
    from queuehint.worker.outbox import Outbox
    from queuehint.worker.outcomes import OutcomeBuilder, Settlements
    from queuehint.worker.schedules.firing import Timekeeper
    from queuehint.worker.slots import Slots, Stopping

logger = logging.getLogger("queuehint.worker")

_UNKNOWN = OutcomeKind.UNKNOWN_TASK
BESIDE_MIN = 16
"""How many outcomes, or slots for which jobs are ready, are worth a second exchange."""
BEHIND_MAX = 2
"""How many jobs are claimed behind a wait at most."""
BEHIND_LEASE_MIN_MS = round(3000 * WAIT_CEILING_S)
"""The shortest lease that is claimed behind a wait."""


class Exchanges:
    """
    The exchanges of one worker.

    Args:
        empty: an exchange that settles nothing and claims nothing.
        concurrency: how many slots there are.
        settlements: outcomes to be sent.
        outcomes: makes those of grants that cannot be run.
        release: knows what the code of this worker can run.
        renewal: told of leases that were granted and settled; None for a store of this process.
        wake: requests another exchange.
        begin: begins the jobs of grants.
        see_epoch: called when grants have tokens of another epoch than those before.

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
        release: Release,
        stopping: Stopping,
        timekeeper: Timekeeper,
        renewal: Renewal | None,
        wake: Callable[[], None],
        begin: Callable[[Iterable[Grant]], None],
        see_epoch: Callable[[], None],
    ) -> None:
        check_limits(empty)
        self.empty = attrs.evolve(empty, release=release.digest)
        self._release = release
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
        self._see_epoch = see_epoch
        self._epoch: int | None = None
        self.may_be_two = renewal is not None and concurrency >= 2 * BESIDE_MIN
        """A store of this process is never at work while its worker is."""
        self._claims_max = min((concurrency + 1) // 2 if self.may_be_two else concurrency, JOBS_AT_ONCE)
        self.unanswered: deque[tuple[Exchange, float]] = deque()
        """Exchanges of the main task, under way or to be sent again, and when each was sent first."""
        self._beside: asyncio.Task[None] | None = None
        self._asked_beside: Exchange | None = None
        """The second exchange, while it is under way."""
        self._behind: Exchange | None = None
        """The claim behind a wait, while it is not answered."""
        self._may_claim_behind = renewal is not None and empty.lease_ms >= BEHIND_LEASE_MIN_MS
        self._is_asking = self._is_looking = False
        self._is_plenty = False
        """The newest exchange that claimed jobs was granted all that it asked for."""
        self._failures = 0
        self.answered_s = 0.0
        """When the newest exchange that the store has answered was answered; 0 before."""
        self.started = asyncio.Event()
        """Set once the backend has answered for the first time."""

    @property
    def free(self) -> int:
        """How many slots are neither taken nor claimed by an exchange under way; not below 0."""
        free = self._concurrency - self._slots.taken
        if self.unanswered:
            for operation, _ in self.unanswered:
                free -= operation.limit
        if self._asked_beside is not None:
            free -= self._asked_beside.limit
        if self._behind is not None:
            free -= self._behind.limit
        return max(0, free)

    @property
    def is_due(self) -> bool:
        """True if the main task is to exchange at once: to end what is under way, or for there are jobs and slots."""
        if self._stopping.is_begun:
            return bool(self.unanswered) or self._beside is not None
        return bool(self.unanswered) or (self._is_plenty and self.free > 0)

    @property
    def leases(self) -> list[tuple[str, int]]:
        """The leases that are being settled."""
        under_way = [operation for operation, _ in self.unanswered]
        if self._asked_beside is not None:
            under_way.append(self._asked_beside)
        return [(outcome.job_id, outcome.token) for operation in under_way for outcome in operation.settle]

    def announced(self) -> dict[str, Any]:
        """Return what changes of the worker's announcement; log what was counted, as often as it is announced."""
        self._outcomes.failures.given_back.flush()
        return {"running": len(self._slots), "release": self.empty.release}

    async def exchange(self) -> bool:
        """Send outcomes and claim jobs for free slots; return False if the store has not answered."""
        if self._beside is not None and (self._stopping.is_begun or self._outbox):
            await self._join()
        is_again = bool(self.unanswered)
        settle = self.unanswered[0][0].settle if is_again else self._settlements.batch()
        # All that the jobs to be settled have said goes first; what others say meanwhile goes with the next.
        outbox = self._outbox
        if outbox.is_used and outbox and not await outbox.send([(each.job_id, each.token) for each in settle]):
            settle = ()
        if not self.unanswered:
            self.unanswered.append((self._ask(settle), self._now_s()))
        operation, sent_s = self.unanswered[0]
        self._is_asking = not is_again
        if self.may_be_two:
            self.look_beside()
        try:
            reply = await self._ask_for(operation)
        finally:
            self._is_asking = False
        if isinstance(reply, Exception):
            self.unanswered.popleft()
            self._settlements.give_back(operation.settle)
            return await self._survive(operation, reply)
        if reply is None:
            return await self._rest()
        self.unanswered.popleft()
        self._take_in(operation, reply, sent_s)
        return True

    async def _ask_for(self, operation: Exchange) -> Exchanged | Exception | None:
        """Return the reply, or as what it failed; None if the backend is unreachable now."""
        try:
            reply: Exchanged | None = await self.call(operation)
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001 - what a handler has ended with must not end the worker
            return error
        return reply

    def look_beside(self) -> None:
        """Send a second exchange soon, if it is worth it once all that ends in this turn of the loop has ended."""
        if self._is_asking and not self._is_looking and self._is_worth_it():
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._go_beside)

    def _is_worth_it(self) -> bool:
        return len(self._settlements) >= BESIDE_MIN or (self._is_plenty and self.free >= BESIDE_MIN)

    def _go_beside(self) -> None:
        self._is_looking = False
        is_foul = self._failures or self._outbox or self._stopping.is_begun or self._settlements.is_halved
        is_alone = self._is_asking and self._beside is None and len(self.unanswered) == 1
        if is_alone and not is_foul and self._is_worth_it() and self.started.is_set():
            operation = self._asked_beside = self._ask(self._settlements.batch())
            self._beside = asyncio.get_running_loop().create_task(self._exchange_beside(operation, self._now_s()))

    async def _exchange_beside(self, operation: Exchange, sent_s: float) -> None:
        """Carry out a second exchange; leave it to the main task if it fails."""
        reply: Exchanged | None = None
        try:
            reply = await self._backend.call(operation)
        except BackendError:
            self.unanswered.append((operation, sent_s))
        except Exception:  # noqa: BLE001 - the main task finds the outcome that is to blame
            self._settlements.give_back(operation.settle)
            self._settlements.halve(len(operation.settle))
        finally:
            self._beside = self._asked_beside = None
        if reply is not None:
            self._take_in(operation, reply, sent_s)
            self.look_beside()
        if reply is None or self.free:
            # The main task may wait, and listen for no work as long as these slots were claimed.
            self._wake()

    @property
    def is_claiming_behind(self) -> bool:
        """True while a claim behind a wait is not answered."""
        return self._behind is not None

    async def wait(self, interest: Interest) -> bool:
        """
        Wait until there may be work, and claim it in the same round trip; return False if it is still to be claimed.

        Canceled, the claim is withdrawn; what it was granted is taken in.

        The main task repeats a claim of which nothing is known, whatever went wrong.

        Raises:
            BackendError: the store cannot be asked.
        """
        if not (self._may_claim_behind and interest.pools and self.free and self.started.is_set()):
            await self._backend.wait(interest, WAIT_CEILING_S)
            return False
        to = self.empty
        limit = min(self.free, BEHIND_MAX)
        operation = self._behind = Exchange(
            to.worker, (), to.pools, limit, to.lease_ms, to.users, to.steal, announces=True, release=to.release
        )
        sent_s = self._now_s()

        def take(reply: Exchanged) -> None:
            # The leases of a worker that has ended meanwhile, by an error, end too.
            if self._behind is operation:
                self._behind = None
                self._take_in(operation, reply, sent_s)

        try:
            return await self._backend.wait_and_call(interest, WAIT_CEILING_S, operation, take)
        except Exception as error:
            if self._behind is operation:
                self.unanswered.append((operation, sent_s))
            if not isinstance(error, OutcomeUnknownError):
                raise
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            return False
        finally:
            self._behind = None

    async def _join(self) -> None:
        """Wait until no second exchange is under way."""
        while self._beside is not None:
            await asyncio.wait((self._beside,))

    def cancel(self) -> None:
        """End a second exchange, and take in no other reply, because the worker ends."""
        self._behind = None
        if self._beside is not None:
            self._beside.cancel()

    async def call(self, operation: Any) -> Any:
        """Carry out one operation; None if the backend is unreachable now."""
        try:
            return await self._backend.call(operation)
        except BackendError as error:
            if self._stopping.is_begun and not self._slots:
                raise
            if error.is_lasting and not self.started.is_set():
                raise
            logger.warning("backend unavailable: %s", error, extra={"event": "worker.backend", "error": str(error)})
            return None

    def _ask(self, settle: tuple[Outcome, ...]) -> Exchange:
        """Return an exchange that settles the first outcomes, which are sent by it alone, and claims what it may."""
        if self._release.is_older and not any(each.kind is _UNKNOWN for each in self._settlements):
            # What the handlers of before did not know is refused in the name of these.
            self.empty = attrs.evolve(self.empty, release=self._release.renew())
            self._see_epoch()
        self._settlements.take(len(settle))
        limit = 0 if self._stopping.is_begun else min(self.free, self._claims_max)
        to = self.empty
        return Exchange(
            to.worker, settle, to.pools, limit, to.lease_ms, to.users, to.steal, announces=True, release=to.release
        )

    async def _survive(self, operation: Exchange, error: Exception) -> bool:
        """Recover from an exchange that failed without a store error: an outcome may be to blame."""
        if self._settlements.halve(len(operation.settle)):
            return False
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
            return False
        extra = {"event": "job.not_settled", "job_id": outcome.job_id, "error": qualified_name(error)}
        logger.error("the outcome of job %s cannot be stored; the job is FAILED", outcome.job_id, extra=extra)
        given_up = self._settlements.replace(outcome, self._outcomes.of_refusal(outcome, error))
        if given_up is not None and self._renewal is not None:
            # Not even that: its lease ends.
            self._renewal.exchange((given_up,), (), sent_s)
        return False

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
        if (reply.due or not self._timekeeper.is_stored) and not self._stopping.is_begun:
            self._timekeeper.see(due=reply.due)
        outbox = self._outbox
        if outbox.is_used and outbox:
            if outbox.see_answer():
                self._wake()
            ends = zip(operation.settle, reply.verdicts, strict=True)
            outbox.forget({(outcome.job_id, outcome.token): verdict for outcome, verdict in ends})
        self._settlements.settled(len(operation.settle))
        if operation.limit:
            self._is_plenty = len(reply.grants) + len(reply.unreadable) == operation.limit
        log_exchange(operation.worker, operation.settle, reply)
        if reply.grants and (epoch := reply.grants[0].token >> 32) != self._epoch:
            if self._epoch is not None:
                self._see_epoch()
            self._epoch = epoch
        if self._stopping.is_begun or (self._renewal is not None and self._renewal.is_short(sent_s)):
            # Claimed before the worker was told to stop, or long ago by an exchange whose reply did not come.
            self._settlements.add(outcome_of(grant, OutcomeKind.RELEASED) for grant in reply.grants)
        else:
            self._begin(reply.grants)
        if reply.unreadable:
            self._settlements.add(self._outcomes.of_unreadable(job) for job in reply.unreadable)
        for job_id in reply.canceled:
            self._stopping.find_and_ask(job_id, None, "canceled")
        if reply.more:
            self._wake()

    async def _rest(self) -> bool:
        """Leave a backend that cannot be reached alone, for longer each time; return False."""
        await asyncio.sleep(pause_s(self._failures))
        self._failures += 1
        self._wake()
        return False
