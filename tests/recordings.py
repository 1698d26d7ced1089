"""Data recorded by others, no part of this project: tests on it run where ``TESTS_RECORDINGS`` names its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "TESTS_RECORDINGS"


def recording(name: str) -> Path:
    """Return a file of the folder; skip the test where there is none."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"needs {name}, which is not part of this project: see {VARIABLE} in CONTRIBUTING.md")
    file = Path(folder) / name
    if not file.exists():
        pytest.skip(f"{VARIABLE} names a folder without {name}: see CONTRIBUTING.md")
    return file
