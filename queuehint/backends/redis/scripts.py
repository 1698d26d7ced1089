"""
The Lua scripts: package data, put together from their includes.

A script begins with ``#!lua`` and a header that says what it takes and gives back. ``-- @include lib/jobs/fields``
puts a file in, by its path in the folder ``lua``, each once. A line ``local NAME, ... = 1, ... -- @const`` names
numbers or strings that are written in place of the names: Lua allows 200 locals, and a number costs nothing to look up.
``lib/jobs/moves`` is made from the table of legal moves, so that one table serves both backends.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final

from queuehint.core.jobs.states import MOVES
from queuehint.values.record import JobState

LETTERS: Final = {
    JobState.SCHEDULED: "S",
    JobState.DEFERRED: "D",
    JobState.QUEUED: "Q",
    JobState.STARTED: "R",
    JobState.FINISHED: "F",
    JobState.FAILED: "X",
    JobState.CANCELED: "C",
}
"""A state in a script: one letter."""
STATES: Final = {letter: state for state, letter in LETTERS.items()}

_INCLUDE = re.compile(r"^-- @include (\w+(?:/\w+)*)\n", re.MULTILINE)
_MOVES = "lib/jobs/moves"
_CONST = re.compile(r"^local ([\w, ]+) = (.+?) -- @const\n", re.MULTILINE)
_TOKEN = re.compile(r"--\[\[.*?\]\]|--[^\n]*|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*", re.DOTALL)


class Script:
    """One script: its name, text and SHA-1, by which a server that knows it runs it."""

    __slots__ = ("name", "sha", "text", "writes")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.writes = "no-writes" not in text.partition("\n")[0]
        """A replica refuses it."""


@cache
def script(name: str) -> Script:
    """Return a script by the path of its file in the folder ``lua``, without the ending."""
    return Script(name, assemble(_read(name)))


def names() -> list[str]:
    """Return the names of all scripts: those of the operations, then those of the doctor."""
    folder = files(__package__) / "lua"
    return [
        f"{prefix}{entry.name.removesuffix('.lua')}"
        for prefix, entries in (("", folder.iterdir()), ("doctor/", (folder / "doctor").iterdir()))
        for entry in sorted(entries, key=lambda entry: entry.name)
        if entry.name.endswith(".lua")
    ]


def assemble(text: str) -> str:
    """
    Expand the includes of a script and substitute its constants.

    Raises:
        ValueError: an include stands within itself, or a constant has two values.
    """
    shebang, _, body = text.partition("\n")
    included: set[str] = set()
    body = _included(body, included, ())
    constants: dict[str, str] = {}
    for found in _CONST.finditer(body):
        for name, value in zip(found[1].split(", "), found[2].split(", "), strict=True):
            if constants.setdefault(name, value) != value:
                raise ValueError(f"lua constant {name} is {constants[name]} and {value}")
    body = _CONST.sub("", body)

    def plain(token: re.Match[str]) -> str:
        if token[0].startswith("--"):
            return ""
        return constants.get(token[0], token[0])

    lines = (line.strip() for line in _TOKEN.sub(plain, body).split("\n"))
    return "\n".join([shebang, *(line for line in lines if line)])


def _included(text: str, done: set[str], above: tuple[str, ...]) -> str:
    def put_in(found: re.Match[str]) -> str:
        name = found[1]
        if name in above:
            raise ValueError(f"lua include {name} stands within itself: {' in '.join((name, *reversed(above)))}")
        if name in done:
            return ""
        done.add(name)
        return _included(_moves() if name == _MOVES else _read(name), done, (*above, name))

    return _INCLUDE.sub(put_in, text)


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")


def _moves() -> str:
    """Return the table of legal moves: for each state's letter those of the states it may become."""
    rows = [
        f"{LETTERS[state]} = '{''.join(LETTERS[target] for target in targets)}'"
        for state, targets in MOVES.items()
        if state is not None
    ]
    return f"local MOVES = {{{', '.join(rows)}}}\n"
