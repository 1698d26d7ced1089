"""
The store in the view of a simulated process: a backend behind a network that may fail at any moment.

A call is a numbered request in a stream, sent again until it is answered; the store keeps a receipt of the stream's
last one. A request without an answer for ten seconds raises `OutcomeUnknownError`, and calling with the same operation
object again continues the same request: all as on Redis. Messages travel on even after their process has died.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from queuehint.backends.base import Backend, FileInbox, InboxAddress, Interest
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from queuehint.operations import Exchange
from queuehint.testing.simulation.loop import PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queuehint.operations import Operation
    from queuehint.testing.simulation.loop import Process

Reply = TypeVar("Reply")

RETRY_S = 10.0
"""How long a call is tried before its caller is told."""
ANSWER_S = 1.0
"""How long an answer is waited for before the request is sent again."""
PAUSE_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
IDLE_S = 60.0
"""How long a worker waits for work at least."""
BEHIND_IDLE_MAX = 2
"""How many claims behind waits that were granted nothing a process sends, before it waits longer without one."""


class Unreachable(Exception):  # noqa: N818 - a fact between a wire and its far end, never raised to a caller
    """No connection was made, so the store has not received the request."""


class FarEnd(Protocol):
    """The world at the other end of the wire."""

    def send(
        self,
        process: Process,
        stream: str,
        number: int,
        operation: Operation[Any],
        answer: Callable[[Any], None],
        behind: tuple[Interest, float] | None = None,
    ) -> None:
        """
        Send a request. *answer* is called with the reply or the error if both arrive.

        Args:
            behind: once it has arrived it is carried out when what is waited for is there, or after so many seconds.

        Raises:
            Unreachable: the store is down.
        """

    def ask(self, operation: Operation[Any]) -> Any:
        """Do an operation at once."""

    def is_there(self, interest: Interest) -> bool:
        """Return whether a wait may be over."""

    def due_s(self) -> float | None:
        """Return in how many seconds something is due, None if nothing is."""

    @property
    def waiting(self) -> dict[asyncio.Future[None], Interest]:
        """The waiters to wake."""


class _Stream:
    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0


class Link:
    """The requests of one process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made = 0
        self._free: list[_Stream] = []
        self.idle = 0
        """How many claims behind waits in a row were granted nothing."""
        self._unknown: OrderedDict[int, tuple[Operation[Any], _Stream]] = OrderedDict()

    def take(self, operation: Operation[Any]) -> _Stream:
        """Return a stream for a request, the one of the same operation after an unknown outcome."""
        known = self._unknown.pop(id(operation), None)
        if known is not None:
            return known[1]
        if self._free:
            stream = self._free.pop()
        else:
            self._made += 1
            stream = _Stream(f"{self._name}/{self._made}")
        stream.number += 1
        return stream

    def give_back(self, stream: _Stream, operation: Operation[Any], *, answered: bool) -> None:
        """Record the outcome of a request."""
        if answered:
            self._free.append(stream)
        else:
            self._unknown[id(operation)] = (operation, stream)


