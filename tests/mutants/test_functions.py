"""The functions of a file, by which mutants say where they are."""

from __future__ import annotations

import pytest

from tests.each import for_each
from tests.mutants.functions import FILE_LEVEL, spans_by_function
from tests.mutants.gate import Mutant, StaleMutantError

PYTHON = '''\
"""A module."""
import a

class Outer:
    """A class."""
    field = 1

    @property
    def value(self):
        return self.field

    @value.setter
    def value(self, value):
        self.field = value

    class Inner:
        async def method(self):
            def closure():
                return 2
            return closure

if a:
    def one(): return 1
else:
    def one():
        return 3
END = 4
'''
LUA = """\
--[[ A script. ]]
local a = 1
function jobs.one(job) return job end
local function two(job)
  if job then

    return 2
  end
end
lazily(jobs, function()
  local three = function(job)
    return 3
  end
  jobs.each(function() return 4 end)
end)
local put = {
  add = function(key)
    return 5
  end,
}
return a
"""


def parts(text: str, suffix: str) -> dict[str, str]:
    return {
        name: "".join(text[start:end] for start, end in spans)
        for name, spans in spans_by_function(text, suffix).items()
    }


def test_python_functions_are_named_with_their_enclosing_scopes() -> None:
    found = parts(PYTHON, ".py")
    assert found.keys() == {
        FILE_LEVEL,
        "Outer",
        "Outer.value",
        "Outer.Inner",
        "Outer.Inner.method",
        "Outer.Inner.method.closure",
        "one",
    }
    assert found["Outer.Inner.method"].endswith("return 2\n            return closure\n")
    assert found["Outer.Inner.method.closure"] == "            def closure():\n                return 2\n"


def test_function_part_includes_its_decorators_and_overloads() -> None:
    found = parts(PYTHON, ".py")
    assert found["Outer.value"].startswith("    @property\n")
    assert found["Outer.value"].endswith("self.field = value\n")
    assert found["one"] == "    def one(): return 1\n    def one():\n        return 3\n"


def test_class_and_module_parts_exclude_nested_functions_and_classes() -> None:
    found = parts(PYTHON, ".py")
    assert found["Outer"] == 'class Outer:\n    """A class."""\n    field = 1\n\n\n\n'
    assert found["Outer.Inner"] == "    class Inner:\n"
    assert found[FILE_LEVEL] == '"""A module."""\nimport a\n\n\nif a:\nelse:\nEND = 4\n'


def test_functions_of_lua_end_where_their_indentation_does() -> None:
    found = parts(LUA, ".lua")
    assert found == {
        "jobs.one": "function jobs.one(job) return job end\n",
        "two": "local function two(job)\n  if job then\n\n    return 2\n  end\nend\n",
        "three": "  local three = function(job)\n    return 3\n  end\n",
        "add": "  add = function(key)\n    return 5\n  end,\n",
        FILE_LEVEL: "--[[ A script. ]]\nlocal a = 1\nlazily(jobs, function()\n"
        "  jobs.each(function() return 4 end)\nend)\nlocal put = {\n}\nreturn a\n",
    }


# --- where the text of a mutant stands -------------------------------------------------------------------------------

SOURCE = """\
LIMIT = 1

def take(jobs):
    for job in jobs:
        if job.is_ready and job.limit:
            job.limit = 1

            job.start()
        limit = 1
    return jobs

def other(jobs):
    return jobs
"""


def mutant(function: str, old: str, new: str | None) -> Mutant:
    return Mutant(
        name="m",
        kind="order",
        file="a.py",
        function=function,
        old=tuple(old.split("\n")),
        new=None if new is None else tuple(new.split("\n")),
        caught_by=(),
        where="a.py.txt:1",
    )


@for_each(
    "function, old, new, before, after",
    [
        # The same text is in another function; the same letters are in another word.
        ("take", "return jobs", "return []", "    return jobs\n\ndef other", "    return []\n\ndef other"),
        (FILE_LEVEL, "1", "2", "LIMIT = 1", "LIMIT = 2"),
        # Part of a line; whole lines, which have an indentation among themselves alone.
        ("take", "is_ready and job.limit", "limit", "if job.is_ready and job.limit", "if job.limit"),
        ("take", "job.start()", None, "            job.start()\n", ""),
        ("take", "job.limit = 1\n\njob.start()", "pass", "job.limit = 1\n\n            job.start()", "pass"),
        ("take", "job.start()", "a()\n\nb()", "job.start()", "a()\n\n            b()"),
        ("take", "for job in jobs:", "for job in jobs:\n    break", "in jobs:\n", "in jobs:\n        break\n"),
        ("take", "job.start()", "", "job.start()", ""),
    ],
)
def test_a_text_is_replaced_in_its_function(function: str, old: str, new: str | None, before: str, after: str) -> None:
    assert SOURCE.count(before) == 1
    assert mutant(function, old, new).apply(SOURCE) == SOURCE.replace(before, after)


def test_lines_are_taken_away_only_as_whole_ones() -> None:
    with pytest.raises(StaleMutantError, match="this stands 0 times as a line of its own in the function take of"):
        mutant("take", "job.limit", None).apply(SOURCE)


@for_each(
    "function, old, error",
    [
        ("gone", "jobs", r"a.py.txt:1: the mutant 'm' is out of date: there is no function gone in queuehint/a.py$"),
        ("other", "job", r"'m' is out of date: this stands 0 times in the function other of queuehint/a.py, .*:\njob$"),
        ("other", "jobs", r"this stands 2 times in the function other of queuehint/a.py, and has to stand there once"),
        (FILE_LEVEL, "jobs", r"this stands 0 times in the lines outside functions and classes of queuehint/a.py"),
    ],
)
def test_stale_mutant_names_the_missing_function_or_text(function: str, old: str, error: str) -> None:
    with pytest.raises(StaleMutantError, match=error):
        mutant(function, old, "").apply(SOURCE)
