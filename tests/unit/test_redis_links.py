"""Slots for the calls of an event loop, the line that waits for them, and the node of a link, without a server."""

from __future__ import annotations

import asyncio

import pytest

from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.connections.async_link import _CallSlots
from queuehint.backends.redis.connections.link import _Where
from queuehint.backends.redis.transport import Closed, NotSent, Redirect
from queuehint.testing.simulation.loop import VirtualLoop
from tests.each import for_each


def no_free_slots() -> _CallSlots:
    return _CallSlots(0, parse_url("redis://localhost"))


async def turns() -> None:
    """Run the loop until no task can make a step."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waiting_calls_get_connections_in_order_of_arrival() -> None:
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


async def test_stalled_line_raises_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.05)

    slots = no_free_slots()
    with pytest.raises(NotSent) as failure:
        await slots.enter()
    assert "64 calls are under way, and none ended within 0.05 s" in str(failure.value.__cause__)
    # A caller whose wait has failed holds no slot.
    slots.leave()
    assert slots.free == 1


def test_line_of_abandoned_calls_is_left_in_time() -> None:
    async def main() -> None:
        slots, loop = no_free_slots(), asyncio.get_running_loop()
        first, second = (asyncio.create_task(slots.enter()) for _ in range(2))
        await asyncio.sleep(redis_session.RETRY_S * 0.6)
        # The call before gave up without an answer: so will the next.
        slots.leave()
        await first
        with pytest.raises(NotSent):
            await second
        assert loop.time() == redis_session.RETRY_S

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def test_a_closed_line_refuses_all_that_wait() -> None:
    slots = no_free_slots()
    waiting = [asyncio.create_task(slots.enter()) for _ in range(3)]
    await turns()
    slots.close()
    assert [type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)] == [Closed] * 3
    assert slots.free == 0


async def test_a_line_that_moves_is_waited_in_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 1_000.0)

    slots, loop = no_free_slots(), asyncio.get_running_loop()
    tasks = [asyncio.create_task(slots.enter()) for _ in range(2)]
    await turns()
    slots.leave(is_answered=True)
    await tasks[0]
    # As if the second had come long before the first left.
    monkeypatch.setattr(redis_session, "RETRY_S", loop.time() - slots._answered_s + 0.2)
    third = asyncio.create_task(slots.enter())
    await turns()
    slots.leave()
    slots.leave()
    await asyncio.gather(tasks[1], third)


# --- which node ------------------------------------------------------------------------------------------------------


@for_each("callers", range(1, 7))
def test_callers_failing_together_move_the_node_once(callers: int) -> None:
    where = _Where(parse_url("redis+cluster://a,b,c"))
    term = where.term
    assert [where.move(Redirect(), term) for _ in range(callers)] == [True] + [False] * (callers - 1)
    assert where.node == ("b", 6379)
    assert where.move(Redirect(), where.term)
    assert where.node == ("c", 6379)


def test_a_late_failure_keeps_the_primary_the_sentinels_named() -> None:
    where = _Where(parse_url("redis+sentinel://s/main"))
    where.node = ("old", 6379)
    term = where.term
    assert where.move(Redirect(leaves=True), term)
    assert where.node is None
    where.node = ("new", 6379)
    assert not where.move(Redirect(), term)
    assert where.node == ("new", 6379)


def test_a_late_redirection_keeps_the_node_found_since() -> None:
    where = _Where(parse_url("redis+cluster://a,b,c"))
    term = where.term
    assert where.move(Redirect(("b", 1)), term)
    assert not where.move(Redirect(("c", 1)), term)
    assert where.node == where.address.first == ("b", 1)
    # Where a slot is on its way, each request is sent on by itself.
    assert where.move(Redirect(("c", 1), once=True), term)
    assert (where.once, where.node) == (("c", 1), ("b", 1))


def test_connections_to_a_demoted_primary_are_left_once() -> None:
    where = _Where(parse_url("redis://a"))
    term = where.term
    assert where.move(Redirect(), term), "a connection that breaks leaves no node"
    assert where.move(Redirect(leaves=True), term)
    assert not where.move(Redirect(leaves=True), term)
