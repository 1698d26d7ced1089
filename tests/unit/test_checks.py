"""Checks of arguments: ids, numbers, times; each message names the parameter, the value and the limit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from queuehint.errors import InvalidJobError, InvalidJobTypeError
from queuehint.schema.checks import (
    TEN_YEARS_MS,
    check_choice,
    check_duration,
    check_id,
    check_int,
    check_name,
    check_number,
    check_optional_duration,
    check_run_at,
)
from tests.each import for_each
from tests.support import HostileStr


class Float64(float):
    """Like NumPy's scalar of that name: a float by inheritance."""


class Seconds(IntEnum):
    FIVE = 5


def duration(value: object, **limits: int) -> int:
    return check_duration(value, parameter="delay", **limits)


def refused(check: Callable[..., object], value: object, **rest: Any) -> str:
    with pytest.raises(InvalidJobError) as caught:
        check(value, **rest)
    message = str(caught.value)
    assert message.startswith(rest.get("parameter", ""))
    assert len(message) < 250
    return message


# --- ids and names ---------------------------------------------------------------------------------------------------


@for_each(
    "id",
    [
        *["a", "123", "id:sequence", "meta", "__root__", "*", "{}", "{x}", "{", "root", "waiting:a", "\U0001f600"],
        *["é", "e\u0301", "x" * 128, "é" * 64, "<script>", "../x", "-0", "None", "a\u200db"],
    ],
)
def test_an_id_is_literal_text(id: str) -> None:
    assert check_id(id) == id


@for_each(
    "id, text",
    [
        ("", "id is empty; it must be 1 to 128 bytes"),
        ("x" * 129, "id is 129 bytes, limit 128: 'xxx"),
        ("x" * 10**6, "id is 1000000 bytes, limit 128: 'xxx"),
        ("é" * 65, "id is 130 bytes, limit 128: 'éé"),
        ("é" * 10**6, "id is more than 1000000 bytes, limit 128: 'éé"),
        ("a b", "id holds white space or a control character (U+0020): 'a b'"),
        ("a\n", "(U+000A): 'a\\n'"),
        ("\x00", "(U+0000)"),
        ("\u00a0", "(U+00A0)"),
        ("\u2028", "(U+2028)"),
        ("\x9f", "(U+009F)"),
        ("\u202e", "(U+202E)"),
        ("\ud800", "id is not encodable as UTF-8 (U+D800)"),
    ],
)
def test_malformed_id_is_refused_with_value_and_limit(id: str, text: str) -> None:
    assert text in refused(check_id, id, parameter="id")


@pytest.mark.parametrize("value", [123, None, True, b"a", 1.5, ["a"]])
def test_an_id_of_another_type_is_a_type_error(value: object) -> None:
    with pytest.raises(InvalidJobTypeError, match=f"job_id must be str, got {type(value).__name__}: "):
        check_id(value, parameter="job_id")


def test_ids_that_differ_by_normalisation_alone_are_two() -> None:
    assert check_id("é") != check_id("e\u0301")


def test_a_str_subclass_is_copied_without_asking_it_anything() -> None:
    assert type(check_id(HostileStr("a"))) is str
    assert check_id(HostileStr("a")) == "a"
    assert "is empty" in refused(check_id, HostileStr(""), parameter="id")


def test_a_name_may_hold_spaces_and_256_bytes() -> None:
    assert check_name("imports of ann", parameter="pool") == "imports of ann"
    assert check_name("x" * 256, parameter="pool") == "x" * 256
    assert "pool is 257 bytes, limit 256" in refused(check_name, "x" * 257, parameter="pool")
    assert "pool holds a control character (U+001B)" in refused(check_name, "a\x1b[31m", parameter="pool")
    assert "pool is not encodable" in refused(check_name, "\udfff", parameter="pool")


# --- whole numbers and numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 7, 2**53 - 1, 2**53, 2**53 + 1])
def test_an_int_in_range_is_itself(value: int) -> None:
    assert check_int(value, parameter="n", least=0, most=2**60) == value


