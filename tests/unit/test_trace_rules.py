"""Each rule of a trace: traces that keep it, and traces that break it, reported with its name and its two jobs."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from queuehint import Claim, Event, EventKind, JobRecord, JobSpec, JobState
from queuehint.errors import InvalidHintError
from queuehint.testing import (
    Fault,
    InvalidTraceError,
    Rule,
    Trace,
    TraceError,
    TraceEvent,
    TraceJob,
    check_trace,
    examine_trace,
    find_faults,
)
from queuehint.testing.driver import Queue
from queuehint.testing.trace.drawings import runs_of
from queuehint.testing.trace.places import Places

J = TraceJob.of
A, B = J("a", ["doc"]), J("b", ["doc", "intro"])
ELSEWHERE = J("c", ["other"])


def happened(text: str, *, step_ms: float = 10) -> list[TraceEvent]:
    """Events a step apart: ``queued:a started:a@7`` and so on, with a token behind ``@``."""
    events = []
    for number, word in enumerate(text.split()):
        kind, _, rest = word.partition(":")
        job, _, token = rest.partition("@")
        events.append(
            TraceEvent(kind=kind, job=job, at_ms=1000 + number * step_ms, token=int(token) if token else None)
        )
    return events


def broken(text: str, *jobs: TraceJob, **options: Any) -> list[tuple[str, str, str | None]]:
    faults = find_faults(happened(text), jobs or (A, B, ELSEWHERE), **options)
    return [(fault.rule.value, fault.job, fault.other) for fault in faults]


# --- places ----------------------------------------------------------------------------------------------------------


def test_progress_is_no_move() -> None:
    events = happened("queued:a queued:b started:a progressed:a progressed:a finished:a started:b progressed:b ended:b")
    assert find_faults(events, (A, B)) == []
    assert [(run.started_ms, run.ended_ms, run.how) for run in runs_of(events)] == [
        (1020, 1050, "finished"),
        (1060, 1080, "ended"),
    ]
    (fault,) = find_faults(happened("queued:a queued:b started:a progressed:a started:b"), (A, B))
    assert "p progressed" in str(fault)


def test_sequential_jobs_on_one_path_are_sound() -> None:
    assert broken("queued:a queued:b started:a ended:a started:b ended:b") == []


def test_jobs_of_other_places_run_at_once() -> None:
    assert broken("queued:a queued:c started:a started:c ended:c ended:a") == []


def test_two_jobs_that_conflict_and_run_at_once() -> None:
    assert broken("queued:a queued:b started:a started:b ended:b ended:a") == [("overlap", "b", "a")]


def test_a_job_that_overtakes_one_that_was_queued_before_it() -> None:
    assert broken("queued:a queued:b started:b ended:b started:a ended:a") == [("order", "b", "a")]


def test_a_parent_that_overtakes_one_of_its_children() -> None:
    assert broken("queued:b queued:a started:a ended:a") == [("order", "a", "b")]


def test_the_root_is_in_the_way_of_all() -> None:
    assert broken("queued:r queued:b started:b", J("r", []), B) == [("order", "b", "r")]
    assert broken("queued:b queued:r started:r", J("r", []), B) == [("order", "r", "b")]


def test_a_job_without_a_place_is_in_nobodys_way() -> None:
    assert broken("queued:n queued:a started:a started:n ended:n ended:a", J("n"), A) == []


def test_shared_claims_conflict_with_exclusive_ones_alone() -> None:
    s, t = J("s", ["doc"], mode="shared"), J("t", ["doc", "intro"], mode="shared")
    assert broken("queued:s queued:t started:t started:s ended:s ended:t", s, t) == []
    assert broken("queued:s queued:b started:b", s, B) == [("order", "b", "s")]
    assert broken("queued:b queued:s started:s", s, B) == [("order", "s", "b")]


def test_job_of_several_claims_blocks_at_each() -> None:
    both = TraceJob(id="both", claims=[["doc", "intro"], ["other"]])
    assert broken("queued:both queued:c started:c", both, ELSEWHERE) == [("order", "c", "both")]
    assert broken("queued:c queued:both started:both", both, ELSEWHERE) == [("order", "both", "c")]


def test_a_canceled_job_is_in_nobodys_way() -> None:
    assert broken("queued:a queued:b canceled:a started:b ended:b") == []


# --- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["retried", "snoozed", "released", "lost"])
def test_a_job_that_is_put_back_keeps_its_place(kind: str) -> None:
    assert broken(f"queued:a queued:b started:a {kind}:a started:a ended:a started:b ended:b") == []
    assert broken(f"queued:a queued:b started:a {kind}:a started:b ended:b") == [("order", "b", "a")]


def test_a_queue_that_retries_to_the_tail_is_told_so() -> None:
    (fault,) = find_faults(happened("queued:a queued:b started:a retried:a queued:a started:b"), [A, B])
    assert (
        fault.message == "b at doc:intro overtook a at doc, which was put back for another attempt and keeps its place"
    )


def test_a_job_that_yields_is_overtaken() -> None:
    a = J("a", ["doc"], on_retry="yield")
    assert broken("queued:a queued:b started:a retried:a started:b ended:b started:a ended:a", a, B) == []
    # It is behind the others from then on.
    assert broken("queued:a queued:b started:a retried:a started:a", a, B) == [("order", "a", "b")]


def test_event_places_take_precedence_over_job_places() -> None:
    events = happened("queued:a queued:b started:a retried:a started:b ended:b")
    events[3] = TraceEvent(kind="retried", job="a", at_ms=events[3].at_ms, state="SCHEDULED")
    assert find_faults(events, [A, B]) == []


def test_a_dead_job_holds_its_place_if_it_is_to() -> None:
    a = J("a", ["doc"], on_dead="hold")
    assert broken("queued:a queued:b started:a failed:a started:b", A, B) == []
    assert broken("queued:a queued:b started:a failed:a started:b", a, B) == [("order", "b", "a")]
    assert broken("queued:a queued:b started:a failed:a canceled:a started:b", a, B) == []
    assert broken("queued:a queued:b started:a failed:a redriven:a started:b", a, B) == [("order", "b", "a")]
    assert broken("queued:a queued:b started:a failed:a redriven:a started:a ended:a started:b", a, B) == []
    assert broken("queued:a queued:b started:a failed:a redriven:a started:a", A, B) == [("order", "a", "b")]


def test_rerun_dead_job_gives_up_its_held_place() -> None:
    a = J("a", ["doc"], on_dead="hold")
    events = happened("queued:a started:a failed:a queued:b redriven:a started:b ended:b queued:a started:a")
    assert [fault.rule for fault in find_faults(events, (a, B))] != []
    events[4] = attrs.evolve(events[4], state="DEFERRED")
    assert find_faults(events, (a, B)) == []


def test_redriven_cancel_behind_job_may_keep_its_place() -> None:
    a = J("a", ["doc"], on_dead="cancel_behind")
    assert broken("queued:a started:a failed:a queued:b redriven:a started:a idle: ended:a started:b", a, B) == []
    assert broken("queued:a started:a failed:a queued:b redriven:a started:b ended:b started:a", a, B) == []


# --- edges -----------------------------------------------------------------------------------------------------------


def test_start_before_a_dependency_ended_is_a_fault() -> None:
    c = J("c", ["other"], after=["a"])
    assert broken("queued:a started:a ended:a queued:c started:c ended:c", A, c) == []
    assert broken("queued:a queued:c started:c", A, c) == [("dependency", "c", "a")]
    assert broken("queued:a queued:c started:a started:c", A, c) == [("dependency", "c", "a")]
    assert broken("queued:c started:c queued:a", A, c) == [("dependency", "c", "a")]


def test_failed_dependency_opens_only_matching_edges() -> None:
    def of(end: str, **fields: Any) -> list[tuple[str, str, str | None]]:
        return broken(f"queued:a started:a {end}:a queued:c started:c", A, J("c", after=["a"], **fields))

    fault = [("dependency", "c", "a")]
    assert of("finished") == of("canceled") == []
    assert of("failed") == fault
    assert of("failed", on_dependency_failure="run") == of("canceled", on_dependency_failure="run") == []
    assert of("failed", on_dependency_failure="cancel") == of("canceled", on_dependency_failure="cancel") == fault


def test_a_fan_in_job_is_queued_once() -> None:
    assert broken("queued:a queued:a started:a ended:a") == [("queued_twice", "a", None)]
    assert broken("queued:a started:a queued:a ended:a") == [("queued_twice", "a", None)]
    assert broken("queued:a started:a ended:a queued:a started:a ended:a") == []


# --- starts and ends -------------------------------------------------------------------------------------------------


def test_a_job_that_runs_is_not_started() -> None:
    assert broken("queued:a started:a started:a ended:a") == [("started_twice", "a", None)]


def test_a_job_that_is_over_is_not_started() -> None:
    assert broken("queued:a started:a ended:a started:a") == [("started_after_end", "a", None)]


@pytest.mark.parametrize("kind", ["finished", "failed", "ended", "retried", "lost"])
def test_end_without_start_is_a_fault(kind: str) -> None:
    assert broken(f"queued:a {kind}:a") == [("not_started", "a", None)]


def test_a_job_that_waits_for_its_children_ends_without_running() -> None:
    assert broken("queued:a started:a deferred:a queued:b started:b finished:b finished:a") == []


def test_tokens_of_a_job_grow() -> None:
    assert broken("queued:a started:a@7 lost:a started:a@8 finished:a@8") == []
    assert broken("queued:a started:a@7 lost:a started:a@7") == [("token", "a", None)]
    assert broken("queued:a started:a@7 lost:a started:a@8 finished:a@7") == [("token", "a", None)]


def test_in_a_complete_trace_everything_ends() -> None:
    assert broken("queued:a started:a queued:c") == []
    assert broken("queued:a started:a queued:c", complete=True) == [("not_over", "a", None), ("not_over", "c", None)]


# --- slots -----------------------------------------------------------------------------------------------------------


def test_a_slot_is_idle_while_a_job_is_ready() -> None:
    assert broken("queued:a started:a ended:a", slots=1, idle_ms=10) == []
    assert broken("queued:a queued:c started:a ended:a started:c", slots=1, idle_ms=10) == [("idle", "a", None)]
    last = broken("queued:a started:a queued:b ended:a canceled:x canceled:y started:b", slots=1, idle_ms=20)
    assert last == [("idle", "b", "a")]


def test_idle_slot_hides_no_fault_of_order() -> None:
    text = "queued:a queued:c queued:b started:c ended:c started:b started:a"
    assert [rule for rule, *_ in broken(text, slots=2)] == ["idle", "idle", "order", "overlap"]
    assert broken(text, slots=2, limit=1) == [("order", "b", "a")]
    events = happened(text)
    (*_, last) = find_faults(events, (A, B, ELSEWHERE), slots=2, limit=3)
    assert last.rule is Rule.OVERLAP
    first = find_faults(events[:4], (A, B, ELSEWHERE), slots=2)[0]
    assert first.message == "a slot was idle for 10 ms while a was ready; 0 ms are allowed (idle_ms)"


def test_a_job_that_waits_for_its_place_is_not_ready() -> None:
    text = "queued:a started:a queued:b queued:c started:c ended:c canceled:x ended:a started:b"
    assert broken(text, slots=2, idle_ms=10) == []


def test_a_worker_that_gets_nothing_while_a_job_is_ready() -> None:
    assert broken("idle: queued:a started:a queued:b idle: ended:a") == []
    assert broken("queued:a idle:") == [("idle", "a", None)]
    assert broken("queued:a queued:b started:a ended:a idle:") == [("idle", "b", "a")]


def test_job_released_with_a_delay_is_not_ready() -> None:
    assert broken("queued:a started:a retried:a idle: started:a ended:a") == []
    assert broken("queued:a started:a released:a idle: started:a ended:a") == [("idle", "a", None)]
    assert broken("queued:a queued:b retried:b canceled:a idle:") == [("not_started", "b", None)]


def test_job_of_an_unknown_task_is_not_ready() -> None:
    events = happened("queued:a started:a released:a idle: started:a released:a idle:")
    assert [fault.index for fault in find_faults(events, [A])] == [3, 6]
    events[2] = attrs.evolve(events[2], cause="unknown_task")
    assert find_faults(events, [A]) == []


def test_slots_of_other_pools_are_idle_by_right() -> None:
    jobs = J("a", ["doc"], pool="p"), J("b", ["other"], pool="q")
    assert broken("queued:a queued:b started:b", *jobs, slots={"p": 0, "q": 1}, idle_ms=10) == []
    assert broken("queued:a queued:b started:b", *jobs, slots={"p": 1, "q": 1}, idle_ms=10) == [("idle", "a", None)]


# --- what is not known -----------------------------------------------------------------------------------------------


def test_trace_that_begins_midway_accuses_nobody() -> None:
    report = examine_trace(happened("ended:a queued:b started:c started:b retried:c started:c"), [A, B, ELSEWHERE])
    assert report.faults == ()
    assert report.unjudged == (
        "ended and were started before the trace begins: 1 job",
        "started and never queued, so that nobody knows whose turn it was: 1 job",
    )


def test_a_job_that_is_not_described_conflicts_with_nothing() -> None:
    report = examine_trace(happened("queued:x queued:y started:y started:x"))
    assert report.faults == ()
    assert report.unjudged == ("have events and are not described, so that no conflict of theirs is seen: 2 jobs",)


@pytest.mark.parametrize("check", [check_trace, find_faults])
def test_trace_that_describes_no_job_is_refused(check: Any) -> None:
    events = happened("queued:x queued:y started:y started:x")
    with pytest.raises(InvalidTraceError, match="jobs must describe the jobs: 2 jobs ran and the place of none"):
        check(events)
    report = examine_trace(events)
    assert (report.ran, report.undescribed, report.is_blind) == (2, 2, True)
    check(happened("queued:x queued:y"))
    check(events, [J("x", None), J("y", None)])


@pytest.mark.parametrize("check", [check_trace, find_faults])
def test_trace_that_describes_some_jobs_warns_of_the_others(check: Any, recwarn: pytest.WarningsRecorder) -> None:
    events = happened("queued:a started:a finished:a queued:x started:x finished:x")
    check(events, [A, J("x", ["other"])])
    check([*events[:3], *[attrs.evolve(event, claims=A.claims) for event in events[3:]]], [A])
    assert len(recwarn) == 0
    with pytest.warns(UserWarning, match="of 2 jobs that ran 1 are not described: no conflict") as told:
        check(events, [A])
    assert told[0].filename == __file__


def test_report_counts_the_jobs_that_took_a_place_behind_another() -> None:
    text = "queued:a queued:c started:a queued:b retried:a started:a ended:a started:b ended:b queued:a"
    assert examine_trace(happened(text), [A, B, ELSEWHERE]).met == 1
    assert examine_trace(happened("queued:a started:a ended:a queued:b started:b"), [A, B]).met == 0


def test_check_of_no_events_is_refused() -> None:
    with pytest.raises(InvalidTraceError, match="events must not be empty: there was nothing to check"):
        check_trace([], [A])
    assert find_faults([], [A]) == []


def test_bare_events_break_rules_of_single_jobs() -> None:
    with pytest.raises(TraceError, match="x was started again while it runs"):
        check_trace(happened("queued:x started:x started:x"))


def test_jobs_may_be_specs_and_records() -> None:
    queue = Queue()
    spec = JobSpec(id="b", task="t", claims=(Claim(("doc", "intro")),))
    queue.enqueue(spec)
    described: list[JobSpec | JobRecord] = [spec, queue.record("b")]
    for job in described:
        assert [fault.rule for fault in find_faults(happened("queued:a queued:b started:b"), [A, job])] == ["order"]


def test_events_of_a_store_describe_their_jobs() -> None:
    moves = [("a", EventKind.QUEUED, A), ("b", EventKind.QUEUED, B), ("b", EventKind.STARTED, B)]
    events = [
        Event(at=at, at_ms=at, kind=kind, id=job, number=at, old=None, new=JobState(kind.name), claims=described.claims)
        for at, (job, kind, described) in enumerate(moves)
    ]
    (fault,) = find_faults(events)
    assert fault.message == "b at doc:intro overtook a at doc, which was queued before it and was not over"
    assert "* b  doc:intro" in fault.picture
    check_trace([attrs.evolve(event, claims=()) for event in events])


def test_redrive_of_an_undescribed_job_accuses_no_other() -> None:
    """It may have held its place, or not."""
    told = happened("queued:a started:a failed:a queued:b redriven:a started:a")
    assert find_faults([attrs.evolve(event, claims=(A if event.job == "a" else B).claims) for event in told]) == []


def test_report_counts_jobs_beyond_a_limit_and_a_gap() -> None:
    events = happened("queued:a queued:b started:b ended:b queued:c started:c ended:c")
    report = examine_trace(events, [A, B, ELSEWHERE], limit=1)
    assert (len(report.faults), report.jobs, report.ran, report.attempts, report.events) == (1, 3, 2, 2, 7)
    gap = TraceEvent(kind="gap", at_ms=1035)
    assert examine_trace([*events, gap], [A, B, ELSEWHERE]).jobs == 3


def test_clocks_may_be_apart() -> None:
    events = happened("queued:a queued:b started:a started:b ended:a ended:b", step_ms=10)
    assert [fault.rule for fault in find_faults(events, [A, B])] == [Rule.OVERLAP]
    assert [fault.rule for fault in find_faults(events, [A, B], tolerance_ms=9)] == [Rule.OVERLAP]
    assert find_faults(events, [A, B], tolerance_ms=10) == []


@pytest.mark.parametrize("at_once", ["started:a started:b", "started:b started:a"])
def test_one_of_two_simultaneous_starts_may_follow_an_end(at_once: str) -> None:
    events = [*happened("queued:a queued:b"), *happened(at_once, step_ms=0), *happened("ended:a ended:b")]
    events = [attrs.evolve(event, at_ms=100 if number < 4 else 101) for number, event in enumerate(events)]
    assert Rule.OVERLAP in [fault.rule for fault in find_faults(events, [A, B])]
    assert find_faults(events, [A, B], tolerance_ms=1) == []


def test_order_is_unknown_within_the_tolerance() -> None:
    events = happened("queued:a queued:b started:b ended:b started:a ended:a", step_ms=10)
    assert [fault.rule for fault in find_faults(events, [A, B], tolerance_ms=9)] == [Rule.ORDER]
    assert find_faults(events, [A, B], tolerance_ms=10) == []


# --- what is told ----------------------------------------------------------------------------------------------------


def test_trace_error_names_the_rule_and_jobs_and_draws_it() -> None:
    with pytest.raises(TraceError) as caught:
        check_trace(happened("queued:a queued:b started:a retried:a started:b"), [A, B])
    assert isinstance(caught.value, AssertionError)
    assert [type(fault) for fault in caught.value.faults] == [Fault]
    assert str(caught.value).split("\n") == [
        "order: b at doc:intro overtook a at doc, which was put back for another attempt and keeps its place",
        "",
        "  ms            0   10  20  30  40",
        "* a  doc        Q.......S===R....",
        "* b  doc:intro      Q...........S",
        "                                ^ order",
        "  Q queued, S started, R retried; . waits, = runs",
    ]


def test_nothing_is_left_of_places_that_were_left() -> None:
    places: Places[str] = Places()
    both = TraceJob(id="x", claims=[["a", "b"], ["a", "c"], (["d"], "shared")]).claims
    places.add(both, 1, "x")
    places.add(A.claims, 2, "y")
    places.remove(both, 1)
    assert not places.is_empty
    places.remove(A.claims, 2)
    assert places.is_empty


@pytest.mark.parametrize(
    "events, jobs, options, told",
    [
        ([("queued", "a")], [], {}, r"events\[0\] must be a TraceEvent or an Event, got tuple"),
        ("ab", [], {}, "events must be a list, got str: 'ab'"),
        (None, [], {}, "events must be a list, got NoneType: None"),
        ([], {"a": ["doc1"]}, {}, "jobs must be a list, got dict: "),
        ([], 5, {}, "jobs must be a list, got int: 5"),
        (Trace(events=(), jobs=()), [], {}, r"events must be a list, got Trace: <Trace>; pass its \.events"),
        ([], [TraceJob.of("a", ["x"]), TraceJob.of("a", ["y"])], {}, "job 'a' is given twice, with different values"),
        ([], ["a"], {}, r"jobs\[0\] must be a TraceJob, as .* makes one, a JobSpec or a JobRecord, got str: 'a'"),
        ([], [], {"slots": "x"}, "slots must be an integer of 0 or more, got 'x'"),
        ([], [], {"slots": {"mail": -1}}, r"slots\['mail'\] must be an integer of 0 or more, got -1"),
        ([], [], {"tolerance_ms": "x"}, "tolerance_ms must be a number of 0 or more, got 'x'"),
        ([], [], {"idle_ms": -1}, "idle_ms must be a number of 0 or more, got -1"),
    ],
)
def test_malformed_trace_is_refused_by_name(events: Any, jobs: Any, options: Any, told: str) -> None:
    with pytest.raises(InvalidTraceError, match=told):
        find_faults(events, jobs, **options)


def test_a_hint_that_is_a_text_is_no_place() -> None:
    with pytest.raises(InvalidHintError, match=r"hint must be a list of segments, got str; did you mean \['doc1'\]"):
        TraceJob.of("a", "doc1")
    assert TraceJob.of("a", iter(["doc1", "s"])).claims[0].path == ("doc1", "s")
