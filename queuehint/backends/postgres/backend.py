"""The PostgreSQL backend: a journal in a database, led by the process that holds its lease."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.store import PostgresStore

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

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> PostgresBackend:
        """Make a store for what a URL names, see `queuehint.backends.postgres.address.parse_url`; nothing is opened."""
        return cls(parse_url(url), options)

    @property
    def is_local(self) -> bool:
        """Always false: the jobs are where the database is."""
        return False

    @property
    def identity(self) -> tuple[object, ...]:
        """Which tables they are, as far as the URL tells, and the namespace."""
        return "postgres", *self.address.place, self.namespace
