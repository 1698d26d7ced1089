"""Bindings of the contract to stores of a journal: what they keep, and stores beside one that leads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuehint import Backend
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.operations import Peek
from queuehint.testing.contract import Binding


class Leaders(Binding):
    """A store keeps what the engine of the process that leads has; by default that is its own."""

    @pytest.fixture(autouse=True)
    def keep_places(self) -> Iterator[None]:
        """Keep where the stores are until all of them are closed."""
        yield  # noqa: PT022 - a fixture that overrides it ends something

    def leader_of(self, backend: Backend) -> JournalBackend:
        assert isinstance(backend, JournalBackend)
        return backend

    def kept(self, backend: Backend) -> object:
        return list(freeze(self.leader_of(backend).engine))


class Led(Leaders):
    """A store beside one that leads."""

    @pytest.fixture(autouse=True)
    def keep_leaders(self, keep_places: None) -> Iterator[None]:
        self.leaders: list[JournalBackend] = []
        yield
        for leader in self.leaders:
            leader.close_sync()

    def leader_of(self, backend: Backend) -> JournalBackend:
        assert isinstance(backend, JournalBackend)
        return self.leaders[-1]

    def lead(self, leader: Backend) -> JournalBackend:
        """Have a store lead, until the end of the test."""
        assert isinstance(leader, JournalBackend)
        leader.call_sync(Peek())
        self.leaders.append(leader)
        return leader
