"""Failed requests as errors: refused by the server, or abandoned without a reply. No I/O."""

from __future__ import annotations

import re
from typing import Any, Final

from redis import exceptions as driver

from queuehint.backends.redis.codec.refusals import is_settled, refusal
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
    OutcomeUnknownError,
)
from queuehint.operations import Enqueue, Operation

_DENIED: Final = re.compile(
    r"^NOPERM|ACL failure in script|can't run this command|can't access at least one of the keys"
)


class Failures:
    """
    Makes the errors of one store.

    Args:
        where: what of its address may be shown.
        root: of the namespace.
    """

    def __init__(self, where: str, root: str) -> None:
        self._where = where
        self._root = root

    def gave_up(
        self, failure: Exception, operation: Operation[Any] | None, patience_s: float, is_unknown: bool
    ) -> BackendError:
        """Return the error of a request that was tried for so long."""
        cause = failure.__cause__ or failure
        if is_unknown:
            return self._outcome_unknown(f"no answer within {patience_s:g} s ({cause})", operation)
        return BackendUnavailableError(f"{self._where}: {cause}")

    def closed(self, operation: Operation[Any] | None, *, is_unknown: bool) -> BackendError:
        """Return the error of a request whose link was closed before its reply."""
        if is_unknown:
            return self._outcome_unknown("the backend was closed before an answer came", operation)
        return BackendUnavailableError(f"the backend at {self._where} was closed")

    def refused(self, error: driver.ResponseError, operation: Operation[Any] | None, *, is_unknown: bool) -> Exception:
        """
        Return the error of a refusal.

        Args:
            is_unknown: an earlier attempt was sent and not answered. Only a script that read the receipt of the
                request can tell that it was not carried out; of any other refusal the outcome stays unknown.
        """
        message = str(error)
        if is_unknown and not (operation is not None and is_settled(operation, message)):
            return self._outcome_unknown(f"a further attempt was refused ({message})", operation)
        refused = refusal(operation, message) if operation is not None else None
        if refused is not None:
            return refused
        where = self._where
        if isinstance(error, driver.OutOfMemoryError) or message.startswith("OOM"):
            if isinstance(operation, Enqueue):
                return BackendFullError(f"{where} is at its maxmemory; nothing was enqueued")
            return BackendFullError(f"{where} is at its maxmemory; nothing was changed")
        if isinstance(error, (driver.NoPermissionError, driver.AuthenticationError)) or _DENIED.search(message):
            return BackendDeniedError(f"{where}: {message}")
        if message.startswith("MISCONF"):
            return BackendUnavailableError(f"{where} cannot save to its disk and takes no writes: {message}")
        if "WRONGTYPE" in message:
            return CorruptStateError(f"{where}: a key of {self._root} is of the wrong type; run `queuehint doctor`")
        if " script: " in message:
            # A script of ours fails only over what it did not write itself.
            return CorruptStateError(f"{where}: {message.split(' script: ', maxsplit=1)[0]}; run `queuehint doctor`")
        return BackendError(f"{where}: {message}")

    def _outcome_unknown(self, problem: str, operation: Operation[Any] | None) -> OutcomeUnknownError:
        job_ids = [spec.id for spec in operation.jobs] if isinstance(operation, Enqueue) else []
        return OutcomeUnknownError(f"{self._where}: {problem}; it may have been done", job_ids=job_ids)
