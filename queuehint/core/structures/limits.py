"""
Rate and concurrency limits: which ready jobs may not start yet, and which of them start when there is room.

A `Meter` is a limit in force. At each place where it counts (its own path, or each child of it that has jobs) it has a
`Gauge`: how many jobs run there, and those that were ready, were taken to be started, and were put aside. A limit acts
on ready jobs only, when they are claimed, so it never changes the order of jobs that conflict.

- A claim asks the gauges of a job, those of a claim from its deepest place up, and puts it aside at the first that has
  no room: as many jobs run there as may, or the bucket has no token. Asked again, it asks all of them anew.
- When there may be room at a gauge, it *calls* one of its jobs, the first by rank and number: back to the ready queue.
  That is so when a job that counts there stops running, when a token comes, and when a job that counts there has left
  the ready queue: it was started, put aside elsewhere, or is over. So one slot calls one job; if there is still room,
  that one's start calls the next; and if the one called cannot start, the next is called in its stead. It is not if the
  one called was put aside above: then none of the others could start either, and that one stands for them.
- A job that was called is not claimed while no worker serves its pool. So a gauge that has room and
  jobs put aside looks again after `LOOK_MS`, and calls more each time. Nothing waits for ever where there is room.

What a meter counts follows from the STARTED jobs. Setting a limit counts them; changing one makes a new meter, and all
that was put aside by the old one is offered again. Tokens that were spent stay spent.

A bucket is counted in parts of a token, ms of its time each, of which so many come back in a ms as it has tokens:
whole numbers, exact on every backend.  Source: GCRA, ITU-T I.371, as a leaky bucket.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedDict

from queuehint.core.structures.leftovers import UnparkSweep
from queuehint.core.structures.ready_queue import Ranked
from queuehint.errors import InvalidJobError
from queuehint.values.hint import gate_key
from queuehint.values.limit import LIMITS_MAX, TOO_MANY_LIMITS, Limit, LimitState, order_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.core.structures.indexes import PathIndex
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.ready_queue import ReadyQueue
    from queuehint.values.hint import Path

LOOK_MS = 5_000
CALLED_MAX = 100
"""How many jobs a gauge calls at once, at most."""


class Meter:
    """A limit in force: its number, its gauges by path, and what was spent of its bucket at a time."""

    __slots__ = ("gauges", "limit", "number", "spent", "spent_at_ms")

    def __init__(self, limit: Limit, number: int) -> None:
        self.limit = limit
        self.number = number
        self.gauges: dict[Path, Gauge] = {}
        self.spent = self.spent_at_ms = 0

    def token_ms(self, now_ms: int) -> int:
        """Return when the bucket has a token: now, or later."""
        if self.limit.rate is None:
            return now_ms
        tokens, per_ms = self.limit.rate
        lack = self._spent(now_ms, tokens) - (tokens - 1) * per_ms
        return now_ms - (-lack // tokens) if lack > 0 else now_ms

    def spend(self, now_ms: int) -> None:
        """Take a token."""
        if self.limit.rate is not None:
            tokens, per_ms = self.limit.rate
            self.spent = self._spent(now_ms, tokens) + per_ms
            self.spent_at_ms = now_ms

    def _spent(self, now_ms: int, tokens: int) -> int:
        return max(0, self.spent - (now_ms - self.spent_at_ms) * tokens)

    def go_on_from(self, old: Meter, now_ms: int) -> None:
        """Carry spent tokens over from the limit that this one replaces; a part of a token counts as a whole one."""
        if self.limit.rate is not None and old.limit.rate is not None:
            tokens, per_ms = self.limit.rate
            was_tokens, was_per_ms = old.limit.rate
            spent = -(-old._spent(now_ms, was_tokens) // was_per_ms)
            self.spent, self.spent_at_ms = min(spent, tokens) * per_ms, now_ms


class Gauge:
    """
    The counter of one place under one limit.

    ``parked`` are the jobs parked here, ``calls`` how many it has called the last time, and ``look_ms`` when it checks
    again for room, None if it need not.
    """

    __slots__ = ("calls", "look_ms", "meter", "parked", "path", "started")

    def __init__(self, meter: Meter, path: Path) -> None:
        self.meter = meter
        self.path = path
        self.started = self.calls = 0
        self.parked = Ranked()
        self.look_ms: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether as many jobs run here as the limit allows."""
        most = self.meter.limit.most
        return most is not None and self.started >= most


