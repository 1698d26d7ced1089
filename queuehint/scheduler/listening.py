"""
Event listeners: functions called with events, independent of workers.

In a process one task follows the events of a namespace, whatever workers it has. Each listener has a bounded queue and
a task of its own, and a plain function runs in a thread: a slow one loses the oldest events of its own queue, an
exception is logged, and neither holds up a job, the follower or another listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.backends.steps import run_steps
from queuehint.client.event_reader import EventQueue, Follower
from queuehint.errors import BackendError, shown
from queuehint.values.event import Event, EventFilter, EventKind, Missed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from queuehint.client.event_reader import EventReader, EventReaders
    from queuehint.client.handle import Client

logger = logging.getLogger("queuehint.events")

SAY_EVERY_S = 60.0
GRACE_S = 5.0
"""How long listeners have for their last events when listening ends."""
STORE_PAUSE_S = 1.0
TURN_S = 0.5
MISSED = "missed"


@attrs.frozen(kw_only=True)
class ListenerState:
    """
    How a listener is doing.

    Args:
        name: of the function.
        kinds: what it is told.
        waiting: events it has yet to be told.
        missed: how many it was not told, because it is too slow or they were gone.
        failed: how often it raised.
    """

    name: str
    kinds: frozenset[str]
    waiting: int
    missed: int
    failed: int


class _Listener:
    """One listener: its function, queue and counters."""

    def __init__(self, kinds: frozenset[str], call: Callable[[Any], Any]) -> None:
        self.kinds = kinds
        self.call = call
        name = getattr(call, "__qualname__", None)
        self.name = str.__str__(name) if isinstance(name, str) else shown(call)
        self.waiting = EventQueue()
        """When it is full, the oldest make room."""
        self.missed = self.failed = 0
        self._untold = 0
        """How many of those missed it has yet to be told of."""
        self._said_s: dict[str, float] = {}
        self._news = asyncio.Event()
        self._is_closing = False

    @property
    def state(self) -> ListenerState:
        return ListenerState(
            name=self.name, kinds=self.kinds, waiting=len(self.waiting), missed=self.missed, failed=self.failed
        )

    def tell(self, event: Event) -> None:
        """Queue an event if its kind is subscribed."""
        if event.kind in self.kinds:
            while not self.waiting.has_room:
                self.waiting.popleft()
                self.miss(1)
            self.waiting.append(event)
            self._news.set()

    def miss(self, count: int) -> None:
        """Count dropped events. A listener of "missed" is notified first."""
        self.missed += count
        if MISSED in self.kinds:
            self._untold += count
            self._news.set()
        if self._may_say("slow"):
            extra = {"event": "events.listener_missed", "listener": self.name, "missed": self.missed}
            logger.warning("listener %s has missed %d events", self.name, self.missed, extra=extra)

    async def run(self) -> None:
        """Call the function with queued events, until `close`."""
        self._news, self._is_closing = asyncio.Event(), False
        is_async = inspect.iscoroutinefunction(self.call)
        while True:
            while self.waiting or self._untold:
                event = self._next()
                try:
                    answer = self.call(event) if is_async else await self._in_thread(event)
                    if inspect.isawaitable(answer):
                        await answer
                except BaseException as error:
                    task = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                        raise
                    self.failed += 1
                    if self._may_say("failed"):
                        extra = {"event": "events.listener_failed", "listener": self.name, "failed": self.failed}
                        logger.exception("listener %s failed", self.name, extra=extra)
            if self._is_closing:
                return
            self._news.clear()
            await self._news.wait()

    async def _in_thread(self, event: Event | Missed) -> Any:
        """Call a plain function in a thread."""

        def call() -> tuple[Any, BaseException | None]:
            try:
                return self.call(event), None
            except BaseException as error:  # noqa: BLE001 - handed over as a value: futures refuse some of them
                return None, error

        answer, error = await asyncio.to_thread(call)
        if error is not None:
            raise error
        return answer

    def _next(self) -> Event | Missed:
        if not self._untold:
            return self.waiting.popleft()
        missed, self._untold = Missed(count=self._untold), 0
        return missed

    def close(self) -> None:
        """End `run` once the queue is empty."""
        self._is_closing = True
        self._news.set()

    def _may_say(self, what: str) -> bool:
        now_s = time.monotonic()
        if now_s - self._said_s.get(what, -SAY_EVERY_S) < SAY_EVERY_S:
            return False
        self._said_s[what] = now_s
        return True


class Announcer:
    """All listeners of a scheduler, and the one task of the process that reads events for them."""

    def __init__(self, client: Client, readers: EventReaders) -> None:
        self._client = client
        self._readers = readers
        self._listeners: list[_Listener] = []
        self._follower = Follower(EventFilter(), None)
        self._missed = 0
        self._wakes: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}
        self._failed_s = -SAY_EVERY_S
        self._begin_process()

    def _begin_process(self) -> None:
        # In a fork the one that follows is not there any more.
        self._pid = os.getpid()
        self._turn = threading.Lock()

    @property
    def states(self) -> tuple[ListenerState, ...]:
        """How all listeners are doing, in the order in which they were added."""
        return tuple([listener.state for listener in self._listeners])

    def add(self, kinds: frozenset[str], call: Callable[[Any], Any]) -> None:
        """Add a listener, also while others run already."""
        self._listeners.append(_Listener(kinds, call))
        for loop, wake in list(self._wakes.items()):
            with contextlib.suppress(RuntimeError):  # that loop has ended meanwhile
                loop.call_soon_threadsafe(wake.set)

    def remove(self, call: Callable[[Any], Any]) -> None:
        """Remove a listener. Its queued events are dropped."""
        for listener in [listener for listener in self._listeners if listener.call == call]:
            self._listeners.remove(listener)
            listener.waiting.clear()

    @contextlib.asynccontextmanager
    async def announcing(self) -> AsyncIterator[None]:
        """Call the listeners with events from now on, while the block runs."""
        if self._pid != os.getpid():
            self._begin_process()
        stop = asyncio.Event()
        if self._listeners:
            await self._begin()
        task = asyncio.create_task(self._run(stop), name="queuehint-listening")
        try:
            yield
        finally:
            stop.set()
            for wake in [wake for loop, wake in self._wakes.items() if loop is asyncio.get_running_loop()]:
                wake.set()
            await task

    async def _begin(self) -> None:
        """Read the present position in the event log, so that the events of the first job are included."""
        with contextlib.suppress(BackendError):
            await run_steps(self._client.backend, self._follower.begin())

    async def _run(self, stop: asyncio.Event) -> None:
        while not self._turn.acquire(blocking=False):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), TURN_S)
            if stop.is_set():
                return
        loop, wake = asyncio.get_running_loop(), asyncio.Event()
        self._wakes[loop] = wake
        tasks: dict[_Listener, asyncio.Task[None]] = {}
        try:
            await self._announce(stop, wake, tasks)
        finally:
            del self._wakes[loop]
            for listener in tasks:
                listener.close()
            if tasks:
                _, late = await asyncio.wait(tasks.values(), timeout=GRACE_S)
                for task in late:
                    task.cancel()
            self._turn.release()

    async def _announce(
        self, stop: asyncio.Event, wake: asyncio.Event, tasks: dict[_Listener, asyncio.Task[None]]
    ) -> None:
        """Read events and dispatch them. Read once more at the end, for the last events."""
        reader = self._readers.of_loop()
        try:
            await self._announce_from(reader, stop, wake, tasks)
        finally:
            reader.leave(self._follower)

    async def _announce_from(
        self, reader: EventReader, stop: asyncio.Event, wake: asyncio.Event, tasks: dict[_Listener, asyncio.Task[None]]
    ) -> None:
        while True:
            is_last = stop.is_set()
            wake.clear()
            for listener in self._listeners:
                if listener not in tasks:
                    tasks[listener] = asyncio.create_task(listener.run(), name="queuehint-listener")
            pause_s: float | None = None
            if self._listeners:
                pause_s = 0
                try:
                    self._choose(reader)
                    if is_last:
                        await self._read_the_rest(reader)
                    else:
                        await self._wait(reader, wake)
                    self._hand_out()
                except BackendError as error:
                    self._say_failed(error)
                    pause_s = STORE_PAUSE_S
                except Exception as error:
                    # Without this task no listener would get any event.
                    logger.exception("reading events failed", extra={"event": "events.failed", "error": str(error)})
                    pause_s = STORE_PAUSE_S
            if is_last:
                return
            if pause_s != 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), pause_s)
            else:
                await asyncio.sleep(0)

    def _choose(self, reader: EventReader) -> None:
        """Subscribe to the kinds of events that the listeners need."""
        heard = frozenset[str]().union(*[listener.kinds for listener in self._listeners])
        kinds = tuple([kind for kind in EventKind if kind in heard])
        wanted = EventFilter(kinds=kinds if len(kinds) < len(EventKind) else ())
        if wanted != self._follower.wanted:
            reader.leave(self._follower)
            self._follower.wanted = wanted

    async def _wait(self, reader: EventReader, wake: asyncio.Event) -> None:
        """Return when there are events, or *wake* is set."""
        waits = [asyncio.create_task(reader.wait(self._follower)), asyncio.create_task(wake.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waits[0].done():
                waits[0].result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _read_the_rest(self, reader: EventReader) -> None:
        reader.leave(self._follower)
        while True:
            self._hand_out()
            await run_steps(self._client.backend, self._follower.read())
            if not self._follower.ahead:
                return

    def _hand_out(self) -> None:
        """Queue events for the listeners, and report the dropped ones."""
        follower = self._follower
        missed, self._missed = follower.missed - self._missed, follower.missed
        for listener in self._listeners if missed else ():
            listener.miss(missed)
        while follower.ahead:
            event = follower.ahead.popleft()
            for listener in self._listeners:
                listener.tell(event)

    def _say_failed(self, error: BackendError) -> None:
        now_s = time.monotonic()
        if now_s - self._failed_s >= SAY_EVERY_S:
            self._failed_s = now_s
            extra = {"event": "events.unavailable", "error": str(error)}
            logger.warning("events cannot be read: %s", error, extra=extra)
