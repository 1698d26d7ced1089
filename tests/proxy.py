"""
A TCP proxy that harms what passes through it, switched while it runs: cuts, silence, delay, slices, resets.

One thread runs an event loop that does all the I/O, so that no connection is closed while a call waits on it, which
would delay the close. Methods may be called from any thread and return once their effect is in force.

Each direction of a connection has a reader and a writer with a queue of chunks between them. The reader applies cuts
and silence, the writer delay, slices and hold. A delay is independent of the length of the queue, as on a long wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

from tests.support import LIMIT_S

T = TypeVar("T")

HOST = "127.0.0.1"
CHUNK = 65_536
MATCH_MAX = 1_000


class _Cut:
    """A cut that is armed for some more matches."""

    def __init__(self, match: bytes, times: int, is_after: bool) -> None:
        self.match = match
        self.times = times
        self.is_after = is_after


class _Link:
    """One connection: the client's half and the server's."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.over = asyncio.Event()
        self.is_reset = False
        # Bytes were swallowed: nothing that follows them may arrive.
        self.is_mute = False
        # The server's next reply is to be dropped.
        self.doom: _Cut | None = None

    def close(self, *, is_reset: bool = False) -> None:
        """Let it end."""
        self.is_reset |= is_reset
        self.over.set()


class Proxy:
    """
    A proxy on a free loopback port, before a server on another one.

    Cuts and everything else are independent: a cut may be armed on a slow link. A connection that was made during a
    blackhole, or had bytes swallowed by one, stays mute for good; others go on when it ends.

    Args:
        upstream: the port of the server, which need not run yet.

    Attributes:
        accepted: how many connections were accepted, refused ones included.
        refused: how many of them were reset at once, because of `refuse` or because the server was down.
        cuts: how many were cut.
        sent: how many bytes clients have sent that have been read, those that a blackhole swallows left out.
        swallowed: how many bytes a blackhole has taken.
        dropped: the beginnings of the replies that `cut_after` dropped, as they came.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.accepted = 0
        self.refused = 0
        self.cuts = 0
        self.sent = 0
        self.swallowed = 0
        self.dropped: list[bytes] = []
        self._armed: list[_Cut] = []
        self._links: set[_Link] = set()
        self._delay_s = (0.0, 0.0)
        self._slice = 0
        self._is_black = False
        self._is_refusing = False
        self._listener = socket.create_server((HOST, 0), backlog=512)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        # Closed while the link is on hold.
        self._gate = asyncio.Event()
        self._gate.set()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address for clients of a server without TLS and password."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._call(lambda: len(self._links))

    @property
    def armed(self) -> int:
        """How many cuts are still to come."""
        return self._call(lambda: sum(cut.times for cut in self._armed))

    # --- cuts ---

    def cut_before(self, match: bytes = b"", *, times: int = 1) -> None:
        """
        Close a connection, both halves, instead of forwarding the request that has these bytes: it is not applied.

        Args:
            match: bytes of a request, which may come in pieces; none stand for any, be it a HELLO.
            times: how many requests will meet this.
        """
        self._arm(_Cut(match, times, is_after=False))

    def cut_after(self, match: bytes = b"", *, times: int = 1) -> None:
        """
        Forward the request that has these bytes, wait for the server's reply, drop it and close the connection:
        applied, but the client cannot know.

        A reply that says NOSCRIPT is passed on and the cut stays armed, since nothing was applied; other errors can be
        seen in `dropped`. The client must wait for each reply before it sends more: the next one ends the connection.

        Args:
            match: as for `cut_before`.
            times: as for `cut_before`.
        """
        self._arm(_Cut(match, times, is_after=True))

    def disarm(self) -> None:
        """Forget the cuts that have not happened."""
        self._call(self._armed.clear)

    # --- the state of the link ---

    def heal(self) -> None:
        """Pass everything as it comes; armed cuts are forgotten, bytes on hold arrive."""
        self._call(self._heal)

    def blackhole(self) -> None:
        """Go on reading, forward nothing, close nothing, as if each side had vanished for the other."""
        self._call(lambda: setattr(self, "_is_black", True))

    def hold(self) -> None:
        """Forward nothing until `heal`; then all of it arrives, also what a client sent that is gone by then."""
        self._call(self._gate.clear)

    def delay(self, ms: float, *, jitter_ms: float = 0) -> None:
        """Let everything arrive later in each direction, by up to *jitter_ms* more, and in order; 0 ends it."""
        self._call(lambda: setattr(self, "_delay_s", (ms / 1000, (ms + jitter_ms) / 1000)))

    def slice(self, size: int) -> None:
        """Forward in pieces of so many bytes, each a packet of its own; 0 ends it."""
        self._call(lambda: setattr(self, "_slice", size))

    def rst(self) -> None:
        """Reset all connections that are open now, both halves."""
        self._call(lambda: self._end_all(is_reset=True))
        self._wait_for_ends()

    def refuse(self) -> None:
        """Reset every new connection until `heal`."""
        self._call(lambda: setattr(self, "_is_refusing", True))

    def redirect(self, upstream: int) -> None:
        """Send new connections to another server; open ones stay where they are (see `rst`)."""
        self._call(lambda: setattr(self, "upstream", upstream))

    def close(self) -> None:
        """Close all connections and stop listening; does nothing the second time."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(LIMIT_S)
            assert not self._thread.is_alive(), "the proxy hangs"

    # --- inside: in the caller's thread ---

    def _call(self, action: Callable[[], T]) -> T:
        """Do something in the loop's thread and return what comes of it."""

        async def act() -> T:
            return action()

        assert self._thread.is_alive(), "the proxy is closed"
        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(LIMIT_S)

    def _arm(self, cut: _Cut) -> None:
        assert len(cut.match) <= MATCH_MAX and cut.times > 0
        self._call(lambda: self._armed.append(cut))

    def _wait_for_ends(self) -> None:
        """Wait until links that are over are closed."""
        end = time.monotonic() + LIMIT_S
        while self._call(lambda: any(link.over.is_set() for link in self._links)):
            assert time.monotonic() < end, "a connection does not end"
            time.sleep(0.001)

    # --- inside: in the loop's thread ---

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        # Not `sock_accept`: canceled at the wrong time it loses a connection.
        self._loop.add_reader(self._listener, self._accept, tasks)
        await self._closing.wait()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._end_all(is_reset=False)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, tasks: set[asyncio.Task[None]]) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.setblocking(False)
        self.accepted += 1
        # Known from now on, so that what ends all connections ends this one too.
        link = _Link(client)
        self._links.add(link)
        task = asyncio.create_task(self._serve(link, client))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _serve(self, link: _Link, client: socket.socket) -> None:
        """Carry one connection from its beginning to its end."""
        tasks = []
        try:
            if self._is_black:
                link.is_mute = True
                tasks = [asyncio.create_task(self._read(link, client, asyncio.Queue(), is_request=True))]
            elif self._is_refusing or (server := await self._connect()) is None:
                self.refused += 1
                link.close(is_reset=True)
            else:
                link.server = server
                tasks = [*self._pump(link, client, server, is_request=True)]
                tasks += self._pump(link, server, client, is_request=False)
            await link.over.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for end in (link.client, link.server):
                if end is not None:
                    if link.is_reset:
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.close()
            self._links.discard(link)

    async def _connect(self) -> socket.socket | None:
        server = socket.socket()
        server.setblocking(False)
        try:
            await self._loop.sock_connect(server, (HOST, self.upstream))
        except BaseException as error:
            server.close()
            if isinstance(error, OSError):
                return None
            raise
        return server

    def _pump(
        self, link: _Link, source: socket.socket, sink: socket.socket, *, is_request: bool
    ) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        """Start to carry one direction."""
        sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        return (
            asyncio.create_task(self._read(link, source, line, is_request=is_request)),
            asyncio.create_task(self._write(link, sink, line)),
        )

    async def _read(
        self, link: _Link, source: socket.socket, line: asyncio.Queue[tuple[float, bytes]], *, is_request: bool
    ) -> None:
        """Put what comes into the line, an empty chunk at its end, and cut where a cut is due."""
        tail = b""
        while True:
            try:
                chunk = await self._loop.sock_recv(source, CHUNK)
            except OSError:
                chunk = b""
            link.is_mute |= self._is_black
            if link.is_mute:
                self.swallowed += len(chunk)
                if not chunk:
                    return
                continue
            if chunk and is_request:
                self.sent += len(chunk)
                if self._is_cut_here(link, tail, chunk):
                    link.close()
                    return
                tail = (tail + chunk)[-MATCH_MAX:]
            elif chunk and self._is_reply_dropped(link, chunk):
                link.close()
                return
            line.put_nowait((self._loop.time() + random.uniform(*self._delay_s), chunk))
            if not chunk:
                return

    async def _write(self, link: _Link, sink: socket.socket, line: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Send what stands in the line, each chunk in its time."""
        with contextlib.suppress(OSError):
            while True:
                due, chunk = await line.get()
                if (early := due - self._loop.time()) > 0:
                    await asyncio.sleep(early)
                await self._gate.wait()
                link.is_mute |= self._is_black
                if link.is_mute:
                    self.swallowed += len(chunk)
                    continue
                if not chunk:
                    break
                size = self._slice or len(chunk)
                for start in range(0, len(chunk), size):
                    await self._loop.sock_sendall(sink, chunk[start : start + size])
                    await asyncio.sleep(0)
        link.close()

    def _is_cut_here(self, link: _Link, tail: bytes, chunk: bytes) -> bool:
        """Whether the connection ends before this chunk, which follows *tail*; one to end after it is marked."""
        request = tail + chunk
        for cut in self._armed:
            # A match that ends in the tail has had its chance.
            if request.find(cut.match, max(0, len(tail) + 1 - len(cut.match))) < 0 or (cut.is_after and link.doom):
                continue
            cut.times -= 1
            if cut.times == 0:
                self._armed.remove(cut)
            if cut.is_after:
                # Counted when the reply comes, but no other connection may take the same cut.
                link.doom = cut
                return False
            self.cuts += 1
            return True
        return False

    def _is_reply_dropped(self, link: _Link, reply: bytes) -> bool:
        cut, link.doom = link.doom, None
        if cut is None:
            return False
        if reply.startswith(b"-NOSCRIPT"):
            cut.times += 1
            if cut not in self._armed:
                self._armed.append(cut)
            return False
        self.cuts += 1
        self.dropped.append(reply[:1_000])
        return True

    def _heal(self) -> None:
        self._armed.clear()
        self._delay_s, self._slice = (0.0, 0.0), 0
        self._is_black = self._is_refusing = False
        self._gate.set()

    def _end_all(self, *, is_reset: bool) -> None:
        for link in self._links:
            link.close(is_reset=is_reset)
