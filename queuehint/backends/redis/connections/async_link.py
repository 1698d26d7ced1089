"""Connections of a running loop: a shared pipeline for calls, and a connection for each blocking command."""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import redis.asyncio
from redis import exceptions as driver
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from queuehint.backends.redis import session
from queuehint.backends.redis.connections import link
from queuehint.backends.redis.connections.endpoint import read_tls, unreadable
from queuehint.backends.redis.connections.link import SENTINEL_FAILS, UNKNOWN_SERVICE, Link, none_free
from queuehint.backends.redis.connections.pipeline import Pipeline, open_pipeline
from queuehint.backends.redis.transport import Closed, NotSent, Redirect, Send

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from queuehint.backends.redis.address import Address, Node


class _CallSlots:
    """
    Slots for the concurrent calls of one loop, granted first come first served.

    Attributes:
        free: how many more may begin; read and taken in one step, without an await between.
        line: the turns of those that wait.
    """

    def __init__(self, most: int, address: Address) -> None:
        self.free = most
        self._address = address
        self.line: deque[asyncio.Future[None]] = deque()
        self._answered_s = 0.0

    async def enter(self) -> None:
        """
        Wait for a slot.

        Raises:
            NotSent: no call was answered for as long as an operation is tried. While calls are answered the line moves,
                and is no failure; calls that give up leave it where it was.
            Closed: the link was closed.
        """
        loop = asyncio.get_running_loop()
        turn, begun_s = loop.create_future(), loop.time()
        self.line.append(turn)
        try:
            while True:
                rest_s = max(begun_s, self._answered_s) + session.patience_s(self._address) - loop.time()
                if rest_s <= 0:
                    raise NotSent from none_free(self._address)
                if turn.done():
                    turn.result()
                    return
                await asyncio.wait((turn,), timeout=rest_s)
        except BaseException:
            if not turn.cancel() and turn.exception() is None:
                self.leave()
            raise

    def leave(self, *, is_answered: bool = False) -> None:
        """Hand a slot to the first caller in line."""
        while self.line:
            turn = self.line.popleft()
            if not turn.done():
                if is_answered:
                    self._answered_s = turn.get_loop().time()
                turn.set_result(None)
                return
        self.free += 1

    def close(self) -> None:
        """Refuse all that wait."""
        while self.line:
            turn = self.line.popleft()
            if not turn.done():
                turn.set_exception(Closed())


class _AsyncLink(Link, abc.ABC):
    """Base of both links of a running loop: find the node, and connect to it."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        super().__init__(address, redis.asyncio, Retry(NoBackoff(), 0))
        self._timeout_s = timeout_s
        self._is_closed = False
        self._asking: asyncio.Task[Node] | None = None
        """The question to the sentinels that is under way."""

    @abc.abstractmethod
    def _leave(self) -> None:
        """Use no connection to the present node any more."""

    async def move(self, redirect: Redirect, sent: Send) -> None:
        """Move to another node after a command, unless another caller has moved since the command was sent."""
        if self._where.move(redirect, sent.term) and redirect.leaves:
            self._leave()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed

    async def _close(self) -> None:
        """Stop connection attempts and queries of sentinels."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _connect(self, node: Node | None) -> Pipeline:
        self._check_open()
        address = self._where.address
        tls = await _read_files(partial(read_tls, address.options)) if address.is_tls else None
        line = await open_pipeline(self._endpoint(node, tls), self._timeout_s)
        try:
            self._check_open()
        except Closed:
            line.abort()
            raise
        return line

    async def _node(self) -> Node | None:
        """Return the node to query, and leave the previous one after a change."""
        where = self._where
        node = where.node
        if node is None and where.address.kind == "sentinel":
            node = await self._named()
        if node != self._at:
            self._leave()
            self._at = node
        return node

    async def _named(self) -> Node:
        """Return the primary named by the sentinels, in one query shared by concurrent callers."""
        self._check_open()
        asking = self._asking
        if asking is None:
            asking = self._asking = asyncio.create_task(self._ask_sentinels())
            asking.add_done_callback(self._have_asked)
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asking.cancelled():
                raise Closed from None
            raise
        except NotSent as error:
            # Each caller has an error of its own.
            raise NotSent from error.__cause__

    def _have_asked(self, done: asyncio.Task[Node]) -> None:
        self._asking = None
        if not done.cancelled() and done.exception() is None:
            self._where.node = done.result()

    async def _ask_sentinels(self) -> Node:
        said = []
        for sentinel in self._where.sentinels():
            connection = self._to_sentinel(sentinel)
            try:
                if self._where.address.is_tls:
                    # The context stays with this connection of the driver, which reads no file again.
                    await _read_files(connection.ssl_context.get)
                await connection.connect()
                await connection.send_command(*self._question)
                found = await connection.read_response()
            except SENTINEL_FAILS as error:
                said.append(str(error))
                continue
            finally:
                await connection.disconnect(nowait=True)
            if found is not None:
                return found[0].decode(), int(found[1])
            said.append(UNKNOWN_SERVICE)
        raise self._nobody(said)


