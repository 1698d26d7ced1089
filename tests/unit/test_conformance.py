"""The conformance suite inherits every rule, and no rule hides another of the same name."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from queuehint import FakeClock
from queuehint.testing import BackendConformance, contract

OF_PYTHON = {"__module__", "__doc__", "__dict__", "__weakref__", "__abstractmethods__", "_abc_impl", "__firstlineno__"}
OF_PYTHON |= {"__static_attributes__", "__slots__"}


def modules() -> list[ModuleType]:
    folder = Path(contract.__path__[0])
    return [import_module(f"{contract.__name__}.{path.stem}") for path in folder.glob("[!_]*.py")]


@pytest.mark.parametrize("rules", [BackendConformance, contract.Restarts, contract.Tokens])
def test_a_binding_without_open_is_an_error(rules: type[contract.Binding]) -> None:
    # Pytest leaves abstract classes out without a word.
    assert not inspect.isabstract(rules)
    with pytest.raises(NotImplementedError, match=r"needs a method open\(self, clock\)"):
        rules().open(FakeClock())


def test_no_name_of_a_rule_hides_another() -> None:
    inherited = [cls for cls in BackendConformance.__mro__ if cls is not object]
    names = Counter(name for cls in inherited for name in set(vars(cls)) - OF_PYTHON)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_rule_is_inherited_and_exported() -> None:
    rules = {
        cls
        for module in modules()
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and any(name.startswith("test_") for name in vars(cls))
    }
    assert len(rules) > 40
    assert rules - {contract.Restarts, contract.Tokens} <= set(BackendConformance.__mro__)
    assert {cls.__name__ for cls in rules} | {"BackendConformance", "Binding", "Store"} == set(contract.__all__)


def test_rules_bring_nothing_but_tests_and_fixtures() -> None:
    names = {name for cls in BackendConformance.__mro__[1:-1] for name in set(vars(cls)) - OF_PYTHON}
    assert {name for name in names if not name.startswith("test_")} == {"open", "kept", "store", "follower", "events"}


def test_every_rule_is_listed_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/testing.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("| `")]
    listed = Counter(name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[2]))
    rules = set(contract.__all__) - {"BackendConformance", "Binding", "Store"}
    assert {name: listed[name] for name in rules} == dict.fromkeys(rules, 1)
