"""
Callers as threads, one of which runs at a time.

A thread may be stopped wherever another one could have come between: at each line of the queue's code, and before each
instruction that reads or writes an attribute or an item, or calls something. So one line that reads and writes is more
than one step. Code of the standard library is no step of its own; its locks are those of `locks`.
"""

from __future__ import annotations

import _thread
import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

from queuehint.testing.wakes import locks
from queuehint.testing.wakes.crew import is_library, line_of

PATIENCE_S: Final = 10.0
ENDINGS_MAX: Final = 20
"""A thread that was told so many times to end, and goes on, cannot be ended."""
STEPS_MAX: Final = 3_000
"""A thread that makes so many steps without an end waits for something: it polls."""
BY_INSTRUCTION: Final = sys.version_info[:2] != (3, 12)
"""Threads are stopped within a line too. CPython 3.12.1 crashes where instructions are traced."""
_STEPS: Final = ("ATTR", "SUBSCR", "BINARY_OP", "METHOD", "CALL", "GLOBAL", "CONTAINS", "FOR_ITER", "DEREF", "SLICE")
_NO_STEPS: Final = ("LOAD_GLOBAL", "PRECALL")


class Ended(BaseException):
    """Ends the thread of a caller after the end of its history."""


class _Caller:
    def __init__(self) -> None:
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self.call: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self.result: tuple[Any, BaseException | None] | None = None
        self.ident: int | None = None
        self.lock: locks.Lock | None = None
        """What it waits for."""
        self.awaits_notice = False
        """It waits for that lock to be told something, as in `threading.Condition.wait`, which gives it back then."""
        self.sleeps = self.has_timeout = self.is_timed_out = False
        self.steps: int | None = None
        """How many it may still make."""
        self.count = 0
        self.polls = False
        self.frame: FrameType | None = None
        self.endings = 0
        """How often its thread was told to end."""
        self.is_lost = False
        """Its thread does not come back."""


