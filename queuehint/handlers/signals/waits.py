"""Waits of a running job for signals: the job leaves its worker and place, and runs again once a signal is given."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from queuehint.errors import SignalTimeoutError
from queuehint.handlers.steps.job_steps import check_loop
from queuehint.schema.checks import check_optional_duration
from queuehint.values.record import OVER, JobState
from queuehint.values.signal import check_signal_name, name_of, wait_spec

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from datetime import timedelta

    from queuehint.values.spec import JobSpec

WaitState: TypeAlias = tuple[JobState, bytes | None, str | None]
"""What a wait has come to: its state, the data of the signal, and the cause of another end."""


_RESULT_OF_ANY: Final = {"result": Any}


class JobWaits:
    """The part of `JobContext` for signals."""

    _host: Any

    @property
    @abstractmethod
    def id(self) -> str:
        """The job's id."""

    @property
    @abstractmethod
    def token(self) -> int:
        """The token of this attempt."""

    def wait(self, name: str, *, timeout: float | timedelta | None = None) -> Coroutine[Any, Any, Any]:
        """
        Wait for a signal. Return its data.

        If it was given before, its data is returned at once. Else this attempt ends here, by an exception that is no
        `Exception`: the job is DEFERRED, holds neither a worker nor a place, and the attempt does not count. When the
        signal is given the job takes a place again, and its code is run from the top; this call then returns the data.
        So all code above the call is run again.

        Args:
            name: 1 to 90 bytes, no white space or control characters. Each call for one name is the same wait.
            timeout: how long the job waits at most, counted from its first call, a timedelta or seconds, 1 ms to 10
                years; None for as long as it takes.

        Raises:
            SignalTimeoutError: the signal was not given in time. Each later call of this job for the name raises it
                too, also if the signal is given by then.
            HandlerError: called where no event loop runs, as in a plain handler, which writes `wait_sync`.
            InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
            LeaseLostError: this attempt no longer holds its job.

        .. versionadded:: 1.0.0
        """
        check_loop("wait")
        return self._wait(self._wait_spec(name, timeout))

    async def _wait(self, spec: JobSpec) -> Any:
        return self._come_to(spec, *await self._ask_wait(spec))

    def wait_sync(self, name: str, *, timeout: float | timedelta | None = None) -> Any:
        """Like `wait`, for plain functions."""
        spec = self._wait_spec(name, timeout)
        return self._come_to(spec, *self._ask_wait_sync(spec))

    def _wait_spec(self, name: object, timeout: object) -> JobSpec:
        timeout_ms = check_optional_duration(timeout, parameter="timeout", least_ms=1)
        return wait_spec(check_signal_name(name), self.id, timeout_ms).check()

    def _come_to(self, spec: JobSpec, state: JobState, data: bytes | None, cause: str | None) -> Any:
        """Return the data of an ended wait, or leave until the wait has ended."""
        if state not in OVER:
            self._leave(spec.id)
        if state is not JobState.FINISHED:
            raise SignalTimeoutError(name_of(spec.id) or "", cause)
        return None if data is None else self._host.codec.loads(data, _RESULT_OF_ANY).get("result")

    async def _ask_wait(self, spec: JobSpec) -> WaitState:
        """Return the state of a wait of this job. Begin the wait if there is none."""
        found: WaitState = await self._host.scheduler.ask_wait(spec, (self.id, self.token))
        return found

    def _ask_wait_sync(self, spec: JobSpec) -> WaitState:
        """Do as `_ask_wait`, for plain functions."""
        found: WaitState = self._host.scheduler.ask_wait_sync(spec, (self.id, self.token))
        return found

    @abstractmethod
    def _leave(self, job_id: str) -> NoReturn:
        """End this attempt until a job has ended."""
