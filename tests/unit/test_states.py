"""The table of legal state transitions."""

from __future__ import annotations

import itertools

import pytest

from queuehint.core.jobs.states import MOVES, check_move, diagram
from queuehint.core.jobs.table import JobTable
from queuehint.core.structures.job import Job
from queuehint.errors import InvalidTransitionError
from queuehint.testing.driver import job
from queuehint.values.policy import Retention
from queuehint.values.record import JobState
from tests.each import for_each

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState

LEGAL = {
    None: {SCHEDULED, DEFERRED, QUEUED, CANCELED},
    SCHEDULED: {SCHEDULED, DEFERRED, QUEUED, FAILED, CANCELED},
    DEFERRED: {SCHEDULED, DEFERRED, QUEUED, FINISHED, FAILED, CANCELED},
    QUEUED: {SCHEDULED, QUEUED, STARTED, CANCELED},
    STARTED: {SCHEDULED, DEFERRED, QUEUED, FINISHED, FAILED, CANCELED},
    FINISHED: {DEFERRED, QUEUED},
    FAILED: {DEFERRED, QUEUED, CANCELED},
    CANCELED: {DEFERRED, QUEUED},
}
PAIRS = list(itertools.product([None, *JobState], JobState))


def test_the_table_is_this_one() -> None:
    assert {state: set(targets) for state, targets in MOVES.items()} == LEGAL
    assert all(how for targets in MOVES.values() for how in targets.values())


@for_each("state, target", [pair for pair in PAIRS if pair[1] in LEGAL[pair[0]]])
def test_a_legal_move_is_let_through(state: JobState | None, target: JobState) -> None:
    check_move("a", state, target)


@for_each("state, target", [pair for pair in PAIRS if pair[1] not in LEGAL[pair[0]]])
def test_every_other_move_is_refused_naming_both_states(state: JobState | None, target: JobState) -> None:
    with pytest.raises(InvalidTransitionError) as caught:
        check_move("a", state, target)
    assert str(caught.value) == f"job 'a' is {state or 'new'} and cannot become {target}"
    assert (caught.value.job_id, caught.value.state, caught.value.target) == ("a", state or "new", target)


@pytest.mark.parametrize("state, target", [(FINISHED, STARTED), (CANCELED, STARTED), (QUEUED, FINISHED)])
def test_no_job_makes_an_illegal_move(state: JobState, target: JobState) -> None:
    table = JobTable(Retention())
    stuck = Job(job("a"), 1, state, 0)
    with pytest.raises(InvalidTransitionError):
        table.become(stuck, target)
    assert (stuck.state, stuck.version) == (state, 1)
    assert not any(table.counts.values())


def test_the_diagram_has_one_arrow_for_each_legal_move() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == 1 + sum(len(targets) for targets in LEGAL.values())
    assert "    [*] --> QUEUED: enqueue" in lines
    assert "    STARTED --> FINISHED: settle" in lines
