"""
The interface of a store of a journal: rows, a snapshot, and who leads.

A row is a group of operations that were written together, see `queuehint.backends.journal.groups`; to a store it is
bytes. All of this is used by one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from queuehint.backends.journal.guests.doors import Door
    from queuehint.backends.journal.guests.host import Leading
    from queuehint.backends.journal.lead.leadership import Lead, Leader


@attrs.frozen(kw_only=True)
class Header:
    """
    Metadata of a snapshot.

    Args:
        number: of the last row of the journal that it covers.
        layout: the number of the layout of its parts.
        first: the number of its first part.
        parts: how many there are.
        release: the version of queuehint that made it.
        options: the operation `Begin`, encoded, that says with what options its engine goes on.
    """

    number: int = 0
    layout: int = 0
    first: int = 0
    parts: int = 0
    release: str = ""
    options: str = ""


@attrs.frozen
class Position:
    """
    A place in a journal.

    Args:
        number: of the row; 0 before the first.
        mark: of all rows up to it, in a store that has marks: an equal one is the same history.
    """

    number: int = 0
    mark: int = 0


@attrs.frozen
class Others:
    """
    Who else is there.

    Args:
        leads: a process leads.
        stands_by: one is ready to lead next.
    """

    leads: bool
    stands_by: bool


class BehindError(Exception):
    """The rows after a position are not there: a snapshot has replaced them, or it is of another history."""


class Reader(Protocol):
    """
    A journal as a process reads it that does not lead; for one thread.

    Attributes:
        name: what errors call it.
        header: of the newest snapshot when `refresh` was called last, None if there was none.
    """

    name: str
    header: Header | None

    def refresh(self) -> Position:
        """
        Read which snapshot is the newest, and return up to where it goes.

        Raises:
            BackendError: the store cannot be read.
        """

    def description(self) -> tuple[bytes, int]:
        """As of `Journal`; a `CorruptStateError` may mean that another snapshot counts by now."""

    def parts(self) -> Iterator[bytes]:
        """As of `Journal`; a `CorruptStateError` may mean that another snapshot counts by now."""

    def rows_after(self, position: Position) -> Iterator[tuple[Position, int, bytes]]:
        """
        Yield the rows after a position that are there: their own positions, times, groups.

        Raises:
            BehindError: the first of them is not there, and a later one is.
            BackendError: the store cannot be read.
        """

    def others(self) -> Others:
        """
        Return whether other processes lead and stand by; for one that does not stand by.

        Raises:
            BackendError: the store does not answer.
        """

    def stand_by(self) -> bool:
        """
        Say that this process is ready to lead, and return whether nobody leads.

        Raises:
            BackendError: the store does not answer.
        """

    def close(self) -> None:
        """Read no more, and stand by no more."""


class InboxRow(Protocol):
    """Operations that an application has written in a transaction of its own, see `queuehint.operations.inbox`."""

    @property
    def id(self) -> int:
        """By which it is taken."""

    @property
    def data(self) -> bytes:
        """Return what was written."""


class Journal(Protocol):
    """
    An open journal.

    Attributes:
        looks_every_s: how often to look into the inbox when nothing else is asked for; None if there is none.
        looks_always: a look costs next to nothing: what was committed before a call takes effect before it, too.
        name: what errors call it.
        number: of the newest row; rows are numbered from 1 on without a gap.
        header: of the newest snapshot, None if there is none.
        owner: the process that wrote the newest `append` that named one, None if there is none.
    """

    looks_every_s: float | None
    looks_always: bool
    name: str
    number: int
    header: Header | None
    owner: str | None

    def check_there(self) -> None:
        """
        Check that what is written can still be found by others.

        Raises:
            BackendUnavailableError: the journal was removed, moved or replaced.
        """

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """
        Yield the times, in ms since the epoch, and the groups after the snapshot.

        Raises:
            CorruptStateError: the journal is damaged.
        """

    def rows_after(self, position: Position) -> Iterator[tuple[Position, int, bytes]]:
        """
        Yield the rows after a position: their own positions, times, groups.

        Raises:
            BehindError: a snapshot goes further than the position, or it is of another history.
            CorruptStateError: the journal is damaged.
        """

    def append(self, at_ms: int, data: bytes, *, owner: str | None = None, taken: Sequence[int] = ()) -> None:
        """
        Write a group; once this returns it is as durable as was asked for.

        Args:
            owner: the new writer from here on, if it changes.
            taken: rows of the inbox that are taken out of it in the same step.

        Raises:
            DeposedError: another process leads; nothing was written.
            BackendFullError: there is no room; nothing was written.
            BackendUnavailableError, BackendDeniedError: nothing was written.
            OutcomeUnknownError: only the journal can say, once it is read again.
        """

    def description(self) -> tuple[bytes, int]:
        """
        Return the last part of the snapshot, and how many bytes all have.

        Raises:
            CorruptStateError: some parts are missing, or the journal is damaged.
        """

    def parts(self) -> Iterator[bytes]:
        """Yield all parts of the snapshot but the last one."""

    def after_snapshot(self) -> int:
        """Return the number that the first part of another snapshot has."""

    def replace(self, parts: Iterable[bytes], header: Header) -> None:
        """
        Put a small snapshot in place of the older one and of the rows it covers, in one step.

        Args:
            header: without the number of parts, which are counted, and begin at 0.

        Raises:
            BackendError: as of `append`; all is as it was.
        """

    def put(self, first: int, parts: Sequence[bytes]) -> None:
        """
        Write some parts of a snapshot to come.

        Raises:
            BackendError: as of `append`.
        """

    def switch(self, header: Header) -> None:
        """
        Have a snapshot count whose parts were put.

        Raises:
            BackendError: as of `append`; the older one counts.
        """

    def clear(self, parts: int, rows: int) -> bool:
        """
        Remove some of what the snapshot has replaced, and of one that was never finished.

        Return whether more may be left.

        Args:
            parts, rows: how many at most, of snapshots and of the journal.
        """

    def inbox(self, limit: int, behind: int = 0) -> Sequence[InboxRow]:
        """
        Return what was written in transactions of applications, in the order of their commits.

        It stays until `append` takes it.

        Args:
            limit: how many at most.
            behind: rows of this transaction, and of later ones, are looked for wherever they may be.

        Raises:
            BackendError: the store cannot be asked.
        """

    @property
    def seen(self) -> int:
        """Every transaction below this number had ended when the inbox was read whole last; 0 if that is not known."""

    def lost(self) -> Sequence[bytes]:
        """Return rows of the inbox that were taken, and whose transactions the store has lost since; each once."""

    def hurry(self) -> None:
        """Wait no more than a moment, from now on, for a store that does not answer; from any thread."""

    def close(self) -> None:
        """Close the journal; the lead stays."""


class Service(Protocol):
    """Serves guests, from its making until `close`."""

    def close(self) -> None:
        """Serve nobody any more; calls under way may end."""


class Store(Protocol):
    """
    Where a journal is, opened by nobody yet.

    Attributes:
        name: what errors call it.
    """

    name: str

    @property
    def may_lead(self) -> bool:
        """Return whether this process may lead, as far as its URL says."""

    def find_leader(self) -> Leader | None:
        """
        Return which process leads, None if none does.

        Raises:
            BackendDeniedError, BackendUnavailableError: the store cannot be used.
        """

    def take_lead(self, *, is_ready: bool) -> Lead:
        """
        Take the lead.

        Args:
            is_ready: this process has followed the journal; another one leaves it to one that stands by, for a moment.

        Raises:
            LedElsewhereError: another process has it.
            BackendDeniedError, BackendUnavailableError: the store cannot be used.
        """

    def read(self) -> Reader:
        """
        Begin to read the journal, which is made if it is not there.

        Raises:
            BackendError: as of `take_lead`.
        """

    def has_leader(self) -> bool:
        """
        Return whether another process leads by now, or is about to; for the one that has left the lead to it.

        Raises:
            OSError, BackendError: that cannot be found out.
        """

    def serve(self, lead: Lead, leading: Leading) -> Service:
        """
        Begin to serve guests, and announce where.

        Raises:
            OSError, BackendError: nobody can be served.
        """

    def door(self, leader: Leader) -> Door:
        """Return the way to the process that leads, which says where it is."""

    def open(self, lead: Lead) -> Journal:
        """
        Open the journal, which is made if it is not there.

        Raises:
            DeposedError: another process leads by now.
            BackendDeniedError: it must not be written; it is none of ours, or one of a newer release.
            BackendUnavailableError: it cannot be opened.
            CorruptStateError: it is damaged.
        """
