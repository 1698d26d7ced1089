"""`JobHandle`: state, result and control of one enqueued job."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast, overload

from queuehint.backends.base import Interest
from queuehint.backends.steps import run_steps, run_steps_sync, was_in_vain
from queuehint.client.circles import explained
from queuehint.client.holds import identity_of
from queuehint.client.record_reads import read_record
from queuehint.client.stuck import HoldWatch, StuckWatch, failure_of
from queuehint.errors import (
    InvalidJobError,
    InvalidJobTypeError,
    InvalidTransitionError,
    JobCanceledError,
    JobNotFoundError,
    ResultTimeoutError,
    WouldDeadlockError,
    shown,
    shows_itself,
)
from queuehint.handlers.context import is_in_handler, refuse_to_wait
from queuehint.operations import CHAIN_MAX, Cancel, Chain, Get, Redrive, Verdict, Why
from queuehint.schema.checks import check_bool, check_id, check_int, check_name, check_optional_duration
from queuehint.values.hint import parse_path
from queuehint.values.outcome import Progress
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import Reason
from queuehint.values.spec import Dependency, When

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from datetime import timedelta

    from queuehint.backends.base import Backend
    from queuehint.clock import Clock
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.handler import Handler
    from queuehint.operations import EnqueuedJob
    from queuehint.values.spec import JobSpec

R = TypeVar("R")

WAIT_CEILING_S = 5.0
EVENTS_PAUSE_S = 0.02
"""Changes within this time are seen as one."""


class Submitter(Protocol):
    """The target of a submission: the store, or a transaction of the application."""

    async def submit_checked(
        self,
        specs: list[JobSpec],
        *,
        parent: tuple[str, int] | None = None,
        whole: bool = False,
        flow_timeout_ms: int | None = None,
    ) -> list[JobHandle[Any]]:
        """Enqueue jobs by specs that were checked on creation. The arguments are those of `submission.submit`."""

    def submit_checked_sync(
        self,
        specs: list[JobSpec],
        *,
        parent: tuple[str, int] | None = None,
        whole: bool = False,
        flow_timeout_ms: int | None = None,
    ) -> list[JobHandle[Any]]:
        """Like `submit_checked`, for code without a loop."""


class Client(Submitter, Protocol):
    """
    The scheduler as its jobs, handles, flows, records and schedules see it.

    Args:
        codec: how arguments and results travel.
        namespace: of the jobs it enqueues.
        header_sources: called with each `Job` that is about to be enqueued, for headers of the moment.
    """

    codec: Codec
    namespace: str
    header_sources: list[Callable[[Any], Mapping[str, str] | None]]

    @property
    def backend(self) -> Backend:
        """The store."""

    @property
    def clock(self) -> Clock:
        """The time of the application."""

    def handler(self, task: str) -> Handler | None:
        """Return the handler of a task, if this process has it."""

    def make_id(self) -> str:
        """Return an id for a new job. ``""`` stands for an id that the submission draws."""

    def runs_workers_here(self) -> bool:
        """Return whether the calling thread runs a loop on which this scheduler has workers."""


class InFlow(Protocol):
    """A flow under construction, as its jobs' dependencies see it."""

    def note_outside(self, job_id: str) -> None:
        """Record the id of a job outside of the flow on which a job of the flow depends."""


_new = object.__new__


def handles_of(client: Client, jobs: Collection[EnqueuedJob]) -> list[JobHandle[Any]]:
    """Return a handle of each enqueued job, as its class makes them, in half the time."""
    handles: list[JobHandle[Any]] = [_new(JobHandle) for _ in jobs]
    for handle, job in zip(handles, jobs, strict=True):
        handle._client = client  # noqa: SLF001 - its own class
        handle.id = job.id
        handle.created = job.created
    return handles


