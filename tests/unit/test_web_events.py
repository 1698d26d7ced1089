"""Streams of a board: events with their numbers, ticks, what was missed, and what is left when a page goes."""

from __future__ import annotations

import asyncio
import itertools
import json
from functools import partial
from typing import Any

import pytest

from queuehint import JobSpec, Scheduler
from queuehint.errors import BackendError
from queuehint.operations import EVENTS_MAX
from queuehint.values.hint import Claim
from queuehint.web import Access, events, make_app
from tests.web_client import WebClient


def spec(job_id: str, *path: str) -> JobSpec:
    return JobSpec(id=job_id, task="save", claims=(Claim(path),))


@pytest.fixture
def sched() -> Scheduler:
    return Scheduler()


@pytest.fixture
def board(sched: Scheduler) -> WebClient:
    return WebClient(make_app(sched, auth=lambda _: Access()))


def blocks(text: str) -> list[dict[str, str]]:
    """Return the fields of each whole block of a stream, without comments."""
    whole = [block for block in text.split("\n\n")[:-1] if not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in whole]


def told(text: str) -> list[Any]:
    return [json.loads(block["data"]) for block in blocks(text) if "data" in block and "event" not in block]


async def turns() -> None:
    """Let all go on that waits for no time."""
    for _ in range(200):
        await asyncio.sleep(0)


def has(count: int) -> Any:
    return lambda text: len(told(text)) >= count


async def test_events_have_numbers_and_resume_behind_the_last(sched: Scheduler, board: WebClient) -> None:
    async with sched.events():
        await sched.submit([spec("a", "doc1"), spec("b", "doc2"), spec("c", "doc1")])
    answer = await board.stream("/events?path=doc1&kinds=enqueued&kinds=finished&after=0", has(2))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [(event["id"], event["kind"], event["at"]) for event in told(answer.text)] == [
        ("a", "enqueued", 1),
        ("c", "enqueued", 3),
    ]
    last = blocks(answer.text)[1]["id"]
    assert last == "1"
    again = await board.stream("/events", has(2), last_event_id=last)
    assert [event["id"] for event in told(again.text)] == ["b", "c"]