class Limits:
    """
    All limits of a namespace.

    ``meters`` holds those on starts by number, ``max_pending`` those on unfinished jobs by path, None being all jobs.
    """

    def __init__(self, ready: ReadyQueue, paths: PathIndex, leftovers: deque[Any]) -> None:
        self.now_ms = 0
        self.meters: dict[int, Meter] = {}
        self.max_pending: dict[Path | None, int] = {}
        self._limits: dict[tuple[Path | None, bool], Limit] = {}
        self._meter_of: dict[tuple[Path, bool], Meter] = {}
        self._ready = ready
        self._paths = paths
        self._leftovers = leftovers
        self._looks: SortedDict[tuple[int, int, str], Gauge] = SortedDict()
        self._last_number = 0

    # --- what operators do -----------------------------------------------------------------------------------------

    def set(self, limit: Limit, running: Iterable[Job]) -> bool:
        """
        Set the limit of a path; return whether that changed anything.

        Raises:
            InvalidJobError: there are as many as there may be.

        Complexity: O(executing jobs).
        """
        key = limit.path, limit.each
        old = self._limits.get(key, Limit(path=limit.path, each=limit.each))
        if old == limit:
            return False
        if not (limit.holds_back or limit.max_pending is not None):
            del self._limits[key]
        else:
            if key not in self._limits and len(self._limits) >= LIMITS_MAX:
                raise InvalidJobError(TOO_MANY_LIMITS)
            self._limits[key] = limit
        if not limit.each:
            self._bound(limit.path, limit.max_pending)
        if limit.path is not None:
            if (limit.most, limit.rate) != (old.most, old.rate):
                self._measure(limit, limit.path, running)
            elif limit.holds_back:
                self._meter_of[limit.path, limit.each].limit = limit
        return True

    def drop(self, path: Path | None, running: Iterable[Job]) -> bool:
        """Remove all limits of a path; return whether there were any."""
        changed = [self.set(Limit(path=path, each=each), running) for each in (False, True)]
        return any(changed)

    def _bound(self, path: Path | None, most: int | None) -> None:
        """Set how many unfinished jobs a path may have; None for any number."""
        is_bound = path in self.max_pending
        if most is not None:
            self.max_pending[path] = most
            if path is not None and not is_bound:
                self._paths.watch(path)
        elif is_bound:
            del self.max_pending[path]
            if path is not None:
                self._paths.ignore(path)

    def _measure(self, limit: Limit, path: Path, running: Iterable[Job]) -> None:
        """Replace or remove the meter of a path; count the running jobs, and offer the parked ones again."""
        old = self._meter_of.pop((path, limit.each), None)
        if old is not None:
            del self.meters[old.number]
            gauges = sorted(old.gauges.values(), key=lambda gauge: gate_key(gauge.path))
            for gauge in gauges:
                self._look_at(gauge, None)
            self._leftovers.append(UnparkSweep(deque([gauge.parked for gauge in gauges])))
        if limit.holds_back:
            self._last_number += 1
            meter = self._meter_of[path, limit.each] = self.meters[self._last_number] = Meter(limit, self._last_number)
            if old is not None:
                meter.go_on_from(old, self.now_ms)
            for job in running:
                for number, place in self._meters_of(job):
                    if number == meter.number:
                        self._gauge(meter, place).started += 1

    # --- what jobs do ----------------------------------------------------------------------------------------------

    def stops(self, job: Job) -> Gauge | None:
        """Return the gauge that has no room for a job, None if it may start."""
        for (_, place), meter in self._meters_of(job).items():
            gauge = meter.gauges.get(place)
            if (gauge is not None and gauge.is_full) or meter.token_ms(self.now_ms) > self.now_ms:
                return gauge or self._gauge(meter, place)
        return None

    def park(self, job: Job, gauge: Gauge) -> None:
        """Park a job, just taken from the ready queue, that this gauge stops."""
        job.parked = gauge.parked
        gauge.parked.offer(job)
        self._tend(gauge, 1)
        self.left(job, gauge)

    def enter(self, job: Job) -> None:
        """Count a job that starts."""
        found = self._meters_of(job)
        for (_, place), meter in found.items():
            self._gauge(meter, place).started += 1
            meter.spend(self.now_ms)
        for (_, place), meter in found.items():
            self._tend(meter.gauges[place], 1)

    def leave(self, job: Job) -> None:
        """Uncount a job that has stopped running."""
        found = self._meters_of(job)
        for (_, place), meter in found.items():
            meter.gauges[place].started -= 1
        for (_, place), meter in found.items():
            self._tend(meter.gauges[place], 1)

    def left(self, job: Job, at: Gauge | None = None) -> None:
        """
        Call other jobs in the place of one that has left the ready queue without being started.

        Args:
            at: where it was parked, if it was: jobs at or below that place could not start either.
        """
        for (_, place), meter in self._meters_of(job).items():
            gauge = meter.gauges.get(place)
            if gauge is not None and (at is None or place[: len(at.path)] != at.path):
                self._tend(gauge, 1)

    # --- time ------------------------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """Return when the next gauge checks again."""
        first: tuple[int, int, str] | None = next(iter(self._looks), None)
        return None if first is None else first[0]

    def come_up(self) -> int | None:
        """Re-check the first gauge that is due; return how many jobs it called, None if no gauge is due."""
        due_ms = self.next_ms()
        if due_ms is None or due_ms > self.now_ms:
            return None
        gauge = self._looks.peekitem(0)[1]
        return self._tend(gauge, min(2 * gauge.calls, CALLED_MAX) or 1)

    # --- questions -------------------------------------------------------------------------------------------------

    def gauge_of(self, job: Job) -> Gauge | None:
        """Return the gauge at which a job is parked; None if it is not, or its limit was removed."""
        for (_, place), meter in self._meters_of(job).items():
            gauge = meter.gauges.get(place)
            if gauge is not None and gauge.parked is job.parked:
                return gauge
        return None

    def parks_any(self) -> bool:
        """Return whether jobs are parked; O(gauges)."""
        return any(gauge.parked for meter in self.meters.values() for gauge in meter.gauges.values())

    def states(self, unfinished: int) -> tuple[LimitState, ...]:
        """Return all limits with their counts; *unfinished* is the number of unfinished jobs."""
        states = []
        for limit in sorted(self._limits.values(), key=order_of):
            started = pending = None
            if limit.path is not None and limit.holds_back:
                gauges = self._meter_of[limit.path, limit.each].gauges.values()
                started = sum([gauge.started for gauge in gauges])
            if limit.max_pending is not None:
                pending = unfinished if limit.path is None else self._paths.watched[limit.path]
            states.append(LimitState(limit=limit, started=started, pending=pending))
        return tuple(states)

    def check(self, running: Iterable[Job]) -> None:
        """Recount and assert; for tests, O(all)."""
        started: dict[tuple[int, Path], int] = {}
        for job in running:
            for place in self._meters_of(job):
                started[place] = started.get(place, 0) + 1
        looks = {}
        for number, meter in self.meters.items():
            assert meter.number == number
            for path, gauge in meter.gauges.items():
                assert (gauge.meter, gauge.path) == (meter, path)
                assert gauge.started == started.pop((number, path), 0), f"STARTED jobs miscounted at {path}"
                assert gauge.started or gauge.parked, f"{path} counts nothing"
                assert all(job.parked is gauge.parked for job in gauge.parked.items())
                assert (gauge.look_ms is None) == (gauge.is_full or not gauge.parked)
                if gauge.look_ms is not None:
                    looks[gauge.look_ms, number, gate_key(path)] = gauge
        assert not started, f"STARTED jobs that are not counted: {started}"
        assert looks == dict(self._looks)
        for path, count in self._paths.watched.items():
            assert path in self.max_pending
            assert count == sum(1 for _ in self._paths.below(path))

    # --- what these share ------------------------------------------------------------------------------------------

    def _meters_of(self, job: Job) -> dict[tuple[int, Path], Meter]:
        """Return the meters at which a job counts, by number and place: for each claim from the deepest place up."""
        found: dict[tuple[int, Path], Meter] = {}
        meter_of = self._meter_of
        for claim in job.spec.claims:
            for depth in range(len(claim.path), -1, -1):
                place = claim.path[:depth]
                meter = meter_of.get((place, False))
                if meter is not None:
                    found[meter.number, place] = meter
                if depth and (meter := meter_of.get((place[:-1], True))) is not None:
                    found[meter.number, place] = meter
        return found

    def _gauge(self, meter: Meter, place: Path) -> Gauge:
        gauge = meter.gauges.get(place)
        if gauge is None:
            gauge = meter.gauges[place] = Gauge(meter, place)
        return gauge

    def _tend(self, gauge: Gauge, count: int) -> int:
        """Call up to *count* jobs if there is room, and compute the next check; return how many were called."""
        called, look_ms = 0, None
        parked = gauge.parked
        if parked and not gauge.is_full:
            look_ms = gauge.meter.token_ms(self.now_ms)
            if look_ms <= self.now_ms:
                called = min(count, len(parked))
                for _ in range(called):
                    job = parked.pop()
                    job.parked = None
                    self._ready.add(job)
                look_ms = self.now_ms + LOOK_MS if parked else None
        gauge.calls = called if look_ms is not None else 0
        self._look_at(gauge, look_ms)
        if not parked and not gauge.started:
            del gauge.meter.gauges[gauge.path]
        return called

    def _look_at(self, gauge: Gauge, look_ms: int | None) -> None:
        if gauge.look_ms == look_ms:
            return
        number, key = gauge.meter.number, gate_key(gauge.path)
        if gauge.look_ms is not None:
            del self._looks[gauge.look_ms, number, key]
        gauge.look_ms = look_ms
        if look_ms is not None:
            self._looks[look_ms, number, key] = gauge
