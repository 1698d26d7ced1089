"""Public names: both type checkers agree on their types (see `tests/typing`), and find them where they are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

import queuehint
from queuehint import EventKind, testing
from queuehint.values.event import EventWord

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


@pytest.mark.parametrize("package", [queuehint, testing], ids=lambda package: package.__name__)
def test_checkers_resolve_each_public_name_in_its_module(package: ModuleType) -> None:
    """Names are imported by `__getattr__`, which no checker follows."""
    assert package.__file__ is not None
    module = ast.parse(Path(package.__file__).read_text())
    checked = next(node for node in module.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module.removeprefix(f"{package.__name__}.")
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    assert seen == package._MODULES
    assert sorted(package.__all__) == sorted(seen)
    assert set(seen) < set(dir(package))
    assert all(getattr(package, name) is not None for name in seen)
    with pytest.raises(AttributeError, match=r"has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


def test_checkers_know_the_word_of_each_kind_of_event() -> None:
    assert set(get_args(EventWord)) == set(EventKind)
