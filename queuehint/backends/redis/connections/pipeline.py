"""
A pipelined connection: several requests in flight, answered in the order of sending.

It replaces the driver's asynchronous client, which needs a task and several turns of the loop for each call: here a
call is one write and one future. When a connection fails, the outcome of each of its requests is unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from redis import exceptions as driver

from queuehint.backends.redis.connections.endpoint import CONNECT_TIMEOUT_S
from queuehint.backends.redis.connections.failures import BROKEN, CLOSED_BY_SERVER, no_answer, refused, unanswered
from queuehint.backends.redis.connections.resp import open_reader, pack
from queuehint.backends.redis.connections.uplink import BULK, LOOK_EVERY_S, buffered, unsent
from queuehint.backends.redis.transport import NotSent, Unanswered

if TYPE_CHECKING:
    from queuehint.backends.redis.connections.endpoint import Endpoint

SILENT_S: Final = 1.0
"""After how long without a byte, though a reply is due, a connection is given no more requests: it may be half-open."""
_UNSENT_MAX: Final = 4 << 20
"""How many bytes may wait to be sent before a call waits too."""


class Pipeline(asyncio.Protocol):
    """
    One connection to a server, made by `open_pipeline`.

    Args:
        timeout_s: for how long nothing may come while a reply is due, and nothing of a request be taken by the server's
            machine; a half-open connection is noticed then.
    """

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._reader = open_reader()
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._failure: BaseException | None = None
        self._is_leaving = False
        self._heard_s = 0.0
        """When something has come, or was taken by the server's machine, while a reply was due."""
        self._written = self._taken = 0
        """How many bytes were sent, and how many of them had been taken at the last look."""
        self._looked_s = 0.0
        self._late: tuple[asyncio.Future[Any], Any] | None = None
        """The newest reply to a request whose caller was canceled."""
        self._timer: asyncio.TimerHandle | None = None
        self._may_write: asyncio.Future[None] | None = None

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """True as long as requests may be sent."""
        return self._transport is not None

    @property
    def is_idle(self) -> bool:
        """True if no reply is due."""
        return not self._asked

    @property
    def is_silent(self) -> bool:
        """True if a reply is due, and for `SILENT_S` nothing has come and no byte of a request was taken."""
        return bool(self._asked) and self._loop.time() - self._heard_s >= SILENT_S and not self._moves()

    async def ask(self, *commands: tuple[Any, ...]) -> Any:
        """
        Send requests in one write and return the reply to the last one. The others must succeed.

        Canceled in between, the reply is dropped; whether it was done is not known.

        Raises:
            NotSent: the connection had ended before, or the server does nothing yet.
            Unanswered: it failed after the request was sent, wholly or in part.
            redis.exceptions.ResponseError: the server refused.
        """
        data = pack(commands[0]) if len(commands) == 1 else b"".join(map(pack, commands))
        while self._may_write is not None:
            await asyncio.shield(self._may_write)
        transport = self._transport
        if transport is None:
            raise NotSent from self._failure
        self._watch()
        replies = [self._loop.create_future() for _ in commands]
        self._asked.extend(replies)
        self._written += len(data)
        if len(data) > BULK:
            self._look_soon()
        transport.write(data)
        if len(replies) == 1:
            return await replies[0]
        said = await asyncio.gather(*replies, return_exceptions=True)
        for reply in said:
            if isinstance(reply, BaseException):
                raise reply
        return said[-1]

    def send(self, command: tuple[Any, ...]) -> asyncio.Future[Any] | None:
        """Send one request without suspending. Return the future of its reply, None if that is impossible."""
        asked, loop, transport = self._asked, self._loop, self._transport
        if transport is None or self._may_write is not None:
            return None
        if asked and loop.time() - self._heard_s >= SILENT_S and not self._moves():
            return None
        data = pack(command)
        self._late = None
        self._watch()
        reply: asyncio.Future[Any] = loop.create_future()
        asked.append(reply)
        self._written += len(data)
        if len(data) > BULK:
            self._look_soon()
        transport.write(data)
        return reply

    def send_both(
        self, command: tuple[Any, ...], behind: tuple[Any, ...]
    ) -> tuple[asyncio.Future[Any], asyncio.Future[Any]] | None:
        """Send two requests in one write without suspending, like `send`."""
        if self._transport is None or self._may_write is not None or self.is_silent:
            return None
        data = pack(command) + pack(behind)
        self._late = None
        self._watch()
        replies = self._loop.create_future(), self._loop.create_future()
        self._asked.extend(replies)
        self._written += len(data)
        if len(data) > BULK:
            self._look_soon()
        self._transport.write(data)
        return replies

    def renewed(self, reply: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Return a new future of the reply after a cancellation of the task that awaited the old one."""
        if not reply.cancelled():
            return reply
        other: asyncio.Future[Any] = self._loop.create_future()
        if reply in self._asked:
            self._asked[self._asked.index(reply)] = other
        elif self._late is not None and self._late[0] is reply:
            # It came between the cancellation and the turn in which the task heard of it.
            _tell(other, self._late[1])
        else:
            other.set_exception(unanswered(self._failure))
        return other

    def _watch(self) -> None:
        """Arm the read timeout while a request is in flight."""
        if not self._asked:
            self._heard_s = self._looked_s = self._loop.time()
            # All that was sent before has been answered.
            self._taken = self._written
            if self._timer is None:
                self._timer = self._loop.call_at(self._heard_s + self._timeout_s, self._look)

    def _look_soon(self) -> None:
        """Look while a large request is being sent: it may take longer than a reply, and its bytes are life."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(min(LOOK_EVERY_S, self._timeout_s / 4), self._look)

    def _moves(self) -> bool:
        """
        Return whether requests are on their way, and the server's machine has taken bytes of them since the last look.

        That counts as life: now, or at the last look if all has been taken, for when the last byte was is not known. A
        server that is frozen still has its system take what a buffer holds, and no more.
        """
        transport = self._transport
        if transport is None:
            return False
        now_s, under_way = self._loop.time(), buffered(transport) + unsent(transport.get_extra_info("socket"))
        taken = self._written - under_way
        has_moved, looked_s = taken > self._taken, self._looked_s
        self._taken, self._looked_s = taken, now_s
        if has_moved:
            self._heard_s = max(self._heard_s, now_s if under_way > 0 else looked_s)
        return now_s - self._heard_s < SILENT_S

    def leave(self) -> None:
        """Send nothing more, and close the connection when the last reply has come."""
        self._is_leaving = True
        if not self._asked:
            self._end(None)

    def abort(self) -> None:
        """Close the connection at once, leaving requests in flight unanswered."""
        self._end(driver.ConnectionError("the connection was closed"))

    # --- what the loop calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, for the loop."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_MAX)

    def data_received(self, data: bytes) -> None:
        """Pass replies to their callers. Called by the loop."""
        reader, asked = self._reader, self._asked
        self._heard_s = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if not asked:
                    # A message without a request: usually "too many clients", before the connection is closed.
                    self._end(reply if isinstance(reply, Exception) else driver.InvalidResponse("nothing was asked"))
                    return
                future = asked.popleft()
                if future.done():
                    self._late = future, reply
                    continue
                if isinstance(reply, Exception):
                    _tell(future, reply)
                else:
                    future.set_result(reply)
        except driver.InvalidResponse as error:
            self._end(error)
        if self._is_leaving and not asked:
            self._end(None)

    def pause_writing(self) -> None:
        """Hold calls back until the server reads. Called by the loop."""
        self._may_write = self._loop.create_future()

    def resume_writing(self) -> None:
        """Release the calls held back. Called by the loop."""
        if self._may_write is not None and not self._may_write.done():
            self._may_write.set_result(None)
        self._may_write = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the calls in flight. Called by the loop."""
        self._end(exc or driver.ConnectionError(CLOSED_BY_SERVER))

    # --- its end -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """End a connection on which nothing moves though a reply is due."""
        self._timer = None
        if not self._asked:
            return
        moves = self._moves()
        until_s = self._heard_s + self._timeout_s
        if self._loop.time() < until_s:
            is_sending = self._taken < self._written
            next_s = self._loop.time() + min(LOOK_EVERY_S, self._timeout_s / 4) if moves and is_sending else until_s
            self._timer = self._loop.call_at(min(next_s, until_s), self._look)
        else:
            self._end(no_answer(self._timeout_s))

    def _end(self, failure: BaseException | None) -> None:
        transport, self._transport = self._transport, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if transport is not None:
            self._failure = failure or driver.ConnectionError("the connection was closed")
            if failure is None:
                transport.close()
            else:
                transport.abort()
        self.resume_writing()
        while self._asked:
            future = self._asked.popleft()
            if not future.done():
                future.set_exception(unanswered(self._failure))


def _tell(future: asyncio.Future[Any], reply: Any) -> None:
    if isinstance(reply, Exception):
        future.set_exception(refused(reply))
    else:
        future.set_result(reply)


async def open_pipeline(endpoint: Endpoint, timeout_s: float) -> Pipeline:
    """
    Connect.

    Raises:
        NotSent: no connection could be made, or it failed before anything was asked.
        redis.exceptions.ResponseError: the server refuses the greeting: a wrong password, no such database.
    """
    loop = asyncio.get_running_loop()

    def make() -> Pipeline:
        return Pipeline(timeout_s)

    pipeline: Pipeline | None = None
    try:
        async with asyncio.timeout(min(CONNECT_TIMEOUT_S, timeout_s)):
            if endpoint.path is not None:
                _, pipeline = await loop.create_unix_connection(make, endpoint.path)
            else:
                _, pipeline = await loop.create_connection(make, endpoint.host, endpoint.port, ssl=endpoint.tls)
        if endpoint.greeting:
            await pipeline.ask(*endpoint.greeting)
    except Unanswered as error:
        raise NotSent from error.__cause__
    except BROKEN as error:
        raise NotSent from error
    except BaseException:
        if pipeline is not None:
            pipeline.abort()
        raise
    return pipeline
