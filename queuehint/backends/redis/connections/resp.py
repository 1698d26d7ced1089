"""
RESP2, the protocol of Redis, as far as a client of scripts requires: requests packed, replies read. No I/O.

hiredis does both where it is installed. The reader below takes its place where it is not, and gives the same replies:
``bytes``, ``int``, ``None``, lists of them, and refusals as exceptions of redis-py that are returned, not raised.

Source: the Redis serialization protocol specification, version 2.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis import exceptions as driver

if TYPE_CHECKING:
    from collections.abc import Callable

hiredis: Any = importlib.import_module("hiredis") if importlib.util.find_spec("hiredis") else None

MAX_CLIENTS: Final = "max number of clients reached"

_REFUSALS: Final[dict[str, Callable[[str], Exception]]] = {
    "ASK": driver.AskError,
    "CLUSTERDOWN": driver.ClusterDownError,
    "CROSSSLOT": driver.ClusterCrossSlotError,
    "ERR": driver.ResponseError,
    "LOADING": driver.BusyLoadingError,
    "MASTERDOWN": driver.MasterDownError,
    "MOVED": driver.MovedError,
    "NOAUTH": driver.NoPermissionError,
    "NOPERM": driver.NoPermissionError,
    "NOSCRIPT": driver.NoScriptError,
    "OOM": driver.OutOfMemoryError,
    "READONLY": driver.ReadOnlyError,
    "TRYAGAIN": driver.TryAgainError,
    "WRONGPASS": driver.NoPermissionError,
}
"""The exception of redis-py for the first word of a refusal; it is given the other words."""


class ReplyReader(Protocol):
    """Parses the bytes of a connection into replies."""

    def feed(self, data: bytes, /) -> object:
        """Add received bytes."""

    def gets(self) -> Any:
        """Return the next reply, or False while it is incomplete."""


def parse_refusal(text: str) -> Exception:
    """Return a refusal of the server as the exception that redis-py has for it."""
    code, _, message = text.partition(" ")
    if message == MAX_CLIENTS:
        return driver.ConnectionError(message)
    return _REFUSALS[code](message) if code in _REFUSALS else driver.ResponseError(text)


def pack_words(command: tuple[str | bytes | int | float, ...]) -> bytes:
    """Return a packed request."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"".join((b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)))


class Reader:
    """
    A reader of replies in Python.

    What has been read of a list is kept while the rest is on its way, so that no byte is looked at twice, but for the
    line that says how long a text is.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._open: list[tuple[int, list[Any]]] = []
        """Lists that are not whole yet, from the outermost: how many items each has, and those that came."""

    def feed(self, data: bytes, /) -> None:
        """Add received bytes."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def gets(self) -> Any:
        """
        Return the next reply, or False while it is incomplete.

        Raises:
            redis.exceptions.InvalidResponse: what came is no RESP2; the connection is of no more use.
        """
        while (item := self._item()) is not False:
            while self._open:
                size, items = self._open[-1]
                items.append(item)
                if len(items) < size:
                    break
                item = self._open.pop()[1]
            else:
                return item
        return False

    def _item(self) -> Any:
        """Return the next item other than a non-empty list, False while it is incomplete."""
        buffer = self._buffer
        while (end := buffer.find(b"\r\n", self._at)) >= 0:
            kind, line, begin = buffer[self._at], bytes(buffer[self._at + 1 : end]), end + 2
            if kind == ord("$"):
                return self._text(int(line), begin)
            self._at = begin
            if kind == ord(":"):
                return int(line)
            if kind == ord("+"):
                return line
            if kind == ord("-"):
                return parse_refusal(line.decode("utf-8", "replace"))
            if kind != ord("*"):
                raise driver.InvalidResponse(f"a reply begins with {chr(kind)!r}")
            size = int(line)
            if size <= 0:
                return None if size < 0 else []
            self._open.append((size, []))
        return False

    def _text(self, size: int, begin: int) -> Any:
        if size < 0:
            self._at = begin
            return None
        end = begin + size
        if len(self._buffer) < end + 2:
            return False
        self._at = end + 2
        return bytes(self._buffer[begin:end])


def open_reader() -> ReplyReader:
    """Return a reader for a new connection."""
    if hiredis is None:
        return Reader()
    reader: ReplyReader = hiredis.Reader(replyError=parse_refusal, protocolError=driver.InvalidResponse)
    return reader


pack: Final[Callable[[tuple[Any, ...]], bytes]] = pack_words if hiredis is None else hiredis.pack_command
"""Return a request as it is sent."""
