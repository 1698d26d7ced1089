"""
Firing of due schedules.

Every worker may fire, and there is no leader: a firing takes effect only on the version of the schedule that it was
computed from (optimistic locking), so one worker fires at a due time. The time is the store's.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from typing import TYPE_CHECKING

import attrs

from queuehint.backends.steps import run_steps, tick_until_done, with_room
from queuehint.clock import now_s
from queuehint.errors import (
    BackendError,
    CorruptStateError,
    PathClosedError,
    QueueFullError,
    QueueHintError,
    ScheduleChangedError,
    shown,
)
from queuehint.operations import BYTES_PER_SUBMISSION_MAX, DueSchedules, Enqueue, Firing, ListSchedules, PutSchedule
from queuehint.schema.checks import ID_BYTES_MAX
from queuehint.values.record import moment
from queuehint.values.schedule import FIRINGS_MAX, Recurrence, Schedule
from queuehint.values.spec import JobSpec
from queuehint.worker.schedules.due_times import come_due, first_due

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from queuehint.backends.base import Backend
    from queuehint.backends.steps import Steps

logger = logging.getLogger("queuehint.schedules")

DUE_AT_ONCE = 100
REST_S = 5.0
"""How long a worker leaves schedules alone that it cannot fire; another one may."""


@attrs.frozen(kw_only=True)
class Definition:
    """Definition of a schedule. *spec* is the spec of its jobs, without the id."""

    name: str
    spec: JobSpec
    recurrence: Recurrence


def firing_id(name: str, due_ms: int) -> str:
    """
    Return the id of the job that a schedule fires at a due time.

    >>> firing_id("nightly", 1_600_000_000_000)
    'nightly@2020-09-13T12:26:40.000Z'
    """
    at = moment(due_ms)
    job_id = f"{name}@{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
    return job_id if len(job_id.encode()) <= ID_BYTES_MAX else hashlib.sha256(job_id.encode()).hexdigest()


# --- steps -----------------------------------------------------------------------------------------------------------


def find(name: str) -> Steps[tuple[Schedule | None, int]]:
    """
    Return a schedule by its name, None if there is none, and the time of the store.

    Raises:
        CorruptStateError: it cannot be read by this release.
    """
    reply = yield ListSchedules(name, 1)
    if name in reply.unreadable:
        raise CorruptStateError(f"the schedule {shown(name)} cannot be read by this release")
    found = next((schedule for schedule in reply.schedules if schedule.name == name), None)
    return found, reply.now_ms


def store(definition: Definition) -> Steps[bool]:
    """Store a schedule's definition. Return whether the definition changed."""
    there, now_ms = yield from find(definition.name)
    if there is not None and there.recurrence == definition.recurrence and there.spec.is_alike(definition.spec):
        return False
    next_ms = first_due(definition.recurrence, now_ms)
    reply = yield PutSchedule(definition.name, definition.spec, definition.recurrence, next_ms)
    yield from tick_until_done(more=reply.more)
    changed: bool = reply.changed
    return changed


def fire_due() -> Steps[bool]:
    """
    Fire all due schedules, page by page in order of due time, until a whole pass finds none.

    Returns:
        False if some of it cannot be fired or read here, and stays due.
    """
    stuck: set[tuple[str, int]] = set()
    unreadable: set[str] = set()
    after: tuple[int, str] | None = None
    has_moved = False
    begin = 0
    while True:
        reply = yield DueSchedules(DUE_AT_ONCE, after)
        say_unreadable([name for name in reply.unreadable if name not in unreadable])
        unreadable.update(reply.unreadable)
        is_alone = True
        for schedule in (*reply.schedules[begin:], *reply.schedules[:begin]):
            if (schedule.name, schedule.version) in stuck:
                continue
            try:
                is_alone = yield from _fire(schedule, reply.now_ms)
                has_moved = True
            except BackendError:
                raise
            except Exception:
                stuck.add((schedule.name, schedule.version))
                logger.exception(
                    "schedule %s cannot be fired here",
                    schedule.name,
                    extra={"event": "schedule.stuck", "schedule": schedule.name},
                )
            if not is_alone:
                break
        if not is_alone:
            # Another worker fires here: restart elsewhere in the page.
            begin, after, has_moved = random.randrange(len(reply.schedules)), None, False
            continue
        begin, after = 0, reply.behind
        if after is None and not has_moved:
            return not stuck and not unreadable
        # A fired schedule may be due again, at a position that this pass has left behind.
        has_moved = has_moved and after is not None


def say_unreadable(names: Sequence[str]) -> None:
    """Log which schedules are left out."""
    for name in names:
        logger.error("schedule %s cannot be read here", name, extra={"event": "schedule.unreadable", "schedule": name})


