"""The rules on the SQLite backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from queuehint import Backend, FakeClock
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.operations import Peek
from queuehint.testing.contract import BackendConformance, Binding, Store, Tokens
from tests.folders import quick_folder


class Files(Binding):
    """A file for each store, which is gone at the end of the test."""

    @pytest.fixture(autouse=True)
    def keep_files(self) -> Iterator[None]:
        self.opened = 0
        with quick_folder() as self.folder:
            yield

    shared: ClassVar = False

    def open(self, clock: FakeClock) -> Backend:
        self.opened += 1
        address = Address(path=self.folder / f"{self.opened}.db", durability="process", shared=self.shared)
        return SqliteBackend(address, BackendOptions(clock=clock))


class TestSqlite(Files, BackendConformance):
    def kept(self, backend: Backend) -> object:
        assert isinstance(backend, SqliteBackend)
        return list(freeze(backend.engine))


@pytest.mark.nightly
class TestSqliteOfAnApplication(Files, BackendConformance):
    shared: ClassVar = True

    def kept(self, backend: Backend) -> object:
        assert isinstance(backend, SqliteBackend)
        return list(freeze(backend.engine))


class Guests(Files):
    """A store beside one that leads."""

    @pytest.fixture(autouse=True)
    def keep_leaders(self, keep_files: None) -> Iterator[None]:
        self.leaders: list[Backend] = []
        yield
        for leader in self.leaders:
            leader.close_sync()

    def open(self, clock: FakeClock) -> Backend:
        leader = super().open(clock)
        assert isinstance(leader, SqliteBackend)
        leader.call_sync(Peek())
        self.leaders.append(leader)
        return SqliteBackend(leader.address, BackendOptions(clock=clock))


@pytest.mark.nightly
class TestSqliteOverTheSocket(Guests, BackendConformance):
    def kept(self, backend: Backend) -> object:
        leader = self.leaders[-1]
        assert isinstance(leader, SqliteBackend)
        return list(freeze(leader.engine))


class TestTokensOfSqlite(Files, Tokens):
    def count_to(self, store: Store, count: int) -> None:
        assert isinstance(store.backend, SqliteBackend)
        engine = store.backend.engine
        engine.begin_epoch((engine.token >> 32 << 32) + count, engine.lifecycle.reap_from_ms)
