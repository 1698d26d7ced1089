"""The rules on the SQLite backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.snapshot import freeze, pack
from queuehint.testing.contract import BackendConformance, Binding, Tokens
from tests.folders import quick_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint import Backend, FakeClock
    from queuehint.testing.contract import Store


class Files(Binding):
    """A file for each store, which is gone at the end of the test."""

    @pytest.fixture(autouse=True)
    def keep_files(self) -> Iterator[None]:
        self.opened = 0
        with quick_folder() as self.folder:
            yield

    def open(self, clock: FakeClock) -> Backend:
        self.opened += 1
        address = Address(path=self.folder / f"{self.opened}.db", durability="process")
        return SqliteBackend(address, BackendOptions(clock=clock))


class TestSqlite(Files, BackendConformance):
    def kept(self, backend: Backend) -> object:
        assert isinstance(backend, SqliteBackend)
        return list(pack(freeze(backend.engine)))


class TestTokensOfSqlite(Files, Tokens):
    def count_to(self, store: Store, count: int) -> None:
        assert isinstance(store.backend, SqliteBackend)
        engine = store.backend.engine
        engine.begin_epoch((engine.token >> 32 << 32) + count, engine.lifecycle.reap_from_ms)
