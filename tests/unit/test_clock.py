"""The manual clock."""

from __future__ import annotations

from queuehint import FakeClock, SystemClock


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


def test_the_system_clock_tells_ms_and_never_jumps_on_purpose() -> None:
    clock = SystemClock()
    clock.subscribe(lambda: None)
    first = clock.now_ms()
    assert first > 1_600_000_000_000
    assert clock.now_ms() >= first
