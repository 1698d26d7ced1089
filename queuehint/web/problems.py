"""Errors as problem documents of RFC 9457, with the class and the fields of a queuehint error."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from starlette.responses import JSONResponse

from queuehint import errors
from queuehint.errors import QueueHintError
from queuehint.operations.wire import error_facts

MEDIA_TYPE: Final = "application/problem+json"
STATUSES: Final[tuple[tuple[type[QueueHintError], int], ...]] = (
    (errors.OutcomeUnknownError, 504),
    (errors.QueueFullError, 429),
    (errors.BackendError, 503),
    (errors.JobNotFoundError, 404),
    (errors.FlowNotFoundError, 404),
    (errors.ScheduleNotFoundError, 404),
    (errors.DuplicateJobError, 409),
    (errors.DuplicateFlowError, 409),
    (errors.InvalidTransitionError, 409),
    (errors.StaleRecordError, 409),
    (errors.PathClosedError, 409),
    (errors.ConcurrentSubmissionError, 409),
    (errors.ScheduleChangedError, 409),
    (QueueHintError, 400),
)
"""The status of an error: that of the first class that it is of."""


class Refused(Exception):  # noqa: N818 - a refusal is an answer
    """
    A request refused before any I/O.

    Args:
        status: of HTTP.
        error: one word for programs.
        detail: a sentence for people.
        headers: of the answer.
    """

    def __init__(self, status: int, error: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.error, self.detail, self.headers = status, error, detail, headers


def problem(status: int, error: str, detail: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the body of a problem."""
    said = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return {**said, "error": error, "facts": facts or {}}


def status_of(error: QueueHintError) -> int:
    """
    Return the HTTP status of an error, 413 for arguments or data above the limit of bytes.

    >>> status_of(errors.JobNotFoundError("a")), status_of(errors.CycleError(["a"]))
    (404, 400)
    >>> status_of(errors.PayloadError("set is not JSON")), status_of(errors.PayloadError("takes 9 bytes", limit=8))
    (400, 413)
    """
    if isinstance(error, errors.PayloadError) and error.limit is not None:
        return 413
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def refusal(error: Refused) -> JSONResponse:
    """Return the answer to a request that is refused."""
    return _answer(problem(error.status, error.error, error.detail), error.headers)


def failure(error: QueueHintError) -> JSONResponse:
    """Return the answer to a request that the library or the store refuses."""
    name, _, facts = error_facts(error)
    after_s = facts.get("retry_after_s")
    headers = None if after_s is None else {"Retry-After": str(max(1, round(after_s)))}
    return _answer(problem(status_of(error), name, str(error), facts), headers)


def _answer(body: dict[str, Any], headers: dict[str, str] | None) -> JSONResponse:
    return JSONResponse(body, body["status"], headers, MEDIA_TYPE)
