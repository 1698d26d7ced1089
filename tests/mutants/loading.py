"""
The reader of mutants: `texts/core/xcom.py.txt` holds those of `queuehint/core/xcom.py`.

A mutant is a paragraph, and a file holds paragraphs in the order of their first lines:

    records in SharedStore.keys: Keys whose time is over are listed
    - self.pull(place, now_ms) is not None
    + place
    by conformance

That is its kind, its function, if it is in one, and its name; lines that are replaced; those that replace them; and the
tests that have to fail, each by a name of `catchers` or as the arguments of pytest, in which `ON_REDIS` stands for one
shell of the server that is there.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final, cast

from tests.mutants import catchers
from tests.mutants.functions import FILE_LEVEL
from tests.mutants.gate import KINDS, ROOT, Catcher, Kind, Mutant

_NAMED: Final = {each.name: each for each in vars(catchers).values() if isinstance(each, Catcher)}
_FIRST_LINE = re.compile(r"(\w+)(?: in ([\w.:]+))?: (\S.*)")
_NEXT: Final = {"": "-", "-": "-+b", "+": "+b", "b": "b"}
"""By the mark of a line the marks of those that may come next."""


class WrongTextError(Exception):
    """A text of mutants is not as it has to be: the file and the line, and why."""


def load(folder: Path) -> tuple[Mutant, ...]:
    """
    Read all mutants of a folder.

    Raises:
        WrongTextError: a text is not as it has to be.
    """
    mutants: list[Mutant] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        file = path.relative_to(folder).as_posix()
        if path.suffix != ".txt":
            raise WrongTextError(f"{where}: the name of a text is that of its file and .txt")
        mutants += read(path.read_text("utf-8"), file.removesuffix(".txt"), str(where))
    return tuple(mutants)


def read(text: str, file: str, where: str) -> list[Mutant]:
    """
    Read the mutants of a file, from a text that errors name by *where*.

    Raises:
        WrongTextError: it is not as it has to be.
    """
    mutants: list[Mutant] = []
    lines = text.split("\n")
    if lines.pop():
        raise WrongTextError(f"{where}:{len(lines) + 1}: the last line has no end")
    start = 0
    before = ""
    while start < len(lines):
        end = lines.index("", start) if "" in lines[start:] else len(lines)
        if end == start or end == len(lines) - 1:
            raise WrongTextError(f"{where}:{end + 1}: one empty line stands between two mutants, and no other")
        if lines[start] < before:
            raise WrongTextError(f"{where}:{start + 1}: by its first line this mutant comes before {before!r}")
        before = lines[start]
        mutants.append(_read_one(lines[start:end], file, where, start + 1))
        start = end + 1
    if not mutants:
        raise WrongTextError(f"{where}:1: there is no mutant")
    return mutants


def _read_one(lines: list[str], file: str, where: str, number: int) -> Mutant:
    first = _FIRST_LINE.fullmatch(lines[0])
    if first is None or first[1] not in KINDS:
        raise WrongTextError(f"{where}:{number}: a mutant begins with 'kind: name' or 'kind in function: name'")
    read: dict[str, list[str]] = {"-": [], "+": [], "b": []}
    mark = ""
    for at, line in enumerate(lines[1:], number + 1):
        wanted, mark = _NEXT[mark], line[:1]
        # An empty line of code is a mark alone.
        if mark not in wanted or not (line == mark or line.startswith((f"{mark} ", "by "))):
            told = " or ".join(repr("by " if each == "b" else f"{each} ") for each in wanted)
            raise WrongTextError(f"{where}:{at}: this line begins with {told}: {line}")
        if line != line.rstrip():
            raise WrongTextError(f"{where}:{at}: a line does not end with spaces")
        body = line.removeprefix("by" if mark == "b" else mark)[1:]
        if mark != "b" and not read[mark] and body != body.lstrip():
            raise WrongTextError(f"{where}:{at}: the first line after {mark} has no indentation of its own")
        read[mark].append(body)
    if not read["b"]:
        raise WrongTextError(f"{where}:{number}: no line says by which tests this mutant is caught")
    if not read["-"][0]:
        raise WrongTextError(f"{where}:{number + 1}: the first line that is replaced is not empty")
    if read["-"] == read["+"]:
        raise WrongTextError(f"{where}:{number}: this mutant changes nothing")
    first_by = number + len(lines) - len(read["b"])
    caught_by = tuple(_read_catcher(told, f"{where}:{at}") for at, told in enumerate(read["b"], first_by))
    if len(set(caught_by)) != len(caught_by):
        raise WrongTextError(f"{where}:{first_by}: two of the catchers are one")
    return Mutant(
        name=first[3],
        kind=cast("Kind", first[1]),
        file=file,
        function=first[2] or FILE_LEVEL,
        old=tuple(read["-"]),
        new=tuple(read["+"]) or None,
        caught_by=caught_by,
        where=f"{where}:{number}",
    )


def _read_catcher(told: str, where: str) -> Catcher:
    """Return a catcher by its name, or one that runs pytest with some files, `-k` and `-m`."""
    if told in _NAMED:
        return _NAMED[told]
    try:
        words = shlex.split(told)
    except ValueError as error:
        raise WrongTextError(f"{where}: {error}: {told}") from None
    if not words or not words[0].startswith("tests/"):
        raise WrongTextError(f"{where}: neither a catcher of tests/mutants/catchers.py nor a file of tests: {told}")
    arguments: list[str] = []
    marks = "not nightly"
    while words:
        word = words.pop(0)
        if word in {"-k", "-m"} and words:
            value = words.pop(0).replace("ON_REDIS", catchers.ON_REDIS)
            if word == "-m":
                marks = value
            else:
                arguments += (word, value)
        elif not (ROOT / word.partition("::")[0]).is_file():
            raise WrongTextError(f"{where}: there is no file {word}, and of options there are -k and -m: {told}")
        else:
            arguments.append(word)
    name = " ".join(argument.removeprefix("tests/") for argument in arguments)
    return Catcher(name, tuple(arguments), marks=marks)
