"""A shared reader of the event log: each follower gets each event once, in order, or counted as missed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
from typing import Any

import pytest

from queuehint import BackendUnavailableError, Scheduler
from queuehint.backends.memory import MemoryBackend
from queuehint.client import event_reader
from queuehint.client.event_reader import Feed, Follower
from queuehint.operations import Follow, Followed
from queuehint.values.event import Event, EventFilter, EventKind, event_bytes
from tests.schedulers import in_thread, run, until
from tests.support import thorough

EVERYTHING, ANN, STARTS = EventFilter(), EventFilter(user="ann"), EventFilter(kinds=(EventKind.STARTED,))


class Log:
    """A log of events that keeps the last of them, as a store does."""

    def __init__(self, kept: int = 1_000_000) -> None:
        self.kept = kept
        self.events: list[Event] = []

    def add(self, *users: str, kind: EventKind = EventKind.STARTED) -> None:
        for user in users:
            at = len(self.events) + 1
            self.events.append(Event(at=at, at_ms=0, kind=kind, id="a", number=1, old=None, new=None, user=user))

    def answer(self, question: Any, page: int = 1000) -> Followed:
        last = len(self.events)
        if question.after is None:
            return Followed((), last, 0, is_more=False)
        after = question.after if question.after <= last else 0
        first = max(after, last - self.kept)
        events = self.events[first : first + page]
        to = events[-1].at if events else last
        passing = [event for event in events if not question.filters or any(f.passes(event) for f in question.filters)]
        return Followed(tuple(passing), to, first - after, is_more=to < last)

    def read(self, follower: Follower, page: int = 1000) -> None:
        steps = follower.read()
        with contextlib.suppress(StopIteration):
            step = next(steps)
            while True:
                step = steps.send(self.answer(step, page))


def members(log: Log, feed: Feed, *filters: EventFilter) -> list[Follower]:
    followers = [Follower(wanted, len(log.events)) for wanted in filters]
    for follower in followers:
        assert feed.join(follower, feed.at)
    return followers


def taken(follower: Follower) -> list[int]:
    found = [event.at for event in follower.ahead]
    follower.ahead.clear()
    return found


# --- the rule --------------------------------------------------------------------------------------------------------


class Play:
    """A log, and followers that come, read, take and go as chance has it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = Log(kept=self.random.choice((5, 20, 1_000)))
        self.feed = Feed(asks_for_all=self.random.random() < 0.5)
        self.followers: list[Follower] = []
        self.since: dict[Follower, int] = {}
        self.got: dict[Follower, list[int]] = {}
        self.lost: dict[Follower, set[int]] = {}
        self.asked: Any = None
        self.reading: dict[Follower, tuple[int, Any, Any]] = {}

    def step(self) -> None:
        self.random.choice(
            (self.add, self.add, self.come, self.ask, self.ask, self.read, self.read, self.take, self.go)
        )()

    def add(self) -> None:
        kind = self.random.choice((EventKind.STARTED, EventKind.FAILED))
        self.log.add(*self.random.choices(("ann", "bob"), k=self.random.randrange(6)), kind=kind)

    def come(self) -> None:
        if len(self.followers) < 5:
            since = self.random.choice((None, len(self.log.events), self.random.randint(0, len(self.log.events))))
            follower = Follower(self.random.choice((EVERYTHING, ANN, STARTS)), since)
            self.followers.append(follower)
            self.got[follower] = []
            if since is not None:
                self.since[follower] = since

    def ask(self) -> None:
        """Ask for all, or get the answer, of a page of any length."""
        if self.asked is None:
            question = self.feed.question()
            self.asked = self.log.answer(question, self.random.choice((1, 3, 1000)))
        else:
            self.feed.answer(self.asked if self.random.random() < 0.9 else None)
            self.asked = None

    def read(self) -> None:
        """Let one that is no member ask, or get its answer; then it joins."""
        apart = [follower for follower in self.followers if not follower.is_member and not follower.ahead]
        if not apart:
            return
        follower = self.random.choice(apart)
        if follower not in self.reading:
            steps = follower.read()
            self.reading[follower] = self.feed.at, steps, self.log.answer(next(steps), self.random.choice((2, 1000)))
            return
        seen_at, steps, answer = self.reading.pop(follower)
        begins = follower.since is None
        try:
            self.reading[follower] = seen_at, steps, self.log.answer(steps.send(answer))
        except StopIteration:
            if begins:
                assert follower.since is not None
                self.since[follower] = follower.since
            if not follower.ahead:
                self.feed.join(follower, seen_at)

    def take(self) -> None:
        if self.followers:
            follower = self.random.choice(self.followers)
            for _ in range(min(len(follower.ahead), self.random.randrange(4))):
                self.got[follower].append(follower.ahead.popleft().at)
            position = self.feed.position(follower)
            assert not self.got[follower] or (position is not None and position >= self.got[follower][-1])

    def go(self) -> None:
        if self.followers and self.random.random() < 0.3:
            self.feed.leave(self.random.choice(self.followers))

    def wind_up(self) -> None:
        if self.asked is not None:
            self.ask()
        for follower in self.followers:
            self.reading.pop(follower, None)
            while True:
                self.got[follower] += taken(follower)
                self.feed.leave(follower)
                self.log.read(follower)
                if not follower.ahead:
                    break

    def check(self) -> None:
        for follower, got in self.got.items():
            since = self.since.get(follower, len(self.log.events))
            wanted = [event.at for event in self.log.events if event.at > since and follower.wanted.passes(event)]
            assert got == sorted(set(got)), "once, and in order"
            assert set(got) <= set(wanted)
            assert len(wanted) - len(got) <= follower.missed <= len(self.log.events) - since
            if self.log.kept == 1_000:
                assert follower.missed == 0
            if not follower.missed:
                assert got == wanted


