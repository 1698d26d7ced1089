"""Mutants of encryption, blobs, upgrades, traces, and processes that run a handler."""

from tests.mutants.gate import Catcher, Mutant, tests

ENCRYPTED, BLOBS = "handlers/codecs/encrypted.py", "handlers/codecs/blobs.py"
PROCESS, POOL = "worker/processes/process.py", "worker/processes/pool.py"


def codec(words: str) -> Catcher:
    """Return the tests of codecs whose names hold some words."""
    return tests("tests/unit/test_codecs.py", "-k", words)


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
        old="bytes_max=bytes_max - added)",
        new="bytes_max=bytes_max)",
        caught_by=(codec("keeps_the_limit"),),
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
        file=BLOBS,
        old="            os.utime(file)\n",
        new="",
        caught_by=(codec("those_used_again_stay"),),
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
