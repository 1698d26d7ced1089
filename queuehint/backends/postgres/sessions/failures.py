"""What goes wrong between a store and PostgreSQL, and the errors of ours for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class LostError(Exception):
    """The connection has ended, or the server does not answer; *is_sent* says whether it may have got the statement."""

    def __init__(self, problem: str, *, is_sent: bool) -> None:
        self.is_sent = is_sent
        super().__init__(problem)


class RefusedError(Exception):
    """The server has refused a statement, of which nothing was done; *code* is its SQLSTATE."""

    def __init__(self, code: str, problem: str) -> None:
        self.code = code
        super().__init__(problem)


# A refused connection has no code, only what the server or libpq says.
_LASTING: Final = re.compile(
    r"authentication failed|no pg_hba\.conf entry|no password supplied|permission denied for database"
    r"|(role|database) \"[^\"]*\" does not exist|is not permitted to log in|invalid (connection option|URI|integer)"
)
_FULL: Final = ("53100", "53200", "54000")
_DENIED: Final = ("42501", "25006", "28000", "28P01", "3D000")
_GONE: Final = ("42P01", "3F000", "42703")
_DAMAGED: Final = ("XX001", "XX002")


def judgement(error: LostError | RefusedError, name: str) -> BackendError:
    """Return the error of ours for one of the server."""
    if isinstance(error, LostError):
        return BackendUnavailableError(f"{name}: {error}")
    code = error.code
    if code in _FULL:
        what = "more than it holds at once" if code == "54000" else "there is no room left"
        return BackendFullError(f"{name}: {what} ({error}); nothing was changed")
    if code in _DENIED:
        return BackendDeniedError(f"{name} must not be written by this user or at this server: {error}")
    if code in _GONE:
        return BackendUnavailableError(f"{name}: the tables were removed or replaced ({error}); nothing was changed")
    if code in _DAMAGED:
        return CorruptStateError(f"{name} is damaged: {error}")
    return BackendUnavailableError(f"{name}: {error}; nothing was changed")


def unreached(problem: str, name: str, parameters: Mapping[str, str]) -> BackendError:
    """
    Return the error of ours for a connection that was not made.

    Args:
        problem: what libpq says.
        parameters: whose secrets are not shown.

    >>> unreached('FATAL: role "ann" does not exist', "postgresql://db", {})
    BackendDeniedError('postgresql://db: FATAL: role "ann" does not exist')
    """
    problem = " ".join(problem.split())
    for secret in (parameters.get("password"), parameters.get("sslpassword")):
        if secret:
            problem = problem.replace(secret, "***")
    return (BackendDeniedError if _LASTING.search(problem) else BackendUnavailableError)(f"{name}: {problem}")
