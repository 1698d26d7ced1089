"""A test that hangs fails by its name, in forks and without them; the tests beside it are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANGS = """
import time

def test_before(): ...

def test_spins():
    while True:
        pass

def test_between(): ...

def test_waits_in_finally():
    try:
        time.sleep(60)
    finally:
        time.sleep(60)

def test_after(): ...
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals and forks")]


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the tests that hang with a limit of two seconds; return the exit code and what was printed."""
    (folder / "test_hangs.py").write_text(HANGS)
    words: Sequence[str] = ("-c", os.devnull, "-p", "no:cacheprovider", "-p", "tests.forks", "-p", "tests.time_limit")
    command = [sys.executable, "-m", "pytest", "-v", f"--rootdir={folder}", *words, *arguments, "test_hangs.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TESTS_LIMIT_S": "2"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("forks", ["0", "2"])
def test_hanging_test_fails_with_its_stack(tmp_path: Path, forks: str) -> None:
    code, text = run(tmp_path, "--forks", forks, "--deselect", "test_hangs.py::test_waits_in_finally")
    assert code == 1, text
    assert "1 failed, 3 passed" in text
    assert "test_hangs.py::test_spins took longer than 2 s" in text
    assert re.search(r'test_hangs.py", line [0-9]+ in test_spins', text), text


def test_test_that_survives_its_limit_ends_its_fork_alone(tmp_path: Path) -> None:
    code, text = run(tmp_path, "--forks", "2", "--deselect", "test_hangs.py::test_spins")
    assert code == 1, text
    assert re.search("[23] passed", text), text  # one more where the other fork had taken it before
    assert re.search("test_hangs.py::test_waits_in_finally - its process died", text), text
    assert re.search(r'test_hangs.py", line [0-9]+ in test_waits_in_finally', text), text
