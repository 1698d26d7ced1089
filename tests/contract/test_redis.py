"""The rules on the Redis backend: on Redis, and on Valkey."""

from __future__ import annotations

import zlib

import attrs
import pytest

from queuehint import Backend, FakeClock
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import Functions, parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.keys import redis_key
from queuehint.testing.contract import BackendConformance, Binding, Restarts, Store, Tokens
from queuehint.testing.driver import job
from tests import calls
from tests.conftest import StartServer
from tests.servers import Binary, Server, find_redis, find_valkey, new_namespace, shared_server

pytestmark = pytest.mark.redis

COUNT_TO = (
    calls.STATE_FORMAT
    + """
local state = unpack_state(redis.call('HGET', KEYS[1], 'state'))
state[10] = tonumber(ARGV[1])
redis.call('HSET', KEYS[1], 'state', pack_state(state))
"""
)
"""How many tokens of its epoch a store has given stands in the tenth place of its state."""
FIND = {"redis": find_redis, "valkey": find_valkey}


class Servers(Binding):
    """
    Each of the servers that are installed, and a namespace for each store.

    Scripts are functions, and on one of the two servers single scripts for the rules that by day go through both. With
    ``TESTS_FUNCTIONS=never`` all are single scripts.
    """

    binary: Binary
    namespace: str
    functions: Functions

    @pytest.fixture(params=FIND, autouse=True)
    def choose(self, request: pytest.FixtureRequest) -> None:
        found = FIND[request.param]()
        if isinstance(found, str):
            pytest.skip(found)
        self.binary = found
        number = zlib.crc32(request.node.originalname.encode())
        is_single = number % 3 == 0 and number // 6 % 2 == (request.param == "valkey")
        self.functions = "never" if is_single or calls.ARE_SINGLE else "always"

    def open(self, clock: FakeClock) -> Backend:
        self.namespace = new_namespace()
        options = BackendOptions(namespace=self.namespace, clock=clock)
        address = parse_url(shared_server(self.binary).unix_url)
        return RedisBackend(attrs.evolve(address, functions=self.functions), options)


class TestRedis(Servers, BackendConformance):
    def kept(self, backend: Backend) -> object:
        """Return the digests of all keys, of which the doctor's findings are made too."""
        assert isinstance(backend, RedisBackend)
        client = shared_server(self.binary).client()
        names = sorted(client.scan_iter(match=f"{backend.session.root}*", count=1000))
        digests = shared_server(self.binary).call("DEBUG", "DIGEST-VALUE", *names)
        return dict(zip(names, digests, strict=True))


class TestTokensOfRedis(Servers, Tokens):
    def count_to(self, store: Store, count: int) -> None:
        client = shared_server(self.binary).client()
        client.eval(COUNT_TO, 1, redis_key(self.namespace, "meta"), count)

    def test_the_end_of_a_count_is_no_new_history(self, store: Store, caplog: pytest.LogCaptureFixture) -> None:
        self.near_the_end(store)
        store.enqueue(*[job(f"j{number}") for number in range(8)])
        while store.start(1):
            pass
        assert len(store.grants) == 9
        assert "redis.new_history" not in [getattr(record, "event", None) for record in caplog.records]


class TestRestartsOfRedis(Restarts):
    server: Server

    @pytest.fixture(autouse=True)
    def start(self, start_server: StartServer) -> None:
        self.server = start_server(appendonly="yes", appendfsync="always")

    def open(self, clock: FakeClock) -> Backend:
        return RedisBackend(parse_url(self.server.url), BackendOptions(namespace=new_namespace(), clock=clock))

    def restart(self, store: Store) -> None:
        self.server.kill()
        self.server.restart()
