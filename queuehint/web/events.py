"""
Server-sent events: a stream of job events, and ticks on a change of a page's content.

All streams of a process and a namespace read the event log by one request at a time. A stream ends when the store does
not answer: a browser begins it anew with the id of the last event it has, and is told how many were missed.

A tick says only that a page is out of date, so the events between two ticks are not read: however much happens, a page
costs as many questions as it has ticks. Of a busy store no events are read at all for pages: they tick by its pulse.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response, StreamingResponse

from queuehint.errors import BackendError, InvalidJobError, shown
from queuehint.values.event import Event, EventFilter
from queuehint.web.forms import read_query, written
from queuehint.web.problems import Refused
from queuehint.web.scope import forced, pruned

if TYPE_CHECKING:
    from starlette.requests import Request

    from queuehint.scheduler.event_streams import EventStream
    from queuehint.web.board import Asker
    from queuehint.web.pulse import Pulse

STREAMS_MAX: Final = 256
"""How many streams a board has open at once."""
FULL_S: Final = 60
"""After so long one that found all streams in use may try again."""
PING_S: Final = 15.0
"""A stream without events says this often how far it has come."""
DEBOUNCE_S: Final = 0.25
"""A tick comes so long after the first event that it stands for."""
TICKS_S: Final = 1.0
"""Ticks of a stream are at least so far apart."""
TICKS_PER_S: Final = 12
"""All streams of a board tick at most so often: each tick has a page asked for."""
SPREAD: Final = 1.5
"""A tick comes up to so many times later, so that the pages that follow one event do not all ask at once."""
SPREAD_S: Final = 0.25
"""A tick by the pulse comes up to so much later."""
TICK: Final[tuple[Any, ...]] = ({}, "changed")
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
MEDIA_TYPE: Final = "text/event-stream"
POSITION_BYTES: Final = 8
LAST: Final = "Last-Event-ID"


async def events(asker: Asker, request: Request) -> Response:
    """Stream the events that pass a filter. ``Last-Event-ID`` resumes a stream."""
    return _streamed(asker, request, _events)


async def live(asker: Asker, request: Request) -> Response:
    """Stream a tick whenever an event has passed a filter."""
    return _streamed(asker, request, _ticks)


def _streamed(asker: Asker, request: Request, parts: Callable[[Asker, Opening], AsyncIterator[str]]) -> Response:
    """Return a stream. A HEAD request opens no stream."""
    asker.check_read()
    if asker.board.streams >= STREAMS_MAX:
        detail = f"{STREAMS_MAX} streams are open, the limit"
        raise Refused(503, "too-many-streams", detail, {"Retry-After": str(FULL_S)})
    query = request.query_params
    after = request.headers.get("last-event-id") or query.get("after")
    wanted = read_query(EventFilter, query, set(query) - {"after"}).check()
    opening = Opening(asker, forced(wanted, asker.access.scope), None if after is None else _position(asker, after))
    if request.method == "HEAD":
        return _head()

    async def body() -> AsyncIterator[str]:
        asker.board.streams += 1
        try:
            # The store is away, or the process ends: the browser comes again.
            with suppress(BackendError):
                async for part in parts(asker, opening):
                    yield part
        finally:
            asker.board.streams -= 1

    return StreamingResponse(body(), media_type=MEDIA_TYPE, headers=HEADERS)


def _head() -> Response:
    """Return the headers of a stream without a length."""
    response = Response(media_type=MEDIA_TYPE, headers=HEADERS)
    del response.headers["content-length"]
    return response


class Opening:
    """The first stream of a request, shared with other streams that begin at the present."""

    def __init__(self, asker: Asker, wanted: EventFilter, after: int | None) -> None:
        self._asker = asker
        self._wanted = wanted
        self.first = self._stream(after)

    @property
    def streams(self) -> int:
        """How many streams the board has open."""
        return self._asker.board.streams

    @property
    def pulse(self) -> Pulse | None:
        """The pulse by which ticks may come; None in a scope, and for some kinds of events, a user or a flow."""
        wanted = self._wanted
        is_of_some = wanted.kinds or wanted.user is not None or wanted.flow is not None
        return None if self._asker.access.scope or is_of_some else self._asker.pulse

    def now(self) -> EventStream:
        """Return a stream of events from now on."""
        return self._stream(None)

    def _stream(self, after: int | None) -> EventStream:
        wanted = self._wanted
        return self._asker.scheduler.events(
            wanted.kinds or None, path=wanted.path, user=wanted.user, flow=wanted.flow, after=after
        )


async def _events(asker: Asker, opening: Opening) -> AsyncIterator[str]:
    async with opening.first as stream:
        yield _block(asker, stream)
        missed = stream.missed
        while True:
            event = await _next(stream, PING_S)
            if stream.missed > missed:
                count = None if asker.access.scope else stream.missed - missed
                missed = stream.missed
                yield _block(asker, stream, {"count": count}, "missed")
            yield _block(asker, stream) if event is None else _told(asker, event)


def _told(asker: Asker, event: Event) -> str:
    said = written(pruned(event, asker.access), in_scope=bool(asker.access.scope))
    return f"id: {_id(asker, event.at)}\n{_data(said)}\n"


async def _ticks(asker: Asker, opening: Opening) -> AsyncIterator[str]:
    ticks, pulse = Ticks(opening), opening.pulse
    while True:
        if pulse is not None:
            async for tick in _beats(ticks, pulse):
                yield tick
        async with ticks.stream as stream:
            if ticks.about:
                asker.pulse.change()
            yield _block(asker, stream, *ticks.about)
            is_quiet = await _is_quiet(stream)
        # The stream is left: what happens in a pause is not read.
        if pulse is not None:
            pulse.follow(stream.after or 0)
        await ticks.go_on(is_quiet)


async def _beats(ticks: Ticks, pulse: Pulse) -> AsyncIterator[str]:
    """Tick while the store is busy."""
    if pulse.is_quiet:
        return
    seen = pulse.beats
    yield ":\n\n"
    while await pulse.beat(seen, ticks.apart_s):
        await asyncio.sleep(random.uniform(0, SPREAD_S))
        seen = pulse.beats
        yield f"event: {TICK[1]}\n{_data(TICK[0])}\n"
        ticks.begin_anew()
    if pulse.beats != seen:
        ticks.begin_anew()


class Ticks:
    """The next message of a stream of ticks that follows events: a tick or a ping."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._ticked_s = float("-inf")
        self.stream = opening.first
        self.about: tuple[Any, ...] = ()

    @property
    def apart_s(self) -> float:
        """How far ticks are apart at least."""
        return apart_s(self._opening.streams)

    def begin_anew(self) -> None:
        """Follow events from now on, with a tick for what has happened before."""
        self.stream, self.about = self._opening.now(), TICK

    async def go_on(self, is_quiet: bool) -> None:
        """Continue with a ping, or with a tick once a tick is due."""
        self.about = ()
        if is_quiet:
            return
        now_s = asyncio.get_running_loop().time
        due_s = self._ticked_s + self.apart_s
        await asyncio.sleep(max(DEBOUNCE_S, due_s - now_s()) * random.uniform(1, SPREAD))
        self.begin_anew()
        self._ticked_s = now_s()


