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
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import attrs

from queuehint.errors import BackendError
from queuehint.operations import JOBS_AT_ONCE, Exchange
from queuehint.operations.bounds import check_limits
from queuehint.values.outcome import OutcomeKind
from queuehint.worker.failures import qualified_name
from queuehint.worker.listening import pause_s

if TYPE_CHECKING:
    from queuehint.operations import Exchanged
    from queuehint.values.outcome import Outcome
    from queuehint.worker.leases.release import Release
    from queuehint.worker.state import WorkerState

logger = logging.getLogger("queuehint.worker")

_UNKNOWN = OutcomeKind.UNKNOWN_TASK
BESIDE_MIN = 16
"""How many outcomes, or slots for which jobs are ready, are worth a second exchange."""


class Exchanges:
    """
    The exchanges of one worker.

    Args:
        release: knows what the code of this worker can run.

    Raises:
        InvalidJobError, InvalidJobTypeError: the store would refuse these exchanges.
    """

    def __init__(self, state: WorkerState, release: Release) -> None:
        check_limits(state.empty)
        state.empty = attrs.evolve(state.empty, release=release.digest)
        self._state = state
        self._release = release
        self._backend = state.backend
        self._settlements = state.settlements
        self._outbox = state.outbox
        self._stopping = state.stopping
        self._now_s = state.now_s
        # A store of this process is never at work while its worker is.
        may_be_two = not state.keeps_leases and state.concurrency >= 2 * BESIDE_MIN
        state.look_beside = self.look_beside if may_be_two else None
        self._claims_max = min((state.concurrency + 1) // 2 if may_be_two else state.concurrency, JOBS_AT_ONCE)
        self._beside: asyncio.Task[None] | None = None
        self._is_asking = self._is_looking = False

    @property
    def is_due(self) -> bool:
        """True if the main task is to exchange at once: to end an exchange under way, or to fill free slots."""
        state = self._state
        if self._stopping.is_begun:
            return bool(state.unanswered) or self._beside is not None
        return bool(state.unanswered) or (state.is_plenty and state.free > 0)

    async def exchange(self) -> int | None:
        """
        Send outcomes and claim jobs for free slots.

        Returns:
            For how many slots to wait for work; None if there is more to exchange at once.
        """
        if self._beside is not None and (self._stopping.is_begun or self._outbox):
            await self._join()
        state, unanswered = self._state, self._state.unanswered
        settle: tuple[Outcome, ...] = ()
        if unanswered:
            settle = unanswered[0][0].settle
        elif self._settlements.waiting:
            settle = self._settlements.batch()
        # All that the jobs to be settled have said goes first; what others say meanwhile goes with the next. While a
        # second exchange is under way nothing is waited for between a batch and its removal: it may give outcomes back.
        outbox = self._outbox
        has_notes = outbox.is_used and self._beside is None and bool(outbox)
        if has_notes and not await outbox.send([(each.job_id, each.token) for each in settle]):
            settle = ()
        is_again = bool(unanswered)
        if not is_again:
            unanswered.append((self._ask(settle), self._now_s()))
        operation, sent_s = unanswered[0]
        self._is_asking = not is_again
        if state.look_beside is not None:
            self.look_beside()
        try:
            reply = await self._ask_for(operation)
        finally:
            self._is_asking = False
        if isinstance(reply, Exception):
            unanswered.popleft()
            self._settlements.give_back(operation.settle)
            await self._survive(operation, reply)
        elif reply is None:
            await self._rest()
        else:
            unanswered.popleft()
            state.take_in(operation, reply, sent_s)
        is_answered = not (reply is None or isinstance(reply, Exception))
        if self._settlements.waiting or unanswered:
            return None
        if self._stopping.is_begun:
            return 0 if self._beside is None else None
        free = state.free
        if state.is_plenty and free > 0:
            return None
        return free if is_answered else 0

    async def _ask_for(self, operation: Exchange) -> Exchanged | Exception | None:
        """Return the reply, or the exception of the exchange. Return None if the backend is unreachable now."""
        try:
            return await self._backend.call(operation)
        except BackendError as error:
            self._state.survive(error)
            return None
        except Exception as error:  # noqa: BLE001 - what a handler has ended with must not end the worker
            return error

    def look_beside(self) -> None:
        """Schedule a second exchange, if enough jobs end in this turn of the loop."""
        if self._is_asking and not self._is_looking and self._is_worth_it():
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._go_beside)

    def _is_worth_it(self) -> bool:
        return len(self._settlements.waiting) >= BESIDE_MIN or (
            self._state.is_plenty and self._state.free >= BESIDE_MIN
        )

    def _go_beside(self) -> None:
        self._is_looking = False
        is_foul = self._state.failures_in_row or self._outbox or self._stopping.is_begun or self._settlements.is_halved
        is_alone = self._is_asking and self._beside is None and len(self._state.unanswered) == 1
        if is_alone and not is_foul and self._is_worth_it() and self._state.started.is_set():
            operation = self._state.beside = self._ask(self._settlements.batch())
            self._beside = asyncio.get_running_loop().create_task(self._exchange_beside(operation, self._now_s()))

    async def _exchange_beside(self, operation: Exchange, sent_s: float) -> None:
        """Carry out a second exchange. Leave the outcomes of a failed exchange to the main task."""
        reply: Exchanged | None = None
        try:
            reply = await self._backend.call(operation)
        except BackendError:
            self._state.unanswered.append((operation, sent_s))
        except Exception:  # noqa: BLE001 - the main task finds the outcome that is to blame
            self._settlements.give_back(operation.settle)
            self._settlements.halve(len(operation.settle))
        finally:
            self._beside = self._state.beside = None
        if reply is not None:
            self._state.take_in(operation, reply, sent_s)
            self.look_beside()
        if reply is None or self._state.free:
            # The main task may wait, and listen for no work as long as these slots were claimed.
            self._state.wakeup.set()

    async def _join(self) -> None:
        """Wait until no second exchange is under way."""
        while self._beside is not None:
            await asyncio.wait((self._beside,))

    def cancel(self) -> None:
        """End a second exchange, and discard further replies, because the worker ends."""
        self._state.behind = None
        if self._beside is not None:
            self._beside.cancel()

    def _ask(self, settle: tuple[Outcome, ...]) -> Exchange:
        """Return an exchange that settles these outcomes, and claims jobs for the free slots."""
        is_older = self._release.count != len(self._release.handlers)
        if is_older and not any(each.kind is _UNKNOWN for each in self._settlements.waiting):
            # What the handlers of before did not know is refused in the name of these.
            self._state.empty = attrs.evolve(self._state.empty, release=self._release.renew())
            self._state.announce_due_s = 0.0
        if settle:
            self._settlements.take(len(settle))
        return self._state.ask(settle, 0 if self._stopping.is_begun else self._claims_max)

    async def _survive(self, operation: Exchange, error: Exception) -> None:
        """Recover from an exchange that failed without a store error: an outcome may be the cause."""
        if self._settlements.halve(len(operation.settle)):
            return
        sent_s = self._now_s()
        try:
            reply = await self._state.call(self._state.empty) if operation.settle else None
        except BackendError:
            raise
        except Exception:  # noqa: BLE001 - then no outcome is to blame
            reply = None
        if reply is None:
            if not self._state.started.is_set():
                raise error
            logger.error("an exchange failed", extra={"event": "worker.exchange_failed"}, exc_info=error)
            await self._rest()
            return
        self._state.take_in(self._state.empty, reply, sent_s)
        outcome = operation.settle[0]
        if not self._settlements.is_suspect(outcome):
            return
        extra = {"event": "job.not_settled", "job_id": outcome.job_id, "error": qualified_name(error)}
        logger.error("the outcome of job %s cannot be stored; the job is FAILED", outcome.job_id, extra=extra)
        given_up = self._settlements.replace(outcome, self._state.outcomes.of_refusal(outcome, error))
        if given_up is not None:
            # Not even that: its lease ends.
            self._state.leases.exchange((given_up,), (), sent_s)

    async def _rest(self) -> None:
        """Pause requests to an unreachable backend, for growing times."""
        await asyncio.sleep(pause_s(self._state.failures_in_row))
        self._state.failures_in_row += 1
        self._state.wakeup.set()
