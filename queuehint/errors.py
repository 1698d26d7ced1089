"""
The error tree: every exception queuehint raises on purpose.

Each class states one fact, keeps the details as attributes and builds its own message, so that callers match
on types and attributes and people read the text. Bad input is refused before anything is sent or changed, by a
class that is also the built-in (`ValueError`, `TypeError`, `LookupError`, `TimeoutError`) a reader expects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.shown import VALUE_LENGTH_MAX as VALUE_LENGTH_MAX  # noqa: PLC0414 - callers find these here
from queuehint.shown import clipped as clipped  # noqa: PLC0414
from queuehint.shown import printable as printable  # noqa: PLC0414
from queuehint.shown import shown as shown  # noqa: PLC0414
from queuehint.shown import shows_itself as shows_itself  # noqa: PLC0414

if TYPE_CHECKING:
    from collections.abc import Sequence


class QueueHintError(Exception):
    """
    Base of every exception that queuehint raises on purpose.

    *enqueued_ids* are the ids of the jobs that a call which enqueues many had enqueued before it was refused: those of
    its first jobs, in order, of which the others were not (or may be, see `OutcomeUnknownError`). Empty for any other
    error: nothing was enqueued.
    """

    enqueued_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the message on one line, with every quoted value printable."""
        return printable(super().__str__())


class QueueHintWarning(UserWarning):
    """Warning issued by `warnings`: a wait will not end by itself."""


class InvalidHintError(QueueHintError, ValueError):
    """A queue hint, a path or a claim breaks a rule or a limit."""


class InvalidHintTypeError(InvalidHintError, TypeError):
    """A queue hint, a path or a claim is of the wrong type."""


class InvalidJobError(QueueHintError, ValueError):
    """A number, time, id or option of a job, a scheduler or a worker breaks a rule or a limit."""


class InvalidJobTypeError(InvalidJobError, TypeError):
    """A number, time, id or option of a job, a scheduler or a worker is of the wrong type."""


class PayloadError(QueueHintError, ValueError):
    """
    An argument or a result is not JSON, or larger or deeper than allowed. *path* is its position (``$.ops[3]``).

    *limit* is how many bytes it may take, if it takes more; None if something else is wrong. The message has no value.
    What a class or a hook of the application's raised is the `__context__`, which no traceback shows: it may quote
    values.
    """

    limit: int | None = None

    def __init__(self, problem: str, *, path: str = "$", limit: int | None = None) -> None:
        self.problem = problem
        self.path = path
        self.limit = limit
        super().__init__(f"{path}: {problem}")


class UnknownToReleaseError(PayloadError):
    """
    An argument or a result has a part unknown to this release of the application, written by a later one.

    That is a parameter, a field, an enum member, a literal, a class of a union. A worker gives such a job back. A hook
    of the application's may raise it too, with no value in its message.

    .. versionadded:: 1.0.0
    """


class TemplateError(QueueHintError, ValueError):
    """A template names a missing job, field or argument."""


CIRCLE_SHOWN = 5


class WouldDeadlockError(QueueHintError, RuntimeError):
    """
    A wait would deadlock: its end requires the caller to go on.

    Code inside a handler, or on the thread that runs the handlers, never waits for a job; code that holds a place by
    `Scheduler.exclusive`, or room of a limit by `Scheduler.permit`, not for what needs this; and nobody for a permit
    that only those could give back who wait for the caller.

    Args:
        held: the path of what the caller holds, as a queue key; of a circle that of what it asked for.
        by: the call by which it is held.
        circle: the ids of the jobs that wait for each other in a circle, or of those that stand for holds.
    """

    def __init__(
        self,
        call: str,
        job_id: str | None = None,
        *,
        where: str = "inside a handler",
        held: str | None = None,
        by: str = "exclusive",
        circle: tuple[str, ...] = (),
    ) -> None:
        self.call = call
        self.job_id = job_id
        self.held = held
        self.circle = circle
        which = f" for job {job_id!r}" if job_id else ""
        if circle:
            where = f"of {held}"
            holders = ", ".join(map(shown, circle[:CIRCLE_SHOWN]))
            advice = (
                f"would wait in vain: what it asks for is held by {holders}, which "
                "can give it back only when this wait is over. Take all that is needed by one permit (cost=), before "
                "anything else, or take limits in the same order everywhere"
            )
        elif held is not None:
            where = f"inside {by}() of {held}"
            what = "room of a limit" if by == "permit" else "the place"
            advice = f"would wait in vain: what it waits for needs {what} that is held here. Leave the block first"
            if call.startswith("exclusive"):
                advice += ", or hold all that is needed by the outer one, at a path above both"
        elif where.startswith("on the thread"):
            awaited = call.replace("_sync", "")
            advice = f"would block the loop that has to run it; here write `await {awaited}` instead"
            if awaited in {"exclusive()", "permit()"}:
                awaited = f"{awaited[:-1]}...)"
                advice = f"would block the loop that has to run the jobs; here write `async with sched.{awaited}`"
        else:
            advice = (
                "could wait for ever: the job may stand behind this one. Enqueue a job behind it (same queue_hint), "
                "or let this handler end and have the next step be a job of its own"
            )
        super().__init__(f"{call}{which} {where} {advice}")


