"""Mutation gate: the list of mutants matches the code, and a test catches each mutant."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from queuehint.backends.redis import scripts
from tests.each import for_each
from tests.mutants.gate import KINDS, OF_THE_KIT, PACKAGE, ROOT, Catcher, Mutant, end_session, try_catcher, try_mutant
from tests.mutants.listed import MUTANTS
from tests.servers import Server
from tests.support import lives, until_sync

LUA = "backends/redis/lua"
CATCHERS = sorted({catcher for mutant in MUTANTS for catcher in mutant.caught_by}, key=lambda catcher: catcher.name)
IN_LUA = [mutant for mutant in MUTANTS if mutant.file.endswith(".lua")]


def named(mutant: Mutant) -> str:
    return mutant.name


# --- the list, at every run ------------------------------------------------------------------------------------------


def test_mutants_of_each_kind_are_enough_in_engine_and_lua() -> None:
    assert len(MUTANTS) >= 30
    assert len(IN_LUA) >= 12
    assert Counter(mutant.kind for mutant in MUTANTS).keys() == set(KINDS)
    assert {mutant.kind for mutant in IN_LUA} >= set(OF_THE_KIT)


def test_each_is_of_a_file_of_the_package() -> None:
    assert not sorted({mutant.where for mutant in MUTANTS if not mutant.path.is_file()})


def test_no_two_are_of_one_name_or_do_the_same() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    assert not [mutant.where for mutant in MUTANTS if names[mutant.name] > 1]
    faults = Counter(map(fault, MUTANTS))
    assert not [mutant.where for mutant in MUTANTS if faults[fault(mutant)] > 1]


def fault(mutant: Mutant) -> tuple[object, ...]:
    return mutant.file, mutant.function, mutant.old, mutant.new


@for_each("mutant", MUTANTS, ids=named)
def test_mutant_text_occurs_once(mutant: Mutant) -> None:
    mutant.apply(mutant.path.read_text("utf-8"))


@pytest.mark.slow
@for_each("mutant", [mutant for mutant in MUTANTS if mutant.path.suffix == ".py"], ids=named)
def test_replacement_of_a_mutant_parses(mutant: Mutant) -> None:
    ast.parse(mutant.apply(mutant.path.read_text("utf-8")), mutant.file)


def test_mutants_of_guarantees_are_caught_by_the_kit() -> None:
    for mutant in MUTANTS:
        assert mutant.kind not in OF_THE_KIT or any(catcher.is_kit for catcher in mutant.caught_by), mutant.name


@for_each("catcher", [catcher for catcher in CATCHERS if "-k" in catcher.arguments])
def test_catcher_words_occur_in_names_of_tests(catcher: Catcher) -> None:
    """Else it would run fewer tests than it says, or none, which only a run of its mutants shows."""
    arguments = catcher.arguments
    files = [ROOT / argument.partition("::")[0] for argument in arguments if ".py" in argument]
    if any(file.parent.name == "contract" for file in files):
        files += (ROOT / PACKAGE / "testing" / "contract").glob("*.py")
    names = "\n".join(re.findall(r"(?:def|class) (\w+)", "".join(file.read_text("utf-8") for file in files)))
    words = re.findall(r"\w+", arguments[arguments.index("-k") + 1])
    # A word without an underscore may be of a parameter.
    assert not [word for word in words if "_" in word and word not in names]


@pytest.fixture(scope="module")
def lua(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of all scripts."""
    return shutil.copytree(ROOT / PACKAGE / LUA, tmp_path_factory.mktemp("package") / "lua")


@cache
def script_with(file: Path, lua: Path) -> Path:
    """Return a script that includes a library, `exchange` if it does; any other file is a script itself."""
    if "lib" not in file.relative_to(lua).parts:
        return file
    text, mark = file.read_text("utf-8"), "mark_of_a_test()"
    file.write_text(f"{text}\n{mark}\n", "utf-8")
    try:
        every = [lua / "exchange.lua", *sorted(lua.glob("*.lua")), *sorted(lua.glob("doctor/*.lua"))]
        return next(script for script in every if mark in with_libraries(script))
    finally:
        file.write_text(text, "utf-8")


def with_libraries(script: Path) -> str:
    """Return a script with its libraries; its constants are global names there, which a server takes as well."""
    return scripts.included(script.read_text("utf-8"))


@cache
def without_mutant(script: Path) -> str:
    """Return that of a script as it is."""
    return with_libraries(script)


@pytest.mark.slow
@for_each("mutant", IN_LUA, ids=named)
def test_a_server_takes_the_scripts_of_a_mutant(
    mutant: Mutant, redis_server: Server, lua: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that a server refuses would be caught by every test, whatever is wrong in it."""
    file = lua / Path(mutant.file).relative_to(LUA)
    monkeypatch.setattr(scripts, "files", lambda _: lua.parent)
    script, text = script_with(file, lua), file.read_text("utf-8")
    before = without_mutant(script)
    file.write_text(mutant.apply(text), "utf-8")
    changed = with_libraries(script)
    file.write_text(text, "utf-8")
    assert changed != before
    with redis_server.client() as client:
        client.script_load(scripts.CONST.sub("", changed))


def test_leftover_processes_of_a_mutant_are_ended() -> None:
    """Such as the child process of a worker that does not end it, in a process group of its own."""
    leave = "import subprocess as s; print(s.Popen(['sleep', '600'], stdout=s.DEVNULL, process_group=0).pid)"
    leader = subprocess.Popen([sys.executable, "-c", leave], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout is not None
    left = int(leader.stdout.readline())
    leader.communicate()
    assert lives(left)
    end_session(leader.pid)
    until_sync(lambda: not lives(left), "it has ended")


# --- the gate, every night -------------------------------------------------------------------------------------------


def skip_without_tools(catcher: Catcher) -> None:
    if catcher.needs is not None and shutil.which(catcher.needs) is None:
        pytest.skip(f"{catcher.name} needs {catcher.needs}")


@pytest.mark.nightly
@pytest.mark.redis
@pytest.mark.parametrize("catcher", CATCHERS, ids=lambda catcher: catcher.name)
def test_without_a_mutant_nothing_is_caught(catcher: Catcher) -> None:
    skip_without_tools(catcher)
    verdict = try_catcher(catcher)
    assert not verdict.problem, verdict.problem
    assert not verdict.failed, f"{verdict.by}: {verdict.why}"


@pytest.mark.nightly
@pytest.mark.redis
@pytest.mark.parametrize("mutant", MUTANTS, ids=named)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    for catcher in mutant.caught_by:
        skip_without_tools(catcher)
    for catcher, verdict in try_mutant(mutant):
        assert not verdict.problem, verdict.problem
        assert verdict.failed, f"{catcher.name} does not notice it: {mutant.name} ({mutant.file})"
