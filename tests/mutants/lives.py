"""Mutants of single jobs in the engine: leases, retries, ends, records, and operators' settings."""

from tests.mutants.catchers import CONFORMANCE, MACHINE, PROVED_LEASES, SIMULATION
from tests.mutants.gate import Mutant, tests

MUTANTS = (
    # --- leases ---
    Mutant(
        name="A lease ends one ms late",
        kind="leases",
        file="core/structures/timers.py",
        old="        return self._first_ms <= now_ms\n",
        new="        return self._first_ms < now_ms\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A lease ends one ms early",
        kind="leases",
        file="core/structures/timers.py",
        old="        return self._first_ms <= now_ms\n",
        new="        return self._first_ms <= now_ms + 1\n",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="A lease is granted for one ms less",
        kind="leases",
        file="core/working.py",
        old=("    lease_until_ms = now_ms + operation.lease_ms\n"),
        new=("    lease_until_ms = now_ms + operation.lease_ms - 1\n"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A lease is renewed for one ms less",
        kind="leases",
        file="core/working.py",
        old=("        state.table.set_lease(job, state.now_ms + lease_ms)\n        verdicts"),
        new=("        state.table.set_lease(job, state.now_ms + lease_ms - 1)\n        verdicts"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="The presence of a caller that waits ends one ms early",
        kind="leases",
        file="core/producing.py",
        old=("        table.set_lease(job, state.now_ms + spec.presence_ms)\n"),
        new=("        table.set_lease(job, state.now_ms + spec.presence_ms - 1)\n"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A lost worker is not counted",
        kind="leases",
        file="core/jobs/lifecycle.py",
        old="        job.losses += 1\n",
        new="",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A last life whose code has not begun is counted",
        kind="leases",
        file="core/jobs/lifecycle.py",
        old="        if job.extras is not None and job.extras.to_begin:\n",
        new="        if False:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A last life that was announced never begins",
        kind="leases",
        file="core/working.py",
        old=("        if operation.begun and job.extras is not None:\n"),
        new=("        if False:\n"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A loop that turns again is called blocked",
        kind="worker",
        file="core/working.py",
        old=("        elif job.extras is not None:\n            job.extras.loop_blocked_ms = None\n"),
        new="",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="The loop of a worker before is called blocked",
        kind="worker",
        file="core/working.py",
        old=("            job.extras.loop_blocked_ms = None\n        grants"),
        new=("            pass\n        grants"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A lost worker is counted as an attempt too",
        kind="leases",
        file="core/jobs/lifecycle.py",
        old="        job.attempts -= 1\n        job.losses += 1\n",
        new="        job.losses += 1\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A job may lose one worker more than it may",
        kind="leases",
        file="core/jobs/lifecycle.py",
        old="        if job.losses >= job.spec.policy.max_losses:\n",
        new="        if job.losses > job.spec.policy.max_losses:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A renewal by an old token counts",
        kind="leases",
        file="core/working.py",
        old=("        if job is None or not (waits or job.state is STARTED) or not proves(token, job.token):\n"),
        new=("        if job is None or not (waits or job.state is STARTED):\n"),
        caught_by=(CONFORMANCE, SIMULATION, PROVED_LEASES),
    ),
    Mutant(
        name="A renewal says that it was done and extends nothing",
        kind="leases",
        file="core/working.py",
        old=("        state.table.set_lease(job, state.now_ms + lease_ms)\n        verdicts"),
        new=("        verdicts"),
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="A success by an old token counts",
        kind="leases",
        file="core/working.py",
        old=("    if job is None or job.state is not STARTED or not proves(outcome.token, job.token):\n"),
        new=(
            "    if job is None or job.state is not STARTED or not (\n"
            "        outcome.kind is SUCCEEDED or proves(outcome.token, job.token)\n"
            "    ):\n"
        ),
        caught_by=(CONFORMANCE, SIMULATION, PROVED_LEASES),
    ),
    Mutant(
        name="A failure by an old token counts",
        kind="leases",
        file="core/working.py",
        old=("    if job is None or job.state is not STARTED or not proves(outcome.token, job.token):\n"),
        new=(
            "    if job is None or job.state is not STARTED or not (\n"
            "        outcome.kind is OutcomeKind.FAILED or proves(outcome.token, job.token)\n"
            "    ):\n"
        ),
        caught_by=(CONFORMANCE, SIMULATION, PROVED_LEASES),
    ),
    Mutant(
        name="A worker gives back by an old token what another one has",
        kind="leases",
        file="core/working.py",
        old=("    if job is None or job.state is not STARTED or not proves(outcome.token, job.token):\n"),
        new=(
            "    if job is None or job.state is not STARTED or not (\n"
            "        outcome.kind is OutcomeKind.RELEASED or proves(outcome.token, job.token)\n"
            "    ):\n"
        ),
        caught_by=(CONFORMANCE, SIMULATION, PROVED_LEASES),
    ),
    Mutant(
        name="Log lines and progress by an old token count",
        kind="leases",
        file="core/state.py",
        old="job.state is JobState.STARTED and proves(token, job.token) else None\n",
        new="job.state is JobState.STARTED else None\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A second grant of a job has the token of the first",
        kind="leases",
        file="core/working.py",
        old=("        token = state.next_token()\n        table.start"),
        new=("        token = job.token or state.next_token()\n        table.start"),
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="A caller that waits needs no presence",
        kind="leases",
        file="core/producing.py",
        old=("        table.set_lease(job, state.now_ms + spec.presence_ms)\n"),
        new="",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A lost job that was to stop is started again",
        kind="leases",
        file="core/jobs/lifecycle.py",
        old="""\
        if job.cancel is not None:
            self.lost += 1
            return self.end(job, CANCELED, job.cancel)
""",
        new="",
        caught_by=(CONFORMANCE,),
    ),
    # --- retries ---
    Mutant(
        name="A job is tried once more than it may",
        kind="retries",
        file="core/jobs/lifecycle.py",
        old="job.attempts >= job.spec.policy.max_attempts or",
        new="job.attempts > job.spec.policy.max_attempts or",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A failed attempt holds its place as long as it waits",
        kind="retries",
        file="core/jobs/lifecycle.py",
        old="            if delay_ms > policy.max_hold_ms:\n",
        new="            if False:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A snooze counts as an attempt",
        kind="retries",
        file="core/working.py",
        old=("        job.attempts -= 1\n        if kind is OutcomeKind.SNOOZED:\n"),
        new=("        if kind is OutcomeKind.SNOOZED:\n"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A final failure is tried again",
        kind="retries",
        file="core/jobs/lifecycle.py",
        old="        if final or job.attempts",
        new="        if job.attempts",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Jitter comes on top of the cap",
        kind="retries",
        file="values/policy.py",
        old="(1 - self.jitter * random)",
        new="(1 + self.jitter * random)",
        caught_by=(tests("tests/unit/test_retry.py"),),
    ),
    Mutant(
        name="A job that expires does so when it is due",
        kind="retries",
        file="core/jobs/table.py",
        old="(job.due_ms or now_ms) + within_ms, job)",
        new="now_ms + within_ms, job)",
        caught_by=(CONFORMANCE,),
    ),
    # --- cancel ---
    Mutant(
        name="A dead job cancels what came before it",
        kind="cancel",
        file="core/jobs/sweeps.py",
        old="item.behind_seq < job.seq <= item.last_seq\n",
        new="job.seq <= item.last_seq\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A path is canceled with what was redriven after the cancellation",
        kind="cancel",
        file="core/jobs/sweeps.py",
        old="    if job.since >= item.before or job.is_hidden:\n",
        new="    if job.is_hidden:\n",
        caught_by=(tests("tests/unit/test_engine_life.py"),),
    ),
    Mutant(
        name="One that runs at two places below a path is counted twice when the path is canceled",
        kind="cancel",
        file="core/jobs/sweeps.py",
        old="item.reached += job.state is not JobState.STARTED or job.cancel is None\n",
        new="item.reached += 1\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A cancellation that was cut leaves no tally",
        kind="cancel",
        file="core/operating.py",
        old=("None if sweep.is_over else sweep.leave_tally(state.shared)\n"),
        new=("None\n"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A path is canceled with those whose names begin alike",
        kind="cancel",
        file="values/hint.py",
        old='    return f"{key}:", f"{key};"\n',
        new='    return key, f"{key};"\n',
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A cancellation wins over a success",
        kind="cancel",
        file="core/working.py",
        old=("    if kind is SUCCEEDED:\n"),
        new=("    if kind is SUCCEEDED and job.cancel is None:\n"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A worker is told again and again to stop a job",
        kind="cancel",
        file="core/working.py",
        old=("state.table.undelivered_cancellations.pop(operation.worker, None)"),
        new=("state.table.undelivered_cancellations.get(operation.worker)"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A dead job that was discarded holds its place",
        kind="cancel",
        file="core/jobs/archive.py",
        old="    left = table.free(job) if job.walk is not None else 0\n",
        new="    left = 0\n",
        caught_by=(CONFORMANCE,),
    ),
    # --- records ---
    Mutant(
        name="A place that is held is not free when the record expires",
        kind="records",
        file="core/jobs/lifecycle.py",
        old="""\
        left = table.free(job) if job.is_placed else 0
        is_told""",
        new="""\
        left = 0
        is_told""",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A job that finishes at its first attempt forgets which worker ran it",
        kind="records",
        file="core/jobs/table.py",
        old="        if is_noted:\n            job.worker = None\n",
        new="        job.worker = None\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A record is kept from the enqueue on, not from the end",
        kind="records",
        file="core/jobs/table.py",
        old="        job.timer = self.timers.add(PRUNE, now_ms + kept_ms, job)\n",
        new="        job.timer = self.timers.add(PRUNE, job.enqueued_ms + kept_ms, job)\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A key that is given up stays in the index",
        kind="records",
        file="core/jobs/table.py",
        old="                self.keys.remove(spec.key, job)\n",
        new="                pass\n",
        caught_by=(MACHINE,),
    ),
    Mutant(
        name="A key is given up at the end although it is kept for a time",
        kind="records",
        file="core/jobs/table.py",
        old="            if spec.policy.key_for_ms is not None and job.first_ms is not None:\n",
        new="            if False:\n",
        caught_by=(CONFORMANCE, MACHINE),
    ),
    Mutant(
        name="A key is kept after the end of a job that was never started",
        kind="records",
        file="core/jobs/table.py",
        old="spec.policy.key_for_ms is not None and job.first_ms is not None:",
        new="spec.policy.key_for_ms is not None:",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A job that runs and keeps its key lets another run",
        kind="records",
        file="core/structures/job.py",
        old="        return self.first_ms is None or self.spec.policy.key_for_ms is not None\n",
        new="        return self.first_ms is None\n",
        caught_by=(CONFORMANCE, MACHINE),
    ),
    Mutant(
        name="A key goes with the id of its job",
        kind="records",
        file="core/jobs/lifecycle.py",
        old=" > self.now_ms or job.expiry is not None or self._has_edges(job):",
        new=" > self.now_ms or self._has_edges(job):",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A replacement puts its job off for as long as it asks",
        kind="records",
        file="core/jobs/table.py",
        old="                due_ms = min(due_ms, job.enqueued_ms + spec.max_delay_ms)\n",
        new="                pass\n",
        caught_by=(CONFORMANCE, MACHINE),
    ),
    Mutant(
        name="The most that a burst puts its job off is counted from each replacement",
        kind="records",
        file="core/jobs/table.py",
        old="min(due_ms, job.enqueued_ms + spec.max_delay_ms)",
        new="min(due_ms, now_ms + spec.max_delay_ms)",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A record that expires stays in the index of paths",
        kind="records",
        file="core/jobs/archive.py",
        old="""\
        table.catalog.remove(job)
        if job.spec.claims:
            table.past.remove(job)
""",
        new="""\
        table.catalog.remove(job)
""",
        caught_by=(tests("tests/unit/test_engine_records.py"),),
    ),
    Mutant(
        name="An id that is taken is given again for other content",
        kind="records",
        file="core/refusals.py",
        old="                    raise DuplicateJobError(spec.id, fields=fields)\n",
        new="                    pass\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A gate that nobody holds and nobody waits at is kept",
        kind="records",
        file="core/structures/trie.py",
        old="                del children[node.segment]\n                self.nodes -= 1\n",
        new="                pass\n",
        caught_by=(CONFORMANCE,),
    ),
    # --- fairness ---
    Mutant(
        name="A user keeps the turn",
        kind="fairness",
        file="core/structures/ready_queue.py",
        old="            users.move_to_end(whose)\n",
        new="",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="All users weigh the same",
        kind="fairness",
        file="core/structures/ready_queue.py",
        old="self.weights.get(whose, 1)",
        new="1",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A worker that announces itself again is known since then",
        kind="worker",
        file="core/working.py",
        old="since_ms=now_ms if known is None else known.since_ms",
        new="since_ms=now_ms",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Of equal jobs the last goes first",
        kind="fairness",
        file="core/structures/ready_queue.py",
        old="        job.ready = user.push(rank(job.level, job.enqueued_ms), job.number, job)\n",
        new="        job.ready = user.push(rank(job.level, job.enqueued_ms), -job.number, job)\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Low levels never age into their turn",
        kind="fairness",
        file="core/structures/ready_queue.py",
        old="    return enqueued_ms - HEAD_START_MS * (level - 1)\n",
        new="    return enqueued_ms - (HEAD_START_MS << 20) * (level - 1)\n",
        caught_by=(CONFORMANCE,),
    ),
    # --- limits, pauses, closed paths ---
    Mutant(
        name="A pause stops what is above it too",
        kind="limits",
        file="core/jobs/pauses.py",
        old="""\
                    return pause
        for wanted, pause in self.by_filter.items():
""",
        new="""\
                    return pause
            for pause in self.by_path.values():
                if pause.what[: len(path)] == path:
                    return pause
        for wanted, pause in self.by_filter.items():
""",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Below a closed path all is open",
        kind="limits",
        file="core/jobs/closings.py",
        old="        for depth in range(len(claim.path) + 1):\n            path = claim.path[:depth]\n",
        new="        for depth in (len(claim.path),):\n            path = claim.path[:depth]\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A job that was due later takes its place behind the last job of a path",
        kind="cancel",
        file="core/jobs/lifecycle.py",
        old="        return self._shut_out(job) if self.is_shut(job) else table.queue(job, self.now_ms)\n",
        new="        return table.queue(job, self.now_ms)\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A job that is there already passes for the last one of a path",
        kind="cancel",
        file="core/refusals.py",
        old="                if closing is not None and closed.get(closing.path) != spec.id:\n",
        new="                if closing is not None and closing.path not in closed:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A lost job counts under its limits for ever",
        kind="limits",
        file="core/jobs/table.py",
        old="        self.registry.leave(job)\n        if self.limits.limiters:\n",
        new="        self.registry.leave(job)\n        if self.limits.limiters and job.timer is not None:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="One job more than allowed runs under a limit",
        kind="limits",
        file="core/structures/limits.py",
        old="        return most is not None and self.started >= most\n",
        new="        return most is not None and self.started > most\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A job behind a full limit is told that the next token is what it waits for",
        kind="limits",
        file="core/structures/limits.py",
        old="        return None if self.is_full or token_ms <= now_ms else token_ms\n",
        new="        return None if token_ms <= now_ms else token_ms\n",
        caught_by=(tests("tests/contract/test_memory.py", "-k", "why_says_when_the_next_token_comes"),),
    ),
    # --- schedules ---
    Mutant(
        name="Two who see a schedule due both fire it",
        kind="schedules",
        file="core/schedules.py",
        old="        if there is None or there.version != firing.version:\n",
        new="        if there is None:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A schedule that is paused comes to be due",
        kind="schedules",
        file="core/schedules.py",
        old="        if schedule.next_ms is not None and not schedule.is_paused:\n",
        new="        if schedule.next_ms is not None:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="With no retention a waiter finds no result",
        kind="records",
        file="core/jobs/table.py",
        old="            kept_ms = max(kept_ms, AWAITED_KEPT_MS)\n",
        new="",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Large arguments that are asked again are other ones once the record is gone",
        kind="records",
        file="core/structures/job.py",
        old="        if self.gone:\n            brief",
        new="        if False:\n            brief",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A record that is amended to what it is has a new version",
        kind="records",
        file="core/operating.py",
        old=("    if spec != job.spec:\n        revisions.amend(state.table, job, spec)\n"),
        new=("    revisions.amend(state.table, job, spec)\n"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A flow takes in the jobs of another one of its id",
        kind="records",
        file="core/refusals.py",
        old="            raise DuplicateFlowError(flow)\n",
        new="            pass\n",
        caught_by=(CONFORMANCE,),
    ),
)
