"""
Connections to the node that has the namespace: one request, one reply, nothing is ever sent twice.

redis-py makes the connections; its own re-sending is switched off, for only a conversation knows what may be repeated.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import redis
import redis.asyncio
from redis import exceptions as driver
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from .address import Address, Node
from .conversation import Move, NotSent, Unanswered

TIMEOUT_S: Final = 5.0
"""How long a reply may take; a half-open connection is noticed then."""
WAIT_TIMEOUT_S: Final = 8.0
"""The same for a connection that blocks, longer than the longest wait."""
CONNECT_TIMEOUT_S: Final = 3.0
_BROKEN: Final = (driver.ConnectionError, driver.TimeoutError, OSError, TimeoutError)


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
        self.node: Node | None = address.nodes[0] if address.nodes and address.kind != "sentinel" else None
        self.once: Node | None = None
        self._next = 0

    def move(self, move: Move) -> None:
        """Go to another node, as far as that is known without asking."""
        if move.node is not None:
            host, port = move.node
            node = (host or (self.node or ("localhost", 0))[0], port)
            if move.once:
                self.once = node
            else:
                self.node = node
        elif self.address.kind == "cluster":
            self._next = (self._next + 1) % len(self.address.nodes)
            self.node = self.address.nodes[self._next]
        elif self.address.kind == "sentinel":
            self.node = None


def _said_before_connecting(error: BaseException) -> BaseException:
    """Keep what the server said when it refused a connection for good: a wrong password is not a failed network."""
    if isinstance(error, driver.AuthenticationError) and not isinstance(error, driver.ResponseError):
        return driver.NoPermissionError(str(error))
    return error


class SyncLink:
    """Connections for synchronous callers; safe across threads."""

    def __init__(self, address: Address, *, waits: bool = False) -> None:
        self._where = _Where(address)
        self._options = _options(address, waits=waits) | {"retry": Retry(NoBackoff(), 0)}
        self._pools: dict[Node | None, redis.ConnectionPool] = {}

    def ask(self, command: tuple[Any, ...]) -> Any:
        """Send a command and return its reply."""
        once, self._where.once = self._where.once, None
        try:
            pool = self._pool(once or self._node())
            connection = pool.get_connection()
        except driver.AuthenticationError as error:
            raise _said_before_connecting(error) from error
        except _BROKEN as error:
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
        except _BROKEN as error:
            connection.disconnect()
            raise Unanswered from error
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def move(self, move: Move) -> None:
        """Go to another node."""
        self._where.move(move)

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.disconnect()

    def _node(self) -> Node | None:
        address = self._where.address
        if address.kind == "sentinel" and self._where.node is None:
            options = {**self._options, **address.sentinel_options, "db": 0}
            sentinel = redis.Sentinel(address.nodes, sentinel_kwargs=options)
            self._where.node = sentinel.discover_master(str(address.service))
        return self._where.node

    def _pool(self, node: Node | None) -> redis.ConnectionPool:
        pool = self._pools.get(node)
        if pool is None:
            address, options = self._where.address, dict(self._options)
            kind: Any = redis.SSLConnection if address.is_tls else redis.Connection
            if address.path is not None:
                kind, options["path"] = redis.UnixDomainSocketConnection, address.path
            elif node is not None:
                options["host"], options["port"] = node
            pool = self._pools[node] = redis.ConnectionPool(connection_class=kind, **options)
        return pool


class AsyncLink:
    """Connections of one running loop."""

    def __init__(self, address: Address, *, waits: bool = False) -> None:
        self._where = _Where(address)
        self._options = _options(address, waits=waits) | {"retry": AsyncRetry(NoBackoff(), 0)}
        self._pools: dict[Node | None, redis.asyncio.ConnectionPool] = {}

    async def ask(self, command: tuple[Any, ...]) -> Any:
        """Send a command and return its reply; canceled in between, the connection is dropped with the reply."""
        once, self._where.once = self._where.once, None
        try:
            pool = self._pool(once or await self._node())
            connection = await pool.get_connection()
        except driver.AuthenticationError as error:
            raise _said_before_connecting(error) from error
        except _BROKEN as error:
            raise NotSent from error
        try:
            if once is not None:
                await connection.send_command("ASKING")
                await connection.read_response()
            await connection.send_command(*command)
            return await connection.read_response()
        except driver.ResponseError:
            raise
        except driver.BusyLoadingError as error:
            raise NotSent from error
        except _BROKEN as error:
            await connection.disconnect(nowait=True)
            raise Unanswered from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await asyncio.shield(pool.release(connection))

    async def move(self, move: Move) -> None:
        """Go to another node."""
        self._where.move(move)

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.disconnect()

    async def _node(self) -> Node | None:
        address = self._where.address
        if address.kind == "sentinel" and self._where.node is None:
            options = {**self._options, **address.sentinel_options, "db": 0}
            sentinel = redis.asyncio.Sentinel(address.nodes, sentinel_kwargs=options)
            self._where.node = await sentinel.discover_master(str(address.service))
        return self._where.node

    def _pool(self, node: Node | None) -> redis.asyncio.ConnectionPool:
        pool = self._pools.get(node)
        if pool is None:
            address, options = self._where.address, dict(self._options)
            kind: Any = redis.asyncio.SSLConnection if address.is_tls else redis.asyncio.Connection
            if address.path is not None:
                kind, options["path"] = redis.asyncio.UnixDomainSocketConnection, address.path
            elif node is not None:
                options["host"], options["port"] = node
            pool = self._pools[node] = redis.asyncio.ConnectionPool(connection_class=kind, **options)
        return pool
