"""Requests of other processes, answered by the owner of a file: bytes in, bytes out."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from queuehint.backends.journal.doctor import Examine
from queuehint.backends.journal.guests.messages import (
    EXAMINE,
    GONE,
    HAND_OVER,
    UNWRITTEN,
    read_request,
    refused,
    replied,
    runs_jobs,
)
from queuehint.backends.journal.guests.server import HAS_SOCKETS, Server
from queuehint.errors import (
    BackendError,
    BackendInUseError,
    BackendUnavailableError,
    OutcomeUnknownError,
    QueueHintError,
)
from queuehint.operations.wire import Await

if TYPE_CHECKING:
    from queuehint.backends.sqlite.address import Address
    from queuehint.backends.sqlite.lock import FileLock
    from queuehint.operations import Operation

Reply = TypeVar("Reply")

logger = logging.getLogger("queuehint.sqlite")


class _Owner(Protocol):
    """The store of the process that has the file; called on the thread of the socket."""

    address: Address
    namespace: str

    async def call(self, operation: Operation[Reply]) -> Reply: ...

    async def keep(self, job_ids: tuple[str, ...]) -> None: ...

    def hand_over(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...


def serve(owner: _Owner, lock: FileLock) -> Server | None:
    """Begin to answer other processes, and write into the lock file where; None if there can be no socket."""

    async def answer(body: bytes) -> bytes:
        return await _answer(owner, body)

    server = None
    try:
        if not HAS_SOCKETS:
            lock.announce("")
            return None
        server = Server(owner.address.path.resolve(), answer)
        lock.announce(server.address)
    except OSError as error:
        if server is not None:
            server.close()
        with suppress(OSError):
            lock.announce("")
        extra = {"event": "sqlite.not_shared", "path": str(owner.address.path), "error": str(error)}
        logger.warning("no socket can be made beside the file; other processes get no answer", extra=extra)
        return None
    return server


async def _answer(owner: _Owner, body: bytes) -> bytes:
    """Return the answer to a request; raises nothing."""
    asked: Any = None
    try:
        asked = read_request(body, owner.namespace)
        if asked == EXAMINE:
            asked = Examine()
        if asked == HAND_OVER or runs_jobs(asked):
            if asked == HAND_OVER and owner.hand_over():
                return GONE
            raise BackendInUseError(str(owner.address.path), os.getpid())
        if isinstance(asked, Await):
            await owner.keep(asked.job_ids)
            return replied(None)
        return replied(await owner.call(asked))
    except QueueHintError as error:
        if owner.is_closed and isinstance(error, BackendUnavailableError):
            return GONE
        return refused(error)
    except Exception as error:
        logger.exception("a request of another process failed", extra={"event": "sqlite.request_failed"})
        problem = f"{owner.address.path}: the process that owns it failed with {type(error).__name__}"
        if type(asked) in UNWRITTEN:
            return refused(BackendError(f"{problem}; nothing was changed"))
        return refused(OutcomeUnknownError(f"{problem}; the operation may have been done"))
