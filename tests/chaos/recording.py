"""
Records the events of a namespace as its primaries report them, one history for each primary.

A namespace numbers its events. A replica that takes over uses the numbers of events that it did not receive again, and
a replaced primary that does not know it yet goes on beside its successor. So each server that calls itself primary is
read directly, and its events are a history of their own, which has its beginning in common with an earlier one.
"""

from __future__ import annotations

import threading
import time
from typing import Self

import attrs
from redis.exceptions import RedisError

from queuehint.backends.redis.backend import RedisBackend
from queuehint.errors import QueueHintError
from queuehint.operations import EVENTS_MAX, Follow
from queuehint.testing.trace import TraceEvent
from queuehint.values.event import Event
from tests.chaos.nodes import Node, Nodes
from tests.faults import checks

EVERY_S = 0.1
REREAD = 5_000
"""How far back the events of a new primary are compared with those known; a namespace keeps the last 10 000."""

Key = tuple[int, str]
"""A node, and the id that Redis gives to what it writes as a primary."""


@attrs.define(eq=False)
class History:
    """The events of one primary: the event of number n at n - 1, None where events were missed."""

    key: Key
    events: list[Event | None] = attrs.field(factory=list)
    common: int = 0
    """So many are those of a history before."""


class Recorder:
    """Reads the events of all primaries, a thread for each node, until the block ends."""

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self.histories: dict[Key, History] = {}
        self.error: BaseException | None = None
        self._nodes = nodes
        self._namespace = namespace
        self._stores: dict[int, RedisBackend] = {}
        self._done = threading.Event()
        self._guard = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(node,), daemon=True) for node in nodes.nodes]

    def __enter__(self) -> Self:
        until_s = time.monotonic() + checks.LIMIT_S
        while not any(map(self._read, self._nodes.nodes)):
            assert time.monotonic() < until_s, "no primary answers"
            time.sleep(EVERY_S)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(checks.LIMIT_S)
        for store in self._stores.values():
            store.close_sync()

    def read_to_the_end(self, node: Node) -> History | None:
        """Read what a node has now; return its history, None if it is no primary or does not answer."""
        key = _key_of(node)
        return self.histories[key] if key is not None and self._read(node) else None

    def _run(self, node: Node) -> None:
        while not self._done.wait(EVERY_S):
            try:
                self._read(node)
            except BaseException as error:
                self.error = error
                raise

    def _read(self, node: Node) -> bool:
        """Read what a node has to tell if it is a primary, before and after."""
        key = _key_of(node)
        if key is None:
            return False
        known = self.histories.get(key)
        found = self._ask(node, len(known.events) if known is not None else self._far_back())
        if found is None or _key_of(node) != key:
            return False
        with self._guard:
            history = self.histories.get(key)
            if history is None:
                history = self.histories[key] = self._begin(key, found)
            for event in found:
                if event.at > len(history.events):
                    history.events += [None] * (event.at - 1 - len(history.events))
                    history.events.append(event)
        return True

    def _far_back(self) -> int:
        with self._guard:
            lengths = [len(history.events) for history in self.histories.values()]
        return max(0, max(lengths, default=0) - REREAD)

    def _ask(self, node: Node, after: int) -> list[Event] | None:
        """Return the events behind a number."""
        try:
            store = self._stores.get(node.number)
            if store is None:
                store = self._stores[node.number] = checks.open_store(f"{node.server.url}?patience=1", self._namespace)
            events: list[Event] = []
            while True:
                followed = store.call_sync(Follow(after, EVENTS_MAX))
                events += followed.events
                after = followed.after
                if not followed.is_more:
                    return events
        except (QueueHintError, RedisError, OSError):
            return None

    def _begin(self, key: Key, found: list[Event]) -> History:
        """Return a new history, with the beginning that it has in common with one before."""
        best = History(key)
        for history in self.histories.values():
            common = _common(history, found)
            length = found[common - 1].at if common else found[0].at - 1 if found and found[0].at == 1 else 0
            if length > best.common:
                best = History(key, history.events[:length], length)
        return best


def _common(history: History, found: list[Event]) -> int:
    """Return how many of these events, from the first on, a history has too."""
    for number, event in enumerate(found):
        if event.at > len(history.events) or history.events[event.at - 1] != event:
            return number
    return len(found)


def _key_of(node: Node) -> Key | None:
    """Return which history a primary writes; None if it is none, or does not answer."""
    said = node.replication()
    return (node.number, str(said["master_replid"])) if said.get("role") == "master" else None


def trace_of(events: list[Event | None]) -> list[TraceEvent]:
    """Return events as those of a trace, with a gap where some are missing."""
    traced: list[TraceEvent] = []
    is_gap = False
    for event in events:
        if event is not None:
            traced.append(TraceEvent.of(event))
        elif not is_gap:
            traced.append(TraceEvent(kind="gap", at_ms=traced[-1].at_ms if traced else 0))
        is_gap = event is None
    return traced
