"""Mutants of timeouts of flows, in the engine, in Lua and in the public API."""

from tests.mutants.catchers import CONFORMANCE, CONFORMANCE_ON_REDIS
from tests.mutants.gate import Mutant, tests

LUA = "backends/redis/lua"
DOOR = tests("tests/integration/test_flow_timeout.py", "-k", "memory or takes_effect")

MUTANTS = (
    Mutant(
        name="A flow that times out is left as it is",
        kind="cancel",
        file="core/jobs/staging.py",
        old="        cancel_flow(table, start.id[len(DEADLINE_MARK) :], FLOW_TIMEOUT)\n",
        new="",
        caught_by=(CONFORMANCE, DOOR),
    ),
    Mutant(
        name="A flow in parts has no timeout",
        kind="cancel",
        file="core/producing.py",
        old="    if operation.flow is not None and staged:\n",
        new="    if False:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A flow that is submitted again times out later",
        kind="cancel",
        file="core/producing.py",
        old=" and any(each.created for each in enqueued):\n",
        new=":\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A flow without a timeout has that of an earlier one of its id",
        kind="cancel",
        file="core/jobs/staging.py",
        old="    elif deadline is not None:\n",
        new="    elif False:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="The timeout of a flow covers what is enqueued after it",
        kind="cancel",
        file="core/jobs/staging.py",
        old="        remove(table, start)\n        cancel_flow(",
        new="        keep_start(table, start, now_ms + 1)\n        cancel_flow(",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="What was sent of a flow that is refused is left to expire",
        kind="cancel",
        file="client/submission.py",
        old="            yield from withdraw(staged)\n",
        new="            pass\n",
        caught_by=(tests("tests/unit/test_submission.py", "-k", "withdrawn"),),
    ),
    Mutant(
        name="A flow in parts of which all jobs are there is taken for the one that has more",
        kind="cancel",
        file="client/submission.py",
        old=".total > count:\n",
        new=".total < count:\n",
        caught_by=(tests("tests/integration/test_flow_redis.py", "-k", "fewer"),),
    ),
    Mutant(
        name="What is withdrawn is kept until it expires",
        kind="cancel",
        file="core/producing.py",
        old="        staging.withdraw(state.table, start, state.now_ms)\n",
        new="        staging.keep_start(state.table, start, state.now_ms + 1)\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Lua: what is withdrawn is kept until it expires",
        kind="cancel",
        file="backends/redis/lua/withdraw.lua",
        old="if is_open then staging.withdraw(start) end\n",
        new="if is_open then timers.set_expiry(start, NOW + 1) end\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="A flow is submitted without its timeout",
        kind="cancel",
        file="client/submission.py",
        old="            timeout_ms = flow_timeout_ms if staged is None else None\n",
        new="            timeout_ms = None\n",
        caught_by=(DOOR,),
    ),
    Mutant(
        name="A flow in parts is committed without its timeout",
        kind="cancel",
        file="client/submission.py",
        old="Commit(staged, flow, flow_timeout_ms)",
        new="Commit(staged, flow)",
        caught_by=(DOOR,),
    ),
    # --- in Lua ---
    Mutant(
        name="Lua: a flow that times out is left as it is",
        kind="cancel",
        file=f"{LUA}/lib/jobs/staging.lua",
        old="    return staging.cancel_flow(string.sub(start.id, #DEADLINE_MARK + 1), 'flow_timeout')\n",
        new="    return\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: a flow in parts has no timeout",
        kind="cancel",
        file=f"{LUA}/commit.lua",
        old="if ARGV[10] ~= '' and staged > 0 then\n",
        new="if false then\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: a flow that is submitted again times out later",
        kind="cancel",
        file=f"{LUA}/enqueue.lua",
        old="if flow ~= '' and not start and #made > 0 then\n",
        new="if flow ~= '' and not start then\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: a flow without a timeout has that of an earlier one of its id",
        kind="cancel",
        file=f"{LUA}/lib/jobs/staging.lua",
        old="  elseif deadline then\n",
        new="  elseif false then\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
)
