"""Whatever is kept from call to call, on a server or in a process, is on the page of limits with its bound."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuehint.backends.redis import scripts

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "queuehint"
CACHES = {"cache", "lru_cache", "functools.cache", "functools.lru_cache"}
CONTAINERS = {"dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter"}
CONTAINERS |= {"WeakKeyDictionary", "WeakValueDictionary", "WeakSet"}
FILLED_AT_IMPORT = {
    ("replies.py", "REPLIES"),
    ("replies.py", "_READERS"),
    ("requests.py", "REQUESTS"),
    ("state.py", "HANDLERS"),
    ("forks.py", "_in_child"),
    ("__init__.py", "__all__"),
}
"""Registers of the package's own classes and functions."""
ONCE = re.compile(r"^ *local ([\w, ]+) = .*-- @once", re.MULTILINE)


def listed() -> set[tuple[str, str]]:
    """Return the pairs of a file and a name that the page of limits has."""
    page = (ROOT / "docs/reference/limits.md").read_text("utf-8")
    found: set[tuple[str, str]] = set()
    for row in page.partition("## What is remembered")[2].partition("\n## ")[0].splitlines():
        file = ""
        for word in re.findall(r"`([^`]+)`", row.partition(" | ")[0]) if row.startswith("|") else ():
            if word.endswith((".py", ".lua")):
                file = word.rpartition("/")[2]
            else:
                found.add((file, word))
    return found


def kept_in_lua() -> Iterator[tuple[str, str]]:
    """Yield the variables of the function library that keep their values from call to call."""
    for name in scripts.files_of_operations():
        for names in ONCE.findall(scripts.source(name)):
            yield from ((f"{name.rpartition('/')[2]}.lua", each) for each in names.split(", "))


def kept_in_python() -> Iterator[tuple[str, str]]:
    """Yield the caches of the package, and the containers of its modules that are filled later."""
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "testing" in path.parents:  # it runs in tests only
            continue
        tree = ast.parse(path.read_text("utf-8"))
        yield from ((path.name, name) for name in (*caches(tree), *containers(tree)))


def caches(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(map(is_cache, node.decorator_list)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            if any(isinstance(each, ast.Call) and is_cache(each.func) for each in ast.walk(node.value)):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)


def is_cache(node: ast.expr) -> bool:
    """Return whether this is a decorator that caches, or its call."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node) in CACHES


def containers(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        target, value = node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("Mapping["):
            continue
        is_empty = isinstance(value, (ast.Dict, ast.List, ast.Set)) and ast.unparse(value) in {"{}", "[]"}
        is_made = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in CONTAINERS
        if is_empty or (is_made and not getattr(value, "args", ())):
            yield ast.unparse(target)


def test_every_script_cache_is_on_the_limits_page() -> None:
    found = set(kept_in_lua())
    assert len(found) > 10
    assert found <= listed()


@pytest.mark.slow
def test_every_process_cache_is_on_the_limits_page() -> None:
    found = set(kept_in_python())
    assert found >= FILLED_AT_IMPORT, "a name here is of nothing any more"
    assert len(found) > 20
    assert found - FILLED_AT_IMPORT <= listed()


@pytest.mark.slow
def test_page_of_limits_lists_no_cache_that_is_gone() -> None:
    assert listed() == (set(kept_in_lua()) | set(kept_in_python())) - FILLED_AT_IMPORT


def test_unlisted_cache_is_found() -> None:
    text = "from functools import cache\n@cache\ndef f(): ...\n_kept: dict[str, int] = {}\n_made = OrderedDict()\n"
    tree = ast.parse(text + "class A:\n    def __init__(self): self._read = cache(read)\n_CONSTANT = {1: 2}\n")
    assert {*caches(tree), *containers(tree)} == {"f", "_read", "_kept", "_made"}
    assert ONCE.findall("local a, b = {}, 0 -- @once\nlocal c = {}\n") == ["a, b"]
