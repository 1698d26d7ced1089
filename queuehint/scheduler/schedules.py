"""The schedules of a scheduler: jobs fired by the clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

import attrs

from queuehint.backends.steps import Steps, run_steps, run_steps_sync, tick_until_done
from queuehint.client.job import Job
from queuehint.client.options import bound
from queuehint.errors import HandlerError, InvalidJobError, InvalidJobTypeError, ScheduleNotFoundError, shown
from queuehint.operations import ChangeSchedule, ListSchedules
from queuehint.scheduler.base import SchedulerBase
from queuehint.schema.checks import check_bool, check_id, check_items, check_payload_size
from queuehint.values.hint import is_prefix
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import SCHEDULE_BYTES_MAX, Missed, Recurrence, Schedule
from queuehint.worker.schedules.due_times import check_recurrence, due_after, first_due
from queuehint.worker.schedules.firing import Definition, find, say_unreadable, store

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.client.handle import Client, JobHandle
    from queuehint.values.spec import JobSpec

ARGUMENTS_MAX = 10_000
"""How many arguments the jobs of a schedule may be given; no more fit into what a schedule may take."""

AnyJob = TypeVar("AnyJob", bound=Job[..., Any])


class Recurring(TypedDict, total=False):
    """
    When and how a schedule has its job run, besides its cron expression or interval.

    Args:
        timezone: of a cron expression, such as ``"Europe/Berlin"``; by default ``"UTC"``.
        args, kwargs: what each job is called with; at most 64 KiB as JSON.
        missed: what becomes of due times at which no worker was there: ``"skip"``, the default, drops what is more than
            a minute late, ``"once"`` fires once for all of them, at the last, ``"all"`` fires for each, in order.
        start, end: timezone-aware; no due time is before the one or after the other.
    """

    timezone: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    missed: Missed
    start: datetime | None
    end: datetime | None


class ScheduleFilter(TypedDict, total=False):
    """
    A selection of schedules. A schedule has to fit all that is given; None selects every schedule.

    Args:
        service, user, task, pool: of their jobs.
        tag: their jobs have it.
        path: their jobs have a claim at or below it; ``[]`` is any job with a claim.
        paused: True for those that are paused, False for the others.
    """

    service: str | None
    user: str | None
    task: str | None
    pool: str | None
    tag: str | None
    path: Sequence[str] | None
    paused: bool | None


_WHEN = frozenset({"cron", "every", *Recurring.__annotations__} - {"args", "kwargs"})
_NAMES = ("service", "user", "task", "pool")
_Plan = tuple[Recurrence, Sequence[Any], Mapping[str, Any] | None]
"""When, and with which arguments."""


class Schedules:
    """
    The schedules of one namespace.

    Args:
        definitions: those that the code defines, by name, each with its job.
    """

    def __init__(self, client: Client, definitions: Mapping[str, tuple[Definition, Any]]) -> None:
        self._client = client
        self._definitions = definitions

    async def list(self, **filter: Unpack[ScheduleFilter]) -> Sequence[Schedule]:
        """
        Return the schedules that pass a filter, by default all, at most 10 000, in order of name.

        All of them are read from the store. Those that this release cannot read are left out, and named in the log
        (`schedule.unreadable`).

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter.
        """
        return await run_steps(self._client.backend, _list(filter))

    def list_sync(self, **filter: Unpack[ScheduleFilter]) -> Sequence[Schedule]:
        """Like `list`, for code without a loop."""
        return run_steps_sync(self._client.backend, _list(filter))

    async def get(self, name: str) -> Schedule:
        """
        Return the record of a schedule.

        Raises:
            ScheduleNotFoundError: there is none of this name.
        """
        return (await run_steps(self._client.backend, _get(name)))[0]

    def get_sync(self, name: str) -> Schedule:
        """Like `get`, for code without a loop."""
        return run_steps_sync(self._client.backend, _get(name))[0]

    @overload
    async def pause(self, name: str) -> bool: ...
    @overload
    async def pause(self, name: None = None, *, all: bool = False, **filter: Unpack[ScheduleFilter]) -> int: ...
    async def pause(self, name: str | None = None, *, all: bool = False, **filter: Any) -> int:
        """
        Pause schedules until `resume`.

        Args:
            name: of the one; or
            filter: those that pass a `ScheduleFilter`: ``pause(task="send", path=["doc1"])``; or
            all: all there are.

        Returns:
            Of a name, False if it was paused already; else how many this paused. They are paused one by one, in order
            of name: if the store fails, those before are, and the next call goes on. One that is stored meanwhile may
            be left out.

        Raises:
            ScheduleNotFoundError: there is none of this name.
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter.
        """
        return await run_steps(self._client.backend, _each("pause()", _pause, name, all, filter))

    @overload
    def pause_sync(self, name: str) -> bool: ...
    @overload
    def pause_sync(self, name: None = None, *, all: bool = False, **filter: Unpack[ScheduleFilter]) -> int: ...
    def pause_sync(self, name: str | None = None, *, all: bool = False, **filter: Any) -> int:
        """Like `pause`, for code without a loop."""
        return run_steps_sync(self._client.backend, _each("pause()", _pause, name, all, filter))

    @overload
    async def resume(self, name: str) -> bool: ...
    @overload
    async def resume(self, name: None = None, *, all: bool = False, **filter: Unpack[ScheduleFilter]) -> int: ...
    async def resume(self, name: str | None = None, *, all: bool = False, **filter: Any) -> int:
        """
        Undo `pause`. Return False if the schedule was not paused. Due times of the pause are skipped.

        Says which, returns how many and raises as `pause`.
        """
        return await run_steps(self._client.backend, _each("resume()", _resume, name, all, filter))

    @overload
    def resume_sync(self, name: str) -> bool: ...
    @overload
    def resume_sync(self, name: None = None, *, all: bool = False, **filter: Unpack[ScheduleFilter]) -> int: ...
    def resume_sync(self, name: str | None = None, *, all: bool = False, **filter: Any) -> int:
        """Like `resume`, for code without a loop."""
        return run_steps_sync(self._client.backend, _each("resume()", _resume, name, all, filter))

    @overload
    async def remove(self, name: str) -> bool: ...
    @overload
    async def remove(self, name: None = None, *, all: bool = False, **filter: Unpack[ScheduleFilter]) -> int: ...
    async def remove(self, name: str | None = None, *, all: bool = False, **filter: Any) -> int:
        """
        Remove schedules. The jobs they have fired are left alone. Return False for a name without a schedule.

        Says which and returns how many as `pause`. One that this release cannot read is removed by its name alone.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter.
        """
        return await run_steps(self._client.backend, _each("remove()", _remove, name, all, filter))

    @overload
    def remove_sync(self, name: str) -> bool: ...
    @overload
    def remove_sync(self, name: None = None, *, all: bool = False, **filter: Unpack[ScheduleFilter]) -> int: ...
    def remove_sync(self, name: str | None = None, *, all: bool = False, **filter: Any) -> int:
        """Like `remove`, for code without a loop."""
        return run_steps_sync(self._client.backend, _each("remove()", _remove, name, all, filter))

    async def run_now(self, name: str) -> JobHandle[Any]:
        """
        Enqueue one more job of a schedule, paused or not. The next due time stays.

        The `due_at` of its context is the time of this call. `last_at` and `last_id` of the schedule stay as they are.

        Raises:
            ScheduleNotFoundError: there is none of this name.
            PathClosedError, QueueFullError, DuplicateJobError: as `Job.enqueue`.
        """
        found = await run_steps(self._client.backend, _get(name))
        return (await self._client.submit_checked([self._once(*found)]))[0]

    def run_now_sync(self, name: str) -> JobHandle[Any]:
        """Like `run_now`, for code without a loop."""
        found = run_steps_sync(self._client.backend, _get(name))
        return self._client.submit_checked_sync([self._once(*found)])[0]

    async def sync(self) -> Sequence[str]:
        """
        Store the schedules that the code defines by `Scheduler.cron` and `Scheduler.every`, as workers do on starting.

        One that is stored as it is defined is left as it is, with its pause and its next time. One that is stored
        otherwise is replaced, as by `Scheduler.schedule`. One that the code defines no more stays: `remove` it.

        Returns:
            The names of those that are new or were replaced.
        """
        return await run_steps(self._client.backend, self._store())

    def sync_sync(self) -> Sequence[str]:
        """Like `sync`, for code without a loop."""
        return run_steps_sync(self._client.backend, self._store())

    def _store(self) -> Steps[Sequence[str]]:
        changed = []
        for name, (definition, _) in list(self._definitions.items()):
            if (yield from store(definition)):
                changed.append(name)
        return changed

    def _once(self, schedule: Schedule, now_ms: int) -> JobSpec:
        return attrs.evolve(schedule.spec, id=self._client.make_id(), schedule=schedule.name, scheduled_ms=now_ms)


class Scheduling(SchedulerBase):
    """The part of `Scheduler` that defines schedules."""

    async def schedule(
        self,
        name: str,
        job: Job[..., Any],
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        **how: Unpack[Recurring],
    ) -> Schedule:
        """
        Enqueue a job periodically, once for each due time, by any worker.

        The same again changes nothing. Anything else replaces the schedule of that name, and keeps its pause. Where
        only *job*, *args* or *kwargs* are other ones its next due time stays, also one that has come and was not fired
        yet; other times count from now on.

        Args:
            name: unique in the namespace, 1–128 bytes as an id. The id of each job is made of it and its due time.
            job: what to enqueue, also one made by `Job.using`, but without *id*, *run_at*, *after* and what it would
                get from other jobs.
            cron: minute, hour, day of month, month, day of week; needs ``queuehint[cron]``. Or
            every: a timedelta or seconds, 1 s to 10 years, counted from *start*, else from now.
            timezone, args, kwargs, missed, start, end: as `Recurring` says.

        Raises:
            InvalidJobError, InvalidJobTypeError, PayloadError: naming the parameter, the value and the limit.
            MissingExtraError: *cron* is given and cronsim is not installed.
        """
        return await run_steps(self.backend, _put(self._defined(name, job, *_planned(cron=cron, every=every, **how))))

    def schedule_sync(
        self,
        name: str,
        job: Job[..., Any],
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        **how: Unpack[Recurring],
    ) -> Schedule:
        """Like `schedule`, for code without a loop."""
        return run_steps_sync(self.backend, _put(self._defined(name, job, *_planned(cron=cron, every=every, **how))))

    def cron(
        self,
        cron: str,
        /,
        *,
        name: str | None = None,
        **how: Unpack[Recurring],
    ) -> Callable[[AnyJob], AnyJob]:
        """
        Define a schedule in code, above `Scheduler.job`. A starting worker or `Schedules.sync` stores the definition.

        Args:
            name: the schedule's; by default the task's.

        The other arguments, and what is raised, are those of `schedule`.
        """
        plan = _planned(cron=cron, **how)
        return lambda job: self._define(name, job, plan)

    def every(
        self,
        every: float | timedelta,
        /,
        *,
        name: str | None = None,
        **how: Unpack[Recurring],
    ) -> Callable[[AnyJob], AnyJob]:
        """Define a schedule with a fixed interval. Everything else is as in `cron`."""
        plan = _planned(every=every, **how)
        return lambda job: self._define(name, job, plan)

    def _define(self, name: str | None, job: AnyJob, plan: _Plan) -> AnyJob:
        if name is None:
            name = _check_job(job).name
        definition = self._defined(name, job, *plan)
        _, known = self._definitions.get(definition.name, (None, None))
        # The same task again, as in a notebook, replaces it; the same job is another decorator above it.
        if known is job or (known is not None and known.name != job.name):
            raise HandlerError(f"schedule {shown(definition.name)} is defined twice; give one of them another name=")
        self._definitions[definition.name] = (definition, job)
        return job

    def _defined(self, name: Any, job: Any, recurrence: Any, args: Any, kwargs: Any) -> Definition:
        name = check_id(name, parameter="name")
        if _check_job(job).scheduler is not self:
            raise InvalidJobError(f"job {job.name!r} is of another scheduler")
        # Their content is not shown: it is data of the job.
        if isinstance(args, (str, bytes, Mapping)) or not isinstance(args, Iterable):
            raise InvalidJobTypeError(f"args must be a list or tuple, got {type(args).__name__}")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise InvalidJobTypeError(f"kwargs must be a dict, got {type(kwargs).__name__}")
        args = check_items(args, parameter="args", most=ARGUMENTS_MAX)
        named = check_items(() if kwargs is None else kwargs.items(), parameter="kwargs", most=ARGUMENTS_MAX)
        options = job.options
        for option, is_given in (("id", options.id), ("run_at", options.run_at_ms), ("after", options.after)):
            if is_given is not None and is_given != ():
                raise InvalidJobError(f"{option} is for one job; schedule {shown(name)} fires many")
        spec = job.spec(*args, **dict(named))
        if spec.depends_on or spec.templates:
            raise InvalidJobError(f"schedule {shown(name)}: its jobs cannot wait for others, or be given their results")
        check_payload_size(spec.arguments, parameter="arguments", bytes_max=SCHEDULE_BYTES_MAX)
        return Definition(name=name, spec=bound((attrs.evolve(spec, id=name),))[0], recurrence=recurrence)


def _planned(*, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **when: Any) -> _Plan:
    if unknown := [name for name in when if name not in _WHEN]:
        raise InvalidJobTypeError(f"a schedule has no option {shown(unknown[0])}; there are {', '.join(sorted(_WHEN))}")
    return check_recurrence(**when), args, kwargs


def _check_job(job: Any) -> Job[..., Any]:
    if not isinstance(job, Job):
        above = "; @sched.cron stands above @sched.job" if callable(job) else ""
        raise InvalidJobTypeError(
            f"job must be a Job made by @sched.job, got {type(job).__name__}: {shown(job)}{above}"
        )
    return job


# --- steps -----------------------------------------------------------------------------------------------------------


def _list(given: ScheduleFilter) -> Steps[list[Schedule]]:
    passes = _passing(given)
    found: list[Schedule] = []
    first: str | None = ""
    while first is not None:
        page = yield ListSchedules(first)
        found += [schedule for schedule in page.schedules if passes(schedule)]
        say_unreadable(page.unreadable)
        first = page.following
    return found


def _passing(given: ScheduleFilter) -> Callable[[Schedule], bool]:
    """Return whether a schedule passes a filter, as a function."""
    if unknown := sorted(given.keys() - ScheduleFilter.__annotations__.keys()):
        known = ", ".join(ScheduleFilter.__annotations__)
        raise InvalidJobTypeError(f"schedules have no filter {shown(unknown[0])}; there are {known}")
    fields: dict[str, Any] = dict(given)
    paused = fields.pop("paused", None)
    if paused is not None:
        check_bool(paused, parameter="paused")
    wanted = RecordFilter(**fields).check()
    names = [(name, value) for name in _NAMES if (value := getattr(wanted, name)) is not None]

    def passes(schedule: Schedule) -> bool:
        spec, path = schedule.spec, wanted.path
        return (
            paused in (None, schedule.is_paused)
            and all(getattr(spec, name) == value for name, value in names)
            and (wanted.tag is None or wanted.tag in spec.tags)
            and (path is None or any(is_prefix(path, claim.path) for claim in spec.claims))
        )

    return passes


def _each(call: str, act: Callable[[str], Steps[bool]], name: Any, every: object, given: Any) -> Steps[bool | int]:
    """
    Apply a command to one schedule, and return whether it changed; or to all that pass a filter, and return how many.

    Raises:
        InvalidJobTypeError: of a name, a filter and ``all=True`` none or two are given, or the filter says nothing.
    """
    every = check_bool(every, parameter="all")
    if (name is not None) + every + bool(given) != 1:
        raise InvalidJobTypeError(f"{call} takes exactly one of a name, a filter and all=True")
    if name is not None:
        return (yield from act(name))
    if not every and all(value is None for value in given.values()):
        raise InvalidJobTypeError(f"{call}: {', '.join(given)} None matches every schedule; pass all=True to confirm")
    changed = 0
    for schedule in (yield from _list(given)):
        # Another one may have removed it meanwhile.
        with contextlib.suppress(ScheduleNotFoundError):
            changed += yield from act(schedule.name)
    return changed


def _get(name: Any) -> Steps[tuple[Schedule, int]]:
    name = check_id(name, parameter="name")
    schedule, now_ms = yield from find(name)
    if schedule is None:
        raise ScheduleNotFoundError(name)
    return schedule, now_ms


def _put(definition: Definition) -> Steps[Schedule]:
    yield from store(definition)
    return (yield from _get(definition.name))[0]


def _pause(name: Any) -> Steps[bool]:
    reply = yield ChangeSchedule(check_id(name, parameter="name"), "pause")
    yield from tick_until_done(more=reply.more)
    return bool(reply.changed)


def _resume(name: Any) -> Steps[bool]:
    while True:
        schedule, now_ms = yield from _get(name)
        if not schedule.is_paused:
            return False
        recurrence, anchor_ms = schedule.recurrence, schedule.next_ms
        next_ms = first_due(recurrence, now_ms) if anchor_ms is None else due_after(recurrence, now_ms, anchor_ms)
        reply = yield ChangeSchedule(schedule.name, "resume", schedule.version, next_ms)
        yield from tick_until_done(more=reply.more)
        if reply.changed:
            return True


def _remove(name: Any) -> Steps[bool]:
    reply = yield ChangeSchedule(check_id(name, parameter="name"), "drop")
    yield from tick_until_done(more=reply.more)
    return bool(reply.changed)
