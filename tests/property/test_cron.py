"""Due times of cron expressions: of each minute of a time zone by brute force, and as another library has them."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cron_converter import Cron

from queuehint.values.schedule import Recurrence
from queuehint.worker.schedules.due_times import check_recurrence, due_after
from tests.each import for_each
from tests.support import thorough

ZONES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/Santiago": ("2026-04-05", "2026-09-06"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),
    "Africa/Cairo": ("2026-04-24", "2026-10-30"),
    "Atlantic/Azores": ("2026-03-29", "2026-10-25"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"),
    "Pacific/Apia": ("2011-12-30", "2011-09-24"),
    "Asia/Kolkata": ("2026-03-29",),
}
"""Days on which clocks change."""
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
FIRINGS = 50


# --- expressions -----------------------------------------------------------------------------------------------------


def term(random: Random, least: int, most: int) -> str:
    begin = random.randint(least, most)
    end = random.randint(begin, most)
    step = random.randint(1, max(2, (most - least) // 2))
    return random.choice(
        (str(begin), str(begin), f"{begin}-{end}", f"{begin}-{end}/{step}", f"*/{step}", f"{begin}/{step}")
    )


def field(random: Random, least: int, most: int, star: float) -> str:
    if random.random() < star:
        return "*"
    return ",".join(term(random, least, most) for _ in range(random.choice((1, 1, 1, 2, 3))))


def expression(random: Random, stars: tuple[float, ...] = (0.2, 0.3, 0.6, 0.7, 0.6)) -> str:
    return " ".join(field(random, *limits, star) for limits, star in zip(RANGES, stars, strict=True))


def values(text: str, least: int, most: int) -> set[int]:
    """Read a field by its definition alone."""
    found: set[int] = set()
    for part in text.split(","):
        body, _, step = part.partition("/")
        first, dash, last = body.partition("-")
        begin = least if body == "*" else int(first)
        end = most if body == "*" or (step and not dash) else int(last or first)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


class Definition:
    """What a cron expression means, minute by minute."""

    def __init__(self, cron: str) -> None:
        self.texts = cron.split()
        self.sets = [values(text, *limits) for text, limits in zip(self.texts, RANGES, strict=True)]
        self.is_fixed = self.texts[0][0] != "*" and self.texts[1][0] != "*"

    def has_day(self, local: datetime) -> bool:
        _, _, days, months, weekdays = self.sets
        of_month = local.day in days
        of_week = bool({local.isoweekday(), local.isoweekday() % 7} & weekdays)
        both = self.texts[2][0] == "*" or self.texts[4][0] == "*"
        return local.month in months and ((of_month and of_week) if both else (of_month or of_week))

    def has(self, local: datetime) -> bool:
        return local.minute in self.sets[0] and local.hour in self.sets[1] and self.has_day(local)

    def times(self, zone: ZoneInfo, begin_ms: int, end_ms: int) -> list[int]:
        """Return the due times after one time and until another, both whole minutes."""
        minutes = range(begin_ms, end_ms + 1, 60_000)
        locals_ = [datetime.fromtimestamp(at_ms // 1000, zone).replace(tzinfo=None, fold=0) for at_ms in minutes]
        if not self.is_fixed:
            return [at for at, local in zip(minutes, locals_, strict=True) if at > begin_ms and self.has(local)]
        found = []
        latest = locals_[0]
        for at_ms, local in islice(zip(minutes, locals_, strict=True), 1, None):
            # Each local time once: all that have gone by since the latest one, and none again.
            gone_by = max(0, round((local - latest) / timedelta(minutes=1)))
            if any(self.has(local - timedelta(minutes=back)) for back in range(gone_by)):
                found.append(at_ms)
            latest = max(latest, local)
        return found


def ms(moment: datetime) -> int:
    return calendar.timegm(moment.astimezone(UTC).timetuple()) * 1000


def due_times(recurrence: Recurrence, begin_ms: int, *, most: int = 10_000, end_ms: float = float("inf")) -> list[int]:
    found: list[int] = []
    at_ms = due_after(recurrence, begin_ms, begin_ms)
    while at_ms is not None and at_ms <= end_ms and len(found) < most:
        found.append(at_ms)
        at_ms = due_after(recurrence, at_ms, begin_ms)
    return found


# --- by brute force --------------------------------------------------------------------------------------------------


@for_each("zone", ZONES)
def test_due_times_at_clock_changes_agree_with_the_definition(zone: str) -> None:
    random = Random(zone)
    for _ in range(thorough(60, quick=3)):
        day = datetime.fromisoformat(random.choice(ZONES[zone])).replace(tzinfo=ZoneInfo(zone))
        noon_ms = ms(day.replace(hour=12))
        # In the repeated hour itself a time is not told from its twin by what came before: begin well ahead.
        begin_ms, end_ms = noon_ms - 30 * 3_600_000, noon_ms + 6 * 3_600_000
        cron = expression(random, (0.1, 0.1, 0.7, 0.9, 0.7))
        found = due_times(Recurrence(cron=cron, timezone=zone), begin_ms, end_ms=end_ms)
        assert found == Definition(cron).times(ZoneInfo(zone), begin_ms, end_ms), f"{cron!r} in {zone} on {day:%F}"
        for at_ms, next_ms in pairwise(found[:20]):
            now_ms = random.randrange(at_ms, next_ms)
            assert due_after(Recurrence(cron=cron, timezone=zone), now_ms, 0) == next_ms, f"{cron!r} after {now_ms}"


# --- by another library ----------------------------------------------------------------------------------------------


def of_converter(cron: str, begin: datetime) -> Iterator[datetime]:
    """
    Yield what cron-converter finds, where it reads an expression as Debian's cron does.

    It asks that both day of month and day of week fit, also where either is enough; so it is asked for each. It takes
    one value with a step for that value, as a range of one value; in cron, where that is read, it is from there on.
    """
    fields = [
        ",".join(re.sub(r"^(\d+)/", rf"\g<1>-{most}/", part) for part in text.split(","))
        for text, (_, most) in zip(cron.split(), RANGES, strict=True)
    ]
    cron = " ".join(fields)
    ways = [cron]
    if fields[2][0] != "*" and fields[4][0] != "*":
        ways = [" ".join((*fields[:4], "*")), " ".join((*fields[:2], "*", *fields[3:]))]
    seekers: list[Any] = [Cron(way).schedule(begin) for way in ways]
    heads = [seeker.next() for seeker in seekers]
    while True:
        first = min(heads)
        yield first
        heads = [seeker.next() if head == first else head for seeker, head in zip(seekers, heads, strict=True)]


def compare(random: Random, count: int) -> None:
    for _ in range(count):
        # cron-converter makes Sunday of the 7 in a range before it takes steps: the days of the week end at 6 here.
        *others, weekdays = expression(random).split()
        cron = " ".join((*others, re.sub(r"(?<![-\d])(\d+)(?=/)", r"\1-6", weekdays.replace("7", "6"))))
        begin = datetime(2026, random.randint(1, 12), random.randint(1, 28), random.randint(0, 23), tzinfo=UTC)
        definition = Definition(cron)
        days = (begin + timedelta(days=day) for day in range(365 * 2))
        if not any(definition.has_day(day) for day in days):
            continue
        theirs = [ms(at) for at in islice(of_converter(cron, begin), FIRINGS)]
        ours = due_times(check_recurrence(cron=cron), ms(begin), most=FIRINGS)
        assert ours == theirs, f"{cron!r} from {begin}"


def test_due_times_agree_with_another_library() -> None:
    compare(Random(50), thorough(400, quick=40))


@pytest.mark.heavy
@pytest.mark.nightly
def test_five_thousand_sequences_agree_with_another_library() -> None:
    compare(Random(5_000), 5_000)
