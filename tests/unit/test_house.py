"""Structure of the package: layers, no import cycles, file sizes, complete tables of handlers."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median
from typing import get_type_hints

import attrs
import pytest

import queuehint
from queuehint import operations as op
from queuehint.core.engine import ROOMS
from queuehint.core.state import HANDLERS, handles
from scripts import costs

ROOT = Path(queuehint.__file__).parent


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports() -> dict[str, set[str]]:
    """Return what each module imports of the package, those for type checkers too."""
    paths = {name_of(path): path for path in ROOT.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found[name].add(whole if whole in paths else node.module)
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
        found[name] &= paths.keys()
    return found


@pytest.mark.heavy
def test_no_module_imports_itself_by_way_of_others() -> None:
    found = imports()
    assert found["queuehint.core.engine"] >= {"queuehint.core.state", "queuehint.core.producing"}
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' -> '.join(error.args[1])}")


def test_every_operation_has_one_handler_in_an_engine_module() -> None:
    concrete = {
        each
        for each in vars(op).values()
        if isinstance(each, type) and issubclass(each, op.Operation) and each is not op.Operation
    }
    assert len(concrete) > 40
    assert set(HANDLERS) == concrete
    assert {handler.__module__ for handler in HANDLERS.values()} == {room.__name__ for room in ROOMS}


ROOMS_OF_OPERATIONS = (op.base, op.producing, op.working, op.operating, op.asking, op.places)


def test_names_of_a_room_of_operations_are_exported() -> None:
    public: set[str] = set()
    for room in ROOMS_OF_OPERATIONS:
        tree = ast.parse(inspect.getsource(room))
        targets = [
            node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            for node in tree.body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
        ]
        mine = {target.id for target in targets if isinstance(target, ast.Name) and target.id[0] != "_"}
        mine |= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        assert set(room.__all__) == mine
        assert all(getattr(op, name) is getattr(room, name) for name in mine)
        public |= mine
    assert set(op.__all__) == public


@pytest.mark.heavy
def test_kit_and_tests_import_at_most_three_names_of_operations() -> None:
    """With more, a list of imports changes when an operation does, so they import all as `op`."""
    for path in [*(ROOT / "testing").rglob("*.py"), *(ROOT.parent / "tests").rglob("*.py")]:
        lists = re.findall(
            r"^ *from queuehint\.operations import (\([^)]*\)|.*)", path.read_text("utf-8"), re.MULTILINE
        )
        named = {name for names in lists for name in re.findall(r"\w+", names)} & set(op.__all__)
        assert len(named) <= 3, (path, named)


@pytest.mark.heavy
def test_tests_import_for_type_checkers_only_names_missing_at_runtime() -> None:
    sources = {path.name: path.read_text("utf-8") for path in (ROOT.parent / "tests").rglob("*.py")}
    held = {name for name, text in sources.items() if re.search("^if TYPE_CHECKING:", text, re.MULTILINE)}
    assert held == {"test_digest.py", "test_handler.py"}, "import it as it is used"


@pytest.mark.heavy
def test_operations_options_and_policy_are_named_in_few_files() -> None:
    """A change of one is a change of these files. The limits are what there is: they fall, and do not rise."""
    files = costs.files_of_operations()
    # Of two operations that become one each file counts once, and the one is named in more files than the median.
    assert sum(files) <= 1424
    assert median(files) <= 22  # wanted: 12
    for found, most in ((costs.files_of_an_option(), 17), (costs.files_of_the_policy(), 7)):  # wanted: 12, 6
        assert len(found) <= most, "\n".join(map(str, found))


def test_operation_is_counted_in_code_and_not_in_prose(tmp_path: Path) -> None:
    (file := tmp_path / "module.py").write_text(
        '"""Cancel it."""\nfrom a import Weigh\n\ndef f(): return a.Get, ("Peek",)\n'
    )
    assert {name for name in ("Cancel", "Get", "Peek", "Weigh") if name in costs.words(file)} == {
        "Get",
        "Peek",
        "Weigh",
    }
    assert [path.name for path in costs.files_that_name("CanDequeue") if path.suffix == ".lua"] == ["can_dequeue.lua"]


def test_costs_tables_list_existing_names() -> None:
    for found in (costs.TABLES_OF_RANGES, costs.TWINS, costs.SERIALISERS):
        assert costs.listed(found) == len(found)
    assert all((costs.PRODUCT / room).exists() for room in costs.ROOMS_OF_CHECKS)
    with pytest.raises(LookupError, match=r"base.py has no 'def gone\('"):
        costs.listed([("queuehint/operations/base.py", "def gone(")])
    with pytest.raises(LookupError, match=r"gone.py has no"):
        costs.listed([("queuehint/gone.py", "def gone(")])


def test_parts_of_a_worker_hold_few_callables_of_one_another() -> None:
    """They share one state instead."""
    assert len(costs.callables_of_parts()) <= 4, costs.callables_of_parts()


def test_annotations_of_operations_and_replies_can_be_resolved() -> None:
    for name in op.__all__:
        kind = getattr(op, name)
        if attrs.has(kind):
            assert set(get_type_hints(kind)) >= {field.name for field in attrs.fields(kind)}


def test_operation_reads_or_changes_and_only_changes_are_repeatable() -> None:
    kinds = op.Operation.__subclasses__()
    assert sum(kind.is_question for kind in kinds) == 21
    assert [kind for kind in kinds if kind.is_repeatable] == [op.Follow]
    assert not any(kind.is_question and kind.is_repeatable for kind in kinds)


def test_an_operation_is_answered_by_one_function_only() -> None:
    with pytest.raises(AssertionError):
        handles(op.Tick)(lambda _state, _operation: None)


def test_the_steps_of_a_job_name_functions_that_are_there() -> None:
    page = (ROOT.parent / "docs/explanation/architecture.md").read_text("utf-8")
    steps = re.findall(r"`([\w/]+\.(?:py|lua))` `(\w+)`", page)
    assert len(steps) == 18
    for file, function in steps:
        path = next(path for folder in ("", "backends/redis/") if (path := ROOT / folder / file).exists())
        assert re.search(rf"(def |function (\w+\.)?){function}\(", path.read_text("utf-8")), (file, function)


def test_reference_pages_name_existing_objects() -> None:
    pages = (ROOT.parent / "docs").rglob("*.md")
    names = [
        name for page in pages for name in re.findall(r"^\.\. auto\w+:: (\S+)", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(names) > 100
    missing = []
    for name in names:
        try:
            # It takes a module, or a name in one by dots.
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(name)
    assert missing == []


LINES_MAX, MODULES_MAX = 500, 12
REASONS = {
    "backends/redis/lua": "a script for each operation, looked up by its name",
    "cli": "a module for each command, looked up by its name",
    "web": "a module for each part of a request's way, and one for each subject of the table; pages are beside",
    "testing/contract": "a module for each subject of the rules; none is read for another",
}
"""What passes a cap and is one thing all the same: a module or a folder, and why it is not two."""


def test_module_or_folder_above_its_cap_has_a_reason() -> None:
    sources = [path for path in ROOT.rglob("*") if path.suffix in {".py", ".lua"}]
    modules = Counter(path.parent for path in sources if path.name != "__init__.py")
    passed = {path for path in sources if path.read_text("utf-8").count("\n") > LINES_MAX}
    passed |= {folder for folder, count in modules.items() if count > MODULES_MAX}
    assert {path.relative_to(ROOT).as_posix() for path in passed} == set(REASONS), (
        "look for the second noun, or say why"
    )
    assert all(REASONS.values())


RELATIVE = re.compile(r"(?:^|_)(?:what|those|who)(?:_|$)")
FOLDERS = ("queuehint", "tests", "examples", "benchmarks", "scripts")


QUICK_FAULTS = {
    "file": ("test_sqlite_kills", "test_whenever_it_is_killed_all_that_was_answered_is_there"),
    "redis": ("test_edges", "test_fan_out_continues_after_its_process_died"),
    "postgres": ("test_postgres", "test_rows_that_a_crash_has_lost_are_written_again"),
    "leader": ("test_leader_process", "test_killed_leader_is_replaced_by_one_of_its_worker"),
}
"""Of each store, and of a leader's process, one kill that `make test` tries too; most of the others are slow."""


