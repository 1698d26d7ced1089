"""
The mutation gate: deliberate faults in the package, each of which some test must notice.

A mutant is a text in one function of the package and its replacement (`tests/mutants/texts` holds them all). To try it,
the package and the tests are copied into a folder of their own, the text is replaced in the copy, and its *catchers*
run there in processes of their own: as few tests as possible. Each catcher has to fail, by a test and not while tests
are collected: a copy that cannot be imported proves nothing. Nor does a catcher that fails without a mutant:
`try_catcher` runs one on an unchanged copy.

Mutants of order, exclusion, leases and edges have to be caught by the kit, `queuehint.testing`, because authors of
other backends rely on it alone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, get_args

import attrs

from tests.mutants.functions import spans_by_function

ROOT = Path(__file__).parents[2]
PACKAGE = "queuehint"
COPIED = (PACKAGE, "tests", "proof", "pyproject.toml")
LIMIT_S = 120.0
"""A catcher that takes longer hangs; alone, none takes a tenth of that."""

Kind = Literal[
    "order",
    "exclusion",
    "leases",
    "edges",
    "retries",
    "cancel",
    "records",
    "fairness",
    "limits",
    "schedules",
    "bounds",
    "worker",
    "wire",
    "memory",
    "api",
    "twin",
]
KINDS: Final = get_args(Kind)
OF_THE_KIT: Final = ("order", "exclusion", "leases", "edges")
"""Faults of these kinds have to be caught by the kit."""


@attrs.frozen
class Catcher:
    """
    Tests that are to notice a mutant, by what runs in `make test` and `make test-slow`, only with more examples.

    Args:
        arguments: of pytest.
        marks: which of them run; tests for the night do not unless they are named here.
        is_kit: they do nothing but bind a backend of ours to `queuehint.testing`.
        needs: a program without which they are skipped, and so notice nothing.
    """

    name: str
    arguments: tuple[str, ...]
    is_kit: bool = False
    needs: str | None = None
    marks: str = "not nightly"


def tests(*arguments: str, marks: str = "not nightly") -> Catcher:  # noqa: PT028 - no test
    """Return a catcher of tests of our own; a name with ``::`` in it is one test, or one class of them."""
    return Catcher(" ".join(argument.removeprefix("tests/") for argument in arguments), arguments, marks=marks)


@attrs.frozen(kw_only=True)
class Mutant:
    """
    One fault.

    Args:
        name: a sentence that says what is wrong.
        file: below `queuehint/`.
        function: in which it is, such as `Class.method`; `FILE_LEVEL` is what is in no function and no class.
        old: the lines of a text that stands in it once, without the indentation of the first.
        new: the lines of its replacement; ``None`` takes the lines of *old* away.
        caught_by: all of these have to fail.
        where: the file and the line that it is read from.
    """

    name: str
    kind: Kind
    file: str
    function: str
    old: tuple[str, ...]
    new: tuple[str, ...] | None
    caught_by: tuple[Catcher, ...]
    where: str

    @property
    def path(self) -> Path:
        """The file in this tree."""
        return ROOT / PACKAGE / self.file

    def apply(self, text: str) -> str:
        """
        Return the text of the file with the fault in it.

        Raises:
            StaleMutantError: the function is not there, or what is to be replaced is not in it, or more than once.
        """
        spans = spans_by_function(text, self.path.suffix).get(self.function)
        if spans is None:
            raise StaleMutantError(self, None)
        found = list(self._find(text, spans))
        if len(found) != 1:
            raise StaleMutantError(self, len(found))
        [(start, end, indent)] = found
        if self.new is None:
            return text[: start - len(indent)] + text[end + 1 :]
        return text[:start] + _indented(self.new, indent) + text[end:]

    def _find(self, text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
        """Yield where *old* starts and ends, as whole words, and the indentation of the line that it starts in."""
        start = -1
        while (start := text.find(self.old[0], start + 1)) >= 0:
            line = text[text.rfind("\n", 0, start) + 1 : start]
            indent = line[: len(line) - len(line.lstrip(" "))]
            whole = _indented(self.old, indent)
            end = start + len(whole)
            if (
                text.startswith(whole, start)
                and any(first <= start and end <= last for first, last in spans)
                and not _is_in_word(text, start)
                and not _is_in_word(text, end)
                and (self.new is not None or (line == indent and text.startswith("\n", end)))
            ):
                yield start, end, indent


def _indented(lines: tuple[str, ...], indent: str) -> str:
    """Return lines as a text of which all but the first are indented by as much more."""
    return "\n".join([lines[0], *(indent + line if line else "" for line in lines[1:])])


def _is_in_word(text: str, at: int) -> bool:
    return re.fullmatch(r"\w\w", text[at - 1 : at + 1]) is not None


class StaleMutantError(Exception):
    """The package has changed and the list of mutants has not: *count* is ``None`` if the function is gone."""

    def __init__(self, mutant: Mutant, count: int | None) -> None:
        self.mutant = mutant
        self.count = count

    def __str__(self) -> str:
        mutant = self.mutant
        said = f"{mutant.where}: the mutant {mutant.name!r} is out of date:"
        file = f"{PACKAGE}/{mutant.file}"
        if self.count is None:
            return f"{said} there is no function {mutant.function} in {file}"
        level = f"the function {mutant.function}" if mutant.function else "the lines outside functions and classes"
        what = "\n".join(mutant.old)
        whole = " as a line of its own" if mutant.new is None else ""
        return (
            f"{said} this stands {self.count} times{whole} in {level} of {file}, and has to stand there once:\n{what}"
        )


@attrs.frozen
class Verdict:
    """
    The result of one catcher on one copy.

    Args:
        failed: it noticed something; *by* is the first test that failed, *why* how.
        problem: it could not be run, so that it says nothing either way.
    """

    failed: bool
    seconds: float
    by: str = ""
    why: str = ""
    problem: str = ""


def try_mutant(mutant: Mutant) -> list[tuple[Catcher, Verdict]]:
    """Run the catchers of a mutant on a copy that has its fault."""
    with copy() as tree:
        file = tree / PACKAGE / mutant.file
        file.write_text(mutant.apply(file.read_text("utf-8")), "utf-8")
        # The copied one is of the same age as the file, as far as Python looks.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()
        return [(catcher, run(catcher, tree)) for catcher in mutant.caught_by]


def try_catcher(catcher: Catcher) -> Verdict:
    """Run a catcher on a copy without any fault, where it has to pass."""
    with copy() as tree:
        return run(catcher, tree)


@contextmanager
def copy() -> Iterator[Path]:
    """Copy what tests need of this tree, compiled files too; it goes when this is left."""
    with tempfile.TemporaryDirectory(prefix="queuehint-mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                # Files compiled by Coq are not needed for the comparison.
                ignored = shutil.ignore_patterns("build") if name == "proof" else None
                shutil.copytree(source, tree / name, ignore=ignored)
            else:
                shutil.copy2(source, tree / name)
        yield tree


_FAILED = re.compile(r"^(?:FAILED|ERROR|SUBFAILED\S*) (\S.*?)(?: - (.*))?$", re.MULTILINE)
_START: Final = """
import importlib.util, pathlib, sys
found = importlib.util.find_spec("queuehint").origin
if not pathlib.Path(found).is_relative_to(pathlib.Path.cwd()):
    sys.exit(f"the tests would import {found}")
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def run(catcher: Catcher, tree: Path) -> Verdict:
    """Run a catcher in a tree, in a process of its own."""
    if catcher.needs is not None and shutil.which(catcher.needs) is None:
        return Verdict(False, 0.0, problem=f"it needs {catcher.needs}")
    # Variables that pytest and its plugins set for their child processes are not for these.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environment |= {
        "PYTHONPATH": str(tree),
        "HYPOTHESIS_PROFILE": "gate",
        "QUEUEHINT_REQUIRE_REDIS": "1",
        "COLUMNS": "400",
    }
    options = ("-x", "-q", "-n", "0", "--tb=no", "-rfE", "-p", "no:cacheprovider")
    started_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", _START, *options, "-m", catcher.marks, *catcher.arguments],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            end_session(process.pid)
            process.communicate()
            return Verdict(True, time.monotonic() - started_s, "the time limit", f"nothing ended in {LIMIT_S:g} s")
    seconds = time.monotonic() - started_s
    # With a fault in it, a worker may leave a process behind that takes a CPU for ever.
    end_session(process.pid)
    found = _FAILED.search(output)
    if process.returncode == 0:
        return Verdict(False, seconds)
    if process.returncode != 1 or found is None:
        return Verdict(False, seconds, problem=f"pytest ended with {process.returncode}:\n{output}")
    return Verdict(True, seconds, found[1].removeprefix("tests/"), (found[2] or "")[:160])


def end_session(leader: int) -> None:
    """Kill all processes of a session, also those in process groups of their own."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == leader:
                os.kill(int(entry.name), signal.SIGKILL)
