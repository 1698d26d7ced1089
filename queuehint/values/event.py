"""
Events, one `Event` for each state transition of each job and for each progress report, and their filters.

The store emits them, so they cover all processes, and transitions that no process requested: a job that is due, a
worker that died, a record that expired.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

import attrs

from queuehint.schema.compiled import normaliser
from queuehint.schema.kinds import JobId, NameText
from queuehint.values.hint import Claim, Path, gate_key, queue_key
from queuehint.values.outcome import Progress
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

Key = TypeVar("Key")

EVENT_BYTES = 256
"""What an event takes besides its texts, about; see `event_bytes`."""
ERROR_BYTES_MAX = 1024
"""An event has so many bytes of an error's message, and of its type; the record of the job has all."""


class EventKind(StrEnum):
    """Kind of an event."""

    ENQUEUED = "enqueued"
    """It was added; its state tells what it waits for."""
    SCHEDULED = "scheduled"
    """It waits for a time: taken off its place by a long back-off, or given a time by its key or its commit."""
    DEFERRED = "deferred"
    """It waits for others: its time has come and its edges have not, or it waits for its children."""
    QUEUED = "queued"
    """It has taken its place: it was due, or its last edge is resolved."""
    STARTED = "started"
    PROGRESSED = "progressed"
    """Its handler has reported progress; its state is the same."""
    FINISHED = "finished"
    FAILED = "failed"
    """It is dead, for the reason in its cause."""
    RETRIED = "retried"
    """An attempt has failed, another one will follow; the cause is the type of the error."""
    SNOOZED = "snoozed"
    """Its handler has put it off."""
    RELEASED = "released"
    """Its worker has given it back: it stops, or (``unknown_task``) does not know the task."""
    LOST = "lost"
    """Its worker died; it goes on elsewhere."""
    CANCELED = "canceled"
    REDRIVEN = "redriven"
    """It was brought back, after its end."""
    PRUNED = "pruned"
    """Its record has expired."""


EventWord: TypeAlias = Literal[
    "enqueued", "scheduled", "deferred", "queued", "started", "progressed", "finished", "failed", "retried", "snoozed",
    "released", "lost", "canceled", "redriven", "pruned",
]  # fmt: skip
"""The words of `EventKind`, for type checkers."""


@attrs.frozen(kw_only=True)
class Event:
    """
    One state transition of one job, or one progress report.

    Args:
        at: its place among all events of the namespace; each has the next number, with or without subscribers.
        at_ms: when, by the store's clock; ms since the epoch.
        kind: what happened.
        id: the job's; *number* is its order of enqueue.
        old: its state before; None if it is new.
        new: its state now; None if its record is gone.
        attempt: how many attempts are counted.
        took_ms: how long it ran, if it was STARTED; if it starts, how long it had its place, None if it ran there
            before; None for all other events.
        task, pool, user, service: what it is to do, and whose it is.
        tags: those of the job.
        flow: the id of the flow it belongs to.
        claims: its places.
        cause: why, where there is something to say.
        error_type, error_message: the error of the attempt that ended, if it is RETRIED, FAILED or LOST because of one;
            the first 1 024 bytes each, without what `redact` of its worker takes out.
        progress: what was reported, if it is PROGRESSED.
    """

    at: int
    at_ms: int
    kind: EventKind
    id: str
    number: int
    old: JobState | None
    new: JobState | None
    attempt: int = 0
    took_ms: int | None = None
    task: str = ""
    pool: str = "default"
    user: str | None = None
    cause: str | None = None
    service: str | None = None
    flow: str | None = None
    claims: tuple[Claim, ...] = ()
    error_type: str | None = None
    error_message: str | None = None
    progress: Progress | None = None
    tags: tuple[str, ...] = ()

    @property
    def path(self) -> Path | None:
        """The path of the job's only claim; None for no claim or several."""
        return self.claims[0].path if len(self.claims) == 1 else None

    @property
    def queue_keys(self) -> tuple[str, ...]:
        """The queue key of each claim."""
        return tuple(queue_key(claim.path) for claim in self.claims)