async def test_stream_begins_with_its_position_before_the_first_event(
    sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PING_S", 60)
    first = await board.stream("/events", lambda text: "\n\n" in text)
    assert first.text == "id: 0\n\n"
    await sched.submit([spec("a", "doc1")])
    assert [event["id"] for event in told((await board.stream("/events", has(1), last_event_id="0")).text)] == ["a"]


async def test_count_of_missed_events_is_told(
    sched: Scheduler, board: WebClient, caplog: pytest.LogCaptureFixture
) -> None:
    await sched.submit([spec("a", "doc1"), spec("b", "doc1")])  # nobody follows: these are dropped
    async with sched.events():
        await sched.submit([spec("c", "doc1")])
    answer = await board.stream("/events?after=0", has(1))
    assert {"event": "missed", "data": '{"count":2}'}.items() <= blocks(answer.text)[1].items()
    assert [event["id"] for event in told(answer.text)] == ["c"]


async def test_stream_without_events_says_how_far_it_is(
    sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PING_S", 0.01)
    async with sched.events():
        await sched.submit([spec("a", "doc1")])
    for path in ("/events", "/live"):
        answer = await board.stream(f"{path}?path=doc2&after=0", lambda text: text.endswith("id: 1\n\n"))
        assert {"id": "1"} in blocks(answer.text)
        assert "data" not in answer.text


async def test_live_sends_one_tick_for_many_events(
    sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "DEBOUNCE_S", 0.05)
    async with sched.events():
        await sched.submit([spec(f"{number}", "doc1") for number in range(50)])
    answer = await board.stream("/live?after=0", lambda text: "changed" in text)
    assert blocks(answer.text)[1:] == [{"id": "50", "event": "changed", "data": "{}"}]


async def test_ticks_of_a_busy_store_read_few_events(
    sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "DEBOUNCE_S", 0.01)
    monkeypatch.setattr(events, "TICKS_S", 0.05)
    read, call = [0], sched.backend.call

    async def counted(operation: Any) -> Any:
        answer = await call(operation)
        read.append(len(getattr(answer, "events", ())))
        return answer

    sched.backend.call = counted  # type: ignore[method-assign]
    ticks = 4

    async def flood() -> None:
        for number in itertools.count():
            await sched.submit([spec(f"{number}-{each}", "doc1") for each in range(100)])
            await asyncio.sleep(0)

    flooding = asyncio.create_task(flood())
    answer = await board.stream("/live", lambda text: text.count("changed") >= ticks)
    flooding.cancel()
    assert sum(read) <= 2 * ticks * EVENTS_MAX, "what happens between two ticks is not read"
    assert answer.text.count("changed") == ticks


def test_all_streams_together_have_a_bounded_rate_of_ticks() -> None:
    for streams in range(1, events.STREAMS_MAX + 1):
        assert events.apart_s(streams) >= events.TICKS_S
        assert streams / events.apart_s(streams) <= events.TICKS_PER_S


async def test_tick_follows_each_event_even_between_ticks(
    sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "DEBOUNCE_S", 0.01)
    monkeypatch.setattr(events, "TICKS_S", 0.03)
    begun, last = asyncio.Event(), 0

    async def submit_now_and_then() -> None:
        nonlocal last
        await begun.wait()
        for number in range(30):
            last = number + 1
            await sched.submit([spec(f"{number}", "doc1")])
            await asyncio.sleep(0.001 * (number % 7))

    def has_last(text: str) -> bool:
        begun.set()
        return last == 30 and any(block == {"id": "30", "event": "changed", "data": "{}"} for block in blocks(text))

    submitting = asyncio.create_task(submit_now_and_then())
    await board.stream("/live", has_last)
    await submitting


async def test_quiet_tick_stream_sends_its_position_around_a_tick(
    sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "DEBOUNCE_S", 0.01)
    monkeypatch.setattr(events, "PING_S", 0.01)

    def submits_once_and_has_pings(text: str) -> bool:
        if text.count("\n\n") == 3:
            submitting.append(asyncio.create_task(sched.submit([spec("a", "doc1")])))
        return text.rpartition("changed")[2].count("\n\n") > 2 and "changed" in text

    submitting: list[Any] = []
    answer = await board.stream("/live", submits_once_and_has_pings)
    await asyncio.gather(*submitting)
    assert [block["id"] for block in blocks(answer.text)][:3] == ["0"] * 3
    assert blocks(answer.text)[-1] == {"id": "1"}


async def test_tick_follows_missed_events(sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "DEBOUNCE_S", 0.01)
    monkeypatch.setattr(events, "PING_S", 0.01)
    await sched.submit([spec("a", "doc1")])  # nobody follows: it is dropped
    async with sched.events():
        answer = await board.stream("/live?path=doc2&after=0", lambda text: "changed" in text)
    assert blocks(answer.text)[-1]["event"] == "changed"


async def test_streams_of_a_process_share_one_reader_and_end_cleanly(sched: Scheduler, board: WebClient) -> None:
    begun, at_once, is_held = set[int](), 0, False
    all_begun, asked, may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()
    call = sched.backend.call

    async def held(operation: Any) -> Any:
        nonlocal at_once
        if is_held and hasattr(operation, "filters"):
            at_once += 1
            asked.set()
            await may_answer.wait()
        return await call(operation)

    def is_enough(number: int, text: str) -> bool:
        if "id: " in text:
            begun.add(number)
            if len(begun) == 8:
                all_begun.set()
        return "changed" in text

    sched.backend.call = held  # type: ignore[method-assign]
    tasks = [asyncio.create_task(board.stream("/live", partial(is_enough, number))) for number in range(8)]
    await all_begun.wait()
    await turns()  # each reads to the end of the log by itself, and then with the others
    is_held = True
    await sched.submit([spec("a", "doc1")])
    await asked.wait()
    await turns()
    assert at_once == 1, "8 pages, one reader"
    may_answer.set()
    await asyncio.gather(*tasks)
    app: Any = board.app
    assert app.board.streams == 0


@pytest.mark.parametrize("path", ["/events", "/live"])
async def test_head_of_a_stream_is_answered_at_once(sched: Scheduler, board: WebClient, path: str) -> None:
    async def away(_: object) -> Any:
        raise AssertionError("a stream was opened")

    sched.backend.call = away  # type: ignore[method-assign,assignment]
    answer = await board.ask("HEAD", f"{path}?path=doc1&after=0")
    assert (answer.status, answer.body, "content-length" in answer.headers) == (200, b"", False)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (await board.ask("HEAD", f"{path}?after=x")).status == 400
    app: Any = board.app
    assert app.board.streams == 0


async def test_streams_are_bounded(board: WebClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STREAMS_MAX", 0)
    answer = await board.get("/events")
    assert (answer.status, answer.json["error"]) == (503, "too-many-streams")
    assert answer.headers["retry-after"] == "60"
    of_page = await board.get("/live", hx_request="true", accept="text/html, text/event-stream")
    assert (of_page.status, of_page.json["error"]) == (503, "too-many-streams"), "a page shows no notice of it"
    assert "hx-retarget" not in of_page.headers


async def test_stream_ends_when_the_store_is_away(sched: Scheduler, board: WebClient) -> None:
    async def gone(_: object) -> Any:
        raise BackendError("gone")

    sched.backend.call = gone  # type: ignore[method-assign,assignment]
    assert (await board.stream("/events", lambda _: False)).text == ""


@pytest.mark.parametrize(
    "target, headers, named",
    [
        ("/events?after=x", {}, "Last-Event-ID must be the number of an event, got 'x'"),
        ("/events", {"last_event_id": "9" * 17}, "Last-Event-ID must be"),
        ("/events?after=" + "9" * 16, {}, "after"),
        ("/events?kinds=lost&kinds=no", {}, "kinds"),
        ("/live?colour=red", {}, "query has no parameter 'colour'"),
    ],
)
async def test_bad_stream_is_refused_by_name(
    board: WebClient, target: str, headers: dict[str, str], named: str
) -> None:
    answer = await board.get(target, **headers)
    assert answer.status == 400
    assert named in answer.json["detail"]


async def test_stream_needs_the_right_to_read(sched: Scheduler) -> None:
    board = WebClient(make_app(sched, auth=lambda _: Access(read=False)))
    assert (await board.get("/events")).status == 403
