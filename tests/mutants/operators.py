"""Mutants of features for operators and developers: pauses by filter, counts of dependencies, `--reload`."""

from tests.mutants.catchers import ON_REDIS
from tests.mutants.gate import Mutant, tests

PAUSES = tests("tests/contract/test_memory.py", "-k", "filter or all_conditions or may_end_by_itself or another_user")
PAUSES_ON_REDIS = tests(
    "tests/contract/test_redis.py", "-k", f"{ON_REDIS} and (filter or all_conditions or several_pauses)"
)
RELOAD = tests(
    "tests/integration/test_cli_reload.py",
    "-k",
    "is_gone or imported_later or failed_import or has_ended or before_the_watch",
)

MUTANTS = (
    Mutant(
        name="A pause by filter holds jobs below other paths too",
        kind="limits",
        file="core/jobs/pauses.py",
        old="    return (path is None or any(is_prefix(path, claim.path) for claim in job.spec.claims)) and passes(",
        new="    return passes(",
        caught_by=(PAUSES,),
    ),
    Mutant(
        name="A pause by filter that is begun again keeps the end that it had",
        kind="limits",
        file="core/jobs/pauses.py",
        old="        elif pause.until_ms == until_ms:\n",
        new="        elif pause.until_ms == until_ms or pauses is self.by_filter:\n",
        caught_by=(PAUSES,),
    ),
    Mutant(
        name="Lua: the dead shelf is listed from its end the first first",
        kind="records",
        file="backends/redis/lua/list.lua",
        old="return (filter.is_by_entry or filter.is_dead_alone)",
        new=(
            "if filter.is_dead_alone then newest_first = false end\nreturn (filter.is_by_entry or filter.is_dead_alone)"
        ),
        caught_by=(tests("tests/contract/test_redis.py", "-k", f"{ON_REDIS} and dead_shelf_is_read"),),
    ),
    Mutant(
        name="Lua: a pause by tag holds jobs whatever their tags",
        kind="limits",
        file="backends/redis/lua/lib/structures/pauses.lua",
        old="    and (one.tag == '' or has_tag(job, one.tag)) and",
        new="    and",
        caught_by=(PAUSES_ON_REDIS,),
    ),
    Mutant(
        name="Lua: the first pause by filter alone is asked whether it holds a job",
        kind="limits",
        file="backends/redis/lua/lib/structures/pauses.lua",
        old="    if known[one.name] and selects(one, job) then return known[one.name], one.name end\n",
        new="    return known[one.name] and selects(one, job) and known[one.name] or nil, one.name\n",
        caught_by=(PAUSES_ON_REDIS,),
    ),
    Mutant(
        name="A reason counts the open dependencies as all that there were",
        kind="records",
        file="core/asking/why.py",
        old="is not None else sum(map(len, job.extras.portions)),",
        new="is not None else len(job.blocked),",
        caught_by=(tests("tests/contract/test_memory.py", "-k", "of_all_portions"),),
    ),
    Mutant(
        name="Lua: a reason counts the open dependencies as all that there were",
        kind="records",
        file="backends/redis/lua/lib/asking/reasons.lua",
        old="edges.count_needs(job),",
        new="job[BLOCKED],",
        caught_by=(tests("tests/contract/test_redis.py", "-k", f"{ON_REDIS} and of_all_portions"),),
    ),
    Mutant(
        name="A worker that reloads starts anew while an editor has moved a file away",
        kind="worker",
        file="cli/reload.py",
        old="return next((self._files[path] for path in touched - self._gone), None)",
        new="return next((self._files[path] for path in touched), None)",
        caught_by=(RELOAD,),
    ),
    Mutant(
        name="A worker that reloads watches only what it had imported at its start",
        kind="worker",
        file="cli/reload.py",
        old="                self.take()\n",
        new="",
        caught_by=(RELOAD,),
    ),
    Mutant(
        name="A worker that could not import its application does not watch the file that failed",
        kind="worker",
        file="cli/reload.py",
        old="        self._add(_files_of(error))\n",
        new="",
        caught_by=(RELOAD,),
    ),
    Mutant(
        name="A worker that reloads ends while its watch is in the library",
        kind="worker",
        file="cli/reload.py",
        old="            self._thread.join()\n",
        new="            pass\n",
        caught_by=(RELOAD,),
    ),
    Mutant(
        name="A worker that reloads runs on with a file that changed between its import and its watch",
        kind="worker",
        file="cli/reload.py",
        old="self._gone.union(touched, self._changed_unseen())",
        new="self._gone.union(touched)",
        caught_by=(RELOAD,),
    ),
)
