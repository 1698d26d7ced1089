"""The part of a job's context that makes steps."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload

from queuehint.errors import HandlerError, InvalidJobTypeError, shown
from queuehint.handlers.steps.ledger import StepLedger
from queuehint.handlers.steps.results import annotations_of, dump, is_async, load
from queuehint.schema.checks import check_name
from queuehint.values.outcome import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from queuehint.handlers.codec import Codec
    from queuehint.values.outcome import Grant
    from queuehint.values.record import StepInfo

P = ParamSpec("P")
T = TypeVar("T")

_FIRST: Final = threading.Lock()
"""Lock for creating the steps of an attempt: its threads share them."""


class StepHost(Protocol):
    """The worker as seen by steps."""

    @property
    def codec(self) -> Codec:
        """How results travel."""

    async def store_step(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """
        Store the result of a step, unless a result of its name is stored.

        Returns:
            When it was stored, and the result that is stored if it was before.

        Raises:
            LeaseLostError: the token is not that of the newest grant.
            InvalidJobError: the job has no room for it.
            BackendError: the store cannot be told.
        """

    def store_step_sync(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """Like `store_step`, for code without a loop."""

    async def run_plain(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a plain function in a thread. Return when the function has ended."""

    def around_step(self, context: Any, name: str) -> AbstractContextManager[Any]:
        """Return the context manager around a step of a job, such as a span."""


class JobSteps:
    """The part of `JobContext` that makes steps."""

    _grant: Grant
    _host: Any
    _ledger: StepLedger | None = None

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """The steps of the job whose results are stored, of earlier attempts too, in the order in which they were."""
        return () if self._ledger is None else self._ledger.infos

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """
        Return the stored result of a step, or call a function and store its result.

        A later attempt gets the stored result, converted by the function's return annotation as results of jobs are,
        and the function is not called. A step counts once it is stored: one that was under way when an attempt ended
        is made again. What the function raises is not stored. Steps may run at the same time, and within one another:
        each is a step of the job.

        Args:
            name: 1–256 bytes, once an attempt; a call that has failed may be made again.
            function: asynchronous or plain; a plain one runs in a thread.
            args, kwargs: of the function; they are not stored.

        Raises:
            HandlerError: called where no event loop runs, as in a plain handler, which writes `step_sync`; or a step of
                that name was called in this attempt.
            InvalidJobError, InvalidJobTypeError: *name* or *function* is wrong; or it is one step more than 1 000.
            PayloadError: the result has no JSON, takes more than 64 KiB as the codec writes it, or all take more than
                16 MiB; or a stored one does not fit the annotation.
            LeaseLostError: this attempt no longer holds its job; nothing was stored.
            BackendError: the store could not be told: the step may be made again.

        .. versionadded:: 1.0.0
        """
        check_loop("step")
        return self._step(name, function, args, kwargs)

    async def _step(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        ledger, annotations, stored = self._begin_step(name, function)
        codec: Codec = self._host.codec
        if stored is not None:
            return load(codec, name, stored, annotations)
        try:
            with self._host.around_step(self, name):
                if is_async(function):
                    result = await function(*args, **kwargs)
                else:
                    result = await self._host.run_plain(function, args, kwargs)
                    if inspect.isawaitable(result):
                        result = await result
                payload = dump(codec, name, result, annotations)
                ledger.take_room(name, payload)
                at_ms, kept = await self._host.store_step(self._grant.spec.id, self._grant.token, Step(name, payload))
        except BaseException:
            ledger.give_up(name)
            raise
        ledger.keep(name, at_ms, payload if kept is None else kept)
        return result if kept is None else load(codec, name, kept, annotations)

    def step_sync(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Like `step`, for plain handlers, ``process=True`` too. The function is plain, and is called here.

        In an asynchronous handler it would block the loop.

        .. versionadded:: 1.0.0
        """
        if is_async(function):
            raise HandlerError(
                f"step {shown(name)}: ctx.step_sync() takes plain functions, and this one is `async def`"
            )
        ledger, annotations, stored = self._begin_step(name, function)
        codec: Codec = self._host.codec
        found: T
        if stored is not None:
            found = load(codec, name, stored, annotations)
            return found
        try:
            with self._host.around_step(self, name):
                result = function(*args, **kwargs)
                payload = dump(codec, name, result, annotations)
                ledger.take_room(name, payload)
                at_ms, kept = self._host.store_step_sync(self._grant.spec.id, self._grant.token, Step(name, payload))
        except BaseException:
            ledger.give_up(name)
            raise
        ledger.keep(name, at_ms, payload if kept is None else kept)
        if kept is None:
            return result
        found = load(codec, name, kept, annotations)
        return found

    def _begin_step(self, name: str, function: Any) -> tuple[StepLedger, dict[str, Any], bytes | None]:
        check_name(name, parameter="name")
        if not callable(function):
            raise InvalidJobTypeError(f"function must be callable, got {type(function).__name__}: {shown(function)}")
        annotations = annotations_of(function)
        ledger = self._ledger
        if ledger is None:
            with _FIRST:
                ledger = self._ledger = self._ledger or StepLedger()
        return ledger, annotations, ledger.begin(name)

    def bring_steps(self, stored: Iterable[tuple[str, int, bytes]], names: Mapping[str, str]) -> None:
        """Set what earlier attempts have stored, and what the code calls it; called by the worker."""
        self._ledger = StepLedger(stored, names)


def check_loop(name: str) -> None:
    """Check that a coroutine can be awaited here, which a plain handler cannot do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise HandlerError(
            f"ctx.{name}() must be awaited, which a plain handler cannot; write ctx.{name}_sync(), "
            "or make the handler an `async def`"
        ) from None
