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


@each_way
async def test_waiting_callers_of_a_frozen_server_give_up_in_time(
    start_server: StartServer, namespace: str, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 2)
    # A thread for each, so that none waits for one, which its patience does not count.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
    server = start_server()
    backend = open_backend(f"{server.url}?patience=1", namespace)
    call = caller(backend, threads=threads)
    await call(op.Draw(1))
    server.pause()

    async def refused_s(number: int) -> float:
        await asyncio.sleep(number / 20)  # one after the other, so that each finds a line
        begun_s = time.monotonic()
        with pytest.raises(BackendError):
            await call(op.Draw(1))
        return time.monotonic() - begun_s

    took_s = await asyncio.gather(*map(refused_s, range(16)))
    server.resume()
    # Its patience, and the reply to an attempt that was begun within it.
    assert max(took_s) < 4
    await backend.close()


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


@each_way
async def test_callers_without_a_primary_share_one_question(threads: bool) -> None:
    with deaf_sentinel() as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main?patience=0.5"
        backend = open_backend(url, new_namespace())
        call = caller(backend, threads=threads)
        begun_s = time.monotonic()
        errors = await asyncio.gather(*(call(op.CountJobs()) for _ in range(24)), return_exceptions=True)
        assert {type(error) for error in errors} == {BackendUnavailableError}
        assert "it does not know the service" in str(errors[0])
        # One for each attempt, of those that fail together; 24 callers made over a hundred.
        assert sentinel.asked <= 20 * (time.monotonic() - begun_s)
        await backend.close()


# --- a link that is closed -------------------------------------------------------------------------------------------


@each_way
async def test_a_closed_link_refuses_calls_under_way(
    start_server: StartServer, start_proxy: StartProxy, namespace: str, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 4)
    proxy = start_proxy(start_server())
    backend = open_backend(proxy.url, namespace)
    call = caller(backend, threads=threads)
    await call(op.Draw(1))
    proxy.hold()
    begun_s = time.monotonic()
    sent = [
        asyncio.ensure_future(call(operation)) for operation in (op.Draw(1), op.CountJobs(), op.Draw(2), op.Draw(3))
    ]
    await asyncio.sleep(0.2)
    # These wait for a slot.
    unsent = [asyncio.ensure_future(call(op.Draw(1))) for _ in range(3)]
    await asyncio.sleep(0.1)
    await backend.close()
    change, question, *_ = await asyncio.gather(*sent, return_exceptions=True)
    assert type(change) is OutcomeUnknownError
    assert "was closed before an answer came; it may have been done" in str(change)
    assert type(question) is BackendUnavailableError
    assert "was closed" in str(question)
    for error in await asyncio.gather(*unsent, return_exceptions=True):
        assert type(error) is BackendUnavailableError
        assert "was closed" in str(error)
    assert time.monotonic() - begun_s < 4, "none of them is tried for as long as a store that is away"
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
    await asyncio.sleep(0.2)
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


async def test_a_closed_link_ends_waits_under_way(
    redis_server: Server, start_proxy: StartProxy, namespace: str
) -> None:
    proxy = start_proxy(redis_server)
    backend = open_backend(proxy.url, namespace)
    await backend.call(op.Draw(1))
    waits = [
        asyncio.create_task(backend.wait(Interest(pools=("default",)), 60)),
        asyncio.create_task(backend.wait(Interest(jobs=("a",)), 60)),
        asyncio.create_task(asyncio.to_thread(backend.wait_sync, Interest(pools=("default",)), 60)),
    ]
    await asyncio.sleep(0.2)
    await backend.close()
    await checks.until(lambda: not proxy.connections, "no connection stays", 2)
    async with asyncio.timeout(4):
        await asyncio.gather(*waits, return_exceptions=True)
    assert not proxy.connections
