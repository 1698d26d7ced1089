"""A store of a journal in PostgreSQL, opened by nobody yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.lead import PostgresLead, take_lead

if TYPE_CHECKING:
    from queuehint.backends.journal.store import Lead
    from queuehint.backends.postgres.address import Address


class PostgresStore:
    """
    The journal of a namespace.

    Args:
        address: where the tables are; a leader goes past a pooler if the address says how.

    Attributes:
        name: what errors call it.
    """

    def __init__(self, address: Address, namespace: str) -> None:
        self.name = address.shown
        self._address = address.for_leading
        self._namespace = namespace

    def take_lead(self) -> PostgresLead:
        """
        Take the lead; the tables are made if they are not there.

        Raises:
            LedElsewhereError: another process has it.
            BackendDeniedError: this user may not make or use the tables, they are of a later release, or the server is
                too old.
            BackendUnavailableError: the server cannot be reached.
        """
        return take_lead(self._address, self._namespace)

    def open(self, lead: Lead) -> PostgresJournal:
        """
        Open the journal.

        Raises:
            DeposedError: another process leads by now.
            BackendDeniedError, BackendUnavailableError: the server cannot be used.
            CorruptStateError: the newest rows are missing.
        """
        assert isinstance(lead, PostgresLead)
        return PostgresJournal(lead)
