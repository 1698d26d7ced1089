"""
Tables of the reference that are written from the code: ``python -m scripts.tables``.

A page holds ``<!-- table: NAME -->`` and ``<!-- end of table -->``; what stands between them is written by the function
of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGES = (Path(__file__).parents[1] / "docs/reference/cli.md",)
COMMON = {"--target", "--namespace", "--json", "--yes", "--help"}
"""Options that one table of the page has for all commands."""
DESCRIBED = {"worker", "lead", "web", "doctor", "simulate", "check-trace", "check-intervals", "postgres", "sqlite"}
"""Commands, and groups of commands, whose sections of the page describe all options."""
FILTER = ["--service", "--user", "--task", "--pool", "--tag", "--parent", "--waits-for", "--path", "--since", "--until"]
"""Options that choose jobs, which have a table too."""
_BLOCK = re.compile(r"(?<=<!-- table: )(\w+)( -->\n)(.*?)(?=<!-- end of table -->)", re.DOTALL)


def commands() -> dict[str, Any]:
    """Return the commands by their names, such as `dead ls`."""
    import typer.main

    from queuehint.cli.app import app

    return dict(_below(typer.main.get_command(app), ""))


def _below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, inner in command.commands.items():
        yield from _below(inner, f"{name} {part}".strip())


def options(command: Any) -> list[Any]:
    """Return the options of a command that its help shows."""
    return [param for param in command.params if param.opts[0].startswith("-") and not getattr(param, "hidden", False)]


def options_table() -> str:
    """Return a table of the options of each command without a section, but for those that all take."""
    rows: dict[str, list[str]] = {}
    for name, command in commands().items():
        if name.partition(" ")[0] in DESCRIBED:
            continue
        found = [param for param in options(command) if not COMMON.intersection(param.opts)]
        chooses = set(FILTER) <= {name for param in found for name in param.opts}
        words = [_shown(param) for param in found if not (chooses and set(FILTER).intersection(param.opts))]
        if chooses:
            words.append("[choose](#choose-jobs)")
        if words:
            rows.setdefault(", ".join(words), []).append(f"`{name}`")
    table = [f"| {', '.join(names)} | {words} |" for words, names in rows.items()]
    return "\n".join(["| command | options |", "|---|---|", *table]) + "\n"


def _shown(param: Any) -> str:
    names = sorted(param.opts, key=len, reverse=True)
    return f"`{names[0]}`" + "".join(f" (`{name}`)" for name in names[1:])


def filled(text: str) -> str:
    """Return a page with its tables."""
    tables = {"options": options_table}
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}{tables[found[1]]()}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8")), "utf-8")
