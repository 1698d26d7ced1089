"""A pipelined connection: several requests in flight, to a real server and through a proxy that delays and cuts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions as driver

from queuehint.backends.redis.connections import pipeline as pipelines
from queuehint.backends.redis.connections.endpoint import Endpoint
from queuehint.backends.redis.connections.pipeline import Pipeline, open_pipeline
from queuehint.backends.redis.transport import NotSent, Unanswered
from tests import wire_codecs
from tests.conftest import StartProxy, StartServer
from tests.faults import checks
from tests.proxy import Proxy
from tests.servers import Server


@pytest.fixture(params=wire_codecs.WAYS, autouse=True)
def _codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    wire_codecs.use(request.param, pipelines, monkeypatch)


@pytest.fixture
def proxy(redis_server: Server, start_proxy: StartProxy) -> Proxy:
    return start_proxy(redis_server)


async def connect(where: Proxy | Server, timeout_s: float = checks.LIMIT_S, **options: Any) -> Pipeline:
    return await open_pipeline(Endpoint("127.0.0.1", where.port, **options), timeout_s)


def hurry(line: Pipeline, timeout_s: float) -> None:
    """Have a line wait for no more than so long from now on, when it has been greeted."""
    line._timeout_s = timeout_s
    if line._timer is not None:
        line._timer.cancel()
        line._timer = None


async def test_replies_reach_their_callers_despite_byte_sized_reads(proxy: Proxy) -> None:
    line = await connect(proxy)
    proxy.slice(1)
    words = [f"word {number} ü" for number in range(50)]
    replies = await asyncio.gather(*(line.ask(("ECHO", word)) for word in words))
    assert [reply.decode() for reply in replies] == words
    assert await line.ask(("EVAL", "return {1, {'a'}, false, redis.error_reply('ERR inner')}", 0)) is not None
    assert line.is_idle
    line.leave()
    assert not line.is_usable

    assert proxy.accepted == 1


async def test_a_refusal_concerns_one_call(redis_server: Server) -> None:
    line = await connect(redis_server)
    said = await asyncio.gather(
        line.ask(("ECHO", "a")), line.ask(("NONSENSE",)), line.ask(("ECHO", "b")), return_exceptions=True
    )
    assert said[::2] == [b"a", b"b"]
    assert isinstance(said[1], driver.ResponseError)
    line.leave()


async def test_canceled_call_drops_only_its_own_reply(proxy: Proxy) -> None:
    line = await connect(proxy)
    proxy.hold()
    asked = [asyncio.create_task(line.ask(("ECHO", str(number)))) for number in range(5)]
    await asyncio.sleep(0.01)
    asked[2].cancel()
    proxy.heal()
    said = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(said.pop(2), asyncio.CancelledError)
    assert said == [b"0", b"1", b"3", b"4"]
    assert await line.ask(("ECHO", "after")) == b"after"
    line.leave()


@pytest.mark.parametrize("how", ["reset", "silence"])
async def test_a_connection_that_fails_leaves_all_in_flight_unanswered(proxy: Proxy, how: str) -> None:
    line = await connect(proxy)
    assert await line.ask(("ECHO", "a")) == b"a"
    if how == "silence":
        hurry(line, 0.2)
    proxy.blackhole()
    asked = [asyncio.create_task(line.ask(("ECHO", str(number)))) for number in range(3)]
    await asyncio.sleep(0.01)
    if how == "reset":
        proxy.rst()
    said = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(reply) for reply in said] == [Unanswered] * 3
    cause = driver.TimeoutError if how == "silence" else (OSError, driver.ConnectionError)
    assert isinstance(said[0], Unanswered)
    assert isinstance(said[0].__cause__, cause)
    assert not line.is_usable
    with pytest.raises(NotSent):
        await line.ask(("ECHO", "b"))


@pytest.mark.slow
async def test_a_server_that_answers_slowly_is_not_taken_for_silent(proxy: Proxy) -> None:
    line = await connect(proxy)
    hurry(line, 3.0)
    # Each reply comes within the time, all of them do not.
    said = await asyncio.gather(*(line.ask(("BLPOP", "nothing", "0.8")) for _ in range(4)))
    assert said == [None] * 4
    line.leave()


async def test_calls_wait_while_the_server_does_not_read(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "_UNSENT_MAX", 1 << 16)
    server = start_server()

    line = await connect(server)
    server.pause()
    large = "x" * (1 << 20)
    asked = [asyncio.create_task(line.ask(("ECHO", f"{number}{large}"))) for number in range(20)]
    await checks.until(lambda: line._may_write is not None, "calls wait")
    assert len(line._asked) < 20
    server.resume()
    assert [reply[: -len(large)] for reply in await asyncio.gather(*asked)] == [b"%d" % n for n in range(20)]
    line.leave()


async def test_a_connection_that_is_left_closes_with_its_last_reply(proxy: Proxy) -> None:
    line = await connect(proxy)
    proxy.hold()
    asked = asyncio.create_task(line.ask(("ECHO", "a")))
    await asyncio.sleep(0.01)
    line.leave()
    assert line.is_usable
    proxy.heal()
    assert await asked == b"a"
    assert not line.is_usable

    await checks.until(lambda: not proxy.connections, "it is closed")


async def test_a_connection_begins_with_its_password_and_its_database(start_server: StartServer) -> None:
    server = start_server(requirepass="a b")

    line = await connect(server, greeting=(("AUTH", "a b"), ("SELECT", "3")))
    assert b"db=3" in await line.ask(("CLIENT", "INFO"))
    line.leave()
    with pytest.raises(driver.NoPermissionError, match="invalid username-password"):
        await connect(server, greeting=(("AUTH", "wrong"), ("SELECT", "3")))
    with pytest.raises(driver.ResponseError, match="out of range"):
        await connect(server, greeting=(("AUTH", "a b"), ("SELECT", "99")))
    line = await connect(server)
    with pytest.raises(driver.NoPermissionError):
        await line.ask(("ECHO", "a"))
    line.leave()


async def test_server_with_excess_clients_has_not_seen_the_request(start_server: StartServer) -> None:
    server = start_server(maxclients="1")

    first = await connect(server)
    assert await first.ask(("ECHO", "a")) == b"a"
    with pytest.raises((NotSent, Unanswered)) as failure:
        await (await connect(server)).ask(("ECHO", "b"))
    assert "max number of clients" in str(failure.value.__cause__)
    first.leave()


async def test_nobody_answers_where_there_is_no_server(tmp_path: Path) -> None:
    with pytest.raises(NotSent) as failure:
        await open_pipeline(Endpoint("", 0, path=str(tmp_path / "none.sock")), 1.0)
    assert isinstance(failure.value.__cause__, OSError)
