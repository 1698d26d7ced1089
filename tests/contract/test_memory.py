"""The rules on the memory backend."""

from __future__ import annotations

from queuehint import Backend, FakeClock
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.backends.memory import MemoryBackend
from queuehint.testing.contract import BackendConformance, Store, Tokens


class TestMemory(BackendConformance):
    def open(self, clock: FakeClock) -> Backend:
        return MemoryBackend(BackendOptions(clock=clock))

    def kept(self, backend: Backend) -> object:
        assert isinstance(backend, MemoryBackend)
        return list(freeze(backend.engine))


class TestTokensOfMemory(Tokens):
    def open(self, clock: FakeClock) -> Backend:
        return MemoryBackend(BackendOptions(clock=clock))

    def count_to(self, store: Store, count: int) -> None:
        assert isinstance(store.backend, MemoryBackend)
        engine = store.backend.engine
        engine.begin_epoch((engine.token >> 32 << 32) + count, engine.lifecycle.reap_from_ms)
