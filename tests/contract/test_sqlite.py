"""The rules on the SQLite backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from queuehint import Backend, FakeClock
from queuehint.backends.base import BackendOptions
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.testing.contract import BackendConformance, Store, Tokens
from tests.folders import quick_folder
from tests.journal_bindings import Leaders, Led


class Files(Leaders):
    """A file for each store, which is gone at the end of the test."""

    @pytest.fixture(autouse=True)
    def keep_places(self) -> Iterator[None]:
        self.opened = 0
        with quick_folder() as self.folder:
            yield

    shared: ClassVar = False

    def open(self, clock: FakeClock) -> Backend:
        self.opened += 1
        address = Address(path=self.folder / f"{self.opened}.db", durability="process", shared=self.shared)
        return SqliteBackend(address, BackendOptions(clock=clock))


class TestSqlite(Files, BackendConformance): ...


@pytest.mark.nightly
class TestSqliteOfAnApplication(Files, BackendConformance):
    shared: ClassVar = True


class Guests(Led, Files):
    """A store beside one that leads."""

    def open(self, clock: FakeClock) -> Backend:
        leader = self.lead(super().open(clock))
        assert isinstance(leader, SqliteBackend)
        return SqliteBackend(leader.address, BackendOptions(clock=clock))


@pytest.mark.nightly
class TestSqliteOverTheSocket(Guests, BackendConformance): ...


class TestTokensOfSqlite(Files, Tokens):
    def count_to(self, store: Store, count: int) -> None:
        assert isinstance(store.backend, SqliteBackend)
        engine = store.backend.engine
        engine.begin_epoch((engine.token >> 32 << 32) + count, engine.lifecycle.reap_from_ms)
