"""
Streams of server-sent events: the events of jobs, and ticks that something a page shows has changed.

All streams of a process and a namespace read the event log by one request at a time. A stream ends when the store does
not answer: a browser begins it anew with the id of the last event it has, and is told how many were missed.
"""

from __future__ import annotations

import asyncio
import json
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

STREAMS_MAX: Final = 256
"""How many streams a board has open at once."""
PING_S: Final = 15.0
"""A stream without events says this often how far it has come."""
DEBOUNCE_S: Final = 0.25
"""Ticks are at least so far apart."""
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
POSITION_BYTES: Final = 8


async def events(asker: Asker, request: Request) -> Response:
    """Stream the events that pass a filter; ``Last-Event-ID`` goes on behind one."""
    return _streamed(asker, request, _events)


async def live(asker: Asker, request: Request) -> Response:
    """Stream a tick whenever an event has passed a filter."""
    return _streamed(asker, request, _ticks)


def _streamed(
    asker: Asker, request: Request, parts: Callable[[Asker, EventStream], AsyncIterator[str]]
) -> StreamingResponse:
    asker.check_read()
    if asker.board.streams >= STREAMS_MAX:
        raise Refused(503, "too-many-streams", f"{STREAMS_MAX} streams are open, the limit")
    query = request.query_params
    after = request.headers.get("last-event-id") or query.get("after")
    wanted = read_query(EventFilter, query, set(query) - {"after"}).check()
    wanted = forced(wanted, asker.access.scope)
    stream = asker.scheduler.events(
        wanted.kinds or None,
        path=wanted.path,
        user=wanted.user,
        flow=wanted.flow,
        after=None if after is None else _position(asker, after),
    )

    async def body() -> AsyncIterator[str]:
        asker.board.streams += 1
        try:
            # The store is away, or the process ends: the browser comes again.
            with suppress(BackendError):
                async with stream:
                    yield _block(asker, stream)
                    async for part in parts(asker, stream):
                        yield part
        finally:
            asker.board.streams -= 1

    return StreamingResponse(body(), media_type="text/event-stream", headers=HEADERS)


async def _events(asker: Asker, stream: EventStream) -> AsyncIterator[str]:
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


async def _ticks(asker: Asker, stream: EventStream) -> AsyncIterator[str]:
    while True:
        name = "changed" if await _has_changed(stream) else None
        yield _block(asker, stream, None if name is None else {}, name)


async def _has_changed(stream: EventStream) -> bool:
    """Return whether there was an event; what comes soon after it counts with it."""
    return await _next(stream, PING_S) is not None and await _gathered(stream)


async def _gathered(stream: EventStream) -> bool:
    """Take what comes within a moment."""
    try:
        async with asyncio.timeout(DEBOUNCE_S):
            while True:
                await anext(stream)
    except TimeoutError:
        return True


async def _next(stream: EventStream, wait_s: float) -> Event | None:
    """Return the next event, None if there is none for so long."""
    try:
        async with asyncio.timeout(wait_s):
            return await anext(stream)
    except TimeoutError:
        return None


def _block(asker: Asker, stream: EventStream, data: dict[str, Any] | None = None, name: str | None = None) -> str:
    """Return a block with the position of a stream, which a browser keeps; without data it is no event for a page."""
    named = "" if name is None else f"event: {name}\n"
    return f"id: {_id(asker, stream.after or 0)}\n{named}{'' if data is None else _data(data)}\n"


def _data(value: Any) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n"


def _id(asker: Asker, at: int) -> str:
    """Return the number of an event, hidden in a scope: it counts the events of all."""
    return asker.board.seal.hide(at.to_bytes(POSITION_BYTES, "big")) if asker.access.scope else str(at)


def _position(asker: Asker, text: str) -> int:
    """
    Return the number of the event that is the last one of a client.

    Raises:
        InvalidJobError: it is none.
    """
    if asker.access.scope:
        return int.from_bytes(asker.board.seal.reveal(text, parameter="Last-Event-ID"), "big")
    if not text.isascii() or not text.isdecimal() or len(text) > 16:
        raise InvalidJobError(f"Last-Event-ID must be the number of an event, got {shown(text)}")
    return int(text)
