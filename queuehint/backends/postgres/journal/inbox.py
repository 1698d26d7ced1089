"""The inbox of a namespace: what applications have written in transactions of their own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from queuehint.backends.postgres.journal.positions import Positions
from queuehint.backends.postgres.sessions.session import integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.backends.postgres.journal.connection import Connection
    from queuehint.backends.postgres.sessions.session import Row, Value


@attrs.frozen
class InboxRow:
    """A row of the inbox: what an application has written in a transaction of its own."""

    id: int
    position: int
    data: bytes = attrs.field(repr=False)
    written_us: int = attrs.field(default=0, repr=False)


class Inbox:
    """
    The rows that wait, as their leader sees them.

    Args:
        namespace: whose rows.

    Attributes:
        seen: see `queuehint.backends.journal.store.Journal`.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._positions = Positions()
        self.seen = 0
        self._turn = connection.turn
        self._returned: dict[int, InboxRow] = {}
        """The newest answer of `read`, by id."""

    def read(self, limit: int, number: int, mark: int, behind: int = 0) -> list[InboxRow] | None:
        """
        Return rows in the order of their transactions' commits.

        Args:
            limit: how many at most.
            number, mark: of the newest row of the journal; None is returned if that is not there, for then the inbox
                may have rows again that were taken.
            behind: see `Positions.ranges`.

        Raises:
            BackendError: as of `Connection.ask`.
        """
        self._begin_again_by_another()
        rows = self._read(limit, number, mark, behind)
        if self._begin_again_by_another():  # the connection was lost in between
            rows = self._read(limit, number, mark, behind)
        if rows is not None:
            self._returned = {row.id: row for row in rows}
        return rows

    def _read(self, limit: int, number: int, mark: int, behind: int) -> list[InboxRow] | None:
        positions, statements = self._positions, self._connection.statements
        firsts, lasts = positions.ranges(time.monotonic(), behind)
        values: tuple[Value, ...] = (self._namespace, positions.high, limit, number, mark)
        if firsts:
            found = self._connection.ask(statements.inbox_and_gaps, *values, firsts, lasts)
        else:
            found = self._connection.ask(statements.inbox, *values)
        rows = sorted([_row(row) for row in found if row[0] is not None], key=lambda row: row.position)
        [(*_, xmin, xmax, is_there)] = [row for row in found if row[0] is None]
        if not integer(is_there):
            return None
        found_at, is_whole = [row.position for row in rows], len(rows) < limit
        if is_whole and positions.asks_all:
            self.seen = integer(xmin)
        positions.saw(found_at, xmin=integer(xmin), xmax=integer(xmax), is_whole=is_whole)
        return rows[:limit]

    def find(self, ids: Sequence[int]) -> tuple[InboxRow, ...]:
        """Return rows of the newest answer of `read`."""
        return tuple([self._returned[row_id] for row_id in ids])

    def take(self, rows: Sequence[InboxRow]) -> None:
        """Take note that rows were taken out; of rows that another server had nothing is known."""
        if rows and self._turn == self._connection.turn:
            self._positions.take(sorted([row.position for row in rows]))

    def _begin_again_by_another(self) -> bool:
        """Begin with the first position if the server may be another one, which may draw some of them again."""
        is_another = self._turn != self._connection.turn
        if is_another:
            self._turn = self._connection.turn
            self._positions.reset()
            self.seen = 0
        return is_another


def _row(row: Row) -> InboxRow:
    row_id, position, written_us, data, *_ = row
    assert data is not None
    return InboxRow(integer(row_id), integer(position), data, integer(written_us))