def test_each_follower_gets_events_once_in_order_or_counts_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_reader, "AHEAD_MAX", 4)
    for seed in range(thorough(5_000, quick=300)):
        play = Play(seed)
        for _ in range(60):
            play.step()
        play.wind_up()
        play.check()


# --- its parts -------------------------------------------------------------------------------------------------------


def test_one_question_is_for_all_members() -> None:
    log, feed = Log(), Feed(asks_for_all=False)
    one, two, three = members(log, feed, ANN, STARTS, ANN)
    log.add("ann", "bob")
    question = feed.question()
    assert question.filters == (ANN, STARTS)
    feed.answer(log.answer(question))
    assert [taken(each) for each in (one, two, three)] == [[1], [1, 2], [1]]
    feed.answer(log.answer(feed.question()))
    assert not (one.ahead or two.ahead)


def test_unfiltered_or_excess_followers_read_the_whole_log() -> None:
    log, feed = Log(), Feed(asks_for_all=False)
    many = members(log, feed, *[EventFilter(user=f"u{number}") for number in range(1001)])
    assert feed.question().filters == ()
    feed.answer(None)
    feed.leave(many[0])
    assert len(feed.question().filters) == 1000
    feed.answer(None)
    members(log, feed, EVERYTHING)
    assert feed.question().filters == ()
    near = Feed(asks_for_all=True)
    members(log, near, ANN)
    assert near.question().filters == ()


def test_slow_follower_leaves_and_resumes_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "AHEAD_MAX", 3)
    log, feed = Log(), Feed(asks_for_all=False)
    slow, quick = members(log, feed, EVERYTHING, ANN)
    log.add("bob", "bob", "bob", "ann", "bob")
    feed.answer(log.answer(feed.question()))
    assert not slow.is_member and quick.is_member
    assert (taken(slow), taken(quick)) == ([1, 2, 3], [4])
    log.read(slow)
    assert (taken(slow), slow.missed) == ([4, 5], 0)


