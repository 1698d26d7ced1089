"""A recipe of an image, read: its stages with their instructions, and the commands of these."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import attrs

_ARG = re.compile(r"\$\{(\w+)\}")


@attrs.frozen
class Stage:
    """
    A stage of a recipe.

    Args:
        base: the image that it begins with, arguments filled in.
        name: what others call it; empty for the last.
        steps: the instructions in order: the word, and the rest of the line, arguments filled in.
    """

    base: str
    name: str
    steps: list[tuple[str, str]] = attrs.field(factory=list)

    def of(self, word: str) -> list[str]:
        """Return the rest of each instruction of a word."""
        return [rest for each, rest in self.steps if each == word]

    def command(self, word: str) -> list[str]:
        """Return the only command that an instruction gives as a list."""
        (rest,) = self.of(word)
        found: list[str] = json.loads(rest[rest.index("[") :])
        return found

    def environment(self) -> dict[str, str]:
        """Return the variables that are set, as they are written."""
        return dict([word.split("=", 1) for rest in self.of("ENV") for word in shlex.split(rest)])


def read_recipe(path: Path, **arguments: str) -> list[Stage]:
    """Return the stages of a recipe, built with some arguments instead of their defaults."""
    text = "\n".join([line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")])
    stages: list[Stage] = []
    defaults: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word:
            continue
        if word == "ARG":
            name, _, default = rest.partition("=")
            defaults[name] = arguments.get(name, "".join(shlex.split(default)))
            continue
        rest = _ARG.sub(lambda found: defaults[found[1]], rest)
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(base, name))
        else:
            stages[-1].steps.append((word, rest))
    return stages