@pytest.mark.parametrize("value", [-1, 11, 2**40, 10**30, pytest.param(10**5000, id="5000 digits")])
def test_an_int_out_of_range_is_refused_with_its_limits(value: int) -> None:
    assert "n must be from 0 to 10, got " in refused(check_int, value, parameter="n", least=0, most=10)


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, Decimal(1), Float64(1), Seconds.FIVE, [1]])
def test_only_a_plain_int_is_an_int(value: object) -> None:
    with pytest.raises(InvalidJobTypeError, match=f"n must be int, got {type(value).__name__}: "):
        check_int(value, parameter="n", least=0, most=10)


@pytest.mark.parametrize("value", [1, 1.0, 1.5, 2])
def test_a_number_in_range_is_a_float(value: float) -> None:
    number = check_number(value, parameter="factor", least=1, most=2)
    assert number == value
    assert type(number) is float


@pytest.mark.parametrize(
    "value", [0.999, 2.001, float("nan"), float("inf"), float("-inf"), 1e400, pytest.param(10**400, id="400 digits")]
)
def test_a_number_out_of_range_or_not_finite_is_refused(value: float) -> None:
    assert "factor must be from 1 to 2, got " in refused(check_number, value, parameter="factor", least=1, most=2)


@pytest.mark.parametrize("value", [True, "1", None, Decimal(1), Fraction(1), Float64(1), Seconds.FIVE, 1j])
def test_only_a_plain_int_or_float_is_a_number(value: object) -> None:
    with pytest.raises(InvalidJobTypeError, match=f"factor must be a number, got {type(value).__name__}: "):
        check_number(value, parameter="factor", least=0, most=10)


# --- durations -------------------------------------------------------------------------------------------------------


@for_each(
    "value, ms",
    [
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (5, 5000),
        (1.5, 1500),
        (0.001, 1),
        (0.0001, 1),
        (5e-324, 1),
        (16.1, 16_100),
        (1.001, 1001),
        (1.0001, 1001),
        (timedelta(0), 0),
        (timedelta(seconds=2), 2000),
        (timedelta(microseconds=1), 1),
        (timedelta(microseconds=1001), 2),
        (timedelta(days=365), 365 * 86_400_000),
        (10 * 366 * 86_400, TEN_YEARS_MS),
        (float(10 * 366 * 86_400), TEN_YEARS_MS),
        (timedelta(days=3660), TEN_YEARS_MS),
    ],
)
def test_duration_is_rounded_up_to_milliseconds(value: object, ms: int) -> None:
    assert duration(value) == ms
    assert type(duration(value)) is int


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, -0.0001, -5e-324, timedelta(seconds=-1), timedelta(microseconds=-1), timedelta.min, -(10**30), -1e300],
)
def test_a_negative_duration_however_small_is_refused(value: object) -> None:
    assert "delay must be from 0 s to 10 years, got " in refused(check_duration, value, parameter="delay")


@pytest.mark.parametrize(
    "value",
    [
        timedelta.max,
        10**30,
        pytest.param(10**5000, id="5000 digits"),
        1e300,
        10 * 366 * 86_400 + 1,
        timedelta(days=3660, microseconds=1),
    ],
)
def test_a_duration_over_ten_years_is_refused_without_overflow(value: object) -> None:
    assert "to 10 years, got " in refused(check_duration, value, parameter="delay")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e400])
def test_a_duration_that_is_not_finite_is_refused(value: float) -> None:
    message = refused(check_duration, value, parameter="delay")
    assert message == f"delay must be finite, from 0 s to 10 years, got {value!r}"


@for_each("value", ["5", True, False, None, Decimal(1), Fraction(1), Float64(1), Seconds.FIVE, b"5", [5], datetime.max])
def test_a_duration_of_another_type_is_a_type_error(value: object) -> None:
    with pytest.raises(InvalidJobTypeError) as caught:
        duration(value)
    name = type(value).__name__
    assert str(caught.value).startswith(f"delay must be a timedelta or a number of seconds, got {name}: ")


def test_a_duration_s_own_limits_are_named() -> None:
    assert "must be from 1 s to 86400 s, got 0" in refused(
        check_duration, 0, parameter="lease", least_ms=1000, most_ms=86_400_000
    )
    assert "must be from 0.001 s to 10 years, got 0.0" in refused(check_duration, 0.0, parameter="timeout", least_ms=1)