def apart_s(streams: int) -> float:
    """Return the minimum interval of ticks at the current number of open streams."""
    return max(TICKS_S, streams / TICKS_PER_S)


async def _is_quiet(stream: EventStream) -> bool:
    """Return whether nothing has happened for a while."""
    return await _next(stream, PING_S) is None and not stream.missed


async def _next(stream: EventStream, wait_s: float) -> Event | None:
    """Return the next event, None if there is none for so long."""
    try:
        async with asyncio.timeout(wait_s):
            return await anext(stream)
    except TimeoutError:
        return None


def _block(asker: Asker, stream: EventStream, data: dict[str, Any] | None = None, name: str | None = None) -> str:
    """Return a block with the position of a stream for the browser. Without data a page sees no event."""
    named = "" if name is None else f"event: {name}\n"
    return f"id: {_id(asker, stream.after or 0)}\n{named}{'' if data is None else _data(data)}\n"


def _data(value: Any) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n"


def _id(asker: Asker, at: int) -> str:
    """Return the number of an event, hidden in a scope because the number counts the events of all scopes."""
    scope, position = asker.access.scope, at.to_bytes(POSITION_BYTES, "big")
    return asker.board.seal.hide(position, parameter=LAST, scope=scope) if scope else str(at)


def _position(asker: Asker, text: str) -> int:
    """
    Return the number of the event that is the last one of a client.

    Raises:
        InvalidJobError: it is none.
    """
    if asker.access.scope:
        return int.from_bytes(asker.board.seal.reveal(text, parameter=LAST, scope=asker.access.scope), "big")
    if not text.isascii() or not text.isdecimal() or len(text) > 16:
        raise InvalidJobError(f"{LAST} must be the number of an event, got {shown(text)}")
    return int(text)
