"""How many connections a process has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import links
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.operations import CountJobs, Enqueue
from queuehint.records import JobSpec

if TYPE_CHECKING:
    from tests.conftest import StartProxy
    from tests.servers import Server


def open_backend(url: str, namespace: str) -> RedisBackend:
    return RedisBackend(parse_url(url), BackendOptions(namespace=namespace))


@pytest.mark.parametrize("is_async", [True, False], ids=["asynchronous", "synchronous"])
def test_calls_that_come_at_once_share_a_bounded_number_of_connections(
    redis_server: Server,
    start_proxy: StartProxy,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_async: bool,
) -> None:
    monkeypatch.setattr(links, "CONNECTIONS_MAX", 4)
    proxy = start_proxy(redis_server)
    backend = open_backend(proxy.url, namespace)

    async def main() -> None:
        submissions = [Enqueue((JobSpec(id=f"j{number}", task="t"),)) for number in range(300 if is_async else 30)]
        if is_async:
            await asyncio.gather(*map(backend.call, submissions))
        else:
            await asyncio.gather(*(asyncio.to_thread(backend.call_sync, each) for each in submissions))
        assert (await backend.call(CountJobs())).enqueued == len(submissions)
        await backend.close()

    asyncio.run(main())
    # One more, for the count.
    assert proxy.accepted <= (4 if is_async else 5)
