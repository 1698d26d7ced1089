"""
The sweep over the intervals of a log: one pass by time, O(log n + depth) for each time and claim.

What is certain of two times of different machines: one is before the other if their difference is greater than the
tolerance. Of two jobs that conflict

- runs overlap if each began before the other ended; a run whose end was not seen ended at its beginning at the
  earliest,
- B overtook A if the enqueue of A returned before that of B was called, and B began before A ended.

A job ends with its last run, of those that did not begin after it was canceled. With ``on_retry="yield"`` it ends with
its first one, and each further run is a job of its own, enqueued after the run before it began. A job without a run
never accuses another: it may have been canceled.

A run is judged at its beginning, later by the tolerance: jobs that are over by then have left. So the first of those
that are left, by the time their enqueue returned or their run began, is the one to look at: if it does not accuse the
run, none does. Only jobs between enqueue and end are held in the two trees of places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

import attrs

from queuehint.testing.intervals.values import JobIntervals, RunInterval
from queuehint.testing.trace.faults import Rule
from queuehint.testing.trace.places import Places

_LEAVE: Final = 0
_RETURN: Final = 1
_BEGIN: Final = 2


@attrs.frozen
class Finding:
    """A run that broke a rule, as positions in the log: of its job and of the other job."""

    rule: Rule
    at_ms: float
    job: int
    run: int | None = None
    other: int | None = None
    other_run: int | None = None
    ended_ms: float = 0
    """Of an order that was broken: when the other job ended, at the earliest."""
    margin_ms: float = 0
    """The least tolerance within which the times of the two prove nothing."""


@attrs.define(eq=False)
class _Turn:
    """The constraints on one job, or on one run of a job that yields its place."""

    job: int
    called_ms: float | None
    returned_ms: float | None
    ended_ms: float
    number: int = 0


@attrs.define(eq=False)
class _Running:
    job: int
    run: int
    interval: RunInterval
    number: int = 0


class Sweep:
    """A pass through a log. ``findings`` yields at most one rule for each run."""

    def __init__(self, log: Sequence[JobIntervals], tolerance_ms: float) -> None:
        self._log = log
        self._tolerance_ms = tolerance_ms
        self._placed: Places[_Turn] = Places()
        self._running: Places[_Running] = Places()
        self._own: dict[int, deque[tuple[int, RunInterval]]] = {}
        """By job the runs that may last, of jobs that run more than once."""
        self._number = 0
        self.held_max = 0
        """The most jobs and runs that were held at once."""
        self._held = 0

    def findings(self) -> Iterator[Finding]:
        """Yield the certain findings, by the beginnings of the runs."""
        for _, kind, item in self._times():
            if kind == _BEGIN:
                assert isinstance(item, tuple)
                found = self._judge(*item)
                if found is not None:
                    yield found
            else:
                assert not isinstance(item, tuple)
                self._move(kind, item)
        assert self._placed.is_empty and self._running.is_empty

    def _times(self) -> list[tuple[float, int, _Turn | _Running | tuple[int, int, _Turn | None, _Running | None]]]:
        """Return the times at which jobs and runs come, are judged and go, in order."""
        times: list[tuple[float, int, _Turn | _Running | tuple[int, int, _Turn | None, _Running | None]]] = []
        late_ms = self._tolerance_ms
        for position, job in enumerate(self._log):
            turns = turns_of(position, job, late_ms)
            has_place = bool(job.claims)
            for turn in turns.values():
                if has_place and turn.returned_ms is not None and turn.returned_ms < turn.ended_ms:
                    times.append((turn.returned_ms, _RETURN, turn))
                    times.append((turn.ended_ms, _LEAVE, turn))
            for number, run in enumerate(job.runs):
                entry = _Running(position, number, run) if run.least_ms > run.began_ms + late_ms else None
                times.append((run.began_ms + late_ms, _BEGIN, (position, number, turns.get(number), entry)))
                if has_place and entry is not None:
                    times.append((run.least_ms, _LEAVE, entry))
        times.sort(key=lambda time: time[:2])
        return times

    def _move(self, kind: int, item: _Turn | _Running) -> None:
        claims = self._log[item.job].claims
        assert claims
        if kind == _RETURN:
            assert isinstance(item, _Turn)
            self._placed.add(claims, self._next(item), item)
        elif isinstance(item, _Turn):
            self._placed.remove(claims, item.number)
            self._held -= 1
        else:
            self._running.remove(claims, item.number)
            self._held -= 1

    def _next(self, item: _Turn | _Running) -> int:
        self._number += 1
        item.number = self._number
        self._held += 1
        self.held_max = max(self.held_max, self._held)
        return self._number

    def _judge(self, position: int, number: int, turn: _Turn | None, entry: _Running | None) -> Finding | None:
        """Return the first rule broken by a run, which counts as running from now on."""
        job = self._log[position]
        run = job.runs[number]
        found = self._judge_alone(position, number)
        if found is None and job.claims:
            other = self._running.first(job.claims)
            if other is not None and self._is_before(other[1].interval.began_ms, run.least_ms):
                beside = other[1]
                margin_ms = _shared_ms(run, beside.interval)
                found = Finding(
                    Rule.OVERLAP, run.began_ms, position, number, beside.job, beside.run, margin_ms=margin_ms
                )
            elif turn is not None and turn.called_ms is not None:
                ahead = self._placed.first(job.claims)
                if ahead is not None and self._is_before(ahead[1].returned_ms, turn.called_ms):
                    first = ahead[1]
                    assert first.returned_ms is not None
                    found = Finding(
                        Rule.ORDER,
                        run.began_ms,
                        position,
                        number,
                        first.job,
                        ended_ms=first.ended_ms,
                        margin_ms=min(turn.called_ms - first.returned_ms, first.ended_ms - run.began_ms),
                    )
        if entry is not None and job.claims:
            self._running.add(job.claims, self._next(entry), entry)
        return found

    def _judge_alone(self, position: int, number: int) -> Finding | None:
        """Return the rule that a run breaks without another job."""
        job = self._log[position]
        run = job.runs[number]
        if len(job.runs) > 1:
            own = self._own.setdefault(position, deque())
            while own and own[0][1].least_ms <= run.began_ms + self._tolerance_ms:
                own.popleft()
            first = own[0] if own else None
            own.append((number, run))
            if number == len(job.runs) - 1:
                del self._own[position]
            if first is not None and self._is_before(first[1].began_ms, run.least_ms):
                margin_ms = _shared_ms(run, first[1])
                return Finding(
                    Rule.STARTED_TWICE, run.began_ms, position, number, other_run=first[0], margin_ms=margin_ms
                )
        if job.canceled_ms is not None and self._is_before(job.canceled_ms, run.began_ms):
            margin_ms = run.began_ms - job.canceled_ms
            return Finding(Rule.STARTED_AFTER_END, run.began_ms, position, number, margin_ms=margin_ms)
        return None

    def _is_before(self, one_ms: float | None, other_ms: float) -> bool:
        return one_ms is not None and one_ms + self._tolerance_ms < other_ms


def _shared_ms(one: RunInterval, other: RunInterval) -> float:
    """Return the least tolerance within which two runs may have been one after the other."""
    return min(one.least_ms - other.began_ms, other.least_ms - one.began_ms)


def turns_of(position: int, job: JobIntervals, tolerance_ms: float) -> dict[int, _Turn]:
    """Return the constraints on other jobs, by the run at which each is judged."""
    runs = job.runs
    if not runs:
        return {}
    first_ms = last_ms = -inf
    # A run after the cancellation is a fault of its own, and no reason for others to have waited.
    counted = [run for run in runs if job.canceled_ms is None or job.canceled_ms + tolerance_ms >= run.began_ms]
    if counted:
        first_ms, last_ms = counted[0].least_ms, max(run.least_ms for run in counted)
    if job.on_retry == "hold":
        return {0: _Turn(position, job.called_ms, job.returned_ms, last_ms)}
    if len(runs) > 1:
        first_ms = min(first_ms, runs[1].began_ms)
    turns = {0: _Turn(position, job.called_ms, job.returned_ms, first_ms)}
    for number, before in enumerate(runs[:-1], 1):
        turns[number] = _Turn(position, before.began_ms, None, runs[number].least_ms)
    return turns


def count_met(log: Sequence[JobIntervals]) -> int:
    """Return how many jobs of a log came while one that conflicts had come and was not over; of jobs that ran."""
    times: list[tuple[float, int, int]] = []
    for position, job in enumerate(log):
        if job.claims and job.runs:
            began_ms = job.runs[0].began_ms
            came_ms = began_ms if job.called_ms is None else min(job.called_ms, began_ms)
            ended_ms = max(run.least_ms for run in job.runs)
            times.append((came_ms, _RETURN, position))
            if ended_ms > came_ms:
                times.append((ended_ms, _LEAVE, position))
    times.sort()
    placed: Places[int] = Places()
    numbers: dict[int, int] = {}
    met = 0
    for number, (time_ms, kind, position) in enumerate(times):
        claims = log[position].claims
        assert claims
        if kind == _LEAVE:
            placed.remove(claims, numbers.pop(position))
            continue
        met += placed.first(claims) is not None
        if time_ms < max(run.least_ms for run in log[position].runs):
            numbers[position] = number
            placed.add(claims, number, position)
    return met
