"""Reading the journal of a namespace: rows and parts of snapshots, in slices, each one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.store import Header, Position
from queuehint.backends.postgres.journal.recent import mark_of
from queuehint.backends.postgres.sessions.session import integer, text
from queuehint.errors import CorruptStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from queuehint.backends.postgres.journal.connection import Connection

SLICE_ROWS: Final = 200
SLICE_PARTS: Final = 16
"""How many are read by one statement."""


def read_slice(connection: Connection, namespace: str, position: Position) -> list[tuple[Position, int, bytes]]:
    """
    Return the first rows after a position: their own positions, times, groups; as far as they follow one another.

    Raises:
        CorruptStateError: a row was changed.
        BackendError: the server cannot be asked.
    """
    number, mark = position.number, position.mark
    rows: list[tuple[Position, int, bytes]] = []
    for its_number, at_ms, its_mark, data in connection.ask(connection.statements.rows, namespace, number, SLICE_ROWS):
        assert data is not None
        if integer(its_number) != number + 1:
            break
        number, mark = number + 1, mark_of(mark, integer(at_ms), data)
        if integer(its_mark) != mark:
            raise CorruptStateError(f"the journal is damaged: row {number} is missing or was changed")
        rows.append((Position(number, mark), integer(at_ms), data))
    return rows


class PostgresRows:
    """
    A journal, to be read.

    Attributes:
        name: what errors call it.
        namespace: whose jobs it has.
        header: of the newest snapshot, None if there is none.
        covered: up to where that goes.
    """

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace
        self.header: Header | None = None
        self.covered = Position()
        self._connection: Connection

    def _cover(self, newest: Sequence[bytes | None]) -> None:
        """Take note of the newest snapshot, by the columns of its header."""
        number, mark, layout, first, parts, release, options = newest
        self.covered = Position(integer(number), integer(mark))
        self.header = Header(
            number=integer(number),
            layout=integer(layout),
            first=integer(first),
            parts=integer(parts),
            release=text(release) or "",
            options=text(options) or "",
        )

    def description(self) -> tuple[bytes, int]:
        """
        Return the last part of the snapshot, and how many bytes all have.

        Raises:
            CorruptStateError: some parts are missing.
        """
        header = self.header
        assert header is not None
        ((count, size, last),) = self._connection.ask(
            self._connection.statements.sizes, self.namespace, header.first, header.first + header.parts
        )
        if integer(count) != header.parts or last is None:
            raise CorruptStateError(f"{self.name}: parts of the snapshot are missing")
        return last, integer(size)

    def parts(self) -> Iterator[bytes]:
        """
        Yield all parts of the snapshot but the last one.

        Raises:
            CorruptStateError: some parts are missing.
        """
        header = self.header
        assert header is not None
        part, end = header.first, header.first + header.parts - 1
        while part < end:
            found = self._connection.ask(self._connection.statements.parts, self.namespace, part, end, SLICE_PARTS)
            for number, data in found:
                if integer(number) != part or data is None:
                    break
                part += 1
                yield data
            else:
                if found:
                    continue
            raise CorruptStateError(f"{self.name}: part {part} of the snapshot is missing")
