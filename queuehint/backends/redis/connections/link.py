"""
Base of the links: the node of the namespace, the alternatives, and the query of sentinels.

The connections to nodes are a `Line` each for synchronous callers and a `Pipeline` for a loop. They share all but their
I/O: where they lead and what is said on them first (`endpoint`), requests and replies (`resp`), and how they fail
(`failures`). Nothing is sent again here, because only the session knows which requests may be repeated. redis-py makes
the connections to sentinels, one for each question. When a node is no primary any more, all connections to it are
dropped, so that a new one, which the same name may resolve elsewhere, is made. Calls share a bounded number of
connections, or of places in a pipeline; a caller without one waits, first come first served.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as driver

from queuehint.backends.redis import session
from queuehint.backends.redis.connections.endpoint import CONNECT_TIMEOUT_S, Endpoint, greeting_of
from queuehint.backends.redis.transport import NotSent

if TYPE_CHECKING:
    import ssl

    from queuehint.backends.redis.address import Address, Node
    from queuehint.backends.redis.transport import Redirect

TIMEOUT_S: Final = 5.0
"""How long a reply may take; a half-open connection is noticed then."""
WAIT_TIMEOUT_S: Final = 8.0
"""The same for a connection that blocks, longer than the longest wait."""
REQUESTS_MAX: Final = 64
"""How many calls of one loop, or synchronous calls of a process, are under way at once; the others wait in line."""
SENTINEL_FAILS: Final = (driver.RedisError, OSError, TimeoutError)
UNKNOWN_SERVICE: Final = "it does not know the service"


def reply_timeout_s(address: Address) -> float:
    """Return the timeout of a reply: at least a second, whatever the address sets."""
    return TIMEOUT_S if address.patience_s is None else min(TIMEOUT_S, max(address.patience_s, 1.0))


def connect_timeout_s(address: Address) -> float:
    """Return the timeout of a connection attempt."""
    return CONNECT_TIMEOUT_S if address.patience_s is None else min(CONNECT_TIMEOUT_S, address.patience_s)


class _Where:
    """
    Which node has the namespace, as far as is known, and where else to look.

    Attributes:
        term: how often the node, or the connections to it, were replaced.
        once: the node for the next request only.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.node = address.first
        self.term = 0
        self.once: Node | None = None
        self._next = 0
        self._lock = threading.Lock()

    def move(self, redirect: Redirect, term: int) -> bool:
        """
        Redirect to another node, as far as known without asking.

        Return False, and change nothing, if the node that the command of that *term* was sent to was replaced since:
        callers that fail together would each go one node further, and end where they began.
        """
        with self._lock:
            if redirect.node is not None:
                host, port = redirect.node
                node = (host or (self.node or ("localhost", 0))[0], port)
                if redirect.once:
                    self.once = node
                    return True
            if term != self.term:
                return False
            if redirect.node is not None:
                self.node = node
                self.address.learn_owner(node)
            elif self.address.kind == "cluster":
                self.node = self.address.after(self.node)
            elif self.address.kind == "sentinel":
                self.node = None
            elif not redirect.leaves:
                return True
            self.term += 1
            return True

    def sentinels(self) -> list[Node]:
        """Return the sentinels in the order to query, last time's first one at the end."""
        nodes, first = self.address.nodes, self._next
        self._next = (first + 1) % len(nodes)
        return [*nodes[first:], *nodes[:first]]


class Link:
    """
    Base class of links: the address of the node, and the query of its sentinels.

    Args:
        library: the driver, synchronous or not, for connections to sentinels.
        retry: its way to send again: never.
    """

    def __init__(self, address: Address, library: Any, retry: Any) -> None:
        self._where = _Where(address)
        self._library = library
        self._retry = retry
        self._greeting = greeting_of(address.options)
        self._at: Node | None = self._where.node

    def _endpoint(self, node: Node | None, tls: ssl.SSLContext | None) -> Endpoint:
        """Return the endpoint of a connection to a node: a local socket if the address names one."""
        host, port = node or ("localhost", 0)
        return Endpoint(host, port, path=self._where.address.path, tls=tls, greeting=self._greeting)

    def _to_sentinel(self, node: Node) -> Any:
        """Return a connection to a sentinel, without the server's password."""
        address = self._where.address
        options = {name: value for name, value in address.options.items() if name not in {"username", "password"}}
        options |= address.sentinel_options | {
            "host": node[0],
            "port": node[1],
            "db": 0,
            "socket_timeout": CONNECT_TIMEOUT_S,
            "socket_connect_timeout": connect_timeout_s(address),
            "protocol": 2,
            "retry": self._retry,
            "retry_on_timeout": False,
            "health_check_interval": 0,
        }
        kind: Any = self._library.SSLConnection if address.is_tls else self._library.Connection
        return kind(**options)

    @property
    def _question(self) -> tuple[str, ...]:
        return "SENTINEL", "GET-MASTER-ADDR-BY-NAME", str(self._where.address.service)

    def _nobody(self, said: list[str]) -> NotSent:
        """Return the error for sentinels that name no primary."""
        failure = NotSent()
        failure.__cause__ = driver.ConnectionError(f"no sentinel names a primary: {'; '.join(said)}")
        return failure


def none_free(address: Address) -> driver.ConnectionError:
    """Return the reason for giving up a call before it was sent."""
    within_s = session.patience_s(address)
    return driver.ConnectionError(f"{REQUESTS_MAX} calls are under way, and none ended within {within_s:g} s")
