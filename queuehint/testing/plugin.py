"""The pytest plugin: fixtures for applications. Loaded by the entry point ``pytest11``."""

from __future__ import annotations

__all__: list[str] = []
