"""
A process that does not lead: its calls are sent to the one that does, each under a number of a stream.

If the connection ends, or the leader does, a call is sent again under its number, to whoever leads then, which may be
this process itself: so it is done once, also if its first answer was lost.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from queuehint.backends.journal.doctor import Examine
from queuehint.backends.journal.groups import Request, line_of
from queuehint.backends.journal.guests.doors import GoneError
from queuehint.backends.journal.guests.links import SILENCE_S, Greeting, Links
from queuehint.backends.journal.guests.messages import (
    ASK,
    CALL,
    LEAD,
    REQUEST_BYTES_MAX,
    UNWRITTEN,
    WAIT,
    asked,
    read_answer,
    waited,
)
from queuehint.errors import (
    BackendError,
    BackendFullError,
    BackendInUseError,
    BackendUnavailableError,
    OutcomeUnknownError,
)
from queuehint.operations.bounds import check_limits
from queuehint.operations.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.base import Interest
    from queuehint.backends.journal.guests.doors import Door
    from queuehint.backends.journal.lead.leadership import Leader
    from queuehint.backends.journal.writer import Ticket
    from queuehint.operations import Operation

RETRY_S: Final = 0.02
"""How long to wait for a process that is about to lead, or to leave the lead."""


class Attempt:
    """
    A call until its answer has come.

    Attributes:
        request: by which a repeat is known; None until it is sent to another process, and for a question.
        ticket: it waits for the writer of this process, though its caller has gone.
    """

    __slots__ = ("body", "is_asked", "operation", "request", "ticket", "until_s")

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        self.request: Request | None = None
        self.ticket: Ticket | None = None
        self.body: bytes | None = None
        self.is_asked = False
        """It may have been done."""
        self.until_s: float | None = None
        """Until when it is tried again, once a leader was gone."""


class Guest:
    """
    The calls of a process to the one that leads.

    Args:
        name: of the store, for errors.
        namespace: whose jobs are meant to be in it.
        door: returns the way to a leader.
    """

    def __init__(self, name: str, namespace: str, door: Callable[[Leader], Door]) -> None:
        self._name = name
        self._namespace = namespace
        self._door = door
        self._links: Links | None = None
        self._leader: Leader | None = None
        self._lock = threading.Lock()
        self._mark = secrets.token_hex(8)
        self._count = itertools.count()
        self._free: list[Request] = []
        """The last requests of streams that have none under way."""

    @property
    def way(self) -> str | None:
        """By which way the leader was reached last; None if it was not reached."""
        links = self._links
        return None if links is None else links.way

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            links, self._links, self._leader = self._links, None, None
        if links is not None:
            links.close()

    def _to(self, leader: Leader) -> Links:
        """
        Return the links to a leader.

        Raises:
            GoneError: it has not said yet where it is, or answers nobody.
        """
        if leader.address is None:
            raise GoneError
        if not leader.address:
            raise GoneError(is_mute=True)
        with self._lock:
            before, links = None, self._links
            if links is None or self._leader != leader:
                before, self._leader = links, leader
                links = self._links = Links(Greeting(self._door(leader), self._namespace))
        if before is not None:
            before.close()
        return links

    # --- calls ---------------------------------------------------------------------------------------------------

    async def call(self, attempt: Attempt, leader: Leader, aim: int, behind: int) -> Any:
        """
        Have an operation done by the leader.

        Args:
            behind: as of `Ticket`.

        Raises:
            GoneError: it was not, as far as known; ask again.
            QueueHintError: what it was refused with.
        """
        kind, body = self._message(attempt)
        return self._read(attempt, await self._to(leader).ask(kind, body, aim, behind))

    def call_sync(self, attempt: Attempt, leader: Leader, aim: int, behind: int) -> Any:
        """Like `call`, for code without a loop."""
        kind, body = self._message(attempt)
        return self._read(attempt, self._to(leader).ask_sync(kind, body, aim, behind))

    async def wait(self, interest: Interest, timeout_s: float, leader: Leader, aim: int) -> None:
        """
        Wait as the leader's own process does.

        Raises:
            GoneError: it leads no more.
        """
        answer = await self._to(leader).ask(WAIT, waited(interest, timeout_s), aim)
        read_answer(answer, type(None))

    def wait_sync(self, interest: Interest, timeout_s: float, leader: Leader, aim: int) -> None:
        """Like `wait`, for code without a loop."""
        answer = self._to(leader).ask_sync(WAIT, waited(interest, timeout_s), aim)
        read_answer(answer, type(None))

    def _message(self, attempt: Attempt) -> tuple[int, bytes]:
        operation = attempt.operation
        is_question = type(operation) in UNWRITTEN
        body = attempt.body
        if body is None:
            if type(operation) is not Examine:
                check_limits(operation)
            body = asked(operation) if is_question else encode(operation)
            if len(body) > REQUEST_BYTES_MAX:
                raise BackendFullError(f"{self._name}: the request is larger than the process that leads accepts")
            attempt.body = body
        if is_question:
            return ASK, body
        if attempt.request is None:
            attempt.request = self.next_request()
        return CALL, line_of(body, attempt.request)

    def next_request(self) -> Request:
        """Return a request of a stream that has none under way, until `end`."""
        try:
            last = self._free.pop()
        except IndexError:
            return Request(f"{self._mark}-{next(self._count)}", 1)
        return Request(last.stream, last.number + 1)

    def _read(self, attempt: Attempt, answer: bytes) -> Any:
        reply_class: Any = attempt.operation.reply_class
        try:
            return read_answer(answer, reply_class)
        finally:
            self.end(attempt)

    def end(self, attempt: Attempt) -> None:
        """Let another call have the stream of one that was answered."""
        request, attempt.request = attempt.request, None
        if request is not None:
            self._free.append(request)

    def ring(self, behind: int) -> None:
        """Have the leader look for rows of a transaction, if a connection is there that serves; from any thread."""
        links = self._links
        if links is not None:
            links.ring(behind)

    # --- when nobody answers -------------------------------------------------------------------------------------

    def left(self, leader: Leader) -> None:
        """Close the connections to a process that does not lead any more."""
        with self._lock:
            if self._leader != leader:
                return
            links, self._links, self._leader = self._links, None, None
        if links is not None:
            links.close()

    def pause_s(self, attempt: Attempt, gone: GoneError, leader: Leader | None, aim: int) -> float:
        """
        Return for how long to wait before a call is tried again.

        Args:
            leader: who was asked; None for this process, from which another one has taken the lead.

        Raises:
            BackendError: it was tried for long enough.
        """
        attempt.is_asked = attempt.is_asked or gone.is_asked
        now_s = time.monotonic()
        if attempt.until_s is None:
            attempt.until_s = now_s + SILENCE_S
            if not gone.is_silent:
                return 0.0
        pid = None if leader is None else leader.pid
        if gone.is_mute:
            raise BackendInUseError(self._name, pid)
        if gone.is_silent or now_s >= attempt.until_s:
            attempt.until_s = None
            does = "has taken the lead again and again" if leader is None else "has not answered"
            raise self._silent(attempt, f"which {does} for {SILENCE_S:g} s", pid, aim)
        return RETRY_S

    def _silent(self, attempt: Attempt, problem: str, pid: int | None, aim: int) -> BackendError:
        """Return the error that nobody answers."""
        who = "another process" if pid is None else f"process {pid}"
        said = f"{self._name} is in use by {who}, {problem}"
        if attempt.is_asked and type(attempt.operation) not in UNWRITTEN:
            return OutcomeUnknownError(
                f"{said}; the operation may have been done, or be done when that process goes on"
            )
        if aim & LEAD:
            return BackendInUseError(self._name, pid, problem)
        return BackendUnavailableError(f"{said}; nothing was changed")
