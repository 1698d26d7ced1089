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
        name="Lua: a bucket that is used in the step that changes its rate is full",
        kind="limits",
        file=LUA_LIMITS,
        old="    local packed = idle and idle.packed or redis.call(",
        new="    local packed = redis.call(",
        caught_by=(rule_on_redis("used_in_the_step_that_changes_its_rate"),),
    ),
    Mutant(
        name="Lua: nothing is kept of the buckets of idle children when the rate changes",
        kind="limits",
        file=LUA_LIMITS,
        old=" do write_in_parts(set_gauges, store.gauges(number), of_limit) end\n",
        new=" do end\n",
        caught_by=(rule_on_redis("used_in_the_step_that_changes_its_rate"),),
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
        old="        too_many = pending + new[key, place] - most\n",
        new="        too_many = pending + sum(new.values()) - most\n",
        caught_by=(rule("each_child_admits or too_much_for_one_child"),),
    ),
    Mutant(
        name="Jobs of one submission at one child are not counted together",
        kind="limits",
        file="core/refusals.py",
        old="        new[key, place] += 1\n",
        new="        new[key, place] = 1\n",
        caught_by=(rule("too_much_for_one_child"),),
    ),
    Mutant(
        name="A child is told by a longer path than its own",
        kind="limits",
        file="core/refusals.py",
        old="self._count_new((place[:-1], True), place, new)",
        new="self._count_new((place[:-1], True), claim.path, new)",
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
        file=f"{LUA}/lib/asking/unfinished.lua",
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
        old="        if limit.max_pending is None:\n            del self.max_pending[key]\n",
        new="        if limit.max_pending is None:\n            del self.max_pending[None, False]\n",
        caught_by=(rule("of_a_task_or_a_pool_are_unfinished"),),
    ),
    # --- unfinished jobs of tasks and pools ---
    Mutant(
        name="A job that ends still counts for its task",
        kind="limits",
        file="core/jobs/table.py",
        old="        if self.limits.pending:\n            self.limits.count(job, -1)\n",
        new="",
        caught_by=(rule("jobs_of_a_task_are_counted_through"),),
    ),
    Mutant(
        name="Jobs that are there when the limit of a task is set do not count",
        kind="limits",
        file=LIMITS,
        old="catalog.count_unfinished(selection), last_number\n",
        new="0, last_number\n",
        caught_by=(rule("of_a_task_or_a_pool_are_unfinished"),),
    ),
    Mutant(
        name="A redriven job does not count for its task again",
        kind="limits",
        file="core/jobs/archive.py",
        old="    if table.limits.pending:\n        table.limits.count(job, 1)\n",
        new="",
        caught_by=(rule("jobs_of_a_task_are_counted_through"),),
    ),
    Mutant(
        name="The limit of unfinished jobs of a pool refuses nothing",
        kind="limits",
        file="core/refusals.py",
        old='            self._count_new(("pool", spec.pool), None, new)\n',
        new="",
        caught_by=(rule("of_a_task_or_a_pool_are_unfinished"),),
    ),
    Mutant(
        name="A part that came before the limit of its task never counts",
        kind="limits",
        file="core/jobs/staging.py",
        old="        table.catalog.add(job)\n        table.limits.count(job, 1)\n",
        new="        table.limits.count(job, 1)\n        table.catalog.add(job)\n",
        caught_by=(rule("parts_of_a_flow_count"),),
    ),
    Mutant(
        name="Lua: a job that ends at once still counts for its task",
        kind="limits",
        file=f"{LUA}/lib/structures/indexes.lua",
        old="limits.count(job, was_state and -1 or 1)",
        new="limits.count(job, was_state and 0 or 1)",
        caught_by=(rule_on_redis("of_a_task_or_a_pool_are_unfinished"),),
    ),
    Mutant(
        name="Lua: a job of another task now counts for the one before",
        kind="limits",
        file=LUA_LIMITS,
        old="  if was and not OVER[was[STATE]] then limits.count(was, -1) end\n",
        new="  if was and not OVER[was[STATE]] then limits.count(job or was, -1) end\n",
        caught_by=(rule_on_redis("jobs_of_a_task_are_counted_through"),),
    ),
    Mutant(
        name="Lua: a limit of a task begins to count at nothing",
        kind="limits",
        file=LUA_LIMITS,
        old="limiter.since = unfinished.count_listed(field), S[NUMBERS]",
        new="limiter.since = 0, S[NUMBERS]",
        caught_by=(rule_on_redis("of_a_task_or_a_pool_are_unfinished"),),
    ),
    Mutant(
        name="Lua: finishes take the plain path while a limit counts them",
        kind="limits",
        file=LUA_LIMITS,
        old="    S[LIMITS] = S[LIMITS] + change\n",
        new="",
        caught_by=(rule_on_redis("jobs_of_a_task_are_counted_through"),),
    ),
    Mutant(
        name="Lua: parts that came before a limit of their task count at once",
        kind="limits",
        file=LUA_LIMITS,
        old="(job[NUMBER] > limiter.since or not",
        new="(true or not",
        caught_by=(rule_on_redis("parts_of_a_flow_count"),),
    ),
    Mutant(
        name="The doctor passes over the unfinished jobs of a task",
        kind="limits",
        file="backends/redis/doctor/sums.py",
        old="            if field and is_now != this.counted[name]:\n",
        new="            if False:\n",
        caught_by=(tests("tests/integration/test_doctor.py", "-k", "a_task_or_a_pool_miscounts"),),
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
