"""
An event loop in virtual time, with processes that can be killed at any point.

When nothing is ready, the time jumps to the next timer, so ``asyncio.sleep(3600)`` takes no time. Everything runs on
one thread, in one order. A callback belongs to the **process** whose code scheduled it, also from a task that it
started: a context variable holds it. Callbacks of a paused process wait until it continues; those of a killed process
never run again, so that no ``finally`` and no ``except`` of its code does.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

TURNS_MAX = 100_000
"""How often code goes on while no time passes."""

PROCESS: ContextVar[Process | None] = ContextVar("queuehint_process", default=None)


class Process:
    """A simulated process, a worker or a producer. Its tasks run and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_paused = False
        self._parked: list[_Call] = []

    def kill(self) -> None:
        """Kill the process. None of its tasks runs any more."""
        self.is_dead = True
        self._parked.clear()

    def pause(self) -> None:
        """Pause the process while the time passes."""
        self.is_paused = True

    def resume(self, loop: VirtualLoop) -> None:
        """Resume the process. Callbacks that came due meanwhile run in order."""
        self.is_paused = False
        parked, self._parked = self._parked, []
        for call in parked:
            loop.call_again(call)

    def park(self, call: _Call) -> None:
        """Keep a callback until its process resumes."""
        self._parked.append(call)


class _Call:
    """A callback of a process. ``handle`` lets its caller cancel."""

    __slots__ = ("args", "callback", "context", "handle", "process")

    def __init__(
        self, process: Process, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.process = process
        self.callback = callback
        self.args = args
        self.context = context
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        process, handle = self.process, self.handle
        if process.is_dead or (handle is not None and handle.cancelled()):
            return
        if process.is_paused:
            process.park(self)
            return
        self.callback(*self.args)


class DeadlockError(Exception):
    """Nothing is ready and nothing will ever be."""


class EndlessError(Exception):
    """Something is always ready, so that no time can pass."""


class _NoInput:
    """A selector without external input, so that the time jumps."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._turns = 0
        """How often something was ready since time has last passed."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise DeadlockError("nothing is ready, no timer runs: the simulation would wait for ever")
        if timeout > 0:
            self._loop.pass_time(timeout)
            self._turns = 0
            return []
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise EndlessError(
                f"at {self._loop.time():g} s code has gone on {TURNS_MAX} times and no time passes: what waits in a "
                "loop, such as by asyncio.sleep(0), has to sleep for longer than 0 s"
            )
        return []

    def close(self) -> None:
        """Do nothing."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop of one simulated world, without I/O."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._selector = _NoInput(self)

    def time(self) -> float:
        """Return the virtual seconds since the beginning."""
        return self._now_s

    def pass_time(self, seconds: float) -> None:
        """Advance the time, at most to the next timer."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        then_s = self._now_s + seconds
        self._now_s = min(then_s, scheduled[0].when()) if scheduled else then_s

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback in its turn, unless its process is killed before."""
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        call = _Call(process, callback, args, context)
        call.handle = super().call_soon(call, context=context)
        return call.handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Like `call_soon`, because there is one thread only."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a virtual time, unless its process is killed before."""
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        call = _Call(process, callback, args, context)
        handle = super().call_at(when, call, context=context)
        call.handle = handle
        return handle

    def call_again(self, call: Any) -> None:
        """Schedule a callback that came due while its process was paused."""
        super().call_soon(call, context=call.context)

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Call a plain function at once, without a lapse of time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Do nothing, because there is one thread only."""
