"""The writer thread of a journal: tickets, batches, and fair access to its lock."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queuehint.backends.journal.groups import Request
    from queuehint.operations import Operation

T = TypeVar("T")


class TidyUp(Protocol):
    """Does what is to be done between two batches."""

    def __call__(self, *, is_idle: bool) -> None:
        """Do it; *is_idle* says that no ticket has come for a while."""


TOGETHER_MAX: Final = 500
"""How many operations are written in one transaction."""


class Ticket:
    """
    An operation with a waiting caller; None closes the store.

    Args:
        request: by which a repeat of the operation is known, if a guest has asked for it.
        data: the operation encoded, if it is so already.
        behind: the newest transaction of the caller's process whose rows of the inbox come before it; 0 for none.

    Attributes:
        line: of the journal, once it is known; None if it has none.
    """

    __slots__ = ("_done", "_future", "_loop", "behind", "data", "error", "line", "operation", "reply", "request")

    def __init__(
        self,
        operation: Operation[Any] | None,
        loop: asyncio.AbstractEventLoop | None = None,
        request: Request | None = None,
        data: bytes | None = None,
        behind: int = 0,
    ) -> None:
        self.operation = operation
        self.request = request
        self.data = data
        self.behind = behind
        self.line: bytes | None = None
        self.reply: Any = None
        self.error: BaseException | None = None
        self._loop = loop
        self._future: asyncio.Future[None] | None = None if loop is None else loop.create_future()
        self._done = threading.Lock()
        self._done.acquire()

    def end(self) -> Callable[[], None] | None:
        """Wake the caller; return what is to be called once, after all tickets of a batch have ended."""
        self._done.release()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:  # the loop that waited has been closed
                pass
        return None

    def _resolve(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def wait(self) -> Any:
        """Block this thread until it is done; return the reply."""
        with self._done:
            return self._answer()

    async def waited(self) -> Any:
        """Wait until it is done; return the reply."""
        assert self._future is not None
        await self._future
        return self._answer()

    def _answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.reply


def write(
    tickets: queue.SimpleQueue[Ticket],
    do_together: Callable[[list[Ticket]], None],
    patience_s: Callable[[], float | None],
    tidy_up: TidyUp,
    end: Callable[[Ticket], None],
) -> None:
    """
    Process tickets until the store is closed.

    Args:
        do_together: writes, applies and answers.
        patience_s: says how long to wait for tickets before tidying up without any; None for ever.
        tidy_up: called after each batch, once its callers have their answers, and after each wait in vain.
        end: closes the file, and answers tickets that came too late.
    """
    while True:
        try:
            batch = [tickets.get(timeout=patience_s())]
        except queue.Empty:
            tidy_up(is_idle=True)
            continue
        while len(batch) < TOGETHER_MAX and batch[-1].operation is not None:
            try:
                batch.append(tickets.get_nowait())
            except queue.Empty:
                break
        last = batch.pop() if batch[-1].operation is None else None
        if batch:
            do_together(batch)
        if last is not None:
            end(last)
            return
        tidy_up(is_idle=False)


def end_all(batch: Iterable[Ticket]) -> None:
    """Wake the callers of a batch."""
    last = dict.fromkeys([ticket.end() for ticket in batch])
    for call in last:
        if call is not None:
            call()


async def under_lock(lock: threading.RLock, act: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """
    Run a function that takes the lock: at once if it is free, else in a thread, because the writer may hold it long.

    Args:
        undo: called with the answer if its caller has gone.
    """
    if lock.acquire(blocking=False):
        try:
            return act()
        finally:
            lock.release()
    acting = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        return await asyncio.shield(acting)
    except asyncio.CancelledError:
        if undo is not None:
            acting.add_done_callback(lambda done: done.cancelled() or done.exception() or undo(done.result()))
        raise
