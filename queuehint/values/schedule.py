"""Schedules: recurrences and their stored state, as frozen values."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, get_args

import attrs

from queuehint.schema.compiled import taker
from queuehint.schema.kinds import MomentMs, ShortText, SomeMs
from queuehint.values.record import moment
from queuehint.values.spec import JobSpec

SCHEDULES_MAX = 10_000
TOO_MANY_SCHEDULES = f"there are {SCHEDULES_MAX} schedules, the limit"
SCHEDULE_BYTES_MAX = 65_536
FIRINGS_MAX = 100
"""Maximum number of missed firings that one step catches up on."""

Missed = Literal["skip", "once", "all"]
MISSED: tuple[Missed, ...] = get_args(Missed)


@attrs.frozen(kw_only=True, weakref_slot=False)
class Recurrence:
    """
    The due times of a schedule: by a cron expression, or at an interval.

    Args:
        cron: five fields, read in *timezone*; or
        every_ms: this long after the last time it was due.
        timezone: the name of a time zone, for *cron*.
        missed: how to treat due times at which no worker ran: ``"skip"`` drops what is more than a minute late,
            ``"once"`` fires once for all of them, ``"all"`` fires for each.
        start_ms, end_ms: no due time is before the one or after the other.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter and the value.
    """

    cron: ShortText | None = None
    every_ms: SomeMs | None = None
    timezone: ShortText = "UTC"
    missed: Missed = "skip"
    start_ms: MomentMs | None = None
    end_ms: MomentMs | None = None

    def __attrs_post_init__(self) -> None:
        _take_recurrence(self)


_take_recurrence: Final = taker(lambda: Recurrence)


@attrs.frozen(kw_only=True, weakref_slot=False)
class Schedule:
    """
    Stored state of a schedule: a snapshot, unaffected by later changes.

    Args:
        name: unique in a namespace.
        spec: what each of its jobs is asked to be, but for the id, which follows from *name* and the due time.
        recurrence: when it is due.
        version: grows with every change and every firing; no two states of any schedule of a namespace share one.
        next_ms: when it is due next, None if never again. While it is paused it is due at no time.
        is_paused: it fires nothing until it is resumed.
        last_ms, last_id: the due time and the id of the last job it fired; None before.
    """

    name: str
    spec: JobSpec
    recurrence: Recurrence
    version: int
    next_ms: int | None
    is_paused: bool = False
    last_ms: int | None = None
    last_id: str | None = None

    @property
    def task(self) -> str:
        """The name of the handler."""
        return self.spec.task

    @property
    def next_at(self) -> datetime | None:
        """The next due time; None after the last, or while paused."""
        return None if self.next_ms is None or self.is_paused else moment(self.next_ms)

    @property
    def last_at(self) -> datetime | None:
        """The due time of the last fired job."""
        return None if self.last_ms is None else moment(self.last_ms)
