"""
An event loop that runs one callback at a time, chosen by its caller.

Every callback of the loop belongs to an **owner**: the job whose code scheduled it, also from a task that it started.
The caller lets an owner make one step, which is one callback: code from one ``await`` to the next. Inside one owner
callbacks keep their order.

Each owner has its own time, which moves when it makes a step after a sleep. To the others a sleep may take any time:
the length of one job's sleep proves nothing about the progress of another. A timeout fires only against its owner's
own sleeps, or where nothing else can run: it is there for code that hangs.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

OWNER: ContextVar[int | None] = ContextVar("queuehint_owner", default=None)

_WAKE_SLEEPER = getattr(asyncio.futures, "_set_result_unless_cancelled", None)
"""The callback of `asyncio.sleep` when its time is over."""


class _Timers:
    """Timers of one owner, and its virtual time."""

    __slots__ = ("heap", "now_s")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.now_s = 0.0

    def first(self) -> asyncio.TimerHandle | None:
        while self.heap and self.heap[0][2].cancelled():
            heapq.heappop(self.heap)
        return self.heap[0][2] if self.heap else None

    def sleeps(self) -> bool:
        return any(
            getattr(handle, "_callback", None) is _WAKE_SLEEPER for _, _, handle in self.heap if not handle.cancelled()
        )

    def pop(self) -> asyncio.TimerHandle:
        when_s, _, handle = heapq.heappop(self.heap)
        self.now_s = max(self.now_s, when_s)
        return handle


class SteppedLoop(asyncio.AbstractEventLoop):
    """A loop for code that sleeps, locks, gathers and waits for events, without any I/O."""

    def __init__(self) -> None:
        self._ready: dict[int | None, deque[asyncio.Handle]] = {}
        self._timers: dict[int | None, _Timers] = {}
        self._numbers = count()

    # --- whose turn it is ---

    def can_step(self, owner: int | None) -> bool:
        """Return whether an owner has a callback that waits for no other owner."""
        ready = self._ready.get(owner)
        while ready:
            if not ready[0].cancelled():
                return True
            ready.popleft()
        timers = self._timers.get(owner)
        return timers is not None and timers.first() is not None and timers.sleeps()

    def step(self, owner: int | None) -> None:
        """Run one step of an owner that `can_step`, then all callbacks without an owner."""
        ready = self._ready.setdefault(owner, deque())
        if not ready:
            self._timers[owner].pop()._run()
            # All that came of it is that code is called that has slept: that is the step.
        if ready:
            ready.popleft()._run()
        while owner is not None and self.can_step(None):
            self.step(None)

    def time_out(self, of: int | None = None) -> int | None:
        """
        Fire the nearest time-out when no task can continue. Return its owner, None if there is none.

        Args:
            of: an owner, whose time-outs alone count.
        """
        waiting = [
            (first.when() - timers.now_s, str(owner), owner)
            for owner, timers in self._timers.items()
            if of in {None, owner} and (first := timers.first()) is not None
        ]
        if not waiting:
            return None
        owner = min(waiting)[2]
        self._ready.setdefault(owner, deque()).append(self._timers[owner].pop())
        return owner

    # --- what asyncio asks of a loop ---

    def time(self) -> float:
        """Return the seconds that the running owner has slept."""
        timers = self._timers.get(OWNER.get())
        return 0.0 if timers is None else timers.now_s

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback in a step of its owner."""
        handle = asyncio.Handle(callback, args, self, context)
        owner = OWNER.get() if context is None else context.get(OWNER)
        self._ready.setdefault(owner, deque()).append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Like `call_soon`, because there is one thread only."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback after a delay in the virtual time of its owner."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a virtual time of its owner."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        owner = OWNER.get() if context is None else context.get(OWNER)
        timers = self._timers.setdefault(owner, _Timers())
        heapq.heappush(timers.heap, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing. A canceled timer is skipped at its time."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task of the current owner."""
        return asyncio.Task(coro, loop=self, **options)

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Call a plain function in one step, on this thread."""
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_soon(call)
        return future

    def get_debug(self) -> bool:
        """Always false."""
        return False

    def is_running(self) -> bool:
        """Always true."""
        return True

    def is_closed(self) -> bool:
        """Always false."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore the exception of a task that is never awaited."""

    def get_task_factory(self) -> None:
        """There is none."""

    def get_exception_handler(self) -> None:
        """There is none."""


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(self: SteppedLoop, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(
            f"{name}() is real input or output, which cannot be done in every order: give handlers a state that "
            "stands for what is outside"
        )

    return refuse


_KNOWN = {name for name in vars(SteppedLoop) if not name.startswith("__")}
for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in _KNOWN:
        setattr(SteppedLoop, _name, _refuse(_name))
