"""
The error tree: every exception queuehint raises on purpose.

Each class states one fact, keeps the details as attributes and builds its own message, so that callers match
on types and attributes and people read the text. Bad input is refused before anything is sent or changed, by a
class that is also the built-in (`ValueError`, `TypeError`, `LookupError`, `TimeoutError`) a reader expects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUE_LENGTH_MAX = 80


def shown(value: object) -> str:
    """Return ``repr(value)`` cut at 80 characters; a repr that raises is replaced by the type's name."""
    try:
        # A huge string is cut before it is escaped, so that the message costs nothing in proportion to the value.
        text = str.__str__(repr(value[: VALUE_LENGTH_MAX + 1] if isinstance(value, (str, bytes)) else value))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a hostile __repr__ must not replace the error being reported
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 1] + "…"


class QueueHintError(Exception):
    """Everything queuehint raises on purpose is one of these."""


class InvalidHintError(QueueHintError, ValueError):
    """A queue hint, a path or a claim breaks a rule or a limit."""


class InvalidHintTypeError(InvalidHintError, TypeError):
    """A queue hint, a path or a claim is of the wrong type."""


class InvalidJobError(QueueHintError, ValueError):
    """A number, time, id or option of a job, a scheduler or a worker breaks a rule or a limit."""


class InvalidJobTypeError(InvalidJobError, TypeError):
    """A number, time, id or option of a job, a scheduler or a worker is of the wrong type."""


class PayloadError(QueueHintError, ValueError):
    """An argument or a result is not JSON, or larger or deeper than allowed; *path* says where (``$.ops[3]``)."""

    def __init__(self, problem: str, *, path: str = "$") -> None:
        self.problem = problem
        self.path = path
        super().__init__(f"{path}: {problem}")


class TemplateError(QueueHintError, ValueError):
    """A template names a job, field or argument that is not there."""


class WouldDeadlockError(QueueHintError, RuntimeError):
    """Code inside a handler, or on the thread that runs the handlers, asked to wait for a job; neither ever may."""

    def __init__(self, call: str, job_id: str | None = None, *, where: str = "inside a handler") -> None:
        self.call = call
        self.job_id = job_id
        which = f" for job {job_id!r}" if job_id else ""
        super().__init__(
            f"{call}{which} {where} could wait for ever: the job may stand behind this one. Enqueue a job "
            "behind it (same queue_hint), or let this handler end and have the next step be a job of its own"
        )


class JobNotFoundError(QueueHintError, LookupError):
    """No job has this id: it never existed, or its record has expired."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {shown(job_id)}: it was never enqueued here, or its record has expired")


class DuplicateJobError(QueueHintError):
    """The id is taken by a job of other content, or the key by an unfinished job; nothing was enqueued."""

    def __init__(self, job_id: str, *, fields: Sequence[str] = (), key: str | None = None) -> None:
        self.job_id = job_id
        self.fields = tuple(fields)
        self.key = key
        if key is not None:
            what = f"key {shown(key)} belongs to the unfinished job {shown(job_id)}"
        elif fields:
            what = f"job {shown(job_id)} exists with another {', '.join(fields)}"
        else:
            what = f"job id {shown(job_id)} appears twice in one submission"
        super().__init__(what)


class InvalidTransitionError(QueueHintError):
    """A job cannot make this move from the state it is in; nothing was changed."""

    def __init__(self, job_id: str, state: str, target: str) -> None:
        self.job_id = job_id
        self.state = state
        self.target = target
        super().__init__(f"job {shown(job_id)} is {state} and cannot become {target}")


class StaleRecordError(QueueHintError):
    """The record has changed since it was read at *version*; nothing was changed."""

    def __init__(self, job_id: str, version: int) -> None:
        self.job_id = job_id
        self.version = version
        super().__init__(f"the record of job {shown(job_id)} is no longer at version {version}: read it again")


class LeaseLostError(QueueHintError):
    """The token is not that of the job's newest grant: the job was reaped or is over; nothing was changed."""

    def __init__(self, job_id: str, token: int) -> None:
        self.job_id = job_id
        self.token = token
        super().__init__(
            f"token {token} no longer holds job {shown(job_id)}: it was reaped, given to another or is over"
        )


class PathClosedError(QueueHintError):
    """The path is closed: it takes no new jobs until it is reopened; nothing was enqueued."""

    def __init__(self, path_key: str) -> None:
        self.path_key = path_key
        super().__init__(f"path {shown(path_key)} is closed and takes no new jobs; reopen it to go on")


class JobFailedError(QueueHintError):
    """The job whose result was asked for is FAILED; *error_type*, *message* and *traceback* are text."""

    def __init__(self, job_id: str, error_type: str, message: str, traceback: str | None = None) -> None:
        self.job_id = job_id
        self.error_type = error_type
        self.message = message
        self.traceback = traceback
        super().__init__(f"job {shown(job_id)} failed: {error_type}: {message}")


