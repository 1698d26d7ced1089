"""Who waits for results on Redis: what stays of it in the store, and where they wait in a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.operations import Enqueue
from queuehint.records import JobSpec

if TYPE_CHECKING:
    import pytest

    from tests.servers import Server


def test_a_thread_that_waits_again_and_again_is_remembered_once(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    backend.call_sync(Enqueue((JobSpec(id="a", task="t"),)))
    client = redis_server.client()
    sizes = set()
    for _ in range(4):
        backend.wait_sync(Interest(jobs=("a",)), 0.01)
        sizes.add((client.zcard(keys.redis_key(namespace, "sessions")), len(client.hget(*head(namespace)) or b"")))
    assert len(sizes) == 1
    backend.close_sync()


def head(namespace: str) -> tuple[str, str]:
    return keys.redis_key(namespace, "jobs"), "a"


def test_a_wait_that_the_server_refuses_does_not_return_at_once(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    backend.call_sync(Enqueue((JobSpec(id="a", task="t"),)))
    redis_server.client().set(keys.redis_key(namespace, "wake:pool:", "p"), "not ours")
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    backend.wait_sync(Interest(pools=("p",)), 0.25)
    assert pauses == [0.25]
    backend.close_sync()
