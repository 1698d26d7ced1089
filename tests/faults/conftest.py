"""Fixtures of fault tests beside `tests/conftest.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import app

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lines"
    monkeypatch.setenv(app.LINES, str(path))
    return path
