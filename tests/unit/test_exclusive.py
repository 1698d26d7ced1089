"""The lease of an exclusive section, by the caller's own clock."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest

from queuehint.clock import now_s
from queuehint.scheduler.holds import hold as module
from queuehint.scheduler.holds.hold import Hold
from queuehint.scheduler.holds.request import Asked, Request


class Clock:
    def __init__(self) -> None:
        self.time_s = 100.0

    def __call__(self) -> float:
        return self.time_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "now_s", made)
    return made


def test_hold_is_lost_at_its_end_by_the_local_clock(clock: Clock) -> None:
    hold = Hold("a", 1, 101.0)
    assert not hold.lost
    clock.time_s = 100.999
    assert not hold.lost
    clock.time_s = 101.0
    assert hold.lost
    hold.extend(200.0)
    assert hold.lost


def test_timely_renewal_extends_a_hold_and_older_ones_never_shorten(clock: Clock) -> None:
    hold = Hold("a", 1, 101.0)
    hold.extend(102.0)
    hold.extend(101.5)
    clock.time_s = 101.9
    assert not hold.lost
    clock.time_s = 102.0
    assert hold.lost


def test_it_is_lost_when_the_store_says_so() -> None:
    hold = Hold("a", 1)
    assert not hold.lost
    hold.lose()
    assert hold.lost


def test_the_margin_is_that_of_workers(clock: Clock) -> None:
    def request(*, is_kept: bool) -> Any:
        asked = Asked(claims=(), lease_ms=30_000, timeout_ms=None, refuse=lambda: None)
        return Request(asked, None, is_kept=is_kept)

    assert request(is_kept=False).until_s(clock.time_s) == 127.0
    assert request(is_kept=True).until_s(clock.time_s) == math.inf


@pytest.mark.parametrize("until_s", [100.5, math.inf])
async def test_waiters_for_the_loss_of_a_hold_are_woken(until_s: float) -> None:
    hold = Hold("a", 1, now_s() - 100 + until_s)
    waiting = [asyncio.create_task(hold.wait_lost()) for _ in range(2)]
    in_thread = asyncio.create_task(asyncio.to_thread(hold.wait_lost_sync))
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    if until_s == math.inf:
        threading.Thread(target=hold.lose).start()
    await asyncio.wait_for(asyncio.gather(*waiting, in_thread), 60)
    assert hold.lost
    assert hold._wakes == []


async def test_a_waiter_for_the_loss_keeps_waiting_after_a_renewal(clock: Clock) -> None:
    hold = Hold("a", 1, 100.001)
    waiting = asyncio.create_task(hold.wait_lost())
    await asyncio.sleep(0)
    hold.extend(1000.0)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    hold.lose()
    await asyncio.wait_for(waiting, 60)


def test_a_wait_of_plain_code_may_have_an_end() -> None:
    hold = Hold("a", 1)
    assert not hold.wait_lost_sync(0.001)
    hold.lose()
    assert hold.wait_lost_sync(0.001)
    assert hold.wait_lost_sync()
