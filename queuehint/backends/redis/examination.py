"""
Examination of a server at its first use and each minute: version, role, types of our keys, eviction, clock.

A permanent problem is raised. A temporary one is kept, and logged when it changes: while the server may evict jobs, no
job is enqueued or claimed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis import exceptions as driver

from queuehint.backends.base import say_retention_changed
from queuehint.backends.redis import keys
from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.transport import NotSent, Redirect, Send, Sleep, Unanswered
from queuehint.errors import BackendUnavailableError, CorruptStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from queuehint.backends.redis.address import Address
    from queuehint.backends.redis.transport import Talk
    from queuehint.values.policy import Retention

logger = logging.getLogger("queuehint.redis")

VERSION_LEAST: Final = (7, 0, 3)
CLOCK_LATE_MS: Final = 1000
"""A smaller difference may be a clock that is being adjusted."""


class Server(Protocol):
    """The session in the view of the examination of its server."""

    address: Address
    namespace: str
    time_ms: int
    """The newest time that the store has told, 0 if none."""

    @property
    def has_own_time(self) -> bool:
        """Return whether the time is the server's, not a test's."""

    def plain(self, *command: Any) -> Generator[Send | Sleep | Redirect, Any, Any]:
        """Send a command that may be sent twice."""

    def execute_script(self, name: str, args: tuple[Any, ...]) -> Generator[Send | Sleep | Redirect, Any, Any]:
        """Run a script that is no operation and may be run twice."""

    def ask_primary(self, section: str) -> Generator[Send | Sleep | Redirect, Any, dict[str, str]]:
        """Return a section of the primary's INFO."""


class Examination:
    """Known settings of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.policy: str | None = None
        """The problem of the eviction policy, as far as is known."""
        self.clock_behind_ms = 0
        """By how much the server's clock is behind the store's time, which stands still; as last looked at."""
        self._is_said = False

    def look(self, *, first: bool) -> Generator[Send | Sleep | Redirect, Any, None]:
        """
        Look at the server: its settings each time, the types of our keys and what it may lose the *first* time.

        Raises:
            BackendUnavailableError: naming the setting.
            CorruptStateError: a key of ours is of another type.
        """
        info = yield from self._server.ask_primary("everything")
        if self._server.address.kind == "cluster":
            yield from self._learn_nodes()
        problem = wrong_version(info) or wrong_role(info)
        if problem is not None:
            refused = BackendUnavailableError(f"{self._server.address.shown}: {problem}")
            refused.is_lasting = True
            raise refused
        self._judge_policy(wrong_policy(info))
        self._judge_clock(info)
        if first:
            fixed = [key for key in keys.KEYS if not key.is_prefix]
            found = yield from self._server.execute_script("types", tuple(key.name for key in fixed))
            for key, kind in zip(fixed, map(bytes.decode, found), strict=True):
                if kind not in {"none", key.type}:
                    redis_key = keys.redis_key(self._server.namespace, key.name)
                    raise CorruptStateError(
                        f"{redis_key} is a {kind} and should be a {key.type}: does another application use it?"
                    )
            if not self._server.has_own_time:
                yield from self._server.plain("HSET", keys.redis_key(self._server.namespace, "meta"), "test", "1")
            self._say(info)

    def _judge_policy(self, problem: str | None) -> None:
        """Store a fault of the eviction policy, and log its changes."""
        before, self.policy = self.policy, problem
        extra = {"event": "redis.policy", "error": problem}
        if problem is not None and before is None:
            logger.error("%s: no job is claimed or enqueued: %s", self._server.address.shown, problem, extra=extra)
        elif problem is None and before is not None:
            logger.info("%s: jobs are claimed and enqueued again", self._server.address.shown, extra=extra)

    def _judge_clock(self, info: dict[str, str]) -> None:
        """Log each minute while the server's clock is behind, and once it has caught up."""
        time_ms = self._server.time_ms
        if not self._server.has_own_time or not time_ms or "server_time_usec" not in info:
            return
        before = self.clock_behind_ms
        behind_ms = time_ms - int(info["server_time_usec"]) // 1000
        self.clock_behind_ms = behind_ms if behind_ms > CLOCK_LATE_MS else 0
        extra = {"event": "redis.clock_behind", "behind_s": self.clock_behind_ms / 1000}
        if self.clock_behind_ms:
            logger.error(
                "%s: the server's clock is %.0f s behind what it was; until it catches up, time stands still: "
                "nothing delayed or retried begins, no dead worker is noticed; `queuehint doctor --fix` sets it back",
                self._server.address.shown,
                self.clock_behind_ms / 1000,
                extra=extra,
            )
        elif before:
            logger.warning("%s: the server's clock has caught up", self._server.address.shown, extra=extra)

    def _learn_nodes(self) -> Generator[Send | Sleep | Redirect, Any, None]:
        """Query a cluster for its nodes, the alternatives after a failure. A failed query is ignored."""
        try:
            ranges = yield Send(("CLUSTER", "SLOTS"))
        except (NotSent, Unanswered, driver.ResponseError):
            return
        nodes = [node for _, _, *nodes in ranges for node in nodes]
        self._server.address.learn([(host.decode(), port) for host, port, *_ in nodes if host])

    def _say(self, info: dict[str, str]) -> None:
        """Log once the durability of this store, and whether its traffic is encrypted. Concurrent calls log once."""
        if self._is_said:
            return
        self._is_said = True
        durability = durability_class(info)
        level = logging.WARNING if durability.startswith("D0") else logging.INFO
        logger.log(level, "durability class %s", durability, extra={"event": "redis.durability"})
        if self._server.address.is_remote_plaintext:
            logger.warning(
                "the traffic to %s is not encrypted; use rediss://",
                self._server.address.shown,
                extra={"event": "redis.plaintext"},
            )


