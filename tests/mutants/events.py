"""Mutants of events: their fields, which of them pass a filter, and those that follow them."""

from tests.mutants.gate import Mutant, tests

MEMORY = "tests/contract/test_memory.py"
REDIS = "tests/contract/test_redis.py"

MUTANTS = (
    Mutant(
        name="An event has the error of an attempt of another job",
        kind="wire",
        file="core/structures/event_log.py",
        old="            error, self.error = self.error, None\n",
        new="            error = self.error\n",
        caught_by=(tests("tests/unit/test_event_log.py"),),
    ),
    Mutant(
        name="Progress is said to be a run's end",
        kind="wire",
        file="core/structures/event_log.py",
        old="        if old is STARTED and kind is not PROGRESSED:\n",
        new="        if old is STARTED:\n",
        caught_by=(tests(MEMORY, "-k", "progress_is_an_event"),),
    ),
    Mutant(
        name="Lua: an event has one of its job's places",
        kind="wire",
        file="backends/redis/lua/lib/structures/event_log.lua",
        old="(string.gsub(job[CLAIMS], '\\n', '\\t'))",
        new="(string.match(job[CLAIMS], '^[^\\n]*'))",
        caught_by=(tests(REDIS, "-k", "where_its_job_belongs"),),
    ),
    Mutant(
        name="Lua: an event has all of an error's message",
        kind="wire",
        file="backends/redis/lua/lib/structures/event_log.lua",
        old="error_message = string.sub(event_log.error[2], 1, ERROR_BYTES_MAX)",
        new="error_message = event_log.error[2]",
        caught_by=(tests(REDIS, "-k", "says_its_error"),),
    ),
    Mutant(
        name="A trace takes a report of progress for an end",
        kind="wire",
        file="testing/trace/checker.py",
        old='        if kind == "progressed":\n            return\n',
        new="",
        caught_by=(tests("tests/unit/test_trace_rules.py", "-k", "progress"),),
    ),
    Mutant(
        name="An event passes a filter by a part of a segment",
        kind="wire",
        file="values/event.py",
        old="any(claim.path[: len(path)] == path for claim in event.claims)",
        new="any(claim.path[: len(path)] == path[: len(claim.path)] for claim in event.claims)",
        caught_by=(tests("tests/unit/test_event_log.py", "-k", "filter"),),
    ),
    Mutant(
        name="A page of events that pass a filter leaves out those looked at in vain",
        kind="wire",
        file="core/structures/event_log.py",
        old="                looked_to = events[-1].at\n",
        new="",
        caught_by=(tests(MEMORY, "-k", "page_ends_with_the_last"),),
    ),
    Mutant(
        name="Lua: a page of events that pass a filter leaves out those behind it",
        kind="wire",
        file="backends/redis/lua/follow.lua",
        old="          rest[2] = rest[size - 1]\n",
        new="",
        caught_by=(tests(REDIS, "-k", "page_ends_with_the_last"),),
    ),
    Mutant(
        name="Lua: an event passes the filter of a place by its user",
        kind="wire",
        file="backends/redis/lua/follow.lua",
        old="by_condition['p' .. key]",
        new="by_condition['u' .. key]",
        caught_by=(tests(REDIS, "-k", "path_pass"),),
    ),
)
