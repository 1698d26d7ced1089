"""Operations of operators: cancel, redrive, delete, pause, limit, weigh, schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import attrs

from queuehint.operations.base import AGAIN_MAX, IDS_MAX, WEIGHT_MAX, Noted, Operation, Verdict
from queuehint.schema.kinds import AnyCount, Asked, AtMost, JobId, MomentMs, NameText, ShortText, SomeMs
from queuehint.values.hint import Path
from queuehint.values.limit import Limit
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "TALLIES",
    "TALLY_MS",
    "Amend",
    "Cancel",
    "CancelFlow",
    "CancelPath",
    "ChangeSchedule",
    "Close",
    "Delete",
    "Discard",
    "Judged",
    "Marked",
    "Pause",
    "PutSchedule",
    "Redrive",
    "Resume",
    "ScheduleChange",
    "SetLimit",
    "Swept",
    "SweptPath",
    "Weigh",
]


@attrs.frozen
class Judged:
    """A verdict and the job's state afterwards (None if unknown) for each id of a batch, in its order."""

    verdicts: tuple[tuple[Verdict, JobState | None], ...]
    more: bool


@attrs.frozen
class Cancel(Operation[Judged]):
    """Cancel up to 1 000 jobs by id: the workers of running ones are notified, all others are CANCELED at once."""

    is_for_inbox: ClassVar[bool] = True
    ids: Annotated[tuple[JobId, ...], AtMost(IDS_MAX)]
    reason: ShortText | None = None

    @property
    def named(self) -> Iterable[str]:
        """The ids of jobs that have to be there already."""
        return self.ids


@attrs.frozen
class Swept:
    """A sweep was begun. It covers the jobs enqueued before it, and goes on while ``more``."""

    more: bool


@attrs.frozen
class SweptPath:
    """
    A sweep of a path was begun.

    Attributes:
        more: something is left over, of the sweep or of other work.
        reached: how many jobs the sweep has canceled or asked to stop so far; those asked before do not count again.
        number: of a sweep that goes on: when it is over, its tally, a decimal number, is what is pulled from
            `TALLIES` under this number as text, for `TALLY_MS`. None where *reached* is the tally.
    """

    more: bool
    reached: int
    number: int | None = None


TALLIES: Final = ""
"""The namespace of the small shared store with the tallies of sweeps; no user can name it."""
TALLY_MS: Final = 600_000


@attrs.frozen
class CancelPath(Operation[SweptPath]):
    """Cancel every earlier enqueued, unfinished job with a claim at or below *path*, in bounded steps."""

    is_for_inbox: ClassVar[bool] = True
    path: Path
    reason: ShortText | None = None


@attrs.frozen
class CancelFlow(Operation[Swept]):
    """Cancel every earlier enqueued, unfinished job of a flow, the last first, in bounded steps."""

    flow: JobId
    reason: ShortText | None = None


@attrs.frozen
class Redrive(Operation[Judged]):
    """
    Requeue up to 1 000 dead jobs with attempts and losses reset. A held place is kept.

    Args:
        downstream: also revive, in bounded steps, the jobs that were canceled because of these.
        waiting: instead of dead jobs, those that wait for a time: it is now. What a job does then it does as if the
            time had come by itself, in bounded steps, in order of enqueue. REFUSED are those that wait for none.
        drop_steps: drop the stored results of the steps of these jobs; those of revived jobs are kept.
        again: instead of dead jobs, up to 100 that are over, however they ended, with the version of each: they are run
            once more, all or none. What one of them depends on is waited for if it is another one of them, or runs;
            it has to be on record. Jobs that depend on one of them and are DEFERRED before they run wait for it again.
            STALE are those of another version, REFUSED those that cannot be run again: one that is not over, on whose
            result a job counts that has its place or has begun, or more than 1 000 jobs that may run, whose
            dependencies would cancel it, or have expired, whose path was closed with another job as its last, or of
            whose end something is left over to be done; and one that would wait for an unfinished job that is none of
            these and waits in turn for one of these, or may. If there are any such, REQUESTED are the others, and
            nothing is changed.

    Raises:
        InvalidJobError: *waiting* with another of them; *again* of other than one version for each id.
    """

    ids: Annotated[tuple[JobId, ...], AtMost(IDS_MAX)]
    downstream: bool = False
    waiting: bool = False
    drop_steps: bool = False
    again: Annotated[tuple[AnyCount, ...], AtMost(AGAIN_MAX)] = ()

    @property
    def named(self) -> Iterable[str]:
        """The ids of jobs that have to be there already."""
        return self.ids


