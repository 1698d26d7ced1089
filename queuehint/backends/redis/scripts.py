"""
The Lua scripts: package data, put together from their includes.

A script begins with ``#!lua`` and a header that describes its arguments and its reply. ``-- @include lib/jobs/fields``
inserts a file once, by its path in the folder ``lua``. A line ``local NAME, ... = 1, ... -- @const`` defines constants
that are inlined: Lua allows 200 locals, and a literal needs no lookup.
``lib/jobs/moves`` is made from the table of legal moves, so that one table serves both backends; ``lib/jobs/policies``
from the fields of `Policy` that rules read: their places in its line, their words and their defaults.

The library of functions is built from the same files; `queuehint.backends.redis.functions.library` says which code
runs once there and which at every call. ``-- @once`` marks a variable that is kept from call to call.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache, cached_property
from importlib.resources import files
from typing import Final

from queuehint.core.jobs.states import MOVES
from queuehint.schema.annotations import ruled
from queuehint.schema.kinds import Choice, Kind, Optional
from queuehint.values.policy import DEFAULT_POLICY, Policy
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

INCLUDE = re.compile(r"^-- @include (\w+(?:/\w+)*)\n", re.MULTILINE)
CONST = re.compile(r"^local ([\w, ]+) = (.+?) -- @const\n", re.MULTILINE)
_TOKEN = re.compile(r"--\[\[.*?\]\]|--[^\n]*|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*", re.DOTALL)


class Script:
    """One script by its name, assembled at its first use."""

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name = name
        self.writes = "no-writes" not in flags_of(text or source(name))
        """A replica refuses it."""
        self.is_function = "/" not in name
        """The library has it too; those of the doctor are rarely run, and stand between the rules and the server."""
        self.words: tuple[str, str] | None = None
        """The command and the name by which it is called as a function, cached by the caller."""
        if text is not None:
            self.text = text

    @cached_property
    def text(self) -> str:
        """Return the text for a server that has not loaded the script."""
        return assemble(source(self.name))

    @cached_property
    def sha(self) -> str:
        """Return the SHA-1 by which a server runs the loaded script."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@cache
def script(name: str) -> Script:
    """Return a script by the path of its file in the folder ``lua``, without the ending."""
    return Script(name)


def names() -> list[str]:
    """Return the names of all scripts: the operations' first, then the doctor's."""
    folder = files(__package__) / "lua"
    return [
        f"{prefix}{entry.name.removesuffix('.lua')}"
        for prefix, entries in (("", folder.iterdir()), ("doctor/", (folder / "doctor").iterdir()))
        for entry in sorted(entries, key=lambda entry: entry.name)
        if entry.name.endswith(".lua")
    ]


def files_of_operations() -> list[str]:
    """Return the names of all files that scripts of operations are put together from."""
    folder = files(__package__) / "lua" / "lib"
    rooms = [folder, *(room for room in folder.iterdir() if room.is_dir())]
    parts = [
        "/".join(("lib", entry.name) if room is folder else ("lib", room.name, entry.name))
        for room in rooms
        for entry in room.iterdir()
        if entry.name.endswith(".lua")
    ]
    operations = (name for name in names() if "/" not in name)
    return sorted([*(part.removesuffix(".lua") for part in parts), *_MADE, *operations])


def source(name: str) -> str:
    """Return a file of the folder ``lua``, by its path without the ending."""
    made = _MADE.get(name)
    return made() if made else (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")


def flags_of(text: str) -> list[str]:
    """Return the flags in the first line of a script."""
    return text.partition("\n")[0].partition("flags=")[2].split(",") if "flags=" in text.partition("\n")[0] else []


def assemble(text: str) -> str:
    """
    Expand the includes of a script and substitute its constants.

    Raises:
        ValueError: an include stands within itself, or a constant has two values.
    """
    shebang, _, body = included(text).partition("\n")
    return "\n".join([shebang, *plain_lines(body, constants_of(body))])


def included(text: str) -> str:
    """
    Return a text with its includes expanded, each where it comes first.

    Raises:
        ValueError: an include stands within itself.
    """
    return _included(text, set(), ())


def constants_of(text: str) -> dict[str, str]:
    """
    Return the substitutions of names in a text.

    Raises:
        ValueError: a constant has two values.
    """
    constants: dict[str, str] = {}
    for found in CONST.finditer(text):
        for name, value in zip(found[1].split(", "), found[2].split(", "), strict=True):
            if constants.setdefault(name, value) != value:
                raise ValueError(f"lua constant {name} is {constants[name]} and {value}")
    return constants


def plain_lines(text: str, constants: dict[str, str], kept: str = "") -> list[str]:
    """Return the lines of a text with its constants substituted, and without its comments except the *kept* one."""

    def plain(token: re.Match[str]) -> str:
        if token[0].startswith("--"):
            return kept if token[0] == kept else ""
        return constants.get(token[0], token[0])

    lines = (line.strip() for line in _TOKEN.sub(plain, CONST.sub("", text)).split("\n"))
    return [line for line in lines if line]


def _included(text: str, done: set[str], above: tuple[str, ...]) -> str:
    def put_in(found: re.Match[str]) -> str:
        name = found[1]
        if name in above:
            raise ValueError(f"lua include {name} includes itself: {' in '.join((name, *reversed(above)))}")
        if name in done:
            return ""
        done.add(name)
        return _included(source(name), done, (*above, name))

    return INCLUDE.sub(put_in, text)


def _moves() -> str:
    """Return the table of legal moves, by the letters of states."""
    rows = [
        f"{LETTERS[state]} = '{''.join(LETTERS[target] for target in targets)}'"
        for state, targets in MOVES.items()
        if state is not None
    ]
    return f"local MOVES = {{{', '.join(rows)}}}\n"


def _policies() -> str:
    """Return what scripts know of the line of a policy: places, what may stand there besides numbers, and defaults."""
    fields = ruled(Policy)
    names = ", ".join([name.removesuffix("_ms").upper() for name in fields])
    places = ", ".join([str(place) for place, _ in enumerate(fields, 1)])
    defaults = [getattr(DEFAULT_POLICY, name) for name in fields]
    least = max([place for place, kind in enumerate(fields.values(), 1) if not isinstance(kind, Optional)])
    return (
        f"local {names} = {places} -- @const\n"
        f"local POLICY_LEAST = {least} -- @const\n"
        f"local POLICY_WORDS = {{{', '.join(map(_words_of, fields.values()))}}}\n"
        f"local DEFAULT_POLICY = {{{', '.join(map(_literal, defaults))}}}\n"
    )


def _words_of(kind: Kind) -> str:
    """Return what may stand in a place, as a set; at 0, which is no text, whether there may be nothing else."""
    if isinstance(kind, Choice):
        words = [f"['{word}'] = true" for word in kind.words]
        return f"{{[0] = true, {', '.join(words)}}}"
    return "{['-'] = true}" if isinstance(kind, Optional) else "{}"


def _literal(value: object) -> str:
    return "false" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


_MADE: Final = {"lib/jobs/moves": _moves, "lib/jobs/policies": _policies}
"""Files that are made of what Python knows."""
