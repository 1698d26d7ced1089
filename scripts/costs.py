"""
Count what a change costs: ``python -m scripts.costs`` prints each count, made now, beside what is wanted.

The *product* is `queuehint` without its kit, which is `queuehint/testing`; Python and Lua are read. An ``import`` of
this module counts nothing. `tests/unit/test_house.py` holds the medians, and finds every place that is listed here.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import attrs

import queuehint
from queuehint import FakeClock, Scheduler
from queuehint.operations import KINDS
from queuehint.values.policy import Policy
from scripts.journeys import turn_of_a_worker

TOP = Path(queuehint.__file__).parents[1]
PRODUCT, TESTS = TOP / "queuehint", TOP / "tests"
KIT, LUA = PRODUCT / "testing", PRODUCT / "backends/redis/lua"

OPTION = "max_delay"
"""An option that is a range and hardly more; nothing else is called so."""
POLICY_FIELDS = 6
ROOMS_OF_CHECKS = ("operations/bounds.py", "schema/checks.py", "schema/compiled.py")
"""Of the product: all of their functions check."""

# A path and what stands in it once. One that is gone is taken from its list.
TABLES_OF_RANGES = (("docs/reference/limits.md", "| `timeout` of a job or of a flow, `start_within` |"),)
TWINS: tuple[tuple[str, str], ...] = ()
"""Written by hand beside the general way, which is slow, and to be kept equal to it."""
SERIALISERS = (
    ("queuehint/backends/redis/codec/specs.py", "def spec_head("),
    ("queuehint/backends/journal/guests/messages.py", "def replied("),
    ("queuehint/operations/wire.py", "def encode("),
)
"""Those of a `JobSpec`."""
ROOM = "queuehint.worker."


@attrs.frozen
class Row:
    """A line of the table: what is counted, how, and what is wanted at most, if anything."""

    text: str
    count: Callable[[], float]
    wanted: int | None = None


# --- files -------------------------------------------------------------------------------------------------------


@cache
def files(folder: Path, *suffixes: str) -> list[Path]:
    """Return the files below a folder with one of these endings."""
    return [path for path in sorted(folder.rglob("*")) if path.suffix in suffixes]


@cache
def words(path: Path) -> frozenset[str]:
    """Return the names that the code of a Python file uses, and its whole texts; not the words of its prose."""
    return frozenset(_names(compile(path.read_text("utf-8"), str(path), "exec")))


def _names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    yield from code.co_varnames
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from [item for item in constant if isinstance(item, str)]


def files_that_name(operation: str) -> list[Path]:
    """Return the Python files of product, kit and tests whose code names an operation, and the script that does it."""
    script = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
    python = [*files(PRODUCT, ".py"), *files(TESTS, ".py")]
    return [path for path in python if operation in words(path)] + [*LUA.glob(f"{script}.lua")]


def files_of_operations() -> list[int]:
    """Return in how many files each operation is named."""
    return [len(files_that_name(kind.__name__)) for kind in KINDS]


def files_of_an_operation() -> float:
    """Return the median over all operations."""
    return median(files_of_operations())


def files_of_an_option() -> list[Path]:
    """Return the files of product, kit and tests that name an option, with or without its unit."""
    named = re.compile(rf"\b{OPTION}(_ms)?\b")
    every = [*files(PRODUCT, ".py", ".lua"), *files(TESTS, ".py", ".txt")]
    return [path for path in every if named.search(path.read_text("utf-8"))]


def files_of_the_policy() -> list[Path]:
    """Return the Python files of product and kit that name many fields of `Policy`."""
    fields = {field.name for field in attrs.fields(Policy)}
    return [path for path in files(PRODUCT, ".py") if len(fields & words(path)) >= POLICY_FIELDS]


def lines(paths: Iterable[Path]) -> int:
    """Return how many lines files have in all."""
    return sum(path.read_text("utf-8").count("\n") for path in paths)


def listed(places: Iterable[tuple[str, str]]) -> int:
    """
    Return how many places there are.

    Raises:
        LookupError: naming one that is no longer there: its list says what is not so.
    """
    places = tuple(places)
    for path, text in places:
        file = TOP / path
        if not file.exists() or file.read_text("utf-8").count(text) != 1:
            raise LookupError(f"{path} has no {text!r}: take it from its list in {__name__}")
    return len(places)


# --- checks ------------------------------------------------------------------------------------------------------


def is_check(path: str, function: str) -> bool:
    """Return whether a function of the product checks: it says so in its name, or is in a room of checks."""
    return path in ROOMS_OF_CHECKS or "check" in function


@cache
def checks() -> tuple[int, int]:
    """Return how many functions of the product check, and their lines; those inside others count for themselves too."""
    found = [
        node
        for path in files(PRODUCT, ".py")
        if KIT not in path.parents
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_check(path.relative_to(PRODUCT).as_posix(), node.name)
    ]
    return len(found), sum((node.end_lineno or 0) - node.lineno + 1 for node in found)


@cache
def calls() -> Counter[str]:
    """Return the calls of Python functions that a flow of four jobs makes in memory: all, and those that check."""
    sched = Scheduler("memory://", clock=FakeClock())

    @sched.job(queue_hint=lambda doc: [doc])
    def part(doc: str) -> str:
        return doc

    def submit() -> None:
        with sched.flow_sync() as flow:
            first = flow.add(part, "a")
            both = [flow.add(part.using(after=[first]), doc) for doc in "bc"]
            flow.add(part.using(after=both), "d")

    found: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            found["all"] += 1
            if file.startswith((f"{PRODUCT}/", "<queuehint.")):  # in a file of the product, or compiled by it
                found["checks"] += is_check(file.removeprefix(f"{PRODUCT}/"), frame.f_code.co_name)

    for _ in range(2):
        submit()  # what is made at the first use does not count
    sys.setprofile(see)
    try:
        submit()
    finally:
        sys.setprofile(None)
    sched.close_sync()
    return found


# --- a worker ----------------------------------------------------------------------------------------------------


def callables_of_parts() -> list[str]:
    """Return what the parts of a worker hold of one another to call it: class and attribute of each."""
    # Of a store elsewhere, which is not asked: such a worker has all parts.
    return sorted(_callables(Scheduler("redis://localhost").make_worker(64)))


def _callables(worker: object) -> Iterator[str]:
    seen: dict[int, object] = {}
    parts = [worker]
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        for name, value in _attributes(part):
            if isinstance(value, MethodType):
                is_held = value.__self__ is not part and _is_part(value.__self__)
            else:
                is_held = isinstance(value, FunctionType) and value.__module__.startswith(ROOM)
            if is_held:
                yield f"{type(part).__name__}.{name}"
            elif _is_part(value):
                parts.append(value)


def _attributes(part: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(part, "__dict__", {}).items()
    for name in getattr(type(part), "__slots__", ()):
        yield name, getattr(part, name, None)


def _is_part(value: object) -> bool:
    return type(value).__module__.startswith(ROOM)


ROWS = (
    Row("files that name an operation, summed over all operations", lambda: sum(files_of_operations())),
    Row("files that name an operation, median (product, Lua, kit, tests)", files_of_an_operation, 12),
    Row(f"files that name an option, `{OPTION}`", lambda: len(files_of_an_option()), 12),
    Row("files that name six or more fields of `Policy`", lambda: len(files_of_the_policy()), 6),
    Row("operations", lambda: len(KINDS), 43),
    Row("Python calls of a flow of four jobs in memory", lambda: calls()["all"], 560),
    Row("of these, calls of functions that check", lambda: calls()["checks"], 80),
    Row("functions that check", lambda: checks()[0], 140),
    Row("their lines", lambda: checks()[1], 1_750),
    Row("tables of ranges", lambda: listed(TABLES_OF_RANGES), 1),
    Row("hand-written fast twins", lambda: listed(TWINS), 0),
    Row("serialisers of a `JobSpec`", lambda: listed(SERIALISERS), 2),
    Row("callables that the parts of a worker hold of one another", lambda: len(callables_of_parts()), 5),
    Row("calls into another file in a worker's turn in memory", lambda: len(turn_of_a_worker().steps), 100),
    Row("lines of the product", lambda: lines(files(PRODUCT, ".py", ".lua")) - lines(files(KIT, ".py")), 56_000),
    Row("lines of the kit", lambda: lines(files(KIT, ".py")), 25_000),
    Row("lines of the tests", lambda: lines(files(TESTS, ".py")), 71_000),
)

if __name__ == "__main__":
    for row in ROWS:
        print(f"{row.count():>8,.10g}  {'' if row.wanted is None else f'at most {row.wanted:,}':>14}  {row.text}")
