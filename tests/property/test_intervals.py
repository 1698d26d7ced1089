"""The sweep over intervals beside the plain definition, on right and wrong queues, and with clocks that differ."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuehint.testing import JobIntervals, RunInterval, TraceJob, examine_intervals
from queuehint.testing.histories.history import Ended
from queuehint.testing.intervals.sweep import Sweep
from queuehint.testing.queue_story import QueueUnderTest
from queuehint.values.hint import Claim, conflict
from tests.property.test_wrong_queues import (
    Doubling,
    FlatLock,
    Forgetful,
    HoldsThePlace,
    JoinedKeys,
    KeepsWhatIsCanceled,
    LastInFirstOut,
    Lazy,
    LooksBackAtFive,
    NeverDone,
    OlderDocument,
    OneAtATime,
    OnlyWhatExecutes,
    RetryToTheTail,
    Right,
    TakesTheFirstClaim,
    ThreeSegments,
    WithCancel,
)
from tests.support import thorough

# --- the definition --------------------------------------------------------------------------------------------------

Found = tuple[int, int, str]
"""Positions of a job and of its run, and the rule that it breaks."""


def least(run: RunInterval) -> float:
    return run.began_ms if run.ended_ms is None else run.ended_ms


def counted(job: JobIntervals, tolerance: float) -> list[RunInterval]:
    return [run for run in job.runs if job.canceled_ms is None or not job.canceled_ms + tolerance < run.began_ms]


def defined(log: list[JobIntervals], tolerance: float) -> dict[Found, set[int]]:
    """Return all runs that break a rule, the first of the rules that each breaks, with all jobs it breaks it to."""

    def before(one: float | None, other: float | None) -> bool:
        return one is not None and other is not None and one + tolerance < other

    def overlap(one: RunInterval, other: RunInterval) -> bool:
        return before(one.began_ms, least(other)) and before(other.began_ms, least(one))

    def is_first(one: tuple[int, int], other: tuple[int, int]) -> bool:
        times = [log[job].runs[run].began_ms for job, run in (one, other)]
        return (times[0], one) < (times[1], other)

    def overtakes(b: JobIntervals, number: int, a: JobIntervals) -> bool:
        """Of two jobs that conflict, B begins before A ends, although A was there first."""
        if number and b.on_retry == "hold":
            return False
        called = b.runs[number - 1].began_ms if number else b.called_ms
        if not before(a.returned_ms, called):
            return False
        runs = counted(a, tolerance)
        if a.on_retry == "yield" and runs:
            ended = min(least(runs[0]), *[run.began_ms for run in a.runs[1:2]], float("inf"))
        else:
            ended = max(map(least, runs), default=float("-inf"))
        return before(b.runs[number].began_ms, ended)

    every = [(job, run) for job, found in enumerate(log) for run in range(len(found.runs))]
    found: dict[Found, set[int]] = {}
    for job, run in every:
        one = log[job]
        interval = one.runs[run]
        earlier = [each for each in every if is_first(each, (job, run))]
        if any(other == job and overlap(interval, one.runs[number]) for other, number in earlier):
            found[job, run, "started_twice"] = set()
        elif before(one.canceled_ms, interval.began_ms):
            found[job, run, "started_after_end"] = set()
        else:
            met = {
                other
                for other in range(len(log))
                if other != job and conflict(one.claims or (), log[other].claims or ())
            }
            beside = {other for other, number in earlier if other in met and overlap(interval, log[other].runs[number])}
            ahead = {other for other in met if overtakes(one, run, log[other])}
            if beside:
                found[job, run, "overlap"] = beside
            elif ahead:
                found[job, run, "order"] = ahead
    return found


def test_definition_convicts_overtaking_and_overlap() -> None:
    a = JobIntervals.of("a", ["x"], called_ms=0, returned_ms=1, runs=[(20, 30)])
    b = JobIntervals.of("b", ["x", "y"], called_ms=2, returned_ms=3, runs=[(10, 15), (25, 40)])
    assert defined([a, b], 0) == {(1, 0, "order"): {0}, (1, 1, "overlap"): {0}}
    assert defined([a, b], 1) == {(1, 1, "overlap"): {0}}


PATHS = ((), ("x",), ("x", "y"), ("x", "z"), ("w",))
CLAIMS = st.lists(st.builds(Claim, st.sampled_from(PATHS), st.sampled_from(["exclusive", "shared"])), max_size=2)
TIMES = st.integers(0, 12)


@st.composite
def logs(draw: st.DrawFn, tolerance: float) -> list[JobIntervals]:
    log = []
    for number in range(draw(st.integers(1, 6))):
        runs = []
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
            began = draw(TIMES)
            runs.append((began, draw(st.one_of(st.none(), st.integers(began, began + 6)))))
        called = draw(st.one_of(st.none(), TIMES, TIMES, TIMES))
        if called is not None and runs:
            called = min(called, min(runs, key=lambda run: run[0])[0] + int(tolerance))
        returned = None if called is None else draw(st.one_of(st.none(), *[st.integers(called, called + 3)] * 3))
        log.append(
            JobIntervals(
                job=string.ascii_lowercase[number],
                claims=draw(st.one_of(CLAIMS, CLAIMS, CLAIMS, CLAIMS, st.none())),
                called_ms=called,
                returned_ms=returned,
                runs=runs,
                canceled_ms=draw(st.one_of(st.none(), st.none(), st.none(), TIMES)),
                on_retry=draw(st.sampled_from(["hold", "yield"])),
            )
        )
    return log


@pytest.mark.slow
@settings(max_examples=thorough(5000, quick=60))
@given(logs(0), st.sampled_from([0.5, 1, 2.5, 4]))
def test_margin_is_the_least_tolerance_that_clears_a_pair(log: list[JobIntervals], tolerance: float) -> None:
    """Jobs that were canceled aside: more runs of them count with a greater tolerance."""
    log = [attrs.evolve(job, canceled_ms=None) for job in log]
    runs_at_fault = {key[:2] for key in defined(log, tolerance)}
    exact = list(Sweep(log, 0).findings())
    for found in exact:
        assert found.margin_ms > 0
        if tolerance < found.margin_ms:
            assert (found.job, found.run) in runs_at_fault
    said = [text for text in _unjudged(log, tolerance) if text.startswith("break a rule by")]
    cleared = [found.margin_ms for found in exact if (found.job, found.run) not in runs_at_fault]
    assert bool(said) == bool(cleared)
    if cleared:
        count = "1 run" if len(cleared) == 1 else f"{len(cleared)} runs"
        assert said == [
            f"break a rule by no more than the tolerance of {tolerance} ms, one of them by {max(cleared):g} ms: {count}"
        ]


def _unjudged(log: list[JobIntervals], tolerance: float) -> tuple[str, ...]:
    return examine_intervals(log, tolerance_ms=tolerance, limit=2).unjudged


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0, 1, 2.5])
def test_sweep_agrees_with_the_definition(tolerance: float) -> None:
    @settings(max_examples=thorough(5000, quick=60))
    @given(logs(tolerance))
    def agree(log: list[JobIntervals]) -> None:
        expected = defined(log, tolerance)
        sweep = Sweep(log, tolerance)
        found = {(each.job, each.run or 0, each.rule.value): each.other for each in sweep.findings()}
        assert found.keys() == expected.keys()
        for key, other in found.items():
            assert other in expected[key] if expected[key] else other is None
        report = examine_intervals(log, tolerance_ms=tolerance)
        assert sorted((log[fault.index].job, fault.rule) for fault in report.faults) == sorted(
            (log[job].job, rule) for job, _, rule in expected
        )
        assert [fault.at_ms for fault in report.faults] == sorted(fault.at_ms for fault in report.faults)
        for fault in report.faults:
            assert f"^ {fault.rule}" in fault.picture
            assert len([line for line in fault.picture.splitlines() if line.startswith("*")]) == 1 + bool(fault.other)

    agree()


# --- queues ----------------------------------------------------------------------------------------------------------

PLACES = (("doc1", "intro"), ("doc1", "body"), ("doc1",), ("doc1", "intro", "p1"), ("doc2",), (), None)


class Play:
    """Drives a queue at random on a clock of steps, and notes what its clients see."""

    def __init__(
        self,
        queue: Any,
        random: Random,
        *,
        places: Any = PLACES,
        jobs: int = 8,
        slots: int = 3,
        cancels: bool = False,
        is_double: bool = False,
        is_backlog: bool = False,
    ) -> None:
        self.queue, self.random = queue, random
        self.now = 0
        self.log: dict[str, dict[str, Any]] = {}
        self.running: list[str] = []
        self.over: set[str] = set()
        for step in range(200):
            kind = random.choice(["enqueue", "start", "end", "end", "cancel" if cancels and step < 40 else "start"])
            if is_backlog and step < jobs:
                kind = "enqueue"
            if kind == "enqueue" and len(self.log) < jobs:
                self.enqueue(random.choice(places), is_double=is_double)
            elif kind == "start" and len(self.running) < slots:
                self.start()
            elif kind == "end" and self.running:
                self.end(random.choice(self.running), random.choice(["finished", "finished", "failed", "retried"]))
            elif kind == "cancel":
                self.cancel()
        for _ in range(100):
            while len(self.running) < slots and self.start():
                pass
            if not self.running:
                break
            self.end(random.choice(self.running), "finished")

    def tick(self) -> int:
        self.now += 1
        return self.now

    def enqueue(self, path: Any, *, is_double: bool) -> None:
        job_id = string.ascii_letters[len(self.log)]
        claims = [] if path is None else [path, ("other",)] if is_double and path else [path]
        job = TraceJob(id=job_id, claims=claims)
        seen = self.log[job_id] = {"claims": job.claims, "called_ms": self.tick(), "runs": []}
        self.queue.enqueue(job)
        seen["returned_ms"] = self.tick()

    def start(self) -> bool:
        found = self.queue.start()
        if found is None or found in self.running:
            return False
        self.running.append(found)
        self.log[found]["runs"].append([self.tick(), None])
        return True

    def end(self, job_id: str, outcome: Ended) -> None:
        self.running.remove(job_id)
        self.log[job_id]["runs"][-1][1] = self.tick()
        if outcome != "retried":
            self.over.add(job_id)
        self.queue.end(job_id, outcome)

    def cancel(self) -> None:
        waiting = [each for each in self.log if each not in self.over and each not in self.running]
        if waiting:
            job_id = self.random.choice(waiting)
            self.queue.cancel(job_id)
            self.over.add(job_id)
            self.log[job_id]["canceled_ms"] = self.tick()

    def intervals(self) -> list[JobIntervals]:
        return [JobIntervals(job=job_id, **seen) for job_id, seen in self.log.items()]


def convicted(queue: Callable[[], QueueUnderTest], seed: int, *, complete: bool = False, **options: Any) -> set[str]:
    log = Play(queue(), Random(seed), **options).intervals()
    return {fault.rule.value for fault in examine_intervals(log, complete=complete).faults}


DEEP = (("doc1", "a", "b", "c"), ("doc1", "a", "b"), ("doc1", "a", "b", "c", "d"))
SEEDS = 30


@pytest.mark.parametrize(
    "queue, rule, options",
    [
        (OlderDocument, "overlap", {}),
        (FlatLock, "overlap", {}),
        (OnlyWhatExecutes, "order", {}),
        (RetryToTheTail, "order", {}),
        (LastInFirstOut, "order", {}),
        (LooksBackAtFive, "overlap", {"places": [("doc1",), *[("doc2",)] * 5], "jobs": 40, "is_backlog": True}),
        (NeverDone, "not_over", {"complete": True}),
        (TakesTheFirstClaim, "overlap", {"is_double": True}),
        (KeepsWhatIsCanceled, "started_after_end", {"cancels": True}),
        (HoldsThePlace, "not_over", {"cancels": True, "complete": True}),
        (Lazy, "not_over", {"complete": True}),
    ],
)
def test_wrong_queue_is_convicted_from_its_intervals_alone(
    queue: Callable[[], QueueUnderTest], rule: str, options: dict[str, Any]
) -> None:
    assert any(rule in convicted(queue, seed, **options) for seed in range(SEEDS))


def test_run_of_a_job_beside_itself_is_convicted() -> None:
    queue: Any = Doubling()
    queue.enqueue(TraceJob(id="a"))
    log = [JobIntervals(job="a", claims=(), called_ms=0, returned_ms=1, runs=[(2, 5), (3, 4)])]
    assert [queue.start(), queue.start()] == ["a", "a"]
    assert [fault.rule for fault in examine_intervals(log).faults] == ["started_twice"]


@pytest.mark.parametrize("queue", [Right, WithCancel, OneAtATime, ThreeSegments, JoinedKeys, Forgetful])
def test_queue_in_order_is_cleared(queue: Callable[[], QueueUnderTest]) -> None:
    """Also queues that are too careful, and one that drops what has failed: clients do not see these."""
    options: dict[str, Any] = {"cancels": queue is WithCancel, "places": DEEP if queue is ThreeSegments else PLACES}
    for seed in range(SEEDS):
        assert not convicted(queue, seed, complete=True, **options)


def skewed(log: list[JobIntervals], shifts: Iterator[float]) -> Iterator[JobIntervals]:
    """Yield a log whose calls and runs were timed by different clocks."""
    for job in log:
        client = next(shifts)
        runs = []
        for run in job.runs:
            worker = next(shifts)
            assert run.ended_ms is not None
            runs.append((run.began_ms + worker, run.ended_ms + worker))
        assert job.called_ms is not None
        assert job.returned_ms is not None
        yield attrs.evolve(job, called_ms=job.called_ms + client, returned_ms=job.returned_ms + client, runs=runs)


@settings(max_examples=thorough(500, quick=20))
@given(seed=st.integers(0, 10**6), tolerance=st.sampled_from([1, 4, 20]), random=st.randoms(use_true_random=False))
def test_right_queue_is_cleared_whatever_its_clocks_read(seed: int, tolerance: int, random: Random) -> None:
    log = Play(Right(), Random(seed)).intervals()
    shifts = iter(lambda: random.choice([-0.5, 0, 0.5]) * tolerance, None)
    assert examine_intervals(skewed(log, shifts), tolerance_ms=tolerance).faults == ()


def test_clocks_convict_a_right_queue_without_tolerance() -> None:
    log = Play(Right(), Random(1), jobs=20).intervals()
    random = Random(3)
    shifts = iter(lambda: random.choice([-2, 2]), None)
    assert list(Sweep(list(skewed(log, shifts)), 0).findings())


def test_tolerance_only_takes_faults_away() -> None:
    for seed in range(SEEDS):
        log = Play(OnlyWhatExecutes(), Random(seed)).intervals()
        counts = [len(examine_intervals(log, tolerance_ms=tolerance).faults) for tolerance in (0, 1, 3, 10, 1000)]
        assert all(more >= fewer for more, fewer in pairwise(counts))
        assert counts[-1] == 0


@pytest.mark.slow
def test_sweep_holds_jobs_in_flight_only() -> None:
    def log(jobs: int) -> list[JobIntervals]:
        return [
            JobIntervals.of(
                str(number),
                ["doc", str(number % 7)],
                called_ms=number * 10,
                returned_ms=number * 10 + 1,
                runs=[(number * 10 + 2, number * 10 + 8)],
            )
            for number in range(jobs)
        ]

    held = []
    for jobs in (100, 10_000):
        sweep = Sweep(log(jobs), 0)
        assert list(sweep.findings()) == []
        held.append(sweep.held_max)
    assert held[0] == held[1] <= 4
