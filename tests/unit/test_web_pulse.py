"""The pulse of a store: looks while it is busy, events while it is quiet, and the counts that pages take of a look."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import JobSpec, Scheduler
from queuehint.errors import BackendError
from queuehint.values.hint import Claim
from queuehint.web import Access, events, make_app, pulse
from queuehint.web.pulse import APART_S_MAX, QUIET_LOOKS, Pulse
from tests.web_client import WebClient

MANY = 500
"""So many jobs between two looks are many, however slow the machine is."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "FIRST_S", 0.001)
    monkeypatch.setattr(events, "TICKS_S", 0.001)
    monkeypatch.setattr(events, "DEBOUNCE_S", 0.001)
    monkeypatch.setattr(events, "SPREAD_S", 0.001)


def watch(sched: Scheduler, on_look: Callable[[], Any] | None = None) -> list[str]:
    """Return a list of the kinds of operations that a store is asked from now on; *on_look* happens before a look."""
    asked: list[str] = []
    call: Callable[[Any], Any] = sched.backend.call

    async def watched(operation: Any) -> Any:
        is_look = type(operation).__name__.endswith("Jobs")
        asked.append("follow" if hasattr(operation, "filters") else "look" if is_look else "question")
        if on_look is not None and is_look:
            found = on_look()
            if found is not None:
                await found
        return await call(operation)

    sched.backend.call = watched  # type: ignore[method-assign]
    return asked


NUMBERS = itertools.count()


def busy(sched: Scheduler) -> Callable[[], Any]:
    """Return a function that enqueues many jobs."""
    return lambda: sched.submit(
        [JobSpec(id=f"{next(NUMBERS)}", task="save", claims=(Claim(("doc1",)),)) for _ in range(MANY)]
    )


async def test_busy_store_beats_by_looks() -> None:
    sched = Scheduler()
    asked, found = watch(sched, busy(sched)), Pulse(sched)
    assert [await found.beat(found.beats, 0.001) for _ in range(3)] == [True] * 3
    assert (asked.count("look"), asked.count("follow"), found.changes) == (4, 0, 3)
    assert not found.is_quiet


async def test_still_store_is_quiet_after_two_looks() -> None:
    sched = Scheduler()
    asked, found = watch(sched), Pulse(sched)
    assert await found.beat(found.beats, 0.001) is False
    assert (asked, found.changes, found.is_quiet) == (["look"] * 2, 0, True)
    assert await found.beat(found.beats, 0.001) is False
    assert len(asked) == 2, "it is known"


async def test_busy_store_is_quiet_after_some_slow_looks() -> None:
    sched = Scheduler()
    looks = itertools.count()
    more = busy(sched)
    asked, found = watch(sched, lambda: more() if next(looks) < 2 else None), Pulse(sched)
    assert await found.beat(found.beats, 0.001) is True
    del asked[:]
    assert await found.beat(found.beats, 0.001) is False
    assert asked == ["look"] * QUIET_LOOKS


async def test_slow_change_is_told_until_the_store_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "BUSY_PER_S", 1e9)
    sched = Scheduler()
    found = Pulse(sched)
    watch(sched, busy(sched))
    assert await found.beat(found.beats, 0.001) is False
    assert found.changes == 1, "pages are told of what happened between the two looks"


async def test_many_events_make_a_followed_store_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "FIRST_S", 0.0)
    found = Pulse(Scheduler())
    found.follow(1)
    assert await found.beat(found.beats, 0.001) is False
    found.follow(2)
    found.follow(1_000_000)
    assert not found.is_quiet
    monkeypatch.setattr(pulse, "FIRST_S", 60.0)
    found.follow(1)
    assert found._at == 1_000_000, "two numbers at almost the same time are not compared"


async def test_knowledge_of_a_quiet_store_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sched = Scheduler()
    found = Pulse(sched)
    assert await found.beat(found.beats, 0.001) is False
    monkeypatch.setattr(pulse, "KNOWN_S", 0.0)
    watch(sched, busy(sched))
    assert await found.beat(found.beats, 0.001) is True