def _fire(schedule: Schedule, now_ms: int) -> Steps[bool]:
    """Fire a schedule for its past due times. Return False if another worker has fired it."""
    assert schedule.next_ms is not None
    # The rest is due still, and is fired next.
    most = min(FIRINGS_MAX, BYTES_PER_SUBMISSION_MAX // max(1, len(schedule.spec.arguments)))
    come = times, next_ms = come_due(schedule.recurrence, schedule.next_ms, now_ms, most)
    while True:
        try:
            yield from _fire_at(schedule, times, next_ms)
        except ScheduleChangedError:
            return False
        except QueueHintError as error:
            if not times or (isinstance(error, BackendError) and not isinstance(error, QueueFullError)):
                raise
            if len(times) > 1:
                # Some of them may be taken; it stays due for the others.
                times, next_ms = times[:1], times[1]
                continue
            if isinstance(error, (PathClosedError, QueueFullError)):
                # All of them are refused for the same place.
                times, next_ms = come
            _say_lost(schedule, times, error)
            times = []
        else:
            return True


def _say_lost(schedule: Schedule, times: list[int], error: QueueHintError) -> None:
    logger.error(
        "schedule firings were lost",
        extra={
            "event": "schedule.lost",
            "schedule": schedule.name,
            "due_at": moment(times[0]).isoformat(),
            "count": len(times),
            "error": str(error),
        },
    )


def _fire_at(schedule: Schedule, times: list[int], next_ms: int | None) -> Steps[None]:
    name = schedule.name
    specs = [
        attrs.evolve(schedule.spec, id=firing_id(name, at_ms), schedule=name, scheduled_ms=at_ms) for at_ms in times
    ]
    last_ms = times[-1] if times else schedule.next_ms or 0
    firing = Firing(name, schedule.version, last_ms, next_ms)
    reply = yield from with_room(Enqueue(tuple(specs), firing=firing))
    logger.debug("schedule fired", extra={"event": "schedule.fired", "schedule": name, "jobs": len(specs)})
    yield from tick_until_done(more=reply.more)


# --- beside a worker -------------------------------------------------------------------------------------------------


class Timekeeper:
    """
    The task of a worker that fires schedules, without delaying jobs.

    Args:
        definitions: schedules to store before the first look, and again when the store has lost data.
        now_s: the clock by which it rests.
        declare: called whenever they are stored, to declare what else the code does.
    """

    def __init__(
        self,
        backend: Backend,
        definitions: Callable[[], Iterable[Definition]],
        now_s: Callable[[], float] = now_s,
        declare: Callable[[], None] = lambda: None,
    ) -> None:
        self._backend = backend
        self._declare = declare
        self._now_s = now_s
        self._definitions = definitions
        self.is_stored = False
        """All definitions are stored: there is something to do only once a schedule is due."""
        self._has_stored = False
        self._is_wanted = False
        """A schedule was due by an answer that came after the newest look at them."""
        self._rests_until_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def begin_again(self) -> None:
        """Store all definitions again, because the store has lost data."""
        self.is_stored = False
        self.see(due=False)

    def see(self, *, due: bool) -> None:
        """Check the reply of an exchange for due schedules, and start firing."""
        if self.is_stored and not due:
            return
        self._is_wanted = True
        if (self._task is None or self._task.done()) and self._now_s() >= self._rests_until_s:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="queuehint-timekeeper")

    def stop(self) -> None:
        """Fire nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        is_well = False
        try:
            while not self.is_stored:
                # Data lost while they are stored unsets it again.
                self.is_stored = True
                try:
                    await self._store_all()
                except BaseException:
                    self.is_stored = False
                    raise
            is_well = await self._fire()
        except BackendError as error:
            extra = {"event": "schedule.backend", "error": str(error)}
            logger.warning("schedules are not fired for now: %s", error, extra=extra)
        except Exception:
            logger.exception("the task that fires schedules failed", extra={"event": "schedule.stuck"})
        if not is_well:
            self._rests_until_s = self._now_s() + REST_S

    async def _fire(self) -> bool:
        """Fire the due schedules, including schedules that become due meanwhile. Return False if some stay due."""
        is_well = self._is_wanted = True
        while is_well and self._is_wanted:
            self._is_wanted = False
            is_well = await run_steps(self._backend, fire_due())
        return is_well

    async def _store_all(self) -> None:
        self._declare()
        restored = []
        for definition in self._definitions():
            try:
                if await run_steps(self._backend, store(definition)):
                    restored.append(definition.name)
            except QueueHintError as error:
                if isinstance(error, BackendError) and not isinstance(error, CorruptStateError):
                    raise
                logger.exception(
                    "schedule %s cannot be stored",
                    definition.name,
                    extra={"event": "schedule.refused", "schedule": definition.name},
                )
        if restored and self._has_stored:
            logger.warning(
                "the store lost %d schedules that the code defines; they are stored again",
                len(restored),
                extra={"event": "schedule.restored", "count": len(restored)},
            )
        self._has_stored = True
