"""Mutants of what stands around the rules: the conversation with a store, workers, renewal, the memory backend."""

from tests.mutants.gate import Mutant, tests

CONVERSATION = tests("tests/unit/test_redis_conversation.py")
NOTES = tests("tests/integration/test_worker_notes.py", "-k", "memory")
RENEWAL = tests("tests/unit/test_renewal.py", "-k", "fenced_in_time")
WAITS = tests("tests/integration/test_redis_waits.py")
TIMEOUTS = tests("tests/integration/test_worker.py", "-k", "returned_after_the_timeout")
AGREEMENT = tests(
    "tests/property/test_agreement.py::test_the_engine_and_a_store_give_the_same_answers_at_every_step"
    "[shared=0.0 keyed=0.15 jobs=10-1000]"
)

MUTANTS = (
    Mutant(
        name="Lua: a worker without room keeps the marker of a pool that it took",
        kind="worker",
        file="backends/redis/lua/exchange.lua",
        old="ready.hand_on(names, ARGV[13] ~= '*' and {users or {}, steal or {}} or {})\n",
        new="if limit > 0 then ready.hand_on(names, ARGV[13] ~= '*' and {users or {}, steal or {}} or {}) end\n",
        caught_by=(WAITS,),
    ),
    Mutant(
        name="A wait that is canceled keeps the marker that it took",
        kind="worker",
        file="backends/redis/backend.py",
        old='                    await self._link.ask(("ZADD", taken[0], "0", taken[1]))\n',
        new="                    pass\n",
        caught_by=(WAITS,),
    ),
    Mutant(
        name="An attempt that something else asked to stop is never over its timeout",
        kind="worker",
        file="attempts.py",
        old='        why_stop = slot.why_stop if loop.time() < deadline_s else "timeout"\n',
        new="        why_stop = slot.why_stop\n",
        caught_by=(TIMEOUTS,),
    ),
    Mutant(
        name="A request whose answer was lost is asked again as another one",
        kind="wire",
        file="backends/redis/conversation.py",
        old="            if known is not None:\n                return known[1]\n",
        new="",
        caught_by=(CONVERSATION,),
    ),
    Mutant(
        name="A request under way and the next of another caller share a lane",
        kind="wire",
        file="backends/redis/conversation.py",
        old="            lane = self._lanes.pop() if self._lanes else Lane()\n",
        new="            lane = self._lanes[-1] if self._lanes else Lane()\n",
        caught_by=(CONVERSATION,),
    ),
    Mutant(
        name="The time of this process decides, not that of the server",
        kind="wire",
        file="backends/redis/conversation.py",
        old="        self._clock = None if isinstance(options.clock, SystemClock) else options.clock\n",
        new="        self._clock = options.clock\n",
        caught_by=(CONVERSATION,),
    ),
    Mutant(
        name="Whoever does not know what became of a request is told that it was not done",
        kind="wire",
        file="backends/redis/conversation.py",
        old="                    failure, is_unknown = error, lane is not None\n",
        new="                    failure, is_unknown = error, False\n",
        caught_by=(CONVERSATION,),
    ),
    Mutant(
        name="A server that may evict jobs is taken",
        kind="memory",
        file="backends/redis/conversation.py",
        old='    if policy != "noeviction":\n',
        new='    if policy == "allkeys-lru":\n',
        caught_by=(CONVERSATION,),
    ),
    Mutant(
        name="A full store that refuses a partial result stops its worker",
        kind="wire",
        file="outbox.py",
        old="                self._full_until_s = self._now_s() + REST_S\n",
        new="                raise\n",
        caught_by=(NOTES,),
    ),
    Mutant(
        name="Notes that cannot be sent hold up settlements for ever",
        kind="wire",
        file="outbox.py",
        old="        return self._is_passed_over\n",
        new="        return False\n",
        caught_by=(NOTES,),
    ),
    Mutant(
        name="A node that is found to be a replica is asked again and not left",
        kind="wire",
        file="backends/redis/conversation.py",
        old="            yield Move(leaves=True)\n",
        new="",
        caught_by=(CONVERSATION,),
    ),
    Mutant(
        name="Connections to a node that is no primary any more are kept",
        kind="wire",
        file="backends/redis/links.py",
        old="        if move.leaves and (pool := self._pools.pop(self._at, None)) is not None:\n            pool.d",
        new="        if move.leaves and (pool := self._pools.get(None)) is not None:\n            pool.d",
        caught_by=(tests("tests/faults/test_failover.py", "-k", "no_connection_to_an_old_primary"),),
    ),
    Mutant(
        name="The old primary answers who only asks",
        kind="wire",
        file="backends/redis/conversation.py",
        old="            if asked_s - max(self._primary_s, self._checked_s or 0.0) >= ROLE_EVERY_S:\n",
        new="            if asked_s - max(self._primary_s, self._checked_s or 0.0) >= CHECK_EVERY_S:\n",
        caught_by=(CONVERSATION,),
    ),
    Mutant(
        name="A server that may evict has its leases refused",
        kind="wire",
        file="backends/redis/conversation.py",
        old="        if self._policy is not None and _adds(operation):\n",
        new="        if self._policy is not None:\n",
        caught_by=(CONVERSATION,),
    ),
    Mutant(
        name="A submission may hold eight thousand jobs",
        kind="bounds",
        file="operations.py",
        old="JOBS_PER_SUBMISSION_MAX = 1000\n",
        new="JOBS_PER_SUBMISSION_MAX = 8000\n",
        caught_by=(tests("tests/unit/test_engine_submissions.py"),),
    ),
    Mutant(
        name="The last that was left over is done first",
        kind="bounds",
        file="core/engine.py",
        old="                item = leftovers.popleft()\n",
        new="                item = leftovers.pop()\n",
        caught_by=(AGREEMENT,),
    ),
    Mutant(
        name="A lease is taken to last from the answer on, not from the question",
        kind="worker",
        file="renewal.py",
        old="        until_s, began_s = sent_s + self._lease_s, self.now_s()\n",
        new="        until_s, began_s = self.now_s() + self._lease_s, self.now_s()\n",
        caught_by=(RENEWAL,),
    ),
    Mutant(
        name="A job whose lease could not be renewed is not asked to stop",
        kind="worker",
        file="renewal.py",
        old='            self._tell(job_id, token, "lease lost")\n\n    # --- renewing',
        new="\n    # --- renewing",
        caught_by=(RENEWAL,),
    ),
    Mutant(
        name="The memory backend reaps what runs in its own process",
        kind="worker",
        file="backends/memory.py",
        old="            if leases := self._own_leases(now_ms):\n",
        new="            if leases := ():\n",
        caught_by=(tests("tests/integration/test_worker.py", "-k", "a_cancellation_is_heard"),),
    ),
    Mutant(
        name="A worker claims as many as if nothing ran",
        kind="worker",
        file="worker.py",
        old="self._concurrency - len(self._slots)\n",
        new="self._concurrency\n",
        caught_by=(tests("tests/integration/test_worker.py", "-k", "never_run_more_than_the_slots"),),
    ),
    Mutant(
        name="A worker that stops lets jobs run that were granted meanwhile",
        kind="worker",
        file="worker.py",
        old="        if self._stopping or (self._renewal is not None and self._renewal.is_short(sent_s)):\n",
        new="        if self._renewal is not None and self._renewal.is_short(sent_s):\n",
        caught_by=(tests("tests/integration/test_worker.py", "-k", "granted_while"),),
    ),
    Mutant(
        name="A worker lets a job run whose lease is as good as over",
        kind="worker",
        file="worker.py",
        old="        if self._stopping or (self._renewal is not None and self._renewal.is_short(sent_s)):\n",
        new="        if self._stopping:\n",
        caught_by=(tests("tests/integration/test_worker.py", "-k", "granted_too_long"),),
    ),
)