def test_an_optional_duration_may_be_none() -> None:
    assert check_optional_duration(None, parameter="timeout") is None
    assert check_optional_duration(1, parameter="timeout") == 1000
    assert "timeout must be" in refused(check_optional_duration, -1, parameter="timeout")


# --- points in time --------------------------------------------------------------------------------------------------


def test_a_time_is_ms_since_the_epoch_rounded_up() -> None:
    assert check_run_at(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert check_run_at(datetime(2020, 1, 1, microsecond=1, tzinfo=UTC)) == 1_577_836_800_001
    assert check_run_at(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert check_run_at(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)) == 0


@pytest.mark.parametrize("value", [datetime(2020, 1, 1), datetime.max, datetime.min])
def test_naive_time_is_refused_and_never_guessed_as_local(value: datetime) -> None:
    message = refused(check_run_at, value, parameter="run_at")
    assert message.startswith("run_at must be timezone-aware, got datetime.datetime(")


def test_a_time_zone_that_knows_no_offset_is_naive() -> None:
    class Nowhere(tzinfo):
        def utcoffset(self, moment: datetime | None) -> None:
            return None

        dst = utcoffset

        def tzname(self, moment: datetime | None) -> str:
            return "nowhere"

    assert "timezone-aware" in refused(check_run_at, datetime(2020, 1, 1, tzinfo=Nowhere()), parameter="run_at")


@pytest.mark.parametrize("value", [0, 1.5, "2020-01-01", None, True, timedelta(1), datetime.max.date()])
def test_a_time_of_another_type_is_a_type_error(value: object) -> None:
    with pytest.raises(InvalidJobTypeError, match=f"run_at must be a datetime, got {type(value).__name__}: "):
        check_run_at(value)


@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=12)), ZoneInfo("Asia/Tokyo")]
)
def test_the_ends_of_the_calendar_do_not_overflow(zone: tzinfo) -> None:
    day_ms = 86_400_000
    assert abs(check_run_at(datetime.min.replace(tzinfo=zone)) + 62_135_596_800_000) < day_ms
    assert abs(check_run_at(datetime.max.replace(tzinfo=zone)) - 253_402_300_800_000) < day_ms


def test_time_beyond_ten_years_is_refused_given_a_clock() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    now_ms = check_run_at(now)
    assert check_run_at(datetime(1, 1, 1, tzinfo=UTC), now_ms=now_ms) < 0
    assert check_run_at(now + timedelta(days=3660), now_ms=now_ms) == now_ms + TEN_YEARS_MS
    for late in (now + timedelta(days=3660, microseconds=1), datetime.max.replace(tzinfo=UTC)):
        message = refused(check_run_at, late, parameter="run_at", now_ms=now_ms)
        assert message.startswith("run_at must be at most 10 years from now, got datetime.datetime(")


def test_a_fold_is_honoured_and_a_gap_goes_through_utc() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    summer = check_run_at(datetime(2024, 10, 27, 2, 30, tzinfo=berlin))
    winter = check_run_at(datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=berlin))
    assert summer == check_run_at(datetime(2024, 10, 27, 0, 30, tzinfo=UTC))
    assert winter - summer == 3_600_000
    in_the_gap = datetime(2024, 3, 31, 2, 30, tzinfo=berlin)
    assert check_run_at(in_the_gap) == check_run_at(in_the_gap.astimezone(UTC))


# --- words -----------------------------------------------------------------------------------------------------------


def test_a_word_is_one_of_a_few() -> None:
    words = ("hold", "yield")
    assert check_choice("hold", words, parameter="on_retry") == "hold"
    assert type(check_choice(HostileStr("yield"), words, parameter="on_retry")) is str

    class Retry(StrEnum):
        HOLD = "hold"

    assert type(check_choice(Retry.HOLD, words, parameter="on_retry")) is str
    for word in ("", "HOLD", "x" * 10**6, HostileStr("x")):
        assert "on_retry must be one of hold, yield, got '" in refused(
            check_choice, word, choices=words, parameter="on_retry"
        )


@pytest.mark.parametrize("value", [None, True, 1, b"hold", ["hold"]])
def test_malformed_choice_raises_a_type_error(value: object) -> None:
    with pytest.raises(InvalidJobTypeError, match=f"must be one of hold, yield, got {type(value).__name__}: "):
        check_choice(value, ("hold", "yield"), parameter="on_retry")
