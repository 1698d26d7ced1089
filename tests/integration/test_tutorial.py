"""The tutorial of the testing kit shows the source and the output of the programs in `examples/queues`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUEUES = ROOT / "examples" / "queues"
TEXT = (ROOT / "docs" / "tutorial" / "testing.md").read_text()
SHOWN = dict(re.findall(r"^```console\n\$ python (\w+)\.py\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))


def run(name: str) -> str:
    """Run an example; return what it prints, without the frames of a traceback."""
    done = subprocess.run(
        [sys.executable, QUEUES / f"{name}.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    head, begin, error = done.stderr.partition("queuehint.testing.queue_check.QueueFaultError: ")
    assert done.returncode == (1 if begin else 0)
    assert head.startswith("Traceback") or not head
    return f"Traceback (most recent call last):\n  ...\n{begin}{error}" if begin else ""


def test_every_program_is_shown() -> None:
    assert set(SHOWN) == {file.stem for file in QUEUES.glob("*.py")} == {"fifo", "locks", "retries", "places", "waits"}


@pytest.mark.parametrize(
    "name", [name if name == "waits" else pytest.param(name, marks=pytest.mark.slow) for name in SHOWN]
)
def test_tutorial_program_is_shown_verbatim_and_prints_its_output(name: str) -> None:
    program = (QUEUES / f"{name}.py").read_text()
    if name == "places":
        # The page has the one method in which it differs from the program before it.
        method = re.search(r"^    def end\(.*?\n\n", program, re.DOTALL | re.MULTILINE)
        assert method
        before = (QUEUES / "retries.py").read_text()
        assert program == re.sub(r"^    def end\(.*?\n\n", method[0], before, flags=re.DOTALL | re.MULTILINE)
        program = dedent(method[0]).rstrip() + "\n"
    assert f"```python\n{program}```" in TEXT
    assert run(name) == SHOWN[name]


def test_the_first_counterexample_takes_ten_lines() -> None:
    lines = [line for line in (QUEUES / "fifo.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 10
