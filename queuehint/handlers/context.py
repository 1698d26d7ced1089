"""The context of a running job, and the answers that a handler may return or raise instead of a result."""

from __future__ import annotations

import hashlib
import itertools
import threading
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar

import attrs

from queuehint.errors import InvalidJobError, InvalidJobTypeError, WouldDeadlockError, shown
from queuehint.handlers.partial_result import PartialResult
from queuehint.handlers.permits.job_permits import JobPermits
from queuehint.handlers.signals.waits import JobWaits
from queuehint.handlers.steps.job_steps import JobSteps, StepHost, check_loop
from queuehint.schema.checks import (
    ID_BYTES_MAX,
    check_choice,
    check_duration,
    check_id,
    check_number,
    check_str,
    encodable,
    plain_text,
    sized,
)
from queuehint.values.outcome import CHILDREN_OF_JOB_MAX, MORE_CHILDREN, ON_CHILD_FAILURE, OnChildFailure, Progress
from queuehint.values.record import log_lines, moment

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping
    from datetime import datetime, timedelta

    # `JobContext` alone says nothing of its state: with Any, checkers could not tell the overloads of `job` apart.
    from typing_extensions import TypeVar as TypeVarOf

    from queuehint.handlers.calls import Call, Enqueues, EnqueuesMany
    from queuehint.values.hint import Path
    from queuehint.values.outcome import Grant

    S_co = TypeVarOf("S_co", covariant=True, default=object)
else:
    S_co = TypeVar("S_co", covariant=True)

P = ParamSpec("P")
H = TypeVar("H")

NOTE_LENGTH_MAX = 1024
PROGRESS_MAX = 2**63
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_FIRST = threading.Lock()
"""Lock for creating an attempt's partial result: its threads share one."""


def _reason(value: str) -> str:
    return check_str(value, parameter="reason")


class RaisedAnswer(BaseException):
    """
    Base of the answers that may be raised as well as returned, from anywhere below the handler.

    Not an `Exception`: code in between that catches every error does not catch them.
    """

    def __str__(self) -> str:
        return repr(self)

    def __reduce__(self) -> tuple[Any, ...]:
        cls: Any = type(self)
        return cls, tuple([getattr(self, field.name) for field in attrs.fields(cls) if field.init])


@attrs.frozen(auto_exc=False)
class Retry(RaisedAnswer):
    """
    Answer: the attempt failed, try again after *after* (a timedelta or seconds; None: by the job's back-off).

    Counts as an attempt; with none left the job is FAILED. Returned or raised.
    """

    after: float | timedelta | None = None
    reason: str = attrs.field(default="the handler asked for a retry", converter=_reason)
    after_ms: int | None = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        after_ms = None if self.after is None else check_duration(self.after, parameter="after")
        object.__setattr__(self, "after_ms", after_ms)


@attrs.frozen(auto_exc=False)
class Snooze(RaisedAnswer):
    """Answer: not now, try again after *delay* (a timedelta or seconds); counts for nothing. Returned or raised."""

    delay: float | timedelta
    delay_ms: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "delay_ms", check_duration(self.delay, parameter="delay"))


@attrs.frozen(auto_exc=False)
class Fail(RaisedAnswer):
    """Answer: FAILED at once, however many attempts are left. Returned or raised."""

    reason: str = attrs.field(default="the handler said so", converter=_reason)


@attrs.frozen(auto_exc=False)
class Discard(RaisedAnswer):
    """Answer: the job has become pointless and is CANCELED. Returned or raised."""

    reason: str = attrs.field(default="discarded by its handler", converter=_reason)


@attrs.frozen(auto_exc=False)
class Leave(RaisedAnswer):
    """The answer that `JobContext.wait` raises: run again once the wait of this id has ended."""

    wait_id: str


