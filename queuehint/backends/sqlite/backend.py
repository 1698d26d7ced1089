"""
The SQLite backend: the engine, and a write-ahead journal of its operations in a file.

Theory of operation. The engine is deterministic: the same operations at the same times give the same state. So the
durable data is not the state but the *journal*, the operations in the order in which they were applied, each with its
time; a *snapshot* of the engine replaces a long journal now and then, so that opening the file is quick.

    caller --ticket--> writer thread:  encode -> append to the journal, commit -> apply to the engine -> reply

- An operation is in the file before it is applied, and is applied before its reply is sent. If it cannot be
  written, nothing has changed anywhere. If the process dies in between, the operation may have been done without a
  reply: the next process replays it, and a repeated request (jobs by their ids, settlements by their tokens) gets its
  answer. An operation that the engine refuses is refused again in a replay, and changes as little.
- One thread writes. Operations that arrive while it is busy share one transaction, so the disk is waited for once for
  many callers, and never on an event loop.
- Questions change nothing and are answered at once, on the caller's own thread, by the engine. While an operation is
  being written they see no later time than its own, or the engine would be ahead of the file.
- The store's own changes are journaled too: the renewal of this process's leases, and each opening.
- One process at a time owns the file, and runs its jobs; others send it requests, `queuehint.backends.journal.guests`.
  The process that opens it has the lock, so all other lease holders are dead, and all their leases expire at once: a
  job is retried after a restart without waiting for its lease, and its loss is counted. Tokens count from a new epoch,
  in case a power failure lost operations that had no durable commit.
- When the engine and the file may differ (the disk failed during a commit, an operation raised an unexpected error) the
  engine is thrown away, and the next operation loads the file again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import secrets
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import attrs

from queuehint.backends.base import BackendOptions, say_retention_changed
from queuehint.backends.in_process import OWN_LEASE_MS
from queuehint.backends.journal.compaction import Compaction
from queuehint.backends.journal.doctor import Examine, examine
from queuehint.backends.journal.guests.messages import UNWRITTEN
from queuehint.backends.journal.guests.store import SharedStore
from queuehint.backends.journal.recovery import begin_engine, begin_with, recover, without_collector
from queuehint.backends.journal.writer import Ticket, under_lock, write
from queuehint.backends.sqlite.address import Address, parse_url
from queuehint.backends.sqlite.file import JournalFile
from queuehint.backends.sqlite.lock import take_lock
from queuehint.core.engine import EPOCH_BEGIN_S, Engine, EngineOptions
from queuehint.core.jobs.settled import place_anew
from queuehint.errors import (
    BackendError,
    BackendUnavailableError,
    OutcomeUnknownError,
    QueueHintError,
)
from queuehint.operations import CountRecords, List, Operation
from queuehint.operations.bounds import check_limits
from queuehint.operations.wire import QUESTIONS, Await, Extend, PlaceAnew, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from queuehint.backends.waiters import Waiter

Reply = TypeVar("Reply")
T = TypeVar("T")

MISSED_MAX: Final = 1000
SAY_EVERY_S: Final = 60.0
"""How often it is logged that the file is gone."""

_process: Final = secrets.token_hex(8)


class SqliteBackend(SharedStore):
    """
    `Engine` before a file.

    Args:
        address: where the file is; it is opened, or made, by the first call.
        options: the namespace is that of the file.
        engine_options: for tests, another budget.
    """

    kind: ClassVar = "sqlite"
    logger: ClassVar = logging.getLogger("queuehint.sqlite")
    unserved: ClassVar = "jobs are ready but no worker runs in this process, which has the file"

    def __init__(
        self, address: Address, options: BackendOptions | None = None, engine_options: EngineOptions | None = None
    ) -> None:
        self._options = options or BackendOptions()
        super().__init__(address, self._options)
        self._engine_options = attrs.evolve(
            engine_options or EngineOptions(), epoch_s=0, retention=self._options.retention
        )
        self._file: JournalFile | None = None
        self._queue: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._queueing = threading.Lock()
        self._missed: dict[int, Ticket] = {}
        """Tickets of canceled callers, by the identities of their operations."""
        self._writer: threading.Thread | None = None
        self._closing: Ticket | None = None
        self._until_ms: int | None = None
        """The time of the operation being written."""
        self._compaction: Compaction | None = None
        self._said_gone_s = -SAY_EVERY_S

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> SqliteBackend:
        """Make a store for what a URL names, see `queuehint.backends.sqlite.address.parse_url`; nothing is opened."""
        return cls(parse_url(url), options)

    @property
    def is_durable(self) -> bool:
        """Always true."""
        return True

    @property
    def identity(self) -> tuple[object, ...]:
        """Which file it is, and the namespace."""
        return "sqlite", self.address.path.resolve(), self.namespace

    # --- calls ---------------------------------------------------------------------------------------------------

    async def call(self, operation: Operation[Reply]) -> Reply:
        """
        Do one operation; once the file is open a question waits for nothing but its turn at the engine.

        After a cancellation, call with the same operation object again to get the answer that was missed: jobs that it
        claimed are not lost.

        Raises:
            BackendInUseError: another process has the file, and runs its jobs or does not answer.
            BackendDeniedError: the file must not be used, or by another release only.
            BackendFullError: the disk is full; nothing was changed.
            BackendUnavailableError: the file cannot be opened or written, the backend was closed, or this process was
                forked from the one that used it; nothing was changed.
            OutcomeUnknownError: the disk failed; the same operation may be called with again.
            CorruptStateError: the file is damaged.
        """
        self._check_usable()
        if type(operation) in QUESTIONS:
            if isinstance(operation, (List, CountRecords)) and self._is_open:
                await self._prepare(operation)
            answer = await self._apart(lambda: self._answer(operation))
            if answer:
                return answer[0]
        missed = self._missed.pop(id(operation), None)
        ticket = missed or Ticket(operation, asyncio.get_running_loop())
        if missed is None:
            self._submit(ticket)
        try:
            reply: Reply = await (ticket.waited() if missed is None else asyncio.to_thread(ticket.wait))
        except asyncio.CancelledError:
            with self._queueing:
                # The ticket holds the operation, so that no other one can have its identity.
                self._missed[id(operation)] = ticket
                while len(self._missed) > MISSED_MAX:
                    del self._missed[next(iter(self._missed))]
            raise
        return reply

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """Like `call`, for code without a loop."""
        self._check_usable()
        if type(operation) in QUESTIONS and (answer := self._answer(operation)):
            return answer[0]
        ticket = Ticket(operation)
        self._submit(ticket)
        reply: Reply = ticket.wait()
        return reply

    def _answer(self, question: Operation[Reply]) -> tuple[Reply] | None:
        """Answer a question; None if the file is not open, so that the writer has to open it first."""
        with self._lock:
            return (self._ask(question),) if self._is_open else None

    def _apart(self, act: Callable[[], T], undo: Callable[[T], None] | None = None) -> Coroutine[Any, Any, T]:
        return under_lock(self._lock, act, undo)

    def _leave_soon(self, waiter: Waiter) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._leave(waiter)
            finally:
                self._lock.release()
        else:
            asyncio.get_running_loop().run_in_executor(None, self._leave, waiter)

    def _ask(self, question: Operation[Reply]) -> Reply:
        now_ms = self._clock.now_ms()
        answer = self.engine.apply(question, now_ms if self._until_ms is None else min(now_ms, self._until_ms))
        return self._say_blocked(answer)

    async def _await_ends(self, job_ids: tuple[str, ...]) -> None:
        await self.call(Await(job_ids))

    def _await_ends_sync(self, job_ids: tuple[str, ...]) -> None:
        self.call_sync(Await(job_ids))

    async def close(self) -> None:
        """Close the file, with a snapshot if that is soon made, and wake all waiters."""
        mine = Ticket(None, asyncio.get_running_loop())
        ticket = self._begin_to_close(mine)
        try:
            if ticket is mine:
                await ticket.waited()
            elif ticket is not None:
                await asyncio.to_thread(ticket.wait)
        finally:
            self._wake_all()

    def close_sync(self) -> None:
        """Like `close`, for code without a loop."""
        ticket = self._begin_to_close(Ticket(None))
        if ticket is not None:
            ticket.wait()
        self._wake_all()

    def _begin_to_close(self, ticket: Ticket) -> Ticket | None:
        """Refuse further calls; return the ticket to wait for: this one, that of the first close, or None."""
        if self._is_gone():
            # In a fork the file is its parent's, and so is the thread; at the very end no thread goes on.
            self._closed = True
            return None
        with self._queueing:
            if not self._closed and self._writer is not None:
                self._closing = ticket
                self._queue.put(ticket)
            self._closed = True
            return self._closing

    def _check_usable(self) -> None:
        super()._check_usable()
        if sys.is_finalizing():
            raise BackendUnavailableError(
                f"the {self.kind} backend cannot run its thread: the interpreter is shutting down"
            )

    def _submit(self, ticket: Ticket) -> None:
        with self._queueing:
            self._check_usable()
            if self._writer is None:
                self._begin_use()
                writer = threading.Thread(
                    target=write,
                    args=(self._queue, self._do_together, self._patience_s, self._tidy_up, self._end),
                    daemon=True,
                    name="queuehint-sqlite",
                )
                try:
                    writer.start()
                except RuntimeError as error:  # too many threads, or the interpreter ends
                    raise BackendUnavailableError(f"{self.address.path} cannot be written: {error}") from error
                self._writer = writer
            self._queue.put(ticket)

    # --- the writer ----------------------------------------------------------------------------------------------

    def _do_together(self, batch: list[Ticket]) -> None:
        """Write, apply and answer a batch; errors go to the callers."""
        try:
            todo = batch if self._is_open and self._is_serving else self._open_or_ask(batch)
            if todo:
                self._do(todo)
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
            if not isinstance(error, QueueHintError):
                self._is_open = False  # the state of the engine is unknown
            for ticket in batch:
                if ticket.reply is None and ticket.error is None:
                    ticket.error = error
        finally:
            self._until_ms = None
            for ticket in batch:
                ticket.end()

    def _do(self, batch: list[Ticket]) -> None:
        assert self._file is not None
        with self._lock:
            now_ms = self._time_ms()
            self._until_ms = now_ms
            leases = self._own_leases(now_ms)
        rows: list[tuple[int, bytes]] = []
        if leases:
            rows.append((now_ms, encode(Extend(tuple(leases), OWN_LEASE_MS))))
        for ticket in batch:
            operation = ticket.operation
            assert operation is not None
            if type(operation) not in UNWRITTEN:
                try:
                    check_limits(operation)
                    rows.append((now_ms, encode(operation)))
                except Exception as error:  # noqa: BLE001 - who asked is told; the others have done nothing wrong
                    ticket.error = error
        self._append(rows)
        with self._lock:
            if leases:
                self.engine.extend(leases, OWN_LEASE_MS, now_ms)
            for ticket in batch:
                if not self._is_open:
                    ticket.error = ticket.error or OutcomeUnknownError(
                        f"{self.address.path}: something else failed; the operation is applied when it is read again"
                    )
                elif ticket.error is None:
                    self._do_one(ticket, now_ms)

    def _do_one(self, ticket: Ticket, now_ms: int) -> None:
        assert ticket.operation is not None
        try:
            if isinstance(ticket.operation, Await):
                self.engine.await_ends(ticket.operation.job_ids)
            elif isinstance(ticket.operation, PlaceAnew):
                place_anew(self.engine.table)
            elif isinstance(ticket.operation, Examine):
                ticket.reply = examine(self.engine, str(self.address.path))
            else:
                ticket.reply = self._apply(ticket.operation, now_ms)
        except QueueHintError as error:
            ticket.error = error
        except Exception as error:  # noqa: BLE001 - who asked is told
            # The engine may be half changed. The file is the truth, as for the next process.
            ticket.error = error
            self._is_open = False

    def _append(self, rows: list[tuple[int, bytes]], owner: str | None = None) -> None:
        if not rows:
            return
        assert self._file is not None
        self._check_there()
        try:
            self._file.append(rows, owner)
        except OutcomeUnknownError:
            self._is_open = False
            raise
        assert self._compaction is not None
        self._compaction.wrote(sum([len(data) for _, data in rows]), is_change=owner is None)

    def _check_there(self) -> None:
        """Refuse to go on with a file that its name leads to no more, and say so."""
        assert self._file is not None
        try:
            self._file.check_there()
        except BackendUnavailableError as error:
            now_s = time.monotonic()
            if now_s - self._said_gone_s >= SAY_EVERY_S:
                self._said_gone_s = now_s
                extra = {"event": "sqlite.file_gone", "path": str(self.address.path), "error": str(error)}
                message = "the file was removed, moved or replaced; nothing is written any more"
                self.logger.log(logging.ERROR, message, extra=extra)
            raise

    def _patience_s(self) -> float | None:
        return self._compaction.patience_s if self._compaction is not None and self._is_open else None

    def _tidy_up(self, *, is_idle: bool) -> None:
        """Leave the file if another process is to run its jobs, else go on with its compaction."""
        if not self._is_wanted:
            if self._is_open and self._compaction is not None:
                self._is_open = self._compaction.go_on(self._lock, is_idle=is_idle)
            return
        self._is_wanted = False
        if self._is_open and self._file_lock is not None and not self._adopted:
            self._leave_file()
            self._await_next()

    def _leave_file(self) -> None:
        """Close the file, with a last snapshot if that is soon done."""
        try:
            if self._is_open:
                with suppress(BackendUnavailableError):
                    self._check_there()
                    if self._compaction is not None:
                        self._compaction.close(self._lock)
        finally:
            with self._lock:
                self._is_open = False
                self._waiting.call_all()
            self._let_go()

    def _end(self, ticket: Ticket) -> None:
        """Close the file, and refuse late callers."""
        try:
            self._leave_file()
        finally:
            while True:
                ticket.end()
                try:
                    ticket = self._queue.get_nowait()
                except queue.Empty:
                    return
                ticket.error = BackendUnavailableError(f"the {self.kind} backend was closed")

    # --- the file ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Load the engine from the file, unless it is loaded."""
        if self._is_open:
            return
        had_lock = self._file_lock is not None
        self._let_go(keep_lock=True)
        try:
            if self._file_lock is None:
                self._file_lock = take_lock(self.address.path)
            self._file = JournalFile(self.address, self.namespace)
            with without_collector():
                found = recover(self._file, self._engine_options)
            self._compaction = Compaction(self.logger, found.engine, self._file, found)
            self._take_over(found.engine, self._file, found.snapshot_number)
        except BaseException:
            self._let_go(keep_lock=had_lock)
            raise
        with self._lock:
            self.engine = found.engine
            self._is_open = True
            self._waiting.call_all()
        if found.is_of_others:
            self._tidy_up(is_idle=False)

    def _take_over(self, engine: Engine, file: JournalFile, covered: int) -> None:
        """Journal that this process has opened the file, with its options."""
        owner = f"{os.getpid()}-{_process}"
        now_ms = max(self._clock.now_ms(), engine.now_ms)
        epoch_s = None if file.owner == owner else max(0, now_ms // 1000 - EPOCH_BEGIN_S)
        stated, kept = self._engine_options.retention, engine.state.options.retention
        begin = begin_with(attrs.evolve(self._engine_options, retention=stated or kept), epoch_s)
        if begin == begin_with(engine.state.options, None):
            return
        rows = file.number
        self._append([(now_ms, encode(begin))], owner)
        begin_engine(engine, begin, now_ms)
        if stated is not None and kept is not None and stated.in_ms() != kept.in_ms():
            say_retention_changed(self.logger, "sqlite", str(file.path), kept, stated)
        extra = {"event": "sqlite.opened", "path": str(file.path), "replayed": rows - covered}
        self.logger.info("file opened", extra=extra)

    def _let_go(self, *, keep_lock: bool = False) -> None:
        file, self._file = self._file, None
        compaction, self._compaction = self._compaction, None
        if compaction is not None:
            compaction.stop()
        if file is not None:
            try:
                file.close()
            except BackendError as error:
                extra = {"event": "sqlite.close_failed", "path": str(self.address.path), "error": str(error)}
                self.logger.warning("the file was not closed in order; nothing is lost", extra=extra)
        if self._file_lock is not None and not keep_lock:
            self._end_serving()
            self._file_lock.clear()
            self._file_lock.release()
            self._file_lock = None
