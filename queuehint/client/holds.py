"""Marks of the places and permits that plain code holds, in the context variables of its caller."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING

import attrs

from queuehint.client.circles import Owner
from queuehint.handlers.context import handler_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from queuehint.backends.base import Backend
    from queuehint.handlers.context import JobContext
    from queuehint.values.hint import Claim


@attrs.frozen(eq=False)
class HeldPlace:
    """
    A place or permit that plain code holds.

    Args:
        job_id, token: of the job that stands for it.
        claims: of a permit one that takes no place.
        store: the identity of its store.
        is_held: whether it is held still, as far as its holder knows.
        handler: inside of which it is held; None outside of handlers.
    """

    job_id: str
    token: int
    claims: tuple[Claim, ...]
    store: Hashable
    is_held: Callable[[], bool]
    handler: JobContext | None = attrs.field(factory=handler_of_caller)
    holder: weakref.ref[object] = attrs.field(factory=lambda: weakref.ref(caller()))
    """The task that has entered it, or the thread."""

    @property
    def is_to_stop(self) -> Callable[[], bool]:
        """Whether the job whose handler holds the place is to stop."""
        handler = self.handler
        return lambda: handler is not None and handler.canceled


def caller() -> object:
    """Return the running task, or the thread."""
    with contextlib.suppress(RuntimeError):
        if (task := asyncio.current_task()) is not None:
            return task
    return threading.current_thread()


_HELD: ContextVar[tuple[HeldPlace, ...]] = ContextVar("queuehint_held", default=())
"""The places that the caller holds, the newest last."""


def mark_held(held: HeldPlace) -> None:
    """Mark a place as held by the caller, and by the tasks and threads that the caller starts from now on."""
    _HELD.set((*[each for each in _HELD.get() if each.is_held()], held))


def forget_left() -> None:
    """Drop the marks of places that have been released."""
    _HELD.set(tuple([each for each in _HELD.get() if each.is_held()]))


def identity_of(backend: Backend) -> Hashable:
    """Return the identity of a store. A backend need not inherit from the protocol."""
    identity: Hashable = getattr(backend, "identity", id(backend))
    return identity


def holds_any() -> bool:
    """Return whether the caller may hold something, of any store."""
    return bool(_HELD.get())


def held_of(backend: Backend) -> list[HeldPlace]:
    """Return the places and permits that the caller holds in a store, without the holds around its workers."""
    if not _HELD.get():
        return []
    store, handler = identity_of(backend), handler_of_caller()
    return [held for held in _HELD.get() if held.store == store and held.handler is handler and held.is_held()]


def innermost_of(backend: Backend) -> Owner | None:
    """Return the place or permit of a store that the caller has entered last, None without any."""
    held = held_of(backend)
    if not held:
        return None
    return Owner(held[-1].job_id, held[-1].token, held[-1].is_to_stop, held[-1].holder() is caller())
