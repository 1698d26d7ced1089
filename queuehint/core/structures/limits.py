"""
Rate and concurrency limits: they park ready jobs, and release them in order when there is room.

A `Limiter` is a limit in force. At each place where it counts (its own path, or each child of it that has jobs) it
has a `PlaceCounter`: the number of jobs that run there, and the parked jobs: ready jobs that a claim took and could
not start. A limit acts on ready jobs only, when they are claimed, so it never changes the order of jobs that conflict.
A limit of a task or a pool has one counter, for all jobs of it, with a place or without.

- A claim checks the counters of a job, those of a path from its deepest place up, then its task's and its pool's, and
  parks the job at the first that has no room: as many jobs run there as may, or the rate has none. The next claim
  checks all of them again.
- When there may be room, a counter *releases* one of its jobs, the first by rank and number, to the ready queue: when
  a job that counts there stops running, when a token comes, and when a job that counts there has left the ready
  queue (started, parked elsewhere, or over). So one slot releases one job; if there is still room, its start releases
  the next; and if it cannot start, the next is released in its stead, unless it was parked above: then none of the
  others could start either.
- Jobs may cost more than one slot, or start. Once such a job is parked, or a permit, which workers that settle and
  claim in one step would forestall, its counter is *strict* until nothing is parked there: jobs start in the order of
  rank and number. It calls one job at a time, the first, when there is room for its cost. What is claimed before that
  one is started or has left, or until `LOOK_MS` later, is parked behind it, unless it comes before it and all that are
  parked: of two counters that call two jobs that count at both, neither then sends back the other's for ever. So light
  jobs do not take the room that a heavy one waits for. One that costs more than the limit has is parked apart: it can
  never start, and holds up nobody.
- A released job is not claimed while no worker serves its pool. So a counter that has room and parked jobs checks
  again after `LOOK_MS`, and releases more each time. No job waits for ever where there is room.

The counts follow from the STARTED jobs. Setting a limit counts them; changing one makes a new limiter, and the jobs
that the old one parked are offered again. What was spent of a rate stays spent; a `queuehint.core.meters.Meter` says
how much. With ``each``, every place has one of its own, and these invariants hold:

- No counter means that nothing is spent: one is kept while jobs run or are parked there, or something counts.
- Where nothing runs and nothing is parked, it is checked again when nothing counts any more, and dropped then. So there
  are no more counters than places that had a job in the time of the rate, at most 24 h; with a burst, in the time in
  which a bucket fills up.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedDict

from queuehint.core.meters import Meter
from queuehint.core.structures.leftovers import UnparkSweep
from queuehint.core.structures.ready_queue import Ranked, rank
from queuehint.errors import InvalidJobError
from queuehint.values.hint import gate_key, is_counted
from queuehint.values.limit import LIMITS_MAX, TOO_MANY_LIMITS, LimitState, order_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.core.structures.indexes import PathIndex
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.ready_queue import ReadyQueue
    from queuehint.core.structures.record_index import Catalog
    from queuehint.values.hint import Path
    from queuehint.values.limit import Key, Limit
    from queuehint.values.record_filter import RecordFilter
    from queuehint.values.spec import JobSpec

LOOK_MS = 5_000
CALLED_MAX = 100
"""How many jobs a counter releases at once, at most."""


class Limiter:
    """
    A limit in force: its number, its counters by path, and its meter. With ``each`` every place has its own meter.

    ``oversized`` are the jobs parked here that cost more than the limit has, at whatever place of it.
    """

    __slots__ = ("counters", "limit", "meter", "number", "oversized")

    def __init__(self, limit: Limit, number: int) -> None:
        self.limit = limit
        self.number = number
        self.counters: dict[Path, PlaceCounter] = {}
        self.meter = Meter()
        self.oversized = Ranked()

    def room_ms(self, meter: Meter, cost: int, now_ms: int) -> int:
        """Return when the rate has room for a cost within the limit: now, or later."""
        return now_ms if self.limit.rate is None else meter.room_ms(self.limit, cost, now_ms)


class PlaceCounter:
    """
    The counter of one place under one limit.

    ``started`` is what the jobs that run here cost. ``parked`` are the jobs parked here, ``released`` the number it
    released the last time, and ``look_ms`` when it checks again for room, or whether its meter counts nothing, None if
    it need not. While the counter ``is_strict``, ``called`` is the rank and number of the one job that was released;
    another may start only if it comes before that one and all that are parked.
    """

    __slots__ = ("called", "is_strict", "limiter", "look_ms", "meter", "parked", "path", "released", "started")

    def __init__(self, limiter: Limiter, path: Path) -> None:
        self.limiter = limiter
        self.path = path
        self.started = self.released = 0
        self.parked = Ranked()
        self.look_ms: int | None = None
        self.called: tuple[int, int] | None = None
        self.is_strict = False
        self.meter = Meter() if limiter.limit.each else limiter.meter

    @property
    def selection(self) -> RecordFilter | None:
        """The filter of the jobs of this counter; None for all jobs at or below its path."""
        return self.limiter.limit.selection

    def is_within(self, other: PlaceCounter) -> bool:
        """Whether another counter, at a path at or above this one, counts each job of this counter too."""
        at = other.path
        return self.path[: len(at)] == at and self.selection is None and other.selection is None

    def is_full(self, cost: int = 1) -> bool:
        """Return whether the limit has too few slots left for a cost."""
        most = self.limiter.limit.most
        return most is not None and self.started + cost > most

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs here and nothing is parked."""
        return not (self.started or self.parked)

    def calls(self, job: Job) -> bool:
        """Return whether a job is the called one: released in order."""
        return self.called is not None and self.called[1] == job.number

    def is_next(self, job: Job) -> bool:
        """Return whether an unparked job is the called one, or precedes the called one and all parked ones."""
        place, first = (rank(job.level, job.enqueued_ms), job.number), self.parked.first()
        is_before = (self.called is None or place < self.called) and (first is None or place < first[:2])
        return is_before or self.calls(job)

    def stops(self, job: Job, now_ms: int) -> bool:
        """Return whether a job, whose cost is not too great, may not start here."""
        cost = job.spec.policy.cost
        is_held = self.is_strict and not self.is_next(job)
        return is_held or self.is_full(cost) or self.limiter.room_ms(self.meter, cost, now_ms) > now_ms

    def kept_until_ms(self, now_ms: int) -> int | None:
        """Return until when the counter is kept for its own meter alone, or None."""
        limit = self.limiter.limit
        if limit.rate is None or not limit.each:
            return None
        free_ms = self.meter.free_ms(limit, now_ms)
        return free_ms if free_ms > now_ms else None

    def until_ms(self, now_ms: int) -> int | None:
        """Return when the next job may start here by time alone; None for now, or only after the end of another."""
        first = self.parked.first()
        cost = 1 if first is None else first[3].spec.policy.cost
        room_ms = self.limiter.room_ms(self.meter, cost, now_ms)
        return None if self.is_full(cost) or room_ms <= now_ms else room_ms


