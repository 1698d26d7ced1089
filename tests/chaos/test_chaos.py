"""The chaos run: its checks detect broken promises, its report shows its figures, and a short run breaks none."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import attrs
import pytest

from examples import replay_history
from queuehint.values.event import Event, EventKind
from queuehint.values.hint import Claim
from queuehint.values.record import JobState
from tests.chaos import judging, page
from tests.chaos.__main__ import Plan, run, table
from tests.chaos.clocks import ServerClock
from tests.chaos.failovers import ORDERED, PROMOTED, Failover, Message, Role, failovers
from tests.chaos.injecting import Injected
from tests.chaos.judging import Cause
from tests.chaos.load import Asked, Call, Load
from tests.chaos.recording import History, trace_of
from tests.faults import checks

STATES = {"enqueued": JobState.QUEUED, "started": JobState.STARTED, "finished": JobState.FINISHED}
PLACE = (Claim(("a",)),)


def happened(*moves: tuple[str, str]) -> list[Event | None]:
    """Return events of these kinds and jobs, a second apart."""
    return [
        Event(
            at=at, at_ms=1_000 * at, kind=EventKind(kind), id=job_id, number=1, old=None, new=STATES[kind], claims=PLACE
        )
        for at, (kind, job_id) in enumerate(moves, 1)
    ]


def asked(*job_ids: str, at_s: float = 10.0) -> dict[str, Asked]:
    """Return jobs at one place, acknowledged then."""
    return {job_id: Asked(Call(job_id, ("a",), None, 1.0), at_s, at_s) for job_id in job_ids}


RIGHT = [(kind, job_id) for job_id in ("x", "y") for kind in ("enqueued", "started", "finished")]
OVERLAP = [("enqueued", "x"), ("enqueued", "y"), ("started", "x"), ("started", "y")]


def test_ordered_history_breaks_no_rule_and_an_overlap_does() -> None:
    right = History((0, "r"), happened(*RIGHT))
    assert judging.broken_rules(right, [right], asked("x", "y")) == []
    wrong = History((0, "r"), happened(*OVERLAP, ("finished", "x"), ("finished", "y")))
    [found] = judging.broken_rules(wrong, [wrong], asked("x", "y"))
    assert found.startswith("surviving history: overlap: y")


def test_unfinished_job_at_the_end_breaks_a_rule() -> None:
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


FAULT = Injected("primary frozen", "", begun_s=10.0, undone_s=13.0, settled_s=25.0)
FAILOVER = Failover(old=0, new=1, ordered_s=12.0, promoted_s=12.5, demoted_s=22.0)
CAUSES = [
    (7.9, None),
    (8.1, Cause.NOT_REPLICATED),
    (11.9, Cause.NOT_REPLICATED),
    (12.1, Cause.REPLACED),
    (21.9, Cause.REPLACED),
    (22.1, None),
]


@pytest.mark.parametrize("at_s, cause", CAUSES)
def test_acknowledged_job_may_be_lost_only_by_a_failover(at_s: float, cause: Cause | None) -> None:
    survivor = History((1, "r"), happened(*RIGHT[:3]))
    lost, violations = judging.lost_jobs(survivor, [], asked("x", "y", at_s=at_s), [FAULT], [FAILOVER])
    assert [(loss.job, loss.cause) for loss in lost] == [("y", cause)]
    assert (violations == []) == (cause is not None)


def test_a_fault_without_a_failover_explains_no_loss() -> None:
    survivor = History((1, "r"), happened(*RIGHT[:3]))
    _, violations = judging.lost_jobs(survivor, [], asked("x", "y", at_s=11.0), [FAULT], [])
    assert violations == ["job y was acknowledged, is lost, and no failover explains it"]


@pytest.mark.parametrize("node, is_allowed", [(0, True), (2, False)])
def test_a_failover_explains_only_losses_of_the_primary_it_replaced(node: int, *, is_allowed: bool) -> None:
    survivor = History((1, "r"), happened(*RIGHT[:3]))
    cut_off = History((node, "old"), happened(*RIGHT[:3], ("enqueued", "y")))
    lost, violations = judging.lost_jobs(survivor, [cut_off], asked("x", "y", at_s=15.0), [FAULT], [FAILOVER])
    assert lost[0].nodes == (node,)
    assert (violations == []) == is_allowed


def test_a_job_from_nowhere_is_found() -> None:
    _, violations = judging.lost_jobs(History((0, "r"), happened(*RIGHT)), [], asked("x"), [], [])
    assert violations == ["job y came from nowhere"]


def test_fault_kind_without_any_effect_is_found() -> None:
    nothing = attrs.evolve(FAULT, is_seen=False)
    assert judging.unseen_kinds([FAULT, nothing]) == []
    assert judging.unseen_kinds([nothing]) == ["primary frozen: injected, and had no effect"]


def test_failovers_are_read_from_sentinel_and_server_messages() -> None:
    told = "slave 127.0.0.1:72 127.0.0.1 72 @ queuehint 127.0.0.1 71"
    back = "slave 127.0.0.1:71 127.0.0.1 71 @ queuehint 127.0.0.1 72"
    messages = [
        Message(1.0, 0, "+sdown", "master queuehint 127.0.0.1 71"),
        Message(2.0, 0, ORDERED, told),
        Message(2.5, 0, PROMOTED, told),
        Message(20.0, 1, ORDERED, back),
    ]
    roles = [Role(0.0, 0, "master"), Role(0.0, 1, "slave"), Role(1.0, 0, None), Role(9.0, 0, "slave")]
    assert failovers(messages, roles, {71: 0, 72: 1}) == [
        Failover(old=0, new=1, ordered_s=2.0, promoted_s=2.5, demoted_s=9.0),
        Failover(old=1, new=0, ordered_s=20.0, promoted_s=None),
    ]


def test_token_that_does_not_grow_is_found_unless_clocks_moved(tmp_path: Path) -> None:
    clock = ServerClock(tmp_path)
    lines = [checks.Line("start", 1, t, "x", token) for t, token in ((1.0, 7), (2.0, 8), (3.0, 8))]
    assert judging.old_tokens(lines, clock) == ["job x was granted with token 8 after 8"]
    clock.backward_at_s.append(2.5)
    assert judging.old_tokens(lines, clock) == []


def test_missed_events_are_a_gap() -> None:
    events = [*happened(*RIGHT[:2]), None, None]
    assert [event.kind for event in trace_of(events)] == ["enqueued", "started", "gap"]


BUNDLED = Load.read(history=replay_history.BUNDLED)


def test_the_load_of_a_seed_is_always_the_same() -> None:
    first, second = ([call for call, _ in zip(BUNDLED.calls(5), range(50), strict=False)] for _ in range(2))
    assert first == second
    assert any(call.after for call in first)


def test_load_has_the_recorded_places_in_order(tmp_path: Path) -> None:
    edits = tmp_path / "novel.json"
    recorded = {
        "startContent": "",
        "endContent": "ab",
        "txns": [{"patches": [[0, 0, "a"]]}, {"patches": [[1, 0, "b"]]}],
    }
    edits.write_text(json.dumps(recorded), "utf-8")
    load = Load.read(history=replay_history.BUNDLED, edits=[edits])
    [history] = load.histories
    places = [
        tuple(replay_history.place(history.repository, path))
        for commit in history.commits
        for path, _ in replay_history.deletions_first(commit.changes)
    ]
    first = list(itertools.islice(load.calls(1), 400))
    files = [call.hint for call in first if call.id.startswith("f")]
    assert files == list(itertools.islice(itertools.cycle(places), len(files)))
    assert [call.hint for call in first[1::2]] == [("novel",)] * 200
    assert load.described()["documents"] == [{"name": "novel", "edits": 2}]


def test_the_report_is_that_of_its_figures() -> None:
    figures = json.loads(page.FIGURES.read_text("utf-8"))
    assert page.PAGE.read_text("utf-8") == page.text(figures), "write it anew: python -m tests.chaos.page"
    assert table(figures)
    assert page.TRACE.exists()


@pytest.mark.nightly
@pytest.mark.redis
@pytest.mark.parametrize("min_replicas", [0, 1])
def test_a_short_run_breaks_no_promise(min_replicas: int, tmp_path: Path) -> None:
    figures = run(Plan(seconds=60, seed=2, min_replicas=min_replicas), tmp_path, BUNDLED)
    print(table(figures))
    assert figures["violations"] == []
    assert figures["done"] > 100
    assert figures["faults"]
