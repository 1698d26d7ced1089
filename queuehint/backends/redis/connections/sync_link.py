"""Connections of synchronous callers: one request, one reply, no automatic retry."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import redis
from redis import exceptions as driver
from redis.backoff import NoBackoff
from redis.retry import Retry

from queuehint.backends.redis import session
from queuehint.backends.redis.connections import link
from queuehint.backends.redis.connections.link import (
    SENTINEL_FAILS,
    UNKNOWN_SERVICE,
    Link,
    none_free,
    said_before_connecting,
)
from queuehint.backends.redis.connections.pipeline import BROKEN
from queuehint.backends.redis.connections.uplink import BULK, LOOK_EVERY_S, unsent
from queuehint.backends.redis.transport import Closed, NotSent, Redirect, Send, Sleep, Unanswered

if TYPE_CHECKING:
    from collections.abc import Generator

    from queuehint.backends.redis.address import Address, Node

_POOL_MAX: Final = 2**31
"""Of a pool of the driver, which would refuse where a caller is to wait."""


class SyncLink(Link):
    """Connections for synchronous callers; safe across threads."""

    def __init__(self, address: Address, *, waits: bool = False) -> None:
        super().__init__(address, redis, Retry(NoBackoff(), 0), waits=waits)
        self._pools: dict[Node | None, Any] = {}
        self._timeout_s = link.reply_timeout_s(address)
        self._free = None if waits else threading.Semaphore(link.REQUESTS_MAX)
        self._answered_s = 0.0
        self._is_closed = False
        self._asking: Future[Node] | None = None
        """The answer of the sentinels that are asked now, and the lock of whoever begins to ask."""
        self._asking_lock = threading.Lock()

    def ask(self, send: Send) -> Any:
        """
        Send a command and return its reply.

        Raises:
            Closed: the link was closed.
        """
        if self._free is None:
            return self._ask(send)
        self._enter(self._free)
        try:
            reply = self._ask(send)
            self._answered_s = time.monotonic()
            return reply
        except driver.ResponseError:
            self._answered_s = time.monotonic()
            raise
        finally:
            self._free.release()

    def _enter(self, free: threading.Semaphore) -> None:
        """
        Wait for a slot.

        Raises:
            NotSent: no call was answered for as long as an operation is tried. While calls are answered the line moves,
                and is no failure; calls that give up leave it where it was.
        """
        if free.acquire(blocking=False):
            return
        address, begun_s, is_in = self._where.address, time.monotonic(), False
        while True:
            rest_s = max(begun_s, self._answered_s) + session.patience_s(address) - time.monotonic()
            if is_in and (rest_s > 0 or self._is_closed):
                return
            if rest_s <= 0:
                if is_in:
                    free.release()
                raise NotSent from none_free(address)
            is_in = free.acquire(timeout=rest_s)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed

    def _ask(self, send: Send) -> Any:
        self._check_open()
        once, self._where.once = self._where.once, None
        # Read before the node: where another thread moves in between, this command counts as one of the term before.
        send.term = -1 if once else self._where.term
        try:
            pool, left = self._found(once, None if once else self._node())
            if left is not None:
                left.disconnect(inuse_connections=False)
            connection = pool.get_connection()
        except driver.AuthenticationError as error:
            raise said_before_connecting(error) from error
        except BROKEN as error:
            raise NotSent from error
        try:
            if once is not None:
                connection.send_command("ASKING")
                connection.read_response()
            words = connection.pack_command(*send.command)
            size = sum(map(len, words))
            if size <= BULK:
                connection.send_packed_command(words)
            else:
                self._send_bulk(connection, b"".join(words))
            return connection.read_response()
        except driver.ResponseError:
            raise
        except driver.BusyLoadingError as error:
            # The server is there and does nothing yet: the driver calls that a broken connection.
            raise NotSent from error
        except BROKEN as error:
            connection.disconnect()
            raise Unanswered from error
        except BaseException as error:
            connection.disconnect()
            if self._is_closed and isinstance(error, Exception):
                # The driver met a connection that was closed while it read there.
                raise Unanswered from error
            raise
        finally:
            if self._is_closed or not self._is_used(pool):
                connection.disconnect()
            pool.release(connection)

    def _send_bulk(self, connection: Any, data: bytes) -> None:
        """
        Send a large request, and wait until the server's machine has all of it or a reply comes.

        Raises:
            TimeoutError: nothing of it was taken for as long as a reply may take.
        """
        # The time limit of a socket is one for all that it is given at once.
        connection.send_packed_command([data[at : at + BULK] for at in range(0, len(data), BULK)])
        left, moved_s = len(data), time.monotonic()
        while left and not connection.can_read(LOOK_EVERY_S):
            before, left = left, unsent(connection._sock)  # noqa: SLF001 - the driver does not tell
            if left < before:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s >= self._timeout_s:
                raise TimeoutError(f"nothing was taken within {self._timeout_s:g} s")

    def move(self, redirect: Redirect, sent: Send) -> None:
        """Go to another node after a command, unless another caller has done so since it was sent."""
        is_moved = self._where.move(redirect, sent.term)
        if is_moved and redirect.leaves and (pool := self._pools.pop(self._at, None)) is not None:
            pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close all connections, and refuse calls; those in flight are unanswered."""
        self._is_closed = True
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
        """Return the node to ask: by Sentinel the primary that it names, for all threads that want to know now."""
        where = self._where
        node = where.node
        if node is not None or where.address.kind != "sentinel":
            return node
        with self._asking_lock:
            asking = self._asking
            if asking is None:
                mine = self._asking = Future()
        if asking is None:
            try:
                node = where.node = self._ask_sentinels()
                mine.set_result(node)
            except BaseException as error:
                mine.set_exception(error if isinstance(error, NotSent) else NotSent())
                raise
            finally:
                self._asking = None
            return node
        try:
            return asking.result()
        except NotSent as error:
            # Each caller has an error of its own.
            raise NotSent from error.__cause__

    def _ask_sentinels(self) -> Node:
        said = []
        for sentinel in self._where.sentinels():
            connection = self._to_sentinel(sentinel)
            try:
                connection.connect()
                connection.send_command(*self._question)
                found = connection.read_response()
            except SENTINEL_FAILS as error:
                said.append(str(error))
                continue
            finally:
                connection.disconnect()
            if found is not None:
                return found[0].decode(), int(found[1])
            said.append(UNKNOWN_SERVICE)
        raise self._nobody(said)


def run(to: SyncLink, talk: Generator[Send | Sleep | Redirect, Any, Any]) -> Any:
    """Carry out the actions of a session until it ends."""
    try:
        step = next(talk)
        while True:
            try:
                if type(step) is Send:
                    sent = step
                    reply = to.ask(step)
                elif type(step) is Sleep:
                    reply = time.sleep(step.seconds)  # type: ignore[func-returns-value]
                else:
                    reply = to.move(step, sent)  # type: ignore[func-returns-value, arg-type]
            except BaseException as error:  # noqa: BLE001 - the session decides
                step = talk.throw(error)
            else:
                step = talk.send(reply)
    except StopIteration as end:
        return end.value
