"""Connections of a process, and leaks of finished calls and loops."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.connections import link as links
from queuehint.backends.redis.connections import pipeline as pipelines
from queuehint.backends.redis.connections.async_link import AsyncLink
from queuehint.backends.redis.connections.pipeline import Pipeline
from queuehint.backends.redis.transport import NotSent, Redirect, Send
from queuehint.operations import CountJobs, Draw, Enqueue
from queuehint.values.spec import JobSpec
from tests.conftest import StartProxy
from tests.faults import checks
from tests.schedulers import turns
from tests.servers import Server


def open_backend(url: str, namespace: str) -> RedisBackend:
    return RedisBackend(parse_url(url), BackendOptions(namespace=namespace))


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False], ids=["asynchronous", "synchronous"])
async def test_concurrent_calls_share_a_bounded_number_of_connections(
    redis_server: Server,
    start_proxy: StartProxy,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_async: bool,
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 4)
    proxy = start_proxy(redis_server)
    backend = open_backend(proxy.url, namespace)

    submissions = [Enqueue((JobSpec(id=f"j{number}", task="t"),)) for number in range(300 if is_async else 30)]
    if is_async:
        await asyncio.gather(*map(backend.call, submissions))
    else:
        await asyncio.gather(*(asyncio.to_thread(backend.call_sync, each) for each in submissions))
    assert (await backend.call(CountJobs())).enqueued == len(submissions)
    await backend.close()
    # One more, for the count.
    assert proxy.accepted <= (4 if is_async else 5)


def loops_of(backend: RedisBackend, *, is_shut_down: bool) -> list[weakref.ref[asyncio.AbstractEventLoop]]:
    """Use a backend from some loops one after the other; return them, closed."""
    refs = []
    for _ in range(3):
        loop = asyncio.new_event_loop()
        refs.append(weakref.ref(loop))
        loop.run_until_complete(backend.call(Draw(1)))
        if is_shut_down:
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    return refs


def test_nothing_is_left_of_a_loop_that_was_closed(redis_server: Server, namespace: str) -> None:
    backend = open_backend(redis_server.url, namespace)
    refs = loops_of(backend, is_shut_down=True)
    assert not backend._loops
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
    backend.close_sync()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_connections_of_an_abandoned_loop_close_with_the_next_loop(
    redis_server: Server, start_proxy: StartProxy, namespace: str
) -> None:
    proxy = start_proxy(redis_server)
    backend = open_backend(proxy.url, namespace)
    refs = loops_of(backend, is_shut_down=False)
    asyncio.run(backend.call(Draw(1)))
    gc.collect()
    assert not backend._loops
    assert [ref() for ref in refs] == [None] * 3
    checks.until_sync(lambda: not proxy.connections, "the connections are closed")
    backend.close_sync()


async def test_nothing_is_left_of_a_call_that_was_canceled(
    redis_server: Server, start_proxy: StartProxy, namespace: str
) -> None:
    proxy = start_proxy(redis_server)
    backend = open_backend(proxy.url, namespace)

    await backend.call(Draw(1))
    proxy.hold()
    submission = Enqueue((JobSpec(id="a", task="t"),))
    ref = weakref.ref(submission)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await backend.call(submission)
    assert len(backend.session.streams.unknown) == 1
    del submission
    proxy.heal()
    await checks.until(lambda: ref() is None, "the call is forgotten with its reply")
    assert not backend.session.streams.unknown
    await backend.close()


async def test_half_open_connection_delays_only_its_own_calls(
    redis_server: Server, start_proxy: StartProxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "SILENT_S", 0.05)
    monkeypatch.setattr(links, "TIMEOUT_S", 2 * checks.LIMIT_S)
    proxy = start_proxy(redis_server)
    backend = open_backend(proxy.url, namespace)
    await backend.call(Draw(1))
    proxy.blackhole()
    swallowed = asyncio.create_task(backend.call(Draw(1)))
    await asyncio.sleep(0.1)
    # Swallowed bytes never arrive; a new connection works.
    proxy.heal()
    async with asyncio.timeout(links.TIMEOUT_S / 2):
        assert [(await backend.call(Draw(1))).first for _ in range(2)] == [2, 3]
    assert not swallowed.done()
    assert proxy.accepted == 2
    swallowed.cancel()
    await backend.close()


async def test_connection_in_progress_to_an_abandoned_node_is_not_used(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = AsyncLink(parse_url(redis_server.url))
    connect, may_connect = link._connect, asyncio.Event()

    async def connect_later(node: tuple[str, int] | None) -> Pipeline:
        await may_connect.wait()
        return await connect(node)

    monkeypatch.setattr(link, "_connect", connect_later)
    early = asyncio.create_task(link.ask(send := Send(("CLIENT", "ID"))))
    await turns()
    await link.move(Redirect(leaves=True), send)
    may_connect.set()
    with pytest.raises(NotSent):
        await early
    assert await link.ask(Send(("ECHO", "a"))) == b"a"
    await link.close()
