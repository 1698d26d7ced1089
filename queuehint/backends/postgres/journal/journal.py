"""
The journal of a namespace in PostgreSQL.

Each row has a *mark*, a digest of its data, its time and the mark of the row before, so that one mark stands for all of
the journal up to it. A leader knows the mark of the newest row; `append` writes the next one only behind exactly that.
So it notices at once if the server is not the one that it was: if the end of the journal is gone, as after a failover
to a replica that lagged, or if it is another journal.

- **The connection is lost.** Another one is made, in bounded time, and the row looked for by its number and mark: it
  was written, or is written again.
- **The end is gone.** The last rows are kept in memory, and those that are missing are written again, before anything
  else is read or written: until then the inbox has rows again that they took. A row of the inbox that is not there any
  more when it is taken belongs to a transaction that the server has lost, and comes by `PostgresJournal.lost`, for the
  engine above to cancel its jobs.
- **More is gone, or it is another journal.** The process is deposed, and everybody begins with what is there.

Large things go in slices, and there is no transaction of more than one statement.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NoReturn

import attrs

from queuehint.backends.journal.lead.leadership import DeposedError
from queuehint.backends.journal.store import BehindError, Header, Position
from queuehint.backends.postgres.journal.connection import Connection
from queuehint.backends.postgres.journal.inbox import Inbox, InboxRow
from queuehint.backends.postgres.journal.recent import RecentRow, RecentRows, mark_of
from queuehint.backends.postgres.journal.rows import PostgresRows, read_slice
from queuehint.backends.postgres.sessions.failures import LostError, RefusedError
from queuehint.backends.postgres.sessions.session import integer, text
from queuehint.errors import BackendError, BackendUnavailableError, CorruptStateError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from queuehint.backends.postgres.lead import PostgresLead
    from queuehint.backends.postgres.sessions.session import Row, Statement, Value

logger = logging.getLogger("queuehint.postgres")

LOOKS_EVERY_S: Final = 0.02
"""How often the inbox is looked into while nothing else is asked for."""
THERE_EVERY_S: Final = 1.0
"""How often it is looked whether the newest row is there."""
_TAKEN_BEFORE: Final = "23505"
"""The code of a key that is there already."""


class PostgresJournal(PostgresRows):
    """
    An open journal; used by one thread.

    Args:
        lead: the lead of its namespace.

    Attributes:
        name, number, header, owner: see `queuehint.backends.journal.store.Journal`.

    Raises:
        DeposedError: another process leads by now.
        BackendDeniedError, BackendUnavailableError: the server cannot be used.
        CorruptStateError: the newest rows are missing.
    """

    looks_every_s: float | None = LOOKS_EVERY_S
    looks_always: bool = False

    def __init__(self, lead: PostgresLead) -> None:
        super().__init__(lead.address.shown, lead.namespace)
        self.number = 0
        self.owner: str | None = None
        self._lost: list[bytes] = []
        """The data of rows of the inbox that were taken, and whose transactions the server has lost since."""
        self._lead = lead
        self._mine: tuple[Value, ...] = (lead.namespace, lead.epoch, lead.secret)
        self._recent = RecentRows()
        self._put_bytes: dict[int, int] = {}
        """The sizes of parts of a snapshot to come, by number."""
        self._cleared_rows = self._cleared_parts = -1
        """Below these there are only rows that were removed."""
        self._there_s = time.monotonic()
        self._connection = Connection(lead.address)
        self._turn = self._connection.turn
        self._inbox = Inbox(self._connection, lead.namespace)
        try:
            self._mark = self._read_state()
        except BaseException:
            self._connection.close()
            raise

    def _read_state(self) -> int:
        """Read what there is; return the mark of the newest row."""
        found = self._connection.ask(self._connection.statements.open, *self._mine)
        if not found:
            self._depose()
        ((owner, known, number, mark, *newest),) = found
        self.owner = text(owner)
        if newest[0] is not None:
            self._cover(newest)
        is_newer = integer(number) > self.covered.number
        self.number = integer(number) if is_newer else self.covered.number
        if self.number < integer(known):
            raise CorruptStateError(
                f"{self.name}: the journal of namespace {self.namespace} ends with row {self.number}, "
                f"and its leader had written row {integer(known)}"
            )
        self._lead.number = self.number
        return integer(mark) if is_newer else self.covered.mark

    def check_there(self) -> None:
        """
        Check that the newest row is there, and this process leads; about once a second, however often it is called.

        Raises:
            DeposedError: another process leads, or more than the end of the journal is gone.
            BackendUnavailableError: the server does not answer, or the tables were removed.
        """
        if time.monotonic() - self._there_s < THERE_EVERY_S:
            return
        self._there_s = time.monotonic()
        ((is_mine, is_there),) = self._connection.ask(
            self._connection.statements.there, *self._mine, self.number, self._mark
        )
        if not integer(is_mine):
            self._depose()
        if not integer(is_there):
            self._mend()

    def hurry(self) -> None:
        """Wait no more than a moment, from now on, for a server that does not answer; from any thread."""
        self._connection.hurry()

    def close(self) -> None:
        """Close the connection; the lead stays."""
        self._connection.close()

    # --- reading -------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """
        Yield the times, in ms since the epoch, and the groups after the snapshot.

        Raises:
            CorruptStateError: a row is missing or was changed.
        """
        for _, at_ms, data in self._rows_from(self.covered):
            yield at_ms, data

    def rows_after(self, position: Position) -> Iterator[tuple[Position, int, bytes]]:
        """
        Yield the rows after a position: their own positions, times, groups.

        Raises:
            BehindError: a snapshot goes further than the position, or it is of another history.
            CorruptStateError: a row is missing or was changed.
        """
        if position != self.covered:
            found = self._connection.ask(self._connection.statements.marks, self.namespace, position.number)
            there = [
                Position(integer(number), integer(mark)) for number, mark, is_header in found if not integer(is_header)
            ]
            if position.number < self.covered.number or position not in there:
                raise BehindError
        yield from self._rows_from(position)

    def _rows_from(self, position: Position) -> Iterator[tuple[Position, int, bytes]]:
        last = Position(self.number, self._mark)
        while position.number < last.number:
            found = read_slice(self._connection, self.namespace, position)
            if not found:
                raise CorruptStateError(f"{self.name} is damaged: row {position.number + 1} is missing or was changed")
            yield from found
            position = found[-1][0]
        if position != last:
            raise CorruptStateError(f"{self.name} is damaged: row {position.number} was changed")

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, at_ms: int, data: bytes, *, owner: str | None = None, taken: Sequence[int] = ()) -> None:
        """
        Write a group; once this returns it is as durable as was asked for.

        Args:
            owner: the new writer from here on, if it changes.
            taken: ids of the newest answer of `inbox`, whose rows are taken out of it in the same step.

        Raises:
            DeposedError: another process leads, or has written another journal; nothing was written.
            BackendFullError: there is no room; nothing was written.
            BackendUnavailableError, BackendDeniedError: nothing was written.
            OutcomeUnknownError: the server does not answer any more: only the journal can say, once it is read again.
        """
        rows = self._inbox.find(taken)
        row = RecentRow(self.number + 1, at_ms, data, self._mark, mark_of(self._mark, at_ms, data), owner, rows)
        self._write(row, mends=True)
        self.number = self._lead.number = row.number
        self._mark = row.mark
        if owner is not None:
            self.owner = owner
        self._inbox.take(rows)
        self._recent.add(row)

    def _write(self, row: RecentRow, *, mends: bool) -> None:
        """Write a row, however often it takes; the missing rows before it first if *mends*."""
        until_s: float | None = None
        may_be_written = False
        try:
            while True:
                try:
                    is_mine, is_written, gone = self._insert(row)
                except LostError as error:
                    may_be_written = may_be_written or error.is_sent
                    until_s = until_s or self._connection.patient_until_s()
                    self._connection.connect_again(error, until_s)
                    if may_be_written and self._has(row):
                        return
                    continue
                except RefusedError as error:
                    if error.code != _TAKEN_BEFORE:
                        raise self._connection.judgement(error) from error
                    if self._has(row):  # a statement of before the connection was lost has ended only now
                        return
                    self._depose()
                if is_written:
                    self._note_lost(row, gone)
                    return
                if not is_mine or not mends:
                    self._depose()
                self._mend()
        except BackendError as error:
            if may_be_written:
                raise OutcomeUnknownError(f"{error}; it may have been written") from error
            raise

    def _insert(self, row: RecentRow) -> tuple[bool, bool, bytes]:
        """Send the statement; return whether this process leads, whether it was done, and what left the inbox."""
        values: tuple[Value, ...] = (*self._mine, row.number, row.before, row.at_ms, row.mark, row.data)
        if row.taken or row.owner is not None:
            ids, written = [taken.id for taken in row.taken], [taken.written_us for taken in row.taken]
            found = self._connection.run(self._connection.statements.append_taken, *values, row.owner, ids, written)
        else:
            found = self._connection.run(self._connection.statements.append, *values)
        ((is_mine, is_written, gone, *_),) = found
        return is_mine == b"\x01", is_written == b"\x01", gone or b""

    def _has(self, row: RecentRow) -> bool:
        """
        Return whether a row is there, as it is to be.

        Raises:
            OutcomeUnknownError: a snapshot of another leader covers it, or another row of its number.
        """
        found = self._connection.ask(self._connection.statements.marks, self.namespace, row.number)
        if (row.number, row.mark) in [(integer(number), integer(mark)) for number, mark, _ in found]:
            return True
        if any(integer(number) >= row.number for number, _, is_header in found if integer(is_header)):
            raise OutcomeUnknownError(f"{self.name}: another process leads, and covers what may have been written")
        return False

    def _note_lost(self, row: RecentRow, gone: bytes) -> None:
        """Take note of rows of the inbox that were not there any more."""
        if gone.count(b",") + bool(gone) == len(row.taken):
            return
        there = {int(row_id) for row_id in gone.split(b",") if row_id}
        lost = [taken.data for taken in row.taken if taken.id not in there]
        self._lost += lost
        self._connection.doubt()
        logger.error(
            "the server has lost transactions whose rows of the inbox were taken before",
            extra={"event": "postgres.transactions_lost", "store": self.name, "rows": len(lost)},
        )

    def _mend(self) -> None:
        """
        Write the lost end of the journal again.

        Raises:
            DeposedError: more is missing than is known, or another process has written.
        """
        recent = list(self._recent)
        first = recent[0].number if recent else self.number + 1
        found = self._connection.ask(self._connection.statements.marks, self.namespace, first)
        marks = {integer(number): integer(mark) for number, mark, is_header in found if not integer(is_header)}
        covered = max([integer(number) for number, _, is_header in found if integer(is_header)], default=0)
        missing = [row for row in recent if row.number > covered and row.number not in marks]
        is_other = any(row.mark != marks.get(row.number, row.mark) for row in recent)
        if is_other or not missing or max(marks, default=0) > self.number:
            logger.error(
                "the journal is not the one that this process has written, or more than its end is missing",
                extra={"event": "postgres.journal_replaced", "store": self.name, "number": self.number},
            )
            self._depose()
        self._connection.doubt()
        for row in missing:
            self._write(row, mends=False)
        logger.warning(
            "the server had lost the end of the journal; it was written again",
            extra={"event": "postgres.journal_mended", "store": self.name, "rows": len(missing)},
        )

    @property
    def seen(self) -> int:
        """Return what the inbox has seen."""
        return self._inbox.seen

    def inbox(self, limit: int, behind: int = 0) -> list[InboxRow]:
        """
        Return what was written in transactions, in the order of their commits; it stays until `append` takes it.

        Args:
            limit: how many at most.
            behind: rows of this transaction, and of later ones, are looked for wherever they may be.

        Raises:
            DeposedError: more than the end of the journal is gone.
            BackendDeniedError, BackendUnavailableError: the server cannot be asked.
        """
        while (rows := self._inbox.read(limit, self.number, self._mark, behind)) is None:
            self._mend()
        return rows

    def lost(self) -> list[bytes]:
        """Return rows of the inbox that were taken, and whose transactions the server has lost since; each once."""
        found, self._lost = self._lost, []
        return found

    # --- snapshots -----------------------------------------------------------------------------------------------

    def after_snapshot(self) -> int:
        """Return the number that the first part of another snapshot has."""
        return 0 if self.header is None else self.header.first + self.header.parts

    def replace(self, parts: Iterable[bytes], header: Header) -> None:
        """
        Put a small snapshot in place of the older one and of the rows it covers, in one step.

        Args:
            header: without the number of parts, which are counted, and of the first one, which is `after_snapshot`.

        Raises:
            DeposedError: another process leads; all is as it was.
            BackendError: as of `append`; all is as it was.
        """
        whole = list(parts)
        header = attrs.evolve(header, first=self.after_snapshot(), parts=len(whole))
        self._set_header(self._connection.statements.replace, header, whole)

    def put(self, first: int, parts: Sequence[bytes]) -> None:
        """
        Write some parts of a snapshot to come; the disk is not waited for.

        Raises:
            DeposedError: another process leads; nothing was written.
            BackendError: as of `append`.
        """
        if first == self.after_snapshot():
            self._put_bytes.clear()
        self._change(self._connection.statements.put, first, list(parts))
        self._put_bytes.update(enumerate(map(len, parts), first))

    def switch(self, header: Header) -> None:
        """
        Have a snapshot count whose parts were put; all of them are on the disk then if that was asked for.

        Raises:
            DeposedError: another process leads; the older one counts.
            BackendError: as of `append`, or the server has lost some of the parts; the older one counts.
        """
        size = sum([self._put_bytes.get(part, 0) for part in range(header.first, header.first + header.parts)])
        self._set_header(self._connection.statements.switch, header, size)

    def _set_header(self, change: Statement, header: Header, of_parts: int | list[bytes]) -> None:
        said = header.number, header.layout, header.parts, header.release, header.options
        _, mark, *_ = self._change(change, header.first, of_parts, *said)
        if mark is None:
            raise BackendUnavailableError(
                f"{self.name}: parts of the snapshot, or the row that it goes up to, are not there any more; "
                "the older snapshot counts"
            )
        self._put_bytes.clear()
        self.header, self.covered = header, Position(header.number, integer(mark))

    def clear(self, parts: int, rows: int) -> bool:
        """
        Remove some of what the snapshot has replaced, and of one that was never finished.

        Return whether more may be left.

        Args:
            parts, rows: how many at most, of snapshots and of the journal.
        """
        if self.header is None:
            return False
        if self._turn != self._connection.turn:
            self._turn, self._cleared_rows, self._cleared_parts = self._connection.turn, -1, -1
        _, gone, part, number, *_ = self._change(
            self._connection.statements.clear, parts, rows, self._cleared_parts, self._cleared_rows
        )
        self._cleared_parts = self._cleared_parts if part is None else integer(part)
        self._cleared_rows = self._cleared_rows if number is None else integer(number)
        return integer(gone) > 0

    def _change(self, change: Statement, *values: Value) -> Row:
        """Do what may be done twice; return the answer."""
        (answer,) = self._connection.ask(change, *self._mine, *values)
        if not integer(answer[0]):
            self._depose()
        return answer

    def _depose(self) -> NoReturn:
        self._lead.depose()
        raise DeposedError
