"""Meters of rates: logs of starts and buckets, beside the plain definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint.core.meters import LOG_MAX, Meter, counted_ms
from queuehint.values.limit import Limit

SECOND_MS = 1000


def limit(tokens: int, per_ms: int = SECOND_MS, burst: int | None = None) -> Limit:
    return Limit(path=(), rate=(tokens, per_ms), burst=burst)


def starts_of(meter: Meter, rate: Limit, times: range, costs: tuple[int, ...] = (1,)) -> list[tuple[int, int]]:
    """Start whenever there is room; return when, and what each has cost."""
    starts: list[tuple[int, int]] = []
    for now_ms in times:
        while meter.room_ms(rate, cost := costs[len(starts) % len(costs)], now_ms) <= now_ms:
            meter.spend(rate, cost, now_ms)
            starts.append((now_ms, cost))
    return starts


def most_in_a_window(starts: list[tuple[int, int]], per_ms: int) -> int:
    """Return the most that is spent in a window of whole ms that begins with a start: both of its ends are in it."""
    return max(sum(cost for at_ms, cost in starts if first <= at_ms <= first + per_ms) for first, _ in starts)


@pytest.mark.parametrize(
    "tokens, burst, most",
    [(10, None, 10), (100, None, 100), (10, 10, 19), (100, 100, 199), (10, 1, 10), (10, 4, 13)],
)
def test_window_and_bucket_never_exceed_rate_and_burst(tokens: int, burst: int | None, most: int) -> None:
    starts = starts_of(Meter(), limit(tokens, burst=burst), range(10_000, 14_000))
    assert most_in_a_window(starts, SECOND_MS - (burst is not None)) == most


@given(
    st.sampled_from([1, 2, 7, 64, 65, 100, 1000]),
    st.sampled_from([1, 10, 63, 64, 65, 500, 1000, 60_000]),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 1000), st.integers(1, 40)), max_size=120),
)
def test_meter_never_exceeds_its_rate_and_predicts_room(
    tokens: int, per_ms: int, asked: list[tuple[int, int, int]]
) -> None:
    """Also with costs. A job that waits until it is told has room then, and not a ms before."""
    rate, meter, now_ms = limit(tokens, per_ms), Meter(), 10**12
    part_ms = 1 if tokens <= LOG_MAX else -(-per_ms // LOG_MAX)
    starts: list[tuple[int, int]] = []
    for passed_ms, wished, times in asked:
        now_ms += passed_ms
        cost = min(wished, tokens)
        for _ in range(times):
            room_ms = meter.room_ms(rate, cost, now_ms)
            spent = sum(count for at_ms, count in starts if at_ms + per_ms >= now_ms)
            # What is over counts at the latest a part of the time more than any.
            late = sum(count for at_ms, count in starts if at_ms + counted_ms(per_ms) + part_ms - 1 > now_ms)
            assert spent + cost <= tokens or room_ms > now_ms
            assert late + cost > tokens or room_ms == now_ms
            if room_ms > now_ms:
                assert meter.room_ms(rate, cost, room_ms - 1) == room_ms
                assert meter.room_ms(rate, cost, room_ms) == room_ms
                break
            meter.spend(rate, cost, now_ms)
            starts.append((now_ms, cost))
            assert len(meter.log) <= LOG_MAX + 3
        free_ms = meter.free_ms(rate, now_ms)
        assert free_ms <= now_ms or meter.room_ms(rate, tokens, free_ms - 1) == free_ms
    assert not starts or most_in_a_window(starts, per_ms) <= tokens


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 10, 64, 65, 100, 1000])
def test_meter_reaches_nearly_its_rate(
    tokens: int,
) -> None:
    starts = starts_of(Meter(), limit(tokens), range(10_000, 110_000))
    parts = 1 if tokens <= LOG_MAX else 2
    assert len(starts) >= 100 * tokens / (1 + parts * 16 / 1000) - tokens


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 3, 64, 100]),
            st.sampled_from([10, 1000, 60_000]),
            st.none() | st.integers(1, 100),
            st.integers(0, 400),
            st.integers(0, 2000),
        ),
        min_size=2,
        max_size=12,
    )
)
def test_changed_rate_leaves_room_only_beyond_counted_starts(
    changes: list[tuple[int, int, int | None, int, int]],
) -> None:
    """From log to log the times are kept; a log stays within its bound."""
    meter, now_ms = Meter(), 10**12
    old: Limit | None = None
    counted: list[tuple[int, int]] = []
    for tokens, per_ms, burst, wished, passed_ms in changes:
        rate = limit(tokens, per_ms, burst)
        if old is not None:
            new = Meter()
            new.go_on_from(rate, meter, old, now_ms)
            meter = new
            last_ms = per_ms if old.rate is None else min(per_ms, old.rate[1])
            counted = [(at_ms, count) for at_ms, count in counted if at_ms + last_ms >= now_ms]
            if old.burst is not None or burst is not None:
                counted = []
        old = rate
        for _ in range(wished):
            if meter.room_ms(rate, 1, now_ms) > now_ms:
                break
            meter.spend(rate, 1, now_ms)
            counted.append((now_ms, 1))
        counted = [(at_ms, count) for at_ms, count in counted if at_ms + per_ms >= now_ms]
        if burst is None:
            assert meter.spent == sum([count for _, count in meter.log])
            assert len(counted) <= meter.spent
            assert len(meter.log) <= LOG_MAX + 3
        now_ms += passed_ms


def test_spent_bucket_tokens_expire_after_their_interval() -> None:
    bucket, meter = Meter(), Meter()
    rate = limit(10, burst=20)
    for _ in range(20):
        bucket.spend(rate, 1, 0)
    meter.go_on_from(limit(10), bucket, rate, 50)
    assert (meter.log, meter.spent) == ([(50, 10)], 10)
    assert meter.room_ms(limit(10), 1, 60) == meter.free_ms(limit(10), 60) == 50 + counted_ms(SECOND_MS)
    back = Meter()
    back.go_on_from(limit(10, burst=5), meter, limit(10), 60)
    assert (back.log, back.spent, back.at_ms) == ([], 5 * SECOND_MS, 60)


def test_starts_within_a_part_share_one_entry() -> None:
    rate, meter = limit(1000, 64_000), Meter()
    for now_ms in range(0, 64_000, 100):
        meter.spend(rate, 1, now_ms)
    assert (len(meter.log), meter.spent) == (64, 640)
    assert meter.log[0] == (900, 10)
    meter.spend(rate, 360, 64_000)
    assert meter.room_ms(rate, 1, 64_001) == 900 + counted_ms(64_000)