@attrs.frozen
class Discard(Operation[Judged]):
    """Remove up to 1 000 jobs from the dead-letter queue: CANCELED, a held place is freed."""

    ids: Annotated[tuple[JobId, ...], AtMost(IDS_MAX)]


@attrs.frozen
class Delete(Operation[Judged]):
    """
    Drop up to 1 000 records as at the end of their retention: free places, resolve dependents, keep the ids.

    REFUSED are jobs that are not over, and results that a job that depends on them may still read; one that is deleted
    by the same operation counts among these.

    Args:
        versions: if given, one for each id: STALE if the record has another.
    """

    ids: Annotated[tuple[JobId, ...], AtMost(IDS_MAX)]
    versions: tuple[AnyCount, ...] | None = None


@attrs.frozen
class Amend(Operation[Noted]):
    """
    Change the service and the user of a record, unfinished or over.

    Asked for again as it was first, it is the same job still. A ready job takes its turn under its new user.

    Args:
        spec: what is stored, with another service or user.
        version: STALE if the record has another.

    Raises:
        InvalidJobError: it differs from what is stored in more.
    """

    spec: JobSpec
    version: AnyCount


@attrs.frozen
class Marked:
    """Reply to a change. *changed* is False if there was nothing to change."""

    changed: bool
    more: bool


@attrs.frozen
class Pause(Operation[Marked]):
    """
    Stop starts of the jobs that a filter selects. They keep their places.

    Args:
        filter: with at least one of `path`, `service`, `user`, `task`, `pool` and `tag`; no other condition.
        for_ms: resume it by itself after so long, from now, at most 10 years; None for no end. Of what is paused
            already, this end replaces the one it had.

    Raises:
        InvalidJobError: the filter has no such condition, or another; there are 10 000 pauses already,
            or 100 by more than a path.
    """

    filter: RecordFilter
    for_ms: SomeMs | None = None


@attrs.frozen
class Resume(Operation[Marked]):
    """Undo `Pause` of this very filter."""

    filter: RecordFilter


@attrs.frozen
class Close(Operation[Marked]):
    """
    Refuse new jobs with a claim at or below *path*.

    Args:
        reopen: undo that instead, for this very path.
    """

    path: Path
    reopen: bool = False


@attrs.frozen
class PutSchedule(Operation[Marked]):
    """
    Store a schedule in place of a former one of its name.

    An equal one is not changed. A replaced one keeps its pause and its last firing, and with the same recurrence its
    next due time, too.

    Args:
        name: 1–128 bytes, as an id.
        spec: what each of its jobs is asked to be; its arguments take at most 64 KiB.
        next_ms: when it is due first, if it is new or its recurrence is another; None if never.

    Raises:
        InvalidJobError: there are 10 000 others.
    """

    name: JobId
    spec: JobSpec
    recurrence: Recurrence
    next_ms: MomentMs | None


ScheduleChange = Literal["pause", "resume", "drop"]


@attrs.frozen
class ChangeSchedule(Operation[Marked]):
    """
    Pause, resume or remove a schedule. Its fired jobs are not changed.

    Args:
        change: ``"pause"``: it is due at no time until it is resumed. ``"resume"``: from now on it is due at *next_ms*,
            unless it has another version than *version*. ``"drop"``: it is forgotten, if there is one.
        version, next_ms: of ``"resume"`` alone.

    Raises:
        ScheduleNotFoundError: there is none of this name to pause or resume.
        InvalidJobError: there is no *version* to resume, or one for another change.
    """

    name: JobId
    change: ScheduleChange
    version: AnyCount | None = None
    next_ms: MomentMs | None = None


@attrs.frozen
class SetLimit(Operation[Marked]):
    """
    Set the limit of a path, task or pool, in place of the former one. An empty limit removes it.

    It counts what runs now. What runs is never stopped: where more runs than may, nothing starts until enough has
    ended. What was spent of a rate stays spent.

    Raises:
        InvalidJobError: the limit breaks a rule; there are 1 000 limits already.
    """

    limit: Limit


@attrs.frozen
class Weigh(Operation[Marked]):
    """
    Set the starts a turn of a user, or of jobs without one: 1–100. The default 1 removes the entry.

    Raises:
        InvalidJobError: 1 000 users have a weight other than 1 already.
    """

    user: NameText | None
    weight: Annotated[int, Asked(1, WEIGHT_MAX)]