async def test_pages_that_took_long_put_the_next_look_off(monkeypatch: pytest.MonkeyPatch) -> None:
    sched = Scheduler()
    found = Pulse(sched)
    watch(sched, busy(sched))
    await found.beat(found.beats, 0.001)
    waits_s: list[float] = []

    async def wait(seconds: float) -> None:
        waits_s.append(seconds)

    monkeypatch.setattr("queuehint.web.pulse.asyncio.sleep", wait)
    found.took(50)
    found.took(50)
    await found.beat(found.beats, 0.001)
    assert 0.1 < max(waits_s) <= APART_S_MAX
    assert found._took_s == 0.0


async def test_all_that_wait_share_one_look_and_its_error() -> None:
    sched = Scheduler()
    found, store = Pulse(sched), sched.backend.call
    asked = watch(sched, busy(sched))
    assert await asyncio.gather(*[found.beat(found.beats, 0.001) for _ in range(5)]) == [True] * 5
    assert asked.count("look") == 2

    async def gone(_: object) -> Any:
        raise BackendError("gone")

    sched.backend.call = gone  # type: ignore[method-assign,assignment]
    failed = await asyncio.gather(*[found.beat(found.beats, 0.001) for _ in range(5)], return_exceptions=True)
    assert [type(each) for each in failed] == [BackendError] * 5
    sched.backend.call = store  # type: ignore[method-assign]
    await asyncio.wait_for(found.beat(found.beats, 0.001), 20)


@pytest.mark.parametrize("is_away", [False, True])
async def test_one_that_left_is_told_nothing(*, is_away: bool) -> None:
    found = Pulse(Scheduler())

    async def looks(_: float) -> bool:
        waiting[0].cancel()
        if is_away:
            raise BackendError("gone")
        return True

    found._looks = looks  # type: ignore[method-assign,assignment]
    waiting = [asyncio.create_task(found.beat(0, 0.001)) for _ in range(2)]
    left, told = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError)
    assert isinstance(told, BackendError) if is_away else told is True


async def test_beat_that_was_not_seen_is_told_at_once() -> None:
    sched = Scheduler()
    found = Pulse(sched)
    watch(sched, busy(sched))
    await found.beat(found.beats, 0.001)
    asked = watch(sched)
    assert await found.beat(0, 60) is True
    assert not asked


async def test_look_ends_with_the_last_that_waits() -> None:
    sched = Scheduler()
    found, asked = Pulse(sched), asyncio.Event()
    call: Any = sched.backend.call

    async def never(_: object) -> Any:
        asked.set()
        await asyncio.Event().wait()

    sched.backend.call = never  # type: ignore[method-assign,assignment]
    waiting = asyncio.create_task(found.beat(found.beats, 0.001))
    await asked.wait()
    waiting.cancel()
    sched.backend.call = call  # type: ignore[method-assign]
    # The next one begins a look of its own, though the other has not ended yet.
    assert await asyncio.wait_for(asyncio.gather(waiting, found.beat(found.beats, 0.001), return_exceptions=True), 20)
    assert len([each for each in asyncio.all_tasks() if each.get_name() == "queuehint-pulse"]) == 0


async def test_counts_of_a_look_hold_until_a_change() -> None:
    sched = Scheduler()
    found = Pulse(sched)
    assert found.counts(60) is None
    watch(sched, busy(sched))
    await found.beat(found.beats, 0.001)
    counts = found.counts(60)
    assert counts is not None
    assert counts.enqueued == 2 * MANY
    assert found.counts(0) is None
    found.change()
    assert found.counts(60) is None


async def test_look_during_a_change_gives_no_counts() -> None:
    sched = Scheduler()
    found = Pulse(sched)
    more = busy(sched)

    async def order() -> None:
        await more()
        found.change()

    watch(sched, order)
    await found.beat(found.beats, 0.001)
    assert found.counts(60) is None, "what it has read may be older than the order"