class AsyncLink(_AsyncLink):
    """One connection to each node for all calls of a running loop, pipelined."""

    @property
    def node(self) -> Node | None:
        """The node of calls, if known."""
        return self._where.node

    def __init__(self, address: Address) -> None:
        super().__init__(address, link.reply_timeout_s(address))
        self._slots = _CallSlots(link.REQUESTS_MAX, address)
        self._lines: dict[Node | None, Pipeline] = {}
        self._connecting: dict[Node | None, asyncio.Task[Pipeline]] = {}
        self._leaving: list[Pipeline] = []
        """Connections that are given no more calls, and on which replies may be due."""

    async def ask(self, send: Send) -> Any:
        """
        Send a command and return its reply. A canceled caller's reply is dropped.

        Raises:
            Closed: the link was closed.
        """
        slots, is_answered = self._slots, False
        if slots.free:
            slots.free -= 1
        else:
            await slots.enter()
        try:
            if self._is_closed:
                raise Closed
            where, command = self._where, send.command
            if where.once is not None:
                once, where.once = where.once, None
                return await (await self._line(once)).ask(("ASKING",), command)
            node = where.node
            if node is None or node != self._at:
                node = await self._node()
            send.term = where.term
            line = self._lines.get(node)
            sent = None if line is None else line.send(command)
            reply = await ((await self._line(node)).ask(command) if sent is None else sent)
            is_answered = True
            return reply
        except driver.ResponseError:
            is_answered = True
            raise
        finally:
            if slots.line:
                slots.leave(is_answered=is_answered)
            else:
                slots.free += 1

    async def close(self) -> None:
        """Close all connections, and refuse calls. Calls in flight stay unanswered."""
        await self._close()
        self._slots.close()
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        for line in (*self._lines.values(), *self._leaving):
            line.abort()
        self._lines.clear()
        self._leaving.clear()
        # The loop closes what was aborted in its next turn, and may have no other.
        await asyncio.sleep(0)

    def _leave(self) -> None:
        # One that is being made may lead to the node that is left: it is closed, and its callers ask again.
        self._connecting.pop(self._at, None)
        if (line := self._lines.pop(self._at, None)) is not None:
            self._retire(line)

    def _retire(self, line: Pipeline) -> None:
        """Close a connection after its pending replies, or with the link."""
        line.leave()
        self._leaving = [leaving for leaving in (*self._leaving, line) if leaving.is_usable]

    async def _line(self, node: Node | None) -> Pipeline:
        """Return the connection to a node, opened once for concurrent callers."""
        line = self._lines.get(node)
        if line is not None and line.is_usable:
            if not line.is_silent:
                return line
            # Requests in flight there may still be answered.
            self._retire(self._lines.pop(node))
        connecting = self._connecting.get(node)
        if connecting is None:
            connecting = self._connecting[node] = asyncio.create_task(self._connect(node))
            connecting.add_done_callback(lambda done: self._connected(node, done))
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise (Closed if self._is_closed else NotSent) from driver.ConnectionError("the connection was closed")
            raise

    def _connected(self, node: Node | None, done: asyncio.Task[Pipeline]) -> None:
        is_wanted = self._connecting.get(node) is done
        if is_wanted:
            del self._connecting[node]
        if done.cancelled() or done.exception() is not None:
            return
        if is_wanted:
            self._lines[node] = done.result()
        else:
            self._retire(done.result())


