"""An engine that follows a journal, as one does that another process leads."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from queuehint.backends.journal.recovery import History, OtherRulesError, Recovered, load, replay, without_collector
from queuehint.backends.journal.store import BehindError
from queuehint.errors import CorruptStateError

if TYPE_CHECKING:
    from queuehint.backends.journal.store import Journal, Reader
    from queuehint.core.engine import EngineOptions


class Replica:
    """
    An engine that follows a journal; for one thread.

    Args:
        reader: of the journal.

    Attributes:
        position: up to which it has followed.
        snapshot: up to where that went which it began with.
        is_used: its engine leads, or was to lead.

    Raises:
        BehindError: another snapshot counted before this one was read.
        BackendError: the store cannot be read, or has a snapshot of another layout.
    """

    def __init__(self, reader: Reader, options: EngineOptions) -> None:
        self.position = self.snapshot = reader.refresh()
        try:
            with without_collector():
                self._engine, self._answers, self._snapshot_bytes = load(reader, options)
        except CorruptStateError as error:
            if reader.refresh() != self.position:
                raise BehindError from error
            raise
        self._covered = self.position.number
        self._rows: deque[tuple[int, int, int]] = deque()
        """Of the rows that no snapshot covers, as far as is known: numbers, operations, bytes."""
        self._history = History.of(reader, may_follow=False)
        self.is_used = False

    def follow(self, source: Reader | Journal) -> int:
        """
        Apply the rows that have come; return how many.

        Raises:
            BehindError: as of `Reader.rows_after`.
            OtherRulesError: another release writes them, which alone decides; or this one decided otherwise.
            BackendError: the store cannot be read, or is damaged.
        """
        count = 0
        for position, at_ms, data in source.rows_after(self.position):
            operations = replay(self._history, self._engine, self._answers, at_ms, data)
            self._rows.append((position.number, operations, len(data)))
            self.position = position
            count += 1
        return count

    def forget(self, covered: int) -> None:
        """Take note that a snapshot covers the rows up to a number."""
        self._covered = max(self._covered, covered)
        while self._rows and self._rows[0][0] <= covered:
            self._rows.popleft()

    @property
    def rows(self) -> int:
        """How many rows no snapshot covers, as far as is known."""
        return len(self._rows)

    def taken_over(self, journal: Journal) -> Recovered | None:
        """
        Return what the journal makes, once this process leads; None if it is not the one that was followed.

        Raises:
            BackendError: as of `Journal.rows_after`.
        """
        self.is_used = True
        try:
            self.follow(journal)
        except (BehindError, OtherRulesError):
            return None
        if journal.header is not None:
            self.forget(journal.header.number)
        return Recovered(
            engine=self._engine,
            answers=self._answers,
            is_of_others=False,
            snapshot_bytes=self._snapshot_bytes,
            snapshot_number=self._covered,
            journaled_bytes=sum([size for _, _, size in self._rows]),
            journaled=sum([operations for _, operations, _ in self._rows]),
        )
