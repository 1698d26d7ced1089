"""The jobs of a check, and when the rules let each of them start."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from queuehint.client.arrangement import arrange
from queuehint.client.options import checked
from queuehint.errors import HandlerError, InvalidJobTypeError, shown
from queuehint.handlers.codec import Codec, JsonCodec
from queuehint.handlers.context import JobContext
from queuehint.handlers.handler import Handler
from queuehint.handlers.partial_result import PartialResult
from queuehint.operations import Enqueue
from queuehint.scheduler.scheduler import Scheduler
from queuehint.schema.checks import check_items
from queuehint.testing.arguments import read_call
from queuehint.testing.driver import Queue
from queuehint.values.hint import Claim, parse_hint
from queuehint.values.outcome import Grant, OutcomeKind, Progress, Step
from queuehint.values.spec import JobSpec

JobLike: TypeAlias = (
    JobSpec
    | tuple[str, Sequence[str] | None]
    | tuple[str, Sequence[str] | None, tuple[Any, ...] | list[Any] | Mapping[str, Any]]
)
"""A spec, or a task, a hint and the arguments: by position, or by name."""


@attrs.frozen(eq=False)
class Part:
    """One job: its label in a story, its spec, and the call of its handler, less the state."""

    number: int
    spec: JobSpec
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.spec.task}({', '.join(given)})"


class _Host:
    """The host of a handler's context, with the state of the run. Messages are dropped."""

    def __init__(self, scheduler: Scheduler, state: Any) -> None:
        self.scheduler = scheduler
        self.codec = scheduler.codec
        self.state = state

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Drop the report."""

    def log(self, job_id: str, token: int, line: str) -> None:
        """Drop the log line."""

    def store(self, partial_result: PartialResult) -> None:
        """Drop the result."""

    async def store_step(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """Drop the step, because each run is the first attempt."""
        return self.store_step_sync(job_id, token, step)

    def store_step_sync(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """Drop the step."""
        return 0, None

    async def run_plain(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function on the loop, which alone chooses the next job."""
        return function(*args, **kwargs)

    def around_step(self, context: Any, name: str) -> contextlib.AbstractContextManager[Any]:
        """Return nothing to run in."""
        return contextlib.nullcontext()


def _with_state(scheduler: Scheduler, spec: JobSpec) -> Callable[..., Any]:
    """Return the handler of a job as a function of the state, passed as `JobContext.state` if declared."""
    handler = scheduler._handlers[spec.task]

    def call(state: Any, *args: Any, **kwargs: Any) -> Any:
        if not handler.wants_context:
            return handler.function(*args, **kwargs)
        return handler.function(JobContext(Grant(spec, 1, 1, 0, 0), _Host(scheduler, state)), *args, **kwargs)

    return call


def build_parts(target: Scheduler | Mapping[str, Callable[..., Any]], jobs: Iterable[JobLike]) -> list[Part]:
    """
    Return the parts of jobs, numbered from 1 in the order in which they are enqueued.

    Raises:
        ValueError: a job has no handler, or has templates.
        InvalidJobTypeError: it is no job, or there are no handlers by name.
        HandlerError: a handler is a generator function.
        InvalidJobError, InvalidHintError, CycleError: as `Scheduler.submit`.
    """
    app = target if isinstance(target, Scheduler) else None
    handlers = {task: handler.function for task, handler in app._handlers.items()} if app is not None else target
    if not isinstance(handlers, Mapping):
        raise InvalidJobTypeError(
            f"handlers must be functions by name or a Scheduler, got {type(handlers).__name__}: {shown(handlers)}"
        )
    for name, function in handlers.items():
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise HandlerError(f"{name} is a generator function, which runs nothing when it is called")
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    specs = []
    for number, item in enumerate(check_items(jobs, parameter="jobs"), 1):
        if isinstance(item, JobSpec):
            # When it is due is as good as when it is enqueued: no order of other jobs follows from a time.
            spec = attrs.evolve(item, delay_ms=None, run_at_ms=None)
            args: tuple[Any, ...] = ()
            kwargs = _arguments(item, handlers.get(item.task), JsonCodec() if app is None else app.codec)
        else:
            task, hint, args, kwargs = read_call(item, parameter=f"job {number}")
            path = parse_hint(hint)
            spec = JobSpec(id=str(number), task=task, claims=() if path is None else (Claim(path),))
        if spec.task not in handlers:
            raise ValueError(f"job {number} is of the task {spec.task!r}; handlers has {', '.join(handlers) or 'none'}")
        if spec.templates:
            raise ValueError(f"job {number} has templates, which are filled from results: give it plain arguments")
        specs.append(spec)
        calls[spec.id] = (args, kwargs)
    arranged = [spec for part in arrange(checked(specs, may_lack_id=False)).parts for spec in part]
    return [
        Part(number, spec, handlers[spec.task] if app is None else _with_state(app, spec), *calls[spec.id])
        for number, spec in enumerate(arranged, start=1)
    ]


def _arguments(spec: JobSpec, function: Callable[..., Any] | None, codec: Codec) -> dict[str, Any]:
    """Return the arguments of a spec by name, decoded by the annotations of its handler, by default as JSON."""
    annotations: dict[str, Any] = {}
    if function is not None:
        with contextlib.suppress(HandlerError, TypeError, ValueError):  # some functions do not tell what they take
            annotations = Handler(spec.task, function).annotations
    return codec.loads(spec.arguments, annotations)


class Rules:
    """The start rules of jobs, queried from the engine once for each order of ends."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._numbers = {part.spec.id: part.number for part in parts}
        self._pools = tuple(dict.fromkeys(part.spec.pool for part in parts)) or ("default",)
        self._known: dict[tuple[tuple[int, bool], ...], tuple[int, ...]] = {}

    def may_start(self, ends: tuple[tuple[int, bool], ...]) -> tuple[int, ...]:
        """
        Return the numbers of all jobs that may have been started by now, in the order of their grants.

        Args:
            ends: the jobs that are over, in order; True for those that did not raise.
        """
        known = self._known.get(ends)
        if known is None:
            known = self._known[ends] = self._ask(ends)
        return known

    def _ask(self, ends: tuple[tuple[int, bool], ...]) -> tuple[int, ...]:
        queue = Queue(checked=False)
        ids = {number: job_id for job_id, number in self._numbers.items()}
        queue.apply(Enqueue(tuple(part.spec for part in self._parts)))
        granted = queue.start(pools=self._pools)
        for number, is_well in ends:
            queue.settle(ids[number], OutcomeKind.FINISHED if is_well else OutcomeKind.FAILED, final=not is_well)
            queue.wait(0)
            granted += queue.start(pools=self._pools)
        return tuple(self._numbers[job_id] for job_id in granted)