class JobCanceledError(QueueHintError):
    """The job whose result was asked for is CANCELED; *cause* says by what."""

    def __init__(self, job_id: str, cause: str | None) -> None:
        self.job_id = job_id
        self.cause = cause
        super().__init__(f"job {shown(job_id)} was canceled" + (f": {cause}" if cause else ""))


class ResultTimeoutError(QueueHintError, TimeoutError):
    """The job was not over within the time given; it goes on."""

    def __init__(self, job_id: str, timeout_s: float) -> None:
        self.job_id = job_id
        self.timeout_s = timeout_s
        super().__init__(f"job {shown(job_id)} was not over within {timeout_s:g} s")


class DrainTimeoutError(QueueHintError, TimeoutError):
    """Unfinished jobs were left when the time given to `drain` was over."""

    def __init__(self, unfinished: int, timeout_s: float) -> None:
        self.unfinished = unfinished
        self.timeout_s = timeout_s
        super().__init__(f"{unfinished} unfinished jobs were left after {timeout_s:g} s")


class DrainStalledError(QueueHintError):
    """Unfinished jobs are left and none can move without a person; *reasons* holds one `Reason` each."""

    def __init__(self, reasons: Sequence[Any]) -> None:
        self.reasons = tuple(reasons)
        listing = "; ".join(str(reason) for reason in self.reasons[:5])
        super().__init__(f"{len(self.reasons)} unfinished jobs cannot move without a person: {listing}")


class MissingExtraError(QueueHintError, ImportError):
    """What was asked for needs a package that an extra of queuehint installs."""

    def __init__(self, extra: str, what: str) -> None:
        self.extra = extra
        super().__init__(f"{what} need an extra: pip install 'queuehint[{extra}]'")


class HandlerError(QueueHintError):
    """A handler or its registration is wrong: a name taken twice, a template its signature cannot fill."""


class DependencyError(QueueHintError):
    """An explicit edge cannot be made."""


class CycleError(DependencyError, ValueError):
    """Edges would close a circle; *cycle* holds just the jobs on it."""

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        """Each job waits for the next, the last for the first."""
        names = [*self.cycle[:10], *(["…"] if len(self.cycle) > 10 else []), *self.cycle[:1]]
        super().__init__(" → ".join(names))


class UnknownDependencyError(DependencyError, LookupError):
    """A job names a dependency that does not exist."""

    def __init__(self, job_id: str, dependency: str) -> None:
        self.job_id = job_id
        self.dependency = dependency
        super().__init__(f"job {shown(job_id)} depends on {shown(dependency)}, which does not exist")


class FlowNotFoundError(QueueHintError, LookupError):
    """No flow has this id: it was never committed, or its records have expired."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        super().__init__(f"no flow {shown(flow)}: it was never committed, or its records have expired")


class ScheduleNotFoundError(QueueHintError, LookupError):
    """No schedule has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no schedule {shown(name)}")


class ScheduleChangedError(QueueHintError):
    """A schedule was fired, changed or removed since a firing of it was worked out; nothing was enqueued."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"schedule {shown(name)} was fired, changed or removed meanwhile")


class BackendError(QueueHintError):
    """The store cannot serve the operation."""


class BackendUnavailableError(BackendError):
    """The store cannot be reached, or the backend was closed."""


class BackendDeniedError(BackendError):
    """The store refuses this user a command."""


class BackendInUseError(BackendDeniedError):
    """Another process has the store, which one at a time may use: *path* says which, *pid* who, None if not known."""

    def __init__(self, path: str, pid: int | None) -> None:
        self.path = path
        self.pid = pid
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"{path} is in use by {who}, and one process at a time may use it: stop that one, or keep the jobs on Redis"
        )


class BackendFullError(BackendError):
    """The store has no memory, or no room on its disk, left; nothing was enqueued."""


class QueueFullError(BackendError):
    """
    More jobs would be unfinished than a limit allows; nothing was enqueued. Try again when some are over.

    *path_key* says where, None for the whole namespace; *pending* were unfinished there, *limit* may be.
    """

    def __init__(self, path_key: str | None, pending: int, limit: int) -> None:
        self.path_key = path_key
        self.pending = pending
        self.limit = limit
        where = "the namespace" if path_key is None else f"path {shown(path_key)}"
        super().__init__(f"{where} has {pending} unfinished jobs and takes at most {limit}; nothing was enqueued")


class OutcomeUnknownError(BackendError):
    """The connection broke before the reply: the operation may or may not have been applied."""


class CorruptStateError(BackendError):
    """What is stored breaks an invariant; nothing was changed."""
