"""The machine extracted from the proof allows each transition of the engine; states and places are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.transitions import compare
from tests.support import thorough

pytestmark = pytest.mark.heavy

KINDS = {
    "Submit": "a new job",
    "Due": "a time or a back-off is over",
    "Put_off": "a back-off outlasts max_hold",
    "Resolve": "an edge",
    "Place": "no edge is open any more",
    "Start": "",
    "Finish": "",
    "Fail": "for the last time",
    "Stop": "canceled or discarded while it ran",
    "Again": "a retry, a snooze, a release or a loss",
    "Await": "children",
    "Leave": "jobs, and it is run again when they are over",
    "Close": "the last child is over",
    "Cancel": "",
    "Redrive": "",
    "Revive": "a redrive downstream",
    "Discard": "",
    "Free": "the place of a dead job",
    "Prune": "a record expires",
}
"""All transitions of the machine, and when they happen."""


@pytest.mark.slow
def test_each_transition_of_a_crowd_is_allowed(jobs_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(compare(jobs_program, range(300), 60, monkeypatch)) == KINDS.keys()


def test_each_transition_of_a_wild_crowd_is_allowed(jobs_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canceled job is revived only when no unfinished job waits for it, however small the budget."""
    assert compare(jobs_program, range(thorough(150, quick=80)), 60, monkeypatch, is_wild=True)["Revive"]


@pytest.mark.nightly
@pytest.mark.parametrize("five_thousand", range(4))
@pytest.mark.parametrize("is_wild", [False, True], ids=["calm", "wild"])
def test_each_transition_of_many_crowds_is_allowed(
    jobs_program: Path, monkeypatch: pytest.MonkeyPatch, five_thousand: int, is_wild: bool
) -> None:
    seeds = range((1 + five_thousand) * 5000, (2 + five_thousand) * 5000)
    compare(jobs_program, seeds, 60, monkeypatch, is_wild=is_wild)


@pytest.mark.nightly
def test_each_transition_of_long_crowds_is_allowed(jobs_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(jobs_program, range(2000), 250, monkeypatch)