@attrs.frozen(init=False)
class Children:
    """
    Answer: the job ends when its children have ended. Until then it is DEFERRED and holds no place.

    Args:
        jobs: ids or handles, at most 100 000; with none, all jobs made by `JobContext.enqueue` and `enqueue_many` in
            this attempt. Without any at all the job is FINISHED.
        result: the job's result, once all its children are FINISHED.
        on_child_failure: ``"fail"`` has the job FAILED when a child is FAILED or CANCELED, ``"ignore"`` takes any end.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
    """

    ids: tuple[str, ...]
    result: Any = attrs.field(default=None, repr=sized)
    on_child_failure: OnChildFailure = "fail"
    handles: tuple[Any, ...] = attrs.field(default=(), eq=False, repr=False)
    """The handles among *jobs*; their scheduler is checked when the job is settled."""

    def __init__(self, *jobs: Any, result: Any = None, on_child_failure: OnChildFailure = "fail") -> None:
        ids = tuple(dict.fromkeys(_child_id(job) for job in jobs))
        check_children_count(len(ids))
        choice = check_choice(on_child_failure, ON_CHILD_FAILURE, parameter="on_child_failure")
        self.__attrs_init__(ids, result, choice, tuple(job for job in jobs if not isinstance(job, str)))


def check_children_count(count: int) -> None:
    """
    Check how many children a job has.

    Raises:
        InvalidJobError: more than 100 000.
    """
    if count > CHILDREN_OF_JOB_MAX:
        raise InvalidJobError(f"children: {count} jobs, limit {CHILDREN_OF_JOB_MAX}; {MORE_CHILDREN}")


Answer: TypeAlias = Retry | Snooze | Fail | Discard | Children
"""Answers that a handler returns instead of a result; none of them can be a result."""


def raised_answer(error: BaseException) -> RaisedAnswer | None:
    """Return the raised answer. Return the first answer of a group that holds nothing else."""
    if isinstance(error, RaisedAnswer):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    answers = [raised_answer(each) for each in error.exceptions]
    return None if None in answers else answers[0]


def _child_id(job: Any) -> str:
    if not isinstance(job, str):
        if not callable(getattr(job, "id_for", None)):
            raise InvalidJobTypeError(
                f"children are ids or handles, one argument each, got {type(job).__name__}: {shown(job)}"
            )
        job = job.id
    return check_id(job, parameter="children")


class AttemptHost(StepHost, Protocol):
    """The worker as seen by a context. Thread-safe."""

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Send progress, soon."""

    def log(self, job_id: str, token: int, line: str) -> None:
        """Send a log line, soon."""

    def store(self, partial_result: PartialResult) -> None:
        """Send a job's partial result soon."""

    @property
    def scheduler(self) -> Any:
        """The scheduler the worker serves."""

    @property
    def state(self) -> Any:
        """The value that the lifespan of the worker has yielded."""


class _Offspring:
    """The calls of a job that make children, counted, and the ids of the children."""

    __slots__ = ("calls", "ids")

    def __init__(self) -> None:
        self.calls = itertools.count(1)
        self.ids: dict[str, None] = {}


