"""Failures of connections, and refusals that are no answer to a request, for both links. No I/O."""

from __future__ import annotations

from typing import Final

from redis import exceptions as driver

from queuehint.backends.redis.transport import NotSent, Unanswered

BROKEN: Final = (driver.ConnectionError, driver.TimeoutError, driver.InvalidResponse, OSError, TimeoutError)
"""How a connection fails, by the driver or the system, or by what comes on it."""
CLOSED_BY_SERVER: Final = "the server closed the connection"


def refused(reply: Exception) -> Exception:
    """Return the exception for a refusal. Some refusals are no answer to a request."""
    if not isinstance(reply, driver.BusyLoadingError) and isinstance(reply, driver.ResponseError):
        return reply
    # The server is there and does nothing yet, or has too many clients: nothing was done.
    unsent = NotSent()
    unsent.__cause__ = reply
    return unsent


def unanswered(failure: BaseException | None) -> Unanswered:
    """Return the exception for a connection that failed with a pending reply."""
    error = Unanswered()
    error.__cause__ = failure
    return error


def no_answer(timeout_s: float) -> driver.TimeoutError:
    """Return why a connection was ended on which nothing came."""
    return driver.TimeoutError(f"no answer within {timeout_s:g} s")
