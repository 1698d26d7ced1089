"""
Multi-step backend calls as generators, written once and driven by asyncio or by plain code.

A generator yields operations and receives their replies, yields waits and receives None; its return value is the
answer. A refused operation raises at its ``yield``, so that the generator may catch the error and continue; an error
that it does not catch goes to the caller.

Where the caller is canceled, or anything else is raised, `Abandoned` is raised at the ``yield``: the generator may take
back what it has begun, and raise it again. The caller gets what was raised first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import attrs

from queuehint.errors import BackendError, QueueFullError, QueueHintError
from queuehint.operations import JOBS_AT_ONCE, Enqueue, Get, Judged, Operation, Tick, Verdict, Withdraw
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.backends.base import Backend, Interest

T = TypeVar("T")

UNDO_S = 1.0
"""How long a caller that is canceled waits until what it has begun is taken back."""
_READ_AT_ONCE: Final = 250
"""Records that one question reads for their numbers."""
ROOM_TICKS = 64
"""How many steps in a row are done at most for a submission without room, after half as many and so on."""
TICK_S = 0.01
"""By how much the clock of a store may be coarser than ours."""


@attrs.frozen
class Wait:
    """Wait for news of a topic, at most *timeout_s*. Without a topic, wait for the whole time."""

    interest: Interest
    timeout_s: float

    @property
    def is_plain(self) -> bool:
        """Whether the wait is for a time alone."""
        return not (self.interest.jobs or self.interest.pools or self.interest.worker or self.interest.kept)


def was_in_vain(begun_s: float, wait_s: float) -> bool:
    """
    Return whether a wait that began at that monotonic time lasted to its timeout, without news.

    What came at the last moment is told at once by the next wait.
    """
    return time.monotonic() - begun_s >= wait_s - TICK_S


@attrs.frozen
class Ahead:
    """Carry out an operation, and meanwhile prepare the next one unless this one is refused."""

    operation: Operation[Any]
    following: Operation[Any]


Step = Operation[Any] | Ahead | Wait
Steps = Generator[Step, Any, T]


def is_loop_running() -> bool:
    """Return whether a loop runs on this thread. An error raised later has none of this look in its chain."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def each_ahead(operations: Sequence[Operation[Any]]) -> list[Operation[Any] | Ahead]:
    """Return operations to be carried out in order, each but the last one prepared while the one before is."""
    return [*map(Ahead, operations, operations[1:]), *operations[-1:]]


class Abandoned(BaseException):
    """The caller of the steps is gone. The last operation has an unknown outcome."""


async def run_steps(backend: Backend, steps: Steps[T], step: Step | None = None) -> T:
    """
    Run the steps on a backend and return their answer.

    A cancellation waits for at most `UNDO_S` until the steps have taken back what they have begun, however often the
    caller is canceled meanwhile.

    Args:
        step: the one that comes next, of steps that are under way.
    """
    try:
        if step is None:
            step = next(steps)
        while True:
            try:
                if isinstance(step, Ahead | Wait):
                    reply = await _take(backend, step)
                else:
                    reply = await backend.call(step)
                    if backend.owes_turn(step):
                        await asyncio.sleep(0)
            except QueueHintError as error:
                step = steps.throw(error)
            except GeneratorExit:  # nothing can be waited for
                raise
            except BaseException:
                await _undo(backend, steps)
                raise
            else:
                step = steps.send(reply)
    except StopIteration as end:
        answer: T = end.value
        return answer


async def _undo(backend: Backend, steps: Steps[Any]) -> None:
    """Have abandoned steps compensate the work they have begun."""
    step = _abandon(steps)
    if step is None:
        return

    async def undo() -> None:
        # It must not take the place of what is being raised.
        with suppress(Abandoned, Exception, asyncio.CancelledError):
            async with asyncio.timeout(UNDO_S):
                await run_steps(backend, steps, step)

    undoing = asyncio.get_running_loop().create_task(undo())
    canceled = None
    while not undoing.done():
        try:
            await asyncio.wait((undoing,))
        except asyncio.CancelledError as error:
            canceled = error
    if canceled is not None:
        raise canceled


def _abandon(steps: Steps[Any]) -> Step | None:
    """Cancel the steps. Return their first compensating operation, if any."""
    try:
        return steps.throw(Abandoned())
    except (Abandoned, StopIteration):
        return None


async def _take(backend: Backend, step: Ahead | Wait) -> Any:
    if isinstance(step, Ahead):
        return await _take_ahead(backend, step)
    return await (asyncio.sleep(step.timeout_s) if step.is_plain else backend.wait(step.interest, step.timeout_s))


async def _take_ahead(backend: Backend, step: Ahead) -> Any:
    """Carry out an operation, and prepare the next one meanwhile."""
    call = asyncio.ensure_future(backend.call(step.operation))
    try:
        # In this turn the call is sent.
        await asyncio.sleep(0)
        backend.prepare(step.following)
    except BaseException:
        call.cancel()
        raise
    return await call


