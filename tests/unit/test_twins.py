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
        "ask_to_stop": "lib/jobs/transitions.lua ask_to_stop",
        "await_children": "lib/jobs/transitions.lua await_children",
        "become": "lib/jobs/transitions.lua become",
        "bind": "lib/jobs/transitions.lua bind",
        "end": "lib/jobs/transitions.lua finish",
        "kept_ms": "lib/jobs/transitions.lua kept_ms",
        "offer": "lib/jobs/transitions.lua offer",
        "place": "lib/jobs/transitions.lua take_place",
        "postpone": "lib/jobs/transitions.lua postpone",
        "put_back": "lib/jobs/transitions.lua put_back",
        "queue": "lib/jobs/transitions.lua queue",
        "vacate": "lib/structures/gates.lua vacate",
        "withdraw": "lib/jobs/transitions.lua withdraw",
        "_stop": "lib/jobs/transitions.lua stop",
    },
    "jobs/staging.py": {
        "begin": "lib/jobs/transitions.lua begin",
        "commit": "lib/jobs/transitions.lua commit",
        "remove": "lib/jobs/transitions.lua remove",
        "unstage": "lib/jobs/transitions.lua unstage",
    },
    "jobs/lifecycle.py": {
        "back_off": "lib/jobs/lifecycle.lua back_off",
        "cancel": "lib/jobs/sweeps.lua cancel_job",
        "die": "lib/jobs/lifecycle.lua die",
        "fail": "lib/jobs/lifecycle.lua fail",
        "lose": "lib/jobs/lifecycle.lua lose",
        "resolve": "lib/jobs/lifecycle.lua resolve",
        "_promote": "lib/jobs/lifecycle.lua promote",
        "_prune": "lib/jobs/lifecycle.lua prune",
        "_reap": "lib/jobs/lifecycle.lua reap",
    },
    "jobs/sweeps.py": {
        "_cancel_flow": "lib/jobs/sweeps.lua step_flow",
        "_cancel_paths": "lib/jobs/sweeps.lua step_cancel",
        "_unpark": "lib/jobs/sweeps.lua step_unpark",
    },
    "structures/trie.py": {"advance": "lib/structures/gates.lua advance", "place": "lib/structures/gates.lua place"},
    "structures/ready_queue.py": {
        "add": "lib/structures/ready_queue.lua offer",
        "remove": "lib/structures/ready_queue.lua withdraw",
        "rerank": "lib/structures/ready_queue.lua rerank",
        "take": "lib/structures/ready_queue.lua take",
    },
    "work.py": {"follow": "lib/jobs/work.lua follow"},
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
