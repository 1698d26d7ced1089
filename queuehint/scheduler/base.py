"""The state of a scheduler: its settings, its store, and the application's handlers, schedules and listeners."""

from __future__ import annotations

import asyncio
import os
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

from queuehint.backends.base import BackendOptions, check_namespace, check_scheme, namespace_of, open_backend
from queuehint.backends.masks import masked
from queuehint.backends.steps import run_steps, run_steps_sync
from queuehint.client.event_reader import EventReaders
from queuehint.client.handle import JobHandle, handles_of
from queuehint.client.signals import awaited, given_spec
from queuehint.client.submission import single_of, submit, submit_single
from queuehint.clock import Clock, SystemClock
from queuehint.errors import (
    BackendUnavailableError,
    DuplicateJobError,
    InvalidJobTypeError,
    QueueHintError,
    shown,
)
from queuehint.handlers.codec import JsonCodec
from queuehint.scheduler.listening import Announcer
from queuehint.schema.checks import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    check_bool,
    check_callable,
    check_choice,
    check_duration,
    check_instance,
    check_object,
    check_optional_duration,
)
from queuehint.values.ids import new_id, this_process
from queuehint.values.policy import Retention
from queuehint.values.signal import SIGNAL_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from queuehint.backends.base import Backend
    from queuehint.client.job import Job
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.context import JobContext
    from queuehint.handlers.handler import Handler
    from queuehint.handlers.signals.waits import WaitState
    from queuehint.operations import Enqueued
    from queuehint.values.spec import JobSpec
    from queuehint.worker.lifespan import Lifespan
    from queuehint.worker.schedules.firing import Definition
    from queuehint.worker.worker import Worker

URL_VARIABLE = "QUEUEHINT_URL"
IDS: tuple[Literal["time", "sequence"], ...] = ("time", "sequence")


