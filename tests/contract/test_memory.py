"""The rules on the memory backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.backends.base import BackendOptions
from queuehint.backends.memory import MemoryBackend
from queuehint.testing.contract import BackendConformance

if TYPE_CHECKING:
    from queuehint import Backend, FakeClock


class TestMemory(BackendConformance):
    def open(self, clock: FakeClock) -> Backend:
        return MemoryBackend(BackendOptions(clock=clock))
