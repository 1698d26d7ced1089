"""
A job inside the core: one mutable slotted object; frozen records are made of it for replies.

What most jobs never have (errors, log lines, progress, open edges) lies in `Notes`, made when first needed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from queuehint.core.trie import Walk
from queuehint.records import ERRORS_MAX, LOG_LINES_MAX, OVER, JobError, JobRecord, JobSpec, JobState, Progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.core.heap import Entry, LazyHeap


class Notes:
    """What most jobs never have."""

    __slots__ = ("asked", "blocked", "errors", "logs", "logs_truncated", "progress")

    def __init__(self) -> None:
        self.errors: deque[JobError] = deque(maxlen=ERRORS_MAX)
        self.logs: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self.logs_truncated = False
        self.progress: Progress | None = None
        self.blocked: set[str] = set()
        self.asked: JobSpec | None = None
        """What the job was first asked to be, once its key has given it other content."""


class Job:
    """
    One job and where it is.

    ``seq`` is its place in the order, 0 while it has none. ``since`` is the number up to which a cancellation by path
    covers it: its own, or that of its last redrive. ``walk`` leads to its claims at the gates while it has its place,
    ``missing`` counts those not granted yet. ``ready``, ``timer`` and ``expiry`` are its entries in the ready queue
    and among the timers, None while it has none; ``parked`` is the heap of the paused path it is put aside in.
    ``cancel`` is why a cancellation was asked for while it ran. ``first_ms`` is when it was first started, ``gone``
    says that its record has expired and only its id is kept.
    """

    __slots__ = (
        "attempts",
        "cancel",
        "cause",
        "due_ms",
        "ended_ms",
        "enqueued_ms",
        "expiry",
        "first_ms",
        "gone",
        "id",
        "losses",
        "missing",
        "notes",
        "number",
        "parked",
        "queued_ms",
        "ready",
        "result",
        "seq",
        "since",
        "spec",
        "started_ms",
        "state",
        "timer",
        "token",
        "version",
        "walk",
        "worker",
    )

    def __init__(self, spec: JobSpec, number: int, state: JobState, now_ms: int) -> None:
        self.id = spec.id
        self.spec = spec
        self.number = self.since = number
        self.state = state
        self.enqueued_ms = now_ms
        self.version = 1
        self.walk: Walk | None = None
        self.seq = self.missing = self.attempts = self.losses = 0
        self.gone = False
        self.ready: Entry | None = None
        self.timer: Entry | None = None
        self.expiry: Entry | None = None
        self.parked: LazyHeap[Job] | None = None
        self.notes: Notes | None = None
        self.token: int | None = None
        self.worker: str | None = None
        self.cancel: str | None = None
        self.cause: str | None = None
        self.result: bytes | None = None
        self.due_ms: int | None = None
        self.queued_ms: int | None = None
        self.first_ms: int | None = None
        self.started_ms: int | None = None
        self.ended_ms: int | None = None

    @property
    def is_over(self) -> bool:
        """FINISHED, FAILED or CANCELED."""
        return self.state in OVER

    @property
    def is_fresh(self) -> bool:
        """Unfinished and never started: a burst of its key may still become it."""
        return self.first_ms is None and self.state not in OVER

    @property
    def is_placed(self) -> bool:
        """It holds or waits for its gates."""
        return self.seq != 0

    @property
    def walks(self) -> list[Walk]:
        """Its claims at the gates, while it has its place."""
        walks = []
        walk = self.walk
        while walk is not None:
            walks.append(walk)
            walk = walk.next
        return walks

    @property
    def blocked(self) -> set[str]:
        """The ids of the jobs it waits for."""
        return self.notes.blocked if self.notes is not None else set()

    def note(self) -> Notes:
        """Return its notes, made if there are none yet."""
        if self.notes is None:
            self.notes = Notes()
        return self.notes

    def log(self, lines: Iterable[str]) -> None:
        """Append lines, the oldest make room."""
        notes = self.note()
        for line in lines:
            notes.logs_truncated = notes.logs_truncated or len(notes.logs) == LOG_LINES_MAX
            notes.logs.append(line)

    def record(self) -> JobRecord:
        """Return a frozen copy of all that is known."""
        notes = self.notes or _NO_NOTES
        return JobRecord(
            id=self.id,
            number=self.number,
            seq=self.seq or None,
            version=self.version,
            state=self.state,
            spec=self.spec,
            attempts=self.attempts,
            losses=self.losses,
            token=self.token,
            worker=self.worker,
            enqueued_ms=self.enqueued_ms,
            due_ms=self.due_ms,
            queued_ms=self.queued_ms,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
            result=self.result,
            errors=tuple(notes.errors),
            cause=self.cause if self.cause is not None else self.cancel,
            cancel_requested=self.cancel is not None and self.state not in OVER,
            progress=notes.progress,
            logs=tuple(notes.logs),
            logs_truncated=notes.logs_truncated,
        )


_NO_NOTES = Notes()
