"""A backend as a queue that `check_queue` can drive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint import operations as op
from queuehint.errors import InvalidJobTypeError, shown
from queuehint.scheduler.scheduler import Scheduler
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from queuehint.backends.base import Backend
    from queuehint.testing.histories.history import Ended
    from queuehint.testing.trace import TraceJob


class BackendQueue:
    """
    A backend, or that of a scheduler, for `check_queue`.

    Args:
        backend: empty, and its caller's to close unless *close* is True.
        close: close the backend after each history.

    >>> from queuehint import Scheduler
    >>> from queuehint.testing import BackendQueue, check_queue
    >>> check_queue(lambda: BackendQueue(Scheduler("memory://")), max_examples=50).histories
    50

    .. versionadded:: 1.0.0
    """

    features = ("edges", "shared", "several", "unplaced")
    """Its abilities, for `check_queue`."""

    def __init__(self, backend: Backend | Scheduler, *, close: bool = True) -> None:
        self._backend: Backend = backend.backend if isinstance(backend, Scheduler) else backend
        if not callable(getattr(self._backend, "call_sync", None)):
            raise InvalidJobTypeError(
                f"backend must be a Backend or a Scheduler, got {type(backend).__name__}: {shown(backend)}"
            )
        self._owner = backend if close else None
        self._tokens: dict[str, int] = {}
        self._pools: dict[str, None] = {}

    def enqueue(self, job: TraceJob) -> None:
        """Enqueue a job with unlimited attempts."""
        policy = Policy(
            max_attempts=1000,
            on_retry=job.on_retry,
            on_dead=job.on_dead,
            on_dependency_failure=job.on_dependency_failure,
        )
        self._pools[job.pool] = None
        spec = JobSpec(
            id=job.id,
            task=job.task or "task",
            claims=job.claims,
            depends_on=job.depends_on,
            pool=job.pool,
            user=job.user,
            priority=job.priority,
            policy=policy,
        )
        self._do(op.Enqueue((spec,)))

    def start(self) -> str | None:
        """Claim one job."""
        reply = self._do(op.Exchange("w", pools=tuple(self._pools) or ("default",), limit=1))
        for grant in reply.grants:
            self._tokens[grant.spec.id] = grant.token
            found: str = grant.spec.id
            return found
        return None

    def end(self, job_id: str, outcome: Ended) -> None:
        """Settle a job. A retried job is due again at once."""
        kind = OutcomeKind.FINISHED if outcome == "finished" else OutcomeKind.FAILED
        report = Outcome(job_id=job_id, token=self._tokens.pop(job_id), kind=kind, final=outcome == "failed")
        self._do(op.Exchange("w", settle=(report,)))

    def cancel(self, job_id: str) -> None:
        """Cancel a job that waits."""
        self._do(op.Cancel((job_id,)))

    def close(self) -> None:
        """Close the backend."""
        if self._owner is not None:
            self._owner.close_sync()

    def _do(self, operation: Any) -> Any:
        """Apply an operation and its follow-up work."""
        reply = self._backend.call_sync(operation)
        is_more = reply.more
        while is_more:
            is_more = self._backend.call_sync(op.Tick()).more
        return reply