def test_follower_of_large_events_leaves_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    log, feed = Log(), Feed(asks_for_all=False)
    log.add("bob")
    monkeypatch.setattr(event_reader, "AHEAD_BYTES_MAX", 3 * event_bytes(log.events[0]))
    slow, quick = members(log, feed, EVERYTHING, ANN)
    log.add("bob", "bob", "bob", "ann", "bob")
    feed.answer(log.answer(feed.question()))
    assert not slow.is_member and quick.is_member
    assert (taken(slow), taken(quick)) == ([2, 3, 4], [5])
    assert (slow.ahead.bytes, quick.ahead.bytes) == (0, 0)


def test_lost_events_are_counted_only_for_affected_subscribers() -> None:
    log, feed = Log(kept=2), Feed(asks_for_all=False)
    (old,) = members(log, feed, ANN)
    log.add(*["ann"] * 3)
    young = Follower(ANN, None)
    log.read(young)
    assert feed.join(young, feed.at)
    log.add(*["ann"] * 3)
    feed.answer(log.answer(feed.question()))
    assert [(taken(each), each.missed) for each in (old, young)] == [([5, 6], 4), ([5, 6], 1)]


def test_all_read_by_themselves_when_the_log_has_begun_anew() -> None:
    for finds_out in ("the reader", "one that joins"):
        log, feed = Log(), Feed(asks_for_all=False)
        log.add(*["bob"] * 9)
        old, other = members(log, feed, ANN, STARTS)
        log.events.clear()
        log.add("ann", "bob")
        if finds_out == "the reader":
            feed.answer(log.answer(feed.question()))
        else:
            young = Follower(EVERYTHING, None)
            seen_at = feed.at
            log.read(young)
            assert feed.join(young, seen_at)
            log.add("ann")
            feed.answer(log.answer(feed.question()))
            assert taken(young) == [3]
        assert not old.is_member and not other.is_member
        log.read(old)
        log.read(other)
        assert taken(old)[:2] in ([1], [1, 3]) and taken(other)[:2] == [1, 2]


def test_idle_polls_slow_down_without_losing_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("queuehint.client.event_reader.time.monotonic", lambda: now_s)
    log, feed = Log(), Feed(asks_for_all=False)
    members(log, feed, ANN)
    pauses = []
    for happens in [0] * 7 + [2_000, 100, 100]:
        log.add(*["bob"] * happens)
        feed.answer(log.answer(feed.question(), page=10_000))
        pauses.append(round(feed.pause_s(), 2))
        now_s += pauses[-1]
    assert pauses == [0.1, 0.2, 0.5, 1.0, *[1.25] * 6]
    log.add(*["bob"] * 10_000)
    feed.answer(log.answer(feed.question(), page=10_000))
    assert feed.pause_s() == pytest.approx(0.25)
    log.add("ann")
    feed.answer(log.answer(feed.question()))
    assert feed.pause_s() == pytest.approx(0.05)


# --- readers ---------------------------------------------------------------------------------------------------------


PAUSE_S = 0.01


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Follow]:
    """Return what is asked, in a process whose readers hardly pause: for `PAUSE_S`."""
    found: list[Follow] = []
    call, call_sync = MemoryBackend.call, MemoryBackend.call_sync

    async def note(self: MemoryBackend, operation: Any) -> Any:
        found.extend([operation] if isinstance(operation, Follow) else [])
        return await call(self, operation)

    def note_sync(self: MemoryBackend, operation: Any) -> Any:
        found.extend([operation] if isinstance(operation, Follow) else [])
        return call_sync(self, operation)

    monkeypatch.setattr(MemoryBackend, "call", note)
    monkeypatch.setattr(MemoryBackend, "call_sync", note_sync)
    monkeypatch.setattr(event_reader, "PAUSES_S", (PAUSE_S,))
    return found


def doc_app() -> tuple[Scheduler, Any]:
    sched = Scheduler("memory://")

    @sched.job(["{doc}"])
    async def edit(doc: str) -> None: ...

    return sched, edit


