"""Slots for the calls of an event loop, and the line that waits for them, without a server."""

from __future__ import annotations

import asyncio

import pytest

from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.connections.async_link import _CallSlots
from queuehint.backends.redis.transport import NotSent


def no_free_slots() -> _CallSlots:
    return _CallSlots(0, parse_url("redis://localhost"))


async def turns() -> None:
    """Run the loop until no task can make a step."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_that_wait_for_a_connection_have_their_turn_in_the_order_of_coming() -> None:
    slots, came = no_free_slots(), list[int]()

    async def call(number: int) -> None:
        await slots.enter()
        came.append(number)

    tasks = [asyncio.create_task(call(number)) for number in range(3)]
    for number in range(3):
        await turns()
        assert came == list(range(number))
        slots.leave()
    await asyncio.gather(*tasks)
    assert came == [0, 1, 2]
    assert slots.free == 0
    slots.leave()
    assert slots.free == 1


async def test_one_that_is_canceled_in_line_is_passed_over() -> None:
    slots = no_free_slots()
    first, second = (asyncio.create_task(slots.enter()) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    slots.leave()
    await second
    assert slots.free == 0


async def test_one_that_is_canceled_with_its_turn_hands_it_on() -> None:
    slots = no_free_slots()
    first, second = (asyncio.create_task(slots.enter()) for _ in range(2))
    await turns()
    slots.leave()
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    third = asyncio.create_task(slots.enter())
    await turns()
    slots.leave()
    third.cancel()
    await turns()
    assert slots.free == 1


async def test_a_line_that_does_not_move_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.05)

    slots = no_free_slots()
    with pytest.raises(NotSent) as failure:
        await slots.enter()
    assert "64 calls are under way, and none ended within 0.05 s" in str(failure.value.__cause__)
    # A caller whose wait has failed holds no slot.
    slots.leave()
    assert slots.free == 1


async def test_a_line_that_moves_is_waited_in_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 1_000.0)

    slots, loop = no_free_slots(), asyncio.get_running_loop()
    tasks = [asyncio.create_task(slots.enter()) for _ in range(2)]
    await turns()
    slots.leave()
    await tasks[0]
    # As if the second had come long before the first left.
    monkeypatch.setattr(redis_session, "RETRY_S", loop.time() - slots._left_s + 0.2)
    third = asyncio.create_task(slots.enter())
    await turns()
    slots.leave()
    slots.leave()
    await asyncio.gather(tasks[1], third)
