"""
A store that is a journal: the engine of the process that leads, and the operations it has done, written down.

Theory of operation. The engine is deterministic: the same operations at the same times give the same state. So the
durable data is not the state but the *journal*, the operations in the order in which they were applied, each with its
time; a *snapshot* of the engine replaces a long journal now and then, so that opening it is quick. Where both are kept,
and which process may write them, is the business of a `queuehint.backends.journal.store.Store`.

- One process at a time leads, see `queuehint.backends.journal.leading`; others are its guests, see
  `queuehint.backends.journal.guests`, and any of them may run jobs. What they ask for has a number, and the newest
  answers are part of what the journal makes: a guest that asks again, of the next leader, is answered and nothing is
  done twice.
- A process that begins to lead ends the leases of the one before it, if that is dead, at once: its jobs are retried
  without waiting, and their loss is counted. The leases of guests go on. Tokens count from a new epoch, in case a power
  failure lost operations that had no durable commit.
- A leader that runs no jobs leaves the lead to a guest that does.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.guests.doors import GoneError
from queuehint.backends.journal.guests.guest import Attempt, Guest
from queuehint.backends.journal.guests.messages import LEAD, RUN, UNWRITTEN
from queuehint.backends.journal.lead.leadership import DeposedError, LedElsewhereError
from queuehint.backends.journal.leading import LeadingStore
from queuehint.backends.journal.writer import Ticket
from queuehint.backends.journal.writing import NUDGE
from queuehint.core.engine import EngineOptions
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from queuehint.operations import Operation
from queuehint.operations.wire import QUESTIONS, Await

if TYPE_CHECKING:
    from queuehint.backends.base import Interest
    from queuehint.backends.journal.lead.leadership import Leader
    from queuehint.backends.journal.lead.replica import Replica
    from queuehint.backends.journal.store import Store

Reply = TypeVar("Reply")

MISSED_MAX: Final = 1000
UNDONE: Final = (LedElsewhereError, DeposedError, GoneError, BackendUnavailableError)
"""Why the process that was asked has not done an operation, as far as it knows."""


class JournalBackend(LeadingStore):
    """The engine of one process, and the way to the process that has it; arguments are those of `LeadingStore`."""

    def __init__(
        self, store: Store, options: BackendOptions | None = None, engine_options: EngineOptions | None = None
    ) -> None:
        super().__init__(store, options, engine_options)
        self._leader: Leader | None = None
        """The process that leads, if that is another one and it could be reached when it was last asked."""
        self._guest = Guest(store.name, self.namespace, store.door)
        self._missed: dict[int, Attempt] = {}
        """Calls whose callers have gone, by the identities of their operations."""
        self._behind = 0
        """The newest transaction in which this process has written a row of the inbox."""

    def lead_facts(self) -> dict[str, str]:
        """Return which process leads and by which way it was reached, as far as calls have shown."""
        leader = self._leader
        if self.is_leading:
            return {"leader": "this process"}
        if leader is None or leader.pid is None:
            return {}
        return {"leader": f"process {leader.pid}", "reached_by": self._guest.way or "nothing yet"}

    def order_behind(self, transaction: int) -> None:
        """Order further calls behind a transaction, once it has ended; and have the leader look for its rows soon."""
        with self._queueing:
            self._behind = max(self._behind, transaction)
        if self._is_open:
            self.expect(transaction)
        elif not self._is_gone():
            self._guest.ring(self._behind)

    # --- calls ---------------------------------------------------------------------------------------------------

    async def call(self, operation: Operation[Reply]) -> Reply:
        """
        Do one operation; where this process leads a question waits for nothing but its turn at the engine.

        After a cancellation, call with the same operation object again to get the answer that was missed: jobs that it
        claimed are not lost.

        Raises:
            BackendInUseError: another process leads, and answers nobody, or not any more.
            BackendDeniedError: the journal must not be used, or by another release only.
            BackendFullError: there is no room; nothing was changed.
            BackendUnavailableError: the journal cannot be opened or written, the backend was closed, or this process
                was forked from the one that used it; nothing was changed.
            OutcomeUnknownError: the disk failed, or the process that leads does not answer any more; the same operation
                may be called with again.
            CorruptStateError: the journal is damaged.
        """
        self._check_usable()
        if self._is_open and type(operation) in QUESTIONS:
            await self._prepare(operation)
            answer = await self._apart(lambda: self._answer(operation, self._behind))
            if answer:
                return answer[0]
        attempt = self._missed.pop(id(operation), None) or Attempt(operation)
        try:
            while True:
                leader = self._leader
                try:
                    if leader is None:
                        reply: Reply = await self._done_here(attempt)
                    else:
                        reply = await self._guest.call(attempt, leader, self._aim, self._behind)
                except UNDONE as error:
                    await asyncio.sleep(self._again_in_s(attempt, leader, error))
                else:
                    return reply
        except (asyncio.CancelledError, OutcomeUnknownError):
            self._remember(attempt)
            raise

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """Like `call`, for code without a loop."""
        self._check_usable()
        if self._is_open and type(operation) in QUESTIONS and (answer := self._answer(operation, self._behind)):
            return answer[0]
        attempt = self._missed.pop(id(operation), None) or Attempt(operation)
        try:
            while True:
                leader = self._leader
                try:
                    if leader is None:
                        reply: Reply = self._done_here_sync(attempt)
                    else:
                        reply = self._guest.call_sync(attempt, leader, self._aim, self._behind)
                except UNDONE as error:
                    time.sleep(self._again_in_s(attempt, leader, error))
                else:
                    return reply
        except OutcomeUnknownError:
            self._remember(attempt)
            raise

    async def _done_here(self, attempt: Attempt) -> Any:
        """Have the writer do an operation; raises `LedElsewhereError` if it finds that another process leads."""
        is_missed = attempt.ticket is not None
        ticket = self._ticket_of(attempt, asyncio.get_running_loop())
        try:
            reply = await (asyncio.to_thread(ticket.wait) if is_missed else ticket.waited())
        except asyncio.CancelledError:
            raise
        except BaseException:
            attempt.ticket = None
            raise
        self._guest.end(attempt)
        return reply

    def _done_here_sync(self, attempt: Attempt) -> Any:
        """Like `_done_here`, for code without a loop."""
        ticket, attempt.ticket = self._ticket_of(attempt, None), None
        reply = ticket.wait()
        self._guest.end(attempt)
        return reply

    def _ticket_of(self, attempt: Attempt, loop: asyncio.AbstractEventLoop | None) -> Ticket:
        """Return the ticket of an operation, passed to the writer."""
        ticket = attempt.ticket
        if ticket is None:
            if self.leaves_lead and attempt.request is None and type(attempt.operation) not in UNWRITTEN:
                # As of a guest: the leases of its worker outlast that it leads.
                attempt.request = self._guest.next_request()
            ticket = Ticket(attempt.operation, loop, attempt.request, behind=self._behind)
            self.submit(ticket)
            attempt.ticket = ticket
        return ticket

    def _remember(self, attempt: Attempt) -> None:
        """Keep a call that may be made again with the same operation."""
        if attempt.ticket is None and attempt.request is None:
            return
        with self._queueing:
            # The attempt holds the operation, so that no other one can have its identity.
            self._missed[id(attempt.operation)] = attempt
            while len(self._missed) > MISSED_MAX:
                del self._missed[next(iter(self._missed))]

    @property
    def _aim(self) -> int:
        """What this process is for, as it says to the one that leads."""
        runs = RUN if self._adopted else 0
        return runs | LEAD if self._holds_lead and self.store.may_lead else runs

    def _again_in_s(self, attempt: Attempt, leader: Leader | None, error: Exception) -> float:
        """
        Return for how long to wait before an operation is tried again, by whoever leads then.

        Args:
            leader: who was asked, None for this process.
            error: one of `UNDONE`.

        Raises:
            BackendError: it is not to be tried again.
        """
        if isinstance(error, GoneError):
            assert leader is not None
            self._forget_leader(leader)
            return self._guest.pause_s(attempt, error, leader, self._aim)
        if isinstance(error, DeposedError):
            return self._guest.pause_s(attempt, GoneError(), None, self._aim)
        if isinstance(error, BackendUnavailableError):
            if leader is None:
                self._doubt(attempt, error)
            raise error
        return 0.0

    @staticmethod
    def _doubt(attempt: Attempt, error: BackendUnavailableError) -> None:
        """Raise another error if a leader that was asked before, and has gone, may have done the operation."""
        if attempt.is_asked and type(attempt.operation) not in UNWRITTEN:
            raise OutcomeUnknownError(f"{error}; a process that led before may have done it") from error

    def _note_leader(self, leader: Leader) -> None:
        with self._queueing:
            self._leader = leader

    def _forget_leader(self, leader: Leader) -> None:
        with self._queueing:
            if self._leader == leader:
                self._leader = None
        self._guest.left(leader)

    async def _await_ends(self, job_ids: tuple[str, ...]) -> None:
        await self.call(Await(job_ids))

    def _await_ends_sync(self, job_ids: tuple[str, ...]) -> None:
        self.call_sync(Await(job_ids))

    def take_over(self, replica: Replica | None) -> None:
        """
        Lead by what a replica has followed, if nobody does, or who does leaves it to this process.

        Args:
            replica: None if none has followed, because another release leads.

        Raises:
            BackendError: as of `call`.
        """
        self._replica, self._stands_by = replica, True
        try:
            self.call_sync(NUDGE)
        finally:
            self._replica, self._stands_by = None, False

    # --- waiting -------------------------------------------------------------------------------------------------

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """Return once a topic may have news, or after *timeout_s*."""
        if not self._is_open:
            if self._leader is None:
                await self.call(NUDGE)
            leader = self._leader
            if leader is not None:
                try:
                    await self._guest.wait(interest, timeout_s, leader, self._aim)
                except GoneError:
                    self._forget_leader(leader)
                return
        await super().wait(interest, timeout_s)

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Like `wait`, blocking this thread."""
        if not self._is_open:
            if self._leader is None:
                self.call_sync(NUDGE)
            leader = self._leader
            if leader is not None:
                try:
                    self._guest.wait_sync(interest, timeout_s, leader, self._aim)
                except GoneError:
                    self._forget_leader(leader)
                return
        super().wait_sync(interest, timeout_s)

    # --- closing -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the journal, with a snapshot if that is soon made, and wake all waiters."""
        mine = Ticket(None, asyncio.get_running_loop())
        ticket = self._begin_to_close(mine)
        try:
            if ticket is mine:
                await ticket.waited()
            elif ticket is not None:
                await asyncio.to_thread(ticket.wait)
        finally:
            self._wake_all()

    def close_sync(self) -> None:
        """Like `close`, for code without a loop."""
        ticket = self._begin_to_close(Ticket(None))
        if ticket is not None:
            ticket.wait()
        self._wake_all()

    def _begin_to_close(self, ticket: Ticket) -> Ticket | None:
        """Refuse further calls; return the ticket to wait for: this one, that of the first close, or None."""
        if self._is_gone():
            # In a fork the journal is its parent's, and so is the thread; at the very end no thread goes on.
            self._closed = True
            return None
        self._guest.close()
        with self._queueing:
            if not self._closed and self._writer is not None:
                self._closing = ticket
                self._queue.put(ticket)
                if (journal := self._journal) is not None:
                    journal.hurry()
            self._closed = True
            return self._closing
