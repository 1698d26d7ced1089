"""Mutants of limits, in the engine and in Lua."""

from tests.mutants.catchers import ON_REDIS
from tests.mutants.gate import Catcher, Mutant, tests
from tests.mutants.lua import LUA

LIMITS = "core/structures/limits.py"
LUA_LIMITS = f"{LUA}/lib/structures/limits.lua"


def rule(words: str) -> Catcher:
    """Return the rules of the contract on memory whose names hold words."""
    return tests("tests/contract/test_memory.py", "-k", words)


def rule_on_redis(words: str) -> Catcher:
    """Return the same on Redis, through one of its shells."""
    return tests("tests/contract/test_redis.py", "-k", f"{words} and {ON_REDIS}")


MUTANTS = (
    # --- a rate of each child ---
    Mutant(
        name="All children of a path share one bucket",
        kind="limits",
        file=LIMITS,
        old="        self.bucket = Bucket() if limiter.limit.each else limiter.bucket\n",
        new="        self.bucket = limiter.bucket\n",
        caught_by=(rule("each_child_of_a_path_has_tokens_of_its_own"),),
    ),
    Mutant(
        name="The bucket of a child is forgotten with its last job",
        kind="limits",
        file=LIMITS,
        old="            look_ms = counter.kept_until_ms(self.now_ms)\n",
        new="            look_ms = None\n",
        caught_by=(rule("spent_tokens_of_a_child_stay_spent"),),
    ),
    Mutant(
        name="The bucket of a child is kept for ever",
        kind="limits",
        file=LIMITS,
        old="        if is_idle and look_ms is None:\n",
        new="        if is_idle and look_ms is None and counter.kept_until_ms(0) is None:\n",
        caught_by=(tests("tests/unit/test_limits.py", "-k", "until_it_is_full_and_no_longer"),),
    ),
    Mutant(
        name="The children of a path have full buckets when its rate changes",
        kind="limits",
        file=LIMITS,
        old="        for place, was in old.counters.items() if limiter.limit.each else ():\n",
        new="        for place, was in ():\n",
        caught_by=(rule("spent_tokens_of_a_child_stay_spent"),),
    ),
    Mutant(
        name="Lua: all children of a path share one bucket",
        kind="limits",
        file=LUA_LIMITS,
        old="    counter.bucket = limits.is_each(at.limiter) and counter or at.limiter\n",
        new="    counter.bucket = at.limiter\n",
        caught_by=(rule_on_redis("each_child_of_a_path_has_tokens_of_its_own"),),
    ),
    Mutant(
        name="Lua: the bucket of a child is forgotten with its last job",
        kind="limits",
        file=LUA_LIMITS,
        old="      if counter.started == 0 and counter.parked == 0 and not counter.look_ms then\n",
        new="      if counter.started == 0 and counter.parked == 0 then\n",
        caught_by=(rule_on_redis("spent_tokens_of_a_child_stay_spent"),),
    ),
    Mutant(
        name="Lua: nobody looks again at the bucket of a child without jobs",
        kind="limits",
        file=LUA_LIMITS,
        old="  return full_ms > NOW and full_ms\n",
        new="  return full_ms > NOW and full_ms + 60000\n",
        caught_by=(rule_on_redis("nothing_is_kept_of_a_child_whose_bucket_is_full"),),
    ),
    Mutant(
        name="Lua: the children of a path have full buckets when its rate changes",
        kind="limits",
        file=LUA_LIMITS,
        old="  for key, was in pairs(goes_on and buckets or {}) do\n",
        new="  for key, was in pairs({}) do\n",
        caught_by=(rule_on_redis("spent_tokens_of_a_child_stay_spent"),),
    ),
    # --- room of each child ---
    Mutant(
        name="All children of a path share their room",
        kind="limits",
        file="core/refusals.py",
        old="        too_many = pending + new[path, each, place] - most\n",
        new="        too_many = pending + sum(new.values()) - most\n",
        caught_by=(rule("each_child_admits or too_much_for_one_child"),),
    ),
    Mutant(
        name="Jobs of one submission at one child are not counted together",
        kind="limits",
        file="core/refusals.py",
        old="        new[path, each, place] += 1\n",
        new="        new[path, each, place] = 1\n",
        caught_by=(rule("too_much_for_one_child"),),
    ),
    Mutant(
        name="A child is told by a longer path than its own",
        kind="limits",
        file="core/refusals.py",
        old="self._count_new(place[:-1], place, new, each=True)",
        new="self._count_new(place[:-1], claim.path, new, each=True)",
        caught_by=(rule("each_child_admits"),),
    ),
    Mutant(
        name="Lua: all children of a path share their room",
        kind="limits",
        file=f"{LUA}/enqueue.lua",
        old="    local by = field == place and field or field .. place\n",
        new="    local by = field\n",
        caught_by=(rule_on_redis("too_much_for_one_child"),),
    ),
    Mutant(
        name="Lua: jobs of the path itself count as those of a child",
        kind="limits",
        file=LUA_LIMITS,
        old="  return string.byte(field) == 47 and count - count_range(paths.ranges_at(key)) or count\n",
        new="  return count\n",
        caught_by=(rule_on_redis("what_is_there_counts_when_a_limit_is_set"),),
    ),
    # --- limits of tasks and pools ---
    Mutant(
        name="The limit of a pool holds back no job",
        kind="limits",
        file=LIMITS,
        old='limiter_of.get(("task", job.spec.task)), limiter_of.get(("pool", job.spec.pool))',
        new='limiter_of.get(("task", job.spec.task)), None',
        caught_by=(rule("jobs_of_a_pool_start_in_a_time"),),
    ),
    Mutant(
        name="A job parked by its task leaves the slot of its path to nobody",
        kind="limits",
        file=LIMITS,
        old=" and self.selection is None and other.selection is None\n",
        new="\n",
        caught_by=(rule("its_task_stops_leaves_the_slot"),),
    ),
    Mutant(
        name="A job behind the limit of its task is told a place",
        kind="limits",
        file="core/why.py",
        old="            selection=counter.selection,\n",
        new="",
        caught_by=(rule("no_more_jobs_of_a_task_run"),),
    ),
    Mutant(
        name="To limit a task takes away the limit of the namespace",
        kind="limits",
        file=LIMITS,
        old="        if limit.selection is None:\n            self._bound(",
        new="        if True:\n            self._bound(",
        caught_by=(rule("of_one_name_have_limits_of_their_own"),),
    ),
    Mutant(
        name="Lua: the limit of a task holds back jobs with a place alone",
        kind="limits",
        file=LUA_LIMITS,
        old="  add('t' .. job[TASK], '\\nt' .. job[TASK])\n",
        new="  if job[CLAIMS] ~= '' then add('t' .. job[TASK], '\\nt' .. job[TASK]) end\n",
        caught_by=(rule_on_redis("no_more_jobs_of_a_task_run"),),
    ),
    Mutant(
        name="Lua: jobs of one place have the limits of the task that was looked at first",
        kind="limits",
        file=LUA_LIMITS,
        old="  local known_by = job[TASK] .. '\\n' .. job[POOL] .. '\\n' .. job[CLAIMS]\n",
        new="  local known_by = job[CLAIMS]\n",
        caught_by=(rule_on_redis("no_more_jobs_of_a_task_run"),),
    ),
    Mutant(
        name="Lua: a job parked by its task leaves the slot of its path to nobody",
        kind="limits",
        file=LUA_LIMITS,
        old="    local is_below = key and (key == '' or at.key == key",
        new="    local is_below = parked_at and (key == '' or not key or at.key == key",
        caught_by=(rule_on_redis("its_task_stops_leaves_the_slot"),),
    ),
)
