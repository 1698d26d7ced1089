"""Mutants of encryption, blobs, upgrades, traces, and processes that run a handler."""

from tests.mutants.gate import Catcher, Mutant, tests

ENCRYPTED, BLOBS = "handlers/codecs/encrypted.py", "handlers/codecs/blobs.py"
DIRECTORY = "handlers/codecs/directory.py"
PROCESS, POOL = "worker/processes/process.py", "worker/processes/pool.py"


def codec(words: str) -> Catcher:
    """Return the tests of codecs whose names hold some words."""
    return tests("tests/unit/test_codecs.py", "-k", words)


def identity(words: str) -> Catcher:
    """Return the tests of digests whose names hold some words."""
    return tests("tests/unit/test_identity.py", "-k", words)


def blobs(words: str) -> Catcher:
    """Return the tests of files of blobs whose names hold some words."""
    return tests("tests/unit/test_blob_directory.py", "-k", words)


def digests(store: str) -> Catcher:
    """Return the rules of digests for a store."""
    return tests(f"tests/contract/test_{store}.py", "-k", "digest")


def process(words: str) -> Catcher:
    """Return the tests of handlers in processes whose names hold some words."""
    return tests("tests/integration/test_processes.py", "-k", words)


RELEASES = tests("tests/integration/test_releases.py")