async def test_a_hundred_streams_of_a_loop_are_one_reader(asked: list[Follow]) -> None:
    sched, edit = doc_app()
    streams = [sched.events("enqueued", path=[f"doc{number % 10}"]) for number in range(100)]
    firsts = [asyncio.create_task(anext(stream)) for stream in streams]
    await until(lambda: len(asked) > 100)
    asked.clear()
    begun_s = time.monotonic()
    ids = [(await edit.enqueue(f"doc{number}")).id for number in range(10)]
    assert [event.id for event in await asyncio.gather(*firsts)] == ids * 10
    assert len(asked) <= 2 + (time.monotonic() - begun_s) / PAUSE_S, "as one reader asks"
    assert len({stream.after for stream in streams}) == 1


async def test_nothing_is_asked_while_nobody_waits(asked: list[Follow]) -> None:
    sched, edit = doc_app()
    stream, dropped = sched.events("enqueued"), sched.events(user="ann")
    firsts = [asyncio.create_task(anext(each)) for each in (stream, dropped)]
    await until(lambda: len(asked) > 5)
    handle = await edit.enqueue("doc1")
    assert (await firsts[0]).id == handle.id
    firsts[1].cancel()
    await asyncio.gather(*firsts, return_exceptions=True)
    await asyncio.sleep(0.03)
    asked.clear()
    firsts.clear()
    del dropped
    gc.collect()
    await asyncio.sleep(0.05)
    assert asked == []
    second = asyncio.create_task(anext(stream))
    await until(lambda: len(asked) > 1)
    assert len(sched._event_readers.of_loop()._feed._members) == 1
    last = await edit.enqueue("doc2")
    assert (await second).id == last.id


async def test_store_error_reaches_all_waiters_and_they_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "PAUSES_S", (0.01,))
    sched, edit = doc_app()
    call, is_away = MemoryBackend.call, False

    async def refuse(self: MemoryBackend, operation: Any) -> Any:
        if is_away and isinstance(operation, Follow):
            raise BackendUnavailableError("away")
        return await call(self, operation)

    monkeypatch.setattr(MemoryBackend, "call", refuse)
    streams = [sched.events("enqueued") for _ in range(3)]
    firsts = [asyncio.create_task(anext(stream)) for stream in streams]
    await until(lambda: len(sched._event_readers.of_loop()._waiting) == 3)
    is_away = True
    found = await asyncio.gather(*firsts, return_exceptions=True)
    assert all(isinstance(error, BackendUnavailableError) for error in found)
    handle = await edit.enqueue("doc1")
    is_away = False
    assert {(await anext(stream)).id for stream in streams} == {handle.id}


async def test_two_that_read_one_stream_share_its_events() -> None:
    sched, edit = doc_app()
    async with sched.events("enqueued") as stream:
        firsts = [asyncio.create_task(anext(stream)) for _ in range(2)]
        await asyncio.sleep(0)
        ids = [(await edit.enqueue(doc)).id for doc in "ab"]
        assert sorted([event.id for event in await asyncio.gather(*firsts)]) == sorted(ids)


def test_streams_of_threads_are_one_reader(asked: list[Follow]) -> None:
    sched, edit = doc_app()
    streams = [sched.events_sync("enqueued") for _ in range(5)]
    for stream in streams:
        stream.__enter__()
    firsts = [in_thread(lambda stream=stream: next(stream)) for stream in streams]  # type: ignore[misc]
    run(until(lambda: len(sched._event_readers.of_threads()._feed._members) == 5))
    asked.clear()
    begun_s = time.monotonic()
    threading.Event().wait(0.05)
    assert len(asked) <= 2 + (time.monotonic() - begun_s) / PAUSE_S, "as one reader asks"
    handle = edit.enqueue_sync("doc1")
    assert [first().id for first in firsts] == [handle.id] * 5


async def test_stream_may_be_read_after_its_block_on_another_loop() -> None:
    sched, edit = doc_app()
    async with sched.events("enqueued") as stream:
        ids = [(await edit.enqueue(doc)).id for doc in "ab"]
        assert (await anext(stream)).id == ids[0]
    assert (await anext(stream)).id == ids[1]
    ids.append((await edit.enqueue("c")).id)
    found = await asyncio.to_thread(lambda: asyncio.run(anext(stream)))
    assert (found.id, stream.after, stream.missed) == (ids[2], found.at, 0)
