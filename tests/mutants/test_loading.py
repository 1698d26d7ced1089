"""The text of mutants is read strictly: an error names the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.each import for_each
from tests.mutants.catchers import CONFORMANCE, CONFORMANCE_ON_REDIS, ON_REDIS
from tests.mutants.functions import FILE_LEVEL
from tests.mutants.gate import ROOT
from tests.mutants.loading import WrongTextError, load, read

FIRST = """\
edges in Jobs.end: A dependent is not released
- if left:
-
-     self.release(left)
+ pass
by conformance
by tests/unit/test_errors.py tests/unit/test_limits.py -k "one or two" -m "not redis"
"""
SECOND = """\
order: A line has no end
- _END = 2
by tests/unit/test_errors.py::test_one
"""
CORRECT = f"{FIRST}\n{SECOND}"


def test_a_text_is_read_as_its_mutants() -> None:
    first, second = read(CORRECT, "core/jobs.py", "jobs.py.txt")
    assert (first.kind, first.function, first.name) == ("edges", "Jobs.end", "A dependent is not released")
    assert first.old == ("if left:", "", "    self.release(left)")
    assert first.new == ("pass",)
    conformance, ours = first.caught_by
    assert conformance == CONFORMANCE
    assert ours.arguments == ("tests/unit/test_errors.py", "tests/unit/test_limits.py", "-k", "one or two")
    assert (ours.name, ours.marks) == ("unit/test_errors.py unit/test_limits.py -k one or two", "not redis")
    assert (second.function, second.new, second.file) == (FILE_LEVEL, None, "core/jobs.py")
    assert (first.where, second.where) == ("jobs.py.txt:1", "jobs.py.txt:9")
    assert second.caught_by[0].arguments == ("tests/unit/test_errors.py::test_one",)
    assert second.caught_by[0].marks == "not nightly"


def test_bare_plus_line_is_an_empty_replacement() -> None:
    [mutant] = read(SECOND.replace("= 2\n", "= 2\n+\n"), "a.py", "a")
    assert mutant.new == ("",)


def test_redis_catcher_runs_one_shell_of_the_installed_server() -> None:
    told = 'by conformance on redis\nby tests/contract/test_redis.py -k "a_word and ON_REDIS"\n'
    [mutant] = read(f"order: m\n- a\n{told}", "a.py", "a")
    assert mutant.caught_by[0] == CONFORMANCE_ON_REDIS
    assert mutant.caught_by[1].arguments == ("tests/contract/test_redis.py", "-k", f"a_word and {ON_REDIS}")


@for_each(
    "old, new, error",
    [
        # The whole text.
        (CORRECT, "", r"t:1: there is no mutant"),
        ("test_one\n", "test_one", r"t:11: the last line has no end"),
        (CORRECT, f"{FIRST}\n\n{SECOND}", r"t:9: one empty line stands between two mutants"),
        (CORRECT, f"{CORRECT}\n", r"t:12: one empty line stands between two mutants"),
        (CORRECT, f"\n{CORRECT}", r"t:1: one empty line stands between two mutants"),
        (CORRECT, f"{SECOND}\n{FIRST}", r"t:5: by its first line this mutant comes before 'order: A line has no end'"),
        # The first line.
        ("edges in", "Edges in", r"t:1: a mutant begins with 'kind: name' or 'kind in function: name'"),
        ("edges in Jobs.end: ", "edges in Jobs.end ", r"t:1: a mutant begins with"),
        ("order: A line has no end", "order: ", r"t:9: a mutant begins with"),
        ("order: A", "order:  A", r"t:9: a mutant begins with"),
        # The marks, and their order.
        ("- _END = 2\n", "", r"t:10: this line begins with '- ': by tests"),
        ("- if left:\n", "", r"t:2: the first line that is replaced is not empty"),
        ("- _END = 2\n", "+ _END = 3\n- _END = 2\n", r"t:10: this line begins with '- ': \+ _END"),
        ("- _END", "-_END", r"t:10: this line begins with '- ': -_END"),
        ("+ pass\n", "+ pass\n- a\n", r"t:6: this line begins with '\+ ' or 'by ': - a"),
        ("+ pass\n", "+ pass\n# a\n", r"t:6: this line begins with '\+ ' or 'by ': # a"),
        ("by conformance\n", "by conformance\n+ a\n", r"t:7: this line begins with 'by ': \+ a"),
        ("by conformance\n", "bye conformance\n", r"t:6: this line begins with '\+ ' or 'by ': bye"),
        # What stands behind them.
        ("+ pass\n", "+ pass \n", r"t:5: a line does not end with spaces"),
        ("-\n", "- \n", r"t:3: a line does not end with spaces"),
        ("- if left", "-     if left", r"t:2: the first line after - has no indentation of its own"),
        ("+ pass", "+   pass", r"t:5: the first line after \+ has no indentation of its own"),
        ("- _END = 2\n", "- _END = 2\n+ _END = 2\n", r"t:9: this mutant changes nothing"),
        # The catchers.
        ("by tests/unit/test_errors.py::test_one\n", "", r"t:9: no line says by which tests this mutant is caught"),
        ("by conformance", "by conformity", r"t:6: neither a catcher of .* nor a file of tests: conformity"),
        ("by conformance", "by", r"t:6: this line begins with '\+ ' or 'by ': by$"),
        ("by conformance", "by  conformance", r"t:6: neither a catcher of .* nor a file of tests:  conformance"),
        ('"one or two"', '"one or two', r"t:7: No closing quotation: tests/unit"),
        ("test_limits.py", "test_gone.py", r"t:7: there is no file tests/unit/test_gone.py, and of options"),
        ('-k "one', '-x "one', r"t:7: there is no file -x, and of options there are -k and -m: tests"),
        (' "not redis"', "", r"t:7: there is no file -m, and of options"),
        ("by conformance\n", "by conformance\nby conformance\n", r"t:6: two of the catchers are one"),
    ],
)
def test_a_wrong_text_is_refused_with_its_line(old: str, new: str, error: str) -> None:
    assert CORRECT.count(old) == 1
    text = CORRECT.replace(old, new)
    with pytest.raises(WrongTextError, match=f"^{error}"):
        read(text, "a.py", "t")


def test_a_folder_is_read_by_the_names_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.lua.txt").write_text(SECOND)
    (tmp_path / "a.py.txt").write_text(SECOND)
    assert [(mutant.file, mutant.where) for mutant in load(tmp_path)] == [
        ("a.py", f"{tmp_path}/a.py.txt:1"),
        ("core/a.lua", f"{tmp_path}/core/a.lua.txt:1"),
    ]
    (tmp_path / "core" / "a.py").write_text(SECOND)
    with pytest.raises(WrongTextError, match=r"core/a.py: the name of a text is that of its file and .txt"):
        load(tmp_path)


def test_a_text_of_this_tree_is_named_from_its_root() -> None:
    folder = ROOT / "tests" / "mutants" / "texts"
    assert load(folder)[0].where.startswith("tests/mutants/texts/")
