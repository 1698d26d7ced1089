"""
One reader of the event log, shared by the subscribers of a process.

The followers of an event loop share a reader, and those in threads without one share another. While any of them waits
it asks, in one request, for the events that at least one of them wants, and hands each event to those whose filters it
passes. While none waits it sends nothing.

- A follower has a position in the event log: it gets each later event that passes its filter once, in order, and events
  that the log has lost meanwhile are counted. It may be given to another reader.
- It reads by itself until it is no further behind than the reader, and joins it. The filters of a request are fixed
  when it is sent, so one that joins meanwhile is a member from the next request on.
- A member that takes no events has up to `AHEAD_MAX`, or `AHEAD_BYTES_MAX`, waiting for it; then it leaves, and reads
  on from the log when it has taken them. It delays no other member.
- A position before one that was seen is of another history of the namespace: all members read by themselves, from
  the position that the store returns, and join anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from queuehint.backends.steps import Steps, run_steps, run_steps_sync
from queuehint.operations import EVENT_FILTERS_MAX, EVENTS_LOOKED_AT_MAX, EVENTS_MAX, Follow, Followed
from queuehint.values.event import Event, EventFilter, FilterIndex, event_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.client.handle import Client

logger = logging.getLogger("queuehint.events")

AHEAD_MAX: Final = 1000
AHEAD_BYTES_MAX: Final = 16 << 20
"""So many events, or so much of them, wait for one follower, and for one listener."""
PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 1.25)
"""How far requests are apart, by how many of them have found nothing; the last one is repeated."""
EVERYTHING: Final = EventFilter()


def log_missed(count: int) -> None:
    """Log that events were dropped before they were read."""
    logger.warning("%d events were missed", count, extra={"event": "events.missed", "count": count})


class EventQueue(deque[Event]):
    """Waiting events and their total weight. The queue is full at `AHEAD_MAX` events or `AHEAD_BYTES_MAX` bytes."""

    bytes = 0

    @property
    def has_room(self) -> bool:
        """Return whether there is room for one more event. That event may fill the queue."""
        return len(self) < AHEAD_MAX and self.bytes < AHEAD_BYTES_MAX

    def append(self, event: Event) -> None:
        """Put an event behind the others."""
        super().append(event)
        self.bytes += event_bytes(event)

    def popleft(self) -> Event:
        """Take the first event."""
        event = super().popleft()
        self.bytes -= event_bytes(event)
        return event

    def clear(self) -> None:
        """Drop all events."""
        super().clear()
        self.bytes = 0


class Follower:
    """
    A subscriber: its position in the event log, and the events that were read ahead of it.

    Args:
        wanted: what passes it.
        since: the number of the last event it has; None begins with what happens after the first request.
    """

    __slots__ = ("ahead", "is_gone", "is_member", "missed", "since", "wanted")

    def __init__(self, wanted: EventFilter, since: int | None) -> None:
        self.wanted = wanted
        self.since = since
        self.ahead = EventQueue()
        self.missed = 0
        self.is_member = False
        self.is_gone = False
        """Its events will not be taken any more."""

    def begin(self) -> Steps[None]:
        """Start at the present end of the log, unless the subscriber has a position."""
        if self.since is None:
            self.since = (yield Follow()).after

    def read(self) -> Steps[None]:
        """Read without the shared reader, until an event is ahead or the end of the log is reached."""
        if self.since is None:
            yield from self.begin()
            return
        filters = () if self.wanted == EVERYTHING else (self.wanted,)
        while not self.ahead:
            since = self.since
            followed: Followed = yield Follow(since, EVENTS_MAX, filters)
            if self.since != since or self.is_member:
                # Two read on one stream, and the other one has these.
                return
            self.since = followed.after
            for event in followed.events:
                self.ahead.append(event)
            if followed.missed:
                self.missed += followed.missed
                log_missed(followed.missed)
            if not followed.is_more:
                return


class Feed:
    """
    The subscribers of a shared reader: the next request to the store, and the handling of its reply. Without I/O.

    Args:
        asks_for_all: the store passes over no events; members get theirs all the same.
    """

    def __init__(self, *, asks_for_all: bool) -> None:
        self._asks_for_all = asks_for_all
        self._members: dict[Follower, None] = {}
        self._index: FilterIndex[Follower] = FilterIndex()
        self._coming: list[Follower] = []
        self._is_asking = False
        self._idle = self._moved = 0
        self._asked_s = self._before_s = float("-inf")
        self.at = 0
        """All members have what there was up to here."""

    def position(self, follower: Follower) -> int | None:
        """Return the number of the last event that a subscriber has taken or passed over."""
        if follower.ahead:
            return follower.ahead[0].at - 1
        if follower.is_member and follower in self._members and follower.since is not None:
            return max(follower.since, self.at)
        return follower.since

    def join(self, follower: Follower, seen_at: int) -> bool:
        """
        Attach a subscriber that has read to the end of the log. Return False if the subscriber has fallen behind again.

        Args:
            seen_at: where the members were before it read.
        """
        assert follower.since is not None
        if follower.is_member:
            return True
        if follower.since < seen_at:
            self._begin_anew()
        if not self._members and not self._is_asking:
            self.at = follower.since
        if follower.since < self.at:
            return False
        follower.is_member = True
        self._idle = 0
        if self._is_asking:
            self._coming.append(follower)
        else:
            self._add(follower)
        return True

    def _add(self, follower: Follower) -> None:
        self._members[follower] = None
        self._index.add(follower, follower.wanted)

    def leave(self, follower: Follower, at: int | None = None) -> None:
        """Detach a subscriber from the shared reader, at *at* or its own position."""
        if follower.is_member:
            if follower in self._members:
                assert follower.since is not None
                follower.since = max(follower.since, self.at) if at is None else at
                del self._members[follower]
                self._index.remove(follower)
            else:
                self._coming.remove(follower)
            follower.is_member = False

    def _begin_anew(self) -> None:
        for follower in [*self._members, *self._coming]:
            self.leave(follower)
        self.at = 0

    def pause_s(self) -> float:
        """Return for how long the next request must wait."""
        gap_s = PAUSES_S[min(self._idle, len(PAUSES_S) - 1)]
        if self._moved:
            # Where much happens, the log is read before it has gone round.
            round_s = (self._asked_s - self._before_s) * EVENTS_LOOKED_AT_MAX / self._moved
            gap_s = max(PAUSES_S[0], min(gap_s, round_s))
        return self._asked_s + gap_s - time.monotonic()

    def question(self) -> Follow:
        """Return the next request, for all subscribers."""
        for follower in [follower for follower in self._members if follower.is_gone]:
            self.leave(follower)
        self._before_s, self._asked_s = self._asked_s, time.monotonic()
        self._is_asking = True
        filters = () if self._asks_for_all else self._index.filters()
        if len(filters) > EVENT_FILTERS_MAX or EVERYTHING in filters:
            filters = ()
        return Follow(self.at, EVENTS_MAX, filters)

    def answer(self, followed: Followed | None) -> None:
        """Distribute the events of a reply to the subscribers. None is a request without a reply."""
        self._is_asking = False
        if followed is not None and followed.after < self.at:
            self._begin_anew()
            return
        if followed is not None:
            self._take(followed)
        coming, self._coming = self._coming, []
        for follower in coming:
            follower.is_member = False
            assert follower.since is not None
            if follower.since >= self.at:
                follower.is_member = True
                self._add(follower)

    def _take(self, followed: Followed) -> None:
        self._idle, self._moved = self._idle + 1, followed.after - self.at
        if followed.missed:
            log_missed(followed.missed)
            for follower in self._members:
                assert follower.since is not None
                follower.missed += max(0, self.at + followed.missed - max(follower.since, self.at))
        for event in followed.events:
            for follower in list(self._index.passing(event)):
                assert follower.since is not None
                if event.at <= follower.since:
                    continue
                self._idle = 0
                if follower.ahead.has_room:
                    follower.ahead.append(event)
                else:
                    self.leave(follower, event.at - 1)
        self.at = followed.after


def _no_refusal() -> None:
    """Raise nothing: waiting is allowed everywhere."""


class EventReader:
    """The reader of one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._feed = Feed(asks_for_all=client.backend.is_local)
        self._waiting: dict[asyncio.Future[None], Follower] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def position(self, follower: Follower) -> int | None:
        """Return the number of the last event that a subscriber has taken or passed over."""
        return self._feed.position(follower)

    def leave(self, follower: Follower) -> None:
        """Detach a subscriber from the shared reader, at its own position."""
        self._feed.leave(follower)

    async def wait(self, follower: Follower, refuse: Callable[[], None] = _no_refusal) -> None:
        """
        Return when something is ahead of a follower.

        Args:
            refuse: called before it waits; may raise.
        """
        while not follower.ahead:
            if not follower.is_member:
                seen_at = self._feed.at
                await run_steps(self._client.backend, follower.read())
                if follower.ahead:
                    return
                refuse()
                if not self._feed.join(follower, seen_at):
                    continue
                self._wake()
                self._news.set()
            refuse()
            future = asyncio.get_running_loop().create_future()
            self._waiting[future] = follower
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._read_on(), name="queuehint-events")
            try:
                await future
            finally:
                del self._waiting[future]
                if not self._waiting:
                    self._news.set()

    async def _read_on(self) -> None:
        """Read for all subscribers while any of them waits."""
        while self._waiting:
            self._news.clear()
            pause_s = self._feed.pause_s()
            if pause_s > 0:
                try:
                    async with asyncio.timeout(pause_s):
                        await self._news.wait()
                except TimeoutError:
                    pass
                else:
                    continue
            try:
                await self._read()
            except Exception as error:  # noqa: BLE001 - those that wait are told
                for future in self._waiting:
                    if not future.done():
                        future.set_exception(error)
                return

    async def _read(self) -> None:
        is_more = True
        while is_more:
            followed = None
            try:
                followed = await self._client.backend.call(self._feed.question())
            finally:
                self._feed.answer(followed)
                self._wake()
            is_more = followed.is_more
            await asyncio.sleep(0)

    def _wake(self) -> None:
        """Wake the subscribers that have events ahead, or have to read for themselves."""
        for future, follower in self._waiting.items():
            if (follower.ahead or not follower.is_member) and not future.done():
                future.set_result(None)