@shows_itself
class JobHandle(Generic[R]):
    """
    A handle of one job: its state, result and reasons to wait.

    Args:
        id: the job's id.
        created: False when the submission found the job there already.
    """

    __slots__ = ("_client", "created", "id")

    def __init__(self, client: Client, job_id: str, *, created: bool = False) -> None:
        self._client = client
        self.id = job_id
        self.created = created

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    def edges(self, when: When, client: Client, flow: InFlow | None = None) -> Sequence[Dependency]:
        """
        Return the edges of a job that depends on this job. See `Job.using`.

        Args:
            client: where that one is submitted.
            flow: the flow it is added to, if it is.

        Raises:
            InvalidJobError: this job is of another namespace, or of another store.
        """
        job_id = self.id_for(client, "after")
        if flow is not None:
            flow.note_outside(job_id)
        return (Dependency(job_id, when),)

    def id_for(self, client: Client, parameter: str) -> str:
        """
        Return the job's id for a call of *client*, if the id belongs to this job and no other.

        Args:
            parameter: what the call takes the handle as, for the message.

        Raises:
            InvalidJobError: this job is of another namespace, or of another store.
        """
        mine = self._client
        if mine is not client:
            job = f"{parameter}: job {shown(self.id)}"
            if mine.namespace != client.namespace:
                raise InvalidJobError(f"{job} is of namespace {shown(mine.namespace)}, not {shown(client.namespace)}")
            if identity_of(mine.backend) != identity_of(client.backend):
                raise InvalidJobError(f"{job} is of another store; if both are the same store, give its id")
        return self.id

    async def record(self) -> JobRecord:
        """
        Return the record of the job.

        Raises:
            JobNotFoundError: its record has expired.
        """
        return self._found((await self._client.backend.call(Get((self.id,)))).records[0])

    def record_sync(self) -> JobRecord:
        """Like `record`, for code without a loop."""
        return self._found(self._client.backend.call_sync(Get((self.id,))).records[0])

    async def state(self) -> JobState:
        """Return the job's state. Raises as `record`."""
        return (await self.record()).state

    def state_sync(self) -> JobState:
        """Like `state`, for code without a loop."""
        return self.record_sync().state

    async def progress(self) -> Progress | None:
        """Return the progress last reported by the handler, None without any. Raises as `record`."""
        return (await self.record()).progress

    def progress_sync(self) -> Progress | None:
        """Like `progress`, for code without a loop."""
        return self.record_sync().progress

    @overload
    async def why(self) -> Reason: ...
    @overload
    async def why(self, *, chain: Literal[True]) -> tuple[Reason, ...]: ...
    async def why(self, *, chain: bool = False) -> Reason | tuple[Reason, ...]:
        """
        Return why the job waits, and its blockers. Raises as `record`.

        Args:
            chain: return up to 16 reasons, from this job to the root cause of its wait; as in `Scheduler.why`.
        """
        return reasons_of(await run_steps(self._client.backend, explained(asked_why(self.id, chain))), chain)

    @overload
    def why_sync(self) -> Reason: ...
    @overload
    def why_sync(self, *, chain: Literal[True]) -> tuple[Reason, ...]: ...
    def why_sync(self, *, chain: bool = False) -> Reason | tuple[Reason, ...]:
        """Like `why`, for code without a loop."""
        return reasons_of(run_steps_sync(self._client.backend, explained(asked_why(self.id, chain))), chain)

    async def cancel(self, reason: str | None = None) -> bool:
        """
        Cancel the job. A running job is requested to stop, and is FINISHED if its handler returns all the same.

        Returns:
            True if the job is CANCELED now, False if its worker has yet to stop it.

        Raises:
            JobNotFoundError: its record has expired.
            InvalidTransitionError: it is over.
        """
        return self._canceled((await self._client.backend.call(self._cancellation(reason))).verdicts[0])

    def cancel_sync(self, reason: str | None = None) -> bool:
        """Like `cancel`, for code without a loop."""
        return self._canceled(self._client.backend.call_sync(self._cancellation(reason)).verdicts[0])

    async def run_now(self) -> bool:
        """
        Make the job due before its time, as `Scheduler.run_now`.

        Returns:
            True if it is due now, False if it waits for no time (any more): it runs, is ready, or waits for others.

        Raises:
            JobNotFoundError: its record has expired.
            InvalidTransitionError: it is over.
        """
        return self._made_due((await self._client.backend.call(make_due((self.id,)))).verdicts[0])

    def run_now_sync(self) -> bool:
        """Like `run_now`, for code without a loop."""
        return self._made_due(self._client.backend.call_sync(make_due((self.id,))).verdicts[0])

    async def result(self, timeout: float | timedelta | None = None) -> R:
        """
        Wait until the job has ended and return its result.

        A result that is waited for when the job ends can be read for a minute, however short its retention is. After
        a few seconds a wait that nothing will end by itself, for no worker serves the job or a dead one is before it,
        is warned of (`QueueHintWarning`), once for each cause.

        Args:
            timeout: a timedelta or seconds; None waits for ever.

        Raises:
            JobFailedError, JobCanceledError: it ended so; or a job it depends on is FAILED, and it would wait until
                that one is redriven. If it may be, ask again.
            ResultTimeoutError: it is not over in time, and says why; it goes on.
            JobNotFoundError: its record has expired.
            WouldDeadlockError: called inside a handler, or below an `exclusive` whose place the job needs, and the job
                is not over.
        """
        limit_ms = check_optional_duration(timeout, parameter="timeout")
        backend = self._client.backend
        deadline = None if limit_ms is None else time.monotonic() + limit_ms / 1000
        watch = StuckWatch(backend, self.id, "result()", is_bounded=limit_ms is not None)
        if limit_ms != 0 and watch.holds.is_due:
            await run_steps(backend, watch.look())
        while True:
            # It waits before it looks: what ends in between is then kept for it, however short its retention.
            if not is_in_handler() and (wait_s := _wait_s(deadline, watch)):
                begun_s = time.monotonic()
                await backend.wait(Interest(jobs=(self.id,)), wait_s)
                if was_in_vain(begun_s, wait_s):
                    await run_steps(backend, watch.look())
                    continue
            record = await self.record()
            if record.state.is_over:
                return cast("R", outcome(self._client, record))
            refuse_to_wait("result()", self.id)
            if limit_ms is not None and time.monotonic() >= (deadline or 0):
                raise ResultTimeoutError(self.id, limit_ms / 1000, await run_steps(backend, watch.reasons()))

    def result_sync(self, timeout: float | timedelta | None = None) -> R:
        """
        Like `result`, blocking this thread.

        Raises:
            WouldDeadlockError: also on the thread of a loop that runs this scheduler's own workers.
        """
        limit_ms = check_optional_duration(timeout, parameter="timeout")
        backend = self._client.backend
        deadline = None if limit_ms is None else time.monotonic() + limit_ms / 1000
        watch = StuckWatch(backend, self.id, "result_sync()", is_bounded=limit_ms is not None)
        if limit_ms != 0 and watch.holds.is_due:
            run_steps_sync(backend, watch.look())
        while True:
            may_wait = not is_in_handler() and not self._client.runs_workers_here()
            if may_wait and (wait_s := _wait_s(deadline, watch)):
                begun_s = time.monotonic()
                backend.wait_sync(Interest(jobs=(self.id,)), wait_s)
                if was_in_vain(begun_s, wait_s):
                    run_steps_sync(backend, watch.look())
                    continue
            record = self.record_sync()
            if record.state.is_over:
                return cast("R", outcome(self._client, record))
            refuse_to_wait("result_sync()", self.id)
            if not may_wait:
                raise WouldDeadlockError("result_sync()", self.id, where="on the thread of the workers' loop")
            if limit_ms is not None and time.monotonic() >= (deadline or 0):
                raise ResultTimeoutError(self.id, limit_ms / 1000, run_steps_sync(backend, watch.reasons()))

    async def events(self) -> AsyncIterator[JobRecord]:
        """
        Yield the job's record now and after each observed change, until the job has ended.

        Changes that follow one another quickly may be seen as one; the last state is always seen.
        """
        version = 0
        holds = HoldWatch(self._client.backend, "events()")
        while True:
            record = self._found(await read_record(self._client.backend, self.id))
            if record.version != version:
                version = record.version
                yield record
            if record.state.is_over:
                return
            refuse_to_wait("events()", self.id)
            if holds.is_due:
                await run_steps(self._client.backend, holds.look((self.id,)))
            is_in_vain = True
            while is_in_vain:
                begun_s = time.monotonic()
                await self._client.backend.wait(Interest(jobs=(self.id,), version=version), WAIT_CEILING_S)
                is_in_vain = was_in_vain(begun_s, WAIT_CEILING_S)
            await asyncio.sleep(0 if self._client.backend.is_local else EVENTS_PAUSE_S)

    def _found(self, record: JobRecord | None) -> JobRecord:
        if record is None:
            raise JobNotFoundError(self.id)
        return record

    def _cancellation(self, reason: str | None) -> Cancel:
        return Cancel((self.id,), checked_reason(reason))

    def _canceled(self, verdict: tuple[Verdict, JobState | None]) -> bool:
        if verdict[0] is Verdict.UNKNOWN:
            raise JobNotFoundError(self.id)
        if verdict[0] is Verdict.REFUSED:
            raise InvalidTransitionError(self.id, verdict[1] or "unknown", JobState.CANCELED)
        return verdict[0] is Verdict.DONE

    def _made_due(self, verdict: tuple[Verdict, JobState | None]) -> bool:
        if verdict[0] is Verdict.UNKNOWN:
            raise JobNotFoundError(self.id)
        if verdict[1] is not None and verdict[1].is_over and verdict[0] is Verdict.REFUSED:
            raise InvalidTransitionError(self.id, verdict[1], JobState.QUEUED)
        return verdict[0] is Verdict.DONE


