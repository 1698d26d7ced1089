"""
The moves of all jobs: how many of each kind there were and, while somebody follows, the last of them.

Every move is numbered and counted, which costs next to nothing; it is written down only while somebody has asked for
events lately. So nothing is left over of events nobody reads, and who comes back late is told how many were missed.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from queuehint.values.event import Event, EventKind
from queuehint.values.records import JobState

if TYPE_CHECKING:
    from queuehint.core.structures.job import Job

EVENTS_KEPT = 10_000
FOLLOWED_FOR_MS = 60_000
"""How long events are written down after somebody has asked for them."""

STARTED = JobState.STARTED


class Journal:
    """
    What has happened in one namespace.

    ``totals`` counts the moves of each kind. ``until_ms`` is when the events are dropped unless
    somebody asks for them, 0 while nobody does.
    """

    __slots__ = ("kept", "now_ms", "totals", "until_ms")

    def __init__(self) -> None:
        self.totals = dict.fromkeys(EventKind, 0)
        self.now_ms = 0
        self.until_ms = 0
        self.kept: deque[Event] = deque(maxlen=EVENTS_KEPT)

    @property
    def last(self) -> int:
        """The number of the last move, which is how many there were."""
        return sum(self.totals.values())

    def see_time(self, now_ms: int) -> None:
        """Drop what nobody has asked for lately."""
        self.now_ms = now_ms
        if self.until_ms and self.until_ms < now_ms:
            self.until_ms = 0
            self.kept.clear()

    def note(self, job: Job, kind: EventKind, old: JobState | None, cause: str | None = None) -> None:
        """Note a move that was made, from *old* to the state the job has now; a start before its time is set."""
        self.totals[kind] += 1
        if self.until_ms:
            self.kept.append(self._event(job, kind, old, cause))

    def _event(self, job: Job, kind: EventKind, old: JobState | None, cause: str | None) -> Event:
        since_ms = None
        if old is STARTED:
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
        )

    def follow(self, after: int | None, limit: int) -> tuple[tuple[Event, ...], int]:
        """
        Return the next events and how many between *after* and these are not there any more.

        Args:
            after: the number of the last event seen; None begins now. One that is yet to come is of another history,
                and counts as 0.
        """
        self.until_ms = self.now_ms + FOLLOWED_FOR_MS
        if after is None:
            return (), 0
        last = self.last
        if after > last:
            after = 0
        first = last - len(self.kept) + 1
        skipped = max(0, after + 1 - first)
        return tuple(islice(self.kept, skipped, skipped + limit)), max(0, first - after - 1)


def _is_first_at_its_place(job: Job) -> bool:
    """Say whether a job that starts has not run since it took its place; its start is not written down yet."""
    assert job.queued_ms is not None
    return job.started_ms is None or job.started_ms < job.queued_ms
