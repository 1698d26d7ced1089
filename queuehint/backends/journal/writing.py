"""
Doing groups of operations in the process that leads: each is written in a row of the journal, and applied.

Most groups are written first, so that questions are answered meanwhile, and nothing has changed if that fails. One in
which workers ask for jobs is applied first, so that its row says which jobs were granted, see
`queuehint.backends.journal.decided`: the next leader may be of another release, whose rules would grant others. Until
the row is written the engine is *ahead* of the journal, and questions wait for the writer. If it cannot be written the
engine is thrown away and loaded again; the next such group is applied only after some row could be written, so that a
disk that stays full costs that once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queuehint.backends.base import BackendOptions
from queuehint.backends.in_process import OWN_LEASE_MS
from queuehint.backends.journal.decided import granted_line, standing_line
from queuehint.backends.journal.doctor import Examine, examine
from queuehint.backends.journal.groups import pack
from queuehint.backends.journal.guests.messages import UNWRITTEN
from queuehint.backends.journal.opening import OpenedStore
from queuehint.backends.journal.recovery import do
from queuehint.core.engine import EngineOptions
from queuehint.errors import OutcomeUnknownError, QueueHintError
from queuehint.operations import Peek
from queuehint.operations.wire import Extend, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.backends.journal.store import Store
    from queuehint.backends.journal.writer import Ticket

NUDGE: Final = Peek()
"""Asks for nothing that matters: the writer finds out who leads, and looks around."""


class WritingStore(OpenedStore):
    """
    A store that can lead and does groups of operations, on the thread of its writer.

    Args:
        store: where the journal is; it is opened, or made, by the first call.
        options: the namespace is that of the journal.
        engine_options: for tests, another budget.
    """

    def __init__(
        self, store: Store, options: BackendOptions | None = None, engine_options: EngineOptions | None = None
    ) -> None:
        super().__init__(store, options, engine_options)
        self._is_ahead = False
        """The engine has done what the journal does not have yet."""
        self._ends_standing = False
        """The newest row ends with the standing of the engine."""
        self._is_doubtful = False
        """A row could not be written when the engine was ahead, and none has been since."""

    def _do_group(
        self, todo: list[Ticket], lines: list[bytes], leases: list[tuple[str, int]], now_ms: int, *, claims: bool
    ) -> None:
        """
        Do operations, and write them in a row of the journal; *leases* are renewed first.

        Args:
            lines: of the operations.
            claims: workers may be granted jobs.
        """
        assert self._lead is not None
        if claims:
            self._do_ahead(todo, leases, now_ms)
            return
        if leases:
            lines.insert(0, encode(Extend(tuple(leases), OWN_LEASE_MS)))
        if lines:
            self._write_first(now_ms, lines)
        elif todo and not self._lead.may_answer():
            self._lead.renew()
        with self._lock:
            if leases:
                self.engine.extend(leases, OWN_LEASE_MS, now_ms)
            for ticket in todo:
                if self._is_open:
                    self._do_one(ticket, now_ms)
                else:
                    ticket.error = OutcomeUnknownError(
                        f"{self.name}: something else failed; the operation is applied when it is read again"
                    )

    def _write_first(self, now_ms: int, lines: list[bytes], taken: Sequence[int] = ()) -> None:
        """Write what is done next; and before it how the engine stands, unless the row before it ends with that."""
        count = len(lines)
        if not self._ends_standing:
            lines.insert(0, standing_line(self.engine))
        self._write(now_ms, lines, count, taken=taken)

    def _do_ahead(self, todo: list[Ticket], leases: list[tuple[str, int]], now_ms: int) -> None:
        """Do operations, and write them with the grants that were made; nothing has changed if that is not possible."""
        if self._is_doubtful:
            self._write_first(now_ms, [encode(NUDGE)])
            self._is_doubtful = False
        lines = [encode(Extend(tuple(leases), OWN_LEASE_MS))] if leases else []
        count = len(lines)
        with self._lock:
            self._is_ahead = True
            if leases:
                self.engine.extend(leases, OWN_LEASE_MS, now_ms)
            for ticket in todo:
                if not self._is_open:
                    ticket.error = OutcomeUnknownError(f"{self.name}: something else failed before it was done")
                    continue
                self._do_one(ticket, now_ms)
                line = ticket.line
                if line is not None and self._is_open:
                    count += 1
                    assert ticket.operation is not None
                    if ticket.operation.is_claim and ticket.error is None:
                        granted = granted_line(self.engine, ticket.reply.grants)
                        lines += (granted, line) if granted else (line,)
                    else:
                        lines.append(line)
            if self._is_open:
                lines.append(standing_line(self.engine))
        try:
            if count:
                self._write(now_ms, lines, count)
        except BaseException:
            self._is_open, self._is_doubtful = False, True
            for ticket in todo:
                ticket.reply = ticket.error = None
            raise
        finally:
            self._is_ahead = False
        self._token = max(self._token, self.engine.token)
        self._ends_standing = self._is_open

    def _do_one(self, ticket: Ticket, now_ms: int) -> None:
        operation, request = ticket.operation, ticket.request
        assert operation is not None
        try:
            if request is not None and (known := self._answers.find(request)) is not None:
                ticket.reply = known.reply_of(operation)
            elif isinstance(operation, Examine):
                ticket.reply = examine(self.engine, self.name)
            else:
                ticket.reply = do(self.engine, self._answers, operation, now_ms, self._apply)
                if type(operation) not in UNWRITTEN:
                    self._answers.keep(request, operation, ticket.reply)
        except QueueHintError as error:
            ticket.error = error
            if request is not None:
                self._answers.keep(request, operation, error)
        except Exception as error:  # noqa: BLE001 - who asked is told
            # The engine may be half changed. The journal is the truth, as for the next leader.
            ticket.error = error
            self._is_open = False

    def _write(
        self,
        now_ms: int,
        lines: list[bytes],
        operations: int,
        owner: str | None = None,
        taken: Sequence[int] = (),
    ) -> None:
        assert self._journal is not None
        self._check_there()
        self._ends_standing = False
        data = pack(lines)
        try:
            self._journal.append(now_ms, data, owner=owner, taken=taken)
        except OutcomeUnknownError:
            self._is_open = False
            raise
        assert self._compaction is not None
        self._compaction.wrote(operations, len(data), is_change=owner is None)
