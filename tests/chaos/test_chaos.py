"""What judges a chaos run finds what is broken, the report is that of its figures, and a short run breaks nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import pytest

from queuehint.values.event import Event, EventKind
from queuehint.values.record import JobState
from tests.chaos import judging, page
from tests.chaos.__main__ import Plan, run, table
from tests.chaos.clocks import ServerClock
from tests.chaos.injecting import Injected
from tests.chaos.load import Asked, Call, calls
from tests.chaos.recording import History, trace_of
from tests.faults import checks

if TYPE_CHECKING:
    from pathlib import Path

STATES = {"enqueued": JobState.QUEUED, "started": JobState.STARTED, "finished": JobState.FINISHED}


def happened(*moves: tuple[str, str]) -> list[Event | None]:
    """Return events of these kinds and jobs, a second apart."""
    return [
        Event(at=at, at_ms=1_000 * at, kind=EventKind(kind), id=job_id, number=1, old=None, new=STATES[kind])
        for at, (kind, job_id) in enumerate(moves, 1)
    ]


def asked(*job_ids: str, at_s: float = 10.0) -> dict[str, Asked]:
    """Return jobs at one place, acknowledged then."""
    return {job_id: Asked(Call(job_id, ("a",), None, 1.0), at_s) for job_id in job_ids}


RIGHT = [(kind, job_id) for job_id in ("x", "y") for kind in ("enqueued", "started", "finished")]
OVERLAP = [("enqueued", "x"), ("enqueued", "y"), ("started", "x"), ("started", "y")]


def test_a_history_in_order_breaks_no_rule_and_one_with_an_overlap_does() -> None:
    right = History((0, "r"), happened(*RIGHT))
    assert judging.broken_rules(right, [right], asked("x", "y")) == []
    wrong = History((0, "r"), happened(*OVERLAP, ("finished", "x"), ("finished", "y")))
    [found] = judging.broken_rules(wrong, [wrong], asked("x", "y"))
    assert found.startswith("surviving history: overlap: y")


def test_a_job_that_is_not_over_at_the_end_breaks_a_rule() -> None:
    open_ended = History((0, "r"), happened(*RIGHT[:-1]))
    [found] = judging.broken_rules(open_ended, [open_ended], asked("x", "y"))
    assert "not_over" in found


def test_a_history_that_was_cut_off_is_judged_too() -> None:
    survivor = History((1, "new"), happened(("enqueued", "x"), ("started", "x"), ("finished", "x")))
    lost = History((0, "old"), happened(*OVERLAP))
    assert judging.common_events(survivor, lost) == 1
    found = judging.broken_rules(survivor, [lost, survivor], asked("x", "y"))
    assert [text.split(": ")[1] for text in found] == ["overlap"]


def test_time_that_goes_back_is_found() -> None:
    events = happened(*RIGHT)
    assert events[2] is not None
    events[2] = attrs.evolve(events[2], at_ms=1)
    history = History((0, "r"), events)
    assert any(
        "time goes back at event 3" in text for text in judging.broken_rules(history, [history], asked("x", "y"))
    )


@pytest.mark.parametrize("at_s, is_allowed", [(7.9, False), (8.1, True), (14.9, True), (15.1, False)])
def test_an_acknowledged_job_may_be_lost_only_around_a_fault(at_s: float, *, is_allowed: bool) -> None:
    fault = Injected("primary killed", "", begun_s=10.0, settled_s=15.0)
    survivor = History((0, "r"), happened(*RIGHT[:3]))
    lost, violations = judging.lost_jobs(survivor, asked("x", "y", at_s=at_s), [fault])
    assert lost == ["y"]
    assert (not violations) == is_allowed


def test_a_job_from_nowhere_is_found() -> None:
    _, violations = judging.lost_jobs(History((0, "r"), happened(*RIGHT)), asked("x"), [])
    assert violations == ["job y came from nowhere"]


def test_a_token_that_does_not_grow_is_found_unless_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = ServerClock(tmp_path)
    lines = [checks.Line("start", 1, t, "x", token) for t, token in ((1.0, 7), (2.0, 8), (3.0, 8))]
    assert judging.old_tokens(lines, clock) == ["job x was granted with token 8 after 8"]
    clock.backward_at_s.append(2.5)
    assert judging.old_tokens(lines, clock) == []


def test_missed_events_are_a_gap() -> None:
    events = [*happened(*RIGHT[:2]), None, None]
    assert [event.kind for event in trace_of(events)] == ["enqueued", "started", "gap"]


def test_the_load_of_a_seed_is_always_the_same() -> None:
    first, second = ([call for call, _ in zip(calls(5), range(50), strict=False)] for _ in range(2))
    assert first == second
    assert any(call.after for call in first)


def test_the_report_is_that_of_its_figures() -> None:
    figures = json.loads(page.FIGURES.read_text("utf-8"))
    assert page.PAGE.read_text("utf-8") == page.text(figures), "write it anew: python -m tests.chaos.page"
    assert table(figures)
    assert page.TRACE.exists()


@pytest.mark.nightly
@pytest.mark.redis
@pytest.mark.parametrize("min_replicas", [0, 1])
def test_a_short_run_breaks_no_promise(min_replicas: int, tmp_path: Path) -> None:
    figures = run(Plan(seconds=60, seed=2, min_replicas=min_replicas), tmp_path)
    print(table(figures))
    assert figures["violations"] == []
    assert figures["done"] > 100
    assert figures["faults"]
