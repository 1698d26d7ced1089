"""The pytest plugin: fixtures for applications. Loaded by the entry point ``pytest11``."""

from __future__ import annotations

import pytest

__all__: list[str] = []

# Tests that others inherit: what fails in them is shown as in tests of one's own.
pytest.register_assert_rewrite("queuehint.testing.contract", "queuehint.testing.driver")
