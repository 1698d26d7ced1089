"""Mutants of what becomes of jobs that a release cannot run."""

from tests.mutants.gate import Mutant, tests

COUNTED = tests("tests/unit/test_failures.py", "-k", "given_back")

MUTANTS = (
    Mutant(
        name="Each job of an unknown task is a line of the log",
        kind="worker",
        file="worker/failures.py",
        old="        if now_s < logged_s + GIVEN_BACK_EVERY_S:\n",
        new="        if now_s < logged_s:\n",
        caught_by=(COUNTED,),
    ),
    Mutant(
        name="Jobs of an unknown task are not counted when others take their room",
        kind="worker",
        file="worker/failures.py",
        old="            self._emit(next(iter(self._counted)))\n",
        new="            self._counted.popitem()\n",
        caught_by=(COUNTED,),
    ),
)