# --- of a board ------------------------------------------------------------------------------------------------------


def counted_ticks(count: int) -> Callable[[str], bool]:
    return lambda text: text.count("event: changed") >= count


@pytest.mark.parametrize("target", ["/live", "/live?path=doc1"])
async def test_pages_of_a_busy_store_follow_no_events(target: str) -> None:
    sched = Scheduler()
    board = WebClient(make_app(sched, auth=lambda _: Access()))
    asked = watch(sched, busy(sched))
    await board.stream(target, counted_ticks(3))
    assert "follow" not in asked


@pytest.mark.parametrize(
    "target, scope", [("/live?kinds=enqueued", []), ("/live?user=ann", []), ("/live?flow=f", []), ("/live", ["doc1"])]
)
async def test_streams_of_some_events_follow_them(target: str, scope: list[str]) -> None:
    sched = Scheduler()
    board = WebClient(make_app(sched, auth=lambda _: Access(scope=scope)))
    asked = watch(sched, busy(sched))
    submitting: list[Any] = []

    def ticks(text: str) -> bool:
        if text and not submitting:
            submitting.append(asyncio.create_task(sched.submit([spec])))
        return "changed" in text

    spec = JobSpec(id="a", task="save", user="ann", flow="f", claims=(Claim(("doc1",)),))
    await board.stream(target, ticks)
    await submitting[0]
    assert (asked[0], "look" in asked) == ("follow", False)


async def test_slow_change_ticks_before_events_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "BUSY_PER_S", 1e9)
    sched = Scheduler()
    board = WebClient(make_app(sched, auth=lambda _: Access()))
    looks, more = itertools.count(), busy(sched)
    watch(sched, lambda: more() if next(looks) == 1 else None)
    answer = await board.stream("/live", lambda text: "id: " in text)
    assert answer.text.startswith(":\n\nid: ")
    assert answer.text.endswith("\nevent: changed\ndata: {}\n\n")


async def test_store_that_turns_quiet_is_followed_after_a_tick() -> None:
    sched = Scheduler()
    board = WebClient(make_app(sched, auth=lambda _: Access()))
    looks, more = itertools.count(), busy(sched)
    asked = watch(sched, lambda: more() if next(looks) < 3 else None)
    answer = await board.stream("/live", lambda text: "id: " in text)
    assert answer.text.startswith(":\n\nevent: changed\ndata: {}\n\n")
    assert answer.text.endswith("\nevent: changed\ndata: {}\n\n"), "of what happened before it follows"
    assert asked.count("look") == 3 + QUIET_LOOKS


async def test_pages_take_their_counts_from_a_look() -> None:
    sched = Scheduler()
    app: Any = make_app(sched, auth=lambda request: Access(scope=["doc1"] if "x-scope" in request.headers else []))
    board = WebClient(app)
    found = app.board.pulses[sched.namespace]
    asked = watch(sched, busy(sched))
    await found.beat(found.beats, 0.001)
    del asked[:]
    for page in ("/", "/jobs", "/jobs?state=queued"):
        answer = await board.get(page)
        assert f"{2 * MANY:,}".replace(",", "\u202f") in answer.text or f"{2 * MANY}" in answer.text, page
    assert "look" not in asked
    await board.get("/", x_scope="1")
    assert "look" not in asked
    await board.get("/jobs?task=save")
    assert "question" in asked
    app.board.pulses[sched.namespace].change()
    await board.get("/jobs")
    assert "look" in asked


async def test_each_order_is_a_change() -> None:
    sched = Scheduler()
    app: Any = make_app(sched, auth=lambda _: Access(write=True))
    board, found = WebClient(app), app.board.pulses[sched.namespace]
    await board.post("/api/v1/places/doc1/pause", {})
    assert found.changes == 1
    await board.post("/api/v1/places/doc1/pause", {"for_ms": "x"})
    assert found.changes == 2, "of an order that is refused some may have been carried out"
    await board.get("/api/v1/stats")
    assert found.changes == 2
