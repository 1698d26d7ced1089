"""Options that select jobs or schedules: by user, state, place and time."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Protocol

import typer

from queuehint.cli.opening import UsageError, place
from queuehint.cli.render import UNITS
from queuehint.errors import FlowNotFoundError
from queuehint.scheduler.records.queries import Filter
from queuehint.scheduler.scheduler import Scheduler
from queuehint.scheduler.schedules import ScheduleFilter
from queuehint.values.record import JobRecord, JobState

_SPAN = re.compile(rf"(\d{{1,9}}) ?({'|'.join(UNITS)})")

Service = Annotated[str | None, typer.Option(help="Only of this service.")]
User = Annotated[str | None, typer.Option(help="Only of this user.")]
Task = Annotated[str | None, typer.Option(help="Only of this task.")]
Pool = Annotated[str | None, typer.Option(help="Only of this pool.")]
Tag = Annotated[str | None, typer.Option(help="Only with this tag.")]
Parent = Annotated[str | None, typer.Option(metavar="ID", help="Only made by the handler of this job.")]
WaitsFor = Annotated[str | None, typer.Option(metavar="ID", help="Only that still wait for this job.")]
PathKey = Annotated[str | None, typer.Option(metavar="PATH", help="Only at or below this queue key.")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Enqueued then or later: 2h, 7d, or 2026-01-31T12:00Z.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Enqueued before that.")]
OF_SCHEDULES = {"service": Service, "user": User, "task": Task, "pool": Pool, "tag": Tag, "path": PathKey}
OF_JOBS = {
    "service": Service,
    "user": User,
    "task": Task,
    "pool": Pool,
    "tag": Tag,
    "parent": Parent,
    "waits_for": WaitsFor,
    "path": PathKey,
    "since": Since,
    "until": Until,
}
WHICH = (
    "say which: ids, or --all, or --flow, "
    "or --service, --user, --task, --pool, --tag, --parent, --waits-for, --path, --since, --until"
)
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Flow = Annotated[str | None, typer.Option("--flow", metavar="ID", help="All of this flow.")]


def check_choice(ids: list[str] | None, chosen: Filter, flow: str | None, *, every: bool, also: str = "") -> None:
    """
    Check that jobs are selected in one way: by ids, options, a flow, or all.

    Args:
        also: further options that choose, to name them.

    Raises:
        UsageError: none or two are.
    """
    if bool(ids) + every + (flow is not None) + bool(chosen) != 1:
        raise UsageError(WHICH + also)


def of_flow(sched: Scheduler, flow: str, states: Collection[str]) -> Iterator[JobRecord]:
    """
    Return the records of a flow's jobs in these states, in order of enqueue.

    Raises:
        FlowNotFoundError: there is none, or the records of its jobs have expired.
    """
    check_flow(sched, flow)
    return sched.records.iterate_sync(flow=flow, state=list(states))


def check_flow(sched: Scheduler, flow: str) -> None:
    """
    Check that a flow has records.

    Raises:
        FlowNotFoundError: it has none.
    """
    if not sched.records.list_sync(flow=flow, limit=1):
        raise FlowNotFoundError(flow)


class Choose(Protocol):
    """Options that select jobs, besides their states."""

    def __call__(self, *, state: str | list[str] | None = None) -> Filter:
        """
        Return the filter of the given options.

        Raises:
            UsageError, InvalidHintError: a time or a path is none.
        """


class ChooseSchedules(Protocol):
    """Options that select schedules, besides whether they are paused."""

    def __call__(self, *, paused: bool | None = None) -> ScheduleFilter:
        """
        Return the filter of the given options.

        Raises:
            InvalidHintError: a path is none.
        """


def choosing(command: Callable[..., None], options: Mapping[str, Any] = OF_JOBS) -> Callable[..., None]:
    """
    Append *options*, by default those that select jobs, to a command.

    It is called with *choose*: a `Choose`, for schedules a `ChooseSchedules`.
    """
    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "choose"]

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        said = {name: given.pop(name) for name in options}
        command(**given, choose=functools.partial(_chosen, **said))

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in options.items()
    ]
    parameters = [*own, *added]
    setattr(wrapper, "__signature__", inspect.Signature(parameters))  # noqa: B010 - it is no attribute of a function's type
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper


choosing_schedules = functools.partial(choosing, options=OF_SCHEDULES)


def _chosen(**said: Any) -> dict[str, Any]:
    chosen = {name: value for name, value in said.items() if value is not None}
    for name, read in (("path", place), ("since", time_of), ("until", time_of)):
        if name in chosen:
            chosen[name] = read(chosen[name])
    return chosen


def states_of(words: list[str] | None) -> list[str] | None:
    """
    Return states by their names, in any case, several of them in one word between commas.

    >>> states_of(["failed,Queued"])
    ['FAILED', 'QUEUED']
    """
    if not words:
        return None
    names = [name.strip().upper() for word in words for name in word.split(",")]
    for name in names:
        if name not in JobState.__members__:
            raise UsageError(f"{name!r} is not a state; the states are {', '.join(JobState)}")
    return names


def while_of(text: str) -> timedelta:
    """
    Return a length of time.

    Raises:
        UsageError: it is none.

    >>> while_of("90 s")
    datetime.timedelta(seconds=90)
    """
    span = _SPAN.fullmatch(text)
    if span is None:
        raise UsageError(f"{text!r} is not a length of time; write 30min, 2h or 7d")
    try:
        return timedelta(**{UNITS[span[2]]: int(span[1])})
    except OverflowError:
        raise UsageError(f"{text!r} is longer than the calendar is long") from None


def time_of(text: str) -> datetime:
    """
    Return a time: so long ago, or a date and time with its time zone.

    Raises:
        UsageError: it is neither.

    >>> time_of("2026-01-31T12:00Z").isoformat()
    '2026-01-31T12:00:00+00:00'
    """
    if span := _SPAN.fullmatch(text):
        try:
            return datetime.now(UTC) - timedelta(**{UNITS[span[2]]: int(span[1])})
        except OverflowError:
            raise UsageError(f"{text!r} is too long ago") from None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a time; write 30min, 2h, 7d, or 2026-01-31T12:00Z") from None
    if found.tzinfo is None:
        raise UsageError(f"{text!r} requires a time zone, as in 2026-01-31T12:00Z; local time is never guessed")
    return found
