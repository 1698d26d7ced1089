"""
The calls of one guest, done by the store of the process that leads: frames in, answers out.

A change is answered on the thread that has written it, without waking that of the server, unless many are answered at
once or the guest does not read: then the encoding and the rest are that thread's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs

from queuehint.backends.journal.groups import read_line
from queuehint.backends.journal.guests.greetings import read_hello
from queuehint.backends.journal.guests.messages import (
    ASK,
    BEHIND,
    CALL,
    DONE,
    GONE,
    HELLO,
    LEAD,
    LEAVE,
    RUN,
    UNWRITTEN,
    WAIT,
    WANT,
    read_aim,
    read_behind,
    read_operation,
    read_waited,
    refused,
    replied,
)
from queuehint.backends.journal.lead.leadership import DeposedError, LedElsewhereError
from queuehint.backends.journal.writer import Ticket
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendUnavailableError,
    OutcomeUnknownError,
    QueueHintError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from queuehint.backends.base import Interest
    from queuehint.backends.journal.groups import Request
    from queuehint.backends.journal.guests.greetings import Hello
    from queuehint.operations import Operation

Reply = TypeVar("Reply")

CALLS_MAX: Final = 1_000
QUESTIONS_MAX: Final = 16
"""How many calls of one guest are under way, and questions among them; the others wait."""
THERE_MAX: Final = 4
"""How many changes are answered on the thread that has written them."""

logger = logging.getLogger("queuehint.journal")


class Leading(Protocol):
    """The store of the process that leads, as the thread of the server uses it."""

    name: str
    namespace: str

    def submit(self, ticket: Ticket) -> None:
        """Have a change done; raises `BackendUnavailableError` if the store was closed."""

    async def call_here(self, operation: Operation[Reply], behind: int) -> Reply:
        """Answer a question; raises `LedElsewhereError` if this process leads no more."""

    def expect(self, transaction: int) -> None:
        """Look for rows of a transaction that is to be committed, or was."""

    def look(self) -> None:
        """Look into the inbox: rows may have been committed."""

    async def wait_here(self, interest: Interest, timeout_s: float) -> None:
        """Wait; return at once if this process leads no more."""

    def hand_over(self, guest: Hello) -> bool:
        """Leave the lead to a process that is to lead; return False if this one is, or leaves it later or not."""

    def guest_runs(self, *, runs: bool) -> None:
        """Note that the process of a guest runs jobs, or does not any more."""

    @property
    def is_closed(self) -> bool:
        """True once the store was closed."""


class Way(Protocol):
    """How answers go to a guest."""

    def answer(self, call: int, body: bytes) -> None:
        """Send an answer."""

    def answer_now(self, answers: Sequence[tuple[int, bytes]]) -> bool:
        """Send answers from any thread; return False, and send nothing, if others have to go first."""

    def answered(self) -> None:
        """Begin what had to wait for answers, from any thread."""

    def end(self) -> None:
        """Send what there is to send, and serve the guest no more."""


class GuestTicket(Ticket):
    """A change that a guest has asked for."""

    __slots__ = ("_tell",)

    def __init__(
        self,
        operation: Operation[Any],
        request: Request,
        data: bytes,
        behind: int,
        answer: Callable[[GuestTicket], Callable[[], None]],
    ) -> None:
        super().__init__(operation, request=request, data=data, behind=behind)
        self._tell = answer

    def end(self) -> Callable[[], None]:
        """Have the guest answered."""
        return self._tell(self)


class HostedGuest:
    """
    A guest as the leader sees it; on the thread of the server.

    Args:
        call_soon: has something done on that thread, from any other.
    """

    def __init__(self, leading: Leading, way: Way, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._leading = leading
        self._way = way
        self._call_soon = call_soon
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._questions = 0
        self._begun = self._answered_here = self._answered_there = 0
        """Changes: those begun, answered on the thread of the server, and on the one that writes. Each is counted by
        one thread."""
        self._answered: deque[tuple[int, GuestTicket]] = deque()
        self._is_called = False
        """The thread of the server has been asked to answer, and has not begun."""
        self._runs = self._has_left = False
        self._who: Hello | None = None
        self._behind = 0
        """As of the tickets of its calls."""

    @property
    def calls(self) -> int:
        """How many calls are under way."""
        return len(self._tasks) + self._begun - self._answered_here - self._answered_there

    @property
    def is_full(self) -> bool:
        """True while no further call is to begin: answers to questions may be large."""
        return self.calls >= CALLS_MAX or self._questions >= QUESTIONS_MAX

    def take(self, kind: int, call: int, body: bytes) -> None:
        """Begin to do what a frame asks for."""
        try:
            if kind == CALL:
                self._change(call, body)
            elif kind == ASK:
                self._begin(call, self._ask, read_operation(body, is_question=True))
            elif kind == WAIT:
                self._begin(call, self._wait, *read_waited(body))
            elif kind == LEAVE:
                if (task := self._tasks.get(call)) is not None:
                    task.cancel()
            elif kind == HELLO:
                self._greet(call, read_hello(body, self._leading.namespace))
            elif kind == WANT:
                assert self._who is not None, "a greeting comes first"
                self._greet(call, attrs.evolve(self._who, aim=read_aim(body)))
            elif kind == BEHIND:
                self._behind = max(self._behind, read_behind(body))
                self._leading.expect(self._behind)
            else:
                raise BackendDeniedError("that is not a request")
        except Exception as error:  # noqa: BLE001 - who asked is told
            self._way.answer(call, self._refusal(None, error))
            if kind == HELLO:
                self._way.end()

    def leave(self) -> None:
        """Forget what is under way."""
        self._has_left = True
        for task in self._tasks.values():
            task.cancel()
        if self._runs:
            self._leading.guest_runs(runs=False)

    def _greet(self, call: int, guest: Hello) -> None:
        if guest.aim & LEAD and self._leading.hand_over(guest):
            self._way.answer(call, GONE)
            return
        guest.check()
        self._who = guest
        if guest.aim & RUN and not self._runs:
            self._runs = True
            self._leading.guest_runs(runs=True)
        self._way.answer(call, DONE)

    # --- changes -------------------------------------------------------------------------------------------------

    def _change(self, call: int, body: bytes) -> None:
        request, data = read_line(body)
        operation = read_operation(data, is_question=False)

        def answer(ticket: GuestTicket) -> Callable[[], None]:
            self._answered.append((call, ticket))
            return self._answer_there

        self._begun += 1
        try:
            self._leading.submit(GuestTicket(operation, request, data, self._behind, answer))
        except BaseException:
            self._begun -= 1
            raise

    def _answer_there(self) -> None:
        """Answer what was written together, on the thread that has written it, or have that of the server answer."""
        if len(self._answered) <= THERE_MAX:
            some = list(self._taken())
            # Counted first: what waits for room is begun by whoever sees last that there is some.
            self._answered_there += len(some)
            if self._are_sent(some):
                self._way.answered()
                return
            self._answered_there -= len(some)
            self._answered.extend(some)
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._answer_all)

    def _are_sent(self, some: Sequence[tuple[int, GuestTicket]]) -> bool:
        """Send answers at once, if they can be; return whether nobody waits for them any more."""
        try:
            return self._has_left or self._way.answer_now([(call, self._said(ticket)) for call, ticket in some])
        except Exception:  # noqa: BLE001 - it is raised again where it ends no more than this guest
            return False

    def _taken(self) -> Iterator[tuple[int, GuestTicket]]:
        """Yield what is to be answered; two threads may take, and each has what the other has not."""
        with suppress(IndexError):
            while True:
                yield self._answered.popleft()

    def _answer_all(self) -> None:
        self._is_called = False  # before the first is taken: one that comes after the last asks anew
        for call, ticket in self._taken():
            self._answered_here += 1
            if not self._has_left:
                self._way.answer(call, self._said(ticket))

    def _said(self, ticket: GuestTicket) -> bytes:
        return replied(ticket.reply) if ticket.error is None else self._refusal(ticket.operation, ticket.error)

    # --- questions and waits -------------------------------------------------------------------------------------

    def _begin(self, call: int, do: Callable[..., Coroutine[Any, Any, bytes]], *asked: Any) -> None:
        if call in self._tasks:
            raise BackendDeniedError("a call of that number is under way")

        async def answer() -> None:
            try:
                body = await do(*asked)
            finally:
                end(task)
            self._way.answer(call, body)

        def end(ended: asyncio.Task[None]) -> None:
            if self._tasks.get(call) is ended:
                del self._tasks[call]
                self._questions -= is_question

        is_question = do == self._ask
        self._questions += is_question
        self._tasks[call] = task = asyncio.get_running_loop().create_task(answer())
        task.add_done_callback(end)  # one that is canceled before it has begun

    async def _ask(self, question: Operation[Any]) -> bytes:
        try:
            return replied(await self._leading.call_here(question, self._behind))
        except Exception as error:  # noqa: BLE001 - who asked is told
            return self._refusal(question, error)

    async def _wait(self, interest: Interest, timeout_s: float) -> bytes:
        try:
            await self._leading.wait_here(interest, timeout_s)
        except Exception as error:  # noqa: BLE001 - who asked is told
            return self._refusal(None, error)
        return DONE

    def _refusal(self, asked: Operation[Any] | None, error: BaseException) -> bytes:
        """Return the answer that has an error."""
        if isinstance(error, (LedElsewhereError, DeposedError)):
            return GONE
        if isinstance(error, QueueHintError):
            is_gone = self._leading.is_closed and isinstance(error, BackendUnavailableError)
            return GONE if is_gone else refused(error)
        logger.error("a request of another process failed", exc_info=error, extra={"event": "journal.request_failed"})
        problem = f"{self._leading.name}: the process that leads failed with {type(error).__name__}"
        if asked is None or type(asked) in UNWRITTEN:
            return refused(BackendError(f"{problem}; nothing was changed"))
        return refused(OutcomeUnknownError(f"{problem}; the operation may have been done"))
