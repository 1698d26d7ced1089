"""The rules on the Redis backend: on Redis, and on Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.testing.contract import BackendConformance, Restarts
from tests.servers import Binary, find_redis, find_valkey, new_namespace, shared_server

if TYPE_CHECKING:
    from queuehint import Backend, FakeClock
    from queuehint.testing.contract import Store
    from tests.conftest import StartServer
    from tests.servers import Server

pytestmark = pytest.mark.redis

FIND = {"redis": find_redis, "valkey": find_valkey}


class TestRedis(BackendConformance):
    binary: Binary

    @pytest.fixture(params=FIND, autouse=True)
    def choose(self, request: pytest.FixtureRequest) -> None:
        found = FIND[request.param]()
        if isinstance(found, str):
            pytest.skip(found)
        self.binary = found

    def open(self, clock: FakeClock) -> Backend:
        options = BackendOptions(namespace=new_namespace(), clock=clock)
        return RedisBackend(parse_url(shared_server(self.binary).url), options)


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
