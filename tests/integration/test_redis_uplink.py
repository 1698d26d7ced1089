"""Links that are slow to take requests: bytes that move are life, bytes that do not are none."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.connections import line, pipeline
from queuehint.backends.redis.connections import link as links
from queuehint.errors import OutcomeUnknownError
from queuehint.operations import CountJobs, Draw, Enqueue
from queuehint.values.spec import JobSpec
from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.redis]

StartUplink = Callable[[float, int], "Uplink"]

SIZE = 300_000


class Uplink:
    """
    A link to a server that takes requests at a rate, in bytes a second.

    Args:
        stops_after: how many bytes it takes; then it stays open, and takes no more.

    Attributes:
        rate: as given; it may be changed at any time.
    """

    def __init__(self, port: int, rate: float, stops_after: int) -> None:
        self.rate = rate
        self._server, self._stops_after = port, stops_after
        self._done = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        # What the system takes for a connection that is not read.
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        self.port: int = self._door.getsockname()[1]
        self._sockets = [self._door]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?patience=2"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._server))
                self._sockets += [near, far]
                for each in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pump, args=each, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_slow: bool) -> None:
        taken = 0
        with suppress(OSError):
            while data := source.recv(4_096):
                taken += len(data)
                if is_slow:
                    self._done.wait(len(data) / self.rate if taken < self._stops_after else None)
                target.sendall(data)

    def close(self) -> None:
        self._done.set()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def start_uplink(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartUplink]:
    """Put a slow link before the server, given its rate and how many bytes it takes; replies have 1.5 s to come."""
    monkeypatch.setattr(links, "TIMEOUT_S", 1.5)
    for module in (pipeline, line):
        monkeypatch.setattr(module, "LOOK_EVERY_S", 0.1)
    with ExitStack() as stack:

        def start(rate: float, stops_after: int) -> Uplink:
            uplink = Uplink(redis_server.port, rate, stops_after)
            stack.callback(uplink.close)
            return uplink

        yield start


@pytest.mark.parametrize("threads", [False, True], ids=["tasks", "threads"])
async def test_a_large_request_passes_a_slow_link_once(
    start_uplink: StartUplink, namespace: str, threads: bool
) -> None:
    uplink = start_uplink(SIZE / 4, 10 * SIZE)
    backend = RedisBackend(parse_url(uplink.url), BackendOptions(namespace=namespace))
    job = Enqueue((JobSpec(id="a", task="t", arguments=b'"%s"' % (b"x" * SIZE)),))
    begun_s = time.monotonic()
    # By a link that gives up after 1.5 s without a reply.
    await (asyncio.to_thread(backend.call_sync, job) if threads else backend.call(job))
    took_s = time.monotonic() - begun_s
    assert took_s > 2.5, "the link is not slow"
    assert (await backend.call(CountJobs())).enqueued == 1
    await backend.close()


async def test_a_call_behind_a_large_request_waits_for_its_turn(start_uplink: StartUplink, namespace: str) -> None:
    uplink = start_uplink(SIZE / 4, 100 * SIZE)
    backend = RedisBackend(parse_url(uplink.url), BackendOptions(namespace=namespace))
    # At this rate it takes most of a minute.
    jobs = Enqueue(tuple(JobSpec(id=f"j{n}", task="t", arguments=b'"%s"' % (b"x" * SIZE * 3)) for n in range(4)))
    await backend.call(Draw(1))
    large = asyncio.create_task(backend.call(jobs))
    await asyncio.sleep(2)
    assert not large.done()
    (line,) = backend._loop().link._lines.values()
    assert not line.is_silent
    behind = asyncio.create_task(backend.call(Draw(1)))
    await asyncio.sleep(0)
    uplink.rate = 1000 * SIZE
    assert (await behind).first == 2
    assert large.done()
    assert [*backend._loop().link._lines.values()] == [line], "one connection carries both"
    await backend.close()


@pytest.mark.parametrize("threads", [False, True], ids=["tasks", "threads"])
async def test_a_large_request_that_is_not_taken_is_given_up(
    start_uplink: StartUplink, namespace: str, threads: bool
) -> None:
    uplink = start_uplink(10 * SIZE, SIZE // 2)
    backend = RedisBackend(parse_url(uplink.url), BackendOptions(namespace=namespace))
    call = (lambda each: asyncio.to_thread(backend.call_sync, each)) if threads else backend.call
    await call(Draw(1))
    job = Enqueue((JobSpec(id="a", task="t", arguments=b'"%s"' % (b"x" * SIZE * 3)),))
    with pytest.raises(OutcomeUnknownError):
        await call(job)
    await backend.close()
