"""Logs of intervals: what they may hold, how they are read, recorded and judged, and what is said of a fault."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from queuehint import FakeClock
from queuehint.errors import InvalidHintError
from queuehint.testing import (
    IntervalLog,
    IntervalRecorder,
    InvalidTraceError,
    JobIntervals,
    RunInterval,
    TraceError,
    check_intervals,
    examine_intervals,
    read_intervals,
)
from queuehint.testing.intervals import lines as reading
from queuehint.testing.intervals import values
from queuehint.values.hint import Claim
from tests.each import for_each

A = JobIntervals.of("a", ["doc1"], called_ms=0, returned_ms=1, runs=[(20, 30)])
B = JobIntervals.of("b", ["doc1", "intro"], called_ms=5, returned_ms=6, runs=[(10, 15)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def rules(*log: JobIntervals, **options: Any) -> list[str]:
    return [fault.rule.value for fault in examine_intervals(log, **options).faults]


# --- rules -----------------------------------------------------------------------------------------------------------


def test_order_is_told_by_two_jobs_and_their_times() -> None:
    with pytest.raises(TraceError) as caught:
        check_intervals([A, B])
    message, *rest = str(caught.value).splitlines()
    assert message == (
        "order: b at doc1:intro overtook a at doc1, which was enqueued before it and had not ended, too early by at "
        "least 20 ms"
    )
    assert rest == [
        "",
        "  ms             0   1   5   6   10  15  20",
        "* a  doc1        N...Q...................S",
        "* b  doc1:intro          N...Q...S===E",
        "                                 ^ order",
        "  N enqueued, Q queued, S started, E ended; . waits, = runs",
    ]
    (fault,) = caught.value.faults
    assert (fault.job, fault.other, fault.at_ms, fault.index) == ("b", "a", 10, 1)


@for_each(
    "tolerance, expected",
    [(0, ["order"]), (3.9, ["order"]), (4, []), (100, [])],
)
def test_order_of_enqueues_is_known_beyond_the_tolerance(tolerance: float, expected: list[str]) -> None:
    assert rules(A, B, tolerance_ms=tolerance) == expected


@for_each(
    "runs, expected",
    [
        ([(19, 40)], ["order", "overlap"]),
        ([(29, 30)], ["overlap"]),
        ([(30, 40)], []),
        ([(25, None)], ["overlap"]),
        ([(20, 30)], ["overlap"]),
        ([(10, 20)], ["order"]),
    ],
)
def test_runs_overlap_if_each_began_before_the_other_ended(runs: list[Any], expected: list[str]) -> None:
    found = rules(A, JobIntervals.of("b", ["doc1"], called_ms=5, returned_ms=6, runs=runs))
    assert found == expected


@for_each("tolerance, expected", [(0, ["overlap"]), (1.9, ["overlap"]), (2, []), (5, [])])
def test_overlap_is_certain_beyond_the_tolerance(tolerance: float, expected: list[str]) -> None:
    log = [JobIntervals.of("a", ["x"], runs=[(0, 12)]), JobIntervals.of("b", ["x"], runs=[(10, 20)])]
    assert rules(*log, tolerance_ms=tolerance) == expected


NOT_BY_EXACT_CLOCKS = "break a rule by no more than the tolerance of"
TOO_SHORT = "took no longer than the tolerance of"


@for_each(
    "log, margin",
    [
        ((A, B), 4),
        ((JobIntervals.of("a", ["x"], runs=[(0, 12)]), JobIntervals.of("b", ["x"], runs=[(10, 40)])), 2),
        ((JobIntervals(job="a", claims=(), runs=[(0, 10), (4, 20)]),), 6),
        ((JobIntervals(job="a", claims=(), canceled_ms=3, runs=[(10, 20)]),), 7),
    ],
)
def test_tolerance_reports_the_runs_that_it_clears(log: tuple[JobIntervals, ...], margin: float) -> None:
    assert not any(NOT_BY_EXACT_CLOCKS in text for text in examine_intervals(log).unjudged)
    less = examine_intervals(log, tolerance_ms=margin - 0.5)
    assert len(less.faults) == 1
    assert not any(NOT_BY_EXACT_CLOCKS in text for text in less.unjudged)
    report = examine_intervals(log, tolerance_ms=margin)
    assert report.faults == ()
    assert f"{NOT_BY_EXACT_CLOCKS} {margin} ms, one of them by {margin} ms: 1 run" in report.unjudged


def test_tolerance_reports_how_many_runs_are_shorter() -> None:
    runs = [(0, 5), (10, 20), (30, 50), (60, None)]
    log = [JobIntervals.of(str(began), ["x"], runs=[(began, ended)]) for began, ended in runs]
    assert not any(TOO_SHORT in text for text in examine_intervals(log).unjudged)
    (text,) = [text for text in examine_intervals(log, tolerance_ms=10).unjudged if TOO_SHORT in text]
    assert text == f"{TOO_SHORT} 10 ms, so that no overlap of two of them is certain: 2 of 3 runs"


def test_tolerance_above_the_longest_run_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    log = [JobIntervals.of("a", ["x"], runs=[(0, 12)]), JobIntervals.of("b", ["x"], runs=[(1, 20)])]
    check_intervals(log, tolerance_ms=18)
    check_intervals(log[:1], tolerance_ms=50)
    assert len(recwarn) == 0
    with pytest.warns(UserWarning, match="no run took longer than tolerance_ms=19, so that no overlap"):
        check_intervals(iter(log), tolerance_ms=19)


@for_each(
    "runs, met",
    [
        ([(0, [0, 9]), (1, [9, 12]), (2, [12, 15])], 2),
        ([(0, [0, 9]), (9, [9, 12]), (12, [12, 12]), (12, [13, 13])], 0),
        ([(0, [0]), (None, [0, 5]), (5, [5, 6])], 0),
        ([(None, [0, 5]), (4, [5, 6]), (9, [4, 6])], 2),
    ],
)
def test_report_counts_the_jobs_that_met(runs: list[Any], met: int) -> None:
    log = [
        JobIntervals.of(str(number), ["x"], called_ms=called_ms, runs=[run])
        for number, (called_ms, run) in enumerate(runs)
    ]
    assert examine_intervals(log, tolerance_ms=9).met == met
    apart = [attrs.evolve(job, claims=(Claim(("y", job.job)),)) for job in log]
    assert examine_intervals(apart, tolerance_ms=9).met == 0


def test_log_without_a_run_is_refused() -> None:
    waiting = JobIntervals.of("a", ["x"], called_ms=0, returned_ms=1)
    with pytest.raises(InvalidTraceError, match="log must have a run, got 1 job without one: there was nothing"):
        check_intervals([waiting])
    with pytest.raises(InvalidTraceError, match="got 0 jobs without one"):
        check_intervals([])
    with pytest.raises(TraceError, match="not_over"):
        check_intervals([waiting], complete=True)
    assert examine_intervals([waiting]).ran == 0


def test_log_that_knows_no_place_is_refused(recwarn: pytest.WarningsRecorder) -> None:
    bare = [JobIntervals(job=job, called_ms=0, returned_ms=1, runs=[(2, 9)]) for job in "ab"]
    with pytest.raises(InvalidTraceError, match="log must describe the jobs: 2 jobs ran and the place of none"):
        check_intervals(bare)
    assert examine_intervals(bare).is_blind
    check_intervals([attrs.evolve(job, claims=()) for job in bare])
    assert len(recwarn) == 0
    with pytest.warns(UserWarning, match="of 3 jobs that ran 2 are not described"):
        check_intervals([*bare, attrs.evolve(A, job="c")])


def test_permit_takes_no_place_and_accuses_no_run(path: Path) -> None:
    place = Claim(("x",), "counted")
    one, other = (JobIntervals(job=job, claims=(place,), runs=[(0, 9)]) for job in "ab")
    assert one.claims == ()
    check_intervals([one, other, JobIntervals.of("c", ["x"], runs=[(0, 9)])])
    recorder = IntervalRecorder(path)
    with recorder.enqueue(claims=[place], job="a"):
        pass
    assert json.loads(path.read_text().splitlines()[0])["claims"] == []


def test_job_that_yields_never_overtakes_itself() -> None:
    times: dict[str, Any] = {"called_ms": 0, "returned_ms": 1, "runs": [(10, 100), (10.5, 11)]}
    assert rules(JobIntervals.of("a", ["x"], on_retry="yield", **times), tolerance_ms=1) == []


def test_overlap_of_jobs_without_enqueues_is_seen() -> None:
    one, other = (JobIntervals.of(job, ["doc1"], runs=[(10, 20)]) for job in "ab")
    report = examine_intervals([one, other])
    assert report.faults[0].message == "b at doc1 began while a at doc1 was running, for at least 10 ms"
    assert report.unjudged == ("ran and have no enqueue, so that their turn is not known: 2 jobs",)
    assert (report.events, report.jobs, report.attempts) == (4, 2, 2)


def test_shared_claims_and_other_places_do_not_conflict() -> None:
    one, other = (JobIntervals.of(job, ["doc1"], mode="shared", runs=[(10, 20)]) for job in "ab")
    check_intervals(
        [one, other, JobIntervals.of("c", ["doc2"], runs=[(10, 20)]), JobIntervals(job="d", claims=(), runs=[(0, 90)])]
    )


def test_retried_job_keeps_its_place_unless_it_yields() -> None:
    between = JobIntervals.of("b", ["doc1"], called_ms=5, returned_ms=6, runs=[(15, 20)])
    times: dict[str, Any] = {"called_ms": 0, "returned_ms": 1, "runs": [(10, 12), (30, 40)]}
    (fault,) = examine_intervals([JobIntervals.of("a", ["doc1"], **times), between]).faults
    assert fault.message == (
        "b at doc1 overtook a at doc1, which was enqueued before it and ran again later, too early by at least 25 ms"
    )
    assert "S===R...........S\n" in fault.picture
    check_intervals([JobIntervals.of("a", ["doc1"], on_retry="yield", **times), between])
    check_intervals([JobIntervals.of("a", ["doc1"], **{**times, "runs": [(10, 12), (13, 14)]}), between])


def test_job_that_yields_is_retried_behind_the_others() -> None:
    first = JobIntervals.of("a", ["x"], called_ms=0, returned_ms=1, on_retry="yield", runs=[(10, 12), (14, 16)])
    second = JobIntervals.of("b", ["x"], called_ms=5, returned_ms=6, runs=[(20, 30)])
    (fault,) = examine_intervals([first, second]).faults
    assert fault.message == (
        "a at x overtook b at x, which was enqueued before its earlier run and had not ended, too early by at least "
        "16 ms"
    )


def test_job_that_runs_twice_at_once_is_told() -> None:
    (fault,) = examine_intervals([JobIntervals(job="a", claims=(), runs=[(0, 10), (4, 6)])]).faults
    assert (fault.rule, fault.message) == ("started_twice", "a was started again while it ran, for at least 2 ms")
    assert (fault.other, fault.picture.count("*")) == (None, 1)
    assert rules(JobIntervals(job="a", claims=(), runs=[(0, 10), (4, 6)]), tolerance_ms=6) == []


def test_canceled_job_must_not_begin_and_accuses_no_other() -> None:
    canceled = JobIntervals.of("a", ["x"], called_ms=0, returned_ms=1, canceled_ms=10, runs=[(40, 50)])
    other = JobIntervals.of("b", ["x"], called_ms=5, returned_ms=6, runs=[(20, 30)])
    (fault,) = examine_intervals([canceled, other]).faults
    assert fault.message == "a began after it had been canceled, too late by at least 30 ms"
    assert rules(canceled, other, tolerance_ms=29) == ["started_after_end"]
    assert rules(canceled, other, tolerance_ms=30) == []


def test_job_without_a_run_is_a_fault_only_when_complete() -> None:
    waits = JobIntervals.of("a", ["doc1"], called_ms=0, returned_ms=1)
    dies = JobIntervals.of("b", ["doc1"], called_ms=2, returned_ms=3, runs=[(10,)])
    unknown = JobIntervals.of("c", ["doc1"], called_ms=0)
    canceled = JobIntervals.of("d", ["doc1"], called_ms=0, returned_ms=1, canceled_ms=5)
    assert examine_intervals([waits, dies, unknown, canceled]).unjudged == (
        "were enqueued and not seen to run: waiting, lost, or run by code that records nothing: 2 jobs",
        "began and were not seen to end, so that each is held to have run for a moment: 1 job",
    )
    report = examine_intervals([waits, dies, unknown, canceled], complete=True)
    assert [fault.message for fault in report.faults] == ["a was enqueued and never began", "b began and never ended"]
    assert report.unjudged == ()
    assert len(examine_intervals([waits, dies], complete=True, limit=1).faults) == 1


def test_job_without_a_known_place_is_not_judged() -> None:
    log = [JobIntervals(job="c", called_ms=0, runs=[(5, 9)]), A]
    assert examine_intervals(log).unjudged == (
        "ran and have no known place, so that no conflict of theirs is seen: 1 job",
    )


def test_clocks_further_apart_than_the_tolerance_are_refused() -> None:
    late = JobIntervals.of("late", ["x"], called_ms=40, returned_ms=41, runs=[(5, 9)])
    with pytest.raises(
        InvalidTraceError, match="tolerance_ms must be at least 35, got 34: job 'late' began before its"
    ):
        check_intervals([A, late], tolerance_ms=34)
    check_intervals([late], tolerance_ms=35)


# --- bad input -------------------------------------------------------------------------------------------------------


@for_each(
    "given, said",
    [
        ({"job": ""}, "job must be a text of 1 to 1024 characters"),
        ({"job": 5}, "job must be a text"),
        ({"called_ms": "soon"}, "called_ms must be a number of ms of up to 2**53, got 'soon'"),
        ({"called_ms": float("nan")}, "called_ms must be a number"),
        ({"canceled_ms": 2**60}, "canceled_ms must be a number"),
        ({"returned_ms": 5}, "returned_ms requires called_ms"),
        ({"called_ms": 6, "returned_ms": 5}, "returned_ms must not be before called_ms: 5 < 6"),
        ({"runs": 7}, "runs must be a list of runs, got 7"),
        ({"runs": [(1, 2), 7]}, "runs[1] must be a RunInterval or a pair of times, got 7"),
        ({"runs": [(1, 2, 3)]}, "runs[0] must be a RunInterval or a pair"),
        ({"runs": [(2, 1)]}, "runs[0]: ended_ms must not be before began_ms: 1 < 2"),
        ({"runs": [(None, 1)]}, "runs[0]: began_ms must be a number"),
        ({"on_retry": ["hold"]}, "on_retry must be hold or yield, got ['hold']"),
    ],
)
def test_wrong_times_of_a_job_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidTraceError) as caught:
        JobIntervals(**{"job": "a", **given})
    assert said in str(caught.value)


def test_wrong_run_and_place_are_refused_by_name() -> None:
    with pytest.raises(InvalidTraceError, match="failed must be a bool, got 1"):
        RunInterval(began_ms=0, failed=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidTraceError, match="worker must be a text of 1 to 1024"):
        RunInterval(began_ms=0, worker="")
    with pytest.raises(InvalidHintError, match="segment 0"):
        JobIntervals.of("a", [""])


@for_each(
    "given, said",
    [
        ({"log": [A, "b"]}, "log[1] must be JobIntervals, got str: 'b'"),
        ({"log": [A, A]}, "job 'a' is in the log twice"),
        ({"log": IntervalLog(jobs=(A,))}, "log must be a list, got IntervalLog: <IntervalLog>; pass its .jobs"),
        ({"tolerance_ms": -1}, "tolerance_ms must be a number of 0 or more, got -1"),
        ({"complete": 1}, "complete must be a bool, got 1"),
        ({"limit": 1.5}, "limit must be an integer of 0 or more"),
    ],
)
def test_wrong_arguments_of_the_check_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidTraceError) as caught:
        examine_intervals(**{"log": [A], **given})
    assert said in str(caught.value)


def test_log_beyond_its_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from queuehint.testing.intervals import check

    for module in (check, reading):
        monkeypatch.setattr(module, "JOBS_MAX", 1)
    with pytest.raises(InvalidTraceError, match="log has more than 1 jobs or 2000000 runs"):
        check_intervals([A, B])
    with pytest.raises(InvalidTraceError, match="line 2: a log has at most 1 jobs"):
        read_intervals(['{"job": "a"}', '{"job": "b"}'])
    monkeypatch.setattr(reading, "RUNS_MAX", 1)
    monkeypatch.setattr(check, "RUNS_MAX", 1)
    with pytest.raises(InvalidTraceError, match="line 1: a log has at most 1 runs; that of job 'a' is one more"):
        read_intervals(['{"job": "a", "runs": [[1, 2], [3, 4]]}'])
    with pytest.raises(InvalidTraceError, match="log has more than 1 jobs or 1 runs"):
        check_intervals([JobIntervals(job="a", runs=[(0, 1), (2, 3)])])
    assert values.JOBS_MAX * 2 == values.RUNS_MAX


# --- lines -----------------------------------------------------------------------------------------------------------

STAMPS = """\
{"stamp":"ended","job":"a","run":"r1","at":9,"failed":true}
{"stamp":"called","job":"a","at":"1970-01-01T00:00:00.000Z","hint":["doc1"],"mode":"shared","on_retry":"yield"}