class ThreadReader:
    """The reader of threads without a loop: one waiting thread reads for all."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._feed = Feed(asks_for_all=client.backend.is_local)
        self._changed = threading.Condition()
        self._has_leader = False

    def position(self, follower: Follower) -> int | None:
        """Return the number of the last event that a subscriber has taken or passed over."""
        with self._changed:
            return self._feed.position(follower)

    def leave(self, follower: Follower) -> None:
        """Detach a subscriber from the shared reader, at its own position."""
        with self._changed:
            self._feed.leave(follower)

    def leave_fork(self, follower: Follower) -> None:
        """Detach a subscriber in a fork, where the thread that holds the lock may be missing."""
        self._feed.leave(follower)

    def wait(self, follower: Follower, refuse: Callable[[], None] = _no_refusal) -> None:
        """Like `EventReader.wait`."""
        while not follower.ahead:
            if not follower.is_member:
                seen_at = self._feed.at
                run_steps_sync(self._client.backend, follower.read())
                if follower.ahead:
                    return
                refuse()
                with self._changed:
                    if not self._feed.join(follower, seen_at):
                        continue
                    self._changed.notify_all()
            refuse()
            with self._changed:
                if follower.ahead or not follower.is_member:
                    continue
                if self._has_leader:
                    self._changed.wait()
                    continue
                self._has_leader = True
            try:
                self._read()
            finally:
                with self._changed:
                    self._has_leader = False
                    self._changed.notify_all()

    def _read(self) -> None:
        """Read for all subscribers once a request is due."""
        with self._changed:
            while (pause_s := self._feed.pause_s()) > 0:
                self._changed.wait(pause_s)
            question = self._feed.question()
        followed = None
        try:
            followed = self._client.backend.call_sync(question)
        finally:
            with self._changed:
                self._feed.answer(followed)


class EventReaders:
    """The readers of a process: one for each loop with subscribers, and one for its threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, EventReader] = WeakKeyDictionary()
        self._of_threads: ThreadReader | None = None
        self._lock = threading.Lock()

    def of_loop(self) -> EventReader:
        """Return the reader of the running loop."""
        self._see_process()
        loop = asyncio.get_running_loop()
        reader = self._by_loop.get(loop)
        if reader is None:
            reader = self._by_loop[loop] = EventReader(self._client)
        return reader

    def of_threads(self) -> ThreadReader:
        """Return the reader of threads without a loop."""
        self._see_process()
        with self._lock:
            if self._of_threads is None:
                self._of_threads = ThreadReader(self._client)
            return self._of_threads

    def _see_process(self) -> None:
        # In a fork those that read are not there any more.
        if self._pid != os.getpid():
            self._begin_process()