class Limits:
    """
    All limits of a namespace.

    ``limiters`` holds those on starts by number, ``max_pending`` those on unfinished jobs. ``pending`` counts, for each
    task or pool that `max_pending` is set for, its unfinished jobs; ``since`` is the last number that a job had when
    that was set first. Jobs of a submission in parts that were staged before are counted when they are released: until
    then no index leads to them. Every other job is counted as long as it is unfinished.
    """

    def __init__(self, ready: ReadyQueue, paths: PathIndex, leftovers: deque[Any]) -> None:
        self.now_ms = 0
        self.limiters: dict[int, Limiter] = {}
        self.max_pending: dict[Key, int] = {}
        self.pending: dict[Key, int] = {}
        self.since: dict[Key, int] = {}
        self._limits: dict[Key, Limit] = {}
        self._limiter_of: dict[Key, Limiter] = {}
        self._ready = ready
        self._paths = paths
        self._leftovers = leftovers
        self._looks: SortedDict[tuple[int, int, str], PlaceCounter] = SortedDict()
        self._last_number = 0

    # --- what operators do -----------------------------------------------------------------------------------------

    def set(self, limit: Limit, running: Iterable[Job], catalog: Catalog, last_number: int) -> bool:
        """
        Set the limit of a path, a task or a pool. Return whether anything changed.

        Args:
            running: the STARTED jobs.
            catalog: the index of all jobs that are known.
            last_number: the last that a job has.

        Raises:
            InvalidJobError: there are as many as there may be.

        Complexity: O(executing jobs + places that have a counter of this limit).
        """
        key = limit.key
        old = self._limits.get(key, limit.lifted)
        if old == limit:
            return False
        if not (limit.holds_back or limit.max_pending is not None):
            del self._limits[key]
        else:
            if key not in self._limits and len(self._limits) >= LIMITS_MAX:
                raise InvalidJobError(TOO_MANY_LIMITS)
            self._limits[key] = limit
        if limit.max_pending != old.max_pending:
            self._bound(limit, catalog, last_number)
        if (limit.most, limit.rate, limit.burst) != (old.most, old.rate, old.burst):
            self._measure(limit, running)
        elif limit.holds_back:
            self._limiter_of[key].limit = limit
        return True

    def _bound(self, limit: Limit, catalog: Catalog, last_number: int) -> None:
        """Set how many unfinished jobs there may be at a place, or of a task or a pool."""
        key, selection = limit.key, limit.selection
        is_bound = key in self.max_pending
        if limit.max_pending is None:
            del self.max_pending[key]
            if selection is not None:
                del self.pending[key], self.since[key]
            elif limit.path is not None:
                self._paths.ignore(limit.path, each=limit.each)
            return
        self.max_pending[key] = limit.max_pending
        if is_bound:
            return
        if selection is not None:
            self.pending[key], self.since[key] = catalog.count_unfinished(selection), last_number
        elif limit.path is not None:
            self._paths.watch(limit.path, each=limit.each)

    def count(self, job: Job, by: int) -> None:
        """Count or uncount an unfinished job of a task or a pool with a `max_pending`; see ``pending``."""
        for key in (("task", job.spec.task), ("pool", job.spec.pool)):
            if key in self.pending and (job.number > self.since[key] or job.block is not None):
                self.pending[key] += by

    def _measure(self, limit: Limit, running: Iterable[Job]) -> None:
        """Replace or remove the limiter of a limit. Count the running jobs, and offer the parked ones again."""
        old = self._limiter_of.pop(limit.key, None)
        if old is not None:
            del self.limiters[old.number]
            counters = sorted(old.counters.values(), key=lambda counter: gate_key(counter.path))
            for counter in counters:
                self._look_at(counter, None)
            heaps = [counter.parked for counter in counters]
            # As the texts of places are ordered: behind those of the root, before those of all other places.
            heaps.insert(int(() in old.counters and limit.selection is None), old.oversized)
            self._leftovers.append(UnparkSweep(deque(heaps)))
        if limit.holds_back:
            self._last_number += 1
            limiter = self._limiter_of[limit.key] = self.limiters[self._last_number] = Limiter(limit, self._last_number)
            for job in running:
                for number, place in self._limiters_of(job.spec):
                    if number == limiter.number:
                        self._counter(limiter, place).started += job.spec.policy.cost
            if old is not None:
                self._go_on_from(limiter, old)

    def _go_on_from(self, limiter: Limiter, old: Limiter) -> None:
        """Carry over the spent tokens of the replaced limiter; O(places of it)."""
        limit, old_limit = limiter.limit, old.limit
        if limit.rate is None or old_limit.rate is None:
            return
        limiter.meter.go_on_from(limit, old.meter, old_limit, self.now_ms)
        for place, was in old.counters.items() if limit.each else ():
            counter = self._counter(limiter, place)
            counter.meter.go_on_from(limit, was.meter, old_limit, self.now_ms)
            self._refresh(counter, 0)

    def exceeded_by(self, spec: JobSpec) -> tuple[Limit, Path] | None:
        """Return the first limit below the cost of a job, and its counting place, or None."""
        cost, found = spec.policy.cost, self._limiters_of(spec).items()
        return next(((each.limit, place) for (_, place), each in found if cost > each.limit.costs_max), None)

    # --- what jobs do ----------------------------------------------------------------------------------------------

    def stops(self, job: Job) -> PlaceCounter | Limiter | None:
        """Return the counter without room for a job, or the limit below its cost; None if the job may start."""
        cost = job.spec.policy.cost
        for (_, place), limiter in self._limiters_of(job.spec).items():
            if cost > limiter.limit.costs_max:
                return limiter
            counter = limiter.counters.get(place)
            if counter is None:
                # Nothing runs there, so the slots are enough.
                if limiter.room_ms(limiter.meter, cost, self.now_ms) <= self.now_ms:
                    continue
                counter = self._counter(limiter, place)
            if counter.stops(job, self.now_ms):
                return counter
        return None

    def park(self, job: Job, counter: PlaceCounter | Limiter) -> None:
        """Park a job, just taken from the ready queue, at the counter or limit that stops it."""
        if isinstance(counter, Limiter):
            job.parked = counter.oversized
            counter.oversized.offer(job)
            self.job_left(job)
            return
        job.parked = counter.parked
        counter.parked.offer(job)
        counter.is_strict = counter.is_strict or job.spec.policy.cost > 1 or is_counted(job.spec.claims)
        self._refresh(counter, 1)
        self.job_left(job, counter)

    def enter(self, job: Job) -> None:
        """Count a starting job."""
        found, cost = self._limiters_of(job.spec), job.spec.policy.cost
        for (_, place), limiter in found.items():
            counter = self._counter(limiter, place)
            counter.started += cost
            if counter.calls(job):
                counter.called = None
            if limiter.limit.rate is not None:
                counter.meter.spend(limiter.limit, cost, self.now_ms)
        for (_, place), limiter in found.items():
            self._refresh(limiter.counters[place], 1)

    def leave(self, job: Job) -> None:
        """Uncount a job that has stopped running."""
        found = self._limiters_of(job.spec)
        for (_, place), limiter in found.items():
            limiter.counters[place].started -= job.spec.policy.cost
        for (_, place), limiter in found.items():
            self._refresh(limiter.counters[place], 1)

    def job_left(self, job: Job, at: PlaceCounter | None = None) -> None:
        """Release others in place of a job that left the ready queue unstarted. *at* is its former parking counter."""
        for (_, place), limiter in self._limiters_of(job.spec).items():
            counter = limiter.counters.get(place)
            if counter is None:
                continue
            is_called = counter.calls(job)
            if is_called:
                counter.called = None
            # Jobs at or below the place where it was parked could not start either.
            is_next = at is None or not counter.is_within(at)
            if is_called or is_next:
                self._refresh(counter, 1 if is_next else 0)

    # --- time ------------------------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """Return when the next counter checks again."""
        first: tuple[int, int, str] | None = next(iter(self._looks), None)
        return None if first is None else first[0]

    def recheck(self) -> int | None:
        """Re-check the first due counter. Return how many jobs it released, None if no counter is due."""
        if (due_ms := self.next_ms()) is None or due_ms > self.now_ms:
            return None
        counter = self._looks.peekitem(0)[1]
        # Nobody has claimed the one that was called: no worker serves its pool.
        counter.called = None
        return self._refresh(counter, min(2 * counter.released, CALLED_MAX) or 1)

    # --- questions -------------------------------------------------------------------------------------------------

    def counter_of(self, job: Job) -> PlaceCounter | None:
        """
        Return the counter at which a job is parked; None for an unparked job or a removed limit.

        Of one that costs more than its limit has it is the first of that limit, made up if it is not there.
        """
        for (_, place), limiter in self._limiters_of(job.spec).items():
            counter = limiter.counters.get(place)
            if limiter.oversized is job.parked:
                return counter or PlaceCounter(limiter, place)
            if counter is not None and counter.parked is job.parked:
                return counter
        return None

    def parks_any(self) -> bool:
        """Return whether a limit parks any job; O(counters)."""
        return any(counter.parked for limiter in self.limiters.values() for counter in limiter.counters.values())

    def states(self, unfinished: int) -> tuple[LimitState, ...]:
        """Return all limits with their counts. *unfinished* is the number of unfinished jobs."""
        states = []
        for limit in sorted(self._limits.values(), key=order_of):
            started = pending = None
            if limit.holds_back:
                counters = self._limiter_of[limit.key].counters.values()
                started = sum([counter.started for counter in counters])
            if limit.max_pending is not None:
                pending = self.pending.get(limit.key, unfinished)
                if limit.path is not None:
                    pending = sum(self._paths.watched[limit.path, limit.each].values())
            states.append(LimitState(limit=limit, started=started, pending=pending))
        return tuple(states)

    def check(self, running: Iterable[Job]) -> None:
        """Recount and assert; for tests, O(all)."""
        started: dict[tuple[int, Path], int] = {}
        for job in running:
            for place in self._limiters_of(job.spec):
                started[place] = started.get(place, 0) + job.spec.policy.cost
        looks = {}
        for number, limiter in self.limiters.items():
            assert limiter.number == number
            for path, counter in limiter.counters.items():
                assert (counter.limiter, counter.path) == (limiter, path)
                assert counter.started == started.pop((number, path), 0), f"STARTED jobs miscounted at {path}"
                assert not counter.is_idle or counter.look_ms is not None, f"{path} counts nothing"
                assert (counter.meter is limiter.meter) != limiter.limit.each
                assert all(job.parked is counter.parked for job in counter.parked.items())
                first = counter.parked.first()
                is_waiting = first is not None and not counter.is_full(first[3].spec.policy.cost)
                assert (counter.look_ms is not None) == bool(counter.is_idle or is_waiting or counter.called)
                assert counter.is_strict or counter.called is None
                if counter.look_ms is not None:
                    looks[counter.look_ms, number, gate_key(path)] = counter
        assert not started, f"STARTED jobs that are not counted: {started}"
        assert looks == dict(self._looks)
        for (path, each), counts in self._paths.watched.items():
            assert (path, each) in self.max_pending
            assert counts == self._paths.count_below(path, each=each)

    # --- what these share ------------------------------------------------------------------------------------------

    def _limiters_of(self, spec: JobSpec) -> dict[tuple[int, Path], Limiter]:
        """
        Return the limiters at which a job counts, by number and place: for each claim from the deepest place up, then
        its task's and its pool's.
        """
        found: dict[tuple[int, Path], Limiter] = {}
        limiter_of = self._limiter_of
        for claim in spec.claims:
            for depth in range(len(claim.path), -1, -1):
                place = claim.path[:depth]
                limiter = limiter_of.get((place, False))
                if limiter is not None:
                    found[limiter.number, place] = limiter
                if depth and (limiter := limiter_of.get((place[:-1], True))) is not None:
                    found[limiter.number, place] = limiter
        for limiter in (limiter_of.get(("task", spec.task)), limiter_of.get(("pool", spec.pool))):
            if limiter is not None:
                found[limiter.number, ()] = limiter
        return found

    def _counter(self, limiter: Limiter, place: Path) -> PlaceCounter:
        counter = limiter.counters.get(place)
        if counter is None:
            counter = limiter.counters[place] = PlaceCounter(limiter, place)
        return counter

    def _refresh(self, counter: PlaceCounter, count: int) -> int:
        """Release up to *count* jobs if there is room, and compute the next check. Return how many were released."""
        released, look_ms = 0, None
        parked = counter.parked
        first = parked.first() if counter.called is None else None
        if first is not None:
            cost = first[3].spec.policy.cost
            if not counter.is_full(cost):
                look_ms = counter.limiter.room_ms(counter.meter, cost, self.now_ms)
                if look_ms <= self.now_ms:
                    released = self._release(counter, count)
                    look_ms = self.now_ms + LOOK_MS if parked or counter.called is not None else None
        elif counter.called is not None:
            look_ms = counter.look_ms
        counter.released = released if look_ms is not None else 0
        if not parked and counter.called is None:
            counter.is_strict = False
        is_idle = counter.is_idle
        if is_idle and counter.called is None:
            look_ms = counter.kept_until_ms(self.now_ms)
        self._look_at(counter, look_ms)
        if is_idle and look_ms is None:
            del counter.limiter.counters[counter.path]
        return released

    def _release(self, counter: PlaceCounter, count: int) -> int:
        """Offer up to *count* parked jobs; one at most where costs differ. Return how many."""
        count = min(count, 1 if counter.is_strict else len(counter.parked))
        for _ in range(count):
            job = counter.parked.pop()
            job.parked = None
            if counter.is_strict:
                counter.called = rank(job.level, job.enqueued_ms), job.number
            self._ready.add(job)
        return count

    def _look_at(self, counter: PlaceCounter, look_ms: int | None) -> None:
        if counter.look_ms == look_ms:
            return
        number, key = counter.limiter.number, gate_key(counter.path)
        if counter.look_ms is not None:
            del self._looks[counter.look_ms, number, key]
        counter.look_ms = look_ms
        if look_ms is not None:
            self._looks[look_ms, number, key] = counter
