"""
Event log: counters per event kind, and the last events while there is a subscriber.

Every event is numbered and counted, which costs next to nothing; it is kept only while a subscriber has asked for
events lately. So events without a reader take no memory, and a late subscriber learns how many events it has missed.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from queuehint.operations import EVENTS_LOOKED_AT_MAX
from queuehint.values.event import ERROR_BYTES_MAX, Event, EventKind, FilterIndex, event_bytes
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.core.structures.job import Job
    from queuehint.values.event import EventFilter
    from queuehint.values.outcome import JobError

EVENTS_KEPT = 10_000
EVENTS_BYTES_KEPT = 16 << 20
"""How many events are kept, and how much they count together, by `event_bytes`; the oldest go first."""
FOLLOWED_FOR_MS = 60_000
"""How long events are kept after the last request for events."""

STARTED = JobState.STARTED
PROGRESSED = EventKind.PROGRESSED
OF_ERRORS = frozenset({EventKind.RETRIED, EventKind.FAILED, EventKind.LOST})
"""Kinds of events that have the error of the attempt that ended."""


class Journal:
    """
    The events of one namespace.

    ``totals`` counts the events of each kind. ``until_ms`` is when the events are dropped unless they are requested
    again; 0 while there is no subscriber. ``error`` is that of an attempt whose end is logged next. ``bytes`` is how
    much the events that are kept count together, and ``sizes`` has each of them.
    """

    __slots__ = ("bytes", "error", "kept", "now_ms", "sizes", "totals", "until_ms")

    def __init__(self) -> None:
        self.totals = dict.fromkeys(EventKind, 0)
        self.now_ms = 0
        self.until_ms = 0
        self.kept: deque[Event] = deque()
        self.sizes: deque[int] = deque()
        self.bytes = 0
        self.error: JobError | None = None

    @property
    def last(self) -> int:
        """The number of the last event, which is how many there were."""
        return sum(self.totals.values())

    def see_time(self, now_ms: int) -> None:
        """Set the time. Drop the events without a subscriber."""
        self.now_ms = now_ms
        if self.until_ms and self.until_ms < now_ms:
            self.until_ms = self.bytes = 0
            self.kept.clear()
            self.sizes.clear()

    def note(self, job: Job, kind: EventKind, old: JobState | None, cause: str | None = None) -> None:
        """Log a transition from *old* to the present state, or progress. Log a start before `started_ms` is set."""
        self.totals[kind] += 1
        if self.until_ms:
            event = self._event(job, kind, old, cause)
            size = event_bytes(event)
            self.kept.append(event)
            self.sizes.append(size)
            self.bytes += size
            while len(self.kept) > EVENTS_KEPT or self.bytes > EVENTS_BYTES_KEPT:
                self.kept.popleft()
                self.bytes -= self.sizes.popleft()

    def _event(self, job: Job, kind: EventKind, old: JobState | None, cause: str | None) -> Event:
        since_ms = error = None
        if kind in OF_ERRORS:
            error, self.error = self.error, None
        if old is STARTED and kind is not PROGRESSED:
            since_ms = job.started_ms
        elif kind is EventKind.STARTED and _is_first_at_its_place(job):
            since_ms = job.queued_ms
        return Event(
            at=self.last,
            at_ms=self.now_ms,
            kind=kind,
            id=job.id,
            number=job.number,
            old=old,
            new=None if kind is EventKind.PRUNED else job.state,
            attempt=job.attempts,
            took_ms=None if since_ms is None else self.now_ms - since_ms,
            task=job.spec.task,
            pool=job.spec.pool,
            user=job.spec.user,
            cause=cause or None,
            service=job.spec.service,
            flow=job.spec.flow,
            claims=job.spec.claims,
            error_type=None if error is None else _brief(error.type),
            error_message=None if error is None else _brief(error.message),
            progress=job.extras.progress if kind is PROGRESSED and job.extras is not None else None,
            tags=job.spec.tags,
        )

    def follow(
        self, after: int | None, limit: int, filters: tuple[EventFilter, ...] = ()
    ) -> tuple[tuple[Event, ...], int, int]:
        """
        Return the next events, the last number looked at, and how many events since *after* are lost.

        Args:
            after: the number of the last event seen; None starts now. A number above the last one is of another
                history, and counts as 0.
            filters: only events that pass one of these, among the next 2 000; all if there is none.
        """
        self.until_ms = self.now_ms + FOLLOWED_FOR_MS
        last = self.last
        if after is None:
            return (), last, 0
        if after > last:
            after = 0
        first = last - len(self.kept) + 1
        skipped = max(0, after + 1 - first)
        missed = max(0, first - after - 1)
        looked_at = limit if not filters else EVENTS_LOOKED_AT_MAX
        events = list(islice(self.kept, skipped, skipped + looked_at))
        looked_to = events[-1].at if events else last
        if filters:
            index = FilterIndex[int]()
            for number, wanted in enumerate(filters):
                index.add(number, wanted)
            events = [event for event in events if any(True for _ in index.passing(event))]
            if len(events) > limit:
                del events[limit:]
                looked_to = events[-1].at
        return tuple(events), looked_to, missed


def _brief(text: str) -> str:
    """Return the first bytes of a text, in whole characters."""
    return text.encode()[:ERROR_BYTES_MAX].decode(errors="ignore")


def _is_first_at_its_place(job: Job) -> bool:
    """Return whether a starting job has not run since it took its place. `started_ms` is the time of the last start."""
    assert job.queued_ms is not None
    return job.started_ms is None or job.started_ms < job.queued_ms