class WireBackend(Backend):
    """
    The backend of all simulated processes, with a link for each.

    Args:
        inbox: where jobs are written in transactions of a database, which is none of the world's.
    """

    def __init__(self, far: FarEnd, inbox: InboxAddress | FileInbox | None = None) -> None:
        self._far = far
        self._inbox = inbox
        self._links: dict[Process, Link] = {}

    @property
    def is_local(self) -> bool:
        """Return False, because the store outlives every process."""
        return False

    @property
    def inbox(self) -> InboxAddress | FileInbox | None:
        """The given inbox."""
        return self._inbox

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Apply one operation over the wire, or at once outside of every process."""
        process = PROCESS.get()
        if process is None:
            return self.call_sync(operation)
        link = self._link_of(process)
        if operation.is_question or operation.is_repeatable:
            stream, is_change = _Stream(""), False
        else:
            stream, is_change = link.take(operation), True
        loop = asyncio.get_running_loop()
        begun_s, attempts = loop.time(), 0
        is_unknown = answered = False
        try:
            while True:
                future: asyncio.Future[Any] = loop.create_future()
                try:
                    self._far.send(process, stream.name, stream.number, operation, _resolver(future))
                    async with asyncio.timeout(ANSWER_S):
                        outcome = await future
                except Unreachable:
                    pass
                except TimeoutError:
                    is_unknown = is_change
                else:
                    answered = True
                    if isinstance(outcome, Exception):
                        raise outcome
                    reply: Reply = outcome
                    return reply
                if loop.time() - begun_s >= RETRY_S:
                    answered = not is_unknown
                    if is_unknown:
                        raise OutcomeUnknownError("the simulated store: no answer within 10 s; it may have been done")
                    raise BackendUnavailableError("the simulated store cannot be reached")
                await asyncio.sleep(PAUSE_S[min(attempts, len(PAUSE_S) - 1)])
                attempts += 1
        finally:
            if is_change:
                link.give_back(stream, operation, answered=answered)

    def _link_of(self, process: Process) -> Link:
        link = self._links.get(process)
        if link is None:
            link = self._links[process] = Link(process.name)
        return link

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """Apply one operation at once. Plain functions take no time, so no other step comes between."""
        reply: Reply = self._far.ask(operation)
        return reply

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """Return when the awaited topic may have news, a job is due, or after *timeout_s*."""
        if self._far.is_there(interest):
            await asyncio.sleep(0)
            return
        # No wake-up is ever lost here, so an idle worker need not poll every few seconds.
        wait_s = max(timeout_s, IDLE_S) if interest.pools else timeout_s
        due_s = self._far.due_s() if interest.pools or interest.worker is not None else None
        if due_s is not None:
            wait_s = min(wait_s, max(due_s, 0.001))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._far.waiting[future] = interest
        try:
            async with asyncio.timeout(wait_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._far.waiting.pop(future, None)

    async def wait_and_call(
        self, interest: Interest, timeout_s: float, operation: Operation[Reply], take: Callable[[Reply], None]
    ) -> bool:
        """Wait, and carry out a claim at the store at the end of the wait. An idle process only waits."""
        process = PROCESS.get()
        link = None if process is None else self._link_of(process)
        if process is None or link is None or link.idle >= BEHIND_IDLE_MAX or not isinstance(operation, Exchange):
            await self.wait(interest, timeout_s)
            if link is not None:
                link.idle = 0
            return False
        due_s = self._far.due_s()
        wait_s = timeout_s if due_s is None else min(timeout_s, max(due_s, 0.001))
        stream, answered = link.take(operation), False
        try:
            async with asyncio.timeout(wait_s + ANSWER_S):
                outcome = await self._sent(process, stream, operation, (interest, wait_s))
            answered = True
        except (Unreachable, TimeoutError):
            pass
        except asyncio.CancelledError as canceled:
            with contextlib.suppress(Unreachable, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    outcome = await self._sent(process, stream, attrs.evolve(operation, limit=0))
                answered = True
                take(outcome)
            if not answered:
                raise OutcomeUnknownError("the simulated store: a claim could not be withdrawn") from canceled
            raise
        finally:
            link.give_back(stream, operation, answered=answered)
        if not answered:
            outcome = await self.call(operation)
        link.idle = 0 if outcome.grants else link.idle + 1
        take(outcome)
        return True

    async def _sent(
        self, process: Process, stream: _Stream, operation: Exchange, behind: tuple[Interest, float] | None = None
    ) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._far.send(process, stream.name, stream.number, operation, _resolver(future), behind)
        outcome = await future
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Return at once, because a plain function takes no time."""

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        """Do nothing, because holders renew the leases of a shared store."""
        return lambda: None

    async def close(self) -> None:
        """Do nothing, because other processes use the store."""

    def close_sync(self) -> None:
        """Do nothing, because other processes use the store."""


def _resolver(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    def resolve(outcome: Any) -> None:
        if not future.done():
            future.set_result(outcome)

    return resolve