def _wait_s(deadline: float | None, watch: StuckWatch) -> float:
    """Return the longest wait until the next look. Return 0 at the end of the time."""
    wait_s = min(watch.rest_s or WAIT_CEILING_S, WAIT_CEILING_S)
    return wait_s if deadline is None else min(max(0.0, deadline - time.monotonic()), wait_s)


def checked_reason(reason: str | None) -> str | None:
    """
    Return the checked reason of a cancellation, None without a reason.

    Raises:
        InvalidJobError, InvalidJobTypeError: it is not valid.
    """
    return None if reason is None else check_name(reason, parameter="reason")


def asked_why(job_id: str, chain: object) -> Why:
    """Return the query for the reason of a job's wait, or for the chain of reasons."""
    return Why(job_id, CHAIN_MAX if chain is not False and check_bool(chain, parameter="chain") else 1)


PATH_JOBS = 3
"""How many of the oldest and of the newest jobs of a path are named, unless a call says otherwise."""


def why_asked(client: Client, job: object, chain: object, path: object, limit: object) -> Why:
    """
    Return the query for the reason of a job's wait, or for the waits at a path.

    Args:
        job, path: one of the two.
        limit: how many of the oldest jobs of the path are named, and how many of the newest; None for 3.

    Raises:
        InvalidHintError, InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit; there is
            no chain of a path.
    """
    if (job is None) is (path is None):
        raise InvalidJobTypeError("give the id of a job or path, one of the two")
    if path is None:
        if limit is not None:
            raise InvalidJobTypeError(f"limit requires path, not a job, got {shown(limit)}")
        return asked_why(id_of(client, job, "job"), chain)
    if chain is not False:
        raise InvalidJobTypeError(f"chain requires a job, not path, got {shown(chain)}")
    most = PATH_JOBS if limit is None else check_int(limit, parameter="limit", least=1, most=CHAIN_MAX)
    return Why(None, most, parse_path(path))


