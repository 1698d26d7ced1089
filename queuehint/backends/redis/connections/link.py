"""
Base of the links: the node that has the namespace, where else to look, and the options of the driver.

redis-py makes the connections of synchronous callers and to sentinels; its own retries are switched off, because only
the session knows which requests may be repeated. When a node is no primary any more, all connections to it are dropped,
so that a new one, which the same name may resolve elsewhere, is made. Calls share a bounded number of connections, or
of places in a pipeline; a caller without one waits, first come first served.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as driver

from queuehint.backends.redis import session
from queuehint.backends.redis.connections.pipeline import CONNECT_TIMEOUT_S
from queuehint.backends.redis.transport import NotSent

if TYPE_CHECKING:
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
    """Return how long a reply may take: a second at least, however impatient the address is."""
    return TIMEOUT_S if address.patience_s is None else min(TIMEOUT_S, max(address.patience_s, 1.0))


def connect_timeout_s(address: Address) -> float:
    """Return how long it may take to connect."""
    return CONNECT_TIMEOUT_S if address.patience_s is None else min(CONNECT_TIMEOUT_S, address.patience_s)


def _options(address: Address, *, waits: bool) -> dict[str, Any]:
    return {
        **address.options,
        "socket_timeout": WAIT_TIMEOUT_S if waits else reply_timeout_s(address),
        "socket_connect_timeout": connect_timeout_s(address),
        "protocol": 2,
        "retry_on_timeout": False,
        "health_check_interval": 0,
    }


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
        """Return the sentinels in the order in which to ask: last the one that was asked first the last time."""
        nodes, first = self.address.nodes, self._next
        self._next = (first + 1) % len(nodes)
        return [*nodes[first:], *nodes[:first]]


def said_before_connecting(error: BaseException) -> BaseException:
    """Keep what the server said when it refused a connection for good: a wrong password is not a failed network."""
    if isinstance(error, driver.AuthenticationError) and not isinstance(error, driver.ResponseError):
        return driver.NoPermissionError(str(error))
    return error


class Link:
    """
    Base class of links: the address of the node, and the question to its sentinels.

    Args:
        library: the driver, synchronous or not.
        retry: its way to send again: never.
        waits: the connections block, so that each waiter has one of its own.
    """

    def __init__(self, address: Address, library: Any, retry: Any, *, waits: bool = False) -> None:
        self._where = _Where(address)
        self._library = library
        self._options = _options(address, waits=waits) | {"retry": retry}
        self._at: Node | None = self._where.node

    def _parts(self, node: Node | None, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the class and the options of a connection of the driver to a node."""
        address = self._where.address
        kind: Any = self._library.SSLConnection if address.is_tls else self._library.Connection
        if address.path is not None:
            return self._library.UnixDomainSocketConnection, options | {"path": address.path}
        host, port = node or ("localhost", 0)
        return kind, options | {"host": host, "port": port}

    def _to_sentinel(self, node: Node) -> Any:
        """Return a connection to a sentinel, without the server's password."""
        address = self._where.address
        options = {name: value for name, value in self._options.items() if name not in {"username", "password"}}
        options |= address.sentinel_options | {"db": 0, "socket_timeout": CONNECT_TIMEOUT_S}
        kind, options = self._parts(node, options)
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
    """Return why a call was given up before it was sent."""
    within_s = session.patience_s(address)
    return driver.ConnectionError(f"{REQUESTS_MAX} calls are under way, and none ended within {within_s:g} s")
