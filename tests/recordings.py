"""
Data recorded by others, no part of this project: tests on it run where it is found.

``TESTS_RECORDINGS`` names its folder; without it ``../shared/data`` beside the working copy is looked into.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "TESTS_RECORDINGS"
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def recording(name: str) -> Path:
    """Return a file of the folder; skip the test where there is none."""
    file = Path(os.environ.get(VARIABLE) or BESIDE) / name
    if not file.exists():
        pytest.skip(f"needs {name}, which is not part of this project: see {VARIABLE} in CONTRIBUTING.md")
    return file
