"""
Mutants of promises besides the rules: refusals, bounds, secrets, durability warnings.

Each names what it breaks: a promise of `docs/reference/promises.md` (P), a fault (F) or a threat (S).
"""

from tests.mutants.gate import Mutant, tests

MUTANTS = (
    Mutant(
        name="A fork goes on with the connections of its parent",
        kind="wire",
        file="backends/redis/backend.py",
        old="        if os.getpid() != self.session.pid:\n",
        new="        if False:\n",
        caught_by=(tests("tests/faults/test_links.py", "-k", "a_backend_that_was_used_is_used_again_in_forks_and_b"),),
    ),  # F-05
    Mutant(
        name="A script that a server has forgotten is not sent whole",
        kind="wire",
        file="backends/redis/functions/calls.py",
        old='return Send(("EVAL", self._which.text, *self._words))',
        new="return None",
        caught_by=(
            tests("tests/unit/test_redis_session.py", "-k", "a_script_the_server_does_not_know_is_sent_whole_with"),
        ),
    ),  # F-06
    Mutant(
        name="The memory backend is used in a fork",
        kind="memory",
        file="backends/in_process.py",
        old="        if self._is_forked():\n",
        new="        if False:\n",
        caught_by=(
            tests("tests/integration/test_memory.py", "-k", "use_after_a_fork_is_an_error_and_the_parent_goes_on"),
        ),
    ),  # P1
    Mutant(
        name="A job that was not started in time is started all the same",
        kind="retries",
        file="core/jobs/table.py",
        old=(
            "        within_ms = spec.policy.start_within_ms\n"
            "        if within_ms is not None:\n"
            "            job.expiry = self.timers.add(EXPIRY, (job.due_ms or now_ms) + within_ms, job)\n"
        ),
        new="",
        caught_by=(tests("tests/contract/test_memory.py", "-k", "not_started_in_time"),),
    ),  # P11
    Mutant(
        name="A field of a result that is missing is filled with nothing",
        kind="records",
        file="handlers/templates.py",
        old='        raise TemplateError(f"{where} has no {what}; {there}")\n',
        new="        return None\n",
        caught_by=(tests("tests/unit/test_templates.py", "-k", "fill_does_what_the_grammar_says"),),
    ),  # P11
    Mutant(
        name="A number that is none is taken for JSON",
        kind="api",
        file="handlers/codec.py",
        old=('                if item != item or item in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN\n'),
        new="                if False:\n",
        caught_by=(tests("tests/unit/test_codec.py", "-k", "a_number_that_is_none_is_refused"),),
    ),  # P12
    Mutant(
        name="A full store is reported as unreachable",
        kind="wire",
        file="backends/redis/codec/failures.py",
        old='        if isinstance(error, driver.OutOfMemoryError) or message.startswith("OOM"):\n',
        new="        if False:\n",
        caught_by=(
            tests("tests/unit/test_redis_session.py", "-k", "a_refusal_is_an_error_of_ours_that_names_what_is_wro"),
        ),
    ),  # P15
    Mutant(
        name="A file may be opened by two",
        kind="memory",
        file="backends/sqlite/lock.py",
        old="            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        new="            pass\n",
        caught_by=(tests("tests/integration/test_sqlite.py", "-k", "a_second_store_may_not_run_jobs"),),
    ),  # P16
    Mutant(
        name="A database of another application is taken for ours",
        kind="memory",
        file="backends/sqlite/file.py",
        old="        if not is_new and application != APPLICATION_ID:\n",
        new="        if False:\n",
        caught_by=(
            tests(
                "tests/integration/test_sqlite_files.py", "-k", "a_database_of_another_application_is_refused_and_lef"
            ),
        ),
    ),  # P16
    Mutant(
        name="A file of a newer release is opened",
        kind="memory",
        file="backends/sqlite/file.py",
        old="        if version > TABLES:\n",
        new="        if False:\n",
        caught_by=(
            tests("tests/integration/test_sqlite_files.py", "-k", "a_file_of_a_newer_release_is_refused_by_number"),
        ),
    ),  # P16
    Mutant(
        name="Lua: a namespace of another layout is written to",
        kind="wire",
        file="backends/redis/lua/lib/request/state.lua",
        old="  if S[SCHEMA] ~= SCHEMA_VERSION then\n",
        new="  if false then\n",
        caught_by=(tests("tests/integration/test_doctor_damage.py", "-k", "a_newer_schema_is_refused_by_its_number"),),
    ),  # P16
    Mutant(
        name="Keys of another application are taken for ours",
        kind="wire",
        file="backends/redis/examination.py",
        old='                if kind not in {"none", key.type}:\n',
        new="                if False:\n",
        caught_by=(
            tests("tests/unit/test_redis_examination.py", "-k", "a_key_of_a_wrong_type_is_named_before_anything_is_wr"),
        ),
    ),  # P16
    Mutant(
        name="A namespace may hold any text",
        kind="api",
        file="backends/base.py",
        old='_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")',
        new='_NAMESPACE = re.compile(r".+")',
        caught_by=(tests("tests/integration/test_api_bad_input.py", "-k", "a_namespace_in_the_url_is_checked_too"),),
    ),  # P16, S-10
    Mutant(
        name="Code that was asked to stop is a failure",
        kind="worker",
        file="worker/outcomes.py",
        old="        if why_stop in GIVE_BACK and isinstance(error, (Exception, asyncio.CancelledError)):\n",
        new="        if False:\n",
        caught_by=(tests("tests/integration/test_worker.py", "-k", "stop or grace or cancel"),),
    ),  # P18
    Mutant(
        name="Many ids are redriven in the order in which they are given",
        kind="api",
        file="backends/steps.py",
        old="    if len(once) > JOBS_AT_ONCE:\n",
        new="    if False:\n",
        caught_by=(tests("tests/integration/test_bulk_order.py", "-k", "many_ids_keeps and memory"),),
    ),
    Mutant(
        name="The jobs of a large path are redriven in the order of its listing",
        kind="api",
        file="scheduler/records/bulk.py",
        old="            if asked.path is None or after is None or len(chosen) == left:\n",
        new="            if True:\n",
        caught_by=(tests("tests/integration/test_bulk_order.py", "-k", "large_path_keeps and memory"),),
    ),
    Mutant(
        name="A cron expression is due at a local time that clocks leave out",
        kind="schedules",
        file="worker/schedules/due_times.py",
        old="        elif first > second:\n            yield now\n",
        new="        else:\n            yield now\n",
        caught_by=(tests("tests/unit/test_due_times.py", "-k", "left_out_fires_no_wildcard"),),
    ),
    Mutant(
        name="The second of two equal hours is looked at from now on only",
        kind="schedules",
        file="worker/schedules/due_times.py",
        old=" - max(timedelta(0), repeated[0] - repeated[1])\n",
        new="\n",
        caught_by=(tests("tests/property/test_cron.py", "-k", "those_of_the_definition"),),
    ),
    Mutant(
        name="A range of one value with a step goes on beyond it",
        kind="schedules",
        file="worker/schedules/cron_text.py",
        old="    if begin == end:\n        return str(begin)\n",
        new='    if begin == end:\n        return f"{begin}{behind}"\n',
        caught_by=(tests("tests/unit/test_due_times.py", "-k", "one_value_with_a_step"),),
    ),
    Mutant(
        name="Each due time that was missed is fired",
        kind="schedules",
        file="worker/schedules/due_times.py",
        old='    elif recurrence.missed == "skip" and next_ms < now_ms - GRACE_MS:\n',
        new="    elif False:\n",
        caught_by=(
            tests("tests/unit/test_due_times.py", "-k", "what_is_more_than_a_minute_late_is_skipped_fired_onc"),
        ),
    ),  # P19
    Mutant(
        name="An id made after a fork is one of its parent",
        kind="memory",
        file="values/ids.py",
        old="    _maker = _Maker()\n",
        new="",
        caught_by=(tests("tests/unit/test_ids.py", "-k", "a_fork_is_another_process"),),
    ),  # P5
    Mutant(
        name="A local time is taken for one of UTC",
        kind="api",
        file="schema/checks.py",
        old=(
            "        if datetime.utcoffset(value) is None:\n"
            "            raise InvalidJobError(\n"
            '                f"{parameter} must be timezone-aware, got {shown(value)}; local time is ne'
            'ver guessed"\n'
            "            )\n"
        ),
        new=("        if datetime.utcoffset(value) is None:\n            value = value.replace(tzinfo=UTC)\n"),
        caught_by=(tests("tests/unit/test_checks.py", "-k", "a_naive_time_is_refused_because_local_time_is_never"),),
    ),  # P6
    Mutant(
        name="A helper that is started anew knows of no leases",
        kind="worker",
        file="worker/leases/held.py",
        old='            self.lines = len(text)\n            helper.send("".join(text))\n',
        new="            self.lines = len(text)\n",
        caught_by=(tests("tests/unit/test_renewal.py", "-k", "a_helper_that_is_gone_is_started_anew_and_a_thread_r"),),
    ),  # P6
    Mutant(
        name="Code in a handler may wait for a job",
        kind="api",
        file="handlers/context.py",
        old="    return context is not None and not context.is_over\n",
        new="    return False\n",
        caught_by=(tests("tests/integration/test_api_draining.py", "-k", "handler or deadlock"),),
    ),  # P7
    Mutant(
        name="A value that was shared is there for ever",
        kind="records",
        file="core/xcom.py",
        old="        return there[0] if there is not None and there[1][0] > now_ms else None\n",
        new="        return there[0] if there is not None else None\n",
        caught_by=(tests("tests/unit/test_xcom.py", "-k", "a_value_is_there_until_its_time_is_over"),),
    ),  # P9
    Mutant(
        name="A traceback is stored as it is and not redacted",
        kind="worker",
        file="worker/failures.py",
        old="self.text(stored_traceback(error))",
        new="stored_traceback(error)",
        caught_by=(tests("tests/integration/test_worker_attempts.py", "-k", "redact"),),
    ),  # S-08
    Mutant(
        name="An argument is enqueued whatever its annotation says",
        kind="api",
        file="client/job.py",
        old="                if not check.fits(value):\n",
        new="                if False:\n",
        caught_by=(tests("tests/unit/test_arguments.py", "-k", "refused"),),
    ),
    Mutant(
        name="A value of any annotation is checked for what it is not",
        kind="api",
        file="handlers/arguments.py",
        old="        if len(known) < len(checks):\n            return None\n",
        new="",
        caught_by=(tests("tests/unit/test_arguments.py", "-k", "left_to_the_codec"),),
    ),
    Mutant(
        name="A flat list or dictionary of texts may be of any size",
        kind="bounds",
        file="handlers/codec.py",
        old="    return size <= bytes_max and (",
        new="    return (",
        caught_by=(tests("tests/unit/test_codec.py", "-k", "too_long"),),
    ),
    Mutant(
        name="The user None is a user of that name",
        kind="api",
        file="handlers/placement.py",
        old="            if value is None and len(self._parts) == 1 and not text:\n                return None\n",
        new="            value = str(value) if value is None else value\n",
        caught_by=(tests("tests/unit/test_handler.py", "-k", "user"),),
    ),
    Mutant(
        name="A payload may be of any depth",
        kind="bounds",
        file="handlers/codec.py",
        old="                if len(stack) > DEPTH_MAX:\n",
        new="                if False:\n",
        caught_by=(tests("tests/unit/test_codec.py", "-k", "64_levels_are_the_limit"),),
    ),  # S-09
    Mutant(
        name="A payload may be of any size",
        kind="bounds",
        file="handlers/codec.py",
        old="    if len(payload) > bytes_max:\n",
        new="    if False:\n",
        caught_by=(tests("tests/unit/test_codec.py", "-k", "the_size_limit_is_exact"),),
    ),  # S-09
    Mutant(
        name="A text of an error is kept whole, however long",
        kind="bounds",
        file="worker/failures.py",
        old="    return text if len(text) <= most else",
        new="    return text if True else",
        caught_by=(
            tests("tests/integration/test_worker_attempts.py", "-k", "whatever_else_is_raised_fails_the_attempt"),
        ),
    ),  # S-09
    Mutant(
        name="The name in a certificate is not checked",
        kind="wire",
        file="backends/redis/address.py",
        old=('    hostname = options.get("ssl_check_hostname", "false" if wanted == "none" else "true").lower()\n'),
        new='    hostname = options.get("ssl_check_hostname", "false").lower()\n',
        caught_by=(
            tests("tests/unit/test_redis_address.py", "-k", "with_tls_certificates_and_names_are_checked_unless_t"),
        ),
    ),  # S-12, F-39
    Mutant(
        name="A command cancels a document without a confirmation",
        kind="api",
        file="cli/operate.py",
        old=(
            '    confirm(f"Cancel {_counted(left)} at or below {queue_key(segments)} in {namespace_of(s'
            'ched)}?", yes=yes)\n'
        ),
        new="",
        caught_by=(tests("tests/integration/test_cli_jobs.py", "-k", "drain_can_cancel_first"),),
    ),  # S-15
    Mutant(
        name="A command writes escapes of jobs to the terminal",
        kind="api",
        file="cli/render.py",
        old='    return Text("" if text is None else plain(str(text)), style)\n',
        new='    return Text("" if text is None else str(text), style)\n',
        caught_by=(tests("tests/integration/test_cli_jobs.py", "-k", "texts_of_jobs_do_nothing_to_a_terminal"),),
    ),  # S-17
    Mutant(
        name="More jobs are taken in than may be unfinished",
        kind="limits",
        file="core/refusals.py",
        old="        if self._table.limits.max_pending and closing is None:\n",
        new="        if False:\n",
        caught_by=(tests("tests/contract/test_memory.py", "-k", "too_many_in_the_namespace"),),
    ),  # S-09
    Mutant(
        name="A record that has changed meanwhile is written over",
        kind="records",
        file="core/operating.py",
        old=("    if operation.version != job.version:\n"),
        new=("    if False:\n"),
        caught_by=(tests("tests/contract/test_memory.py", "-k", "record_of_another_version_is_not_amended"),),
    ),  # P10
    Mutant(
        name="A record that has changed meanwhile is deleted",
        kind="records",
        file="core/operating.py",
        old=("    if version is not None and version != job.version:\n"),
        new=("    if False:\n"),
        caught_by=(tests("tests/contract/test_memory.py", "-k", "record_of_another_version_is_not_deleted"),),
    ),  # P10
    Mutant(
        name="A request with an unknown outcome is not reported as such",
        kind="wire",
        file="backends/redis/codec/failures.py",
        old="        cause = failure.__cause__ or failure\n        if is_unknown:\n",
        new="        cause = failure.__cause__ or failure\n        if False:\n",
        caught_by=(tests("tests/unit/test_redis_session.py"),),
    ),  # P4
    Mutant(
        name="Any version of a server will do",
        kind="wire",
        file="backends/redis/examination.py",
        old="        problem = wrong_version(info) or wrong_role(info)\n",
        new="        problem = wrong_role(info)\n",
        caught_by=(tests("tests/unit/test_redis_examination.py", "-k", "too_old"),),
    ),  # P16
    Mutant(
        name="Plain text over a network is not reported",
        kind="wire",
        file="backends/redis/address.py",
        old="        return not self.is_tls and any(not _is_loopback(host) for host, _ in self.nodes)\n",
        new="        return False\n",
        caught_by=(tests("tests/unit/test_redis_address.py", "-k", "read_on_the_way"),),
    ),  # S-12
    Mutant(
        name="A file is not written through to the disk",
        kind="memory",
        file="backends/sqlite/file.py",
        old="""PRAGMA synchronous = {'FULL' if full else 'NORMAL'}""",
        new="PRAGMA synchronous = OFF",
        caught_by=(tests("tests/faults/test_rollbacks.py", "-k", "a_file_answers"),),
    ),  # P13
    Mutant(
        name="A worker that stops claims on",
        kind="worker",
        file="worker/exchanges.py",
        old="        limit = 0 if self._stopping.is_begun else min(self._state.free, self._claims_max)\n",
        new="        limit = min(self._state.free, self._claims_max)\n",
        caught_by=(tests("tests/integration/test_worker.py", "-k", "stop"),),
    ),  # P18
    Mutant(
        name="A worker that stops lets its jobs run for ever",
        kind="worker",
        file="worker/slots.py",
        old="""        for slot in self._slots:\n            self.ask(slot, why)\n""",
        new="        return\n",
        caught_by=(tests("tests/integration/test_worker.py", "-k", "grace"),),
    ),  # P18
    Mutant(
        name="A place is free although the process of its handler goes on",
        kind="worker",
        file="worker/processes/pool.py",
        old="                    if loop.is_closed():\n",
        new="                    if True:\n",
        caught_by=(tests("tests/integration/test_processes.py", "-k", "free_only_then"),),
    ),
    Mutant(
        name="The process of a handler outlives its worker",
        kind="worker",
        file="worker/processes/child.py",
        old="    die_with(life)\n",
        new="",
        caught_by=(tests("tests/integration/test_processes.py", "-k", "outlive"),),
    ),
    Mutant(
        name="A handler whose lease is lost may take its time",
        kind="worker",
        file="worker/processes/pool.py",
        old=""" and slot.why_stop != "lease lost"\n""",
        new="\n",
        caught_by=(tests("tests/integration/test_processes.py", "-k", "told_before"),),
    ),
    Mutant(
        name="Fields of operations are held against no types",
        kind="api",
        file="operations/bounds.py",
        old="check = self[kind] = check_of(kind, *[_CHECKS[kind]] if kind in _CHECKS else [])",
        new="check = self[kind] = _CHECKS.get(kind, bool)",
        caught_by=(tests("tests/contract/test_memory.py", "-k", "does_not_name"),),
    ),  # P12
    Mutant(
        name="A job begins although the helper has given it back",
        kind="worker",
        file="worker/leases/begin_marks.py",
        old="        return self._taken[place] != token\n",
        new="        return True\n",
        caught_by=(tests("tests/unit/test_begin_marks.py"),),
    ),  # P1
    Mutant(
        name="The helper gives back a job that has begun while it was taken",
        kind="worker",
        file="worker/leases/helper.py",
        old="if at_s >= taken_s + SEEN_AFTER_S and lease in self._held and not marks.has_begun(lease[1])",
        new="if at_s >= taken_s + SEEN_AFTER_S and lease in self._held",
        caught_by=(tests("tests/unit/test_begin_marks.py"),),
    ),  # P1
    Mutant(
        name="The helper gives back a job before the worker can have seen that it took it",
        kind="worker",
        file="worker/leases/helper.py",
        old="if at_s >= taken_s + SEEN_AFTER_S and lease in self._held",
        new="if lease in self._held",
        caught_by=(tests("tests/unit/test_begin_marks.py"),),
    ),  # P1
    Mutant(
        name="The doctor ends well whatever it has found",
        kind="wire",
        file="cli/doctor.py",
        old="        raise typer.Exit(EXIT_FOUND)\n",
        new="        raise typer.Exit(0)\n",
        caught_by=(tests("tests/integration/test_doctor_server.py", "-k", "the_command_ends_with_1"),),
    ),  # P16
    Mutant(
        name="A scrape says that the store answers when it does not",
        kind="api",
        file="metrics/prometheus.py",
        old="        yield self._up(answer is not None)\n",
        new="        yield self._up(1)\n",
        caught_by=(tests("tests/integration/test_metrics.py", "-k", "a_dead_store_is_told"),),
    ),  # P16
    Mutant(
        name="The health of a worker never says that a clock was set back",
        kind="worker",
        file="cli/worker.py",
        old="backend.session.clock_behind_ms / 1000 if isinstance(backend, RedisBackend) else 0.0",
        new="0.0",
        caught_by=(tests("tests/unit/test_health.py"),),
    ),  # P6
    Mutant(
        name="No note that is dropped is counted",
        kind="worker",
        file="worker/outbox.py",
        old="        self.dropped += _count(message)\n",
        new="",
        caught_by=(tests("tests/integration/test_outbox.py", "-k", "settles_and_claims_whatever"),),
    ),  # P15
    Mutant(
        name="A stream of events never says that it has missed some",
        kind="records",
        file="client/event_reader.py",
        old="                self.missed += followed.missed\n",
        new="",
        caught_by=(tests("tests/integration/test_events.py", "-k", "missed"),),
    ),  # P10
    Mutant(
        name="A listener does not report the events that it has missed",
        kind="records",
        file="scheduler/listening.py",
        old="        self.missed += count\n",
        new="",
        caught_by=(tests("tests/integration/test_events.py", "-k", "loses_its_own"),),
    ),  # P10
)
