"""
Assertions on enqueued jobs of an application.

Each describes the expected jobs by their task, some of their arguments, their place, their user. The message of a
failed one lists the enqueued jobs, the most similar first, and their differences.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from queuehint.client.job import Job
from queuehint.client.options import UNSET, Unset
from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.checks import check_duration, check_int
from queuehint.values.hint import Path, parse_hint, queue_key
from queuehint.values.record import OVER, JobRecord, JobState
from queuehint.values.spec import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from queuehint.handlers.handler import Handler
    from queuehint.scheduler.scheduler import Scheduler

UNFINISHED = tuple(state for state in JobState if state not in OVER)
LISTED_MAX = 20
PAUSE_S = 0.005
_SPEC_FIELDS = ("user", "service", "pool", "priority", "key", "flow", "parent", "schedule", "name")


class Wanted(TypedDict, total=False):
    """
    Conditions on a job. An omitted condition allows anything.

    Args:
        args: its first arguments by position; for these the task has to be known to the scheduler.
        kwargs: some of its arguments by name. A value fits that is equal to the argument as it travels or as the
            handler gets it, so `unittest.mock.ANY` fits any.
        hint: one of its places, taken literally; None for a job without a place.
        user, service, pool, priority, key, flow, parent, schedule, name: exactly this; None for none.
        id: its id.
        delay: how long after it was enqueued it is due, a timedelta or seconds; None for at once.
        state: one, or several of which one has to fit; by default any in which a job is unfinished.

    .. versionadded:: 1.0.0
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    hint: Sequence[str] | None
    user: str | None
    service: str | None
    pool: str
    priority: int
    key: str | None
    flow: str | None
    parent: str | None
    schedule: str | None
    name: str | None
    id: str
    delay: float | timedelta | None
    state: str | Iterable[str]


async def all_enqueued(
    sched: Scheduler, task: str | Job[..., Any] | None = None, **wanted: Unpack[Wanted]
) -> list[JobRecord]:
    """
    Return the jobs that meet the conditions of `Wanted`, in order of enqueue.

    Args:
        task: its name, or the job that `Scheduler.job` made.

    Raises:
        InvalidJobError, InvalidJobTypeError, InvalidHintError: no job can be what is wanted.

    .. versionadded:: 1.0.0
    """
    question = _Question(sched, task, wanted)
    return question.fitting([record async for record in sched.records.iterate()])


def all_enqueued_sync(
    sched: Scheduler, task: str | Job[..., Any] | None = None, **wanted: Unpack[Wanted]
) -> list[JobRecord]:
    """
    Like `all_enqueued`, for code without a loop.

    .. versionadded:: 1.0.0
    """
    question = _Question(sched, task, wanted)
    return question.fitting(sched.records.iterate_sync())


async def assert_enqueued(
    sched: Scheduler,
    task: str | Job[..., Any] | None = None,
    *,
    count: int | None = None,
    within: float | timedelta = 0,
    **wanted: Unpack[Wanted],
) -> list[JobRecord]:
    """
    Assert that a job meets the conditions of `Wanted`, and return the matches in order of enqueue.

    Args:
        task: its name, or the job that `Scheduler.job` made.
        count: how many there must be; by default one or more.
        within: how long to wait for them, in real time, a timedelta or seconds.

    Raises:
        AssertionError: there are none, or not so many; the message lists what was enqueued instead.
        InvalidJobError, InvalidJobTypeError, InvalidHintError: no job can be what is wanted.

    .. versionadded:: 1.0.0
    """
    look = _Look(_Question(sched, task, wanted), count, within)
    while not look.has_found([record async for record in sched.records.iterate()]):  # noqa: ASYNC110 - any process
        await asyncio.sleep(PAUSE_S)
    return look.found