class JobNotFoundError(QueueHintError, LookupError):
    """No job has this id: unknown, or with an expired record."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        problem = f"no job {shown(job_id)}: it was never enqueued here, or its record has expired"
        if ":" in job_id:
            problem += "; if it is the text of a path, list the jobs there, as by `queuehint ls --path`"
        super().__init__(problem)


class DuplicateJobError(QueueHintError):
    """The id is taken by a job of other content, or the key by another job. Nothing was enqueued."""

    def __init__(
        self, job_id: str, *, fields: Sequence[str] = (), key: str | None = None, not_last_at: str | None = None
    ) -> None:
        self.job_id = job_id
        self.fields = tuple(fields)
        self.key = key
        self.not_last_at = not_last_at
        if key is not None:
            what = f"key {shown(key)} belongs to job {shown(job_id)}, which is unfinished or keeps it for a time"
        elif fields:
            what = f"job {shown(job_id)} exists with other values of {', '.join(fields)}"
        elif not_last_at is not None:
            what = f"job {shown(job_id)} exists, and not as the last job of path {shown(not_last_at)}"
        else:
            what = f"job id {shown(job_id)} appears twice in one submission"
        super().__init__(what)


class InvalidTransitionError(QueueHintError):
    """A job cannot make this move from its state. Nothing was changed."""

    def __init__(self, job_id: str, state: str, target: str) -> None:
        self.job_id = job_id
        self.state = state
        self.target = target
        super().__init__(f"job {shown(job_id)} is {state} and cannot become {target}")


class StaleRecordError(QueueHintError):
    """The record has another version than *version*. Nothing was changed."""

    def __init__(self, job_id: str, version: int) -> None:
        self.job_id = job_id
        self.version = version
        super().__init__(f"the record of job {shown(job_id)} is no longer at version {version}: read it again")


class LeaseLostError(QueueHintError):
    """The token does not match the job's newest grant: the job was reaped or has ended. Nothing was changed."""

    def __init__(self, job_id: str, token: int) -> None:
        self.job_id = job_id
        self.token = token
        super().__init__(
            f"token {token} no longer holds job {shown(job_id)}: it was reaped, given to another or is over"
        )


class PathClosedError(QueueHintError):
    """The path is closed and refuses new jobs until a reopening. Nothing was enqueued."""

    def __init__(self, path_key: str) -> None:
        self.path_key = path_key
        super().__init__(f"path {shown(path_key)} is closed and takes no new jobs; reopen it to go on")


class JobFailedError(QueueHintError):
    """
    The job whose result was requested is FAILED. *error_type*, *message* and *traceback* are text.

    With *waiting_id*, the id of the job whose result was asked for, it is another one, which that one depends on.
    """

    def __init__(
        self,
        job_id: str,
        error_type: str,
        message: str,
        traceback: str | None = None,
        *,
        waiting_id: str | None = None,
    ) -> None:
        self.job_id = job_id
        self.error_type = error_type
        self.message = message
        self.traceback = traceback
        self.waiting_id = waiting_id
        behind = "" if waiting_id is None else f", and job {shown(waiting_id)} depends on it"
        super().__init__(f"job {shown(job_id)} failed{behind}: {error_type}: {message}")

    def __str__(self) -> str:
        """Return the message. A message of the handler's exception keeps its lines."""
        return "\n".join(map(printable, str(self.args[0]).split("\n")))