MUTANTS = (
    # --- encryption ---
    Mutant(
        name="The same arguments are encrypted to the same bytes",
        kind="wire",
        file=ENCRYPTED,
        old="        nonce = os.urandom(NONCE_BYTES)\n",
        new="        nonce = bytes(NONCE_BYTES)\n",
        caught_by=(codec("never_the_same_twice"),),
    ),
    Mutant(
        name="A payload is encrypted with the first key whatever encrypts names",
        kind="wire",
        file=ENCRYPTED,
        old="        self._cipher = self._ciphers[encrypts]\n",
        new="        self._cipher = next(iter(self._ciphers.values()))\n",
        caught_by=(codec("keys_are_rotated"),),
    ),
    Mutant(
        name="Plain payloads are read by a codec that was not asked to",
        kind="wire",
        file=ENCRYPTED,
        old="            if self._reads_plain:\n",
        new="            if True:\n",
        caught_by=(codec("plain_payloads"),),
    ),
    Mutant(
        name="Encryption makes a payload longer than the store takes",
        kind="bounds",
        file=ENCRYPTED,
        old="        return bytes_max - len(self._header) - NONCE_BYTES - TAG_BYTES\n",
        new="        return bytes_max\n",
        caught_by=(codec("keeps_the_limit"),),
    ),
    Mutant(
        name="Digests are made with the key that encrypts alone",
        kind="wire",
        file=ENCRYPTED,
        old="        named = [encrypts, *[key_id for key_id in keys if key_id != encrypts][-(IDENTITY_MAX - 1) :]]\n",
        new="        named = [encrypts]\n",
        caught_by=(identity("each_step_of_a_rotation"),),
    ),
    Mutant(
        name="Who has no key can make the digest of arguments",
        kind="wire",
        file=ENCRYPTED,
        old='        digests = [hmac.digest(key, text, "sha256") for key in self._identity_keys for text in texts]\n',
        new="        digests = list(texts)\n",
        caught_by=(identity("more_than_the_values"),),
    ),
    Mutant(
        name="Digests show which jobs have equal arguments",
        kind="wire",
        file="client/options.py",
        old="    if len(digest) == BOUND_LENGTH:\n        return digest\n    return",
        new="    if True:\n        return digest[:BOUND_LENGTH]\n    return",
        caught_by=(identity("of_one_job_each"),),
    ),
    Mutant(
        name="All results None of a handler are the same encrypted bytes",
        kind="wire",
        file="handlers/handler.py",
        old="        if result is None and is_deterministic(codec):\n",
        new="        if result is None:\n",
        caught_by=(identity("none_is_encrypted"),),
    ),
    Mutant(
        name="A codec that replaces how it writes has the digests of the one it inherits from",
        kind="wire",
        file="handlers/codec.py",
        old='        if name in said or "dumps" in said:\n',
        new="        if name in said:\n",
        caught_by=(identity("replaces"),),
    ),
    Mutant(
        name="Encryption around references to blobs is taken",
        kind="api",
        file=ENCRYPTED,
        old="        if isinstance(self._inner, BlobCodec):\n",
        new="        if False:\n",
        caught_by=(codec("around_blobs_is_refused"),),
    ),
    Mutant(
        name="The last job of a path has another digest each time",
        kind="api",
        file="scheduler/operating.py",
        old="    spec = bound(arrange([check_spec(last, may_lack_id=False)], codec=codec).parts[0])[0]\n",
        new="    spec = attrs.evolve(arrange([last], codec=codec).parts[0][0], identity=())\n",
        caught_by=(identity("encrypted_last_job"),),
    ),
    Mutant(
        name="A schedule written as other bytes is stored anew",
        kind="schedules",
        file="core/schedules.py",
        old="there.spec.is_alike(asked.spec)",
        new="there.spec == asked.spec",
        caught_by=(digests("memory"),),
    ),
    Mutant(
        name="Bytes without a digest stand for those with one",
        kind="wire",
        file="values/spec.py",
        old="        if self.identity or other.identity:\n",
        new="        if self.identity and other.identity:\n",
        caught_by=(digests("memory"),),
    ),
    Mutant(
        name="Lua: a schedule written as other bytes is stored anew",
        kind="schedules",
        file="backends/redis/lua/put_schedule.lua",
        old="is_alike(schedule[ASKED_SPEC], ARGV[12])",
        new="schedule[ASKED_SPEC] == ARGV[12]",
        caught_by=(digests("redis"),),
    ),
    Mutant(
        name="Lua: one shared digest of several does not count",
        kind="wire",
        file="backends/redis/lua/lib/jobs/jobs.lua",
        old="  for digest in string.gmatch(digests, '%S+') do\n",
        new="  for digest in string.gmatch(digests, '.+') do\n",
        caught_by=(digests("redis"),),
    ),
    Mutant(
        name="Lua: the digests of a submission that was replaced go with its record",
        kind="records",
        file="backends/redis/lua/lib/jobs/jobs.lua",
        old="  return (digests and '\\2' .. digests .. '\\2' or '') .. DIGEST_MARK",
        new="  return DIGEST_MARK",
        caught_by=(digests("redis"),),
    ),
    Mutant(
        name="A key of any length is taken until it is used",
        kind="api",
        file=ENCRYPTED,
        old="        if len(key) != KEY_BYTES:\n",
        new="        if False:\n",
        caught_by=(codec("keys_are_checked"),),
    ),
    # --- blobs ---
    Mutant(
        name="A blob that was changed is read",
        kind="wire",
        file=BLOBS,
        old="        if len(blob) != size or hashlib.sha256(blob).digest() != digest:\n",
        new="        if len(blob) != size:\n",
        caught_by=(codec("gone_or_changed"),),
    ),
    Mutant(
        name="Arguments that begin like a reference are read as one",
        kind="wire",
        file=BLOBS,
        old=" and not payload.startswith(MAGIC):\n",
        new=":\n",
        caught_by=(codec("looks_like_a_reference"),),
    ),
    Mutant(
        name="A blob that is used again is as old as it was, and pruned",
        kind="records",
        file=DIRECTORY,
        old="        os.utime(file)\n",
        new="",
        caught_by=(codec("those_used_again_stay"),),
    ),
    Mutant(
        name="A blob that is used again while it is pruned is deleted",
        kind="records",
        file=DIRECTORY,
        old="    if not is_young:\n",
        new="    if True:\n",
        caught_by=(blobs("just_put"), blobs("another_process")),
    ),
    Mutant(
        name="A blob that is taken away for a moment is not found",
        kind="records",
        file=DIRECTORY,
        old='            for away in file.parent.glob(f"{OLD}*.{name}"):\n',
        new="            for away in ():\n",
        caught_by=(blobs("just_put"), blobs("another_process")),
    ),
    Mutant(
        name="A damaged blob of the right length stays",
        kind="records",
        file=DIRECTORY,
        old=" and _holds(reading, data)\n",
        new="\n",
        caught_by=(blobs("repaired"),),
    ),
    Mutant(
        name="Blobs can be read by all users of the machine",
        kind="api",
        file=DIRECTORY,
        old="mode=0o600)) as",
        new="mode=0o666)) as",
        caught_by=(blobs("their_user_alone"),),
    ),
    Mutant(
        name="The name of a blob does not survive a crash",
        kind="records",
        file=DIRECTORY,
        old="        _sync(file.parent)\n        if",
        new="        if",
        caught_by=(blobs("names_are_synced"),),
    ),
    Mutant(
        name="A payload may be no longer with blobs than without",
        kind="bounds",
        file=BLOBS,
        old="bytes_max=self._bytes_max)",
        new="bytes_max=bytes_max)",
        caught_by=(codec("longer_than_a_payload"),),
    ),
    Mutant(
        name="A job fails for good where its blob could not be asked for",
        kind="worker",
        file=BLOBS,
        old="        except LookupError:\n            raise PayloadError(f",
        new="        except (LookupError, OSError):\n            raise PayloadError(f",
        caught_by=(codec("is_tried_again"),),
    ),
    # --- upgrades ---
    Mutant(
        name="Arguments that do not fit fail their job although there is an upgrade",
        kind="worker",
        file="handlers/handler.py",
        old="            if self.upgrade is None or not upgrades:\n",
        new="            if True:\n",
        caught_by=(RELEASES,),
    ),
    Mutant(
        name="An upgrade that makes no dictionary is taken for one",
        kind="worker",
        file="handlers/handler.py",
        old="        if not isinstance(upgraded, dict):\n",
        new="        if False:\n",
        caught_by=(RELEASES,),
    ),
    # --- traces ---
    Mutant(
        name="A later attempt has no link to the span that enqueued its job",
        kind="worker",
        file="metrics/otel.py",
        old=" if origin.is_valid and job.attempt > 1 else []\n",
        new=" if False else []\n",
        caught_by=(tests("tests/integration/test_metrics.py", "-k", "third_attempt"),),
    ),
    # --- handlers in processes, and executors ---
    Mutant(
        name="A process that ignores SIGTERM is not killed",
        kind="worker",
        file=PROCESS,
        old="            if not self._has_ended:\n                self._kill()\n\n    def let_go",
        new="            pass\n\n    def let_go",
        caught_by=(process("its_place_is_free_only_then"),),
    ),
    Mutant(
        name="A handler that cannot see that it is canceled is told first, and interrupted late",
        kind="worker",
        file=POOL,
        old="handler.wants_context and slot.why_stop",
        new="slot.why_stop",
        caught_by=(process("is_told_before_it_is_interrupted"),),
    ),
    Mutant(
        name="Each attempt starts a process of its own",
        kind="worker",
        file=POOL,
        old="            self._idle.append(process)\n",
        new="            self._forget(process)\n",
        caught_by=(process("one_process_serves_them_all"),),
    ),
    Mutant(
        name="An executor of processes is taken, and its calls fail one by one",
        kind="api",
        file="worker/attempts.py",
        old="    elif _ELSEWHERE & {kind.__name__ for kind in type(executor).__mro__}:\n",
        new="    elif False:\n",
        caught_by=(process("an_executor_is_one_of_threads"),),
    ),
    Mutant(
        name="An executor that is shut down is taken",
        kind="api",
        file="worker/attempts.py",
        old='    elif getattr(executor, "_shutdown", False) is True:\n',
        new="    elif False:\n",
        caught_by=(process("an_executor_is_one_of_threads"),),
    ),
)
