"""Async and sync iterators over the events of a namespace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from queuehint.backends.steps import run_steps, run_steps_sync
from queuehint.client.event_reader import EventReader, EventReaders, Follower, ThreadReader
from queuehint.client.flows.handle import FlowHandle
from queuehint.errors import InvalidJobError, WouldDeadlockError
from queuehint.handlers.context import refuse_to_wait
from queuehint.schema.checks import check_choice, check_id, check_int, check_items, check_name
from queuehint.values.event import Event, EventFilter, EventKind, EventWord
from queuehint.values.hint import parse_path

if TYPE_CHECKING:
    from queuehint.client.handle import Client

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
        raise InvalidJobError("kinds must not be empty; leave it out for all events")
    return frozenset([check_choice(kind, known, parameter="kinds") for kind in found])


def event_filter(kinds: object, path: object, user: object, flow: object) -> EventFilter:
    """
    Return the filter for the arguments of `Scheduler.events`.

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

    ``after`` is the number of the last event taken or passed over, ``missed`` how many were gone before they could be
    read; each time this grows a warning is logged.
    """

    _call = "events()"
    _reader: EventReader | ThreadReader | None

    def __init__(self, client: Client, readers: EventReaders, wanted: EventFilter, after: int | None) -> None:
        self._client = client
        self._readers = readers
        self._reader = None
        since = after if after is None else check_int(after, parameter="after", least=0, most=_AT_MAX)
        self._follower = Follower(wanted, since)

    def __del__(self) -> None:
        if getattr(self, "_follower", None) is not None:
            self._follower.is_gone = True

    @property
    def after(self) -> int | None:
        """The number of the last event taken or passed over. None before the first."""
        return self._follower.since if self._reader is None else self._reader.position(self._follower)

    @property
    def missed(self) -> int:
        """How many events were gone before they could be read."""
        return self._follower.missed

    def _refuse(self) -> None:
        refuse_to_wait(self._call)


class EventStream(_Stream):
    """
    Iterator of `Scheduler.events`: ``async for event in sched.events(): ...``

    It begins with the first event asked for, or with ``async with sched.events() as events:``. After an error of the
    store it can be read on. All streams of a loop are read by one request at a time, and only while one of them waits.
    """

    _reader: EventReader | None

    async def __aenter__(self) -> Self:
        await run_steps(self._client.backend, self._follower.begin())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop buffering events. The stream can be read on."""
        if self._reader is not None:
            self._reader.leave(self._follower)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        follower = self._follower
        while not follower.ahead:
            reader = self._readers.of_loop()
            if self._reader is not reader:
                if self._reader is not None:
                    self._reader.leave(follower)
                self._reader = reader
            await reader.wait(follower, self._refuse)
        return follower.ahead.popleft()


class EventStreamSync(_Stream):
    """Like `EventStream`, for code without a loop: ``for event in sched.events_sync(): ...``."""

    _reader: ThreadReader | None
    _call = "events_sync()"

    def __enter__(self) -> Self:
        run_steps_sync(self._client.backend, self._follower.begin())
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop buffering events. The stream can be read on."""
        if self._reader is not None:
            self._reader.leave(self._follower)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        follower = self._follower
        while not follower.ahead:
            if self._client.runs_workers_here():
                raise WouldDeadlockError(self._call, where="on the thread of the workers' loop")
            reader = self._readers.of_threads()
            if self._reader is not reader:
                if self._reader is not None:
                    self._reader.leave_fork(follower)
                self._reader = reader
            reader.wait(follower, self._refuse)
        return follower.ahead.popleft()
