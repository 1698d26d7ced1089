"""
Jobs of the model: one `Actor` each, and `Jobs`, all of them with queries.

Nothing derived is stored: the dependents of a job are found by visiting all jobs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from queuehint.core.structures.timers import TimerKind
from queuehint.testing.model.places import ready, shape
from queuehint.values.record import OVER, JobState
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from fractions import Fraction

    from queuehint.values.hint import Path
    from queuehint.values.limit import Key, Limit
    from queuehint.values.policy import Retention
    from queuehint.values.record_filter import RecordFilter

__all__ = [
    "CANCELED",
    "DEFERRED",
    "DUE",
    "EXPIRY",
    "FAILED",
    "FINISHED",
    "LEASE",
    "PRUNE",
    "QUEUED",
    "SCHEDULED",
    "STARTED",
    "Actor",
    "Jobs",
]

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DUE, LEASE, EXPIRY, PRUNE, _RESUME = TimerKind


class Actor:
    """
    One job of the model.

    ``seq`` is its place, 0 while it has none; ``number`` the order of enqueue, ``since`` that of its last redrive.
    ``inherited`` is the best level of those that have waited behind its place.
    ``due`` is when it may go on, while it waits for a time. ``needs`` holds its declared dependencies, in as many
    ``portions`` besides its spec (the start of a submission counts those of all its jobs), ``waits`` the jobs that it
    waits for at present, and as what: a job it needs, one of its key, a child of its own.
    ``canceled_by`` is the job because of which it is CANCELED, ``part`` the submission in parts it belongs to while
    it is hidden, and ``sent`` its number, or the last of its part if one there depends on a later one.
    ``refused_by`` holds the releases that have given it back as unknown to them, the newest last.
    ``released`` says that results of those it needs are not kept for it.
    ``steps`` holds when the result of each of its steps was stored, and the result, by name, in this order.
    It is ``gone`` when its record is dropped and only its id kept.
    ``alarms`` holds its timers: when, and of which kind; after its end EXPIRY is when it gives up its key.
    """

    def __init__(self, spec: JobSpec, number: int) -> None:
        self.id = spec.id
        self.number = self.since = number
        self.state = QUEUED
        self.seq = self.attempts = self.losses = self.unknown_task_count = 0
        self.refused_by: list[str] = []
        self.ever_started = self.gone = False
        self.inherited = 0
        self.portions = 0
        self.needs = {edge.id: (edge, spec.policy.on_dependency_failure) for edge in spec.depends_on}
        self.waits: dict[str, Literal["need", "key", "child", "ignored child", "again"]] = {}
        self.is_parent = self.child_failed = self.to_begin = self.released = False
        self.canceled_by: str | None = None
        self.part: str | None = None
        self.sent = number
        self.alarms: dict[TimerKind, int] = {}
        self.token: int | None = None
        self.worker: str | None = None
        self.last_worker: str | None = None
        self.cancel: str | None = None
        self.cause: str | None = None
        self.result: bytes | None = None
        self.steps: dict[str, tuple[int, bytes]] = {}
        self.due: int | None = None
        self.ended = 0
        self.enqueued = 0
        self.asked = spec
        self.set_spec(spec)

    def __repr__(self) -> str:
        claims = " ".join(f"{'~' * (claim.mode == 'shared')}{':'.join(claim.path) or 'root'}" for claim in self.claims)
        return f"<{self.id} {self.state.value} {claims or 'nowhere'}>"

    def set_spec(self, spec: JobSpec) -> None:
        self.spec = spec
        self.claims = shape(spec.claims)

    @property
    def is_waiting(self) -> bool:
        """Whether the job waits for its turn and for nothing else."""
        return self.state is QUEUED and self.due is None

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_for_a_caller(self) -> bool:
        """Whether the job belongs to its caller, who alone may start it, and whose absence cancels it."""
        return self.spec.presence_ms is not None

    @property
    def is_waiting_parent(self) -> bool:
        return self.is_parent and not self.is_over

    @property
    def can_run(self) -> bool:
        """Whether the job may run some day. A dead job may be redriven while its record is kept."""
        return self.state not in {FINISHED, CANCELED} and not self.gone

    @property
    def stands_for_key(self) -> bool:
        """Whether further jobs of its key are duplicates of this job, while it has the key."""
        return not self.ever_started or self.spec.policy.key_for_ms is not None

    def has_key(self, now_ms: int) -> bool:
        return not self.is_over or self.alarms.get(EXPIRY, 0) > now_ms

    def depends_on(self, job_id: str) -> bool:
        return job_id in self.waits or (job_id in self.needs and self.can_run and not self.released)


class Jobs:
    """All jobs, the jobs with a place, and the pending work."""

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.jobs: dict[str, Actor] = {}
        self.placed: list[Actor] = []
        """Those with a place, in order."""
        self.starts: dict[str, Actor] = {}
        """Alarms of submissions in parts that wait for their commits, by their names."""
        self.hidden: dict[str, Actor] = {}
        """The jobs of such submissions."""
        self.paused: dict[RecordFilter, int | None] = {}
        """Filters of paused jobs, each with the time at which they are resumed by themselves, if they are."""
        self.closed: dict[Path, str | None] = {}
        """Closed paths, each with the id of its last job, if it was closed with one."""
        self.limits: dict[Key, Limit] = {}
        self.tokens_left: dict[tuple[Key, Path], tuple[Fraction, int]] = {}
        """Tokens left in the bucket of a limit at a place, and the time of that count; by the limit's key and place."""
        self.pending_since: dict[Key, int] = {}
        self.metered: dict[tuple[Key, Path], list[tuple[int, int]]] = {}
        """The starts that a rate without a burst counts: when, and how many tokens; by the limit's key and place."""
        self.undelivered_cancellations: dict[str, list[str]] = {}
        """Which jobs each worker has still to be told to stop."""
        self.agenda: deque[Callable[[], None]] = deque()
        """Follow-up work, first in first out."""
        self.now_ms = self.numbers = self.seqs = self.tokens = self.pruned = 0
        self.awaited: set[str] = set()
        """Jobs on which others depend or did: a new job of the id of one that is forgotten is none of these."""
        self.woven = False
        """There were edges of other kinds than those of a key."""

    def ready(self) -> list[Actor]:
        """R2: return the jobs allowed to start by the rules of places, in order of place."""
        return ready(self.placed)

    def find(self, job_id: str) -> Actor | None:
        """Return a visible job whose record is kept."""
        job = self.jobs.get(job_id)
        return None if job is None or job.gone else job

    def held(self, job_id: str, token: int | None) -> Actor | None:
        """Return a job that runs by this very grant."""
        job = self.jobs.get(job_id)
        return job if job is not None and job.state is STARTED and job.token == token else None

    def newest(self, key: str | None) -> Actor | None:
        """Return the newest job that has a key: unfinished, or ended within the time for which it keeps the key."""
        peers = [job for job in self.jobs.values() if job.spec.key == key is not None and job.has_key(self.now_ms)]
        return max(peers, key=lambda job: job.number, default=None)

    def is_needed(self, job: Actor) -> bool:
        """Whether a job that may run depends on this one."""
        return job.id in self.awaited and any(other.depends_on(job.id) for other in self.jobs.values())

    def waits_for(self, job_ids: Iterable[str], target: str) -> bool:
        """Whether one of these jobs is the target, or waits for it, directly or not."""
        for job_id in job_ids:
            job = self.find(job_id)
            if job_id == target or (job is not None and not job.is_over and self.waits_for(job.waits, target)):
                return True
        return False
