"""
Records each failover of a chaos run: when a replica was promoted, and when the old primary became a replica.

Sentinels publish what they do; the time of a message is that of its arrival here, by `time.monotonic`. Two moments
bound what a failover may lose: before the promotion, what the replica had not got; after it, what the old primary
acknowledged until it followed the new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Self

import attrs
from redis.exceptions import RedisError

from tests.chaos.nodes import Node, Nodes
from tests.faults import checks
from tests.servers import Server

ORDERED = "+failover-state-send-slaveof-noone"
PROMOTED = "+promoted-slave"
ASKED_EVERY_S = 0.1
TRIED_WITHIN_S = 30.0
"""A sentinel gives a failover up after that, or has told of the promotion long before."""


@attrs.frozen
class Message:
    """A message of a sentinel: `+sdown`, `+switch-master` and so on, and the server that it is about."""

    at_s: float
    sentinel: int
    event: str
    text: str


@attrs.frozen
class Role:
    """A server said something else of its role than the last time; None: it does not answer."""

    at_s: float
    node: int
    role: str | None


@attrs.frozen
class Failover:
    """A replica in the place of a primary: numbers of nodes, and moments by `time.monotonic`."""

    old: int
    new: int
    ordered_s: float
    """The replica got REPLICAOF NO ONE: from then on it receives no write of the old primary."""
    promoted_s: float | None
    """A sentinel saw it as a primary; None: the sentinel that had ordered it never said so."""
    demoted_s: float = checks.NEVER_S
    """The old primary was seen as a replica for the first time: it acknowledges nothing any more."""


class Watch:
    """Listens to all sentinels and asks all servers for their roles, a thread for each, until the block ends."""

    def __init__(self, nodes: Nodes) -> None:
        self.messages: list[Message] = []
        self.roles: list[Role] = []
        """The roles that servers reported, at the start and at each change."""
        self._ports = {node.proxy.port: node.number for node in nodes.nodes}
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, args=(number, sentinel), daemon=True)
            for number, sentinel in enumerate(nodes.sentinels)
        ]
        self._threads += [threading.Thread(target=self._ask, args=(node,), daemon=True) for node in nodes.nodes]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(checks.LIMIT_S)

    def _listen(self, number: int, sentinel: Server) -> None:
        while not self._done.wait(0.1):
            try:
                with sentinel.client().pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
                    channel.psubscribe("*")
                    while not self._done.is_set():
                        self._keep(number, channel.get_message(timeout=0.5))
            except (RedisError, OSError):
                continue

    def _keep(self, number: int, found: dict[str, Any] | None) -> None:
        if found is not None:
            event, text = (
                value.decode() if isinstance(value, bytes) else value for value in (found["channel"], found["data"])
            )
            self.messages.append(Message(time.monotonic(), number, event, text))

    def _ask(self, node: Node) -> None:
        last: object = ...
        while not self._done.wait(ASKED_EVERY_S):
            role = node.replication().get("role")
            if role != last:
                self.roles.append(Role(time.monotonic(), node.number, role))
            last = role

    def failovers(self) -> list[Failover]:
        """Return all failovers, in order of time."""
        return failovers(self.messages, self.roles, self._ports)


def failovers(messages: Iterable[Message], roles: Sequence[Role], ports: dict[int, int]) -> list[Failover]:
    """
    Return what messages and roles tell of failovers.

    Args:
        ports: the number of a node by the port that sentinels know it by.
    """
    found: list[tuple[int, Failover]] = []
    for message in sorted(messages, key=lambda message: message.at_s):
        if message.event not in {ORDERED, PROMOTED}:
            continue
        # slave NAME HOST PORT @ MASTER HOST PORT
        words = message.text.split()
        new, old = ports[int(words[3])], ports[int(words[-1])]
        at = next(
            (
                at
                for at, (sentinel, each) in enumerate(found)
                if (sentinel, each.old, each.new, each.promoted_s) == (message.sentinel, old, new, None)
                and message.at_s < each.ordered_s + TRIED_WITHIN_S
            ),
            None,
        )
        if message.event == PROMOTED and at is not None:
            found[at] = (message.sentinel, attrs.evolve(found[at][1], promoted_s=message.at_s))
        else:
            promoted_s = message.at_s if message.event == PROMOTED else None
            found.append((message.sentinel, Failover(old, new, message.at_s, promoted_s)))
    return [attrs.evolve(each, demoted_s=_demoted_s(each, roles)) for _, each in found]


def _demoted_s(failover: Failover, roles: Iterable[Role]) -> float:
    """Return when the old primary was seen as a replica after a failover."""
    return next(
        (
            role.at_s
            for role in roles
            if role.node == failover.old and role.role == "slave" and role.at_s >= failover.ordered_s
        ),
        checks.NEVER_S,
    )
