"""
The store of the process that leads: a thread that writes the journal and has the engine do what stands in it.

    caller --ticket--> writer thread:  encode -> append to the journal, commit -> apply to the engine -> reply

- An operation is in the journal and applied before its reply is sent. If it cannot be written, nothing has changed. If
  the process dies in between, the operation may have been done without a reply: the next leader replays it, and a
  repeated request (jobs by their ids, settlements by their tokens) gets its answer. An operation that the engine
  refuses is refused again in a replay, and changes as little.
- Which of both comes first, see `queuehint.backends.journal.writing`.
- One thread writes. Operations that arrive while it is busy share one row of the journal, so the disk is waited for
  once for many callers, and never on an event loop.
- Questions change nothing and are answered at once, on the caller's own thread, by the engine. While an operation is
  being written they see no later time than its own, or the engine would be ahead of the journal.
- The store's own changes are journaled too: the renewal of this process's leases, and each beginning to lead.
- When the engine and the journal may differ (the disk failed during a commit, an operation raised an unexpected error)
  the engine is thrown away, and the next operation loads the journal again.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from queuehint.backends.base import BackendOptions, release
from queuehint.backends.journal.groups import Request, line_of, line_of_row
from queuehint.backends.journal.guests.messages import UNWRITTEN
from queuehint.backends.journal.lead.leadership import DeposedError, LedElsewhereError
from queuehint.backends.journal.looks import Looks
from queuehint.backends.journal.recovery import take_in
from queuehint.backends.journal.snapshots.compaction import CLOSING_JOBS
from queuehint.backends.journal.snapshots.snapshot import SCHEMA
from queuehint.backends.journal.writer import Ticket, end_all, under_lock, write
from queuehint.backends.journal.writing import NUDGE, WritingStore
from queuehint.core.engine import EngineOptions
from queuehint.errors import (
    BackendUnavailableError,
    CorruptStateError,
    JobNotFoundError,
    QueueHintError,
)
from queuehint.operations import IDS_MAX, Cancel, Operation
from queuehint.operations.bounds import check_limits
from queuehint.operations.inbox import operations_of
from queuehint.operations.wire import QUESTIONS, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from queuehint.backends.base import Interest
    from queuehint.backends.journal.guests.greetings import Hello
    from queuehint.backends.journal.lead.leadership import Lead, Leader
    from queuehint.backends.journal.store import Service, Store
    from queuehint.backends.waiters import Waiter
    from queuehint.values.spec import JobSpec

Reply = TypeVar("Reply")
T = TypeVar("T")

GROUP_BYTES: Final = 8 << 20
"""A row of the journal is ended when it has so many bytes."""
ROWS_FIRST: Final = 16
ROWS_MAX: Final = 500
"""How many rows of the inbox are read at first, and at most: one may have 64 MiB, so more only after small ones."""
LOST: Final = "the server has lost the transaction in which it was enqueued"
"""The reason of jobs that are canceled because of that."""


class LeadingStore(WritingStore):
    """
    What a process does while it leads; see `queuehint.backends.journal.backend`.

    Args:
        store: where the journal is; it is opened, or made, by the first call.
        options: the namespace is that of the journal.
        engine_options: for tests, another budget.
    """

    def __init__(
        self, store: Store, options: BackendOptions | None = None, engine_options: EngineOptions | None = None
    ) -> None:
        super().__init__(store, options, engine_options)
        self._queue: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._queueing = threading.Lock()
        self._writer: threading.Thread | None = None
        self._closing: Ticket | None = None
        self._looks = Looks()
        self._rows_at_once = ROWS_FIRST

    # --- questions -----------------------------------------------------------------------------------------------

    def _answer(self, question: Operation[Reply], behind: int) -> tuple[Reply] | None:
        """
        Answer a question.

        Return None if this process does not lead, as far as it knows, if the engine is ahead of the journal, or if what
        is asked for may just have been written in a transaction, so that the writer looks into the inbox first: by the
        process that asks, a job that is not known, or all jobs.

        Args:
            behind: as of `Ticket`.
        """
        with self._lock:
            lead, journal = self._lead, self._journal
            if not self._is_open or self._is_ahead or lead is None or journal is None or not lead.may_answer():
                return None
            if journal.looks_every_s is None:
                return (self._ask(question),)
            if question.is_of_newest or not self._looks.is_seen(behind):
                return None
            try:
                reply = self._ask(question)
            except JobNotFoundError:
                return None
            return None if None in getattr(reply, "records", ()) else (reply,)

    def _ask(self, question: Operation[Reply]) -> Reply:
        now_ms = self._clock.now_ms()
        answer = self.engine.apply(question, now_ms if self._until_ms is None else min(now_ms, self._until_ms))
        return self._say_blocked(answer)

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

    def _enter(self, interest: Interest, timeout_s: float, wake: Callable[[], None]) -> Waiter | None:
        with self._lock:
            # The lead may have been left meanwhile: no waiter would be woken.
            return super()._enter(interest, timeout_s, wake) if self._is_open else None

    def _check_usable(self) -> None:
        super()._check_usable()
        if sys.is_finalizing():
            raise BackendUnavailableError(
                f"the {self.kind} backend cannot run its thread: the interpreter is shutting down"
            )

    def submit(self, ticket: Ticket) -> None:
        """
        Pass a ticket to the writer.

        Raises:
            BackendUnavailableError: the store was closed.
        """
        with self._queueing:
            self._check_usable()
            if self._writer is None:
                self._begin_use()
                writer = threading.Thread(
                    target=write,
                    args=(self._queue, self._do_together, self._patience_s, self._tidy_up, self._end),
                    daemon=True,
                    name=f"queuehint-{self.kind}",
                )
                try:
                    writer.start()
                except RuntimeError as error:  # too many threads, or the interpreter ends
                    raise BackendUnavailableError(f"{self.name} cannot be written: {error}") from error
                self._writer = writer
            self._queue.put(ticket)

    # --- guests, on the thread that serves them ------------------------------------------------------------------

    async def call_here(self, operation: Operation[Reply], behind: int) -> Reply:
        """
        Answer a question of a guest.

        Args:
            behind: as of `Ticket`.

        Raises:
            LedElsewhereError: this process leads no more.
        """
        self._check_usable()
        if self._is_open:
            await self._prepare(operation)
        if type(operation) in QUESTIONS and (answer := await self._apart(lambda: self._answer(operation, behind))):
            return answer[0]
        ticket = Ticket(operation, asyncio.get_running_loop(), behind=behind)
        self.submit(ticket)
        reply: Reply = await ticket.waited()
        return reply

    async def wait_here(self, interest: Interest, timeout_s: float) -> None:
        """Wait as a guest asks for; return at once if this process leads no more."""
        if self._is_open:
            await super().wait(interest, timeout_s)

    def hand_over(self, guest: Hello) -> bool:
        """
        Leave the lead to a process that is to lead.

        Return False if this one is, if the other one could not read the snapshot that is left, and while one that takes
        long is made for another release.
        """
        if self._holds_lead or SCHEMA not in guest.reads:
            return False
        self._is_wanted = True
        self._is_left_to_other = self._is_left_to_other or guest.release != release()
        with suppress(BackendUnavailableError):
            self.submit(Ticket(NUDGE))  # the writer leaves after it
        return not (self._is_left_to_other and self._is_open and len(self.engine.table.jobs) > CLOSING_JOBS)

    def guest_runs(self, *, runs: bool) -> None:
        """Note that the process of a guest runs jobs, or does not any more."""
        self._runners += 1 if runs else -1

    def expect(self, transaction: int) -> None:
        """Look for rows of a transaction that is to be committed, or was: now, and often while it goes on; no wait."""
        if self._looks.expect(transaction, time.monotonic()):
            with suppress(BackendUnavailableError):
                self.submit(Ticket(NUDGE))

    def look(self) -> None:
        """Look into the inbox, as this process was notified that rows were committed; no wait."""
        if self._is_open:
            self._looks.announce()
            with suppress(BackendUnavailableError):
                self.submit(Ticket(NUDGE))

    def _deposed(self) -> None:
        """Have the writer learn that another process leads, which it may not ask for long."""
        with suppress(BackendUnavailableError):
            self.submit(Ticket(NUDGE))

    def _serve(self, lead: Lead) -> Service:
        return self.store.serve(lead, self)

    def _watch_unserved(self, now_ms: int) -> None:
        if not self._runners:
            super()._watch_unserved(now_ms)

    # --- the writer ----------------------------------------------------------------------------------------------

    def _do_together(self, batch: list[Ticket]) -> None:
        """Write, apply and answer a batch; errors go to the callers."""
        try:
            if not (self._is_open and self._service is not None):
                self._looks.seen = 0
                self._open()
            self._do(batch)
        except LedElsewhereError as led:
            self._note_leader(led.leader)
            self._fail(batch, led)
        except DeposedError as error:
            self._let_go()
            with self._lock:
                self._waiting.call_all()
            self._fail(batch, error)
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
            if not isinstance(error, QueueHintError):
                self._is_open = False  # the state of the engine is unknown
            self._fail(batch, error)
        finally:
            self._until_ms = None
            end_all(batch)

    def _note_leader(self, leader: Leader) -> None:
        """Learn that another process leads."""

    @staticmethod
    def _fail(batch: list[Ticket], error: BaseException) -> None:
        for ticket in batch:
            if ticket.reply is None and ticket.error is None:
                ticket.error = error

    def _do(self, batch: list[Ticket]) -> None:
        """Do a batch, in as many rows of the journal as it takes."""
        with self._lock:
            now_ms = self._time_ms()
            self._until_ms = now_ms
            leases = self._own_leases(now_ms)
        self._take_rows(now_ms, batch)
        lines: list[bytes] = []
        todo: list[Ticket] = []
        size, asked, claims = 0, set[Request](), False
        for ticket in batch:
            operation = ticket.operation
            assert operation is not None
            try:
                line = self._line_of(ticket, asked)
            except Exception as error:  # noqa: BLE001 - who asked is told; the others have done nothing wrong
                ticket.error = error
                continue
            todo.append(ticket)
            ticket.line = line
            if line is not None:
                lines.append(line)
                claims = claims or operation.is_claim
                size += len(line)
                if size >= GROUP_BYTES:
                    self._do_group(todo, lines, leases, now_ms, claims=claims)
                    todo, lines, leases, size, claims = [], [], [], 0, False
        self._do_group(todo, lines, leases, now_ms, claims=claims)

    def _may_overlook(self, ticket: Ticket) -> bool:
        """Return whether somebody asks for what may just have been committed, or names a job that is not there."""
        operation, jobs = ticket.operation, self.engine.table.jobs
        assert operation is not None
        try:
            return type(operation) in UNWRITTEN or any(job_id not in jobs for job_id in operation.named)
        except Exception:  # noqa: BLE001 - it is malformed, and refused by name once its own line is made
            return False

    def _take_rows(self, now_ms: int, batch: Iterable[Ticket]) -> None:
        """
        Have what applications have written in their transactions take effect, in the order of their commits.

        Args:
            batch: what is done next, and may be about that.
        """
        journal = self._journal
        assert journal is not None
        if journal.looks_every_s is None:
            return
        behind = min([ticket.behind for ticket in batch if not self._looks.is_seen(ticket.behind)], default=0)
        is_due = behind or journal.looks_always or self._looks.is_due(time.monotonic())
        if not (is_due or any(map(self._may_overlook, batch))):
            return
        is_more, waits = True, False
        # The writers of a file ring its bell, and it is looked into before each change.
        is_announced = self._looks.begin(journal.looks_every_s, time.monotonic()) or behind > 0 or journal.looks_always
        while is_more and self._is_open:
            rows = journal.inbox(self._rows_at_once, behind)
            self._looks.plan(journal.looks_every_s, time.monotonic())
            is_more = len(rows) == self._rows_at_once
            self._rows_at_once = rows_after(self._rows_at_once, [len(row.data) for row in rows])
            lines: list[bytes] = []
            todo: list[tuple[Operation[Any], ...]] = []
            taken: list[int] = []
            size = 0
            for row in rows:
                if size >= GROUP_BYTES:
                    is_more = True
                    break
                try:
                    operations = operations_of(row.data)
                except CorruptStateError as error:
                    self._say_refused(error)
                else:
                    if self._is_under_way(operations, now_ms):
                        is_more, waits = False, True
                        break
                    todo.append(operations)
                    lines.append(line_of_row(row.data))
                    size += len(row.data)
                taken.append(row.id)
            if taken:
                if not is_announced:
                    self._looks.found(time.monotonic())
                    is_announced = True  # by one look they are found once
                self._write_first(now_ms, lines, taken)
                for operations in todo:
                    self._take_in(operations, now_ms)
        if not waits:
            self._looks.seen = journal.seen
        now_s = time.monotonic()
        self._looks.plan(self._looks.in_s(journal.looks_every_s, now_s), now_s)
        for data in journal.lost():
            self._cancel_lost(data)

    def _is_under_way(self, operations: Sequence[Operation[Any]], now_ms: int) -> bool:
        """Return whether jobs of a row are hidden in a submission under way: it waits, as do the rows behind it."""
        with self._lock:
            ids = (spec.id for each in operations for spec in _jobs_of(each))
            return self.engine.is_under_way(ids, now_ms)

    def _take_in(self, operations: Sequence[Operation[Any]], now_ms: int) -> None:
        """Have a row of the inbox take effect; between its parts, which are hidden, questions are answered."""

        def apply(operation: Operation[Any], at_ms: int) -> Any:
            with self._lock:
                return self._apply(operation, at_ms)

        try:
            take_in(operations, now_ms, apply)
        except QueueHintError as error:
            self._say_refused(error, [spec for each in operations for spec in _jobs_of(each)])
        except Exception:
            # The engine may be half changed. The journal is the truth, as for the next leader.
            self.logger.exception("a row of the inbox failed", extra={"event": f"{self.kind}.inbox_failed"})
            self._is_open = False

    def _say_refused(self, error: QueueHintError, jobs: Sequence[JobSpec] = ()) -> None:
        """Log a row of the inbox that has no effect; the first of its *jobs* by id and task, as no caller is told."""
        dropped = ""
        extra: dict[str, Any] = {"event": f"{self.kind}.inbox_refused", "error": f"{type(error).__name__}: {error}"}
        if jobs:
            extra |= {"job_id": jobs[0].id, "task": jobs[0].task, "jobs": len(jobs)}
            more = f" and {len(jobs) - 1} more" if jobs[1:] else ""
            dropped = f"job {jobs[0].id!r} of task {jobs[0].task!r}{more}: "
        message = "what was written in a transaction was refused, and is dropped: %s%s"
        self.logger.error(message, dropped, error, extra=extra)

    def _cancel_lost(self, data: bytes) -> None:
        """Cancel jobs whose transaction the server has lost after they were taken."""
        with suppress(CorruptStateError):
            ids = [spec.id for each in operations_of(data) for spec in _jobs_of(each)]
            for begin in range(0, len(ids), IDS_MAX):
                with suppress(BackendUnavailableError):
                    self.submit(Ticket(Cancel(tuple(ids[begin : begin + IDS_MAX]), LOST)))

    def _line_of(self, ticket: Ticket, asked: set[Request]) -> bytes | None:
        """Return the line of the journal for a ticket; None if it changes nothing, or repeats another one."""
        operation, request = ticket.operation, ticket.request
        assert operation is not None
        if type(operation) in UNWRITTEN:
            return None
        if request is not None:
            if request in asked or self._answers.find(request) is not None:
                return None
            asked.add(request)
        if ticket.data is None:
            check_limits(operation)
            return line_of(encode(operation), request)
        return line_of(ticket.data, request)

    def _patience_s(self) -> float | None:
        if self._compaction is None or self._journal is None or not self._is_open:
            return None
        looks_every_s, due_s = self._journal.looks_every_s, self._compaction.patience_s
        if looks_every_s is None:
            return due_s
        looks_in_s = self._looks.in_s(looks_every_s, time.monotonic())
        return looks_in_s if due_s is None else min(due_s, looks_in_s)

    def _tidy_up(self, *, is_idle: bool) -> None:
        """Leave the lead if another process is to lead, else go on with the compaction."""
        compaction = self._compaction if self._is_open else None
        if self._is_wanted:
            if compaction is None or self._holds_lead:
                self._is_wanted = self._is_left_to_other = False
                return
            if not self._is_left_to_other or compaction.has_followed_up:
                self._is_wanted = False
                self._leave_lead()
                self._await_next()
                return
        if is_idle and self._is_open:
            self._do_together([])
        if self._is_open and self._compaction is not None:
            self._is_open = self._compaction.go_on(self._lock, is_idle=is_idle)

    def _end(self, ticket: Ticket) -> None:
        """Close the journal, and refuse late callers."""
        try:
            self._leave_lead()
        finally:
            while True:
                end_all((ticket,))
                try:
                    ticket = self._queue.get_nowait()
                except queue.Empty:
                    return
                ticket.error = BackendUnavailableError(f"the {self.kind} backend was closed")


def rows_after(rows: int, sizes: Sequence[int]) -> int:
    """
    Return how many rows to read after so many, of these sizes in bytes.

    >>> rows_after(16, [1_000] * 16), rows_after(16, [1_000] * 5), rows_after(16, [1 << 20] * 16)
    (32, 16, 4)
    """
    if sum(sizes) > GROUP_BYTES:
        return max(rows // 4, 1)
    return min(rows * 2, ROWS_MAX) if len(sizes) == rows and sum(sizes) * 4 < GROUP_BYTES else rows


def _jobs_of(operation: Operation[Any]) -> Sequence[JobSpec]:
    """Return the jobs that an operation enqueues; a commit has their number."""
    found = getattr(operation, "jobs", ())
    return found if isinstance(found, tuple) else ()