class JobCanceledError(QueueHintError):
    """The job whose result was requested is CANCELED. *cause* is the reason."""

    def __init__(self, job_id: str, cause: str | None) -> None:
        self.job_id = job_id
        self.cause = cause
        super().__init__(f"job {shown(job_id)} was canceled" + (f": {cause}" if cause else ""))


class ResultTimeoutError(QueueHintError, TimeoutError):
    """
    The job did not end within the given time, and goes on. Or a place, or room of a limit, was not free in time.

    *reasons* holds the `Reason` why it waits, *reason*, and that of a stuck job it waits for, if it does.
    """

    def __init__(
        self, job_id: str, timeout_s: float, reasons: Sequence[Any] = (), *, problem: str | None = None
    ) -> None:
        self.job_id = job_id
        self.timeout_s = timeout_s
        self.reasons = tuple(reasons)
        self.reason: Any = next(iter(self.reasons), None)
        listing = "".join(f"; {reason}" for reason in self.reasons)
        problem = f"job {shown(job_id)} was not over" if problem is None else problem
        super().__init__(f"{problem} within {timeout_s:g} s{listing}")


class SignalTimeoutError(QueueHintError, TimeoutError):
    """A signal was not given within the time of the job's wait. A later signal has no effect on the job."""

    def __init__(self, name: str, cause: str | None = None) -> None:
        self.name = name
        self.cause = cause
        super().__init__(
            f"signal {shown(name)} was not given in time"
            + ("" if cause in {None, "expired"} else f": the wait was ended, {cause}")
        )


class DrainTimeoutError(QueueHintError, TimeoutError):
    """Unfinished jobs were left when the time given to `drain` was over."""

    def __init__(self, unfinished: int, timeout_s: float) -> None:
        self.unfinished = unfinished
        self.timeout_s = timeout_s
        super().__init__(f"{unfinished} unfinished jobs were left after {timeout_s:g} s")


class DrainStalledError(QueueHintError):
    """The remaining unfinished jobs are stuck until a person acts. *reasons* holds one `Reason` each."""

    def __init__(self, reasons: Sequence[Any], advice: str = "") -> None:
        self.reasons = tuple(reasons)
        listing = "; ".join(str(reason) for reason in self.reasons[:5])
        advice = f" ({advice})" if advice else ""
        super().__init__(f"{len(self.reasons)} unfinished jobs cannot move without a person{advice}: {listing}")


class MissingExtraError(QueueHintError, ImportError):
    """A feature needs a package that an extra of queuehint installs."""

    def __init__(self, extra: str, what: str) -> None:
        self.extra = extra
        super().__init__(f"{what} need an extra: pip install 'queuehint[{extra}]'")


class HandlerError(QueueHintError):
    """A handler or its registration is wrong, such as a repeated name or a template that its signature cannot fill."""


class DependencyError(QueueHintError):
    """An explicit edge cannot be made."""


class CycleError(DependencyError, ValueError):
    """Edges would close a cycle. *cycle* holds just the jobs on it."""

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        """Each job waits for the next, the last for the first."""
        names = [*self.cycle[:10], *(["…"] if len(self.cycle) > 10 else []), *self.cycle[:1]]
        super().__init__(" → ".join(names))


class UnknownDependencyError(DependencyError, LookupError):
    """A job names an unknown dependency."""

    def __init__(self, job_id: str, dependency: str) -> None:
        self.job_id = job_id
        self.dependency = dependency
        super().__init__(f"job {shown(job_id)} depends on {shown(dependency)}, which does not exist")


