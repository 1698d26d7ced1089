"""Job transitions are written in Python and in Lua: a table of the pairs, and a check that both exist."""

from __future__ import annotations

import re
from pathlib import Path

import queuehint
from tests.each import for_each

ROOT = Path(queuehint.__file__).parent
CORE, LUA = ROOT / "core", ROOT / "backends/redis/lua"

TWINS = {
    "producing.py": {"enqueue.lua": "admit start_of"},
    "working.py": {"exchange.lua": "settle claim claim_of"},
    "jobs/table.py": {
        "lib/jobs/transitions.lua": """
            ask_to_stop await_children become bind end=finish forget_cancellation offer place postpone put_back
            queue set_time start stop withdraw
        """,
        "lib/request/retention.lua": "kept_ms",
        "lib/structures/gates.lua": "vacate",
    },
    "jobs/staging.py": {"lib/jobs/staging.lua": "begin close_start commit remove unstage"},
    "jobs/archive.py": {"lib/jobs/archive.lua": "discard forget prune redrive restart revive"},
    "jobs/revisions.py": {"enqueue.lua": "respec", "lib/jobs/transitions.lua": "make_due"},
    "jobs/lifecycle.py": {
        "lib/jobs/lifecycle.lua": """
            await_children back_off begin cancel count_delay delete die discard drop end=finish end_because_of
            end_parent fail fire_timer forget give lose promote prune reap record_error resolve resolve_dependents
            revive revive_dependents
        """,
    },
    "jobs/closings.py": {"lib/jobs/closings.lua": "cause_of_closing close last_above"},
    "jobs/pauses.py": {"lib/structures/pauses.lua": "begin count_parked holding resume selects"},
    "jobs/priority.py": {"lib/jobs/priority.lua": "inherit"},
    "jobs/sweeps.py": {
        "lib/jobs/sweeps.lua": "cancel_flow cancel_paths unpark",
        "lib/jobs/dependents.lua": "end_waits go_through release revive",
        "lib/jobs/work.lua": "step",
    },
    "structures/leftovers.py": {"lib/jobs/leftovers.lua": "leave_tally"},
    "structures/edges.py": {
        "lib/structures/edges.lua": """
            add close count edge_action end_resolving first_canceled_by has_dependents is_awaited_by is_late keep
            needs_of reaches release set_canceled_by
        """,
        "lib/jobs/lifecycle.lua": "evaluate is_cycle",
        "lib/jobs/transitions.lua": "hold",
    },
    "structures/event_log.py": {"lib/structures/event_log.lua": "note"},
    "structures/limits.py": {
        "lib/structures/limits.lua": "enter job_left leave park recheck refresh room_ms set stops"
    },
    "structures/ready_queue.py": {"lib/structures/ready_queue.lua": "add remove rerank rotate take"},
    "structures/timers.py": {"lib/structures/timers.lua": "drop next_ms pop_due"},
    "structures/trie.py": {"lib/structures/gates.lua": "advance before leave place walk_on"},
    "asking/blockers.py": {"lib/asking/reasons.lua": "dead_at holders_of"},
    "asking/why.py": {"lib/asking/reasons.lua": "cycle_reason cycle_text reason_of reason_queued"},
    "asking/chain.py": {"why.lua": "finds_stuck"},
    "meters.py": {"lib/formats/meters.lua": "counted_ms free_ms go_on_from live note room_ms spend"},
    "work.py": {"lib/jobs/work.lua": "follow more"},
    "schedules.py": {"lib/structures/schedules.lua": "fire next_ms"},
}
"""Functions of the core, by module, and their twins, by file: of one name but for `end`, which is a word of Lua."""


@for_each("module", TWINS)
def test_both_of_a_pair_are_there(module: str) -> None:
    source = (CORE / module).read_text("utf-8")
    for file, names in TWINS[module].items():
        lua = (LUA / file).read_text("utf-8")
        for pair in names.split():
            name, _, twin = pair.partition("=")
            assert re.search(rf"^ *def _?{name}\(", source, re.MULTILINE), name
            assert re.search(rf"^(local )?function (\w+\.)?{twin or name}\(", lua, re.MULTILINE), (file, twin or name)


def test_modules_that_scripts_mirror_are_there() -> None:
    named = set[str]()
    for path in LUA.rglob("*.lua"):
        for said in re.findall(r"[Mm]irrors (core\.[\w.]+\w(?: and core\.[\w.]+\w)*)", path.read_text("utf-8")):
            named.update(said.split(" and "))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name.replace(".", "/")).with_suffix(".py").exists()] == []
