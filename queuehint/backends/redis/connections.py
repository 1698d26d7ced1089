"""
Connections to the node that has the namespace: one request, one reply, no automatic retry.

redis-py makes the connections of synchronous callers and to sentinels; its own retries are switched off, for only the
session knows which requests may be repeated. Asynchronous callers share a pipeline. When a node is no primary any more,
all connections to it are dropped, so that a new one, which the same name may resolve elsewhere, is made. Calls share a
bounded number of connections, or of places in a pipeline; a caller without one waits, first come first served.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import redis
import redis.asyncio
from redis import exceptions as driver
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from queuehint.backends.redis import session
from queuehint.backends.redis.address import Address, Node
from queuehint.backends.redis.pipeline import BROKEN, CONNECT_TIMEOUT_S, Endpoint, Pipeline, open_pipeline
from queuehint.backends.redis.transport import NotSent, Redirect, Send, Sleep, Unanswered

if TYPE_CHECKING:
    from collections.abc import Generator

TIMEOUT_S: Final = 5.0
"""How long a reply may take; a half-open connection is noticed then."""
WAIT_TIMEOUT_S: Final = 8.0
"""The same for a connection that blocks, longer than the longest wait."""
REQUESTS_MAX: Final = 64
"""How many calls of one loop, or synchronous calls of a process, are under way at once; the others wait in line."""
_POOL_MAX: Final = 2**31
"""Of a pool of the driver, which would refuse where a caller is to wait."""
_SENTINEL_FAILS: Final = (driver.RedisError, OSError, TimeoutError)
UNKNOWN_SERVICE: Final = "it does not know the service"


def _options(address: Address, *, waits: bool) -> dict[str, Any]:
    return {
        **address.options,
        "socket_timeout": WAIT_TIMEOUT_S if waits else TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "protocol": 2,
        "retry_on_timeout": False,
        "health_check_interval": 0,
    }


class _Where:
    """Which node has the namespace, as far as is known, and where else to look."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.node = address.first
        self.once: Node | None = None
        self._next = 0

    def move(self, redirect: Redirect) -> None:
        """Redirect to another node, as far as known without asking."""
        if redirect.node is not None:
            host, port = redirect.node
            node = (host or (self.node or ("localhost", 0))[0], port)
            if redirect.once:
                self.once = node
            else:
                self.node = node
                self.address.learn_owner(node)
        elif self.address.kind == "cluster":
            self.node = self.address.after(self.node)
        elif self.address.kind == "sentinel":
            self.node = None

    def sentinels(self) -> list[Node]:
        """Return the sentinels in the order in which to ask: last the one that was asked first the last time."""
        nodes, first = self.address.nodes, self._next
        self._next = (first + 1) % len(nodes)
        return [*nodes[first:], *nodes[:first]]


def _said_before_connecting(error: BaseException) -> BaseException:
    """Keep what the server said when it refused a connection for good: a wrong password is not a failed network."""
    if isinstance(error, driver.AuthenticationError) and not isinstance(error, driver.ResponseError):
        return driver.NoPermissionError(str(error))
    return error