def reasons_of(reply: Chain, chain: object) -> Reason | tuple[Reason, ...]:
    """Return the reply in the form of the public API."""
    return reply.reasons if chain else reply.reasons[0]


def id_of(client: Client, job: object, parameter: str = "id") -> str:
    """
    Return the id of a job from its id or a handle.

    Args:
        parameter: what the call takes it as, for the message.

    Raises:
        InvalidJobError, InvalidJobTypeError: it is no id, or of another namespace or store; see `JobHandle.id_for`.
    """
    return job.id_for(client, parameter) if isinstance(job, JobHandle) else check_id(job)


def make_due(ids: tuple[str, ...]) -> Redrive:
    """Return the operation that makes waiting jobs due."""
    return Redrive(ids, waiting=True)


def outcome(client: Client, record: JobRecord) -> Any:
    """
    Return the result of a job that has ended.

    Raises:
        JobFailedError, JobCanceledError: it ended so.
    """
    if record.state is JobState.FAILED:
        raise failure_of(record)
    if record.state is JobState.CANCELED:
        raise JobCanceledError(record.id, record.cause)
    handler = client.handler(record.spec.task)
    if handler is not None:
        return handler.load_result(client.codec, record.result)
    return None if record.result is None else client.codec.loads(record.result, {}).get("result")
