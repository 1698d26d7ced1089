"""Many callers of one process: the streams that they use, stores that are away, sentinels, a link that is closed."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.connections import link as links
from queuehint.errors import BackendError, BackendUnavailableError, OutcomeUnknownError
from queuehint.values.spec import JobSpec
from tests.conftest import StartProxy, StartServer
from tests.faults import checks
from tests.servers import Server, new_namespace

pytestmark = pytest.mark.redis

each_way = pytest.mark.parametrize("threads", [False, True], ids=["tasks", "threads"])


def open_backend(url: str, namespace: str) -> RedisBackend:
    return RedisBackend(parse_url(url), BackendOptions(namespace=namespace))


def caller(backend: RedisBackend, *, threads: bool) -> Callable[[op.Operation[Any]], Awaitable[Any]]:
    """Return what carries out an operation: by a task, or by a thread."""
    return (lambda operation: asyncio.to_thread(backend.call_sync, operation)) if threads else backend.call


# --- streams ---------------------------------------------------------------------------------------------------------


@each_way
async def test_a_burst_leaves_as_many_receipts_as_slots(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 4)
    backend = open_backend(redis_server.url, namespace)
    call = caller(backend, threads=threads)
    await call(op.Draw(1))
    jobs = [op.Enqueue((JobSpec(id=f"j{number}", task="t"),)) for number in range(60 if threads else 300)]
    await asyncio.gather(*map(call, jobs))
    assert (await call(op.CountJobs())).enqueued == len(jobs)
    client = redis_server.client()
    assert client.hlen(f"{{qh:{namespace}}}:receipts") <= 4
    assert client.zcard(f"{{qh:{namespace}}}:sessions") <= 4
    assert len(backend.session.streams.free) <= 4
    await backend.close()


# --- stores that are away --------------------------------------------------------------------------------------------

WAITING = 100
"""Callers that wait for a second each, one after the other, wait far longer than a slow machine needs."""


@pytest.mark.slow
@each_way
async def test_waiting_callers_of_a_frozen_server_give_up_in_time(
    start_server: StartServer, namespace: str, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 2)
    # A thread for each, so that none waits for one, which its patience does not count.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WAITING))
    server = start_server()
    backend = open_backend(f"{server.url}?patience=1", namespace)
    call = caller(backend, threads=threads)
    while await is_refused(call, op.Draw(1)):
        pass  # it is slow to answer, or to connect
    server.pause()

    async def refused_s(number: int) -> float:
        await asyncio.sleep(number / WAITING)  # one after the other, so that each finds a line
        begun_s = time.monotonic()
        with pytest.raises(BackendError):
            await call(op.Draw(1))
        return time.monotonic() - begun_s

    took_s = await asyncio.gather(*map(refused_s, range(WAITING)))
    server.resume()
    # Its patience, and the reply to an attempt that was begun within it: two seconds.
    assert max(took_s) < WAITING / 2 / 2
    await backend.close()


async def is_refused(call: Callable[[op.Operation[Any]], Awaitable[Any]], operation: op.Operation[Any]) -> bool:
    """Ask; return whether the store was not reached."""
    try:
        await call(operation)
    except BackendError:
        return True
    return False


@attrs.define
class Sentinel:
    """Knows no primary; counts who asks."""

    port: int
    asked: int = 0


@contextmanager
def deaf_sentinel() -> Iterator[Sentinel]:
    """Run a sentinel that knows no primary."""

    def serve(client: socket.socket) -> None:
        with client:
            while commands := client.recv(1 << 16):
                time.sleep(0.05)
                client.sendall(b"*-1\r\n" * len(re.findall(rb"\*[0-9]+\r\n", commands)))

    with socket.create_server(("127.0.0.1", 0)) as door:
        sentinel = Sentinel(door.getsockname()[1])

        def accept() -> None:
            while True:
                try:
                    client, _ = door.accept()
                except OSError:
                    return
                sentinel.asked += 1
                threading.Thread(target=serve, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield sentinel
        door.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.slow
@each_way
async def test_callers_without_a_primary_share_one_question(threads: bool) -> None:
    with deaf_sentinel() as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main?patience=0.5"
        backend = open_backend(url, new_namespace())
        call = caller(backend, threads=threads)
        begun_s = time.monotonic()
        errors = await asyncio.gather(*(call(op.CountJobs()) for _ in range(24)), return_exceptions=True)
        assert {type(error) for error in errors} == {BackendUnavailableError}
        assert any("it does not know the service" in str(error) for error in errors)
        # One for each attempt, of those that fail together; 24 callers made over a hundred. It takes 1/20 s to answer.
        assert sentinel.asked <= 20 * (time.monotonic() - begun_s) + 1
        await backend.close()


# --- a link that is closed -------------------------------------------------------------------------------------------


def free_slots(backend: RedisBackend, *, threads: bool) -> int:
    """Return how many more calls may be under way."""
    if not threads:
        return backend._loop().link._slots.free
    link = backend._sync_link()
    return links.REQUESTS_MAX - (len(link._lines) - len(link._idle))


def waiting_calls(backend: RedisBackend, *, threads: bool) -> int:
    """Return how many calls wait for a slot."""
    return len(backend._sync_link()._turns if threads else backend._loop().link._slots.line)


@each_way
async def test_a_closed_link_refuses_calls_under_way(
    start_server: StartServer, start_proxy: StartProxy, namespace: str, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 4)
    monkeypatch.setattr(links, "TIMEOUT_S", 600.0)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8))
    proxy = start_proxy(start_server())
    backend = open_backend(f"{proxy.url}?patience=600", namespace)
    call = caller(backend, threads=threads)
    await call(op.Draw(1))
    proxy.hold()
    before = proxy.sent
    sent = [asyncio.ensure_future(call(op.Draw(1)))]
    await checks.until(lambda: proxy.sent > before, "it is sent")
    sent += [asyncio.ensure_future(call(operation)) for operation in (op.CountJobs(), op.Draw(2), op.Draw(3))]
    await checks.until(lambda: free_slots(backend, threads=threads) == 0, "all slots are taken")
    unsent = [asyncio.ensure_future(call(op.Draw(1))) for _ in range(3)]
    await checks.until(lambda: waiting_calls(backend, threads=threads) == 3, "these wait for a slot")
    await backend.close()
    change, question, *_ = await asyncio.gather(*sent, return_exceptions=True)
    assert type(change) is OutcomeUnknownError
    assert "was closed before an answer came; it may have been done" in str(change)
    assert type(question) is BackendUnavailableError
    assert "was closed" in str(question)
    for error in await asyncio.gather(*unsent, return_exceptions=True):
        assert type(error) is BackendUnavailableError
        assert "was closed" in str(error)
    # None of them was tried for as long as a store that is away: this test would have run out of time.
    proxy.heal()
    await checks.until(lambda: not proxy.connections, "no connection stays")
    assert not backend._loops


@each_way
async def test_a_closed_link_ends_the_retries_of_a_call(
    start_server: StartServer, start_proxy: StartProxy, namespace: str, threads: bool
) -> None:
    proxy = start_proxy(start_server())
    backend = open_backend(proxy.url, namespace)
    call = caller(backend, threads=threads)
    await call(op.Draw(1))
    proxy.refuse()
    proxy.rst()
    calling = asyncio.ensure_future(call(op.CountJobs()))
    await checks.until(lambda: proxy.refused, "it is tried")
    await backend.close()
    accepted = proxy.accepted
    proxy.heal()
    with pytest.raises(BackendUnavailableError, match="was closed"):
        await calling
    assert proxy.accepted == accepted
    assert not proxy.connections


@each_way
async def test_closed_backend_refuses_calls(redis_server: Server, namespace: str, threads: bool) -> None:
    backend = open_backend(redis_server.url, namespace)
    call = caller(backend, threads=threads)
    await call(op.Draw(1))
    await backend.close()
    with pytest.raises(BackendUnavailableError, match="was closed"):
        await call(op.Draw(1))


@pytest.mark.slow
async def test_a_closed_link_ends_waits_under_way(
    redis_server: Server, start_proxy: StartProxy, namespace: str
) -> None:
    proxy = start_proxy(redis_server)
    backend = open_backend(proxy.url, namespace)
    await backend.call(op.Draw(1))
    waits = [
        asyncio.create_task(backend.wait(Interest(pools=("default",)), 600)),
        asyncio.create_task(backend.wait(Interest(jobs=("a",)), 600)),
        asyncio.create_task(asyncio.to_thread(backend.wait_sync, Interest(pools=("default",)), 600)),
    ]
    await asyncio.sleep(0.2)
    await backend.close()
    await checks.until(lambda: not proxy.connections, "no connection stays")
    async with asyncio.timeout(checks.LIMIT_S):
        await asyncio.gather(*waits, return_exceptions=True)
    assert not proxy.connections