class RetentionStatement:
    """
    The retention that this process states to a namespace, after each examination of the server.

    The first time it takes the place of what is there: the process that has begun last is the one of the newest deploy.
    After that only of nothing: a server that was started empty learns it again.

    Attributes:
        is_due: it has to be stated before the next change.
    """

    def __init__(self, retention: Retention | None, root: str) -> None:
        self._retention, self._root = retention, root
        self._has_stated = False
        self._other = ""
        """The retention that the store keeps in place of this one, as last seen."""
        self.renew()

    def renew(self) -> None:
        """Set the retention before the next change, if there is one."""
        self.is_due = self._retention is not None

    def state(self, retain: Callable[..., Talk]) -> Talk:
        """Set the retention of the namespace by the steps that *retain* returns; log another one."""
        assert self._retention is not None
        stated = codec.retention_text(self._retention)
        begins, self._has_stated, self.is_due = not self._has_stated, True, False
        try:
            said = yield from retain(stated, begins=begins)
        except BaseException:
            self.is_due, self._has_stated = True, not begins
            raise
        before = said.decode("utf-8", "replace")
        if before in {"", stated, self._other}:
            return
        if begins:
            say_retention_changed(logger, "redis", self._root, codec.shown_retention(before), self._retention)
            return
        self._other = before
        logger.warning(
            "the retention of %s is (%s), as set by a newer process; this one has (%s)",
            self._root,
            codec.shown_retention(before),
            self._retention,
            extra={"event": "redis.retention_differs"},
        )


def parse_info(text: bytes) -> dict[str, str]:
    """Return the lines of an ``INFO`` as a dictionary."""
    return dict(line.split(":", 1) for line in text.decode("utf-8", "replace").splitlines() if ":" in line)


def wrong_version(info: dict[str, str]) -> str | None:
    """Return the reason why a server is too old, None for a supported one."""
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < VERSION_LEAST:
        return f"redis_version is {version}, at least {'.'.join(map(str, VERSION_LEAST))} is needed"
    return None


def wrong_policy(info: dict[str, str]) -> str | None:
    """Return the reason why a server may evict jobs when its memory is full, None if it cannot."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return f"maxmemory-policy is {policy}, which deletes jobs when memory is full; it must be noeviction"
    return None


def wrong_role(info: dict[str, str]) -> str | None:
    """Return the reason why a server accepts no writes, None for a primary."""
    if info.get("role", "master") != "master":
        return f"its role is {info['role']}: it is a replica and takes no writes; name its primary"
    return None


def durability_class(info: dict[str, str]) -> str:
    """Return the durability class: ``D0`` loses all data, ``D1`` the last 2 seconds, ``D2`` nothing acknowledged."""
    if info.get("aof_enabled") != "1":
        return "D0: without an append-only file all jobs since the last snapshot are lost with the server"
    return (
        "D1 or D2, by appendfsync, which `queuehint doctor` reads: with everysec a power loss takes the last 1 to 2 "
        "seconds, and so may the server's death while its disk is slow; with always nothing"
    )
