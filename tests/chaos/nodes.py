"""
Three servers, each behind a proxy, and three sentinels: a primary that can be lost, and is replaced.

Clients, sentinels and replicas know each server by the port of its proxy, so a proxy that swallows all bytes cuts its
server off. This module asks the servers directly.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Self

import attrs
from redis.exceptions import RedisError

from tests.chaos.clocks import ServerClock
from tests.proxy import Proxy
from tests.servers import HOST, Server, until

NAME = "queuehint"
DOWN_AFTER_MS = 1_000
SETTLED_WITHIN_S = 60.0
MAX_LAG_S = 3


@attrs.define(eq=False)
class Node:
    """A server and the proxy before it."""

    number: int
    server: Server
    proxy: Proxy
    client: Any

    @property
    def announced(self) -> dict[str, str | int]:
        """The settings that name its proxy to others."""
        return {"replica_announce_ip": HOST, "replica_announce_port": self.proxy.port}

    def replication(self) -> dict[str, Any]:
        """Return what it says of its role; empty if it does not answer."""
        try:
            return dict(self.client.info("replication"))
        except (RedisError, OSError):
            return {}

    def is_primary(self) -> bool:
        return self.replication().get("role") == "master"


class Nodes:
    """
    The servers and sentinels; all end with the block.

    Args:
        min_replicas: `min-replicas-to-write`: a primary with fewer replicas in step refuses all changes.
    """

    def __init__(self, clock: ServerClock, *, min_replicas: int = 0) -> None:
        self.clock = clock
        self.options: dict[str, Any] = {"min_replicas_to_write": min_replicas, "min_replicas_max_lag": MAX_LAG_S}
        self.nodes: list[Node] = []
        self.sentinels: list[Server] = []
        self._asks: list[Any] = []
        try:
            for number in range(3):
                self.nodes.append(self._start(number))
            first = self.nodes[0].proxy.port
            for node in self.nodes[1:]:
                node.server.call("REPLICAOF", HOST, first)
            lines = [
                f"sentinel monitor {NAME} {HOST} {first} 2",
                f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {NAME} 6000",
                f"sentinel parallel-syncs {NAME} 2",
            ]
            for _ in range(3):
                self.sentinels.append(Server(is_sentinel=True, lines=lines))
                self._asks.append(self.sentinels[-1].client(socket_timeout=1.0, socket_connect_timeout=1.0))
            until(lambda: self.settled() is not None and all(map(self._knows_all, self._asks)), "all are there", 60)
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> Node:
        with self.clock.shifting():
            server = Server(appendonly="yes", appendfsync="everysec", repl_backlog_size="16mb", **self.options)
        proxy = Proxy(server.port)
        node = Node(number, server, proxy, server.client(socket_timeout=1.0, socket_connect_timeout=1.0))
        for name, value in node.announced.items():
            server.call("CONFIG", "SET", name.replace("_", "-"), value)
        return node

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything, the sentinels first."""
        for sentinel in self.sentinels:
            sentinel.close()
        for node in self.nodes:
            node.proxy.close()
            node.server.close()

    @property
    def url(self) -> str:
        """The address for clients."""
        names = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{names}/{NAME}"

    @property
    def version(self) -> str:
        return str(self.nodes[0].server.binary)

    # --- roles -------------------------------------------------------------------------------------------------------

    def named(self) -> Node | None:
        """Return the node that at least two sentinels call the primary."""
        votes: list[int] = []
        for ask in self._asks:
            with contextlib.suppress(RedisError, OSError):
                votes.append(int(ask.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1]))
        return next((node for node in self.nodes if votes.count(node.proxy.port) >= 2), None)

    def settled(self) -> Node | None:
        """
        Return the primary, if all agree on it and both replicas have all that it has; else None.

        A sentinel that takes a primary for down may have begun to replace it, although it is back.
        """
        primary = self.named()
        if primary is None or not all(map(self._is_calm, self._asks)):
            return None
        said = primary.replication()
        if said.get("role") != "master":
            return None
        for node in self.nodes:
            if node is primary:
                continue
            told = node.replication()
            follows = told.get("role") == "slave" and told.get("master_link_status") == "up"
            if not follows or int(told.get("master_port", 0)) != primary.proxy.port:
                return None
            if told.get("slave_repl_offset", -1) < said["master_repl_offset"]:
                return None
        return primary

    def wait_until_settled(self) -> float | None:
        """Wait until one primary has two replicas in step; return how long it took, None if too long."""
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + SETTLED_WITHIN_S:
            if self.settled() is not None:
                return time.monotonic() - begun_s
            time.sleep(0.05)
        return None

    def _is_calm(self, ask: Any) -> bool:
        """Return whether a sentinel answers, takes the primary for up, and replaces nothing."""
        try:
            return self._facts(ask)["flags"] == "master"
        except (RedisError, OSError):
            return False

    def _knows_all(self, ask: Any) -> bool:
        facts = self._facts(ask)
        return facts["num-slaves"] == "2" and facts["num-other-sentinels"] == "2"

    @staticmethod
    def _facts(ask: Any) -> dict[str, str]:
        flat = ask.execute_command("SENTINEL", "MASTER", NAME)
        if not isinstance(flat, dict):
            flat = dict(zip(flat[::2], flat[1::2], strict=True))
        return {_text(name): _text(value) for name, value in flat.items()}

    # --- what can happen to them -------------------------------------------------------------------------------------

    def restart(self, node: Node) -> None:
        """Start a server that was killed, with its data."""
        with self.clock.shifting():
            node.server.restart(wait=False, **node.announced)

    def heal(self) -> None:
        """Undo all that may still be wrong."""
        for sentinel in self.sentinels:
            sentinel.resume()
        for node in self.nodes:
            node.proxy.heal()
            node.proxy.delay(0)
            if node.server.is_running:
                node.server.resume()
            else:
                self.restart(node)
            with contextlib.suppress(RedisError, OSError):
                node.client.config_set("maxmemory", 0)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