class SchedulerBase:
    """
    A `Client` with its settings, its store and its handlers: the base of the parts of `Scheduler`.

    The arguments are those of `Scheduler`.
    """

    def __init__(
        self,
        url: str | None,
        namespace: str,
        ids: Literal["time", "sequence"],
        lease: float | timedelta,
        retention: Retention | None,
        codec: Codec | None,
        check_arguments: object,
        redact: Callable[[str], str] | None,
        clock: Clock | None,
        *,
        log_errors: bool,
        patience: float | timedelta | None,
    ) -> None:
        if url is None:
            url = os.environ.get(URL_VARIABLE) or "memory://"
        elif not isinstance(url, str):
            raise InvalidJobTypeError(f"url must be str, got {type(url).__name__}: {shown(url)}")
        self.url = str.__str__(url)
        self.namespace = namespace_of(self.url, check_namespace(namespace))
        check_scheme(self.url)
        self.ids = check_choice(ids, IDS, parameter="ids")
        self.make_id: Callable[[], str] = new_id if self.ids == "time" else _drawn_later
        """Makes the id of a new job; ``""`` stands for one that is drawn when the job is submitted."""
        self.lease_ms = check_duration(lease, parameter="lease", least_ms=LEASE_MIN_MS, most_ms=LEASE_MAX_MS)
        self.codec: Codec = JsonCodec() if codec is None else _check_codec(codec)
        self._check_arguments = check_bool(check_arguments, parameter="check_arguments")
        self._retention = None if retention is None else check_instance(retention, Retention, parameter="retention")
        self._redact = None if redact is None else check_callable(redact, parameter="redact")
        patience_ms = check_optional_duration(patience, parameter="patience", least_ms=100, most_ms=86_400_000)
        self._patience_s = None if patience_ms is None else patience_ms / 1000
        self._log_errors = check_bool(log_errors, parameter="log_errors")
        self._clock = SystemClock() if clock is None else _check_clock(clock)
        self._backend: Backend | None = None
        self._lock = threading.Lock()
        self._handlers: dict[str, Handler] = {}
        self._jobs: dict[str, Job[..., Any]] = {}
        self._definitions: dict[str, tuple[Definition, Any]] = {}
        self._workers: dict[Worker, int] = {}
        self._worker_class: type[Worker] | None = None
        self._before: list[Callable[..., Any]] = []
        self._after: list[Callable[..., Any]] = []
        self.step_hooks: list[Callable[[JobContext, str, int | None], AbstractContextManager[Any]]] = []
        """Return what each step runs in, given its name, and when it began in ns since the epoch if that is over."""
        self.header_sources: list[Callable[[Any], Mapping[str, str] | None]] = []
        self._event_readers = EventReaders(self)
        self._lifespan: Lifespan | None = None
        self._setups: dict[str, Callable[[], Any]] = {}
        self._given_state: Lifespan | None = None
        """In place of the lifespan, in a test."""
        self._announcer = Announcer(self, self._event_readers)

    @property
    def jobs(self) -> Mapping[str, Job[..., Any]]:
        """The jobs registered here, by the names of their tasks."""
        return MappingProxyType(self._jobs)

    def __repr__(self) -> str:
        return f"Scheduler({masked(self.url)!r}, namespace={self.namespace!r})"

    @property
    def backend(self) -> Backend:
        """The store, opened on first use. Refused in a process of a handler if other processes cannot see the store."""
        if self._backend is None:
            with self._lock:
                if self._backend is None:
                    if this_process.has_no_store:
                        raise BackendUnavailableError(
                            "the jobs live in the worker's process, and this is a process of a handler (process=True): "
                            "use ctx.enqueue_sync there, or keep the jobs in PostgreSQL, on Redis or in a file"
                        )
                    options = BackendOptions(
                        namespace=self.namespace,
                        retention=self._retention,
                        patience_s=self._patience_s,
                        clock=self._clock,
                    )
                    self._backend = open_backend(self.url, options)
        return self._backend

    @property
    def clock(self) -> Clock:
        """The time of the application, which times the delays of jobs in its transactions."""
        return self._clock

    # --- `Client` ------------------------------------------------------------------------------------------------

    def handler(self, task: str) -> Handler | None:
        """Return the handler of a task, if this process has it."""
        return self._handlers.get(task)

    async def submit_checked(
        self,
        specs: list[JobSpec],
        *,
        parent: tuple[str, int] | None = None,
        whole: bool = False,
        flow_timeout_ms: int | None = None,
    ) -> list[JobHandle[Any]]:
        """
        Enqueue jobs by specs that were checked on creation. The arguments are those of `submission.submit`.

        One job as it is goes without steps, for as long as nothing follows from its operation.
        """
        backend = self._backend or self.backend
        if not whole and (single := single_of(specs, parent)) is not None:
            outcome: Enqueued | QueueHintError
            try:
                outcome = await backend.call(single)
            except QueueHintError as error:
                outcome = error
            else:
                if backend.owes_turn(single):
                    await asyncio.sleep(0)
                if not outcome.more:
                    return handles_of(self, outcome.jobs)
            return handles_of(self, await run_steps(backend, submit_single(single, outcome)))
        steps = submit(
            specs,
            codec=self.codec,
            parent=parent,
            whole=whole,
            flow_timeout_ms=flow_timeout_ms,
            small_parts=not backend.is_local,
        )
        jobs = await run_steps(backend, steps)
        return handles_of(self, jobs)

    def submit_checked_sync(
        self,
        specs: list[JobSpec],
        *,
        parent: tuple[str, int] | None = None,
        whole: bool = False,
        flow_timeout_ms: int | None = None,
    ) -> list[JobHandle[Any]]:
        """Like `submit_checked`, for code without a loop."""
        backend = self._backend or self.backend
        if not whole and (single := single_of(specs, parent)) is not None:
            outcome: Enqueued | QueueHintError
            try:
                outcome = backend.call_sync(single)
            except QueueHintError as error:
                outcome = error
            else:
                if not outcome.more:
                    return handles_of(self, outcome.jobs)
            return handles_of(self, run_steps_sync(backend, submit_single(single, outcome)))
        steps = submit(
            specs,
            codec=self.codec,
            parent=parent,
            whole=whole,
            flow_timeout_ms=flow_timeout_ms,
            small_parts=not backend.is_local,
        )
        jobs = run_steps_sync(backend, steps)
        return handles_of(self, jobs)

    # --- signals -------------------------------------------------------------------------------------------------

    async def signal(self, name: str, data: Any = None, *, keep: float | timedelta = SIGNAL_KEPT) -> bool:
        """
        Give a signal: waiting jobs go on with its data, and later waits for this signal end at once.

        A signal is given once, and the first data counts, for all. It may be given before any job waits for it.

        Args:
            name: 1 to 90 bytes, no white space or control characters.
            data: what the jobs get: JSON of at most 64 KiB, as the codec writes it.
            keep: how long the signal is kept once it is given, a timedelta or seconds, 1 ms to 10 years, and longer
                while a job that waited for it may still run. After that it may be given anew.

        Returns:
            Whether this data counts: False if the signal was given with other data. The same call again returns the
            same, so it may be repeated after an `OutcomeUnknownError`.

        Raises:
            InvalidJobError, InvalidJobTypeError, PayloadError: naming the parameter, the value and the limit.

        .. versionadded:: 1.0.0
        """
        try:
            await self.submit_checked([given_spec(name, data, keep, self.codec)])
        except DuplicateJobError:
            return False
        return True

    def signal_sync(self, name: str, data: Any = None, *, keep: float | timedelta = SIGNAL_KEPT) -> bool:
        """Like `signal`, for code without a loop."""
        try:
            self.submit_checked_sync([given_spec(name, data, keep, self.codec)])
        except DuplicateJobError:
            return False
        return True

    async def ask_wait(self, spec: JobSpec, parent: tuple[str, int]) -> WaitState:
        """Return the state of a running job's wait for a signal, for `JobContext.wait`. See `signals.awaited`."""
        return await run_steps(self.backend, awaited(spec, parent))

    def ask_wait_sync(self, spec: JobSpec, parent: tuple[str, int]) -> WaitState:
        """Like `ask_wait`, for code without a loop."""
        return run_steps_sync(self.backend, awaited(spec, parent))

    def runs_workers_here(self) -> bool:
        """Return whether the calling thread runs a loop on which this scheduler has workers."""
        return threading.get_ident() in self._workers.values()

    # --- life ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the store. A further call opens the store again."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()

    def close_sync(self) -> None:
        """Like `close`, for code without a loop."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close_sync()

    async def __aenter__(self) -> Self:
        """Return the scheduler. Leaving the block closes its store."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()


def _drawn_later() -> str:
    return ""


def _check_codec(codec: object) -> Codec:
    checked: Codec = check_object(codec, "dumps", "loads", parameter="codec", what="a Codec")
    return checked


def _check_clock(clock: object) -> Clock:
    checked: Clock = check_object(clock, "now_ms", "subscribe", parameter="clock", what="a Clock")
    return checked
