"""The journal of a namespace as a process reads it that does not lead, to lead next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.store import BehindError, Others, Position
from queuehint.backends.postgres.journal.connection import Connection
from queuehint.backends.postgres.journal.rows import PostgresRows, read_slice
from queuehint.backends.postgres.lead import STANDS_S, find_others, stand_by
from queuehint.backends.postgres.making import prepare
from queuehint.backends.postgres.sessions.session import Session, integer
from queuehint.errors import CorruptStateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.backends.postgres.address import Address


PATIENCE_S: Final = 1.0
"""How long a server that does not answer is tried: who reads tries again by itself, unless it is to end."""


class PostgresReader(PostgresRows):
    """
    A journal that another process leads, or nobody, see `queuehint.backends.journal.store.Reader`.

    Args:
        address: where the tables are; they are made if they are not there.

    Raises:
        BackendDeniedError, BackendUnavailableError: the server cannot be used.
    """

    def __init__(self, address: Address, namespace: str) -> None:
        super().__init__(address.shown, namespace)
        self._address = address
        self._session = Session(address)
        with self._session.begun():
            prepare(self._session, address)
            self._connection = Connection(address, PATIENCE_S)
        self._said_s = 0.0

    def refresh(self) -> Position:
        """Read which snapshot is the newest, and return up to where it goes."""
        found = self._connection.ask(self._connection.statements.header, self.namespace)
        self.header, self.covered = None, Position()
        for row in found:
            self._cover(row)
        return self.covered

    def rows_after(self, position: Position) -> Iterator[tuple[Position, int, bytes]]:
        """
        Yield the rows after a position that are there: their own positions, times, groups.

        Raises:
            BehindError: the first of them is not there, or of another history.
        """
        while True:
            try:
                found = read_slice(self._connection, self.namespace, position)
            except CorruptStateError as error:
                raise BehindError from error
            if not found:
                break
            yield from found
            position = found[-1][0]
        ahead = self._connection.ask(self._connection.statements.marks, self.namespace, position.number)
        if any(integer(number) > position.number for number, _, _ in ahead):
            # Either they have come in this moment, or those before them are gone.
            if not read_slice(self._connection, self.namespace, position):
                raise BehindError

    def others(self) -> Others:
        """Return what the row of the leader says."""
        with self._session.judged():
            return find_others(self._session, self._address, self.namespace)

    def stand_by(self) -> bool:
        """Say from time to time that this process stands by, and return whether nobody leads."""
        now_s = time.monotonic()
        says_so = now_s - self._said_s > STANDS_S / 3
        with self._session.judged():
            is_free = stand_by(self._session, self._address, self.namespace, says_so=says_so)
        if says_so:
            self._said_s = now_s
        return is_free

    def close(self) -> None:
        """End both connections."""
        self._connection.close()
        self._session.close()
