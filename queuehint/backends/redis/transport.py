"""
Actions of a session on its connection, and the failures they raise. No I/O.

A session yields `Send`, `Sleep` and `Redirect`; a shell carries them out, and raises `NotSent`, `Unanswered` or the
server's refusal into it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

import attrs
from redis import exceptions as driver

SAME_NODE: Final = ("BUSY", "TRYAGAIN", "LOADING")
"""Temporary refusals, after which the same node is asked again."""


class Send:
    """
    Send a command and pass its reply back. Raise `NotSent` or `Unanswered` on a failed connection.

    Args:
        command: its words, or a function that makes them, called once: by the link in the step in which it sends them,
            so that a call that waits in line has nothing yet.

    Attributes:
        term: how often the link had changed its node when it sent the command; set by the link. A redirection counts
            only in the term of the command that failed, so callers that fail together move the link once.
    """

    __slots__ = ("_command", "term")

    def __init__(self, command: tuple[Any, ...] | Callable[[], tuple[Any, ...]]) -> None:
        self._command = command
        self.term = -1

    def __repr__(self) -> str:
        return f"Send(<{len(self._command)} words>)" if isinstance(self._command, tuple) else "Send(<not made yet>)"

    @property
    def command(self) -> tuple[Any, ...]:
        """Return the words, made by now."""
        command = self._command
        if type(command) is not tuple:
            command = self._command = command()  # type: ignore[operator]
        return command


@attrs.define(eq=False)
class Failed:
    """
    A first attempt that failed.

    Args:
        sent: what was sent.
        begun_s: since when it is tried, by `time.monotonic`.
    """

    sent: Send
    begun_s: float
    _error: BaseException | None

    def error(self) -> BaseException:
        """Return the error once, and release it with the frames that it holds."""
        error, self._error = self._error, None
        assert error is not None
        return error


@attrs.frozen
class Sleep:
    """Wait."""

    seconds: float


@attrs.frozen
class Redirect:
    """
    Redirect to another node: *node* if given, else search for the right one.

    Args:
        once: for the next request only.
        leaves: no connection to the node that was asked is used again: it is no primary, and a new connection to the
            same name may lead to another one.
    """

    node: tuple[str, int] | None = None
    once: bool = False
    leaves: bool = False


Talk: TypeAlias = Generator[Send | Sleep | Redirect, Any, Any]
"""Requests and their replies, step by step, without I/O."""


class NotSent(Exception):  # noqa: N818 - a fact between the shells and a conversation, never raised to a caller
    """No connection was made, so the server has not received the request."""


class Closed(NotSent):
    """The link was closed and sends no more requests."""


class Unanswered(Exception):  # noqa: N818
    """The connection failed after the request was sent, wholly or in part."""


def passes(error: driver.ResponseError, message: str) -> bool:
    """Return whether a refusal passes by itself or on another node. No state was changed."""
    return isinstance(
        error, (driver.ReadOnlyError, driver.TryAgainError, driver.ClusterDownError)
    ) or message.startswith(
        ("BUSY", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED")
    )


def onward(failure: Exception) -> Redirect:
    """Return where to go after a failure: where a cluster says the slot is, for good or (``ASK``) while it moves."""
    if isinstance(failure, driver.AskError):
        return Redirect((failure.host, failure.port), once=not isinstance(failure, driver.MovedError))
    return Redirect(leaves=isinstance(failure, driver.ResponseError) and not str(failure).startswith(SAME_NODE))