class DuplicateFlowError(QueueHintError):
    """The flow id exists with other jobs. Nothing was enqueued."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        super().__init__(f"flow {shown(flow)} is there already, with other jobs: give this one another id")


class ConcurrentSubmissionError(QueueHintError):
    """A job belongs to another unfinished submission in parts. Nothing was enqueued."""

    def __init__(self, job_id: str, retry_after_s: float | None = None) -> None:
        self.job_id = job_id
        self.retry_after_s = retry_after_s
        """When the other one has been silent for so long that its jobs are taken from it."""
        super().__init__(
            f"job {shown(job_id)} belongs to another submission, which is under way: submit this one again later"
        )


class FlowNotFoundError(QueueHintError, LookupError):
    """No flow has this id: never committed, or with expired records."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        super().__init__(f"no flow {shown(flow)}: it was never committed, or its records have expired")


class ScheduleNotFoundError(QueueHintError, LookupError):
    """No schedule has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no schedule {shown(name)}")


class ScheduleChangedError(QueueHintError):
    """A schedule was fired, changed or removed since this firing was computed. Nothing was enqueued."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"schedule {shown(name)} was fired, changed or removed meanwhile")


class BackendError(QueueHintError):
    """
    The store cannot serve the operation.

    *is_lasting* says that no repetition of the call helps: a server that is too old, a replica, a newer schema, a
    missing right. A worker that is refused so before its first exchange ends.
    """

    is_lasting: bool = False


class BackendUnavailableError(BackendError):
    """The store cannot be reached, or the backend was closed."""


class BackendDeniedError(BackendError):
    """The store refuses this user a command."""

    is_lasting = True


class BackendInUseError(BackendDeniedError):
    """
    Another process has the store, and this operation is not possible from here.

    *path* is the file, *pid* the process or None, *problem* why it is refused: by default because that process answers
    no other.
    """

    def __init__(self, path: str, pid: int | None, problem: str | None = None) -> None:
        self.path = path
        self.pid = pid
        self.problem = problem or "which answers no other process"
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path} is in use by {who}, {self.problem}")


class BackendFullError(BackendError):
    """The store has no memory or disk space left. Nothing was enqueued."""


class QueueFullError(BackendError):
    """
    A limit on unfinished jobs is reached. Nothing was enqueued. Try again when some have ended.

    *path_key* says where, None for the whole namespace, or for a limit of all jobs of *task* or *pool*; *pending* were
    unfinished there, *limit* may be. In about *retry_after_s* seconds one more job has room, estimated from the jobs
    that run there; None while none does. *more* says that the store has work to do that may make room: every call of a
    `Scheduler` has it done and asks again before it raises this.
    """

    def __init__(
        self,
        path_key: str | None,
        pending: int,
        limit: int,
        retry_after_s: float | None = None,
        *,
        task: str | None = None,
        pool: str | None = None,
        more: bool = False,
    ) -> None:
        self.path_key, self.pending, self.limit, self.retry_after_s = path_key, pending, limit, retry_after_s
        self.task, self.pool, self.more = task, pool, more
        named = {"path": path_key, "task": task, "pool": pool}
        where = [f"{kind} {shown(name)}" for kind, name in named.items() if name is not None] or ["the namespace"]
        again = "" if retry_after_s is None else f"; try again in about {retry_after_s:.1f} s"
        super().__init__(
            f"{where[0]} has {pending} unfinished jobs and takes at most {limit}; nothing was enqueued{again}"
        )


class OutcomeUnknownError(BackendError):
    """
    The connection broke before the reply. The operation may or may not have been applied.

    *job_ids* are those of the jobs that were to be enqueued, each of which may be there; empty for any other call.
    Asking again with the same ids and content makes no job twice.
    """

    def __init__(self, problem: str, *, job_ids: Sequence[str] = ()) -> None:
        self.problem = problem
        self.job_ids = tuple(job_ids)
        named = ", ".join([*map(shown, self.job_ids[:3]), *(["…"] if len(self.job_ids) > 3 else [])])
        count = f" ({len(self.job_ids)} jobs)" if len(self.job_ids) > 3 else ""
        super().__init__(f"{problem}; ask again with the same ids: {named}{count}" if named else problem)


class CorruptStateError(BackendError):
    """Stored data breaks an invariant, or is of a newer schema. Nothing was changed."""

    is_lasting = True
