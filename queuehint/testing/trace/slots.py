"""Ready jobs and free slots over time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from queuehint.values.hint import conflict

if TYPE_CHECKING:
    from queuehint.testing.trace.life import Life
    from queuehint.testing.trace.places import Places
    from queuehint.testing.trace.values import TraceEvent


class Slots:
    """
    Ready jobs that wait although a slot is free.

    A job is ready when nothing with an earlier place conflicts with it; it is told so when the last of them leaves. One
    with shared claims may have to wait for more, and counts as ready only when no rule lets it wait. A job in back-off
    is not ready, because the end of the wait is unknown; nor is one whose task a worker did not know, because other
    workers of the same code are not offered it.

    Args:
        slots: how many there are, for all jobs or by pool; None if only events tell.
        idle_ms: how long one may be free while a job is ready.
    """

    def __init__(self, slots: int | Mapping[str, int] | None, idle_ms: float) -> None:
        self._slots = slots
        self.idle_ms = idle_ms
        self._ready: dict[str, OrderedDict[str, tuple[Life, float]]] = {}
        """By pool, in order of when they became so."""
        self._watchers: dict[str, list[tuple[Life, int]]] = {}
        """By job, the jobs found to wait for it, each with the place that it had then."""
        self._waits_for: dict[str, Life] = {}
        self._doubtful: dict[str, Life] = {}
        self._counts: dict[tuple[str | None, str | None], int] = {}
        """Free slots by worker and pool, as far as they are known."""
        if isinstance(slots, Mapping):
            self._counts = {(None, pool): count for pool, count in slots.items()}
        elif slots is not None:
            self._counts = {(None, None): slots}
        self._are_given = slots is not None
        self._free: dict[str | None, int] = {}
        self._since: dict[str | None, float] = {}
        self._now_ms = float("-inf")
        for (_, pool), count in self._counts.items():
            self._add(pool, count)

    def forgotten(self) -> Slots:
        """Return an empty state without jobs and workers."""
        return Slots(self._slots, self.idle_ms)

    # --- ready jobs ----------------------------------------------------------------------------------------------

    def place(self, life: Life, seq: int, at_ms: float, placed: Places[Life]) -> None:
        """Note that a job takes a place."""
        found = placed.last(life.claims)
        self._wait_or_be_ready(life, seq, at_ms, placed, None if found is None else found[1])

    def left(self, life: Life, at_ms: float, placed: Places[Life]) -> None:
        """Record that a job has left its place, so that the jobs behind it may be ready."""
        self.withdraw(life)
        self._doubtful.pop(life.job_id, None)
        for other, seq in self._watchers.pop(life.job_id, ()):
            if other.seq != seq or other.ran or other.is_over or other.is_off:
                continue
            self._ask_again(other, seq, at_ms, placed)

    def put_back(self, life: Life, at_ms: float, placed: Places[Life]) -> None:
        """Record that a job keeps its place, and waits for no time."""
        self._ask_again(life, life.seq, at_ms, placed)

    def doubt(self, life: Life) -> None:
        """Record that a job may have an earlier place than its events show, so that no later job counts as ready."""
        self._doubtful[life.job_id] = life
        for ready in self._ready.values():
            for other, _ in list(ready.values()):
                if other is not life and conflict(other.claims, life.claims):
                    del ready[other.job_id]

    def _ask_again(self, life: Life, seq: int, at_ms: float, placed: Places[Life]) -> None:
        found = placed.first(life.claims)
        self._wait_or_be_ready(life, seq, at_ms, placed, None if found is None or found[0] >= seq else found[1])

    def _wait_or_be_ready(self, life: Life, seq: int, at_ms: float, placed: Places[Life], blocker: Life | None) -> None:
        if blocker is not None:
            self._watch(life, seq, blocker)
            return
        for claim in life.claims:
            if claim.mode != "shared":
                continue
            for here, below_exclusive in placed.nodes(claim):
                first, other = next(iter(here.items()), None), next(iter(below_exclusive.items()), None)
                if first is not None and other is not None and first[0] < seq and other[0] < seq:
                    # A line may have formed there: what comes later stands in it.
                    self._watch(life, seq, first[1])
                    self._watch(life, seq, other[1])
                    return
        self._offer(life, at_ms)

    def _watch(self, life: Life, seq: int, blocker: Life) -> None:
        self._waits_for[life.job_id] = blocker
        self._watchers.setdefault(blocker.job_id, []).append((life, seq))

    def _offer(self, life: Life, at_ms: float) -> None:
        if any(conflict(other.claims, life.claims) for other in self._doubtful.values() if other is not life):
            return
        if not life.is_refused and (life.job is None or life.job.needs_slot):
            self._ready.setdefault(_pool(life), OrderedDict()).setdefault(life.job_id, (life, at_ms))

    def withdraw(self, life: Life) -> None:
        """Note that a job is not ready, or not any more."""
        ready = self._ready.get(_pool(life))
        if ready is not None:
            ready.pop(life.job_id, None)

    def any_ready(self, pool: str | None) -> Life | None:
        """Return the job of a pool (None: of any) with the longest ready time."""
        offers = [ready for of, ready in self._ready.items() if ready and pool in {None, of}]
        found = min((next(iter(ready.values())) for ready in offers), key=_since, default=None)
        return None if found is None else found[0]

    def freed_by(self, life: Life) -> Life | None:
        """Return the job that was last in a job's way."""
        return self._waits_for.get(life.job_id)

    # --- which slots are free ------------------------------------------------------------------------------------

    def started(self, life: Life, event: TraceEvent) -> None:
        """Note that a job takes a slot."""
        self.withdraw(life)
        self._count(life, event.worker, -1)

    def stopped(self, life: Life, event: TraceEvent) -> None:
        """Record that a job returns its slot."""
        if event.kind == "lost":
            # Its worker may be dead.
            for key in [key for key in self._counts if key[0] == life.worker and life.worker is not None]:
                self._add(key[1], -self._counts.pop(key))
            return
        self._count(life, life.worker, 1)

    def told(self, event: TraceEvent) -> None:
        """Record the free slots in an event."""
        self._now_ms = max(self._now_ms, event.at_ms)
        if event.free_slots is not None and not self._are_given:
            key = event.worker, event.pool
            self._add(event.pool, event.free_slots - self._counts.get(key, 0))
            self._counts[key] = event.free_slots

    def _count(self, life: Life, worker: str | None, change: int) -> None:
        if life.job is not None and not life.job.needs_slot:
            return
        pool = _pool(life)
        names = (None,) if self._are_given else (worker, None)
        for key in ((name, of) for name in names for of in (pool, None)):
            if key in self._counts:
                self._counts[key] += change
                self._add(key[1], change)
                return

    def _add(self, pool: str | None, change: int) -> None:
        before = self._free.get(pool, 0)
        self._free[pool] = after = before + change
        if after > 0 and before <= 0:
            self._since[pool] = self._now_ms
        elif after <= 0:
            self._since.pop(pool, None)

    def idle_until(self, now_ms: float) -> Iterator[tuple[Life, float]]:
        """Yield the jobs ready for too long beside a free slot, each with its ready time, once."""
        is_later = now_ms > self._now_ms
        self._now_ms = max(self._now_ms, now_ms)
        if not is_later or not self._since:
            return
        for pool, ready in self._ready.items():
            free_ms = min(self._since.get(pool, float("inf")), self._since.get(None, float("inf")))
            while ready:
                life, ready_ms = next(iter(ready.values()))
                since_ms = max(free_ms, ready_ms)
                if now_ms - since_ms <= self.idle_ms:
                    break
                ready.popitem(last=False)
                yield life, since_ms


def _pool(life: Life) -> str:
    return "default" if life.job is None else life.job.pool


def _since(offer: tuple[Life, float]) -> float:
    return offer[1]
