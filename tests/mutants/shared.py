"""Mutants of shared values (`xcom`), and of records by what they wait for."""

from tests.mutants.catchers import CONFORMANCE, CONFORMANCE_ON_REDIS
from tests.mutants.gate import Mutant, tests

LUA = "backends/redis/lua"
RECOUNT = tests("tests/property/test_agreement.py")
"""Entries of each key are counted beside those of the engine."""

MUTANTS = (
    Mutant(
        name="A value that is deleted is there until the next change",
        kind="records",
        file="core/xcom.py",
        old="        return there[0] if there is not None and there[1][0] > now_ms else None\n",
        new="        return there[0] if there is not None and there[1][0] >= now_ms else None\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Lua: a value that is deleted is there until the next change",
        kind="records",
        file=f"{LUA}/pull.lua",
        old="return tonumber(until_ms) > NOW and",
        new="return tonumber(until_ms) >= NOW and",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: the deletion of a deleted value says that there was one",
        kind="records",
        file=f"{LUA}/push.lua",
        old="local replaced = stored and tonumber(string.match(stored, '^%d+')) > NOW\n",
        new="local replaced = stored\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Keys whose time is over are listed",
        kind="records",
        file="core/xcom.py",
        old="            if self.pull(place, now_ms) is not None:\n",
        new="            if place:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="The last key of a page of keys is the first of the next",
        kind="records",
        file="core/xcom.py",
        old="inclusive=(after is None or after < prefix, True)",
        new="inclusive=(True, True)",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A page of keys ends only when it is full",
        kind="bounds",
        file="core/xcom.py",
        old="            if len(found) == limit or looked_at == SHARED_LIST_MAX:\n",
        new="            if len(found) == limit:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A key that is pushed after the first list is not listed",
        kind="records",
        file="core/xcom.py",
        old="        elif self._order is not None:\n            self._order.add(place)\n",
        new="",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Lua: keys whose time is over are listed",
        kind="records",
        file=f"{LUA}/list_shared.lua",
        old=" or 0) > NOW then\n",
        new=" or 0) > 0 then\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: the last key of a page of keys is the first of the next",
        kind="records",
        file=f"{LUA}/list_shared.lua",
        old="then low = '(' .. begin .. after end\n",
        new="then low = '[' .. begin .. after end\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: a page of keys ends only when it is full",
        kind="bounds",
        file=f"{LUA}/list_shared.lua",
        old="  if found == limit or looked_at == LOOKED_AT_MAX then\n",
        new="  if found == limit then\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: the tally of a cancellation is listed",
        kind="records",
        file=f"{LUA}/lib/request/write.lua",
        old="    if string.byte(value[1]) ~= 0 then redis",
        new="    if true then redis",
        caught_by=(RECOUNT,),
    ),
    Mutant(
        name="Lua: keys of values that were dropped are remembered",
        kind="records",
        file=f"{LUA}/lib/request/write.lua",
        old="    redis.call('ZREM', store.shared_names, place)\n",
        new="",
        caught_by=(RECOUNT,),
    ),
    Mutant(
        name="Jobs that wait for one are listed whatever their flow",
        kind="records",
        file="core/structures/record_index.py",
        old="        wanted.waits_for not in job.blocked or wanted.flow not in (None, job.spec.flow)\n",
        new="        wanted.waits_for not in job.blocked\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A page of the jobs that wait for one begins anew",
        kind="records",
        file="core/asking/questions.py",
        old="            if number is None or (since < number if newest_first else since > number):\n",
        new="            if True:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Lua: jobs that wait for one are listed whatever their flow",
        kind="records",
        file=f"{LUA}/lib/asking/filter.lua",
        old="  if filter.waits_for and ((filter.flow and job[FLOW] ~= filter.flow)\n",
        new="  if filter.waits_for and (false\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: the newest of the jobs that wait for one come last",
        kind="records",
        file=f"{LUA}/lib/asking/filter.lua",
        old="      if newest_first then members = redis.call('ZRANGE', set, high,",
        new="      if false then members = redis.call('ZRANGE', set, high,",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
)
