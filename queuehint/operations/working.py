"""Operations of workers: claim and settle, renew, post notes, and do due work."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import attrs

from queuehint.operations.base import (
    ANYONE,
    GRANTS_MAX,
    LEASES_MAX,
    NOTES_MAX,
    POOLS_MAX,
    RELEASE_LENGTH_MAX,
    SETTLEMENTS_MAX,
    Operation,
    Verdict,
)
from queuehint.schema.checks import counted, sized
from queuehint.schema.kinds import (
    AnyCount,
    Asked,
    AtMost,
    Digest,
    DurationMs,
    JobId,
    NameText,
    Payload,
    Repeated,
    ShortText,
    Token,
)
from queuehint.values.outcome import RESULT_BYTES_MAX, Grant, Outcome, Progress, Step

__all__ = [
    "Announce",
    "Announced",
    "Exchange",
    "Exchanged",
    "Note",
    "Post",
    "Posted",
    "Renew",
    "Renewed",
    "Tick",
    "Ticked",
    "Unreadable",
]


@attrs.frozen
class Unreadable:
    """
    A granted job with an unreadable spec. Its worker settles the job at once.

    Args:
        problem: what is wrong with it.
        is_newer: a later release seems to have written it, which says more than this one knows; else it is damaged.
    """

    job_id: str
    token: int
    problem: str
    is_newer: bool


@attrs.frozen
class Exchanged:
    """
    Reply to a worker's exchange.

    Args:
        verdicts: one for each settlement, DONE or LOST.
        grants: jobs to run now.
        canceled: ids of this worker's jobs that were asked to stop since it was last told.
        due: schedules are due: ask `DueSchedules`.
        unreadable: granted too, but not runnable by this release.
    """

    verdicts: tuple[Verdict, ...]
    grants: tuple[Grant, ...]
    canceled: tuple[str, ...]
    more: bool
    due: bool = False
    unreadable: tuple[Unreadable, ...] = ()


@attrs.frozen
class Exchange(Operation[Exchanged]):
    """
    Settle a batch of started jobs and claim the next, in one round trip.

    Args:
        worker: unique to this incarnation of the worker.
        settle: up to 1 000 outcomes.
        pools: up to 64 pools to claim from, taken in rotation.
        limit: how many jobs to claim at most, 0–1 000.
        lease_ms: how long the grants last unless renewed.
        users: claim only jobs of these, up to 64, None among them for jobs without a user; by default of everyone.
        steal: up to 64 others whose jobs are claimed while none of *users* has any ready in these pools; `ANYONE` for
            all others. Pools times users named may be 1 000.
        is_last: the worker leaves; others are woken for the ready jobs and due times that only it was told of.
        announces: this worker says by `Renew` with *begun* when the code of a job on its last life begins (one that one
            more loss makes FAILED); until then a lease that ends is not counted as a loss.
        release: a digest of what the code of this worker can run, at most 16 ASCII letters and digits. A job that is
            given back as UNKNOWN_TASK is not offered to this release again, and at once to all others. Without one it
            comes again after a pause, to any worker.

    Raises:
        InvalidJobError: too much of something, *steal* without *users*, a *limit* in the last exchange, or a *release*
            of other characters.
    """

    is_claim: ClassVar[bool] = True

    worker: Annotated[NameText, Repeated()]
    settle: Annotated[tuple[Outcome, ...], AtMost(SETTLEMENTS_MAX)] = ()
    pools: Annotated[tuple[NameText, ...], AtMost(POOLS_MAX), Repeated()] = ("default",)
    limit: Annotated[int, Asked(0, GRANTS_MAX)] = 0
    lease_ms: DurationMs = 30_000
    users: Annotated[tuple[NameText | None, ...] | None, Repeated()] = None
    steal: Annotated[tuple[NameText | None, ...] | Literal["*"], Repeated()] = ()
    is_last: bool = False
    announces: bool = False
    release: Annotated[str, Digest(RELEASE_LENGTH_MAX), Repeated()] = ""

    @property
    def among(self) -> tuple[str | None, ...] | None:
        """The users whose jobs may be claimed; None for all."""
        if self.users is None or self.steal == ANYONE:
            return None
        return (*self.users, *self.steal)


@attrs.frozen
class Renewed:
    """One verdict for each lease: DONE, CANCELED (renewed, and requested to stop) or LOST."""

    verdicts: tuple[Verdict, ...]
    more: bool


@attrs.frozen
class Renew(Operation[Renewed]):
    """
    Extend leases, each a job id and its token, and the presence leases of waiters, to *lease_ms* from now.

    Args:
        begun: the code of these jobs begins now: from here on losing them counts; see *announces* of `Exchange`.
        blocked_ms: how long code has blocked the event loop of the worker that runs them, for `Why`; 0 if none does.
    """

    leases: Annotated[tuple[tuple[JobId, Token], ...], AtMost(LEASES_MAX)]
    lease_ms: DurationMs = 30_000
    begun: bool = False
    blocked_ms: DurationMs = 0


@attrs.frozen
class Note:
    """
    The messages of one job: log lines, progress, partial result, step results.

    Args:
        token: of the running job's newest grant; None for lines alone, appended to any record that is kept, whatever
            its state.
        lines: are appended to its log: the last 1 000 are kept, each cut at 4 096 bytes by the caller.
        result: at most 1 MiB, opaque to every backend; a later attempt continues from it. It is replaced by the next,
            and by the result of a job that finishes with one; a job that fails or is canceled has no result.
        step: the result of one of its steps. The first of a name is kept, until the record is gone. A job has at most
            1 000, of 16 MiB together: a note with one more is refused, with all that it holds.
    """

    job_id: JobId
    token: Token | None
    lines: tuple[ShortText, ...] = attrs.field(default=(), repr=counted)
    progress: Progress | None = None
    result: Annotated[bytes, Payload(RESULT_BYTES_MAX)] | None = attrs.field(default=None, repr=sized)
    step: Step | None = None


@attrs.frozen
class Posted:
    """
    Reply to notes.

    Args:
        verdicts: one for each note: DONE, LOST, or REFUSED if there is no room for its step; of one without a token
            DONE or UNKNOWN.
        steps: for each note that is DONE and holds a step: when the result of that name was stored, and that result if
            it was stored before; None if it is that of the note.
    """

    verdicts: tuple[Verdict, ...]
    steps: tuple[tuple[int, bytes | None], ...] = attrs.field(default=(), repr=counted)


@attrs.frozen
class Post(Operation[Posted]):
    """
    Store the notes of jobs, each as if sent alone.

    Args:
        notes: up to 1 000, in order.

    Raises:
        InvalidJobError: a note without a token has more than lines.
        BackendFullError: there is no room for what the notes hold; nothing is stored, and each may be sent alone.
    """

    notes: Annotated[tuple[Note, ...], AtMost(NOTES_MAX)]


@attrs.frozen
class Announced:
    """
    The registration of a worker, and the marks by which the worker recognizes the store.

    Args:
        verdict: DONE; UNKNOWN if a worker leaves that was not known.
        is_new: the worker was not known before.
        token: no grant of this store so far has a greater one, and no grant to come has another epoch, unless the store
            loses data or reaches the end of a count.
    """

    verdict: Verdict
    is_new: bool
    token: int


@attrs.frozen
class Announce(Operation[Announced]):
    """
    Register a worker and its selection of jobs, for `ListWorkers` and `Why`, for `WORKER_SEEN_MS`.

    Its registration ends once one of its leases is reaped.

    Up to `WORKERS_MAX` are registered: one more takes the place of the one that has been silent for longest.

    Args:
        worker: as of `Exchange`, and so are *pools*, *users* and *steal*.
        host: the machine it runs on, 1–256 bytes; *pid* the process there.
        slots: how many jobs it runs at once at most, *running* how many it runs now.
        version_name: what its application calls this release of itself, 1–256 bytes.
        gone: it leaves, and is known no more; UNKNOWN if it was not.
        release: as of `Exchange`: jobs that the releases of all workers here have refused are stuck.

    Raises:
        InvalidJobError: too much of something, *steal* without *users*, or a *release* of other characters.
    """

    worker: NameText
    host: NameText
    pid: AnyCount
    slots: Annotated[int, Asked(1, GRANTS_MAX)]
    running: AnyCount = 0
    pools: Annotated[tuple[NameText, ...], AtMost(POOLS_MAX)] = ("default",)
    users: tuple[NameText | None, ...] | None = None
    steal: tuple[NameText | None, ...] | Literal["*"] = ()
    version_name: NameText | None = None
    gone: bool = False
    release: Annotated[str, Digest(RELEASE_LENGTH_MAX)] = ""


@attrs.frozen
class Ticked:
    """*next_ms* is the next time something comes to be due, None if nothing does."""

    more: bool
    next_ms: int | None


@attrs.frozen
class Tick(Operation[Ticked]):
    """Do leftover and due work on behalf of all workers: promote, reap, prune."""