@pytest.mark.parametrize("module, name", QUICK_FAULTS.values(), ids=QUICK_FAULTS)
def test_each_store_keeps_a_quick_fault_test(module: str, name: str) -> None:
    text = (ROOT.parent / f"tests/faults/{module}.py").read_text("utf-8")
    named = re.search(rf"((?:^@.*\n)*)^def {name}\(", text, re.MULTILINE)
    assert named is not None
    found = named[1] + "".join(re.findall(r"^pytestmark = .*", text, re.MULTILINE))
    assert not re.search(r"mark\.(slow|nightly)\b", found)


def names_defined() -> Iterator[tuple[Path, str]]:
    """Yield the name of each module, class and function of the project, with its file."""
    for path in [path for folder in FOLDERS for path in (ROOT.parent / folder).rglob("*.py")]:
        yield path, path.stem
        for name in re.findall(r"^ *(?:async )?(?:def|class) (\w+)", path.read_text("utf-8"), re.MULTILINE):
            yield path, name


@pytest.mark.heavy
def test_names_contain_no_relative_pronouns() -> None:
    """A noun of the glossary stands in their place, such as *jobs_behind* for *what_waits_behind*."""
    defined = list(names_defined())
    assert len(defined) > 10_000
    assert [(str(path), name) for path, name in defined if RELATIVE.search(name)] == []


@pytest.mark.heavy
def test_names_of_tests_have_at_most_ten_words() -> None:
    """A test is `test_<unit>_<condition>_<effect>`."""
    tests = [name for _, name in names_defined() if name.startswith("test_")]
    assert [name for name in tests if name.count("_") > 10] == []