def event_bytes(event: Event) -> int:
    """
    Return the size of an event in a bounded log or queue: its texts in UTF-8, and a fixed size for the rest.

    >>> event_bytes(Event(at=1, at_ms=0, kind=EventKind.QUEUED, id="a", number=1, old=None, new=None, task="t"))
    265
    """
    texts = [event.id, event.task, event.pool, event.user, event.flow, event.service]
    texts += (event.cause, event.error_type, event.error_message)
    texts += (gate_key(claim.path) for claim in event.claims)
    size = EVENT_BYTES + 2 * len(event.claims) - bool(event.claims)
    if event.progress is not None:
        texts.append(event.progress.as_text())
    if event.tags:
        texts += event.tags
        size += len(event.tags)
    return size + sum([len(text) if text.isascii() else len(text.encode()) for text in texts if text])


@attrs.frozen(kw_only=True)
class Missed:
    """*count* events were dropped: not read in time, or the listener is too slow."""

    count: int


@attrs.frozen(kw_only=True)
class EventFilter:
    """
    Conditions on events, joined by AND. None or ``()`` is no condition.

    Args:
        kinds: one of these.
        path: with a claim at or below this path; ``()`` is any claim at all.
        user, flow: exactly these.
    """

    kinds: tuple[EventKind, ...] = ()
    path: Path | None = None
    user: NameText | None = None
    flow: JobId | None = None

    def check(self) -> EventFilter:
        """
        Return the filter with its words plain, its kinds each once and in the order of `EventKind`.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the field.
        """
        return attrs.evolve(self, **_normal_filter(self))

    def passes(self, event: Event) -> bool:
        """Return whether an event meets all conditions."""
        path = self.path
        return (
            (not self.kinds or event.kind in self.kinds)
            and (self.user is None or self.user == event.user)
            and (self.flow is None or self.flow == event.flow)
            and (path is None or any(claim.path[: len(path)] == path for claim in event.claims))
        )


_normal_filter: Final = normaliser(lambda: EventFilter)


class FilterIndex(Generic[Key]):
    """Filters of keys, indexed by one condition each: an event is compared only with the filters it may pass."""

    def __init__(self) -> None:
        self._filters: dict[Key, EventFilter] = {}
        self._by_condition: dict[Hashable, dict[Key, EventFilter]] = {}

    def add(self, key: Key, wanted: EventFilter) -> None:
        """Add the filter of a new key."""
        self._filters[key] = wanted
        self._by_condition.setdefault(_condition(wanted), {})[key] = wanted

    def remove(self, key: Key) -> None:
        """Remove the filter of a key."""
        condition = _condition(self._filters.pop(key))
        of_condition = self._by_condition[condition]
        del of_condition[key]
        if not of_condition:
            del self._by_condition[condition]

    def filters(self) -> tuple[EventFilter, ...]:
        """Return the filters, each once."""
        return tuple(dict.fromkeys(self._filters.values()))

    def passing(self, event: Event) -> Iterator[Key]:
        """Yield the keys whose filters an event passes, each once."""
        conditions: dict[Hashable, None] = {None: None, ("flow", event.flow): None, ("user", event.user): None}
        for claim in event.claims:
            path = claim.path
            conditions.update([(("path", path[:depth]), None) for depth in range(len(path) + 1)])
        for condition in conditions:
            for key, wanted in self._by_condition.get(condition, {}).items():
                if wanted.passes(event):
                    yield key


def _condition(wanted: EventFilter) -> Hashable:
    """Return the condition by which a filter is found."""
    if wanted.path is not None:
        return "path", wanted.path
    if wanted.flow is not None:
        return "flow", wanted.flow
    return None if wanted.user is None else ("user", wanted.user)
