"""What a handler sees of its job, and the answers it may return instead of a result."""

from __future__ import annotations

import hashlib
import itertools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import attrs

from queuehint.checks import ID_BYTES_MAX, check_duration, check_number
from queuehint.errors import InvalidJobTypeError, WouldDeadlockError, shown
from queuehint.records import LOG_LINE_BYTES_MAX, Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from queuehint.hint import Path
    from queuehint.records import Grant

P = ParamSpec("P")
R = TypeVar("R")

NOTE_LENGTH_MAX = 1024
PROGRESS_MAX = 2**63


@attrs.frozen
class Retry:
    """
    Answer: the attempt failed, try again after *after* (a timedelta or seconds; None: by the job's back-off).

    Counts as an attempt; with none left the job is FAILED.
    """

    after: float | timedelta | None = None
    reason: str = "the handler asked for a retry"
    after_ms: int | None = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        after_ms = None if self.after is None else check_duration(self.after, parameter="after")
        object.__setattr__(self, "after_ms", after_ms)


@attrs.frozen
class Snooze:
    """Answer: not now, try again after *delay* (a timedelta or seconds); counts for nothing."""

    delay: float | timedelta
    delay_ms: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "delay_ms", check_duration(self.delay, parameter="delay"))


@attrs.frozen
class Fail:
    """Answer: FAILED at once, however many attempts are left."""

    reason: str = "the handler said so"


@attrs.frozen
class Discard:
    """Answer: the job has no point any more; CANCELED."""

    reason: str = "discarded by its handler"


class Desk(Protocol):
    """What a context needs of the worker that runs its job; all may be called from any thread."""

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Send progress, soon."""

    def log(self, job_id: str, token: int, line: str) -> None:
        """Send a log line, soon."""

    @property
    def scheduler(self) -> Any:
        """The scheduler the worker serves."""


class JobContext:
    """
    The running job, for a handler whose first parameter is annotated with this class.

    Progress and log lines are sent with the worker's next message; they may be given from any thread.
    """

    def __init__(self, grant: Grant, desk: Desk) -> None:
        self._grant = grant
        self._desk = desk
        self._calls = itertools.count(1)
        self._stop = False
        self.is_over = False
        """The handler has ended; what it left running in the background may wait for jobs."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self._grant.spec.id

    @property
    def attempt(self) -> int:
        """Which counted attempt this is, from 1."""
        return self._grant.attempt

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier attempt; pass it on to whatever can refuse less."""
        return self._grant.token

    @property
    def path(self) -> Path | None:
        """The path of the job's only claim; None if it has none or several."""
        claims = self._grant.spec.claims
        return claims[0].path if len(claims) == 1 else None

    @property
    def user(self) -> str | None:
        """Whose job it is."""
        return self._grant.spec.user

    @property
    def canceled(self) -> bool:
        """True once the job is to stop: it was canceled, timed out, or the worker ends. Plain functions look at it."""
        return self._stop

    def progress(self, done: float | None = None, total: float | None = None, note: str | None = None) -> None:
        """
        Say how far the job is.

        Args:
            done, total: in any unit; either may be None.
            note: at most 1 024 characters, the rest is cut.

        Raises:
            InvalidJobError, InvalidJobTypeError: *done* or *total* is not a finite number.
        """
        for parameter, number in (("done", done), ("total", total)):
            if number is not None:
                check_number(number, parameter=parameter, least=-PROGRESS_MAX, most=PROGRESS_MAX)
        note = None if note is None else str(note)[:NOTE_LENGTH_MAX]
        self._desk.report(self.id, self.token, Progress(done, total, note))

    def log(self, text: str) -> None:
        """Append to the job's log: each line of *text*, cut at 4 096 bytes; the last 1 000 lines are kept."""
        for line in str(text).splitlines() or [""]:
            cut = line.encode("utf-8", "backslashreplace")[:LOG_LINE_BYTES_MAX].decode("utf-8", "ignore")
            self._desk.log(self.id, self.token, cut)

    async def enqueue(self, job: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """
        Enqueue a job whose id is derived from this job's id and the call's number, and return its handle.

        A second attempt that makes the same calls in the same order finds the same jobs instead of making more.

        Args:
            job: a `Job`, also one made by `Job.using`; an id given there is kept.
        """
        return await self._child(job).enqueue(*args, **kwargs)

    def enqueue_sync(self, job: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Like `enqueue`, for plain functions."""
        return self._child(job).enqueue_sync(*args, **kwargs)

    def _child(self, job: Any) -> Any:
        if not hasattr(job, "using"):
            raise InvalidJobTypeError(f"job must be a Job made by @sched.job, got {type(job).__name__}: {shown(job)}")
        if job.given_id is not None:
            return job
        child_id = f"{self.id}.{next(self._calls)}"
        if len(child_id.encode()) > ID_BYTES_MAX:
            child_id = hashlib.sha256(child_id.encode()).hexdigest()
        return job.using(id=child_id)

    def ask_to_stop(self) -> None:
        """Make `canceled` true; called by the worker."""
        self._stop = True


CURRENT: ContextVar[JobContext | None] = ContextVar("queuehint_job", default=None)


def refuse_to_wait(call: str, job_id: str | None = None) -> None:
    """
    Raise if the caller runs inside a handler, which never waits for a job.

    Raises:
        WouldDeadlockError: naming the call and the way to do it.
    """
    context = CURRENT.get()
    if context is not None and not context.is_over:
        raise WouldDeadlockError(call, job_id)
