"""Back-off: from the number of an attempt to a delay."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from queuehint.values.policy import Backoff


def test_the_wait_grows_by_the_factor_up_to_the_cap() -> None:
    backoff = Backoff(base=1, factor=3, cap=20, jitter=0)
    assert [backoff.delay_ms(attempt, 0.9) for attempt in range(1, 6)] == [1000, 3000, 9000, 20_000, 20_000]


def test_a_factor_of_one_never_grows() -> None:
    assert Backoff(base=2, factor=1, jitter=0).delay_ms(1000, 0) == 2000


@pytest.mark.parametrize("attempt", [1024, 10**6, 10**18])
def test_no_attempt_overflows(attempt: int) -> None:
    for factor in (1, 2, 100):
        assert Backoff(base=1, factor=factor, cap=30, jitter=0).delay_ms(attempt, 0) == (
            1000 if factor == 1 else 30_000
        )


def test_listed_waits_come_in_order_and_the_last_repeats() -> None:
    backoff = Backoff(waits=[0, 5, timedelta(minutes=1)], jitter=0)
    assert [backoff.delay_ms(attempt, 0.9) for attempt in (1, 2, 3, 4, 10**6)] == [0, 5000, 60_000, 60_000, 60_000]
    assert Backoff(waits=[8], jitter=0.5).delay_ms(1, 0.5) == 6000
    assert backoff == Backoff(waits=(0.0, 5, 60), jitter=0.0)
    assert repr(backoff) == "Backoff(waits=[0.0, 5.0, 60.0], jitter=0.0)"


def test_jitter_stays_inside_the_cap() -> None:
    backoff = Backoff(base=1, factor=2, cap=30, jitter=0.5)
    for attempt, random in itertools.product((1, 5, 10), (0.0, 0.25, 0.999_999)):
        longest = backoff.delay_ms(attempt, 0)
        assert longest / 2 <= backoff.delay_ms(attempt, random) <= longest <= 30_000
    assert backoff.delay_ms(1, 0.5) == 750


def test_the_same_arguments_give_the_same_wait() -> None:
    backoff = Backoff()
    assert len({backoff.delay_ms(3, 0.123) for _ in range(10)}) == 1
