"""Due times of schedules: intervals, cron expressions, daylight saving changes, and missed firings."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import attrs
import pytest

from queuehint.errors import InvalidJobError, InvalidJobTypeError, MissingExtraError
from queuehint.values.schedule import FIRINGS_MAX, Recurrence
from queuehint.worker.schedules.due_times import GRACE_MS, check_recurrence, come_due, due_after, first_due
from tests.each import for_each
from tests.support import HostileStr

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
BERLIN = "Europe/Berlin"
SPRING = "2026-03-29"
"""On this day two o'clock is followed by three o'clock in Berlin."""
AUTUMN = "2026-10-25"
"""On this day the hour from two to three o'clock comes twice in Berlin."""


def ms(text: str, zone: str = "UTC") -> int:
    """Return a local time as ms since the epoch."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def utc(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%d %H:%M}"


def times(recurrence: Recurrence, begin_ms: int, end_ms: int) -> list[int]:
    """All due times after one time and until another, each worked out from the last."""
    found = []
    at_ms = due_after(recurrence, begin_ms, begin_ms)
    while at_ms is not None and at_ms <= end_ms:
        found.append(at_ms)
        at_ms = due_after(recurrence, at_ms, begin_ms)
    return found


def on_day(cron: str, day: str, zone: str = BERLIN) -> list[str]:
    """The due times from noon of the day before until noon of a day, in UTC."""
    noon_ms = ms(f"{day} 12:00", zone)
    return [utc(at_ms) for at_ms in times(Recurrence(cron=cron, timezone=zone), noon_ms - DAY, noon_ms)]


# --- intervals -------------------------------------------------------------------------------------------------------


def test_an_interval_counts_from_now_or_from_its_start() -> None:
    assert first_due(Recurrence(every_ms=7), 100) == 107
    assert first_due(Recurrence(every_ms=7, start_ms=200), 100) == 200
    assert first_due(Recurrence(every_ms=7, start_ms=90), 100) == 104
    assert first_due(Recurrence(every_ms=7, start_ms=93), 100) == 107


def test_an_interval_keeps_its_beat_whatever_is_late() -> None:
    recurrence = Recurrence(every_ms=7, missed="once")
    next_ms: int | None = 107
    for now_ms in (107, 116, 130, 165):
        assert next_ms is not None
        _, next_ms = come_due(recurrence, next_ms, now_ms)
        assert next_ms is not None
        assert next_ms > now_ms
        assert next_ms % 7 == 107 % 7


def test_nothing_is_due_after_the_inclusive_end() -> None:
    recurrence = Recurrence(every_ms=10, end_ms=120, missed="all")
    assert first_due(recurrence, 100) == 110
    assert come_due(recurrence, 110, 500) == ([110, 120], None)
    assert first_due(recurrence, 115) is None
    assert come_due(attrs.evolve(recurrence, missed="once"), 110, 500) == ([120], None)


# --- cron expressions ------------------------------------------------------------------------------------------------


def test_a_cron_expression_is_read_in_its_time_zone() -> None:
    now_ms = ms("2026-07-01 00:00")
    assert first_due(Recurrence(cron="30 3 * * *"), now_ms) == ms("2026-07-01 03:30")
    assert first_due(Recurrence(cron="30 3 * * *", timezone=BERLIN), now_ms) == ms("2026-07-01 01:30")
    assert first_due(Recurrence(cron="30 3 * * *", timezone="Asia/Kolkata"), now_ms) == ms("2026-07-01 22:00")


@pytest.mark.parametrize("late_ms", [0, 1, 999])
def test_the_next_due_time_is_after_and_never_the_same(late_ms: int) -> None:
    at_ms = ms("2026-07-01 03:30")
    assert due_after(Recurrence(cron="30 3 * * *"), at_ms + late_ms, 0) == at_ms + DAY
    assert due_after(Recurrence(cron="30 3 * * *"), at_ms - 1, 0) == at_ms


def test_start_and_end_bound_a_cron_expression() -> None:
    noon_ms = ms("2026-07-01 12:00")
    recurrence = Recurrence(cron="0 * * * *", start_ms=noon_ms, end_ms=noon_ms + 2 * HOUR)
    assert times(recurrence, noon_ms - DAY, noon_ms + DAY) == [noon_ms, noon_ms + HOUR, noon_ms + 2 * HOUR]


def test_skipped_local_time_fires_at_the_end_of_the_gap() -> None:
    # 02:00 to 03:00 is not there: 01:00 UTC is three o'clock.
    assert on_day("30 1 * * *", SPRING) == ["29 00:30"]
    assert on_day("30 2 * * *", SPRING) == ["29 01:00"]
    assert on_day("0,30 2 * * *", SPRING) == ["29 01:00"]
    assert on_day("0 3 * * *", SPRING) == ["29 01:00"]
    assert on_day("30 3 * * *", SPRING) == ["29 01:30"]
    every_hour = [at for at in on_day("0 * * * *", SPRING) if at.startswith("29")]
    assert every_hour == [f"29 {hour:02}:00" for hour in range(11)]
    assert len(on_day("*/30 * * * *", SPRING)) == 2 * 24


def test_repeated_hour_fires_fixed_times_once_and_hourly_ones_twice() -> None:
    # 02:00 to 03:00 comes twice: from 00:00 and from 01:00 UTC.
    assert on_day("30 1 * * *", AUTUMN) == ["24 23:30"]
    assert on_day("30 2 * * *", AUTUMN) == ["25 00:30"]
    assert on_day("0 3 * * *", AUTUMN) == ["25 02:00"]
    every_hour = [at for at in on_day("0 * * * *", AUTUMN) if at.startswith("25")]
    assert every_hour == [f"25 {hour:02}:00" for hour in range(12)]
    assert len(on_day("*/30 * * * *", AUTUMN)) == 2 * 24


@pytest.mark.parametrize(
    "zone, day",
    [
        ("America/Santiago", "2026-09-06"),
        ("America/Havana", "2026-03-08"),
        ("Asia/Beirut", "2026-03-29"),
        ("Africa/Cairo", "2026-04-24"),
        ("Atlantic/Azores", "2026-03-29"),
    ],
)
def test_midnight_that_is_left_out_fires_no_wildcard(zone: str, day: str) -> None:
    _, month, dom = map(int, day.split("-"))
    ends = ms(f"{day} 01:00", zone)
    for date in (f"{dom} {month} *", f"* {month} {datetime.fromisoformat(day).isoweekday()}"):
        begin_ms, noon_ms = ends - HOUR, ms(f"{day} 12:00", zone)
        assert times(Recurrence(cron=f"*/20 0 {date}", timezone=zone), begin_ms, noon_ms) == []
        every_three = times(Recurrence(cron=f"0 */3 {date}", timezone=zone), begin_ms, noon_ms)
        assert every_three == [ms(f"{day} {hour:02}:00", zone) for hour in (3, 6, 9, 12)]
        assert times(Recurrence(cron=f"0 0 {date}", timezone=zone), begin_ms, noon_ms) == [ends], "a fixed time"
        assert times(Recurrence(cron=f"0 */1 {date}", timezone=zone), begin_ms, noon_ms)[0] == ends


def test_half_hour_clock_change_omits_no_time() -> None:
    zone = "Australia/Lord_Howe"
    # In October 02:00 is followed by 02:30, in April 02:00 by 01:30.
    for day, first in (("2026-10-04", "02:30"), ("2026-04-05", "02:00")):
        for cron, at in (("*/10 3 * * *", "03:00"), ("*/10 2 * * *", first)):
            found = times(Recurrence(cron=cron, timezone=zone), ms(f"{day} 00:00", zone), ms(f"{day} 12:00", zone))
            assert found[0] == ms(f"{day} {at}", zone)


@pytest.mark.parametrize("day", [SPRING, AUTUMN])
def test_due_times_are_independent_of_the_query_time(day: str) -> None:
    random = Random(day)
    noon_ms = ms(f"{day} 12:00", BERLIN)
    for cron in (
        "30 2 * * *",
        "0,30 1-3 * * *",
        "*/7 * * * *",
        "0 */2 * * *",
        "15 2,3 * * 0",
        "5 * * * *",
        "59 2 * * *",
    ):
        recurrence = Recurrence(cron=cron, timezone=BERLIN)
        all_of_them = times(recurrence, noon_ms - DAY, noon_ms)
        assert all_of_them == sorted(set(all_of_them))
        for _ in range(40):
            now_ms = random.randrange(noon_ms - DAY, noon_ms)
            following = [at_ms for at_ms in all_of_them if at_ms > now_ms]
            found = due_after(recurrence, now_ms, 0)
            assert found is not None
            assert found == (following[0] if following else found), f"{cron} after {utc(now_ms)}"
            assert found > now_ms


# --- what was missed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recurrence", [Recurrence(cron="* * * * *"), Recurrence(every_ms=MINUTE)], ids=["cron", "every"]
)
def test_missed_firings_are_skipped_fired_once_or_each(recurrence: Recurrence) -> None:
    first_ms = ms("2026-07-01 00:00")
    now_ms = first_ms + 10 * MINUTE + 30_000
    last_ms, next_ms = first_ms + 10 * MINUTE, first_ms + 11 * MINUTE
    assert come_due(recurrence, first_ms, now_ms) == ([last_ms], next_ms)
    assert come_due(attrs.evolve(recurrence, missed="once"), first_ms, now_ms) == ([last_ms], next_ms)
    each = [first_ms + number * MINUTE for number in range(11)]
    assert come_due(attrs.evolve(recurrence, missed="all"), first_ms, now_ms) == (each, next_ms)


@pytest.mark.parametrize("recurrence", [Recurrence(cron="0 * * * *"), Recurrence(every_ms=HOUR)], ids=["cron", "every"])
def test_a_minute_of_grace(recurrence: Recurrence) -> None:
    at_ms = ms("2026-07-01 03:00")
    assert come_due(recurrence, at_ms, at_ms) == ([at_ms], at_ms + HOUR)
    assert come_due(recurrence, at_ms, at_ms + GRACE_MS) == ([at_ms], at_ms + HOUR)
    assert come_due(recurrence, at_ms, at_ms + GRACE_MS + 1) == ([], at_ms + HOUR)
    assert come_due(attrs.evolve(recurrence, missed="once"), at_ms, at_ms + HOUR - 1) == ([at_ms], at_ms + HOUR)


def test_all_that_was_missed_comes_in_steps() -> None:
    recurrence = Recurrence(every_ms=1000, missed="all")
    found, next_ms = come_due(recurrence, 1000, 10**6)
    assert found == [1000 * (number + 1) for number in range(FIRINGS_MAX)]
    assert next_ms == 1000 * (FIRINGS_MAX + 1)


@for_each("cron", ["* * * * *", "0 4 * * *", "0 4 1 * *", "0 4 29 2 *", "*/5 3 * * 1"])
@for_each("away_days", [0.01, 1.5, 45, 400, 3000])
def test_last_missed_firing_is_found_after_any_absence(cron: str, away_days: float) -> None:
    recurrence = Recurrence(cron=cron, missed="once")
    next_ms = first_due(recurrence, ms("2026-07-01 02:59"))
    assert next_ms is not None
    now_ms = next_ms + round(away_days * DAY)
    (last_ms,), following_ms = come_due(recurrence, next_ms, now_ms)
    assert next_ms <= last_ms <= now_ms
    assert due_after(recurrence, last_ms, 0) == following_ms
    assert following_ms is not None
    assert following_ms > now_ms


# --- bad input -------------------------------------------------------------------------------------------------------


@for_each(
    "arguments, said",
    [
        ({}, "cron or every"),
        ({"cron": "* * * * *", "every": 5}, "cron or every"),
        ({"cron": ""}, "five fields"),
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "* * * * * *"}, "five fields"),
        ({"cron": "* * * * * *"}, "seconds and years are not supported"),
        ({"cron": "@reboot"}, "@reboot is not supported; enqueue the job where the application starts"),
        ({"cron": "@dayly"}, "must be one of @yearly, "),
        ({"cron": "60 * * * *"}, "minute must be 0 to 59, got '60'"),
        ({"cron": "* 24 * * *"}, "hour must be 0 to 23, got '24'"),
        ({"cron": "* * 0 * *"}, "day of month must be 1 to 31, got '0'"),
        ({"cron": "* * * 13 *"}, "month must be 1 to 12 or JAN to DEC, got '13'"),
        ({"cron": "* * * * 8"}, "day of week must be 0 to 7 or SUN to SAT, got '8'"),
        ({"cron": "*/0 * * * *"}, "minute must have a step of at least 1"),
        ({"cron": "*/ * * * *"}, "minute must have a step of at least 1"),
        ({"cron": "*/²  * * * *"}, "minute must have a step of at least 1"),
        ({"cron": "x y z * *"}, "minute must be 0 to 59, got 'X'"),
        ({"cron": "H * * * *"}, "minute must be 0 to 59, got 'H'"),
        ({"cron": "1-2-3 * * * *"}, "minute must be 0 to 59, got '2-3'"),
        ({"cron": "1, * * * *"}, "minute must be 0 to 59, got ''"),
        ({"cron": f"{'9' * 200} * * * *"}, "minute must be 0 to 59"),
        ({"cron": "* 22-4 * * *"}, "hour 22-4 must not end before it begins; write 22-23,0-4"),
        ({"cron": "* * * * 5-1"}, "day of week 5-1 must not end before it begins; write 5-6,0-1"),
        ({"cron": "* * * NOV-MAR/2 *"}, "month NOV-MAR/2 must not end before it begins; write 11-12,1-3"),
        ({"cron": "* * ? * 1"}, "day of month \\? is not supported; write \\*"),
        ({"cron": "* * 15W * *"}, "day of month 15W is not supported; name a day"),
        ({"cron": "* * L-3 * *"}, "day of month L-3 is not supported; write 28-31"),
        ({"cron": "* * * * L"}, "day of week L is not supported; write SAT, or 6L"),
        ({"cron": "* * * * 5#9"}, "day of week 5#9 must end in a number from 1 to 5, as 1#2"),
        ({"cron": "* * L/2,LW L *"}, "day of month must be 1 to 31, got 'L'"),
        ({"cron": "* * * L *"}, "month must be 1 to 12"),
        ({"cron": "* * ² * *"}, "day of month must be 1 to 31"),
        ({"cron": "* * * * ²L"}, "day of week must be 0 to 7"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": "0 0 31 4 *"}, "bad day-of-month"),
        ({"cron": "0 0 31 2,4,6,9,11 *"}, "bad day-of-month"),
        ({"cron": "0 0 1 2 */7#5"}, "day of week must have a step"),
        ({"cron": "0 0 1 2 *#5"}, "day of week must be 0 to 7"),
        ({"cron": "* " * 200}, "limit 256"),
        ({"cron": 5}, "cron must be str"),
        ({"every": 0}, "every must be from 1 s to 10 years"),
        ({"every": -5}, "every must be"),
        ({"every": 0.5}, "every must be"),
        ({"every": timedelta(days=3661)}, "every must be"),
        ({"every": float("nan")}, "every must be"),
        ({"every": "5"}, "every must be"),
        ({"every": True}, "every must be"),
        ({"every": 5, "timezone": "UTC"}, "timezone is for cron"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "timezone 'Mars/Olympus' is not known"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "is not known"),
        ({"cron": "* * * * *", "timezone": "/etc/passwd"}, "is not known"),
        ({"cron": "* * * * *", "timezone": "Europe"}, "is not known"),
        ({"cron": "* * * * *", "timezone": ""}, "is not known"),
        ({"cron": "* * * * *", "timezone": "a\0b"}, "is not known"),
        ({"cron": "* * * * *", "timezone": UTC}, "timezone must be str"),
        ({"every": 5, "missed": "never"}, "missed must be one of skip, once, all"),
        ({"every": 5, "missed": None}, "missed must be one of"),
        ({"every": 5, "start": datetime(2026, 1, 1)}, "start must be timezone-aware"),
        ({"every": 5, "end": datetime(2026, 1, 1)}, "end must be timezone-aware"),
        ({"every": 5, "start": 5}, "start must be a datetime"),
        (
            {"every": 5, "start": datetime(2026, 1, 2, tzinfo=UTC), "end": datetime(2026, 1, 1, tzinfo=UTC)},
            "end must not be before start",
        ),
        ({"cron": HostileStr("x")}, "five fields"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJobError, match=said):
        check_recurrence(**arguments)


def test_recurrence_of_wrong_type_raises_a_type_error() -> None:
    for arguments in ({"cron": 5}, {"every": "5"}, {"cron": "* * * * *", "timezone": 5}, {}):
        with pytest.raises(InvalidJobTypeError):
            check_recurrence(**arguments)


def test_white_space_between_the_fields_makes_no_difference() -> None:
    assert check_recurrence(cron="  0\t3  * * * ") == check_recurrence(cron="0 3 * * *", timezone="UTC")


@for_each(
    "cron, plain",
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        (" @Weekly ", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("0 4 * * Sat-Sun", "0 4 * * 6-7"),
        ("0 4 * * sun-sat", "0 4 * * 0-6"),
        ("0 4 * * fri-mon", "0 4 * * 5-6,0-1"),
        ("0 4 * Nov-Mar *", "0 4 * 11-12,1-3 *"),
        ("0 4 * Dec-Jan *", "0 4 * 12,1 *"),
        ("0 4 * jan,mar-may/2 tue", "0 4 * 1,3-5/2 2"),
        ("0 4 * * FRIL", "0 4 * * 5L"),
        ("0 4 * * fri#2,1#1", "0 4 * * 5#2,1#1"),
        ("0 4 L,15 * *", "0 4 L,15 * *"),
        ("0 4 LW * *", "0 4 LW * *"),
        ("0 9-9/3 * * *", "0 9 * * *"),
        ("5/20 */2,7 01-09/04 * *", "5/20 */2,7 1-9/4 * *"),
    ],
)
def test_cron_text_is_stored_in_five_fields_of_numbers(cron: str, plain: str) -> None:
    assert check_recurrence(cron=cron) == Recurrence(cron=plain)
    assert check_recurrence(cron=plain) == Recurrence(cron=plain)


def test_range_of_one_value_with_a_step_fires_there_alone() -> None:
    recurrence = check_recurrence(cron="0 9-9/3 * * *")
    noon_ms = ms("2026-07-01 12:00")
    assert [utc(at_ms) for at_ms in times(recurrence, noon_ms - DAY, noon_ms + DAY)] == ["01 09:00", "02 09:00"]


def test_missing_zone_data_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr("zoneinfo.ZoneInfo", nothing)
    with pytest.raises(InvalidJobError, match=r"'Europe/Berlin' requires time zone data, and .* none: install tzdata"):
        check_recurrence(cron="0 4 * * *", timezone="Europe/Berlin")
    assert check_recurrence(cron="0 4 * * *").timezone == "UTC"


def test_missing_cronsim_names_the_extra_and_intervals_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'queuehint\[cron\]'") as caught:
        check_recurrence(cron="* * * * *")
    assert caught.value.extra == "cron"
    with pytest.raises(ImportError):
        due_after(Recurrence(cron="* * * * *"), 0, 0)
    assert first_due(check_recurrence(every=5), 0) == 5000
