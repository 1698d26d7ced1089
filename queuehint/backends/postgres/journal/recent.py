"""The last rows that a process has written into a journal, kept to be written again."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.postgres.journal.inbox import InboxRow

if TYPE_CHECKING:
    from collections.abc import Iterator

RECENT_BYTES: Final = 32 << 20
RECENT_ROWS: Final = 4_096
"""How much is kept: some seconds of full load."""


def mark_of(before: int, at_ms: int, data: bytes) -> int:
    """
    Return the mark of a row.

    Args:
        before: the mark of the row before, 0 for the first one.

    >>> mark_of(0, 1, b"x") != mark_of(0, 2, b"x") != mark_of(1, 2, b"x")
    True
    """
    digest = blake2b(b"%d %d " % (before, at_ms), digest_size=8)
    digest.update(data)
    return int.from_bytes(digest.digest(), "big", signed=True)


@attrs.frozen
class RecentRow:
    """A row as it was written, with the mark of the row before, and what it took out of the inbox."""

    number: int
    at_ms: int
    data: bytes = attrs.field(repr=False)
    before: int
    mark: int
    owner: str | None
    taken: tuple[InboxRow, ...]

    @property
    def size(self) -> int:
        """How many bytes it keeps in memory."""
        return len(self.data) + sum([len(row.data) for row in self.taken])


class RecentRows:
    """The newest rows, without a gap; up to `RECENT_ROWS` of them and `RECENT_BYTES`."""

    def __init__(self) -> None:
        self._rows: deque[RecentRow] = deque()
        self._bytes = 0

    def __iter__(self) -> Iterator[RecentRow]:
        return iter(self._rows)

    def add(self, row: RecentRow) -> None:
        """Keep a row, and drop the oldest ones if there are too many."""
        rows = self._rows
        rows.append(row)
        self._bytes += row.size
        while len(rows) > RECENT_ROWS or (self._bytes > RECENT_BYTES and len(rows) > 1):
            self._bytes -= rows.popleft().size
