"""
Split Lua text into statements, as far as a function library needs it.

The text has no comments but ``-- @once``, and each statement begins on a line of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

ONCE: Final = "-- @once"
"""Ends the first line of a statement that runs once and not at every call."""
IDENTIFIER: Final = re.compile(r"(?<![\w.])(?!\d)\w+")
TOKEN: Final = re.compile(r"'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\d[\w.]*|\.\.+|[=~<>]=|\S", re.DOTALL)
_FUNCTION: Final = re.compile(r"(?:local )?function ([\w.]+)\(")
_LOCAL: Final = re.compile(r"local ([\w, ]+?)(?: = (.+))?$", re.DOTALL)
_LAZILY: Final = re.compile(r"lazily\(\w+, function\(\)$")
_MADE: Final = re.compile(r"\{|function\b|setmetatable\(")
_OPENS: Final = frozenset({"function", "do", "if", "repeat", "for", "while", "(", "{", "["})
_CLOSES: Final = frozenset({"end", "until", ")", "}", "]"})
_JOINS: Final = frozenset(
    {"and", "or", "not", "..", "+", "-", "*", "/", "%", "^", "=", "==", "~=", "<", ">", "<=", ">=", ",", "("}
)

Kind = Literal["function", "local", "block", "other"]


@attrs.frozen
class Statement:
    """
    One statement.

    Args:
        kind: ``block`` is what stands in a scope of its own and holds functions, *lines* without its first and last.
        names: of the locals, or of the function (with a point in it if it is a field).
        value: of the locals, "" for none.
        is_once: it is marked.
    """

    kind: Kind
    lines: list[str]
    names: tuple[str, ...] = ()
    value: str = ""
    is_once: bool = False

    @property
    def text(self) -> str:
        """Return the original text of the statement."""
        return "\n".join(self.lines)

    @property
    def holds_functions(self) -> bool:
        """Return whether the value of a local is a function or a table of functions."""
        return _MADE.match(self.value) is not None and "function" in words(self.value)

    @property
    def returns(self) -> bool:
        """Return whether the statement may end its text."""
        depth: list[str] = []
        for word in TOKEN.findall(self.text):
            if word == "return" and "function" not in depth:
                return True
            _step(word, depth)
        return False


def words(text: str) -> set[str]:
    """Return the names that occur in a text, but for those of fields behind a point."""
    return set(IDENTIFIER.findall(re.sub(r"'(?:\\.|[^'\\])*'", "''", text)))


def values(text: str) -> list[str]:
    """Return the expressions of a list."""
    found: list[str] = []
    depth: list[str] = []
    start = 0
    for token in TOKEN.finditer(text):
        if token[0] == "," and not depth:
            found.append(text[start : token.start()].strip())
            start = token.end()
        _step(token[0], depth)
    return [*found, text[start:].strip()]


def statements(lines: list[str]) -> Iterator[Statement]:
    """
    Take a text apart.

    Raises:
        ValueError: it does not end where its last statement does.
    """
    depth: list[str] = []
    here: list[str] = []
    last = ""
    for line in lines:
        tokens = TOKEN.findall(line.removesuffix(ONCE))
        if here and not depth and last not in _JOINS and tokens[0] not in _JOINS - {"("}:
            yield _statement(here)
            here = []
        here.append(line)
        for token in tokens:
            _step(token, depth)
        last = tokens[-1]
    if depth:
        raise ValueError(f"lua statement does not end: {here[0]!r}")
    if here:
        yield _statement(here)


def _step(token: str, depth: list[str]) -> None:
    if token == "do" and depth and depth[-1] in {"for", "while"}:
        depth[-1] = "loop"
    elif token in _OPENS:
        depth.append(token)
    elif token in _CLOSES:
        depth.pop()


def _statement(lines: list[str]) -> Statement:
    is_once = lines[0].endswith(ONCE)
    lines = [lines[0].removesuffix(ONCE).rstrip(), *lines[1:]]
    text = "\n".join(lines)
    if found := _FUNCTION.match(text):
        return Statement("function", lines, (found[1],))
    if found := _LOCAL.match(text):
        return Statement("local", lines, tuple(found[1].split(", ")), found[2] or "", is_once)
    if (lines[0] == "do" or _LAZILY.match(lines[0])) and "function" in words("\n".join(lines[1:])):
        return Statement("block", lines[1:-1])
    return Statement("other", lines, is_once=is_once)
