"""The moves of a job are written twice, in Python and in Lua: a table of the pairs, and whether both are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import queuehint

ROOT = Path(queuehint.__file__).parent
CORE, LUA = ROOT / "core", ROOT / "backends/redis/lua"

TWINS = {
    "jobs/table.py": {
        "ask_to_stop": "lib/ledger.lua ask_to_stop",
        "await_children": "lib/ledger.lua await_children",
        "become": "lib/ledger.lua become",
        "bind": "lib/ledger.lua bind",
        "end": "lib/ledger.lua finish",
        "kept_ms": "lib/ledger.lua kept_ms",
        "offer": "lib/ledger.lua offer",
        "place": "lib/ledger.lua take_place",
        "postpone": "lib/ledger.lua postpone",
        "put_back": "lib/ledger.lua put_back",
        "queue": "lib/ledger.lua queue",
        "vacate": "lib/gates.lua vacate",
        "withdraw": "lib/ledger.lua withdraw",
        "_stop": "lib/ledger.lua stop",
    },
    "jobs/staging.py": {
        "begin": "lib/ledger.lua begin",
        "commit": "lib/ledger.lua commit",
        "remove": "lib/ledger.lua remove",
        "unstage": "lib/ledger.lua unstage",
    },
    "jobs/lifecycle.py": {
        "back_off": "lib/course.lua back_off",
        "cancel": "lib/sweeps.lua cancel_job",
        "die": "lib/course.lua die",
        "fail": "lib/course.lua fail",
        "lose": "lib/course.lua lose",
        "resolve": "lib/course.lua resolve",
        "_promote": "lib/course.lua promote",
        "_prune": "lib/course.lua prune",
        "_reap": "lib/course.lua reap",
    },
    "jobs/sweeps.py": {
        "_cancel_flow": "lib/sweeps.lua step_flow",
        "_cancel_paths": "lib/sweeps.lua step_cancel",
        "_unpark": "lib/sweeps.lua step_unpark",
    },
    "structures/trie.py": {"advance": "lib/gates.lua advance", "place": "lib/gates.lua place"},
    "structures/ready_queue.py": {
        "add": "lib/ready.lua offer",
        "remove": "lib/ready.lua withdraw",
        "rerank": "lib/ready.lua rerank",
        "take": "lib/ready.lua take",
    },
    "work.py": {"follow": "lib/follow.lua follow"},
}
"""Functions of the core, by module, and their twins."""


@pytest.mark.parametrize("module", TWINS)
def test_both_of_a_pair_are_there(module: str) -> None:
    source = (CORE / module).read_text("utf-8")
    for function, twin in TWINS[module].items():
        assert re.search(rf"^ *def {function}\(", source, re.MULTILINE), function
        file, name = twin.split()
        assert re.search(rf"^(local )?function (\w+\.)?{name}\(", (LUA / file).read_text("utf-8"), re.MULTILINE), twin


def test_modules_that_scripts_mirror_are_there() -> None:
    named = set[str]()
    for path in LUA.rglob("*.lua"):
        for said in re.findall(r"[Mm]irrors (core\.[\w.]+\w(?: and core\.[\w.]+\w)*)", path.read_text("utf-8")):
            named.update(said.split(" and "))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name.replace(".", "/")).with_suffix(".py").exists()] == []
