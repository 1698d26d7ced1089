"""The page of the commands has every command, option and variable, and no other; its table is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("typer")

from scripts.tables import COMMON, DESCRIBED, commands, filled, options

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text("utf-8")


def test_table_of_options_is_written_from_code() -> None:
    assert "<!-- table: options -->" in PAGE
    assert filled(PAGE) == PAGE, "write it again: python -m scripts.tables"


def test_page_describes_every_command() -> None:
    prose = PAGE.partition("<!-- table: options -->")[0]
    heads = set(re.findall(r"^## queuehint ([\w -]+)$", prose, re.MULTILINE))
    missing = []
    for name in commands():
        group, _, command = name.partition(" ")
        row = rf"^\| .*`(?:{name}\b|{group}\b.*`{command}\b)" if command else rf"^\| .*`{group}\b"
        if group not in heads and not re.search(row, prose, re.MULTILINE):
            missing.append(name)
    assert missing == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DESCRIBED))
def test_section_of_command_has_each_of_its_options(name: str) -> None:
    section = PAGE.partition(f"\n## queuehint {name}\n")[2].partition("\n## ")[0]
    described = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", section))
    params = [param for found in commands() if found.partition(" ")[0] == name for param in options(commands()[found])]
    assert params
    missing = [param.opts for param in params if not (COMMON | described).intersection(param.opts)]
    assert missing == []


def test_page_names_no_option_or_variable_that_is_not_there() -> None:
    params = [param for command in commands().values() for param in command.params]
    known = {name for param in params for name in (*param.opts, *param.secondary_opts)} | {"--help", "--version", "-m"}
    assert sorted(set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", PAGE)) - known) == []
    variables = {name for param in params if param.envvar for name in _listed(param.envvar)} | {"QUEUEHINT_SEED"}
    assert set(re.findall(r"QUEUEHINT_\w+", PAGE)) == variables


def test_table_of_worker_pairs_options_with_variables() -> None:
    section = PAGE.partition("## queuehint worker\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`--.*?) \| (`QUEUEHINT.*?) \|", section, re.MULTILINE)
    said: dict[str, str] = {}
    for names, variables in rows:
        long = re.findall(r"(?<!\w)--[\w-]+", names)
        said |= dict(zip(long, re.findall(r"QUEUEHINT_\w+", variables), strict=True))
    assert said == {
        next(name for name in param.opts if name.startswith("--")): param.envvar
        for param in options(commands()["worker"])
        if param.envvar
    }


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names