def run_steps_sync(backend: Backend, steps: Steps[T], step: Step | None = None) -> T:
    """Like `run_steps`, for code without a loop. Compensation runs as ordinary calls."""
    try:
        if step is None:
            step = next(steps)
        while True:
            try:
                reply = _take_sync(backend, step)
            except QueueHintError as error:
                step = steps.throw(error)
            except BaseException:
                undoing = _abandon(steps)
                if undoing is not None:
                    with suppress(Abandoned, Exception):
                        run_steps_sync(backend, steps, undoing)
                raise
            else:
                step = steps.send(reply)
    except StopIteration as end:
        answer: T = end.value
        return answer


def _take_sync(backend: Backend, step: Step) -> Any:
    if isinstance(step, Ahead):
        return backend.call_sync(step.operation)
    if not isinstance(step, Wait):
        return backend.call_sync(step)
    if step.is_plain:
        time.sleep(step.timeout_s)
    else:
        backend.wait_sync(step.interest, step.timeout_s)
    return None


def tick_until_done(*, more: bool, at_most: int | None = None) -> Steps[None]:
    """
    Send `Tick` until the leftovers of an operation are done.

    Args:
        at_most: how many steps to do, for callers that should not pay for leftovers of others; the next caller, a
            worker or another client, goes on.
    """
    while more and at_most != 0:
        at_most = None if at_most is None else at_most - 1
        try:
            more = (yield Tick()).more
        except BackendError:
            # The operation itself is done; the next caller continues with the rest.
            return


def with_room(step: Operation[T] | Ahead, *, staged: str | None = None) -> Steps[T]:
    """Submit jobs. On a full backlog, try again as `find_room` does."""
    try:
        reply: T = yield step
    except QueueFullError as error:
        return (yield from find_room(step, error, staged=staged))
    return reply


def find_room(step: Operation[T] | Ahead, refusal: QueueFullError, *, staged: str | None = None) -> Steps[T]:
    """
    Submit jobs after a refusal for a full backlog: apply due work, and try again.

    Jobs whose end is due take up room until a store is asked to do something, and it may not be asked by anybody but
    producers. After 1, 2, 4 and so on steps, 127 in all, the refusal is final: that much ends all of a flow of 100 000
    jobs, and a store with more to do is behind because of its load.

    Args:
        staged: the submission in parts of which some are there; as long as none is sent, they may expire themselves.

    Raises:
        QueueHintError: as `Enqueue`; the *refusal* itself if nothing was due.
    """
    operation: Operation[T] = step.operation if isinstance(step, Ahead) else step
    ticks = 1
    if refusal.more and staged is not None:
        yield Enqueue((), staged, is_further=True)
    while refusal.more and ticks <= ROOM_TICKS:
        yield from tick_until_done(more=True, at_most=ticks)
        ticks *= 2
        try:
            reply: T = yield operation
        except QueueFullError as error:
            refusal = error
        else:
            return reply
    raise refusal


def withdraw(staged: str) -> Steps[None]:
    """Withdraw a refused submission in parts. Without an answer its parts expire in the store."""
    with suppress(BackendError):
        more = (yield Withdraw(staged)).more
        yield from tick_until_done(more=more)


def _by_number(ids: tuple[str, ...], *, newest_first: bool) -> Steps[tuple[str, ...]]:
    """Return ids in order of number, unknown ids last."""
    numbers: dict[str, float] = {}
    for begin in range(0, len(ids), _READ_AT_ONCE):
        for record in (yield Get(ids[begin : begin + _READ_AT_ONCE])).records:
            if record is not None:
                numbers[record.id] = -record.number if newest_first else record.number
    return tuple(sorted(ids, key=lambda job_id: numbers.get(job_id, inf)))


def order_some(
    ids: Sequence[str], make: Callable[[tuple[str, ...]], Operation[Judged]], *, first: Literal["oldest", "newest"]
) -> Steps[list[tuple[Verdict, JobState | None]]]:
    """
    Apply an order to jobs, `JOBS_AT_ONCE` in a request, and its follow-up work. Return the verdict on each id.

    An id that is named twice is ordered once. Several requests go by the order of enqueue, whatever the order of *ids*;
    the numbers are read for that.

    Args:
        first: which come first: the oldest, so that redriven jobs take their places in order; or the newest, so that
            none of them starts because one before it has gone.
    """
    once = tuple(dict.fromkeys(ids))
    if len(once) > JOBS_AT_ONCE:
        once = yield from _by_number(once, newest_first=first == "newest")
    verdicts: dict[str, tuple[Verdict, JobState | None]] = {}
    more = False
    for begin in range(0, max(len(once), 1), JOBS_AT_ONCE):
        some = once[begin : begin + JOBS_AT_ONCE]
        reply = yield make(some)
        verdicts.update(zip(some, reply.verdicts, strict=True))
        more = reply.more
    yield from tick_until_done(more=more)
    return [verdicts[job_id] for job_id in ids]
