"""
The pools and users that a worker serves, checked, and its wait for their jobs.

The main task of the worker waits for one event, `Wakeup`; listening sets it, as do jobs that end and outbox messages.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal, TypeVar

from queuehint.backends.base import Interest
from queuehint.errors import BackendError, InvalidJobError, shown
from queuehint.operations import ANYONE, POOLS_MAX, USERS_NAMED_MAX
from queuehint.schema.checks import check_items, check_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from queuehint.operations import Exchange

AnyName = TypeVar("AnyName", bound="str | None")

logger = logging.getLogger("queuehint.worker")

WAIT_CEILING_S = 5.0
BACKEND_PAUSE_S = 1.0


def pause_s(failures: int = 0) -> float:
    """Return for how long to leave a backend alone that cannot be reached."""
    return min(BACKEND_PAUSE_S * (1 << min(failures, 10)), WAIT_CEILING_S)


class Wakeup(asyncio.Event):
    """Wakes the main task: for an exchange, or for no more than notes."""

    def __init__(self) -> None:
        super().__init__()
        self._is_full = True

    def set(self) -> None:
        """Request an exchange."""
        self._is_full = True
        super().set()

    def set_for_outcomes(self) -> None:
        """Request that outcomes are sent, unless they have been when the turn comes."""
        if not self.is_set():
            super().set()

    def set_for_notes(self) -> None:
        """Request that the outbox is sent, without an exchange of its own."""
        super().set()

    def take(self) -> bool:
        """Begin a turn; return whether an exchange is wanted."""
        self.clear()
        is_full, self._is_full = self._is_full, False
        return is_full


class Listening:
    """
    Waits for work of one worker, in a task of its own.

    Args:
        to: returns the exchange that is waited for: its worker, pools, users and release.
        wait: waits for these; returns whether the work there was is claimed, too.
        wakeup: set once there may be work.
    """

    def __init__(self, to: Callable[[], Exchange], wait: Callable[[Interest], Awaitable[bool]], wakeup: Wakeup) -> None:
        self._to = to
        self._users = to().among
        self._wait = wait
        self._event = wakeup
        self._task: asyncio.Task[None] | None = None
        self._takes_more = False

    def listen(self, *, takes_more: bool) -> None:
        """
        Have the event set once a job of this worker is to stop, or there may be work.

        Args:
            takes_more: False while the worker has no slot for work; a wait for it that is under way goes on.
        """
        if self._task is not None and not self._task.done():
            if self._takes_more or not takes_more:
                return
            self._task.cancel()
        self._takes_more = takes_more
        to = self._to()
        interest = Interest(
            pools=to.pools if takes_more else (), users=self._users, worker=to.worker, release=to.release
        )
        self._task = asyncio.get_running_loop().create_task(self._hear(interest))

    async def _hear(self, interest: Interest) -> None:
        try:
            if await self._wait(interest):
                self._event.set_for_notes()
                return
        except BackendError:
            await asyncio.sleep(pause_s())
        except Exception:
            # Without this task the worker would be there and do nothing: it looks by itself every while.
            logger.exception("listening for work failed", extra={"event": "worker.listening_failed"})
            await asyncio.sleep(pause_s())
        self._event.set()

    def cancel(self) -> None:
        """Stop listening, soon."""
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """Stop listening, and return when that is over."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


def check_served(
    pools: Iterable[str], users: Iterable[str | None] | None, steal: Iterable[str | None]
) -> tuple[tuple[str, ...], tuple[str | None, ...] | None, tuple[str | None, ...] | Literal["*"]]:
    """Return the pools and users that a worker serves (None for all users), and the users it helps."""
    to_serve = _check_pools(pools)
    own = None if users is None else _check_users(users, "users")
    helped = _check_helped(steal)
    _check_apart(own, helped)
    return to_serve, own, helped


def _check_users(users: Iterable[str | None], parameter: str) -> tuple[str | None, ...]:
    names = check_items(users, parameter=parameter, most=USERS_NAMED_MAX)
    return _once([None if name is None else check_name(name, parameter=parameter) for name in names], parameter)


def _once(names: Sequence[AnyName], parameter: str) -> tuple[AnyName, ...]:
    """Refuse a list with a repeated user: it is a mistake."""
    seen: set[str | None] = set()
    for name in names:
        if name in seen:
            raise InvalidJobError(f"{parameter} names {shown(name)} twice")
        seen.add(name)
    return tuple(names)


def _check_apart(users: tuple[str | None, ...] | None, steal: tuple[str | None, ...] | Literal["*"]) -> None:
    if users is None or steal == ANYONE:
        return
    for name in steal:
        if name in users:
            raise InvalidJobError(
                f"steal names {shown(name)}, which is among users: a worker runs their jobs in any case"
            )


def _check_helped(steal: Iterable[str | None]) -> tuple[str | None, ...] | Literal["*"]:
    return ANYONE if isinstance(steal, str) and str.__str__(steal) == ANYONE else _check_users(steal, "steal")


def _check_pools(pools: Iterable[str]) -> tuple[str, ...]:
    names = check_items(pools, parameter="pools", most=POOLS_MAX)
    if not names:
        raise InvalidJobError("pools is empty; a worker serves at least one")
    return _once([check_name(pool, parameter="pools") for pool in names], "pools")
