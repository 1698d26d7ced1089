"""Streams of numbered requests, with a set of streams whose newest request has an unknown outcome."""

from __future__ import annotations

import secrets
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import threading

    from queuehint.operations import Operation

UNKNOWN_MAX: Final = 1000
"""How many requests without an answer are remembered for callers that ask again."""


class RequestStream:
    """Requests of which one at a time is in flight."""

    __slots__ = ("is_unknown", "name", "request")

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.request = 0
        self.is_unknown = False
        """The newest request may have been carried out, and is not answered."""


class Streams:
    """
    The streams of a session. Safe across threads.

    Attributes:
        free: streams that no request uses.
        unknown: those of requests without an answer, by the identity of the operation while that lives: only its owner
            can repeat it.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.free: deque[RequestStream] = deque()
        self.unknown: OrderedDict[int, tuple[weakref.ref[Operation[Any]], RequestStream]] = OrderedDict()

    def take(self) -> RequestStream:
        """Return an unused stream, with its next number."""
        try:
            stream = self.free.pop()  # one step, so that no other thread takes the same
        except IndexError:
            stream = RequestStream()
        stream.request += 1
        return stream

    def take_unknown(self, operation: Operation[Any]) -> RequestStream | None:
        """Return the stream of the request that an operation continues, None for a new request."""
        with self._lock:
            known = self.unknown.pop(id(operation), None)
        return known[1] if known is not None and known[0]() is operation else None

    def take_for(self, operation: Operation[Any]) -> RequestStream:
        """Return the stream of the request that an operation continues, else an unused one with its next number."""
        return self.take_unknown(operation) or self.take()

    def drop(self, stream: RequestStream) -> None:
        """Return a stream whose newest request was not carried out, so that its number is free again."""
        stream.request -= 1
        self.free.append(stream)

    def give_back(self, stream: RequestStream, operation: Operation[Any] | None, *, answered: bool) -> None:
        """End a request; the next call with the operation of one that was not *answered* continues it."""
        stream.is_unknown = not answered
        if answered:
            self.free.append(stream)
        elif operation is not None:
            unknown, at = self.unknown, id(operation)
            with self._lock:
                # Called wherever memory is freed, with the lock held or not: what it does is one step.
                unknown[at] = weakref.ref(operation, lambda _: unknown.pop(at, None)), stream
                if len(unknown) > UNKNOWN_MAX:
                    unknown.popitem(last=False)