def assert_enqueued_sync(
    sched: Scheduler,
    task: str | Job[..., Any] | None = None,
    *,
    count: int | None = None,
    within: float | timedelta = 0,
    **wanted: Unpack[Wanted],
) -> list[JobRecord]:
    """
    Like `assert_enqueued`, for code without a loop.

    >>> from queuehint import Scheduler
    >>> sched = Scheduler("memory://")
    >>> @sched.job(queue_hint=["{doc}"])
    ... def render(doc: str, page: int) -> None: ...
    >>> handle = render.enqueue_sync("doc1", page=2)
    >>> assert_enqueued_sync(sched, render, kwargs={"page": 2}, hint=["doc1"])[0].id == handle.id
    True
    >>> assert_enqueued_sync(sched, render, kwargs={"page": 3}, count=1)
    Traceback (most recent call last):
    AssertionError: expected 1 job of task 'render' with page=3; of 1 that was enqueued 0 are:
      render(doc='doc1', page=2)  at doc1  QUEUED  <- page is 2

    .. versionadded:: 1.0.0
    """
    look = _Look(_Question(sched, task, wanted), count, within)
    while not look.has_found(sched.records.iterate_sync()):
        time.sleep(PAUSE_S)
    return look.found


async def refute_enqueued(
    sched: Scheduler,
    task: str | Job[..., Any] | None = None,
    *,
    within: float | timedelta = 0,
    **wanted: Unpack[Wanted],
) -> None:
    """
    Assert that no enqueued job meets the conditions of `Wanted`.

    Args:
        task: its name, or the job that `Scheduler.job` made.
        within: how long to watch, in real time, a timedelta or seconds; it fails as soon as there is one.

    Raises:
        AssertionError: there is one; the message lists them.
        InvalidJobError, InvalidJobTypeError, InvalidHintError: no job can be what is wanted.

    .. versionadded:: 1.0.0
    """
    look = _Look(_Question(sched, task, wanted), 0, within)
    while look.has_found_none([record async for record in sched.records.iterate()]):  # noqa: ASYNC110 - the same
        await asyncio.sleep(PAUSE_S)


def refute_enqueued_sync(
    sched: Scheduler,
    task: str | Job[..., Any] | None = None,
    *,
    within: float | timedelta = 0,
    **wanted: Unpack[Wanted],
) -> None:
    """
    Like `refute_enqueued`, for code without a loop.

    .. versionadded:: 1.0.0
    """
    look = _Look(_Question(sched, task, wanted), 0, within)
    while look.has_found_none(sched.records.iterate_sync()):
        time.sleep(PAUSE_S)


class _Look:
    """Looks again and again, until the time is over."""

    def __init__(self, question: _Question, count: int | None, within: float | timedelta) -> None:
        self.question = question
        self.count = None if count is None else check_int(count, parameter="count", least=0, most=10**9)
        self.deadline_s = time.monotonic() + check_duration(within, parameter="within") / 1000
        self.found: list[JobRecord] = []

    def has_found(self, records: Iterable[JobRecord]) -> bool:
        """Return whether enough jobs match. Raise after the deadline with another number."""
        records = list(records)
        self.found = self.question.fitting(records)
        if len(self.found) == self.count or (self.count is None and self.found):
            return True
        if time.monotonic() < self.deadline_s:
            return False
        expected = "a job" if self.count is None else f"{self.count} job{'' if self.count == 1 else 's'}"
        raise AssertionError(f"expected {expected} {self.question}{self.question.instead(records)}")

    def has_found_none(self, records: Iterable[JobRecord]) -> bool:
        """Raise if a job matches. Return whether to look again."""
        self.found = self.question.fitting(records)
        if self.found:
            lines = [f"\n  {self.question.told(record)}" for record in self.found[:LISTED_MAX]]
            raise AssertionError(f"expected no job {self.question}; {_were(len(self.found))} enqueued:{''.join(lines)}")
        return time.monotonic() < self.deadline_s


