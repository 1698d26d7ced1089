"""The SQLite backend: a journal in a file, led by the process that has its lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from queuehint.backends.base import BackendOptions, FileInbox
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.sqlite.address import parse_url
from queuehint.backends.sqlite.store import FileStore

if TYPE_CHECKING:
    from queuehint.backends.sqlite.address import Address
    from queuehint.core.engine import EngineOptions


class SqliteBackend(JournalBackend):
    """
    A store in a file.

    Args:
        address: where the file is; it is opened, or made, by the first call.
        options: the namespace is that of the file.
        engine_options: for tests, another budget.
    """

    kind: ClassVar = "sqlite"
    logger: ClassVar = logging.getLogger("queuehint.sqlite")
    opened: ClassVar = "file"

    def __init__(
        self, address: Address, options: BackendOptions | None = None, engine_options: EngineOptions | None = None
    ) -> None:
        options = options or BackendOptions()
        super().__init__(FileStore(address, options.namespace), options, engine_options)
        self.address = address

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> SqliteBackend:
        """Make a store for what a URL names, see `queuehint.backends.sqlite.address.parse_url`; nothing is opened."""
        return cls(parse_url(url), options)

    @property
    def inbox(self) -> FileInbox | None:
        """Where jobs are written in a transaction of the application's, if the file is its database."""
        return FileInbox(namespace=self.namespace, path=self.address.path) if self.address.shared else None

    @property
    def identity(self) -> tuple[object, ...]:
        """Which file it is, and the namespace."""
        return "sqlite", self.address.path.resolve(), self.namespace
