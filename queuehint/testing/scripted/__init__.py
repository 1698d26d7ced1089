"""A store that answers by script."""

from __future__ import annotations

from queuehint.testing.scripted.backend import ScriptedBackend

__all__ = ["ScriptedBackend"]
