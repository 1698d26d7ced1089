"""
Due times: from a recurrence to times.

An interval counts from the last due time, so a late firing does not shift it. A cron expression is read in its time
zone by cronsim, by the rules of Debian's cron at clock changes. One at a fixed time (neither minute nor hour begins
with ``*``) fires exactly once for a local time that is skipped or repeated: at the end of the skipped hour, or in the
first of the two hours. Any other follows the local time, so it fires in both of two equal hours.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import TYPE_CHECKING

from queuehint.errors import InvalidJobError, InvalidJobTypeError, MissingExtraError, shown
from queuehint.values.checks import check_choice, check_duration, check_run_at
from queuehint.values.schedule import FIRINGS_MAX, MISSED, Recurrence

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE_MS = 60_000
"""A firing later than this is missed, where missed due times are skipped."""
EVERY_MIN_MS = 1000
CRON_LENGTH_MAX = 256

_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_DAY_MS = 24 * 3600 * 1000
# How far back to look for the last time before now: a little first, so that few times have to be gone through.
_LOOKS_BACK_MS = (3600 * 1000, _DAY_MS, 32 * _DAY_MS, 366 * _DAY_MS)
_SOME_TIME_MS = 946_684_800_000


def check_recurrence(
    *,
    cron: object = None,
    every: object = None,
    timezone: object = None,
    missed: object = "skip",
    start: object = None,
    end: object = None,
) -> Recurrence:
    """
    Check when a schedule is to be due.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
        MissingExtraError: a cron expression is given and cronsim is not installed.
    """
    if (cron is None) == (every is None):
        raise InvalidJobTypeError("give cron or every, one of them")
    if timezone is not None and cron is None:
        raise InvalidJobTypeError("timezone is for cron: an interval is the same in every time zone")
    start_ms = None if start is None else check_run_at(start, parameter="start")
    end_ms = None if end is None else check_run_at(end, parameter="end")
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise InvalidJobError(f"end must not be before start, got {shown(end)}")
    recurrence = Recurrence(
        cron=None if cron is None else _check_cron(cron),
        every_ms=None if every is None else check_duration(every, parameter="every", least_ms=EVERY_MIN_MS),
        timezone="UTC" if timezone is None else _check_timezone(timezone),
        missed=check_choice(missed, MISSED, parameter="missed"),
        start_ms=start_ms,
        end_ms=end_ms,
    )
    if recurrence.cron is not None and next(_cron_times(recurrence, _SOME_TIME_MS), None) is None:
        raise InvalidJobError(f"cron {shown(cron)} never fires")
    return recurrence


def _check_cron(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidJobTypeError(f"cron must be str, got {type(value).__name__}: {shown(value)}")
    text = str.__str__(value)
    if len(text) > CRON_LENGTH_MAX:
        raise InvalidJobError(f"cron is {len(text)} characters, limit {CRON_LENGTH_MAX}: {shown(text)}")
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise InvalidJobError(f"cron must have five fields ({', '.join(_FIELDS)}), got {shown(text)}")
    plain = " ".join(fields)
    error = _why_wrong(plain)
    if error is not None:
        raise InvalidJobError(f"cron {shown(text)}: {error}")
    return plain


def _why_wrong(cron: str) -> str | None:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise MissingExtraError("cron", "cron expressions") from None
    try:
        CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        return f"{error}".lower()
    except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError):
        return "cannot be read"
    return None


def _check_timezone(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidJobTypeError(f"timezone must be str, got {type(value).__name__}: {shown(value)}")
    text = str.__str__(value)
    zone_of(text)
    return text


def zone_of(name: str) -> tzinfo:
    """
    Return a time zone by its name.

    Raises:
        InvalidJobError: this machine knows none of that name.
    """
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError, ValueError):
        # A name of a folder of the database, or a path out of it, is another error on each system.
        raise InvalidJobError(f"timezone {shown(name)} is not known here; a name is like 'Europe/Berlin'") from None


# --- times -----------------------------------------------------------------------------------------------------------


def first_due(recurrence: Recurrence, now_ms: int) -> int | None:
    """
    Return when a new schedule is due first, None if never.

    >>> first_due(Recurrence(every_ms=60_000), 1_000)
    61000
    """
    anchor_ms = now_ms + (recurrence.every_ms or 0) if recurrence.start_ms is None else recurrence.start_ms
    return due_after(recurrence, now_ms, anchor_ms)


def due_after(recurrence: Recurrence, after_ms: int, anchor_ms: int) -> int | None:
    """
    Return the first due time after a time, None if there is none.

    Args:
        anchor_ms: a due time; those of an interval are whole intervals away from it, and none is before it.

    >>> due_after(Recurrence(every_ms=60_000), 130_000, 1_000)
    181000
    """
    if recurrence.every_ms is not None:
        steps = max(0, (after_ms - anchor_ms) // recurrence.every_ms + 1)
        at_ms: int | None = anchor_ms + steps * recurrence.every_ms
    else:
        at_ms = next(_cron_times(recurrence, after_ms), None)
    return None if at_ms is None or (recurrence.end_ms is not None and at_ms > recurrence.end_ms) else at_ms


def come_due(
    recurrence: Recurrence, next_ms: int, now_ms: int, most: int = FIRINGS_MAX
) -> tuple[list[int], int | None]:
    """
    Return for which of the due times that have come to fire now, and the first one after them.

    Args:
        next_ms: the first due time without a firing.
        most: of these at most so many; the one after them may have come too.

    >>> come_due(Recurrence(every_ms=60_000), 60_000, 300_000)
    ([240000, 300000], 360000)
    >>> come_due(Recurrence(every_ms=60_000, missed="once"), 60_000, 300_000)
    ([300000], 360000)
    >>> come_due(Recurrence(every_ms=60_000, missed="all"), 60_000, 300_000, 2)
    ([60000, 120000], 180000)
    """
    at_ms: int | None = next_ms
    if recurrence.missed == "once":
        at_ms = _last_until(recurrence, next_ms, now_ms)
    elif recurrence.missed == "skip" and next_ms < now_ms - GRACE_MS:
        at_ms = due_after(recurrence, now_ms - GRACE_MS - 1, next_ms)
    times: list[int] = []
    while at_ms is not None and at_ms <= now_ms and len(times) < most:
        times.append(at_ms)
        at_ms = due_after(recurrence, at_ms, next_ms)
    return times, at_ms


def _last_until(recurrence: Recurrence, next_ms: int, now_ms: int) -> int:
    """Return the last due time until now, *next_ms* being one."""
    if recurrence.end_ms is not None:
        now_ms = min(now_ms, recurrence.end_ms)
    if recurrence.every_ms is not None:
        return next_ms + (now_ms - next_ms) // recurrence.every_ms * recurrence.every_ms
    for back_ms in _LOOKS_BACK_MS:
        if now_ms - back_ms > next_ms:
            times = takewhile(lambda at_ms: at_ms <= now_ms, _cron_times(recurrence, now_ms - back_ms))
            *_, last_ms = (None, *times)
            if last_ms is not None:
                return last_ms
    return max(takewhile(lambda at_ms: at_ms <= now_ms, _cron_times(recurrence, next_ms)), default=next_ms)


def _cron_times(recurrence: Recurrence, after_ms: int) -> Iterator[int]:
    """Yield the due times of a cron expression after a time, until the end of the calendar or of fifty years."""
    try:
        from cronsim import CronSim
    except ImportError:
        raise MissingExtraError("cron", "cron expressions") from None
    assert recurrence.cron is not None
    if recurrence.start_ms is not None:
        after_ms = max(after_ms, recurrence.start_ms - 1)
    zone = zone_of(recurrence.timezone)
    try:
        begin = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=after_ms // 1000)).astimezone(zone)
        for at in CronSim(recurrence.cron, begin):
            at_ms = round(at.timestamp()) * 1000
            # Where an hour comes twice, cronsim may begin with a time of the first one.
            if at_ms > after_ms:
                after_ms = at_ms
                yield at_ms
    except (OverflowError, ValueError):
        return
