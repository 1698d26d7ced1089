"""The manual clock."""

from __future__ import annotations

import pytest

from queuehint import FakeClock, SystemClock
from queuehint.clock import SteadyClock


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(1_000)
    assert (clock.now_ms(), clock.now_ms()) == (1_000, 1_000)
    clock.advance(seconds=1.5, ms=1)
    assert clock.now_ms() == 2_501


def test_a_subscriber_of_a_clock_is_called_after_each_move() -> None:
    clock = FakeClock(0)
    heard: list[int] = []
    clock.subscribe(lambda: heard.append(clock.now_ms()))
    clock.advance(seconds=1)
    clock.advance(ms=5)
    assert heard == [1_000, 1_005]


def test_steady_clock_passes_on_where_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, passed = [1_700_000_000_000], [5_000]
    monkeypatch.setattr("queuehint.clock.time.time_ns", lambda: wall[0] * 1_000_000)
    monkeypatch.setattr("queuehint.clock._passed_ns", lambda: passed[0] * 1_000_000)
    steady = SteadyClock()
    assert steady.now_ms() == 1_700_000_000_000
    for wall_ms, passed_ms, expected_ms in [
        (1_700_000_001_000, 6_000, 1_700_000_001_000),
        (1_699_996_402_000, 7_000, 1_700_000_002_000),  # an hour back
        (1_699_996_403_000, 8_000, 1_700_000_003_000),
        (1_700_003_604_000, 9_000, 1_700_003_604_000),  # an hour ahead
        (1_700_000_005_000, 10_000, 1_700_003_605_000),  # put right
    ]:
        wall[0], passed[0] = wall_ms, passed_ms
        assert steady.now_ms() == expected_ms


def test_the_system_clock_tells_ms_and_never_jumps_on_purpose() -> None:
    clock = SystemClock()
    clock.subscribe(lambda: None)
    first = clock.now_ms()
    assert first > 1_600_000_000_000
    assert clock.now_ms() >= first
