"""Async and sync iterators over the events of a namespace."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from itertools import chain, repeat
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from queuehint.backends.base import Interest
from queuehint.backends.steps import Steps, Wait, run_steps, run_steps_sync
from queuehint.client.flow_handle import FlowHandle
from queuehint.errors import InvalidJobError, WouldDeadlockError
from queuehint.handlers.context import refuse_to_wait
from queuehint.operations import EVENTS_MAX, Follow
from queuehint.values.checks import check_choice, check_id, check_int, check_items, check_name
from queuehint.values.event import Event, EventFilter, EventKind, EventWord
from queuehint.values.hint import parse_path

if TYPE_CHECKING:
    from queuehint.client.handle import Client

logger = logging.getLogger("queuehint.events")

PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.25)
"""How long nothing is asked after nothing has happened; the last one is repeated."""
_AT_MAX = 1 << 53


Followed: TypeAlias = EventKind | EventWord
Kinds: TypeAlias = Followed | Literal["*"] | Iterable[Followed]
Heard: TypeAlias = Followed | Literal["missed"]
HeardKinds: TypeAlias = Heard | Literal["*"] | Iterable[Heard]


def check_kinds(kinds: object, *, also: tuple[str, ...] = ()) -> frozenset[str]:
    """
    Check which events are meant.

    Args:
        kinds: one kind or several, as `EventKind` or their words; None or ``"*"`` for all.
        also: further words that are allowed.

    Raises:
        InvalidJobError, InvalidJobTypeError: one is not a kind of event.
    """
    known = (*[kind.value for kind in EventKind], *also)
    if kinds is None or (isinstance(kinds, str) and str.__str__(kinds) == "*"):
        return frozenset(known)
    found = [kinds] if isinstance(kinds, str) else check_items(kinds, parameter="kinds", most=len(known))
    if not found:
        raise InvalidJobError("kinds is empty: no event would ever be returned; leave it out for all of them")
    return frozenset([check_choice(kind, known, parameter="kinds") for kind in found])


def event_filter(kinds: object, path: object, user: object, flow: object) -> EventFilter:
    """
    Return the filter of what `Scheduler.events` is asked for.

    Raises:
        InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter.
    """
    wanted = check_kinds(kinds)
    if isinstance(flow, FlowHandle):
        flow = flow.id
    return EventFilter(
        kinds=() if len(wanted) == len(EventKind) else tuple([kind for kind in EventKind if kind in wanted]),
        path=None if path is None else parse_path(path, parameter="path"),
        user=None if user is None else check_name(user, parameter="user"),
        flow=None if flow is None else check_id(flow, parameter="flow"),
    )


class _Stream:
    """
    Events, in the order in which they happened, without end.

    ``after`` is the number of the last event read, ``missed`` how many were gone before they could be read; each time
    this grows a warning is logged.
    """

    _call = "events()"

    def __init__(self, client: Client, wanted: EventFilter, after: int | None) -> None:
        self._client = client
        self._filters = () if wanted == EventFilter() else (wanted,)
        self._ahead: deque[Event] = deque()
        self.after = after if after is None else check_int(after, parameter="after", least=0, most=_AT_MAX)
        self.missed = 0

    def _begin(self) -> Steps[None]:
        if self.after is None:
            self.after = (yield Follow()).after

    def _read(self) -> Steps[None]:
        """Wait until something is ahead."""
        yield from self._begin()
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            while True:
                followed = yield Follow(self.after, EVENTS_MAX, self._filters)
                self.after = followed.after
                if followed.missed:
                    self.missed += followed.missed
                    log_missed(followed.missed)
                self._ahead.extend(followed.events)
                if self._ahead:
                    return
                if not followed.is_more:
                    break
            refuse_to_wait(self._call)
            yield Wait(Interest(), pause_s)


def log_missed(count: int) -> None:
    """Log that events were dropped before they were read."""
    logger.warning("%d events were missed", count, extra={"event": "events.missed", "count": count})


class EventStream(_Stream):
    """
    Iterator of `Scheduler.events`: ``async for event in sched.events(): ...``

    It begins with the first event asked for, or with ``async with sched.events() as events:``. After an error of the
    store it can be read on.
    """

    async def __aenter__(self) -> Self:
        await run_steps(self._client.backend, self._begin())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close: what is not asked for is not kept."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if not self._ahead:
            await run_steps(self._client.backend, self._read())
        return self._ahead.popleft()


class EventStreamSync(_Stream):
    """Like `EventStream`, for code without a loop: ``for event in sched.events_sync(): ...``."""

    _call = "events_sync()"

    def __enter__(self) -> Self:
        run_steps_sync(self._client.backend, self._begin())
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing to close: what is not asked for is not kept."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if not self._ahead:
            if self._client.runs_workers_here():
                raise WouldDeadlockError(self._call, where="on the thread of the workers' loop")
            run_steps_sync(self._client.backend, self._read())
        return self._ahead.popleft()