class ThreadCrew:
    """Threads, each of which resumes on request."""

    def __init__(self) -> None:
        self._callers: dict[int, _Caller] = {}
        self._numbers: dict[int, int] = {}
        self._back = _thread.allocate_lock()
        self._back.acquire()
        self._owner = _thread.get_ident()
        self._is_over = False

    # --- what a history asks -------------------------------------------------------------------------------------

    def make(self, factory: Callable[[], Any]) -> Any:
        """Make a queue with the locks of the crew."""
        locks.IN_CHARGE.append(self)
        return factory()

    def begin(self, caller: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Give a thread its next call."""
        made = self._callers.get(caller)
        if made is None:
            made = self._callers[caller] = _Caller()
            _thread.start_new_thread(self._run, (caller, made))
        made.call, made.result, made.frame, made.polls = (function, arguments), None, None, False

    def can_go(self, caller: int) -> bool:
        """Return whether the thread waits for no other one."""
        made = self._callers[caller]
        if made.call is None or made.polls:
            return False
        if made.sleeps:
            return made.is_timed_out
        return made.lock is None or made.is_timed_out or made.lock.is_free(caller)

    def go(self, caller: int, steps: int | None) -> None:
        """Run the thread until it hands back."""
        made = self._callers[caller]
        made.steps, made.count = steps, 0
        made.turn.release()
        if not self._back.acquire(timeout=PATIENCE_S):
            made.is_lost = True
            raise RuntimeError(
                f"a call has not come back for {PATIENCE_S:g} s, at {_stands(made)}: it waits for what is not made of "
                "the locks of threading by the queue itself, so that its callers cannot be run one at a time"
            )
        made.polls = made.count > STEPS_MAX
        if not made.polls:
            for other in self._callers.values():
                other.polls = False

    def ended(self, caller: int) -> tuple[Any, BaseException | None] | None:
        """Return the result of the thread's call."""
        return self._callers[caller].result

    def where(self, caller: int) -> str | None:
        """Return the current line of the thread."""
        return line_of(self._callers[caller].frame)

    def waits_for_lock(self, caller: int) -> bool:
        """Return whether the thread waits for a lock that its holder has to release."""
        made = self._callers[caller]
        return made.lock is not None and not made.awaits_notice

    def holder(self, caller: int) -> int | None:
        """Return the holder of the lock that the thread waits for."""
        lock = self._callers[caller].lock
        return None if lock is None else lock.holder

    def time_out(self, caller: int) -> bool:
        """Let the time of a caller's wait be over."""
        made = self._callers[caller]
        made.is_timed_out = made.sleeps or (made.lock is not None and made.has_timeout)
        return made.is_timed_out

    def close(self) -> None:
        """
        End all threads.

        Raises:
            RuntimeError: one goes on, for it catches what ends it.
        """
        self._is_over = True
        try:
            for made in self._callers.values():
                if made.is_lost:
                    continue  # it was told
                made.turn.release()
                if not self._back.acquire(timeout=PATIENCE_S) or made.is_lost:
                    made.is_lost = True
                    raise RuntimeError(
                        f"a call goes on after its history, at {_stands(made)}: it catches BaseException, so that its "
                        "thread cannot be ended; let pass what is no Exception"
                    )
        finally:
            if self in locks.IN_CHARGE:
                locks.IN_CHARGE.remove(self)

    # --- what its threads ask ------------------------------------------------------------------------------------

    def is_mine(self) -> bool:
        """Return whether this thread is a caller of the crew, or the one that makes the queue."""
        ident = _thread.get_ident()
        return ident == self._owner or ident in self._numbers

    def caller(self) -> int:
        """Return the number of the running caller, -1 for the maker of the queue."""
        return self._numbers.get(_thread.get_ident(), -1)

    def wait(self, lock: locks.Lock, *, has_timeout: bool) -> bool:
        """Wait until a lock is free. Return False after a time-out."""
        number = self.caller()
        if number < 0:
            raise RuntimeError(
                "a lock is waited for while the queue is made: a thread that the queue starts by itself is not run, "
                "only its enqueue, take and end are"
            )
        made = self._callers[number]
        if self._is_over:
            self._end(made)
        made.lock, made.has_timeout = lock, has_timeout
        frame = sys._getframe(1)
        asks = frame.f_back
        made.awaits_notice = asks is not None and asks.f_code is threading.Condition.wait.__code__
        self._hand_back(made, frame)
        made.lock = None
        is_timed_out, made.is_timed_out = made.is_timed_out, False
        return lock.is_free(number) or not is_timed_out

    def sleep(self) -> bool:
        """Sleep until no other caller can continue. Return False in a thread without a call."""
        number = self.caller()
        if number < 0:
            return False
        made = self._callers[number]
        made.sleeps = True
        self._hand_back(made, sys._getframe(1))
        made.sleeps = made.is_timed_out = False
        return True

    def _run(self, number: int, made: _Caller) -> None:
        made.ident = _thread.get_ident()
        self._numbers[made.ident] = number
        try:
            while True:
                made.turn.acquire()
                if made.call is None:
                    return
                function, arguments = made.call
                sys.settrace(self._trace)
                try:
                    made.result = function(*arguments), None
                except Ended:
                    return
                except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is wrong
                    made.result = None, error
                finally:
                    sys.settrace(None)
                made.call = made.frame = None
                if self._has_ended():
                    return
                self._back.release()
        finally:
            del self._numbers[made.ident]
            _forget(made.ident)
            self._back.release()

    def _has_ended(self) -> bool:
        return self._is_over

    def _hand_back(self, made: _Caller, frame: FrameType | None) -> None:
        made.frame = frame
        self._back.release()
        made.turn.acquire()
        if self._is_over:
            self._end(made)

    def _end(self, made: _Caller) -> NoReturn:
        """End the running thread by an error. Abandon a thread that keeps catching it."""
        made.endings += 1
        if made.endings > ENDINGS_MAX:
            made.is_lost, made.frame = True, sys._getframe(1)
            self._back.release()
            while True:
                made.turn.acquire()
        raise Ended

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if is_library(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = BY_INSTRUCTION
        return self._trace_code

    def _trace_code(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" or (event == "opcode" and frame.f_lasti in steps_of(frame.f_code)):
            made = self._callers[self.caller()]
            if self._is_over:
                self._end(made)
            made.count += 1
            if made.count > STEPS_MAX or (made.steps is not None and made.count > made.steps + 1):
                self._hand_back(made, frame)
        return self._trace_code


def _stands(made: _Caller) -> str | None:
    """Return the line at which the thread of a caller stands that has not come back."""
    frame = None if made.ident is None else sys._current_frames().get(made.ident)
    return line_of(frame or made.frame)


def _forget(ident: int) -> None:
    """Remove a crew's thread from `threading.enumerate`, added by `threading.current_thread`."""
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
        if isinstance(active.get(ident), threading._DummyThread):
            del active[ident]


_known: dict[CodeType, frozenset[int]] = {}


def steps_of(code: CodeType) -> frozenset[int]:
    """Return the instructions of code before which another thread may come between."""
    found = _known.get(code)
    if found is None:
        found = frozenset(
            each.offset
            for each in dis.get_instructions(code)
            if any(word in each.opname for word in _STEPS) and each.opname not in _NO_STEPS
        )
        if len(_known) >= 1000:
            _known.clear()
        _known[code] = found
    return found
