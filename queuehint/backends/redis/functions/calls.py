"""
Two ways to run a script: as a function of the library, or by its SHA-1 where a server takes no library.

A node that does not know the library is sent it, and then asked again: at the first use, after a failover or a restart
that lost it, after ``FUNCTION FLUSH``. Where it cannot be loaded, or functions cannot be called, the same script goes
by ``EVALSHA``, and functions are tried again later: sooner where the cause may pass by itself, like full memory.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions as driver

from queuehint.backends.redis.functions.library import library
from queuehint.backends.redis.transport import Send, passes

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.redis.address import Address
    from queuehint.backends.redis.functions.library import Library
    from queuehint.backends.redis.scripts import Script
    from queuehint.backends.redis.streams import RequestStream

logger = logging.getLogger("queuehint.redis")

PASSING_AGAIN_S: Final = 60.0
"""How long scripts go by EVALSHA where the library was refused for a cause that passes."""
REFUSED_AGAIN_S: Final = 3600.0
"""How long, where functions are denied or unknown."""
LOADS_MAX: Final = 3
"""How often one request loads the library, before it goes without."""
_STREAM: Final = 4
"""Where the name of the stream stands among the words of a request: behind the keys and the time."""
_PASSING: Final = ("OOM", "command not allowed when used memory", "MISCONF", "NOREPLICAS")


class Calls:
    """Functions of a session's server, as far as they are known."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.singly_until_s = math.inf if address.functions == "never" else 0.0
        """Until when scripts go by EVALSHA; 0 if they do not."""

    @property
    def uses_functions(self) -> bool:
        """Return whether functions are tried now."""
        if self.singly_until_s and time.monotonic() >= self.singly_until_s:
            self.singly_until_s = 0.0
        return not self.singly_until_s

    @property
    def may_go_singly(self) -> bool:
        """Return whether a script may go by EVALSHA at all."""
        return self._address.functions != "always"

    def go_singly(self, message: str, again_s: float) -> None:
        """Use no functions for a while."""
        if not self.singly_until_s:
            logger.info(
                "%s: scripts go by EVALSHA, functions are tried again in %.0f s: %s",
                self._address.shown,
                again_s,
                message,
                extra={"event": "redis.functions_refused", "error": message},
            )
        self.singly_until_s = time.monotonic() + again_s


class Plain:
    """A command sent unchanged."""

    load = stream = None

    def __init__(self, *command: Any) -> None:
        self._send = Send(command)

    def first(self) -> Send:
        """Return the request to send."""
        return self._send

    def instead(self, sent: Send, error: driver.ResponseError) -> None:
        """Return None, because every refusal is an answer."""


class Call:
    """
    One request to run a script.

    Args:
        words: the number of its keys, these, and its arguments.
        take: returns a stream with its next number, called in the step in which the request is sent; None for a request
            without a stream, or with that in *words*.
    """

    __slots__ = ("_calls", "_loads", "_take", "_way", "_which", "_words", "asked_s", "load", "stream")

    def __init__(
        self, calls: Calls, which: Script, words: tuple[Any, ...], take: Callable[[], RequestStream] | None = None
    ) -> None:
        self._calls, self._which, self._words, self._take = calls, which, words, take
        self._loads = 0
        self.load: Send | None = None
        """The command that loads the library, if it was sent: its reply is none of the script."""
        self.stream: RequestStream | None = None
        """The stream of the request, from the step in which it is sent; without one it takes another."""
        self.asked_s = 0.0
        """When it was made, by `time.monotonic`, if it is a direct call."""

    def first(self) -> Send:
        """Return the request to send at first, and again after a pause."""
        which, calls = self._which, self._calls
        if not which.is_function or (calls.singly_until_s and not calls.uses_functions):
            way = "EVALSHA", which.sha
        else:
            if which.words is None:
                which.words = "FCALL" if which.writes else "FCALL_RO", library_of(which).function(which.name)
            way = which.words
        if self._take is None or self.stream is not None:
            return Send((*way, *self._words))
        self._way = way
        return Send(self._numbered)

    def _numbered(self) -> tuple[Any, ...]:
        """Take a stream, and return the words of the request with its name and its number."""
        assert self._take is not None
        self.number(self._take())
        return (*self._way, *self._words)

    def number(self, stream: RequestStream) -> None:
        """Make this the newest request of a stream."""
        words = self._words
        self.stream = stream
        self._words = (*words[:_STREAM], stream.name, stream.request, *words[_STREAM + 2 :])

    def number_as(self, stream: RequestStream) -> None:
        """Give this the number of the newest request of a stream, which stays that of the other request."""
        self.number(stream)
        self._take = self.stream = None

    def instead(self, sent: Send, error: driver.ResponseError) -> Send | None:
        """Return the request to send to the same node after a refusal, None if the refusal is the answer."""
        message = str(error)
        if sent is self.load:
            return self._after_load(error, message)
        if sent.command[0] == "EVALSHA" and isinstance(error, driver.NoScriptError):
            return Send(("EVAL", self._which.text, *self._words))
        if not sent.command[0].startswith("FCALL"):
            return None
        if message.removeprefix("ERR ") == "Function not found":
            self._loads += 1
            if self._loads > LOADS_MAX:
                return self._singly("it is loaded, and not found", PASSING_AGAIN_S)
            self.load = Send(("FUNCTION", "LOAD", library_of(self._which).text))
            return self.load
        if "'fcall" in message.lower() and (isinstance(error, driver.NoPermissionError) or "unknown" in message):
            return self._singly(message, REFUSED_AGAIN_S)
        return None

    def _after_load(self, error: driver.ResponseError, message: str) -> Send | None:
        if message.endswith("already exists"):
            return self.first()
        if isinstance(error, driver.AskError) or (passes(error, message) and not message.startswith(_PASSING)):
            return None
        is_passing = isinstance(error, driver.OutOfMemoryError) or message.startswith(_PASSING)
        return self._singly(message, PASSING_AGAIN_S if is_passing else REFUSED_AGAIN_S)

    def _singly(self, message: str, again_s: float) -> Send | None:
        if not self._calls.may_go_singly:
            return None
        self._calls.go_singly(message, again_s)
        return self.first()


def library_of(which: Script) -> Library:
    """Return the library that has a script."""
    return library()
