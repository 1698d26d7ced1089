"""
Due times: from a recurrence to times.

An interval counts from the last due time, so a late firing does not shift it. The local times of a cron expression
come from cronsim, which is asked without a time zone; here they become times of its zone, by the rules of Debian's cron
at clock changes. One at a fixed time (neither minute nor hour begins with ``*``) fires exactly once for a local time
that is skipped or repeated: at the end of the skipped hour, or in the first of the two hours. Any other follows the
local time, so it fires in both of two equal hours, and in none that is skipped. (cronsim itself, asked with a zone,
gives a local time that is skipped where it jumps to a day, and steps over times where clocks change by half an hour.)
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo
from heapq import heappop, heappush
from itertools import takewhile
from typing import TYPE_CHECKING

from queuehint.errors import InvalidJobError, InvalidJobTypeError, MissingExtraError, shown
from queuehint.schema.checks import check_choice, check_duration, check_run_at
from queuehint.values.schedule import FIRINGS_MAX, MISSED, Recurrence
from queuehint.worker.schedules.cron_text import plain_cron

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE_MS = 60_000
"""A firing later than this is missed, where missed due times are skipped."""
EVERY_MIN_MS = 1000
CRON_LENGTH_MAX = 256

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
    plain = plain_cron(text)
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
        InvalidJobError: this machine knows none of that name, or has no time zone data at all.
    """
    if name == "UTC":
        return UTC
    zone = _zone(name)
    if zone is None:
        problem = f"timezone {shown(name)} is not known here; a name is like 'Europe/Berlin'"
        if _zone("Europe/London") is None:
            problem = (
                f"timezone {shown(name)} requires time zone data, and this machine has none: install tzdata, by pip or "
                "as a package of the system"
            )
        raise InvalidJobError(problem)
    return zone


def _zone(name: str) -> tzinfo | None:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError, ValueError):
        # A name of a folder of the database, or a path out of it, is another error on each system.
        return None


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
    Return the past due times to fire now, and the next due time.

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
        for at in _moments(CronSim(recurrence.cron, _local_before(begin)), recurrence.cron, zone):
            at_ms = round(at.timestamp()) * 1000
            if at_ms > after_ms:
                after_ms = at_ms
                yield at_ms
    except (OverflowError, ValueError):
        return


def _local_before(begin: datetime) -> datetime:
    """Return the local time from which on to look: where it comes twice, from before the first time on."""
    repeated = begin.replace(fold=0).utcoffset(), begin.replace(fold=1).utcoffset()
    assert repeated[0] is not None
    assert repeated[1] is not None
    return begin.replace(tzinfo=None, fold=0) - max(timedelta(0), repeated[0] - repeated[1])


def _moments(local_times: Iterator[datetime], cron: str, zone: tzinfo) -> Iterator[datetime]:
    """Yield the times of a zone that ascending local times stand for, by the rules of Debian's cron; some twice."""
    minute, hour, *_ = cron.split()
    is_fixed = not minute.startswith("*") and not hour.startswith("*")
    # Those of a repeated hour come in the order of time: all of the first one, then all of the second.
    repeated: list[datetime] = []
    for local in local_times:
        at = local.replace(tzinfo=zone)
        first, second = at.utcoffset(), at.replace(fold=1).utcoffset()
        assert first is not None
        assert second is not None
        now = at.astimezone(UTC)
        while repeated and repeated[0] <= now:
            yield heappop(repeated)
        if first == second or is_fixed:
            yield _end_of_gap(local, zone) if first < second else now
        elif first > second:
            yield now
            heappush(repeated, at.replace(fold=1).astimezone(UTC))


def _end_of_gap(local: datetime, zone: tzinfo) -> datetime:
    """Return when a gap is over in which a local time lies."""
    while True:
        at = local.replace(tzinfo=zone).astimezone(UTC)
        if at.astimezone(zone).replace(tzinfo=None) == local:
            return at
        local += timedelta(minutes=1)
