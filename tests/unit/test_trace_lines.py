"""Trace lines: accepted and refused input, events from records and logs, drawings."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuehint.testing import (
    InvalidTraceError,
    TraceEvent,
    TraceJob,
    check_trace,
    examine_trace,
    read_trace,
    trace_lines,
)
from queuehint.testing.driver import Queue
from queuehint.testing.trace import mermaid, perfetto
from queuehint.testing.trace.drawings import runs_of
from queuehint.testing.trace.lines import LINE_BYTES_MAX
from queuehint.testing.trace.records import Past, events_of
from queuehint.values.event import Event, EventKind
from queuehint.values.hint import Claim
from queuehint.values.outcome import JobError
from queuehint.values.record import Attempt, JobRecord, JobState
from queuehint.values.spec import Dependency, JobSpec
from tests.each import for_each

J = TraceJob.of


def read(*lines: Any) -> Any:
    return read_trace([line if isinstance(line, (str, bytes)) else json.dumps(line) for line in lines])


# --- what can be read ------------------------------------------------------------------------------------------------


def test_events_and_jobs_are_read() -> None:
    trace = read(
        {
            "job": "b",
            "claims": [["doc1"], {"path": ["doc2"], "mode": "shared"}],
            "depends_on": ["a", {"id": "c", "when": "done"}],
        },
        "",
        {"kind": "started", "job": "b", "at_ms": 5.5, "worker": "w", "token": 7, "free_slots": 2, "colour": "red"},
    )
    (job,) = trace.jobs
    assert job.claims == (Claim(("doc1",)), Claim(("doc2",), "shared"))
    assert job.depends_on == (Dependency("a"), Dependency("c", "done"))
    assert trace.events == (TraceEvent(kind="started", job="b", at_ms=5.5, worker="w", token=7, free_slots=2),)


def test_a_hint_is_one_claim_and_ids_may_be_numbers() -> None:
    (job,) = read({"job": 17, "hint": ["doc1"], "mode": "shared", "on_retry": "yield"}).jobs
    assert (job.id, job.claims, job.on_retry) == ("17", (Claim(("doc1",), "shared"),), "yield")
    assert read({"job": "n", "hint": None}).jobs[0].claims == ()


def test_times_may_be_texts_and_may_be_missing() -> None:
    first, second, third = read(
        {"kind": "queued", "job": "a", "at": "1970-01-01T00:00:01.5Z"},
        {"kind": "started", "job": "a"},
        {"kind": "ended", "job": "a", "at": "1970-01-01T01:00:02+01:00"},
    ).events
    assert (first.at_ms, second.at_ms, third.at_ms) == (1500, 1500, 2000)


def test_redescribed_job_is_elsewhere_from_then_on() -> None:
    trace = read(
        {"job": "a", "hint": ["x"]},
        {"job": "b", "hint": ["y"]},
        {"kind": "queued", "job": "a"},
        {"kind": "queued", "job": "b"},
        {"kind": "started", "job": "b"},
        {"kind": "ended", "job": "b"},
        {"job": "a", "hint": ["y"]},
        {"kind": "queued", "job": "a"},
        {"kind": "started", "job": "a"},
    )
    assert [event.claims for event in trace.events if event.job == "a"] == [None, (Claim(("y",)),), None]
    check_trace(trace.events, trace.jobs)


CLAIMS = st.lists(
    st.builds(Claim, st.lists(st.sampled_from("ab:"), max_size=3).map(tuple), st.sampled_from(["exclusive", "shared"]))
)
JOBS = st.builds(
    TraceJob,
    id=st.text("ab", min_size=1),
    claims=CLAIMS,
    depends_on=st.lists(
        st.builds(Dependency, st.just("d"), st.sampled_from(["success", "failure", "done"])), max_size=1
    ),
    on_retry=st.sampled_from(["hold", "yield"]),
    pool=st.sampled_from(["default", "p"]),
    needs_slot=st.booleans(),
    user=st.none() | st.just("ann"),
)
EVENTS = st.builds(
    TraceEvent,
    kind=st.sampled_from(["queued", "started", "failed"]),
    job=st.text("ab", min_size=1),
    at_ms=st.integers(0, 9) | st.floats(0, 9),
    worker=st.none() | st.just("w"),
    token=st.none() | st.integers(0, 9),
    free_slots=st.none() | st.integers(0, 9),
    state=st.none() | st.sampled_from(["QUEUED", "SCHEDULED"]),
) | st.builds(TraceEvent, kind=st.sampled_from(["idle", "gap"]), at_ms=st.integers(0, 9))


def test_a_permit_has_no_place_in_a_trace() -> None:
    trace = read({"job": "p", "claims": [{"path": ["pdf"], "mode": "counted"}]})
    assert trace.jobs[0].claims == ()
    permit = JobSpec(id="p", task="permit", claims=(Claim(("pdf",), "counted"),), presence_ms=1)
    assert TraceJob.of(permit).claims == ()
    assert TraceEvent(kind="queued", job="p", claims=permit.claims).claims == ()


@settings(max_examples=30)
@given(st.lists(EVENTS, max_size=5), st.lists(JOBS, max_size=3, unique_by=lambda job: job.id))
def test_trace_lines_round_trip(events: list[TraceEvent], jobs: list[TraceJob]) -> None:
    trace = read_trace(trace_lines(events, jobs, resolution_ms=1))
    assert (list(trace.events), list(trace.jobs), trace.resolution_ms) == (events, jobs, 1)


# --- what is refused -------------------------------------------------------------------------------------------------


@for_each(
    "line, said",
    [
        ("no JSON", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5000, "no JSON"),
        ("[]", "a JSON object is expected"),
        ("{}", "no event"),
        ({"message": "hello"}, "no event"),
        (
            {"stamp": "called", "job": "a", "at": 1},
            "this is a log of intervals: `queuehint check-intervals` or read_inter",
        ),
        ({"job": "a", "hint": ["x"], "called": 0}, "this is a log of intervals"),
        ({"job": "a", "hint": ["x"], "runs": [[5, 9]]}, "this is a log of intervals"),
        ({"trace": 2}, "version"),
        ({"kind": "begun", "job": "a"}, "not a kind of event"),
        ({"kind": ["queued"], "job": "a"}, "not a kind of event"),
        ({"kind": "queued"}, "job must be a text"),
        ({"kind": "queued", "job": ""}, "job must be a text"),
        ({"kind": "queued", "job": True}, "job must be a text"),
        ({"kind": "queued", "job": "a" * 2000}, "job must be a text"),
        ({"kind": "queued", "job": "a", "at_ms": "5"}, "at_ms must be a number"),
        ({"kind": "queued", "job": "a", "at_ms": True}, "at_ms must be a number"),
        ('{"kind": "queued", "job": "a", "at_ms": NaN}', "at_ms must be a number"),
        ('{"kind": "queued", "job": "a", "at_ms": 1e400}', "at_ms must be a number"),
        ({"kind": "queued", "job": "a", "at_ms": 10**30}, "at_ms must be a number"),
        ({"kind": "queued", "job": "a", "at": "yesterday"}, "not a time"),
        ({"kind": "queued", "job": "a", "at": 5}, "not a time"),
        ({"kind": "queued", "job": "a", "at": "2026-01-31T12:00:00"}, "time zone"),
        ({"kind": "started", "job": "a", "token": 2**70}, "token must be an integer"),
        ({"kind": "started", "job": "a", "token": 1.5}, "token must be an integer"),
        ({"kind": "started", "job": "a", "worker": ["w"]}, "worker must be a text"),
        ({"kind": "started", "job": "a", "free_slots": -1}, "free_slots must be an integer"),
        ({"job": "a", "hint": "doc1"}, "list of segments"),
        ({"job": "a", "hint": ["x"], "claims": [["y"]]}, "not both"),
        ({"job": "a", "hint": ["a"] * 65}, "limit 64"),
        ({"job": "a", "hint": ["\u001b[31m"]}, "control character"),
        ({"job": "a", "hint": ["x"], "mode": "any"}, "mode must be"),
        ({"job": "a", "claims": "doc1"}, "claims must be a list"),
        ({"job": "a", "claims": [{"path": "doc1"}]}, "must be a list of segments"),
        ({"job": "a", "claims": [{}]}, "must be a list of segments"),
        ({"job": "a", "claims": [5]}, "list of segments"),
        ({"job": "a", "depends_on": "b"}, "depends_on must be a list"),
        ({"job": "a", "depends_on": [{}]}, "dependency"),
        ({"job": "a", "depends_on": [{"id": "b", "when": 5}]}, "when"),
        ({"job": "a", "on_retry": "tail"}, "on_retry must be one of"),
        ({"job": "a", "on_dead": ["hold"]}, "on_dead must be one of"),
        ({"job": "a", "needs_slot": 1}, "needs_slot"),
        ({"id": "a", "state": "FINISHED", "spec": {}, "ended_at": 5}, "ended_at is not a time"),
        ({"id": "a", "state": "FINISHED", "spec": {}, "errors": [5]}, "errors"),
        ({"logger": "x", "message": "m", "event": "job.started", "time": "2026-01-31T12:00:00Z"}, "job_id"),
    ],
)
def test_foreign_line_is_refused_by_its_number(line: Any, said: str) -> None:
    with pytest.raises(InvalidTraceError, match=r"^line 2: ") as caught:
        read({"job": "x"}, line)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_line_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidTraceError, match="line 1: longer than 16 MiB"):
        read_trace([" " * (LINE_BYTES_MAX + 1)])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
        lambda some: (
            st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(["id", "path", "at", "x"]), some, max_size=3)
        ),
        max_leaves=5,
    ),
    st.data(),
)
def test_whatever_stands_in_a_field_is_read_or_refused(value: Any, data: st.DataObject) -> None:
    lines: list[dict[str, Any]] = [
        {"job": "a", "hint": ["x"], "mode": "shared", "claims": [], "depends_on": [], "on_retry": "hold", "pool": "p"},
        {
            "kind": "queued",
            "job": "a",
            "at_ms": 1,
            "at": None,
            "token": 1,
            "free_slots": 1,
            "state": "QUEUED",
            "claims": None,
        },
        {"id": "a", "state": "FINISHED", "spec": {}, "queued_at": None, "started_at": None, "errors": []},
        {
            "logger": "l",
            "message": "m",
            "event": "job.settled",
            "time": "2026-01-31T12:00:00Z",
            "job_id": "a",
            "outcome": "failed",
        },
    ]
    line = dict(data.draw(st.sampled_from(lines)))
    line[data.draw(st.sampled_from(sorted(line)))] = value
    try:
        trace = read(line)
    except InvalidTraceError:
        return
    examine_trace(trace.events, trace.jobs)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_values_that_are_no_trace_are_refused(wrong: float) -> None:
    with pytest.raises(InvalidTraceError):
        check_trace([TraceEvent(kind="queued", job="a", at_ms=wrong)])
    with pytest.raises(InvalidTraceError):
        list(trace_lines([TraceEvent(kind="queued", job="a", at_ms=wrong)]))
    with pytest.raises(InvalidTraceError):
        check_trace([], tolerance_ms=float("nan"))
    with pytest.raises(InvalidTraceError):
        check_trace([], [J("a"), J("a", ["x"])])
    with pytest.raises(InvalidTraceError):
        TraceEvent(kind="begun", job="a")


# --- logs ------------------------------------------------------------------------------------------------------------


def logged(*events: tuple[str, dict[str, Any]]) -> Any:
    head = {"level": "DEBUG", "logger": "queuehint.worker", "message": "m", "pid": 1}
    return read(
        *[
            {**head, "time": f"2026-01-31T12:00:0{n}.000Z", "event": name, **fields}
            for n, (name, fields) in enumerate(events)
        ]
    )


def test_the_log_of_a_worker_tells_of_starts_and_ends() -> None:
    claims = [{"path": ["doc1"], "mode": "exclusive"}]
    trace = logged(
        ("worker.started", {}),
        ("job.started", {"job_id": "a", "token": 1, "worker": "w", "claims": claims}),
        ("job.retry", {"job_id": "a"}),
        ("job.settled", {"job_id": "a", "outcome": "failed", "token": 1}),
        ("job.started", {"job_id": "a", "token": 2, "claims": claims}),
        ("job.started", {"job_id": "a", "token": 3, "claims": claims}),
        ("job.failed", {"job_id": "a"}),
        ("job.settled", {"job_id": "a", "outcome": "failed", "token": 3}),
    )
    assert [event.kind for event in trace.events] == ["started", "retried", "started", "lost", "started", "failed"]
    assert trace.jobs[0].claims == (Claim(("doc1",)),)
    assert trace.skipped == ("lines of a log that say nothing of jobs: 1",)
    assert examine_trace(trace.events, trace.jobs).faults == ()


def test_worker_may_log_a_release_late() -> None:
    trace = logged(
        ("job.started", {"job_id": "a", "token": 1, "claims": []}),
        ("job.started", {"job_id": "a", "token": 2}),
        ("job.settled", {"job_id": "a", "outcome": "failed", "token": 1}),
        ("job.settled", {"job_id": "a", "outcome": "finished", "token": 2}),
    )
    assert [event.kind for event in trace.events] == ["started", "lost", "started", "finished"]
    assert examine_trace(trace.events, trace.jobs).faults == ()


def test_log_without_starts_names_the_missing_level() -> None:
    assert "run workers with --log-level debug" in logged(("job.retry", {"job_id": "a"})).skipped[0]


# --- records ---------------------------------------------------------------------------------------------------------


def past(job_id: str, state: str = "FINISHED", times: tuple[Any, Any, Any] = (0, 1, 2), **more: Any) -> Past:
    fields = {name: more.pop(name) for name in ("parent", "failed_ms", "token") if name in more}
    queued_ms, started_ms, ended_ms = times
    job = J(job_id, ["doc"], **more)
    return Past(job=job, state=state, queued_ms=queued_ms, started_ms=started_ms, ended_ms=ended_ms, **fields)


def told(*pasts: Past, **options: Any) -> list[str]:
    return [f"{event.kind}:{event.job}" for event in events_of(pasts, **options)[0]]


def test_records_tell_of_jobs_that_are_over() -> None:
    assert told(past("a"), past("b", "FAILED", (1, 2, 3))) == [
        "queued:a",
        "queued:b",
        "started:a",
        "finished:a",
        "started:b",
        "failed:b",
    ]
    running = past("c", "STARTED", (0, 5, None))
    assert told(running) == told(past("d", "CANCELED"), unfinished=True) == []
    assert told(running, unfinished=True) == ["queued:c", "started:c"]
    assert told(past("e", "QUEUED", (0, 5, None)), unfinished=True) == ["queued:e"]


def test_simultaneous_starts_are_ordered_by_grant() -> None:
    pasts = [past("b", times=(0, 5, 7), token=2), past("a", times=(0, 5, 5), token=1)]
    assert told(*pasts)[2:] == ["started:a", "finished:a", "started:b", "finished:b"]


def test_missing_record_facts_are_omitted() -> None:
    # It is unknown when the handler of a parent has ended; a redriven job may have an old place.
    assert told(past("a"), past("child", times=(1, 2, 3), parent="a"))[0] == "queued:child"
    assert told(past("a", times=(5, 6, 7), failed_ms=(2,), on_dead="hold")) == ["started:a", "finished:a"]
    assert told(past("a", times=(5, 6, 7), failed_ms=(2,)))[0] == "queued:a"
    assert events_of([past("a", "CANCELED"), past("b", "QUEUED")])[1] == [
        "jobs left out, canceled, of which the record does not tell where they were: 1",
        "jobs left out, not over yet: 1",
    ]


def test_drawings_have_every_attempt_with_its_worker_and_its_error() -> None:
    bad = JobError(type="ValueError", message="bad: 5", at_ms=3)
    first = Attempt(started_ms=1, ended_ms=3, worker="w1", outcome="retried", error=bad)
    gone = Attempt(started_ms=3, ended_ms=6, worker="w2", outcome="lost")
    last = Attempt(started_ms=7, ended_ms=9, worker="w3", outcome="finished")
    tried = past("a", times=(0, 7, 9), token=3, task="edit")
    tried = attrs.evolve(tried, attempts=(first, gone, last))
    waits = attrs.evolve(past("b", "SCHEDULED", (None, None, None)), attempts=(first,))
    canceled = attrs.evolve(past("c", "CANCELED", (0, 4, 5)), attempts=(attrs.evolve(gone, outcome="canceled"),))

    events, notes = events_of([tried, waits, canceled], unfinished=True)

    assert notes == []
    runs = [(run.job, run.number, run.started_ms, run.ended_ms, run.how, run.worker) for run in runs_of(events)]
    assert [run[1:] for run in runs if run[0] == "a"] == [
        (1, 1, 3, "retried", "w1"),
        (2, 3, 6, "lost", "w2"),
        (3, 7, 9, "finished", "w3"),
    ]
    assert [run[1:] for run in runs if run[0] != "a"] == [(1, 1, 3, "retried", "w1"), (1, 3, 6, "canceled", "w2")]
    chart = mermaid(events, [tried.job]).splitlines()
    assert "    edit a ValueError :crit, 1, 3" in chart
    assert "    edit a (3) :done, 7, 9" in chart
    slices = [event["args"] for event in json.loads(perfetto(events, [tried.job]))["traceEvents"] if event["ph"] == "X"]
    assert (slices[0]["cause"], slices[0]["worker"]) == ("ValueError: bad: 5", "w1")
    # Only the last attempt is checked: whether the job kept its place before is unknown.
    assert told(tried) == ["queued:a", "started:a", "finished:a"]


# --- gaps ------------------------------------------------------------------------------------------------------------


def test_nothing_is_known_of_jobs_across_a_gap() -> None:
    happened = [("queued", "a"), ("started", "a"), ("gap", ""), ("queued", "b"), ("started", "b"), ("ended", "a")]
    events = [TraceEvent(kind=kind, job=job) for kind, job in happened]
    report = examine_trace(events, [J("a", ["doc"]), J("b", ["doc"])])
    assert report.faults == ()
    assert report.unjudged[-1] == "what happened across a gap: 1"
    assert examine_trace([event for event in events if event.kind != "gap"], [J("a", ["doc"]), J("b", ["doc"])]).faults


# --- drawings --------------------------------------------------------------------------------------------------------


DRAWN = [
    TraceEvent(kind="queued", job="a", at_ms=1000),
    TraceEvent(kind="queued", job="s", at_ms=1000),
    TraceEvent(kind="started", job="a", at_ms=1010, worker="w1", token=1),
    TraceEvent(kind="retried", job="a", at_ms=1020),
    TraceEvent(kind="started", job="a", at_ms=1030, worker="w2", token=2),
    TraceEvent(kind="finished", job="a", at_ms=1040),
    TraceEvent(kind="queued", job="b", at_ms=1040),
    TraceEvent(kind="started", job="b", at_ms=1050, worker="w1"),
    TraceEvent(kind="started", job="s", at_ms=1051, worker="w2"),
    TraceEvent(kind="started", job="t", at_ms=1052, worker="w2"),
    TraceEvent(kind="finished", job="s", at_ms=1060),
]
DRAWN_JOBS = [
    J("a", ["doc", "1"]),
    J("b", ["doc;2"], after=["a"]),
    J("s", ["r"], mode="shared"),
    J("t", ["r"], mode="shared"),
]


def test_runs_are_from_start_to_end() -> None:
    found = [(run.job, run.number, run.queued_ms, run.started_ms, run.ended_ms, run.how) for run in runs_of(DRAWN)]
    assert found[:3] == [
        ("a", 1, 1000, 1010, 1020, "retried"),
        ("a", 2, 1020, 1030, 1040, "finished"),
        ("b", 1, 1040, 1050, None, "started"),
    ]


def test_a_trace_is_drawn_for_perfetto() -> None:
    drawn = json.loads(perfetto(DRAWN, DRAWN_JOBS))["traceEvents"]
    tracks = {
        event["tid"]: event["args"]["name"] for event in drawn if event["name"] == "thread_name" and event["pid"] == 1
    }
    slices = [
        (event["name"], tracks[event["tid"]], event["ts"], event["dur"])
        for event in drawn
        if event["ph"] == "X" and event["pid"] == 1
    ]
    # Shared jobs overlap on their path, and no two slices of one track do.
    assert slices == [
        ("a", "doc:1", 10_000, 10_000),
        ("a", "doc:1", 30_000, 10_000),
        ("b", "doc;2", 50_000, 10_000),
        ("s", "r", 51_000, 9_000),
        ("t", "r (2)", 52_000, 8_000),
    ]
    (begin,), (end,) = ([event for event in drawn if event["ph"] == phase] for phase in "sf")
    assert (tracks[begin["tid"]], tracks[end["tid"]], end["ts"], begin["id"]) == ("doc:1", "doc;2", 50_000, end["id"])
    assert 30_000 <= begin["ts"] < 40_000
    waits = [(event["name"], event["ts"], event["dur"]) for event in drawn if event["ph"] == "X" and event["pid"] == 2]
    assert ("a", 20_000, 10_000) in waits
    by_worker = json.loads(perfetto(DRAWN, DRAWN_JOBS, tracks="worker"))["traceEvents"]
    assert "w1" in {event["args"]["name"] for event in by_worker if event["name"] == "thread_name"}


def test_a_trace_is_drawn_for_mermaid() -> None:
    assert mermaid(DRAWN, DRAWN_JOBS).splitlines()[3:8] == [
        "    section doc/1",
        "    a :crit, 1010, 1020",
        "    a (2) :done, 1030, 1040",
        "    section doc_2",
        "    b :active, 1050, 1060",
    ]


def test_values_of_a_store_are_written_as_lines() -> None:
    queue = Queue()
    spec = JobSpec(id="a", task="t", claims=(Claim(("doc1",)),))
    queue.enqueue(spec)
    events = [
        Event(
            at=1,
            at_ms=5,
            kind=EventKind.STARTED,
            id="a",
            number=1,
            old=JobState.QUEUED,
            new=JobState.STARTED,
            claims=spec.claims,
        )
    ]
    described: list[JobSpec | JobRecord] = [spec, queue.record("a")]
    for job in described:
        trace = read_trace(trace_lines(events, [job]))
        assert trace.jobs == (TraceJob.of(spec),)
        assert trace.events == tuple(map(TraceEvent.of, events))
    for wrong, said in (
        ({"events": ["a"]}, r"events\[0\] must be a TraceEvent or an Event, got str: 'a'"),
        ({"events": "a"}, "events must be a list, got str"),
        ({"events": [], "jobs": [spec, None]}, r"jobs\[1\] must be a TraceJob"),
    ):
        with pytest.raises(InvalidTraceError, match=said):
            list(trace_lines(**wrong))