class _Link:
    """
    Base class of links: the address of the node, and the question to its sentinels.

    Args:
        library: the driver, synchronous or not.
        retry: its way to send again: never.
        waits: the connections block, so that there are as many as there are who wait.
    """

    def __init__(self, address: Address, library: Any, retry: Any, *, waits: bool = False) -> None:
        self._where = _Where(address)
        self._library = library
        self._options = _options(address, waits=waits) | {"retry": retry}
        self._at: Node | None = self._where.node

    def _parts(self, node: Node | None, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the class and the options of a connection of the driver to a node."""
        address = self._where.address
        kind: Any = self._library.SSLConnection if address.is_tls else self._library.Connection
        if address.path is not None:
            return self._library.UnixDomainSocketConnection, options | {"path": address.path}
        host, port = node or ("localhost", 0)
        return kind, options | {"host": host, "port": port}

    def _to_sentinel(self, node: Node) -> Any:
        """Return a connection to a sentinel, without the server's password."""
        address = self._where.address
        options = {name: value for name, value in self._options.items() if name not in {"username", "password"}}
        options |= address.sentinel_options | {"db": 0, "socket_timeout": CONNECT_TIMEOUT_S}
        kind, options = self._parts(node, options)
        return kind(**options)

    @property
    def _question(self) -> tuple[str, ...]:
        return "SENTINEL", "GET-MASTER-ADDR-BY-NAME", str(self._where.address.service)

    def _nobody(self, said: list[str]) -> NotSent:
        """Return the error for sentinels that name no primary."""
        failure = NotSent()
        failure.__cause__ = driver.ConnectionError(f"no sentinel names a primary: {'; '.join(said)}")
        return failure


def _none_free() -> driver.ConnectionError:
    """Return why a call was given up before it was sent."""
    return driver.ConnectionError(f"{REQUESTS_MAX} calls are under way, and none ended within {session.RETRY_S:g} s")


class SyncLink(_Link):
    """Connections for synchronous callers; safe across threads."""

    def __init__(self, address: Address, *, waits: bool = False) -> None:
        super().__init__(address, redis, Retry(NoBackoff(), 0), waits=waits)
        self._pools: dict[Node | None, Any] = {}
        self._free = None if waits else threading.Semaphore(REQUESTS_MAX)
        self._left_s = 0.0

    def ask(self, command: tuple[Any, ...]) -> Any:
        """Send a command and return its reply."""
        if self._free is None:
            return self._ask(command)
        while not self._free.acquire(timeout=session.RETRY_S):
            # While others come and go this is a queue, and no failure.
            if time.monotonic() - self._left_s >= session.RETRY_S:
                raise NotSent from _none_free()
        try:
            return self._ask(command)
        finally:
            self._left_s = time.monotonic()
            self._free.release()

    def _ask(self, command: tuple[Any, ...]) -> Any:
        once, self._where.once = self._where.once, None
        try:
            pool, left = self._found(once, None if once else self._node())
            if left is not None:
                left.disconnect(inuse_connections=False)
            connection = pool.get_connection()
        except driver.AuthenticationError as error:
            raise _said_before_connecting(error) from error
        except BROKEN as error:
            raise NotSent from error
        try:
            if once is not None:
                connection.send_command("ASKING")
                connection.read_response()
            connection.send_command(*command)
            return connection.read_response()
        except driver.ResponseError:
            raise
        except driver.BusyLoadingError as error:
            # The server is there and does nothing yet: the driver calls that a broken connection.
            raise NotSent from error
        except BROKEN as error:
            connection.disconnect()
            raise Unanswered from error
        except BaseException:
            connection.disconnect()
            raise
        finally:
            if not self._is_used(pool):
                connection.disconnect()
            pool.release(connection)

    def move(self, redirect: Redirect) -> None:
        """Go to another node."""
        if redirect.leaves and (pool := self._pools.pop(self._at, None)) is not None:
            pool.disconnect(inuse_connections=False)
        self._where.move(redirect)

    def close(self) -> None:
        """Close all connections."""
        for pool in list(self._pools.values()):
            pool.disconnect()

    def _found(self, once: Node | None, node: Node | None) -> tuple[Any, Any]:
        """Return the pool of a node, and that of the node before if it is another one: to be closed."""
        if once is not None:
            return self._pool(once), None
        left = None
        if node != self._at:
            left, self._at = self._pools.pop(self._at, None), node
        return self._pool(node), left

    def _pool(self, node: Node | None) -> Any:
        pool = self._pools.get(node)
        if pool is None:
            kind, options = self._parts(node, self._options)
            pool = self._library.ConnectionPool(connection_class=kind, max_connections=_POOL_MAX, **options)
            # Of two threads that come at once, one has its pool taken by both.
            pool = self._pools.setdefault(node, pool)
        return pool

    def _is_used(self, pool: Any) -> bool:
        """Return whether a pool was not left since a connection of it was taken."""
        return pool in self._pools.values()

    def _node(self) -> Node | None:
        where = self._where
        if where.node is None and where.address.kind == "sentinel":
            said = []
            for sentinel in where.sentinels():
                connection = self._to_sentinel(sentinel)
                try:
                    connection.connect()
                    connection.send_command(*self._question)
                    found = connection.read_response()
                except _SENTINEL_FAILS as error:
                    said.append(str(error))
                    continue
                finally:
                    connection.disconnect()
                if found is not None:
                    where.node = (found[0].decode(), int(found[1]))
                    return where.node
                said.append(UNKNOWN_SERVICE)
            raise self._nobody(said)
        return where.node


class _Room:
    """
    Room for so many calls of one loop at once; the others wait in line.

    Attributes:
        free: for how many there is room; whoever sees any takes it at once.
    """

    def __init__(self, most: int) -> None:
        self.free = most
        self._line: deque[asyncio.Future[None]] = deque()
        self._left_s = 0.0

    async def enter(self) -> None:
        """
        Wait for a place.

        Raises:
            NotSent: nobody left for as long as an operation is tried. A line that moves is no failure.
        """
        loop = asyncio.get_running_loop()
        turn, begun_s = loop.create_future(), loop.time()
        self._line.append(turn)
        try:
            while not turn.done():
                rest_s = max(begun_s, self._left_s) + session.RETRY_S - loop.time()
                if rest_s <= 0:
                    raise NotSent from _none_free()
                await asyncio.wait((turn,), timeout=rest_s)
        except BaseException:
            if not turn.cancel():
                self.leave()
            raise

    def leave(self) -> None:
        """Hand a connection to the first caller in line."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                self._left_s = turn.get_loop().time()
                turn.set_result(None)
                return
        self.free += 1


class _AsyncLink(_Link):
    """What both links of a running loop share: they find the node, and connect to it."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        super().__init__(address, redis.asyncio, AsyncRetry(NoBackoff(), 0))
        self._timeout_s = timeout_s
        self._tls = self._library.SSLConnection(**self._options).ssl_context.get() if address.is_tls else None

    def _leave(self) -> None:
        """Use no connection to the present node any more."""
        raise NotImplementedError

    async def move(self, redirect: Redirect) -> None:
        """Go to another node."""
        if redirect.leaves:
            self._leave()
        self._where.move(redirect)

    async def _connect(self, node: Node | None) -> Pipeline:
        address = self._where.address
        host, port = node or ("localhost", 0)
        endpoint = Endpoint(host, port, path=address.path, tls=self._tls, greeting=_greeting(address.options))
        return await open_pipeline(endpoint, self._timeout_s)

    async def _node(self) -> Node | None:
        """Return the node to ask, and leave the one before if it is another one."""
        where = self._where
        node = where.node
        if node is None and where.address.kind == "sentinel":
            node = where.node = await self._ask_sentinels()
        if node != self._at:
            self._leave()
            self._at = node
        return node

    async def _ask_sentinels(self) -> Node:
        said = []
        for sentinel in self._where.sentinels():
            connection = self._to_sentinel(sentinel)
            try:
                await connection.connect()
                await connection.send_command(*self._question)
                found = await connection.read_response()
            except _SENTINEL_FAILS as error:
                said.append(str(error))
                continue
            finally:
                await connection.disconnect(nowait=True)
            if found is not None:
                return found[0].decode(), int(found[1])
            said.append(UNKNOWN_SERVICE)
        raise self._nobody(said)


class AsyncLink(_AsyncLink):
    """One connection a node for all calls of a running loop, which are in flight one behind the other."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, TIMEOUT_S)
        self._room = _Room(REQUESTS_MAX)
        self._lines: dict[Node | None, Pipeline] = {}
        self._connecting: dict[Node | None, asyncio.Task[Pipeline]] = {}
        self._leaving: list[Pipeline] = []
        """Connections that are given no more calls, and on which replies may be due."""

    async def ask(self, command: tuple[Any, ...]) -> Any:
        """Send a command and return its reply; canceled in between, the reply is dropped."""
        room = self._room
        if room.free:
            room.free -= 1
        else:
            await room.enter()
        try:
            where = self._where
            if where.once is not None:
                once, where.once = where.once, None
                return await (await self._line(once)).ask(("ASKING",), command)
            node = where.node
            if node is None or node != self._at:
                node = await self._node()
            line = self._lines.get(node)
            if line is None or not line.is_usable or line.is_silent:
                line = await self._line(node)
            return await line.ask(command)
        finally:
            room.leave()

    async def close(self) -> None:
        """Close all connections."""
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
        """Close a connection once the replies that are due on it have come, or with the link."""
        line.leave()
        self._leaving = [leaving for leaving in (*self._leaving, line) if leaving.is_usable]

    async def _line(self, node: Node | None) -> Pipeline:
        """Return the connection to a node; who comes while it is made waits for it too."""
        line = self._lines.get(node)
        if line is not None and line.is_usable:
            if not line.is_silent:
                return line
            # What is in flight there may still be answered.
            self._retire(self._lines.pop(node))
        connecting = self._connecting.get(node)
        if connecting is None:
            connecting = self._connecting[node] = asyncio.create_task(self._connect(node))
            connecting.add_done_callback(lambda done: self._connected(node, done))
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise NotSent from driver.ConnectionError("the connection was closed")
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


class WaitLink(_AsyncLink):
    """Connections of a running loop on which commands block, so that each of them has one for itself."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, WAIT_TIMEOUT_S)
        self._idle: list[Pipeline] = []
        self._left = 0
        """How many times a node was left; what was connected before is used no more."""

    async def ask(self, command: tuple[Any, ...]) -> Any:
        """Send a command and return its reply; canceled in between, the connection is dropped with the reply."""
        once, self._where.once = self._where.once, None
        node = once or await self._node()
        left = self._left
        line = None
        while self._idle and once is None and (line is None or not line.is_usable):
            line = self._idle.pop()
        if line is None or not line.is_usable:
            line = await self._connect(node)
        try:
            return await line.ask(*([("ASKING",)] if once else []), command)
        finally:
            if line.is_usable and line.is_idle and left == self._left and once is None:
                self._idle.append(line)
            else:
                line.abort()

    async def close(self) -> None:
        """Close the connections on which nothing waits."""
        self._leave()
        await asyncio.sleep(0)

    def _leave(self) -> None:
        self._left += 1
        for line in self._idle:
            line.abort()
        self._idle.clear()


def _greeting(options: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return what has to be said on a new connection."""
    user, password, database = options.get("username"), options.get("password"), options.get("db", 0)
    greeting: list[tuple[str, ...]] = []
    if user or password:
        greeting.append(("AUTH", *([user] if user else []), password or ""))
    if database:
        greeting.append(("SELECT", str(database)))
    return tuple(greeting)


def run(link: SyncLink, talk: Generator[Send | Sleep | Redirect, Any, Any]) -> Any:
    """Carry out the actions of a session until it ends."""
    try:
        step = next(talk)
        while True:
            try:
                if type(step) is Send:
                    reply = link.ask(step.command)
                elif type(step) is Sleep:
                    reply = time.sleep(step.seconds)  # type: ignore[func-returns-value]
                else:
                    reply = link.move(step)  # type: ignore[func-returns-value, arg-type]
            except BaseException as error:  # noqa: BLE001 - the conversation decides
                step = talk.throw(error)
            else:
                step = talk.send(reply)
    except StopIteration as end:
        return end.value
