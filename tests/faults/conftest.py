"""Fixtures of fault tests beside `tests/conftest.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import app


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lines"
    monkeypatch.setenv(app.LINES, str(path))
    return path
