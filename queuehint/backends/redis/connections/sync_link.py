"""
Connections of synchronous callers: one request, one reply, no automatic retry.

A caller takes a `Line` that is free, and gives it back once the whole reply has come: one step each of a deque, so that
a lock is taken only by who finds none. A signal may raise between any two steps, so lines and turns in the queue for
them are counted by being there: what a caller had who was interrupted is gone as soon as nobody has it, and makes room.
For the same reason no lock is taken that is written in Python: those of `threading.Event` may stay taken for ever.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import redis
from redis import exceptions as driver
from redis.backoff import NoBackoff
from redis.retry import Retry

from queuehint.backends.redis import session
from queuehint.backends.redis.connections import link
from queuehint.backends.redis.connections.endpoint import read_tls
from queuehint.backends.redis.connections.line import Line
from queuehint.backends.redis.connections.link import SENTINEL_FAILS, UNKNOWN_SERVICE, Link, none_free
from queuehint.backends.redis.transport import Closed, NotSent, Redirect, Send, Sleep

if TYPE_CHECKING:
    from collections.abc import Generator

    from queuehint.backends.redis.address import Address, Node

LOOK_EVERY_S: Final = 1.0
"""How often a caller in line looks though nobody told it to: who should have may have been interrupted."""
_ONCE: Final = -1
"""The term of a line for one request."""


class SyncLink(Link):
    """
    Connections for synchronous callers. Safe across threads.

    Args:
        waits: its commands block, so that each waiter has a connection, however many there are.
    """

    def __init__(self, address: Address, *, waits: bool = False) -> None:
        super().__init__(address, redis, Retry(NoBackoff(), 0))
        self._timeout_s = link.WAIT_TIMEOUT_S if waits else link.reply_timeout_s(address)
        self._most = sys.maxsize if waits else link.REQUESTS_MAX
        self._lines: list[ref[Line]] = []
        """Those there are, and some that are gone. A `WeakSet` would forget to count down: a signal may raise in it."""
        self._idle: deque[Line] = deque()
        """Lines that nobody has: connected ones at the right end, others at the left."""
        self._turns: deque[ref[threading.Lock]] = deque()
        """Of callers that wait for a line, in the order of coming: a lock each, released once it may look."""
        self._term = 0
        """How often a node was left; lines that were connected before are used no more."""
        # What a signal calls may come here while its thread is in here.
        self._lock = threading.RLock()
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
        try:
            line = self._enter() if self._turns else self._idle.pop()
        except IndexError:
            line = self._enter()
        is_answered, where = False, self._where
        try:
            once, where.once = where.once, None
            if once is not None:
                send.term = -1
                self._connect(line, once, _ONCE)
                reply = line.ask(("ASKING",), send.command)
            else:
                # Both are read before the node: where another thread moves in between, this command counts as one of
                # the term before, and its line as one that was left.
                send.term, term, node = where.term, self._term, where.node
                if node is None or node != self._at:
                    node, term = self._find()
                if line.term != term or not line.is_usable():
                    self._connect(line, node, term)
                reply = line.ask(send.command)
            is_answered = True
            return reply
        except driver.ResponseError:
            is_answered = True
            raise
        finally:
            self._give_back(line)
            if self._turns:
                if is_answered:
                    self._answered_s = time.monotonic()
                self._call_next()

    def move(self, redirect: Redirect, sent: Send) -> None:
        """Move to another node after a command, unless another caller has moved since the command was sent."""
        if self._where.move(redirect, sent.term) and redirect.leaves:
            self._leave(self._at)

    def close(self) -> None:
        """Close all connections, and refuse calls."""
        self._is_closed = True
        self._leave(self._at)
        with self._lock:
            lines = list(self._lines)
        for each in lines:
            if (line := each()) is not None:
                line.end()
        self._call_next()

    # --- lines -------------------------------------------------------------------------------------------------------

    def _enter(self) -> Line:
        """
        Wait for a line, first come first served.

        Raises:
            NotSent: no call was answered for as long as an operation is tried. While calls are answered the line moves,
                and is no failure; calls that give up leave it where it was.
            Closed: the link was closed.
        """
        if not self._turns and (line := self._take()) is not None:
            return line
        address, begun_s, turn = self._where.address, time.monotonic(), threading.Lock()
        turn.acquire()
        own = ref(turn)
        try:
            self._turns.append(own)
            while True:
                if self._first() is turn and (line := self._take()) is not None:
                    return line
                self._check_open()
                rest_s = max(begun_s, self._answered_s) + session.patience_s(address) - time.monotonic()
                if rest_s <= 0:
                    raise NotSent from none_free(address)
                turn.acquire(timeout=min(rest_s, LOOK_EVERY_S))
        finally:
            with suppress(ValueError):
                self._turns.remove(own)
            self._call_next()

    def _take(self) -> Line | None:
        """Return a free line, or a new one below the maximum, else None."""
        with suppress(IndexError):
            return self._idle.pop()
        with self._lock:
            self._lines = [each for each in self._lines if each() is not None]
            if len(self._lines) >= self._most:
                return None
            line = Line(self._timeout_s)
            self._lines.append(ref(line))
        return line

    def _give_back(self, line: Line) -> None:
        """Let others have a line; one that was left, or on which a reply is due, without its connection."""
        if line.is_ready and line.term == self._term:
            self._idle.append(line)
            if line.term != self._term:
                self._sweep()
        else:
            line.close()
            self._idle.appendleft(line)

    def _call_next(self) -> None:
        """Have the first caller in line look for a line again."""
        if (turn := self._first()) is not None:
            with suppress(RuntimeError):  # it was told before, and has not looked yet
                turn.release()

    def _first(self) -> threading.Lock | None:
        """Return the turn of the first caller in line, past abandoned ones."""
        with self._lock, suppress(IndexError):
            while (turn := self._turns[0]()) is None:
                self._turns.popleft()
            return turn
        return None

    def _connect(self, line: Line, node: Node | None, term: int) -> None:
        self._check_open()
        address = self._where.address
        tls = read_tls(address.options) if address.is_tls else None
        line.connect(self._endpoint(node, tls), link.connect_timeout_s(address), term)
        self._check_open()

    def _leave(self, node: Node | None) -> int:
        """Leave all connections, and use *node* from now on. Return the term of lines to it."""
        with self._lock:
            self._at = node
            term = self._term = self._term + 1
        self._sweep()
        return term

    def _sweep(self) -> None:
        """Close the connections that are free and were left."""
        lines = []
        with suppress(IndexError):
            while True:
                lines.append(self._idle.pop())
        for line in lines:
            self._give_back(line)
        self._call_next()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _find(self) -> tuple[Node | None, int]:
        """Return the node to ask and the term of lines to it, and leave the one before if it is another one."""
        self._check_open()
        term, node = self._term, self._node()
        if node != self._at:
            term = self._leave(node)
        return node, term

    def _node(self) -> Node | None:
        """Return the node to query: by Sentinel its primary, in one query shared by concurrent threads."""
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


def run(to: SyncLink, talk: Generator[Send | Sleep | Redirect, Any, Any], sent: Send | None = None) -> Any:
    """Carry out the actions of a session until its end. *sent* is an earlier request."""
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
