"""Mutants of the gates in Lua that differ from the program extracted from the proof."""

from tests.mutants.catchers import CONFORMANCE_ON_REDIS, PROVED_STORES
from tests.mutants.gate import Mutant
from tests.mutants.lua import LUA

MUTANTS = (
    Mutant(
        name="Lua: S fits IX",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="  if mode == S_MODE then return gate[IX] == 0 end\n",
        new="  if mode == S_MODE then return true end\n",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: S does not fit S",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="  if mode == S_MODE then return gate[IX] == 0 end\n",
        new="  if mode == S_MODE then return gate[IX] == 0 and gate[S_MODE] == 0 end\n",
        caught_by=(CONFORMANCE_ON_REDIS,),
    ),
    Mutant(
        name="Lua: IX does not fit IS",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="  if mode == IX then return gate[S_MODE] == 0 end\n",
        new="  if mode == IX then return gate[S_MODE] == 0 and gate[IS] == 0 end\n",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: IS does not fit S",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="  if mode == IS then return true end\n",
        new="  if mode == IS then return gate[S_MODE] == 0 end\n",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a shared claim is exclusive at its own gate from a line",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="  if depth == #claim.keys - 1 then return claim.shared and S_MODE or X_MODE end\n",
        new="  if depth == #claim.keys - 1 then return X_MODE end\n",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a walk that passes is not counted",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="""\
    gate[intention] = gate[intention] + 1
    gates.dirty[key] = gate
    depth,\
""",
        new="    depth,",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a walk that is granted is not counted",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="""\
    gate[own] = gate[own] + 1
    gates.dirty[key] = gate
    job[WALKS]\
""",
        new="    job[WALKS]",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a walk that passes from a line is not counted",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    gate[mode] = gate[mode] + 1\n",
        new="",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a walk that passes from a line waits still",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    count_line(gate, -1)\n    gate[mode]",
        new="    gate[mode]",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: an advance is cut one walk late",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    if used >= budget then return used, true end\n",
        new="    if used > budget then return used, true end\n",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a cut advance says that it is done",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    if used >= budget then return used, true end\n",
        new="    if used >= budget then return used, false end\n",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a line that was advanced waits to be advanced still",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="""\
  gate[TO_ADVANCE] = 0
  return used, false
""",
        new="  return used, false\n",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a line advances though its head does not fit",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    if not gates.fits(gate, mode) then break end\n",
        new="",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a walk from a line begins at the root",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="used = used + walk_on(job, index, claim, depth + 1)",
        new="used = used + walk_on(job, index, claim, 0)",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: passing from a line costs nothing",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    used = used + 1\n    if depth",
        new="    if depth",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a line waits to be advanced though its head does not fit",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="  if gates.fits(gate, gates.mode_at(claim, job[WALKS][index])) then\n",
        new="  if true then\n",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a line is among the leftovers twice",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="  if gate[TO_ADVANCE] > 0 then return end\n",
        new="",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a job that leaves keeps its count at its own gate",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    gate[own] = gate[own] - 1\n",
        new="",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a job that leaves keeps its counts above",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    gate[intention] = gate[intention] - 1\n",
        new="",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a job that leaves does not look at the line of its own gate",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="  look_at_line(keys[depth + 1], gate)\n  while",
        new="  while",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: a job that leaves a line waits still",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="    count_line(gate, -1)\n    line_of",
        new="    line_of",
        caught_by=(PROVED_STORES,),
    ),
    Mutant(
        name="Lua: an exclusive claim leaves as a shared one",
        kind="twin",
        file=f"{LUA}/lib/structures/gates.lua",
        old="""\
  local intention = claim.shared and IS or IX
  local gate
""",
        new="""\
  local intention = IS
  local gate
""",
        caught_by=(PROVED_STORES,),
    ),
)