class Blocked:
    """A blocking command on its own connection, with an optional one behind it."""

    def __init__(
        self,
        link: WaitLink,
        line: Pipeline,
        reply: asyncio.Future[Any],
        behind: asyncio.Future[Any] | None,
        node: Node | None,
        left: int | None,
    ) -> None:
        self._link = link
        self.node = node
        self._line = line
        self.reply = reply
        """The future of its reply; awaited by one task, because the cancellation of an awaiting task cancels it."""
        self.behind = behind
        """Where the reply to the one behind it will be, after it."""
        self._left = left

    def renew(self) -> asyncio.Future[Any]:
        """Return a new future of the reply after a cancellation of the task that awaited the old one."""
        self.reply = self._line.renewed(self.reply)
        return self.reply

    def renew_behind(self) -> asyncio.Future[Any] | None:
        """Return the same of the one behind it."""
        if self.behind is not None:
            self.behind = self._line.renewed(self.behind)
        return self.behind

    def failure(self) -> Exception | None:
        """Return the failure of the command, None for success or without a reply."""
        failure = self.reply.exception() if self.reply.done() and not self.reply.cancelled() else None
        return failure if isinstance(failure, Exception) else None

    def end(self) -> None:
        """Return the connection to the pool. A connection with a pending reply is dropped."""
        for reply in (self.reply, self.behind):
            if reply is not None and not reply.cancel() and not reply.cancelled():
                # A failure is told by one of both, and no news in the other.
                reply.exception()
        self._link.take_back(self._line, self._left)


class WaitLink(_AsyncLink):
    """Connections of a running loop on which commands block, so that each of them has one for itself."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, link.WAIT_TIMEOUT_S)
        self._idle: list[Pipeline] = []
        self._busy: set[Pipeline] = set()
        self._left = 0
        """How many times a node was left; what was connected before is used no more."""

    async def ask(self, send: Send) -> Any:
        """Send a command and return its reply. On cancellation the connection is dropped with the reply."""
        blocked = await self.begin(send)
        try:
            return await blocked.reply
        finally:
            blocked.end()

    async def begin(self, send: Send, behind: tuple[Any, ...] | None = None) -> Blocked:
        """Send a command, and one *behind* it. Return the futures of the replies, to be ended by the caller."""
        once, self._where.once = self._where.once, None
        send.term = self._where.term
        node = once or await self._node()
        if once is None:
            send.term = self._where.term
        command, left = send.command, self._left
        line = None
        reply: asyncio.Future[Any] | None
        later: asyncio.Future[Any] | None = None
        while self._idle and once is None and (line is None or not line.is_usable):
            line = self._idle.pop()
        if line is None or not line.is_usable:
            line = await self._connect(node)
        try:
            self._check_open()
            if once is not None:
                await line.ask(("ASKING",))
            if behind is None:
                reply = line.send(command)
            else:
                reply, later = line.send_both(command, behind) or (None, None)
            if reply is None:
                raise NotSent
        except BaseException:
            line.abort()
            raise
        self._busy.add(line)
        return Blocked(self, line, reply, later, node, None if once is not None else left)

    def take_back(self, line: Pipeline, left: int | None) -> None:
        """Take a connection back on which a command blocked; *left*: as when it was sent, None to drop it."""
        self._busy.discard(line)
        if line.is_usable and line.is_idle and left == self._left:
            self._idle.append(line)
        else:
            line.abort()

    async def close(self) -> None:
        """Close all connections, and refuse commands. Blocking commands stay unanswered."""
        await self._close()
        self._leave()
        for line in list(self._busy):
            line.abort()
        await asyncio.sleep(0)

    def _leave(self) -> None:
        self._left += 1
        for line in self._idle:
            line.abort()
        self._idle.clear()


async def _read_files(read: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """
    Return the TLS context of one connection, from the current files.

    They are read by a thread of its own: threads that all calls share may be waiting for this very connection.

    Raises:
        NotSent: a file is not there, or is no certificate, as for a moment while it is replaced.
    """
    reader = ThreadPoolExecutor(1, thread_name_prefix="queuehint-tls")
    try:
        return await asyncio.get_running_loop().run_in_executor(reader, read)
    except OSError as error:
        raise NotSent from unreadable(error)
    finally:
        reader.shutdown(wait=False)