{"stamp":"called","job":"a","at":3,"hint":["doc1"],"mode":"shared"}
{"stamp":"returned","job":"a","at":4}
{"stamp":"began","job":"a","run":"r1","at":5,"worker":"w"}
{"stamp":"began","job":"a","run":"r2","at":15}
{"stamp":"canceled","job":"a","at":20}
{"stamp":"ended","job":"b","run":"r3","at":9}
"""


def test_stamps_of_a_job_are_joined_in_any_order() -> None:
    log = read_intervals(STAMPS.splitlines())
    assert log.jobs == (
        JobIntervals(
            job="a",
            claims=(Claim(("doc1",), "shared"),),
            called_ms=0,
            returned_ms=4,
            runs=(RunInterval(began_ms=5, ended_ms=9, failed=True, worker="w"), RunInterval(began_ms=15)),
            canceled_ms=20,
            on_retry="yield",
        ),
        JobIntervals(job="b"),
    )
    assert log.skipped == ("ends of runs whose beginning is missing: 1",)


def test_line_of_a_job_has_all_its_times() -> None:
    line = '{"job": 7, "claims": [["a"], {"path": ["b"], "mode": "shared"}], "called": 0, "returned": 1, "runs": %s}'
    (job,) = read_intervals([line % '[[5, 9], [12, null], ["1970-01-01T00:00:01Z"]]']).jobs
    assert (job.job, job.claims) == ("7", (Claim(("a",)), Claim(("b",), "shared")))
    assert [(run.began_ms, run.ended_ms) for run in job.runs] == [(5, 9), (12, None), (1000, None)]
    assert read_intervals(['{"job": "a", "hint": null}', '{"job": "b"}']).jobs[0].claims == ()
    assert read_intervals(['{"job": "a", "kind": "letter", "runs": [[5, 9]]}']).jobs[0].runs[0].began_ms == 5


@for_each(
    "line, said",
    [
        ("[]", "a JSON object is expected, not list"),
        ("{}", "a time stamp (stamp) or a job (job) is expected"),
        (
            '{"kind": "queued", "job": "a", "at_ms": 1}',
            "this is a trace: `queuehint check-trace` or read_trace reads it",
        ),
        ('{"trace": 1}', "this is a trace"),
        ('{"stamp": "called"}', "job must be a text"),
        ('{"stamp": "seen", "job": "a", "at": 1}', "stamp must be one of called, returned, began, ended, canceled"),
        ('{"stamp": [], "job": "a", "at": 1}', "stamp must be one of"),
        ('{"stamp": "called", "job": "a"}', "at must be a number of ms, got None"),
        ('{"stamp": "called", "job": "a", "at": "noon"}', "at is not a time, as in"),
        ('{"stamp": "ended", "job": "a", "at": 1, "failed": 1}', "failed must be true or false, got 1"),
        ('{"job": "a", "hint": "doc1"}', "'doc1'"),
        ('{"job": "a", "hint": ["b"], "claims": [["b"]]}', "give hint or claims, not both"),
        ('{"job": "a", "on_retry": []}', "on_retry must be hold or yield, got []"),
        ('{"job": "a", "called": true}', "called must be a number of ms, got True"),
        ('{"job": "a", "runs": 5}', "runs must be a list of pairs of times, got 5"),
        ('{"job": "a", "runs": [[null, 5]]}', "runs[0] must be a pair of times, its beginning and its end"),
        ('{"job": "a", "runs": [[1, 2, 3]]}', "runs[0] must be a pair of times"),
        ('{"job": "a", "runs": [[1, []]]}', "runs[0][1] must be a number of ms, got []"),
    ],
)
def test_wrong_line_is_refused_with_its_number(line: str, said: str) -> None:
    with pytest.raises(InvalidTraceError) as caught:
        read_intervals(["", line])
    assert str(caught.value).startswith("line 2: ")
    assert said in str(caught.value)


def test_contradictions_between_lines_are_refused() -> None:
    began = '{"stamp": "began", "job": "a", "at": 1}'
    with pytest.raises(InvalidTraceError, match="line 2: a run of job 'a' began twice: give each run"):
        read_intervals([began, began])
    with pytest.raises(InvalidTraceError, match="line 2: job 'a' is described twice, with different places"):
        read_intervals(['{"job": "a", "hint": ["x"]}', '{"job": "a", "hint": ["y"]}'])
    with pytest.raises(InvalidTraceError, match="job 'a': ended_ms must not be before began_ms: 0 < 1"):
        read_intervals([began, '{"stamp": "ended", "job": "a", "at": 0}'])


def test_truncated_last_line_is_skipped_and_no_other() -> None:
    log = read_intervals(['{"job": "a"}\n', b'{"job": "b'])
    assert ([job.job for job in log.jobs], log.skipped) == (["a"], ("lines that were cut off at the end of a file: 1",))
    for wrong in (['{"job": "b', '{"job": "a"}'], ['{"job": "b\n']):
        with pytest.raises(InvalidTraceError, match="line 1: no JSON"):
            read_intervals(wrong)
    with pytest.raises(InvalidTraceError, match="line 1: no JSON: nested too deeply"):
        read_intervals(["[" * 200_000 + "\n"])


def test_line_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidTraceError, match="line 1: longer than 16 MiB"):
        read_intervals([b" " * ((16 << 20) + 1)])


# --- recorder --------------------------------------------------------------------------------------------------------


def record(recorder: IntervalRecorder, name: str, count: int) -> None:
    for number in range(count):
        with recorder.enqueue([name, "é" * 100], job=f"{name}{number}") as job, recorder.run(job):
            pass


def test_recorded_intervals_are_read_and_judged(path: Path) -> None:
    recorder = IntervalRecorder(path, worker="w1")
    with recorder.enqueue(["doc1"], mode="shared") as first:
        pass
    with recorder.enqueue(claims=[["doc1", "s1"], (["doc2"], "shared")], on_retry="yield") as second:
        pass
    with pytest.raises(KeyError), recorder.run(first):
        raise KeyError
    with recorder.run(first):
        pass
    recorder.canceled(second)
    one, two = read_intervals(path.read_bytes().splitlines(keepends=True)).jobs
    assert (one.job, one.claims, two.on_retry) == (first, (Claim(("doc1",), "shared"),), "yield")
    assert two.claims == (Claim(("doc1", "s1")), Claim(("doc2",), "shared"))
    assert [(run.failed, run.worker) for run in one.runs] == [(True, "w1"), (False, "w1")]
    assert two.called_ms is not None and two.canceled_ms is not None and two.called_ms <= two.canceled_ms
    check_intervals([one, two], complete=True)


def test_enqueue_that_raises_is_recorded_as_called_only(path: Path) -> None:
    recorder = IntervalRecorder(path)
    with pytest.raises(TimeoutError), recorder.enqueue(None, job="a"):
        raise TimeoutError
    (job,) = read_intervals(path.read_bytes().splitlines(keepends=True)).jobs
    assert (job.claims, job.returned_ms) == ((), None)
    with recorder.enqueue(None, job="a"):
        pass
    (job,) = read_intervals(path.read_bytes().splitlines(keepends=True)).jobs
    assert job.returned_ms is not None and job.called_ms is not None


def test_wrong_arguments_of_the_recorder_record_nothing(path: Path) -> None:
    recorder = IntervalRecorder(path)
    for wrong, said in (
        ({"hint": ["a"], "claims": [["a"]]}, "give hint or claims, not both"),
        ({"claims": [["a"]], "mode": "shared"}, "the mode of a claim is in its pair"),
        ({"hint": ["a"], "job": ""}, "job must be a text"),
        ({"hint": ["a"], "on_retry": "no"}, "on_retry must be hold or yield"),
    ):
        with pytest.raises(InvalidTraceError, match=said), recorder.enqueue(**wrong):
            pass
    with pytest.raises(InvalidHintError), recorder.enqueue([""]):
        pass
    with pytest.raises(InvalidTraceError, match="job must be a text"), recorder.run(5):  # type: ignore[arg-type]
        pass
    with pytest.raises(InvalidTraceError, match="job must be a text"):
        recorder.canceled("")
    assert path.read_bytes() == b""
    with pytest.raises(InvalidTraceError, match="path must be a text or a path, got int: 5"):
        IntervalRecorder(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidTraceError, match="worker must be a text"):
        IntervalRecorder(path, worker="")
    with pytest.raises(FileNotFoundError):
        IntervalRecorder(path.parent / "missing" / "log")


def test_clock_that_is_set_back_ends_nothing_before_it_began(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1000.0, 500.0, 400.0])
    monkeypatch.setattr(time, "time", lambda: next(times))
    recorder = IntervalRecorder(path)
    with recorder.enqueue(["doc1"], job="a"):
        monkeypatch.setattr(time, "time", lambda: 1.0)
    (job,) = read_intervals(path.read_bytes().splitlines(keepends=True)).jobs
    assert job.called_ms == 1_000_000
    assert job.returned_ms is not None and 0 <= job.returned_ms - job.called_ms < 60_000


def test_clock_of_the_caller_gives_the_times(path: Path) -> None:
    clock = FakeClock(5)
    recorder = IntervalRecorder(path, clock=clock)
    with recorder.enqueue(["doc1"], job="a"):
        clock.advance(ms=3)
    with recorder.run("a"):
        clock.advance(ms=-1)
    (job,) = read_intervals(path.read_bytes().splitlines(keepends=True)).jobs
    assert (job.called_ms, job.returned_ms, job.runs[0].began_ms, job.runs[0].ended_ms) == (5, 8, 8, 8)


def test_processes_share_a_file_and_a_killed_one_leaves_starts(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    recorder = IntervalRecorder(path)
    copy: IntervalRecorder = pickle.loads(pickle.dumps(recorder))
    workers = [
        context.Process(target=record, args=(each, name, 200))
        for name, each in zip("abcd", (recorder, copy) * 2, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4

    def die() -> None:
        with recorder.run("a0"):
            os.kill(os.getpid(), signal.SIGKILL)

    killed = context.Process(target=die)
    killed.start()
    killed.join()
    log = read_intervals(path.read_bytes().splitlines(keepends=True))
    assert (len(log.jobs), log.skipped) == (800, ())
    assert [len(job.runs) for job in log.jobs if job.job == "a0"] == [2]
    assert sum(run.ended_ms is None for job in log.jobs for run in job.runs) == 1
    assert len({json.loads(line).get("worker") for line in path.read_text().splitlines()} - {None}) == 5


def test_line_that_was_not_written_whole_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = IntervalRecorder(path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:5]))
    with pytest.raises(OSError, match=r"log.jsonl: only 5 of \d+ bytes were written"):
        recorder.canceled("a")
