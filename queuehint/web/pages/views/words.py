"""Numbers, times, states and reasons in the words of the pages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from queuehint.values.record import JobRecord, JobState, moment
from queuehint.values.report import Reason, ReasonKind

_FIRST_MS = -62_135_596_800_000
"""The first moment of the calendar; a job may be due at any time before."""
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))

STATES: Final = {
    JobState.SCHEDULED: "scheduled",
    JobState.DEFERRED: "deferred",
    JobState.QUEUED: "queued",
    JobState.STARTED: "running",
    JobState.FINISHED: "finished",
    JobState.FAILED: "dead",
    JobState.CANCELED: "canceled",
}
"""What a page calls a state."""
STATE_HELP: Final = {
    JobState.SCHEDULED: "waits for its time",
    JobState.DEFERRED: "waits for other jobs or a signal",
    JobState.QUEUED: "has its place in the order",
    JobState.STARTED: "a worker runs it",
    JobState.FINISHED: "ended well",
    JobState.FAILED: "failed for good, in the dead-letter queue",
    JobState.CANCELED: "canceled or discarded",
}

TITLES: Final = {
    ReasonKind.OVER: "Over",
    ReasonKind.RUNNING: "Running",
    ReasonKind.OVERDUE: "Stop requested, code still runs",
    ReasonKind.PERMIT: "Running, waits for a permit",
    ReasonKind.TIME: "Waits for its time",
    ReasonKind.DEPENDENCY: "Waits for other jobs",
    ReasonKind.SIGNAL: "Waits for a signal",
    ReasonKind.DEAD_DEPENDENCY: "Waits for a dead job",
    ReasonKind.PLACE: "Waits for its place",
    ReasonKind.DEAD_HOLD: "A dead job holds the place",
    ReasonKind.BACKOFF: "Waits for its next attempt",
    ReasonKind.PAUSED: "Paused",
    ReasonKind.LIMIT: "Ready, a limit is reached",
    ReasonKind.UNKNOWN_TASK: "No worker knows the task",
    ReasonKind.NO_WORKER: "No worker serves the pool",
    ReasonKind.WORKER: "Ready, waits for a free slot",
    ReasonKind.CALLER: "Ready, waits for its caller",
}
"""The head of a card, by the kind of its reason."""

ENDS: Final = {
    ReasonKind.OVER: "It is over.",
    ReasonKind.RUNNING: "It ends by itself.",
    ReasonKind.OVERDUE: "Its code has to end: look at its worker, whose end frees the place too.",
    ReasonKind.PERMIT: "It goes on by itself; a higher limit lets more run.",
    ReasonKind.TIME: "It goes on by itself.",
    ReasonKind.DEPENDENCY: "It goes on when these jobs have ended.",
    ReasonKind.SIGNAL: "Give the signal, or cancel the job.",
    ReasonKind.DEAD_DEPENDENCY: "Redrive the dead job, or discard it.",
    ReasonKind.PLACE: "It goes on when these jobs have ended.",
    ReasonKind.DEAD_HOLD: "Redrive the dead job, or discard it: either frees the place.",
    ReasonKind.BACKOFF: "It goes on by itself.",
    ReasonKind.PAUSED: "Resume what is paused.",
    ReasonKind.LIMIT: "It goes on by itself; a higher limit lets more run.",
    ReasonKind.UNKNOWN_TASK: "Deploy the code that has the task, or cancel the job.",
    ReasonKind.NO_WORKER: "Start a worker for the pool.",
    ReasonKind.WORKER: "It goes on by itself; more workers start it sooner.",
    ReasonKind.CALLER: "Its caller takes it, or stops waiting.",
}


def number(value: float) -> str:
    """
    Return a number with its digits in groups of three, by narrow spaces that do not break.

    >>> number(1234567).replace(chr(0x202F), "_"), number(12.5)
    ('1_234_567', '12.5')
    """
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    return text.replace(",", "\u202f")


def counted(count: int, one: str, many: str | None = None) -> str:
    """
    Return a number with its noun, in the singular for 1.

    >>> counted(1, "job"), counted(2, "job"), counted(0, "entry", "entries")
    ('1 job', '2 jobs', '0 entries')
    """
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def duration(duration_ms: float) -> str:
    """
    Return a duration in its two largest units.

    >>> duration(250), duration(1500), duration(61_000), duration(7_260_000), duration(172_800_000), duration(0)
    ('250 ms', '1.5 s', '1 min 1 s', '2 h 1 min', '2 d', '0 ms')
    """
    left = max(0, int(duration_ms))
    if left < 1000:
        return f"{left} ms"
    if left < 10_000:
        return f"{left // 100 / 10:g} s"
    parts: list[str] = []
    for unit_ms, name in _UNITS:
        count, left = divmod(left, unit_ms)
        if count or parts:
            parts.append(f"{count} {name}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts))


@lru_cache(1024)
def iso(time_ms: int) -> str:
    """
    Return ms since the epoch as a time in UTC.

    >>> iso(1_500)
    '1970-01-01T00:00:01.500Z'
    """
    return moment(max(time_ms, _FIRST_MS)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(time_ms: int, now_ms: int) -> str:
    """
    Return a time as people read it: that of the day, with the date if it is another day's.

    >>> clock(3_600_000, 0), clock(100_000_000, 0)
    ('01:00:00', '1970-01-02 03:46:40')
    """
    date, _, time = iso(time_ms).partition("T")
    today = iso(now_ms).partition("T")[0]
    return time[:8] if date == today else f"{date} {time[:8]}"


def when(time_ms: int | None, now_ms: int) -> dict[str, str] | None:
    """
    Return a time as a page has it: exact for machines, of the day, and how far it is from now; None if there is none.

    >>> when(0, 61_000)["apart"], when(61_000, 0)["apart"]
    ('1 min 1 s ago', 'in 1 min 1 s')
    """
    if time_ms is None:
        return None
    apart_ms = now_ms - time_ms
    apart = f"{duration(apart_ms)} ago" if apart_ms >= 0 else f"in {duration(-apart_ms)}"
    return {"iso": iso(time_ms), "clock": clock(time_ms, now_ms), "apart": apart, "ms": str(time_ms)}


def heat(value: int, most: int) -> int:
    """
    Return the step of a heat, 0 to 8, on a scale of squares: a little is seen, and much stands out.

    >>> [heat(value, 1000) for value in (0, 1, 40, 250, 1000)]
    [0, 1, 2, 4, 8]
    """
    if value <= 0 or most <= 0:
        return 0
    return max(1, min(8, round(8 * math.sqrt(value / most))))


def reason_title(reason: Reason) -> str:
    """Return the head of a card."""
    if reason.kind is ReasonKind.DEPENDENCY and reason.stuck:
        return "Jobs wait for one another"
    if reason.kind is ReasonKind.OVER:
        return {"finished": "Finished", "dead": "Dead", "canceled": "Canceled"}[STATES[reason.state]]
    return TITLES[reason.kind]


def reason_end(reason: Reason) -> str:
    """Return the end of a wait, in a sentence."""
    if reason.kind is ReasonKind.DEPENDENCY and reason.stuck:
        return "Cancel one of them."
    return ENDS[reason.kind]


MARKS = {"exclusive": "", "shared": "shared", "counted": "permit"}


def claims(record: JobRecord) -> list[tuple[tuple[str, ...], str]]:
    """Return the places of a job: the path of each, and a word for what is special there; that of a permit is none."""
    return [(claim.path, MARKS[claim.mode]) for claim in record.spec.claims]


def percent(part: float, whole: float) -> int:
    """
    Return a share in percent, 0 to 100; something is never nothing, and a part never all.

    >>> percent(1, 1000), percent(999, 1000), percent(5, 5), percent(1, 0)
    (1, 99, 100, 0)
    """
    if part <= 0 or whole <= 0:
        return 0
    if part >= whole:
        return 100
    return min(99, max(1, round(100 * part / whole)))


def listed(items: Iterable[str], most: int = 3) -> str:
    """
    Return some texts as a sentence has them.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d"])
    ('a', 'a and b', 'a, b, c and 1 more')
    """
    found = list(items)
    if len(found) > most:
        return f"{', '.join(found[:most])} and {len(found) - most} more"
    return " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))


_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def cron_words(cron: str) -> str | None:
    """
    Return a cron expression in words, None for an unusual form.

    >>> cron_words("*/5 * * * *"), cron_words("0 3 * * *"), cron_words("30 9 * * 1")
    ('every 5 minutes', 'every day at 03:00', 'every Monday at 09:30')
    >>> cron_words("0 4 1 * *"), cron_words("15 * * * *"), cron_words("0 4 1 1 1")
    ('on day 1 of every month at 04:00', 'every hour at minute 15', None)
    """
    fields = cron.split()
    if len(fields) != 5:
        return None
    minute, hour, day, month, weekday = fields
    if fields == ["*"] * 5:
        return "every minute"
    if minute.startswith("*/") and minute[2:].isdecimal() and fields[1:] == ["*"] * 4:
        return f"every {minute[2:]} minutes"
    if not minute.isdecimal() or month != "*":
        return None
    if hour == "*" and (day, weekday) == ("*", "*"):
        return f"every hour at minute {int(minute)}"
    if hour.startswith("*/") and hour[2:].isdecimal() and (day, weekday) == ("*", "*"):
        return f"every {hour[2:]} hours at minute {int(minute)}"
    if not hour.isdecimal():
        return None
    at = f"at {int(hour):02}:{int(minute):02}"
    if (day, weekday) == ("*", "*"):
        return f"every day {at}"
    if day == "*" and weekday in {"1-5", "MON-FRI"}:
        return f"on weekdays {at}"
    if day == "*" and weekday.isdecimal() and int(weekday) < len(_DAYS):
        return f"every {_DAYS[int(weekday)]} {at}"
    if weekday == "*" and day.isdecimal():
        return f"on day {int(day)} of every month {at}"
    return None
