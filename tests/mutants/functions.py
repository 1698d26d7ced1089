"""Where the functions of a file are, in Python and in Lua: what the anchor of a mutant names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

Span = tuple[int, int]
FILE_LEVEL: Final = ""
"""The name of what is in no function and in no class."""

_LUA_FUNCTION = re.compile(r"( *)(?:(?:local )?function ([\w.:]+)|(?:local )?([\w.]+) = function)\b")


@cache
def spans_by_function(text: str, suffix: str) -> dict[str, list[Span]]:
    """
    Return the spans of each function of a file, from its first line to the end of its last one.

    A function includes those inside it. A class, and `FILE_LEVEL`, are what is left outside their functions and
    classes. A name has several spans if several functions have it, such as those of a property.
    """
    offsets = [0]
    for line in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    found: dict[str, list[Span]] = {FILE_LEVEL: [(0, len(text))]}
    classes = {FILE_LEVEL}
    # What is inside of something comes after it.
    for name, first, end, is_class in _in_python(text) if suffix == ".py" else _in_lua(text):
        span = (offsets[first], offsets[end])
        for outer in classes:
            found[outer] = [part for known in found[outer] for part in _without(known, span)]
        found.setdefault(name, []).append(span)
        if is_class:
            classes.add(name)
    return found


def _without(span: Span, hole: Span) -> Iterator[Span]:
    (start, end), (hole_start, hole_end) = span, hole
    parts = ((start, min(end, hole_start)), (max(start, hole_end), end))
    yield from (part for part in parts if part[0] < part[1])


def _in_python(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Yield each function and class: its qualified name, its first line, the line behind its last, if it is a class."""
    rest: list[tuple[ast.AST, str]] = [(ast.parse(text), "")]
    while rest:
        outer, prefix = rest.pop()
        for node in ast.iter_child_nodes(outer):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min(part.lineno for part in (node, *node.decorator_list)) - 1
                assert node.end_lineno is not None
                yield prefix + node.name, first, node.end_lineno, isinstance(node, ast.ClassDef)
                rest.append((node, f"{prefix}{node.name}."))
            elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                rest.append((node, prefix))


def _in_lua(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Yield each function that has a name, by its indentation: it ends with the first line that has no more."""
    lines = text.splitlines()
    for first, line in enumerate(lines):
        found = _LUA_FUNCTION.match(line)
        if found is None:
            continue
        end = first + 1
        while end < len(lines) and (not lines[end] or lines[end].startswith(f"{found[1]} ")):
            end += 1
        if end < len(lines) and lines[end].startswith(f"{found[1]}end") and end > first + 1:
            end += 1
        else:
            # All of it is in one line.
            end = first + 1
        yield found[2] or found[3], first, end, False