class _Question:
    """Expected fields of a job, checked, and their comparison with a record."""

    def __init__(self, sched: Scheduler, task: str | Job[..., Any] | None, wanted: Wanted) -> None:
        known = Wanted.__annotations__
        if unknown := sorted(wanted.keys() - known.keys()):
            raise InvalidJobTypeError(
                f"jobs have no {', '.join(unknown)} to be asked for; they have {', '.join(known)}"
            )
        self.sched = sched
        self.task = task.name if isinstance(task, Job) else task
        if self.task is not None and not isinstance(self.task, str):
            raise InvalidJobTypeError(f"task must be a name or a Job, got {type(task).__name__}: {shown(task)}")
        self.handler = task.handler if isinstance(task, Job) else self._handler(self.task)
        self.arguments = self._named(wanted.get("args", ()), wanted.get("kwargs", {}))
        self.path: Path | Unset | None = parse_hint(wanted["hint"]) if "hint" in wanted else UNSET
        given: dict[str, Any] = dict(wanted)
        self.fields = {name: given[name] for name in _SPEC_FIELDS if name in given}
        self.id = wanted.get("id")
        self.delay_ms: int | Unset | None = UNSET
        if "delay" in wanted:
            delay = wanted["delay"]
            self.delay_ms = None if delay is None else check_duration(delay, parameter="delay")
        self.states = _states(wanted.get("state", UNFINISHED))

    def _handler(self, task: str | None) -> Handler | None:
        return None if task is None else self.sched.handler(task)

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments wanted by name."""
        if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
            raise InvalidJobTypeError(f"args must be a list or tuple, got {type(args).__name__}: {shown(args)}")
        if not isinstance(kwargs, Mapping):
            raise InvalidJobTypeError(f"kwargs must be a mapping, got {type(kwargs).__name__}: {shown(kwargs)}")
        named = dict(kwargs)
        if args:
            if self.handler is None:
                raise InvalidJobError("args need a task that this scheduler has a handler of: give kwargs")
            try:
                named |= self.handler.signature.bind_partial(*args).arguments
            except TypeError as error:
                raise InvalidJobTypeError(f"{self.task}(): {error}") from None
        return named

    def __str__(self) -> str:
        words = [f"{name}={value!r}" for name, value in [*self.arguments.items(), *self.fields.items()]]
        if not isinstance(self.path, Unset):
            words.append("no place" if self.path is None else f"place {queue_key(self.path)}")
        if self.id is not None:
            words.append(f"id={self.id!r}")
        if not isinstance(self.delay_ms, Unset):
            words.append("no delay" if self.delay_ms is None else f"a delay of {self.delay_ms / 1000:g} s")
        if self.states != UNFINISHED:
            words.append(f"state {' or '.join(self.states) or 'none'}")
        text = "of any task" if self.task is None else f"of task {self.task!r}"
        return f"{text} with {', '.join(words)}" if words else text

    # --- records ---

    def fitting(self, records: Iterable[JobRecord]) -> list[JobRecord]:
        """Return the records that meet the conditions."""
        return [record for record in records if next(self.differences(record), None) is None]

    def differences(self, record: JobRecord) -> Iterator[str]:
        """Yield the differences of a record from the conditions, the most significant first."""
        spec = record.spec
        if self.task is not None and spec.task != self.task:
            yield f"task is {spec.task!r}"
        if self.arguments:
            yield from self._argument_differences(record)
        if self.path is None and spec.claims:
            yield "it has a place"
        elif not isinstance(self.path, Unset) and self.path is not None:
            if all(claim.path != self.path for claim in spec.claims):
                yield "place is " + (" and ".join(record.queue_keys) or "none")
        for name, value in self.fields.items():
            if getattr(spec, name) != value:
                yield f"{name} is {getattr(spec, name)!r}"
        if self.id is not None and record.id != self.id:
            yield f"id is {record.id!r}"
        if not isinstance(self.delay_ms, Unset) and _delay_ms(record) != self.delay_ms:
            delay_ms = _delay_ms(record)
            yield "it has no delay" if delay_ms is None else f"its delay is {delay_ms / 1000:g} s"
        if record.state not in self.states:
            yield f"it is {record.state}"

    def _argument_differences(self, record: JobRecord) -> Iterator[str]:
        plain = self._plain(record)
        handler = self.handler or self._handler(record.spec.task)
        typed = {} if handler is None else _typed(self.sched, handler, record)
        for name, value in self.arguments.items():
            if name not in plain:
                yield f"it has no {name}"
            elif not self._fits(name, value, plain[name], typed.get(name, plain[name]), handler):
                yield f"{name} is {plain[name]!r}"

    def _fits(self, name: str, value: Any, plain: Any, typed: Any, handler: Handler | None) -> bool:
        if value in (plain, typed):
            return True
        annotations = {} if handler is None else {name: handler.annotations.get(name, Any)}
        codec = self.sched.codec
        try:
            written = codec.loads(codec.dumps({name: value}, annotations, bytes_max=PAYLOAD_BYTES_MAX), {})
        except Exception:  # noqa: BLE001 - what cannot be written was not enqueued
            return False
        return bool(written.get(name) == plain)

    def _plain(self, record: JobRecord) -> dict[str, Any]:
        """Return the encoded arguments, with known defaults in place of omitted ones."""
        try:
            plain = self.sched.records.arguments_of(record)
        except Exception:  # noqa: BLE001 - somebody else's
            return {}
        handler = self.handler or self._handler(record.spec.task)
        return plain if handler is None or record.spec.task != handler.name else handler.with_defaults(plain)

    # --- to tell ---

    def told(self, record: JobRecord) -> str:
        """Return a record as a line."""
        given = ", ".join(f"{name}={value!r}" for name, value in self._plain(record).items())
        place = " and ".join(record.queue_keys)
        words = [f"{record.spec.task}({given})", f"at {place}" if place else "without a place", str(record.state)]
        words += [f"{name}={getattr(record.spec, name)!r}" for name in self.fields]
        return "  ".join(words)

    def instead(self, records: Sequence[JobRecord]) -> str:
        """Return a description of the existing jobs, the most similar first."""
        if not records:
            return "; none was enqueued at all"
        ranked = sorted(records, key=lambda record: len(list(self.differences(record))))
        lines = []
        for record in ranked[:LISTED_MAX]:
            differences = ", ".join(self.differences(record))
            lines.append(f"\n  {self.told(record)}" + (f"  <- {differences}" if differences else ""))
        if len(ranked) > LISTED_MAX:
            lines.append(f"\n  ... and {len(ranked) - LISTED_MAX} more")
        return f"; of {_were(len(records), 'that ')} enqueued {len(self.fitting(records))} are:{''.join(lines)}"


def _typed(sched: Scheduler, handler: Handler, record: JobRecord) -> dict[str, Any]:
    """Return the arguments converted for the handler, empty if the conversion fails."""
    try:
        return sched.codec.loads(record.spec.arguments, handler.annotations)
    except Exception:  # noqa: BLE001 - they are compared as they travel then
        return {}


def _delay_ms(record: JobRecord) -> int | None:
    """Return the delay of a job from its enqueue to its due time."""
    spec = record.spec
    return spec.delay_ms if spec.run_at_ms is None else max(0, spec.run_at_ms - record.enqueued_ms)


def _states(wanted: str | Iterable[str]) -> tuple[JobState, ...]:
    named = [wanted] if isinstance(wanted, str) else list(wanted)
    if unknown := [state for state in named if state not in list(JobState)]:
        raise InvalidJobError(f"state must be one of {', '.join(JobState)}, got {shown(unknown[0])}")
    return tuple(state for state in JobState if state in named)


def _were(count: int, which: str = "") -> str:
    return f"{count} {which}was" if count == 1 else f"{count} {which}were"
