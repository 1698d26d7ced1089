"""Numbers that Lua repeats from the core: each is what its namesake in Python is, wherever both have one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import pytest

from queuehint import core, operations, values
from queuehint.backends.redis import scripts

OF_ANOTHER_MEANING = {"IS", "IX", "RESULT_BYTES_MAX"}
"""Positions in a line of a gate; a result that is large where memory is short."""


def numbers_of_the_core() -> dict[str, dict[str, float]]:
    """Return the values of each constant by the modules that have it."""
    found: dict[str, dict[str, float]] = {}
    for room in (core, operations, values):
        for each in walk_packages(room.__path__, f"{room.__name__}."):
            for name, value in vars(import_module(each.name)).items():
                if name.isupper() and type(value) in (int, float):
                    found.setdefault(name, {})[each.name] = value
    return found


NUMBERS = numbers_of_the_core()
REPEATED = [
    (name, constant, value)
    for name in scripts.files_of_operations()
    for constant, value in scripts.constants_of(scripts.source(name)).items()
    if constant in NUMBERS and constant not in OF_ANOTHER_MEANING and value[-1].isdigit()
]


@pytest.mark.parametrize("file, constant, value", REPEATED, ids=str)
def test_a_number_in_lua_is_that_of_the_core(file: str, constant: str, value: str) -> None:
    assert set(NUMBERS[constant].values()) == {float(value)}, f"{constant} of lua/{file}.lua, and {NUMBERS[constant]}"


def test_most_numbers_of_the_core_are_found_in_lua() -> None:
    assert len({constant for _, constant, _ in REPEATED}) >= 50
