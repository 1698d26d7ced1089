"""Mutants of the tree in pages and of the longest lines."""

from tests.mutants.catchers import ON_REDIS
from tests.mutants.gate import Mutant, tests

MEMORY = tests("tests/contract/test_memory.py", "-k", "tree or children_ or a_place or places_come or line_ or lines_")
REDIS = tests(
    "tests/contract/test_redis.py",
    "-k",
    f"{ON_REDIS} and (children_ or a_place or places_come or line_ or lines_ or pages_pass)",
)

SHORT_WAYS = tests("tests/property/test_short_ways.py", "-k", "line")
AGREEMENT = tests("tests/property/test_agreement.py", "-k", "at_every_step")

MUTANTS = (
    Mutant(
        name="A page of a tree begins with the child that its cursor names",
        kind="records",
        file="core/asking/places.py",
        old="gate_key((segment,))) > done)",
        new="gate_key((segment,))) >= done)",
        caught_by=(tests("tests/contract/test_memory.py", "-k", "children_come_in_pages"),),
    ),
    Mutant(
        name="A tree that is cut for its size has no cursor",
        kind="records",
        file="core/asking/places.py",
        old="                cut = after\n",
        new="                cut = after if self.room > 0 else None\n",
        caught_by=(MEMORY,),
    ),
    Mutant(
        name="The places without a line count among the longest ones",
        kind="records",
        file="core/asking/places.py",
        old="if child.waiting > longer_than]",
        new="if child.waiting >= longer_than]",
        caught_by=(MEMORY,),
    ),
    Mutant(
        name="Lua: the next page goes on behind the last name that it has looked at",
        kind="records",
        file="backends/redis/lua/tree.lua",
        old="  if name == false then done = names.done end\n",
        new="  if name ~= nil then done = names.done end\n",
        caught_by=(REDIS,),
    ),
    Mutant(
        name="Lua: a name that begins another one is not asked for before it",
        kind="records",
        file="backends/redis/lua/tree.lua",
        old="    for length = from, #name - 1 do\n",
        new="    for length = #name, #name - 1 do\n",
        caught_by=(REDIS,),
    ),
    Mutant(
        name="Lua: a tree that has looked at too much says that it is whole",
        kind="records",
        file="backends/redis/lua/tree.lua",
        old="  if name ~= nil then places.reply[cursor]",
        new="  if name then places.reply[cursor]",
        caught_by=(REDIS,),
    ),
    Mutant(
        name="Lua: an entry found from one position in the index is taken for the next one of any later position",
        kind="records",
        file="backends/redis/lua/lib/asking/places.lua",
        old=" or (found and form.less(found, position)) then",
        new=" then",
        caught_by=(REDIS,),
    ),
    Mutant(
        name="Lua: behind a place the search for lines leaves out the names that begin as it does",
        kind="records",
        file="backends/redis/lua/list_lines.lua",
        old="return #keys > deepest + 1 and",
        new="return #keys > deepest and",
        caught_by=(REDIS,),
    ),
    Mutant(
        name="Lua: the first page of lines is the last one",
        kind="records",
        file="backends/redis/lua/list_lines.lua",
        old="  if looked_at > LOOKED_AT_MAX or passed >= GATES_MAX then break end\n",
        new="  if looked_at > LOOKED_AT_MAX or passed >= GATES_MAX then\n    cursor = ''\n    break\n  end\n",
        caught_by=(REDIS,),
    ),
    Mutant(
        name="The longest lines of the first page are those of all",
        kind="api",
        file="scheduler/operating.py",
        old="        found = {place.path_key: place for place in (*longest, *page.places)}\n",
        new="        found = {place.path_key: place for place in (longest or page.places)}\n",
        caught_by=(tests("tests/integration/test_api_operating.py", "-k", "longest_lines_of_all_pages"),),
    ),
    Mutant(
        name="Lua: a line that has grown in a step with others is not found among the longest",
        kind="records",
        file="backends/redis/lua/lib/request/write.lua",
        old="    if gate.was then gate_format.note_length(key, gate.was, gate[WAITING]) end\n",
        new="",
        caught_by=(tests("tests/contract/test_redis.py", "-k", f"{ON_REDIS} and among_many"), AGREEMENT),
    ),
    Mutant(
        name="Lua: a line that a single enqueue makes longer is not found among the longest",
        kind="records",
        file="backends/redis/lua/lib/plain/enqueue_one.lua",
        old="    if waiting > 3 and math.frexp(waiting)",
        new="    if waiting > 4 and math.frexp(waiting)",
        caught_by=(SHORT_WAYS,),
    ),
    Mutant(
        name="Lua: a line that a single exchange makes shorter stays among the longest",
        kind="records",
        file="backends/redis/lua/lib/plain/exchange_one.lua",
        old="    if waiting > 2 and math.frexp(waiting + 1)",
        new="    if waiting > 3 and math.frexp(waiting + 1)",
        caught_by=(SHORT_WAYS,),
    ),
)
