"""
The pools and users that a worker serves, with their checks, and its wait for work.

The main task of the worker waits for one event, `Wakeup`; listening sets it, as do jobs that end and outbox messages.

While the worker waits for work, a claim is sent **behind the wait**, so that a store elsewhere carries it out in the
round trip that ends the wait. It claims one job, or two so that a full reply says that there may be more. Its slots
are taken until it is answered. So a worker that is lost while it waits may still be granted these jobs, whose leases
then expire; one that stops withdraws the claim first. A lease is counted from the moment the wait was sent, so it has
to be several times as long as a wait.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal, TypeVar

from queuehint.backends.base import Interest
from queuehint.errors import BackendError, InvalidJobError, OutcomeUnknownError, shown
from queuehint.operations import ANYONE, POOLS_MAX, USERS_NAMED_MAX
from queuehint.schema.checks import check_items, check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.operations import Exchanged
    from queuehint.worker.state import WorkerState

AnyName = TypeVar("AnyName", bound="str | None")

logger = logging.getLogger("queuehint.worker")

WAIT_CEILING_S = 5.0
BACKEND_PAUSE_S = 1.0
BEHIND_MAX = 2
"""How many jobs are claimed behind a wait at most."""
BEHIND_LEASE_MIN_MS = round(3000 * WAIT_CEILING_S)
"""The shortest lease that is claimed behind a wait."""


def pause_s(failures: int = 0) -> float:
    """Return the pause before the next request to an unreachable backend."""
    return min(BACKEND_PAUSE_S * (1 << min(failures, 10)), WAIT_CEILING_S)


class Listening:
    """Waits for work of one worker, in a task of its own."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._users = state.empty.among
        self._may_claim_behind = not state.keeps_leases and state.empty.lease_ms >= BEHIND_LEASE_MIN_MS
        self._task: asyncio.Task[None] | None = None
        self._takes_more = False
        self.is_wide = False
        """A wait is under way for all that this worker may wait for: `listen` does nothing."""

    def listen(self, *, takes_more: bool) -> None:
        """
        Wait in the background, and set the event on a cancellation or when work may be ready.

        Args:
            takes_more: False while the worker has no slot for work; a wait for it that is under way goes on.
        """
        if self._task is not None and not self._task.done():
            if self._takes_more or not takes_more:
                return
            self._task.cancel()
        self._takes_more = self.is_wide = takes_more
        to = self._state.empty
        interest = Interest(
            pools=to.pools if takes_more else (), users=self._users, worker=to.worker, release=to.release
        )
        self._task = asyncio.get_running_loop().create_task(self._hear(interest))

    async def _hear(self, interest: Interest) -> None:
        wakeup = self._state.wakeup
        try:
            if await self._wait(interest):
                wakeup.set_for_notes()
                return
        except BackendError:
            await asyncio.sleep(pause_s())
        except Exception:
            # Without this task the worker would be there and do nothing: it looks by itself every while.
            logger.exception("listening for work failed", extra={"event": "worker.listening_failed"})
            await asyncio.sleep(pause_s())
        finally:
            self.is_wide = False
        wakeup.set()

    async def _wait(self, interest: Interest) -> bool:
        """
        Wait until work may be ready, and claim in the same round trip. Return False if the claim is still to be made.

        Canceled, the claim is withdrawn; what it was granted is taken in.

        The main task repeats a claim of which nothing is known, whatever went wrong.

        Raises:
            BackendError: the store cannot be asked.
        """
        state = self._state
        if not (self._may_claim_behind and interest.pools and state.free and state.started.is_set()):
            await state.backend.wait(interest, WAIT_CEILING_S)
            return False
        operation = state.behind = state.ask((), BEHIND_MAX)
        sent_s = state.now_s()

        def take(reply: Exchanged) -> None:
            # The leases of a worker that has ended meanwhile, by an error, end too.
            if state.behind is operation:
                state.behind = None
                state.take_in(operation, reply, sent_s)

        try:
            return await state.backend.wait_and_call(interest, WAIT_CEILING_S, operation, take)
        except Exception as error:
            if state.behind is operation:
                state.unanswered.append((operation, sent_s))
            if not isinstance(error, OutcomeUnknownError):
                raise
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            return False
        finally:
            state.behind = None

    def cancel(self) -> None:
        """Stop listening, soon."""
        self.is_wide = False
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """Stop listening. Return when the wait has ended."""
        self.is_wide = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


def check_served(
    pools: Iterable[str], users: Iterable[str | None] | None, steal: Iterable[str | None]
) -> tuple[tuple[str, ...], tuple[str | None, ...] | None, tuple[str | None, ...] | Literal["*"]]:
    """Return the pools and users of a worker (None for all users), and the users it helps."""
    to_serve = _check_pools(pools)
    own = None if users is None else _check_users(users, "users")
    helped = _check_helped(steal)
    _check_apart(own, helped)
    return to_serve, own, helped


def _check_users(users: Iterable[str | None], parameter: str) -> tuple[str | None, ...]:
    names = check_items(users, parameter=parameter, most=USERS_NAMED_MAX)
    return _once([None if name is None else check_name(name, parameter=parameter) for name in names], parameter)


def _once(names: Sequence[AnyName], parameter: str) -> tuple[AnyName, ...]:
    """Refuse a list with a repeated user."""
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