class JobContext(JobSteps, JobWaits, JobPermits, Generic[S_co]):
    """
    The running job, for a handler whose first parameter is annotated with this class.

    ``JobContext[Pool]`` says of which type its `state` is.

    Progress, log lines and partial results may be given from any thread, as often as a progress bar moves. They are
    sent together, about five times a second, and before the job is settled. Results of steps are stored at once.
    """

    # Defaults that most handlers never change lie in the class.
    _offspring: _Offspring | None = None
    _stop = False
    _results = _NOTHING
    partial_result: PartialResult | None = None
    """The partial result, if `update` was called."""
    is_over = False
    """The handler has ended; its background tasks may wait for jobs."""

    def __init__(self, grant: Grant, host: AttemptHost) -> None:
        self._grant = grant
        self._host = host

    @property
    def id(self) -> str:
        """The job's id."""
        return self._grant.spec.id

    @property
    def task(self) -> str:
        """The name of the job's task."""
        return self._grant.spec.task

    @property
    def attempt(self) -> int:
        """Which counted attempt this is, from 1."""
        return self._grant.attempt

    @property
    def token(self) -> int:
        """The fencing token, greater than that of every earlier attempt. Pass it to systems that refuse old tokens."""
        return self._grant.token

    @property
    def path(self) -> Path | None:
        """The path of the job's only claim. None without a claim or with several."""
        claims = self._grant.spec.claims
        return claims[0].path if len(claims) == 1 else None

    @property
    def user(self) -> str | None:
        """The user of the job."""
        return self._grant.spec.user

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the job."""
        return self._grant.spec.tags

    @property
    def headers(self) -> dict[str, str]:
        """A copy of the headers that travel with the job: its own, and those of the job that enqueued it."""
        return dict(self._grant.spec.headers)

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that fired the job, None without a schedule."""
        return self._grant.spec.schedule

    @property
    def due_at(self) -> datetime | None:
        """The due time for which a schedule fired the job, in UTC. None without a schedule."""
        due_ms = self._grant.spec.scheduled_ms
        return None if due_ms is None else moment(due_ms)

    @property
    def state(self) -> S_co:
        """The resources that `Scheduler.worker_lifespan` has opened for this worker's jobs. None without a lifespan."""
        state: S_co = self._host.state
        return state

    @property
    def results(self) -> Mapping[str, Any]:
        """
        Results of the FINISHED dependencies, as plain JSON values.

        By name or id; each comes once when they are gone through, by its name if it has one.

        Raises:
            PayloadError: on access, if they take more than 64 MiB together, or one cannot be read.
        """
        return self._results

    @property
    def made(self) -> tuple[str, ...]:
        """The ids of the jobs that `enqueue` and `enqueue_many` made in this attempt, or found."""
        return () if self._offspring is None else tuple(self._offspring.ids)

    @property
    def canceled(self) -> bool:
        """True once the job is to stop: canceled, timed out, or the worker ends. Plain functions poll this."""
        return self._stop

    def progress(self, done: float | None = None, total: float | None = None, note: str | None = None) -> None:
        """
        Report the progress of the job.

        Args:
            done, total: in any unit; either may be None.
            note: at most 1 024 characters, the rest is cut.

        Raises:
            InvalidJobError, InvalidJobTypeError: *done* or *total* is not a finite number.
        """
        for parameter, number in (("done", done), ("total", total)):
            if number is not None:
                check_number(number, parameter=parameter, least=-PROGRESS_MAX, most=PROGRESS_MAX)
        note = None if note is None else encodable(plain_text(note)[:NOTE_LENGTH_MAX])[:NOTE_LENGTH_MAX]
        self._host.report(self.id, self.token, Progress(done, total, note))

    def log(self, text: str) -> None:
        """Append to the job's log. Each line of *text* is cut at 4 096 bytes, and the last 1 000 lines are kept."""
        for line in log_lines(plain_text(text)):
            self._host.log(self.id, self.token, line)

    def update(self, fields: dict[str, Any]) -> None:
        """
        Merge fields into the job's result while the job runs. Readers of its record see the fields.

        Another attempt goes on from what is stored. When the handler returns None, the fields are the job's result; a
        dict that it returns is merged over them, any other value replaces them. Without a call in an attempt, what it
        returns replaces what earlier ones have stored, unless that is None. A job that ends FAILED or CANCELED keeps
        none of them.

        What the store cannot take now, say because its memory is full, is logged and sent again later; the handler
        goes on, and the job's result holds it in any case.

        Args:
            fields: JSON values by name, at most 1 MiB for all together.

        Raises:
            InvalidJobTypeError, PayloadError: naming the place and the limit; nothing is merged.
        """
        partial_result = self.partial_result
        if partial_result is None:
            with _FIRST:
                partial_result = self.partial_result = self.partial_result or PartialResult(self.id, self.token)
        partial_result.update(fields)
        self._host.store(partial_result)

    def enqueue(self, job: Enqueues[P, H], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, H]:
        """
        Enqueue a child: a job whose id is derived from this job's id and the call's number. Return its handle.

        A second attempt that makes the same calls in the same order finds the same jobs instead of making more. So
        their arguments and options must follow from this job's own: not from the clock, from chance, or from data that
        may change meanwhile.

        Args:
            job: a `Job` of the same scheduler, also one made by `Job.using`; an id given there is kept.

        Raises:
            HandlerError: called where no event loop runs, as in a plain handler, which writes `enqueue_sync`.
            InvalidJobError: *job* is of another scheduler, or it is a child more than 100 000; nothing is made.
            DuplicateJobError: an earlier attempt made the child of this number with other content.
            LeaseLostError: this attempt no longer holds its job.
            CycleError: the child would wait for this job.
        """
        check_loop("enqueue")
        return self._enqueue(job, *args, **kwargs)

    async def _enqueue(self, job: Enqueues[P, H], /, *args: P.args, **kwargs: P.kwargs) -> H:
        handle: H = await self._child(job).enqueue(*args, **kwargs)
        self._note(handle)
        return handle

    def enqueue_sync(self, job: Enqueues[P, H], /, *args: P.args, **kwargs: P.kwargs) -> H:
        """Like `enqueue`, for plain functions."""
        handle: H = self._child(job).enqueue_sync(*args, **kwargs)
        self._note(handle)
        return handle

    def enqueue_many(
        self, job: EnqueuesMany[P, H], calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]
    ) -> Coroutine[Any, Any, list[H]]:
        """Enqueue many children as `Job.enqueue_many`, each call with its own number. Otherwise as `enqueue`."""
        check_loop("enqueue_many")
        return self._enqueue_many(job, calls)

    async def _enqueue_many(
        self, job: EnqueuesMany[P, H], calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]
    ) -> list[H]:
        handles: list[H] = await self._child(job).enqueue_many(calls)
        self._note_all(handles)
        return handles

    def enqueue_many_sync(
        self, job: EnqueuesMany[P, H], calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]
    ) -> list[H]:
        """Like `enqueue_many`, for plain functions."""
        handles: list[H] = self._child(job).enqueue_many_sync(calls)
        self._note_all(handles)
        return handles

    def _child(self, job: Any) -> Any:
        if not hasattr(job, "as_child_of"):
            raise InvalidJobTypeError(f"job must be a Job made by @sched.job, got {type(job).__name__}: {shown(job)}")
        if job.scheduler is not self._host.scheduler:
            raise InvalidJobError(f"job {job.name!r} is of another scheduler than the handler that makes it")
        check_children_count(len(self._own_offspring().ids) + 1)
        return job.as_child_of((self.id, self.token), self._child_id, self._grant.spec.headers)

    def _child_id(self) -> str:
        number = next(self._own_offspring().calls)
        check_children_count(number)
        child_id = f"{self.id}.{number}"
        return child_id if len(child_id.encode()) <= ID_BYTES_MAX else hashlib.sha256(child_id.encode()).hexdigest()

    def _note(self, handle: Any) -> None:
        self._own_offspring().ids[handle.id] = None

    def _note_all(self, handles: list[Any]) -> None:
        self._own_offspring().ids.update((handle.id, None) for handle in handles)

    def _own_offspring(self) -> _Offspring:
        """Return the record of the job's children, made at first use, from any thread."""
        offspring = self._offspring
        if offspring is None:
            with _FIRST:
                offspring = self._offspring = self._offspring or _Offspring()
        return offspring

    # --- waits -----------------------------------------------------------------------------------------------------

    def _leave(self, job_id: str) -> NoReturn:
        """End this attempt until a wait has ended."""
        raise Leave(job_id)

    def check_children(self, answer: Children) -> None:
        """
        Check that this job can wait for the handles in its answer. Called by the worker.

        Raises:
            InvalidJobError: one is of another namespace or store, or of a flow that is not submitted.
        """
        for handle in answer.handles:
            handle.id_for(self._host.scheduler, "children")

    def bring(self, results: Mapping[str, Any]) -> None:
        """Set `results`. Called by the worker."""
        self._results = results

    def ask_to_stop(self) -> None:
        """Make `canceled` true. Called by the worker."""
        self._stop = True


CURRENT: ContextVar[JobContext | None] = ContextVar("queuehint_job", default=None)


def handler_of_caller() -> JobContext | None:
    """Return the context of the handler around the caller, None outside of handlers."""
    context = CURRENT.get()
    return None if context is None or context.is_over else context


def is_in_handler() -> bool:
    """Return whether the caller runs inside a handler."""
    context = CURRENT.get()
    return context is not None and not context.is_over


def refuse_to_wait(call: str, job_id: str | None = None) -> None:
    """
    Raise if the caller runs inside a handler, which must not wait for a job.

    Raises:
        WouldDeadlockError: naming the call and the way to do it.
    """
    if is_in_handler():
        raise WouldDeadlockError(call, job_id)
