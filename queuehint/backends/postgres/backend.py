"""The PostgreSQL backend: a journal in a database, led by the process that holds its lease."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar

import attrs

from queuehint.backends.base import WHICH_DATABASE, BackendOptions, InboxAddress
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.lead import read_ways
from queuehint.backends.postgres.port.certificate import check_can_make
from queuehint.backends.postgres.sessions.session import Session, statement, text
from queuehint.backends.postgres.store import PostgresStore, Served

if TYPE_CHECKING:
    from queuehint.backends.postgres.address import Address
    from queuehint.core.engine import EngineOptions


class PostgresBackend(JournalBackend):
    """
    A store in a database.

    Args:
        address: where its tables are; they are made, and one of the processes leads, by the first call.
        options: the namespace, of which a schema has any number.
        engine_options: for tests, another budget.
    """

    kind: ClassVar = "postgres"
    logger: ClassVar = logging.getLogger("queuehint.postgres")

    def __init__(
        self, address: Address, options: BackendOptions | None = None, engine_options: EngineOptions | None = None
    ) -> None:
        options = options or BackendOptions()
        super().__init__(PostgresStore(address, options.namespace), options, engine_options)
        self.address = address
        self._inbox = InboxAddress(namespace=self.namespace, schema=address.schema)

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> PostgresBackend:
        """
        Make a store for what a URL names, see `queuehint.backends.postgres.address.parse_url`; nothing is opened.

        Raises:
            InvalidJobError: a part of the URL is missing, wrong or unknown.
            MissingExtraError: it asks for a port, and the extra ``crypto`` is not installed.
        """
        address = parse_url(url)
        if address.port is not None and address.may_lead:
            check_can_make(address.port)
        return cls(address, options)

    @property
    def is_local(self) -> bool:
        """Always false: the jobs are where the database is."""
        return False

    @property
    def inbox(self) -> InboxAddress:
        """Where jobs are written in a transaction of the application's."""
        return self._inbox

    async def find_inbox(self) -> InboxAddress:
        """
        Return `inbox` with its database.

        Raises:
            BackendDeniedError, BackendUnavailableError: the server cannot be asked.
        """
        if self._inbox.database is None:
            await asyncio.to_thread(self._find_database)
        return self._inbox

    def find_inbox_sync(self) -> InboxAddress:
        """Like `find_inbox`, for code without a loop."""
        if self._inbox.database is None:
            self._find_database()
        return self._inbox

    def _find_database(self) -> None:
        with closing(Session(self.address)) as session, session.judged():
            ((found,),) = session.run(statement("which", WHICH_DATABASE))
            self._inbox = attrs.evolve(self._inbox, database=text(found))

    def lead_facts(self) -> dict[str, str]:
        """Add the port at which the leader answers other machines."""
        facts = super().lead_facts()
        service, leader = self._service, self._leader
        port = None
        if self.is_leading and isinstance(service, Served):
            port = service.port
        elif leader is not None and leader.address:
            offer = read_ways(leader.address).offer
            port = None if offer is None else offer.where
        return {**facts, "port": port or "none"} if facts else {}

    @property
    def identity(self) -> tuple[object, ...]:
        """Which tables they are, as far as the URL tells, and the namespace."""
        return "postgres", *self.address.place, self.namespace
