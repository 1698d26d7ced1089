"""
The ways of a guest to the process that leads: a connection for each running loop, and some for code without a loop.

A link that is lost fails its calls with `GoneError`; whether they were done is not known. The caller looks for the
process that leads, and asks again under the same number.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from queuehint.backends.journal.guests.doors import GoneError
from queuehint.backends.journal.guests.greetings import hello
from queuehint.backends.journal.guests.messages import (
    ANSWER,
    ANSWER_BYTES_MAX,
    BEHIND,
    GONE,
    HELLO,
    LEAVE,
    WAIT,
    WANT,
    Frames,
    frame,
    read_answer,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from queuehint.backends.journal.guests.doors import Door, Reached

SILENCE_S: Final = 5.0
"""How long the leader may say nothing while calls are under way: it says each second that it is at work."""
_LOOK_S: Final = 0.5
_READ_BYTES: Final = 256 << 10
_IDLE_MAX: Final = 8
"""How many connections without a call are kept for code without a loop."""


class Greeting:
    """
    What a guest says first, and by which way.

    Args:
        namespace: whose jobs are meant.
    """

    def __init__(self, door: Door, namespace: str) -> None:
        self.door = door
        self._namespace = namespace

    def says(self, aim: int) -> bytes:
        """Return the first frame."""
        return frame(HELLO, 0, hello(self._namespace, aim))


def behind_frame(transaction: int) -> bytes:
    """Return the frame, which has no answer, that says which transaction further calls come behind."""
    return frame(BEHIND, 0, b"%d" % transaction)


def _told_behind(link: Link | SyncLink, behind: int) -> bytes:
    """Return what goes before a call: the transaction that it comes behind, unless the leader knows that already."""
    if behind <= link.behind:
        return b""
    link.behind = behind
    return behind_frame(behind)


class Link(asyncio.Protocol):
    """The connection of one running loop, on which any number of calls are under way."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = Frames(ANSWER_BYTES_MAX)
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._out: list[bytes] = []
        self._heard_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_silent = self._is_left = False
        self.is_lost = False
        self.is_detour, self.way = reached.is_detour, reached.way
        self.aim = 0
        """What this process is for, as far as the leader knows."""
        self.behind = 0
        """The transaction that its calls come behind, as far as the leader knows."""
        self._end = self._until_the_end()
        # A loop that ends in order, as by `asyncio.run`, first closes the generators that were begun on it.
        with suppress(StopIteration):
            self._end.__anext__().send(None)

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.close()

    @classmethod
    async def open(cls, greeting: Greeting, aim: int) -> Link:
        """
        Connect.

        Raises:
            GoneError: nobody is there, or says nothing.
            QueueHintError: this process is refused.
        """
        reached = await asyncio.to_thread(greeting.door.connect, SILENCE_S)
        found = reached.socket
        loop = asyncio.get_running_loop()
        try:
            found.setblocking(False)
            connect = loop.create_unix_connection if found.family == socket.AF_UNIX else loop.create_connection
            _, link = await connect(lambda: cls(reached), sock=found)
        except BaseException as error:
            found.close()
            if isinstance(error, OSError):
                raise GoneError from None
            raise
        try:
            await link.greet(greeting, aim)
        except BaseException:
            link.close()
            raise
        return link

    async def greet(self, greeting: Greeting, aim: int) -> None:
        """Say who this is, before anything else."""
        self._begin(0, greeting.says(aim))
        read_answer(await self._answer(0), type(None))
        self.aim = aim

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop is none by inheritance

    def data_received(self, data: bytes) -> None:
        """Give the answers that have come to those who wait for them."""
        self._heard_s = self._loop.time()
        try:
            for kind, call, body in self._frames.feed(self._reached.opened(data)):
                future = self._pending.pop(call, None) if kind == ANSWER else None
                if future is not None and not future.done():
                    future.set_result(body)
        except ValueError:
            self.close()
        self._end_if_left()

    def connection_lost(self, _error: Exception | None) -> None:
        """Fail all calls that are under way."""
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(GoneError(is_silent=self._is_silent, is_asked=True))

    def close(self) -> None:
        """Close the connection; on its loop."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> None:
        """Close the connection once the calls that are under way have ended; on its loop, and no other call begins."""
        self._is_left = True
        self._end_if_left()

    def _end_if_left(self) -> None:
        if self._is_left and not self._pending:
            self.close()

    def close_soon(self) -> None:
        """Close the connection, from any thread."""
        with suppress(RuntimeError):  # its loop has been closed, and the connection with it
            self._loop.call_soon_threadsafe(self.close)

    def _begin(self, call: int, message: bytes) -> None:
        """Send a frame: at once if no call is under way, else with all others of this turn of the loop."""
        if self.is_lost:
            raise GoneError
        is_alone = not self._pending
        if is_alone:
            self._heard_s = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(_LOOK_S, self._look)
        self._pending[call] = self._loop.create_future()
        if is_alone and self._transport is not None and not self._out:
            self._transport.write(self._reached.sealed(message))
            return
        if not self._out:
            self._loop.call_soon(self._send)
        self._out.append(message)

    def _send(self) -> None:
        out, self._out = self._out, []
        if not self.is_lost and self._transport is not None:
            self._transport.write(self._reached.sealed(b"".join(out)))

    def _look(self) -> None:
        """Close the connection if calls are under way and nothing has been heard: a process that stands keeps it."""
        self._timer = None
        if not self._pending or self.is_lost:
            return
        if self._loop.time() > self._heard_s + SILENCE_S:
            self._is_silent = self._reached.is_silent()
            self.close()
        else:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    async def _answer(self, call: int) -> bytes:
        try:
            answer = await self._pending[call]
        except asyncio.CancelledError:
            self._pending.pop(call, None)
            self._end_if_left()
            raise
        if answer == GONE:
            raise GoneError
        return answer

    async def ask(self, kind: int, body: bytes, behind: int = 0) -> bytes:
        """
        Return the answer to a frame.

        Args:
            behind: a transaction of this process that the call comes behind.

        Raises:
            GoneError: there is none; see `GoneError.is_asked`.
        """
        call = next(self._numbers)
        self._begin(call, _told_behind(self, behind) + frame(kind, call, body))
        try:
            return await self._answer(call)
        except asyncio.CancelledError:
            if kind == WAIT and not self.is_lost and self._transport is not None:
                self._transport.write(self._reached.sealed(frame(LEAVE, call)))
            raise

    def ring(self, behind: int) -> None:
        """Have the leader look for rows of a transaction, if nothing waits to be sent; on its loop."""
        if not self.is_lost and self._transport is not None and not self._transport.get_write_buffer_size():
            self.behind = max(self.behind, behind)
            self._transport.write(self._reached.sealed(behind_frame(behind)))

    def ring_soon(self, behind: int) -> None:
        """Like `ring`, from any thread."""
        with suppress(RuntimeError):  # its loop has been closed
            self._loop.call_soon_threadsafe(self.ring, behind)

    async def want(self, aim: int) -> None:
        """
        Say what this process is for, from now on.

        Raises:
            GoneError: the other one leaves the lead to this one.
        """
        await self.ask(WANT, b"%d" % aim)
        self.aim = aim


class SyncLink:
    """A connection for code without a loop, on which one call at a time is under way."""

    def __init__(self, greeting: Greeting, aim: int) -> None:
        """
        Connect.

        Raises:
            GoneError: nobody is there, or says nothing.
            QueueHintError: this process is refused.
        """
        self._reached = greeting.door.connect(SILENCE_S)
        self._socket = self._reached.socket
        self.is_detour, self.way = self._reached.is_detour, self._reached.way
        self._frames = Frames(ANSWER_BYTES_MAX)
        self._numbers = itertools.count(1)
        self.aim, self.behind = aim, 0
        try:
            self._socket.settimeout(SILENCE_S)
            read_answer(self._asked(0, greeting.says(aim)), type(None))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self, kind: int, body: bytes, behind: int = 0) -> bytes:
        """Like `Link.ask`; the connection is of no use after an error."""
        call = next(self._numbers)
        return self._asked(call, _told_behind(self, behind) + frame(kind, call, body))

    def _asked(self, call: int, message: bytes) -> bytes:
        try:
            self._socket.sendall(self._reached.sealed(message))
            while True:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise GoneError(is_asked=True)
                for kind, number, body in self._frames.feed(self._reached.opened(data)):
                    if kind == ANSWER and number == call:
                        if body == GONE:
                            raise GoneError
                        return body
        except (OSError, ValueError) as error:
            is_silent = isinstance(error, TimeoutError) and self._reached.is_silent()
            raise GoneError(is_silent=is_silent, is_asked=True) from None

    def ring(self, behind: int) -> bool:
        """Have the leader look for rows of a transaction, without a wait; return whether the connection is of use."""
        message = self._reached.sealed(behind_frame(behind))
        sent = 0
        with suppress(OSError):
            sent = self._socket.send(message, socket.MSG_DONTWAIT)
        if sent < len(message):
            self.close()
            return False
        self.behind = max(self.behind, behind)
        return True

    def want(self, aim: int) -> None:
        """Like `Link.want`."""
        self.ask(WANT, b"%d" % aim)
        self.aim = aim


class Links:
    """
    All links of a store to one leader.

    Args:
        greeting: how they begin.
    """

    def __init__(self, greeting: Greeting) -> None:
        self._greeting = greeting
        self._by_loop: dict[asyncio.AbstractEventLoop, Link] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[Link]] = {}
        self._idle: deque[SyncLink] = deque()
        self._is_closed = False
        self.way: str | None = None
        """The way of the newest connection."""

    async def ask(self, kind: int, body: bytes, aim: int, behind: int = 0) -> bytes:
        """
        Return the answer to a frame.

        Args:
            aim: what this process is for, which the leader has to know before.
            behind: as of `Link.ask`.

        Raises:
            GoneError: there is none.
            QueueHintError: this process is refused.
        """
        loop = asyncio.get_running_loop()
        link = self._by_loop.get(loop)
        if link is None or link.is_lost or (link.is_detour and self._greeting.door.is_straight()):
            link = await self._open(loop, aim)
        if aim & ~link.aim:
            await link.want(aim)
        return await link.ask(kind, body, behind)

    async def _open(self, loop: asyncio.AbstractEventLoop, aim: int) -> Link:
        opening = self._opening.get(loop)
        if opening is None:
            for other in [each for each in self._by_loop if each.is_closed()]:
                self._by_loop.pop(other, None)
            opening = self._opening[loop] = loop.create_task(Link.open(self._greeting, aim))
            opening.add_done_callback(lambda _: self._opening.pop(loop, None))
        link = await asyncio.shield(opening)
        before, self._by_loop[loop], self.way = self._by_loop.get(loop), link, link.way
        if before is not None and before is not link:
            before.leave()
        if self._is_closed:
            link.close()
            raise GoneError
        return link

    def ask_sync(self, kind: int, body: bytes, aim: int, behind: int = 0) -> bytes:
        """Like `ask`, for code without a loop."""
        link = self._taken() or SyncLink(self._greeting, aim)
        self.way = link.way
        try:
            if aim & ~link.aim:
                link.want(aim)
            answer = link.ask(kind, body, behind)
        except BaseException:
            link.close()
            raise
        self._idle.append(link)
        self._close_idle(0 if self._is_closed else _IDLE_MAX)
        return answer

    def ring(self, behind: int) -> None:
        """
        Have the leader look for rows of a transaction, from any thread, by a connection without a call, or of a loop.

        By mail that would be a transaction of its own: there the leader looks by itself a little later.
        """
        if self.way == "mail":
            return
        link = self._taken()
        if link is None:
            for other in list(self._by_loop.values()):
                other.ring_soon(behind)
        elif link.ring(behind):
            self._idle.append(link)
            self._close_idle(0 if self._is_closed else _IDLE_MAX)

    def _taken(self) -> SyncLink | None:
        """Return a connection without a call, if there is one; close those of a detour that is not needed any more."""
        with suppress(IndexError):
            while True:
                link = self._idle.pop()
                if not (link.is_detour and self._greeting.door.is_straight()):
                    return link
                link.close()
        return None

    def close(self) -> None:
        """Close all connections, from any thread."""
        self._is_closed = True
        for link in list(self._by_loop.values()):
            link.close_soon()
        self._close_idle(0)

    def _close_idle(self, most: int) -> None:
        """Close the oldest connections without a call, of more than so many."""
        while len(self._idle) > most:
            with suppress(IndexError):  # another thread has taken it
                self._idle.popleft().close()
