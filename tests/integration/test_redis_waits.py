"""Who waits for results on Redis: what stays of it in the store, and where they wait in a cluster."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING

from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.operations import Commit, Enqueue, Exchange, Tick
from queuehint.records import JobSpec, Outcome, OutcomeKind
from tests.property.agreement import Twins

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


def test_who_ticks_on_the_way_does_not_keep_a_sleeping_worker_asleep() -> None:
    twins = Twins(budget=1)
    try:
        twins.do(Exchange("w"))  # told that nothing is due: the worker sleeps
        later = JobSpec(id="later", task="t", delay_ms=10)
        twins.do(Enqueue((JobSpec(id="now", task="t"), later), staged="s"))
        more = twins.do(Commit("s")).more
        twins.server.client().delete(keys.redis_key(twins.namespace, "wake:timer"))
        while more:
            more = twins.do(Tick()).more
        assert "wake:timer" in twins.dump(), "something is due before the time the worker was told"
    finally:
        twins.close()


def test_a_sleeping_worker_is_woken_by_a_retry_that_its_own_settlement_makes_due() -> None:
    twins = Twins()
    try:
        twins.do(Enqueue((JobSpec(id="a", task="t"),)))
        (grant,) = twins.do(Exchange("w", limit=1, pools=("default",))).grants  # and listens on, with slots to spare
        wake = keys.redis_key(twins.namespace, "wake:timer")
        twins.server.client().delete(wake)
        failed = Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FAILED, delay_ms=100)
        twins.do(Exchange("w", settle=(failed,)))
        assert twins.server.client().exists(wake), "the retry is due before the lease it was told of"
    finally:
        twins.close()


def test_a_loop_that_ends_closes_its_connections_though_nobody_closed_the_backend(
    redis_server: Server, namespace: str
) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    client = redis_server.client()

    async def main() -> None:
        await backend.call(Enqueue((JobSpec(id="a", task="t"),)))
        await backend.wait(Interest(jobs=("a",)), 0.01)
        assert connections() > before

    def connections() -> int:
        return int(client.info("clients")["connected_clients"])

    gc.disable()
    try:
        for _ in range(2):
            before = connections()
            asyncio.run(main())
            until = time.monotonic() + 5
            while connections() > before and time.monotonic() < until:
                time.sleep(0.01)
            assert connections() <= before
    finally:
        gc.enable()
    backend.close_sync()
