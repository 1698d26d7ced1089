"""Both type checkers agree on what users may call: see `tests/typing`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECKERS = [
    pytest.param(
        ["-m", "mypy", "--strict", "--warn-unused-ignores", "--config-file", "pyproject.toml", "tests/typing"],
        id="mypy",
    ),
    pytest.param(["-m", "basedpyright", "--pythonpath", sys.executable], id="basedpyright"),
]


@pytest.mark.parametrize("arguments", CHECKERS)
def test_right_calls_pass_and_wrong_ones_are_found(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
