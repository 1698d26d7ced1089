"""Mutants of what travels beside jobs, and of what is too large or too odd for one message."""

from tests.mutants.gate import Mutant, tests

NOTES = tests("tests/integration/test_worker_notes.py")

MUTANTS = (
    Mutant(
        name="A note with a lone surrogate is sent as it is",
        kind="wire",
        file="context.py",
        old="encodable(plain_text(note)[:NOTE_LENGTH_MAX])[:NOTE_LENGTH_MAX]",
        new="plain_text(note)[:NOTE_LENGTH_MAX]",
        caught_by=(NOTES,),
    ),
    Mutant(
        name="An outcome that cannot be sent takes the others of its batch down",
        kind="wire",
        file="settlements.py",
        old="        return count > 1\n",
        new="        return False\n",
        caught_by=(NOTES,),
    ),
    Mutant(
        name="A worker whose listening fails is there and does nothing",
        kind="wire",
        file="worker.py",
        old='            logger.exception("listening for work failed", extra={"event": "worker.listening_failed"})\n',
        new="            raise\n",
        caught_by=(tests("tests/integration/test_worker_tasks.py"),),
    ),
    Mutant(
        name="A spec that cannot be read takes those granted beside it down",
        kind="wire",
        file="backends/redis/replies.py",
        old="            unreadable.append(_unreadable(head, rest, error))\n",
        new="            raise\n",
        caught_by=(tests("tests/faults/test_foreign.py", "-k", "cannot_be_read"),),
    ),
    Mutant(
        name="A record whose spec cannot be read takes those listed beside it down",
        kind="wire",
        file="backends/redis/replies.py",
        old="        parsed, problem = salvaged(job_id, spec, rest), _problem(error)\n",
        new="        raise\n",
        caught_by=(tests("tests/faults/test_foreign.py", "-k", "cannot_be_read"),),
    ),
    Mutant(
        name="A record whose spec cannot be read is written with what can be read of it",
        kind="wire",
        file="record_dialogues.py",
        old="        if record.problem is not None:\n",
        new="        if False:\n",
        caught_by=(tests("tests/faults/test_foreign.py", "-k", "cannot_be_read"),),
    ),
    Mutant(
        name="An enqueue does all that is left over in the namespace",
        kind="bounds",
        file="submission.py",
        old="    yield from finish(more=more, at_most=steps)\n",
        new="    yield from finish(more=more)\n",
        caught_by=(tests("tests/integration/test_leftovers.py", "-k", "memory"),),
    ),
    Mutant(
        name="Submissions are cut by jobs and not by bytes",
        kind="bounds",
        file="submission.py",
        old="        size += len(spec.arguments)\n",
        new="",
        caught_by=(tests("tests/unit/test_submission.py"),),
    ),
    Mutant(
        name="Whoever gets no answer to a submission in parts is told the ids of one part",
        kind="wire",
        file="submission.py",
        old="arranged.as_given([spec.id for part in parts for spec in part])",
        new="[spec.id for spec in parts[0]]",
        caught_by=(tests("tests/unit/test_submission.py"),),
    ),
    Mutant(
        name="A caller that is cut off holds its place for ever, as it thinks",
        kind="wire",
        file="exclusive.py",
        old="        return now_s() >= self._until_s\n",
        new="        return self._until_s < 0\n",
        caught_by=(tests("tests/unit/test_exclusive.py"),),
    ),
    Mutant(
        name="Each note of a handler is sent by itself",
        kind="wire",
        file="outbox.py",
        old="        is_due = is_last or now_s >= self._due_s\n",
        new="        is_due = True\n",
        caught_by=(tests("tests/integration/test_worker_notes.py", "-k", "often"),),
    ),
    Mutant(
        name="Each note of a handler costs an exchange",
        kind="wire",
        file="worker.py",
        old="            self._event.set_for_notes()\n",
        new="            self._event.set()\n",
        caught_by=(tests("tests/integration/test_worker_notes.py", "-k", "often or alone"),),
    ),
)
