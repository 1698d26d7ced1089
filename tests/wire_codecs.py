"""The ways to pack and to read what goes over a connection to Redis: our own, and that of hiredis."""

from __future__ import annotations

from types import ModuleType

import pytest

from queuehint.backends.redis.connections import resp

WAYS = ("python", "hiredis")


def use(way: str, connections: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the connections of a module pack and read in a way; hiredis is what is there."""
    if way == "python":
        monkeypatch.setattr(connections, "open_reader", resp.Reader)
        monkeypatch.setattr(connections, "pack", resp.pack_words)
