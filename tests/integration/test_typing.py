"""Both type checkers agree on what users may call: see `tests/typing`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from queuehint import testing

ROOT = Path(__file__).parents[2]

CHECKERS = [
    pytest.param(
        ["-m", "mypy", "--strict", "--warn-unused-ignores", "--config-file", "pyproject.toml", "tests/typing"],
        id="mypy",
    ),
    pytest.param(["-m", "basedpyright", "--pythonpath", sys.executable], id="basedpyright"),
]


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", CHECKERS)
def test_right_calls_pass_and_wrong_ones_are_found(arguments: list[str]) -> None:
    """By day `make type` says so."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_checkers_see_each_name_of_the_testing_kit_where_it_is() -> None:
    """It is imported by `__getattr__`, which no checker follows: what they read has to say the same."""
    module = ast.parse(Path(testing.__file__).read_text())
    (checked,) = [node for node in module.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module.removeprefix("queuehint.testing.")
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    assert seen == testing._MODULES
    assert sorted(testing.__all__) == sorted(seen)
    assert all(getattr(testing, name) is not None for name in seen)
